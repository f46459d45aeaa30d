"""`recur` over the positions of all devices, in parallel: what each does to the state, combined in order."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attn_np.contract import _parallel as contract
from attn_np.contract._tape import residuals_of, save_residuals
from attn_np.ops import Array, Tape, dtype_name, record, to_dtype, upcast
from attn_np.ops.specs import checked_specs
from attn_np.ops.vjp import defvjp, value_and_vjp
from attn_np.parallel.messages import as_rows, by_device
from attn_np.recurrence.functions import recur as local_recur


def recur(
    q: Array,
    k: Array,
    v: Array,
    *,
    rule: str = "linear",
    beta: Array | None = None,
    decay: Array | None = None,
    state: Array | None = None,
    form: str = "auto",
    chunk_size: int = 64,
    scale: float | None = None,
    tape: Tape = None,
) -> tuple[Array, Array]:
    """`recur` over the positions of all devices: the outputs, `n b t h v`, and the last state, `b g k v`.

    Every rule is linear in the state: a device's positions turn a state S into A S + B. One call on each device finds
    both: B from an empty state, and A in as many more columns as keys are wide, which start from the identity and get
    values of 0. In these columns a query reads what it would read of S. So no device waits for the one before it; then
    the pairs (A, B) are combined in order, and each device adds what its queries read of the state before it. What
    devices send does not grow with t. The layout is contiguous.

    Args:
        q, k, v: queries `n b t h k`, keys `n b t g k`, values `n b t g v`.
        rule, form, chunk_size, scale: as in `recur`; the chunks are those of each device.
        beta: `n b t g`.
        decay: `g` or `g k` for all positions, `n b t g` or `n b t g k`.
        state: `b g k v`, the one before the first position of all; 0 by default.
        tape: gets A and the states before each device, `n b g k k` and `n b g k v`.

    Raises:
        ValueError: shapes that do not fit, an unknown rule or form, or a decay that the rule has no use for.
        TypeError: dtypes that do not fit.
    """
    n = contract.check_device_axes("recur", checked_specs("recur", q=q, k=k, v=v, beta=beta))
    by_position = {"beta": beta, "decay": decay}
    contract.check_recur_shards(checked_specs("recur", q=q, k=k, v=v, **by_position, state=state), n)
    options = {"rule": rule, "form": form, "chunk_size": chunk_size, "scale": scale}
    (own, reads, A, B), pull = of_each_device(q, k, v, by_position, options)
    before, after = states(A, B, np.zeros_like(B[0]) if state is None else upcast(state))
    A, before = record(tape, A=A, before=before)
    save_residuals(tape, (reads, pull))
    y = own + np.einsum("nbtgrk,nbgkv->nbtgrv", reads, before).reshape(own.shape)
    return to_dtype(y, dtype_name(q)), after


def states(A: Array, B: Array, first: Array) -> tuple[Array, Array]:
    """The states before each device's positions, `n b g k v`, and the one after all, from every device's (A, B)."""
    before, after = [], first
    for A_i, B_i in zip(A, B, strict=True):
        before.append(after)
        after = A_i @ after + B_i
    return np.stack(before), after


def run_form(
    form: Callable[[Array, Array], tuple[Array, Array]], v: Array, first: Array, n: int
) -> tuple[Array, Array]:
    """The outputs `(n b) t h v` of a form of a recurrence over the positions of n devices, and the last state.

    Args:
        form: from values `(n b) t h v` and a first state `(n b) g k v` to the outputs and the last state of each
            device's positions, linear in both.
        v: the values.
        first: the state before the first position of all, in each device's rows.
        n: how many devices there are.
    """
    width, value_width = first.shape[-2:]
    wide = np.concatenate([v, np.zeros((*v.shape[:-1], width), v.dtype)], -1)
    identity = np.broadcast_to(np.eye(width, dtype=first.dtype), (*first.shape[:-1], width))
    y, change = form(wide, np.concatenate([np.zeros_like(first), identity], -1))
    own, reads = np.split(by_device(y, n), [value_width], -1)
    B, A = np.split(by_device(change, n), [value_width], -1)
    before, after = states(A, B, by_device(first, n)[0])
    reads = reads.reshape(*reads.shape[:3], first.shape[1], -1, width)
    y = own + np.einsum("nbtgrk,nbgkv->nbtgrv", reads, before).reshape(own.shape)
    return as_rows(y), after


def of_each_device(
    q: Array, k: Array, v: Array, by_position: dict[str, Array | None], options: dict[str, Any]
) -> tuple[tuple[Array, Array, Array, Array], Any]:
    """What each device finds alone: the outputs from an empty state, `n b t h v`, what the queries would read of a
    state, `n b t g r k`, A and B; and the function for the gradients of its arrays.
    """
    n, b, t, g, width = k.shape
    h, value_width = q.shape[3], v.shape[4]
    wide, start = wide_values(upcast(k), upcast(v)), np.zeros((n * b, g, width, value_width + width), upcast(k).dtype)
    start[..., value_width:] = np.eye(width)
    arrays = {name: as_rows(x) if x.ndim > 2 else x for name, x in by_position.items() if x is not None}
    queries_and_keys = (as_rows(upcast(x)) for x in (q, k))
    (y, change), pull = value_and_vjp(local_recur, *queries_and_keys, as_rows(wide), state=start, **arrays, **options)
    own, reads = np.split(by_device(y, n), [value_width], -1)
    B, A = np.split(by_device(change, n), [value_width], -1)
    return (own, reads.reshape(n, b, t, g, h // g, width), A, B), pull


def wide_values(k: Array, v: Array) -> Array:
    """The values, and as many columns of 0 as the keys are wide."""
    return np.concatenate([v, np.zeros_like(k)], -1)


@defvjp(recur)
def recur_vjp(
    tape: Any, dy: Array | None, dlast: Array | None = None, *, q: Array, k: Array, v: Array, state: Array | None,
    beta: Array | None, decay: Array | None, **_: Any,
) -> dict[str, Array | None]:  # fmt: skip
    """The gradients of the states go back from device to device, and those of A and B into each device's own rule."""
    (reads, pull), A, before = residuals_of(tape), tape["A"], tape["before"]
    n, b, t, g, r, width = reads.shape
    upcast_dy: Any = np.zeros((*q.shape[:4], v.shape[4]), A.dtype) if dy is None else upcast(dy)
    dread = upcast_dy.reshape(n, b, t, g, r, -1)
    dbefore = np.einsum("nbtgrk,nbtgrv->nbgkv", reads, dread)
    dA, dB = np.zeros_like(A), np.zeros_like(before)
    dafter = np.zeros_like(before[0]) if dlast is None else dlast
    for i in reversed(range(n)):
        dA[i], dB[i] = dafter @ before[i].swapaxes(-1, -2), dafter
        dafter = A[i].swapaxes(-1, -2) @ dafter + dbefore[i]
    dreads = np.einsum("nbtgrv,nbgkv->nbtgrk", dread, before).reshape(*q.shape[:4], width)
    grads = pull(as_rows(np.concatenate([upcast_dy, dreads], -1)), as_rows(np.concatenate([dB, dA], -1))).inputs
    grads = {name: x for name, x in grads.items() if name != "state"}
    grads["v"] = grads["v"][..., : v.shape[4]]
    arrays = {"q": q, "k": k, "v": v, "beta": beta, "decay": decay}
    found = {name: grads[name].reshape(x.shape) for name, x in arrays.items() if x is not None}
    return found | ({} if state is None else {"state": dafter})
