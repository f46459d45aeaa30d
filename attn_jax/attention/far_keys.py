"""Keys beyond a distance: where all of them share one row of the table of positions, attention to them is plain.

A table of positions that is clipped at a distance has one row for all keys farther away on a side. The row's vector is
added to each of these keys (and to its value, where values have positions); after that these keys need no positions.
So a call is three: the keys far before, those far after, and the few diagonals between them, for which the scores are
formed with a row for each relative position. The three results are merged by their lse.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from attn_jax.attention.attend import attend
from attn_jax.attention.functions import merge
from attn_jax.attention.row_blocks import AttendRows, attend_in_row_blocks
from attn_jax.ops import Array, Tape, arange, concatenate, record, reorder, zeros
from attn_np.contract._tape import scope

# (q, k, v, relative position of all far keys, one number) -> q, k and v with the vectors of that position added.
AddFarPosition = Callable[[Array, Array, Array, Array], tuple[Array, Array, Array]]


def with_lse(context: Array, lse: Array) -> Array:
    """A context and, as one more column, the logarithm of each row's sum of exponentials: `b t h v+1`."""
    return concatenate([context, reorder(lse, (0, 2, 1))[..., None]], -1)


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
    return record(tape, context=merge(parts)[0])
