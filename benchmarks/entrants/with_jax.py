"""Our Flax, JAX's own function, and the layers of Flax and Equinox; everything compiled."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import attn_jax
from benchmarks import inputs, variants
from benchmarks.plan import WINDOW, Work
from benchmarks.turns import Runner


def wide(result: Any) -> Any:
    return np.asarray(result).astype(np.float64)


def size(result: Any) -> int:
    return sum(x.nbytes for x in jax.tree.leaves(result))


def passes(
    work: Work, call: Callable[..., Any], arguments: tuple[Any, ...], dy: Any, fixed: dict[str, Any] | None = None
) -> Runner:
    """A forward pass, or one with gradients of the arguments, compiled; `fixed` are arrays without gradients."""
    if work.passes == "forward":
        given = arguments, fixed or {}
        compiled = jax.jit(lambda arguments, fixed: call(*arguments, **fixed))
    else:
        given = arguments, fixed or {}, dy

        def both(arguments: Any, fixed: Any, dy: Any) -> Any:
            y, pull = jax.vjp(lambda *arguments: call(*arguments, **fixed), *arguments)
            return y, pull(dy)

        compiled = jax.jit(both)

    def run(_: Any, compiled: Any = compiled) -> Any:
        return jax.block_until_ready(compiled(*given))

    def first(result: Any) -> Any:
        return wide(result if work.passes == "forward" else result[0])

    # A function that is compiled ahead takes longer to call than one that was compiled by a call.
    return Runner(run, output=first, kept=size, ahead=lambda: partial(run, compiled=compiled.lower(*given).compile()))


def options(work: Work) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays, which compiled functions take, and the rest, which they are compiled for."""
    given = inputs.options(work)
    arrays = {name: jnp.asarray(x) for name, x in given.items() if isinstance(x, np.ndarray)}
    return arrays, {name: x for name, x in given.items() if name not in arrays}


def attend(work: Work, implementation: str) -> Runner:
    q, k, v = (jnp.asarray(x) for x in inputs.heads(work))
    arrays, fixed = options(work)
    learned = {name: arrays.pop(name) for name in ("sinks",) if name in arrays}

    def call(q: Any, k: Any, v: Any, learned: Any, **arrays: Any) -> Any:
        return attn_jax.attend(q, k, v, **arrays, **learned, **fixed, implementation=implementation)[0]

    return passes(work, call, (q, k, v, learned), jnp.asarray(inputs.cotangent(work)), arrays)


def jax_nn(work: Work) -> Runner:
    q, k, v = (jnp.asarray(x) for x in inputs.heads(work))
    arrays, fixed = options(work)
    if set(arrays) - {"mask", "bias"} or "softcap" in fixed:
        raise ValueError(f"jax.nn.dot_product_attention has no {work.mask}")
    window = (WINDOW, 0) if "window" in fixed else None
    more: dict[str, Any] = {"is_causal": fixed.get("causal", False), "local_window_size": window}

    def call(q: Any, k: Any, v: Any, **arrays: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, **arrays, **more)

    return passes(work, call, (q, k, v), jnp.asarray(inputs.cotangent(work)), arrays)


def parameters(work: Work) -> dict[str, Any]:
    return {name: jnp.asarray(x) for name, x in inputs.parameters(work).items()}


def whole(work: Work) -> Runner:
    variant, fields = inputs.config(work)
    layer = attn_jax.build(variant, seed=inputs.SEED, dtype=work.dtype, **fields)
    for name, value in parameters(work).items():
        getattr(layer, name)[...] = value
    x, dy = (jnp.asarray(a) for a in inputs.tokens(work))
    graph, state = nnx.split(layer)
    if work.what == "decode":
        return decode(graph, state, x)
    return passes(work, lambda state, x: nnx.merge(graph, state)(x), (state, x), dy)


def decode(graph: Any, state: Any, x: Any) -> Runner:
    """Steps of one token each, the last ones that the cache has room for; a step may write into the cache it gets."""
    filled = x.shape[1] - inputs.STEPS
    layer = nnx.merge(graph, state)
    cache = layer.init_cache(x.shape[0], x.shape[1])
    step = jax.jit(lambda state, x, cache: nnx.merge(graph, state).step(x, cache), donate_argnums=2)
    for start in range(0, filled, 512):
        _, cache = step(state, x[:, start : min(start + 512, filled)], cache)
    new = [x[:, at : at + 1] for at in range(filled, x.shape[1])]

    def run(cache: Any) -> Any:
        y = None
        for token in new:
            y, cache = step(state, token, cache)
        return jax.block_until_ready(y)

    def fresh() -> Any:
        return jax.block_until_ready(jax.tree.map(jnp.copy, cache))

    return Runner(run, fresh=fresh, units=len(new), output=wide)


def flax(work: Work) -> Runner:
    if work.what == "rotary":
        raise ValueError("nnx.MultiHeadAttention has no rotary positions")
    p = parameters(work)
    x, dy = (jnp.asarray(a) for a in inputs.tokens(work))
    layer = nnx.MultiHeadAttention(
        work.heads, x.shape[2], dtype=x.dtype, param_dtype=x.dtype, decode=False, rngs=nnx.Rngs(0)
    )
    for name in ("query", "key", "value", "out"):
        letter = name[0]
        getattr(layer, name).kernel[...] = p[f"w_{letter}"]
        getattr(layer, name).bias[...] = p[f"b_{letter}"]
    graph, state, rest = nnx.split(layer, nnx.Param, ...)
    causal = work.mask == "causal"
    return passes(work, lambda state, x: nnx.merge(graph, state, rest)(x, is_causal=causal), (state, x), dy)


def equinox(work: Work) -> Runner:
    import equinox as eqx

    p = parameters(work)
    x, dy = (jnp.asarray(a) for a in inputs.tokens(work))
    biases = dict.fromkeys(("use_query_bias", "use_key_bias", "use_value_bias", "use_output_bias"), True)
    layer = eqx.nn.MultiheadAttention(work.heads, x.shape[2], **biases, dtype=x.dtype, key=jax.random.key(0))
    for name, letter in (("query_proj", "q"), ("key_proj", "k"), ("value_proj", "v"), ("output_proj", "o")):
        w, bias = p[f"w_{letter}"], p[f"b_{letter}"]
        matrix = w.reshape(-1, w.shape[-1]).T if letter == "o" else w.reshape(w.shape[0], -1).T
        at = lambda tree, name=name: (getattr(tree, name).weight, getattr(tree, name).bias)  # noqa: E731
        layer = eqx.tree_at(at, layer, (matrix, bias.reshape(-1)))
    state, rest = eqx.partition(layer, eqx.is_array)
    turn: Any = eqx.nn.RotaryPositionalEmbedding(work.width, dtype=x.dtype) if work.what == "rotary" else None

    def turned(q: Any, k: Any, v: Any) -> Any:
        return jax.vmap(turn, 1, 1)(q), jax.vmap(turn, 1, 1)(k), v

    def call(state: Any, x: Any) -> Any:
        layer = eqx.combine(state, rest)
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool)) if work.mask == "causal" else None
        process = None if turn is None else turned
        return jax.vmap(lambda x: layer(x, x, x, mask=mask, process_heads=process, inference=True))(x)

    return passes(work, call, (state, x), dy)


def variant(work: Work) -> Runner:
    layer = variants.made(attn_jax, work)
    graph, state = nnx.split(layer) if isinstance(layer, nnx.Module) else (None, {})
    given = {name: jnp.asarray(x) for name, x in variants.arguments(work).items()}
    floats = {name: x for name, x in given.items() if jnp.issubdtype(x.dtype, jnp.floating)}
    rest = {name: x for name, x in given.items() if name not in floats}

    def call(state: Any, floats: Any, **rest: Any) -> Any:
        of_arrays = layer if graph is None else nnx.merge(graph, state)
        return variants.first(of_arrays(**floats, **rest))

    return passes(work, call, (state, floats), jnp.asarray(variants.cotangent(work)), rest)


def ours(work: Work) -> Runner:
    if work.what == "variant":
        return variant(work)
    return attend(work, "auto") if work.what == "attend" else whole(work)


MAKERS = {
    "attn_jax": ours,
    "attn_jax textbook": partial(attend, implementation="textbook"),
    "jax.nn": jax_nn,
    "nnx.MultiHeadAttention": flax,
    "Equinox": equinox,
}
