"""The site as `make pages` leaves it: small, whole, readable in Chromium, and searched with success."""

import re
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest

from parity_tests.tests.house.test_docs import ROOT, course
from parity_tests.tests.viewer.browser import Browser

SITE = ROOT / "docs" / "_build" / "site"
MOST_BYTES = 20_000_000
# By terms of papers. The glossary says which lesson explains each; the site's search must find it first.
SEARCHED = [
    "attention weights", "additive attention", "ALiBi", "backpropagation", "causal mask", "cross-attention",
    "cross-entropy", "delta rule", "embedding", "flash attention", "gradient descent", "greedy decoding", "GQA",
    "GRU", "KV cache", "language model", "linear attention", "logits", "MLP", "multi-head attention",
    "online softmax", "padding", "positional encoding", "residual connection", "RoPE", "self-attention",
    "sinusoidal positions", "sliding window", "softmax", "sparse attention", "teacher forcing", "temperature",
    "Transformer block", "vanishing gradient", "注意力权重", "加性注意力", "多头注意力", "KV 缓存", "旋转位置编码",
]  # fmt: skip

pytestmark = [pytest.mark.course, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", autouse=True)
def site() -> Path:
    if not (SITE / "index.html").exists():
        pytest.skip("no site here: `make pages` builds it")
    return SITE


@cache
def pages() -> list[Path]:
    """The pages that a reader reads; not the search page and the like, and not those of the viewer."""
    return [
        page for page in sorted(SITE.rglob("*.html"))
        if page.stem not in ("search", "genindex", "py-modindex") and page.parent.name != "viewer"
    ]  # fmt: skip


def test_the_site_is_small() -> None:
    sizes = {path: path.stat().st_size for path in SITE.rglob("*") if path.is_file()}
    assert sum(sizes.values()) <= MOST_BYTES, sorted(sizes, key=lambda path: -sizes[path])[:5]
    assert (SITE / ".nojekyll").exists(), "a host that drops folders with an underscore would drop _static"
    assert not (SITE / ".doctrees").exists()


def test_links_within_the_site_work() -> None:
    """Of every page: the file, and the place in it."""
    texts = {page: page.read_text("utf-8") for page in pages()}
    ids = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in texts.items()}
    dead = set()
    for page, text in texts.items():
        for target in re.findall(r'\bhref="([^"#:]*(?:#[^"]*)?)"', text):
            path, _, place = unquote(target).partition("#")
            file = (page.parent / path.partition("?")[0]).resolve() if path else page
            if not file.exists() or (place and file in ids and place not in ids[file]):
                dead.add((page.relative_to(SITE).as_posix(), target))
    assert not dead


LOOK = """(() => {
    const scale = (svg) => parseFloat(svg.style.width) * parseFloat(getComputedStyle(svg).fontSize);
    const small = [...document.querySelectorAll("svg.formula")].filter((svg) => svg.getBoundingClientRect().width)
        .filter((svg) => svg.getBoundingClientRect().width < 0.75 * scale(svg)).map((svg) => svg.ariaLabel);
    const wide = [...document.querySelectorAll(".table-wrapper, article div.highlight, article div.highlight pre")]
        .filter((box) => box.clientWidth && box.scrollWidth > box.clientWidth + 1)
        .map((box) => [box.className || box.tagName, box.innerText.slice(0, 80)]);
    return {small, wide, page: document.documentElement.scrollWidth - window.innerWidth};
})()"""


def looked_at(tab: Browser, page: Path, width: int) -> dict[str, Any]:
    tab.open(page, width=width)
    return tab.run(LOOK)


@pytest.mark.parametrize("width", [1400, 400])
def test_pages_can_be_read(width: int, tab: Browser) -> None:
    """No formula below three quarters of its size, and no page wider than the window.

    At 1400 px no table scrolls, and no code of the course.
    """
    wrong: dict[str, object] = {}
    for page in pages():
        seen, name = looked_at(tab, page, width), page.relative_to(SITE).as_posix()
        tables = [box for box in seen["wide"] if "table" in box[0] or name.startswith("course/")]
        if seen["small"] or seen["page"] > 0 or (width == 1400 and tables):
            wrong[name] = {**seen, "wide": tables}
    assert not wrong


WORDS_ON_MAPS = """(() => {
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (rgb) => rgb.slice(0, 3).map((x) => x / 255)
        .map((x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
        .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
    const over = (top, share, under) => under.map((x, i) => share * top[i] + (1 - share) * x);
    let least = 21;
    for (const word of document.querySelectorAll("svg.picture text[class^=map-]")) {
        const cell = word.previousElementSibling, empty = cell.previousElementSibling;
        const share = parseFloat(cell.getAttribute("fill-opacity"));
        const ground = over(parts(getComputedStyle(cell).fill), share, parts(getComputedStyle(empty).fill));
        const [low, high] = [light(ground), light(parts(getComputedStyle(word).fill))].sort((a, b) => a - b);
        const painted = getComputedStyle(word).filter === "none" && getComputedStyle(cell).filter === "none";
        least = Math.min(least, painted ? (high + 0.05) / (low + 0.05) : 0);
    }
    return least;
})()"""


@pytest.mark.parametrize("dark", [False, True])
def test_numbers_of_maps_can_be_read_on_their_pages(dark: bool, tab: Browser) -> None:
    """As the browser paints them: 4.5 to 1."""
    least = {}
    for page in (SITE / "variants").glob("*.html"):
        tab.open(page, width=1400, dark=dark)
        least[page.stem] = tab.run(WORDS_ON_MAPS)
    assert least["mha"] < 21
    assert min(least.values()) >= 4.5, min(least, key=lambda name: least[name])


FIRST = """new Promise((done) => {
    const look = (left) => {
        const found = document.querySelectorAll("#search-results ul.search li a");
        const links = [...found].map((link) => link.getAttribute("href"));
        const ready = document.querySelector("#search-results .search-summary");
        if (links.length && ready && !/Searching|Preparing/.test(ready.innerText) || !left) done(links.slice(0, 3));
        else setTimeout(look, 50, left - 1);
    };
    look(100);
})"""


def test_the_search_finds_the_lesson_first(tab: Browser) -> None:
    """Of each term that a reader of papers knows, the lesson that the glossary names."""
    where: dict[str, str] = {}
    for term, chinese, page in course.terms():
        where |= dict.fromkeys(chinese.split(", "), course.in_chinese(page)) | dict.fromkeys(term.split(", "), page)
    wrong = {}
    assert len(SEARCHED) >= 25
    for term in SEARCHED:
        tab.ask("Page.navigate", url=f"{(SITE / 'search.html').as_uri()}?q={quote(term)}")
        while tab._message().get("method") != "Page.loadEventFired":
            pass
        found = tab.run(FIRST)
        if not found or found[0].partition("#")[0] != where[term].replace(".md", ".html"):
            wrong[term] = found
    assert not wrong
