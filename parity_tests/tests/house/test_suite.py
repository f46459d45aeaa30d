"""The suite itself: what stands back for `--everything` exists, and tests that share work go to one process."""

import ast
import re
import shlex
import subprocess
from argparse import ArgumentTypeError
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from attn_np import contract
from parity_tests.tests import everything
from parity_tests.tests.conftest import OF_A_VARIANT, STANDING_BACK, group_of, part

FILES = {path.stem: path for path in Path(everything.__file__).parent.rglob("test_*.py")}
TESTS = {
    file: {node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)}
    for file, path in FILES.items()
}


def left_out(file: str, test: str, variant: str, first: bool, tree: str) -> bool:
    """Whether a test that exists stands back for `--everything`."""
    assert test in TESTS[file], f"expected a test of {file}, got {test}; name one that exists"
    return everything.left_out(file, test, variant, first, tree)


def test_the_lists_name_what_there_is() -> None:
    every = set().union(*TESTS.values())
    assert {*everything.WHOLE, *everything.KINDS} <= set(contract.variants())
    assert {*everything.FEW, *everything.FIRST} <= set(FILES)
    assert all(set(tests) <= TESTS[file] for file, tests in everything.FEW.items())
    assert set(everything.LONG) <= every
    assert {*everything.EVERY} <= {f"{file}::{test}" for file, tests in TESTS.items() for test in tests}
    assert {part.partition("::")[2] for part in OF_A_VARIANT} <= every


def rows_of(test: str) -> Iterator[set[str]]:
    """The names of the rows of each test of a name that has rows."""
    for file, path in FILES.items():
        if test in TESTS[file]:
            folders = path.relative_to(Path(everything.__file__).parent).with_suffix("").parts
            function: Any = getattr(import_module(".".join(("parity_tests", "tests", *folders))), test)
            for mark in getattr(function, "pytestmark", ()):
                if mark.name == "parametrize" and mark.args[0] == "row":
                    yield set(mark.args[1])


def test_rows_that_are_asked_by_default_are_some_of_their_tests() -> None:
    """A name that no row has would leave out all of them, and one for each row would leave out none."""
    asked = {test: [(set(names), rows) for rows in rows_of(test)] for test, names in everything.LONG.items()}
    assert sum(map(len, asked.values())) > 5
    for test, each in asked.items():
        assert all(names < rows for names, rows in each), test


@pytest.mark.parametrize("variant", contract.variants())
def test_every_variant_keeps_what_shows_most(variant: str) -> None:
    """Its witness and parity, conventions of what is hidden, and all transforms but those that compile alone."""
    for file, test in (
        ("test_witnesses", "test_scalar_loops"),
        ("test_parity", "test_agrees_with_the_reference"),
        ("test_conventions", "test_hidden_keys_influence_nothing"),
        ("test_transforms_jax", "test_eval_shape"),
        ("test_transforms_torch", "test_vmap"),
    ):
        assert not left_out(file, test, variant, True, "attn_np"), test


def test_little_is_asked_twice_of_what_reads_the_same() -> None:
    assert left_out("test_conventions", "test_strides_do_not_matter", "gqa", True, "attn_np")
    assert not left_out("test_conventions", "test_strides_do_not_matter", "decoder", True, "attn_np")
    assert left_out("test_conventions", "test_strides_do_not_matter", "decoder", False, "attn_np")
    assert left_out("test_conventions", "test_strides_do_not_matter", "decoder", True, "attn_jax")
    assert left_out("test_conventions", "test_strides_do_not_matter", "gru", False, "attn_jax")
    assert not left_out("test_conventions", "test_strides_do_not_matter", "gru", False, "attn_np")
    assert not left_out("test_conventions", "test_strides_do_not_matter", "gru", True, "attn_jax")


def test_jax_is_asked_for_its_own_part_of_each_variant() -> None:
    assert everything.asked_of_twins("test_gqa", {"attn_jax"})
    assert not everything.asked_of_twins("test_gqa", {"attn_torch"}) and not everything.asked_of_twins(
        "test_gqa", set()
    )
    assert not everything.asked_of_twins("test_mha", {"attn_jax"})


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("tool/test_parity.py::test_agrees_with_the_reference[mha-cross-jax]", "mha-cross"),
        ("contract/test_conventions.py::test_x[numpy-mha-cross]", "mha-cross"),
        ("transforms/test_sharding_jax.py::test_x[Auto]", "transforms/test_sharding_jax.py[Auto]"),
        ("transforms/test_sharding_jax.py::test_y[Auto/merged/one block]", "transforms/test_sharding_jax.py[Auto]"),
        (
            "transforms/test_transforms_jax.py::test_one_layer[jit-gated_delta]",
            "transforms/test_transforms_jax.py::test_one_layer[gated_delta]",
        ),
        ("house/test_house.py::test_x", "house/test_house.py"),
    ],
)
def test_tests_that_share_work_go_to_one_process(name: str, group: str) -> None:
    assert group_of(name) == group


def test_parts_of_what_is_left_out_are_named_by_number() -> None:
    assert part("2/3") == (2, 3)
    for words in ("0/3", "4/3", "3", "-1/3", "2/3/4"):
        with pytest.raises(ArgumentTypeError, match=f"expected K/N with K from 1 to N, such as 2/3, got '{words}'"):
            part(words)


ROOT = Path(everything.__file__).parents[2]


def left_out_calls() -> Iterator[list[str]]:
    """The words of each call of pytest in the Makefile that asks what the default leaves out."""
    make = ["make", "--dry-run", "INSTALL=0", "compiled", "sampled", "peers", "sweeps"]
    printed = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for line in printed.replace("\\\n", " ").splitlines():
        words = shlex.split(line) if " -m pytest " in line else []
        if {"--left-out", "--everything"} & {*words}:
            yield words[words.index("pytest") :]


def asks(words: list[str], path: Path, marks: frozenset[str] | None) -> bool:
    """Whether a call of pytest asks the tests of a file that have these marks and no other, or any."""
    chosen = words[words.index("-m") + 1].split(" and ") if "-m" in words and marks is not None else []
    places = [ROOT / word for word in words if word.startswith("parity_tests/")]
    ignored = [ROOT / word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")]
    return (
        any(path.is_relative_to(place) for place in places)
        and path not in ignored
        and all((mark.removeprefix("not ") in (marks or ())) != mark.startswith("not ") for mark in chosen)
    )


@pytest.mark.skipif(which("make") is None, reason="no make here")
def test_what_stands_back_is_asked_by_a_target(request: pytest.FixtureRequest) -> None:
    """Each file that the lists name, and by their marks all tests that this session collects: in `make test`, all."""
    calls = list(left_out_calls())
    assert len(calls) > 4
    named = {*everything.FEW, *everything.FIRST, *(name.partition("::")[0] for name in everything.EVERY)}
    named |= {file for file, tests in TESTS.items() if tests & everything.LONG.keys()}
    named |= {file for file, path in FILES.items() if re.search(r"\bmark\.left_out\b", path.read_text("utf-8"))}
    back = {(FILES[file], None) for file in named} | request.config.stash[STANDING_BACK]
    forgotten = [(path.name, marks) for path, marks in back if not any(asks(words, path, marks) for words in calls)]
    assert not forgotten, f"expected a target of the Makefile that asks {forgotten}; add them to SAMPLED"
