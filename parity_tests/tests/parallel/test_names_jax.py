"""`attn_jax.parallel.name_axes`: heads sharded over a mesh by the names that nnx reads, and names that are refused."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import attn_jax
import attn_np
from attn_jax.parallel import name_axes
from parity_tests.tests.witness import bounded, ratio

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


@pytest.mark.parametrize("projections", ["arrays", "modules"])
def test_heads_that_the_devices_do_not_divide_are_refused(projections: Any) -> None:
    """Before JAX is given them, where the mesh is known; of a kernel the heads count, not the features."""
    mesh: Any = jax.sharding.AbstractMesh((2, 4), ("data", "model"))
    layer = attn_jax.build("gqa", d_model=8, num_heads=12, num_kv_heads=6, head_dim=4, projections=projections)
    words = (
        "name_axes: expected g that the devices of the mesh divide, got 6 over 4 devices of the axis 'model'; leave g= "
    )
    for given in ({"mesh": mesh}, {}):
        with jax.sharding.use_abstract_mesh(mesh), pytest.raises(ValueError, match="name_axes: expected g ") as caught:
            name_axes(layer, **given, h="model", g="model")
        assert str(caught.value).startswith(words)
    assert set(specs(layer).values()) == {P()}
    name_axes(layer, mesh, h="model", g="data", d="rows")
    assert any("data" in spec for spec in specs(layer).values())


ON_DEVICES = """
import re, sys
import jax, numpy as np
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import attn_jax
from attn_jax.parallel import name_axes

def layer():
    found = attn_jax.build("gqa", d_model=16, num_heads=8, num_kv_heads=4)
    name_axes(found, h="model", g="model")
    return found

found = {}
for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind, kind))
    graph, state = nnx.split(layer())
    is_spec = lambda x: isinstance(x, P)
    places = jax.tree.map(lambda spec: NamedSharding(mesh, spec), nnx.get_partition_spec(state), is_leaf=is_spec)
    with jax.set_mesh(mesh):
        state, x = jax.device_put(state, places), jax.device_put(np.load(sys.argv[1]), NamedSharding(mesh, P("data")))
        call = jax.jit(lambda state, x: nnx.merge(graph, state)(x))
        text = call.lower(state, x).compile().as_text()
        found[kind.name] = np.asarray(call(state, x))
    moved = re.findall(r" (all-\\w+|collective-\\w+|reduce-scatter)\\(", text)
    print(tuple(state["w_q"].get_value().sharding.spec), moved)
np.savez(sys.argv[2], **found)
mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
print(tuple(nnx.get_abstract_model(layer, mesh)[1]["w_o"].get_value().sharding.spec))
"""


def test_named_heads_lie_on_the_devices_of_an_axis(tmp_path: Path) -> None:
    """Of eight simulated devices, in both kinds of mesh: one sum after the output projection, and the same numbers."""
    one = attn_np.build("gqa", d_model=16, num_heads=8, num_kv_heads=4)
    x = np.random.default_rng(0).normal(size=(2, 5, 16)).astype("float32")
    np.save(tmp_path / "x.npy", x)
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    command = [sys.executable, "-c", ON_DEVICES, str(tmp_path / "x.npy"), str(tmp_path / "y.npz")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=env)
    assert done.returncode == 0, done.stderr
    words = "(None, 'model', None) ['all-reduce']"
    assert done.stdout.splitlines() == [words, words, "('model', None, None)"]
    want = bounded(one.config, {"query": x.astype(np.float64)}, one.params(), "float32")["y"]
    with np.load(tmp_path / "y.npz") as found:
        assert all(ratio(found[kind], want) <= 1 for kind in ("Auto", "Explicit"))
