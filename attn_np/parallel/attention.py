"""Attention over the positions of all devices: in a ring, with all keys gathered, or with heads for positions."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attn_np.attention.functions import attend, merge
from attn_np.contract import _parallel as contract
from attn_np.contract._band import Limits
from attn_np.contract._patterns import Pattern
from attn_np.contract._tape import residuals_of, save_residuals
from attn_np.ops import Array, Tape, dtype_name, record, to_dtype, upcast
from attn_np.ops.vjp import defvjp, repeat_heads_vjp, value_and_vjp
from attn_np.parallel.messages import (
    as_rows,
    by_device,
    gather,
    gather_vjp,
    heads_for_positions,
    positions_for_heads,
    to_next,
)
from attn_np.parallel.visibility import seen_by_all, visible_by_position

# A context, `b t h v`, and the logarithm of its sum of exponentials, `b h t`.
Part = tuple[Array, Array]


def ring_attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    window: Limits | int | None = None,
    pattern: Pattern | None = None,
    offset: Array | int | None = None,
    lengths: Array | None = None,
    layout: str = "contiguous",
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    tape: Tape = None,
    return_lse: bool = False,
) -> Any:
    """`attend` over the keys of all devices, which travel around a ring: the context, `n b t h v`.

    In each of n turns every device attends to the keys that it holds, merges the result with what it has, and sends the
    keys on: it holds those of one device at a time, and so does the backward pass. Liu et al. 2023, arXiv:2310.01889.

    Args:
        q, k, v: queries `n b t h k`, keys `n b s g k`, values `n b s g v`.
        causal, window: as in `attend`, by positions in the whole sequence.
        pattern: who may attend to whom by position, with arrays `n b t` of queries, `n b s` of keys, and `b`.
        offset: the position of the first query of the whole sequence, an integer or `b`; by default the last query is
            at the last key.
        lengths: `b`, how many keys of each whole sequence are real.
        layout: which positions each device has, as `to_devices` cuts: "contiguous", "zigzag" or "striped".
        scale, softcap: as in `attend`.
        sinks: `h`, for each head one more score, without a value. It counts once, not once on each device.
        tape: gets the context and the lse, with the devices as rows.
        return_lse: whether to return a second result, `n b h t`, the lse of `attend`.

    Raises:
        ValueError: shapes that do not fit, an unknown layout, or a length that it does not divide.
        TypeError: dtypes that do not fit.
    """
    visible, keys = visible_by_position(
        "ring_attend", q, k, v, sinks=sinks, layout=layout, causal=causal, window=window, pattern=pattern,
        offset=offset, lengths=lengths, scale=scale, softcap=softcap,
    )  # fmt: skip
    travelling, parts = [k, v, *keys], list[Part]()
    for _ in range(len(q)):
        part, _ = attend_to(q, travelling, visible, scale, softcap)
        parts = [merge([*parts, part])]
        travelling = [to_next(x) for x in travelling]
    return with_sinks(q, parts[0], sinks, tape, return_lse)


@defvjp(ring_attend)
def ring_attend_vjp(
    tape: Any, dy: Array | None, dlse: Array | None = None, *, q: Array, k: Array, v: Array, scale: Any, softcap: Any,
    sinks: Array | None, return_lse: bool, **masking: Any,
) -> dict[str, Array | None]:  # fmt: skip
    """One more round. The gradients of keys and values travel with them, and after n turns they are home."""
    visible, keys = visible_by_position("ring_attend", q, k, v, sinks=sinks, scale=scale, softcap=softcap, **masking)
    whole, dy, dlse = whole_and_cotangents(tape, dy, dlse)
    travelling, (dq, dk, dv) = [k, v, *keys], (np.zeros_like(upcast(x)) for x in (q, k, v))
    for _ in range(len(q)):
        part, pull = attend_to(q, travelling, visible, scale, softcap)
        dq_part, dk_part, dv_part = pull(*part_vjp(part, whole, dy, dlse))
        dq = dq + dq_part
        dk, dv = to_next(dk + dk_part), to_next(dv + dv_part)
        travelling = [to_next(x) for x in travelling]
    return {"q": dq, "k": dk, "v": dv, "sinks": sinks_vjp(sinks, whole, dy, dlse)}


def gather_attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    window: Limits | int | None = None,
    pattern: Pattern | None = None,
    offset: Array | int | None = None,
    lengths: Array | None = None,
    layout: str = "contiguous",
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    tape: Tape = None,
    return_lse: bool = False,
) -> Any:
    """`attend` over the keys of all devices, which every device gets at once: the context, `n b t h v`.

    One message in place of n - 1, and memory for all keys. Arguments and results are those of `ring_attend`.

    Raises:
        ValueError: shapes that do not fit, an unknown layout, or a length that it does not divide.
        TypeError: dtypes that do not fit.
    """
    visible, keys = visible_by_position(
        "gather_attend", q, k, v, sinks=sinks, layout=layout, causal=causal, window=window, pattern=pattern,
        offset=offset, lengths=lengths, scale=scale, softcap=softcap,
    )  # fmt: skip
    part, pull = attend_to(q, [gather(x) for x in (k, v, *keys)], visible, scale, softcap)
    save_residuals(tape, (part, pull))
    return with_sinks(q, part, sinks, tape, return_lse)


@defvjp(gather_attend)
def gather_attend_vjp(
    tape: Any, dy: Array | None, dlse: Array | None = None, *, sinks: Array | None, **_: Any
) -> dict[str, Array | None]:
    """All keys are one part, beside the sink. The gradients of their copies go home."""
    part, pull = residuals_of(tape)
    whole, dy, dlse = whole_and_cotangents(tape, dy, dlse)
    dq, dk, dv = pull(*part_vjp(part, whole, dy, dlse))
    return {"q": dq, "k": gather_vjp(dk), "v": gather_vjp(dv), "sinks": sinks_vjp(sinks, whole, dy, dlse)}


def ulysses_attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    window: Limits | int | None = None,
    pattern: Pattern | None = None,
    offset: Array | int | None = None,
    lengths: Array | None = None,
    layout: str = "contiguous",
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    tape: Tape = None,
    return_lse: bool = False,
) -> Any:
    """`attend` with heads exchanged for positions: every device has all positions of some heads; `n b t h v`.

    One exchange before, of queries, keys and values, and one after, of the context. The devices divide the heads of the
    queries; heads of keys and values that they do not divide are repeated as often as needed. Arguments and results are
    those of `ring_attend`. Jacobs et al. 2023, arXiv:2309.14509.

    Raises:
        ValueError: shapes that do not fit, an unknown layout, or heads or lengths that cannot be divided.
        TypeError: dtypes that do not fit.
    """
    visible, keys = visible_by_position(
        "ulysses_attend", q, k, v, sinks=sinks, layout=layout, causal=causal, window=window, pattern=pattern,
        offset=offset, lengths=lengths, scale=scale, softcap=softcap,
    )  # fmt: skip
    contract.check_heads("ulysses_attend", q.shape[3], len(q))
    copies = contract.head_copies(k.shape[3], len(q))
    q_heads, *kv_heads = (heads_for_positions(x) for x in (q, np.repeat(k, copies, 3), np.repeat(v, copies, 3)))
    visible = seen_by_all(visible, len(q))
    part, pull = attend_to(q_heads, [*kv_heads, *(gather(x) for x in keys)], visible, scale, softcap)
    part = of_all_heads(part, len(q))
    save_residuals(tape, (part, pull))
    return with_sinks(q, part, sinks, tape, return_lse)


@defvjp(ulysses_attend)
def ulysses_attend_vjp(
    tape: Any, dy: Array | None, dlse: Array | None = None, *, q: Array, k: Array, sinks: Array | None, **_: Any
) -> dict[str, Array | None]:
    """The exchanges in reverse: each is the other's inverse, and so its rule for gradients."""
    part, pull = residuals_of(tape)
    whole, dy, dlse = whole_and_cotangents(tape, dy, dlse)
    dq, dk, dv = (positions_for_heads(x) for x in pull(*of_some_heads(part_vjp(part, whole, dy, dlse), len(q))))
    dk, dv = (by_device(repeat_heads_vjp(as_rows(x), k.shape[3]), len(q)) for x in (dk, dv))
    return {"q": dq, "k": dk, "v": dv, "sinks": sinks_vjp(sinks, whole, dy, dlse)}


def of_all_heads(part: Part, n: int) -> Part:
    """A part of all positions and some heads as one of some positions and all heads."""
    context, lse = (by_device(x, n) for x in (part[0], part[1].swapaxes(1, 2)[..., None]))
    return as_rows(positions_for_heads(context)), as_rows(positions_for_heads(lse))[..., 0].swapaxes(1, 2)


def of_some_heads(part: Part, n: int) -> Part:
    """The inverse."""
    context, lse = (by_device(x, n) for x in (part[0], part[1].swapaxes(1, 2)[..., None]))
    return as_rows(heads_for_positions(context)), as_rows(heads_for_positions(lse))[..., 0].swapaxes(1, 2)


# Parts and their merge ------------------------------------------------------------------------------------------------


def attend_to(
    q: Array, keys: list[Array], visible: Pattern | None, scale: float | None, softcap: float | None
) -> tuple[Part, Callable[[Array, Array], tuple[Array, ...]]]:
    """What every device's queries get from the keys that it holds, and the function for the gradients of q, k and v.

    Args:
        q: `n b t h k`.
        keys: k, v, and the arrays of the pattern that belong to them.
        visible: who may attend to whom, with the devices as rows.
        scale, softcap: as in `attend`.
    """
    k, v, *arrays = keys
    visible = contract.with_key_arrays(visible, [as_rows(x) for x in arrays])
    options: dict[str, Any] = {"pattern": visible, "scale": scale, "softcap": softcap, "return_lse": True}
    (context, _, lse), pull = value_and_vjp(attend, *(as_rows(x) for x in (q, k, v)), **options)

    def pull_part(dcontext: Array, dlse: Array) -> tuple[Array, ...]:
        grads = pull(dcontext, None, dlse).inputs
        return tuple(upcast(grads[name]).reshape(x.shape) for name, x in (("q", q), ("k", k), ("v", v)))

    return (upcast(context), lse), pull_part


def part_vjp(part: Part, whole: Part, dy: Array, dlse: Array | None) -> Part:
    """The gradients of a part's context and lse, from those of all parts' context y and lse.

    A part weighs w = exp(its lse - lse) in y = sum w context, so its context gets w dy. A larger lse of its own raises
    w, lowers the weights of the others and raises lse: dlse_part = w (dy . (context - y) + dlse).
    """
    (context, lse_part), (y, lse) = part, whole
    with np.errstate(invalid="ignore"):  # -inf less -inf, of a query that sees no key, is not selected
        weight = np.where(np.isneginf(lse_part), 0.0, np.exp(lse_part - lse))
    gain = np.einsum("bthv,bthv->bht", dy, context - y)
    gain = gain if dlse is None else gain + dlse
    return weight.swapaxes(1, 2)[..., None] * dy, np.where(weight == 0, 0.0, weight * gain)


def sink_part(whole: Part, sinks: Array) -> Part:
    """The sinks as a part: a key with the score of its head's sink and a value of 0."""
    context, lse = whole
    return np.zeros_like(context), np.broadcast_to(to_dtype(sinks, dtype_name(lse))[:, None], lse.shape)


def sinks_vjp(sinks: Array | None, whole: Part, dy: Array, dlse: Array | None) -> Array | None:
    """The gradient of their part, summed over the queries that share it."""
    return None if sinks is None else np.sum(part_vjp(sink_part(whole, sinks), whole, dy, dlse)[1], (0, 2))


def with_sinks(q: Array, whole: Part, sinks: Array | None, tape: Tape, return_lse: bool) -> Any:
    """What the functions return, of all keys' part and the sinks: by device, in the dtype of the queries."""
    context, lse = whole if sinks is None else merge([whole, sink_part(whole, sinks)])
    context, lse = record(tape, context=context, lse=lse)
    y = by_device(to_dtype(context, dtype_name(q)), len(q))
    return (y, by_device(lse, len(q))) if return_lse else y


def whole_and_cotangents(tape: Any, dy: Array | None, dlse: Array | None) -> tuple[Part, Array, Array | None]:
    """The taped context and lse, and the gradients of both, with the devices as rows."""
    whole: Any = tape["context"], tape["lse"]
    dy_rows = np.zeros_like(whole[0]) if dy is None else as_rows(upcast(dy))
    return whole, dy_rows, None if dlse is None else as_rows(dlse)
