"""Rotary positions: pairs of a head's numbers turned by angles that grow with the position."""

from typing import Any

from attn_torch._decode import DecodeStep, token_positions
from attn_torch._ops import Array, clip, concatenate, concrete, constant, cumsum, dtype_name, stack, take


@constant
def tables(xp: Any, config: Any, length: int, dtype: str) -> Any:
    """Cosines and sines of positions 0 .. length - 1, made in float64 and rounded once: a float32 angle would be wrong
    by 1e-3 at position 100 000.
    """
    angles = xp.arange(length, dtype=xp.float64)[:, None] * xp.asarray(config.frequencies(length), dtype=xp.float64)
    turned = xp.stack([xp.cos(angles), xp.sin(angles)]) * config.amplitude()
    return xp.asarray(turned, dtype=getattr(xp, dtype))


def rotation(
    config: Any,
    positions: Array | None,
    t: int,
    *,
    like: Array,
    step: DecodeStep | None = None,
    real: Array | None = None,
) -> tuple[Array | None, Array | None]:
    """Cosines and sines, `b t` and half the turned width, of where new positions stand; None without a base.

    Without positions they stand as `places` says, and the length that is planned for is that of the pass, or the room
    of the cache, so that all keys in it agree. Given positions are planned for by `max_positions`. In a full pass in
    which not all positions are real, `b t`, those that are not take no place.

    Raises:
        ValueError: positions beyond the table, where they are known.
    """
    if config.rope_base is None:
        return None, None
    if positions is None:
        length = max(t, 1) if step is None else step.cache.max_length
        at = token_positions(t, t, like=like, step=step)[0] if real is None else cumsum(real, 1) - 1
        positions = clip(at, 0, length - 1)
    else:
        length = config.max_positions
        if concrete(positions) and 0 not in positions.shape:
            config.check_range(int(positions.min()), int(positions.max()))
    found = tables(config, length, dtype_name(like), like=like)
    return take(found[0], positions), take(found[1], positions)


def rotate(x: Array, cos: Array | None, sin: Array | None, layout: str, *, back: bool = False) -> Array:
    """Turn pairs of the first numbers on the last axis: (a, b) becomes (a cos - b sin, b cos + a sin).

    A pair is number i of the first half and of the second ("half"), or two neighbours ("interleaved"). The derivative's
    rule turns gradients back, by the negative angles.
    """
    if cos is None or sin is None:
        return x
    n = cos.shape[-1]
    if x.ndim == 4:
        cos, sin = cos[:, :, None], sin[:, :, None]
    a, b = (x[..., :n], x[..., n : 2 * n]) if layout == "half" else (x[..., : 2 * n : 2], x[..., 1 : 2 * n : 2])
    sin = -sin if back else sin
    a, b = a * cos - b * sin, b * cos + a * sin
    turned = concatenate([a, b], -1) if layout == "half" else stack([a, b], -1).reshape((*a.shape[:-1], 2 * n))
    return turned if x.shape[-1] == 2 * n else concatenate([turned, x[..., 2 * n :]], -1)
