"""Attention over the positions of all devices: in a ring, with all keys gathered, or with heads for positions."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from attn_jax.attention.functions import attend, merge
from attn_jax.ops import dtype_name, to_dtype, upcast
from attn_jax.ops.sharded import head_shards
from attn_jax.parallel.messages import (
    AxisName,
    axis_size,
    copied_heads,
    gather,
    heads_for,
    heads_for_positions,
    positions_for_heads,
    to_next,
    varying_alike,
)
from attn_jax.parallel.visibility import seen_by_all, visible_by_position
from attn_np.contract import _parallel as contract
from attn_np.contract._band import Limits
from attn_np.contract._patterns import Pattern

# A context, `b t h v`, and the logarithm of its sum of exponentials, `b h t`.
Part = tuple[Array, Array]


def ring_attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    axis_name: AxisName,
    causal: bool = False,
    window: Limits | int | None = None,
    pattern: Pattern | None = None,
    offset: Array | int | None = None,
    lengths: Array | None = None,
    layout: str = "contiguous",
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    return_lse: bool = False,
) -> Any:
    """`attend` over the keys of all devices, which travel around a ring: the context, `b t h v`.

    In each of n turns every device attends to the keys that it holds, merges the result with what it has, and sends the
    keys on: it holds those of one device at a time, and so does the backward pass. Liu et al. 2023, arXiv:2310.01889.

    Args:
        q, k, v: this device's queries `b t h k`, keys `b s g k` and values `b s g v`.
        axis_name: the axis of the mesh that the sequence lies on, or several.
        causal, window: as in `attend`, by positions in the whole sequence.
        pattern: who may attend to whom by position, with this device's arrays, `b t` of queries and `b s` of keys.
        offset: the position of the first query of the whole sequence, an integer or `b`; by default the last query is
            at the last key.
        lengths: `b`, how many keys of each whole sequence are real.
        layout: which positions each device has, as `to_devices` orders them: "contiguous", "zigzag" or "striped".
        scale, softcap: as in `attend`.
        sinks: `h`, for each head one more score, without a value. It counts once, not once on each device.
        return_lse: whether to return a second result, `b h t`, the lse of `attend`.

    Raises:
        ValueError: shapes that do not fit, an unknown axis or layout, or a length that it does not divide.
        TypeError: dtypes that do not fit.
    """
    visible = visible_by_position(
        "ring_attend", q, k, v, axis_name=axis_name, sinks=sinks, layout=layout, causal=causal, window=window,
        pattern=pattern, offset=offset, lengths=lengths, scale=scale, softcap=softcap,
    )  # fmt: skip
    k, v = heads_for(q, k), heads_for(q, v)
    arrays = [] if visible is None else [x for _, x in visible.arrays()]
    q, k, v, *arrays = varying_alike(axis_name, q, k, v, *arrays)
    without_arrays = visible and visible.map(lambda axes, x: None)
    whole: Any = ring(axis_name, without_arrays, (("scale", scale), ("softcap", softcap)), q, k, v, arrays)
    return with_sinks(q, whole, sinks, return_lse)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def ring(axis_name: AxisName, visible: Any, options: Any, q: Array, k: Array, v: Array, arrays: list[Array]) -> Part:
    """Context and lse of all keys; `visible` lacks its arrays, which are an argument of their own."""
    return ring_forward(axis_name, visible, options, q, k, v, arrays)[0]


def ring_forward(
    axis_name: AxisName, visible: Any, options: Any, q: Array, k: Array, v: Array, arrays: list[Array]
) -> tuple[Part, Any]:
    visible, n = with_arrays(visible, arrays), lax.axis_size(axis_name)

    def turn(_: int, carry: Any) -> Any:
        whole, travelling = carry
        arriving = to_next(travelling, axis_name)  # while this device computes
        return merge([whole, attend_to(q, travelling, visible, options)]), arriving

    # In the shape of the context, and on a mesh with explicit axes sharded as it is.
    zero = jnp.zeros_like(upcast(q)[..., :1])
    nothing = zero + jnp.zeros(v.shape[3], zero.dtype), jnp.full_like(zero[..., 0].swapaxes(1, 2), -jnp.inf)
    whole, last = lax.fori_loop(0, n - 1, turn, (nothing, (k, v, *contract.key_arrays(visible))))
    whole = merge([whole, attend_to(q, last, visible, options)])
    return whole, (q, k, v, arrays, whole)


def ring_backward(axis_name: AxisName, visible: Any, options: Any, residuals: Any, cotangents: Part) -> Any:
    """One more round. The gradients of keys and values travel with them, and after n turns they are home."""
    q, k, v, arrays, whole = residuals
    visible, n = with_arrays(visible, arrays), lax.axis_size(axis_name)

    def gradients(travelling: Any) -> Any:
        def call(q: Array, k: Array, v: Array) -> Part:
            return attend_to(q, (k, v, *travelling[2:]), visible, options)

        part, pull = jax.vjp(call, q, *travelling[:2])
        return jax.tree.map(upcast, pull(part_cotangents(part, whole, cotangents)))

    def turn(_: int, carry: Any) -> Any:
        dq, dkv, travelling = carry
        arriving = to_next(travelling, axis_name)
        dq_part, *dkv_part = gradients(travelling)
        return dq + dq_part, to_next(jax.tree.map(jnp.add, dkv, tuple(dkv_part)), axis_name), arriving

    dq, *dkv = (jnp.zeros_like(upcast(x)) for x in (q, k, v))
    travelling = k, v, *contract.key_arrays(visible)
    dq, dkv, travelling = lax.fori_loop(0, n - 1, turn, (dq, tuple(dkv), travelling))
    dq_part, *dkv_part = gradients(travelling)
    dkv = to_next(jax.tree.map(jnp.add, dkv, tuple(dkv_part)), axis_name)
    return *(to_dtype(dx, dtype_name(x)) for dx, x in zip((dq + dq_part, *dkv), (q, k, v), strict=True)), None


ring.defvjp(ring_forward, ring_backward)


def gather_attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    axis_name: AxisName,
    causal: bool = False,
    window: Limits | int | None = None,
    pattern: Pattern | None = None,
    offset: Array | int | None = None,
    lengths: Array | None = None,
    layout: str = "contiguous",
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    return_lse: bool = False,
) -> Any:
    """`attend` over the keys of all devices, which every device gets at once: the context, `b t h v`.

    One message in place of n - 1, and memory for all keys. Arguments and results are those of `ring_attend`.

    Raises:
        ValueError: shapes that do not fit, an unknown axis or layout, or a length that it does not divide.
        TypeError: dtypes that do not fit.
    """
    visible = visible_by_position(
        "gather_attend", q, k, v, axis_name=axis_name, sinks=sinks, layout=layout, causal=causal, window=window,
        pattern=pattern, offset=offset, lengths=lengths, scale=scale, softcap=softcap,
    )  # fmt: skip
    keys = [gather(x, axis_name) for x in (k, v, *contract.key_arrays(visible))]
    return with_sinks(q, attend_to(q, keys, visible, (("scale", scale), ("softcap", softcap))), sinks, return_lse)


def ulysses_attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    axis_name: AxisName,
    causal: bool = False,
    window: Limits | int | None = None,
    pattern: Pattern | None = None,
    offset: Array | int | None = None,
    lengths: Array | None = None,
    layout: str = "contiguous",
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    return_lse: bool = False,
) -> Any:
    """`attend` with heads exchanged for positions: every device has all positions of some heads; `b t h v`.

    One exchange before, of queries, keys and values, and one after, of the context. The devices divide the heads of the
    queries; heads of keys and values that they do not divide are repeated as often as needed. Arguments and results are
    those of `ring_attend`. Jacobs et al. 2023, arXiv:2309.14509.

    Raises:
        ValueError: shapes that do not fit, an unknown axis or layout, or heads or lengths that cannot be divided.
        TypeError: dtypes that do not fit.
    """
    visible = visible_by_position(
        "ulysses_attend", q, k, v, axis_name=axis_name, sinks=sinks, layout=layout, causal=causal, window=window,
        pattern=pattern, offset=offset, lengths=lengths, scale=scale, softcap=softcap,
    )  # fmt: skip
    n = axis_size("ulysses_attend", axis_name)
    parts = n * head_shards(q)  # where an explicit axis of the mesh has the heads, too
    contract.check_heads("ulysses_attend", q.shape[2], parts)
    k, v = (heads_for(q, x) for x in (k, v))
    copies = contract.head_copies(k.shape[2], n * head_shards(k))
    q_heads, *kv_heads = (heads_for_positions(x, axis_name) for x in (q, *(copied_heads(x, copies) for x in (k, v))))
    keys = [*kv_heads, *(gather(x, axis_name) for x in contract.key_arrays(visible))]
    options = ("scale", scale), ("softcap", softcap)
    context, lse = attend_to(q_heads, keys, seen_by_all(visible, axis_name), options)
    context = positions_for_heads(context, axis_name)
    if sinks is not None or return_lse:
        lse = positions_for_heads(lse.swapaxes(1, 2)[..., None], axis_name)[..., 0].swapaxes(1, 2)
        return with_sinks(q, (context, lse), sinks, return_lse)
    return to_dtype(context, dtype_name(q))


# Parts and their merge ------------------------------------------------------------------------------------------------


def attend_to(q: Array, keys: Any, visible: Pattern | None, options: Any) -> Part:
    """What this device's queries get from the keys that it holds: k, v, and the arrays of the pattern for them."""
    k, v, *arrays = keys
    visible = contract.with_key_arrays(visible, arrays)
    context, _, lse = attend(q, k, v, pattern=visible, **dict(options), return_lse=True)
    return upcast(context), lse


def with_arrays(visible: Any, arrays: list[Array]) -> Any:
    """A pattern with its arrays again, in the order of `Pattern.arrays`."""
    remaining = iter(arrays)
    return visible and visible.map(lambda axes, x: next(remaining))


def part_cotangents(part: Part, whole: Part, cotangents: Part) -> Part:
    """The gradients of a part's context and lse, from those of all parts' context y and lse.

    A part weighs w = exp(its lse - lse) in y = sum w context, so its context gets w dy. A larger lse of its own raises
    w, lowers the weights of the others and raises lse: dlse_part = w (dy . (context - y) + dlse).
    """
    (context, lse_part), (y, lse), (dy, dlse) = part, whole, cotangents
    weight = jnp.where(lse_part == -jnp.inf, 0.0, jnp.exp(lse_part - lse))
    gain = jnp.einsum("bthv,bthv->bht", dy, context - y, precision="highest") + dlse
    dcontext = weight.swapaxes(1, 2)[..., None] * dy
    return dcontext.astype(context.dtype), jnp.where(weight == 0, 0.0, weight * gain).astype(lse_part.dtype)


def with_sinks(q: Array, whole: Part, sinks: Array | None, return_lse: bool) -> Any:
    """What the functions return, of all keys' part and the sinks, in the dtype of the queries.

    The sinks are one more part: a key with the score of its head's sink and a value of 0.
    """
    context, lse = whole
    if sinks is not None:
        as_lse = jax.P(*jax.typeof(lse).sharding.spec)  # on a mesh with explicit axes of heads
        sink = jnp.broadcast_to(sinks.astype(lse.dtype)[:, None], lse.shape, out_sharding=as_lse)
        context, lse = merge([whole, (jnp.zeros_like(context), sink)])
    y = to_dtype(context, dtype_name(q))
    return (y, lse) if return_lse else y
