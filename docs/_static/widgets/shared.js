"use strict";
/* What the widgets of the lessons share: their numbers, and the parts that they are made of. A widget is
   `widgets.add(name, { state, compute, build })`: `compute(state)` gives every number that is shown, and `build` makes
   the parts and returns a function that shows the numbers. */
const widgets = (() => {
  /* Numbers */
  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  const average = (weights, rows) => rows[0].map((_, j) => weights.reduce((sum, p, s) => sum + p * rows[s][j], 0));
  /* Hidden entries weigh 0; a row without an allowed entry is 0. */
  const softmax = (z, allowed = z.map(() => true)) => {
    const top = Math.max(...z.filter((_, i) => allowed[i]));
    const e = z.map((x, i) => (allowed[i] ? Math.exp(x - top) : 0));
    const total = e.reduce((a, b) => a + b, 0);
    return e.map((x) => x / (total || 1));
  };
  const square = (n, entry) => [...Array(n).keys()].map((t) => [...Array(n).keys()].map((s) => entry(t, s)));
  const brief = (x, digits = 2) => {
    if (!Number.isFinite(x)) return Number.isNaN(x) ? "NaN" : x > 0 ? "∞" : "−∞";
    const text = x.toFixed(digits);
    return (Number(text) === 0 ? text.replace("-", "") : text).replace("-", "−");
  };
  const list = (values, digits) => values.map((x) => brief(x, digits)).join(", ");

  /* Colours: those of the page, which may change. Of black and white the one that stands out more has at least
     4.58 : 1 on any ground. */
  const parts = (name) =>
    getComputedStyle(document.body).getPropertyValue(name).trim().match(/\w\w/g).map((x) => parseInt(x, 16));
  const light = (rgb) =>
    rgb
      .map((x) => x / 255)
      .map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4))
      .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const paint = (element) => {
    const value = Number(element.dataset.depth);
    const empty = parts("--map-empty");
    const full = parts(value < 0 ? "--map-negative" : "--map-positive");
    const ground = empty.map((x, i) => Math.round(x + Math.min(1, Math.abs(value)) * (full[i] - x)));
    element.style.background = `rgb(${ground})`;
    element.style.color = light(ground) > 0.179 ? "#000" : "#fff";
  };
  const repaint = () => document.querySelectorAll(".widget [data-depth]").forEach(paint);

  /* Parts */
  const make = (tag, attributes = {}, ...children) => {
    const drawn = ["svg", "line", "circle", "text", "path"].includes(tag);
    const element = drawn ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const partsOf = (root, change) => {
    const put = (element) => (root.append(element), element);
    const row = (...children) => put(make("div", { class: "widget-row" }, ...children));
    /* A slider for state[key]; `at` gives an entry of a list. `write` says its value, `of` turns a place into a value. */
    const slider = (label, state, key, { min, max, step, write = (x) => brief(x), of = (x) => x, from = (x) => x }) => {
      const input = make("input", { type: "range", min, max, step, value: from(state[key]) });
      const output = make("output");
      put(make("label", { class: "widget-slider" }, make("span", {}, label), input, output));
      input.addEventListener("input", () => {
        state[key] = of(Number(input.value));
        change();
      });
      return () => {
        if (Math.abs(of(Number(input.value)) - state[key]) > 1e-9) input.value = from(state[key]);
        output.textContent = write(state[key]);
        input.setAttribute("aria-valuetext", output.textContent);
      };
    };
    const button = (label, action) => {
      const element = make("button", { type: "button" }, label);
      element.addEventListener("click", () => {
        action();
        change();
      });
      return element;
    };
    /* A group of buttons, one of them pressed. */
    const choice = (label, names, chosen, choose) => {
      const all = names.map((name) => button(name, () => choose(name)));
      row(make("span", {}, label), ...all).setAttribute("role", "group");
      all[0].parentElement.setAttribute("aria-label", label);
      return () => all.forEach((each, i) => each.setAttribute("aria-pressed", String(names[i] === chosen())));
    };
    /* A table of numbers as a heat map. With `click` its cells are buttons, which arrow keys walk over. */
    const map = (caption, rows, columns, { click, digits = 2, small = false, across = "key", down = "query" } = {}) => {
      const table = make("table", { class: `widget-map${small ? " widget-small" : ""}` }, make("caption", {}, caption));
      const head = make("tr", {}, make("td"), ...columns.map((name) => make("th", { scope: "col" }, name)));
      table.append(make("thead", {}, head));
      const body = make("tbody");
      table.append(body);
      const cells = rows.map((name, t) => {
        const line = make("tr", {}, make("th", { scope: "row" }, name));
        body.append(line);
        return columns.map((_, s) => {
          const inner = click ? make("button", { type: "button", tabindex: t || s ? -1 : 0 }) : make("span");
          line.append(make("td", {}, inner));
          if (click) inner.addEventListener("click", () => (click(t, s), change()));
          return inner;
        });
      });
      const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      body.addEventListener("keydown", (event) => {
        const move = moves[event.key];
        const at = cells.flatMap((line, t) => line.map((cell, s) => [cell, t, s])).find(([c]) => c === event.target);
        if (!click || !move || !at) return;
        event.preventDefault();
        const next = cells[at[1] + move[0]]?.[at[2] + move[1]];
        if (!next) return;
        at[0].tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      });
      put(make("div", { class: "widget-scroll" }, table));
      /* Values, what is hidden, and the value of the deepest colour, of all or of each row. */
      return (values, { gone = () => false, most = 1, write = (x) => brief(x, digits), current } = {}) =>
        cells.forEach((line, t) =>
          line.forEach((cell, s) => {
            const hidden = gone(t, s);
            const text = hidden ? "" : write(values[t][s]);
            cell.dataset.depth = hidden ? 0 : values[t][s] / (most[t] ?? most);
            cell.classList.toggle("widget-gone", Boolean(hidden));
            cell.classList.toggle("widget-current", Boolean(current?.(t, s)));
            if (!small) cell.textContent = text;
            if (click) cell.setAttribute("aria-pressed", String(!hidden));
            const where = `${down} ${rows[t]}, ${across} ${columns[s]}`;
            if (click || small) cell.setAttribute("aria-label", hidden ? `${where}: hidden` : `${where}: ${text}`);
            if (!click && small) cell.setAttribute("role", "img");
            paint(cell);
          }),
        );
    };
    /* A bar for each name, with its number. */
    const bars = (caption, names) => {
      const table = make("table", { class: "widget-bars" }, make("caption", {}, caption));
      const lines = names.map((name) => {
        const [bar, number] = [make("span", { class: "widget-bar" }), make("td")];
        table.append(make("tr", {}, make("th", { scope: "row" }, name), number, make("td", {}, bar)));
        return [bar, number];
      });
      put(table);
      return (values, digits = 2) =>
        lines.forEach(([bar, number], i) => {
          bar.style.width = `${100 * values[i]}%`;
          number.textContent = brief(values[i], digits);
        });
    };
    /* Arrows from the middle of a plane from -1.4 to 1.4. `move` is called with the point that is dragged to. */
    const plane = (label, arrows, move) => {
      const svg = make("svg", { class: "widget-plane", viewBox: "-1.5 -1.5 3 3", role: "img", "aria-label": label });
      svg.append(make("path", { d: "M-1.4 0H1.4M0-1.4V1.4", class: "widget-axis" }));
      const drawn = arrows.map(({ name, kind }) => {
        const each = [make("line", { x1: 0, y1: 0, class: kind }), make("circle", { r: 0.05, class: kind })];
        const text = make("text", { class: kind }, name);
        svg.append(...each, text);
        return [...each, text];
      });
      const drag = (event) => {
        const box = svg.getBoundingClientRect();
        const at = [(event.clientX - box.x) / box.width, (event.clientY - box.y) / box.height];
        move([3 * at[0] - 1.5, 1.5 - 3 * at[1]].map((x) => Math.round(20 * Math.max(-1.4, Math.min(1.4, x))) / 20));
        change();
      };
      if (move) {
        svg.classList.add("widget-drag");
        svg.addEventListener("pointerdown", (event) => {
          svg.setPointerCapture(event.pointerId);
          drag(event);
        });
        svg.addEventListener("pointermove", (event) => event.buttons && drag(event));
      }
      put(svg);
      return (points) =>
        points.forEach(([x, y], i) => {
          const [line, tip, text] = drawn[i];
          for (const [name, value] of [["x2", x], ["y2", -y]]) line.setAttribute(name, value);
          for (const [name, value] of [["cx", x], ["cy", -y]]) tip.setAttribute(name, value);
          /* Beside the tip; of what asks, beside the middle. */
          const [along, end] = arrows[i].kind === "widget-asks" ? [0.5, true] : [1, x > 1.1];
          text.setAttribute("x", along * x + (end ? -0.1 : 0.08));
          text.setAttribute("y", -along * y + (y > 0 ? -0.08 : 0.17));
          text.setAttribute("text-anchor", end ? "end" : "start");
        });
    };
    /* A sentence that a screen reader speaks when it changes. */
    const say = () => {
      const line = put(make("p", { class: "widget-says", role: "status" }));
      return (text) => {
        if (line.textContent !== text) line.textContent = text;
      };
    };
    return { row, slider, button, choice, map, bars, plane, say };
  };

  const known = {};
  const start = (root) => {
    const { title, state, compute, build } = known[root.dataset.widget];
    root.state = state();
    root.append(make("p", { class: "widget-title" }, title));
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", title);
    const change = () => {
      root.numbers = compute(root.state);
      show(root.numbers, root.state);
    };
    const show = build(partsOf(root, change), root.state);
    root.change = change;
    change();
  };
  const add = (name, widget) => {
    known[name] = widget;
    document.querySelectorAll(`.widget[data-widget="${name}"]`).forEach(start);
  };
  new MutationObserver(repaint).observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
  return { add, dot, average, softmax, square, brief, list };
})();
