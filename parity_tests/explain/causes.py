"""Why do they differ? The first stage that is wrong on its own inputs, and the known mistake that gives its numbers.

Every mistake of the catalogue is made in the reference, which then goes on from the candidate's own tape. A mistake
explains a candidate if all of the candidate's numbers lie within the bounds of that reference.
"""

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import attn_np
from parity_tests.bounds.error_arrays import (
    UNIT,
    ErrArray,
    Precision,
    adopt,
    delivered,
    disown,
    nearest,
    precision_of,
    roundings,
    widened,
)
from parity_tests.explain.findings import Cause, Finding
from parity_tests.explain.patterns import axes_of, patterns
from parity_tests.judge.candidates import Outcome, extras, leaves, numpy_layer, pulled
from parity_tests.judge.cases import Case, Drawn
from parity_tests.judge.consequences import consequences
from parity_tests.judge.judging import Anchor, Departure, Row, judge_ends, reference, tape_rows

FORWARD = ("tape", "output")
STAGES = ("tape", "output", "cotangent", "stage gradient", "gradient")


@dataclass(frozen=True)
class Judged:
    """One candidate's run with everything that is needed to judge it again.

    Attributes:
        who: name of the candidate.
        case, drawn: the call.
        outcome: what it computed.
        precision: what it promises.
        fused: a compiler may hand values on before their last rounding.
        partial: the candidate records what it likes and returns the gradients it has.
    """

    who: str
    case: Case
    drawn: Drawn
    outcome: Outcome
    precision: Precision
    fused: bool = False
    partial: bool = False


def verdicts(
    run: Judged, tree: str = "attn_np", backward: bool = True, strict: bool = False
) -> tuple[list[Row], Anchor]:
    """Every verdict on a run, in dataflow order, each stage on the run's own numbers.

    Raises:
        Departure: something is beyond its bound, where that is asked for by `strict`.
    """
    taps = run.outcome.tape | run.outcome.cotangents
    matter = consequences(run.case, run.drawn) if run.partial else None
    anchor = Anchor(taps, run.precision, run.fused, strict, matter)
    found, grads = reference(run.case, run.drawn, anchor, run.precision, tree, backward)
    rows = list(tape_rows(run.case, run.who, run.outcome, anchor, {}, run.partial))
    ends, stages = (found, grads) if backward else (found, {})
    if run.partial:
        ends = {name: want for name, want in ends.items() if name in run.outcome.outputs}
        stages = {name: want for name, want in stages.items() if name in run.outcome.grads}
    outcome = run.outcome if backward else replace(run.outcome, grads={})
    rows += judge_ends(run.case, run.who, outcome, ends, stages)
    # An output that the candidate taped is judged as a stage first.
    anchor.wanted |= {name: want for name, want in (ends | stages).items() if name not in run.outcome.tape}
    rows = rows if backward else [row for row in rows if row.stage in FORWARD]
    return sorted(rows, key=lambda row: STAGES.index(row.stage)), anchor


def explain(run: Judged, causes: bool = True) -> Finding | None:
    """What is wrong with a run; None where nothing is."""
    rows, anchor = verdicts(run)
    first = next((row for row in rows if not row.ok), None)
    if first is None:
        return None
    finding = Finding(run.who, run.case.name, first, rows=rows)
    results = run.outcome.tape | run.outcome.cotangents | run.outcome.outputs | run.outcome.grads
    got, want = results.get(first.name), anchor.wanted.get(first.name)
    if got is not None and want is not None:
        finding.axes = axes_of(run.case, first.name, got.ndim)
        finding.got = got
        if isinstance(want, ErrArray):
            finding.want, finding.bound = want.v, want.b
            allowed = anchor.get("allowed")
            if isinstance(allowed, ErrArray):
                allowed = None
            finding.patterns = patterns(got, want, finding.axes, allowed)
        else:
            finding.want = np.asarray(want)
    if causes:
        loose = {(row.stage, row.name): row.vacuous for row in rows}
        finding.causes = [
            *evident(run, finding),
            *causes_of(run, first, once(anchor), loose, finding if at_random(finding) else None),
        ]
    return finding


def evident(run: Judged, finding: Finding) -> Iterator[Cause]:
    """Causes that need no numbers to be compared: they are seen by what is there."""
    if "keep" in run.outcome.tape and "keep" not in run.drawn.inputs:
        evidence = "a mask of kept weights was recorded, and none was given"
        yield Cause("dropout in evaluation", "call eval() first: dropout belongs to training", 0.0, evidence)
    backward = finding.first.stage not in FORWARD
    if backward and finding.got is not None and finding.want is not None and not finding.got.any():
        yield Cause(
            "cut from the graph",
            "let the gradient through: no detach(), no_grad(), stop_gradient or numpy() on the way",
            0.0,
            "the gradient is 0 everywhere",
        )


def at_random(finding: Finding) -> bool:
    """Whether errors look like roundings: up and down, towards 0 and away from it, about as often.

    A factor or an offset does not, and a sum that lacks a term does not.
    """
    if finding.got is None or finding.want is None or finding.bound is None or finding.got.shape != finding.want.shape:
        return False
    with np.errstate(invalid="ignore"):
        error = np.where(np.abs(finding.got - finding.want) > finding.bound, finding.got - finding.want, 0.0)
    error, value = error[np.isfinite(error) & (error != 0)], finding.want[np.isfinite(error) & (error != 0)]
    enough = error.size / 6  # of a fair coin's throws fewer than a sixth are heads only where there are few
    return all(min(np.sum(x > 0), np.sum(x < 0)) >= enough for x in (error, error * np.sign(value)) if x.any())


ROUNDED = "made in the reference, this rounding moves the same places about as far, and at random as roundings do"

# How many times larger or smaller the errors of a rounding may be than those of the same rounding made in the
# reference. The order of a sum and the places where a type is left and entered change them by less than this; the types
# that are told apart, float32, float16 and bfloat16, differ by a factor of 8 and more.
ALIKE = 2


def accounts(arrays: dict[str, Any], whole: dict[str, Any], finding: Finding, out: str) -> bool:
    """Whether a rounding that was made in the reference does to the first array that differs what the candidate did.

    Its errors must have about the same root mean square, and no position, head, row or channel that it moves as a whole
    may be one that the candidate has right.

    Args:
        arrays, whole: the reference with the rounding and without it, by name.
        finding: the candidate's first array that differs.
        out: the type that results are rounded to.
    """
    name, got, want, bound = finding.first.name, finding.got, finding.want, finding.bound
    right, rounded = whole.get(name), arrays.get(name)
    if got is None or want is None or bound is None or right is None or rounded is None:
        return False
    if not np.shape(right) == np.shape(rounded) == got.shape == want.shape:
        return False
    if finding.first.stage in ("output", "stage gradient", "gradient"):
        rounded, bound = nearest(rounded, out), delivered(ErrArray(want, bound), out).b
    with np.errstate(invalid="ignore"):
        errors, real = rounded - right, got - want
    finite = np.isfinite(errors) & np.isfinite(real)
    size, real_size = (float(np.sqrt(np.mean(x[finite] ** 2))) if finite.any() else 0.0 for x in (errors, real))
    if not 0 < size <= ALIKE * real_size or not real_size <= ALIKE * size:
        return False
    moved, wrong = np.abs(errors) > bound, ~(np.abs(real) <= bound)
    for axis in range(got.ndim):
        others = tuple(i for i in range(got.ndim) if i != axis)
        if np.any((2 * moved.sum(axis=others) > moved[finite].size / got.shape[axis]) & ~wrong.any(axis=others)):
            return False
    return True


def rounding_made(run: Judged, backward: bool) -> dict[str, Any]:
    """Every array of the reference by name where each operation rounds as the run's precision says."""
    tape: dict[str, Any] = {}
    with roundings():
        found, grads = reference(run.case, run.drawn, tape, run.precision, "attn_np", backward)
    return {name: x.v if isinstance(x, ErrArray) else x for name, x in (tape | found | grads).items()}


def plain(run: Judged, backward: bool, tree: str = "attn_np") -> dict[str, Any]:
    """Every array of the reference by name, or of a copy of it, in float64 without bounds."""
    case, drawn, tape = run.case, run.drawn, {}
    layer = numpy_layer(case.at("float64"), {name: widened(x) for name, x in drawn.params.items()}, tree)
    given = {name: widened(x) for name, x in drawn.inputs.items()}
    with np.errstate(all="ignore"):
        found = leaves(layer(**given, **extras(case.config.variant, case.config.layer), tape=tape))
        if not backward:
            return tape | found
        dys = pulled(case, drawn, {name: x.shape for name, x in found.items()})
        grads = layer.vjp(tape, *(widened(dy) for dy in dys.values()))
    return tape | found | {f"d{name}": x for name, x in (grads.inputs | grads.params).items()}


FAR = 1024


def once(anchor: Anchor) -> dict[str, Any]:
    """What was expected of the arrays that no scan writes."""
    return {name: want for name, want in anchor.wanted.items() if name not in anchor.steps}


@dataclass(frozen=True)
class Search:
    """What tells a mistake that was not made without arrays that carry bounds, which take twenty times as long.

    Attributes:
        first: the first array that differs.
        whole: every array of the reference without bounds, in dataflow order.
        bounds: what was expected of each that no scan writes, with its bound. In a scan a mistake comes back in the
            next step, also in arrays before it.
        random: what differs, where that looks like roundings; else no rounding is the cause.
    """

    first: str
    whole: dict[str, Any]
    bounds: dict[str, Any]
    random: Finding | None = None

    def possible(self, arrays: dict[str, Any]) -> bool:
        """Whether a mistake moves the first array that differs, and none before it far beyond its bound."""
        for name, a in self.whole.items():
            b, want = arrays.get(name), self.bounds.get(name)
            if b is None or np.shape(a) != np.shape(b):
                return True
            if name == self.first:
                return a.tobytes() != b.tobytes()
            if isinstance(want, ErrArray) and want.shape == a.shape and np.any(np.abs(a - b) > FAR * want.b):
                return False
        return True

    def allows(self, arrays: dict[str, Any], mistake: "Mistake", out: str) -> bool:
        """Whether a mistake may be the one: it is possible, and what is rounded really does what the candidate did."""
        if not mistake.rounding:
            return self.possible(arrays)
        return self.random is not None and accounts(arrays, self.whole, self.random, out)


def causes_of(
    run: Judged, first: Row, bounds: dict[str, Any], loose: dict[tuple[str, str], int], random: Finding | None = None
) -> list[Cause]:
    """The mistakes of the catalogue that give this run's numbers, best first.

    The best is the one whose bounds are tightest: of two that hold the candidate it says more.

    `loose` counts the numbers whose bound says little in the reference as it is: a mistake that makes it many more
    explains nothing. `random` is what differs, where its errors look like roundings.
    """
    found, backward = [], first.stage not in FORWARD
    search = Search(first.name, plain(run, backward), bounds, random)
    for mistake in catalogue(run.case.variant):
        if (mistake.backward and not backward) or (mistake.rounding and random is None):
            continue
        rows = reproduced(run, mistake, backward, search)
        if not rows or any(2 * (row.vacuous - loose.get((row.stage, row.name), 0)) > row.elements for row in rows):
            continue
        found.append((tightness(rows), mistake.rank, rows, mistake))
    best: dict[str, Cause] = {}
    found.sort(key=lambda x: x[:2])
    for tight, _, rows, mistake in found:
        if tight > found[0][0] + 4:  # bounds 2^8 times as wide hold the candidate of any tighter one
            break
        cause = Cause(mistake.name, mistake.fix, max(row.ratio for row in rows))
        best.setdefault(mistake.name, replace(cause, evidence=ROUNDED) if mistake.rounding else cause)
    return list(best.values())


def tightness(rows: list[Row]) -> int:
    """How wide the widest bounds are, in steps of two bits: closer than that, two are equally tight."""
    width = max(row.width for row in rows)
    return round(float(np.log2(width)) / 2) if 0 < width < np.inf else -9999 if width == 0 else 9999


def reproduced(run: Judged, mistake: "Mistake", backward: bool, search: Search) -> list[Row]:
    """The verdicts on a run where the reference makes a mistake; none unless all pass.

    A mistake that cannot be the one is passed over.
    """
    with mistake.made(run.case, run.drawn) as made:
        if made is None:
            return []
        case, drawn, tree, *other = made
        changed = replace(run, case=case, drawn=drawn, precision=other[0] if other else run.precision)
        try:
            with np.errstate(invalid="ignore"):
                arrays = rounding_made(changed, backward) if other else plain(changed, backward, tree)
                if not search.allows(arrays, mistake, run.precision.out):
                    return []
            rows, _ = verdicts(changed, tree, backward, strict=True)
        except Departure:
            return []
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            return []  # with the mistake this call does not run: it is not the one that was made
    return rows if all(row.ok for row in rows) else []


# The catalogue --------------------------------------------------------------------------------------------------------

Made = tuple[Case, Drawn, str] | tuple[Case, Drawn, str, Precision]


@dataclass(frozen=True)
class Mistake:
    """A way to make a known mistake in the reference.

    Attributes:
        name, fix: the mistake in words, and what to do about it in one line.
        made: context in which the reference makes it: case, inputs and weights, tree, and the precision where that is
            the mistake; or None where it can't.
        backward: it is one of the backward pass only.
        rank: which of several that fit is named first; lower is earlier.
        rounding: it rounds more than was promised, so that its bounds hold small errors of any kind.
    """

    name: str
    fix: str
    made: Callable[[Case, Drawn], Any]
    backward: bool = False
    rank: int = 0
    rounding: bool = False


@cache
def catalogue(variant: str) -> tuple[Mistake, ...]:
    """Every known mistake that a variant can hold."""
    return (*call_mistakes(), *source_mistakes(variant), *precision_mistakes())


def source_mistakes(variant: str) -> Iterator[Mistake]:
    """The planted bugs of the tests, made in a copy of the reference's own code."""
    from parity_tests.mistakes import MUTANTS, file_of, planted

    files = sources(variant)
    for mutant in MUTANTS:
        if not mutant.fix or "attn_np" not in mutant.trees or file_of(mutant, "attn_np") not in files:
            continue

        @contextmanager
        def made(case: Case, drawn: Drawn, mutant: Any = mutant) -> Iterator[Made]:
            with planted(mutant, "attn_np") as alias:
                import_module(f"{alias}.{case.config.variant}")
                adopt(alias)
                try:
                    yield case, drawn, alias
                finally:
                    disown(alias)

        alone = mutant.trees == ("attn_np",)
        yield Mistake(mutant.name, mutant.fix, made, backward=alone, rounding=mutant.fix == WIDE)


@cache
def sources(variant: str) -> frozenset[str]:
    """The files of attn_np that a variant is made of, by name: its own, and those it imports."""
    folder, found, open_ = Path(attn_np.__file__).parent, set(), [f"{variant}.py"]
    while open_:
        name = open_.pop()
        if name in found or not (folder / name).exists():
            continue
        found.add(name)
        for node in ast.walk(ast.parse((folder / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attn_np."):
                open_.append(f"{(node.module or '').split('.')[1]}.py")
    return frozenset(found)


def precision_mistakes() -> Iterator[Mistake]:
    """A computation in a smaller type than the one that was promised."""
    for name, fix, smaller in PRECISIONS:

        @contextmanager
        def made(case: Case, drawn: Drawn, smaller: Any = smaller) -> Iterator[Made | None]:
            other = smaller(precision_of(case.dtype))
            yield None if other is None else (case, drawn, "attn_np", other)

        yield Mistake(name, fix, made, rank=2, rounding=True)


def in_type(name: str) -> Callable[[Precision], Precision | None]:
    """Every operation in a type, where a larger one is promised."""
    return lambda p: replace(p, work=name) if UNIT[name] > UNIT[p.work] else None


def products_in(name: str) -> Callable[[Precision], Precision | None]:
    """The factors of matrix products rounded to a type first."""
    return lambda p: replace(p, product=name) if UNIT[name] > UNIT[p.work] else None


WIDE = "compute 16-bit inputs in float32 and float64 inputs in float64, and round once, at the end"
PRECISIONS: tuple[tuple[str, str, Callable[[Precision], Precision | None]], ...] = (
    (
        "matrix products in TF32",
        'ask for full products: torch.set_float32_matmul_precision("highest"), jax.default_matmul_precision("highest")',
        products_in("tf32"),
    ),
    (
        "matrix products in bfloat16",
        'ask for full products: torch.set_float32_matmul_precision("highest"), jax.default_matmul_precision("highest")',
        products_in("bfloat16"),
    ),
    (
        "computed in float32",
        WIDE,
        in_type("float32"),
    ),
    ("computed in float16", WIDE, in_type("float16")),
    ("computed in bfloat16", WIDE, in_type("bfloat16")),
)


def call_mistakes() -> Iterator[Mistake]:
    """Mistakes in how a layer is called and filled, made in the arguments, the fields and the weights."""
    for name, fix, change in CALLS:

        @contextmanager
        def made(case: Case, drawn: Drawn, change: Any = change) -> Iterator[Made | None]:
            changed = change(case, drawn)
            yield None if changed is None else (*changed, "attn_np")

        yield Mistake(name, fix, made, rank=1)


Change = Callable[[Case, Drawn], tuple[Case, Drawn] | None]


def inputs(**changes: Callable[[Any], Any]) -> Change:
    """Other arguments; nothing where one of them was not given."""

    def change(case: Case, drawn: Drawn) -> tuple[Case, Drawn] | None:
        if not set(changes) <= set(drawn.inputs):
            return None
        held = dict(drawn.inputs)
        for name, how in changes.items():
            x = how(held.pop(name))
            if x is not None:
                held[name] = x
        return case, replace(drawn, inputs=held)

    return change


def fields(**changes: Any) -> Change:
    """Another config with parameters of the same shapes; nothing where it has no such field or the value already."""

    def change(case: Case, drawn: Drawn) -> tuple[Case, Drawn] | None:
        config, values = case.config, {}
        for name, value in changes.items():
            if name not in config.fields():
                return None
            values[name] = value(config) if callable(value) else value
            if values[name] == getattr(config, name) or values[name] is NotImplemented:
                return None
        other = replace(config, **values)
        return (replace(case, given=other), drawn) if other.shapes() == config.shapes() else None

    return change


def params(how: Callable[[str, np.ndarray, dict[str, int]], np.ndarray | None]) -> Change:
    """Other weights of the same shapes; nothing where none changes."""

    def change(case: Case, drawn: Drawn) -> tuple[Case, Drawn] | None:
        sizes, held = case.config.sizes(), dict(drawn.params)
        for name, x in drawn.params.items():
            new = how(name, x, sizes)
            if new is not None and new.shape == x.shape:
                held[name] = np.ascontiguousarray(new)
        same = all(np.array_equal(held[name], x) for name, x in drawn.params.items())
        return None if same else (case, replace(drawn, params=held))

    return change


def swapped(one: str, other: str) -> Change:
    """Two weights in each other's place."""

    def change(case: Case, drawn: Drawn) -> tuple[Case, Drawn] | None:
        held = dict(drawn.params)
        pairs = [(f"{kind}_{one}", f"{kind}_{other}") for kind in ("w", "b")]
        pairs = [(a, b) for a, b in pairs if a in held and b in held]
        if not pairs or any(held[a].shape != held[b].shape for a, b in pairs):
            return None
        for a, b in pairs:
            held[a], held[b] = held[b], held[a]
        return case, replace(drawn, params=held)

    return change


def split_the_other_way(name: str, x: np.ndarray, sizes: dict[str, int]) -> np.ndarray | None:
    """A projection whose width was split as (k h): the head runs fastest."""
    if name not in ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v") or "h" not in sizes:
        return None
    *lead, h, k = x.shape
    return np.swapaxes(x.reshape(*lead, k, h), -1, -2)


def merged_the_other_way(name: str, x: np.ndarray, sizes: dict[str, int]) -> np.ndarray | None:
    """An output projection that reads its input as (v h)."""
    if name != "w_o" or x.ndim != 3:
        return None
    h, v, d = x.shape
    return x.reshape(v, h, d).transpose(1, 0, 2)


def transposed(*names: str) -> Callable[[str, np.ndarray, dict[str, int]], np.ndarray | None]:
    def how(name: str, x: np.ndarray, sizes: dict[str, int]) -> np.ndarray | None:
        if name.rpartition(".")[2] not in names:
            return None
        flat = x.reshape(x.shape[0], -1) if name.endswith(("w_q", "w_k", "w_v", "w_x")) else x.reshape(-1, x.shape[-1])
        return flat.T.reshape(x.shape) if flat.shape[0] == flat.shape[1] else None

    return how


def gates(order: tuple[int, int, int]) -> Callable[[str, np.ndarray, dict[str, int]], np.ndarray | None]:
    def how(name: str, x: np.ndarray, sizes: dict[str, int]) -> np.ndarray | None:
        return x[list(order)] if name.rpartition(".")[2] in ("w_x", "w_h", "b_x", "b_h") and len(x) == 3 else None

    return how


def interleaved(name: str, x: np.ndarray, sizes: dict[str, int]) -> np.ndarray | None:
    """A joint projection read as (h p k), q k v of one head next to each other, where it is (p h k)."""
    if name not in ("w_qkv", "b_qkv") or x.ndim < 3:
        return None
    *lead, p, h, k = x.shape
    return np.moveaxis(x.reshape(*lead, h, p, k), -2, -3)


def without(*names: str) -> Callable[[str, np.ndarray, dict[str, int]], np.ndarray | None]:
    return lambda name, x, sizes: np.zeros_like(x) if name.rpartition(".")[2] in names else None


def moved_window(left: int, right: int) -> Callable[[Any], Any]:
    """The window some keys wider on each side."""

    def how(config: Any) -> Any:
        if config.window is None:
            return NotImplemented
        sides = zip(config.window, (left, right), strict=True)
        new = tuple(None if side is None else side + by for side, by in sides)
        return NotImplemented if any(side is not None and side < 0 for side in new) else new

    return how


def over_queries(x: np.ndarray) -> np.ndarray | None:
    """A padding mask of the keys spread over the queries."""
    t, s = x.shape[-2:]
    if t == s:
        return np.swapaxes(x, -1, -2)
    return None


CALLS: tuple[tuple[str, str, Change], ...] = (
    (
        "mask with the opposite meaning",
        "True means may attend here: pass ~mask, as torch.nn.MultiheadAttention's masks mean the opposite",
        inputs(mask=lambda x: ~x),
    ),
    ("mask not passed on", "hand the mask to the attention: keys that it hides are seen", inputs(mask=lambda x: None)),
    (
        "mask with queries and keys exchanged",
        "let the mask's last axis be the keys: transpose its last two axes",
        inputs(mask=over_queries),
    ),
    (
        "bias not passed on",
        "add the bias to the scores, after the scale and before the mask",
        inputs(bias=lambda x: None),
    ),
    ("bias with the opposite sign", "add the bias to the scores; it is subtracted", inputs(bias=lambda x: -x)),
    (
        "bias with queries and keys exchanged",
        "let the bias' last axis be the keys: transpose its last two axes",
        inputs(bias=over_queries),
    ),
    ("dropout mask not used", "drop the weights that keep marks False", inputs(keep=lambda x: None)),
    (
        "dropout mask with the opposite meaning",
        "True means kept here: pass ~keep",
        inputs(keep=lambda x: ~x),
    ),
    (
        "keys taken from the queries' input",
        "project the keys from key, not from query",
        inputs(key=lambda x: None),
    ),
    ("causal, where it should not be", "build it with causal=False", fields(causal=True)),
    ("not causal, where it should be", "hide the keys after a query's own position", fields(causal=False)),
    ("window ignored", "hide the keys outside of the window", fields(window=None)),
    (
        "window one key too wide on the left",
        "count the query's own key once: left=2 sees two keys before it and itself",
        fields(window=moved_window(1, 0)),
    ),
    (
        "window one key too narrow on the left",
        "count the query's own key extra: left=2 sees two keys before it and itself",
        fields(window=moved_window(-1, 0)),
    ),
    (
        "window one key too wide on the right",
        "right=1 sees one key after the query's own",
        fields(window=moved_window(0, 1)),
    ),
    (
        "window one key too narrow on the right",
        "right=1 sees one key after the query's own",
        fields(window=moved_window(0, -1)),
    ),
    ("scores not scaled", "divide the scores by sqrt(head_dim), or pass scale=1.0 to ours", fields(scale=1.0)),
    (
        "scores scaled, where they should not be",
        "leave the scale out, or pass scale=None to ours",
        fields(scale=lambda c: None),
    ),
    (
        "scaled by the model's width",
        "divide by sqrt(head_dim), the width of one head, not of the model",
        fields(scale=lambda c: c.sizes()["d"] ** -0.5 if "d" in c.sizes() else NotImplemented),
    ),
    ("softcap ignored", "pass the scores through softcap * tanh(scores / softcap)", fields(softcap=None)),
    (
        "softmax over the queries",
        "normalise over the keys: softmax over the last axis of the scores (dim=-1)",
        fields(normalize_over="queries"),
    ),
    (
        "softmax over the keys, where it should be over the queries",
        "normalise over the queries: softmax over the last axis but one (dim=-2)",
        fields(normalize_over="keys"),
    ),
    ("weights of queries and keys exchanged", "put w_q in the place of w_k and the other way round", swapped("q", "k")),
    (
        "weights of queries and values exchanged",
        "put w_q in the place of w_v and the other way round",
        swapped("q", "v"),
    ),
    ("weights of keys and values exchanged", "put w_k in the place of w_v and the other way round", swapped("k", "v")),
    (
        "heads split the other way",
        "split the projected width as (heads, head_dim): reshape(b, t, heads, head_dim), the head's width fastest",
        params(split_the_other_way),
    ),
    (
        "heads merged the other way",
        "move the head axis back before merging: transpose to b t h v, then reshape(b, t, h * v)",
        params(merged_the_other_way),
    ),
    *(
        (
            f"weight {name} transposed",
            "transpose the square weight: torch.nn.Linear keeps [out, in], Flax and Keras [in, out]",
            params(transposed(name)),
        )
        for name in ("w_q", "w_k", "w_v", "w_o")
    ),
    (
        "all weights transposed",
        "transpose the square weights: torch.nn.Linear keeps [out, in], Flax and Keras [in, out]",
        params(transposed("w_q", "w_k", "w_v", "w_o")),
    ),
    (
        "joint projection read head by head",
        "split the joint projection as (q k v, head, width); some models keep q, k and v of one head together",
        params(interleaved),
    ),
    *(
        (f"bias {name} left out", f"add the bias {name} after its product", params(without(name)))
        for name in ("b_q", "b_k", "b_v", "b_o", "b_x", "b_h", "b_qkv")
    ),
    (
        "all biases left out",
        "add the biases of the projections",
        params(without("b_q", "b_k", "b_v", "b_o", "b_qkv", "b_x", "b_h")),
    ),
    ("gates in the order z r n", "reorder the gates: torch keeps r z n, Keras z r h", params(gates((1, 0, 2)))),
    ("gates in the order r n z", "reorder the gates to r z n", params(gates((0, 2, 1)))),
    ("gates in the order n z r", "reorder the gates to r z n", params(gates((2, 1, 0)))),
)
