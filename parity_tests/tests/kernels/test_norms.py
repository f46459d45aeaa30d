"""Norms, activations and integer helpers of the three dialects, and their derivative rules, within derived bounds."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from math import exp, log, log1p, sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

from attn_np import ops
from attn_np.ops import vjp as _vjp
from parity_tests.bounds.copies import adopt, disown
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.bounds.tangents import Dual
from parity_tests.judge.judging import compare
from parity_tests.mistakes import SHARED, Mutant, planted
from parity_tests.tests.inputs import TREES, Tree, same
from parity_tests.tests.witness import ratio

EPS = 1e-6
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Function:
    """A function of x and of the arrays that it learns.

    Attributes:
        call: from a tree's `ops` and the arrays to its value.
        pull: the rule: from `_vjp`, the arrays and dy to the gradients, in the order of the arrays.
        more: names of the arrays beside x, of x's last axis.
        theirs: PyTorch's own.
        loop: from one row of numbers, and what else there is, to one row.
    """

    call: Callable[..., Any]
    pull: Callable[..., Any]
    theirs: Callable[..., Any]
    loop: Callable[..., list[float]]
    more: tuple[str, ...] = ()


def rms(x: list[float]) -> list[float]:
    return [a / sqrt(sum(b * b for b in x) / len(x) + EPS) for a in x]


def centred(x: list[float]) -> list[float]:
    return rms([a - sum(x) / len(x) for a in x])


FUNCTIONS = {
    "l2_normalize": Function(
        lambda core, x: core.l2_normalize(x, EPS),
        lambda vjp, x, dy: (vjp.l2_normalize_vjp(x, EPS, dy),),
        lambda x: (
            x / torch.linalg.vector_norm(torch.cat([x, torch.full_like(x[..., :1], sqrt(EPS))], -1), dim=-1)[..., None]
        ),
        lambda x: [a / sqrt(sum(b * b for b in x) + EPS) for a in x],
    ),
    "rms_norm": Function(
        lambda core, x, weight: core.rms_norm(x, weight, EPS),
        lambda vjp, x, weight, dy: vjp.rms_norm_vjp(x, weight, EPS, dy),
        lambda x, weight: functional.rms_norm(x, x.shape[-1:], weight, EPS),
        lambda x, weight: [a * w for a, w in zip(rms(x), weight, strict=True)],
        ("weight",),
    ),
    "rms_norm without a weight": Function(
        lambda core, x: core.rms_norm(x, None, EPS),
        lambda vjp, x, dy: vjp.rms_norm_vjp(x, None, EPS, dy)[:1],
        lambda x: functional.rms_norm(x, x.shape[-1:], None, EPS),
        rms,
    ),
    "layer_norm": Function(
        lambda core, x, weight, bias: core.layer_norm(x, weight, bias, EPS),
        lambda vjp, x, weight, bias, dy: vjp.layer_norm_vjp(x, weight, bias, EPS, dy),
        lambda x, weight, bias: functional.layer_norm(x, x.shape[-1:], weight, bias, EPS),
        lambda x, weight, bias: [a * w + b for a, w, b in zip(centred(x), weight, bias, strict=True)],
        ("weight", "bias"),
    ),
    "layer_norm without parameters": Function(
        lambda core, x: core.layer_norm(x, None, None, EPS),
        lambda vjp, x, dy: vjp.layer_norm_vjp(x, None, None, EPS, dy)[:1],
        lambda x: functional.layer_norm(x, x.shape[-1:], None, None, EPS),
        centred,
    ),
    "silu": Function(
        lambda core, x: core.silu(x),
        lambda vjp, x, dy: (vjp.silu_vjp(x, dy),),
        functional.silu,
        lambda x: [a / (1 + exp(-a)) for a in x],
    ),
    "softplus": Function(
        lambda core, x: core.softplus(x),
        lambda vjp, x, dy: (vjp.softplus_vjp(x, dy),),
        lambda x: functional.softplus(x, threshold=1e9),
        lambda x: [max(a, 0.0) + log1p(exp(-abs(a))) for a in x],
    ),
}
NORMS = [name for name in FUNCTIONS if "norm" in name]

# x from random numbers, and whether dy points along it, where two terms of the norms' rules cancel.
INPUTS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], bool]] = {
    "usual": (lambda x: x, False),
    "along": (lambda x: x, True),
    "small": (lambda x: 1e-5 * x, False),
    "tiny": (lambda x: 1e-25 * x, False),
    "zero": (lambda x: 0 * x, False),
    "large": (lambda x: 30 * x, False),
    "shifted": (lambda x: 100 + x, False),
    "one-of-many": (lambda x: np.where(np.arange(x.shape[-1]) == 2, 1e4 * x, 1e-4 * x), False),
}


def given(name: str, kind: str, dtype: str = "float64", width: int = 7) -> tuple[Arrays, np.ndarray]:
    """The arrays of a function, and the gradient of its value."""
    rng, (made, along) = np.random.default_rng(width), INPUTS[kind]
    arrays = {"x": made(rng.normal(size=(3, 5, width)))}
    arrays |= {more: rng.normal(size=width) for more in FUNCTIONS[name].more}
    dy = arrays["x"] if along else rng.normal(size=arrays["x"].shape)
    return {n: x.astype(dtype) for n, x in arrays.items()}, dy.astype(dtype)


def held(name: str, arrays: Arrays, dy: np.ndarray, core: Any = ops, vjp: Any = _vjp) -> dict[str, ErrArray]:
    """Value and gradients, each number with the bound for a computation in the arrays' type."""
    function, lifted = FUNCTIONS[name], [ErrArray(x, 0.0) for x in arrays.values()]
    with precision(precision_of(dy.dtype.name)), np.errstate(all="ignore"):
        found = function.pull(vjp, *lifted, ErrArray(dy, 0.0))
        return {"y": function.call(core, *lifted)} | {f"d{n}": g for n, g in zip(arrays, found, strict=True)}


def results(tree: Tree, name: str, arrays: Arrays, dy: np.ndarray) -> Arrays:
    """What a tree gives: NumPy by its rule, the others by automatic differentiation; JAX compiled."""
    function, core = FUNCTIONS[name], import_module(f"{tree.package.__name__}.ops")
    if tree.name == "numpy":
        y, grads = function.call(core, *arrays.values()), function.pull(_vjp, *arrays.values(), dy)
    elif tree.name == "torch":
        leaves = [torch.from_numpy(x).requires_grad_() for x in arrays.values()]
        y = function.call(core, *leaves)
        grads = torch.autograd.grad(y, leaves, torch.from_numpy(dy))
    else:
        y, grads = compiled(name)(tuple(arrays.values()), dy)
    return {"y": tree.numpy(y)} | {f"d{n}": tree.numpy(g) for n, g in zip(arrays, grads, strict=True)}


def compiled(name: str) -> Callable[..., Any]:
    core = import_module("attn_jax.ops")

    @jax.jit
    def run(arrays: Any, dy: Any) -> Any:
        y, pull = jax.vjp(lambda *x: FUNCTIONS[name].call(core, *x), *arrays)
        return y, pull(dy)

    return run


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_stay_within_their_bounds(tree: Tree, name: str, dtype: str) -> None:
    for kind in INPUTS:
        arrays, dy = given(name, kind, dtype)
        want = held(name, arrays, dy)
        for what, got in results(tree, name, arrays, dy).items():
            assert got.dtype == dtype, (kind, what)
            assert np.isfinite(got).all(), (kind, what)
            assert compare(got.astype(np.float64), want[what])["ratio"] <= 1, (kind, what)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bounds_say_something(name: str) -> None:
    """For usual numbers in float64 they are far below the numbers themselves; a gradient along x cancels to nothing."""
    for kind in ("usual", "large", "small"):
        arrays, dy = given(name, kind)
        for what, x in held(name, arrays, dy).items():
            assert np.max(x.b) <= 2.0**-36 * np.max(np.abs(x.v)), (kind, what)  # no tolerance: how wide bounds are


@pytest.mark.parametrize("width", [1, 2, 13])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_has_the_same_function(name: str, width: int) -> None:
    """Values and gradients of PyTorch's own."""
    for kind in ("usual", "along", "small", "zero", "large"):
        arrays, dy = given(name, kind, width=width)
        want, leaves = held(name, arrays, dy), [torch.from_numpy(x).requires_grad_() for x in arrays.values()]
        y = FUNCTIONS[name].theirs(*leaves)
        grads = torch.autograd.grad(y, leaves, torch.from_numpy(dy))
        found = {"y": y.detach()} | {f"d{n}": g for n, g in zip(arrays, grads, strict=True)}
        for what, got in found.items():
            assert ratio(got, want[what]) <= 1, (kind, what)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_scalar_loops(name: str) -> None:
    arrays, dy = given(name, "usual")
    want, (x, *more) = held(name, arrays, dy)["y"], arrays.values()
    rows = [FUNCTIONS[name].loop(row.tolist(), *(a.tolist() for a in more)) for row in x.reshape(-1, x.shape[-1])]
    assert ratio(np.array(rows).reshape(x.shape), want) <= 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_rules_are_differentiated_as_jax_does(name: str) -> None:
    """How the gradients change along a direction: forward mode over the rule, and over JAX's reverse mode."""
    core, function = import_module("attn_jax.ops"), FUNCTIONS[name]

    def pulled(*arrays: Any) -> Any:
        return jax.vjp(lambda *x: function.call(core, *x), *arrays)[1](dy)

    for kind in ("usual", "along", "small"):
        arrays, dy = given(name, kind)
        ways = [np.cos(np.arange(x.size)).reshape(x.shape) * np.abs(x).max() for x in arrays.values()]
        with precision(precision_of("float64")):
            duals = [Dual(ErrArray(x, 0.0), ErrArray(u, 0.0)) for x, u in zip(arrays.values(), ways, strict=True)]
            want = function.pull(_vjp, *duals, Dual(ErrArray(dy, 0.0), ErrArray(0 * dy, 0.0)))
        _, got = jax.jit(lambda x, u: jax.jvp(pulled, x, u))(tuple(arrays.values()), tuple(ways))
        for what, g, h in zip(arrays, got, want, strict=True):
            assert ratio(g, h.d) <= 1, (kind, what)
            if np.any(h.d.v):
                assert np.median(h.d.b) < np.abs(h.d.v).max(), (kind, what)


# Known numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NORMS)
def test_a_row_of_zeros_stays_one(tree: Tree, name: str) -> None:
    """Its gradient is dy / sqrt(eps), times the weight, not NaN; a layer norm's lacks its mean."""
    arrays, dy = given(name, "zero")
    arrays |= {more: np.full(7, 2.0) for more in FUNCTIONS[name].more}
    got = results(tree, name, arrays, dy)
    bias = arrays["bias"][0] if "bias" in arrays else 0.0
    assert np.array_equal(got["y"], np.full(dy.shape, bias))
    want = arrays.get("weight", np.ones(7)) * (dy - dy.mean(-1, keepdims=True) if "layer" in name else dy) / sqrt(EPS)
    assert ratio(want, held(name, arrays, dy)["dx"]) <= 1


def test_the_length_of_a_norm(tree: Tree) -> None:
    """(3, 4) has the length 5 and the mean square 12.5; its deviations from the mean are -0.5 and 0.5."""
    core, x = import_module(f"{tree.package.__name__}.ops"), np.array([[3.0, 4.0]])
    weight, bias = np.array([2.0, 0.5]), np.array([1.0, 3.0])
    calls: list[tuple[Callable[..., Any], tuple[np.ndarray, ...], list[float]]] = [
        (lambda core, x: core.l2_normalize(x, 0.0), (x,), [0.6, 0.8]),
        (lambda core, x: core.l2_normalize(x, 144.0), (x,), [3 / 13, 4 / 13]),
        (lambda core, x, weight: core.rms_norm(x, weight, 36.5), (x, weight), [6 / 7, 2 / 7]),
        (lambda core, x, bias: core.layer_norm(x, None, bias, 0.0), (x, bias), [0.0, 4.0]),
    ]
    for call, arrays, known in calls:
        with precision(precision_of("float64")):
            want = call(ops, *(ErrArray(a, 0.0) for a in arrays))
        assert ratio([known], want) <= 1
        assert ratio(tree.numpy(call(core, *(tree.array(a) for a in arrays))), want) <= 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_of_16_bits_are_widened(tree: Tree, dtype: str) -> None:
    """The same bits as with weights that were widened before; the result is in float32."""
    core = import_module(f"{tree.package.__name__}.ops")
    rng = np.random.default_rng(0)
    x = tree.array(rng.normal(size=(3, 7)).astype(np.float32))
    low = [rng.normal(size=7).astype(ops.DTYPES[dtype]) for _ in range(2)]
    wide = [tree.array(w.astype(np.float32)) for w in low]
    weight, bias = (tree.array(w) for w in low)
    pairs = [
        (core.rms_norm(x, weight, EPS), core.rms_norm(x, wide[0], EPS)),
        (core.layer_norm(x, weight, bias, EPS), core.layer_norm(x, *wide, EPS)),
    ]
    if tree.name == "numpy":
        pairs += list(zip(_vjp.rms_norm_vjp(x, weight, EPS, x), _vjp.rms_norm_vjp(x, wide[0], EPS, x), strict=True))
    for got, want in pairs:
        assert core.dtype_name(got) == "float32"
        assert same(tree.numpy(got), tree.numpy(want))


def test_softplus_and_silu_far_from_zero(tree: Tree) -> None:
    """Neither overflows, and where log(1 + exp(x)) is less than any number of its type it is 0."""
    core, x = import_module(f"{tree.package.__name__}.ops"), np.array([-1e4, -800.0, 0.0, 800.0, 1e4])
    assert tree.numpy(core.softplus(tree.array(x))).tolist() == [0.0, 0.0, log(2.0), 800.0, 1e4]
    assert tree.numpy(core.silu(tree.array(x))).tolist() == [0.0, 0.0, 0.0, 800.0, 1e4]


def test_clip_and_cumsum(tree: Tree) -> None:
    """Integers stay integers; of booleans a count; of floats what NumPy's error rule allows."""
    core = import_module(f"{tree.package.__name__}.ops")
    numbers = tree.array(np.array([[-3, 0, 2, 7], [5, -1, 4, 3]]))
    assert tree.numpy(core.clip(numbers, 0, 4)).tolist() == [[0, 0, 2, 4], [4, 0, 4, 3]]
    assert tree.numpy(core.cumsum(numbers, 1)).tolist() == [[-3, -3, -1, 6], [5, 4, 8, 11]]
    assert tree.numpy(core.cumsum(numbers, 0)).tolist() == [[-3, 0, 2, 7], [2, -1, 6, 10]]
    flags = tree.array(np.array([[True, False, True], [False, False, True]]))
    assert tree.numpy(core.cumsum(flags, 1)).tolist() == [[1, 1, 2], [0, 0, 1]]
    for dtype in ("float64", "float32"):
        x = np.random.default_rng(1).normal(size=(3, 40)).astype(dtype)
        with precision(precision_of(dtype)):
            want: Any = np.cumsum(ErrArray(x, 0.0), axis=1)
        assert ratio(tree.numpy(core.cumsum(tree.array(x), 1)), want) <= 1


def test_jax_keeps_the_type_of_a_count() -> None:
    core = import_module("attn_jax.ops")
    assert jnp.issubdtype(core.cumsum(jnp.ones((2, 3), bool), 1).dtype, jnp.integer)


# Planted bugs ---------------------------------------------------------------------------------------------------------

SUM = "sqrt({np}.sum(x * x, {axis}=-1, {keepdims}=True)"
BUGS = {
    "eps after the root": ("l2_normalize", f"{SUM} + eps)", f"({SUM}) + eps)"),
    "mean in place of sum": ("l2_normalize", f"{SUM} + eps)", f"{SUM} / x.shape[-1] + eps)"),
    "sum in place of mean": ("rms_norm", f"{SUM} / x.shape[-1] + eps)", f"{SUM} + eps)"),
    "eps left out": ("rms_norm", f"{SUM} / x.shape[-1] + eps)", f"{SUM} / x.shape[-1])"),
    "weight plus one": ("rms_norm", "unit * upcast(weight)", "unit * (1 + upcast(weight))"),
    "mean not subtracted": (
        "layer_norm",
        "rms_norm(x - {np}.sum(x, {axis}=-1, {keepdims}=True) / x.shape[-1], weight, eps)",
        "rms_norm(x, weight, eps)",
    ),
    "variance over n - 1": (
        "layer_norm",
        "/ x.shape[-1], weight, eps)",
        "/ x.shape[-1], weight, eps) * ((x.shape[-1] - 1) / x.shape[-1]) ** 0.5",
    ),
    "bias before the weight": (
        "layer_norm",
        "return unit if bias is None else unit + upcast(bias)",
        "return unit if bias is None else unit + upcast(bias) * upcast(weight)",
    ),
    "sigmoid in place of silu": ("silu", "return x * sigmoid(x)", "return sigmoid(x)"),
}
BACKWARD_BUGS = {
    "the norm held fixed": (
        "rms_norm",
        " - x * (np.sum(dy * x, axis=-1, keepdims=True) * factor",
        " - 0 * x * (factor",
    ),
    "the factor left out": ("rms_norm", "* factor / (norm", "/ (norm"),
    "the square of the norm": ("l2_normalize", "(norm * norm * norm)", "(norm * norm)"),
    "the weight's gradient without the norm": (
        "rms_norm",
        "sum_to(dy * (x / norm), weight.shape)",
        "sum_to(dy * x, weight.shape)",
    ),
    "the weight left out": ("rms_norm", "dy if weight is None else dy * upcast(weight)", "dy"),
    "the mean of the gradient left in": (
        "layer_norm",
        "    dx = dx - np.sum(dx, axis=-1, keepdims=True) / x.shape[-1]\n",
        "",
    ),
    "the rule at x in place of its deviation": (
        "layer_norm",
        "rms_norm_vjp(deviation, weight, eps, dy)",
        "rms_norm_vjp(x, weight, eps, dy)",
    ),
    "silu without its second term": ("silu", "dy * s + dy * x * s * (1.0 - s)", "dy * s"),
    "softplus without the sigmoid": ("softplus", "return dy * sigmoid(x)", "return dy"),
}


@pytest.mark.parametrize("package", ["attn_np", "attn_jax", "attn_torch"])
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str, package: str) -> None:
    name, old, new = BUGS[bug]
    tree = next(tree for tree in TREES.values() if tree.package.__name__ == package)
    wrong = []
    with planted(Mutant(bug, SHARED, old, new, "", "", beside=f"def {name}("), package) as alias:
        core = import_module(f"{alias}.ops")
        for kind in ("usual", "small"):
            arrays, dy = given(name, kind)
            got = tree.numpy(FUNCTIONS[name].call(core, *(tree.array(x) for x in arrays.values())))
            wrong.append(not ratio(got, held(name, arrays, dy)["y"]) <= 1)
    assert any(wrong)


@pytest.mark.parametrize("bug", BACKWARD_BUGS)
def test_a_planted_bug_of_a_rule_is_seen(bug: str) -> None:
    """By the rule as it stands, and by automatic differentiation within the bounds of the rule with the bug."""
    name, old, new = BACKWARD_BUGS[bug]
    arrays, dy = given(name, "usual")
    want, theirs = held(name, arrays, dy), results(TREES["torch"], name, arrays, dy)
    with planted(Mutant(bug, SHARED, old, new, "", "", beside=f"def {name}_vjp("), "attn_np") as alias:
        for room in ("ops", "ops.vjp"):  # what is imported gets the rules
            import_module(f"{alias}.{room}")
        adopt(alias)
        core, vjp = (import_module(f"{alias}.{module}") for module in ("ops", "ops.vjp"))
        got = FUNCTIONS[name].pull(vjp, *arrays.values(), dy)
        mistaken = held(name, arrays, dy, core, vjp)
        disown(alias)
    assert any(ratio(g, want[f"d{n}"]) > 1 for n, g in zip(arrays, got, strict=True))
    assert any(ratio(theirs[f"d{n}"], mistaken[f"d{n}"]) > 1 for n in arrays)
