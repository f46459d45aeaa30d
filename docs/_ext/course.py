"""Lessons: their blocks run while the site is built, and each is offered as two notebooks, with and without answers.

A lesson is plain Markdown, to be read on a code host too. A figure is `![Figure 1](pictures/<lesson>_1.svg)` and a
caption that begins with **Figure 1.**; it is what the Python block above draws. The site draws it anew, in the colours
of the page; `make pictures` writes the files. What is folded stands in `<details>`. A block that needs more than NumPy
stands below the line of `OPTIONAL`.
"""

import ast
import builtins
import copy
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pictures
from blocks import FENCE, Block, blocks, run
from sphinx.util import logging
from widgets import with_widgets

ROOT = Path(__file__).parents[2]
COURSE = ROOT / "docs" / "course"
OPTIONAL = "*Optional: needs PyTorch and JAX.*"
BEYOND_NUMPY = ("torch", "jax", "flax", "attn_torch", "attn_jax", "parity_tests", "tiny_lm.flax_lm", "tiny_lm.torch_lm")
OPENING = re.compile(r"^<details><summary>(.*)</summary>$")
ANSWERS = ("Answer", "Solution")
ANSWER = re.compile(r"^<details><summary>(?:Answer|Solution)</summary>$.*?^</details>$", re.MULTILINE | re.DOTALL)
DRAWN = re.compile(
    r"^!\[Figure (?P<number>\d+)\]\(pictures/(?P<file>\w+\.svg)\)\n\n"
    r"(?P<caption>\*\*Figure (?P=number)\.\*\* .*?)(?=\n\n|\n?\Z)",
    re.MULTILINE | re.DOTALL,
)
COMMENT = re.compile(r"^<!-- .* -->\n", re.MULTILINE)
CAPTIONED = "```{{raw}} html\n<div class='picture-frame'>{}</div>\n```\n\n```{{rst-class}} picture-caption\n```\n{}"
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)(#[^)\s]*)?\)")
README_CATALOGUE = "README.md#catalogue"
CONTRACT = re.compile(r"(?:\.\./)+attn_np/contract/(\w+)\.py$")
CHINESE = "zh/"
SPACED = re.compile(r"(?<=[，。；：、（“]) (?=\$)")  # for code hosts; a site needs no space there
CAPTION = re.compile(r"^\*\*图 \d", re.MULTILINE)
GLOSSARY = ROOT / "docs" / "glossary.md"
TERM = re.compile(r"^\| \*\*(?P<term>[^|*]+)\*\* \| (?P<chinese>[^|]*) \| .* \| (?P<where>[^|]*) \|$", re.MULTILINE)
INSTALL = """# Run this cell once, in the folder of a clone, or give the clone's path instead of the dot.
# The optional cells need PyTorch and JAX too: %pip install -q ".[parity]"
%pip install -q . matplotlib"""

# Colours of the figures and the page's own, which differ in light and dark.
PAGE_COLOURS = {
    "#010203": "currentColor",
    "#1f6feb": "var(--map-positive)",
    "#d9730d": "var(--map-negative)",
}
INK, BLUE, ORANGE = PAGE_COLOURS
# Of a picture that stands by itself: ink on light and on dark pages.
INKS = {"light": "#1f2328", "dark": "#e6edf3"}
INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "legend.labelcolor")
STYLE: dict[Any, Any] = dict.fromkeys(INKED, INK) | {
    "axes.prop_cycle": plt.cycler(color=[BLUE, ORANGE, "#2a9d5c", "#c0504d", "#8e6bbf", "#8c8c8c"]),
    "axes.facecolor": "none",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.sans-serif": ["DejaVu Sans"],
    "legend.frameon": False,
    "savefig.facecolor": "none",
    "savefig.bbox": "tight",
    "svg.fonttype": "none",
    "svg.hashsalt": "lesson",
}


def lessons() -> list[Path]:
    """The lessons in the order of the course."""
    return sorted(COURSE.glob("[0-9]*.md"))


# Running --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What a block of a lesson printed and drew."""

    block: Block
    printed: str
    figures: list[str]


def run_lesson(text: str, page: str, *, without: frozenset[int] = frozenset()) -> list[Result]:
    """The results of all blocks of a lesson, in order.

    An answer runs on names of its own: readers write another, and what follows prints the same for them.

    Args:
        text: the lesson's Markdown.
        page: its name, for tracebacks.
        without: the lines of blocks that are left out.
    """
    matplotlib.use("agg")
    names: dict[str, object] = {"__name__": "page"}
    answers = [range(*(text.count("\n", 0, at) for at in answer.span())) for answer in ANSWER.finditer(text)]
    names_of_answers: dict[range, dict[str, object]] = {}
    results = []
    with plt.rc_context(STYLE):
        plt.close("all")
        for block in blocks(text):
            if block.line in without:
                continue
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


def optional_lines(text: str) -> frozenset[int]:
    """The lines of the blocks that need more than NumPy: by what they import, or by a name of such a block alone.

    A name that a block binds itself, or has as a parameter, is taken for bound before it is read; the test that runs
    the others would see.
    """
    tainted: set[str] = set()
    known: set[str] = set(dir(builtins))
    found = set()
    for block in blocks(text):
        nodes = list(ast.walk(ast.parse(block.code)))
        modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                modules += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        beyond = any(module == name or module.startswith(f"{name}.") for module in modules for name in BEYOND_NUMPY)
        read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        own, parameters = set(bound(nodes)), {node.arg for node in nodes if isinstance(node, ast.arg)}
        if beyond or read & tainted - own - parameters:
            found.add(block.line)
            tainted |= own - known
        else:
            known |= own
            tainted -= own
    return frozenset(found)


def bound(nodes: list[ast.AST]) -> Iterator[str]:
    """The names that a block binds."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name


def with_marks(text: str) -> str:
    """A lesson with the line of `OPTIONAL` above each block that needs more than NumPy, and above no other."""
    text = re.sub(rf"^{re.escape(OPTIONAL)}\n\n", "", text, flags=re.MULTILINE)
    lines = text.split("\n")
    for line in sorted(optional_lines(text), reverse=True):
        lines[line - 2 : line - 2] = [OPTIONAL, ""]
    return "\n".join(lines)


# Figures --------------------------------------------------------------------------------------------------------------


def svg(figure: Any) -> str:
    """A figure as SVG that takes the colours of the page."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(?<= d=")[^"]*', lambda path: re.sub(r"-?\d+\.\d{3,}", shorter, path[0]), text)
    for colour, ours in PAGE_COLOURS.items():
        text = text.replace(colour, ours)
    return text


def shorter(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


def alone(image: str) -> str:
    """A figure as a file: with its colours for light and dark pages."""
    light, dark = (
        f"svg {{ color: {INKS[theme]}; "
        + "; ".join(
            f"--map-{name}: {hexadecimal(pictures.colours()[theme][name])}" for name in ("positive", "negative")
        )
        + " }"
        for theme in ("light", "dark")
    )
    turned = 'image, text:not([style*="fill"]) { filter: invert(1) hue-rotate(180deg) }'
    style = f"<style>{light} @media (prefers-color-scheme: dark) {{ {dark} {turned} }}</style>"
    opening, _, rest = image.partition(">")
    return f"{opening}>\n{style}{rest}"


def hexadecimal(colour: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in colour)


def figure_of(text: str, drawn: re.Match[str], results: list[Result], page: str) -> str:
    """The figure that an image stands for: the only one of the block above it.

    Raises:
        ValueError: there is no block above it, or it draws no figure, or several.
    """
    line = text.count("\n", 0, drawn.start()) + 1
    above = [result for result in results if result.block.line < line]
    figures = above[-1].figures if above else []
    if len(figures) != 1:
        raise ValueError(f"{page}, line {line}: expected one figure of the block above, got {len(figures)}; draw one")
    return figures[0]


def files_of(text: str, results: list[Result], page: str) -> dict[str, str]:
    """The pictures of a lesson by the names of their files."""
    return {drawn["file"]: alone(figure_of(text, drawn, results, page)) for drawn in DRAWN.finditer(text)}


# The page -------------------------------------------------------------------------------------------------------------


def with_pictures(text: str, results: list[Result], page: str, notebook_name: str) -> str:
    """The source of a lesson's page: the figures in their places, and links to the notebooks below the title."""

    def picture(drawn: re.Match[str]) -> str:
        caption = " ".join(drawn["caption"].split())
        image = figure_of(text, drawn, results, page)
        box, width = re.findall(r'viewBox="(0 0 ([\d.]+) [\d.]+)"', image)[0]
        label = escape(re.sub("[*`$]", "", caption), quote=True)
        style = f'viewBox="{box}" style="max-width:{1.3 * float(width):.0f}px;min-width:{0.9 * float(width):.0f}px"'
        opening = f'<svg class="picture" role="img" aria-label="{label}" {style}>'
        return CAPTIONED.format(f"{opening}{image.partition('>')[2]}", caption)

    title, _, rest = DRAWN.sub(picture, text).partition("\n")
    bare = notebook_name.replace(".ipynb", "_exercises.ipynb")
    link = (
        f"<p class='notebook-link'>As a notebook: <a href='{notebook_name}' download>with answers</a>, "
        f"<a href='{bare}' download>without</a></p>"
    )
    return f"{title}\n\n```{{raw}} html\n{link}\n```\n{rest}"


def terms() -> list[tuple[str, str, str]]:
    """The glossary: each term, its Chinese name, and the page that explains it, as the table links it."""
    table = GLOSSARY.read_text("utf-8")
    return [
        (found["term"], found["chinese"].strip(), re.findall(r"\]\(([^)#]*)", found["where"])[0])
        for found in TERM.finditer(table)
    ]


def with_terms(text: str, docname: str) -> str:
    """A page with the terms that the glossary explains by it: the site's search puts it first for them.

    Chinese terms are those of the Chinese page, where there is one.
    """
    entries = []
    for term, chinese, where in terms():
        page_of = dict.fromkeys(chinese.split(", "), in_chinese(where)) | dict.fromkeys(term.split(", "), where)
        entries += [f"! single: {name}" for name, page in page_of.items() if page == f"{docname}.md"]
    if not entries:
        return text
    title, _, rest = text.partition("\n")
    return "\n".join([title, "", *(f"```{{index}} {entry}\n```\n" for entry in entries), rest])


def in_chinese(page: str) -> str:
    """The Chinese page of an English one, or this itself where there is none, from docs."""
    chinese = f"{CHINESE}{page}"
    return chinese if (ROOT / "docs" / chinese).exists() else page


def with_other_language(text: str, docname: str) -> str:
    """A page with a link below its title to the same page in the other language, where there is one."""
    page = f"{docname}.md"
    other = page.removeprefix(CHINESE) if page.startswith(CHINESE) else in_chinese(page)
    if other == page:
        return text
    title, _, rest = text.partition("\n")
    label = "English" if page.startswith(CHINESE) else "中文"
    return f"{title}\n\n[{label}]({Path(os.path.relpath(other, Path(page).parent)).as_posix()})\n{rest}"


def set_language(app: Any, docname: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """A Chinese page says that it is one: to browsers, which choose a font by that, and to screen readers."""
    if docname.startswith(CHINESE):
        context["language"] = "zh-CN"


def for_site(text: str) -> str:
    """Markdown with what the site has and a clone lacks: pages of variants, and captions of passages."""

    def link(found: re.Match[str]) -> str:
        if f"{found[1]}{found[2] or ''}".endswith(README_CATALOGUE):
            return f"]({found[1].removesuffix('README.md').removesuffix('../')}variants/index.md)"
        contract = CONTRACT.search(found[1])
        if contract is None or contract[1].startswith("_"):
            return found[0]
        up = found[1][: found[1].index("attn_np/")].removesuffix("../")
        return f"]({up}variants/{contract[1]}.md{found[2] or ''})"

    text = re.sub(r"^```python (\S+)\n", r"```{code-block} python\n:caption: \1\n\n", text, flags=re.MULTILINE)
    return LINK.sub(link, text)


def mismatches(results: list[Result], page: str) -> list[str]:
    """A message for every block that prints something else than what stands below it."""
    wrong = [r for r in results if r.block.prints is not None and r.printed != r.block.prints]
    return [
        f"{page}, block in line {r.block.line}: expected it to print\n{r.block.prints}got\n{r.printed}" for r in wrong
    ]


# The notebook ---------------------------------------------------------------------------------------------------------


def notebook(path: Path, results: list[Result] | None = None, *, answers: bool = True) -> dict[str, Any]:
    """A lesson as a notebook of format 4: Python blocks are its cells.

    Args:
        path: the lesson.
        results: of its blocks, which become the outputs; None leaves them to the reader.
        answers: whether the answers stand below the exercises, folded; else there is an empty cell for each.
    """
    text = path.read_text("utf-8")
    by_line = {result.block.line: result for result in results or []}
    optional, starts = optional_lines(text), [fence.start() for fence in FENCE.finditer(text)]
    cells: list[dict[str, Any]] = []
    title = ""  # of the folded part that is being read

    def cell(
        kind: str, source: str, tags: tuple[str, ...] = (), outputs: tuple[Any, ...] = (), **metadata: Any
    ) -> None:
        source = source.strip("\n")
        if source or "exercise" in tags:
            own = {"outputs": list(outputs), "execution_count": None} if kind == "code" else {}
            name = f"{path.stem}-{len(cells)}".replace("_", "-")
            metadata |= {"tags": list(tags)} if tags else {}
            cells.append({"cell_type": kind, "id": name, "metadata": metadata, "source": source, **own})

    def prose(words: str) -> None:
        words = as_markdown(words, path)
        if title and words and (answers or title not in ANSWERS):
            words = f"<details><summary>{title}</summary>\n\n{words}\n\n</details>"
        if answers or title not in ANSWERS:
            cell("markdown", words)

    start = 0
    for found in re.finditer(r"^(?:<details><summary>.*</summary>|</details>|```python)$", text, re.MULTILINE):
        if found.start() < start:
            continue  # within a fence
        fence = FENCE.match(text, found.start()) if found.start() in starts else None
        prose(text[start : found.start()])
        start = found.end()
        if fence is None:
            opening = OPENING.match(found[0])
            title = opening[1] if opening else ""
            if title in ANSWERS and not answers:
                cell("code", "", ("exercise",))
            continue
        start, line = fence.end(), text.count("\n", 0, fence.start("body")) + 1
        tags = ("optional", "raises-exception") if line in optional else ()
        folded = {"jupyter": {"source_hidden": True}} if title else {}
        if title in ANSWERS:
            tags, folded = (*tags, "solution"), {"jupyter": {"source_hidden": True, "outputs_hidden": True}}
        outputs = outputs_of(by_line[line]) if line in by_line else ()
        if answers or title not in ANSWERS:
            cell("code", fence["body"], tags, outputs, **folded)
    prose(text[start:])
    name = path.stem.replace("_", "-")
    install = {"cell_type": "code", "id": f"{name}-install", "metadata": {"tags": ["install"]}, "source": INSTALL}
    cells.insert(1, install | {"outputs": [], "execution_count": None})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def outputs_of(result: Result) -> tuple[dict[str, Any], ...]:
    """What a cell printed and drew."""
    printed = ({"output_type": "stream", "name": "stdout", "text": result.printed},) if result.printed else ()
    plain = ["<Figure>"]
    return printed + tuple(
        {
            "output_type": "display_data",
            "data": {"image/svg+xml": alone(figure), "text/plain": plain},
            "metadata": {},
        }
        for figure in result.figures
    )


def as_markdown(text: str, path: Path) -> str:
    """What stands between two Python blocks: without outputs and pictures, which are the cells', and with links."""

    def plain(fence: re.Match[str]) -> str:
        info = fence["info"].strip()
        if info == "text":
            return ""
        language, _, file = info.partition(" ")
        return f"`{file}`:\n\n```{language}\n{fence['body']}```" if file else fence[0]

    def link(found: re.Match[str]) -> str:
        target = LINK.sub(r"](\1)", for_site(found[0]))[2:-1]
        if target.endswith(".md"):
            lesson = path.parent / target in lessons()
            target = target.removesuffix(".md") + (".ipynb" if lesson else f".html{found[2] or ''}")
        return f"]({target})"

    text = text.replace(f"{OPTIONAL}\n", "*The next cell is optional: it needs PyTorch and JAX.*\n")
    text = DRAWN.sub(lambda drawn: drawn["caption"], COMMENT.sub("", text))
    return LINK.sub(link, FENCE.sub(plain, text)).strip("\n")


# Sphinx ---------------------------------------------------------------------------------------------------------------

CONTENTS = "\n\n```{toctree}\n:hidden:\n:glob:\n\n[0-9]*\n```\n"


def read(app: Any, docname: str, source: list[str]) -> None:
    """Run a lesson when its page is read; `make docs` fails where it prints something else than its page says."""
    path = Path(app.srcdir) / f"{docname}.md"
    if path in lessons():
        text = source[0]
        results = run_lesson(text, docname)
        for message in mismatches(results, docname):
            logging.getLogger(__name__).warning(message, location=docname)
        source[0] = with_terms(with_widgets(with_pictures(text, results, docname, f"{path.stem}.ipynb")), docname)
        if app.builder.format == "html":
            write_notebooks(path, results, Path(app.outdir) / "course")
    if docname.startswith(CHINESE):
        captioned = CAPTION.sub("```{rst-class} picture-caption\n```\n\\g<0>", source[0])
        source[0] = with_terms(SPACED.sub("", captioned), docname)
    if docname in ("course/index", f"{CHINESE}course/index"):
        source[0] += CONTENTS
    source[0] = for_site(with_other_language(source[0], docname))


def write_notebooks(path: Path, results: list[Result], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for ending, answers in (("", True), ("_exercises", False)):
        made = json.dumps(notebook(path, results if answers else None, answers=answers), indent=1, ensure_ascii=False)
        (folder / f"{path.stem}{ending}.ipynb").write_text(f"{made}\n", "utf-8")


def setup(app: Any) -> dict[str, Any]:
    app.connect("source-read", read)
    app.connect("html-page-context", set_language)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


# Files ----------------------------------------------------------------------------------------------------------------


def main(names: list[str]) -> int:
    """Run lessons (all, or those whose names begin so) and write their pictures; 1 where one prints something else."""
    status = 0
    for path in lessons():
        if names and not path.stem.startswith(tuple(names)):
            continue
        text = path.read_text("utf-8")
        marked = with_marks(text)
        if marked != text:
            path.write_text(marked, "utf-8")
            text = marked
        results = run_lesson(text, path.stem)
        for message in mismatches(results, path.stem):
            print(message)
            status = 1
        folder = COURSE / "pictures"
        folder.mkdir(exist_ok=True)
        for old in folder.glob(f"{path.stem}_*.svg"):
            old.unlink()
        for name, image in files_of(text, results, path.stem).items():
            (folder / name).write_text(image, "utf-8")
        print(path.stem, "drawn")
    return status


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT)]
    sys.exit(main(sys.argv[1:]))
