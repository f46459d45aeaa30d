"""Our NumPy, its textbook path, and the two matrix products that no attention can do without."""

from functools import partial
from typing import Any

import numpy as np

import attn_np
from benchmarks import inputs, variants
from benchmarks.plan import BOTH, Work
from benchmarks.turns import Runner


def wide(result: Any) -> Any:
    return np.asarray(result, np.float64)


def size(result: Any) -> int:
    return result.nbytes


def attend(work: Work, implementation: str) -> Runner:
    q, k, v = inputs.heads(work)
    options: dict[str, Any] = inputs.options(work) | {"implementation": implementation}
    if work.passes == BOTH:
        raise ValueError("attend in NumPy has its backward pass in the layers only")
    return Runner(lambda _: attn_np.attend(q, k, v, **options)[0], output=wide, kept=size)


def two_products(work: Work) -> Runner:
    """(q @ k^T) @ v for each head and no softmax, from the same layout; the scores' memory is there beforehand.

    Written to fresh memory, the products take up to twice as long, and a floor should not be higher than it must.
    """
    if work.passes == BOTH or work.mask != "full" or work.kv_heads != work.heads:
        raise ValueError("the two products are those of a forward pass without a mask")
    q, k, v = (x.swapaxes(1, 2) for x in inputs.heads(work))
    scores = np.zeros((work.length, work.length), q.dtype)

    def run(_: Any) -> Any:
        out = np.empty((work.batch, work.length, work.heads, work.width), q.dtype)
        for b in range(work.batch):
            for h in range(work.heads):
                np.matmul(q[b, h], k[b, h].T, out=scores)
                np.matmul(scores, v[b, h], out=out[b, :, h])
        return out

    return Runner(run, output=lambda _: None, kept=size)


def layer(work: Work) -> Any:
    variant, fields = inputs.config(work)
    made = attn_np.build(variant, seed=inputs.SEED, dtype=work.dtype, **fields)
    for name, value in inputs.parameters(work).items():
        setattr(made, name, value)
    return made


def whole(work: Work) -> Runner:
    made, (x, dy) = layer(work), inputs.tokens(work)
    if work.what == "decode":
        return decode(made, x)
    if work.passes == "forward":
        return Runner(lambda _: made(x), output=wide, kept=size)

    def run(_: Any) -> Any:
        y, tape = attn_np.trace(made, x, implementation="fused")
        return y, made.vjp(tape, dy)

    return Runner(run, output=lambda result: wide(result[0]))


def decode(made: Any, x: Any) -> Runner:
    """Steps of one token each, the last ones that the cache has room for."""
    filled = x.shape[1] - inputs.STEPS
    cache = made.init_cache(x.shape[0], x.shape[1])
    for start in range(0, filled, 512):
        _, cache = made.step(x[:, start : min(start + 512, filled)], cache)
    new = [x[:, at : at + 1] for at in range(filled, x.shape[1])]

    def run(cache: Any) -> Any:
        y = None
        for token in new:
            y, cache = made.step(token, cache)
        return y

    return Runner(run, fresh=cache.copy, units=len(new), output=wide)


def variant(work: Work) -> Runner:
    layer, given, dy = variants.made(attn_np, work), variants.arguments(work), variants.cotangent(work)
    if work.passes == "forward":
        return Runner(lambda _: variants.first(layer(**given)), output=wide, kept=size)

    def run(_: Any) -> Any:
        y, pull = attn_np.value_and_vjp(layer, **given)
        return variants.first(y), pull(dy)

    def kept(result: Any) -> int:
        y, grads = result
        return size(y) + sum(size(x) for x in (*grads.inputs.values(), *grads.params.values()))

    return Runner(run, output=lambda result: wide(result[0]), kept=kept)


def ours(work: Work) -> Runner:
    if work.what == "variant":
        return variant(work)
    return attend(work, "auto") if work.what == "attend" else whole(work)


MAKERS = {
    "attn_np": ours,
    "attn_np textbook": partial(attend, implementation="textbook"),
    "two products": two_products,
}
