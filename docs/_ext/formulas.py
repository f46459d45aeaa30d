"""Formulas as inline SVG, drawn by Matplotlib's mathtext while the pages are built: no script, no font, no network.

The paths take the colour of the surrounding text, so one drawing serves light and dark pages, and the LaTeX source is
the text that a screen reader speaks.
"""

import re
from functools import cache
from html import escape
from typing import Any

import numpy as np
from docutils import nodes
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path
from matplotlib.textpath import text_to_path
from sphinx.util import logging

logger = logging.getLogger(__name__)

EM = 100  # drawing units in one em of the surrounding text
FONT = FontProperties(size=EM, math_fontfamily="stix")
LINE_GAP, PAD = 45, 3
FINE = 2  # units of a path in one drawing unit: whole numbers are exact to a tenth of a pixel
WIDEST = 36 * EM  # a wider line is broken at its \qquad, then at its \quad
# What LaTeX has and mathtext spells otherwise or does not need.
SPELLINGS = {r"\tfrac": r"\frac", r"\le": r"\leq", r"\ge": r"\geq", r"\ne": r"\neq", r"\land": r"\wedge"}
SPELLINGS |= dict.fromkeys((r"\big", r"\Big", r"\bigl", r"\bigr", r"\Bigl", r"\Bigr"), "")
# A sum and what stands below it; mathtext leaves no room before the summand.
SUM = re.compile(
    r"\\sum(?![A-Za-z])(?:\s*[_^](?:\{(?:[^{}]|\{[^{}]*\})*\}|\\[A-Za-z]+|[^\\\s{]))*(?!\s*[_^])(?!\s*\\,)"
)
COMMANDS = {Path.MOVETO: "m", Path.LINETO: "l", Path.CURVE3: "q", Path.CURVE4: "c", Path.CLOSEPOLY: "z"}


# A glyph or a line: where its path begins, and the rest of it, relative and in whole units.
Piece = tuple[float, float, str]


@cache
def glyphs(latex: str) -> tuple[float, float, float, tuple[Piece, ...]]:
    """Width, height above the baseline, depth below it, and the pieces of one formula without line breaks.

    Raises:
        ValueError: mathtext does not know a command; the message shows where.
    """
    text = f"${latex.strip()}$"
    width, height, depth = text_to_path.get_text_width_height_descent(text, FONT, ismath=True)
    placed, shapes, lines = text_to_path.get_glyphs_mathtext(FONT, text)
    pieces = []
    for name, x, y, scale in placed:
        vertices, codes = shapes[name]
        if len(vertices):
            left, bottom, rest = compact(vertices * scale, codes)
            pieces.append((float(x + left), float(y + bottom), rest))
    pieces += [compact(np.array(vertices), codes) for vertices, codes in lines]
    return float(width), float(height - depth), float(depth), tuple(pieces)


def compact(vertices: np.ndarray, codes: Any) -> Piece:
    """A path as where it begins and the rest, each point relative to the one before: equal glyphs are equal texts."""
    whole = np.rint(FINE * (vertices - vertices[0])).astype(int) * (1, -1)
    out: list[str] = []
    points: list[np.ndarray] = []
    at = start = whole[0]
    last = ""
    for point, code in zip(whole, codes, strict=True):
        letter = COMMANDS[code]
        if letter == "z":
            out.append("z")
            at, last = start, "z"
            continue
        points.append(point)
        if len(points) < {"m": 1, "l": 1, "q": 2, "c": 3}[letter]:
            continue
        numbers = "".join(f"{x:+d}{y:+d}" for x, y in (each - at for each in points)).replace("+", " ").strip()
        out.append((letter if letter != last or letter == "m" else "" if numbers.startswith("-") else " ") + numbers)
        if letter == "m":
            start = point
        at, last, points = point, letter, []
    return float(vertices[0][0]), float(vertices[0][1]), "".join(out).removeprefix("m0 0")


def spelled(source: str, display: bool) -> str:
    r"""A formula as mathtext reads it. A fraction of a displayed formula has its full size outside of scripts."""
    source = re.sub(r"\\[A-Za-z]+", lambda command: SPELLINGS.get(command[0], command[0]), text_size(source, display))
    source = re.sub(r"'(?=\s*_)", r"^{\\prime}", source)  # mathtext sets what follows a prime behind it
    return SUM.sub(lambda total: total[0] + r"\;", source)


def text_size(source: str, display: bool) -> str:
    r"""A formula in which `\frac` says its size: `\dfrac` where it is displayed, `\frac` in text and scripts."""
    out, scripts = [], []  # for each open brace, whether it opens a script or stands in one
    for token in re.findall(r"\\[A-Za-z]+|\\.|[_^]\s*\{|[{}]|[^\\{}_^]+|[_^]", source):
        if token.endswith("{") and not token.startswith("\\"):
            scripts.append(len(token) > 1 or scripts[-1:] == [True])
        elif token == "}" and scripts:
            scripts.pop()
        full = display and token == r"\frac" and scripts[-1:] != [True]
        out.append(r"\dfrac" if full else token)
    return "".join(out)


def svg(latex: str, display: bool = False) -> str:
    r"""A formula as one SVG element. Lines end at `\\`; the parts around the first `&` of each line are aligned.

    Raises:
        ValueError: the formula cannot be drawn.
    """
    source = " ".join(latex.split())
    for name in ("aligned", "align", "align*", "split", "gathered"):
        source = source.replace(rf"\begin{{{name}}}", "").replace(rf"\end{{{name}}}", "")
    source = spelled(source, display)
    rows = [row for row in source.split(r"\\") if row.strip()]
    for gap in (r"\qquad", r"\quad"):
        if display and max(glyphs(row.replace("&", ""))[0] for row in rows) > WIDEST:
            rows = [part for row in rows for part in row.split(gap) if part.strip()]
    lines = [row.partition("&")[::2] for row in rows]
    cells = [[glyphs(part) if part.strip() else (0.0, 0.0, 0.0, ()) for part in line] for line in lines]
    column = max((left[0] for (left, right) in cells if right[3]), default=0.0)
    d, y, width = [], 0.0, 0.0
    for left, right in cells:
        y += max(left[1], right[1])
        start = column - left[0] if right[3] else 0.0
        for x0, part in ((start, left), (start + left[0], right)):
            d += [f"M{round(FINE * (x0 + px))} {round(FINE * (y - py))}{rest}" for px, py, rest in part[3]]
            width = max(width, x0 + part[0])
        depth = max(left[2], right[2])
        y += depth + LINE_GAP
    height, below = y - LINE_GAP, depth + PAD
    box = " ".join(str(round(FINE * side)) for side in (-PAD, -PAD, width + 2 * PAD, height + 2 * PAD))
    size = f"width:{(width + 2 * PAD) / EM:.3f}em;height:{(height + 2 * PAD) / EM:.3f}em"
    align = "" if display else f";vertical-align:{-below / EM:.3f}em"
    kind = "formula formula-display" if display else "formula"
    label = escape(latex.strip(), quote=True)
    return (
        f'<svg class="{kind}" role="img" aria-label="{label}" viewBox="{box}" style="{size}{align}">'
        f'<path d="{"".join(d)}" fill="currentColor"/></svg>'
    )


def drawn(latex: str, node: nodes.Element, display: bool) -> str:
    try:
        return svg(latex, display)
    except ValueError as error:
        logger.warning("formula that mathtext cannot draw: %s\n%s", latex, error, location=node)
        return f"<code>{escape(latex)}</code>"


def visit_math(translator: Any, node: nodes.math) -> None:
    translator.body.append(drawn(node.astext(), node, display=False))
    raise nodes.SkipNode


def visit_math_block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula-block">{drawn(node.astext(), node, display=True)}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, Any]:
    app.add_html_math_renderer("mathtext", (visit_math, None), (visit_math_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
