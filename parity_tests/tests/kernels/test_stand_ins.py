"""Stand-ins have the arguments of their originals, and a bug in one of them is seen; so is one in a rotation."""

import re
from importlib import import_module
from inspect import Parameter, signature
from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import linen, nnx

import attn_jax
from parity_tests.mistakes import SHARED, Mutant, planted
from parity_tests.tests.inputs import TREES, Tree
from parity_tests.tests.kernels.test_drop_in import B, H, K, T, drawn, expected_of_jax, jax_case
from parity_tests.tests.witness import ratio

# Keyword arguments of ours: what dropout keeps, and in NumPy the tape.
OURS = ("keep", "tape")


def written(function: Any) -> list[str]:
    """Each argument that is not ours alone, with its default, and a star before those that are given by name."""
    found: list[str] = []
    for p in signature(function).parameters.values():
        if p.name not in OURS:
            star = "*" * (p.kind is Parameter.KEYWORD_ONLY)
            found.append(f"{star}{p.name}" + ("" if p.default is Parameter.empty else f"={p.default!r}"))
    return found


def test_arguments_are_those_of_the_originals() -> None:
    """Names, order and defaults, in all three trees."""
    text = re.search(r"\((.*?)\) -> Tensor", str(torch.nn.functional.scaled_dot_product_attention.__doc__), re.DOTALL)
    originals = {
        "scaled_dot_product_attention": text and re.split(r",\s*", text[1]),
        "dot_product_attention": written(jax.nn.dot_product_attention),
    }
    for name, want in originals.items():
        for tree in TREES.values():
            assert written(getattr(tree.package.drop_in, name)) == want, (name, tree.name)


def test_attention_fn_takes_what_modules_of_flax_give() -> None:
    """NNX's arguments in their order, but for the function that casts; and linen's, up to those for its products."""
    ours = written(attn_jax.drop_in.attention_fn)
    assert ours == [x for x in written(nnx.dot_product_attention) if not x.startswith("promote_dtype=")]
    last = "module=None"
    of_linen = written(linen.dot_product_attention)
    assert ours[: ours.index(last) + 1] == of_linen[: of_linen.index(last) + 1]


def of_torch(tree: Tree, drop_in: Any) -> bool:
    """Whether causality counts from the first key."""
    q, k = drawn(1, B, H, T, K), drawn(2, B, H, 7, K)
    arrays = [x.swapaxes(1, 2) for x in (q, k, k)]
    want, _, _ = expected_of_jax(
        arrays, {"is_causal": True, "local_window_size": None}, np.zeros((B, T, H, K)), "float64"
    )
    y = tree.numpy(drop_in.scaled_dot_product_attention(*map(tree.array, (q, k, k)), is_causal=True))
    return bool(ratio(y.swapaxes(1, 2), want["y"]) <= 1)


def of_jax(tree: Tree, drop_in: Any) -> bool:
    """Whether lengths, a window and a mask hide what they do there, and who sees nothing gets the mean."""
    arrays, options = jax_case(7, (1, 0), False, True, True)
    want, rows, _ = expected_of_jax(arrays, options, np.zeros((B, T, H, K)), "float64")
    given = {name: tree.array(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    y = tree.numpy(drop_in.dot_product_attention(*map(tree.array, arrays), **given))
    return bool(ratio(np.where(rows, y, want["y"].v), want["y"]) <= 1)


def of_rotation(tree: Tree, package: Any) -> bool:
    """Whether the first pair turns from its first dimension to its second."""
    x, places = np.zeros((1, 2, 1, 4)), np.arange(2)[None]
    x[..., 0] = 1
    y = tree.numpy(package.rotate(tree.array(x), tree.array(places), max_positions=2))
    rounding = np.finfo(np.float64).eps
    return bool(np.abs(y[0, 1, 0] - [np.cos(1), 0, np.sin(1), 0]).max() <= rounding)


LENGTHS = "[None, None, None, :] < key_value_seq_lengths[:, None, None, None]"
MEAN = "where(real_queries, where(sees_key, context, mean), 0.0)"
BUGS: dict[str, tuple[Any, str, str]] = {
    "causal from the last key": (of_torch, "if is_causal and t != s:", "if t < 0:"),
    "lengths of no keys": (of_jax, LENGTHS, "[None, None, None, :] < s"),
    "no mean": (of_jax, MEAN, "where(real_queries, context, 0.0)"),
    "turned back": (of_rotation, "sin, layout, inverse=inverse)", "sin, layout, inverse=not inverse)"),
}


@pytest.mark.parametrize("row", ["attn_np", "attn_jax", "attn_torch"])
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_in_one_function_is_seen(bug: str, row: str) -> None:
    tree = next(tree for tree in TREES.values() if tree.package.__name__ == row)
    check, old, new = BUGS[bug]
    part = "" if check is of_rotation else ".drop_in"
    assert check(tree, import_module(f"{row}{part}"))
    with planted(Mutant(bug, SHARED, old, new, "", ""), row) as alias:
        assert not check(tree, import_module(f"{alias}{part}"))
