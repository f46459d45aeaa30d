"""Initial values: one seed gives bit-identical weights in every tree."""

import ml_dtypes
import numpy as np

from attn_np.contract import Config

BITS = 24


def draw(config: Config, seed: int, dtype: str) -> dict[str, np.ndarray]:
    """Every parameter by its dotted name, uniform in (-1/sqrt(fan), 1/sqrt(fan)).

    Each parameter has a PCG64 stream of its own from (seed, name), so that adding one moves no other. Odd multiples of
    2^-24 are exact in float64; they are scaled by the fan and rounded once to the dtype, by NumPy, because the
    frameworks' casts differ.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"{config.variant}: expected seed to be an integer from 0, got {seed!r}; set seed=")
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    shapes, fans = config.shapes(), config.fans()
    values = {}
    for name, shape in shapes.items():
        stream = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=tuple(name.encode())))
        raw = stream.random_raw(int(np.prod(shape, dtype=np.int64))) >> (64 - BITS)
        uniform = (2.0 * raw.astype(np.float64) + 1.0 - 2.0**BITS) / 2.0**BITS
        values[name] = (uniform / np.sqrt(np.float64(fans[name]))).astype(kind).reshape(shape)
    return values
