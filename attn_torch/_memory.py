"""A memory: learned keys, each with a value, that every query sees beside those of the call."""

from typing import Any

from attn_np.contract._band import Limits
from attn_torch._attend import attend
from attn_torch._decode import DecodeStep
from attn_torch._masks import attention_mask, hide_by_bias, zero_unseen
from attn_torch._ops import Array, Tape, broadcast_to, concatenate, record, upcast, zeros


def with_memory(x: Array, memory: Array, share: float = 1.0) -> Array:
    """Keys or values `b s g k`, and behind them those of the memory, `m g k`, times a number."""
    return concatenate([x, broadcast_to(share * upcast(memory), (x.shape[0], *memory.shape))], 1)


def beside_memory(x: Array | None, s: int, memory: Array) -> Array | None:
    """A mask or a bias of s keys, with the memory's behind them: True, or 0."""
    if x is None:
        return None
    own = zeros((*x.shape[:-1], memory.shape[0]), memory)
    return concatenate([broadcast_to(x, (*x.shape[:-1], s)), own == 0 if "bool" in str(x.dtype) else own], -1)


def attend_beside(
    memory_k: Array | None,
    memory_v: Array | None,
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None,
    bias: Array | None,
    causal: bool,
    window: Limits | None,
    keep: Array | None,
    rate: float,
    step: DecodeStep | None,
    tape: Tape,
    **options: Any,
) -> tuple[Array, Array | None]:
    """`attend`, where queries see a memory too, if there is one; the weights are those of the call's own keys.

    Args:
        memory_k, memory_v: `m g k` and `m g v`, or None. They get no bias and are never dropped.
    """
    by_position, s = {"causal": causal, "window": window, "step": step}, k.shape[1]
    if memory_k is not None and memory_v is not None:
        # Causality and window are about the keys of the call alone, so they become part of the mask.
        mask = attention_mask(mask, q.shape[1], s, like=q, **by_position)
        q = zero_unseen("bhts->bthk", hide_by_bias(mask, bias), q) if s else zeros(q.shape, q)
        mask, keep = beside_memory(mask, s, memory_k), beside_memory(keep, s, memory_k)
        bias = beside_memory(record(tape, caller_bias=upcast(bias)), s, memory_k)
        # Weights that are not dropped are divided by 1 - rate: the memory's are never dropped.
        share = 1.0 if keep is None else 1.0 - rate
        k, v, by_position = with_memory(k, memory_k), with_memory(v, memory_v, share), {}
    context, weights = attend(q, k, v, mask=mask, bias=bias, keep=keep, rate=rate, tape=tape, **by_position, **options)
    return context, None if weights is None else weights[..., :s]
