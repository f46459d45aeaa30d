"""Rotary positions as functions: angles with every scaling, on one axis or several, and the rotation by them."""

from typing import Any

import attn_torch._rotary as rotary
from attn_np.contract import _functions as contract
from attn_torch._layer import specs
from attn_torch._ops import (
    Array,
    check_dtype,
    concatenate,
    concrete,
    constant,
    dtype_name,
    take,
    to_dtype,
    upcast,
)


@constant
def xpos_scales(xp: Any, config: Any, count: int, dtype: str) -> Any:
    """The factors of positions 0 .. count - 1 by which xPos scales each pair, made in float64 and rounded once."""
    logs = xp.log(xp.asarray(config.decays(), dtype=xp.float64)) / config.xpos
    return xp.asarray(xp.exp(xp.arange(count, dtype=xp.float64)[:, None] * logs), dtype=getattr(xp, dtype))


def rotary_angles(
    positions: Array,
    width: int,
    *,
    rope_base: float = 10000.0,
    max_positions: int | None = None,
    sections: tuple[int, ...] | None = None,
    xpos: float | None = None,
    dtype: str = "float32",
    **scaling: Any,
) -> tuple[Array, Array]:
    """Cosines and sines of the angles by which `rotate` turns pairs of dimensions: each `b t r`, with r half the width.

    They are made in float64 and rounded once: an angle in float32 is wrong by 1e-3 at position 100 000.

    Args:
        positions: integers from 0, `b t` or of any shape.
        width: how many dimensions are rotated.
        rope_base: the first pair turns by 1 for each position, pair i by rope_base^(-2i/width).
        max_positions: exclusive limit of the positions; the largest and one more by default, but a compiled program,
            which does not know them, needs it.
        sections: of positions on several axes, stacked along axis 0: how many pairs each axis rotates, in order, such
            as (16, 24, 24) in Qwen2-VL (M-RoPE). For an image with frequencies of their own for rows and columns,
            concatenate the angles of two calls.
        xpos: pairs are also scaled by a factor to the power of position / xpos: pass 512 for queries and -512 for keys,
            and scores decay with the distance (Sun et al. 2022, arXiv:2212.10554).
        dtype: of the results; float32 for 16-bit arrays, which are computed in float32.
        scaling: `scaling=` and what it needs, as the layer `rotary` takes them: "linear", "dynamic", "yarn", "llama3"
            or "longrope". The length that two of these depend on is the largest position and one more.

    Raises:
        ValueError: options that cannot be right, or positions beyond their limit.
        TypeError: positions that are no integers, or an unknown option.
    """
    name = check_dtype("rotary_angles", dtype)
    if max_positions is None and concrete(positions):
        max_positions = int(positions.max()) + 1 if 0 not in positions.shape else 1
    options: dict[str, Any] = {"rope_base": rope_base, "max_positions": max_positions, "sections": sections}
    config = contract.Angles(width=width, xpos=xpos, **options, **scaling)
    config.check_positions(specs("rotary_angles", positions=positions)["positions"])
    if concrete(positions) and 0 not in positions.shape:
        config.check_range(int(positions.min()), int(positions.max()))
    like = upcast(take(rotary.tables(config, 1, 1, name, like=positions)[0], 0 * positions))
    tables = rotary.tables_for(config, positions, like)
    if xpos is not None:
        tables = tables * xpos_scales(config, config.max_positions, name, like=like)
    cos, sin = take(tables[0], positions), take(tables[1], positions)
    if sections is None:
        return cos, sin
    ends = [sum(sections[: i + 1]) for i in range(len(sections))]
    parts = [(i, end - n, end) for i, (n, end) in enumerate(zip(sections, ends, strict=True))]
    cos, sin = (concatenate([x[i][..., a:b] for i, a, b in parts], -1) for x in (cos, sin))
    return cos, sin


def rotate(x: Array, cos: Array, sin: Array, *, layout: str = "half", inverse: bool = False) -> Array:
    """x with pairs of the first dimensions of its last axis rotated: (a, b) becomes (a cos - b sin, b cos + a sin).

    Args:
        x: `b t h k`, or `b t k` without heads; 16-bit arrays are computed in float32 and rounded once.
        cos, sin: `t r` or `b t r`, of `rotary_angles`: the first 2 r dimensions turn, the others stay.
        layout: "half": a pair is dimension i of the first half and of the second; "interleaved": two neighbours.
        inverse: rotate back.

    Raises:
        ValueError: shapes that do not fit, or an unknown layout.
        TypeError: dtypes that do not fit.
    """
    spec = specs("rotate", x=x, cos=cos, sin=sin)
    wide = upcast(x)
    contract.check_rotation(spec["x"], spec["cos"], spec["sin"], layout, dtype_name(wide))
    cos, sin = (y[None] if y.ndim == 2 else y for y in (cos, sin))
    return to_dtype(rotary.rotate(wide, cos, sin, layout, inverse=inverse), dtype_name(x))
