"""What a candidate computes with, seen from inside: operations in a narrower type than float64, and what hides keys."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from attn_np.ops import DTYPES
from parity_tests.bounds.error_array import widened
from parity_tests.explain.verdicts import FORWARD
from parity_tests.judge.judging import Row

NARROW = ("float32", "bfloat16", "float16")
# Frames of these are passed over in the search for the candidate's own line.
PASSED_OVER = ("torch", "jax", "jaxlib", "flax", "equinox", "numpy", "parity_tests.ports", "contextlib", "functools")
# Numbers that people write have few digits. Of the numbers that float32 can hold between 1/2 and 1 one in 2^14 has so
# few, and a rounded table holds many.
WRITTEN_DIGITS = 9


@dataclass
class Watch:
    """What one candidate's runs computed with.

    Attributes:
        forward, backward: in words, the operations in a narrower type whose results are not those of float64.
        hidden: who is hidden from whom, `b h t s`, where the number is looked for that hides keys; None elsewhere.
        fill: that number; None where none was found.
        suspected: some operation is in a narrower type; what it gives may be exact.
    """

    forward: dict[str, None] = field(default_factory=dict)
    backward: dict[str, None] = field(default_factory=dict)
    hidden: np.ndarray | None = None
    fill: float | None = None
    suspected: bool = False

    def settle(self) -> None:
        """Fill in `forward` and `backward`, where that takes a run of its own."""

    def look(self, x: np.ndarray) -> None:
        """Take the number by which an array hides keys, if it is lower than the one that was found before."""
        found = None if self.hidden is None else fill_of(x, self.hidden)
        if found is not None and (self.fill is None or found < self.fill):
            self.fill = found


BUILT_WIDE = "give one built in float64, whose casts and tables follow the type of what they meet"


def narrower(watch: Watch, rows: list[Row]) -> tuple[str, str]:
    """Why a run in float64 that differs is not judged, and why its gradients are not; "" where they are.

    That something is computed in a narrower type is a reason where this is what makes the difference. Then the outputs
    are judged if they are computed in float64, or nothing.
    """
    if not watch.suspected:
        return "", ""
    watch.settle()
    if watch.forward:
        return f"it computes in a narrower type: {listed(watch.forward)}; {BUILT_WIDE}", ""
    forward = [row for row in rows if row.stage in FORWARD]
    if watch.backward and forward and all(row.ok for row in forward):
        return "", f"they pass through {listed(watch.backward)}; {BUILT_WIDE}"
    return "", ""


def listed(seen: Iterable[str], most: int = 3) -> str:
    """The first of some words, and how many more there are."""
    words = list(seen)
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def fill_of(x: np.ndarray, hidden: np.ndarray) -> float | None:
    """The lowest number of an array, where it is finite, stands at several hidden places and at no visible one."""
    b, h, t, s = hidden.shape
    if x.dtype.kind != "f" or x.ndim < 2 or x.shape[-1] != s or x.shape[-2] not in (1, t) or x.size == 0:
        return None
    lead = x.shape[:-2]
    if len(lead) == 1 and lead[0] not in (1, b):
        if lead[0] % b:
            return None
        x = x.reshape(b, -1, *x.shape[-2:])
    elif len(lead) == 1:
        x = x[:, None]
    finite = x[np.isfinite(x)]
    lowest = finite.min() if finite.size else 0.0
    if not lowest < 0 or np.sum(x == lowest) < 2:
        return None
    try:
        places, visible = np.broadcast_arrays(x == lowest, ~hidden)
    except ValueError:  # other heads than ours
        places, visible = np.broadcast_arrays(x == lowest, ~hidden.all(1, keepdims=True))
    return None if x.ndim > 4 or (places & visible).any() else float(lowest)


def number(x: float) -> str:
    """A number as people write it: -1e9, or the smallest float32."""
    limit = next((name for name in DTYPES if x == smallest(name)), "")
    short = f"{x:.6g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    return f"the smallest {limit}" if limit and float(short) != x else short


def smallest(dtype: str) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(DTYPES[dtype]).min)


def written(x: np.ndarray) -> bool:
    """Whether an array holds what people write, such as 0, -inf or -1e9, and no number that was rounded to its type.

    Powers of two and the limits of a type are exact, too.
    """
    wide = np.unique(widened(np.asarray(x)).ravel())
    wide = wide[np.isfinite(wide) & (wide != 0)]
    limits = {abs(smallest(name)) for name in DTYPES}
    return all(abs(v) in limits or np.frexp(v)[0] in (0.5, -0.5) or digits(v) <= WRITTEN_DIGITS for v in wide)


def digits(x: float) -> int:
    """How many digits the shortest decimal has that is this number in float64."""
    return len(np.format_float_scientific(x, trim="-").lstrip("-").partition("e")[0].replace(".", ""))


def own_frames() -> Iterator[FrameType]:
    """The frames that are being run, from the innermost."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def passed_over(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    return any(name == root or name.startswith(f"{root}.") for root in PASSED_OVER)


def place() -> str:
    """The candidate's line that is being run, in words; "" where none of its frames is there."""
    stop = next((f for f in own_frames() if f.f_code.co_name == "invoke" and passed_over(f)), None)
    for frame in own_frames():
        if frame is stop:
            break
        if not passed_over(frame):
            return f"{Path(frame.f_code.co_filename).name}, line {frame.f_lineno}"
    return ""


def holder(kinds: tuple[type, ...]) -> Any:
    """The innermost module whose method is being run; None outside of all."""
    selves = (frame.f_locals.get("self") for frame in own_frames())
    return next((x for x in selves if isinstance(x, kinds)), None)
