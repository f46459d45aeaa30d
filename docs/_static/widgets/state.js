"use strict";
/* Lesson 10: a state into which pairs are written one by one. */
widgets.add("state", {
  title: "Try it: write by four rules",
  state: () => ({
    keys: [[1, 0], [0.6, 0.8], [1, 0]],
    values: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    written: 3,
    alpha: 1,
    beta: null,
  }),
  compute: ({ keys, values, written, alpha, beta }) => {
    let state = keys[0].map(() => values[0].map(() => 0));
    for (let t = 0; t < written; t++) {
      state = state.map((row) => row.map((x) => alpha * x));
      const held = widgets.average(keys[t], state);
      const write = values[t].map((x, j) => (beta === null ? x : beta * (x - held[j])));
      state = state.map((row, i) => row.map((x, j) => x + keys[t][i] * write[j]));
    }
    return { state, reads: keys.slice(0, 2).map((key) => widgets.average(key, state)) };
  },
  build: ({ choice, slider, row, button, map, say }, state) => {
    const rules = { linear: [1, null], retention: [0.7, null], delta: [1, 1], "gated delta": [0.7, 1] };
    const chosen = () => Object.keys(rules).find((name) => String(rules[name]) === String([state.alpha, state.beta]));
    const choose = (name) => ([state.alpha, state.beta] = rules[name]);
    const pressed = choice("rule:", Object.keys(rules), chosen, choose);
    const alpha = slider("alpha: what stays", state, "alpha", { min: 0, max: 1, step: 0.05 });
    const beta = slider("beta: what is written", state, "beta", {
      min: 0, max: 1, step: 0.05, from: (x) => x ?? 1, write: (x) => (x === null ? "the value itself" : widgets.brief(x)),
    });
    const write = button("next write", () => (state.written = Math.min(3, state.written + 1)));
    const empty = button("empty the state", () => (state.written = 0));
    row(write, empty);
    const cities = ["Bonn", "Paris", "Berlin"];
    const table = map("the state", ["number 0", "number 1"], cities, { across: "", down: "key" });
    const reads = map("what is read", ["Germany", "France"], cities, { across: "", down: "" });
    const writes = ["nothing", "Germany: Bonn", "France: Paris", "Germany: Berlin"];
    const says = say();
    return ({ state: now, reads: read }) => {
      pressed();
      alpha();
      beta();
      write.disabled = state.written === 3;
      table(now, { most: 2.5 });
      reads(read, { most: 2.5 });
      says(`Last written: ${writes[state.written]}. Germany reads ${widgets.list(read[0])}; France reads ${widgets.list(read[1])}.`);
    };
  },
});
