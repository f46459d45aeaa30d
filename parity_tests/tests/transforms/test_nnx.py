"""Flax's own tools on our layers, and numbers that 32 bits do not hold."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import attn_jax
from attn_np.contract._patterns import Chunks, Dilated, Window
from parity_tests.judge.kernels import SMALL, blocks
from parity_tests.tests.inputs import TREES, Tree

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 8)), jnp.float32)


@pytest.fixture(params=["mha", "decoder", "gqa"])
def layer(request: pytest.FixtureRequest) -> Any:
    heads = {"num_kv_heads": 1} if request.param == "gqa" else {}
    build: Any = attn_jax.build
    return build(request.param, seed=0, d_model=8, num_heads=2, head_dim=4, dropout=0.5, **heads)


@pytest.mark.parametrize("training", [False, True])
def test_tabulate_says_shapes_and_leaves_the_layer_whole(layer: Any, training: bool) -> None:
    if training:
        layer.train()
    assert "2,5,8" in nnx.tabulate(layer, X, console_kwargs={"width": 200})
    assert layer(X).shape == X.shape


def test_view_sets_the_mode_of_a_view_alone(layer: Any) -> None:
    assert layer.deterministic
    assert not nnx.view(layer, deterministic=False).deterministic
    assert layer.deterministic
    assert nnx.view(layer).deterministic


def test_layers_made_by_vmap_run_in_a_scan() -> None:
    config = attn_jax.build("mha", seed=0, d_model=8, num_heads=2).config

    @nnx.vmap(in_axes=0, out_axes=0)
    def make(seed: Any) -> Any:
        return attn_jax.MultiHeadAttention(config, rngs=nnx.Rngs(seed))

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    def run(x: Any, layer: Any) -> Any:
        return layer(x)

    layers = make(jax.random.split(jax.random.key(0), 3))
    want = X
    for n in range(3):
        graph, state = nnx.split(layers)
        want = nnx.merge(graph, nnx.map_state(lambda path, x, n=n: x[n], state))(want)
    np.testing.assert_array_less(abs(run(X, layers) - want), 2.0**-18 * (1 + abs(want)))


LARGE: list[dict[str, Any]] = [
    {"window": (sys.maxsize, 2**32), "scale": 2**31},
    {"window": (2**31, None), "softcap": 2**70},
    {"window": (None, 2**40)},
    {"pattern": Window(2**40, sys.maxsize) & Chunks(2**31, 2**32, 2**40)},
    {"pattern": Dilated(2**31) | Chunks(2**40)},
]


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("implementation", ["fused", "textbook"])
@pytest.mark.parametrize("options", LARGE, ids=str)
def test_windows_scales_and_caps_may_be_any_number(options: dict[str, Any], implementation: str, tree: Tree) -> None:
    """Where integers have 32 bits, too, as JAX's have by default; at once and in small blocks."""
    for setting in ({}, SMALL[tree.name][0]) if implementation == "fused" else ({},):
        with jax.enable_x64(False), blocks(tree.package.__name__, setting):
            q = tree.array(np.ones((1, 3, 1, 2), np.float32))
            y, _ = tree.package.attend(q, q, q, **options, implementation=implementation)
            assert np.array_equal(tree.numpy(y), np.ones((1, 3, 1, 2)))
