"""Lessons: their blocks run while the site is built and give the pictures, and each lesson is offered as a notebook.

In a lesson `:::{drawn}` stands for the figure that the Python block above it draws; its text is the caption.
"""

import ast
import copy
import io
import json
import re
import textwrap
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from blocks import FENCE, Block, blocks, run
from sphinx.util import logging

ROOT = Path(__file__).parents[2]
COURSE = ROOT / "docs" / "course"
ANSWER = re.compile(r"^(?P<colons>:{3,})\{dropdown\} Answer$.*?^(?P=colons)$", re.MULTILINE | re.DOTALL)
DRAWN = re.compile(r"^:::\{drawn\}\n(?P<caption>.*?)^:::$", re.MULTILINE | re.DOTALL)
CAPTIONED = "```{{raw}} html\n<div class='picture-frame'>{}</div>\n```\n\n:::{{rst-class}} picture-caption\n:::\n{}"
LINK = re.compile(r"\[([^\]]*)\]\([^)\s]*\.md[^)]*\)")

# Colours of the figures and the page's own, which differ in light and dark.
PAGE_COLOURS = {
    "#010203": "currentColor",
    "#1f6feb": "var(--map-positive)",
    "#d9730d": "var(--map-negative)",
}
INK, BLUE, ORANGE = PAGE_COLOURS
INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "legend.labelcolor")
STYLE: dict[Any, Any] = dict.fromkeys(INKED, INK) | {
    "axes.prop_cycle": plt.cycler(color=[BLUE, ORANGE, "#2a9d5c", "#c0504d", "#8e6bbf", "#8c8c8c"]),
    "axes.facecolor": "none",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "legend.frameon": False,
    "savefig.facecolor": "none",
    "savefig.bbox": "tight",
    "svg.fonttype": "none",
    "svg.hashsalt": "lesson",
}


def lessons() -> list[Path]:
    """The lessons in the order of the course."""
    return sorted(path for path in COURSE.glob("*.md") if path.stem != "index")


# Running --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What a block of a lesson printed and drew."""

    block: Block
    printed: str
    figures: list[str]


def run_lesson(text: str, page: str) -> list[Result]:
    """The results of all blocks of a lesson, in order.

    An answer runs on names of its own: readers write another, and what follows prints the same for them.
    """
    matplotlib.use("agg")
    names: dict[str, object] = {"__name__": "page"}
    answers = [range(*(text.count("\n", 0, at) for at in answer.span())) for answer in ANSWER.finditer(text)]
    names_of_answers: dict[range, dict[str, object]] = {}
    results = []
    with plt.rc_context(STYLE):
        plt.close("all")
        for block in blocks(text):
            answer = next((lines for lines in answers if block.line in lines), None)
            if answer is None:
                printed = run(block, page, names)
            else:
                printed = run(block, page, names_of_answers.setdefault(answer, names_apart(names)))
            results.append(Result(block, printed, [svg(plt.figure(number)) for number in plt.get_fignums()]))
            plt.close("all")
    return results


def names_apart(names: dict[str, object]) -> dict[str, object]:
    """The same names, in which nothing can be set, and from whose generators nothing can be drawn, for the others."""
    return {name: copy.deepcopy(x) if isinstance(x, np.random.Generator) else x for name, x in names.items()}


def svg(figure: Any) -> str:
    """A figure as SVG that takes the colours of the page."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    for colour, ours in PAGE_COLOURS.items():
        text = text.replace(colour, ours)
    return text


def figure_of(text: str, drawn: re.Match[str], results: list[Result], page: str) -> str:
    """The figure that a `drawn` stands for: the only one of the block above it.

    Raises:
        ValueError: there is no block above it, or it draws no figure, or several.
    """
    line = text.count("\n", 0, drawn.start()) + 1
    above = [result for result in results if result.block.line < line]
    figures = above[-1].figures if above else []
    if len(figures) != 1:
        raise ValueError(f"{page}, line {line}: expected one figure of the block above, got {len(figures)}; draw one")
    return figures[0]


# The page -------------------------------------------------------------------------------------------------------------


def with_pictures(text: str, results: list[Result], page: str, notebook_name: str) -> str:
    """The source of a lesson's page: the figures in their places, and a link to the notebook below the title."""

    def picture(drawn: re.Match[str]) -> str:
        caption = " ".join(drawn["caption"].split())
        image = figure_of(text, drawn, results, page)
        box, width = re.findall(r'viewBox="(0 0 ([\d.]+) [\d.]+)"', image)[0]
        label = escape(re.sub("[`$]", "", caption), quote=True)
        style = f'viewBox="{box}" style="max-width:{1.3 * float(width):.0f}px;min-width:{0.9 * float(width):.0f}px"'
        opening = f'<svg class="picture" role="img" aria-label="{label}" {style}>'
        return CAPTIONED.format(f"{opening}{image.partition('>')[2]}", caption)

    title, _, rest = DRAWN.sub(picture, text).partition("\n")
    link = f"<p class='notebook-link'><a href='{notebook_name}' download>This lesson as a notebook</a></p>"
    return f"{title}\n\n```{{raw}} html\n{link}\n```\n{rest}"


def mismatches(results: list[Result], page: str) -> list[str]:
    """A message for every block that prints something else than what stands below it."""
    wrong = [r for r in results if r.block.prints is not None and r.printed != r.block.prints]
    return [
        f"{page}, block in line {r.block.line}: expected it to print\n{r.block.prints}got\n{r.printed}" for r in wrong
    ]


# The notebook ---------------------------------------------------------------------------------------------------------


def included(path: Path, options: dict[str, str]) -> str:
    """What a `literalinclude` shows: a function or method of a file, or lines of either from one text to another."""
    source = path.read_text("utf-8")
    lines = source.splitlines()
    if "pyobject" in options:
        node: Any = ast.parse(source)
        for name in options["pyobject"].split("."):
            node = next(child for child in node.body if getattr(child, "name", None) == name)
        lines = lines[node.lineno - 1 : node.end_lineno]
    if "start-at" in options:
        lines = lines[next(i for i, line in enumerate(lines) if options["start-at"] in line) :]
    if "end-at" in options:
        lines = lines[: next(i for i, line in enumerate(lines) if options["end-at"] in line) + 1]
    return textwrap.dedent("\n".join(lines))


def notebook(path: Path) -> dict[str, Any]:
    """A lesson as a notebook of format 4: Python blocks are its cells, what they print is left to them."""
    text, cells, start = path.read_text("utf-8"), [], 0

    def cell(kind: str, source: str) -> None:
        source = source.strip("\n")
        if source:
            own = {"outputs": [], "execution_count": None} if kind == "code" else {}
            name = f"{path.stem}-{len(cells)}".replace("_", "-")
            cells.append({"cell_type": kind, "id": name, "metadata": {}, "source": source, **own})

    for fence in FENCE.finditer(text):
        if fence["info"].strip() == "python":
            cell("markdown", as_markdown(text[start : fence.start()], path))
            cell("code", fence["body"])
            start = fence.end()
    cell("markdown", as_markdown(text[start:], path))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def as_markdown(text: str, path: Path) -> str:
    """What stands between two Python blocks without the markup that only the site knows."""

    def plain(fence: re.Match[str]) -> str:
        info = fence["info"].strip()
        if info == "text":
            return ""
        if not info.startswith("{literalinclude}"):
            return fence[0]
        file = (path.parent / info.partition(" ")[2].strip()).resolve()
        options = dict(re.findall(r"^:([\w-]+): (.*)$", fence["body"], re.MULTILINE))
        return f"`{file.relative_to(ROOT)}`:\n\n```python\n{included(file, options)}\n```"

    text = DRAWN.sub(lambda drawn: f"*{' '.join(drawn['caption'].split())}*", text)
    text = re.sub(r"^:{3,}\{dropdown\} (.*)$", r"**\1**", FENCE.sub(plain, text), flags=re.MULTILINE)
    return LINK.sub(r"\1", re.sub(r"^:{3,}(\{[\w-]+\}.*)?\n?", "", text, flags=re.MULTILINE))


# Sphinx ---------------------------------------------------------------------------------------------------------------


def read(app: Any, docname: str, source: list[str]) -> None:
    """Run a lesson when its page is read; `make docs` fails where it prints something else than its page says."""
    path = Path(app.srcdir) / f"{docname}.md"
    if path in lessons():
        results = run_lesson(source[0], docname)
        for message in mismatches(results, docname):
            logging.getLogger(__name__).warning(message, location=docname)
        source[0] = with_pictures(source[0], results, docname, f"{path.stem}.ipynb")


def write_notebooks(app: Any, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        for path in lessons():
            target = Path(app.outdir) / "course" / f"{path.stem}.ipynb"
            target.write_text(json.dumps(notebook(path), indent=1) + "\n", "utf-8")


def setup(app: Any) -> dict[str, Any]:
    app.connect("source-read", read)
    app.connect("build-finished", write_notebooks)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
