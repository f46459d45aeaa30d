"use strict";
/* Lesson 8: a softmax over blocks of keys, with the largest score, the total and the weighted sum so far. */
widgets.add("flash", {
  title: "Try it: block by block",
  state: () => ({
    scores: [1, 0.5, 3, 2, 2.5, 1, 4, 0],
    values: [10, 20, 30, 40, 50, 60, 70, 80],
    size: 2,
    read: 0,
  }),
  compute: ({ scores, values, size, read }) => {
    let [top, total, weighted, rescale] = [-Infinity, 0, 0, 0];
    const weights = scores.map(() => 0);
    for (let i = 0; i < read * size && i < scores.length; i += size) {
      const z = scores.slice(i, i + size);
      const largest = Math.max(top, ...z);
      rescale = Math.exp(top - largest);
      const e = z.map((x) => Math.exp(x - largest));
      for (let s = 0; s < i; s++) weights[s] *= rescale;
      e.forEach((x, s) => (weights[i + s] = x));
      total = total * rescale + e.reduce((a, b) => a + b, 0);
      weighted = weighted * rescale + widgets.dot(e, values.slice(i, i + size));
      top = largest;
    }
    return { top, rescale, total, weighted, answer: weighted / total, weights };
  },
  build: ({ row, button, choice, slider, map, say }, state) => {
    const blocks = () => Math.ceil(state.scores.length / state.size);
    const on = button("next block", () => (state.read = Math.min(blocks(), state.read + 1)));
    const back = button("from the beginning", () => (state.read = 0));
    row(on, back);
    const resize = (name) => Object.assign(state, { size: Number(name), read: 0 });
    const pressed = choice("keys in a block:", ["1", "2", "3", "4", "8"], () => String(state.size), resize);
    const score = { min: -2, max: 6, step: 0.5, write: (x) => widgets.brief(x, 1) };
    const last = slider("score of key 6", state.scores, 6, score);
    const rows = ["score", "value", "weight so far"];
    const keys = [...Array(8).keys()].map(String);
    const shown = map("keys; the block just read has a frame", rows, keys, { across: "of key", down: "", digits: 1 });
    const says = say();
    return ({ top, rescale, total, weighted, answer, weights }) => {
      pressed();
      last();
      on.disabled = state.read === blocks();
      const done = state.read * state.size;
      const write = (x) => String(Math.round(100 * x) / 100).replace("-", "−");
      shown([state.scores, state.values, weights], {
        gone: (r, s) => r === 2 && s >= done,
        most: [6, 80, 1],
        write,
        current: (_, s) => s < done && s >= done - state.size,
      });
      says(
        state.read
          ? `Largest so far ${widgets.brief(top, 1)}; old sums times ${widgets.brief(rescale, 3)}; total ` +
              `${widgets.brief(total, 3)}; weighted sum ${widgets.brief(weighted)}; answer so far ${widgets.brief(answer)}` +
              (state.read === blocks() ? ", which is the answer." : ".")
          : "No key is read: the largest is −∞, the sums are 0.",
      );
    };
  },
});
