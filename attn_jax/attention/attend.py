"""Softmax dot-product attention, which most variants call."""

from collections.abc import Callable
from math import sqrt
from typing import Any

import attn_jax.kernels.flash as kernels
from attn_jax.attention.decode import DecodeStep
from attn_jax.attention.masks import (
    attention_mask,
    diagonal_relative_positions,
    hide_neg_inf,
    relative_positions,
    zero_unseen,
)
from attn_jax.ops import (
    Array,
    Tape,
    amax_detached,
    broadcast_to,
    concatenate,
    dropout,
    dtype_name,
    einsum,
    exp,
    log,
    memoized_check,
    record,
    repeat_heads,
    signed,
    softmax,
    stack,
    tanh,
    to_dtype,
    upcast,
    where,
    zeros,
)
from attn_jax.ops.specs import checked_specs, spec_of
from attn_np.contract import _attend as attend_contract
from attn_np.contract._band import Limits
from attn_np.contract._patterns import Pattern, check_pattern
from attn_np.contract._tape import wants_intermediates


def head_subscripts(subscripts: str, q: Array) -> str:
    """An einsum string, without the letter of the head axis if the queries have none."""
    return subscripts if q.ndim == 4 else subscripts.replace("h", "")


def softmax_with_sinks(scores: Array, visible: Array | None, sinks: Array) -> Array:
    """The weights `b h t s+1`: a softmax over the keys and one more entry, whose score is the head's sink.

    A sink of -inf has no effect. `visible` is the mask without the keys whose bias is -inf.
    """
    column = broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1))
    visible_and_sink = None
    if visible is not None:
        sink_visible: Any = hide_neg_inf(None, column)
        visible_and_sink = concatenate([broadcast_to(visible, scores.shape), sink_visible], -1)
    return softmax(concatenate([scores, column], -1), visible_and_sink)


def log_sum_exp(scores: Array, allowed: Array | None = None) -> Array:
    """The logarithm of the sum of the exponentials of the allowed scores of the last axis; -inf where there is none.

    The weights of a softmax are exp(score - this). The largest score is subtracted, so that `exp` cannot overflow.
    """
    z = scores if allowed is None else where(allowed, scores, float("-inf"))
    top = amax_detached(concatenate([z, zeros((*z.shape[:-1], 1), z) + float("-inf")], -1), -1)
    nothing = top == float("-inf")
    top = where(nothing, 0.0, top)
    total = exp(where(nothing[..., None], 0.0, z - top[..., None])).sum(-1)
    return where(nothing, float("-inf"), top + log(where(nothing, 1.0, total)))


def lse_of(scores: Array, visible: Array | None, sinks: Array | None) -> Array:
    """The logarithm of the sum of the exponentials of each row of scores, its sink's among them: `b h t`.

    `visible` is the mask without the keys whose bias is -inf.
    """
    lse = log_sum_exp(scores, visible)
    if sinks is not None:
        column = broadcast_to(sinks[:, None], lse.shape)
        lse = log_sum_exp(stack([lse, column], -1))
    return lse


def run_fast_path(
    tape: Tape, q: Array, k: Array, v: Array, *, mask: Array | None, bias: Array | None, **options: Any
) -> tuple[Array, Array | None]:
    """The context and the lse by the fast path, which needs a head axis: arrays without one get one."""
    mask, bias, q, k, v = record(tape, allowed=mask, bias=bias, q=q, k=k, v=v)
    has_heads = q.ndim == 4
    if not has_heads:
        q, k, v = q[:, :, None], k[:, :, None], v[:, :, None]
        mask = mask if mask is None or mask.ndim < 3 else mask[:, None]
        bias = bias if bias is None or bias.ndim < 3 else bias[:, None]
    context, lse = kernels.attend(q, k, v, mask=mask, bias=bias, **options)
    if not has_heads:
        context, lse = context[:, :, 0], None if lse is None else lse[:, 0]
    return record(tape, context=context), lse


def softmax_takes_fast_path(
    q: Array, k: Array, v: Array, *, tape: Tape, implementation: str, softmax_fn: Any = None, **options: Any
) -> bool:
    """Whether `attend` takes the fast path for a softmax over the keys, or for the weights of a `softmax_fn`."""
    options |= {"normalize_over": "keys", "softmax_fn": softmax_fn}
    return attend_contract.takes_fast_path(implementation, tape, kernels.supports(q, k, v), **options)


def textbook_attend(
    tape: Tape,
    q: Array,
    k: Array,
    v: Array,
    *,
    allowed: Array | None,
    bias: Array | None,
    scale: float,
    softcap: float | None,
    sinks: Array | None,
    keep: Array | None,
    rate: float,
    normalize_over: str,
    softmax_fn: Callable[[Array, Array | None], Array] | None,
) -> tuple[Array, Array, Array, Array | None]:
    """Attention as its definition says it: the context, the weights, the final scores, and which of them are visible.

    softmax(cap(q k^T scale) + bias) v, with hidden keys taken out of the softmax.
    """
    # What nobody sees counts as 0. A layer has set its inputs to 0 there, but a projection's bias or a cache makes q, k
    # and v other than 0 again. The letters below only name the axes.
    q = zero_unseen(head_subscripts("bhts->bthk", q), allowed, q)
    k = zero_unseen(head_subscripts("bhts->bshk", q), allowed, k)
    v = zero_unseen(head_subscripts("bhts->bshv", q), allowed, v)
    allowed, bias, keep = record(tape, allowed=allowed, bias=bias, keep=keep)
    q, k, v = record(tape, q=q, k=k, v=v)
    scores = record(tape, scores=einsum(head_subscripts("bthk,bshk->bhts", q), q, k) * scale)
    if softcap is not None:
        scores = record(tape, capped=softcap * tanh(scores / softcap))
    if bias is not None:
        scores = record(tape, biased=scores + bias)
    visible = hide_neg_inf(allowed, bias)
    if softmax_fn is not None:
        probs = record(tape, probs=softmax_fn(scores, visible))
    elif sinks is None:
        probs = record(tape, probs=softmax(scores, visible, attend_contract.SOFTMAX_AXIS[normalize_over]))
    else:
        probs_and_sink = record(tape, probs_and_sink=softmax_with_sinks(scores, visible, record(tape, sinks=sinks)))
        probs = record(tape, probs=probs_and_sink[..., :-1])
    kept = record(tape, kept=dropout(probs, keep, rate))
    context = record(tape, context=einsum(head_subscripts("bhts,bshv->bthv", q), kept, v))
    return context, probs, scores, visible


def attend_checked(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None = None,
    bias: Array | None = None,
    layer_bias: Array | None = None,
    relative_bias_fn: Callable[[Array], Array] | None = None,
    varies_by_sequence: bool = False,
    causal: bool = False,
    window: Limits | None = None,
    pattern: Pattern | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    keep: Array | None = None,
    rate: float = 0.0,
    normalize_over: str = "keys",
    softmax_fn: Callable[[Array, Array | None], Array] | None = None,
    step: DecodeStep | None = None,
    tape: Tape = None,
    implementation: str = "auto",
    return_weights: bool = False,
    return_lse: bool = False,
) -> Any:
    """`attend` of arguments that a contract has checked: the way is chosen here, and taken.

    `takes_fast_path` decides. Plain calls, those of `value_and_vjp` and "fused" ones take `run_fast_path`, and the
    kernels say how; the rest, such as calls that show or change weights or want every intermediate, `textbook_attend`.

    Args:
        layer_bias: a bias of the layer's own, which is added to `bias`; broadcastable to `b h t s`.
        relative_bias_fn: from relative positions, key minus query, to a bias that is added to `bias`: `b t s` ->
            `b h t s`. Where the fast path takes diagonals, it gets one position for each of the t + s - 1 diagonals
            instead of one for each pair: `1 1 n` -> `1 h 1 n`.
        varies_by_sequence: whether the `relative_bias_fn` of the same query and key may differ between sequences of the
            batch; then it is called by pair on the fast path too.
        step: the step of decoding, which has the positions of queries and keys; k and v are then what `append`
            returned. None in a full pass, the usual call; `DecodeStep` says what `like_full_pass` is.

    Returns:
        The context, the weights or None, and with `return_lse` the lse.
    """
    (t, s), has_heads = (q.shape[1], k.shape[1]), q.ndim == 4
    scale = 1 / sqrt(q.shape[-1]) if scale is None else float(scale)
    softcap = None if softcap is None else float(softcap)
    pattern = None if pattern is None else pattern.map(lambda axes, x: signed(x))
    fast = attend_contract.takes_fast_path(
        implementation, tape, kernels.supports(q, k, v), keep=keep, return_weights=return_weights,
        normalize_over=normalize_over, softmax_fn=softmax_fn,
    )  # fmt: skip
    last_query_at_last_key = step is None or step.like_full_pass
    diagonal_bias = None
    if layer_bias is not None:
        bias = record(tape, caller_bias=upcast(bias))
        bias = layer_bias if bias is None else layer_bias + to_dtype(bias, dtype_name(layer_bias))
    if relative_bias_fn is not None:
        bias = record(tape, caller_bias=upcast(bias))
        takes_diagonals = fast and last_query_at_last_key and not varies_by_sequence
        if takes_diagonals and kernels.supports_diagonal_bias(q, k) and not wants_intermediates(tape):
            diagonal_bias = relative_bias_fn(diagonal_relative_positions(t, s, like=q))
        else:
            by_pair = relative_bias_fn(relative_positions(t, s, like=q, step=step))
            by_pair = by_pair if has_heads else by_pair[:, 0]
            bias = by_pair if bias is None else by_pair + to_dtype(bias, dtype_name(by_pair))
    masking: Any = {"causal": causal, "window": window, "pattern": pattern}
    # Positions become a mask, unless the fast path can hide by them itself.
    if not (fast and last_query_at_last_key):
        mask = attention_mask(mask, t, s, like=q, step=step, head_axis=has_heads, **masking)
        masking = {"causal": False, "window": None, "pattern": None}
    if fast:
        options: Any = {"diagonal_bias": diagonal_bias, "scale": scale, "softcap": softcap, "sinks": sinks}
        context, lse = run_fast_path(tape, q, k, v, mask=mask, bias=bias, return_lse=return_lse, **options, **masking)
        return (context, None, lse) if return_lse else (context, None)
    dtype = dtype_name(q)
    q, k, v = upcast(q), upcast(k), upcast(v)
    bias, sinks = to_dtype(bias, dtype_name(q)), to_dtype(sinks, dtype_name(q))
    k, v = repeat_heads(k, q), repeat_heads(v, q)
    context, probs, scores, visible = textbook_attend(
        tape, q, k, v, allowed=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks, keep=keep, rate=rate,
        normalize_over=normalize_over, softmax_fn=softmax_fn,
    )  # fmt: skip
    results = to_dtype(context, dtype), to_dtype(probs, dtype) if return_weights else None
    return (*results, lse_of(scores, visible, sinks)) if return_lse else results


def attend(q: Array, k: Array, v: Array, **options: Any) -> Any:
    """`attend_checked`, after a check of its arguments. The public `attend`, in `functions`, calls it with numbers
    turned into Python's, a window into a pair, and `offset` and `lengths` into a pattern.

    Here the last query is at the last key, except in a step of decoding that is not like the end of a full pass
    (`DecodeStep.like_full_pass`).
    """
    check(q, k, v, **options)
    return attend_checked(q, k, v, **options)


def check(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None = None,
    bias: Array | None = None,
    causal: bool = False,
    window: Limits | None = None,
    pattern: Pattern | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    keep: Array | None = None,
    rate: float = 0.0,
    normalize_over: str = "keys",
    softmax_fn: Callable[[Array, Array | None], Array] | None = None,
    implementation: str = "auto",
    **_: Any,
) -> None:
    """Refuse a call of `attend` that cannot be right.

    Raises:
        ValueError: a shape or an option that does not fit.
        TypeError: a dtype that does not fit, or what is no array.
    """
    options = attend_contract.Options(
        causal=causal, window=window, scale=scale, softcap=softcap, normalize_over=normalize_over,
        implementation=implementation,
    )  # fmt: skip
    specs = checked_specs("attend", q=q, k=k, v=v, mask=mask, bias=bias, sinks=sinks, keep=keep)
    sizes = attend_contract.check(specs, options, rate, softmax_fn is not None, check_specs=memoized_check)
    check_pattern("attend", pattern, sizes, spec_of)
