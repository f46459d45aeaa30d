"""Keys and values in pages: one pool of blocks, and for each sequence a table of those that hold its positions."""

from collections.abc import Sequence
from typing import Any

from attn_np.contract import _functions as functions_contract
from attn_np.contract import _paged as pages_contract
from attn_np.contract._band import Limits
from attn_torch.attention.functions import attend, to_python_scalar
from attn_torch.ops import (
    Array,
    Tape,
    allows_data_dependent_shapes,
    arange,
    clip,
    dtype_name,
    gather_last,
    known_range,
    signed,
    take_pages,
    to_dtype,
    where,
    write_entries,
)
from attn_torch.ops.specs import checked_specs
from attn_torch.positions.terms import Term


def attend_paged(
    q: Array,
    k_pages: Array,
    v_pages: Array,
    table: Array,
    lengths: Array,
    *,
    causal: bool = False,
    window: Limits | int | None = None,
    offset: Array | int | None = None,
    terms: Term | Sequence[Term] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    tape: Tape = None,
    return_lse: bool = False,
) -> Any:
    """`attend` to keys and values in pages: the average of the values, `b t h v`, and the lse `b h t`, if asked for.

    Position i of a sequence is entry i % p of the page that its table names in column i // p. So sequences of any
    length share one pool, their pages lie anywhere in it, and several may read the same page. A call reads the pages
    that the lengths fill, and within a window with an end those near the queries alone: its time and memory do not
    depend on the size of the pool. Other entries of the table, such as -1, are not read, and other positions of a page
    may hold anything. Where lengths are traced every column of the table is read.

    Args:
        q: `b t h k`, the queries.
        k_pages, v_pages: `n p g k` and `n p g v`, n pages for p positions each; query head h uses head h // r of g.
        table: `b m`, the index of the page of each p positions of a sequence.
        lengths: `b`, how many positions each sequence has; the new ones, that `write_pages` wrote, are among them.
        causal, window, terms, scale, softcap, sinks: as `attend` takes them.
        offset: the position of the first query, an integer or one for each sequence, `b`; lengths - t by default, so
            that the last query is at the sequence's last position.
        tape: what `attend` tapes, of the pages that were read.
        return_lse: whether to return (context, lse), a part for `merge`.

    Raises:
        ValueError: shapes that do not fit; where values are known, lengths beyond the table, or a page that is read and
            not in the pool. Where they are traced such a page is read as NaN by JAX.
        TypeError: dtypes that do not fit.
    """
    causal, window = to_python_scalar(causal), functions_contract.python_window(window, to_python_scalar)
    offset = to_python_scalar(offset)
    pages, offset, lengths = pages_of_call(q, k_pages, v_pages, table, lengths, causal, window, offset)
    context, _, *lse = attend(
        q, in_order(k_pages, pages), in_order(v_pages, pages), causal=causal, window=window, terms=terms, offset=offset,
        lengths=lengths, scale=scale, softcap=softcap, sinks=sinks, tape=tape, return_lse=return_lse,
    )  # fmt: skip
    return (context, *lse) if return_lse else context


def in_order(pool: Array, pages: Array) -> Array:
    """Pages of a pool by index as one row of positions for each sequence: `n p ...`, `b c` -> `b s ...`."""
    b, c = pages.shape
    return take_pages(pool, pages).reshape(b, c * pool.shape[1], *pool.shape[2:])


def pages_of_call(
    q: Array,
    k_pages: Array,
    v_pages: Array,
    table: Array,
    lengths: Array,
    causal: bool,
    window: Any,
    offset: Any,
) -> tuple[Array, Array, Array]:
    """The pages that a checked call reads, `b c`, and the offset and the lengths of attention to their positions."""
    is_array = hasattr(offset, "shape")
    arrays = {"q": q, "k_pages": k_pages, "v_pages": v_pages, "table": table, "lengths": lengths}
    array_specs = checked_specs("attend_paged", **arrays, offset=offset if is_array else None)
    pages_contract.check_attend(array_specs, None if is_array else offset, causal, window)
    known, size = known_range(lengths), k_pages.shape[1]
    pages_contract.check_known_lengths(known, table.shape[1], size)
    lengths = signed(lengths)
    start = lengths - q.shape[1] if offset is None else 0 * lengths + (signed(offset) if is_array else offset)
    pages, first = pages_to_read(table, lengths, start, q.shape[1], size, causal, window, known)
    pages_contract.check_known_pages("attend_paged", known_range(pages), k_pages.shape[0])
    return pages, start - first, where(lengths > first, lengths - first, 0)


def pages_to_read(
    table: Array,
    lengths: Array,
    start: Array,
    t: int,
    size: int,
    causal: bool,
    window: Any,
    known: tuple[int, int] | None,
) -> tuple[Array, Array]:
    """The pages that hold what t queries from `start` on may see, `b c`, and the position of their first key, `b`."""
    columns = table.shape[1]
    first, most = 0 * lengths, pages_contract.columns_in_window(causal, window, t, size)
    if most is not None:
        first, columns = clip((start - window[0]) // size, 0, columns), min(columns, most)
    if known is not None and allows_data_dependent_shapes(lengths):
        columns = min(columns, max(1, -(-known[1] // size)))
    column = first[:, None] + arange(columns, lengths)[None, :]
    is_read = column * size < lengths[:, None]
    return where(is_read, entries_of(table, where(is_read, column, 0)), 0), first * size


def entries_of(table: Array, column: Array) -> Array:
    """The entries of a table in some columns of each row: `b m`, `b n` -> `b n`."""
    return gather_last(signed(table)[:, None, None], column[:, None])[:, 0, 0]


def write_pages(pages: Array, new: Array, table: Array, positions: Array) -> Array:
    """The pages with new entries in them: position i of a sequence in entry i % p of the page in its column i // p.

    NumPy and PyTorch write in place, PyTorch not where gradients flow; JAX does if the pages are donated. A page that
    several sequences read is for none of them to write.

    Args:
        pages: `n p ...`, keys or values, or whatever each position has.
        new: `b t ...`, rounded to the dtype of the pages.
        table: `b m`, the index of the page of each p positions of a sequence.
        positions: `b t`, where each entry belongs; -1 for one that is not written, such as padding.

    Raises:
        ValueError: shapes that do not fit; where values are known, positions beyond the table, or a page that is not
            in the pool. Where they are traced JAX does not write such an entry.
        TypeError: dtypes that do not fit.
    """
    specs = checked_specs("write_pages", pages=pages, new=new, table=table, positions=positions)
    pages_contract.check_write(specs)
    page, place, is_written = places_of(pages, table, positions)
    pages_contract.check_known_pages("write_pages", known_range(where(is_written, page, 0)), pages.shape[0])
    return write_entries(pages, page, place, to_dtype(new, dtype_name(pages)), is_written)


def places_of(pages: Array, table: Array, positions: Array) -> tuple[Array, Array, Array]:
    """The page and the place in it of each position, `b t`, and whether there is something to write."""
    size, room = pages.shape[1], table.shape[1] * pages.shape[1]
    pages_contract.check_known_positions(known_range(positions), room)
    positions = signed(positions)
    is_written = (positions >= 0) & (positions < room)
    positions = where(is_written, positions, 0)
    return entries_of(table, positions // size), positions % size, is_written
