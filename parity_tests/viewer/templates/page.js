"use strict";
/* What the page shows and how it is controlled: stages, maps, words, the number that is chosen. */
(() => {
  const page = numbersOf(JSON.parse(get("data").textContent));
  const maps = mapsOf(page);
  const { data, flat, text } = page;
  const { lettersOf, axisName, label, partsOf, valueAt, hidden } = maps;
  const stages = data.stages;
  const MOST_MAPS = 64;

  /* At first the weights, else the states, else what was given; and the last position, which may look at most. */
  const first = [/(^|\.)(probs|weights)$/, /(^|\.)(states|h)$/, /./].map((name) =>
    stages.findIndex((stage) => name.test(stage.name)),
  );
  const choice = { stage: first.find((i) => i >= 0), at: { t: (data.tokens.t || []).length - 1 } };
  /* Or what the page was made to show. */
  const { stage: opened, ...places } = data.opens;
  if (opened) choice.stage = stages.findIndex((stage) => stage.name === opened);
  Object.assign(choice.at, places);
  const current = () => stages[choice.stage];
  const indexOf = (stage) =>
    lettersOf(stage).map((letter, axis) => Math.max(0, Math.min(choice.at[letter] || 0, stage.shape[axis] - 1)));

  /* Every map of a stage: where it is, and what it is called. */
  const mapsIn = (stage) => {
    const axes = stage.roles.maps;
    const shape = axes.map((axis) => stage.shape[axis]);
    const count = shape.reduce((a, b) => a * b, 1);
    return [...Array(Math.min(count, MOST_MAPS)).keys()].map((n) => {
      const at = page.place(n, shape);
      const letters = axes.map((axis) => lettersOf(stage)[axis]);
      const names = letters.flatMap((letter, i) => (shape[i] > 1 ? `${axisName(stage, letter)} ${at[i]}` : []));
      const within = (index) => axes.reduce((all, axis, i) => replace(all, axis, at[i]), index);
      return { name: names.join(", "), within };
    });
  };
  const shown = (stage, index) => {
    if (stage.mask) return valueAt(stage, index) ? "True" : "False";
    return text(valueAt(stage, index), 6);
  };
  const spoken = (stage, index) => {
    const parts = partsOf(stage, index).map(([axis, name]) => `${axis} ${name}`);
    return `${[stage.name, ...parts].join(", ")}: ${shown(stage, index)}`;
  };
  const shapeText = (stage) => stage.shape.map((n, axis) => `${stage.axes[axis] ?? ""} ${n}`.trim()).join(" × ");

  /* Stages */
  const fillStages = () => {
    stages.forEach((stage, i) => {
      const button = add(add(get("stages"), "li"), "button", stage.name, { type: "button", title: shapeText(stage) });
      button.addEventListener("click", () => go(i));
    });
    get("slider").max = stages.length - 1;
    get("slider").addEventListener("input", () => go(Number(get("slider").value)));
    get("before").addEventListener("click", () => go(choice.stage - 1));
    get("after").addEventListener("click", () => go(choice.stage + 1));
  };
  const showStage = (stage) => {
    const place = `${choice.stage + 1} of ${stages.length}`;
    get("slider").value = choice.stage;
    get("slider").setAttribute("aria-valuetext", `${stage.name}, ${place}, ${shapeText(stage)}`);
    get("before").disabled = choice.stage === 0;
    get("after").disabled = choice.stage === stages.length - 1;
    get("stages")
      .querySelectorAll("button")
      .forEach((button, i) => {
        if (i === choice.stage) button.setAttribute("aria-current", "step");
        else button.removeAttribute("aria-current");
      });
    get("stage-name").textContent = stage.name;
    get("stage-shape").textContent = shapeText(stage);
    get("stage-also").textContent = stage.also.length ? `The same array as ${stage.also.join(", ")}.` : "";
    const scale = `Strongest: ${text(maps.scaleOf(stage), 3)} and beyond. Blue is positive, orange negative`;
    const grey = stage.hides ? ", grey hidden" : "";
    get("stage-scale").textContent = stage.mask ? "True is drawn, False is not." : `${scale}${grey}.`;
  };

  /* Maps, and the film where an array has one map for each position */
  let geometry = null;
  const showLarge = () => {
    geometry = maps.large(get("map"), get("map-room").clientWidth, current(), indexOf(current()));
  };
  const showMaps = (stage, index) => {
    const room = get("maps");
    const focused = document.activeElement?.dataset?.map;
    const all = mapsIn(stage);
    room.replaceChildren();
    get("maps-section").hidden = all.length < 2;
    all.forEach(({ name, within }, n) => {
      if (all.length < 2) return;
      const here = within(index);
      const pressed = String(here.every((i, axis) => i === index[axis]));
      const button = add(room, "button", undefined, { type: "button", "aria-pressed": pressed, "data-map": n });
      maps.small(add(button, "canvas", undefined, { "aria-hidden": "true" }), stage, here);
      add(button, "span", name);
      button.addEventListener("click", () => choose(here));
      if (focused === String(n)) button.focus();
    });
  };
  const showFilm = (stage, index) => {
    const axis = stage.roles.film;
    get("film").hidden = axis === undefined;
    if (axis === undefined) return;
    const name = `${axisName(stage, lettersOf(stage)[axis])} ${label(stage, axis, index[axis])}`;
    get("frame").max = stage.shape[axis] - 1;
    get("frame").value = index[axis];
    get("frame").setAttribute("aria-valuetext", name);
    get("frame-name").textContent = name;
  };
  let playing = null;
  const stop = () => {
    playing = clearInterval(playing);
    get("play").textContent = "Play";
  };
  const next = () => {
    const stage = current();
    const axis = stage.roles.film;
    if (axis === undefined) stop();
    else move(axis, (indexOf(stage)[axis] + 1) % stage.shape[axis]);
  };
  const play = () => {
    if (playing) return stop();
    get("play").textContent = "Stop";
    playing = setInterval(next, 700);
  };

  /* Whom the chosen word looks at: the stage on show where it has queries and keys, else the weights. */
  const looksOf = () => {
    const words = (data.tokens.t || []).length;
    const fits = (stage) => {
      const t = stage.axes.indexOf("t");
      return !stage.mask && stage.axes.includes("s") && t >= 0 && stage.shape[t] === words;
    };
    if (fits(current())) return current();
    const all = stages.filter(fits);
    return all.find((stage) => /(^|\.)(probs|weights)$/.test(stage.name)) || all.at(-1);
  };
  const showWords = () => {
    const tokens = data.tokens.t || [];
    const row = get("words");
    const chosen = Math.min(choice.at.t || 0, tokens.length - 1);
    const focused = document.activeElement?.parentElement === row;
    const pick = (i) => {
      choice.at.t = Math.min(tokens.length - 1, Math.max(0, i));
      show();
    };
    row.replaceChildren();
    tokens.forEach((word, i) => {
      const state = { "aria-pressed": String(i === chosen), tabindex: i === chosen ? 0 : -1 };
      const button = add(row, "button", word, { type: "button", ...state });
      button.addEventListener("click", () => pick(i));
      button.addEventListener("keydown", (event) => {
        const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tokens.length }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        pick(to);
      });
      if (focused && i === chosen) button.focus();
    });
    const stage = looksOf();
    get("looks").hidden = !stage;
    if (stage) showLooks(stage, tokens[chosen], chosen);
  };
  const showLooks = (stage, word, chosen) => {
    const s = stage.axes.indexOf("s");
    const keys = [...Array(stage.shape[s]).keys()];
    get("looks-title").textContent = `From “${word}”: ${stage.name}`;
    get("looks-head").replaceChildren();
    get("looks-body").replaceChildren();
    add(get("looks-head"), "td");
    for (const i of keys) add(get("looks-head"), "th", label(stage, s, i), { scope: "col" });
    for (const { name, within } of mapsIn(stage)) {
      const line = add(get("looks-body"), "tr");
      add(line, "th", name || stage.name, { scope: "row" });
      for (const i of keys) {
        const index = replace(within(replace(indexOf(stage), stage.axes.indexOf("t"), chosen)), s, i);
        const v = valueAt(stage, index);
        const gone = hidden(stage, index);
        const box = add(line, "td", gone ? "" : maps.brief(v).replace(/^(−?)0\./, "$1."));
        const depth = gone ? 0 : maps.depthOf(stage, v);
        box.style.setProperty("--depth", `${Math.round(100 * depth)}%`);
        box.classList.toggle("gone", Boolean(gone));
        box.classList.toggle("below", v < 0);
        box.classList.toggle("deep", depth > 0.55);
        box.addEventListener("click", () => {
          choice.stage = stages.indexOf(stage);
          choose(index);
        });
      }
    }
  };

  /* The number that is chosen */
  const fillAxes = (stage, index) => {
    const room = get("axes");
    const focused = document.activeElement?.dataset?.axis;
    room.replaceChildren();
    lettersOf(stage).forEach((letter, axis) => {
      if (stage.shape[axis] === 1) return;
      const name = add(room, "label", `${axisName(stage, letter)} `, { title: data.letters[letter] || "" });
      const box = add(name, "select", undefined, { "data-axis": axis });
      for (let i = 0; i < stage.shape[axis]; i++) {
        const word = label(stage, axis, i);
        add(box, "option", word === String(i) ? word : `${i} ${word}`, { value: i });
      }
      box.value = index[axis];
      box.addEventListener("change", () => move(axis, Number(box.value)));
      if (focused === String(axis)) box.focus();
    });
  };
  const showTerms = (item, step, name) => {
    add(item, "p", `${name} is ${step.title}:`);
    const region = { class: "scroll terms", tabindex: 0, role: "region", "aria-label": `terms of ${name}` };
    const table = add(add(item, "div", undefined, region), "table");
    const body = add(table, "tbody");
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
    const colspan = Math.max(1, (body.rows[0]?.cells.length ?? 2) - 1);
    add(sum, "th", step.largest ? "largest" : "sum", { scope: "row", colspan });
    add(sum, "td", step.written, { class: "term" });
  };
  const showSteps = (stage, index) => {
    const edited = stage.edits?.has(flat(index, stage.shape));
    const steps = edited || stage.lost ? [] : page.explain(stage, index);
    const lost = stage.lost && "Not computed again: the page leaves out a weight or a formula that it needs.";
    const none = edited ? "Changed here; what is computed from it follows." : lost ? lost : stage.mask ? "Who may look at whom." : "Given to the layer, or a constant of it.";
    get("how").textContent = steps.length ? "" : none;
    get("steps").replaceChildren();
    steps.forEach((step, n) => {
      const item = add(get("steps"), "li");
      const name = n === steps.length - 1 ? page.entryName(stage, index) : step.mark;
      if (step.absent) {
        const size = step.absent.shape.reduce((a, b) => a * b, 1).toLocaleString("en");
        add(item, "p", `${name} is ${step.title}. ${step.absent.name} has ${size} numbers, too many for this page.`);
      } else if (step.rows) showTerms(item, step, name);
      else add(item, "p", `${name} = ${step.line} = ${step.written}`);
    });
  };
  const showRuns = (stage, index) => {
    const runs = stage.runs || [];
    const digits = data.kind === "<f8" ? 17 : 9;
    get("runs").replaceChildren();
    get("runs-section").hidden = !runs.length || page.changed.size > 0; /* elsewhere nothing is changed */
    for (const run of runs) {
      const line = add(get("runs"), "tr");
      const worst = run.shares.reduce((a, b) => Math.max(a, b), 0);
      add(line, "th", data.who[run.who], { scope: "row" });
      add(line, "td", text(run.values[flat(index, stage.shape)], digits));
      for (const share of [run.shares[flat(index, stage.shape)], worst]) {
        const written = share ? (share / 100).toFixed(2) : "0";
        add(line, "td", share > 100 ? "✗ beyond" : written, share > 100 ? { class: "bad" } : {});
      }
    }
  };

  /* Changes */
  const showEdit = (stage, index) => {
    get("number-room").hidden = Boolean(stage.mask);
    get("flip").hidden = !stage.mask;
    get("flip").disabled = get("number").disabled = !page.canEdit(stage, index);
    get("undo").hidden = !page.changed.size;
    if (document.activeElement !== get("number")) get("number").value = Number(valueAt(stage, index).toPrecision(6));
  };
  const edit = (x) => {
    page.edit(current(), indexOf(current()), x);
    show();
  };
  get("number").addEventListener("change", () => get("number").value !== "" && edit(Number(get("number").value)));
  get("flip").addEventListener("click", () => edit(1 - valueAt(current(), indexOf(current()))));
  get("undo").addEventListener("click", () => {
    page.undo();
    show();
  });

  /* Control */
  const choose = (index) => {
    lettersOf(current()).forEach((letter, axis) => (choice.at[letter] = index[axis]));
    show();
  };
  const move = (axis, i) => choose(replace(indexOf(current()), axis, i));
  const go = (i) => {
    choice.stage = Math.min(stages.length - 1, Math.max(0, i));
    show();
  };
  let announced = "";
  const show = () => {
    const stage = current();
    const index = indexOf(stage);
    showStage(stage);
    showFilm(stage, index);
    showLarge();
    showMaps(stage, index);
    showWords();
    fillAxes(stage, index);
    get("entry").textContent = page.entryName(stage, index);
    get("entry-value").textContent = shown(stage, index);
    showEdit(stage, index);
    showSteps(stage, index);
    showRuns(stage, index);
    const now = spoken(stage, index);
    get("map").setAttribute("aria-label", `${now}. Arrow keys move.`);
    if (now !== announced) get("live").textContent = announced = now;
  };
  get("map").addEventListener("keydown", (event) => {
    const stage = current();
    const { row, column } = stage.roles;
    const steps = { ArrowUp: [row, -1], ArrowDown: [row, 1], ArrowLeft: [column, -1], ArrowRight: [column, 1] };
    const [axis, step] = { ...steps, Home: [column, -Infinity], End: [column, Infinity] }[event.key] || [];
    if (axis === undefined) return;
    event.preventDefault();
    move(axis, Math.min(stage.shape[axis] - 1, Math.max(0, indexOf(stage)[axis] + step)));
  });
  get("map").addEventListener("click", (event) => {
    const { row, column } = current().roles;
    const { rows, columns, left, top, size } = geometry;
    const box = get("map").getBoundingClientRect();
    const c = Math.floor((event.clientX - box.left - left) / size);
    const r = Math.floor((event.clientY - box.top - top) / size);
    if (r < 0 || c < 0 || r >= rows || c >= columns) return;
    choose(replace(replace(indexOf(current()), row, r), column, c));
  });
  get("frame").addEventListener("input", () => move(current().roles.film, Number(get("frame").value)));
  get("play").addEventListener("click", play);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => show());
  new ResizeObserver(showLarge).observe(get("map-room"));

  /* At first, too, the key with the largest weight, or the largest number of the row. */
  const largest = (stage, index) => {
    const { column } = stage.roles;
    const columns = [...Array(stage.shape[column] ?? 1).keys()];
    const row = columns.map((i) => Math.abs(valueAt(stage, replace(index, column, i))));
    return replace(index, column, row.indexOf(Math.max(...row)));
  };

  fillStages();
  choose(opened ? indexOf(current()) : largest(current(), indexOf(current())));
  window.viewer = page; /* what the page computed, for tests and for the curious */
})();
