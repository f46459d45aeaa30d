"""Terms in every tree: from where the queries stand, of a user's own, and refused in the same words."""

from typing import Any

import numpy as np
import pytest
import torch

import attn_torch
from attn_np import patterns
from parity_tests.judge import kernels
from parity_tests.mistakes import SHARED, Mutant, planted
from parity_tests.tests.inputs import TREES, Tree
from parity_tests.tests.mutation.checks_terms import WIDTH, B, H, buckets, by_pairs, made
from parity_tests.tests.witness import cotangent, ratio, torch_gradients

T, S = 5, 7


def given() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    shapes = {"q": (B, T, H, WIDTH), "k": (B, S, 2, WIDTH), "v": (B, S, 2, WIDTH), "table": (6, 1)}
    return {name: rng.normal(size=shape) for name, shape in shapes.items()} | {"slopes": rng.uniform(0.1, 0.9, H)}


def apart(offset: Any) -> np.ndarray:
    """The key's position minus the query's, `b 1 t s`."""
    at = np.broadcast_to(S - T if offset is None else offset, B).astype(int)
    return np.arange(S) - (at[:, None, None, None] + np.arange(T)[:, None])


def context_of(tree: Tree, offset: Any, package: Any = None, implementation: str = "fused") -> np.ndarray:
    """What a tree gives of both terms."""
    package = tree.package if package is None else package
    arrays = tree.arrays(given())
    terms = package.terms.Slopes(arrays.pop("slopes")), package.terms.Table(arrays.pop("table"), buckets)
    at = tree.array(offset) if isinstance(offset, np.ndarray) else offset
    return tree.numpy(package.attend(**arrays, terms=terms, offset=at, implementation=implementation)[0])


@pytest.mark.parametrize("offset", [None, 0, np.array([0, 4]), np.array([3, 1], np.uint8)])
@pytest.mark.parametrize("implementation", ["fused", "textbook"])
def test_terms_count_from_where_the_queries_stand(tree: Tree, offset: Any, implementation: str) -> None:
    want = by_pairs(tree.name, given(), np.ones((B, H, T, S), bool), apart(offset), None)["context"]
    assert ratio(context_of(tree, offset, implementation=implementation), want) <= 1


SHAPES = ((S,), (T, 1), (H, 1, S), (B, 1, 1, S), (1, H, T, 1), (B, H, T, S))


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_beside_a_bias_of_any_axes(name: str, shape: tuple[int, ...]) -> None:
    """Those of the term and of the bias, each of its own shape, by every path and from wherever the queries stand."""
    tree, arrays = TREES[name], given() | {"bias": np.random.default_rng(len(shape)).normal(size=shape)}
    for offset in (None, 0, np.array([0, 4])):
        want = by_pairs(name, arrays, np.ones((B, H, T, S), bool), apart(offset), None)
        at = tree.array(offset) if isinstance(offset, np.ndarray) else offset
        for implementation in ("textbook", "fused"):
            options: dict[str, Any] = {"offset": at, "implementation": implementation}
            leaves: Any = tree.arrays(arrays)
            if name == "torch":
                leaves = {n: x.requires_grad_() for n, x in leaves.items()}
            terms = tree.package.terms.Slopes(leaves["slopes"]), tree.package.terms.Table(leaves["table"], buckets)
            inputs = {n: x for n, x in leaves.items() if n not in ("slopes", "table")}
            if name == "torch":
                found = torch_gradients(tree.package.attend(**inputs, terms=terms, **options)[0], **leaves)
            else:
                (y, _), pull = tree.package.value_and_vjp(tree.package.attend, **inputs, terms=terms, **options)
                grads = dict(pull(cotangent(y.shape)).inputs)
                of_slopes, of_table = grads.pop("terms")
                found = {f"d{n}": x for n, x in (grads | of_slopes | of_table).items()}
            assert {n: x.shape for n, x in found.items()} == {f"d{n}": x.shape for n, x in arrays.items()}
            for n, x in found.items():
                assert ratio(x, want[n]) <= 1, (n, offset, implementation)


def test_a_term_of_ones_own(tree: Tree) -> None:
    """One number for all heads, beside a pattern and causality, by operations that every tree has."""
    arrays, (q, k) = given(), (T, S)
    far = np.broadcast_to(abs(apart(None)) * -0.5, (B, 1, q, k))
    own = made(tree.package.terms, lambda offset: -0.5 * abs(offset)[None] * tree.array(np.ones((1, 1))))
    options: dict[str, Any] = {"causal": True, "pattern": patterns.Chunks(3), "implementation": "fused"}
    inputs = {name: arrays[name] for name in "qkv"}
    with kernels.blocks(tree.package.__name__, kernels.SMALL[tree.name][0]):
        got = tree.numpy(tree.package.attend(**tree.arrays(inputs), terms=own, **options)[0])
    i, j = np.arange(q)[:, None] + k - q, np.arange(k)
    pairs = np.broadcast_to((j <= i) & (i // 3 == j // 3), (B, H, q, k))
    assert ratio(got, by_pairs(tree.name, inputs | {"bias": far}, pairs, apart(None), None)["context"]) <= 1


def test_what_is_no_term_is_refused_in_the_same_words() -> None:
    def words(tree: Tree, make: Any) -> str:
        arrays = tree.arrays({name: x for name, x in given().items() if name in ("q", "k", "v", "slopes")})
        slopes, terms = arrays.pop("slopes"), tree.package.terms
        with pytest.raises((TypeError, ValueError, NotImplementedError)) as caught:
            tree.package.attend(**arrays, terms=make(terms, slopes))
        return str(caught.value)

    for make, start in (
        (lambda terms, slopes: "slopes", "attend: expected terms to be one or several of `terms`, such as"),
        (lambda terms, slopes: [terms.Slopes], "attend: expected terms to be one or several of `terms`, such as"),
        (
            lambda terms, slopes: terms.Slopes(slopes[:3]),
            "Slopes: expected bias(relative_position) of shape (h, n) = (4, 11), or",
        ),
        (lambda terms, slopes: terms.Term(), "Term: expected a method bias(relative_position), got none; write it"),
        (
            lambda terms, slopes: made(terms, lambda offset: offset[None] > 0),
            "Made: expected floats from bias(relative_position)",
        ),
    ):
        found = {words(tree, make) for tree in TREES.values()}
        assert len(found) == 1 and found.pop().startswith(start)


@pytest.mark.compile
def test_compiled_with_its_gradient() -> None:
    """With lengths that vary, in PyTorch."""

    def call(q: Any, k: Any, v: Any, table: Any, slopes: Any) -> Any:
        terms = [attn_torch.terms.Slopes(slopes), attn_torch.terms.Table(table, buckets)]
        return attn_torch.attend(q, k, v, causal=True, terms=terms)[0]

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for s in (S, S - 1):
        arrays = given()
        arrays |= {name: arrays[name][:, :s] for name in "kv"}
        far = np.arange(s) - np.arange(T)[:, None] - (s - T)
        pairs = np.broadcast_to(far <= 0, (B, H, T, s))
        want = by_pairs("torch", arrays, pairs, far[None, None], None)
        leaves = {name: torch.tensor(x, requires_grad=True) for name, x in arrays.items()}
        context = compiled(**leaves)
        assert ratio(context.detach(), want["context"]) <= 1
        for name, x in torch_gradients(context, **leaves).items():
            assert ratio(x, want[name]) <= 1, name


BUGS = {
    "the first term alone": ("added = added + part\n", "added = added\n"),
    "counted from the last key": ("(self.offset - (s - t))", "0"),
    "counted the other way": ("arange(max(1, t + s - 1), self.q) + (1 - s)", "arange(max(1, t + s - 1), self.q)"),
    "slopes that raise": ("return -slopes[:, None]", "return slopes[:, None]"),
    "distances with a sign": (
        "to_dtype(abs(relative_position), dtype_name(slopes))",
        "to_dtype(-relative_position, dtype_name(slopes))",
    ),
}


@pytest.mark.parametrize("package", ["attn_np", "attn_jax", "attn_torch"])
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str, package: str) -> None:
    tree = next(tree for tree in TREES.values() if tree.package.__name__ == package)
    want = by_pairs(tree.name, given(), np.ones((B, H, T, S), bool), apart(1), None)["context"]
    with planted(Mutant(bug, SHARED, *BUGS[bug], "", ""), package) as alias:
        assert not ratio(context_of(tree, 1, __import__(alias)), want) <= 1
