"""`attend` as users call it, with offset, lengths and numbers of any type; `merge` of its results."""

from collections.abc import Callable, Sequence
from typing import Any

import attn_torch.attention.attend as core
import attn_torch.ops as ops
from attn_np.contract import _functions as functions_contract
from attn_np.contract._band import Limits
from attn_np.contract._offset import ShiftedQueries, ShiftedQueriesPerSequence
from attn_np.contract._patterns import Pattern, Prefix
from attn_torch.attention.attend import log_sum_exp
from attn_torch.ops import (
    Array,
    Tape,
    arange,
    broadcast_to,
    concrete,
    dtype_name,
    einsum,
    known_range,
    lengths_are_numbers,
    signed,
    stack,
    to_dtype,
    upcast,
)
from attn_torch.ops.specs import checked_specs
from attn_torch.positions.terms import Term, relative_bias_of


def to_python_scalar(x: Any) -> Any:
    """A number as Python has it, where it is NumPy's or an array without axes whose value is known; else as it is.

    An array that asks for its gradient stays as it is, too, and the checks refuse it: a number has no gradient.
    """
    if x is None or type(x) in (bool, int, float):
        return x
    x = functions_contract.numpy_scalar_to_python(x)
    known = getattr(x, "shape", None) == () and concrete(x) and not getattr(x, "requires_grad", False)
    return x.item() if known else x


def with_checked_weights(softmax_fn: Any) -> Any:
    """A caller's function from scores to weights, checked to return one for each score.

    What is not callable is returned as it is.
    """
    if not callable(softmax_fn):
        return softmax_fn

    def weigh(scores: Array, allowed: Array | None) -> Array:
        weights: Any = softmax_fn(scores, allowed)
        array_specs = checked_specs("attend", **{"the weights of softmax_fn": weights})
        functions_contract.check_weights(array_specs["the weights of softmax_fn"], tuple(scores.shape))
        return weights

    return weigh


def positions_as_pattern(
    masking: dict[str, Any], offset: Any, lengths: Array | None, q: Array, k: Array
) -> dict[str, Any]:
    """The masking options with the first query's position and the lengths folded into the pattern."""
    is_array = hasattr(offset, "shape")
    if is_array and offset.shape == ():
        offset = broadcast_to(offset, q.shape[:1])
    array_specs = checked_specs("attend", q=q, k=k, lengths=lengths, offset=offset if is_array else None)
    functions_contract.check_offset_and_lengths(array_specs, None if is_array else offset, **masking)
    if offset is not None:
        functions_contract.check_offset(known_range(offset) if is_array else (offset,))
    functions_contract.check_lengths(None if lengths is None else known_range(lengths))
    pattern, s, t = masking["pattern"], k.shape[1], q.shape[1]
    if offset is not None and (is_array or offset != s - t):
        pattern = functions_contract.as_pattern(**masking)
        if pattern is not None:
            masking = {"causal": False, "window": None}
            default = s - t
            if is_array:
                pattern = ShiftedQueriesPerSequence(pattern, signed(offset) - default)
            elif lengths_are_numbers():
                pattern = ShiftedQueries(pattern, offset - default)
            else:
                shift = arange(1, q) + (offset - default)
                pattern = ShiftedQueriesPerSequence(pattern, broadcast_to(shift, q.shape[:1]))
    if lengths is not None:
        pattern = Prefix(lengths) if pattern is None else pattern & Prefix(lengths)
    return masking | {"pattern": pattern}


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None = None,
    bias: Array | None = None,
    terms: Term | Sequence[Term] | None = None,
    causal: bool = False,
    window: Limits | int | None = None,
    pattern: Pattern | None = None,
    offset: Array | int | None = None,
    lengths: Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    keep: Array | None = None,
    rate: float = 0.0,
    normalize_over: str = "keys",
    softmax_fn: Callable[[Array, Array | None], Array] | None = None,
    tape: Tape = None,
    implementation: str = "auto",
    return_weights: bool = False,
    return_lse: bool = False,
) -> Any:
    """Weighted average of the values; returns it (`b t h v`) and the weights before dropout (`b h t s`), if asked for.

    Scores are scaled, capped, biased, masked and normalised, in this order; masked scores are replaced by -inf. Without
    a head axis (`b t k`, `b s k`, `b s v`) the results have none. Keys and values may have fewer heads than the
    queries: query head h then uses key/value head h // r, where r query heads share one. Numbers may be Python's,
    NumPy's or arrays without axes.

    Args:
        q, k, v: queries `b t h k`, keys `b s g k`, values `b s g v`.
        mask: True = may attend; broadcastable to `b h t s`.
        bias: added after scale and softcap; broadcastable to `b h t s`.
        terms: one or several of `terms`, such as `terms.Slopes(slopes)`: added as the bias is, by the relative
            position of query and key; the fast path forms no array of `t s` for them, unless `offset` differs between
            sequences or PyTorch compiles the call.
        causal: a query sees no key after its own position.
        window: (left, right), how many keys before and after its own position a query sees, None for no limit; a number
            alone is the left one.
        pattern: who may attend to whom by position, such as `patterns.Chunks(128)`; blocks that it hides are skipped.
        offset: the position of the first query, an integer or one for each sequence, `b`; s - t by default, so that the
            last query is at the last key. 0 counts from the first key, as `is_causal` of PyTorch and of jax.nn does.
        lengths: `b`, how many keys of each sequence are real, at most all; others are skipped. Queries stay
            where they are: `offset=lengths - t` puts the last one at the last real key.
        scale: 1/sqrt(K) by default.
        softcap: scores become softcap * tanh(scores / softcap); 0 is none.
        sinks: `h`, for each head one more score in the softmax, without a value; its own weight is exp(sink - lse),
            with the lse that `return_lse` gives.
        keep: True = not dropped; kept weights are divided by 1 - rate.
        rate: the dropout rate that `keep` was drawn with; this function draws nothing by itself.
        normalize_over: "keys": the weights of a query add up to 1; "queries": those of a key do.
        softmax_fn: replaces the softmax: (scores, allowed) -> weights; allowed lacks keys with a bias of -inf, and is
            None without bias and mask, causality, window or pattern.
        tape: gets q, k, v, allowed, bias, sinks, keep, scores, capped, biased, probs_and_sink, probs, kept and context.
        implementation: "auto" for the fast path where it computes the same, but with a tape the textbook path;
            "textbook"; or "fused" for the fast path, which never forms the weights. It tapes only q, k, v, bias,
            context, and `allowed`, which is then the mask argument.
        return_weights: whether to return the weights; else None.
        return_lse: whether to return a third result, `b h t`: the logarithm of the sum of the exponentials of each
            query's scores, its sink's among them; where it sees no key, that is its sink, or -inf without one. Of
            scores that overflow it is NaN on the textbook path; on the fast path it may be infinite.

    Raises:
        ValueError: shapes that do not fit, an unknown implementation, or "fused" where the weights are needed.
        TypeError: dtypes that do not fit, such as a mask that is not boolean.
    """
    window = functions_contract.python_window(window, to_python_scalar)
    masking: dict[str, Any] = {"causal": to_python_scalar(causal), "window": window, "pattern": pattern}
    if offset is not None or lengths is not None:
        masking = positions_as_pattern(masking, to_python_scalar(offset), lengths, q, k)
    options = functions_contract.python_numbers(to_python_scalar, scale, softcap, rate)
    functions_contract.check_rate_has_keep(options["rate"], keep)
    if return_lse:
        functions_contract.check_lse_options(normalize_over, softmax_fn is not None)
    relative_bias = relative_bias_of(terms, to_python_scalar(offset), q, k)
    bias_options: dict[str, Any] = {}
    if relative_bias is not None:
        bias_options["relative_bias_fn"] = relative_bias.by_diagonal_or_pair
        bias_options["varies_by_sequence"] = relative_bias.varies_by_sequence
    return core.attend(
        q, k, v, mask=mask, bias=bias, **bias_options, **masking, **options, sinks=sinks, keep=keep,
        normalize_over=normalize_over, softmax_fn=with_checked_weights(softmax_fn), tape=tape,
        implementation=implementation, return_weights=return_weights, return_lse=return_lse,
    )  # fmt: skip


def merge(parts: Sequence[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Attention to all keys, from attention to some of them at a time: its context and its `lse`.

    Each part is a context and the logarithm of its sum of exponentials, of `attend` with `return_lse=True`. A part
    weighs exp(its lse - that of all): a softmax over the parts.

    Args:
        parts: pairs of a context, `b t h v`, and an lse, `b h t`; or without heads, `b t v` and `b t`.

    Raises:
        ValueError: no parts, or shapes that do not fit.
        TypeError: dtypes that do not fit.
    """
    part_specs = [
        checked_specs("merge", context=context, lse=lse) for context, lse in functions_contract.checked_parts(parts)
    ]
    functions_contract.check_part_specs([(spec["context"], spec["lse"]) for spec in part_specs])
    dtype, contexts = dtype_name(parts[0][0]), stack([upcast(context) for context, _ in parts], -2)
    lses = stack([to_dtype(lse, dtype_name(contexts)) for _, lse in parts], -1)
    weights = ops.softmax(lses, lses > float("-inf"))
    return to_dtype(einsum(merge_subscripts(contexts), weights, contexts), dtype), log_sum_exp(lses)


def merge_subscripts(contexts: Array) -> str:
    """The einsum string of a sum over parts, with the letter of the heads or without."""
    return "bhtn,bthnv->bthv" if contexts.ndim == 5 else "btn,btnv->btv"
