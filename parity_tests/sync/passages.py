"""Passages of files in the lessons of the course: each below a comment that names its file, object and lines.

    <!-- passage | attn_np/mha.py | MultiHeadAttention.vjp | dcontext, dw["w_o"] | dquery, dw["w_q"] -->

The object may be left out (the whole file), and so may the texts of the first and the last line.
"""

import ast
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


def with_passages(root: Path) -> dict[Path, str]:
    """The lessons with the passages as the files have them now."""

    def written(found: re.Match[str]) -> str:
        file = found["said"].partition("|")[0].strip()
        return f"<!-- passage | {found['said']} -->\n\n```python {file}\n{passage(root, found['said'])}\n```"

    pages = sorted(root.glob("docs/course/*.md"))
    return {path: PASSAGE.sub(written, path.read_text("utf-8")) for path in pages}
