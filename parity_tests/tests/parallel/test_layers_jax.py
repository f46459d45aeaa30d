"""`attn_jax.parallel.apply`: layers whose sequence lies on eight simulated devices, and those that are refused."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import attn_jax
from attn_jax.parallel import apply
from parity_tests.tests.parallel.layer_cases import held_layer, layers
from parity_tests.tests.witness import ratio

pytestmark = pytest.mark.timeout(1800)  # the first test waits for the programs of all

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def found(selected: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, np.ndarray]]:
    """The results of every layer that a selected test asks for, from one process."""
    names = [params["layer"] for params in selected if "layer" in params]
    place = tmp_path_factory.mktemp("devices") / "results.npz"
    command = [sys.executable, "-m", "parity_tests.tests.parallel.layers_jax", str(place), *names]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    env = {**os.environ, "XLA_FLAGS": flags}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=env)
    assert done.returncode == 0, done.stderr
    results: dict[str, dict[str, np.ndarray]] = {name: {} for name in names}
    with np.load(place) as arrays:
        for key, x in arrays.items():
            name, _, array = key.partition("|")
            results[name][array] = x
    return results


@pytest.mark.parametrize("layer", layers())
def test_a_layer_over_devices_is_that_of_one(layer: str, found: dict[str, dict[str, np.ndarray]]) -> None:
    want = held_layer(layer)[1]
    ratios = {name: ratio(x, want[name]) for name, x in found[layer].items()}
    assert set(ratios) >= {"y", "dquery"} and max(ratios.values()) <= 1, ratios


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "not causal": ("mha", {}, "mha: expected a causal layer, got causal=False; set causal=True"),
    "a state in a zigzag": (
        "delta",
        {"head_dim": 2},
        "delta: expected layout='contiguous' for a layer with a state, got 'zigzag'",
    ),
    "a mask": ("mha", {"causal": True}, "mha: expected arguments that know of devices, got mask=; leave them out"),
    "a layout": (
        "mha",
        {"causal": True},
        "mha: expected layout to be one of contiguous, zigzag, striped, got 'sp",
    ),
    "outside": ("mha", {"causal": True}, "expected axis_name to be an axis of the mesh, inside jax.shard_map, got"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_call_that_cannot_be_right_is_refused(case: str) -> None:
    variant, fields, words = REFUSED[case]
    layer: Any = attn_jax.build(variant, d_model=6, num_heads=2, **fields)  # type: ignore[call-overload]
    options: dict[str, Any] = {"a mask": {"mask": jnp.ones((1, 1, 4, 4), bool)}, "a layout": {"layout": "spiral"}}
    options["a state in a zigzag"] = {"layout": "zigzag"}
    with pytest.raises(ValueError, match=f"apply: {words}"):
        apply(layer, jnp.ones((1, 4, 6)), axis_name="seq", **options.get(case, {}))
