"use strict";
/* What the page shows: stages, maps, words, the number that is chosen. */
(() => {
  const page = numbersOf(JSON.parse(document.getElementById("data").textContent));
  const { data, flat, words, text } = page, stages = data.stages;
  const get = (id) => document.getElementById(id);
  const add = (parent, tag, content, attributes = {}) => {
    const element = document.createElement(tag);
    if (content !== undefined) element.textContent = content;
    for (const [name, x] of Object.entries(attributes)) element.setAttribute(name, x);
    parent.append(element);
    return element;
  };
  const NAMES = { b: "batch row", t: "query", s: "key", h: "head", g: "key/value head", r: "map", f: "gate", n: "chunk", l: "layer", p: "projection" };
  const lettersOf = (stage) => stage.shape.map((_, axis) => stage.axes[axis] || `#${axis}`);
  const axisName = (letter) => NAMES[letter] || (letter[0] === "#" ? `axis ${letter.slice(1)}` : letter);
  const label = (stage, axis, i) => {
    const letter = stage.axes[axis] || "";
    const known = data.tokens[letter];
    if (known && stage.shape[axis] === known.length + 1 && i === known.length) return "sink";
    return known && stage.shape[axis] >= known.length ? words(letter, i) : String(i);
  };

  /* Which axes of a stage are rows and columns, which one the film runs along, and which are many small maps. */
  const rolesOf = (stage) => {
    const letters = lettersOf(stage), axes = letters.map((_, axis) => axis).filter((axis) => letters[axis] !== "b" || stage.shape[axis] > 1);
    const many = axes.filter((axis) => "bhgrflp".includes(letters[axis])), rest = axes.filter((axis) => !many.includes(axis));
    const t = rest.find((axis) => letters[axis] === "t"), s = rest.find((axis) => letters[axis] === "s");
    if (t !== undefined && s !== undefined) return { row: t, column: s, maps: [...many, ...rest.filter((axis) => axis !== t && axis !== s)] };
    const position = t !== undefined ? t : s !== undefined ? s : rest.find((axis) => letters[axis] === "n");
    if (position !== undefined && rest.length >= 3) {
      const [row, column] = rest.filter((axis) => axis !== position).slice(-2);
      return { row, column, film: position, maps: [...many, ...rest.filter((axis) => ![row, column, position].includes(axis))] };
    }
    const two = rest.length >= 2 ? rest.slice(-2) : rest.length ? [many.pop(), rest[0]] : [many.pop(), many.pop()].reverse();
    return { row: two[0], column: two[1], maps: [...many, ...rest.filter((axis) => !two.includes(axis))] };
  };
  stages.forEach((stage) => (stage.roles = rolesOf(stage)));

  /* At first the weights, else the states, else the result; and the last position, which may look at most. */
  const first = [/(^|\.)(probs|weights)$/, /(^|\.)(states|h)$/, /./].map((name) => stages.findLastIndex((stage) => name.test(stage.name)));
  const choice = { stage: first.find((i) => i >= 0), at: { t: (data.tokens.t || []).length - 1 } };
  const current = () => stages[choice.stage];
  const indexOf = (stage) => lettersOf(stage).map((letter, axis) => Math.min(choice.at[letter] || 0, stage.shape[axis] - 1));
  const valueAt = (stage, index) => stage.values[flat(index, stage.shape)];
  const scaleOf = (stage) => (stage.scale ??= stage.values.reduce((a, x) => (Number.isFinite(x) ? Math.max(a, Math.abs(x)) : a), 0) || 1);
  const replace = (index, axis, i) => index.map((old, at) => (at === axis ? i : old));

  /* The mask that hides entries of a map: the last one before it that fits. */
  const maskOf = (stage) => {
    if (stage.hides !== undefined) return stage.hides;
    const has = ["t", "s"].every((letter) => stage.axes.includes(letter)) && !stage.mask;
    const fits = (mask) => mask.shape.length <= stage.shape.length && mask.shape.every((n, axis) => n === 1 || n === stage.shape[axis + stage.shape.length - mask.shape.length]);
    stage.hides = (has && stages.slice(0, stages.indexOf(stage)).findLast((other) => other.mask && /(^|\.)allowed$/.test(other.name) && fits(other))) || null;
    return stage.hides;
  };
  const hidden = (stage, index) => {
    const mask = maskOf(stage);
    return Boolean(mask) && mask.values[flat(page.within(index, mask.shape), mask.shape)] === 0;
  };

  /* Drawing */
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const cell = (draw, x, y, width, height, stage, index, colours) => {
    const v = valueAt(stage, index);
    draw.fillStyle = hidden(stage, index) ? colours.hidden : Number.isFinite(v) ? colours.empty : colours.strange;
    draw.globalAlpha = 1;
    draw.fillRect(x, y, width, height);
    if (!Number.isFinite(v) || hidden(stage, index)) return;
    draw.fillStyle = v < 0 ? colours.negative : colours.positive;
    draw.globalAlpha = Math.min(1, Math.abs(v) / scaleOf(stage));
    draw.fillRect(x, y, width, height);
    draw.globalAlpha = 1;
  };
  const colours = () => ({
    empty: colour("--z"), hidden: colour("--hid"), strange: colour("--x"), positive: colour("--positive"),
    negative: colour("--negative"), text: colour("--text"), soft: colour("--soft"), on: colour("--on"),
  });
  const sized = (canvas, width, height) => {
    const ratio = devicePixelRatio || 1;
    Object.assign(canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    const draw = canvas.getContext("2d");
    draw.scale(ratio, ratio);
    return draw;
  };
  const sides = (stage) => {
    const { row, column } = stage.roles;
    return { rows: row === undefined ? 1 : stage.shape[row], columns: column === undefined ? 1 : stage.shape[column] };
  };
  const at = (stage, index, r, c) => {
    const { row, column } = stage.roles;
    return replace(row === undefined ? index : replace(index, row, r), column, c);
  };
  const small = (canvas, stage, index) => {
    const { rows, columns } = sides(stage), size = Math.max(1, Math.min(8, Math.floor(72 / Math.max(rows, columns)) || 1));
    const draw = sized(canvas, Math.min(columns, 144) * size, Math.min(rows, 144) * size), all = colours();
    for (let r = 0; r < Math.min(rows, 144); r++) for (let c = 0; c < Math.min(columns, 144); c++) cell(draw, c * size, r * size, size, size, stage, at(stage, index, r, c), all);
  };
  let geometry = null;
  const large = () => {
    const stage = current(), index = indexOf(stage), { rows, columns } = sides(stage), { row, column } = stage.roles, all = colours();
    const canvas = get("map"), room = get("map-room").clientWidth, font = '12px system-ui, "Liberation Sans", sans-serif';
    let draw = canvas.getContext("2d");
    draw.font = font;
    const rowLabels = [...Array(rows).keys()].map((i) => (row === undefined ? "" : label(stage, row, i)));
    const columnLabels = [...Array(columns).keys()].map((i) => (column === undefined ? "" : label(stage, column, i)));
    const widest = (labels) => Math.min(96, Math.max(...labels.map((word) => draw.measureText(word).width)));
    const left = widest(rowLabels) + 10, long = widest(columnLabels), size = Math.max(6, Math.min(44, Math.floor((room - left - 24) / columns)));
    const turned = long > size - 4, top = turned ? long * 0.87 + 12 : 20;
    geometry = { left, top, size };
    draw = sized(canvas, left + columns * size + (turned ? long * 0.5 : 4), top + rows * size + 4);
    draw.font = font;
    for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) {
      const here = at(stage, index, r, c), x = left + c * size, y = top + r * size;
      cell(draw, x, y, size - 1, size - 1, stage, here, all);
      if (size >= 38 && !stage.mask && !hidden(stage, here)) {
        const v = valueAt(stage, here);
        draw.fillStyle = Math.abs(v) / scaleOf(stage) > 0.55 ? all.on : all.text;
        draw.textAlign = "center";
        draw.fillText(Number.isFinite(v) ? v.toFixed(Math.abs(v) >= 10 ? 1 : 2).replace("-", "−") : text(v), x + size / 2, y + size / 2 + 4);
      }
    }
    draw.fillStyle = all.text;
    draw.textAlign = "right";
    if (size >= 10) rowLabels.forEach((word, r) => draw.fillText(word, left - 6, top + r * size + size / 2 + 4, left - 8));
    draw.textAlign = "left";
    columnLabels.forEach((word, c) => {
      if (size < 10 && c % 8) return;
      draw.save();
      draw.translate(left + c * size + size / 2, top - 6);
      if (turned) draw.rotate(-Math.PI / 3);
      else draw.textAlign = "center";
      draw.fillText(word, turned ? -2 : 0, 0, 96);
      draw.restore();
    });
    const r = row === undefined ? 0 : index[row], c = column === undefined ? 0 : index[column];
    draw.strokeStyle = all.text;
    draw.lineWidth = 2.5;
    draw.strokeRect(left + c * size, top + r * size, size - 1, size - 1);
  };

  /* The panels */
  const spoken = (stage, index) => {
    const parts = index.map((i, axis) => [lettersOf(stage)[axis], label(stage, axis, i), stage.shape[axis]]).filter(([letter, , n]) => letter !== "b" || n > 1);
    return `${stage.name}, ${parts.map(([letter, word]) => `${axisName(letter)} ${word}`).join(", ")}`;
  };
  const shown = (stage, index) => {
    if (stage.mask) return valueAt(stage, index) ? "True" : "False";
    return text(valueAt(stage, index), 6);
  };
  const shapeText = (stage) => stage.shape.map((n, axis) => `${stage.axes[axis] || ""}${stage.axes[axis] ? " " : ""}${n}`).join(" × ");

  const fillStages = () => {
    const list = get("stages");
    stages.forEach((stage, i) => {
      const button = add(add(list, "li"), "button", stage.name, { type: "button", title: shapeText(stage) });
      button.addEventListener("click", () => go(i));
    });
    const slider = get("slider");
    slider.max = stages.length - 1;
    slider.addEventListener("input", () => go(Number(slider.value)));
    get("before").addEventListener("click", () => go(choice.stage - 1));
    get("after").addEventListener("click", () => go(choice.stage + 1));
  };
  const showStage = () => {
    const stage = current(), slider = get("slider");
    slider.value = choice.stage;
    slider.setAttribute("aria-valuetext", `${stage.name}, ${choice.stage + 1} of ${stages.length}, ${shapeText(stage)}`);
    get("before").disabled = choice.stage === 0;
    get("after").disabled = choice.stage === stages.length - 1;
    [...get("stages").querySelectorAll("button")].forEach((button, i) => {
      if (i === choice.stage) button.setAttribute("aria-current", "step");
      else button.removeAttribute("aria-current");
    });
    get("stage-name").textContent = stage.name;
    get("stage-shape").textContent = shapeText(stage);
    get("stage-also").textContent = stage.also.length ? `The same array as ${stage.also.join(", ")}.` : "";
    const kind = stage.mask ? "True is drawn, False is not." : `Darkest: ${text(scaleOf(stage), 3)} and beyond. Blue is positive, orange negative${maskOf(stage) ? ", grey hidden" : ""}.`;
    get("stage-scale").textContent = kind;
  };
  const showMaps = () => {
    const stage = current(), index = indexOf(stage), { maps } = stage.roles, room = get("maps"), focused = document.activeElement?.dataset?.map;
    room.replaceChildren();
    const shape = maps.map((axis) => stage.shape[axis]), count = shape.reduce((a, b) => a * b, 1);
    get("maps-section").hidden = count < 2;
    for (let n = 0; count > 1 && n < Math.min(count, 64); n++) {
      const chosen = page.place(n, shape), here = [...index];
      maps.forEach((axis, i) => (here[axis] = chosen[i]));
      const name = maps.map((axis, i) => (shape[i] > 1 ? `${axisName(lettersOf(stage)[axis])} ${chosen[i]}` : "")).filter(Boolean).join(", ");
      const button = add(room, "button", undefined, { type: "button", "aria-pressed": String(maps.every((axis, i) => index[axis] === chosen[i])), "data-map": n });
      small(add(button, "canvas", undefined, { "aria-hidden": "true" }), stage, here);
      add(button, "span", name);
      button.addEventListener("click", () => {
        maps.forEach((axis, i) => (choice.at[lettersOf(stage)[axis]] = chosen[i]));
        show();
      });
      if (focused === String(n)) button.focus();
    }
  };
  const showFilm = () => {
    const stage = current(), axis = stage.roles.film;
    get("film").hidden = axis === undefined;
    if (axis === undefined) return;
    const frame = get("frame"), i = indexOf(stage)[axis];
    frame.max = stage.shape[axis] - 1;
    frame.value = i;
    const name = `${axisName(lettersOf(stage)[axis])} ${label(stage, axis, i)}`;
    frame.setAttribute("aria-valuetext", name);
    get("frame-name").textContent = name;
  };
  let playing = null;
  const stop = () => {
    clearInterval(playing);
    playing = null;
    get("play").textContent = "Play";
  };
  const film = () => {
    get("frame").addEventListener("input", () => choose(current().roles.film, Number(get("frame").value)));
    get("play").addEventListener("click", () => {
      if (playing) return stop();
      get("play").textContent = "Stop";
      playing = setInterval(() => {
        const stage = current(), axis = stage.roles.film;
        if (axis === undefined) return stop();
        choose(axis, (indexOf(stage)[axis] + 1) % stage.shape[axis]);
      }, 700);
    });
  };

  /* Whom the chosen word looks at: the stage on show where it has queries and keys, else the last that has. */
  const looksOf = () => {
    const fits = (stage) => !stage.mask && stage.axes.includes("t") && stage.axes.includes("s") && stage.shape[stage.axes.indexOf("t")] === (data.tokens.t || []).length;
    return fits(current()) ? current() : stages.findLast((stage) => fits(stage) && /(^|\.)(probs|weights|kept)$/.test(stage.name)) || stages.findLast(fits);
  };
  const showWords = () => {
    const row = get("words"), stage = looksOf(), tokens = data.tokens.t || [], chosen = Math.min(choice.at.t || 0, tokens.length - 1);
    const focused = document.activeElement?.parentElement === row;
    row.replaceChildren();
    tokens.forEach((word, i) => {
      const button = add(row, "button", word, { type: "button", "aria-pressed": String(i === chosen), tabindex: i === chosen ? 0 : -1 });
      button.addEventListener("click", () => pick(i));
      button.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1, Home: -tokens.length, End: tokens.length }[event.key];
        if (step === undefined) return;
        event.preventDefault();
        pick(Math.min(tokens.length - 1, Math.max(0, i + step)));
      });
      if (focused && i === chosen) button.focus();
    });
    const pick = (i) => {
      choice.at.t = i;
      show();
    };
    get("looks").hidden = !stage;
    if (!stage) return;
    const t = stage.axes.indexOf("t"), s = stage.axes.indexOf("s"), index = replace(indexOf(stage), t, chosen);
    const maps = stage.roles.maps, shape = maps.map((axis) => stage.shape[axis]), body = get("looks-body");
    get("looks-title").textContent = `From “${tokens[chosen]}”: ${stage.name}`;
    const head = get("looks-head");
    head.replaceChildren();
    add(head, "td");
    for (let i = 0; i < stage.shape[s]; i++) add(head, "th", label(stage, s, i), { scope: "col" });
    body.replaceChildren();
    for (let n = 0; n < Math.min(64, shape.reduce((a, b) => a * b, 1)); n++) {
      const chosenMap = page.place(n, shape), line = add(body, "tr"), here = [...index];
      maps.forEach((axis, i) => (here[axis] = chosenMap[i]));
      const name = maps.map((axis, i) => (shape[i] > 1 ? `${axisName(lettersOf(stage)[axis])} ${chosenMap[i]}` : "")).filter(Boolean).join(", ");
      add(line, "th", name || stage.name, { scope: "row" });
      for (let i = 0; i < stage.shape[s]; i++) {
        const place = replace(here, s, i), v = valueAt(stage, place), gone = hidden(stage, place);
        const box = add(line, "td", gone ? "" : Number.isFinite(v) ? v.toFixed(2).replace("-", "−").replace(/^(−?)0\./, "$1.") : text(v));
        const depth = gone ? 0 : Math.min(1, Math.abs(v) / scaleOf(stage));
        box.style.setProperty("--depth", `${Math.round(100 * depth)}%`);
        for (const [name, holds] of [["gone", gone], ["below", v < 0], ["deep", depth > 0.55]]) box.classList.toggle(name, holds);
        box.addEventListener("click", () => {
          choice.stage = stages.indexOf(stage);
          lettersOf(stage).forEach((letter, axis) => (choice.at[letter] = place[axis]));
          show();
        });
      }
    }
  };

  const fillEntry = () => {
    const stage = current(), index = indexOf(stage), room = get("axes"), focused = document.activeElement?.dataset?.axis;
    room.replaceChildren();
    lettersOf(stage).forEach((letter, axis) => {
      if (stage.shape[axis] === 1) return;
      const box = add(add(room, "label", `${axisName(letter)} `, { title: data.letters[letter] || "" }), "select", undefined, { "data-axis": axis });
      for (let i = 0; i < stage.shape[axis]; i++) add(box, "option", label(stage, axis, i) === String(i) ? String(i) : `${i} ${label(stage, axis, i)}`, { value: i });
      box.value = index[axis];
      box.addEventListener("change", () => choose(axis, Number(box.value)));
      if (focused === String(axis)) box.focus();
    });
  };
  const showEntry = () => {
    const stage = current(), index = indexOf(stage);
    fillEntry();
    get("entry").textContent = page.entryName(stage, index);
    get("entry-value").textContent = shown(stage, index);
    const steps = page.explain(stage, index), list = get("steps");
    list.replaceChildren();
    get("how").textContent = steps.length ? "" : stage.mask || stage.runs.length ? "Nothing is summed here." : "Given to the layer, or a constant of it.";
    steps.forEach((step, n) => {
      const item = add(list, "li"), final = n === steps.length - 1, name = final ? page.entryName(stage, index) : step.mark;
      if (step.absent) {
        const size = step.absent.shape.reduce((a, b) => a * b, 1).toLocaleString("en");
        add(item, "p", `${name} is ${step.title}. ${step.absent.name} has ${size} numbers, too many for this page.`);
        return;
      }
      if (!step.rows) {
        add(item, "p", `${name} = ${step.line} = ${step.written}`, { class: "line" });
        return;
      }
      add(item, "p", `${name} is ${step.title}:`);
      const scroll = add(item, "div", undefined, { class: "scroll terms", tabindex: 0, role: "region", "aria-label": `terms of ${name}` });
      const table = add(scroll, "table"), body = add(table, "tbody");
      for (const row of step.rows) {
        const line = add(body, "tr", undefined, row.chosen ? { class: "chosen" } : {});
        row.parts.forEach((part, i) => {
          if (i) add(line, "td", "×", { class: "sign" });
          add(line, "td", part.text, { class: "name" });
          if (row.parts.length > 1 || row.value !== part.value) add(line, "td", text(part.value, 6));
        });
        add(line, "td", row.written, { class: "term" });
      }
      const sum = add(add(table, "tfoot"), "tr");
      add(sum, "th", step.largest ? "largest" : "sum", { scope: "row", colspan: Math.max(1, body.rows[0] ? body.rows[0].cells.length - 1 : 1) });
      add(sum, "td", step.written, { class: "term" });
    });
    showRuns(stage, index);
  };
  const showRuns = (stage, index) => {
    const body = get("runs"), runs = stage.runs || [];
    body.replaceChildren();
    get("runs-section").hidden = !runs.length;
    const digits = data.kind === "<f8" ? 17 : 9;
    for (const run of runs) {
      const line = add(body, "tr"), share = run.shares[flat(index, stage.shape)], worst = run.shares.reduce((a, b) => Math.max(a, b), 0);
      add(line, "th", data.who[run.who], { scope: "row" });
      add(line, "td", text(run.values[flat(index, stage.shape)], digits));
      for (const x of [share, worst]) add(line, "td", x > 100 ? "✗ beyond" : x === 0 ? "0" : `${(x / 100).toFixed(2)}`, x > 100 ? { class: "bad" } : {});
    }
  };

  const choose = (axis, i) => {
    choice.at[lettersOf(current())[axis]] = i;
    show();
  };
  const go = (i) => {
    choice.stage = Math.min(stages.length - 1, Math.max(0, i));
    show();
  };
  let announced = "";
  const show = () => {
    const stage = current(), index = indexOf(stage);
    lettersOf(stage).forEach((letter, axis) => (choice.at[letter] ??= index[axis]));
    showStage();
    showFilm();
    large();
    showMaps();
    showWords();
    showEntry();
    const now = `${spoken(stage, index)}: ${shown(stage, index)}`;
    get("map").setAttribute("aria-label", `${now}. Arrow keys move.`);
    if (now !== announced) get("live").textContent = announced = now;
  };
  const move = (event) => {
    const stage = current(), { row, column } = stage.roles;
    const [axis, step] = { ArrowUp: [row, -1], ArrowDown: [row, 1], ArrowLeft: [column, -1], ArrowRight: [column, 1], Home: [column, -1e9], End: [column, 1e9] }[event.key] || [];
    if (axis === undefined) return;
    event.preventDefault();
    choose(axis, Math.min(stage.shape[axis] - 1, Math.max(0, indexOf(stage)[axis] + step)));
  };
  get("map").addEventListener("keydown", move);
  get("map").addEventListener("click", (event) => {
    const stage = current(), { row, column } = stage.roles, { rows, columns } = sides(stage), { left, top, size } = geometry;
    const box = get("map").getBoundingClientRect(), c = Math.floor((event.clientX - box.left - left) / size), r = Math.floor((event.clientY - box.top - top) / size);
    if (r < 0 || c < 0 || r >= rows || c >= columns) return;
    if (row !== undefined) choice.at[lettersOf(stage)[row]] = r;
    if (column !== undefined) choice.at[lettersOf(stage)[column]] = c;
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show());
  let width = 0;
  new ResizeObserver(([entry]) => {
    if (Math.abs(entry.contentRect.width - width) < 1) return;
    width = entry.contentRect.width;
    large();
  }).observe(get("map-room"));

  fillStages();
  film();
  show();
  window.viewer = page; /* what the page computed, for tests and for the curious */
})();
