"""Positions as functions in the three trees: angles, the rotation by them, ALiBi's slopes and T5's buckets."""

from math import floor, log
from typing import Any

import jax
import numpy as np
import pytest

import attn_np
from attn_np._ops import DTYPES
from attn_np.contract import alibi
from attn_np.contract.rotary import Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.mistakes import SHARED, Mutant, planted
from parity_tests.tests.inputs import TREES, Tree, same
from parity_tests.tests.witness import ratio

PLACES = np.array([[0, 1, 5, 8, 2], [7, 3, 3, 11, 0]])
SCALINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "linear": {"rope_scaling": "linear", "rope_scaling_factor": 4.0},
    "dynamic": {"rope_scaling": "dynamic", "rope_scaling_factor": 2.0, "original_max_positions": 6},
    "yarn": {"rope_scaling": "yarn", "rope_scaling_factor": 4.0, "original_max_positions": 29, "beta_fast": 2.5},
    "llama3": {
        "rope_scaling": "llama3", "rope_scaling_factor": 3.0, "original_max_positions": 23, "low_freq_factor": 0.5,
        "high_freq_factor": 2.0,
    },
    "longrope": {
        "rope_scaling": "longrope", "original_max_positions": 6, "short_factor": (1.0, 1.5, 2.0, 2.5),
        "long_factor": (1.25, 3.0, 4.5, 6.0),
    },
}  # fmt: skip


@pytest.fixture(params=list(TREES))
def tree(request: pytest.FixtureRequest) -> Tree:
    return TREES[request.param]


def angles(tree: Tree, positions: np.ndarray, width: int = 8, **options: Any) -> list[np.ndarray]:
    return [tree.numpy(x) for x in tree.package.rotary_angles(tree.array(positions), width, **options)]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", SCALINGS)
def test_angles_are_made_in_float64_and_rounded_once(tree: Tree, kind: str, dtype: str) -> None:
    config = Config(d_model=8, num_heads=1, rope_base=50.0, **SCALINGS[kind])
    turns = PLACES[..., None] * np.array(config.frequencies(12))
    found = angles(tree, PLACES, rope_base=50.0, dtype=dtype, **SCALINGS[kind])
    for x, function in zip(found, (np.cos, np.sin), strict=True):
        assert same(x, (function(turns) * config.amplitude()).astype(dtype))
    if kind not in ("dynamic", "longrope"):
        limited = angles(tree, PLACES, rope_base=50.0, dtype=dtype, max_positions=31, **SCALINGS[kind])
        assert all(same(x, y) for x, y in zip(found, limited, strict=True))


def test_each_axis_rotates_its_own_pairs(tree: Tree) -> None:
    """Qwen2-VL's way: one set of frequencies, whose pairs are dealt out to time, row and column."""
    places = np.stack([PLACES, PLACES[::-1], PLACES + 1])
    found = angles(tree, places, sections=(1, 2, 1))
    whole = [angles(tree, x) for x in places]
    for x, of_axis in zip(found, zip(*whole, strict=True), strict=True):
        assert x.shape == (2, 5, 4)
        assert all(same(x[..., i], of_axis[axis][..., i]) for i, axis in enumerate((0, 1, 1, 2)))
    assert all(
        same(x, y) for x, y in zip(angles(tree, np.stack([PLACES] * 3), sections=(1, 2, 1)), whole[0], strict=True)
    )


def test_xpos_decays_with_the_distance(tree: Tree) -> None:
    """zeta_i^(position / base) for queries, its inverse for keys: a product has zeta_i^(distance / base) alone."""
    zeta = (2 * np.arange(4) / 8 + 0.4) / 1.4
    plain, query, key = (angles(tree, PLACES, dtype="float64", xpos=xpos) for xpos in (None, 16.0, -16.0))
    scale = np.exp(PLACES[..., None] * (np.log(zeta) / 16.0))
    assert all(same(x, y * scale) for x, y in zip(query, plain, strict=True))
    back = np.exp(PLACES[..., None] * (np.log(zeta) / -16.0))
    assert all(same(x, y * back) for x, y in zip(key, plain, strict=True))


@pytest.mark.parametrize("shape", [(2, 5, 3, 9), (2, 5, 8)])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_pairs_turn_as_complex_numbers(tree: Tree, layout: str, shape: tuple[int, ...]) -> None:
    """Forward and gradient, within their bounds; `inverse` turns back."""
    rng = np.random.default_rng(5)
    x, dy = rng.normal(size=shape), rng.normal(size=shape)
    cos, sin = attn_np.rotary_angles(PLACES, 8, dtype="float64")
    carried: Any = ErrArray(x, 0.0)
    with precision(precision_of("float64")):
        y, pull = attn_np.value_and_vjp(attn_np.rotate, carried, cos, sin, layout=layout)
        want = {"y": y, "dx": pull(ErrArray(dy, 0.0)).inputs["x"]}
    turn = cos + 1j * sin if len(shape) == 3 else (cos + 1j * sin)[:, :, None]
    pairs = [(i, i + 4) if layout == "half" else (2 * i, 2 * i + 1) for i in range(4)]
    for given, factor, bound in ((x, turn, want["y"]), (dy, turn.conj(), want["dx"])):
        witness = given.copy()
        for i, (a, b) in enumerate(pairs):
            z = (given[..., a] + 1j * given[..., b]) * factor[..., i]
            witness[..., a], witness[..., b] = z.real, z.imag
        assert ratio(witness, bound) <= 1
    call = tree.package.rotate
    arrays = [tree.array(a) for a in (x, cos, sin)]
    if tree.name == "numpy":
        got, back = attn_np.value_and_vjp(call, *arrays, layout=layout)
        grad = back(dy).inputs["x"]
    elif tree.name == "torch":
        leaf = arrays[0].requires_grad_()
        got = call(*arrays, layout=layout)
        got.backward(tree.array(dy))
        grad, got = leaf.grad.numpy(), got.detach()
    else:
        got, back = jax.vjp(lambda a: call(a, *arrays[1:], layout=layout), arrays[0])
        grad = np.asarray(back(tree.array(dy))[0])
    assert ratio(tree.numpy(got), want["y"]) <= 1
    assert ratio(grad, want["dx"]) <= 1
    inverse = tree.numpy(call(tree.array(dy), *arrays[1:], layout=layout, inverse=True))
    assert ratio(inverse, want["dx"]) <= 1


def test_positions_of_one_sequence_serve_all(tree: Tree) -> None:
    x = np.random.default_rng(5).normal(size=(2, 5, 3, 8))
    some = [tree.array(a) for a in attn_np.rotary_angles(PLACES[0], 8, dtype="float64")]
    all_ = [tree.array(a) for a in attn_np.rotary_angles(PLACES[[0, 0]], 8, dtype="float64")]
    found, want = (tree.numpy(tree.package.rotate(tree.array(x), *a)) for a in (some, all_))
    assert same(found, want)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_are_widened_first(tree: Tree, dtype: str) -> None:
    x = np.random.default_rng(5).normal(size=(2, 5, 3, 8)).astype(DTYPES[dtype])
    cos_sin = tree.package.rotary_angles(tree.array(PLACES), 8)
    found = tree.numpy(tree.package.rotate(tree.array(x), *cos_sin))
    wide = tree.numpy(tree.package.rotate(tree.array(x.astype(np.float32)), *cos_sin))
    assert same(found, wide.astype(DTYPES[dtype]))


def test_a_compiled_program_needs_to_know_the_limit() -> None:
    package, places = TREES["jax"].package, TREES["jax"].array(PLACES)
    with pytest.raises(ValueError, match="rotary_angles: expected max_positions in a compiled program, got none"):
        jax.jit(lambda p: package.rotary_angles(p, 8))(places)
    found = jax.jit(lambda p: package.rotary_angles(p, 8, max_positions=12, dtype="float64"))(places)
    known = jax.jit(lambda: package.rotary_angles(places, 8, dtype="float64"))()
    want = angles(TREES["numpy"], PLACES, dtype="float64")
    assert all(same(np.asarray(x), y) for some in (found, known) for x, y in zip(some, want, strict=True))


def test_slopes_are_those_of_the_layer(tree: Tree) -> None:
    for heads in (1, 6, 8):
        assert tree.package.alibi_slopes(heads) == alibi.Config(d_model=heads, num_heads=heads).slopes()
    assert tree.package.alibi_slopes(8) == tuple(2.0**-n for n in range(1, 9))


def published(relative_position: int, buckets: int, most: int, both: bool) -> int:
    """T5's bucket in logarithms, as the paper and its code have it."""
    first = 0
    if both:
        buckets //= 2
        first = buckets if relative_position > 0 else 0
    distance, exact = abs(relative_position) if both else max(-relative_position, 0), buckets // 2
    if distance < exact:
        return first + distance
    beyond = floor(log(distance / exact) / log(most / exact) * (buckets - exact) + 2.0**-40)
    return first + min(exact + beyond, buckets - 1)


@pytest.mark.parametrize("both", [True, False])
def test_buckets_are_the_published_ones(tree: Tree, both: bool) -> None:
    positions = np.arange(-150, 151).reshape(7, 43)
    found = tree.numpy(tree.package.relative_buckets(tree.array(positions), bidirectional=both))
    want = [[published(int(x), 32, 128, both) for x in row] for row in positions]
    assert found.tolist() == want
    some = tree.numpy(tree.package.relative_buckets(tree.array(positions), num_buckets=8, max_distance=20))
    assert some.tolist() == [[published(int(x), 8, 20, True) for x in row] for row in positions]


X = np.zeros((2, 5, 3, 8))
REFUSED: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "odd width": ("rotary_angles", (PLACES, 7), {}, ValueError, "expected an even width, got 7"),
    "no integers": ("rotary_angles", (X, 8), {}, TypeError, "expected positions as integers, got float64"),
    "below 0": ("rotary_angles", (PLACES - 1, 8), {}, ValueError, "expected positions from 0 to 10, got -1 to 10"),
    "beyond the limit": (
        "rotary_angles",
        (PLACES, 8),
        {"max_positions": 5},
        ValueError,
        "expected positions from 0 to",
    ),
    "sections": ("rotary_angles", (PLACES, 8), {"sections": (1, 2)}, ValueError, "expected sections to be counts of"),
    "no axis": (
        "rotary_angles",
        (PLACES, 8),
        {"sections": (1, 2, 1)},
        ValueError,
        "expected positions with a first ax",
    ),
    "rope_scaling": (
        "rotary_angles",
        (PLACES, 8),
        {"rope_scaling": "ntk"},
        ValueError,
        "expected rope_scaling to be one of None, 'li",
    ),
    "xpos": ("rotary_angles", (PLACES, 8), {"xpos": 0}, ValueError, "expected xpos other than 0"),
    "dtype": (
        "rotary_angles",
        (PLACES, 8),
        {"dtype": "int8"},
        ValueError,
        "expected dtype to be one of float64, float",
    ),
    "another dtype": (
        "rotate",
        (X, X[0, ..., 0].astype("float32")) * 1 + (X[0, ..., 0],),
        {},
        TypeError,
        "expected cos",
    ),
    "another length": (
        "rotate",
        (X, X[0, :4, 0], X[0, :4, 0]),
        {},
        ValueError,
        "expected cos of shape (t, r) or (b, t",
    ),
    "too wide": ("rotate", (X, np.zeros((5, 5)), np.zeros((5, 5))), {}, ValueError, "expected at most 4 pairs, got 5"),
    "unlike": ("rotate", (X, np.zeros((5, 4)), np.zeros((5, 3))), {}, ValueError, "expected cos and sin of one shape"),
    "layout": ("rotate", (X, X[0, :, 0], X[0, :, 0]), {"layout": "x"}, ValueError, "expected layout to be one of half"),
    "rank": (
        "rotate",
        (X[0, 0], X[0, :, 0], X[0, :, 0]),
        {},
        ValueError,
        "expected x of shape (b, t, h, k) or (b, t, ",
    ),
    "heads": ("alibi_slopes", (0,), {}, ValueError, "expected num_heads to be an int from 1, got 0"),
    "relative positions": (
        "relative_buckets",
        (X,),
        {},
        TypeError,
        "expected relative_positions as signed integers, got float64",
    ),
    "buckets": ("relative_buckets", (PLACES,), {"num_buckets": 3}, ValueError, "expected num_buckets to be a multiple"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_right_is_refused(tree: Tree, case: str) -> None:
    name, given, options, error, words = REFUSED[case]
    arrays = [tree.array(x) if isinstance(x, np.ndarray) else x for x in given]
    with pytest.raises(error) as caught:
        getattr(tree.package, name)(*arrays, **options)
    assert str(caught.value).startswith(f"{name}: {words}")


BUGS = {
    "sections of other pairs": ("[x[i][..., a:b] for i, a, b in parts]", "[x[-1 - i][..., a:b] for i, a, b in parts]"),
    "xpos forgotten": ("tables = tables * xpos_scales(", "tables = tables + 0 * xpos_scales("),
    "xpos by the angle": ("/ config.xpos", "* config.xpos"),
    "a length of the limit": (
        "config, positions, name, like=positions)",
        "config, positions, name, like=positions, longest=12)",
    ),
}


@pytest.mark.parametrize("package", ["attn_np", "attn_jax", "attn_torch"])
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str, package: str) -> None:
    tree = next(tree for tree in TREES.values() if tree.package.__name__ == package)
    places, options = (
        tree.array(np.stack([PLACES, PLACES + 2]) % 6),
        SCALINGS["longrope"] | {"sections": (1, 3), "xpos": 9.0},
    )
    whole = tree.package.rotary_angles(places, 8, **options)
    with planted(Mutant(bug, SHARED, *BUGS[bug], "", ""), package) as alias:
        found = __import__(alias).rotary_angles(places, 8, **options | {"max_positions": 12})
    assert not all(same(tree.numpy(x), tree.numpy(y)) for x, y in zip(found, whole, strict=True))
