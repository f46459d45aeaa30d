"""The numbers that all entrants of a race get: drawn once by NumPy from one seed."""

from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.plan import WINDOW, Work

SEED = 0
SOFTCAP = 30.0
DTYPES: dict[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
# A step of decoding is too short to be timed alone; so many make a run.
STEPS = 16


def drawn(shape: tuple[int, ...], dtype: str, stream: int) -> Any:
    return np.random.default_rng((SEED, stream)).standard_normal(shape, np.float32).astype(DTYPES[dtype])


def heads(work: Work) -> tuple[Any, Any, Any]:
    """Queries `b t h k`, keys `b s g k`, values `b s g v`."""
    b, t, k = work.batch, work.length, work.width
    counts = work.heads, work.kv_heads, work.kv_heads
    q, k, v = (drawn((b, t, count, k), work.dtype, stream) for stream, count in enumerate(counts))
    return q, k, v


def cotangent(work: Work) -> Any:
    """The gradient of the function's output, `b t h v`."""
    return drawn((work.batch, work.length, work.heads, work.width), work.dtype, 3)


def tokens(work: Work) -> tuple[Any, Any]:
    """The input of a layer and the gradient of its output, both `b t d`."""
    shape = work.batch, work.length, work.heads * work.width
    return drawn(shape, work.dtype, 4), drawn(shape, work.dtype, 5)


def options(work: Work) -> dict[str, Any]:
    """What else `attend` gets: arrays in NumPy, and numbers."""
    t, h = work.length, work.heads
    if work.mask == "causal":
        return {"causal": True}
    if work.mask == "window":
        return {"causal": True, "window": (WINDOW, None)}
    if work.mask == "mask":
        kept = np.random.default_rng((SEED, 6)).random((work.batch, 1, t, t)) < 0.9
        return {"mask": kept | np.eye(t, dtype=bool)}
    if work.mask == "softcap":
        return {"softcap": SOFTCAP}
    if work.mask == "sinks":
        return {"sinks": drawn((h,), work.dtype, 7)}
    if work.mask == "alibi":
        slopes = 2.0 ** (-8 / h * np.arange(1, h + 1, dtype=np.float32))
        ahead = np.arange(t, dtype=np.float32)[None, :] - np.arange(t, dtype=np.float32)[:, None]
        return {"causal": True, "bias": (slopes[:, None, None] * ahead)[None].astype(DTYPES[work.dtype])}
    return {}


def config(work: Work) -> tuple[Any, dict[str, Any]]:
    """The variant of ours and its fields that do the work of a layer."""
    shared = {"d_model": work.heads * work.width, "num_heads": work.heads}
    if work.what == "mha":
        return "mha", shared | {"use_bias": True}
    if work.what == "decode":
        return "mha", shared | {"use_bias": False, "causal": True}
    turning = {} if work.what == "rotary" else {"rope_base": None}
    return "decoder", shared | {"qkv_bias": True, "output_bias": True} | turning


def parameters(work: Work) -> dict[str, Any]:
    """The weights of ours in NumPy, the same for everybody: w_q w_k w_v `d h k`, w_o `h v d`, biases like them."""
    import attn_np

    variant, fields = config(work)
    found = dict(attn_np.build(variant, seed=SEED, dtype=work.dtype, **fields).params())
    for number, name in enumerate(sorted(name for name in found if name.startswith("b_"))):
        found[name] = drawn(found[name].shape, work.dtype, 8 + number)
    return found
