"use strict";
/* Lesson 7: a cache of keys and values that is filled word by word. */
widgets.add("cache", {
  title: "Try it: write word by word",
  state: () => ({
    q: [[0.4, 1.1], [-0.9, 0.6], [1.2, -0.3], [0.1, 0.8], [-0.6, -1.2], [0.9, 0.9]],
    k: [[0.9, 0.2], [-0.5, 1], [0.3, -0.8], [1.1, 0.7], [-1, -0.4], [0.2, 1.3]],
    v: [[1, 0], [0, 1], [-1, 0.5], [0.5, -1], [0, -0.5], [1, 1]],
    written: 1,
    keeps: "32 heads",
  }),
  /* Of the last word: its weights over the cache and its answer. Of the layer of the text above: what it keeps. */
  compute: ({ q, k, v, written, keeps }) => {
    const t = written - 1;
    const weights = widgets.softmax(k.slice(0, written).map((key) => widgets.dot(q[t], key) / Math.sqrt(key.length)));
    const numbers = { "32 heads": 2 * 32 * 128, "8 groups": 2 * 8 * 128, "1 group": 2 * 128, latent: 512 + 64 }[keeps];
    return {
      weights,
      answer: widgets.average(weights, v),
      again: (3 * written * (written + 1)) / 2,
      kept: 3 * written,
      bytes: 2 * numbers * written,
    };
  },
  build: ({ row, button, choice, map, say }, state) => {
    const words = [...Array(6).keys()].map((t) => `word ${t}`);
    const next = button("next word", () => (state.written = Math.min(6, state.written + 1)));
    const back = button("from the beginning", () => (state.written = 1));
    row(next, back);
    const keeps = ["32 heads", "8 groups", "1 group", "latent"];
    const pressed = choice("a layer keeps:", keeps, () => state.keeps, (name) => (state.keeps = name));
    const columns = ["key 0", "key 1", "value 0", "value 1", "weight"];
    const cache = map("the cache, and the weights of the last word", words, columns, { across: "", down: "" });
    const says = say();
    return ({ weights, answer, again, kept, bytes }) => {
      pressed();
      next.disabled = state.written === 6;
      const rows = words.map((_, s) => [...state.k[s], ...state.v[s], weights[s] ?? 0]);
      const current = (s) => s === state.written - 1;
      cache(rows, { gone: (s) => s >= state.written, most: 1.4, current: (s, c) => current(s) && c < 4 });
      says(
        `Word ${state.written - 1} is answered with ${widgets.list(answer)}. Products with matrices so far: ${kept}; ` +
          `without a cache: ${again}. With ${state.keeps}, a layer in 16 bits now keeps ${bytes / 1024} KiB.`,
      );
    };
  },
});
