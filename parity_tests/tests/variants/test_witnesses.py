"""The reference against the witness of each variant: scalar loops of its paper's formula, in the file of its tests."""

from importlib import import_module
from typing import Any

import pytest

from parity_tests.judge.cases import ALL_CALLS, Case
from parity_tests.tests.inputs import EXAMPLES
from parity_tests.tests.witness import disagreement

RELATIVE = ("disentangled", "shaw", "t5_bias", "transformer_xl")  # positions of keys count from the query's


def witness_of(variant: str) -> Any:
    return import_module(f"parity_tests.tests.variants.test_{variant}").witness


@pytest.mark.parametrize("call", ALL_CALLS)
@pytest.mark.parametrize(("variant", "example"), EXAMPLES)
def test_scalar_loops(variant: str, example: str, call: str) -> None:
    assert not disagreement(witness_of(variant), Case(variant, example, call, "float64"))


@pytest.mark.parametrize(("variant", "example"), [x for x in EXAMPLES if x[0] in RELATIVE])
def test_more_queries_than_keys(variant: str, example: str) -> None:
    """The first of them stand before the first key."""
    assert not disagreement(witness_of(variant), Case(variant, example, "full", "float64"), t=7, s=3)
