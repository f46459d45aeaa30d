"""Small SVG pictures that stand inside a page and take its colours, light or dark."""

import re
from functools import cache
from html import escape
from pathlib import Path

import numpy as np

CELL, GAP, MARGIN, TOP = 46, 40, 46, 44
STYLE = Path(__file__).parents[1] / "_static" / "style.css"
RGB = tuple[float, float, float]
INKS: dict[str, RGB] = {"black": (0.0, 0.0, 0.0), "white": (1.0, 1.0, 1.0)}


# Colours --------------------------------------------------------------------------------------------------------------


@cache
def colours() -> dict[str, dict[str, RGB]]:
    """The colours of maps by theme and name, as the style sheet gives them."""
    css = STYLE.read_text("utf-8")
    start = {"light": ":root {", "dark": 'body[data-theme="dark"] {'}
    blocks = {theme: css.partition(text)[2].partition("}")[0] for theme, text in start.items()}
    found = {theme: re.findall(r"--map-(\w+): #(\w{6});", block) for theme, block in blocks.items()}
    return {theme: {name: rgb(digits) for name, digits in pairs} for theme, pairs in found.items()}


def rgb(digits: str) -> RGB:
    red, green, blue = (int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4))
    return red, green, blue


def mixed(over: RGB, under: RGB, opacity: float) -> RGB:
    """A colour painted over another."""
    red, green, blue = (opacity * a + (1 - opacity) * b for a, b in zip(over, under, strict=True))
    return red, green, blue


def contrast(one: RGB, other: RGB) -> float:
    """The contrast of two colours, from 1 to 21, as WCAG defines it; text asks for 4.5."""

    def luminance(colour: RGB) -> float:
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def ink(ground: RGB) -> str:
    """Black or white, whichever is read more easily; one of them always has a contrast of 4.58 or more."""
    return max(INKS, key=lambda name: contrast(INKS[name], ground))


# Parts ----------------------------------------------------------------------------------------------------------------


def caption(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text, quote=False))


def number(value: float) -> str:
    """A number in a cell: two digits after the point below 1, one above, and none of an integer."""
    if float(value).is_integer() or value < 0.005:
        return f"{value:.0f}"
    return f"{value:.2f}".replace("0.", ".", 1) if value < 0.995 else f"{value:.1f}".removesuffix(".0")


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


# Pictures -------------------------------------------------------------------------------------------------------------


def heatmaps(
    values: np.ndarray,
    seen: np.ndarray,
    titles: tuple[str, ...] = (),
    *,
    axes: tuple[str, str] = ("key s", "query t"),
    label: str = "Heat map",
    most: int = 4,
) -> str:
    """Some maps: depth of colour is the size, orange is negative, hatched a hidden key.

    Args:
        values: `n t s`.
        seen: the same shape; False where the key is hidden from the query.
        titles: of the maps; the heads' numbers by default.
        axes: what the columns and the rows are.
        label: what the picture is, for readers who do not see it.
        most: how many maps are drawn.
    """
    shown, rows, columns = min(len(values), most), values.shape[1], values.shape[2]
    across = min(shown, 2 if columns > 4 else 3)
    wide, high = MARGIN + columns * CELL + GAP, TOP + rows * CELL + GAP
    top = max(1.0, float(np.abs(np.where(seen, values, 0.0)[:shown]).max()))
    parts = []
    for index in range(shown):
        x0, y0 = (index % across) * wide + MARGIN, (index // across) * high + TOP
        title = titles[index] if titles else f"head {index}"
        parts.append(text(x0 + columns * CELL / 2, y0 - 27, title, 14, 'text-anchor="middle" font-weight="600"'))
        parts.append(text(x0 + columns * CELL, y0 - 8, axes[0], 12, 'text-anchor="end" fill-opacity="0.7"'))
        parts.append(text(x0 - 8, y0 - 8, axes[1], 12, 'text-anchor="end" fill-opacity="0.7"'))
        for t in range(rows):
            parts.append(text(x0 - 10, y0 + t * CELL + CELL / 2 + 5, str(t), 13, 'text-anchor="end"'))
            for s in range(columns):
                here = float(values[index, t, s]), bool(seen[index, t, s])
                parts.append(cell(x0 + s * CELL, y0 + t * CELL, *here, top))
        for s in range(columns):
            parts.append(text(x0 + s * CELL + CELL / 2, y0 + rows * CELL + 18, str(s), 13, 'text-anchor="middle"'))
    return frame(across * wide - GAP + 8, -(-shown // across) * high - GAP + 24, label, parts)


def cell(x: float, y: float, value: float, seen: bool = True, top: float = 1.0) -> str:
    box = f'x="{x:.0f}" y="{y:.0f}" width="{CELL - 2}" height="{CELL - 2}" rx="4"'
    if not seen:
        return f'<rect {box} fill="url(#hidden)"/>'
    tone, depth = ("positive" if value >= 0 else "negative"), min(abs(value) / top, 1.0)
    grounds = {theme: mixed(c[tone], c["empty"], depth) for theme, c in colours().items()}
    inks = "-".join(ink(ground) for ground in grounds.values())
    place = f'x="{x + CELL / 2 - 1:.1f}" y="{y + CELL / 2 + 4:.1f}" font-size="13" text-anchor="middle"'
    sign = "−" if value < 0 and number(abs(value)) != "0" else ""
    return (
        f'<rect {box} fill="var(--map-empty)"/><rect {box} fill="var(--map-{tone})" fill-opacity="{depth:.3f}"/>'
        f'<text {place} class="map-{inks}">{sign}{number(abs(value))}</text>'
    )


def states(values: np.ndarray, axes: tuple[str, str]) -> str:
    """One row for each unit, at most twelve, one column for each step."""
    shown = values[None, :12]
    return heatmaps(shown, np.ones(shown.shape, bool), ("",), axes=axes, label=f"{axes[1]} by {axes[0]}")


def circles(points: np.ndarray) -> str:
    """Points on a circle for each pair, numbered by their position: `t pairs 2`."""
    radius, parts = 88, []
    wide = 2 * radius + 60
    for pair in range(points.shape[1]):
        x0, y0 = pair * wide + wide / 2, radius + 60
        parts.append(text(x0, 22, f"pair {pair}", 14, 'text-anchor="middle" font-weight="600"'))
        ring = f'cx="{x0}" cy="{y0}" r="{radius}" fill="none" stroke="currentColor" stroke-opacity="0.3"'
        parts.append(f"<circle {ring}/>")
        for t, (a, b) in enumerate(points[:, pair]):
            x, y = x0 + radius * a, y0 - radius * b
            depth = 0.35 + 0.65 * t / max(len(points) - 1, 1)
            line = f'x1="{x0}" y1="{y0}" x2="{x:.1f}" y2="{y:.1f}" stroke="var(--map-positive)"'
            parts.append(f'<line {line} stroke-opacity="{depth:.2f}" stroke-width="2"/>')
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="var(--map-positive)"/>')
            parts.append(text(x0 + 1.16 * radius * a, y0 - 1.16 * radius * b + 4, str(t), 13, 'text-anchor="middle"'))
    return frame(points.shape[1] * wide, 2 * radius + 110, "Points that turn", parts)
