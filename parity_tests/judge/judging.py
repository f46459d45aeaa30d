"""The judge: is every number of a candidate within the bound that the reference derives for it?

Two ways, both from the same reference code run on error-carrying arrays:

* end to end: outputs and gradients of a run without a tape, against the bound of the whole computation;
  where that bound says little, a compiled run is judged by what random rounding errors do instead;
* anchored: every taped value and cotangent against the bound of its own stage, after which the reference goes on from
  the candidate's value. Bounds stay tight through long chains, and the first stage that fails is the guilty one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from parity_tests.bounds.error_array import ErrArray, delivered, widened
from parity_tests.bounds.precision import (
    EXACT,
    UNDERFLOW,
    UNIT,
    Precision,
    fast_precision_of,
    noise,
    precision,
    precision_of,
)
from parity_tests.bounds.softmax import recompute
from parity_tests.judge.candidates import Candidate, Outcome, extras, leaves, numpy_layer, pulled
from parity_tests.judge.cases import Case, Drawn, draw
from parity_tests.judge.consequences import Consequences, replaced

NUMBERS = "fiuc"  # kinds of dtypes that can be compared with numbers


@dataclass(frozen=True)
class Row:
    """The verdict on one named array.

    Attributes:
        candidate, case: who computed it, and in which call.
        stage: "tape", "cotangent", "output" or "gradient"; "sampled" for one of the last two whose bound says little.
        name: of the array.
        ratio: largest error/bound; at most 1 passes; infinite where shapes, types or non-finite places differ.
        rms: root mean square of error/bound, which moves less by chance than the largest does.
        width: root mean square of the bounds, relative to that of the values.
        index: where the largest ratio is.
        got, expected, bound: the three numbers there.
        elements, vacuous: how many numbers were judged, and for how many of them the bound says little: it is larger
            than the array's root mean square, or infinite.
        note: what else is wrong, in words.
    """

    candidate: str
    case: Case
    stage: str
    name: str
    ratio: float
    index: tuple[int, ...] = ()
    got: float = 0.0
    expected: float = 0.0
    bound: float = 0.0
    elements: int = 0
    vacuous: int = 0
    note: str = ""
    rms: float = 0.0
    width: float = 0.0

    @property
    def ok(self) -> bool:
        return self.ratio <= 1

    def __str__(self) -> str:
        where = f"{self.candidate}, {self.case.name}, {self.stage} {self.name}"
        if self.note:
            return f"{where}: {self.note}"
        return (
            f"{where}: error/bound {self.ratio:.3g} at {self.index}: got {self.got!r}, expected {self.expected!r}, "
            f"bound {self.bound:.3g}"
        )


def rank(ratio: float) -> float:
    """A ratio as it is compared with others: what is not a number is worse than any."""
    return np.inf if np.isnan(ratio) else ratio


def worst(rows: Iterable[Row]) -> Row:
    """The row that is furthest beyond its bound, or nearest to it."""
    return max(rows, key=lambda row: rank(row.ratio))


def ratios(got: np.ndarray, want: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Error/bound of each number; infinite where one is finite and the other is not."""
    strange = ~np.isfinite(got) | ~np.isfinite(want)
    agree = np.where(np.isfinite(bound), (np.isnan(got) & np.isnan(want)) | (got == want), True)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        error = np.abs(got - want)
        ratio = np.where(error == 0, 0.0, error / bound)
    return np.where(strange, np.where(agree, 0.0, np.inf), ratio)


def root_mean_square(ratio: np.ndarray) -> float:
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.mean(ratio**2)))


def compare(got: np.ndarray, want: Any, out: str | None = None) -> dict[str, Any]:
    """Largest error/bound of an array against the reference's value and bound, as fields of a Row."""
    if not isinstance(want, ErrArray):
        want = np.asarray(want)
        if want.dtype.kind != "f" and got.shape == want.shape:
            wrong = got != want
            found: dict[str, Any] = {"ratio": np.inf if wrong.any() else 0.0, "elements": int(want.size)}
            if wrong.any():
                index = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
                found |= {"index": index, "got": float(got[index]), "expected": float(want[index])}
            return found
        want = ErrArray(want, 0.0)
    if got.shape != want.shape:
        return {"ratio": np.inf, "note": f"shape {got.shape}, expected {want.shape}"}
    if got.dtype.kind not in NUMBERS:
        return {"ratio": np.inf, "note": f"dtype {got.dtype.name}, expected numbers"}
    if out is not None:
        want = delivered(want, out)
    if got.size == 0:
        return {"ratio": 0.0}
    typical = np.sqrt(np.mean(np.where(np.isfinite(want.v), want.v, 0.0) ** 2))
    vacuous = int(np.sum(~(want.b <= typical) & (want.b != 0)))  # a bound that is NaN says nothing either
    ratio = ratios(got, want.v, want.b)
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
    return {
        "ratio": float(ratio[index]),
        "index": index,
        "got": float(got[index]),
        "expected": float(want.v[index]),
        "bound": float(want.b[index]),
        "elements": int(got.size),
        "vacuous": vacuous,
        "rms": root_mean_square(ratio),
        "width": root_mean_square(want.b) / typical if typical else 0.0,
    }


class Departure(Exception):
    """The candidate leaves the reference at this name."""


class Anchor:
    """A tape that compares every value with the candidate's and lets the reference go on from the candidate's.

    A compiler may hand a value to the next operation before its last rounding (a fused multiply-add). For a `fused`
    candidate the reference therefore goes on from the taped value with one rounding as its bound. It may even compute
    a value twice, once for the tape and once where it is used, and round otherwise on the way: a `loose` anchor only
    compares and goes on from the reference's own value with its bound, which holds both.

    A `strict` one raises `Departure` at the first value beyond its bound that has no `explained` name. For a candidate
    that is not ours `consequences` says which places may hold anything.
    """

    def __init__(
        self,
        candidate: dict[str, np.ndarray],
        p: Precision,
        fused: bool,
        strict: bool = False,
        consequences: Consequences | None = None,
        loose: bool = False,
        explained: frozenset[str] = frozenset(),
    ) -> None:
        self.candidate, self.values = candidate, {}
        self.wanted: dict[str, Any] = {}  # the reference's own value, before it goes on from the candidate's
        self.steps: dict[str, dict[int, Any]] = {}
        self.found: dict[str, dict[str, Any]] = {}
        self.unseen: list[str] = []
        self.u, self.eta = (p.u, p.eta) if fused else (0.0, 0.0)
        self.strict, self.consequences, self.loose, self.explained = strict, consequences, loose, explained
        self.hidden: dict[str, np.ndarray] = {}  # places that are not compared, by name

    def anchored(self, got: np.ndarray, value: ErrArray, hidden: np.ndarray | None) -> ErrArray:
        """What the reference goes on from: the candidate's value, at hidden places its own with its bound."""
        if self.loose:
            return value
        with np.errstate(invalid="ignore"):
            bound = np.where(np.isfinite(got), self.u * np.abs(got) + self.eta, 0.0)
        return ErrArray(got, bound if hidden is None else np.where(hidden, value.b, bound))

    def hidden_of(self, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """The places of an array that have no consequence."""
        if self.consequences is None:
            return None
        hidden = self.consequences.hidden(name, shape)
        if isinstance(hidden, np.ndarray) and hidden.any():
            self.hidden[name] = hidden
        return self.hidden.get(name)

    def note(self, name: str, result: dict[str, Any]) -> None:
        if self.strict and result["ratio"] > 1 and name not in self.explained:
            raise Departure(name)
        before = self.found.get(name)
        if before is None or result["ratio"] > before["ratio"]:
            self.found[name] = result

    def tap(self, name: str, value: Any) -> Any:
        got = self.candidate.get(name)
        if got is None:
            # Booleans and what is exactly 0 leave nothing to compare; anything else the candidate should have.
            if isinstance(value, ErrArray) and value.v.any():
                self.unseen.append(name)
            self.values[name] = value
            return value
        hidden = self.hidden_of(name, got.shape) if isinstance(value, ErrArray) else None
        if hidden is not None and got.shape == value.shape:
            got = np.where(hidden, value.v, got)
        steps = self.steps.get(name)
        self.wanted[name] = np.stack([steps[i] for i in sorted(steps)], axis=1) if steps else value
        self.note(name, compare(got, value))
        if isinstance(value, ErrArray) and got.shape == value.shape:
            value = self.anchored(got, value, hidden)
        self.values[name] = value
        return value

    def tap_step(self, names: list[str], i: int, carry: Any, ys: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """One step of a scan: a y that is the carry, or part of it, is anchored in both."""
        anchored = []
        for name, y in zip(names, ys, strict=True):
            got = self.candidate.get(name)
            if got is None or got.ndim != y.ndim + 1 or got.shape[1] <= i or got[:, i].shape != y.shape:
                anchored.append(y)
                continue
            now, hidden = got[:, i], self.hidden_of(name, got.shape) if isinstance(y, ErrArray) else None
            if hidden is not None:
                hidden = hidden[:, i]
                now = np.where(hidden, y.v, now)
            result = compare(now, y)
            batch, *rest = result.get("index", ()) or (0,)
            self.note(name, result | {"index": (batch, i, *rest)})
            self.steps.setdefault(name, {})[i] = y
            fixed = self.anchored(now, y, hidden) if isinstance(y, ErrArray) else y
            carry = replaced(carry, y, fixed)
            anchored.append(fixed)
        return carry, tuple(anchored)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str) -> Any:
        return self.values.get(name)


def reference(
    case: Case,
    drawn: Drawn,
    tape: Any,
    p: Precision,
    tree: str = "attn_np",
    backward: bool = True,
    rounding: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs and gradients of the reference in float64, with bounds for a candidate of precision p.

    `tree` names a copy of attn_np that `bounds.copies.adopt` knows; without `backward` there are no gradients. With
    `rounding` the candidate may have been given everything rounded to that type.
    """

    def lifted(x: np.ndarray) -> ErrArray:
        x = widened(x)
        return ErrArray(x, 0.0 if rounding is None else UNIT[rounding] * np.abs(x) + UNDERFLOW[rounding])

    layer = numpy_layer(case.at("float64"), {name: widened(x) for name, x in drawn.params.items()}, tree)
    layer.set_params({name: lifted(x) for name, x in layer.params().items()})
    inputs = {n: lifted(x) if x.dtype.kind not in "biu" else x for n, x in drawn.inputs.items()}
    with precision(p), np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        found = leaves(layer(**inputs, **extras(case.config.variant, case.config.class_name), tape=tape))
        if not backward:
            return found, {}
        if p.recomputed:
            recompute(tape)
        dys = pulled(case, drawn, {n: x.shape for n, x in found.items()})
        grads = layer.vjp(tape, *(lifted(x) for x in dys.values()))
    return found, {f"d{name}": g for name, g in (grads.inputs | grads.params).items()}


def judge(case: Case, candidate: Candidate, drawn: Drawn | None = None, p: Precision | None = None) -> Iterator[Row]:
    """Every verdict on one candidate in one case: stage by stage on its tape, then end to end without one.

    What runs operation by operation does the same with a tape and without, so its untaped gradients must also be within
    the bounds of the last stage alone; a compiler may order things otherwise, and is held to the whole bound and, where
    that says little, to what rounding does at random.
    """
    p = p or precision_of(case.dtype)
    usual = drawn is None
    ends = expected(case, p) if usual else reference(case, drawn, {}, p)
    drawn = drawn or draw(case)
    fused = candidate.mode == "jit"
    taped, plain = candidate.run(case, drawn, True), candidate.run(case, drawn, False)
    anchor = Anchor(taped.tape | taped.cotangents, p, fused)
    _, stages = reference(case, drawn, anchor, p)
    close = list(tape_rows(case, candidate.name, taped, anchor, stages))
    yield from recomputed(close, case, candidate.name, drawn, taped, p) if fused else close
    rows = list(judge_ends(case, candidate.name, plain, *ends, None if fused else stages))
    yield from rows
    loose = [row.name for row in rows if row.vacuous] if fused else []
    if loose:
        random = sampled(case, p) if usual else scatter(case, drawn, p)
        for name in loose:
            results = plain.outputs | plain.grads
            yield judge_one(case, candidate.name, "sampled", name, results, random[name], plain.dtypes)


def judge_call(
    case: Case, candidate: Candidate, drawn: Drawn | None = None, p: Precision | None = None
) -> Iterator[Row]:
    """Verdicts on a call as users make it, whose fast path has no stages: outputs and gradients end to end.

    A keep-mask is left out: what it asks for needs the weights.
    """
    p = p or fast_precision_of(candidate.framework, case.dtype)
    found, grads = expected_call(case, p) if drawn is None else reference(case, undropped(case, drawn), {}, p)
    outcome = candidate.run(case, undropped(case, drawn or draw(case)), False)
    names = ("y", "out1") if case.config.second_output() else ("y",)
    yield from judge_ends(case, candidate.name, outcome, {name: found[name] for name in names}, grads)


def undropped(case: Case, drawn: Drawn) -> Drawn:
    """The inputs without keep-masks."""
    arguments = case.config.arguments()
    return replace(drawn, inputs={name: x for name, x in drawn.inputs.items() if arguments[name].kind != "keep"})


@lru_cache(maxsize=8)
def expected_call(case: Case, p: Precision) -> tuple[dict[str, Any], dict[str, Any]]:
    """The reference of `judge_call`, computed once for all trees."""
    return reference(case, undropped(case, draw(case)), {}, p)


def recomputed(rows: list[Row], case: Case, name: str, drawn: Drawn, taped: Outcome, p: Precision) -> Iterator[Row]:
    """Verdicts on what a compiler taped: a stage beyond its bound may have begun from values computed once more."""
    if all(row.ok for row in rows):
        yield from rows
        return
    anchor = Anchor(taped.tape | taped.cotangents, p, True, loose=True)
    _, stages = reference(case, drawn, anchor, p)
    again = {(row.stage, row.name): row for row in tape_rows(case, name, taped, anchor, stages)}
    for row in rows:
        other = again.get((row.stage, row.name), row)
        yield row if row.ok or other.vacuous > row.vacuous else other


SAMPLES = 8
# How many standard deviations: those that 2^40 normally distributed numbers exceed with a probability of 2^-40.
DEVIATIONS = float(np.sqrt(2 * 81 * np.log(2)))


def scatter(case: Case, drawn: Drawn, p: Precision) -> dict[str, ErrArray]:
    """Outputs and gradients with what random rounding errors do to them, in place of a bound.

    The reference runs several times, every operation erring at random within its own bound. This is no proof, but
    through long chains, where bounds grow beyond use, it still sees a mistake. An element that happens to move little
    is given the median of its array.
    """
    found, grads = reference(case, drawn, {}, EXACT)
    exact = {name: x.v for name, x in (found | grads).items() if isinstance(x, ErrArray)}
    squares = {name: np.zeros(x.shape) for name, x in exact.items()}
    for seed in range(SAMPLES):
        with noise(np.random.default_rng([drawn.seed, 5, seed])):
            found, grads = reference(case, drawn, {}, p)
        for name, x in exact.items():
            squares[name] += ((found | grads)[name].v - x) ** 2 / SAMPLES
    return {name: ErrArray(x, DEVIATIONS * floored(np.sqrt(squares[name]))) for name, x in exact.items()}


def floored(deviation: np.ndarray) -> np.ndarray:
    return np.maximum(deviation, np.median(deviation)) if deviation.size else deviation


@lru_cache(maxsize=8)
def sampled(case: Case, p: Precision) -> dict[str, ErrArray]:
    """`scatter`, computed once for all candidates of a case."""
    return scatter(case, draw(case), p)


def judge_tape(
    case: Case, name: str, drawn: Drawn, outcome: Outcome, p: Precision, fused: bool = False
) -> Iterator[Row]:
    """Anchored: each stage of forward and backward on the candidate's own numbers, `fused` where a compiler made it."""
    anchor = Anchor(outcome.tape | outcome.cotangents, p, fused)
    _, stages = reference(case, drawn, anchor, p)
    close = list(tape_rows(case, name, outcome, anchor, stages))
    yield from recomputed(close, case, name, drawn, outcome, p) if fused else close


def tape_rows(
    case: Case, name: str, outcome: Outcome, anchor: Anchor, stages: dict[str, Any], partial: bool = False
) -> Iterator[Row]:
    """Verdicts on what was taped; a `partial` candidate may record what it likes."""
    names = list(anchor.values)
    forward = names[: names.index("dy")] if "dy" in names else names
    for missing in (
        [] if partial else [n for n in forward if n not in outcome.tape] + [n for n in outcome.tape if n not in forward]
    ):
        who = "the candidate" if missing in forward else "the reference"
        yield Row(name, case, "tape", missing, np.inf, note=f"{who} did not record it")
    for missing in [] if partial else anchor.unseen:
        if missing not in forward:
            yield Row(name, case, "cotangent", missing, np.inf, note="the candidate has no such gradient")
    for stage in forward:
        if stage in anchor.found:
            yield Row(name, case, "tape", stage, **anchor.found[stage])
    for stage in names[len(forward) :]:
        if stage in anchor.found:
            yield Row(name, case, "cotangent", stage, **anchor.found[stage])
    for key, want in stages.items():
        yield judge_one(case, name, "stage gradient", key, outcome.grads, want)


@lru_cache(maxsize=8)
def expected(case: Case, p: Precision) -> tuple[dict[str, Any], dict[str, Any]]:
    """The reference end to end, computed once for all candidates of a case."""
    return reference(case, draw(case), {}, p)


def judge_ends(
    case: Case,
    name: str,
    outcome: Outcome,
    found: dict[str, Any],
    grads: dict[str, Any],
    stages: dict[str, Any] | None = None,
) -> Iterator[Row]:
    """End to end: outputs and gradients of a run without a tape, against those of the reference.

    Where the bounds of the last stages are given too, a gradient must be within both: through long chains the bound of
    the whole computation says little.
    """
    for key, want in found.items():
        yield judge_one(case, name, "output", key, outcome.outputs, want, outcome.dtypes)
    for key, want in grads.items():
        row = judge_one(case, name, "gradient", key, outcome.grads, want, outcome.dtypes)
        if stages is not None and key in stages:
            close = judge_one(case, name, "gradient", key, outcome.grads, stages[key], outcome.dtypes)
            vacuous = min(row.vacuous, close.vacuous)
            row = replace(worst((row, close)), vacuous=vacuous)
        yield row
    for extra in sorted((set(outcome.outputs) | set(outcome.grads)) - set(found) - set(grads)):
        stage = "output" if extra in outcome.outputs else "gradient"
        yield Row(name, case, stage, extra, np.inf, note="the reference has no such result")


def judge_one(
    case: Case,
    name: str,
    stage: str,
    key: str,
    results: dict[str, np.ndarray],
    want: Any,
    dtypes: dict[str, str] | None = None,
) -> Row:
    if key not in results:
        return Row(name, case, stage, key, np.inf, note="the candidate did not return it")
    if dtypes is not None and isinstance(want, ErrArray) and dtypes[key] != case.dtype:
        return Row(name, case, stage, key, np.inf, note=f"dtype {dtypes[key]}, expected {case.dtype}")
    return Row(name, case, stage, key, **compare(results[key], want, case.dtype))
