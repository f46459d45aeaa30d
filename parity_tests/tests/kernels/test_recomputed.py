"""What the backward pass computes again is not kept between the passes: PyTorch's arrays and nodes, counted.

A call needs no memory for all pairs, and what it takes some at a time is what it takes at once.
"""

import tracemalloc
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import pytest
import torch

import attn_jax
import attn_np
import attn_torch
from attn_np import value_and_vjp
from attn_torch import build
from attn_torch.ops.recompute import remat
from parity_tests.tests.inputs import flat

T, E = 96, 4

# The fields of a layer, its inputs' shapes, and how many numbers it would have to keep for its pairs.
LAYERS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]], int]] = {
    "additive": ({"query_dim": 3, "hidden_dim": E}, {"query": (1, T, 3)}, T * T * E),
    "luong": ({"query_dim": 3, "local": "p", "half_window": 5}, {"query": (1, T, 3)}, T * T),
    "blockwise": ({"block_size": 32}, {"query": (1, T, 2)}, T * T),
    "seq2seq": ({"input_dim": 3, "hidden_dim": E}, {"source": (1, T, 3), "target": (1, T, 3)}, T * T * E),
}


def saved_bytes(call: Callable[[], Any]) -> tuple[int, Any]:
    """The bytes of the arrays that a call saves for its backward pass, each counted once, and what it returns."""
    sizes: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        found = call()
    return sum(sizes.values()), found


def kept_and_gradients(variant: str) -> tuple[int, list[torch.Tensor]]:
    fields, shapes, _ = LAYERS[variant]
    make: Any = build
    layer = make(variant, dtype="float64", **fields)
    torch.manual_seed(0)
    inputs = {name: torch.randn(shape, dtype=torch.float64, requires_grad=True) for name, shape in shapes.items()}
    kept, y = saved_bytes(lambda: flat(layer(**inputs))[0])
    return kept, list(torch.autograd.grad((y * y).sum(), [*inputs.values(), *layer.parameters()]))


@pytest.mark.parametrize("variant", LAYERS)
def test_nothing_of_the_size_of_all_pairs_is_kept(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the gradients are those of the layer that keeps everything, bit for bit.

    Where many steps share an array their sums come in another order; bounds over so many steps say nothing.
    """
    rows, ops = import_module("attn_torch.attention.row_blocks"), import_module("attn_torch.ops")
    monkeypatch.setattr(rows, "ONE_BLOCK_SCORES", 0)
    monkeypatch.setattr(rows, "CPU_BLOCK_SCORES", T * E * 16)
    kept, grads = kept_and_gradients(variant)
    monkeypatch.setattr(rows, "checkpoint", lambda function, *arguments, **options: function(*arguments))
    monkeypatch.setattr(ops, "remat", lambda function: function)
    everything, want = kept_and_gradients(variant)
    assert kept < 8 * LAYERS[variant][2] <= everything
    assert variant == "seq2seq" or all(torch.equal(x, y) for x, y in zip(grads, want, strict=True))


def nodes_behind(y: torch.Tensor) -> int:
    """How many nodes the graph of an array has."""
    waiting, found = [y.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [before for before, _ in node.next_functions]
    return len(found)


def test_a_step_of_the_encoder_or_decoder_is_one_node() -> None:
    """Of the graph: so many positions more are as many nodes more."""
    layer, rng = build("seq2seq", dtype="float64", input_dim=3, hidden_dim=E), np.random.default_rng(0)

    def nodes(s: int, t: int) -> int:
        inputs = {name: torch.from_numpy(rng.normal(size=(1, n, 3))) for name, n in (("source", s), ("target", t))}
        return nodes_behind(flat(layer(**inputs))[0])

    assert nodes(12, 5) - nodes(5, 5) == 7
    assert nodes(5, 12) - nodes(5, 5) == 7


def polynomial(h: torch.Tensor, xs: tuple[Any, ...], shared: dict[str, Any]) -> tuple[torch.Tensor, tuple[Any, ...]]:
    h = h * h + h @ shared["w"][0] * xs[0]
    return h, (h + xs[0], h > 0, xs[0])


def gradients_of_three_steps(step: Callable[..., Any]) -> list[torch.Tensor]:
    """First and second derivatives, of small whole numbers, which no order of sums rounds."""
    x, w = torch.tensor([1.0, -1.0], dtype=torch.float64), torch.tensor([[0.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    leaves, total = [x.requires_grad_(), w.requires_grad_()], torch.zeros((), dtype=torch.float64)
    h = x @ w
    for _ in range(3):
        h, (more, positive, same) = step(h, (x, None), {"w": [w, 2.0]})
        total = total + (more * same)[positive].sum() + h.sum()
    first = torch.autograd.grad(total, leaves, create_graph=True)
    squares = torch.stack([(dx * dx).sum() for dx in first]).sum()
    return [*first, *torch.autograd.grad(squares, leaves)]


def test_both_derivatives_of_what_is_computed_again() -> None:
    """Of arguments that share arrays and depend on each other."""
    found, want = (gradients_of_three_steps(step) for step in (remat(polynomial), polynomial))
    assert all(torch.equal(x, y) for x, y in zip(found, want, strict=True))
    assert all(x.abs().max() < 2**53 for x in want)


def test_what_is_computed_again_has_nothing_before_it() -> None:
    """PyTorch walks through the whole graph behind its arguments: in each of many steps through all steps before."""
    before: list[Any] = []

    def step(h: torch.Tensor) -> torch.Tensor:
        before.append(h.grad_fn if torch.is_grad_enabled() else None)
        return 2 * h

    x = torch.ones(2, requires_grad=True)
    y = remat(step)(remat(step)(1 * x))
    y.sum().backward()
    assert before == [None] * 4
    assert torch.equal(torch.full((2,), 4.0), torch.empty(2) if x.grad is None else x.grad)


def test_autocast_rounds_again_and_knows_the_weight_afterwards() -> None:
    x, w = torch.linspace(-1, 1, 6).reshape(2, 3), torch.linspace(-2, 1, 9).reshape(3, 3).requires_grad_()
    product, found = (lambda x, w: x @ w), []
    for function in (remat(product), product):
        with torch.autocast("cpu", torch.bfloat16):
            y = function(x, w) * (x @ w)
        found += [y.detach(), *torch.autograd.grad(y.float().sum(), [w])]
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


def test_a_step_of_a_decoder_is_one_node() -> None:
    """Its operations have none between the passes."""
    layer: Any = build("seq2seq", input_dim=3, hidden_dim=E)
    source, target = torch.ones(1, 3, 3), torch.ones(1, 7, 3)
    counts = [nodes_behind(layer(source, target[:, :t])[0]) for t in (5, 6, 7)]
    assert [after - before for before, after in pairwise(counts)] == [1, 1]


LUONG = {
    "all keys": {"score": "general"},
    "a window": {"score": "dot", "local": "m", "half_window": 5},
    "a predicted window": {"score": "concat", "hidden_dim": E, "local": "p", "half_window": 5},
}


def bytes_of_both_passes(package: Any, fields: dict[str, Any], length: int) -> int:
    """The memory of an output and its gradients: what NumPy asks for at most, what XLA plans."""
    layer: Any = package.build("luong", query_dim=3, dtype="float32", **fields)
    x = np.random.default_rng(0).normal(size=(1, length, 3)).astype(np.float32)
    if package is attn_jax:
        both = jax.jit(jax.value_and_grad(lambda x: (layer(x) ** 2).sum()))
        analysis: Any = both.lower(jax.numpy.asarray(x)).compile().memory_analysis()
        return analysis.temp_size_in_bytes
    tracemalloc.start()
    try:
        y, pull = value_and_vjp(layer, x)
        pull(y)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("fields", LUONG.values(), ids=list(LUONG))
@pytest.mark.parametrize("package", [attn_np, attn_jax], ids=["numpy", "jax"])
def test_no_array_of_all_pairs(package: Any, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    rows, length = import_module(f"{package.__name__}.attention.row_blocks"), 512
    for name in ("BLOCK_SCORES", "ONE_BLOCK_SCORES"):
        monkeypatch.setattr(rows, name, length * E)
    numbers = length**2 * fields.get("hidden_dim", 1)
    assert bytes_of_both_passes(package, fields, length) < 4 * numbers
    monkeypatch.setattr(rows, "ONE_BLOCK_SCORES", numbers)
    assert bytes_of_both_passes(package, fields, length) >= 4 * numbers


@pytest.mark.parametrize("shape", [(1536,), (1, 2, 1, 1536)], ids=["shared", "of each head"])
def test_the_gradient_of_a_number_for_each_key_needs_no_array_of_all_pairs(shape: tuple[int, ...]) -> None:
    t, rng = 1536, np.random.default_rng(0)
    q, k, v, dy = (rng.normal(size=(1, t, 2, 8)) for _ in range(4))
    bias = rng.normal(size=shape)

    def gradient(implementation: str) -> tuple[Any, int]:
        tracemalloc.start()
        try:
            options: Any = {"bias": bias, "causal": True, "implementation": implementation}
            _, pull = value_and_vjp(attn_np.attend, q, k, v, **options)
            return pull(dy).inputs["bias"], tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    (got, memory), (want, of_pairs) = gradient("auto"), gradient("textbook")
    assert got.shape == want.shape == shape
    # Each number is a sum over queries and heads.
    assert np.abs(got - want).max() <= np.finfo(np.float64).eps * 2 * t * np.abs(want).max()
    assert memory < 8 * 2 * t * t <= of_pairs


@pytest.mark.parametrize("package", [attn_np, attn_torch])
def test_chunks_are_taken_back_by_any_number(package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six: the same gradients, bit for bit."""
    recurrence: Any = import_module(f"{package.__name__}.recurrence.rules")
    x = np.random.default_rng(0).normal(size=(2, 11, 8))
    layer: Any = package.build("gla", d_model=8, num_heads=2, chunk_size=4, dtype="float64")

    def gradients() -> list[Any]:
        if package is attn_torch:
            given = torch.tensor(x, requires_grad=True)
            return list(torch.autograd.grad(layer(given).sin().sum(), [given, *layer.parameters()]))
        y, pull = value_and_vjp(layer, x)
        back = pull(np.cos(y))
        return list((back.inputs | back.params).values())

    together = gradients()
    for numbers in (1, *range(64, 224, 32)):  # of a chunk there are 4 positions, 2 heads and 4 channels
        monkeypatch.setattr(recurrence, "VJP_KEY_ENTRIES", numbers)
        assert all(np.array_equal(found, want) for found, want in zip(gradients(), together, strict=True))
