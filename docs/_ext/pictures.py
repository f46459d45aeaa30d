"""Small SVG pictures that stand inside a page and take its colours, light or dark."""

import re
from html import escape

import numpy as np

CELL, GAP, MARGIN, TOP = 46, 40, 46, 44


def caption(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text, quote=False))


def number(value: float) -> str:
    return "0" if value == 0 else f"{value:.2f}".replace("0.", ".", 1) if value < 0.995 else "1"


def text(x: float, y: float, words: str, size: int = 13, extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" {extra}>{escape(words)}</text>'


def frame(width: float, height: float, label: str, parts: list[str]) -> str:
    hatch = (
        '<defs><pattern id="hidden" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<line x1="0" y1="0" x2="0" y2="7" stroke="currentColor" stroke-opacity="0.28" stroke-width="1.6"/>'
        "</pattern></defs>"
    )
    return (
        '<div class="picture-frame">'
        f'<svg class="picture" role="img" aria-label="{escape(label, quote=True)}" '
        'fill="currentColor" font-family="inherit" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width:.0f}px;min-width:{0.7 * width:.0f}px">'
        f"{hatch}{''.join(parts)}</svg></div>"
    )


def heatmaps(weights: np.ndarray, seen: np.ndarray, heads: int) -> str:
    """One map per head, at most four: depth of colour is the size, orange is negative, hatched a hidden key.

    Args:
        weights: `h t s`.
        seen: the same shape; False where the key is hidden from the query.
        heads: how many heads the layer has; 0 for a layer without heads, whose map has no title.
    """
    shown, rows, columns = min(len(weights), 4), weights.shape[1], weights.shape[2]
    across = min(shown, 2)
    wide, high = MARGIN + columns * CELL + GAP, TOP + rows * CELL + GAP
    parts = []
    for index in range(shown):
        x0, y0 = (index % across) * wide + MARGIN, (index // across) * high + TOP
        title = f"head {index}" if heads else ""
        parts.append(text(x0 + columns * CELL / 2, y0 - 27, title, 14, 'text-anchor="middle" font-weight="600"'))
        parts.append(text(x0 + columns * CELL, y0 - 8, "key s", 12, 'text-anchor="end" fill-opacity="0.7"'))
        parts.append(text(x0 - 8, y0 - 8, "query t", 12, 'text-anchor="end" fill-opacity="0.7"'))
        for t in range(rows):
            parts.append(text(x0 - 10, y0 + t * CELL + CELL / 2 + 5, str(t), 13, 'text-anchor="end"'))
            for s in range(columns):
                parts.append(cell(x0 + s * CELL, y0 + t * CELL, float(weights[index, t, s]), bool(seen[index, t, s])))
        for s in range(columns):
            parts.append(text(x0 + s * CELL + CELL / 2, y0 + rows * CELL + 18, str(s), 13, 'text-anchor="middle"'))
    return frame(
        across * wide - GAP + 8, -(-shown // across) * high - GAP + 24, "Heat map of the attention weights", parts
    )


def cell(x: float, y: float, value: float, seen: bool) -> str:
    box = f'x="{x:.0f}" y="{y:.0f}" width="{CELL - 2}" height="{CELL - 2}" rx="4"'
    if not seen:
        return f'<rect {box} fill="url(#hidden)"/>'
    tone, depth = ("positive" if value >= 0 else "negative"), min(abs(value), 1.0)
    colour = "var(--map-text-on)" if depth > 0.55 else "currentColor"
    place = f'x="{x + CELL / 2 - 1:.1f}" y="{y + CELL / 2 + 4:.1f}" font-size="13" text-anchor="middle"'
    return (
        f'<rect {box} fill="var(--map-empty)"/><rect {box} fill="var(--map-{tone})" fill-opacity="{depth:.3f}"/>'
        f'<text {place} fill="{colour}">{"−" if value < 0 else ""}{number(abs(value))}</text>'
    )


def states(values: np.ndarray) -> str:
    """Units down, time across: blue is positive, orange negative, depth is the size."""
    units, times = min(values.shape[0], 12), values.shape[1]
    top = float(np.abs(values[:units]).max()) or 1.0
    parts = [
        text(MARGIN + times * CELL, TOP - 8, "time t", 12, 'text-anchor="end" fill-opacity="0.7"'),
        text(MARGIN - 8, TOP - 8, "unit", 12, 'text-anchor="end" fill-opacity="0.7"'),
    ]
    for unit in range(units):
        y = TOP + unit * CELL
        parts.append(text(MARGIN - 10, y + CELL / 2 + 5, str(unit), 13, 'text-anchor="end"'))
        for t in range(times):
            x, value = MARGIN + t * CELL, float(values[unit, t])
            box = f'x="{x}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" rx="4"'
            tone, depth = ("positive" if value >= 0 else "negative"), abs(value) / top
            colour = "var(--map-text-on)" if depth > 0.55 else "currentColor"
            parts.append(f'<rect {box} fill="var(--map-empty)"/>')
            parts.append(f'<rect {box} fill="var(--map-{tone})" fill-opacity="{depth:.3f}"/>')
            place = f'x="{x + CELL / 2 - 1:.1f}" y="{y + CELL / 2 + 4:.1f}" font-size="12" text-anchor="middle"'
            parts.append(f'<text {place} fill="{colour}">{"−" if value < 0 else ""}{number(abs(value))}</text>')
    for t in range(times):
        at = MARGIN + t * CELL + CELL / 2
        parts.append(text(at, TOP + units * CELL + 18, str(t), 13, 'text-anchor="middle"'))
    return frame(MARGIN + times * CELL + 8, TOP + units * CELL + 26, "Heat map of the states over time", parts)
