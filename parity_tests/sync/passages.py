"""Passages of files in the lessons of the course: each below a comment that names its file, object and lines.

    <!-- passage | attn_np/mha.py | MultiHeadAttention.vjp | dcontext, dw["w_o"] | dquery, dw["w_q"] -->

The object may be left out (the whole file), and so may the texts of the first and the last line.

The Chinese pages have the code and the outputs of their English pages, block by block, and link one another.
"""

import ast
import os
import re
import textwrap
from pathlib import Path
from typing import Any

PASSAGE = re.compile(
    r"^<!-- passage \| (?P<said>[^\n]*) -->(?:\n\n?```python [^\n]*\n.*?^```$)?", re.MULTILINE | re.DOTALL
)


def passage(root: Path, said: str) -> str:
    """What a comment names: lines of a function, method or file, as far to the left as they go.

    Raises:
        StopIteration: the file has no such object or line.
    """
    file, name, first, last = (*(part.strip() for part in said.split("|")), "", "", "")[:4]
    source = (root / file).read_text("utf-8")
    lines = source.splitlines()
    if name:
        node: Any = ast.parse(source)
        for part in name.split("."):
            node = next(child for child in node.body if getattr(child, "name", None) == part)
        lines = lines[node.lineno - 1 : node.end_lineno]
    if first:
        lines = lines[next(i for i, line in enumerate(lines) if first in line) :]
    if last:
        lines = lines[: next(i for i, line in enumerate(lines) if last in line) + 1]
    return textwrap.dedent("\n".join(lines)).strip("\n")


def with_passages(root: Path, texts: dict[Path, str]) -> dict[Path, str]:
    """The lessons, as these will be written, with the passages as the files have them now."""

    def written(found: re.Match[str]) -> str:
        file = found["said"].partition("|")[0].strip()
        return f"<!-- passage | {found['said']} -->\n\n```python {file}\n{passage(root, found['said'])}\n```"

    pages = sorted(root.glob("docs/course/*.md"))
    return {path: PASSAGE.sub(written, texts.get(path) or path.read_text("utf-8")) for path in pages}


CHINESE = "docs/zh"
FENCE = re.compile(r"^(?P<fence>`{3,})(?P<info>[^\n]*)\n.*?^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(rf"{FENCE.pattern}|^\$\$\n.*?^\$\$$|`[^`\n]*`|(?P<inline>\$[^$\n]+\$)", FENCE.flags)
GRADED = re.compile(r"^### Graded exercises\n.*?^<!-- end of graded exercises -->\n", FENCE.flags)
LINK = re.compile(r"\]\((?P<target>[^)\s#:]+\.md)(?P<place>#[^)\s]*)?\)(?P<english>（英文）)?")


def chinese_pages(root: Path) -> dict[Path, Path]:
    """The Chinese pages, each with the English page that it translates."""
    folder = root / CHINESE
    return {
        path: (root if path == folder / "README.md" else root / "docs") / path.relative_to(folder)
        for path in sorted(folder.rglob("*.md"))
    }


def to_translate(english: str) -> str:
    """An English page without its graded exercises, which are in English alone: `make sync` writes them."""
    return GRADED.sub("", english)


def is_code(fence: re.Match[str]) -> bool:
    """Code or output. A directive is a part of the site's markup and holds prose."""
    return not fence["info"].startswith("{")


def code(text: str) -> list[str]:
    """The blocks of code and output of a page, fences included."""
    return [fence[0] for fence in FENCE.finditer(text) if is_code(fence)]


def with_code_of(english: str, chinese: str) -> str:
    """A Chinese page with the blocks of the English one. A page with another number of blocks stays as it is."""
    blocks = code(english)
    if len(code(chinese)) != len(blocks):
        return chinese
    left = iter(blocks)
    return FENCE.sub(lambda fence: next(left) if is_code(fence) else fence[0], chinese)


def with_chinese_links(root: Path, page: Path, text: str) -> str:
    """A Chinese page whose links lead to Chinese pages, where there are such; the one to its own English page stays."""
    chinese = {english.resolve(): path for path, english in chinese_pages(root).items() if path != page}

    def link(found: re.Match[str]) -> str:
        path = chinese.get((page.parent / found["target"]).resolve())
        if path is None or found["place"]:  # headings have other names there
            return found[0]
        return f"]({Path(os.path.relpath(path, page.parent)).as_posix()})"

    return LINK.sub(link, text)


def with_spaced_formulas(text: str) -> str:
    """A page with a space before each formula in a line, also behind Chinese punctuation, and between it and a word.

    Else a code host shows the dollars.
    """

    def spaced(found: re.Match[str]) -> str:
        if found["inline"] is None:
            return found[0]
        before, after = text[: found.start()][-1:], text[found.end() :][:1]
        return f"{'' if before.isspace() or not before else ' '}{found[0]}{' ' if after.isalnum() else ''}"

    return FORMULA.sub(spaced, text)


def with_shared_code(root: Path, texts: dict[Path, str]) -> dict[Path, str]:
    """The Chinese pages with the code of their English pages, as these will be written, and links among themselves."""
    written = {}
    for page, original in chinese_pages(root).items():
        text = page.read_text("utf-8")
        if original.exists():
            text = with_code_of(to_translate(texts.get(original) or original.read_text("utf-8")), text)
        written[page] = with_spaced_formulas(with_chinese_links(root, page, text))
    return written
