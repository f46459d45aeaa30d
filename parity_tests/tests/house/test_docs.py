"""The documentation is true: every Python block on its pages runs, and prints what stands below it."""

import importlib
import os
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from attn_np import contract
from parity_tests.tests.transforms import tables

ROOT = Path(__file__).parents[3]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md")])

pytest.importorskip("torch")
pytest.importorskip("jax")
pytest.importorskip("matplotlib")
pytest.importorskip("sphinx")


def extension(name: str) -> ModuleType:
    """A module of docs/_ext, loaded without leaving its folder on the path."""
    folder = str(ROOT / "docs" / "_ext")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


reader, course = extension("blocks"), extension("course")
blocks, passages, run = reader.blocks, reader.passages, reader.run


@pytest.fixture
def as_a_reader(tmp_path: Path) -> Iterator[None]:
    """The frameworks as after installation, whatever other tests have set; a folder of its own, with the examples."""
    import jax
    import torch

    defaults = {"jax_enable_x64": False, "jax_numpy_dtype_promotion": "standard", "jax_numpy_rank_promotion": "allow"}
    before, here = {name: getattr(jax.config, name) for name in defaults}, Path.cwd()
    for name, value in defaults.items():
        jax.config.update(name, value)
    dtype, path = torch.get_default_dtype(), sys.path[:]
    torch.set_default_dtype(torch.float32)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    os.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        yield
    os.chdir(here)
    sys.path[:] = path
    torch.set_default_dtype(dtype)
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.usefixtures("as_a_reader", "unchecked")
@pytest.mark.parametrize("page", PAGES)
def test_page_does_what_it_says(page: str) -> None:
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks((ROOT / page).read_text("utf-8")):
        printed = run(block, page, names)
        if block.prints is not None:
            assert printed == block.prints, f"{page}, block in line {block.line}"


@pytest.mark.parametrize("page", PAGES)
def test_page_quotes_what_stands_in_the_file(page: str) -> None:
    for file, passage in passages((ROOT / page).read_text("utf-8")):
        assert passage in (ROOT / file).read_text("utf-8"), f"{page} quotes a passage that {file} does not have"


def test_blocks_are_found() -> None:
    """The reader of pages itself: what counts as output, and on which line a block stands."""
    text = "a\n```python\nx = 1\nprint(x)\n```\n\n```text\n1\n```\n```python\nx\n```\nprose\n```text\nno output\n```\n"
    assert blocks(text) == [reader.Block(3, "x = 1\nprint(x)\n", "1\n"), reader.Block(11, "x\n", None)]
    assert passages("```python a/b.py\nx = 1\n```\n```python\ny\n```\n") == [("a/b.py", "x = 1\n")]
    assert run(reader.Block(3, "x = 1\nprint(x)\n", None), "page", {}) == "1\n"


def test_pages_have_blocks_with_output() -> None:
    shown = [b for page in PAGES for b in blocks((ROOT / page).read_text("utf-8")) if b.prints is not None]
    assert shown


def test_the_readme_is_short() -> None:
    """Whoever comes by sees in half a minute what this is; the rest is a link."""
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) < 140


# Lessons --------------------------------------------------------------------------------------------------------------


LESSONS = {path.stem: path for path in course.lessons()}
SECTIONS = (
    "The idea", "The formula", "In plain NumPy", "In the library", "Backward", "Experiment", "Exercises", "Mistakes",
)  # fmt: skip


@pytest.mark.course
@pytest.mark.usefixtures("as_a_reader", "unchecked")
@pytest.mark.parametrize("lesson", LESSONS)
def test_lesson_does_what_it_says(lesson: str) -> None:
    """Its blocks print what stands below them, and every figure stands in its place."""
    text = LESSONS[lesson].read_text("utf-8")
    results = course.run_lesson(text, lesson)
    assert not course.mismatches(results, lesson)
    page = course.with_pictures(text, results, lesson, "notebook.ipynb")
    assert page.count("<svg") == sum(len(result.figures) for result in results)


@pytest.mark.course
@pytest.mark.parametrize("lesson", LESSONS)
def test_notebook_runs_in_a_fresh_kernel(lesson: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom, and its cells print what the page says."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    made = nbformat.from_dict(course.notebook(LESSONS[lesson]))
    nbformat.validate(made)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    nbclient.NotebookClient(made, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = [
        "".join(out["text"] for out in cell["outputs"] if out.get("name") == "stdout")
        for cell in made["cells"]
        if cell["cell_type"] == "code"
    ]
    shown = blocks(LESSONS[lesson].read_text("utf-8"))
    assert printed == [block.prints or "" for block in shown]


@pytest.mark.parametrize("lesson", LESSONS)
def test_lesson_is_whole(lesson: str) -> None:
    """It has every section, a formula, few lines of NumPy, the library's lines, two pictures, three exercises."""
    text = LESSONS[lesson].read_text("utf-8")
    title, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    assert re.match(r"# \S.*\n\n> ", title), "a lesson begins with its title and its question"
    assert tuple(section.partition("\n")[0] for section in sections) == SECTIONS
    idea, formula, plain, library, backward, experiment, exercises, mistakes = sections
    assert "$$" in formula
    code = blocks(plain)[0].code
    assert len(code.splitlines()) <= 25
    assert "attn_" not in code
    assert "{literalinclude}" in library
    assert blocks(backward)
    assert ":::{drawn}" in idea
    assert ":::{drawn}" in experiment
    assert blocks(mistakes)
    answers = re.findall(r"^\*\*\d\. .*?^:::\{dropdown\} Answer\n(.*?)^:::$", exercises, re.MULTILINE | re.DOTALL)
    assert [len(blocks(answer)) > 0 for answer in answers] == [True] * 3


@pytest.mark.parametrize("lesson", LESSONS)
def test_notebook_has_the_blocks_and_nothing_of_the_site(lesson: str) -> None:
    made, text = course.notebook(LESSONS[lesson]), LESSONS[lesson].read_text("utf-8")
    code = [cell["source"] for cell in made["cells"] if cell["cell_type"] == "code"]
    prose = "\n".join(cell["source"] for cell in made["cells"] if cell["cell_type"] == "markdown")
    assert code == [block.code.strip("\n") for block in blocks(text)]
    assert not re.search(r"^:::|^```\{|\.md\)|^:pyobject:", prose, re.MULTILINE)
    assert prose.count("\n```python\n") == text.count("{literalinclude}")
    assert len({cell["id"] for cell in made["cells"]}) == len(made["cells"])


@pytest.mark.usefixtures("as_a_reader")
def test_a_lesson_that_says_something_else_is_noticed() -> None:
    drawing = "```python\nimport matplotlib.pyplot as plt\n_ = plt.plot([0, 1])\n```\n"
    printing, drawn = "```python\nprint(1)\n```\n```text\n2\n```\n", ":::{drawn}\nA line.\n:::\n"
    (message,) = course.mismatches(course.run_lesson(printing, "page"), "page")
    assert message == "page, block in line 2: expected it to print\n2\ngot\n1\n"
    text = f"# Title\n{drawing}{drawn}"
    assert "<svg" in course.with_pictures(text, course.run_lesson(text, "page"), "page", "page.ipynb")
    for wrong in (f"{drawn}{drawing}", f"{printing}{drawn}", f"{drawing}{printing}{drawn}"):
        with pytest.raises(ValueError, match="expected one figure of the block above, got 0; draw one"):
            course.with_pictures(wrong, course.run_lesson(wrong, "page"), "page", "page.ipynb")


@pytest.mark.usefixtures("as_a_reader")
def test_what_follows_an_answer_does_not_need_it() -> None:
    """A reader who answers an exercise otherwise gets the same numbers below."""
    setting = "```python\nimport numpy as np\nrng, a = np.random.default_rng(0), 1\n```\n"
    answer = ":::{dropdown} Answer\n```python\na, b = rng.random(), 2\n```\n```python\nprint(b)\n```\n:::\n"
    first = np.random.default_rng(0).random()
    printing = f"```python\nprint(a, rng.random())\n```\n```text\n1 {first}\n```\n"
    assert not course.mismatches(course.run_lesson(setting + answer + printing, "page"), "page")
    with pytest.raises(NameError, match="'b' is not defined"):
        course.run_lesson(f"{setting}{answer}```python\nprint(b)\n```\n", "page")


# Pages of the variants ------------------------------------------------------------------------------------------------


# Weights that do not add up to 1: a sink takes a share, a second map is subtracted, keys do not compete.
OTHER_SUMS = ("decoder", "differential", "sigmoid_attention", "sinks")


def drawn_rows(svg: str) -> list[list[float]]:
    """The numbers in each row of a picture's maps."""
    cells = re.findall(r'y="([\d.]+)" font-size="13" text-anchor="middle" fill="[^"]*">([^<]*)<', svg)
    numbers = [(y, float(number.replace("−", "-"))) for y, number in cells]
    return [[number for _, number in row] for _, row in groupby(numbers, key=lambda cell: cell[0])]


@pytest.mark.parametrize("variant", contract.variants())
def test_variant_page(variant: str) -> None:
    """Every contract makes a page: its formula can be drawn, its layer gives a picture, its axes have a meaning."""
    pages, formulas = extension("variants"), extension("formulas")
    config = contract.get(variant).Config
    drawn = pages.picture(variant)
    text = pages.page(variant, drawn)
    assert drawn is not None and drawn[0].count("<svg") == 1 and drawn[0].count("<rect") > 1
    if "attention weights" in drawn[0] and variant not in OTHER_SUMS:
        rows = drawn_rows(drawn[0])
        assert rows
        # Every number is rounded to two digits.
        assert all(abs(sum(row) - 1) <= 0.005 * len(row) for row in rows), rows
    assert formulas.svg(config.formula, display=True).count("<path") == 1
    assert text.startswith(f"# {config.title}\n")
    for name in config.fields():
        assert pages.meanings(config).get(name), f"{variant}: the docstring of Config has no line for {name}"
    for example in contract.examples(variant).values():
        axes = [p.axes for p in example.params().values()] + [a.axes for a in example.arguments().values()]
        unknown = {letter for each in axes for letter in each.split()} - set(pages.LETTERS)
        assert not unknown, f"{variant}: give the axis letters {unknown} a meaning in docs/_ext/variants.py"


@pytest.mark.usefixtures("as_a_reader", "unchecked")
@pytest.mark.parametrize("variant", contract.variants())
def test_variant_page_shows_a_call_that_works(variant: str) -> None:
    """The call that a variant's page shows runs in all three trees and prints the same names."""
    pages = extension("variants")
    shown = "\n".join(pages.use(variant, contract.examples(variant)))
    found = re.findall(r"^~~~python\n(.*?)^~~~$", shown, re.MULTILINE | re.DOTALL)
    assert len(found) == len(pages.TREES)
    printed = {run(reader.Block(1, code, None), variant, {}) for code in found}
    assert len(printed) == 1 and printed.pop().startswith("[")


def test_formula_that_cannot_be_drawn_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknownsymbol"):
        extension("formulas").svg(r"\unknownsymbol x")


def test_new_contract_gets_a_page(tmp_path: Path) -> None:
    """One page per variant and the catalogue; a page whose variant is gone disappears."""
    pages = extension("variants")
    (tmp_path / "gone.md").write_text("old")
    pages.write(tmp_path)
    found = {path.stem for path in tmp_path.glob("*.md")}
    assert found == {"index", *contract.variants()}


@pytest.mark.parametrize("tree", tables.TREES)
def test_the_page_of_transforms_names_every_one_and_what_is_exempt(tree: str) -> None:
    text = (ROOT / "docs/transforms.md").read_text("utf-8")
    section = text.partition(f"## {tables.TREES[tree]}\n")[2].partition("\n## ")[0]
    asked_of, exempt, elsewhere = tables.tables(tree)
    for name, asked in asked_of.items():
        assert f"| {name} | {asked} |" in section
    for (name, variant), reason in exempt.items():
        line = next(line for line in section.splitlines() if line.startswith(f"- {name}, not ") and reason in line)
        assert f"`{variant}`" in line
    assert {name for name, _ in exempt} | set(elsewhere) <= set(asked_of)
    assert {variant for _, variant in exempt} <= set(contract.variants())
