"""A lesson as slides: one HTML file that fetches nothing, for a browser, a projector or paper.

    python docs/_ext/slides.py 04 zh/06

A slide begins at each heading and at each paragraph that begins in bold, and where one would be too long. Code stays
with what it prints, a picture with its caption; what is folded stays folded, and the code of a picture is left out.
"""

import base64
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import formulas
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

DOCS = Path(__file__).parents[1]
FOLDER = DOCS / "_build" / "slides"
MOST_LINES = 26  # of one slide, unless a single block is longer
LETTERS = 92  # of one line; a Chinese one takes the room of two
# Lines of a displayed formula, of a picture with its caption, of the row of a table, and of a folded part.
FORMULA_LINES, PICTURE_LINES, ROW_LINES, FOLDED_LINES = 4, 16, 1.6, 1.5
CODE_LINES, GAP_LINES = 0.85, 0.8
LIGHT, DARK = (HtmlFormatter(nowrap=True, style=f"github-{theme}-colorblind") for theme in ("light", "dark"))
STYLE, SCRIPT = (Path(__file__).with_name(f"slides.{kind}").read_text("utf-8") for kind in ("css", "js"))


# The parts of a lesson ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """What stays together on a slide: tokens of the lesson, and how many lines they take."""

    tokens: list[Token]
    lines: float

    def is_a(self, tag: str) -> bool:
        return self.tokens[0].type.endswith("_open") and self.tokens[0].tag.startswith(tag)

    def inside(self) -> list[Token]:
        """Of a paragraph or heading: what its line is made of, without what is empty."""
        return [token for token in self.tokens[1].children or () if token.type != "text" or token.content]

    def is_picture(self) -> bool:
        """Without its caption."""
        return self.is_a("p") and len(self.tokens) == 3 and self.inside()[0].type == "image"

    def begins_bold(self) -> bool:
        return self.is_a("p") and self.inside()[0].type == "strong_open"

    def leads_on(self) -> bool:
        """A paragraph that speaks of what stands below it."""
        return self.is_a("p") and (
            self.tokens[1].content.endswith((":", "\uff1a")) or self.inside()[0].type == "em_open"
        )


def parts(tokens: list[Token]) -> list[Part]:
    """What stands below one another in a lesson, without comments and the folded code of pictures."""
    found: list[Part] = []
    for group in groups(tokens):
        part = Part(group, lines(group))
        above = found[-1] if found else None
        if part.is_picture() and above is not None and above.tokens[0].content.startswith("<details"):
            found.pop()
        elif above is not None and (above.is_picture() or prints(part, above)):
            found[-1] = Part(above.tokens + group, above.lines + part.lines)
            continue
        found.append(part)
    return found


def groups(tokens: list[Token]) -> Iterator[list[Token]]:
    """Tokens from one that opens to the one that closes; of HTML, from `<details>` to `</details>`."""
    group: list[Token] = []
    depth = 0
    for token in tokens:
        html = token.content if token.type == "html_block" else ""
        if html.startswith("<!--"):
            continue
        depth += token.nesting + html.startswith("<details") - html.startswith("</details")
        group.append(token)
        if depth == 0:
            yield group
            group = []


def prints(part: Part, above: Part) -> bool:
    """Whether this is the output of the code above."""
    return part.tokens[0].info == "text" and above.tokens[-1].type == "fence"


def lines(group: list[Token]) -> float:
    """About how many lines a part takes."""
    if group[0].type == "html_block":
        return FOLDED_LINES
    total = GAP_LINES
    for token in group:
        if token.type == "fence":
            total += CODE_LINES * token.content.count("\n")
        elif token.type == "math_block":
            total += FORMULA_LINES
        elif token.type == "tr_open":
            total += ROW_LINES
        elif token.type == "inline" and group[0].tag == "p" and (token.children or [token])[0].type == "image":
            total += PICTURE_LINES
        elif token.type == "inline" and group[0].tag != "table":
            wide = sum(letter > "\u2e80" for letter in token.content)
            total += -(-(len(token.content) + wide) // LETTERS)
    return total


# Slides ---------------------------------------------------------------------------------------------------------------


@dataclass
class Slide:
    """A title and the parts below it."""

    title: Part
    parts: list[Part]

    def is_full(self, part: Part) -> bool:
        return bool(self.parts) and sum(each.lines for each in self.parts) + part.lines > MOST_LINES


def slides(text: str, folder: Path) -> list[Slide]:
    """A lesson's slides.

    Args:
        text: the lesson's Markdown.
        folder: its own, from which its pictures are named.
    """
    found: list[Slide] = []
    for part in parts(parser(folder).parse(text)):
        if part.is_a("h"):
            found.append(Slide(part, []))
            continue
        slide = found[-1]
        if slide.is_full(part) or (slide.parts and part.begins_bold()):
            moved = [slide.parts.pop()] if len(slide.parts) > 1 and slide.parts[-1].leads_on() else []
            slide = Slide(slide.title, moved)
            found.append(slide)
        slide.parts.append(part)
    return found


def page(path: Path) -> str:
    """The HTML file of a lesson's slides."""
    made, reader = slides(path.read_text("utf-8"), path.parent), parser(path.parent)

    def rendered(tokens: list[Token]) -> str:
        return reader.renderer.render(tokens, reader.options, {})

    sections = []
    for slide in made:
        of_title = [each for each in made if each.title is slide.title]
        place = f" ({of_title.index(slide) + 1}/{len(of_title)})" if len(of_title) > 1 else ""
        tag = "h2" if sections else "h1"
        title = f"<{tag}>{rendered(slide.title.tokens[1:2])}{place}</{tag}>"
        sections.append(
            "".join([f"<section>{title}\n", *(rendered(part.tokens) for part in slide.parts), "</section>"])
        )
    language, back, on = ("zh-CN", "上一页", "下一页") if "zh" in path.parts else ("en", "back", "on")
    name = escape(made[0].title.tokens[1].content)
    dark = f"@media (prefers-color-scheme: dark) {{ {DARK.get_style_defs('pre')} }}"
    return "\n".join(
        [
            f'<!doctype html>\n<html lang="{language}"><meta charset="utf-8">',
            f'<meta name="viewport" content="width=device-width"><title>{name}</title>',
            f"<style>{LIGHT.get_style_defs('pre')}\n{dark}\n{STYLE}</style>\n<body>",
            *sections,
            f'<nav><button value="-1" aria-label="{back}">\u2190</button> <output aria-live="polite"></output>',
            f'<button value="1" aria-label="{on}">\u2192</button></nav>\n<script>{SCRIPT}</script>\n',
        ]
    )


# Drawing and colouring ------------------------------------------------------------------------------------------------


def parser(folder: Path) -> MarkdownIt:
    """Markdown as a code host reads it, with formulas and pictures drawn into the page."""
    reader = MarkdownIt("commonmark", {"html": True}).enable("table").use(dollarmath_plugin)

    def picture(renderer: Any, tokens: list[Token], index: int, options: Any, env: Any) -> str:
        image = base64.b64encode((folder / str(tokens[index].attrs["src"])).read_bytes()).decode()
        return f'<img alt="{escape(tokens[index].content)}" src="data:image/svg+xml;base64,{image}">'

    def fence(renderer: Any, tokens: list[Token], index: int, options: Any, env: Any) -> str:
        language, _, file = tokens[index].info.strip().partition(" ")
        code = tokens[index].content
        inside = highlight(code, PythonLexer(), LIGHT) if language in ("python", "py") else escape(code)
        caption = f"<p><code>{escape(file)}</code></p>" if file else ""
        return f"{caption}<pre><code>{inside}</code></pre>"

    def link(renderer: Any, tokens: list[Token], index: int, options: Any, env: Any) -> str:
        href = str(tokens[index].attrs["href"])
        return f'<a href="{escape(href)}">' if href.startswith("https:") else "<a>"  # pages that a file lacks

    reader.add_render_rule("image", picture)
    reader.add_render_rule("fence", fence)
    reader.add_render_rule("link_open", link)
    for kind, display in (("math_inline", False), ("math_block", True)):
        reader.add_render_rule(
            kind,
            lambda renderer, tokens, index, options, env, display=display: formulas.svg(tokens[index].content, display),
        )
    return reader


# Files ----------------------------------------------------------------------------------------------------------------


def lessons(name: str) -> list[Path]:
    """The lessons whose names begin so, `04` or `zh/04`.

    Raises:
        ValueError: there is none.
    """
    tree, _, start = name.rpartition("/")
    found = sorted((DOCS / tree / "course").glob(f"{start or '[0-9]'}*.md"))
    if not found:
        raise ValueError(
            f"slides: expected how a lesson's name begins, such as 04 or zh/04, got {name!r}; see docs/course"
        )
    return found


def main(names: list[str]) -> None:
    """Write the slides of lessons, of all where none is named."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names or ["", "zh/"]:
        for path in lessons(name):
            file = FOLDER / f"{'zh_' if path.parent != DOCS / 'course' else ''}{path.stem}.html"
            file.write_text(page(path), "utf-8")
            print(file)


if __name__ == "__main__":
    main(sys.argv[1:])
