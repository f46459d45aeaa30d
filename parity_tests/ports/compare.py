"""Two traces, name by name in dataflow order: where they part, whose numbers are wrong, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parity_tests.bounds.error_array import ErrArray, delivered, widened
from parity_tests.bounds.precision import UNDERFLOW, UNIT
from parity_tests.explain.causes import explain
from parity_tests.explain.findings import Finding
from parity_tests.explain.patterns import axes_of, patterns
from parity_tests.explain.verdicts import Judged, verdicts
from parity_tests.judge.consequences import consequences
from parity_tests.judge.judging import Row, reference
from parity_tests.ports.trace import Trace


@dataclass
class Line:
    """One name of two traces.

    Attributes:
        kind, name, axes: which array.
        apart: largest difference of the two.
        ratio: largest difference over the sum of the bounds of both, from the inputs on.
        one, other: largest error/bound of each on its own inputs of this stage; None where it was not recorded.
    """

    kind: str
    name: str
    axes: str
    apart: float | None
    ratio: float | None
    one: float | None
    other: float | None

    @property
    def ok(self) -> bool:
        return all(x is None or x <= 1 for x in (self.ratio, self.one, self.other))


@dataclass
class Comparison:
    """What two traces say about each other.

    Attributes:
        given: differences in what the two were given, in words; where there is one, nothing behind it is comparable.
        lines: every name in dataflow order.
        findings: what is wrong with either, judged on its own numbers.
        wrong: whether that is so of the one and of the other.
    """

    one: Trace
    other: Trace
    given: list[str] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    wrong: tuple[bool, bool] = (False, False)

    @property
    def first(self) -> Line | None:
        """The first name that differs although what it is made of agrees."""
        return next((line for line in self.lines if not line.ok), None)

    @property
    def shared(self) -> int:
        """How many arrays both recorded."""
        return sum(line.apart is not None for line in self.lines)

    @property
    def agree(self) -> bool:
        return not self.given and not self.findings and self.first is None and self.shared > 0


def compare(one: Trace, other: Trace) -> Comparison:
    """Walk two traces in dataflow order: the first name that differs although its inputs agree, on whose side, why."""
    found = Comparison(one, other, list(given_apart(one, other)))
    if one.case.variant != other.case.variant:
        return found
    sides = [trace.judged() for trace in (one, other)]
    judged = [verdicts(side) for side in sides]
    rows = [{(row.stage, row.name): row for row in part} for part, _ in judged]
    matter = consequences(one.case, one.drawn) if one.partial or other.partial else None
    bounds = [whole(side, other.case.dtype) for side, other in zip(sides, reversed(sides), strict=True)]
    kinds = (("tape", "tape"), ("outputs", "output"), ("cotangents", "cotangent"), ("grads", "gradient"))
    for kind, stage in kinds:
        held = [getattr(side.outcome, kind) for side in sides]
        order = {name: i for i, name in enumerate(judged[0][1].values)}
        for name in sorted({**held[0], **held[1]}, key=lambda name: order.get(name, len(order))):
            line = Line(stage, name, "", None, None, *(worst(part, stage, name) for part in rows))
            x = next(part[name] for part in held if name in part)
            line.axes = axes_of(one.case, name, x.ndim)
            if all(name in part for part in held):
                skip = False if matter is None else matter.hidden(name, x.shape)
                line.apart, line.ratio = distance(
                    held[0][name], held[1][name], bounds[0].get(name), bounds[1].get(name), skip
                )
            if (line.apart, line.one, line.other) != (None, None, None):
                found.lines.append(line)
    whose = [explain(side) for side in sides]
    found.findings = [finding for finding in whose if finding is not None]
    found.wrong = (whose[0] is not None, whose[1] is not None)
    return found


def worst(rows: Mapping[tuple[str, str], Row], stage: str, name: str) -> float | None:
    held = [rows[s, name].ratio for s in (stage, f"stage {stage}") if (s, name) in rows]
    return max(held, default=None)


def whole(side: Judged, other: str) -> dict[str, ErrArray]:
    """Value and bound of every name from the inputs on, without going on from the candidate's numbers.

    Where the other side has the coarser dtype, what this one was given is uncertain by that type's rounding.
    """
    tape: dict[str, Any] = {}
    rounding = other if UNIT[other] > UNIT[side.case.dtype] else None
    found, grads = reference(side.case, side.drawn, tape, side.precision, rounding=rounding)
    ends = {name: delivered(x, side.case.dtype) for name, x in (found | grads).items()}
    return {name: x for name, x in tape.items() if isinstance(x, ErrArray) and name not in ends} | ends


def distance(
    x: np.ndarray, y: np.ndarray, bx: ErrArray | None, by: ErrArray | None, skip: np.ndarray | bool = False
) -> tuple[float, float | None]:
    """Largest difference of two arrays, and largest share of what the two bounds together allow.

    The difference of other shapes is NaN, that of NaN and a number infinite.
    """
    if x.shape != y.shape:
        return float("nan"), float("inf")
    if x.dtype == bool or y.dtype == bool:
        same = bool(np.array_equal(x, y))
        return float(not same), 0.0 if same else float("inf")
    with np.errstate(invalid="ignore", divide="ignore"):
        gap = np.where((x == y) | (np.isnan(x) & np.isnan(y)) | skip, 0.0, np.abs(x - y))
        gap = np.where(np.isnan(gap), np.inf, gap)
        apart = float(np.max(gap, initial=0.0))
        if bx is None or by is None or bx.shape != x.shape or by.shape != x.shape:
            return apart, None
        share = np.where(gap == 0, 0.0, gap / (bx.b + by.b))
    return apart, float(np.max(np.where(np.isnan(share), np.inf, share), initial=0.0))


def given_apart(one: Trace, other: Trace):
    """What the two runs were given and should share: variant, config, inputs, weights and incoming gradients."""
    if one.case.variant != other.case.variant:
        yield f"variant: {one.case.variant} and {other.case.variant}"
        return
    mine, theirs = one.case.config.as_dict(), other.case.config.as_dict()
    for name in mine:
        if mine[name] != theirs[name]:
            yield f"config: {name}={mine[name]!r} and {name}={theirs[name]!r}"
    parts = (
        ("input", one.drawn.inputs, other.drawn.inputs),
        ("weight", one.drawn.params, other.drawn.params),
        ("incoming gradient", one.drawn.pulled, other.drawn.pulled),
    )
    for what, a, b in parts:
        for name in dict.fromkeys([*a, *b]):
            if name not in a or name not in b:
                yield f"{what} {name}: only {(one if name in a else other).who} has it"
                continue
            want, got = rounded_to(a[name], one.case.dtype, other.case.dtype), widened(b[name])
            how = (
                [] if isinstance(want, ErrArray) else [] if np.array_equal(want, got) else ["the two are not the same"]
            )
            if isinstance(want, ErrArray):
                how = patterns(got, want, axes_of(one.case, name, got.ndim))
            if how:
                yield f"{what} {name}: {'; '.join(how[:3])}"


def rounded_to(x: np.ndarray, mine: str, theirs: str) -> Any:
    """An array with the bound for what the coarser of two types leaves of it; exact where the types are the same."""
    if x.dtype == bool or x.dtype.kind in "iu":
        return x
    v = widened(x)
    coarse = max((mine, theirs), key=lambda name: UNIT[name])
    return ErrArray(v, 0.0 if mine == theirs else UNIT[coarse] * np.abs(v) + UNDERFLOW[coarse])
