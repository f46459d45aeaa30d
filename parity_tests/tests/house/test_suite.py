"""The suite itself: what stands back for `--everything` exists, and tests that share work go to one process."""

import ast
from argparse import ArgumentTypeError
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from attn_np import contract
from parity_tests.tests import everything
from parity_tests.tests.conftest import OF_A_VARIANT, group_of, part

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
        (f"test_{variant}", "test_scalar_loops"),
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
