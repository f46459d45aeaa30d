"""The contract of pages: the checks of `attend_paged` and `write_pages`, with the standard library alone."""

from collections.abc import Mapping
from typing import Any

from attn_np.contract._attend import Options
from attn_np.contract._band import Limits
from attn_np.contract._base import FLOATS, INTEGERS, Spec, check_present, field_error, is_integer, require


def check_attend(specs: Mapping[str, Spec | None], offset: Any, causal: Any, window: Any) -> None:
    """Refuse a call of `attend_paged` that cannot be right.

    Args:
        specs: of q, k_pages, v_pages, table, lengths, and of an offset that is an array.
        offset: one that is not an array.
        causal, window: as `attend` gets them.

    Raises:
        ValueError: a shape that does not fit, an offset that is not an integer, or a window that cannot be right.
        TypeError: an array that is missing, or of a dtype that does not fit.
    """
    who = "attend_paged"
    words: dict[str, Any] = {"scale": None, "softcap": None, "normalize_over": "keys", "implementation": "auto"}
    Options(causal=causal, window=window, **words)
    names, fix = ("q", "k_pages", "v_pages"), "q is b t h k, k_pages is n p g k, v_pages is n p g v"
    q, k, v = (check_present(who, name, specs[name]) for name in names)
    for name, (shape, dtype) in zip(names, (q, k, v), strict=True):
        require(len(shape) == 4, who, f"{name} with four axes", shape, fix)
        if dtype not in FLOATS or dtype != q[1]:
            expected = "a float dtype" if name == "q" else f"dtype {q[1]}, as q is"
            raise TypeError(f"{who}: expected {name} of {expected}, got {dtype}; convert it")
    (b, _, h, width), (_, _, g, _) = q[0], k[0]
    # A program for any size would be one for this size alone if the words were put together where nothing is wrong.
    if k[0][3] != width:
        raise field_error(who, f"k_pages of width {width}, as q is", k[0][3], fix)
    if v[0][:3] != k[0][:3]:
        raise field_error(who, f"v_pages of shape {(*k[0][:3], 'v')}", v[0], fix)
    if g < 1 or h % g:
        fix = "repeat some heads"
        raise field_error(who, f"queries with a multiple of the {g} heads of keys and values", h, fix)
    check_table(who, "k_pages", k, specs["table"], b)
    check_integers(who, "lengths", check_present(who, "lengths", specs["lengths"]), (b,))
    if specs["offset"] is not None and specs["offset"][0]:
        check_integers(who, "offset", specs["offset"], (b,))
    elif specs["offset"] is not None:
        check_integers(who, "offset", specs["offset"], ())
    elif offset is not None and not is_integer(offset):
        expected = "offset as an integer, or an array of integers of shape (b,)"
        raise field_error(who, expected, repr(offset), "0 is the first key")


def check_write(specs: Mapping[str, Spec | None]) -> None:
    """Refuse a call of `write_pages` that cannot be right; specs of pages, new, table and positions.

    Raises:
        ValueError: a shape that does not fit.
        TypeError: an array that is missing, or of a dtype that does not fit.
    """
    who = "write_pages"
    pages, new = (check_present(who, name, specs[name]) for name in ("pages", "new"))
    require(len(pages[0]) >= 2, who, "pages n p ..., each with room for p positions", pages[0], "give it these axes")
    fits, fix = len(new[0]) >= 2 and new[0][2:] == pages[0][2:], "give each position what a page has of one"
    if not fits:
        raise field_error(who, f"new of shape {('b', 't', *pages[0][2:])}", new[0], fix)
    for name, (_, dtype) in (("pages", pages), ("new", new)):
        if dtype not in FLOATS:
            raise TypeError(f"{who}: expected {name} of a float dtype, got {dtype}; convert it")
    rows: Any = new[0][:2]
    check_table(who, "pages", pages, specs["table"], rows[0])
    check_integers(who, "positions", check_present(who, "positions", specs["positions"]), rows)


def check_table(who: str, name: str, pages: Spec, table: Spec | None, batch_size: int) -> None:
    """Refuse a table that does not fit, and a pool without a page or pages without room.

    Raises:
        ValueError: a shape that does not fit.
        TypeError: no table, or no integers.
    """
    n, size = pages[0][:2]
    require(n > 0 and size > 0, who, f"{name} of at least one page with room for one position", pages[0], "make some")
    shape, dtype = check_present(who, "table", table)
    fits = len(shape) == 2 and shape[0] == batch_size and shape[1] > 0
    if not fits:
        fix = "give each sequence the indices of its pages, in order"
        raise field_error(who, f"table of shape ({batch_size}, m), at least one page for each sequence", shape, fix)
    check_integers(who, "table", (shape, dtype), shape)


def check_integers(who: str, name: str, spec: Spec, shape: tuple[int, ...]) -> None:
    """Refuse what is no array of integers of this shape.

    Raises:
        ValueError: another shape.
        TypeError: no integers.
    """
    if spec[1] not in INTEGERS:
        raise TypeError(f"{who}: expected {name} as integers, got {spec[1]}; convert it")
    if spec[0] != shape:
        raise field_error(who, f"{name} of shape {shape}", spec[0], "give one for each")


def check_known_lengths(known: tuple[int, int] | None, columns: int, size: int) -> None:
    """Refuse lengths that a table has no pages for; `known` are the least and the largest, where they are known.

    Raises:
        ValueError: naming one that does not fit.
    """
    if known is not None:
        outside = known[0] if known[0] < 0 else known[1]
        expected = f"lengths from 0 to {columns * size}, which is {columns} pages of {size} positions"
        require(0 <= outside <= columns * size, "attend_paged", expected, outside, "give the table more pages")


def check_known_positions(known: tuple[int, int] | None, room: int) -> None:
    """Refuse positions that a table has no pages for; `known` are the least and the largest, where they are known.

    Raises:
        ValueError: naming one that does not fit.
    """
    if known is not None:
        outside = known[0] if known[0] < -1 else known[1]
        expected = f"positions from -1, which is not written, to {room - 1}"
        require(-1 <= outside < room, "write_pages", expected, outside, "give the table more pages")


def check_known_pages(who: str, known: tuple[int, int] | None, count: int) -> None:
    """Refuse a table with a page that is used and that the pool lacks; `known` are the least and the largest of those
    that are used, where they are known.

    Raises:
        ValueError: naming one that does not fit.
    """
    if known is not None:
        outside = known[0] if known[0] < 0 else known[1]
        expected, fix = f"table of pages from 0 to {count - 1}", "give each position that is used a page of the pool"
        require(0 <= outside < count, who, expected, outside, fix)


def columns_in_window(causal: bool, window: Limits | None, t: int, size: int) -> int | None:
    """How many pages of a sequence hold all keys that t queries in a row may see; None where nothing limits them."""
    left, right = window or (None, None)
    right = 0 if causal else right
    return None if left is None or right is None else (left + t + right + size - 2) // size + 1
