"""In which types a recording's submodules computed, told by the numbers that they gave."""

from collections.abc import Iterator

import numpy as np

from attn_np.ops import DTYPES
from parity_tests.bounds.error_array import widened
from parity_tests.bounds.precision import UNIT
from parity_tests.ports.modules.recordings import Arrays, Call, Recording, Run, blocks
from parity_tests.ports.modules.sides import is_float

NARROW = ("float32", "float16", "bfloat16")
MOST = 4  # names that are listed


def types_of(side: str, recording: Recording) -> Iterator[str]:
    """The types of a side's two runs, and which submodules computed in others."""
    narrow = dict(narrower(recording.own, recording.probe, recording))
    inside = [f"{kind} in {listed(names)}" for kind, names in by_type(narrow).items()]
    yield f"  {side} ran in float64 and in {recording.probe}{', computes in ' + ', '.join(inside) if inside else ''}"
    for kind, names in by_type(dict(narrower(recording.exact, "float64", recording))).items():
        yield f"  float64 was not to be had in {side}: {listed(names)} gives numbers of {kind}"


def listed(names: list[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(name or "the module itself" for name in names[:MOST]) + more


def by_type(narrow: dict[str, str]) -> dict[str, list[str]]:
    return {kind: [name for name, x in narrow.items() if x == kind] for kind in NARROW if kind in narrow.values()}


def narrower(run: Run, dtype: str, recording: Recording) -> Iterator[tuple[str, str]]:
    """The calls that give numbers of a type with fewer digits than the run's, which neither inputs nor weights hold."""
    for call in run.calls:
        kind = next((kind for kind in reversed(NARROW) if UNIT[kind] > UNIT[dtype] and gives(call, kind)), None)
        if kind is not None and not handed_on(call, recording.weights):
            yield call.name, kind


def gives(call: Call, kind: str) -> bool:
    """Whether every number that a call gives is one of a type, and needs it: not all are whole or the same."""
    arrays = [x[np.isfinite(x)] for x in call.outputs.values() if x.dtype.kind == "f"]
    with np.errstate(over="ignore"):
        held = all(np.array_equal(x.astype(DTYPES[kind]).astype(np.float64), x) for x in arrays)
    return held and any(np.any(x != np.rint(x)) and np.unique(x).size > 2 for x in arrays)


def handed_on(call: Call, weights: Arrays) -> bool:
    """Whether a call gives only numbers that it got, or that are stored, as views and tables of embeddings do."""
    own = [x for name, x in weights.items() if name.startswith(f"{call.name}.") or not call.name]
    known = [x for x in (*call.inputs.values(), *own) if is_float(x)]
    left = np.unique(np.concatenate([x.ravel() for x in call.outputs.values() if x.dtype.kind == "f"]))
    left = left[left != 0]
    if not left.size:
        return True
    for x in known:
        for (part,) in blocks(x):  # all at once, the weights would be held again
            part, seen = widened(part), np.zeros(left.size, bool)
            at = np.minimum(np.searchsorted(left, part), left.size - 1)
            seen[at[left[at] == part]] = True
            left = left[~seen]
            if not left.size:
                return True
    return not left.size
