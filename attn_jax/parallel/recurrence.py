"""`recur` over the positions of all devices, in parallel: what each does to the state, combined in order."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from attn_jax.ops import concatenate, dtype_name, einsum, group_heads, to_dtype, upcast
from attn_jax.ops.specs import checked_specs
from attn_jax.parallel.messages import AxisName, axis_size, check_differs, from_earlier, varying_alike
from attn_jax.recurrence.functions import recur as local_recur
from attn_np.contract import _recur as recur_contract


def recur(
    q: Array,
    k: Array,
    v: Array,
    *,
    axis_name: AxisName,
    rule: str = "linear",
    beta: Array | None = None,
    decay: Array | None = None,
    state: Array | None = None,
    form: str = "auto",
    chunk_size: int = 64,
    scale: float | None = None,
) -> tuple[Array, Array]:
    """`recur` over the positions of all devices: the outputs, `b t h v`, and the last state, `b g k v`, on every one.

    Every rule is linear in the state: a device's positions turn a state S into A S + B. One call on each device finds
    both: B from an empty state, and A in as many more columns as keys are wide, which start from the identity and get
    values of 0. In these columns a query reads what it would read of S. So no device waits for the one before it; then
    the pairs (A, B) are combined in about log2(n) messages, whose size does not grow with t, and each device adds what
    its queries read of the state before it. The layout is contiguous.

    Args:
        q, k, v: this device's queries `b t h k`, keys `b t g k` and values `b t g v`.
        axis_name: the axis of the mesh that the sequence lies on, or several.
        rule, form, chunk_size, scale: as in `recur`; the chunks are those of each device.
        beta, decay: as in `recur`; what has an axis t is this device's.
        state: `b g k v`, the one before the first position of all, the same on every device; 0 by default.

    Raises:
        ValueError: shapes that do not fit, an unknown axis, rule or form, or a decay that the rule has no use for.
        TypeError: dtypes that do not fit.
    """
    n = axis_size("recur", axis_name)
    array_specs = checked_specs("recur", q=q, k=k, v=v, beta=beta, decay=decay, state=state)
    recur_contract.check_qkv_present(array_specs)
    recur_contract.check_recur(array_specs, rule, form, chunk_size, scale, dtype_name(upcast(q)))
    check_differs("recur", axis_name, q=q, k=k, v=v)
    options: dict[str, Any] = {"rule": rule, "form": form, "chunk_size": chunk_size, "scale": scale}
    own, reads, A, B = of_this_device(axis_name, q, k, v, {"beta": beta, "decay": decay}, options)
    first = jnp.zeros_like(B) if state is None else state
    before, last = states(axis_name, n, A, B, first)
    y = own + einsum("btgrk,bgkv->btgrv", reads, before).reshape(own.shape)
    return to_dtype(y, dtype_name(q)), last


def run_form(
    form: Callable[[Array, Array], tuple[Array, Array]], v: Array, first: Array, axis_name: AxisName
) -> tuple[Array, Array]:
    """The outputs `b t h v` of a form of a recurrence over the positions of all devices, and the last state.

    Args:
        form: from values `b t h v` and a first state `b g k v` to the outputs and the last state of this device's
            positions, linear in both.
        v: this device's values.
        first: the state before the first position of all, the same on every device.
        axis_name: the axis of the mesh that the sequence lies on, or several.
    """
    (b, g, width, value_width), n = first.shape, axis_size("apply", axis_name)
    v, first = varying_alike(axis_name, v, first)
    identity = jnp.zeros_like(first, shape=(b, g, width, width)) + jnp.eye(width, dtype=first.dtype)
    wide = concatenate([v, jnp.zeros_like(v, shape=(*v.shape[:-1], width))], 3)
    y, change = form(wide, concatenate([jnp.zeros_like(first), identity], 3))
    own, reads = jnp.split(y, [value_width], 3)
    B, A = jnp.split(change, [value_width], 3)
    first = first + jnp.zeros_like(B)  # on a mesh with explicit axes sharded as B is
    before, last = states(axis_name, n, A, B, first)
    return own + einsum("btgrk,bgkv->btgrv", group_heads(reads, g), before).reshape(own.shape), last


def of_this_device(
    axis_name: AxisName, q: Array, k: Array, v: Array, by_position: dict[str, Array | None], options: dict[str, Any]
) -> tuple[Array, Array, Array, Array]:
    """What this device finds alone: the outputs from an empty state, `b t h v`, what the queries would read of a state,
    `b t g r k`, A and B.
    """
    (b, _, g, width), value_width = k.shape, v.shape[3]
    q, k, v = varying_alike(axis_name, *(upcast(x) for x in (q, k, v)))
    identity = jnp.zeros_like(k, shape=(b, g, width, width)) + jnp.eye(width, dtype=k.dtype)
    start = jnp.concatenate([jnp.zeros_like(v, shape=(b, g, width, value_width)), identity], 3)
    wide = jnp.concatenate([v, jnp.zeros_like(k)], 3)
    y, change = local_recur(q, k, wide, state=start, **by_position, **options)
    own, reads = jnp.split(y, [value_width], 3)
    B, A = jnp.split(change, [value_width], 3)
    return own, group_heads(reads, g), A, B


def states(axis_name: AxisName, n: int, A: Array, B: Array, first: Array) -> tuple[Array, Array]:
    """The state before this device's positions, and the one after all, from each device's pair (A, B)."""
    me, hops = lax.axis_index(axis_name), 1
    while hops < n:  # after this each pair is that of twice as many devices, up to this one
        earlier = from_earlier((A, B), axis_name, hops)
        A, B = jax.tree.map(partial(jnp.where, me >= hops), joined(earlier, (A, B)), (A, B))
        hops *= 2
    last = lax.psum(jnp.where(me == n - 1, product(A, first) + B, 0.0), axis_name)
    A, B = from_earlier((A, B), axis_name, 1)
    return jnp.where(me == 0, first, product(A, first) + B), last


def joined(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
    """One pair for two: A2 (A1 S + B1) + B2."""
    (A1, B1), (A2, B2) = earlier, later
    return product(A2, A1), product(A2, B1) + B2


def product(A: Array, S: Array) -> Array:
    return einsum("bgkl,bglv->bgkv", A, S)
