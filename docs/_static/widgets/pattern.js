"use strict";
/* Lesson 9: a pattern that is painted, and whom each word hears of through others. */
widgets.add("pattern", {
  title: "Try it: paint a pattern",
  state: () => ({ allowed: widgets.square(16, (t, s) => Math.abs(t - s) <= 2), layers: 2 }),
  /* A word hears of s after one more layer if it sees some word that heard of s. */
  compute: ({ allowed, layers }) => {
    let reach = allowed;
    for (let layer = 1; layer < layers; layer++)
      reach = widgets.square(allowed.length, (t, s) => allowed[t].some((sees, j) => sees && reach[j][s]));
    const count = (mask) => mask.flat().filter(Boolean).length;
    return { reach, pairs: count(allowed), reached: count(reach) };
  },
  build: ({ choice, slider, map, say }, state) => {
    const presets = {
      window: (t, s) => Math.abs(t - s) <= 2,
      dilated: (t, s) => Math.abs(t - s) <= 6 && (t - s) % 3 === 0,
      chunks: (t, s) => Math.floor(t / 4) === Math.floor(s / 4),
      "window, global": (t, s) => Math.abs(t - s) <= 2 || t === 0 || s === 0,
      diagonal: (t, s) => t === s,
    };
    const masks = Object.fromEntries(Object.entries(presets).map(([name, f]) => [name, widgets.square(16, f)]));
    const chosen = () => Object.keys(masks).find((name) => String(masks[name]) === String(state.allowed));
    const choose = (name) => (state.allowed = masks[name].map((row) => [...row]));
    const pressed = choice("pattern:", Object.keys(masks), chosen, choose);
    const layers = slider("layers", state, "layers", { min: 1, max: 8, step: 1, write: String });
    const places = [...Array(16).keys()].map(String);
    const click = (t, s) => (state.allowed[t][s] = !state.allowed[t][s]);
    const sees = map("who sees whom: click to change", places, places, { click, small: true });
    const hears = map("who hears of whom", places, places, { small: true });
    const says = say();
    return ({ reach, pairs, reached }) => {
      pressed();
      layers();
      const show = (mask) => ({ gone: (t, s) => !mask[t][s], write: () => "yes" });
      sees(state.allowed, show(state.allowed));
      hears(reach, show(reach));
      says(`${pairs} of 256 pairs are computed; after ${state.layers} layers ${reached} pairs hear of each other.`);
    };
  },
});
