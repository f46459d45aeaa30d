"""Steps of decoding in JAX on a mesh of 2 x 4 simulated devices: what moves between devices, and the numbers.

Batch and heads are sharded, and a cache is sharded as its keys or states are. As `test_sharding_jax`, of which the
process is, with rows of its own.

    python -m parity_tests.tests.transforms.test_sharded_steps_jax Auto/decoder
"""

import json
import os
import sys
from dataclasses import replace
from typing import Any

import pytest

from attn_np import contract
from parity_tests.judge.xla import compile_quickly
from parity_tests.tests.transforms.test_sharding_jax import (
    MESHES,
    OTHERS_MOVE,
    STEPS,
    Results,
    layers,
    moves,
    others,
    rows,
)

pytestmark = pytest.mark.timeout(1800)  # the first test of a mesh waits for the programs of all

# By default some kinds of cache: keys, rotated; a latent; states, with convolutions.
DEFAULT = {
    "Auto": ("decoder", "gated_delta"),
    "Explicit": ("decoder", "gated_delta", "mla"),
}
T, MORE, BATCH = 3, 1, 4  # positions of the first step and of the second, and sequences


def example(variant: str) -> Any:
    """The config of the first example that decodes, of eight heads; None where none does."""
    causal = [config for config in contract.examples(variant).values() if config.cache_axes()]
    sizes = {"d_model": 16, "num_heads": 8, "num_kv_heads": 4}
    known = {x: n for x, n in sizes.items() if causal and getattr(causal[0], x, None) is not None}
    return replace(causal[0], **known) if causal else None


def decoders() -> tuple[str, ...]:
    """The variants that are asked, of which an example decodes."""
    return tuple(v for v in contract.variants() if v in {*layers(), *others()} and example(v) is not None)


def step_rows() -> dict[str, bool]:
    return {f"{kind}/{v}": v in DEFAULT[kind] for kind in MESHES for v in decoders()}


def main(names: list[str]) -> None:
    import jax
    import numpy as np
    from flax import nnx
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    from parity_tests.judge.cases import given
    from parity_tests.judge.judging import compare
    from parity_tests.tests.inputs import TREES, axis, random_inputs
    from parity_tests.tests.witness import bounded, layer_of, weights_of

    jax.config.update("jax_enable_x64", True)

    def steps(mesh: Any, variant: str, whole: bool = False) -> dict[str, Any]:
        config = example(variant)
        inputs = random_inputs(config, given(config, "plain"), b=BATCH, t=T + MORE, s=T + MORE)
        weights, own = weights_of(config), config.own_params()
        layer = layer_of(TREES["jax"], config, weights)
        graph, state, others = nnx.split(layer, nnx.Param, ...)

        def put(axes: str, x: Any) -> Any:
            names = [{"b": "b", "h": "h", "g": "h"}.get(letter) for letter in axes.split()]
            spec = [a if a is None or n % mesh.shape[a] == 0 else None for a, n in zip(names, x.shape, strict=True)]
            return jax.device_put(x, NamedSharding(mesh, P(*spec)))

        def put_param(path: Any, leaf: Any) -> Any:
            name = ".".join(map(str, path))
            return path, leaf.replace(put(own[name].axes, leaf.get_value()) if name in own else leaf.get_value())

        run = jax.jit(lambda state, cache, x: nnx.merge(graph, state, others).step(cache=cache, **x), donate_argnums=1)
        found: dict[str, Any] = {"moves": []}
        outputs = []
        with jax.set_mesh(mesh):
            params = nnx.from_flat_state([put_param(path, leaf) for path, leaf in nnx.to_flat_state(state)])
            cache, axes = layer.init_cache(BATCH, 8), config.cache_axes()
            arrays = {
                name: put("b" + " ." * (x.ndim - 1) if whole else axes[name], x) for name, x in cache.arrays.items()
            }
            length, overflowed = put("b", cache.length), put("b", cache.overflowed)
            cache = replace(cache, arrays=arrays, positions=put("b s", cache.positions), length=length)
            cache = replace(cache, overflowed=overflowed)
            before = {name: x.sharding for name, x in cache.arrays.items()}
            for part in (slice(0, T), slice(T, T + MORE)):
                given_arrays: dict[str, Any] = {}
                for name, x in inputs.items():
                    at = axis(config, name, "t") if axis(config, name, "t") is not None else axis(config, name, "s")
                    cut = x if at is None else x[(slice(None),) * at + (part,)]
                    given_arrays[name] = put(config.arguments()[name].axes, cut)
                program = run.lower(params, cache, given_arrays).compile()
                y, cache = program(params, cache, given_arrays)
                found["moves"].append(moves(program))
                outputs.append(np.asarray(y))
        want = bounded(config, inputs, weights)["y"]
        found["ratio"] = float(compare(np.concatenate(outputs, 1), want, "float64")["ratio"])
        found["stays"] = all(x.sharding.is_equivalent_to(before[n], x.ndim) for n, x in cache.arrays.items())
        return found

    meshes = {kind: jax.make_mesh((2, 4), ("b", "h"), axis_types=(getattr(AxisType, kind),) * 2) for kind in MESHES}
    found: dict[str, Any] = {}
    for name in names:
        kind, variant, *how = name.split("/")
        try:
            found[name] = steps(meshes[kind], variant, "whole" in how)
        except Exception as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(found))


@pytest.fixture(scope="module")
def results(selected: list[dict[str, Any]]) -> Results:
    """Of every row that a selected test asks for, from one process for each mesh."""
    return Results(dict.fromkeys(told["row"] for told in selected), __name__)


@rows(step_rows())
def test_a_step_sums_over_devices_once(row: str, results: Results) -> None:
    """After the output projection, whether the step is of many positions or of one; the cache stays where it is."""
    found = results[row]
    assert "error" not in found, found
    variant = row.split("/")[1]
    beside = OTHERS_MOVE["block_sparse"] if variant == "block_sparse" else set()
    for moved in found["moves"]:
        assert set(moved) <= {"all-reduce"} | beside, found
        sums = 2 if variant == "talking_heads" else 1
        assert moved.get("all-reduce", 0) <= sums or variant in STEPS, found
    assert found["stays"], found
    assert found["ratio"] <= 1, found


@rows({f"Explicit/{v}/whole": v == "decoder" for v in ("decoder", "mla", "alibi")})
def test_a_cache_whose_heads_are_whole_stays_so(row: str, results: Results) -> None:
    """Where those of the layer lie on devices: the new keys are brought to it."""
    found = results[row]
    assert "error" not in found, found
    assert found["stays"], found
    assert found["ratio"] <= 1, found


if __name__ == "__main__":
    compile_quickly()
    os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=8"
    main(sys.argv[1:])
