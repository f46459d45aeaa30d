"""The contracts of the functions below the layers: the checks of their arguments, with the standard library alone."""

from math import isfinite
from typing import Any

from attn_np.contract._base import FLOATS, Spec, field_error, require


def check_floats(owner: str, name: str, spec: Spec | None) -> None:
    """Refuse an array that is missing or holds no floats.

    Raises:
        TypeError: naming the dtype.
    """
    if spec is None or spec[1] not in FLOATS:
        got = "none" if spec is None else spec[1]
        raise TypeError(
            f"{owner}: expected {name} of a float dtype, got {got}; convert it to one of {', '.join(FLOATS)}"
        )


def check_scores(owner: str, scores: Spec | None, mask: Spec | None, axis: Any, alpha: Any = 1.0) -> None:
    """Refuse what has no weights: scores that are no floats, a mask that does not fit, an axis or alpha that is none.

    Raises:
        ValueError: a shape, an axis or an alpha that cannot be right.
        TypeError: a dtype that cannot be right.
    """
    check_floats(owner, "scores", scores)
    shape = scores[0] if scores else ()
    rank = len(shape)
    is_axis = isinstance(axis, int) and not isinstance(axis, bool) and -rank <= axis < rank
    require(is_axis, owner, f"axis to be one of the scores' {rank} axes", repr(axis), "count from 0, or back from -1")
    if mask is not None:
        if mask[1] != "bool":
            todo = "pass mask == 1, or add a bias to the scores"
            raise TypeError(f"{owner}: expected a boolean mask (True = may attend), got {mask[1]}; {todo}")
        sizes = tuple(shape[rank - len(mask[0]) :])
        fits = len(mask[0]) <= rank and all(n in (1, size) for n, size in zip(mask[0], sizes, strict=True))
        todo = "add axes of size 1 where it does not vary"
        require(fits, owner, f"mask broadcastable to the scores' shape {shape}", mask[0], todo)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not (alpha >= 1 and isfinite(alpha)):
        raise field_error(owner, "alpha to be a finite number from 1", repr(alpha), "1 is softmax, 2 is sparsemax")
