"""What a reader of the pages sees: formulas at their size, numbers that can be read, words that are true."""

import json
import re
from collections.abc import Iterator
from functools import cache
from html import escape
from itertools import product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from attn_np import contract
from parity_tests.tests.house.test_docs import LESSONS, ROOT, course, extension
from parity_tests.tests.viewer.browser import Browser

STYLE = ROOT / "docs" / "_static" / "style.css"
VARIANTS = contract.variants()


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    return extension("pictures")


# Formulas -------------------------------------------------------------------------------------------------------------


@cache
def steps_of(variant: str) -> list[tuple[str, str]]:
    """The lines of a page with the formulas that stand beside them."""
    sources, path = extension("sources"), ROOT / f"attn_np/{variant}.py"
    backward = [(line, formula) for line, formulas, _ in sources.backward_steps(path) for formula in formulas]
    return sources.line_by_line(path) + backward


def rules(css: str) -> Iterator[tuple[str, str]]:
    """The selectors of a style sheet with their declarations, without those of certain windows."""
    plain = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}|/\*.*?\*/", "", css, flags=re.DOTALL)
    for selectors, declarations in re.findall(r"([^{}]+)\{([^{}]*)\}", plain):
        yield from ((selector.strip(), declarations) for selector in selectors.split(","))


def weight(selector: str) -> tuple[int, int]:
    """Classes and pseudo-classes, then names of elements: what decides between two rules."""
    return len(re.findall(r"[.:][\w-]+", selector)), len(re.findall(r"(?:^|\s)[a-z]+", selector))


def matches(selector: str, chain: list[set[str]]) -> bool:
    """Whether the parts of a selector are the last of a chain of elements and some above it, in order."""
    *above, last = (set(re.findall(r"[.:]?[\w-]+", part)) for part in selector.split())
    left = iter(chain[:-1])
    return last <= chain[-1] and all(any(part <= element for element in left) for part in above)


def styled(name: str, chain: list[set[str]]) -> str:
    """What the style sheet gives an element under some others for a property."""
    found = [
        (weight(selector), number, value)
        for number, (selector, declarations) in enumerate(rules(STYLE.read_text("utf-8")))
        for value in re.findall(rf"(?<![\w-]){name}: *([\w-]+)", declarations)
        if matches(selector, chain)
    ]
    return max(found)[2]


def test_lines_beside_formulas_wrap() -> None:
    """A line of code that does not wrap leaves no room for its formula, which then shrinks."""
    code = [{"article"}, {"div", ".steps"}, {"table", ".docutils"}, {"td", ":first-child"}, {"code"}]
    assert styled("white-space", code) == "normal"
    assert styled("overflow-wrap", code) == "anywhere"


def test_words_in_tables_are_not_broken() -> None:
    """Where a word may be broken anywhere, a column beside a long one is as narrow as a letter."""
    in_table = [{"article"}, {"table", ".docutils"}, {"td"}, {"code"}]
    assert styled("overflow-wrap", in_table) == "break-word"
    assert styled("overflow-wrap", [{"article"}, {"p"}, {"code"}]) == "anywhere"
    axes = [{"article"}, {"div", ".axes"}, {"table", ".docutils"}, {"td", ":nth-child", "2"}, {"code"}]
    assert styled("white-space", axes) == "nowrap"
    page = extension("variants").page("mha", None)
    assert page.count(":::{div} axes") > 1 and page.count(":::{div} fields") == 1


@pytest.mark.parametrize("variant", VARIANTS)
def test_formulas_fit_beside_their_lines(variant: str) -> None:
    """In a wide window, each at three quarters of its size or more."""
    css, svg = STYLE.read_text("utf-8"), extension("formulas").svg
    page = float(re.findall(r"\.content \{[^}]*width: (\d+)em", css)[0])
    column = 1 - float(re.findall(r"\.steps td:first-child \{ width: (\d+)%", css)[0]) / 100
    table = float(re.findall(r"article table\.docutils \{ font-size: ([\d.]+)em", css)[0])
    formula = float(re.findall(r"\.formula \{ font-size: ([\d.]+)em", css)[0])
    for _, latex in steps_of(variant):
        width = float(re.findall(r'style="width:([\d.]+)em', svg(latex))[0])
        assert 0.75 * width * formula * table <= column * page, latex


SHRUNK = """[...document.querySelectorAll("svg.formula")].map((svg) => {
    const own = parseFloat(svg.style.width) * parseFloat(getComputedStyle(svg).fontSize);
    return svg.getBoundingClientRect().width / own;
})"""


@pytest.mark.parametrize("width", [1400, 400])
def test_no_formula_is_shrunk(width: int, tab: Browser, tmp_path: Path) -> None:
    """Of the longest lines and formulas of all variants, in the frame of a page."""
    svg = extension("formulas").svg
    rows = list(dict.fromkeys(row for variant in VARIANTS for row in steps_of(variant)))
    rows = [row for part in (0, 1) for row in sorted(rows, key=lambda row: -len(row[part]))[:40]]
    cells = "".join(f"<tr><td><code>{escape(line)}</code></td><td>{svg(latex)}</td></tr>" for line, latex in rows)
    table = f"<div class='table-wrapper'><table class='docutils'><tbody>{cells}</tbody></table></div>"
    frame = "<div class='main' style='margin-left: 15em'><div class='content'>" if width > 1000 else "<div><div>"
    (tmp_path / "page.html").write_text(
        f"<!doctype html><meta name='viewport' content='width=device-width'><style>{STYLE.read_text('utf-8')}</style>"
        f"<body>{frame}<article><div class='steps'>{table}</div></article></div></div>",
        "utf-8",
    )
    tab.open(tmp_path / "page.html", width=width)
    sizes = tab.run(SHRUNK)
    assert len(sizes) == len(rows) and min(sizes) >= 0.75


@pytest.mark.parametrize(
    ("latex", "display", "written"),
    [
        (r"\frac{a}{b}", True, r"\dfrac{a}{b}"),
        (r"\frac{a}{b}", False, r"\frac{a}{b}"),
        (r"\tfrac{a}{b}", True, r"\frac{a}{b}"),
        (r"e^{\frac{a}{b}} \frac{\frac{a}{b}}{c}", True, r"e^{\frac{a}{b}} \dfrac{\dfrac{a}{b}}{c}"),
        (r"x_{y^{2} + \frac{a}{b}}", True, r"x_{y^{2} + \frac{a}{b}}"),
        (r"\sum_s p", False, r"\sum_s\; p"),
        (r"\sum_{t: s \in N_{t}} p", True, r"\sum_{t: s \in N_{t}}\; p"),
        (r"\sum_{s}^{T} p", True, r"\sum_{s}^{T}\; p"),
        (r"\sum_s\, p", True, r"\sum_s\, p"),
        (r"z'_{ts} + f'(x)", True, r"z^{\prime}_{ts} + f'(x)"),
    ],
)
def test_a_formula_is_set_as_it_is_meant(latex: str, display: bool, written: str) -> None:
    """Fractions of displayed formulas have their full size, but not in scripts; a sum stands apart from its summand."""
    formulas = extension("formulas")
    assert formulas.spelled(latex, display) == written
    assert "<path" in formulas.svg(latex, display)


def points_of(path: str) -> np.ndarray:
    """The points of a path: `M` at a place, the others relative to the point before."""
    at = start = np.zeros(2, int)
    points = []
    for letter, numbers in re.findall(r"([Mmlqcz])([^Mmlqcz]*)", path):
        if letter == "z":
            at = start
            continue
        pairs = np.array(re.findall(r"-?\d+", numbers), int).reshape(-1, 2)
        step = {"q": 2, "c": 3}.get(letter, 1)
        for first in range(0, len(pairs), step):
            group = pairs[first : first + step] + (0 if letter == "M" else at)
            points += list(group)
            at = group[-1]
        start = at if letter in "Mm" else start
    return np.array(points)


LATEX = [r"z_{ts} = q_t \cdot k_s", r"\frac{e^{z}}{\sum_j\, e^{z}}", r"|x| \beta \hat p", "8 B g"]


@pytest.mark.parametrize("latex", LATEX)
def test_a_formula_has_the_outlines_of_its_glyphs(latex: str) -> None:
    """Those that Matplotlib gives, each point within the rounding of its glyph's place and of its own."""
    from matplotlib.path import Path as Outline
    from matplotlib.textpath import text_to_path

    formulas = extension("formulas")
    vertices, codes = text_to_path.get_text_path(formulas.FONT, f"${latex}$", ismath=True)
    exact = np.array(vertices)[np.array(codes) != Outline.CLOSEPOLY] * (1, -1)
    (path,) = re.findall(r' d="([^"]*)"', formulas.svg(latex))
    drawn = points_of(path) / formulas.FINE
    assert drawn.shape == exact.shape
    off = drawn - exact
    assert (np.ptp(off, axis=0) <= 2 / formulas.FINE).all()  # each is half a unit off twice, to either side


def placed(formula: str, shapes: dict[str, str]) -> list[tuple[int, int, str]]:
    """Where each glyph of a formula begins, and its path."""
    paths = "".join(re.findall(r'<path d="([^"]*)"', re.sub(r"<defs>.*?</defs>", "", formula)))
    own = [(int(x), int(y), rest) for x, y, rest in re.findall(r"M(-?\d+) (-?\d+)([^M]+)", paths)]
    uses = re.findall(r'<use href="#(\w+)" x="(-?\d+)" y="(-?\d+)"/>', formula)
    return sorted([*own, *((int(x), int(y), shapes[name]) for name, x, y in uses)])


def test_shared_glyphs_stand_where_they_stood() -> None:
    """Each of a page's formulas draws the same glyphs at the same places, from shapes that the page holds once."""
    slim, svg = extension("slim"), extension("formulas").svg
    formulas = [svg(latex) for latex in ("q_t = x_t W_q", r"\frac{x_t}{W_q}", r"\sum_t x_t", "z")]
    page = slim.with_shared_glyphs("\n".join(formulas))
    held = re.findall(r'<path id="(\w+)" d="M0 0([^"]*)"/>', page)
    assert len(dict(held)) == len(held) == len({rest for _, rest in held}) > 0
    for before, after in zip(formulas, page.split("\n"), strict=True):
        assert placed(before, {}) == placed(after, dict(held))
    assert len(page) < len("\n".join(formulas))


def test_words_of_code_that_have_no_colour_lose_their_marks() -> None:
    """In both themes; the others keep theirs."""
    slim = extension("slim")
    css = """
.highlight { background: #f2f2f2; color: #111 }
.highlight .n { color: #111 } /* Name */
.highlight .nn { color: #111 } /* Name.Namespace */
.highlight .k { color: #805 } /* Keyword */
body[data-theme="dark"] .highlight { background: #202020; color: #DDD }
body[data-theme="dark"] .highlight .n { color: #DDD } /* Name */
body[data-theme="dark"] .highlight .nn { color: #7AF; text-decoration: underline } /* Name.Namespace */
body[data-theme="dark"] .highlight .k { color: #DDD } /* Keyword */
"""
    assert slim.without_colour(css) == {"n"}
    code = '<pre><span></span><span class="k">def</span> <span class="n">f</span></pre>'
    assert slim.slimmer(code, {"n"}) == '<pre><span class="k">def</span> f</pre>'


def test_space_goes_where_it_does_not_count() -> None:
    slim = extension("slim")
    kept = "<pre>def f():\n\n    x\n</pre><script>// a\n\n  b</script><style>a\n  b</style>"
    assert slim.slimmer(f"<p>\n  a\n\n  b</p>\n\n\n{kept}\n", set()) == f"<p>\na\nb</p>\n{kept}\n"
    link = '<a class="reference internal" href="a.html">a</a><a class="reference external" href="b">b</a>'
    assert slim.slimmer(link, set()) == link.replace(" internal", "")


def test_a_picture_with_a_palette_looks_the_same(tmp_path: Path) -> None:
    """Pixel by pixel, where it has no more colours than the palette; and the file is smaller."""
    slim, file = extension("slim"), tmp_path / "picture.png"
    draw = np.random.default_rng(0)
    colours = np.concatenate([draw.integers(256, size=(slim.COLOURS, 3)), np.full((slim.COLOURS, 1), 255)], axis=1)
    pixels = colours[draw.integers(slim.COLOURS, size=(100, 200))].astype(np.uint8)
    Image.fromarray(pixels, "RGBA").save(file)
    before = file.stat().st_size
    slim.with_palette(file)
    with Image.open(file) as image:
        assert image.mode == "P"
        assert np.array_equal(np.asarray(image.convert("RGBA")), pixels)
    assert file.stat().st_size < before


def test_an_icon_is_drawn_once_and_an_unused_symbol_never() -> None:
    """The others refer to it by its name; another shape is another icon."""
    slim = extension("slim")
    opening = '<svg width="1.5em" class="sd-octicon sd-octicon-chevron" aria-hidden="true">'
    one, two = (f'{opening}<path d="M{n} 0"></path></svg>' for n in (1, 2))
    symbols = '<symbol id="svg-used"><path d="M0 0"/></symbol>\n  <symbol id="svg-not"><path d="M0 1"/></symbol>'
    page = slim.with_shared_icons(f'{symbols}<use href="#svg-used"></use>{one}{one}{two}{one}')
    assert page == (
        '<symbol id="svg-used"><path d="M0 0"/></symbol><use href="#svg-used"></use>'
        f'{opening}<path id="icon0" d="M1 0"/></svg>{opening}<use href="#icon0"/></svg>'
        f'{opening}<path id="icon1" d="M2 0"/></svg>{opening}<use href="#icon0"/></svg>'
    )


# Colours --------------------------------------------------------------------------------------------------------------


def test_both_ways_to_a_dark_page_have_the_same_colours() -> None:
    """Asked for by the system, or chosen on the page."""
    css = STYLE.read_text("utf-8")
    chosen = css.partition('body[data-theme="dark"] {')[2].partition("}")[0]
    by_system = css.partition('body:not([data-theme="light"]) {')[2].partition("}")[0]
    assert re.findall(r"--map-\w+: #\w+", chosen) == re.findall(r"--map-\w+: #\w+", by_system)


def inks(css: str, theme: str) -> dict[str, str]:
    """The colour that the style sheet gives each class of numbers in a theme."""
    found: dict[str, str] = {}
    marks = {"light": "", "dark": 'body[data-theme="dark"] '}
    for head in marks.values() if theme == "dark" else [""]:
        for names, colour in re.findall(rf"^{re.escape(head)}(?::is\()?([.\w, -]+?)\)? {{ fill: #(\w+);", css, re.M):
            found |= dict.fromkeys(re.findall(r"map-\w+-\w+", names), colour)
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_numbers_of_maps_can_be_read(theme: str, pictures: ModuleType) -> None:
    """At every depth of colour of either sign: 4.5 to 1, as the style sheet paints cell and number."""
    css = STYLE.read_text("utf-8")
    given, ink = pictures.colours()[theme], inks(css, theme)
    for share, sign in product(np.linspace(0, 1, 201), (1, -1)):
        cell = pictures.cell(0, 0, sign * share)
        tone, opacity = re.findall(r'var\(--map-(positive|negative)\)" fill-opacity="([\d.]+)"', cell)[0]
        ground = pictures.mixed(given[tone], given["empty"], float(opacity))
        (name,) = re.findall(r'class="(map-[\w-]+)"', cell)
        assert pictures.contrast(pictures.rgb(ink[name]), ground) >= 4.5, (share, name)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_of_the_landing_picture_can_be_read(theme: str, pictures: ModuleType) -> None:
    """On the pages of the site and of GitHub."""
    svg = (ROOT / "docs" / "_static" / "minilm_head.svg").read_text("utf-8")
    light, dark = re.findall(r"<style>(.*)@media \(prefers-color-scheme: dark\) \{(.*)\}</style>", svg)[0]
    inks = dict(re.findall(r"\.(\w+) \{ fill: #(\w{6}) \}", light if theme == "light" else dark))
    assert {*re.findall(r"<(?:text|tspan)[^>]*?class=\"(\w+)\"", svg)} == set(inks)
    assert len(re.findall("<text|<tspan", svg)) == len(re.findall("<(?:text|tspan)[^>]*? class=", svg))
    for name, page in product(inks, ("ffffff",) if theme == "light" else ("131416", "0d1117")):
        assert pictures.contrast(pictures.rgb(inks[name]), pictures.rgb(page)) >= 4.5, (name, page)


def test_words_of_a_lessons_picture_keep_a_size() -> None:
    """In a narrow window it scrolls: where words are 10 units high, they are never below 9 px."""
    text = (
        "# A lesson\n\n```python\nimport matplotlib.pyplot as plt\n\nfigure, axes = plt.subplots(figsize=(9, 3))\n```"
        "\n\n![Figure 1](pictures/page_1.svg)\n\n**Figure 1.** A figure.\n"
    )
    page = course.with_pictures(text, course.run_lesson(text, "page"), "page", "page.ipynb")
    (width, narrowest) = map(float, re.findall(r'viewBox="0 0 ([\d.]+) [^>]*min-width:([\d.]+)px', page)[0])
    assert narrowest >= 0.9 * width - 1


def test_no_rule_paints_all_text_of_pictures() -> None:
    """A rule for every text of a picture wins over what a cell says of its own number."""
    wide = [s for s, d in rules(STYLE.read_text("utf-8")) if "fill" in d and re.search(r"picture.* text$", s)]
    assert not wide


REPORT = ROOT / "parity_tests" / "report" / "templates" / "base.css"


@pytest.mark.parametrize("sheet", [REPORT, ROOT / "parity_tests" / "viewer" / "templates" / "viewer.css"])
def test_figures_on_colours_can_be_read(sheet: Path, pictures: ModuleType) -> None:
    """Each shade of a report with its own ink, and words on the page and on panels, in light and dark."""
    css = REPORT.read_text("utf-8") + sheet.read_text("utf-8")
    light, _, dark = css.partition("@media (prefers-color-scheme: dark)")
    for theme in (light, dark):
        pairs = re.findall(r"--([\w-]+): #(\w{3}|\w{6})\b", theme)
        held = {name: pictures.rgb(x if len(x) == 6 else "".join(2 * c for c in x)) for name, x in pairs}
        asked = [(f"{name}-t", name) for name in held if f"{name}-t" in held]
        asked += [(ink, page) for ink in ("text", "soft", "link", "good", "bad") for page in ("page", "panel")]
        assert asked
        for ink, ground in asked:
            assert pictures.contrast(held[ink], held[ground]) >= 4.5, (ink, ground)


def test_the_contrast_is_that_of_the_standard(pictures: ModuleType) -> None:
    """Black on white has 21, equal colours 1; #777777 on white is known to be just below 4.5, #767676 above."""
    white = pictures.rgb("ffffff")
    assert abs(pictures.contrast(pictures.rgb("000000"), white) - 21) <= 21 * 16 * np.finfo(float).eps
    assert pictures.contrast(white, white) == 1
    assert pictures.contrast(pictures.rgb("777777"), white) < 4.5 < pictures.contrast(pictures.rgb("767676"), white)


# Words ----------------------------------------------------------------------------------------------------------------


def test_what_pages_are_told_of_functions_is_of_functions_that_exist() -> None:
    """A table of names that the code no longer has hides nothing, and what it was to hide comes first on a page."""
    sources = extension("sources")
    text = "\n".join(path.read_text("utf-8") for path in (ROOT / "attn_np").rglob("*.py"))
    defined = set(re.findall(r"^def (\w+)\(", text, re.MULTILINE))
    assert {*sources.PLUMBING, *sources.PASSED_ON, *sources.HIDING, *sources.OPERANDS} <= defined
    assert all((ROOT / f"attn_np/{name.replace('.', '/')}.py").exists() for name in sources.CLOSED)


def test_what_every_variant_calls_is_opened_on_no_page() -> None:
    """It is no part of any one's idea; but the rules of derivatives are."""
    sources = extension("sources")
    shown: dict[str, int] = {}
    for variant in VARIANTS:
        path = ROOT / f"attn_np/{variant}.py"
        boxes = "\n".join(sources.opened(path, backward=False) + sources.opened(path, backward=True))
        for name in set(re.findall(r"^:+\{dropdown\} `(\w+)`", boxes, re.MULTILINE)):
            shown[name] = shown.get(name, 0) + 1
    assert shown["softmax_vjp"] > 1
    assert "end" in sources.called_by_all(backward=False)
    for backward in (False, True):
        assert not sources.called_by_all(backward=backward) & set(shown)


@pytest.mark.parametrize("variant", VARIANTS)
def test_lines_that_are_not_in_all_trees_are_marked(variant: str) -> None:
    """And no others: what the page says of its marks is true."""
    pages, sources = extension("variants"), extension("sources")
    files = {tree: sources.source(ROOT / package / f"{variant}.py") for tree, package in pages.TREES.items()}
    text = "\n".join(pages.three_trees(variant, files))
    blocks = re.findall(r":caption: \w+/\w+\.py\n(?::emphasize-lines: ([\d,]+)\n)?\n(.*?)\n```", text, re.DOTALL)
    assert len(blocks) == 3
    lines = [code.splitlines() for _, code in blocks]
    for (marks, _), own in zip(blocks, lines, strict=True):
        marked = {own[int(number) - 1] for number in filter(None, marks.split(","))}
        assert marked == {line for line in own if not all(line in other for other in lines)}


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_notebook_is_plain_markdown(lesson: str) -> None:
    """Fences of any number of colons or ticks are the site's, and so is the text of a role."""
    cells = json.loads(json.dumps(course.notebook(LESSONS[lesson])))["cells"]
    prose = "\n".join(cell["source"] for cell in cells if cell["cell_type"] == "markdown")
    code = re.compile(r"^```python\n.*?^```$", re.MULTILINE | re.DOTALL)
    assert not re.findall(r"^:.*|^`{3,}\{.*|\{[a-z-]+\}`.*|^~{3,}.*", code.sub("", prose), re.MULTILINE)
