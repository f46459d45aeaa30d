"use strict";
/* Lesson 6: a query and a key, turned by their positions. */
widgets.add("turn", {
  title: "Try it: move the query and the key",
  state: () => ({ query: [1, 0.5], key: [0.8, -0.3], t: 2, s: 0, degrees: 30 }),
  compute: ({ query, key, t, s, degrees }) => {
    const turned = ([a, b], position) => {
      const angle = (degrees * Math.PI * position) / 180;
      return [a * Math.cos(angle) - b * Math.sin(angle), b * Math.cos(angle) + a * Math.sin(angle)];
    };
    const [q, k] = [turned(query, t), turned(key, s)];
    return { q, k, product: widgets.dot(q, k) };
  },
  build: ({ plane, slider, row, button, say }, state) => {
    const arrows = [{ name: "query", kind: "widget-asks" }, { name: "key", kind: "widget-key" }];
    const drawn = plane("The query and the key as arrows, turned by their positions", arrows);
    const places = { min: 0, max: 24, step: 1, write: String };
    const sliders = [
      slider("position of the query, t", state, "t", places),
      slider("position of the key, s", state, "s", places),
      slider("degrees for each position", state, "degrees", { min: 0, max: 90, step: 5, write: (x) => `${x}°` }),
    ];
    const both = (step) => () => {
      if (Math.min(state.t, state.s) + step < 0 || Math.max(state.t, state.s) + step > 24) return;
      state.t += step;
      state.s += step;
    };
    row(button("both one back", both(-1)), button("both one on", both(1)));
    const says = say();
    return ({ q, k, product }) => {
      drawn([q, k]);
      sliders.forEach((show) => show());
      says(`Distance ${widgets.brief(state.t - state.s, 0)}, product ${widgets.brief(product, 3)}.`);
    };
  },
});
