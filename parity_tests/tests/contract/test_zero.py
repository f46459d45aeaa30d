"""A number of 0 is that number, not one that was left out: of every field and argument that may be None."""

import inspect
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import attn_np
from attn_np import contract
from parity_tests.mistakes import SHARED, Mutant, planted
from parity_tests.tests.inputs import TREES, Arrays, Tree, flat, random_inputs, without
from parity_tests.tests.witness import cotangent

TINY = 2.0**-500  # what it multiplies is nothing beside any other number
# What has no 0: divisors, the bases of exponentials, limits, a factor on what is rotated; a softcap of 0 is none.
NO_ZERO = {"rope_base", "xpos", "rope_scaling_factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"}
NO_ZERO |= {"softcap", "clip_qkv", "qk_norm_eps", "attention_factor"}
CHOSEN = {("hard", "scale")}  # whose weights are a choice by the scores, however near these are


def optional_numbers() -> Iterator[tuple[str, str]]:
    """Every variant with each of its fields that is a number or None."""
    for variant in contract.variants():
        names = (field.name for field in fields(contract.get(variant).Config) if str(field.type) == "float | None")
        yield from ((variant, name) for name in names if name not in NO_ZERO and (variant, name) not in CHOSEN)


def with_number(variant: str, name: str, value: float | None) -> Any:
    """The first example in which the field may be a number, with this value and without dropout; None if refused."""
    for example in contract.examples(variant).values():
        try:
            config = without(replace(example, **{name: TINY}), dropout=0.0)
        except ValueError:
            continue
        try:
            return replace(config, **{name: value})
        except ValueError:  # fields that are given together
            return None
    raise LookupError(f"{variant}: no example with a number as {name}")


def same(a: Arrays, b: Arrays) -> bool:
    """Whether two calls of the same operations agree: of sums of fewer than 2^10 numbers, in any order."""
    assert list(a) == list(b)
    roundings = 2.0**10 * np.finfo(np.float64).eps
    pairs = zip(a.values(), b.values(), strict=True)
    return all(bool(np.all(np.abs(x - y) <= roundings * (1 + np.max(np.abs(x), initial=0.0)))) for x, y in pairs)


@pytest.mark.parametrize(("variant", "name"), list(optional_numbers()))
def test_a_field_of_0_is_not_a_field_of_none(variant: str, name: str) -> None:
    """Forward and backward a layer with 0 is one with a number next to 0, and not the one without."""

    def results(value: float | None) -> Arrays | None:
        config = with_number(variant, name, value)
        if config is None:
            return None
        inputs = {n: x for n, x in random_inputs(config, "plain").items() if n != "keep"}
        layer = TREES["numpy"].build(config)
        y = TREES["numpy"](layer, inputs)[0]
        return {"y": y} | TREES["numpy"].gradients(layer, inputs, cotangent(y.shape))

    zero, near, none = results(0.0), results(TINY), results(None)
    assert zero is not None and near is not None and same(zero, near)
    assert none is None or not same(zero, none)


# Functions ------------------------------------------------------------------------------------------------------------


def by_transformers(package: Any) -> Any:
    """The attention function of `transformers`, called as others are."""
    function = package.drop_in.transformers_attention
    return lambda q, k, v, scale: function(SimpleNamespace(is_causal=False), q, k, v, None, scaling=scale)[0]


def from_pages(package: Any) -> Any:
    """Attention to pages, of which each sequence has one."""
    array = torch.from_numpy if package.__name__ == "attn_torch" else np.asarray
    return partial(package.attend_paged, table=array(np.array([[0], [1]])), lengths=array(np.array([5, 4])))


# JAX's functions read as NumPy's, and each would be compiled.
ASKED = ("numpy", "torch")
# By function: in which trees, how it is found, and the axes of its q, k and v.
CALLS: dict[str, tuple[tuple[str, ...], Any, str]] = {
    "attend": (ASKED, lambda package: package.attend, "b t h k"),
    "attend_paged": (ASKED, from_pages, "b t h k"),
    "recur": (ASKED, lambda package: package.recur, "b t h k"),
    "dot_product_attention": (ASKED, lambda package: package.drop_in.dot_product_attention, "b t h k"),
    "scaled_dot_product_attention": (
        ASKED, lambda package: package.drop_in.scaled_dot_product_attention, "b h t k",
    ),
    "transformers_attention": (("torch",), by_transformers, "b h t k"),
}  # fmt: skip


def test_no_function_with_a_scale_is_left_out() -> None:
    rooms = attn_np, attn_np.drop_in
    functions = {name: getattr(room, name) for room in rooms for name in dir(room)}
    functions = {name: x for name, x in functions.items() if inspect.isfunction(x)}
    scaled = {name for name, x in functions.items() if "scale" in inspect.signature(x).parameters}
    assert scaled == {name for name, (trees, *_) in CALLS.items() if "numpy" in trees}


def scaled_by(tree: Tree, package: Any, name: str, scale: float | None) -> Arrays:
    """What a function gives with a scale; in NumPy with the gradients of q, k and v."""
    rng, (_, find, axes) = np.random.default_rng(0), CALLS[name]
    shape = tuple({"b": 2, "t": 5, "h": 3, "k": 4}[axis] for axis in axes.split())
    inputs = dict(zip("qkv", rng.normal(size=(3, *shape)), strict=True))
    call = find(package)
    if tree.name != "numpy":
        return {"y": tree.numpy(flat(call(*tree.arrays(inputs).values(), scale=scale))[0])}
    outputs, pull = package.value_and_vjp(call, *inputs.values(), scale=scale)
    y = flat(outputs)[0]
    return {"y": y} | {f"d{n}": x for n, x in pull(cotangent(y.shape)).inputs.items() if x is not None}


@pytest.mark.parametrize(("name", "tree"), [(name, tree) for name, (trees, *_) in CALLS.items() for tree in trees])
def test_a_scale_of_0_is_not_a_scale_of_none(name: str, tree: str) -> None:
    zero, near, none = (scaled_by(TREES[tree], TREES[tree].package, name, x) for x in (0.0, TINY, None))
    assert same(zero, near)
    assert not same(zero, none)


@pytest.mark.parametrize("name", ASKED)
def test_a_planted_bug_is_seen(name: str) -> None:
    """A scale of 0 taken for none, by `recur`."""
    tree = TREES[name]
    bug = "(1 / sqrt(width) if scale is None else scale)", "(scale or 1 / sqrt(width))"
    with planted(Mutant("a scale of 0 taken for none", SHARED, *bug, "", ""), tree.package.__name__) as alias:
        zero, near = (scaled_by(tree, __import__(alias), "recur", x) for x in (0.0, TINY))
    assert not same(zero, near)
