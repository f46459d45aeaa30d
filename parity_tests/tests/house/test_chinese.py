"""The Chinese pages say what the English ones say: the same code, outputs and formulas, and links that work."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from parity_tests.sync.passages import (
    chinese_pages,
    code,
    to_translate,
    with_chinese_links,
    with_code_of,
    with_spaced_formulas,
)

markdown_it = pytest.importorskip("markdown_it")

ROOT = Path(__file__).parents[3]
PAGES = {path.relative_to(ROOT).as_posix(): english for path, english in chinese_pages(ROOT).items()}
FORMULA = re.compile(r"^\$\$\n.*?^\$\$$", re.MULTILINE | re.DOTALL)
PASSAGE = re.compile(r"^<!-- passage .* -->$", re.MULTILINE)
ROW_OF_CODE = re.compile(r"^\|(?: (?:`[^`\n]*` )?\|)+$", re.MULTILINE)
WITHIN_PROSE = re.compile(r"`[^`\n]*`|\$[^$]*\$")
LINK = re.compile(r"\]\((?!https?:)([^)\s#]*)")
READMES = ("docs/zh/README.md", "README.md")
HAN = r"[\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]"


def prose(text: str) -> str:
    """A page without its blocks of code, its formulas and its code in lines."""
    for block in code(text):
        text = text.replace(block, "", 1)
    return WITHIN_PROSE.sub("x", FORMULA.sub("", text))


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_code_formulas_and_passages_are_those_of_the_english_page(page: str) -> None:
    """To the letter and in the same order: `make sync` copies the code; where the number differs it can't."""
    english, chinese = to_translate(PAGES[page].read_text("utf-8")), text_of(page)
    assert code(chinese) == code(english)
    assert FORMULA.findall(chinese) == FORMULA.findall(english)
    assert PASSAGE.findall(chinese) == PASSAGE.findall(english)
    assert ROW_OF_CODE.findall(chinese) == ROW_OF_CODE.findall(english)


@pytest.mark.parametrize("page", PAGES)
def test_a_chinese_page_has_the_parts_of_the_english_one(page: str) -> None:
    """As many headings of each rank, folded parts and pictures; the same papers and books."""
    english, chinese = to_translate(PAGES[page].read_text("utf-8")), text_of(page)
    for part in (r"^# ", r"^## ", r"^### ", r"^<details>", r"^</details>$", r"^!\["):
        counts = [len(re.findall(part, prose(text), re.MULTILINE)) for text in (chinese, english)]
        assert counts[0] == counts[1], part
    cited = [set(re.findall(r"\]\((https?:[^)]+)\)", prose(text))) for text in (chinese, english)]
    assert cited[0] >= {link for link in cited[1] if "arxiv.org" in link and page != "docs/zh/README.md"}


@pytest.mark.parametrize("page", PAGES)
def test_a_chinese_page_reads_on_a_code_host(page: str) -> None:
    """Links and pictures in the clone, no directive, bold that is bold, and no break within a sentence."""
    text = text_of(page)
    words = prose(text)
    assert re.search(r"[\u4e00-\u9fff]", words)
    folder = (ROOT / page).parent
    assert [link for link in LINK.findall(words) if link and not (folder / unquote(link)).exists()] == []
    assert not re.findall(r"^:{3,}.*|\{[a-z-]+\}x", words, re.MULTILINE)
    shown = [
        child.content
        for token in markdown_it.MarkdownIt().parse(words)
        for child in token.children or ()
        if child.type == "text"
    ]
    assert [part for part in shown if "**" in part] == [], (
        "a mark of bold beside punctuation shows: move it or add a space"
    )
    assert with_spaced_formulas(text) == text, "a formula needs a space before it; `make sync` writes it"
    assert re.findall(rf"{HAN}\n(?=[\u4e00-\u9fff])", words) == [], (
        "a line break shows as a space: one line a paragraph"
    )


def test_every_page_of_the_index_exists_and_every_page_is_found() -> None:
    """From the Chinese README, by links; the English README leads there."""
    seen, left = set(), [ROOT / "docs/zh/README.md"]
    while left:
        path = left.pop()
        if path not in seen:
            seen.add(path)
            links = ((path.parent / link).resolve() for link in LINK.findall(prose(path.read_text("utf-8"))) if link)
            left += [link for link in links if link.suffix == ".md" and link.is_relative_to(ROOT / "docs/zh")]
    assert seen == set(chinese_pages(ROOT))
    assert all(english.exists() for english in PAGES.values())
    assert "](docs/zh/README.md)" in (ROOT / "README.md").read_text("utf-8").partition("\n## ")[0]


@pytest.mark.parametrize("page", PAGES)
def test_a_chinese_page_links_chinese_pages(page: str) -> None:
    """Where there are such; `make sync` turns the links. Its own English page may be linked."""
    assert with_chinese_links(ROOT, ROOT / page, text_of(page)) == text_of(page)


def test_a_link_turns_to_the_chinese_page_once_there_is_one(tmp_path: Path) -> None:
    for name in ("docs/zh/README.md", "docs/zh/course/01.md", "docs/zh/course/02.md", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    page = tmp_path / "docs/zh/course/01.md"
    rest = "[三](../../course/03.md)（英文）[一](../../course/01.md) [表](../../../README.md#t)"
    text, turned = f"[二](../../course/02.md)（英文）{rest}", f"[二](02.md){rest}"
    assert with_chinese_links(tmp_path, page, text) == turned
    assert with_chinese_links(tmp_path, page, turned) == turned


def test_the_readme_has_the_figures_of_the_english_one() -> None:
    rows = [re.findall(r"^\| `\w+` \| [\d.]+ \| .*$", text, re.MULTILINE) for text in map(text_of, READMES)]
    assert rows[0] == rows[1] != []


def test_the_glossary_has_the_terms_of_the_english_one() -> None:
    """With the same Chinese names, in bold, and the same lessons."""
    chinese = re.findall(
        r"^\| ([^|*]+) \| \*\*(.+?)\*\* \| .* \| (\[\d+\]).* \|$", text_of("docs/zh/glossary.md"), re.M
    )
    english = re.findall(r"^\| \*\*(.+?)\*\* \| ([^|]+) \| .* \| (\[\d+\]).* \|$", text_of("docs/glossary.md"), re.M)
    assert chinese == english != []


@pytest.mark.parametrize("page", [page for page in PAGES if "course/0" in page])
def test_a_lesson_names_its_terms_in_chinese(page: str) -> None:
    """In bold, each that the glossary explains by it."""
    bold = re.findall(r"\*\*(.+?)\*\*", prose(text_of(page)))
    terms = re.findall(
        r"^\| [^|*]+ \| \*\*(.+?)\*\* \| .* \| \[\d+\]\(([^)]*)\).* \|$", text_of("docs/zh/glossary.md"), re.M
    )
    of_page = [names.split(", ") for names, lesson in terms if f"docs/zh/{lesson}" == page]
    assert of_page
    assert [names for names in of_page if not any(name in part for name in names for part in bold)] == []


def test_the_fifteen_have_the_same_names_in_both_languages() -> None:
    row = re.compile(r"^\| (\d+) \| (`[^`]*`) \| ([^|]*) \|", re.MULTILINE)
    english, chinese = (row.findall(text_of(f"docs/{folder}systems.md")) for folder in ("", "zh/"))
    assert english == chinese
    assert len(english) == 15


def test_a_formula_gets_its_spaces() -> None:
    """Before it always, after it if a letter follows; not within code or a formula of its own lines."""
    text = "$a$，$b$。（$c$）和$d$值 `x$e$`\n\n$$\na、b\n$$\n\n```text\n，$f$\n```\n"
    spaced = "$a$， $b$。（ $c$）和 $d$ 值 `x$e$`\n\n$$\na、b\n$$\n\n```text\n，$f$\n```\n"
    assert with_spaced_formulas(text) == spaced == with_spaced_formulas(spaced)


def test_changed_code_is_copied_and_a_missing_block_is_left_to_the_test() -> None:
    english = "a\n```python\nx = 1\n```\n```{note}\nprose\n```\n```text\n1\n```\n"
    chinese = "甲\n```python\nx = 2\n```\n```{note}\n说明\n```\n```text\n2\n```\n"
    assert code(english) == ["```python\nx = 1\n```", "```text\n1\n```"]
    copied = "甲\n```python\nx = 1\n```\n```{note}\n说明\n```\n```text\n1\n```\n"
    assert with_code_of(english, chinese) == copied
    short = chinese.partition("```text")[0]
    assert with_code_of(english, short) == short
