"""Functions of PyTorch whose lengths, heads and batch vary from call to call: compiled as one graph, or exported."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attn_torch

DROP_IN = attn_torch.drop_in


def probs_of_one_head(q: Tensor) -> Tensor:
    _, tape = attn_torch.trace(attn_torch.attend, q, q, q, causal=True, softcap=2)
    return tape["probs"]


# By name: a call of queries `b t h k`.
CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    "attend": lambda q: attn_torch.attend(q, q, q, causal=True)[0],
    "attend, offset=": lambda q: attn_torch.attend(q[:, :2], q, q, causal=True, offset=1)[0],
    "attend, other heads": lambda q: attn_torch.attend(q, q[:, :, :1], q[:, :, :1])[0],
    "attend, without heads, and trace": lambda q: probs_of_one_head(q[:, :, 0]),
    "scaled_dot_product_attention": lambda q: DROP_IN.scaled_dot_product_attention(q, q, q, is_causal=True),
    "dot_product_attention": lambda q: DROP_IN.dot_product_attention(q, q, q, is_causal=True),
}


@pytest.mark.compile
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", CALLS)
def test_heads_lengths_and_sequences_may_vary(name: str, dynamic: bool | None) -> None:
    """The numbers of a plain call, whichever axis is another than in the call before."""
    torch.compiler.reset()
    compiled = torch.compile(CALLS[name], fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for shape in ((2, 9, 2, 8), (2, 9, 4, 8), (2, 5, 4, 8), (3, 5, 4, 8)):
        x = torch.randn(shape, dtype=torch.float64)
        got, want = compiled(x), CALLS[name](x)
        assert got.shape == want.shape
        assert (got - want).abs().max() <= 100 * torch.finfo(torch.float64).eps * x.abs().max()


class Some(nn.Module):
    """Attention of the sequences that are not all zeros, as vision models drop pictures that are empty."""

    def __init__(self, attend: Any, has_mask: bool) -> None:
        super().__init__()
        self.attend, self.has_mask = attend, has_mask

    def forward(self, x: Tensor) -> Tensor:
        x = x[x.sum((-1, -2)) != 0]
        mask = torch.ones((x.shape[0], 1, 1, 1), dtype=torch.bool) if self.has_mask else None
        if isinstance(self.attend, nn.Module):
            return self.attend(x, mask=mask)
        q = x.view(x.shape[0], 8, 4, 8).transpose(1, 2)
        return self.attend(q, q, q, attn_mask=mask)


def attend_heads_first(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return attn_torch.attend(q, k, v, mask=attn_mask)[0]


@pytest.mark.compile
@pytest.mark.parametrize("has_mask", [False, True])
@pytest.mark.parametrize("kind", ["drop-in", "attend", "mha", "decoder"])
def test_a_program_is_exported_for_a_batch_that_it_does_not_know(kind: str, has_mask: bool) -> None:
    functions = {"drop-in": DROP_IN.scaled_dot_product_attention, "attend": attend_heads_first}
    build: Any = attn_torch.build
    model = Some(functions.get(kind) or build(kind, d_model=32, num_heads=4), has_mask)
    x = torch.randn(4, 8, 32)
    program = torch.export.export(model, (x,)).module()
    for empty in ((), (1,), (0, 2, 3)):
        y = x.clone()
        y[list(empty)] = 0
        assert torch.equal(program(y), model(y))
