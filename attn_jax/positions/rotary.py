"""Rotary positions: pairs of a head's dimensions, rotated by angles that grow with the position."""

from typing import Any

from jaxtyping import Float, Int

import attn_jax.ops as ops
from attn_jax.attention.decode import DecodeStep
from attn_jax.attention.masks import token_positions
from attn_jax.ops import (
    Array,
    Tape,
    any_over,
    arange,
    clip,
    concatenate,
    concrete,
    constant_like,
    cumsum,
    dtype_name,
    known_range,
    record,
    roll_last,
    signed,
    take,
    where,
)

# Of tokens: integers, on one axis or several, or cosines and sines in their place.
Positions = Int[Array, "b t"] | Int[Array, "a b t"] | tuple[Float[Array, "..."], Float[Array, "..."]]


def record_positions(tape: Tape, positions: Any, stream: str = "") -> Any:
    """The positions of a call, or the cosines and sines in their place, recorded; `stream` begins their names."""
    if isinstance(positions, tuple):
        return record(tape, **{f"{stream}cos": positions[0], f"{stream}sin": positions[1]})
    return record(tape, **{f"{stream}positions": positions})


def recorded_positions(tape: dict[str, Array], stream: str = "") -> Any:
    """What `record_positions` recorded."""
    names = f"{stream}cos", f"{stream}sin"
    return (tape[names[0]], tape[names[1]]) if names[0] in tape else tape.get(f"{stream}positions")


@constant_like
def cos_sin_table(xp: Any, config: Any, count: int, length: int, dtype: str, layout: str | None = None) -> Any:
    """Cosines and sines of positions 0 .. count - 1 in a pass over `length` of them, made in float64 and rounded once:
    a float32 angle would be wrong by 1e-3 at position 100 000. With a layout, as `for_both` gives them.
    """
    angles = xp.arange(count, dtype=xp.float64)[:, None] * xp.asarray(config.frequencies(length), dtype=xp.float64)
    cos_sin = xp.stack([xp.cos(angles), xp.sin(angles)]) * config.cos_sin_factor()
    if layout is not None:
        cos_sin = xp.stack(for_both(cos_sin[0], cos_sin[1], layout, xp))
    return xp.asarray(cos_sin, dtype=getattr(xp, dtype))


def cos_sin_table_for(
    config: Any,
    positions: Array,
    known: tuple[Any, Any] | None,
    dtype: str,
    *,
    like: Array,
    length: int | None = None,
) -> Array:
    """Cosines and sines of positions 0 .. max_positions - 1. "longrope" and "dynamic" depend on the length of the pass:
    `length`, or else the largest position and one more; `known` is the `known_range` of the positions.

    Raises:
        ValueError: "dynamic" in a compiled program, which does not know its positions.
    """
    count = config.max_positions
    # A model's max_positions may be millions: where the largest position is known, rows up to a power of 2 above it.
    rows = count if known is None else min(count, 1 << int(known[1]).bit_length())
    if not config.depends_on_length(count):
        return cos_sin_table(config, rows, count, dtype, like=like)
    if length is None and concrete(positions):
        length = int((known or (0, 0))[1]) + 1
    if length is not None:
        return cos_sin_table(config, rows, length, dtype, like=like)
    config.check_traced_length()
    original = config.original_max_positions
    short, long = (cos_sin_table(config, count, n, dtype, like=like) for n in (original, count))
    return where(any_over(positions >= original, tuple(range(positions.ndim))), long, short)


def select_sections(x: Array, sections: tuple[int, ...], *, interleaved: bool) -> Array:
    """From cosines or sines for every axis, `a ... r`, those of the axis that rotates each pair: `... r`."""
    if interleaved:
        pair, axes, selected = arange(x.shape[-1], like=x), len(sections), x[0]
        for axis, count in enumerate(sections):
            selected = where((pair % axes == axis) & (pair < axes * count), x[axis], selected)
        return selected
    ends = [sum(sections[: i + 1]) for i in range(len(sections))]
    parts = [x[i][..., end - n : end] for i, (n, end) in enumerate(zip(sections, ends, strict=True))]
    return concatenate(parts, -1)


def cos_sin_for(
    config: Any,
    positions: Any,
    t: int,
    *,
    like: Array,
    step: DecodeStep | None = None,
    real: Array | None = None,
    layout: str | None = None,
) -> tuple[Array | None, Array | None]:
    """Cosines and sines of new positions for `rotate`, each `b t 1 k` with k the rotated width, in the config's layout
    of pairs or in `layout`; None without a base.

    By default the positions are those of `token_positions`, and the tables are for the length of the pass or the
    `max_length` of the cache, so that all keys in it agree. For positions that a full pass is given the length is the
    largest of them and one more. With `real`, `b t`, only real positions are counted. Positions on axes, `a b t`,
    rotate a section of the pairs each. Of a pair (cos, sin), `t r` or `b t r`, each angle comes back once.

    Raises:
        ValueError: positions beyond the tables, if their values are known.
    """
    if config.rope_base is None:
        return None, None
    pair_layout: str = layout or config.rope_layout
    if isinstance(positions, tuple):
        cos, sin = (x if x.ndim == 3 else x[None] for x in positions)
        if 2 * cos.shape[-1] != config.rotary_width():
            cos, sin = angles_once(config, cos, sin)
        return for_heads(cos, sin, pair_layout)
    if positions is None:
        length = max(t, 1) if step is None else step.cache.max_length
        cos_sin = cos_sin_table(config, length, length, dtype_name(like), pair_layout, like=like)
        if real is None and (step is None or step.like_full_pass):  # positions that follow each other: views
            start: Any = 0 if step is None else step.start
            cos, sin = cos_sin[:, None, start : start + t, None]
            return cos, sin
        unclipped = token_positions(t, t, like=like, step=step)[0] if real is None else cumsum(real, 1) - 1
        cos, sin = (take(table, clip(unclipped, 0, length - 1), fits=True) for table in (cos_sin[0], cos_sin[1]))
        return cos[:, :, None], sin[:, :, None]
    positions = signed(positions)
    known = known_range(positions)
    if known is not None:
        config.check_position_range(*known)
    length = None if step is None else step.cache.max_length
    cos_sin = cos_sin_table_for(config, positions, known, dtype_name(like), like=like, length=length)
    cos, sin = (take(table, positions, fits=True) for table in (cos_sin[0], cos_sin[1]))
    if positions.ndim == 3:
        sections, interleaved = config.pairs_of_axes(), config.rope_sections_interleaved
        cos, sin = (select_sections(x, sections, interleaved=interleaved) for x in (cos, sin))
    return for_heads(cos, sin, pair_layout)


def angles_once(config: Any, cos: Array, sin: Array) -> tuple[Array, Array]:
    """Each angle once, of cosines and sines that have it twice, as models have them: in two halves (Llama) or as
    neighbours (Cohere). Their values say which of the two.

    Raises:
        ValueError: copies that differ, or whose values are not known.
    """
    n = config.rotary_width() // 2
    copies = [[split_pairs(x, n, layout) for x in (cos, sin)] for layout in ("half", "interleaved")]
    if 0 in cos.shape:
        return copies[0][0][0], copies[0][1][0]
    differences = [[known_range(a - b) for a, b in pair] for pair in copies]
    equal = [pair for pair, ranges in zip(copies, differences, strict=True) if ranges == [(0, 0)] * 2]
    same = all(known_range(x[0] - y[0]) == (0, 0) for x, y in zip(equal[0], equal[-1], strict=True)) if equal else False
    config.check_copies(known=None not in differences[0], equal=bool(equal), same=same)
    return equal[0][0][0], equal[0][1][0]


def split_pairs(x: Array, n: int, layout: str) -> tuple[Array, Array]:
    """The first and the second numbers of the n pairs that rotate."""
    return (x[..., :n], x[..., n : 2 * n]) if layout == "half" else (x[..., : 2 * n : 2], x[..., 1 : 2 * n : 2])


def join_pairs(a: Any, b: Any, layout: str, xp: Any = ops) -> Any:
    """The first and the second numbers of pairs in one axis: `split_pairs` in reverse."""
    n = a.shape[-1]
    return xp.concatenate([a, b], -1) if layout == "half" else xp.stack([a, b], -1).reshape((*a.shape[:-1], 2 * n))


def swap_pairs(x: Array, layout: str) -> Array:
    """x with the two numbers of each pair swapped: (a, b) becomes (b, a)."""
    n = x.shape[-1] // 2
    return roll_last(x, n) if layout == "half" else roll_last(x.reshape((*x.shape[:-1], n, 2)), 1).reshape(x.shape)


def for_both(cos: Any, sin: Any, layout: str, xp: Any = ops) -> tuple[Any, Any]:
    """Cosines and sines of pairs, for the first and the second number of each: (cos, cos) and (-sin, sin)."""
    return join_pairs(cos, cos, layout, xp), join_pairs(-sin, sin, layout, xp)


def for_heads(cos: Array, sin: Array, layout: str) -> tuple[Array, Array]:
    """What `rotate` takes for cosines and sines of pairs, `b t r`: for both numbers of each, in all heads."""
    cos, sin = for_both(cos, sin, layout)
    return cos[:, :, None], sin[:, :, None]


def rotate(x: Array, cos: Array | None, sin: Array | None, layout: str, *, inverse: bool = False) -> Array:
    """x with pairs of the first dimensions of its last axis rotated: (a, b) becomes (a cos - b sin, b cos + a sin).

    That is (a, b) times (cos, cos) and (b, a) times (-sin, sin), which `cos_sin_for` gives. A pair is dimension i of
    the first half and of the second ("half"), or two neighbours ("interleaved"). Gradients rotate back, by the
    negative angles.
    """
    if cos is None or sin is None:
        return x
    if x.ndim == 3:  # without heads
        cos, sin = cos[:, :, 0], sin[:, :, 0]
    width = cos.shape[-1]
    turned = x if x.shape[-1] == width else x[..., :width]
    rotated = turned * cos + swap_pairs(turned, layout) * (-sin if inverse else sin)
    return rotated if turned is x else concatenate([rotated, x[..., width:]], -1)


def query_scale_table(growth: float, interval: int, count: int, *, like: Array) -> Array:
    """The factors of positions 0 .. count - 1 on queries, made in float64 and rounded once."""
    return query_scale_constant(growth, interval, count, dtype_name(like), like=like)


@constant_like
def query_scale_constant(xp: Any, growth: float, interval: int, count: int, dtype: str) -> Any:
    """The table of `query_scale_table` as a constant."""
    numbers = xp.arange(1, count + 1, dtype=xp.float64)
    return xp.asarray(1.0 + growth * xp.log(1.0 + xp.floor(numbers / interval)), dtype=getattr(xp, dtype))
