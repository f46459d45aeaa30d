"""Every variant is lowered by `jax.export` for accelerators that are not here, forward and backward."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from attn_np import contract
from parity_tests.tests.inputs import TREES, flat, random_inputs

PLATFORMS = ("cuda", "tpu")
TYPES = ("float32", "bfloat16")
# By default one of each kind: scores of its own in rows, `attend`, positions and a window, a state, a loop, a search.
DEFAULT = ("additive", "decoder", "gated_delta", "gru", "longformer", "entmax_attention")
ROWS = [
    pytest.param(variant, dtype, marks=() if variant in DEFAULT else pytest.mark.left_out)
    for variant in contract.variants()
    for dtype in TYPES
]


@cache
def call_of(variant: str, dtype: str) -> tuple[Callable[..., Any], Any, Any]:
    """A layer's first example as a function of parameters and inputs, and the shapes of both."""
    config = next(iter(contract.examples(variant).values()))
    inputs = random_inputs(config, "full", t=3, s=4)
    layer = TREES["jax"].build(config, dtype=dtype)
    graph, params, others = nnx.split(layer, nnx.Param, ...)

    def shape(x: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, jnp.dtype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x.dtype)

    def total(params: Any, inputs: Any) -> Any:
        y = flat(nnx.merge(graph, params, others)(**inputs))[0]
        return y.astype("float32").sum()

    return total, jax.tree.map(shape, params), jax.tree.map(shape, inputs)


@pytest.mark.parametrize(("variant", "dtype"), ROWS)
def test_a_layer_is_lowered_for_each_platform(variant: str, dtype: str) -> None:
    """One program with the output and the gradients of the parameters."""
    call, params, inputs = call_of(variant, dtype)
    both: Any = jax.value_and_grad(call) if jax.tree.leaves(params) else call
    for platform in PLATFORMS:
        program = jax.export.export(jax.jit(both), platforms=[platform])(params, inputs)
        assert program.platforms == (platform,)
        assert len(program.out_avals) == 1 + len(jax.tree.leaves(params))
