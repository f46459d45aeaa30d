"""Fields of a config that a run in a narrow type cannot test: a change of theirs stays below the bounds."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from attn_np.contract import Config
from parity_tests.bounds.error_array import ErrArray, delivered
from parity_tests.judge.consequences import results_of, wide
from parity_tests.judge.judging import reference
from parity_tests.ports.trace import Trace

FACTORS = (1.1, 2.0, 10.0, 100.0, 1000.0)


@dataclass(frozen=True)
class Untested:
    """A field whose value these runs did not determine.

    Attributes:
        name, value: of the field.
        up_to: the largest value that was tried and not seen; all tried between the two were not seen either.
        dtype: the type of the run.
    """

    name: str
    value: float
    up_to: float
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}={self.value:g} (nor would {self.up_to:g} be seen in {self.dtype})"


def untested(traces: Iterable[Trace]) -> list[Untested]:
    """The fields that no trace determines, each with how far off it could be.

    A field is determined where the reference with another value gives a number that differs by more than twice the
    bound: then a candidate with that value is beyond the bound, whatever its own roundings are.
    """
    traces = list(traces)
    if not traces:
        return []
    config, dtype = traces[0].case.config, traces[0].case.dtype
    ends = [bounded(trace) for trace in traces]
    unseen = []
    for name, value in config.as_dict().items():
        if not isinstance(value, float) or not np.isfinite(value) or value == 0:
            continue
        passed = value
        for factor in FACTORS:
            tried = float(f"{value * factor:.6g}")  # 1e-05, not 9.999999999999999e-06
            other = changed(config, name, tried)
            if other is None or any(sees(trace, end, other) for trace, end in zip(traces, ends, strict=True)):
                break
            passed = tried
        if passed != value and any(matters(trace, name, passed) for trace in traces):
            unseen.append(Untested(name, value, passed, dtype))
    return unseen


def changed(config: Config, name: str, value: float) -> Config | None:
    """The config with another value; None where it cannot have it."""
    try:
        return replace(config, **{name: value})
    except ValueError:
        return None


def bounded(trace: Trace) -> dict[str, ErrArray]:
    """The reference's outputs and gradients with the bounds that the trace is judged by."""
    found, grads = reference(trace.case, trace.drawn, {}, trace.judged().precision)
    kept = {**trace.outcome.outputs, **trace.outcome.grads}
    both = {name: x for name, x in (found | grads).items() if name in kept and isinstance(x, ErrArray)}
    return {name: delivered(x, trace.case.dtype) for name, x in both.items()}


def sees(trace: Trace, ends: dict[str, ErrArray], config: Config) -> bool:
    """Whether a candidate with another config would be beyond its bound in a trace."""
    moved = results_of(replace(trace.case, given=config).at("float64"), wide(trace.drawn))
    with np.errstate(invalid="ignore"):
        return any(bool((np.abs(moved[name] - x.v) > 2 * x.b).any()) for name, x in ends.items() if name in moved)


def matters(trace: Trace, name: str, value: float) -> bool:
    """Whether another value changes any number at all, as a rate of dropout does not without dropout."""
    drawn, case = wide(trace.drawn), trace.case.at("float64")
    here, there = results_of(case, drawn), results_of(replace(case, given=replace(case.config, **{name: value})), drawn)
    return any(not np.array_equal(here[n], there[n], equal_nan=True) for n in here)
