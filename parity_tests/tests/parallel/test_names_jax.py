"""`attn_jax.parallel.name_axes`: heads sharded over a mesh by the names that nnx reads, and names that are refused."""

import subprocess
import sys
from pathlib import Path

import jax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import attn_jax
from attn_jax.parallel import name_axes

ROOT = Path(__file__).resolve().parents[3]


class Block(nnx.Module):
    def __init__(self, seed: int | jax.Array) -> None:
        rngs = nnx.Rngs(seed)
        self.attention = attn_jax.DecoderAttention(d_model=16, num_heads=8, num_kv_heads=4, causal=True, rngs=rngs)
        self.up = nnx.Linear(16, 16, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.up(self.attention(x))


def specs(model: nnx.Module) -> dict[str, P]:
    """By the path of each parameter."""
    found = nnx.get_partition_spec(nnx.state(model, nnx.Param))
    return {".".join(map(str, path)): x.get_value() for path, x in nnx.to_flat_state(found)}


def test_axes_are_named_by_their_letters() -> None:
    """Of our layers, wherever they are in a model; other modules keep what they had, and logical names get rules."""
    block = Block(0)
    assert set(specs(block).values()) == {P()}
    name_axes(block, h="heads", g="heads", d="embed")
    found = specs(block)
    assert found["attention.w_q"] == P("embed", "heads", None)
    assert found["attention.w_k"] == P("embed", "heads", None)
    assert found["attention.w_o"] == P("heads", None, None)
    assert found["up.kernel"] == P()
    with nnx.logical_axis_rules([("heads", "model"), ("embed", None)]):
        assert specs(block)["attention.w_q"] == P(None, "model", None)
    name_axes(block, g="model")
    assert specs(block)["attention.w_q"] == P(None, None, None)
    assert specs(block)["attention.w_v"] == P(None, "model", None)


def test_layers_inside_of_layers_and_stacked_ones_are_named() -> None:
    found = attn_jax.Seq2Seq(input_dim=6, hidden_dim=4, output_dim=3, rngs=nnx.Rngs(0))
    name_axes(found, e="model")
    named = {path: spec for path, spec in specs(found).items() if "model" in spec}
    assert {path.split(".")[0] for path in named} == {"encoder", "decoder"}
    seeds = jax.random.split(jax.random.key(0), 3)
    stacked = nnx.vmap(Block)(seeds)
    name_axes(stacked, h="model")
    assert specs(stacked)["attention.w_q"] == P(None, None, "model", None)

    @nnx.vmap(transform_metadata={nnx.PARTITION_NAME: "layers"})
    def named_before(seed: jax.Array) -> Block:
        block = Block(seed)
        name_axes(block, h="model")
        return block

    assert specs(named_before(seeds))["attention.w_q"] == P("layers", None, "model", None)


def test_a_letter_that_no_parameter_has_is_refused() -> None:
    with pytest.raises(ValueError, match="expected letters of the axes of parameters, d, g, h, k, o, v, got 'heads'"):
        name_axes(Block(0), heads="model")
    with pytest.raises(ValueError, match="of which this model has none, got 'h'"):
        name_axes(nnx.Linear(3, 3, rngs=nnx.Rngs(0)), h="model")


ON_DEVICES = """
import re
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from attn_jax.parallel import name_axes
from parity_tests.tests.parallel.test_names_jax import Block

x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 16)), jnp.float32)
want = Block(0)(x)
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind, kind))
    block = Block(0)
    name_axes(block, h="model", g="model")
    graph, state = nnx.split(block)
    is_spec = lambda x: isinstance(x, P)
    places = jax.tree.map(lambda spec: NamedSharding(mesh, spec), nnx.get_partition_spec(state), is_leaf=is_spec)
    with jax.set_mesh(mesh):
        state, given = jax.device_put(state, places), jax.device_put(x, NamedSharding(mesh, P("data")))
        call = jax.jit(lambda state, x: nnx.merge(graph, state)(x))
        text = call.lower(state, given).compile().as_text()
        moved = re.findall(r" (all-\\w+|collective-\\w+|reduce-scatter)\\(", text)
        y = call(state, given)
    spec = tuple(state["attention"]["w_q"].get_value().sharding.spec)
    print(kind, spec, moved, np.abs(np.asarray(y) - want).max() < 1e-5)

def model():
    block = Block(0)
    name_axes(block, h="model")
    return block

mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
print(tuple(nnx.get_abstract_model(model, mesh)[1]["attention"]["w_o"].get_value().sharding.spec))
"""


def test_named_heads_lie_on_the_devices_of_an_axis() -> None:
    """Of eight simulated devices, in both kinds of mesh: one sum after the output projection, and the same numbers."""
    code = "import os; os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=8'\n" + ON_DEVICES
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    spec, rest = "(None, 'model', None)", "['all-reduce'] True"
    assert done.stdout.splitlines() == [
        f"AxisType.Auto {spec} {rest}",
        f"AxisType.Explicit {spec} {rest}",
        "('model', None, None)",
    ]
