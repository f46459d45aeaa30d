"""What the judge's rules grant the elementary functions is what the frameworks need, on this machine."""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import FUNCTION, precision, precision_of
from parity_tests.judge.judging import compare

RANGES = {"exp": (-80.0, 80.0), "tanh": (-20.0, 20.0), "sqrt": (0.0, 1e6), "log": (0.0, 1e6), "sigmoid": (-80.0, 80.0)}


def arguments(name: str, dtype: str) -> np.ndarray:
    """Half of them spread evenly over the range, half over the magnitudes down to 1e-6, and zero."""
    low, high = RANGES[name]
    rng = np.random.default_rng(0)
    even = rng.uniform(low, high, 200_000)
    sizes = np.exp(rng.uniform(np.log(1e-6), np.log(high), 200_000))
    signs = np.where(rng.random(200_000) < 0.5, -1.0, 1.0) if low < 0 else 1.0
    return np.concatenate([even, signs * sizes, [0.0]]).astype(dtype)


def calls() -> Iterator[tuple[str, Callable[[str, np.ndarray], np.ndarray]]]:
    """Every framework and device at hand, with a way to call one of its functions."""

    def numpy(name: str, x: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return getattr(import_module("attn_np.ops"), name)(x)

    def torch(name: str, x: np.ndarray) -> np.ndarray:
        torch, core = pytest.importorskip("torch"), import_module("attn_torch.ops")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return getattr(core, name)(torch.from_numpy(x).to(device)).cpu().numpy()

    def jax(name: str, x: np.ndarray) -> np.ndarray:
        jax, core = pytest.importorskip("jax"), import_module("attn_jax.ops")
        return np.asarray(jax.jit(getattr(core, name))(x))

    yield from (("numpy", numpy), ("torch", torch), ("jax", jax))


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
def test_constants_are_rounded_once(dtype: str) -> None:
    """The same bits in every tree, and the judge knows the rounding."""
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    values = (0.0, 1.0, -3.0, 7.0) if dtype == "int64" else (1 / 3, -(2.0**-0.5), 1e-30, 2.0**24 + 1)
    likes = {"attn_np": np.zeros(1, dtype), "attn_torch": torch.zeros(1, dtype=getattr(torch, dtype))}
    likes["attn_jax"] = jnp.zeros(1, dtype)
    want = np.array(values).astype(dtype)
    for tree, like in likes.items():
        got = np.asarray(import_module(f"{tree}.ops").constants(values, like))
        assert got.dtype == want.dtype
        assert got.tolist() == want.tolist(), tree
    if dtype != "int64":
        with precision(precision_of(dtype)):
            known: Any = import_module("attn_np.ops").constants(values, ErrArray(np.zeros(1), 0.0))
        assert compare(want.astype(np.float64), known)["ratio"] <= 1


def test_the_largest_entry_has_no_gradient() -> None:
    """The same in every tree; the judge knows what errors in the entries do to it."""
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    x = np.array([[[1.0, -2.0], [3.0, -np.inf]], [[-np.inf, 0.5], [-np.inf, 0.25]]])
    want = [[3.0, -2.0], [-np.inf, 0.5]]
    leaf = torch.from_numpy(x).requires_grad_()
    found = [import_module("attn_np.ops").amax_detached(x, 1), import_module("attn_torch.ops").amax_detached(leaf, 1)]
    found.append(import_module("attn_jax.ops").amax_detached(jax.numpy.asarray(x), 1))
    assert [np.asarray(y).tolist() for y in found] == [want] * 3
    assert not found[1].requires_grad
    grad = jax.grad(lambda x: import_module("attn_jax.ops").amax_detached(x, 1)[0].sum())(jax.numpy.asarray(x))
    assert not np.any(grad)
    with np.errstate(invalid="ignore"):
        known: Any = import_module("attn_np.ops").amax_detached(ErrArray(x, np.where(np.isfinite(x), 0.125, 0.0)), 1)
    assert known.v.tolist() == want
    assert known.b.tolist() == [[0.125, 0.125], [0.0, 0.125]]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_encodings_of_distances(dtype: str) -> None:
    """The same bits in every tree: sin and cos of distance / base^(2 i / width), whatever the sign."""
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    likes = {
        "np": np.zeros(1, dtype),
        "torch": torch.zeros(1, dtype=getattr(torch, dtype)),
        "jax": jnp.zeros(1, dtype),
    }
    found = [
        np.asarray(import_module(f"attn_{tree}.positions.relative").sinusoids(-2, 4, 6, 100.0, like=like))
        for tree, like in likes.items()
    ]
    angles = [[distance / 100.0 ** (2 * i / 6) for i in range(3)] for distance in range(-2, 4)]
    want = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    # The power, the quotient, the function and the rounding, each to an ulp of the largest angle or of 1.
    assert np.max(np.abs(found[0] - want)) <= 16 * np.finfo(dtype).eps
    for other in found:
        assert other.dtype == dtype
        assert np.array_equal(other, found[0])


def test_picked_entries_and_their_gradient() -> None:
    """The same entries in every tree; the gradient by hand is that of PyTorch."""
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    core, rng = {tree: import_module(f"attn_{tree}.ops") for tree in ("np", "torch", "jax")}, np.random.default_rng(0)
    x, dy = rng.normal(size=(2, 3, 5, 7)), rng.integers(-4, 5, (2, 3, 5, 11)).astype(np.float64)
    for b in (1, 2):
        index = rng.integers(0, 7, (b, 5, 11))
        want = np.array([[[x[n, h, t][index[n % b, t]] for t in range(5)] for h in range(3)] for n in range(2)])
        leaf = torch.from_numpy(x.copy()).requires_grad_()
        y = core["torch"].gather_last(leaf, torch.from_numpy(index))
        found = (
            core["np"].gather_last(x, index),
            core["jax"].gather_last(jnp.asarray(x), jnp.asarray(index)),
            y.detach().numpy(),
        )
        assert all(np.array_equal(np.asarray(one), want) for one in found)
        (grad,) = torch.autograd.grad(y, leaf, torch.from_numpy(dy))
        # Sums of small integers are exact.
        assert np.array_equal(import_module("attn_np.ops.vjp").gather_last_vjp(x, index, dy), grad.numpy())


def test_entries_between_entries_and_their_gradients() -> None:
    """At quarters between small integers, which are exact: one number in every tree, and both gradients, too.

    A whole number has the slope of the line after it, the last entry none.
    """
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    core, rng = {tree: import_module(f"attn_{tree}.ops") for tree in ("np", "torch", "jax")}, np.random.default_rng(0)
    x, dy = rng.integers(-4, 5, (2, 3, 5, 7)) * 1.0, rng.integers(-4, 5, (2, 3, 5, 11)) * 1.0
    position = rng.integers(0, 25, dy.shape) / 4
    position[..., 0], position[..., 1] = 6.0, 0.0
    leaves = [torch.from_numpy(a.copy()).requires_grad_() for a in (x, position)]
    y = core["torch"].interpolate_last(*leaves)
    in_torch = [y.detach().numpy(), *(g.numpy() for g in torch.autograd.grad(y, leaves, torch.from_numpy(dy)))]
    z, pull = jax.vjp(core["jax"].interpolate_last, jax.numpy.asarray(x), jax.numpy.asarray(position))
    in_jax = [z, *pull(jax.numpy.asarray(dy))]
    by_hand = import_module("attn_np.ops.vjp").interpolate_last_vjp(x, position, dy)
    pairs = zip(position.reshape(-1, 11), x.reshape(-1, 7), strict=True)
    values = np.array([np.interp(places, np.arange(7), row) for places, row in pairs])
    want = [values.reshape(dy.shape), *by_hand]
    for found in ([core["np"].interpolate_last(x, position), *by_hand], in_torch, in_jax):
        assert all(np.array_equal(np.asarray(one), other) for one, other in zip(found, want, strict=True))
    after = np.concatenate([x[..., 1:] - x[..., :-1], 0 * x[..., :1]], -1)
    assert np.array_equal(by_hand[1], dy * np.take_along_axis(after, np.floor(position).astype(int), -1))
    running = [tree.reverse_cumsum(array) for tree, array in
               zip(core.values(), (dy, torch.from_numpy(dy), jax.numpy.asarray(dy)), strict=True)]  # fmt: skip
    assert all(np.array_equal(np.asarray(one), dy[..., ::-1].cumsum(-1)[..., ::-1]) for one in running)


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_rows_of_a_table_by_any_number(dtype: str) -> None:
    """Every number near the table's ends: its row, or a refusal; where JAX does not know the number, NaN."""
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    table = np.arange(15.0).reshape(5, 3)
    arrays = {"np": np.asarray, "torch": torch.from_numpy, "jax": jax.numpy.asarray}
    first = 0 if dtype == "uint8" else -7
    traced = np.asarray(jax.jit(import_module("attn_jax.ops").take)(table, np.arange(first, 8).astype(dtype)[None]))[0]
    for number, row in zip(range(first, 8), traced, strict=True):
        for tree, array in arrays.items():
            take = import_module(f"attn_{tree}.ops").take
            if 0 <= number < 5:
                found = np.asarray(take(array(table), array(np.array([[number]], dtype))))
                assert np.array_equal(found, table[None, [number]]), (tree, number)
            else:
                with pytest.raises(ValueError, match=f"got {number}"):
                    take(array(table), array(np.array([[number]], dtype)))
        assert np.array_equal(row, table[number]) if 0 <= number < 5 else np.isnan(row).all(), number


def judged(name: str, x: np.ndarray, got: np.ndarray) -> dict[str, Any]:
    function = getattr(import_module("attn_np.ops"), name)
    with precision(precision_of(x.dtype.name)):
        return compare(got.astype(np.float64), function(ErrArray(x, 0.0)))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize(("framework", "call"), list(calls()), ids=[name for name, _ in calls()])
def test_functions_stay_within_their_rule(
    framework: str, call: Callable[..., np.ndarray], name: str, dtype: str
) -> None:
    x = arguments(name, dtype)
    found = judged(name, x, call(name, x))
    where = x[found["index"]]
    assert found["ratio"] <= 1, f"{framework} {name}({where!r}) errs by {FUNCTION * found['ratio']:.2f} u"


@pytest.mark.parametrize("name", RANGES)
def test_one_more_rounding_step_is_seen(name: str) -> None:
    """A value beyond what the rule grants fails: the check above can fail."""
    x = arguments(name, "float32")[:-1]
    exact = getattr(import_module("attn_np.ops"), name)(x.astype(np.float64))
    within, beyond = (exact * (1 + steps * 2.0**-24) for steps in (FUNCTION - 1, FUNCTION + 1))
    assert judged(name, x, within)["ratio"] <= 1
    assert judged(name, x, beyond)["ratio"] > 1
