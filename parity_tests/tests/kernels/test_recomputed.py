"""What the backward pass computes again is not kept between the passes: the arrays that PyTorch saves, counted.

And what it takes some at a time is what it takes at once.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

import attn_np
from attn_np import _recurrence, value_and_vjp
from attn_torch import build
from parity_tests.tests.inputs import flat

T, E = 96, 4

# The fields of a layer, its inputs' shapes, and how many numbers it would have to keep for its pairs.
LAYERS: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]], int]] = {
    "additive": ({"query_dim": 3, "hidden_dim": E}, {"query": (1, T, 3)}, T * T * E),
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
    """And the gradients are those of the layer that keeps everything, bit for bit."""
    rows, ops = import_module("attn_torch._rows"), import_module("attn_torch._ops")
    monkeypatch.setattr(rows, "ONE_BLOCK_SCORES", 0)
    monkeypatch.setattr(rows, "CPU_BLOCK", T * E * 16)
    kept, grads = kept_and_gradients(variant)
    monkeypatch.setattr(rows, "checkpoint", lambda function, *arguments, **options: function(*arguments))
    monkeypatch.setattr(ops, "recomputed", lambda function: function)
    everything, want = kept_and_gradients(variant)
    assert kept < 8 * LAYERS[variant][2] <= everything
    assert all(torch.equal(x, y) for x, y in zip(grads, want, strict=True))


def test_chunks_are_taken_back_one_by_one_or_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same gradients, bit for bit."""
    x = np.random.default_rng(0).normal(size=(2, 11, 8))
    layer: Any = attn_np.build("gla", d_model=8, num_heads=2, chunk_size=4, dtype="float64")

    def gradients() -> Any:
        y, pull = value_and_vjp(layer, x)
        back = pull(np.sin(y))
        return back.inputs | back.params

    together = gradients()
    for numbers in (1, 64):  # of a chunk there are 4 positions, 2 heads and 4 channels
        monkeypatch.setattr(_recurrence, "VJP_KEY_ENTRIES", numbers)
        found = gradients()
        assert all(np.array_equal(found[name], want) for name, want in together.items())
