"""Keys chosen by scores: a query attends to the few keys that it chose, in time and memory of t n, not t s.

`choose_by_indexer` turns scores into a choice: the numbers of n keys for each query, `b t n`, for all heads. It is no
function of the scores that could be differentiated: the scores get no gradient. `attend_to_chosen` takes a choice. A
call that shows or changes its weights hides all other keys by a mask; the rest reads the chosen keys alone, some
queries at a time.
"""

from collections.abc import Callable
from itertools import pairwise
from math import inf, sqrt
from typing import Any

from attn_np.contract._tape import wants_intermediates
from attn_torch.attention.masks import hide_neg_inf
from attn_torch.ops import (
    Array,
    Tape,
    any_over,
    arange,
    broadcast_to,
    concatenate,
    detach,
    einsum,
    is_longer,
    lengths_are_numbers,
    maximum,
    record,
    scan,
    softmax,
    take_rows,
    where,
    zeros,
)
from attn_torch.ops.choices import largest_indices, mark_indices

BLOCK_NUMBERS = 2**20  # numbers that a block of queries has at once: scores, or parts of its chosen keys
SPANS = 4  # of the queries of a causal call: those of one have scores with the keys up to its end alone
MAX_SHARE = 6  # keys are read one by one where a query chooses at most one in so many; else a mask hides the rest


def top_k_indices(scores: Array, allowed: Array, count: int) -> Array:
    """The indices of the `count` largest allowed scores of the last axis, in a new last axis; of equals the first.

    Where fewer are allowed, the rest is the axis's length, which is no valid index. Without a gradient.
    """
    n = scores.shape[-1]
    num_allowed = broadcast_to(allowed, scores.shape).sum(-1)[..., None]
    scores = where(allowed, scores, -inf)
    if not lengths_are_numbers() or is_longer(count, n):  # there may be fewer scores than that
        scores = concatenate([scores, zeros((*scores.shape[:-1], count), scores) - inf], -1)
    indices = largest_indices(scores, count)
    return where(arange(count, scores) < num_allowed, indices, n)


def queries_at_once(numbers: int) -> int:
    """How many queries a block has, each of which has so many numbers."""
    return max(1, BLOCK_NUMBERS // max(1, numbers))


def in_query_blocks(
    function: Callable[..., Array], xs: tuple[Array, ...], shared: tuple[Array, ...], numbers: int
) -> Array:
    """`function(*xs, *shared)` for some queries at a time, where xs and the result are `b t ...`.

    Args:
        numbers: how many numbers the function has at once for each query of all sequences.
    """
    t, rows = xs[0].shape[1], queries_at_once(numbers)
    if not lengths_are_numbers() or not is_longer(t, rows):
        return function(*xs, *shared)
    blocks = -(-t // rows)

    def split(x: Array) -> Array:
        x = concatenate([x, broadcast_to(x[:, -1:], (x.shape[0], blocks * rows - t, *x.shape[2:]))], 1)
        return x.reshape(x.shape[0], blocks, rows, *x.shape[2:])

    _, (y,) = scan(
        lambda carry, block, *shared: (carry, (function(*block, *shared),)),
        zeros((1,), xs[0]),
        tuple(split(x) for x in xs),
        names=("y",),
        recompute_with=shared,
    )
    return y.reshape(y.shape[0], blocks * rows, *y.shape[3:])[:, :t]


# The choice -----------------------------------------------------------------------------------------------------------


def weighted_relu(q: Array, k: Array, w: Array) -> Array:
    """The scores of an indexer, `b t s`: sum over its heads of w relu(q k), of `b t r m`, `b s m` and `b t r`."""
    return einsum("btr,btrs->bts", w, maximum(einsum("btrm,bsm->btrs", q, k), 0.0))


def visible_to_any_head(allowed: Array | None, bias: Array | None) -> Array | None:
    """The keys that a query sees in any head, `b t s` with axes of 1; None for all."""
    allowed = hide_neg_inf(allowed, bias)
    if allowed is None:
        return None
    return any_over(allowed.reshape((1,) * (4 - allowed.ndim) + tuple(allowed.shape)), (1,))


def choose_by_indexer(call: Any, q: Array, k: Array, w: Array, count: int) -> Array:
    """The `count` keys with the largest scores of an indexer among those that a query sees in any head: `b t n`.

    Where it sees fewer, the rest is s, the number of keys, which is no key. Equal scores: the first key.

    Args:
        call: the `AttentionCall`.
        q, k, w: queries, keys and weights of the indexer's heads: `b t r m`, `b s m`, `b t r`.
    """
    t, s = q.shape[1], k.shape[1]
    plain = call.mask is None and call.bias is None and call.step is None and not wants_intermediates(call.tape)
    if not plain:
        scores = record(call.tape, index_scores=weighted_relu(q, k, w))
        allowed = visible_to_any_head(call.allowed(t, s, q), call.bias)
        allowed = broadcast_to(arange(s, q) >= 0 if allowed is None else allowed, (q.shape[0], t, s))
        return record(call.tape, chosen=top_k_indices(scores, allowed, count))

    def choose(q: Array, w: Array, position: Array, k: Array) -> Array:
        chosen = top_k_indices(weighted_relu(q, k, w), arange(k.shape[1], q) <= position[..., None], count)
        return where(chosen < k.shape[1], chosen, s)

    causal, numbers = call.masking["causal"], q.shape[0] * s * (q.shape[2] + 2)
    position = broadcast_to(arange(t, q) + (s - t if causal else s), (q.shape[0], t))
    spans = SPANS if causal and lengths_are_numbers() and is_longer(t, queries_at_once(numbers)) else 1
    edges = [t * i // spans for i in range(spans + 1)]
    parts = []
    for start, stop in pairwise(edges):
        xs = detach(q[:, start:stop]), detach(w[:, start:stop]), position[:, start:stop]
        keys = k[:, : s - t + stop] if causal else k
        parts.append(in_query_blocks(choose, xs, (detach(keys),), numbers))
    return record(call.tape, chosen=concatenate(parts, 1))


# Attention to it ------------------------------------------------------------------------------------------------------


def attend_to_chosen(call: Any, q: Array, k: Array, v: Array, chosen: Array, *, scale: float | None = None) -> Array:
    """The context `b t h v` where each query attends to its chosen keys: `AttentionCall.attend`, and less work.

    Args:
        call: the `AttentionCall`; the choice is among the keys that it allows.
        q, k, v: `b t h k`, `b s g k`, `b s g v`.
        chosen: numbers of different keys, `b t n`, of all heads; s for none.
        scale: factor on the scores; 1/sqrt(k) by default.
    """
    s, n = k.shape[1], chosen.shape[-1]
    keep = call.draw_keep()
    mask_by_head = call.mask is not None and call.mask.ndim == 4 and call.mask.shape[1] > 1
    plain = call.implementation != "textbook" and not call.shows_weights and not wants_intermediates(call.tape)
    few = lengths_are_numbers() and is_longer(s, MAX_SHARE * n)
    if plain and few and keep is None and call.bias is None and not mask_by_head:
        return attend_by_index(call.tape, q, k, v, chosen, scale=scale)
    allowed = mark_indices(chosen, s)[:, None]
    return call.attend(q, k, v, scale=scale, mask=allowed if call.mask is None else allowed & call.mask)


def take_chosen(x: Array, chosen: Array) -> Array:
    """The chosen keys of each query, `b s g k`, `b t n` -> `b t g n k`."""
    b, s, g, width = x.shape
    first = (arange(b, x) * s)[:, None, None, None] + chosen[:, :, None]
    index = first * g + arange(g, x)[:, None]
    return take_rows(x.reshape(b * s * g, width), index.reshape(-1)).reshape(*index.shape, width)


def with_no_key(x: Array) -> Array:
    """Keys or values with zeros behind the last, for the number that is no key."""
    return concatenate([x, zeros((x.shape[0], 1, *x.shape[2:]), x)], 1)


def attend_by_index(tape: Tape, q: Array, k: Array, v: Array, chosen: Array, *, scale: float | None = None) -> Array:
    """The context `b t h v`, from the chosen keys alone; arguments as in `attend_to_chosen`."""
    (b, t, h, width), (_, s, g, _), n = q.shape, k.shape, chosen.shape[-1]
    scale = 1 / sqrt(width) if scale is None else scale
    grouped = q.reshape(b, t, g, h // g, width)

    def attend_rows(q: Array, chosen: Array, k: Array, v: Array) -> Array:
        scores = einsum("btgrk,btgnk->btgrn", q, take_chosen(k, chosen)) * scale
        probs = softmax(scores, (chosen < s)[:, :, None, None])
        return einsum("btgrn,btgnv->btgrv", probs, take_chosen(v, chosen))

    numbers = b * g * n * (width + v.shape[3] + h // g)
    context = in_query_blocks(attend_rows, (grouped, chosen), (with_no_key(k), with_no_key(v)), numbers)
    return record(tape, context=context.reshape(b, t, h, v.shape[3]))
