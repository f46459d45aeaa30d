"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const passes = [0.001, 0.01, 0.1, 0.25, 0.5, 1], fails = [10, 1000, 1e6];

  const shade = (ratio) => {
    if (ratio >= 0 && ratio <= 1) return ratio === 0 ? "p0" : "p" + (1 + passes.filter((end) => ratio > end).length);
    return "f" + (1 + (ratio < 0 ? fails.length : fails.filter((end) => ratio > end).length));
  };
  const figure = (ratio) => {
    if (ratio < 0) return "✗ fail";
    const text = ratio < 1e5 ? String(Number(ratio.toPrecision(3))) : ratio.toExponential(1).replace("e+", "e");
    return ratio > 1 ? "✗ " + text : text;
  };
  const add = (parent, tag, text, name) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (name) element.className = name;
    parent.append(element);
    return element;
  };

  /* All arrays of a case, by stage, in the order of the computation. */
  const fill = (details) => {
    if (details.childElementCount > 1) return;
    const found = data.cases[Number(details.dataset.c)];
    if (!found) {
      add(details, "p", "Left out to keep this file small; --json writes every array.", "more");
      return;
    }
    const [names, sizes, counts] = [data.names[found[0]], data.sizes[found[1]], data.counts[found[2]]];
    let last = null, list = null;
    names.forEach(([stage, name], i) => {
      if (stage !== last) {
        add(details, "h5", data.stages[stage] || stage);
        list = add(details, "ol", undefined, "chips");
        last = stage;
      }
      const ratio = found[3][i];
      const chip = add(list, "li", undefined, shade(ratio));
      add(chip, "b", name);
      chip.append(figure(ratio));
      const loose = counts[i] ? ", " + counts[i].toLocaleString("en") + " loose" : "";
      add(chip, "small", sizes[i].toLocaleString("en") + (sizes[i] === 1 ? " number" : " numbers") + loose);
    });
    for (const [i, text] of Object.entries(found[4])) {
      add(details, "p", names[i].join(" ") + ": " + text, "said");
    }
  };

  document.querySelectorAll("details[data-c]").forEach((details) => {
    details.addEventListener("toggle", () => details.open && fill(details));
  });

  /* A cell of the heat map opens its variant and its worst case. */
  const reveal = () => {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (!target) return;
    for (let e = target; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
    const first = target.classList.contains("cell") && target.querySelector("details[data-c]");
    if (first) first.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  document.querySelectorAll(".map a").forEach((a) => a.addEventListener("click", () => setTimeout(reveal)));
  reveal();
})();
