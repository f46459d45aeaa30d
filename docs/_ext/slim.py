"""Pages at half their size: a glyph of formulas and an icon once for each page, no marks around operators and around
words of code without a colour, no empty space between tags, and pictures of pixels with a palette.

A page of a variant has a hundred formulas and the same code in three trees.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any

from PIL import Image

FORMULA = re.compile(r'(<svg class="formula[^>]*>)<path d="([^"]*)" fill="currentColor"/></svg>')
GLYPH = re.compile(r"M(-?\d+) (-?\d+)([^M]+)")
ICON = re.compile(r'(<svg [^>]*class="sd-octicon [^>]*>)<path d="([^"]*)"></path></svg>')
SYMBOL = re.compile(r'\s*<symbol id="([^"]+)".*?</symbol>', re.DOTALL)
# Where space counts, and where it is as good as one line's end.
SPACE = re.compile(r"(<(pre|script|style|textarea)\b.*?</\2>)|\s*\n\s*", re.DOTALL)
COLOURS = 256
# The marks of operators are a twelfth of all pages, and only light pages have a colour for them.
OPERATOR = "o"
RULE = re.compile(r"^(.*?)\.highlight(?: \.(\w+))? \{ ([^}]*) \}", re.MULTILINE)


def without_colour(css: str) -> set[str]:
    """The classes of tokens that look like code without a class, in each theme."""
    plain: dict[str, str] = {}
    looks: dict[str, list[bool]] = {}
    for theme, name, declarations in RULE.findall(css):
        colour = re.sub(r"background: #\w+;? ?", "", declarations).strip("; ")
        if not name:
            plain[theme] = colour
        else:
            looks.setdefault(name, []).append(colour == plain.get(theme))
    return {name for name, same in looks.items() if all(same)}


def with_shared_glyphs(page: str) -> str:
    """A page whose formulas refer to glyphs that it draws more than once; the first formula holds them."""
    drawn = Counter(rest for formula in FORMULA.finditer(page) for _, _, rest in GLYPH.findall(formula[2]))
    names = {rest: f"g{number}" for number, (rest, count) in enumerate(drawn.items()) if count > 1}
    held: set[str] = set()

    def formula(found: re.Match[str]) -> str:
        new = dict.fromkeys(rest for _, _, rest in GLYPH.findall(found[2]) if rest in names and rest not in held)
        held.update(new)
        shapes = "".join(f'<path id="{names[rest]}" d="M0 0{rest}"/>' for rest in new)
        own, uses = [], []
        for x, y, rest in GLYPH.findall(found[2]):
            if rest in names:
                uses.append(f'<use href="#{names[rest]}" x="{x}" y="{y}"/>')
            else:
                own.append(f"M{x} {y}{rest}")
        path = f'<path d="{"".join(own)}"/>' if own else ""
        shapes = f"<defs>{shapes}</defs>" if shapes else ""
        return f'{found[1]}{shapes}<g fill="currentColor">{path}{"".join(uses)}</g></svg>'

    return FORMULA.sub(formula, page)


def with_shared_icons(page: str) -> str:
    """A page whose icons refer to the first one of their shape, without the symbols that nothing refers to."""
    names: dict[str, str] = {}

    def icon(found: re.Match[str]) -> str:
        if found[2] in names:
            return f'{found[1]}<use href="#{names[found[2]]}"/></svg>'
        names[found[2]] = f"icon{len(names)}"
        return f'{found[1]}<path id="{names[found[2]]}" d="{found[2]}"/></svg>'

    page = ICON.sub(icon, page)
    return SYMBOL.sub(lambda found: found[0] if f'"#{found[1]}"' in page else "", page)


def slimmer(page: str, classes: set[str]) -> str:
    """A page that looks the same."""
    plain = "|".join(sorted(classes))
    page = re.sub(rf'<span class="(?:{plain})">([^<]*)</span>', r"\1", page) if classes else page
    page = re.sub(r'<span class="pre">([^<]*)</span>', r"\1", page.replace("<pre><span></span>", "<pre>"))
    page = page.replace('<code class="docutils literal notranslate">', '<code class="literal notranslate">')
    page = page.replace('class="reference internal"', 'class="reference"')  # no style asks for the other
    return SPACE.sub(lambda found: found[1] or "\n", with_shared_icons(with_shared_glyphs(page)))


def with_palette(picture: Path) -> None:
    """Write an opaque picture of pixels anew, with so many colours that it looks the same."""
    with Image.open(picture) as image:
        pixels = image.convert("RGB")
    pixels.quantize(COLOURS, dither=Image.Dither.NONE).save(picture, optimize=True)


def write(app: Any, exception: Exception | None) -> None:
    if exception is not None or app.builder.format != "html":
        return
    classes = without_colour((Path(app.outdir) / "_static" / "pygments.css").read_text("utf-8")) | {OPERATOR}
    for sources in (Path(app.outdir) / "_static").rglob("*.map"):
        sources.unlink()  # what the theme's own files were made from
    pages = [page for page in Path(app.outdir).rglob("*.html") if page.parent.name != "viewer"]
    for page in pages:
        page.write_text(slimmer(page.read_text("utf-8"), classes), "utf-8")
    text = "".join(page.read_text("utf-8") for page in pages)
    for image in (Path(app.outdir) / "_images").iterdir():
        if f"_static/{image.name}" not in text:  # the copy that pages show is the one in _images
            (Path(app.outdir) / "_static" / image.name).unlink(missing_ok=True)
        if image.suffix == ".png":
            with_palette(image)


def setup(app: Any) -> dict[str, Any]:
    app.connect("build-finished", write)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
