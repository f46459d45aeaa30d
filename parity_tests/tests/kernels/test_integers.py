"""Integers of every type, wherever a call takes integers: the same numbers as those of int64, in three trees."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attn_np import patterns
from parity_tests.tests.inputs import TREES, Tree, same

DTYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
X = np.random.default_rng(0).normal(size=(2, 5, 2, 4))
AT = np.array([[0, 1, 2, 3, 4], [3, 4, 0, 1, 2]])


def attend(tree: Tree, **options: Any) -> Any:
    x = tree.array(X)
    return tree.package.attend(x, x, x, **options)[0]


def in_layer(tree: Tree, variant: str, **arguments: Any) -> Any:
    fields: dict[str, Any] = {"rotary": {"max_positions": 9, "causal": True}, "segments": {"causal": True}}.get(
        variant, {}
    )
    layer = tree.package.build(variant, d_model=8, num_heads=2, dtype="float64", **fields)
    return layer(tree.array(X.reshape(2, 5, 8)), **arguments)


# By what is given: a call with an integer of each sequence, `b`, and one of each position, `b t`, as the tree has them.
CALLS: dict[str, Callable[[Tree, Any, Any], Any]] = {
    "lengths": lambda tree, n, at: attend(tree, lengths=n),
    "offset": lambda tree, n, at: attend(tree, causal=True, offset=n),
    "offset without axes": lambda tree, n, at: attend(tree, causal=True, offset=n[0]),
    "offset and lengths": lambda tree, n, at: attend(tree, window=(1, 0), offset=n, lengths=n),
    "terms by offset": lambda tree, n, at: attend(
        tree, offset=n, terms=tree.package.terms.Slopes(tree.array(np.array([0.5, 0.25])))
    ),
    "documents": lambda tree, n, at: attend(tree, pattern=patterns.Documents(at, at)),
    "prefix": lambda tree, n, at: attend(tree, pattern=patterns.Prefix(n) | patterns.Causal()),
    "chosen chunk": lambda tree, n, at: attend(tree, pattern=patterns.ChosenChunk(2, at) | patterns.Causal()),
    "angles": lambda tree, n, at: tree.package.rotary_angles(at, 4, dtype="float64")[0],
    "positions of rotate": lambda tree, n, at: tree.package.rotate(tree.array(X), at),
    "positions of a layer": lambda tree, n, at: in_layer(tree, "rotary", positions=at),
    "segments of a layer": lambda tree, n, at: in_layer(tree, "segments", segments=at),
    "prefix of a layer": lambda tree, n, at: in_layer(tree, "prefix", prefix=n),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", TREES)
def test_integers_of_every_type_are_the_same_numbers(name: str, call: str) -> None:
    tree, numbers = TREES[name], np.array([2, 4])
    dtypes = DTYPES if name != "jax" else ("uint16", "uint32")  # it compiles each

    def result(dtype: str) -> np.ndarray:
        return tree.numpy(CALLS[call](tree, tree.array(numbers.astype(dtype)), tree.array(AT.astype(dtype))))

    want = result("int64")
    assert all(same(result(dtype), want) for dtype in dtypes)


@pytest.mark.parametrize("name", TREES)
def test_buckets_of_signed_integers_of_every_type(name: str) -> None:
    """Also where the largest distance does not fit the type."""
    tree, apart = TREES[name], np.arange(-9, 10)
    for dtype in ("int8", "int16", "int32"):
        found, want = (tree.package.relative_buckets(tree.array(apart.astype(x))) for x in (dtype, "int64"))
        assert np.array_equal(tree.numpy(found), tree.numpy(want))
