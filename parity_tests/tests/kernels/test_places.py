"""`attend` from other positions than the last and to fewer keys than there are; what may be said as a number."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from attn_np import patterns
from parity_tests.judge import kernels
from parity_tests.mistakes import SHARED, Mutant, planted
from parity_tests.tests.inputs import TREES, Tree, same
from parity_tests.tests.kernels.test_attend import B, S, T, given, held
from parity_tests.tests.witness import cotangent, ratio

OFFSETS = (0, 2, 5, -2, 9, np.array([0, 4]), np.array([3, 1], np.uint8))
PLACES: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "window": {"window": (1, 0)},
    "before": {"window": 2},
    "chunks": {"pattern": patterns.Chunks(3)},
    "all": {"causal": True, "window": (2, None), "pattern": ~patterns.Chunks(2)},
}


def shown(kind: str, offset: Any, lengths: np.ndarray | None) -> np.ndarray:
    """Who sees whom, one pair at a time, `b 1 t s`."""
    found = np.zeros((B, 1, T, S), bool)
    for n, _, i, j in np.ndindex(found.shape):
        at = int(np.broadcast_to(offset, B)[n]) + i
        sees = {
            "causal": j <= at,
            "window": at - 1 <= j <= at,
            "before": j >= at - 2,
            "chunks": j // 3 == at // 3,
            "all": at - 2 <= j <= at and j // 2 != at // 2,
        }
        found[n, 0, i, j] = sees[kind] and (lengths is None or j < lengths[n])
    return found


def in_tree(tree: Tree, x: Any) -> Any:
    return tree.array(x) if isinstance(x, np.ndarray) else x


@pytest.mark.parametrize("kind", PLACES)
def test_queries_stand_where_the_offset_says(tree: Tree, kind: str) -> None:
    """As a mask of the same pairs: on the textbook path to the bit."""
    inputs: Any = given(2)
    for offset in OFFSETS:
        for lengths in (None, np.array([3, 7])):
            mask = shown(kind, offset, lengths)
            options = PLACES[kind] | {"offset": in_tree(tree, offset), "lengths": in_tree(tree, lengths)}
            arrays = tree.arrays(inputs)
            want = tree.package.attend(**arrays, mask=tree.array(mask), return_weights=True)
            got = tree.package.attend(**arrays, **options, return_weights=True)
            assert all(same(tree.numpy(x), tree.numpy(y)) for x, y in zip(got, want, strict=True)), (offset, lengths)


@pytest.mark.parametrize("offset", [0, np.array([0, 4])])
def test_the_fast_path_stays_within_its_bounds(tree: Tree, offset: Any) -> None:
    """Forward and gradients, in blocks as small as they get."""
    inputs, lengths = given(2), np.array([3, 7])
    want = held(inputs | {"mask": np.broadcast_to(shown("all", offset, lengths), (B, 6, T, S))}, {})
    options = PLACES["all"] | {"offset": in_tree(tree, offset), "lengths": in_tree(tree, lengths)}
    if tree.name == "numpy":
        for setting in kernels.SMALL["numpy"]:
            with kernels.blocks("attn_np", setting):
                (y, _), pull = tree.package.value_and_vjp(
                    tree.package.attend, **inputs, **options, implementation="fused"
                )
                dy = np.cos(np.arange(y.size)).reshape(y.shape)
                assert ratio(y, want["context"]) <= 1
                assert set(pull(dy).inputs) == {"q", "k", "v"}
        return
    got, _ = tree.package.attend(**tree.arrays(inputs), **options, implementation="fused")
    assert ratio(tree.numpy(got), want["context"]) <= 1


def test_gradients_are_those_of_the_mask() -> None:
    inputs, lengths = given(2), np.array([3, 7])
    want = held(inputs | {"mask": np.broadcast_to(shown("all", 3, lengths), (B, 6, T, S))}, {})
    package = TREES["numpy"].package
    (y, _), pull = package.value_and_vjp(package.attend, **inputs, **PLACES["all"], offset=3, lengths=lengths)
    for name, x in pull(cotangent(y.shape)).inputs.items():
        assert ratio(x, want[f"d{name}"]) <= 1, name


def test_pytorchs_causality_counts_from_the_first_key() -> None:
    """`is_causal` of PyTorch's own function is `offset=0`; likewise jax.nn's, where it is defined."""
    inputs = given(6)
    q, k, v = (torch.from_numpy(inputs[name]).transpose(1, 2) for name in "qkv")
    theirs = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    want = held(inputs | {"mask": np.broadcast_to(shown("causal", 0, None), (B, 6, T, S))}, {})
    assert ratio(theirs, want["context"]) <= 1


def test_keys_beyond_the_lengths_may_hold_anything(tree: Tree) -> None:
    inputs, lengths = given(2), np.array([3, 5])
    dirty = inputs | {name: inputs[name].copy() for name in "kv"}
    for name in "kv":
        dirty[name][0, 3:], dirty[name][1, 5:] = np.nan, np.inf
    for implementation in ("textbook", "fused"):
        options: dict[str, Any] = {"lengths": tree.array(lengths), "implementation": implementation}
        got, want = (tree.package.attend(**tree.arrays(x), **options)[0] for x in (dirty, inputs))
        assert same(tree.numpy(got), tree.numpy(want))
    nothing = tree.package.attend(**tree.arrays(dirty), lengths=tree.array(np.array([0, 5])))[0]
    assert not tree.numpy(nothing)[0].any()


def test_an_offset_may_be_traced() -> None:
    """A number or one for each sequence, in one compiled program each."""
    tree, lengths = TREES["jax"], np.array([3, 7])
    inputs: Any = tree.arrays(given(2)) | {"causal": True}
    call = jax.jit(lambda offset, lengths: tree.package.attend(**inputs, offset=offset, lengths=lengths)[0])
    for offset in (0, 4):
        mask = np.broadcast_to(shown("causal", offset, lengths), (B, 6, T, S))
        want = held(given(2) | {"mask": mask}, {})["context"]
        for x in (np.int32(offset), np.array([offset, offset])):
            assert ratio(np.asarray(call(x, lengths)), want) <= 1


def test_numbers_of_any_kind(tree: Tree) -> None:
    """NumPy's, arrays without axes, a list for a window, a number for its left side; a softcap of 0 is none."""
    arrays = tree.arrays(given(2))
    plain: dict[str, Any] = {"scale": 0.5, "softcap": 2.0, "window": (2, 0), "causal": True}
    want = tree.numpy(tree.package.attend(**arrays, **plain)[0])
    for kind in (lambda x: np.array(x)[()], np.array, lambda x: tree.array(np.array(x))):
        others = {"scale": kind(0.5), "softcap": kind(2.0), "window": [kind(2), np.int32(0)], "causal": np.bool_(True)}
        assert same(tree.numpy(tree.package.attend(**arrays, **others)[0]), want)
    some = {"scale": 0.5, "window": 2}
    want = tree.numpy(tree.package.attend(**arrays, scale=0.5, window=(2, None))[0])
    assert same(tree.numpy(tree.package.attend(**arrays, **some, softcap=0)[0]), want)
    assert same(tree.numpy(tree.package.attend(**arrays, **some, softcap=np.float32(0))[0]), want)


def test_integers_of_numpy_are_integers(tree: Tree) -> None:
    """Wherever a function takes a Python integer, and a number where it takes a number."""
    package, scores = tree.package, tree.array(np.linspace(-1.0, 1.0, 24).reshape(2, 3, 4))
    q, positions = tree.array(np.linspace(-1.0, 1.0, 24).reshape(1, 3, 2, 4)), tree.array(np.arange(3, dtype=np.int32))

    def results(integer: Any, number: Any) -> list[Any]:
        return [
            package.softmax(scores, axis=integer(1)),
            package.entmax(scores, axis=integer(-2), alpha=number(1.25)),
            package.entmax(scores, alpha=integer(2)),
            package.recur(q, q, q, chunk_size=integer(2))[0],
            package.relative_buckets(positions, num_buckets=integer(8), max_distance=integer(9)),
            package.rotary_angles(positions, integer(4), max_positions=integer(3))[0],
        ]

    for found, want in zip(results(np.int64, np.float32), results(int, float), strict=True):
        assert same(tree.numpy(found), tree.numpy(want))
    assert tuple(package.alibi_slopes(np.int64(3))) == tuple(package.alibi_slopes(3))


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "offset of a flag": (
        {"offset": True},
        ValueError,
        "expected offset as an integer, or an array of integers of shape (b,), got T",
    ),
    "offset of a fraction": ({"offset": 1.5}, ValueError, "expected offset as an integer, or an array of"),
    "offset of a list": ({"offset": [2, 1]}, ValueError, "expected offset as an integer, or an array of integers"),
    "offset too far": (
        {"offset": 2**29 + 1},
        ValueError,
        "expected offset from -536870912 to 536870912, got 536870913",
    ),
    "offsets too far": (
        {"offset": np.array([0, -(2**30)], np.int32)},
        ValueError,
        "expected offset from -536870912 to 536870912, got -1073741824",
    ),
    "a rate alone": ({"rate": 0.25}, ValueError, "expected keep= with rate=, got rate=0.25 alone; draw it"),
    "offset of floats": ({"offset": np.zeros(2)}, TypeError, "expected offset as integers, got float64"),
    "offset for others": ({"offset": np.zeros(3, int)}, ValueError, "expected offset of shape (b,) = (2,), got (3,)"),
    "length of a number": ({"lengths": 5}, TypeError, "expected lengths as a "),
    "lengths of floats": ({"lengths": np.zeros(2)}, TypeError, "expected lengths as integers, got float64"),
    "lengths below 0": ({"lengths": np.array([2, -1])}, ValueError, "expected lengths from 0, got -1; count the keys"),
    "no weights": (
        {"softmax_fn": lambda *_: None},
        ValueError,
        "expected an array from softmax_fn, got None; return a",
    ),
    "other weights": (
        {"softmax_fn": lambda scores, _: scores[:1]},
        ValueError,
        "expected weights of shape (2, 6, 5, 7) from softmax_fn, as the scores, got (1, 6, 5, 7)",
    ),
    "lengths for others": (
        {"lengths": np.zeros((2, 1), int)},
        ValueError,
        "expected lengths of shape (b,) = (2,), got",
    ),
    "a window of three": (
        {"window": [1, 2, 3], "offset": 0},
        ValueError,
        "expected window to be a tuple (left, right)",
    ),
    "a window below 0": ({"window": -1}, ValueError, "expected window to be a tuple (left, right) of ints from 0, got"),
    "causality of a word": ({"causal": "yes", "offset": 0}, ValueError, "expected causal to be True or False"),
    "a pattern of a word": ({"pattern": "chunks", "offset": 0}, TypeError, "expected pattern to be one of `patterns`"),
    "a softcap of a flag": ({"softcap": False}, ValueError, "expected softcap to be a finite int or float above 0.0"),
    "an array as a scale": ({"scale": np.zeros(2)}, ValueError, "expected scale to be a finite int or float"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_right_is_refused(tree: Tree, case: str) -> None:
    options, error, words = REFUSED[case]
    with pytest.raises(error) as caught:
        tree.package.attend(**tree.arrays(given(2)), **{name: in_tree(tree, x) for name, x in options.items()})
    assert str(caught.value).startswith(f"attend: {words}")


@pytest.mark.parametrize("offset", [2**29, -(2**29)])
def test_the_farthest_offsets(tree: Tree, offset: int) -> None:
    """Causality and a window still mean what they say there: all keys are before, or all after the queries."""
    arrays, each = tree.arrays(given(2)), tree.array(np.full(2, offset, np.int32))
    want = tree.numpy(tree.package.attend(**arrays)[0])
    for at in (offset, each):
        got = tree.numpy(tree.package.attend(**arrays, causal=True, offset=at)[0])
        assert same(got, want if offset > 0 else np.zeros_like(want))
        assert not tree.numpy(tree.package.attend(**arrays, window=(9, 9), offset=at)[0]).any()


def test_a_step_of_decoding_is_no_argument(tree: Tree) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'step'"):
        tree.package.attend(**tree.arrays(given(2)), step=None)


BUGS = {
    "counted from the last key": ("ShiftedQueries(pattern, offset - default)", "ShiftedQueries(pattern, 0)"),
    "lengths forgotten": ("pattern & Prefix(lengths)", "pattern"),
    "lengths in place of the pattern": ("if pattern is None else pattern & Prefix", "if True else pattern & Prefix"),
}


@pytest.mark.parametrize("package", ["attn_np", "attn_jax", "attn_torch"])
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str, package: str) -> None:
    tree = next(tree for tree in TREES.values() if tree.package.__name__ == package)
    arrays, mask = tree.arrays(given(2)), shown("all", 1, np.array([3, 7]))
    options = PLACES["all"] | {"offset": 1, "lengths": tree.array(np.array([3, 7]))}
    want = tree.numpy(tree.package.attend(**arrays, mask=tree.array(mask))[0])
    with planted(Mutant(bug, SHARED, *BUGS[bug], "", ""), package) as alias:
        got = tree.numpy(__import__(alias).attend(**arrays, **options)[0])
    assert np.abs(got - want).max() > np.finfo(float).eps ** 0.5
