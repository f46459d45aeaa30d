"""Relative positions: their encodings, and the buckets that they fall into."""

from typing import Any

from attn_jax.ops import (
    Array,
    Tape,
    arange,
    clip,
    concatenate,
    constant_like,
    diagonals_to_pairs,
    dtype_name,
    einsum,
    gather_last,
    lookup,
    pairs_to_diagonals,
    record,
    reorder,
    signed,
    take,
    to_dtype,
    transpose_diagonals,
    where,
    zeros,
)
from attn_jax.ops.specs import checked_specs
from attn_np.contract import _functions as functions_contract
from attn_np.contract._functions import alibi_slopes as alibi_slopes


def as_floats(x: Array, like: Array) -> Array:
    """Distances, numbers of positions or truth values as floats in the dtype of another array."""
    return to_dtype(x, dtype_name(like))


def sinusoids(low: int, high: int, width: int, base: float, *, like: Array) -> Array:
    """Encodings of the integers low .. high - 1: sines, then cosines, made in float64 and rounded once."""
    return sinusoid_table(low, high, width, base, dtype_name(like), like=like)


@constant_like
def sinusoid_table(xp: Any, low: int, high: int, width: int, base: float, dtype: str) -> Any:
    """The table of `sinusoids` as a constant."""
    rates = base ** -(xp.arange(0, width, 2, dtype=xp.float64) / width)
    angles = xp.arange(low, high, dtype=xp.float64)[:, None] * rates
    return xp.asarray(xp.concatenate([xp.sin(angles), xp.cos(angles)], axis=1), dtype=getattr(xp, dtype))


def to_key_positions(x: Array, query_sinusoids: Array) -> Array:
    """y with x . encoding(i - j) = y . encoding(j), for a query at i and a key at j: `b t h d`, `t d` -> `b t h d`.

    sin(i - j) = sin i cos j - cos i sin j, cos(i - j) = cos i cos j + sin i sin j. The map is linear and symmetric, so
    its vjp is the map itself.
    """
    half = query_sinusoids.shape[-1] // 2
    (of_sin, of_cos), (sin, cos) = ((y[..., :half], y[..., half:]) for y in (x, query_sinusoids[:, None]))
    return concatenate([of_cos * sin - of_sin * cos, of_sin * sin + of_cos * cos], -1)


def grid_offsets(rows: int, columns: int, prefix_tokens: int, like: Array) -> Array:
    """The row of a bias table for each query and key of a grid, which tokens may precede: `t s`.

    The table begins with the offsets, query less key, those of columns running fastest. Three rows follow, for all
    tokens before the grid alike: their queries and keys of the grid, queries of the grid and their keys, both theirs.
    """
    position = arange(prefix_tokens + rows * columns, like) - prefix_tokens
    # Of two positions with these numbers, the difference says the offset of rows and that of columns.
    number = position // columns * (2 * columns - 1) + position % columns
    offset = number[:, None] - number + number[-1]
    if prefix_tokens == 0:
        return offset
    from_prefix, to_prefix = position[:, None] < 0, position < 0
    behind_offsets = (2 * rows - 1) * (2 * columns - 1) + to_prefix * (1 + 1 * from_prefix)
    return where(from_prefix | to_prefix, behind_offsets, offset)


@constant_like
def signed_bucket_table(xp: Any, config: Any) -> Any:
    """The bucket of every relative position from -max_distance to max_distance."""
    return xp.asarray(config.signed_buckets(), dtype=xp.int32)


def relative_buckets(
    relative_positions: Array, *, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
) -> Array:
    """The bucket of every relative position, key minus query, as in T5: small distances alone, larger ones together.

    Buckets grow with the distance up to `max_distance`, from which on all share the last (Raffel et al. 2020,
    arXiv:1910.10683). T5's bias is a learned number for each head, looked up by this bucket.

    Args:
        relative_positions: signed integers of any shape.
        num_buckets: how many buckets there are, those of both sides together.
        max_distance: the distance from which on all share a bucket.
        bidirectional: whether later keys have buckets of their own; if not, they share that of relative position 0.

    Raises:
        ValueError: options that cannot be right.
        TypeError: relative positions that are not signed integers.
    """
    spec = checked_specs("relative_buckets", relative_positions=relative_positions)
    functions_contract.check_relative_positions(spec["relative_positions"])
    options: dict[str, Any] = {"num_buckets": num_buckets, "max_distance": max_distance, "bidirectional": bidirectional}
    config = functions_contract.RelativeBucketsOptions(
        **{name: functions_contract.numpy_scalar_to_python(x) for name, x in options.items()}
    )
    index = clip(signed(relative_positions), -max_distance, max_distance) + max_distance
    return to_dtype(lookup(config.buckets(), index), dtype_name(relative_positions))


def rows_at(table: Array, relative_index: Array) -> Array:
    """Rows of a table, by an index that fits, as those of distances do."""
    return take(table, relative_index, fits=True)


def is_by_diagonal(relative_index: Array, s: int) -> bool:
    """Whether an index has one number for each diagonal, `1 1 n`, and not for each pair, `b t s`.

    With t = 1, n = t + s - 1 is s and the two forms are the same: the answer is then False.
    """
    return relative_index.shape[-1] != s


def relative_scores_per_head(tape: Tape, name: str, q: Array, table: Array, relative_index: Array, s: int) -> Array:
    """The product of each query with the row of the table that its pair has: `b t h k`, `x h k`, `b t s` -> `b h t s`.

    With an index by diagonal, `1 1 n`, the queries are multiplied by those rows only; with one by pair, by the whole
    table, and the products are taped by name.
    """
    if is_by_diagonal(relative_index, s):
        return diagonals_to_pairs(einsum("bthk,xhk->bhtx", q, rows_at(table, relative_index[0, 0])), q.shape[1], s)
    return gather_last(record(tape, **{name: einsum("bthk,xhk->bhtx", q, table)}), relative_index)


def relative_scores_of_keys(k: Array, table: Array, relative_index: Array, t: int) -> Array:
    """The product of each key with the row of the table that its pair has: `b s h k`, `x h k`, `1 1 n` -> `b h t s`.

    A block of c keys meets t + c - 1 diagonals, and these rows alone.
    """
    b, s, h, _ = k.shape
    c = keys_per_block(t)
    keys, rows = to_blocks(k, c), rows_of_blocks(relative_index, t, s, c)
    num_blocks = keys.shape[1]
    # Heads come before blocks in the merged axis: only then does it stay sharded by heads.
    by_diagonal = einsum("bmchk,mxhk->bhmcx", keys, rows_at(table, rows)).reshape(b, h * num_blocks, c, t + c - 1)
    by_key = diagonals_to_pairs(by_diagonal, c, t).reshape(b, h, num_blocks, c, t)
    return reorder(by_key, (0, 1, 4, 2, 3)).reshape(b, h, t, num_blocks * c)[..., :s]


def keys_per_block(t: int) -> int:
    """How many keys are multiplied for t queries at once: few, so that they share most of their diagonals."""
    return -(-t // 4)


def to_blocks(x: Array, c: int) -> Array:
    """An axis of positions in blocks of c, the last filled up with zeros: `b s ...` -> `b m c ...`."""
    b, s, *rest = x.shape
    num_blocks = -(-s // c)
    return concatenate([x, zeros((b, num_blocks * c - s, *rest), x)], 1).reshape(b, num_blocks, c, *rest)


def rows_of_blocks(relative_index: Array, t: int, s: int, c: int) -> Array:
    """The row of each diagonal that t queries and each block of c keys meet: `1 1 t+s-1` -> `m x`."""
    first, diagonal = arange(-(-s // c), relative_index) * c, arange(t + c - 1, relative_index)
    return transpose_diagonals(relative_index[0, 0][clip(first[:, None] + diagonal, 0, t + s - 2)])


def relative_scores_shared(tape: Tape, name: str, q: Array, table: Array, relative_index: Array, s: int) -> Array:
    """`relative_scores_per_head` with one table for all heads, `x k`.

    By pair, the taken rows of the table are taped instead of the products.
    """
    if is_by_diagonal(relative_index, s):
        return diagonals_to_pairs(einsum("bthk,xk->bhtx", q, rows_at(table, relative_index[0, 0])), q.shape[1], s)
    return einsum("bthk,btsk->bhts", q, record(tape, **{name: rows_at(table, relative_index)}))


def relative_values(tape: Tape, name: str, weights: Array, table: Array, relative_index: Array) -> Array:
    """The sum of each query's rows of the table, times the weights of their pairs: `b h t s`, `x v` -> `b t h v`."""
    if is_by_diagonal(relative_index, weights.shape[-1]):
        return einsum(
            "bhtx,xv->bthv",
            pairs_to_diagonals(weights, relative_index.shape[-1]),
            rows_at(table, relative_index[0, 0]),
        )
    return einsum("bhts,btsv->bthv", weights, record(tape, **{name: rows_at(table, relative_index)}))
