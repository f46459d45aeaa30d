"""Initial values: one seed gives bit-identical weights in every package."""

from statistics import NormalDist

import numpy as np

from attn_np.contract import Config
from attn_np.contract._base import is_integer
from attn_np.weights._cast import round_to

BITS = 24


def draw(config: Config, seed: int, dtype: str) -> dict[str, np.ndarray]:
    """Every parameter by its dotted name: its start value if the contract has one, else uniform within 1/sqrt(fan), or
    standard normal.

    Each parameter has a PCG64 stream of its own from (seed, name), so that adding one moves no other. Odd multiples of
    2^-24 are exact in float64; they are divided by sqrt(fan), or mapped to normal quantiles, and rounded once to the
    dtype, here, because the frameworks' casts differ. The values of a seed never change: golden digests in the tests
    fix them.
    """
    if not is_integer(seed) or seed < 0:
        raise ValueError(f"{config.variant}: expected seed to be an integer from 0, got {seed!r}; set seed=")
    shapes, fans, initial_values = config.shapes(), config.fans(), config.initial_values()
    params, quantile, values = config.params(), NormalDist().inv_cdf, {}
    for name, shape in shapes.items():
        start = initial_values[name]
        if start is not None:
            values[name] = round_to(np.full(shape, start), dtype)
            continue
        stream = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=tuple(name.encode())))
        raw = stream.random_raw(int(np.prod(shape, dtype=np.int64))) >> (64 - BITS)
        uniform = (2.0 * raw.astype(np.float64) + 1.0 - 2.0**BITS) / 2.0**BITS
        if params[name].normal:
            drawn = np.array([quantile(0.5 + 0.5 * x) for x in uniform.tolist()])
        else:
            drawn = uniform / np.sqrt(np.float64(fans[name]))
        values[name] = round_to(drawn, dtype).reshape(shape)
    return values
