"use strict";
/* Lesson 3: a click hides a key from a query, or shows it. */
widgets.add("mask", {
  title: "Try it: click an entry to hide it, or to show it",
  /* The scores of the figure above, to one decimal. */
  state: () => ({
    scores: [
      [0.1, -0.1, 0.6, 0.1, -0.5, 0.4],
      [1.3, 0.9, -0.7, -1.3, -0.6, 0],
      [-2.3, -0.2, -1.2, -0.7, -0.5, -0.3],
      [0.4, 1, -0.1, 1.4, -0.7, 0.4],
      [0.9, 0.1, -0.7, -0.9, -0.5, 0.2],
      [-1, -0.2, -0.2, 0.5, 0.2, 0.4],
    ],
    allowed: widgets.square(6, (t, s) => s <= t),
  }),
  compute: ({ scores, allowed }) => ({ weights: scores.map((row, t) => widgets.softmax(row, allowed[t])) }),
  build: ({ choice, map, say }, state) => {
    const presets = {
      causal: (t, s) => s <= t,
      padding: (t, s) => s < 4,
      window: (t, s) => Math.abs(t - s) <= 1,
      "two documents": (t, s) => s <= t && t < 3 === s < 3,
      "all hidden": () => false,
    };
    const masks = Object.fromEntries(Object.entries(presets).map(([name, f]) => [name, widgets.square(6, f)]));
    const chosen = () => Object.keys(masks).find((name) => String(masks[name]) === String(state.allowed));
    const choose = (name) => (state.allowed = masks[name].map((row) => [...row]));
    const pressed = choice("mask:", Object.keys(masks), chosen, choose);
    const places = [...Array(6).keys()].map(String);
    let last = 0;
    const click = (t, s) => {
      state.allowed[t][s] = !state.allowed[t][s];
      last = t;
    };
    const weights = map("weights: query by key", places, places, { click });
    const says = say();
    return ({ weights: p }) => {
      pressed();
      weights(p, { gone: (t, s) => !state.allowed[t][s] });
      const seen = state.allowed[last].filter(Boolean).length;
      says(
        seen
          ? `Query ${last} sees ${seen} of 6 keys; its weights are ${widgets.list(p[last])}.`
          : `Query ${last} sees nothing: all its weights are 0.`,
      );
    };
  },
});
