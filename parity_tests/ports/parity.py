"""The judge as a library: `assert_parity` for an implementation of your own, `compare` for two traces."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config
from parity_tests.bounds.error_arrays import UNDERFLOW, UNIT, ErrArray, delivered, precision_of, widened
from parity_tests.explain.causes import Judged, explain, verdicts
from parity_tests.explain.findings import Cause, Finding, told
from parity_tests.explain.patterns import axes_of, patterns
from parity_tests.judge.candidates import output_shapes, pulled
from parity_tests.judge.cases import CALLS, Case, Drawn, draw, given
from parity_tests.judge.judging import Row, reference, without_consequence
from parity_tests.ports.adapters import port
from parity_tests.ports.names import Names, Weights
from parity_tests.ports.port import Port
from parity_tests.ports.trace import Trace, record

OWN_CALLS = (*CALLS, "self")


class ParityError(AssertionError):
    """An implementation differs from the reference by more than rounding explains.

    Attributes:
        finding: the first difference, what it looks like, and the known mistakes that give its numbers.
    """

    def __init__(self, finding: Finding) -> None:
        super().__init__(told(finding))
        self.finding = finding


@dataclass
class Verdict:
    """What `assert_parity` found where it found no difference.

    Attributes:
        rows: the verdict on every array of every call.
        traces: what was computed, by call.
    """

    rows: list[Row]
    traces: dict[str, Trace] = field(default_factory=dict)

    @property
    def worst(self) -> Row:
        return max(self.rows, key=lambda row: row.ratio)

    def __str__(self) -> str:
        numbers = sum(row.elements for row in self.rows)
        loose = sum(row.vacuous for row in self.rows)
        more = f"; {loose:,} numbers had a bound above their array's size" if loose else ""
        return (
            f"agrees: {len(self.rows)} arrays, {numbers:,} numbers, worst error/bound {self.worst.ratio:.3g} "
            f"({self.worst.stage} {self.worst.name}){more}; called with "
            + "; with ".join(", ".join(trace.drawn.inputs) for trace in self.traces.values())
        )


def assert_parity(
    candidate: Any,
    variant: str,
    config: Config | Mapping[str, Any] | None = None,
    *,
    weights: Weights = None,
    arguments: Mapping[str, Any] | None = None,
    outputs: tuple[Any, ...] = ("y",),
    taps: Mapping[str, Any] | None = None,
    call: Any = None,
    framework: str | None = None,
    dtype: str | None = None,
    calls: tuple[str, ...] = OWN_CALLS,
    empty_rows: bool = True,
    seed: int = 0,
    device: str | None = None,
    **fields: Any,
) -> Verdict:
    """Judge an implementation of your own against the float64 reference: outputs, gradients and what it records.

    The candidate is called with random inputs of odd sizes, as many of our arguments as it takes, and, for a function,
    with random weights as its first argument, a dictionary under our names. A module's own weights are read and stay
    as they are. Nothing is put into evaluation mode: do that first.

    Args:
        candidate: a torch module, a Flax NNX module, or a function; of NumPy arrays unless `framework` says otherwise.
        variant: the variant that it should be, such as "mha".
        config: the variant's Config, or its fields.
        weights: how its parameters map to ours: see `parity_tests.ports.names.Names`, as for the next four.
        arguments, outputs, taps, call: how its arguments, results, submodules and call map to ours.
        framework: "torch", "jax" or "numpy": whose arrays a function takes.
        dtype: of inputs and weights; by default that of a module's weights, float64 for a function of NumPy arrays.
        calls: which of "plain", "full", "shared" and "self" (see `parity_tests.judge.cases.Case`).
        empty_rows: whether masks hide every key from some query; what then comes out is 0 in the reference.
        seed: of everything random.
        device: where it runs, "cpu", "cuda" or another of its framework; a module is copied there. By
            default its own; the CPU for JAX.
        fields: the Config's fields, in place of `config`.

    Returns:
        The verdict on every array.

    Raises:
        ParityError: it differs; the message names the first difference and the mistake that explains it.
        MissingDeviceError: there is no such device.
        ValueError, TypeError: names, fields or shapes that do not fit.
    """
    __tracebackhide__ = True
    made = config if isinstance(config, Config) else contract.config(variant, **dict(config or {}), **fields)
    if made.variant != variant:
        raise ValueError(f"assert_parity: expected a Config of {variant}, got one of {made.variant}; name its variant")
    if fields and made is config:
        raise ValueError(f"assert_parity: expected a Config or fields, got both, {', '.join(fields)}; give one of them")
    unknown = [call for call in calls if call not in OWN_CALLS]
    if unknown or not calls:
        got = repr(unknown[0]) if unknown else "none"
        raise ValueError(f"assert_parity: expected calls= of {', '.join(OWN_CALLS)}, got {got}; name one or more")
    names = Names(weights, arguments, outputs, taps or {}, call)
    found = port(candidate, made, names, framework, dtype, device)
    rows: list[Row] = []
    traces: dict[str, Trace] = {}
    for trace in runs(found, made, calls, empty_rows, seed, outputs):
        finding = explain(trace.judged())
        if finding is not None:
            if by_chance(found, trace, finding):
                finding.causes = [Cause("by chance", CHANCE, 0.0, "the same call, run again, gives other numbers")]
            raise ParityError(finding)
        rows += verdicts(trace.judged())[0]
        traces[trace.case.call] = trace
    refuse_unjudged(traces.values(), rows, names)
    return Verdict(rows, traces)


CHANCE = "call eval() first: dropout belongs to training; leave nothing else to chance"


def by_chance(found: Port, trace: Trace, finding: Finding) -> bool:
    """Whether the same call gives other numbers the next time, further apart than two right ones are."""
    again = found.candidate.run(trace.case, trace.drawn, True)
    results = again.tape | again.cotangents | again.outputs | again.grads
    got, other = finding.got, results.get(finding.first.name)
    if got is None or other is None or finding.bound is None or not got.shape == other.shape == finding.bound.shape:
        return False
    with np.errstate(invalid="ignore"):
        return bool((np.abs(got - other) > 2 * finding.bound).any())


def refuse_unjudged(traces: Iterable[Trace], rows: list[Row], names: Names) -> None:
    """What was asked for and never compared would be taken for right.

    Raises:
        ValueError: a tap that recorded nothing, or a recorded name that the reference does not have.
    """
    recorded = {name: None for trace in traces for name in trace.outcome.tape}
    for pattern, named in names.taps.items():
        ours = named if isinstance(named, str) else named[0]
        if ours not in recorded:
            raise ValueError(
                f"assert_parity: expected an array from {pattern!r} in taps=, got none in any call; "
                f"what it names must run in the call and return a tensor"
            )
    judged = tuple(dict.fromkeys(row.name for row in rows if row.stage == "tape"))
    known = tuple(dict.fromkeys(name for trace in traces for name in reference_names(trace)))
    for name in recorded:
        if name not in judged:
            raise ValueError(
                f"assert_parity: expected intermediates under the names on our tape, got {name!r}, which none of the "
                f"calls has; {contract.nearest(name, known)}"
            )


def reference_names(trace: Trace) -> tuple[str, ...]:
    """The names of the forward pass on the reference's tape."""
    tape: dict[str, Any] = {}
    reference(trace.case, trace.drawn, tape, precision_of(trace.case.dtype), backward=False)
    return tuple(tape)


def replay(
    trace: Trace,
    candidate: Any,
    *,
    weights: Weights = None,
    arguments: Mapping[str, Any] | None = None,
    outputs: tuple[Any, ...] = ("y",),
    taps: Mapping[str, Any] | None = None,
    call: Any = None,
    framework: str | None = None,
    device: str | None = None,
) -> Trace:
    """Run an implementation of your own on the call of a trace: its inputs, its incoming gradients, its weights.

    A module keeps its own weights; `compare` says if they are not those of the trace. The arguments are those of
    `assert_parity`.

    Raises:
        ValueError, TypeError: names, fields or shapes that do not fit, or an input of the trace that it does not take.
    """
    case, names = trace.case, Names(weights, arguments, outputs, taps or {}, call)
    found = port(candidate, case.config, names, framework, None, device)
    left = [name for name in trace.drawn.inputs if name not in found.arguments]
    if left:
        raise ValueError(
            f"replay: expected a candidate that takes every input of the trace, got one without {', '.join(left)}; "
            f"map it with arguments=, or record a trace without it"
        )
    absent = [name for name in found.required if name not in trace.drawn.inputs]
    if absent:
        raise ValueError(
            f"replay: expected a trace with every input that the candidate cannot do without, got one without "
            f"{', '.join(absent)}; record a trace with it, or call the candidate without it by call="
        )
    if found.params and found.dtype != case.dtype:
        raise ValueError(
            f"replay: expected a module in {case.dtype}, as the trace, got {found.dtype}; convert it, or record the "
            f"trace in its type: attn-parity trace --like FILE --dtype {found.dtype}"
        )
    drawn = trace.drawn if found.params is None else replace(trace.drawn, params=found.params)
    replayed = record(found.candidate, case, drawn, partial=True)
    refuse_unjudged([replayed], verdicts(replayed.judged())[0], names)
    return replayed


def runs(found: Port, config: Config, calls: tuple[str, ...], empty_rows: bool, seed: int, outputs: tuple[Any, ...]):
    """A trace of each call that differs from the ones before it in what is given."""
    names = {name if isinstance(name, str) else name[0] for name in outputs if name is not None}
    seen: list[set[str]] = []
    for call in calls:
        case = Case(config.variant, "yours", call, found.dtype, seed, config)
        key = {*(name for name in given(config, call) if name in found.arguments), *found.required}
        if key in seen:
            continue
        seen.append(key)
        yield record(found.candidate, case, prepared(found, case, empty_rows, names), partial=True)


def prepared(found: Port, case: Case, empty_rows: bool, returns: set[str]) -> Drawn:
    """The call's inputs, the candidate's own weights, and no gradient for what it does not return."""
    drawn = draw(case, found.arguments, found.required)
    if not empty_rows:
        drawn = replace(drawn, inputs={name: seeing(case, name, x) for name, x in drawn.inputs.items()})
    if found.params is not None:
        drawn = replace(drawn, params={name: x.astype(drawn.params[name].dtype) for name, x in found.params.items()})
    held = pulled(case, drawn, output_shapes(case, drawn))
    return replace(drawn, pulled={name: x if name in returns else np.zeros_like(x) for name, x in held.items()})


def seeing(case: Case, name: str, x: np.ndarray) -> np.ndarray:
    """A mask in which every query sees a key, its own place or the last one, and is kept from another."""
    if case.config.arguments()[name].kind != "mask" or x.ndim < 3:
        return x
    t, s = x.shape[-2:]
    own = np.minimum(np.arange(t) + max(s - t, 0), s - 1)[:, None]
    return (x | (np.arange(s) == own)) & (np.arange(s) != (own + s - 1) % s)


# Two traces -----------------------------------------------------------------------------------------------------------


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
    sides = [trace.judged() for trace in (one, other)]
    judged = [verdicts(side) for side in sides]
    rows = [{(row.stage, row.name): row for row in part} for part, _ in judged]
    hidden = next((anchor.values["allowed"] for _, anchor in judged if "allowed" in anchor.values), None)
    hidden = hidden if one.partial or other.partial else None
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
                skip = without_consequence(name, hidden, x.shape)
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
    """Largest difference of two arrays, and largest share of what the two bounds together allow."""
    if x.shape != y.shape:
        return float("inf"), float("inf")
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
