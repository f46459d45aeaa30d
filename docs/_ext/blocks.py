"""The Python blocks of a page: they run from top to bottom and share their names, as a reader would type them.

A block marked `text` directly below one marked `python` is what that one prints, to the letter. A block marked
`python <file>` is a passage of that file.
"""

import contextlib
import io
import re
from dataclasses import dataclass

FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,})(?P<info>[^\n]*)\n(?P<body>.*?)^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A Python block of a page: the line its code starts on, the code, and what it shall print (None: not shown)."""

    line: int
    code: str
    prints: str | None


def blocks(text: str) -> list[Block]:
    """The Python blocks of a page in order."""
    found, fences = [], list(FENCE.finditer(text))
    for index, fence in enumerate(fences):
        if fence["info"].strip() != "python":
            continue
        below = fences[index + 1] if index + 1 < len(fences) else None
        shown = below is not None and below["info"].strip() == "text" and not text[fence.end() : below.start()].strip()
        prints = below["body"] if below is not None and shown else None
        found.append(Block(text.count("\n", 0, fence.start("body")) + 1, fence["body"], prints))
    return found


def passages(text: str) -> list[tuple[str, str]]:
    """What a page quotes: a file, and the passage that must stand in it."""
    quoted = ((fence["info"].strip().split(), fence["body"]) for fence in FENCE.finditer(text))
    return [(info[1], body) for info, body in quoted if len(info) == 2 and info[0] == "python"]


def run(block: Block, page: str, names: dict[str, object]) -> str:
    """What a block prints. Tracebacks name the page and its line."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * (block.line - 1) + block.code, page, "exec"), names)
    return printed.getvalue()
