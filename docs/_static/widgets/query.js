"use strict";
/* Lesson 1: a query that is dragged, the weights of five keys, and the answer. */
widgets.add("query", {
  title: "Try it: drag the query",
  state: () => ({
    keys: [[0.8, 0.9], [1, 0.6], [-0.8, 0.7], [0.7, -0.8], [-0.9, -0.9]],
    values: [[4, 15], [4, 12], [4, 8], [0, 10], [0, 30]],
    query: [0.9, 0.8],
    length: 1,
  }),
  compute: ({ keys, values, query, length }) => {
    const scores = keys.map((key) => widgets.dot(key, query) * length);
    const weights = widgets.softmax(scores);
    return { scores, weights, answer: widgets.average(weights, values) };
  },
  build: ({ plane, slider, bars, say }, state) => {
    const animals = ["cat", "dog", "wolf", "goldfish", "shark"];
    const arrows = [...animals.map((name) => ({ name, kind: "widget-key" })), { name: "query", kind: "widget-asks" }];
    const about = "Five keys and the query as arrows: wild to tame from left to right, water to land upwards";
    const drawn = plane(about, arrows, ([x, y]) => Object.assign(state.query, [x, y]));
    const sides = { min: -1.4, max: 1.4, step: 0.05 };
    const sliders = [
      slider("query: wild to tame", state.query, 0, sides),
      slider("query: water to land", state.query, 1, sides),
      slider("its length, times", state, "length", { min: 0, max: 8, step: 0.5, write: (x) => widgets.brief(x, 1) }),
    ];
    const weights = bars("weights", animals);
    const says = say();
    return ({ weights: p, answer: [legs, years] }) => {
      drawn([...state.keys, state.query]);
      sliders.forEach((show) => show());
      weights(p);
      says(`The answer is ${widgets.brief(legs)} legs and ${widgets.brief(years)} years.`);
    };
  },
});
