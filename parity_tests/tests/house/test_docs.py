"""The documentation is true: every Python block on its pages runs, and prints what stands below it."""

import ast
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import attn_np
from attn_np import contract
from parity_tests.sync.passages import with_passages
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


# They take longer than all others together, and stand back with the lessons.
LONG_PAGES = ("docs/compare_modules.md", "docs/stories.md", "docs/systems.md")
OF_COURSE = (pytest.mark.course, pytest.mark.timeout(1800))


@pytest.mark.usefixtures("as_a_reader", "unchecked")
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=OF_COURSE) if page in LONG_PAGES else page for page in PAGES]
)
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


SYSTEM = re.compile(r"^### (?P<number>\d+)\. .*?(?=^##)", re.MULTILINE | re.DOTALL)
SYSTEMS = list(SYSTEM.finditer((ROOT / "docs/systems.md").read_text("utf-8")))
BESIDE = re.compile(
    r"^\| As commonly written \| Here, (?P<files>.*) \|\n\| --- \| --- \|\n(?P<rows>(?:\|.*\n)+)", re.MULTILINE
)


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda x: x[1])
def test_lines_beside_each_other_are_those_of_the_code(system: re.Match[str]) -> None:
    """The left ones stand in the class below the table, the right ones in the files that its head names, or below."""
    pasted = "".join(block.code for block in blocks(system[0]))
    table = BESIDE.search(system[0])
    assert table is not None
    files = re.findall(r"`([^`]*)`", table["files"])
    here = pasted + "".join((ROOT / file).read_text("utf-8") for file in files)
    rows = [row.strip("|").split(" | ") for row in table["rows"].splitlines()]
    assert len(rows) == 3
    for theirs, ours in rows:
        assert theirs.strip(" `") in pasted
        assert ours.strip(" `") in here


def test_the_fifteen_are_there_and_judged() -> None:
    """The decoder alone is judged as a part of the fifteenth."""
    assert [int(system["number"]) for system in SYSTEMS] == list(range(1, 16))
    assert [int(system["number"]) for system in SYSTEMS if "    assert_parity(" not in system[0]] == [14]


def test_passages_are_put_into_a_page_as_its_tables_leave_it(tmp_path: Path) -> None:
    """What `make sync` writes has both; a page whose tables are as they were is read."""
    (tmp_path / "docs/course").mkdir(parents=True)
    (tmp_path / "a.py").write_text("x = 1\n")
    page, other = (tmp_path / "docs/course" / name for name in ("01.md", "02.md"))
    for path in (page, other):
        path.write_text("old table\n\n<!-- passage | a.py -->\n")
    written = with_passages(tmp_path, {page: page.read_text().replace("old", "new")})
    assert written[page] == "new table\n\n<!-- passage | a.py -->\n\n```python a.py\nx = 1\n```\n"
    assert written[other] == written[page].replace("new", "old")


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
    "In the literature",
)  # fmt: skip


@pytest.mark.course
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("as_a_reader", "unchecked")
@pytest.mark.parametrize("lesson", LESSONS)
def test_lesson_does_what_it_says(lesson: str) -> None:
    """Its blocks print what stands below them, and every figure stands in its place."""
    text = LESSONS[lesson].read_text("utf-8")
    results = course.run_lesson(text, lesson)
    assert not course.mismatches(results, lesson)
    page = course.with_pictures(text, results, lesson, "notebook.ipynb")
    assert page.count("<svg") == sum(len(result.figures) for result in results)
    for name, image in course.files_of(text, results, lesson).items():
        kept = (ROOT / "docs/course/pictures" / name).read_text("utf-8")
        assert words_of(kept) == words_of(image), f"{name} is stale; run `make pictures`"


def words_of(svg: str) -> list[str]:
    """The words of a picture. The numbers at an axis are left out: where time is measured they differ in each run."""
    return [word for word in re.findall(r"<text[^>]*>([^<]*)<", svg) if re.search("[A-Za-z]", word)]


@pytest.mark.course
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("lesson", LESSONS)
def test_notebook_runs_with_numpy_alone(lesson: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a fresh kernel without PyTorch and JAX: optional cells may fail, the others print what the page says."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    made = nbformat.from_dict(course.notebook(LESSONS[lesson]))
    nbformat.validate(made)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    hidden = nbformat.v4.new_code_cell("import sys\nsys.modules.update(torch=None, jax=None, flax=None)")
    made["cells"] = [hidden, *(cell for cell in made["cells"] if "install" not in cell["metadata"].get("tags", ()))]
    nbclient.NotebookClient(made, timeout=900, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for cell, block in zip(code_cells(made)[1:], blocks(LESSONS[lesson].read_text("utf-8")), strict=True):
        if "optional" not in cell["metadata"].get("tags", ()):
            printed = "".join(out["text"] for out in cell["outputs"] if out.get("name") == "stdout")
            assert printed == (block.prints or ""), cell["source"]


@pytest.mark.parametrize("lesson", LESSONS)
def test_lesson_is_whole(lesson: str) -> None:
    """It has every section, a formula, few lines of NumPy, the library's lines, two pictures, three exercises."""
    text = LESSONS[lesson].read_text("utf-8")
    title, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    assert re.match(r"# \S.*\n\n> ", title), "a lesson begins with its title and its question"
    assert tuple(section.partition("\n")[0] for section in sections) == SECTIONS
    idea, formula, plain, library, backward, experiment, exercises, mistakes, literature = sections
    assert "$$" in formula
    code = blocks(plain)[0].code
    assert len(code.splitlines()) <= 25
    assert "attn_" not in code
    assert "<!-- passage | " in library
    assert blocks(backward)
    assert course.DRAWN.search(idea)
    assert course.DRAWN.search(experiment)
    assert blocks(mistakes)
    answers = re.findall(r"^\*\*\d\. .*?^<details><summary>Answer</summary>\n(.*?)^</details>$", exercises, re.M | re.S)
    assert [len(blocks(answer)) > 0 for answer in answers][:3] == [True] * 3
    assert literature.count("](https://") >= 3


@pytest.mark.parametrize("lesson", [*LESSONS, "index"])
def test_a_lesson_is_plain_markdown(lesson: str) -> None:
    """A code host shows it as it is meant: no directive, every picture and every link in the clone, narrow code."""
    path = course.COURSE / f"{lesson}.md"
    text = path.read_text("utf-8")
    assert not re.findall(r"^:{3,}.*|^[`~]{3,}\{.*|\{[a-z-]+\}`.*", text, re.MULTILINE)
    assert text.count("<details>") == text.count("</details>")
    assert not dead_links(path)
    code = [fence["body"] for fence in reader.FENCE.finditer(text) if fence["info"].strip() in ("python", "py")]
    assert [line for block in code for line in block.splitlines() if len(line) > 88] == []
    assert course.with_marks(text) == text, "a block needs more than NumPy; `make pictures` writes the marks"
    drawn = list(course.DRAWN.finditer(text))
    assert [int(figure["number"]) for figure in drawn] == list(range(1, len(drawn) + 1))
    assert text.count("](pictures/") == len(drawn)


def test_every_term_is_named_in_its_lesson() -> None:
    """In bold, where the glossary says; and the glossary names no term twice."""
    found = course.terms()
    assert len({term for term, _, _ in found}) == len(found) >= 60
    for term, chinese, page in found:
        text = (ROOT / "docs" / page).read_text("utf-8")
        bold = " ".join(" ".join(part.split()).lower() for part in re.findall(r"\*\*([^*]+)\*\*", text))
        assert any(name.lower() in bold for name in term.split(", ")), f"{page} does not name {term} in bold"
        assert re.search(r"[\u4e00-\u9fff]", chinese), f"{term} has no Chinese name"


def test_the_site_links_the_same_page_in_the_other_language() -> None:
    text = "# Title\nwords\n"
    in_chinese, in_english = (course.with_other_language(text, f"{tree}course/01_attention") for tree in ("", "zh/"))
    assert in_chinese == "# Title\n\n[中文](../zh/course/01_attention.md)\nwords\n"
    assert in_english == "# Title\n\n[English](../../course/01_attention.md)\nwords\n"
    assert course.with_other_language(text, "conventions") == text


def test_the_site_finds_a_chinese_term_on_the_chinese_page() -> None:
    """Where there is one, else on the English page."""
    english, chinese = (course.with_terms("# Title\nwords\n", f"{tree}course/01_attention") for tree in ("", "zh/"))
    assert "! single: attention weights\n" in english and "注意力权重" not in english
    assert "! single: 注意力权重\n" in chinese and "attention weights" not in chinese
    both = course.with_terms("# Title\nwords\n", "course/14_real_model")
    assert "! single: attention sink\n" in both and "! single: 注意力汇聚点\n" in both


def test_pictures_of_lessons_are_small_and_none_is_left_over() -> None:
    files = {path.name: path.stat().st_size for path in (course.COURSE / "pictures").iterdir()}
    shown = {drawn["file"] for path in LESSONS.values() for drawn in course.DRAWN.finditer(path.read_text("utf-8"))}
    assert set(files) == shown
    assert max(files.values()) < 200_000


@pytest.mark.parametrize("page", PAGES)
def test_links_of_a_page_work_in_a_clone(page: str) -> None:
    assert not dead_links(ROOT / page)


def dead_links(path: Path) -> list[str]:
    """What a page links and a clone does not have."""
    prose = re.sub(r"`[^`\n]*`", "", reader.FENCE.sub("", path.read_text("utf-8")))
    return [target for target, _ in course.LINK.findall(prose) if target and not (path.parent / target).exists()]


def test_a_block_that_needs_more_than_numpy_is_known() -> None:
    """By its imports, by a name of a block that has some, until a block without them binds the name again."""
    parts = ["import numpy as np", "import jax", "x = jax.numpy.ones(3)", "y = x + 1", "y = np.ones(2)", "print(y)"]
    text = "\n".join(f"```python\n{part}\n```" for part in parts)
    assert sorted(course.optional_lines(text)) == [5, 8, 11]
    marked = course.with_marks(text)
    assert marked.count(course.OPTIONAL) == 3 and course.with_marks(marked) == marked
    parameter = "```python\nimport jax\nfor a in jax.devices(): pass\n```\n```python\nf = lambda a: a\n```"
    assert sorted(course.optional_lines(parameter)) == [2]
    with_function = "```python\nfrom attn_torch import build\n```\n```python\ndef f():\n    return build\n```"
    assert sorted(course.optional_lines(with_function)) == [2, 5]


@pytest.mark.parametrize("lesson", LESSONS)
def test_notebook_has_the_blocks_and_nothing_of_the_site(lesson: str) -> None:
    made, text = course.notebook(LESSONS[lesson]), LESSONS[lesson].read_text("utf-8")
    code = [cell["source"] for cell in code_cells(made)]
    prose = "\n".join(cell["source"] for cell in made["cells"] if cell["cell_type"] == "markdown")
    assert code == [block.code.strip("\n") for block in blocks(text)]
    assert not re.search(r"^:|^```+\{|\.md[#)]|^\{[\w-]+\}|<!--|\]\(pictures/", prose, re.MULTILINE)
    excerpts = re.findall(r"^```python\n(.*?)^```$", prose, re.MULTILINE | re.DOTALL)
    assert len(excerpts) == text.count("<!-- passage | ")
    for excerpt in excerpts:
        ast.parse(excerpt)  # one that ends within a call may leave out the line that the page speaks of
    assert len({cell["id"] for cell in made["cells"]}) == len(made["cells"])
    assert prose.count("<details>") == prose.count("</details>")


def code_cells(made: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells that are blocks of the lesson."""
    cells = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    return [cell for cell in cells if "install" not in cell["metadata"].get("tags", ())]


@pytest.mark.parametrize("lesson", LESSONS)
def test_notebook_links_folds_its_answers_and_installs_the_clone(lesson: str) -> None:
    """Links lead to notebooks and pages of the site; the edition without answers has empty cells instead."""
    path = LESSONS[lesson]
    made, bare = course.notebook(path), course.notebook(path, answers=False)
    (install,) = [cell for cell in made["cells"] if "install" in cell["metadata"].get("tags", ())]
    assert re.search(r"^%pip install -q \. ", install["source"], re.MULTILINE) and made["cells"].index(install) == 1
    prose = "\n".join(cell["source"] for cell in made["cells"] if cell["cell_type"] == "markdown")
    targets = [target for target, _ in course.LINK.findall(prose)]
    assert targets
    for target in targets:
        source = path.parent / re.sub(r"\.(ipynb|html)$", ".md", target)
        contract = ROOT / "attn_np/contract" / f"{source.stem}.py"
        assert source.exists() or ("variants/" in target and (contract.exists() or source.stem == "index")), target
    text = path.read_text("utf-8")
    solutions = [cell for cell in code_cells(made) if "solution" in cell["metadata"].get("tags", ())]
    within = sum(len(blocks(answer[0])) for answer in course.ANSWER.finditer(text))
    assert len(solutions) == within >= 3
    assert all(cell["metadata"]["jupyter"] == {"source_hidden": True, "outputs_hidden": True} for cell in solutions)
    empty = [cell for cell in bare["cells"] if "exercise" in cell["metadata"].get("tags", ())]
    assert len(empty) == len(course.ANSWER.findall(text)) and not any(cell["source"] for cell in empty)
    assert not [cell for cell in bare["cells"] if "solution" in cell["metadata"].get("tags", ())]
    assert "<summary>Answer</summary>" in prose
    assert "<summary>Answer</summary>" not in "\n".join(cell["source"] for cell in bare["cells"])
    optional = [cell for cell in code_cells(made) if "optional" in cell["metadata"].get("tags", ())]
    assert len(optional) == len(course.optional_lines(text))
    assert all("raises-exception" in cell["metadata"]["tags"] for cell in optional)


@pytest.mark.usefixtures("as_a_reader")
def test_a_notebook_has_the_outputs_of_its_cells() -> None:
    made = course.notebook(LESSONS["01_attention"], course.run_lesson(*page_of("01_attention")))
    cells = code_cells(made)
    shown = blocks(page_of("01_attention")[0])
    printed = ["".join(out["text"] for out in cell["outputs"] if out.get("name") == "stdout") for cell in cells]
    assert printed == [block.prints or "" for block in shown]
    drawn = [out for cell in cells for out in cell["outputs"] if "data" in out]
    assert len(drawn) == page_of("01_attention")[0].count("](pictures/")
    assert all(out["data"]["image/svg+xml"].startswith("<svg") for out in drawn)


def page_of(lesson: str) -> tuple[str, str]:
    return LESSONS[lesson].read_text("utf-8"), lesson


@pytest.mark.usefixtures("as_a_reader")
def test_a_lesson_that_says_something_else_is_noticed() -> None:
    drawing = "```python\nimport matplotlib.pyplot as plt\n_ = plt.plot([0, 1])\n```\n"
    printing = "```python\nprint(1)\n```\n```text\n2\n```\n"
    drawn = "![Figure 1](pictures/page_1.svg)\n\n**Figure 1.** A line.\n\n"
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
    inner = "```python\na, b = rng.random(), 2\n```\n```python\nprint(b)\n```\n"
    answer = f"<details><summary>Answer</summary>\n\n{inner}\n</details>\n\n"
    first = np.random.default_rng(0).random()
    printing = f"```python\nprint(a, rng.random())\n```\n```text\n1 {first}\n```\n"
    assert not course.mismatches(course.run_lesson(setting + answer + printing, "page"), "page")
    with pytest.raises(NameError, match="'b' is not defined"):
        course.run_lesson(f"{setting}{answer}```python\nprint(b)\n```\n", "page")


# Pages of the variants ------------------------------------------------------------------------------------------------


def drawn_numbers(svg: str) -> list[str]:
    """The numbers of a picture's maps, in the order in which they are drawn."""
    return re.findall(r'font-size="13" text-anchor="middle" class="map-[a-z-]*">([^<]*)<', svg)


@pytest.mark.parametrize("variant", contract.variants())
def test_variant_page(variant: str) -> None:
    """Every contract makes a page: its formula can be drawn, its layer gives a picture, its axes have a meaning."""
    pages, formulas = extension("variants"), extension("formulas")
    config = contract.get(variant).Config
    drawn = pages.picture(variant)
    text = pages.page(variant, drawn)
    assert drawn is not None and drawn.svg.count("<svg") == 1
    assert formulas.svg(config.formula, display=True).count("<path") == 1
    assert text.startswith(f"# {config.title}\n")
    for name in config.fields():
        assert pages.meanings(config).get(name), f"{variant}: the docstring of Config has no line for {name}"
    for example in contract.examples(variant).values():
        axes = [p.axes for p in example.params().values()] + [a.axes for a in example.arguments().values()]
        unknown = {letter for each in axes for letter in each.split()} - set(pages.LETTERS)
        assert not unknown, f"{variant}: give the axis letters {unknown} a meaning in docs/_ext/variants.py"


@pytest.mark.parametrize("variant", contract.variants())
def test_a_picture_shows_the_quantity_that_its_caption_names(variant: str) -> None:
    """The weights that the layer itself returns, or the array of that name; their numbers stand in the cells."""
    ideas, pictures = extension("ideas"), extension("pictures")
    drawn, found, idea = ideas.picture(variant), ideas.run(variant), ideas.IDEAS.get(variant, ideas.Idea())
    if drawn.caption.startswith("The weights") or " The weights of each query" in drawn.caption:
        if "return_weights" in inspect.signature(type(found.layer).__call__).parameters:
            returned = np.asarray(found.layer(**found.given, return_weights=True)[-1])
            returned = returned[:, :, 0] if returned.ndim == 5 else returned  # of windows the first
            shown = drawn.shown[-1:] if variant == "differential" else drawn.shown
            assert np.array_equal(shown, returned[0][: len(shown)] if returned.ndim == 4 else returned[:1])
        if "weights_add_up_to_one" not in found.config.broken_relations():
            assert (abs(drawn.shown.sum(axis=-1) - 1) <= drawn.shown.shape[-1] * np.finfo(float).eps).all()
    else:
        (name,) = [name for name in re.findall(r"`([^`]*)`", drawn.caption) if name in found.tape]
        assert idea.array in ("", name)
    if variant != "rotary":
        shown = [number.replace("−", "") for number in drawn_numbers(drawn.svg)]
        numbers = [pictures.number(abs(x)) for x in drawn.shown.ravel()]
        hidden = drawn.svg.count('fill="url(#hidden)"')
        assert len(shown) + hidden == len(numbers)
        assert shown == numbers if not hidden else [x for x in shown if x != "0"] == [x for x in numbers if x != "0"]


def fades_by_distance(shown: np.ndarray, found: Any) -> None:
    for bias, slope in zip(shown, attn_np.alibi_slopes(found.config.num_heads), strict=False):
        assert np.array_equal(bias, np.tril(-slope * (np.arange(6)[:, None] - np.arange(6))))


def is_a_power_of_the_distance(shown: np.ndarray, found: Any) -> None:
    distance = np.arange(6)[:, None] - np.arange(6)
    for decay, log in zip(shown, found.config.log_decays(), strict=True):
        exact = np.where(distance >= 0, np.exp(log * distance), 0.0)
        assert (abs(decay - exact) <= 8 * np.finfo(float).eps * exact).all()


def turns_each_pair_at_its_speed(points: np.ndarray, found: Any) -> None:
    angles = np.unwrap(np.arctan2(points[..., 1], points[..., 0]), axis=0)
    speeds = found.config.rope_base ** (-np.arange(3) / 3)
    assert (abs(np.diff(angles, axis=0) - speeds) <= 32 * np.finfo(float).eps).all()


def shares_in_pairs(shown: np.ndarray, found: Any) -> None:
    assert np.array_equal(shown[0], np.kron(np.eye(2), np.ones((2, 2))))


def adds_up_to_1(shown: np.ndarray, found: Any) -> None:
    assert (abs(shown.sum(axis=-1) - 1) <= 8 * np.finfo(float).eps).all()


def ends_with_the_sum_of_all(shown: np.ndarray, found: Any) -> None:
    tape = found.tape
    scores = np.where(tape["allowed"][0], tape["q"][0] @ tape["k"][0].T / np.sqrt(tape["q"].shape[-1]), -np.inf)
    total = np.exp(scores - scores.max(axis=-1, keepdims=True)).sum(axis=-1)
    assert (abs(shown[-1] - total) <= 64 * np.finfo(float).eps * total).all()


def adds_one_product_at_each_position(states: np.ndarray, found: Any) -> None:
    features, values = found.tape["k_features"][0, :, 0], found.tape["v"][0, :, 0]
    products = np.einsum("tk,tv->tkv", features, np.concatenate([values, np.ones((len(values), 1))], axis=1))
    assert (
        abs(states - np.cumsum(products, axis=0)) <= 16 * np.finfo(float).eps * np.cumsum(abs(products), axis=0)
    ).all()


def sums_the_gates_from_the_key_on(positions: np.ndarray, found: Any) -> None:
    gates = found.tape["gates"][0]
    sums = np.cumsum(gates[..., ::-1], axis=-1)[..., ::-1]
    assert (abs(positions - sums) <= 16 * np.finfo(float).eps * sums).all()
    assert not np.triu(positions, 1).any() and (positions > 0).any()


# What the first sentence of a caption says, asked of the numbers that are drawn.
CLAIMS = {
    "alibi": fades_by_distance,
    "blockwise": ends_with_the_sum_of_all,
    "cope": sums_the_gates_from_the_key_on,
    "gqa": shares_in_pairs,
    "linear": adds_one_product_at_each_position,
    "retention": is_a_power_of_the_distance,
    "ring": ends_with_the_sum_of_all,
    "rotary": turns_each_pair_at_its_speed,
    "sinks": adds_up_to_1,
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_picture_shows_what_its_caption_says(claim: str) -> None:
    ideas = extension("ideas")
    CLAIMS[claim](ideas.picture(claim).shown, ideas.run(claim))


def test_the_first_picture_is_the_head_that_its_caption_names() -> None:
    """Each line of the README's picture is a weight of the head, up to its rounding; three packages, one number."""
    landing = extension("landing")
    words, found = landing.weights()
    kept, now = landing.PICTURE.read_text("utf-8"), landing.draw(words, found)
    width = re.compile(r'stroke-width="([0-9.]+)"')
    drawn, computed = (np.array(width.findall(svg), float) for svg in (kept, now))
    assert width.sub("", kept) == width.sub("", now)
    assert np.rint(100 * abs(drawn - computed)).max() <= 1
    weight = {f"{p[words.index('it'), words.index('animal')]:.5f}" for p in found.values()}
    assert len(weight) == 1
    assert kept.count(f">{weight.pop()}<") == 3


def test_the_reference_has_every_public_name() -> None:
    """In a section each, with a docstring; the layers have pages of their own."""
    found = [name for _, names in extension("functions").sections().values() for name, _ in names]
    assert len(found) == len(set(found))
    known = {name.rpartition(".")[2] for name in found}
    packages = [importlib.import_module(name) for name in ("attn_np", "attn_jax", "attn_torch", "parity_tests")]
    public = {name for package in packages for name in package.__all__}
    public |= {name for package in packages[:3] for name in package.drop_in.__all__}
    assert public - known == {"drop_in", "parallel", "patterns", "terms", *contract.variant_by_class_name()}
    text = extension("functions").reference()
    assert all(
        re.search(rf"^### `{re.escape(name)}`\n(?:\n```\n[^`]*```\n)?\n[^#\n]", text, re.MULTILINE) for name in found
    )


def test_formulas_of_code_are_those_of_the_strings() -> None:
    """A product is the sum over the letters that the result lacks; its gradients exchange an operand and the result."""
    sources = extension("sources")
    lines = """
def forward(self):
    scores = record(tape, scores=einsum("bthk,bshk->bhts", q, k) * factor)
    y = linear("bthv,hvd->btd", context, self.w_o, self.b_o)
    z = softmax(tanh(y), allowed, axis)
    n = x.shape[0]
"""
    (function,) = ast.parse(lines).body
    assert [formula for _, formula in sources.formulas_of(function)] == [
        r"\mathrm{scores}_{bhts} = \sum_{k} q_{bthk}\, k_{bshk} \, \mathrm{factor}",
        r"y_{btd} = \sum_{hv} \mathrm{context}_{bthv}\, \mathrm{w\_o}_{hvd} + \mathrm{b\_o}_{d}",
        r"z = \mathrm{softmax}(\mathrm{tanh}(y))",
    ]
    parts = ast.parse("(a - b)[:, None] * (c / 2)", mode="eval").body
    assert sources.latex(parts) == r"(a - b) \, (c / 2)"
    call = ast.parse('linear_vjp("btd,dk->btk", x, self.w, self.b, dy)', mode="eval").body
    assert sources.pulled_back(call, ["dx", "dw", "db"]) == [
        r"\mathrm{dx}_{btd} = \sum_{k} \mathrm{dy}_{btk}\, w_{dk}",
        r"\mathrm{dw}_{dk} = \sum_{bt} x_{btd}\, \mathrm{dy}_{btk}",
        r"\mathrm{db}_{k} = \sum_{bt} \mathrm{dy}_{btk}",
    ]


def test_a_recurrence_is_shown_as_the_layer_calls_it() -> None:
    """The page has the recurrence after the decay that it needs, without the branches that the layer does not take."""
    written = {"gla": [], "kda": [r"\mathrm{v\_new}_{bgv} = v - \sum_{k} k_{bgk}\, \mathrm{decayed}_{bgkv}"]}
    for variant, expected in written.items():
        rows = extension("sources").line_by_line(ROOT / f"attn_np/{variant}.py")
        names = [line.removeprefix("recurrent: ").partition(" = ")[0] for line, _ in rows]
        assert (
            r"recurrent: decayed = decay[..., None] * state",
            r"\mathrm{decayed} = \mathrm{decay} \, \mathrm{state}",
        ) in rows
        order = [names.index(name) for name in ("decay", "decayed", "state", "out", "y")]
        assert order == sorted(order)
        assert [formula for _, formula in rows if r"\mathrm{decayed}_" in formula] == expected


@pytest.mark.usefixtures("as_a_reader", "unchecked")
@pytest.mark.parametrize("variant", contract.variants())
def test_variant_page_shows_a_call_that_works(variant: str) -> None:
    """The call that a variant's page shows runs in all three trees and prints the same names."""
    pages = extension("variants")
    shown = "\n".join(pages.use(variant))
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
