"""What the policies of `jax.checkpoint` save of a layer, in bytes, and that names cost nothing in a program."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax import checkpoint_policies

import attn_jax
from attn_jax.ops import named

B, T, D, H, G, K = 2, 8, 12, 6, 2, 5
build: Any = attn_jax.build
FIELDS: dict[str, Any] = {"d_model": D, "num_heads": H, "head_dim": K}
LAYERS: dict[str, Any] = {
    "mha": lambda: build("mha", **FIELDS),
    "gqa": lambda: build("gqa", num_kv_heads=G, **FIELDS),
    "decoder": lambda: build("decoder", num_kv_heads=G, **FIELDS | {"head_dim": 4}),
}


def call_of(name: str) -> tuple[Callable[..., Any], Any, jax.Array]:
    """A layer as a function of its parameters and input, and both."""
    graph, state = nnx.split(LAYERS[name]())
    return lambda state, x: nnx.merge(graph, state)(x), state, jnp.ones((B, T, D), "float32")


def saved_floats(name: str, policy: Any) -> int:
    """How many more numbers are saved for the backward pass than where everything is computed again."""
    call, state, x = call_of(name)

    def saved(policy: Any) -> int:
        _, pull = jax.vjp(jax.checkpoint(call, policy=policy), state, x)
        return sum(x.nbytes for x in jax.tree.leaves(pull) if hasattr(x, "nbytes")) // x.itemsize

    return saved(policy) - saved(checkpoint_policies.nothing_saveable)


@pytest.mark.parametrize("name", LAYERS)
def test_products_without_batch_axes_are_the_projections(name: str) -> None:
    """Of queries, keys and values; that of the output is needed by no gradient."""
    sizes = LAYERS[name]().config.sizes()
    heads = sizes["h"] * sizes["k"] + sizes.get("g", sizes["h"]) * (sizes["k"] + sizes["v"])
    assert saved_floats(name, checkpoint_policies.dots_with_no_batch_dims_saveable) == B * T * heads


@pytest.mark.parametrize("name", LAYERS)
def test_the_names_of_the_tape_are_those_of_policies(name: str) -> None:
    sizes = LAYERS[name]().config.sizes()
    context = B * T * sizes["h"] * sizes["v"]
    assert saved_floats(name, checkpoint_policies.save_only_these_names("context")) == context
    assert saved_floats(name, checkpoint_policies.save_only_these_names("another")) == 0


def test_names_leave_the_program_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stand in a jaxpr, and a compiled program has none."""
    call, state, x = call_of("decoder")
    assert "name[name=context]" in str(jax.make_jaxpr(call)(state, x))
    text = jax.jit(jax.grad(lambda state, x: call(state, x).sum())).lower(state, x).as_text()
    monkeypatch.setattr(named, "checkpoint_name", lambda x, name: x)
    jax.clear_caches()
    assert "name[name=context]" not in str(jax.make_jaxpr(call)(state, x))
    assert jax.jit(jax.grad(lambda state, x: call(state, x).sum())).lower(state, x).as_text() == text
