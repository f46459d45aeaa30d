"""The report: one page that fetches nothing, holds every failure and stays small."""

import json
import re
from dataclasses import replace
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from attn_np import contract
from parity_tests.commands.app import app
from parity_tests.explain.findings import Cause, Finding
from parity_tests.explain.verdicts import STAGES
from parity_tests.judge import runner
from parity_tests.judge.cases import Case
from parity_tests.judge.frameworks import DTYPES
from parity_tests.judge.judging import Row, ratios
from parity_tests.judge.result import Result
from parity_tests.report import cells, html, pictures

VOID = {"meta", "link", "br", "img", "input", "hr"}
NAMES = [f"stage{i}" for i in range(30)]
HOSTILE = "</script><script>alert('x')</script><b title=\"x\">&amp;"


class Page(HTMLParser):
    """What a report holds: elements, their ids and attributes, visible text, and the JSON."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.data = self.style = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.data = self.data or data
        elif self.open and self.open[-1] == "style":
            self.style += data
        else:
            self.words.append(data)

    @cached_property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def links(self) -> list[str]:
        return [value for _, name, value in self.attributes if name == "href"]


def page_of(path: Path, result: Result, findings: list[Finding] | tuple[()] = (), **more) -> Page:
    """A written report, its size and its form checked."""
    html.write_html(path / "report.html", result, DTYPES, findings, **more)
    text = (path / "report.html").read_text(encoding="utf-8")
    assert len(text.encode()) < html.LIMIT
    page = Page(text)
    assert not page.open
    assert len(set(page.ids)) == len(page.ids)
    return page


def rows_of(case: Case, candidate: str, ratio: float = 0.3, names: list[str] = NAMES) -> list[Row]:
    stages = ("tape", "cotangent", "stage gradient", "output", "gradient")
    return [
        Row(candidate, case, stages[min(4, 5 * i // len(names))], name, ratio * (i + 1) / len(names), elements=7 + i)
        for i, name in enumerate(names)
    ]


def many(count: int, ratio: float = 0.3) -> Result:
    """About `count` rows over every variant, candidate and dtype, no two with the same ratio."""
    result, most = Result(), max(count, len(contract.variants()) * 3 * len(DTYPES) * len(NAMES))
    while len(result.rows) < count:
        for variant in contract.variants():
            for candidate in ("numpy by hand", "torch eager", "jax jit"):
                for dtype in DTYPES:
                    case = Case(variant, f"example{len(result.rows)}", "full", dtype)
                    result.rows += rows_of(case, candidate, ratio * (1 + len(result.rows) / most))
    return result


def finding_of(rows: list[Row], at: int, shape: tuple[int, ...], axes: str = "") -> Finding:
    """A candidate that is wrong from row `at` on, in one line of the array."""
    rng = np.random.default_rng([at, *shape])
    want = rng.normal(size=shape)
    bound = np.abs(want) * 2.0**-20
    got = want + bound * rng.uniform(-1, 1, size=shape)
    got[..., shape[-1] // 2] += 1.0
    share = ratios(got, want, bound)
    index = np.unravel_index(int(np.argmax(share)), shape)
    first = replace(
        rows[at],
        ratio=float(share[index]),
        index=tuple(int(i) for i in index),
        got=float(got[index]),
        expected=float(want[index]),
        bound=float(bound[index]),
    )
    rows = [*rows[:at], first, *(replace(row, ratio=7.0) for row in rows[at + 1 :])]
    causes = [Cause("scale missing", "divide by `sqrt(k)`", 0.5)]
    return Finding(
        first.candidate, first.case.name, first, axes, got, want, bound, causes, ["one column of eleven"], rows
    )


def failing(count: int, shape: tuple[int, ...], total: int = 20_000) -> tuple[Result, list[Finding]]:
    """A result in which so many candidates differ, each with its finding."""
    result = many(total)
    found = []
    for i in range(count):
        rows = result.rows[len(NAMES) * i : len(NAMES) * (i + 1)]
        found.append(finding_of(rows, 10, shape, "b t s" if len(shape) == 3 else ""))
        result.rows[len(NAMES) * i : len(NAMES) * (i + 1)] = found[-1].rows
    return result, found


def test_what_no_mistake_explains_has_a_next_step_and_what_one_explains_its_evidence(tmp_path: Path) -> None:
    result, (finding,) = failing(1, (2, 7, 11), 300)
    assert "the reference with this mistake gives these numbers" in page_of(tmp_path, result, [finding]).text
    finding.after = replace(finding, causes=[], next_step="show scores (taps=)")
    page = page_of(tmp_path, result, [finding])
    assert "With this mended it differs next at" in page.text
    assert "None of the known mistakes gives these numbers. Next: show scores (taps=)." in page.text


def test_stages_have_one_order(tmp_path: Path) -> None:
    assert tuple(cells.STAGES)[: len(STAGES)] == STAGES
    result, findings = failing(1, (2, 7, 11), 300)
    assert "1 case, 30 arrays" in page_of(tmp_path, Result(rows=findings[0].rows), findings).text


# One page, complete in itself -----------------------------------------------------------------------------------------


def test_page_fetches_nothing(tmp_path: Path) -> None:
    result, found = failing(3, (2, 7, 11), 3000)
    result.errors.append("torch eager: see https://example.org/ for more")
    page = page_of(tmp_path, result, found)
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert page.links
    assert not {name for _, name, _ in page.attributes} & {"src", "srcset", "action", "data", "poster", "background"}
    assert not set(page.tags) & {"link", "img", "iframe", "object", "embed", "base", "form"}
    assert "url(" not in page.style
    assert "@import" not in page.style
    policy = [value for _, name, value in page.attributes if name == "content" and "default-src" in value]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"]
    source = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert [m.start() for m in re.finditer("//", source)] == [m.end() - 2 for m in re.finditer("https://", source)]
    assert not re.search(r"\b(fetch|XMLHttpRequest|import|WebSocket|sendBeacon)\b\s*\(", source)


def test_largest_page_is_small(tmp_path: Path) -> None:
    """20,000 rows and 60 findings with the largest pictures; what is left out is counted."""
    result, found = failing(60, (2, 61, 67))
    page = page_of(tmp_path, result, found)
    shown = page.tags.count("article")
    assert html.FEW < shown <= html.Room().listed
    assert f"{len(found) - shown} more not shown here" in page.text
    assert page.tags.count("svg") == 3 * shown


def test_page_with_everything_wrong_is_small(tmp_path: Path) -> None:
    result = many(100_000, ratio=1000.0)
    result.errors = ["torch eager: " + "x" * 5000] * 500
    page = page_of(tmp_path, result)
    assert "more cases" in page.text
    assert "450 more" in page.text
    assert 0 in json.loads(page.data)["cases"]


def test_page_is_halved_until_it_is_small(tmp_path: Path) -> None:
    """Texts that grow sixfold where they are escaped, in every place at once."""
    result, found = failing(60, (2, 61, 67))
    result.rows = [replace(row, ratio=np.inf, note="<" * 5000) for row in result.rows]
    result.errors = ["<" * 5000] * 500
    page = page_of(tmp_path, result, found)
    assert 0 < page.tags.count("article") < html.Room().listed


# What it says ---------------------------------------------------------------------------------------------------------


def test_every_variant_and_case_of_an_agreement(tmp_path: Path) -> None:
    result = many(20_000)
    page = page_of(tmp_path, result, title="attn-parity run")
    assert "They agree" in page.text
    assert "They differ" not in page.text
    assert "attn-parity run" in page.text
    for variant in contract.variants():
        assert variant in page.text
    for example in {row.case.example for row in result.rows}:
        assert example in page.text
    data = json.loads(page.data)
    assert sum(len(case[3]) for case in data["cases"]) == len(result.rows)
    assert np.__version__ in page.text
    assert "tolerance" not in page.text


def test_block_holds_every_number(tmp_path: Path) -> None:
    """The rows that a script draws are the rows of the result, in the order of the stages."""
    result = many(3000)
    result.rows[5] = replace(result.rows[5], vacuous=3)
    data = json.loads(page_of(tmp_path, result).data)
    got = sorted(
        (*data["names"][names][i], ratio, data["sizes"][sizes][i], data["counts"][counts][i])
        for names, sizes, counts, shares, _ in data["cases"]
        for i, ratio in enumerate(shares)
    )
    want = sorted((r.stage, r.name, float(f"{r.ratio:.3g}"), r.elements, r.vacuous) for r in result.rows)
    assert got == want


def test_every_failing_row_is_shown(tmp_path: Path) -> None:
    result = many(3000)
    for i in range(0, 1500, 150):
        result.rows[i] = replace(result.rows[i], ratio=3.5 + i, got=1.5, expected=-2.5, bound=0.25, index=(1, i))
    result.rows[1501] = replace(result.rows[1501], ratio=np.inf, note="the candidate did not record it")
    page = page_of(tmp_path, result)
    assert "They differ" in page.text
    assert len(result.failed) == 11
    assert f"11 of {len(result.rows):,} arrays" in page.text
    for row in result.failed:
        assert f"{row.stage} {row.name} {cells.words(row)}" in page.text
        assert row.case.name in page.text
    notes = [text for case in json.loads(page.data)["cases"] for text in case[4].values()]
    assert sorted(notes) == sorted(cells.words(row) for row in result.failed)


def test_finding_is_explained(tmp_path: Path) -> None:
    result, found = failing(1, (2, 7, 11), 3000)
    page = page_of(tmp_path, result, found)
    first = found[0].first
    b, t, s = first.index
    assert "They differ" in page.text
    assert f"First in {found[0].candidate}, {found[0].case}: {first.stage} {first.name}" in page.text
    assert f"worst at b = {b}, t = {t}, s = {s}" in page.text
    for words in ("scale missing", "sqrt(k)", "one column of eleven", repr(first.got), repr(first.expected)):
        assert words in page.text
    assert ("failures" in page.ids) is False
    marks = [value.split() for tag, name, value in page.attributes if tag == "li" and name == "class"]
    assert sum("first" in mark for mark in marks) == 1
    assert sum("later" in mark for mark in marks) == len(NAMES) - 11


def test_failure_without_a_finding_is_listed_beside_findings(tmp_path: Path) -> None:
    result, found = failing(2, (2, 7, 11), 3000)
    page = page_of(tmp_path, result, found[:1])
    assert {"findings", "failures"} <= set(page.ids)
    assert found[1].case in page.text


def test_skipped_and_raised(tmp_path: Path) -> None:
    result = many(3000)
    result.skipped["jax"] = "jax is not installed"
    result.errors.append("torch eager, mha/cross/full/float32: RuntimeError: no such operation")
    page = page_of(tmp_path, result)
    for words in ("jax is not installed", "no such operation", "They differ"):
        assert words in page.text


@pytest.mark.parametrize("ratio", [np.inf, np.nan, 1e300, 1.0000001])
def test_strange_ratios_fail_unmistakably(ratio: float, tmp_path: Path) -> None:
    row = Row("torch eager", Case("mha", "cross", "full", "float32"), "tape", "probs", ratio, got=np.nan)
    page = page_of(tmp_path, Result([row]), [Finding(row.candidate, row.case.name, row, rows=[row])])
    assert "They differ" in page.text
    cells = [value for tag, name, value in page.attributes if tag == "td" and name == "class"]
    assert [cell[0] for cell in cells] == ["f"]
    assert page.text.count("✗") > 3
    assert json.loads(page.data)["cases"][0][3][0] not in (0, 1)


def test_nothing_judged_is_no_agreement(tmp_path: Path) -> None:
    page = page_of(tmp_path, Result())
    assert "Nothing was judged" in page.text
    assert "They agree" not in page.text
    assert json.loads(page.data)["cases"] == []


def test_names_are_text(tmp_path: Path) -> None:
    """Names of variants, candidates and arrays, notes, reasons and causes come from elsewhere."""
    case = Case(HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    rows = [Row(HOSTILE, case, HOSTILE, HOSTILE, 3.0, note=HOSTILE), Row("x", case, "tape", HOSTILE, 0.5)]
    finding = Finding(HOSTILE, HOSTILE, rows[0], HOSTILE, causes=[Cause(HOSTILE, f"`{HOSTILE}`", 0.1)], rows=rows)
    finding.patterns.append(HOSTILE)
    result = Result(rows, {HOSTILE: HOSTILE}, [HOSTILE])
    page = page_of(tmp_path, result, [finding], title=HOSTILE)
    assert page.tags.count("script") == 2
    assert HOSTILE in " ".join(page.words)
    assert HOSTILE in json.loads(page.data)["names"][0][0]
    assert "<" not in page.data


# Pictures -------------------------------------------------------------------------------------------------------------


def covered(path: str) -> list[tuple[int, int]]:
    """Cells that a path covers."""
    found = []
    for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)", path):
        found += [(int(x) + i, int(y)) for i in range(int(width))]
    return found


def drawn(markup: str) -> dict[tuple[int, int], str]:
    """The class of every cell of a picture."""
    return {cell: name for name, path in re.findall(r'class="(\w+)" d="([^"]*)"', markup) for cell in covered(path)}


@pytest.mark.parametrize("shape", [(5,), (7, 11), (2, 3, 7, 11), (2, 3, 101, 97), (1, 1)])
def test_picture_shows_the_slice_around_the_worst(shape: tuple[int, ...]) -> None:
    """Every cell is drawn once, with the shade of its own number; the ring is on the worst."""
    rows = rows_of(Case("mha", "cross", "full", "float32"), "torch eager")
    finding = finding_of(rows, 3, shape)
    picture = pictures.pictures(finding, html.WINDOW)
    assert picture is not None
    assert finding.got is not None and finding.want is not None and finding.bound is not None
    share = ratios(finding.got, finding.want, finding.bound)
    index = finding.first.index
    plane = np.atleast_2d(share[index[:-2]]) if len(shape) > 1 else share[None]
    row, column = index[-2] if len(shape) > 1 else 0, index[-1]
    top, left = row - picture["y"], column - picture["x"]
    shown = drawn(str(picture["shown"][0][1]))
    height, width = (min(n, html.WINDOW) for n in plane.shape)
    assert len(shown) == height * width == picture["cells"]
    assert 0 <= picture["x"] < width
    assert 0 <= picture["y"] < height
    for (x, y), name in shown.items():
        assert name == cells.shade(float(plane[top + y, left + x]))
    assert shown[picture["x"], picture["y"]].startswith("f")
    assert picture["beyond"] == sum(name.startswith("f") for name in shown.values())


def test_picture_shows_the_place_that_the_text_names() -> None:
    """Hidden places are grey and not counted, and the ring is in the head of the text, however wrong the hidden are."""
    case = Case("mha", "cross", "full", "float64")
    want, hidden = np.ones((2, 3, 4, 5)), np.zeros((2, 3, 4, 5), bool)
    got = want.copy()
    got[1, 2, 3, 4], got[0, 0, 0, 0], hidden[0, 0, 0], hidden[1, 2, 0] = 2.0, 1e9, True, True
    got[1, 2, 0, 1] = np.nan
    row = Row("yours", case, "tape", "scores", 5.0, (1, 2, 3, 4), 2.0, 1.0, 0.2)
    finding = Finding("yours", case.name, row, "b h t s", got, want, np.full(want.shape, 0.2), hidden=hidden)
    picture = pictures.pictures(finding, html.WINDOW)
    assert picture is not None
    assert (picture["fixed"], picture["x"], picture["y"]) == ("b = 1, h = 2", 4, 3)
    assert (picture["beyond"], picture["cells"], picture["hidden"]) == (1, 15, 5)
    for _, markup in picture["shown"]:
        assert {cell for cell, name in drawn(str(markup)).items() if name == pictures.HIDDEN} == {
            (x, 0) for x in range(5)
        }


def test_both_names_and_the_neighbours_are_shown(tmp_path: Path) -> None:
    case = Case("mha", "cross", "full", "float64")
    rows = [Row("yours", case, "tape", "q", 0.5), Row("yours", case, "tape", "scores", 5.0, (1,), 2.0, 1.0, 0.2)]
    finding = Finding("yours", case.name, rows[1], rows=rows, theirs="attn.qk", made_of=["q", "k"], goes_into=["probs"])
    text = page_of(tmp_path, Result(rows), [finding]).text
    text = text.replace(" ,", ",").replace(" .", ".")
    assert "tape scores, attn.qk in yours" in text
    assert "Made of q 0.5, k not recorded ; it goes into probs not recorded." in text


def test_picture_of_what_is_not_finite() -> None:
    case = Case("mha", "cross", "full", "float32")
    row = Row("torch eager", case, "tape", "probs", np.inf, index=(0, 0))
    want = np.array([[0.5, -1.0], [0.0, 2.0]])
    got = np.array([[np.nan, -1.0], [0.0, 2.0]])
    picture = pictures.pictures(Finding("torch eager", case.name, row, "t s", got, want, np.zeros((2, 2))), html.WINDOW)
    assert picture is not None
    assert drawn(str(picture["shown"][0][1])) == {(0, 0): "f4", (1, 0): "p0", (0, 1): "p0", (1, 1): "p0"}
    assert drawn(str(picture["shown"][1][1])) == {(0, 0): "x", (1, 0): "n3", (0, 1): "z", (1, 1): "q4"}
    assert drawn(str(picture["shown"][2][1])) == {(0, 0): "q2", (1, 0): "n3", (0, 1): "z", (1, 1): "q4"}


@pytest.mark.parametrize("shape", [(2, 3), (0, 3)])
def test_arrays_of_other_shapes_have_no_picture(shape: tuple[int, int], tmp_path: Path) -> None:
    case = Case("mha", "cross", "full", "float32")
    row = Row("torch eager", case, "tape", "probs", np.inf, note=f"shape {shape}, expected (3, 2)")
    finding = Finding("torch eager", case.name, row, "t s", np.zeros(shape), np.zeros((3, 2)), np.zeros((3, 2)))
    page = page_of(tmp_path, Result([row]), [finding])
    assert "svg" not in page.tags
    assert f"Shape {shape}, expected (3, 2)." in page.text


@pytest.mark.parametrize(
    ("size", "at", "first", "last"), [(100, 0, 0, 48), (100, 50, 26, 74), (100, 99, 52, 100), (5, 3, 0, 5)]
)
def test_window_is_full_where_the_array_is_long_enough(size: int, at: int, first: int, last: int) -> None:
    assert pictures.window(size, at, 48) == slice(first, last)


def test_words_of_a_failure() -> None:
    row = Row("x", Case("mha", "cross", "full", "float32"), "tape", "q", 3.0, (1, 2), 1.5, -0.5, 0.25)
    assert cells.words(row) == "at (1, 2): got 1.5, expected -0.5, bound 0.25"
    assert cells.words(replace(row, note="shape (2,), expected (3,)")) == "shape (2,), expected (3,)"


@pytest.mark.parametrize(
    ("ratio", "name", "text"),
    [
        (0.0, "p0", "0"),
        (1e-9, "p1", "1e-9"),
        (0.001, "p1", "0.001"),
        (0.25, "p4", "0.25"),
        (0.9999, "p6", ">0.99"),
        (1.0, "p6", "1"),
        (np.nextafter(1.0, 2.0), "f1", "✗ >1"),
        (10.0, "f1", "✗ 10"),
        (2e7, "f4", "✗ 2e7"),
        (np.inf, "f4", "✗ fail"),
        (np.nan, "f4", "✗ fail"),
    ],
)
def test_shades_and_figures(ratio: float, name: str, text: str) -> None:
    assert cells.shade(ratio) == name
    assert cells.figure(ratio) == text


def test_script_shades_as_the_page_does() -> None:
    """The limits stand in the script too."""
    script = (Path(html.__file__).parent / "templates" / "report.js").read_text(encoding="utf-8")
    found = re.search(r"passes = \[(.*?)\], fails = \[(.*?)\]", script)
    assert found is not None
    assert tuple(map(float, found[1].split(","))) == cells.PASSES
    assert tuple(map(float, found[2].split(","))) == cells.FAILS


def test_every_shade_has_a_colour_in_light_and_dark() -> None:
    templates = Path(html.__file__).parent / "templates"
    style = "".join((templates / f"{name}.css").read_text(encoding="utf-8") for name in ("base", "report"))
    light, dark = re.findall(r":root \{(.*?)\}", style, flags=re.DOTALL)[:2]
    values = ["z", "x", *(f"{sign}{level + 1}" for sign in "nq" for level in range(pictures.VALUE_LEVELS))]
    for name in [name for name, _ in cells.legend()] + values:
        assert f"--{name}:" in light
        assert f"--{name}:" in dark
        assert re.search(rf"\.{name} \{{ --c: var\(--{name}\)", style)


# The command ----------------------------------------------------------------------------------------------------------


SMALL = ["--variants", "self_attention", "--dtypes", "float64", "--frameworks", "numpy,torch", "--calls", "full"]


def test_run_writes_the_report(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    result = CliRunner().invoke(app, ["run", *SMALL, "--no-real", "--jobs", "1", "--html", str(path)])
    assert result.exit_code == 0, result.output
    page = Page(path.read_text(encoding="utf-8"))
    assert "They agree" in page.text
    for words in ("self_attention", "torch eager", "numpy by hand", "float64"):
        assert words in page.text


def test_run_that_differs_writes_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = runner.judge

    def off(case, candidate, p):
        return [replace(row, ratio=5.0) if row.name == "probs" else row for row in whole(case, candidate, p=p)]

    monkeypatch.setattr(runner, "judge", off)
    path = tmp_path / "report.html"
    result = CliRunner().invoke(app, ["run", *SMALL, "--no-real", "--jobs", "1", "--html", str(path)])
    assert result.exit_code == 1
    page = Page(path.read_text(encoding="utf-8"))
    assert "They differ" in page.text
    assert "tape probs" in page.text


def test_check_writes_the_report(tmp_path: Path) -> None:
    import attn_np

    attn_np.save(attn_np.build("self_attention", d_model=7, head_dim=5), tmp_path / "layer.safetensors")
    path = tmp_path / "report.html"
    result = CliRunner().invoke(app, ["check", str(tmp_path / "layer.safetensors"), "--html", str(path)])
    assert result.exit_code == 0, result.output
    page = Page(path.read_text(encoding="utf-8"))
    assert "They agree" in page.text
    assert "attn-parity check layer.safetensors" in page.text


def test_report_in_a_folder_that_is_not_there_is_refused_before_any_work(tmp_path: Path) -> None:
    for command in (["run"], ["check", "layer.safetensors"]):
        result = CliRunner().invoke(app, [*command, "--html", str(tmp_path / "none" / "report.html")])
        assert result.exit_code == 2
        assert "folder that exists" in " ".join(result.output.split())
