"""The documentation is true: every Python block on its pages runs, and prints what stands below it.

On a page, blocks run from top to bottom and share their names, as a reader would type them. A block marked `text`
directly below a block marked `python` is what that one prints, to the letter. A block marked `python <file>` is a
passage of that file.
"""

import contextlib
import importlib
import io
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from attn_np import contract
from parity_tests.tests.transforms import tables

ROOT = Path(__file__).parents[3]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md")])
FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,})(?P<info>[^\n]*)\n(?P<body>.*?)^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL)

pytest.importorskip("torch")
pytest.importorskip("jax")


@dataclass(frozen=True)
class Block:
    """A Python block of a page: the line its code starts on, the code, and what it shall print (None: not shown)."""

    line: int
    code: str
    prints: str | None


def blocks(text: str) -> list[Block]:
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


@pytest.fixture
def as_a_reader(tmp_path: Path) -> Iterator[None]:
    """The frameworks as after installation, whatever other tests have set; a folder of its own, with the examples."""
    import jax
    import torch

    defaults = {"jax_enable_x64": False, "jax_numpy_dtype_promotion": "standard", "jax_numpy_rank_promotion": "allow"}
    before, here = {name: getattr(jax.config, name) for name in defaults}, Path.cwd()
    for name, value in defaults.items():
        jax.config.update(name, value)
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    os.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        yield
    os.chdir(here)
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
    assert blocks(text) == [Block(3, "x = 1\nprint(x)\n", "1\n"), Block(11, "x\n", None)]
    assert passages("```python a/b.py\nx = 1\n```\n```python\ny\n```\n") == [("a/b.py", "x = 1\n")]
    assert run(Block(3, "x = 1\nprint(x)\n", None), "page", {}) == "1\n"


def test_pages_have_blocks_with_output() -> None:
    shown = [b for page in PAGES for b in blocks((ROOT / page).read_text("utf-8")) if b.prints is not None]
    assert shown


# Pages of the variants ------------------------------------------------------------------------------------------------


def extension(name: str) -> ModuleType:
    """A module of docs/_ext, loaded without leaving its folder on the path."""
    folder = str(ROOT / "docs" / "_ext")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(folder)


@pytest.mark.parametrize("variant", contract.variants())
def test_variant_page(variant: str) -> None:
    """Every contract makes a page: its formula can be drawn, its layer gives a picture, its axes have a meaning."""
    pytest.importorskip("matplotlib")
    pages, formulas = extension("variants"), extension("formulas")
    config = contract.get(variant).Config
    drawn = pages.picture(variant)
    text = pages.page(variant, drawn)
    assert drawn is not None and drawn[0].count("<svg") == 1 and drawn[0].count("<rect") > 1
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
    printed = {run(Block(1, code, None), variant, {}) for code in found}
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
