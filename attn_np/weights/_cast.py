"""Float types and the one rounding from one to another."""

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
}


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """Round once to the nearest value of a float type, ties to even; beyond its range to infinity.

    bfloat16's own cast from float64 goes by way of float32 and so rounds twice: 1 + 2^-8 + 2^-40 would become 1. Here
    the step to float32 rounds to odd: it truncates and sets the last bit where something was lost. The bits that
    bfloat16 keeps end above it, so the second rounding sees on which side of a tie the value was.
    """
    target = DTYPES[dtype]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if x.dtype == BFLOAT16 and target != BFLOAT16:
            x = x.astype(np.float32)
        if target != BFLOAT16 or x.dtype != np.float64:
            return x.astype(target)
        near = x.astype(np.float32)
        short = np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float32(0)), near)
        inexact = (short.astype(np.float64) != x) & np.isfinite(x)
        odd = short.view(np.uint32) | inexact.astype(np.uint32)
        return odd.view(np.float32).astype(target)
