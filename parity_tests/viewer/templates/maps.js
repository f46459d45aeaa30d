"use strict";
/* How arrays are laid out and drawn: which axes are rows and columns, which entries are hidden, and the maps. */
const get = (id) => document.getElementById(id);
const add = (parent, tag, content, attributes = {}) => {
  const element = document.createElement(tag);
  if (content !== undefined) element.textContent = content;
  for (const [name, x] of Object.entries(attributes)) element.setAttribute(name, x);
  parent.append(element);
  return element;
};
const replace = (index, axis, i) => index.map((old, at) => (at === axis ? i : old));

const mapsOf = (page) => {
  const { data, flat, words, text } = page;
  const stages = data.stages;
  const NAMES = { b: "batch row", t: "position", s: "key", h: "head", g: "key/value head", r: "map", f: "gate" };
  const MANY = "bhgrflp"; /* axes that say which one of several maps it is */
  const lettersOf = (stage) => stage.shape.map((_, axis) => stage.axes[axis] || `#${axis}`);
  const axisName = (stage, letter) => {
    if (letter === "t" && stage.axes.includes("s")) return "query";
    return NAMES[letter] || (letter[0] === "#" ? `axis ${letter.slice(1)}` : letter);
  };
  const label = (stage, axis, i) => {
    const letter = stage.axes[axis];
    const known = data.tokens[letter];
    if (known && stage.shape[axis] === known.length + 1 && i === known.length) return "sink";
    return known && stage.shape[axis] >= known.length ? words(letter, i) : String(i);
  };
  /* An entry's axes with their names and labels, without a batch of one row. */
  const partsOf = (stage, index) =>
    lettersOf(stage).flatMap((letter, axis) =>
      letter === "b" && stage.shape[axis] === 1 ? [] : [[axisName(stage, letter), label(stage, axis, index[axis])]],
    );

  /* Which axes of a stage are rows and columns, which one the film runs along, and which are many small maps. */
  const rolesOf = (stage) => {
    const letters = lettersOf(stage);
    const axes = [...letters.keys()].filter((axis) => letters[axis] !== "b" || stage.shape[axis] > 1);
    const many = axes.filter((axis) => MANY.includes(letters[axis]));
    const rest = axes.filter((axis) => !many.includes(axis));
    const others = (...taken) => [...many, ...rest].filter((axis) => !taken.includes(axis));
    const [t, s, n] = ["t", "s", "n"].map((letter) => rest.find((axis) => letters[axis] === letter));
    if (t !== undefined && s !== undefined) return { row: t, column: s, maps: others(t, s) };
    const film = t ?? s ?? n;
    if (film !== undefined && rest.length >= 3) {
      const [row, column] = rest.filter((axis) => axis !== film).slice(-2);
      return { row, column, film, maps: others(row, column, film) };
    }
    const [column, row] = [...many, ...rest].reverse();
    return { row, column, maps: others(row, column) };
  };
  stages.forEach((stage) => (stage.roles = rolesOf(stage)));

  const valueAt = (stage, index) => stage.values[flat(index, stage.shape)];
  const largest = (a, x) => (Number.isFinite(x) ? Math.max(a, Math.abs(x)) : a);
  const scaleOf = (stage) => (stage.scale ??= stage.values.reduce(largest, 0) || 1);
  const depthOf = (stage, v) => Math.min(1, Math.abs(v) / scaleOf(stage));

  /* The mask that hides entries of a map of queries and keys: the last one before it that fits. */
  const findMask = (stage) => {
    if (stage.mask || !stage.axes.includes("t") || !stage.axes.includes("s")) return null;
    const fits = (mask) => {
      const offset = stage.shape.length - mask.shape.length;
      return offset >= 0 && mask.shape.every((n, axis) => n === 1 || n === stage.shape[axis + offset]);
    };
    const before = stages.slice(0, stages.indexOf(stage));
    return before.findLast((other) => other.mask && /(^|\.)allowed$/.test(other.name) && fits(other)) || null;
  };
  stages.forEach((stage) => (stage.hides = findMask(stage)));
  const hidden = ({ hides }, index) => hides && hides.values[flat(page.within(index, hides.shape), hides.shape)] === 0;

  /* Drawing */
  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    const [empty, hidden, strange] = ["--z", "--hid", "--x"].map(of);
    const [positive, negative, text, on] = ["--positive", "--negative", "--text", "--on"].map(of);
    return { empty, hidden, strange, positive, negative, text, on };
  };
  const sized = (canvas, width, height) => {
    const ratio = devicePixelRatio || 1;
    Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    const draw = canvas.getContext("2d");
    draw.scale(ratio, ratio);
    return draw;
  };
  const cell = (draw, x, y, size, stage, index, all) => {
    const v = valueAt(stage, index);
    const gone = hidden(stage, index);
    draw.fillStyle = gone ? all.hidden : Number.isFinite(v) ? all.empty : all.strange;
    draw.fillRect(x, y, size, size);
    if (gone || !Number.isFinite(v)) return;
    draw.fillStyle = v < 0 ? all.negative : all.positive;
    draw.globalAlpha = depthOf(stage, v);
    draw.fillRect(x, y, size, size);
    draw.globalAlpha = 1;
  };
  /* The entries of a map, row by row; at most `most` of each. */
  const entries = (stage, index, most = Infinity) => {
    const { row, column } = stage.roles;
    const rows = Math.min(most, stage.shape[row] ?? 1);
    const columns = Math.min(most, stage.shape[column] ?? 1);
    const all = [];
    for (let r = 0; r < rows; r++) {
      for (let c = 0; c < columns; c++) all.push([r, c, replace(replace(index, row, r), column, c)]);
    }
    return { rows, columns, all };
  };
  const small = (canvas, stage, index) => {
    const { rows, columns, all } = entries(stage, index, 144);
    const size = Math.max(1, Math.min(8, Math.floor(72 / Math.max(rows, columns))));
    const draw = sized(canvas, columns * size, rows * size);
    const colour = colours();
    for (const [r, c, here] of all) cell(draw, c * size, r * size, size, stage, here, colour);
  };
  /* A number in a cell: two decimals, and 1 without. */
  const brief = (v) => (Number.isFinite(v) ? v.toFixed(Math.abs(v) >= 10 ? 1 : 2).replace("-", "−") : text(v));
  /* The large map with its labels; returns where its cells are. */
  const large = (canvas, room, stage, index) => {
    const { row, column } = stage.roles;
    const { rows, columns, all } = entries(stage, index);
    const font = '12px system-ui, "Liberation Sans", sans-serif';
    const measure = canvas.getContext("2d");
    measure.font = font;
    const labels = (axis, n) => [...Array(n).keys()].map((i) => (axis === undefined ? "" : label(stage, axis, i)));
    const widest = (names) => Math.min(96, Math.max(...names.map((name) => measure.measureText(name).width)));
    const [down, across] = [labels(row, rows), labels(column, columns)];
    const left = widest(down) + 10;
    const long = widest(across);
    const size = Math.max(6, Math.min(44, Math.floor((room - left - 24) / columns)));
    const turned = long > size - 4;
    const top = turned ? long * 0.87 + 12 : 20;
    const draw = sized(canvas, left + columns * size + (turned ? long * 0.5 : 4), top + rows * size + 4);
    const colour = colours();
    draw.font = font;
    draw.textAlign = "center";
    for (const [r, c, here] of all) {
      const [x, y, v] = [left + c * size, top + r * size, valueAt(stage, here)];
      cell(draw, x, y, size - 1, stage, here, colour);
      if (size < 38 || stage.mask || hidden(stage, here)) continue;
      draw.fillStyle = depthOf(stage, v) > 0.55 ? colour.on : colour.text;
      draw.fillText(brief(v), x + size / 2, y + size / 2 + 4);
    }
    draw.fillStyle = draw.strokeStyle = colour.text;
    draw.textAlign = "right";
    if (size >= 10) down.forEach((name, r) => draw.fillText(name, left - 6, top + (r + 0.5) * size + 4, left - 8));
    draw.textAlign = turned ? "left" : "center";
    across.forEach((name, c) => {
      if (size < 10 && c % 8) return;
      draw.save();
      draw.translate(left + (c + 0.5) * size - (turned ? 2 : 0), top - 6);
      if (turned) draw.rotate(-Math.PI / 3);
      draw.fillText(name, 0, 0, 96);
      draw.restore();
    });
    draw.lineWidth = 2.5;
    draw.strokeRect(left + (index[column] ?? 0) * size, top + (index[row] ?? 0) * size, size - 1, size - 1);
    return { left, top, size, rows, columns };
  };

  return { lettersOf, axisName, label, partsOf, valueAt, scaleOf, depthOf, hidden, small, large, brief };
};
