"""Float types, and the rounding from one to another."""

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
}


def round_to(x: np.ndarray, dtype: str) -> np.ndarray:
    """The nearest value of a float type, ties to even, rounded once; infinity beyond its range.

    bfloat16's own cast from float64 goes through float32 and so rounds twice: 1 + 2^-8 + 2^-40 would become 1. Here
    the step to float32 rounds to odd: it truncates, and sets the last bit if the result is not exact. bfloat16's own
    bits end above that one, so the second rounding knows on which side of a tie the value was.
    """
    target = DTYPES[dtype]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if x.dtype == BFLOAT16 and target != BFLOAT16:
            x = x.astype(np.float32)
        if target != BFLOAT16 or x.dtype != np.float64:
            return x.astype(target)
        nearest = x.astype(np.float32)
        above = np.abs(nearest.astype(np.float64)) > np.abs(x)
        truncated = np.where(above, np.nextafter(nearest, np.float32(0)), nearest)
        inexact = (truncated.astype(np.float64) != x) & np.isfinite(x)
        odd = truncated.view(np.uint32) | inexact.astype(np.uint32)
        return odd.view(np.float32).astype(target)
