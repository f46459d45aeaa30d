"""Keys beyond a distance: where all of them share one row of the table of positions, attention to them is plain.

A table of positions that is clipped at a distance has one row for all keys farther away on a side. The row's vector is
added to each of these keys (and to its value, where values have positions); after that these keys need no positions.
So a call is three: the keys far before, those far after, and the few diagonals between them, for which the scores are
formed with a row for each relative position. The three results are merged by their lse.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from attn_np.attention.attend import attend, attend_vjp
from attn_np.attention.functions import merge, merge_call_vjp
from attn_np.attention.row_blocks import AttendRows, attend_in_row_blocks, attend_in_row_blocks_vjp
from attn_np.contract._tape import residuals_of, save_residuals, scope
from attn_np.ops import Array, Tape, arange, concatenate, record, reorder, zeros
from attn_np.ops.vjp import sum_grads

# (q, k, v, relative position of all far keys, one number) -> q, k and v with the vectors of that position added.
AddFarPosition = Callable[[Array, Array, Array, Array], tuple[Array, Array, Array]]


def with_lse(context: Array, lse: Array) -> Array:
    """A context and, as one more column, the logarithm of each row's sum of exponentials: `b t h v+1`."""
    return concatenate([context, reorder(lse, (0, 2, 1))[..., None]], -1)


def with_lse_vjp(dcontext: Array, width: int) -> tuple[Array, Array | None]:
    """The gradients of the context, `b t h v`, and of its lse, `b h t 1`; the second is None without that column."""
    if dcontext.shape[-1] == width:
        return dcontext, None
    return dcontext[..., :width], reorder(dcontext[..., width:], (0, 2, 1, 3))


def far_sides(t: int, s: int, limit: int, causal: bool) -> Iterator[tuple[str, int, int, int, dict[str, Any]]]:
    """For each side with keys at `limit` positions or more: (name, relative position, t, s, masking). There the first t
    queries attend to the first s keys under `masking`.
    """
    if s > limit:
        yield "before", -limit, t, s - limit, {"causal": True}
    if t > limit and not causal:
        yield "after", limit, t - limit, s, {"window": (0, None)}


def leading_block(x: Array | None, t: int, s: int) -> Any:
    """The first queries and keys of an array broadcastable to `b h t s`."""
    return x if x is None else x[(..., *(slice(n) for n in (t, s)[2 - min(x.ndim, 2) :]))]


def attend_near_and_far(
    attend_rows: AttendRows,
    add_far_position: AddFarPosition,
    tape: Tape,
    q: Array,
    k: Array,
    v: Array,
    *,
    limit: int,
    mask: Array | None,
    bias: Array | None,
    causal: bool,
    scale: float,
) -> Array:
    """The context, `b t h v`, in memory that grows with t.

    Args:
        attend_rows: as `attend_in_row_blocks` calls it; with return_lse=True its context has the lse as a last column
            (`with_lse`).
        add_far_position: adds the vectors of the relative position that all far keys share.
        tape: that of the call.
        q, k, v: `b t h k`, `b s h k` and `b s h v`.
        limit: the distance from which on all keys of a side have the same position.
        mask, bias, causal, scale: as of `attend`.
    """
    window = limit - 1, limit - 1
    near, _ = attend_in_row_blocks(
        partial(attend_rows, return_lse=True), scope(tape, "near"), q, k, v, mask=mask, causal=causal, window=window,
        bias=bias, keep=None,
    )  # fmt: skip
    parts = [(near[..., :-1], reorder(near[..., -1], (0, 2, 1)))]
    for name, relative_position, t, s, masking in far_sides(q.shape[1], k.shape[1], limit, causal):
        arrays = add_far_position(q[:, :t], k[:, :s], v[:, :s], arange(1, q) + relative_position)
        context, _, lse = attend(
            *arrays, mask=leading_block(mask, t, s), bias=leading_block(bias, t, s), scale=scale, **masking,
            tape=scope(tape, name), implementation="fused", return_lse=True,
        )  # fmt: skip
        without_keys = q.shape[1] - t
        no_lse = zeros((*lse.shape[:2], without_keys), lse) + float("-inf")
        context = concatenate([context, zeros((context.shape[0], without_keys, *context.shape[2:]), context)], 1)
        parts.append((context, concatenate([lse, no_lse], -1)))
    save_residuals(tape, (q, k, v, parts))  # only in NumPy: its backward reads them
    return record(tape, context=merge(parts)[0])


def attend_near_and_far_vjp(
    attend_rows_vjp: Callable[[Tape, Array], dict[str, Array | None]],
    add_far_position_vjp: Callable[..., dict[str, Array]],
    tape: Tape,
    dcontext: Array,
    *,
    limit: int,
    causal: bool,
) -> dict[str, Any]:
    """The gradients of q, k, v, the bias and the parameters, by name.

    Args:
        attend_rows_vjp: as `attend_in_row_blocks_vjp` calls it, with a gradient of what `with_lse` returned.
        add_far_position_vjp: (q, k, v, relative position, gradients of its results) -> those of q, k, v and parameters,
            by name.
    """
    q, k, v, parts = residuals_of(tape)
    (dnear, dlse), *dparts = merge_call_vjp({}, dcontext, parts=parts)["parts"]
    dnear = concatenate([dnear, reorder(dlse, (0, 2, 1))[..., None]], -1)
    grads = attend_in_row_blocks_vjp(attend_rows_vjp, scope(tape, "near"), dnear)
    sides = far_sides(q.shape[1], k.shape[1], limit, causal)
    for (name, relative_position, t, s, _), (dpart, dlse) in zip(sides, dparts, strict=True):
        *dshifted, dbias = attend_vjp(scope(tape, name), dpart[:, :t], dlse=dlse[..., :t])
        more = add_far_position_vjp(q[:, :t], k[:, :s], v[:, :s], arange(1, q) + relative_position, *dshifted)
        for x, n in (("q", t), ("k", s), ("v", s)):
            grads[x][:, :n] += more.pop(x)
        if dbias is not None:
            dbias_block = leading_block(grads["bias"], t, s)
            dbias_block += dbias
        grads |= {name: sum_grads(grads[name], grad) for name, grad in more.items()}
    return grads
