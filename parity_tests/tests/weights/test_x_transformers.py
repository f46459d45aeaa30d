"""x-transformers' `Attention` without the library: what its source computes, by hand, from the tensors of its names."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from attn_np import weights
from parity_tests.tests.inputs import TREES, Arrays
from parity_tests.tests.weights.test_layouts import agrees, bits, reference

WIDTH, KEYS, HEADS, HEAD, VALUE = 7, 11, 6, 5, 3
KINDS: dict[str, tuple[int, dict[str, tuple[int, ...]], dict[str, Any]]] = {
    "mha": (HEADS, {}, {}),
    "memory": (HEADS, {"mem_k": (HEADS, 2, HEAD), "mem_v": (HEADS, 2, VALUE)}, {}),
    "gqa": (2, {}, {"variant": "gqa", "num_kv_heads": 2}),
    "decoder": (2, {}, {"variant": "decoder", "num_kv_heads": 2, "rope_base": 100.0, "rotary_dim": 4, "causal": False}),
    "alibi": (HEADS, {}, {"variant": "alibi"}),
    "sinks": (HEADS, {"attend.head_attn_sink": (HEADS,)}, {"variant": "sinks"}),
    "key of zeros": (HEADS, {}, {"variant": "sinks"}),
}
SELF = ("alibi", "decoder")


def turned(x: np.ndarray, position: float) -> np.ndarray:
    """A query or key after rotation: two pairs of neighbours, and the rest as it is."""
    y = x.copy()
    for pair, angle in enumerate((position, position / 10)):
        a, b = x[2 * pair : 2 * pair + 2]
        y[2 * pair : 2 * pair + 2] = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
    return y


def theirs(state: Arrays, query: np.ndarray, key: np.ndarray, mask: np.ndarray, kind: str) -> np.ndarray:
    """The output for queries and for keys that are real where `mask` says so: head by head, row by row."""
    apart = np.zeros((*query.shape[:2], HEADS, VALUE))
    group = state["to_k.weight"].shape[0] // HEAD
    for b, i, h in np.ndindex(*query.shape[:2], HEADS):
        g = h % group
        q = state["to_q.weight"][h * HEAD : (h + 1) * HEAD] @ query[b, i]
        k = key[b, mask[b]] @ state["to_k.weight"][g * HEAD : (g + 1) * HEAD].T
        v = key[b, mask[b]] @ state["to_v.weight"][g * VALUE : (g + 1) * VALUE].T
        scores = k @ q / HEAD**0.5
        if kind == "alibi":  # the slopes of six heads: those of four, then the first two of every second one of eight
            slopes = [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]
            scores = scores - slopes[h] * np.abs(np.flatnonzero(mask[b]) - i)
        if kind == "decoder":
            k = np.array([turned(row, float(j)) for row, j in zip(k, np.flatnonzero(mask[b]), strict=True)])
            scores = k @ turned(q, i) / HEAD**0.5
        if kind == "memory":
            scores = np.append(state["mem_k"][h] @ q / HEAD**0.5, scores)
            v = np.concatenate([state["mem_v"][h], v])
        if kind in ("sinks", "key of zeros"):
            scores = np.append(state["attend.head_attn_sink"][h] if kind == "sinks" else 0.0, scores)
            v = np.concatenate([np.zeros((1, VALUE)), v])
        e = np.exp(scores)
        apart[b, i, h] = e / e.sum() @ v
    return apart.reshape(*query.shape[:2], -1) @ state["to_out.weight"].T


@pytest.mark.parametrize("kind", KINDS)
def test_a_module_loads_and_gives_its_numbers(kind: str, tmp_path: Path) -> None:
    """In every tree, from its own names; and back, bit by bit."""
    kv_heads, more, fields = KINDS[kind]
    rng, file = np.random.default_rng(3), tmp_path / "module.safetensors"
    width = WIDTH if kind in SELF else KEYS
    shapes = {
        "to_q.weight": (HEADS * HEAD, WIDTH),
        "to_k.weight": (kv_heads * HEAD, width),
        "to_v.weight": (kv_heads * VALUE, width),
        "to_out.weight": (WIDTH, HEADS * VALUE),
    } | more
    state = {f"layers.1.{name}": 0.4 * rng.normal(size=shape) for name, shape in shapes.items()}
    safetensors.numpy.save_file(state, file)
    options = {"layout": "x_transformers", "prefix": "layers.1.", "num_heads": HEADS} | fields
    query = rng.normal(size=(2, 5, WIDTH))
    given = {"query": query} if kind in SELF else {"query": query, "key": rng.normal(size=(2, 8, KEYS))}
    key = given.get("key", query)
    real = np.arange(key.shape[1]) < np.array([[key.shape[1]], [3]])
    mask = real[:, None, None, :]
    want = theirs({name.removeprefix("layers.1."): x for name, x in state.items()}, query, key, real, kind)
    found = weights.read(file, **options)
    bounded = reference(found.config, found.values, "float64", *given.values(), mask=mask)
    assert agrees(want, bounded, "float64")
    for tree in TREES.values():
        assert agrees(tree(tree.package.load(file, **options), given | {"mask": mask})[0], bounded, "float64")
    weights.write(tmp_path / "back", found.config, found.values, layout="x_transformers", prefix="layers.1.")
    assert bits(weights.tensors(tmp_path / "back")) == bits(state)


def test_parts_that_no_layer_has_are_refused(tmp_path: Path) -> None:
    """A setting that has weights shows in the file."""
    file = tmp_path / "module.safetensors"
    state = {f"to_{name}.weight": np.ones((6, 6)) for name in ("q", "k", "v", "out")}
    for key, words in {"q_rmsnorm.gamma": "a norm of queries", "to_v_gate.weight": "gates", "mem_x": "mem_x"}.items():
        safetensors.numpy.save_file(state | {key: np.ones(6)}, file)
        with pytest.raises(weights.UnexpectedKeysError, match=words):
            weights.read(file, layout="x_transformers", num_heads=2)
