"""Slides hold their lesson: every heading, paragraph, block, formula and picture, in a file that fetches nothing."""

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from parity_tests.tests.house.test_docs import ROOT, extension
from parity_tests.tests.viewer.browser import Browser, browser, chromium

slides, FENCE = extension("slides"), extension("blocks").FENCE
LESSONS = sorted([*ROOT.glob("docs/course/[0-9]*.md"), *ROOT.glob("docs/zh/course/[0-9]*.md")])
QUICK = [path for path in LESSONS if path.stem.startswith(("01", "04"))]
DRAWING = re.compile(
    r"^<details><summary>[^\n]*</summary>\n\n(?:\*[^\n]*\n\n)?```python\n[^`]*```\n\n</details>\n\n(?=!\[)",
    re.MULTILINE,
)
TAG, TITLE = re.compile(r"<[^>]*>"), re.compile(r"<h[12]>(.*?)</h[12]>")
CODE = re.compile(r"<pre><code>(.*?)</code></pre>", re.DOTALL)
LESSON = """# 1. Title

> A question?

First words, and [a page](other.md).

## The idea

A paragraph before code:

```python
x = 1 < 2
print(x)
```

```text
True
```

<details><summary>The drawing</summary>

```python
draw()
```

</details>

![Figure 1](picture.svg)

**Figure 1.** What it shows: $x^2$.

<!-- widget: none -->

**Its own slide.** A paragraph in bold.
"""


def shown(text: str) -> str:
    """The words of HTML."""
    return " ".join(html.unescape(TAG.sub("", text)).split())


def small(folder: Path, text: str = LESSON) -> str:
    (folder / "picture.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (folder / "01.md").write_text(text, "utf-8")
    return slides.page(folder / "01.md")


@pytest.mark.parametrize(
    "lesson",
    [path if path in QUICK else pytest.param(path, marks=pytest.mark.course) for path in LESSONS],
    ids=lambda path: path.relative_to(ROOT / "docs").as_posix(),
)
def test_slides_hold_the_lesson(lesson: Path) -> None:
    """But for the code of pictures, which is folded in the lesson."""
    text, page = DRAWING.sub("", lesson.read_text("utf-8")), slides.page(lesson)
    words, prose = shown(page), FENCE.sub("", text)
    code = [fence["body"] for fence in FENCE.finditer(text)]
    assert [html.unescape(TAG.sub("", block)) for block in CODE.findall(page)] == code
    titles = [re.sub(r" \(\d+/\d+\)$", "", shown(title)) for title in TITLE.findall(page)]
    assert list(dict.fromkeys(titles)) == [
        re.sub("[`*]", "", line) for line in re.findall(r"^#+ (.*)", prose, re.MULTILINE)
    ]
    paragraphs = [" ".join(part.split()) for part in prose.split("\n\n")]
    plain = [part for part in paragraphs if re.fullmatch(r"[^$`*\[\]|<>#&]+", part)]
    assert plain
    assert [part for part in plain if part.lstrip("- ") not in words] == []
    assert page.count('src="data:image/svg+xml;base64,') == len(re.findall(r"^!\[", prose, re.MULTILINE))
    assert page.count('class="formula formula-display"') == len(re.findall(r"^\$\$$", prose, re.MULTILINE)) / 2
    assert page.count("<details>") == page.count("</details>") == prose.count("\n<details>")
    assert re.findall(r'<(?!a )[a-z]+ [^>]*(?:src|href)="(?!data:)', page) == []


def test_a_slide_begins_at_a_heading_and_at_bold(tmp_path: Path) -> None:
    page = small(tmp_path)
    titles = [shown(title) for title in TITLE.findall(page)]
    assert titles == ["1. Title", "The idea (1/2)", "The idea (2/2)"]
    assert "draw()" not in page
    assert "widget" not in page
    assert "<a>a page</a>" in page


def test_what_belongs_together_stays_together(tmp_path: Path) -> None:
    """Code and output, a picture and its caption, and the paragraph that leads to a block."""
    long = "".join(f"x = {i}\n" for i in range(28))
    text = LESSON.replace("A paragraph before", "Words.\n\n" * 6 + "A paragraph before").replace("x = 1 < 2\n", long)
    made = small(tmp_path, text).split("<section>")
    assert sum(slide.count("<pre>") == 2 and "A paragraph before code:" in slide for slide in made) == 1
    assert sum("<img" in slide and "Figure 1.</strong>" in slide for slide in made) == 1


def test_a_lesson_is_found_by_how_its_name_begins() -> None:
    assert [path.name for path in slides.lessons("04")] == ["04_heads.md"]
    assert slides.lessons("zh/0")[0].parent.parent.name == "zh"
    with pytest.raises(ValueError, match="slides: expected how a lesson's name begins, such as 04 or zh/04, got '99'"):
        slides.lessons("99")


@pytest.fixture
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("no Chromium here")
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


def test_slides_turn_by_keys_and_buttons_and_fetch_nothing(tab: Browser, tmp_path: Path) -> None:
    file = tmp_path / "slides.html"
    file.write_text(small(tmp_path), "utf-8")
    tab.open(file)
    seen = "document.querySelectorAll('section:not([hidden])').length"
    place = f"[document.querySelector('output').textContent, location.hash, {seen}]"
    assert tab.run(place) == ["1 / 3", "#1", 1]
    tab.press("ArrowRight", 39)
    assert tab.run(place) == ["2 / 3", "#2", 1]
    for key, code, there in (
        ("End", 35, 3),
        ("ArrowRight", 39, 3),
        ("ArrowLeft", 37, 2),
        ("Home", 36, 1),
        ("PageDown", 34, 2),
    ):
        tab.press(key, code)
        assert tab.run(place) == [f"{there} / 3", f"#{there}", 1]
    tab.run("document.querySelector('nav button').click()")
    assert tab.run(place) == ["1 / 3", "#1", 1]
    assert tab.errors == []
    assert [url for url in tab.fetched if not url.startswith(("data:", file.as_uri()))] == []
