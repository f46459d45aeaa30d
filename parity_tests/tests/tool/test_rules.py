"""The rules that bounds are derived by: each holds what errors do, none is wider than it must be, and none is unasked.

A rule is asked by a function of arrays that it stands for. The same functions ask the rules of tangents.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attn_np import ops
from attn_np.attention import attend, chosen, masks
from attn_np.normalizers import simplex, sparse
from attn_np.ops import vjp
from parity_tests.bounds import error_array, tangents
from parity_tests.bounds.error_array import ErrArray, Flag, delivered
from parity_tests.bounds.precision import LARGEST, UNDERFLOW, UNIT, precision, precision_of
from parity_tests.judge.judging import compare

seeds = st.integers(0, 2**32 - 1)
scales = st.sampled_from([2.0**-70, 2.0**-20, 2.0**-7, 1.0, 2.0**5])  # products of the first underflow in float32
quick = settings(max_examples=40, deadline=None, derandomize=True)

ALLOWED = np.array([[True, True, False, True], [False, False, False, False], [True, True, True, True]])
Shapes = tuple[tuple[int, ...], ...]
ONE, TWO = ((3, 4),), ((3, 4), (3, 4))
ROWS = ((1, 2, 3, 5), (1, 2, 3, 4))


def size_of(x: Any) -> Any:
    return np.sqrt(1.0 + np.sum(x * x, axis=-1, keepdims=True))


def part_of_softmax(x: Any) -> Any:
    top = ops.amax_detached(x, -1)[:, None]
    return vjp.part_of_softmax(x, top, np.sum(np.exp(x - top), axis=-1, keepdims=True), 2)


def place(x: Any) -> Any:
    """A position among five entries: the whole number 2 where x is 0, and beyond the last entry the last."""
    far = 5.0 * ops.sigmoid(x) - 0.5
    return np.where(far < 4.0, np.where(far > 0.0, far, 0.0), 4.0)


# Functions that ask every rule, and the shapes of their arguments.
RULES: dict[str, tuple[Callable[..., Any], Shapes]] = {
    "add": (lambda x, y: x + y, ((3, 4), (4,))),
    "subtract": (lambda x, y: x - y, ((3, 4), (3, 1))),
    "multiply": (lambda x, y: x * y, TWO),
    "divide": (lambda x, y: x / (4.0 + y * y), TWO),
    "negative": (lambda x: -x, ONE),
    "absolute": (lambda x: np.abs(x), ONE),
    "maximum": (lambda x, y: np.maximum(x, y), TWO),
    "square": (lambda x: np.square(x), ONE),
    "exp": (lambda x: np.exp(x), ONE),
    "log": (lambda x: np.log(1.0 + x * x), ONE),
    "sqrt": (lambda x: np.sqrt(1.0 + x * x), ONE),
    "tanh": (lambda x: np.tanh(x), ONE),
    "sum": (lambda x: np.sum(x, axis=-1), ONE),
    "running sum": (lambda x: np.cumsum(x, axis=1), ONE),
    "max": (lambda x: np.max(x, axis=-1), ONE),
    "max without a gradient": (lambda x: ops.amax_detached(x, -1), ONE),
    "where": (lambda x, y: np.where(x > y, x * 2.0, y * 3.0), TWO),
    "where not": (lambda x, y: np.where((x < y) & (x <= 1.0), x * 2.0, y * 3.0), TWO),
    "where equal": (lambda x, y: np.where(x == y, x, y * 3.0), TWO),
    "where any": (lambda x, y: np.where(np.any(x >= 1.0, axis=-1), y[:, 0] * 2.0, y[:, 1] * 3.0), TWO),
    "stack": (lambda x, y: np.stack([x, y], axis=1), TWO),
    "concatenate": (lambda x, y: np.concatenate([x, y], axis=1), TWO),
    "einsum": (lambda x, y: ops.einsum("ab,bc->ac", x, y), ((3, 4), (4, 5))),
    "linear": (lambda x, w, b: ops.linear("ab,bc->ac", x, w, b), ((3, 4), (4, 5), (5,))),
    "sum_grads": (lambda x, y, z: vjp.sum_grads(x, y, z), (*TWO, (3, 4))),
    "lerp": (lambda x, y, z: ops.lerp(x, y, ops.sigmoid(z)), (*TWO, (3, 4))),
    "one_minus_z_times": (lambda z, d: vjp.one_minus_z_times(ops.sigmoid(z), d), TWO),
    "sigmoid": (lambda x: ops.sigmoid(x), ONE),
    "softplus": (lambda x: ops.softplus(x), ONE),
    "softmax": (lambda x: ops.softmax(x), ONE),
    "softmax masked": (lambda x: ops.softmax(x, ALLOWED), ONE),
    "softmax over rows": (lambda x: ops.softmax(x, ALLOWED, -2), ONE),
    "softmax of what is near": (lambda x, y: ops.softmax(x, ALLOWED & (y <= 0.5) & (y >= -0.5)), TWO),
    "hide what is far": (lambda x, y: masks.zero_unseen("ab->b", ALLOWED & (y <= 0.5), x), ((4,), (3, 4))),
    "softmax then product": (lambda x, v: ops.einsum("ab,bc->ac", ops.softmax(x), v), ((3, 4), (4, 5))),
    "part_of_softmax": (part_of_softmax, ONE),
    "log_sum_exp": (lambda x: attend.log_sum_exp(x, ALLOWED), ONE),
    "sparsemax": (lambda x: sparse.sparsemax(x, ALLOWED), ONE),
    "entmax15": (lambda x: sparse.entmax15(x, ALLOWED, -2), ONE),
    "bisected_entmax": (lambda x: simplex.bisected_entmax(x, ALLOWED, 1.25), ONE),
    "steep_entmax": (lambda x: simplex.steep_entmax(x, ALLOWED, 3.0), ONE),
    "hardmax": (lambda x: sparse.hardmax(x, ALLOWED), ONE),
    "straight_through": (lambda x, y: sparse.straight_through(x, y), TWO),
    "softmax_vjp": (lambda x, d: vjp.softmax_vjp(ops.softmax(x, ALLOWED), d), TWO),
    "part_of_softmax_vjp": (lambda x, d, m: vjp.part_of_softmax_vjp(ops.softmax(x), d, m, 2), (*TWO, (3, 1))),
    "sparsemax_vjp": (lambda x, d: vjp.sparsemax_vjp(sparse.sparsemax(x, ALLOWED), d), TWO),
    "entmax15_vjp": (lambda x, d: vjp.entmax15_vjp(sparse.entmax15(x, ALLOWED), d), TWO),
    "entmax_vjp": (lambda x, d: simplex.entmax_vjp(ops.softmax(x, ALLOWED), d, 1.25), TWO),
    "steep_entmax_vjp": (lambda x, d: simplex.steep_entmax_vjp(ops.softmax(x, ALLOWED), d, 3.0), TWO),
    "tanh_vjp": (lambda x, d: vjp.tanh_vjp(np.tanh(x), d), TWO),
    "sigmoid_vjp": (lambda x, d: vjp.sigmoid_vjp(ops.sigmoid(x), d), TWO),
    "softplus_vjp": (lambda x, d: vjp.softplus_vjp(x, d), TWO),
    "silu_vjp": (lambda x, d: vjp.silu_vjp(x, d), TWO),
    "divide_by_norm_vjp": (lambda x, d: vjp.divide_by_norm_vjp(x, size_of(x), d, 1.0), TWO),
    "interpolate_last": (lambda x, p: ops.interpolate_last(x, place(p)), ROWS),
    "slope_last": (lambda x, p: vjp.slope_last(x, place(p)), ROWS),
    "interpolated_entries_vjp": (lambda d, p: vjp.interpolated_entries_vjp(place(p), d, 5), (ROWS[1], ROWS[1])),
}
# What moves numbers, has none, or decides by them: no error to ask for.
MOVES = {np.reshape, np.transpose, np.swapaxes, np.moveaxis, np.broadcast_to, np.expand_dims, np.squeeze, np.repeat}
MOVES |= {
    np.flip,
    np.take,
    np.take_along_axis,
    np.shape,
    np.ndim,
    masks.hide_neg_inf,
    ops.constants,
    chosen.top_k_indices,
}


def drawn(seed: int, scale: float, shapes: Shapes) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) * scale for shape in shapes]


def holds(got: np.ndarray, result: ErrArray) -> bool:
    return compare(got, result)["ratio"] <= 1


@pytest.mark.parametrize("name", RULES)
@quick
@given(seed=seeds, scale=scales)
def test_bound_holds_what_errors_in_the_inputs_do(name: str, seed: int, scale: float) -> None:
    """Inputs moved anywhere within their bounds move the result by no more than its bound."""
    function, shapes = RULES[name]
    values = drawn(seed, scale, shapes)
    rng = np.random.default_rng([seed, 1])
    # Of one size; or each of its own, up to that of the numbers, whose order is open then.
    powers = [rng.integers(-22, 0, x.shape) if seed % 2 else rng.integers(-25, -3) for x in values]
    bounds = [(0.5 + rng.random(x.shape)) * scale * 2.0**power for x, power in zip(values, powers, strict=True)]
    with precision(precision_of("float64")):
        result = function(*(ErrArray(x, b) for x, b in zip(values, bounds, strict=True)))
    for corner in range(8):
        signs = [np.sign(rng.normal(size=b.shape)) if corner else np.ones(b.shape) for b in bounds]
        # Just inside the corner: moving an input rounds too.
        inside = 1 - 2.0**-10
        moved = function(*(x + inside * s * b for x, s, b in zip(values, signs, bounds, strict=True)))
        assert holds(moved, result), name


@pytest.mark.parametrize("name", RULES)
@quick
@given(seed=seeds, scale=scales)
@np.errstate(over="ignore")
def test_bound_holds_what_rounding_does(name: str, seed: int, scale: float) -> None:
    """The same function computed in float32 ends within the float32 bound of exact inputs."""
    function, shapes = RULES[name]
    values = [x.astype(np.float32) for x in drawn(seed, scale, shapes)]
    with precision(precision_of("float32")):
        result = function(*(ErrArray(x, 0.0) for x in values))
    got = function(*values)
    assert got.dtype == np.float32
    assert holds(got.astype(np.float64), result), name


def test_softmax_holds_what_large_errors_do_where_one_weight_is_nearly_all() -> None:
    """The others are below a rounding of 1, and beside what its own error does to it; together they are not."""
    scores, errors = np.array([0.0, -45.0, -50.0]), np.array([16.0, 16.0, 16.0])
    with precision(precision_of("float64")):
        result: Any = ops.softmax(ErrArray(scores, errors))
    for signs in product((-1, 0, 1), repeat=3):
        assert holds(ops.softmax(scores + np.array(signs) * errors * (1 - 2.0**-10)), result), signs


@pytest.mark.parametrize("error", [0.0, 2.0**-60, 2.0**-30, 0.75, 1.5])
def test_positions_beside_whole_numbers_are_held_on_either_side(error: float) -> None:
    """Above and below each entry by a little, however little; by an error that reaches other lines, and none."""
    rng, n = np.random.default_rng(0), 5
    beside = [[i, i + 2.0**-1000, i + 2.0**-50, i - 2.0**-50] for i in range(n)]
    position = np.clip(np.array(beside)[None, ..., None], 0.0, n - 1.0)  # each in a row of its own
    x, dy = rng.normal(size=(1, n, 4, n)), rng.normal(size=position.shape)
    with precision(precision_of("float64")):
        at = ErrArray(position, error)
        found = [ops.interpolate_last(x, at), vjp.slope_last(x, at), vjp.interpolated_entries_vjp(at, dy, n)]
    for side in (-1, 0, 1):
        moved = np.clip(position + side * error * (1 - 2.0**-10), 0.0, n - 1.0)
        low = np.floor(moved)
        shares = (low[..., None] == np.arange(n)) * dy[..., None]
        after = (low[..., None] + 1 == np.arange(n)) * (dy * (moved - low))[..., None]
        apart = shares.sum(-2) - (shares * (moved - low)[..., None]).sum(-2) + after.sum(-2)
        got = [ops.interpolate_last(x, moved), vjp.slope_last(x, moved), vjp.interpolated_entries_vjp(moved, dy, n)]
        for one, result in zip([*got, apart], [*found, found[2]], strict=True):
            assert holds(one, result), side


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_what_is_delivered_is_rounded_once(dtype: str) -> None:
    """Numbers of every size that a type has, those too small for all of its digits among them."""
    least, most = np.log2(UNDERFLOW[dtype]) - 3, min(np.log2(LARGEST[dtype]), 500)
    rng = np.random.default_rng(0)
    values = rng.choice([-1, 1], 1000) * 2.0 ** rng.uniform(max(least, -1022), most, 1000)
    result = delivered(ErrArray(values, 0.0), dtype, always=True)
    with np.errstate(over="ignore", under="ignore"):
        got = values.astype(ops.DTYPES[dtype]).astype(np.float64)
    assert holds(got, result)
    assert np.all(result.b <= UNIT[dtype] * np.abs(values) + UNDERFLOW[dtype])
    assert delivered(ErrArray([0.0], 0.0), dtype, always=True).b == 0


# Rules of what only moves numbers or chooses among them.
EXACT = ("max", "max without a gradient", "where", "stack", "concatenate", "negative", "absolute", "maximum", "hardmax")
EXACT += ("hide what is far", "straight_through")


@pytest.mark.parametrize("name", [name for name in RULES if name not in EXACT])
def test_bound_is_no_blank_cheque(name: str) -> None:
    """Of two candidates, the one computed in float32 fails the float64 bound: the bounds can tell them apart."""
    function, shapes = RULES[name]
    values = [x.astype(np.float32) for x in drawn(1, 1.0, shapes)]
    with precision(precision_of("float64")):
        result = function(*(ErrArray(x, 0.0) for x in values))
    assert not holds(function(*values).astype(np.float64), result)


# Errors of several terms are added up though they have a source in common: these bounds are wider than what errors do.
COMMON_SOURCE = ("maximum", "softmax then product", "part_of_softmax", "log_sum_exp", "softmax_vjp", "sigmoid_vjp")
COMMON_SOURCE += (
    "silu_vjp",
    "divide_by_norm_vjp",
    "sparsemax",
    "entmax15",
    "bisected_entmax",
    "steep_entmax",
    "sparsemax_vjp",
    "entmax15_vjp",
)
COMMON_SOURCE += ("entmax_vjp", "steep_entmax_vjp")
SMALL = 2.0**-20  # errors whose squares are 2^-20 times as large, and which are 2^33 times a rounding


@pytest.mark.parametrize("name", [name for name in RULES if name not in COMMON_SOURCE])
def test_bound_is_what_small_errors_do_together(name: str) -> None:
    """Errors so small that each acts by itself: the bound is the sum of what each does alone, and no more.

    What is of second order and the roundings are a thousandth of it.
    """
    function, shapes = RULES[name]
    values = drawn(2, 1.0, shapes)
    with precision(precision_of("float64")):
        result = function(*(ErrArray(x, SMALL) for x in values))
    together = np.zeros(result.shape)
    for n, x in enumerate(values):
        for place in np.ndindex(x.shape):
            ways = [[*values[:n], x + step * at(x.shape, place), *values[n + 1 :]] for step in (SMALL, -SMALL)]
            together += np.max([np.abs(function(*way) - result.v) for way in ways], axis=0)
    assert np.all(result.b <= (1 + 2.0**-10) * together + 2.0**-10 * SMALL), name


def at(shape: tuple[int, ...], place: tuple[int, ...]) -> np.ndarray:
    """1 at one place of an array of zeros."""
    one = np.zeros(shape)
    one[place] = 1.0
    return one


def unasked(patch: pytest.MonkeyPatch, ask: Callable[[], Any], *tables: dict[Any, Any]) -> set[str]:
    """What the rules that `ask` does not call are about; what only moves numbers aside."""
    asked: set[int] = set()
    rules = [(table, of, rule) for table in tables for of, rule in list(table.items())]
    for table, of, rule in rules:
        patch.setitem(table, of, lambda *a, rule=rule, **k: asked.add(id(rule)) or rule(*a, **k))
    ask()
    return {of.__name__ for _, of, rule in rules if id(rule) not in asked and of not in MOVES}


def test_no_rule_is_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that none of the functions calls could say anything."""

    def ask() -> None:
        for function, shapes in RULES.values():
            function(*(ErrArray(x, 0.0) for x in drawn(0, 1.0, shapes)))

    assert unasked(monkeypatch, ask, error_array.UFUNCS, error_array.FUNCTIONS) == set()


# Three answers: true, false and open ---------------------------------------------------------------------------------

ANSWERS = tuple(product((False, True), repeat=2))  # value, and whether the bounds leave it open


def possible(answers: tuple[tuple[bool, ...], ...]) -> list[tuple[bool, ...]]:
    """Every combination of truths that some answers leave open."""
    return list(product(*((False, True) if undecided else (value,) for value, undecided in answers)))


def test_of_several_conditions_is_open_what_their_truths_leave_open() -> None:
    """All and any of two or three, by every combination of what each may be."""
    for n in (2, 3):
        for answers in product(ANSWERS, repeat=n):
            flags = [Flag(np.array(value), np.array(undecided)) for value, undecided in answers]
            row: Any = Flag(*(np.array(x) for x in zip(*answers, strict=True)))
            both: Any = flags[0]
            for flag in flags[1:]:
                both = both & flag
            for found, rule in ((both, all), (np.any(row, axis=-1), any)):
                truths = {rule(way) for way in possible(answers)}
                assert bool(found.value) == rule(value for value, _ in answers), answers
                assert bool(found.undecided) == (len(truths) == 2), (rule, answers)
        plain = np.array([True, False])
        for value, undecided in ANSWERS:
            flag: Any = Flag(np.full(2, value), np.full(2, undecided))
            for found in (flag & plain, plain & flag):
                assert found.value.tolist() == [value, False] and found.undecided.tolist() == [undecided, False]


# Tangents -------------------------------------------------------------------------------------------------------------

# Functions that no layer differentiates twice have no rule for tangents, and what is detached has a tangent by choice.
NO_TANGENT = ("absolute", "square", "max", "where equal", "log_sum_exp", "bisected_entmax", "steep_entmax")
NO_TANGENT += ("entmax_vjp", "steep_entmax_vjp")
CHOSEN = ("max without a gradient", "hardmax", "straight_through")
STEP = 2.0**-17  # the cube root of a rounding: what a difference leaves out and what it rounds are of one size


def with_tangents(name: str) -> tuple[list[np.ndarray], list[np.ndarray], tangents.Dual]:
    """The arguments of a function, where they go, and its result on values with tangents."""
    function, shapes = RULES[name]
    values, ways = drawn(3, 1.0, shapes), drawn(4, 1.0, shapes)
    return values, ways, function(*(tangents.Dual(x, ErrArray(u, 0.0)) for x, u in zip(values, ways, strict=True)))


@pytest.mark.parametrize("name", [name for name in RULES if name not in (*NO_TANGENT, *CHOSEN)])
def test_tangents_are_what_a_small_step_does(name: str) -> None:
    """Against a central difference, whose step leaves out and rounds about `STEP`^2, times third derivatives."""
    values, ways, found = with_tangents(name)
    ahead, behind = (RULES[name][0](*(x + s * u for x, u in zip(values, ways, strict=True))) for s in (STEP, -STEP))
    error, size = np.abs(found.d.v - (ahead - behind) / (2 * STEP)), 1 + np.max(np.abs(ahead))
    assert np.all(error <= 2.0**10 * STEP**2 * size)


def test_what_is_detached_has_the_tangent_that_it_is_given() -> None:
    for name in CHOSEN:
        _, ways, found = with_tangents(name)
        assert np.array_equal(found.d.v, ways[1] if name == "straight_through" else np.zeros(found.shape)), name


def test_no_rule_of_tangents_is_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask() -> None:
        for name in RULES:
            if name not in NO_TANGENT:
                with_tangents(name)

    assert unasked(monkeypatch, ask, tangents.UFUNCS, tangents.FUNCTIONS) == set()
