"""PyTorch's attention with a key of zeros, which no weight shows, beside layers that have none."""

from typing import Any

import pytest
import torch

import attn_np
import attn_torch
from parity_tests import assert_parity
from parity_tests.ports.modules import compare_modules

WORDS = "expected variant 'sinks' beside a module with add_zero_attn=True, got 'mha'; take variant 'sinks'"


def attention(add_zero_attn: bool = True) -> Any:
    torch.manual_seed(0)
    return torch.nn.MultiheadAttention(12, 3, batch_first=True, add_zero_attn=add_zero_attn).eval()


def called(module: Any, query: Any) -> Any:
    return module(query, query, query, need_weights=False)[0]


FIELDS: dict[str, Any] = {"d_model": 12, "num_heads": 3}


def test_a_key_of_zeros_is_refused_but_as_a_sink() -> None:
    judged: dict[str, Any] = {"weights": "torch_mha", "call": called, "dtype": "float64"}
    with pytest.raises(ValueError, match=f"assert_parity: {WORDS}"):
        assert_parity(attention(), "mha", FIELDS, **judged)
    assert_parity(attention(), "sinks", FIELDS | {"sink": "zero"}, **judged)
    assert_parity(attention(add_zero_attn=False), "mha", FIELDS, **judged)


def test_so_it_is_beside_a_layer_of_ours() -> None:
    x = torch.ones(1, 4, 12)
    calls: Any = (called, None)
    for ours in (attn_torch.build("mha", **FIELDS), attn_np.build("mha", **FIELDS)):
        with pytest.raises(ValueError, match=f"compare_modules: {WORDS}"):
            compare_modules(attention(), ours, (x,), calls=calls)
        with pytest.raises(ValueError, match=f"compare_modules: {WORDS}"):
            compare_modules(ours, torch.nn.Sequential(attention()), (x,))
    assert compare_modules(attention(), attention(), (x,), calls=(called, called)).agree
