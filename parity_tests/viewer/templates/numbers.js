"use strict";
/* What the page computes: entries of arrays, the sums that they are, and how these are written so that they add up. */
const numbersOf = (data) => {
  const kinds = { "<f4": Float32Array, "<f8": Float64Array, "<i4": Int32Array, u1: Uint8Array };
  const decode = (text, kind = data.kind) =>
    new kinds[kind](Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  const flat = (index, shape) => index.reduce((at, i, axis) => at * shape[axis] + i, 0);
  const place = (at, shape) => {
    const index = new Array(shape.length);
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      index[axis] = at % shape[axis];
      at = Math.floor(at / shape[axis]);
    }
    return index;
  };
  /* An index of a result as one of an argument that was broadcast to it. */
  const within = (index, shape) => shape.map((n, axis) => (n === 1 ? 0 : index[axis + index.length - shape.length]));

  const arrays = {};
  for (const [name, weight] of Object.entries(data.weights)) {
    arrays[name] = { ...weight, name, values: weight.values && decode(weight.values) };
  }
  for (const stage of data.stages) {
    arrays[stage.name] = stage;
    stage.values = stage.mask ? decode(stage.mask, "u1") : decode(stage.values);
    for (const run of stage.runs || []) {
      run.values = run.values === null ? stage.values : decode(run.values);
      run.shares = decode(run.shares, "u1");
    }
  }
  for (const node of data.nodes) {
    if (node.values) node.values = decode(node.values);
    if (node.at) node.at = decode(node.at, "<i4");
    if (node.allowed) node.allowed = decode(node.allowed, "u1");
  }

  const functions = {
    add: (a, b) => a + b,
    subtract: (a, b) => a - b,
    multiply: (a, b) => a * b,
    divide: (a, b) => a / b,
    power: (a, b) => a ** b,
    maximum: Math.max,
    minimum: Math.min,
    negative: (x) => -x,
    absolute: Math.abs,
    square: (x) => x * x,
    sqrt: Math.sqrt,
    exp: Math.exp,
    log: Math.log,
    log1p: Math.log1p,
    tanh: Math.tanh,
    identity: (x) => x,
    sigmoid: (x) => (x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x))),
    softplus: (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x))),
    lerp: (a, b, z) => a + z * (b - a),
  };

  /* The entry that an entry of a copy is: the place of its source, and the index there. */
  const sourceOf = (node, index) => {
    let at = flat(index, node.shape);
    if (node.at) at = node.at[at];
    for (const id of node.args) {
      const shape = data.nodes[id].shape;
      const size = shape.reduce((a, b) => a * b, 1);
      if (at < size) return [id, place(at, shape)];
      at -= size;
    }
    throw new Error("a copy of nothing");
  };
  /* Pairs of entries whose products an entry of an einsum sums. */
  const productsOf = (node, index) => {
    const [left, right, out] = node.spec.replace("->", ",").split(",");
    const where = {};
    const sizes = {};
    [...out].forEach((letter, axis) => (where[letter] = index[axis]));
    [left, right].forEach((letters, i) =>
      [...letters].forEach((letter, axis) => (sizes[letter] = data.nodes[node.args[i]].shape[axis])),
    );
    const summed = [...new Set(left + right)].filter((letter) => !out.includes(letter));
    const shape = summed.map((letter) => sizes[letter]);
    const pairs = [];
    for (let at = 0; at < shape.reduce((a, b) => a * b, 1); at++) {
      place(at, shape).forEach((i, axis) => (where[summed[axis]] = i));
      pairs.push([left, right].map((letters) => [...letters].map((letter) => where[letter])));
    }
    return pairs;
  };
  /* Indices of the argument whose entries a sum, a largest entry or a running sum is made of. */
  const partsOf = (node, index) => {
    const shape = data.nodes[node.args[0]].shape;
    if (node.op === "cumsum") {
      return [...Array(index[node.axis] + 1).keys()].map((i) =>
        index.map((old, axis) => (axis === node.axis ? i : old)),
      );
    }
    const full = [...index];
    if (!node.keepdims) for (const axis of node.over) full.splice(axis, 0, 0);
    const sizes = node.over.map((axis) => shape[axis]);
    const parts = [];
    for (let at = 0; at < sizes.reduce((a, b) => a * b, 1); at++) {
      const part = [...full];
      place(at, sizes).forEach((i, n) => (part[node.over[n]] = i));
      parts.push(part);
    }
    return parts;
  };
  /* The row of a softmax that an entry is in: the scores, whether they are allowed, and exp(score - largest score). */
  const rowOf = (node, index) => {
    const row = [...Array(node.shape[node.axis]).keys()].map((i) => {
      const at = index.map((old, axis) => (axis === node.axis ? i : old));
      return { at, score: value(node.args[0], at), allowed: !node.allowed || node.allowed[flat(at, node.shape)] === 1 };
    });
    const top = Math.max(...row.filter((entry) => entry.allowed).map((entry) => entry.score));
    for (const entry of row) entry.e = entry.allowed ? Math.exp(entry.score - top) : 0;
    return row;
  };

  const MOST_STEPS = 24;
  const known = data.nodes.map(() => new Map());
  const total = (values) => values.reduce((a, b) => a + b, 0);
  /* An entry of a formula, computed here from the arrays that have names. */
  const value = (id, index) => {
    const node = data.nodes[id];
    const at = flat(index, node.shape);
    if (!known[id].has(at)) known[id].set(at, computed(node, index, at));
    return known[id].get(at);
  };
  const named = (node, index) => {
    const array = arrays[node.name];
    const full = node.step === undefined ? index : [index[0], node.step, ...index.slice(1)];
    return { array, index: full, value: array.values ? array.values[flat(full, array.shape)] : NaN };
  };
  const computed = (node, index, at) => {
    if (node.op === "number") return node.values[0];
    if (node.op === "constant" || node.op === "given") return node.values[at];
    if (node.op === "named") return named(node, index).value;
    if (node.op === "copy") return value(...sourceOf(node, index));
    if (node.op === "einsum")
      return total(productsOf(node, index).map(([a, b]) => value(node.args[0], a) * value(node.args[1], b)));
    if (node.op === "max") return Math.max(...partsOf(node, index).map((part) => value(node.args[0], part)));
    if (node.op === "sum" || node.op === "cumsum")
      return total(partsOf(node, index).map((part) => value(node.args[0], part)));
    if (node.op === "softmax") {
      const row = rowOf(node, index);
      const sum = total(row.map((entry) => entry.e));
      return row[index[node.axis]].e / (row.some((entry) => entry.allowed) ? sum : 1);
    }
    return functions[node.op](...node.args.map((id) => value(id, within(index, data.nodes[id].shape))));
  };
  /* The formula of an array's entry: the place of the node, and the index there. */
  const formulaOf = (stage, index) => {
    if (!stage.formula) return null;
    if (stage.formula.steps) return [stage.formula.steps[index[1]], index.filter((_, axis) => axis !== 1)];
    return [stage.formula.node, index];
  };

  /* Entries that a reader changes, and all that is computed from them again. */
  const masks = data.stages.filter((stage) => stage.mask && /(^|\.)allowed$/.test(stage.name));
  const places = (shape) => [...Array(shape.reduce((a, b) => a * b, 1)).keys()].map((at) => place(at, shape));
  const sees = (mask, index) => mask.values[flat(within(index, mask.shape), mask.shape)];
  for (const node of data.nodes.filter(({ allowed, shape }) => allowed && shape)) {
    const fits = ({ shape }) =>
      shape.length <= node.shape.length &&
      shape.every((n, i) => n === 1 || n === node.shape.at(i - shape.length));
    node.follows = masks.findLast(
      (mask) => fits(mask) && places(node.shape).every((index, at) => sees(mask, index) === node.allowed[at]),
    );
  }
  /* What a formula is computed from; null among it: something that can't be computed again. */
  const sourcesOf = (id, all = new Set(), met = new Set()) => {
    if (met.has(id)) return all;
    met.add(id);
    const node = data.nodes[id];
    if (node.op === "named") all.add(arrays[node.name].values ? arrays[node.name].name : null);
    if (node.op === "given") all.add(null);
    if (node.follows) all.add(node.follows.name);
    for (const arg of node.args || []) sourcesOf(arg, all, met);
    return all;
  };
  for (const stage of data.stages.filter(({ formula }) => formula)) {
    stage.sources = new Set();
    for (const id of stage.formula.steps || [stage.formula.node]) sourcesOf(id, stage.sources);
  }
  const changed = new Set();
  /* A step of a scan is computed from the step before, of arrays that stand later too: once for each step. */
  const rounds = Math.max(1, ...data.stages.map(({ formula }) => formula?.steps?.length ?? 1));
  const recompute = () => {
    const stale = new Set(changed);
    for (let round = 0; round < rounds; round++) recomputeOnce(stale);
  };
  const recomputeOnce = (stale) => {
    known.forEach((values) => values.clear());
    for (const stage of data.stages) {
      if (!stage.edits && !stage.sources) continue;
      if (!stage.edits && ![...stage.sources].some((name) => stale.has(name))) {
        if (stage.first) stage.values.set(stage.first);
        continue;
      }
      stage.first ??= stage.values.slice();
      stage.scale = undefined;
      const again = stage.sources && [...stage.sources].some((name) => stale.has(name));
      const lost = again && [...stage.sources].some((name) => name === null || arrays[name].lost);
      places(stage.shape).forEach((index, at) => {
        if (stage.edits?.has(at)) stage.values[at] = stage.edits.get(at);
        else if (again) stage.values[at] = lost ? NaN : value(...formulaOf(stage, index));
        else stage.values[at] = stage.first[at];
      });
      stage.lost = lost;
      stale.add(stage.name);
      for (const node of data.nodes.filter(({ follows }) => follows === stage))
        places(node.shape).forEach((index, at) => (node.allowed[at] = sees(stage, index)));
    }
  };
  /* A key that no query sees was left out of what follows, and can't be shown again. */
  const canEdit = (stage, index) => {
    /* The last array alone may be lost by a change. */
    const loses = ({ sources }) => sources?.has(null) && sources.has(stage.name);
    if (data.stages.slice(0, -1).some(loses)) return false;
    if (!stage.mask) return true;
    const at = flat(index, stage.shape);
    const key = stage.shape.length - 1;
    const seen = places(stage.shape).some((other, i) => other[key] === index[key] && (stage.first ?? stage.values)[i]);
    return data.nodes.some(({ follows }) => follows === stage) && (seen || stage.values[at] === 1);
  };
  const edit = (stage, index, x) => {
    (stage.edits ??= new Map()).set(flat(index, stage.shape), x);
    changed.add(stage.name);
    recompute();
  };
  const undo = () => {
    changed.clear();
    for (const stage of data.stages) {
      if (stage.first) stage.values.set(stage.first);
      for (const node of data.nodes.filter(({ follows }) => follows === stage))
        places(node.shape).forEach((index, at) => (node.allowed[at] = sees(stage, index)));
      Object.assign(stage, { edits: undefined, first: undefined, scale: undefined, lost: false });
    }
    known.forEach((values) => values.clear());
  };

  /* How numbers are written. */
  const text = (x, digits = 5) => {
    if (!Number.isFinite(x)) return Number.isNaN(x) ? "NaN" : x > 0 ? "∞" : "−∞";
    if (x === 0) return "0";
    const plain = Math.abs(x) >= 1e-4 && Math.abs(x) < 1e6;
    return (plain ? String(Number(x.toPrecision(digits))) : x.toExponential(digits - 1)).replace("-", "−");
  };
  /* Terms and their sum with as many decimals as show five digits of the largest; terms are rounded up or down so that
     what is written adds up exactly. */
  const addUp = (terms, sum) => {
    if (![...terms, sum].every(Number.isFinite))
      return { terms: terms.map((x) => text(x)), sum: text(sum), exact: false };
    const largest = Math.max(...terms.map(Math.abs), Math.abs(sum)) || 1;
    const decimals = Math.min(20, Math.max(0, 4 - Math.floor(Math.log10(largest))));
    const unit = 10 ** decimals;
    const units = terms.map((x) => Math.floor(x * unit));
    const goal = Math.round(sum * unit);
    const missing = goal - units.reduce((a, b) => a + b, 0);
    const order = terms.map((x, i) => [x * unit - units[i], i]).sort((a, b) => b[0] - a[0]);
    const exact = missing >= -1 && missing <= terms.length + 1;
    for (let n = 0; exact && n < Math.abs(missing); n++)
      units[order[missing > 0 ? n % order.length : order.length - 1 - n][1]] += Math.sign(missing);
    const write = (n) => (n / unit).toFixed(decimals).replace("-", "−");
    return { terms: units.map(write), sum: write(goal), exact };
  };

  const words = (letter, i) => {
    const known = data.tokens[letter];
    return known && known.length > i ? known[i] : String(i);
  };
  const entryName = (array, index) => {
    const parts = index.map((i, axis) => [array.axes[axis] || "", i, array.shape[axis]]);
    const shown = parts.filter(([letter, , size]) => letter !== "b" || size > 1);
    return array.name + (shown.length ? "[" + shown.map(([letter, i]) => words(letter, i)).join(", ") + "]" : "");
  };
  const describe = (id, depth = 0) => {
    const node = data.nodes[id];
    if (node.op === "number") return text(node.values[0]);
    if (node.op === "constant") return "constant";
    if (node.op === "named") return node.name;
    if (node.op === "copy")
      return [...new Set(node.args.map((arg) => describe(arg, depth)).filter((name) => name !== "0"))].join(" or ");
    const args = node.args.map((arg) => describe(arg, depth + 1));
    return depth > 0 ? "…" : `${node.name || node.op}(${args.join(", ")})`;
  };

  /* How an entry came about, as steps: sums with their terms, and lines. The last step is the entry. */
  const explain = (stage, index) => {
    const start = formulaOf(stage, index);
    if (!start) return [];
    const steps = [];
    const mark = (step) => {
      steps.push(step);
      step.mark = steps.length <= 20 ? String.fromCodePoint(0x245f + steps.length) : `(${steps.length})`;
      return { text: step.mark, value: step.total };
    };
    const operand = (part) => (part.text === text(part.value) ? part.text : `${part.text} ${text(part.value)}`);
    const entry = (node, at) => {
      const { array, index: full, value: x } = named(node, at);
      return { text: entryName(array, full), value: x, absent: array.values ? undefined : array };
    };
    /* A term of a long sum is named, not explained: what has no name is described. */
    const term = (id, at) => {
      const node = data.nodes[id];
      if (node.op === "copy") return term(...sourceOf(node, at));
      if (node.op === "named") return entry(node, at);
      const x = value(id, at);
      return { text: ["number", "constant"].includes(node.op) ? text(x) : describe(id), value: x };
    };
    const write = (id, at) => {
      const node = data.nodes[id];
      if (node.op === "copy") return write(...sourceOf(node, at));
      if (["named", "number", "constant"].includes(node.op) || steps.length >= MOST_STEPS) return term(id, at);
      const writer = writers[node.op] || ofEntries;
      return mark({ ...writer(node, at), total: value(id, at) });
    };
    const many = (n, word, words = `${word}s`) => `${n} ${n === 1 ? word : words}`;
    const sumOf = (what) => (node, at) => {
      const parts = partsOf(node, at).map((part) => term(node.args[0], part));
      const rows = parts.map((part) => ({ parts: [part], value: part.value }));
      const title = `${what} of ${many(rows.length, "entry", "entries")} of ${describe(node.args[0])}`;
      return { title, rows, largest: node.op === "max" };
    };
    const ofTerms = (node, at) => {
      const rows = [];
      const collect = (id, here, sign) => {
        const inner = data.nodes[id];
        if (inner.op !== "add" && inner.op !== "subtract") {
          const part = write(id, here);
          const signed = sign < 0 ? { ...part, text: `− ${part.text}`, value: -part.value } : part;
          rows.push({ parts: [signed], value: signed.value });
          return;
        }
        inner.args.forEach((arg, i) => {
          const negative = inner.op === "subtract" && i === 1;
          collect(arg, within(here, data.nodes[arg].shape), negative ? -sign : sign);
        });
      };
      collect(data.nodes.indexOf(node), at, 1);
      return { title: `the sum of ${many(rows.length, "term")}`, rows };
    };
    const ofEntries = (node, at) => {
      const parts = node.args.map((arg) => write(arg, within(at, data.nodes[arg].shape)));
      const [a, b, z] = parts.map(operand);
      if (node.op === "lerp") return { line: `(1 − ${z}) × ${a} + ${z} × ${b}` };
      const sign = { multiply: "×", divide: "÷", power: "to the power of" }[node.op];
      return { line: sign ? `${a} ${sign} ${b}` : `${node.op}(${parts.map(operand).join(", ")})` };
    };
    const writers = {
      einsum: (node, at) => {
        const pairs = productsOf(node, at);
        const factor = pairs.length === 1 ? write : term;
        const rows = pairs.map((pair) => {
          const parts = pair.map((where, i) => factor(node.args[i], where));
          return { parts, value: parts[0].value * parts[1].value };
        });
        const absent = rows.flatMap((row) => row.parts).find((part) => part.absent)?.absent;
        const factors = node.args.map((arg) => describe(arg)).join(" × ");
        return { title: `the sum of ${many(rows.length, "product")} ${factors}`, rows, absent };
      },
      sum: sumOf("the sum"),
      cumsum: sumOf("the running sum"),
      max: sumOf("the largest"),
      softmax: (node, at) => {
        const row = rowOf(node, at);
        const chosen = row[at[node.axis]];
        if (!row.some(({ allowed }) => allowed)) return { line: "a share of nothing, as all are hidden" };
        const rows = row.map((one) => {
          const part = term(node.args[0], one.at);
          const parts = [one.allowed ? part : { text: `${part.text}, hidden`, value: -Infinity }];
          return { parts, value: one.e, chosen: one === chosen };
        });
        const title = "the sum of exp(score − largest score)";
        const all = mark({ title, rows, total: total(row.map(({ e }) => e)) });
        return { line: `its term ${text(chosen.e)} ÷ ${operand(all)}` };
      },
      add: ofTerms,
      subtract: ofTerms,
      given: (node) => ({ line: `${node.name} of ${node.args.map((arg) => describe(arg)).join(", ")}` }),
    };

    const end = write(...start);
    if (!steps.length) mark({ line: end.text });
    steps.at(-1).total = stage.values[flat(index, stage.shape)];
    for (const step of steps) {
      const rows = step.rows || [];
      const adds = rows.length && !step.largest;
      const written = adds
        ? addUp(
            rows.map((row) => row.value),
            step.total,
          )
        : null;
      rows.forEach((row, i) => (row.written = adds ? written.terms[i] : text(row.value)));
      step.written = adds ? written.sum : text(step.total);
      step.exact = !adds || written.exact;
    }
    return steps;
  };

  return { data, arrays, flat, place, within, value, formulaOf, explain, entryName, words, text, addUp, changed, canEdit, edit, undo };
};
