"use strict";
/* Lesson 4: two heads with a question each, and one head with both. */
widgets.add("heads", {
  title: "Try it: how sharply each head asks",
  state: () => ({ before: 20, first: 20 }),
  /* Keys are places, one of five numbers is 1: a query's score for a key is one of the query's numbers. */
  compute: ({ before, first }) => {
    const asks = [
      widgets.square(5, (t, s) => (s === t - 1 ? before : 0)),
      widgets.square(5, (t, s) => (s === 0 ? first : 0)),
    ];
    asks.push(widgets.square(5, (t, s) => asks[0][t][s] + asks[1][t][s]));
    const weights = asks.map((rows) => rows.map((row) => widgets.softmax(row.map((z) => z / Math.sqrt(5)))));
    return { asks, weights };
  },
  build: ({ slider, map, say }, state) => {
    const words = ["Ann", "saw", "Bob", "and", "left"];
    const factor = { min: 0, max: 40, step: 1, write: String };
    const sliders = [
      slider("head 0: the word before", state, "before", factor),
      slider("head 1: the first word", state, "first", factor),
    ];
    const titles = ["head 0: the word before", "head 1: the first word", "one head for both"];
    const maps = titles.map((title) => map(title, words, words, { across: "is asked:", down: "asks:" }));
    const says = say();
    return ({ weights }) => {
      sliders.forEach((show) => show());
      maps.forEach((show, h) => show(weights[h]));
      const [p0, p1, both] = weights.map((p) => p[4]);
      says(
        `"left" gives ${widgets.brief(p0[3])} to "and" in head 0 and ${widgets.brief(p1[0])} to "Ann" in head 1; ` +
          `one head for both gives ${widgets.brief(both[3])} and ${widgets.brief(both[0])}.`,
      );
    };
  },
});
