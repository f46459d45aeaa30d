"""Rotary positions as functions: angles with every scaling, on one axis or several, and the rotation by them."""

from typing import Any

import attn_jax.positions.rotary as rotary
from attn_jax.ops import (
    Array,
    concrete,
    constant_like,
    dtype_name,
    float_dtype_name,
    known_range,
    signed,
    take,
    to_dtype,
    upcast,
)
from attn_jax.ops.specs import checked_specs
from attn_np.contract import _functions as functions_contract


@constant_like
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
    sections_interleaved: bool = False,
    xpos: float | None = None,
    rope_scaling: str | None = None,
    rope_scaling_factor: float | None = None,
    original_max_positions: int | None = None,
    low_freq_factor: float | None = None,
    high_freq_factor: float | None = None,
    beta_fast: float | None = None,
    beta_slow: float | None = None,
    yarn_truncate: bool = True,
    attention_factor: float | None = None,
    short_factor: tuple[float, ...] | None = None,
    long_factor: tuple[float, ...] | None = None,
    dtype: str = "float32",
) -> tuple[Array, Array]:
    """Cosines and sines of the angles by which `rotate` turns pairs of dimensions: each `b t r`, with r half the width.

    They are made in float64 and rounded once: an angle in float32 is wrong by 1e-3 at position 100 000.

    Args:
        positions: integers from 0, `b t` or of any shape.
        width: how many dimensions are rotated.
        rope_base: the first pair turns by 1 radian for each position, pair i by rope_base^(-2i/width).
        max_positions: exclusive limit of the positions; the largest and one more by default, but a compiled program,
            which does not know them, needs it.
        sections: of positions on several axes, stacked along axis 0: how many pairs each axis rotates, in order, such
            as (16, 24, 24) in Qwen2-VL (M-RoPE). Where an image's rows and columns have separate frequencies,
            concatenate the results of two calls.
        sections_interleaved: the axes take pairs in turn, as in Qwen3-VL; what is left at the end is the first one's.
        xpos: pairs are also scaled by a factor to the power of position / xpos: pass 512 for queries and -512 for keys,
            and scores decay with the distance (Sun et al. 2022, arXiv:2212.10554).
        rope_scaling: how angles change beyond the lengths in training: None, "linear", "dynamic", "yarn", "llama3"
            or "longrope". What each needs, from `rope_scaling_factor` on, is as in the layer `rotary`. The length that
            "dynamic" and "longrope" depend on is the largest position and one more.
        dtype: of the results; float32 for 16-bit arrays, which are computed in float32.

    Raises:
        ValueError: options that cannot be right, or positions beyond their limit.
        TypeError: positions that are not integers, or an unknown option.
    """
    name = float_dtype_name("rotary_angles", dtype)
    spec = functions_contract.integer_positions(checked_specs("rotary_angles", positions=positions)["positions"])
    positions = signed(positions)
    known = known_range(positions)
    low, high = known or (0, 0)
    limit = max(int(high), 0) + 1 if max_positions is None else functions_contract.numpy_scalar_to_python(max_positions)
    config = functions_contract.RotaryAnglesOptions(
        width=functions_contract.numpy_scalar_to_python(width), rope_base=rope_base, max_positions=limit,
        sections=sections, sections_interleaved=sections_interleaved, xpos=xpos, rope_scaling=rope_scaling,
        rope_scaling_factor=rope_scaling_factor, original_max_positions=original_max_positions,
        low_freq_factor=low_freq_factor, high_freq_factor=high_freq_factor, beta_fast=beta_fast, beta_slow=beta_slow,
        yarn_truncate=yarn_truncate, attention_factor=attention_factor, short_factor=short_factor,
        long_factor=long_factor,
    )  # fmt: skip
    config.check_positions(spec, max_positions is not None or concrete(positions))
    config.check_position_range(low, high)
    cos_sin_table = rotary.cos_sin_table_for(config, positions, known, name, like=positions)
    if xpos is not None:
        cos_sin_table = cos_sin_table * xpos_scales(config, cos_sin_table.shape[1], name, like=positions)
    cos, sin = take(cos_sin_table[0], positions), take(cos_sin_table[1], positions)
    if sections is None:
        return cos, sin
    cos, sin = (rotary.select_sections(x, sections, interleaved=sections_interleaved) for x in (cos, sin))
    return cos, sin


def rotate(
    x: Array,
    cos: Array,
    sin: Array | None = None,
    *,
    layout: str = "half",
    inverse: bool = False,
    rope_base: float | None = None,
    xpos: float | None = None,
    max_positions: int | None = None,
) -> Array:
    """x with pairs of the first dimensions of its last axis rotated: (a, b) becomes (a cos - b sin, b cos + a sin).

    Args:
        x: `b t h k`, or `b t k` without heads; 16-bit arrays are computed in float32 and rounded once.
        cos, sin: `t r` or `b t r`, of `rotary_angles`: the first 2 r dimensions turn, the others stay. Or, with `sin`
            left out, the positions themselves, integers `t` or `b t`: all dimensions turn.
        layout: "half": a pair is dimension i of the first half and of the second; "interleaved": two neighbours.
        inverse: rotate back.
        rope_base, xpos, max_positions: with positions: those of `rotary_angles`.

    Raises:
        ValueError: shapes that do not fit, an unknown layout, or options of positions beside angles.
        TypeError: dtypes that do not fit.
    """
    functions_contract.check_floats("rotate", "x", checked_specs("rotate", x=x)["x"])
    wide = upcast(x)
    cos, sin = resolve_cos_sin(wide, cos, sin, rope_base, xpos, max_positions)
    array_specs = checked_specs("rotate", x=x, cos=cos, sin=sin)
    functions_contract.check_rotation(
        array_specs["x"], array_specs["cos"], array_specs["sin"], layout, dtype_name(wide)
    )
    cos, sin = (y[None] if y.ndim == 2 else y for y in (cos, sin))
    cos, sin = rotary.for_heads(cos, sin, layout)
    return to_dtype(rotary.rotate(wide, cos, sin, layout, inverse=inverse), dtype_name(x))


def resolve_cos_sin(
    x: Array,
    cos_or_positions: Array,
    sin: Array | None,
    rope_base: float | None,
    xpos: float | None,
    max_positions: int | None,
) -> tuple[Array, Array]:
    """Cosines and sines of a call of `rotate`: its own, or those of the positions that stand in their place."""
    rope_options = {"rope_base": rope_base, "xpos": xpos, "max_positions": max_positions}
    options = {name: value for name, value in rope_options.items() if value is not None}
    functions_contract.check_angles_or_positions(
        checked_specs("rotate", x=x, cos=cos_or_positions), sin is not None, tuple(options)
    )
    if sin is not None:
        return cos_or_positions, sin
    return rotary_angles(cos_or_positions, x.shape[-1], **options, dtype=dtype_name(x))
