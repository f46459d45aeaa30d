"""Masks: which keys each query may attend to, and zeros for positions that play no part."""

from math import gcd, inf
from typing import Any

from attn_jax.ops import (
    Array,
    Tape,
    amax_detached,
    amin_detached,
    any_over,
    arange,
    broadcast_to,
    clip,
    concatenate,
    cumsum,
    record,
    reorder,
    upcast,
    where,
)
from attn_np.contract._band import FAR, Band, Limits, window_limits
from attn_np.contract._intervals import Interval, TruthBounds
from attn_np.contract._patterns import Pattern

# At most so many queries are given to a pattern as one interval of positions: the narrower the interval, the more keys
# can be skipped.
QUERIES_PER_INTERVAL = 32


def attention_mask(
    mask: Array | None,
    t: int,
    s: int,
    *,
    like: Array,
    causal: bool = False,
    window: Limits | None = None,
    pattern: Pattern | None = None,
    step: Any = None,
    head_axis: bool = True,
) -> Array | None:
    """Mask, causality, window and pattern as one boolean array, broadcastable to the scores; None if every pair is
    allowed: no mask, causality, window or pattern, and a full pass or a step like one.

    Query i is at position i + s - t: the last query is at the last key. In a step of decoding the cache gives the
    positions of queries and keys.
    """
    left, right = window_limits(window)
    right = 0 if causal else right
    allowed = None
    if step is not None and not step.like_full_pass:
        allowed = step.window_mask(left, right)
    elif left is not None or right is not None:
        s = s if step is None else step.start + t
        allowed = in_window(arange(t, like)[None, :] + (s - t), arange(s, like)[None, :], left, right)[0]
    if pattern is not None:
        pairs = visible_pairs(pattern, *token_positions(t, s, like=like, step=step))
        pairs = pairs if head_axis else pairs[:, 0]
        allowed = pairs if allowed is None else allowed & pairs
    return mask if allowed is None else allowed if mask is None else allowed & mask


def in_window(query_positions: Array, key_positions: Array, left: int | None, right: int | None) -> Array:
    """Whether keys are from `left` before to `right` after the query, None for all: `b t`, `b s` -> `b t s`."""
    relative_position = key_positions[:, None, :] - query_positions[:, :, None]
    left, right = FAR if left is None else left, FAR if right is None else right
    return (relative_position >= -left) & (relative_position <= right)


def token_positions(t: int, s: int, *, like: Array, step: Any = None) -> tuple[Array, Array]:
    """The positions of queries and keys, `1 t` and `1 s`; in a step, where the cache gives them, `b t` and `b s`.

    Query i is at i + s - t, the last query at the last key. In a step an empty slot has -1.
    """
    if step is not None:
        if not step.like_full_pass:
            return step.query_positions, step.key_positions
        s = step.start + t
    return arange(t, like)[None, :] + (s - t), arange(s, like)[None, :]


def relative_positions(t: int, s: int, *, like: Array, step: Any = None) -> Array:
    """The key's position minus the query's, `1 t s` or `b t s`."""
    query_positions, key_positions = token_positions(t, s, like=like, step=step)
    return key_positions[:, None, :] - query_positions[:, :, None]


def diagonal_relative_positions(t: int, s: int, *, like: Array) -> Array:
    """The key's position minus the query's on each diagonal, `1 1 n`: from the last query and the first key on."""
    return (arange(t + s - 1, like) + (1 - s))[None, None]


def visible_pairs(pattern: Pattern, query_positions: Array, key_positions: Array) -> Array:
    """Which queries see which keys by a pattern, `b 1 t s` with axes of 1, at the positions `b t` and `b s`."""

    def broadcastable(axes: str, x: Array) -> Array:
        return x[:, None, None, None] if axes == "b" else x[:, None, :, None] if axes == "b t" else x[:, None, None, :]

    return pattern.map(broadcastable).allows(query_positions[:, None, :, None], key_positions[:, None, None, :])


def block_table(pattern: Pattern, t: int, s: int, block_queries: int, block_keys: int, like: Array) -> TruthBounds:
    """For each block of queries with each block of keys, `b n m` or `1 n m`: whether some of these queries may see some
    of these keys, and whether all are sure to see all, by interval arithmetic.

    The pattern is asked about at most `QUERIES_PER_INTERVAL` queries at a time.
    """
    part = gcd(block_queries, QUERIES_PER_INTERVAL)
    parts, blocks, key_blocks = block_queries // part, -(-t // block_queries), -(-s // block_keys)
    sizes = {"b t": (part, blocks * parts), "b s": (block_keys, key_blocks)}

    def of_blocks(axes: str, x: Array) -> Any:
        """Positions or an array of the pattern, as what is known of them in each block: `b n 1` or `b 1 m`."""
        x = x if "bool" in str(x.dtype) else x + arange(1, like)  # signed: differences of unsigned numbers would wrap
        low = high = x[:, None, None]
        if axes != "b":
            low, high = (end[:, :, None] if axes == "b t" else end[:, None] for end in block_min_max(x, *sizes[axes]))
        return TruthBounds(possible=high, certain=low) if "bool" in str(x.dtype) else Interval(low, high)

    query_positions, key_positions = token_positions(t, s, like=like)
    truth = pattern.map(of_blocks).allows(of_blocks("b t", query_positions), of_blocks("b s", key_positions))
    false = (arange(blocks * parts, like)[:, None] < 0) | (arange(key_blocks, like) < 0)  # in the table's full shape
    possible, uncertain = truth.possible | false, (truth.certain | false) ^ True
    possible, uncertain = (x.reshape(x.shape[0], blocks, parts, key_blocks) for x in (possible, uncertain))
    return TruthBounds(possible=any_over(possible, (2,)), certain=any_over(uncertain, (2,)) ^ True)


def block_min_max(x: Array, size: int, count: int) -> tuple[Array, Array]:
    """The least and the largest number in each of `count` blocks of an array: `b t` -> `b n`. False is less than True.

    Beyond the array's end its last number goes on.
    """
    b, n = x.shape
    x = concatenate([x, broadcast_to(x[:, -1:], (b, count * size - n))], 1).reshape(b, count, size)
    return amin_detached(x, 2), amax_detached(x, 2)


def query_and_key_masks(
    mask: Array | None,
    t: int,
    s: int,
    *,
    like: Array,
    causal: bool = False,
    window: Limits | None = None,
    pattern: Pattern | None = None,
) -> tuple[Array | None, Array | None]:
    """Two masks: from one `any_visible` gets the queries that see a key, from the other the keys that a query sees.

    None where that is all of them. With a pattern, or a mask that has an axis of queries (and a key), both are the mask
    of the whole call, queries by keys. Both are None where every position sees itself by the pattern, and there are as
    many queries as keys and no mask. With neither a pattern nor such a mask, no array of `t s` is needed: causality and
    window leave each query a range of keys, and a running count of the mask says whether any of them is visible.
    """
    if pattern is not None:
        if mask is None and pattern.sees_itself and t == s:
            return None, None
        allowed = attention_mask(mask, t, s, like=like, causal=causal, window=window, pattern=pattern)
        return allowed, allowed
    band = Band.of(t, s, causal, window)
    mask = mask.reshape((1,)) if mask is not None and mask.ndim == 0 else mask
    if s != 0 and mask is not None and mask.ndim > 1 and mask.shape[-2] > 1:
        allowed = attention_mask(mask, t, s, like=like, causal=causal, window=window)
        return allowed, allowed
    first_key, first_query = band.first_key(), band.first_query()
    key_mask = mask
    if first_key > 0:
        seen = (arange(s, like) >= first_key)[None, :]
        key_mask = seen if mask is None else seen & mask
    if mask is None or mask.shape[-1] in (0, 1):
        query_mask = None if first_query == 0 else (arange(t, like) >= first_query)[:, None]
        return (query_mask if mask is None else mask if query_mask is None else query_mask & mask), key_mask
    if band.full:
        return mask, key_mask
    count = cumsum(mask, -1)
    count = concatenate([0 * count[..., :1], count], -1)
    position, left, right = arange(t, like) + (s - t), band.left, band.right
    start = clip(position - (s if left is None else left), 0, s)
    stop = clip(position + (s + t if right is None else right) + 1, 0, s)
    query_mask = count[..., stop] > count[..., start]
    return (query_mask[:, None] if query_mask.ndim == 1 else query_mask.swapaxes(-1, -2)), key_mask


def broadcast_mask(mask: Array | None, shape: tuple[int, ...], like: Array) -> Array:
    """A mask of this shape: the one that was passed, or True everywhere."""
    return broadcast_to(arange(shape[-1], like) >= 0 if mask is None else mask, shape)


def any_visible(subscripts: str, allowed: Array) -> Array:
    """The keys that any query sees, `any_visible("bhts->bs", allowed)`, or the queries that see any; broadcastable."""
    source, target = subscripts.split("->")
    allowed = allowed.reshape((1,) * (len(source) - allowed.ndim) + tuple(allowed.shape))
    visible = any_over(allowed, tuple(i for i, letter in enumerate(source) if letter not in target))
    letters = [letter for letter in source if letter in target]
    visible = reorder(visible, [letters.index(letter) for letter in target if letter in letters])
    return visible[tuple(slice(None) if letter in letters else None for letter in target)]


def hide_neg_inf(allowed: Array | None, bias: Array | None) -> Array | None:
    """The mask, with keys hidden also by a bias of -inf."""
    if bias is None:
        return allowed
    finite = bias != -inf
    return finite if allowed is None else finite & allowed


def zero_unseen(subscripts: str, allowed: Array | None, x: Any) -> Any:
    """x, 0 where unseen: a key that no query sees, `zero_unseen("bhts->bshk", allowed, k)`; a query that sees no key,
    `zero_unseen("bhts->bthk", allowed, q)`. Even NaN there then reaches neither outputs nor gradients. (No einsum:
    left of the arrow are the axes of `allowed`, right of it those of x.)
    """
    return x if allowed is None else where(any_visible(subscripts, allowed), x, 0.0)


def zero_unseen_inputs(
    tape: Tape,
    axes: str,
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    *,
    mask: Array | None = None,
    causal: bool = False,
    window: Limits | None = None,
    pattern: Pattern | None = None,
    step: Any = None,
) -> tuple[Array, Array, Array]:
    """Query, key and value, upcast, 0 where unseen: a key that no query sees, a query that sees no key.

    A missing key is the query, a missing value the key. In a full pass what is unseen becomes 0; in a step of decoding
    unlike a full pass, new positions that are padding or have no room in the cache. So what padding holds reaches no
    projection. The tape gets the arrays that were passed (`x` alone for self-attention), in a full pass the masks
    `query_mask` and `key_mask`, and the three results.

    Args:
        axes: of the attention matrices, "bhts" or "bts".
        mask, causal, window, pattern: who may attend to whom.
        step: the step of decoding; None in a full pass.
    """
    if key is None and value is None:
        query = key = value = record(tape, x=upcast(query))
    else:
        query, key, value = record(tape, query=upcast(query), key=upcast(key), value=upcast(value))
        key = query if key is None else key
        value = key if value is None else value
    arrays: Any = (query, key, value)
    if step is not None:
        if not step.like_full_pass:
            query, key, value = (where(step.is_appended[:, :, None], x, 0.0) for x in arrays)
    elif key is not query or mask is not None or not (pattern is None or pattern.sees_itself):  # else all are seen
        masking: Any = {"causal": causal, "window": window, "pattern": pattern}
        query_mask, key_mask = query_and_key_masks(mask, query.shape[1], arrays[1].shape[1], like=query, **masking)
        query_mask, key_mask = record(tape, query_mask=query_mask, key_mask=key_mask)
        query = zero_unseen(f"{axes}->btd", query_mask, query)
        key, value = zero_unseen(f"{axes}->bsi", key_mask, key), zero_unseen(f"{axes}->bsj", key_mask, value)
    return record(tape, zeroed_query=query, zeroed_key=key, zeroed_value=value)
