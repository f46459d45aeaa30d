"""A memory: learned keys and values beside those of the call, for every query to see."""

from typing import Any

import numpy as np

from attn_np.attention.decode import DecodeStep
from attn_np.attention.masks import attention_mask, hide_neg_inf, zero_unseen
from attn_np.contract._band import Limits
from attn_np.contract._patterns import Pattern
from attn_np.ops import Array, Tape, broadcast_to, concatenate, record, upcast, zeros
from attn_np.ops.vjp import sum_to


def append_memory(x: Array, memory: Array, factor: float = 1.0) -> Array:
    """Keys or values `b s g k`, and behind them those of the memory, `m g k`, times the factor."""
    return concatenate([x, broadcast_to(factor * upcast(memory), (x.shape[0], *memory.shape))], 1)


def append_memory_entries(x: Array | None, s: int, memory: Array) -> Array | None:
    """A mask, a keep-mask or a bias of s keys, with entries for the memory behind them: True in a mask, 0 in a bias."""
    if x is None:
        return None
    entries = zeros((*x.shape[:-1], memory.shape[0]), memory)
    return concatenate([broadcast_to(x, (*x.shape[:-1], s)), entries == 0 if "bool" in str(x.dtype) else entries], -1)


def with_memory(
    memory_k: Array,
    memory_v: Array,
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None,
    bias: Array | None,
    causal: bool,
    window: Limits | None,
    pattern: Pattern | None,
    step: DecodeStep | None,
    keep: Array | None,
    rate: float,
    tape: Tape,
    **others: Any,
) -> tuple[Array, Array, Array, dict[str, Any]]:
    """The arguments of `attend`, q, k, v and the rest, with learned keys `m g k` and values `m g v` behind the call's.

    Causality, window, pattern and step are about the keys of the call alone, and become part of the mask.
    """
    s = k.shape[1]
    masking: Any = {"causal": causal, "window": window, "pattern": pattern, "step": step}
    mask = attention_mask(mask, q.shape[1], s, like=q, **masking)
    q = zero_unseen("bhts->bthk", hide_neg_inf(mask, bias), q) if s else zeros(q.shape, q)
    mask, keep = append_memory_entries(mask, s, memory_k), append_memory_entries(keep, s, memory_k)
    bias = append_memory_entries(record(tape, caller_bias=upcast(bias)), s, memory_k)
    # The memory's weights are never dropped, but divided by 1 - rate as all kept ones: its values, times 1 - rate, undo
    # that.
    factor = 1.0 if keep is None else 1.0 - rate
    options = {"mask": mask, "bias": bias, "keep": keep, "rate": rate, "tape": tape} | others
    return q, append_memory(k, memory_k), append_memory(v, memory_v, factor), options


def with_memory_vjp(
    tape: Tape, s: int, dq: Array, dk: Array, dv: Array, dbias: Array | None, *, rate: float
) -> tuple[Array, Array, Array, Array | None, dict[str, Array]]:
    """The gradients of q, k, v, the bias and the memory, from those of `attend`; s is how many keys the call has."""
    factor = 1.0 - rate if "keep" in tape else 1.0
    dmemory = {"memory_k": np.sum(dk[:, s:], axis=0), "memory_v": factor * np.sum(dv[:, s:], axis=0)}
    visible = hide_neg_inf(tape.get("allowed"), tape.get("bias"))
    visible = None if visible is None else visible[..., :s]
    dq = zero_unseen("bhts->bthk", visible, dq) if s else zeros(dq.shape, dq)
    dbias = None if dbias is None else sum_to(dbias[..., :s], tape["caller_bias"].shape)
    return dq, dk[:, :s], dv[:, :s], dbias, dmemory
