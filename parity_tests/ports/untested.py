"""What runs do not tell apart: other values of a config's fields that move no number beyond its bound."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attn_np.contract import Config
from parity_tests.bounds.error_array import ErrArray, delivered
from parity_tests.bounds.precision import UNIT
from parity_tests.explain.findings import Cause
from parity_tests.explain.verdicts import Setup, verdicts
from parity_tests.judge.candidates import numpy_layer, pulled
from parity_tests.judge.cases import Case, Drawn
from parity_tests.judge.consequences import outputs_of, results_of, wide
from parity_tests.judge.judging import reference
from parity_tests.ports.alternatives import Alternative, alternatives, changed
from parity_tests.ports.trace import Trace

# Of a number whose double is not told apart, such as an eps, how far off it could be: times each of these.
FARTHER = (10, 100, 1000)
# The longest sequences that are tried, so that what acts at a distance shows: a bound for 257 positions takes a tenth
# of a second. Each is odd.
LENGTHS = (17, 33, 65, 129, 257)
# How many numbers a longer run may have in its scores, and in its products with the weights.
SCORES, PRODUCTS = 2**21, 2**26
# How many roundings a number has moved by at least where a longer run is worth its time; its bounds decide.
WORTH = 1024


@dataclass(frozen=True)
class Untested:
    """A field whose value these runs did not determine.

    Attributes:
        name, value: of the field.
        alike: the other values that moved no compared number by more than its bound, so that a candidate with one of
            them agrees, too.
        dtype: the type of the run with the tightest bounds.
    """

    name: str
    value: Any
    alike: tuple[Any, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}={self.value!r} from {', '.join(map(repr, self.alike))}"


class Undetermined:
    """The values that a candidate's fields may still have: all runs so far agree with them.

    A value is told apart where the reference with it gives a number that differs by more than twice the bound: then a
    candidate with that value is beyond the bound, whatever its own roundings are.

    Attributes:
        config: the true one.
        left: the configs with another value that no run has told apart from it.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.left = list(alternatives(config))
        self.dropped = False  # whether a call gave a keep-mask: without one nothing is dropped in evaluation
        self.dtype = ""

    def look(self, traces: Iterable[Trace]) -> None:
        """Strike out what some traces, which agree with the true config, tell apart."""
        for trace in traces:
            arguments = trace.case.config.arguments()
            self.dropped |= any(arguments[name].kind == "keep" for name in trace.drawn.inputs)
            self.dtype = trace.case.dtype
            ends = bounded(trace) if self.left else {}
            self.left = [other for other in self.left if not tells_apart(trace, ends, other.config)]

    def untested(self, traces: list[Trace]) -> list[Untested]:
        """The fields that are left, with the values that they may have."""
        alike: dict[str, list[Any]] = {}
        for other in self.left:
            if other.name != "dropout" or self.dropped:
                alike.setdefault(other.name, []).append(other.value)
        ends = [bounded(trace) for trace in traces] if alike else []
        for name, values in alike.items():
            value = getattr(self.config, name)
            if isinstance(value, float) and 2 * value in values and moves(self.config, name, 2 * value, traces):
                values += farther(self.config, name, value, list(zip(traces, ends, strict=True)))
        return [Untested(name, getattr(self.config, name), tuple(x), self.dtype) for name, x in alike.items()]


def left_by_both(one: Iterable[Untested], other: Iterable[Untested]) -> list[Untested]:
    """What the runs in one type do not determine, and those in another neither."""
    alike = {part.name: part.alike for part in other}
    parts = [replace(x, alike=tuple(value for value in x.alike if value in alike.get(x.name, ()))) for x in one]
    return [part for part in parts if part.alike]


def moves(config: Config, name: str, value: float, traces: list[Trace]) -> bool:
    """Whether another value changes any output at all."""
    other = changed(config, {name: value})
    return other is not None and any(
        not np.array_equal(outputs_of(trace.case.at("float64"), drawn, {})["y"],
                           outputs_of(replace(trace.case, given=other).at("float64"), drawn, {})["y"], equal_nan=True)
        for trace in traces for drawn in (wide(trace.drawn),)
    )  # fmt: skip


def farther(config: Config, name: str, value: float, runs: list[tuple[Trace, dict[str, ErrArray]]]) -> Iterator[float]:
    """Values of a number that are many times as large and that no run tells apart."""
    for factor in FARTHER:
        other = changed(config, {name: float(f"{value * factor:.6g}")})  # 1e-05, not 9.999999999999999e-06
        if other is None or any(tells_apart(trace, ends, other) for trace, ends in runs):
            return
        yield getattr(other, name)


def bounded(trace: Trace) -> dict[str, ErrArray]:
    """The reference's outputs and gradients with the bounds that the trace is judged by."""
    if trace.outcome.tape:  # the verdict's own go on from what the candidate recorded
        found, grads = reference(trace.case, trace.drawn, {}, trace.judged().precision)
        wanted: Mapping[str, Any] = found | grads
    else:
        wanted = trace.verdicts()[1].wanted
    names = (*trace.outcome.outputs, *trace.outcome.grads)
    return {name: delivered(x, trace.case.dtype) for name in names if isinstance(x := wanted.get(name), ErrArray)}


def tells_apart(trace: Trace, ends: Mapping[str, ErrArray], other: Config) -> bool:
    """Whether a candidate with another config would be beyond its bound in a trace, or refuse its call."""
    case, drawn = replace(trace.case, given=other).at("float64"), held_by(other, wide(trace.drawn))
    tape: dict[str, Any] = {}
    try:
        outputs = outputs_of(case, drawn, tape)
    except (ValueError, TypeError):
        return True
    if any(differs(outputs.get(name), ends[name]) for name in trace.outcome.outputs if name in ends):
        return True
    if not any(name in ends for name in trace.outcome.grads):
        return False
    dys = pulled(case, drawn, {name: x.shape for name, x in outputs.items()})
    with np.errstate(all="ignore"):
        found = numpy_layer(case, drawn.params).vjp(tape, *dys.values())
    grads = {f"d{name}": x for name, x in (found.inputs | found.params).items()}
    return any(differs(grads.get(name, 0.0), ends[name]) for name in trace.outcome.grads if name in ends)


def held_by(config: Config, drawn: Drawn) -> Drawn:
    """The same call with the weights that a config has."""
    return replace(drawn, params={name: drawn.params[name] for name in config.shapes()})


def differs(moved: Any, end: ErrArray) -> bool:
    """Whether numbers are beyond twice a bound; those that are not there are."""
    if moved is None or np.shape(moved) not in ((), end.shape):
        return True
    with np.errstate(invalid="ignore"):
        strange = (np.isfinite(moved) != np.isfinite(end.v)) & np.isfinite(end.b)
        return bool((strange | (np.abs(moved - end.v) > 2 * end.b)).any())


# Longer sequences -----------------------------------------------------------------------------------------------------


def open_axes(case: Case, drawn: Drawn, kinds: tuple[str, ...] = ("array",)) -> tuple[str, ...]:
    """Letters of the axes of a call's inputs, of some kinds, that may have any size, but for the batch."""
    arguments, sizes = case.config.arguments(), case.config.sizes()
    letters = [x for name in drawn.inputs if arguments[name].kind in kinds for x in arguments[name].axes.split()]
    return tuple(dict.fromkeys(x for x in letters if x not in sizes and x != "b"))


def sizes_at(letters: tuple[str, ...], length: int) -> dict[str, int]:
    """One sequence of this length; others are longer by a few, so that no two are as long."""
    return {"b": 1} | {letter: length + 2 * i for i, letter in enumerate(letters)}


def affordable(config: Config, length: int) -> bool:
    """Whether bounds of a run over so many positions are had in about a second.

    Each pair of positions takes a row of a table of distances, whose gradient is a sum over all pairs for every row.
    """
    weights = sum(int(np.prod(shape)) for shape in config.shapes().values())
    tables = [name for name, param in config.own_params().items() if "x" in param.axes.split()]
    entries = sum(int(np.prod(config.shapes()[name])) for name in tables)
    products = max(length * weights, length**2 * entries)
    return config.sizes().get("h", 1) * length**2 <= SCORES and products <= PRODUCTS


Call = tuple[Case, Drawn]


def telling_length(undetermined: Undetermined, short: Call, draw_at: Callable[[int], Call]) -> int | None:
    """The length of a sequence that shows most of what a short one does not, the shortest such one; None for none.

    That is, the values that are left, and the entries of weights that have no part in a short sequence, such as those
    of a table for distances that it lacks.

    Args:
        undetermined: the values that are left.
        short: the call of a few positions.
        draw_at: length -> the call at this length.
    """
    unused = unused_weights(*short)
    if not undetermined.left and not any(places.any() for places in unused.values()):
        return None
    best: tuple[set[Any], int | None] = set(), None
    for length in (n for n in reversed(LENGTHS) if affordable(undetermined.config, n)):
        try:
            shown = newly_shown(undetermined, unused, *draw_at(length))
        except (ValueError, TypeError):  # the variant has no sequence as long
            continue
        if not shown or not shown >= best[0]:
            break
        best = shown, length
    return best[1]


def newly_shown(undetermined: Undetermined, unused: Mapping[str, np.ndarray], case: Case, drawn: Drawn) -> set[Any]:
    """The configs that move an output by far more than a rounding, and the places of weights that play a part."""
    case, drawn, unit = case.at("float64"), wide(drawn), UNIT[case.dtype]
    here, shown = outputs_of(case, drawn, {})["y"], set[Any]()
    least = WORTH * unit * np.sqrt(np.mean(np.nan_to_num(here) ** 2))
    for other in undetermined.left:
        try:
            there = outputs_of(replace(case, given=other.config), held_by(other.config, drawn), {})["y"]
        except (ValueError, TypeError):  # it asks for another kind of input
            continue
        with np.errstate(invalid="ignore"):
            shown |= {other.config} if (np.abs(here - there) > least).any() else set()
    if any(places.any() for places in unused.values()):
        now = unused_weights(case, drawn)
        shown |= {(name, i) for name, places in unused.items() for i in np.flatnonzero(places & ~now[name])}
    return shown


def unused_weights(case: Case, drawn: Drawn) -> dict[str, np.ndarray]:
    """The places of each weight whose gradient is 0 in a call; none where tokens choose them by chance."""
    arguments = case.config.arguments()
    if any(arguments[name].kind == "integers" for name in drawn.inputs):
        return {}
    results = results_of(case.at("float64"), wide(drawn))
    return {name: results[f"d{name}"] == 0 for name in case.config.shapes()}


def cause_among(undetermined: Undetermined, trace: Trace) -> list[Cause]:
    """The values that are left with which the reference gives a trace's numbers."""
    judged, causes = trace.judged(), []
    for other in undetermined.left:
        setup = Setup(replace(trace.case, given=other.config), held_by(other.config, trace.drawn), judged.precision)
        try:
            rows = verdicts(judged.against(setup))[0]
        except (ValueError, TypeError):
            continue
        if all(row.ok for row in rows):
            causes.append(cause_of(undetermined.config, other, max(row.ratio for row in rows)))
    return causes


def cause_of(config: Config, other: Alternative, ratio: float) -> Cause:
    value = getattr(config, other.name)
    return Cause(
        f"{other.name}={other.value!r} in place of {value!r}",
        f"set it to {value!r}; if yours is meant, build ours with {other.name}={other.value!r}",
        ratio,
        "the reference with this value gives these numbers, within its bounds; a shorter sequence does not show it",
    )
