"use strict";
/* Lesson 2: scores, divided by a temperature, become weights. */
widgets.add("softmax", {
  title: "Try it: scores and a temperature",
  state: () => ({ scores: [2, 1.5, 0, -1], temperature: 1 }),
  compute: ({ scores, temperature }) => ({ weights: widgets.softmax(scores.map((z) => z / temperature)) }),
  build: ({ slider, bars, say }, state) => {
    const powers = { of: (x) => 10 ** x, from: Math.log10 };
    const sliders = [slider("temperature", state, "temperature", { min: -1.3, max: 1.7, step: 0.1, ...powers })];
    for (const s of state.scores.keys())
      sliders.push(slider(`score ${s}`, state.scores, s, { min: -4, max: 4, step: 0.5, write: (x) => widgets.brief(x, 1) }));
    const weights = bars("weights", ["weight 0", "weight 1", "weight 2", "weight 3"]);
    const says = say();
    return ({ weights: p }) => {
      sliders.forEach((show) => show());
      weights(p);
      says(`The largest weight is ${widgets.brief(Math.max(...p))}; all add up to 1.`);
    };
  },
});
