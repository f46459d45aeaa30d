"""`torch.nn.MultiheadAttention`: packed and split, with biases and without, either order of axes, both of its masks."""

from typing import Any

import numpy as np
import torch

from parity_tests.peers._module import Draw, Made, Module, drawn, three


def cross(draw: Draw, *, batch_first: bool = True, **fields: Any) -> Made:
    """Queries and keys of two sequences; one key is hidden from all, some from single queries and heads."""
    module = torch.nn.MultiheadAttention(12, 3, batch_first=batch_first, dtype=torch.float64, **fields).eval()
    state, x = drawn(module, draw), three(draw, 12, fields.get("kdim"), fields.get("vdim"))
    given = [torch.from_numpy(part if batch_first else part.swapaxes(0, 1)) for part in x.values()]
    # True hides there: a key from every query, and one by one, for each sequence and head in turn.
    padding = np.zeros((2, 7), bool)
    padding[1, 5:] = True
    hidden = np.random.default_rng(7).random((2, 3, 5, 7)) < 0.4
    hidden[..., 2] = False
    with torch.no_grad():
        y, _ = module(
            *given, key_padding_mask=torch.from_numpy(padding), attn_mask=torch.from_numpy(hidden.reshape(6, 5, 7))
        )
    shown = ~hidden & ~padding[:, None, None, :]
    return Made(state, x | {"mask": shown}, y.numpy() if batch_first else y.numpy().swapaxes(0, 1))


def causal(draw: Draw) -> Made:
    """Each position sees itself and those before: torch's mask hides what is above the diagonal."""
    module = torch.nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64).eval()
    state, x = drawn(module, draw), draw(2, 5, 12)
    given = torch.from_numpy(x)
    with torch.no_grad():
        y, _ = module(given, given, given, attn_mask=torch.ones(5, 5, dtype=torch.bool).triu(1))
    return Made(state, {"query": x}, y.numpy())


HEADS = {"num_heads": 3}
PEERS = {
    "packed": Module("torch", "torch_mha", cross, HEADS),
    "no biases": Module("torch", "torch_mha", lambda draw: cross(draw, bias=False), HEADS),
    "positions first": Module("torch", "torch_mha", lambda draw: cross(draw, batch_first=False), HEADS),
    "split": Module("torch", "torch_mha", lambda draw: cross(draw, kdim=7, vdim=11), HEADS),
    "split, no biases": Module("torch", "torch_mha", lambda draw: cross(draw, vdim=7, bias=False), HEADS),
    "learned key and value": Module("torch", "torch_mha", lambda draw: cross(draw, add_bias_kv=True), HEADS),
    "split, learned key and value": Module(
        "torch", "torch_mha", lambda draw: cross(draw, kdim=7, vdim=11, bias=False, add_bias_kv=True), HEADS
    ),
    "key of zeros": Module(
        "torch", "torch_mha", lambda draw: cross(draw, add_zero_attn=True), HEADS | {"variant": "sinks"}
    ),
    "split, key of zeros": Module(
        "torch",
        "torch_mha",
        lambda draw: cross(draw, kdim=7, vdim=11, add_zero_attn=True),
        HEADS | {"variant": "sinks"},
    ),
    "causal": Module("torch", "torch_mha", causal, HEADS | {"causal": True}),
}
