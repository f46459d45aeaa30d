"""`recur` in the three trees: against scalar loops, in every form, with gradients, refusals and planted bugs."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
import torch

import attn_np
import attn_torch
from attn_np.ops import DTYPES
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.mistakes import SHARED, Mutant, planted
from parity_tests.tests.inputs import TREES, Arrays, Tree, same
from parity_tests.tests.kernels.test_merge import differentiated, lifted
from parity_tests.tests.witness import cotangent, ratio

B, T, G, R, K, V = 2, 7, 2, 3, 5, 3
DECAYS = {"g": (G,), "g k": (G, K), "b t g": (B, T, G), "b t g k": (B, T, G, K)}
CALLS = {
    "linear": ("linear", "beta state"),
    "gated": ("gated", "g"),
    "gated, channels": ("gated", "beta state / b t g k"),
    "gated, channels of heads": ("gated", "g k"),
    "delta": ("delta", "beta"),
    "gated_delta": ("gated_delta", "state / b t g"),
    "delta, erase_key": ("delta", "beta erase_key"),
    "gated_delta, erase_key": ("gated_delta", "beta state erase_key / b t g k"),
    "delta, documents": ("delta", "beta state documents"),
    "gated_delta, documents": ("gated_delta", "state documents / b t g k"),
    "gated_delta, channels": ("gated_delta", "beta state / b t g k"),
}


# Programs that JAX compiles; the other calls are made of the same pieces.
IN_JAX = (("gated", "recurrent"), ("delta", "chunked"), ("gated_delta, channels", "chunked"))
EVERYWHERE = [(name, call, form) for name in ("numpy", "torch") for call in CALLS for form in ("recurrent", "chunked")]
EVERYWHERE += [("jax", *case) for case in IN_JAX]


def given(call: str) -> tuple[dict[str, Any], Arrays]:
    """The rule of a call and its arrays: keys of length 1, and a decay of 0 where positions have their own."""
    rule, names = CALLS[call]
    names, _, axes = (
        names.rpartition(" / ") if "/" in names else ("", "", names) if names in DECAYS else (names, "", "")
    )
    rng = np.random.default_rng(3)
    shapes = {"q": (B, T, G * R, K), "k": (B, T, G, K), "v": (B, T, G, V)}
    inputs: Arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    inputs["k"] /= np.linalg.norm(inputs["k"], axis=-1, keepdims=True)
    others = {"beta": rng.random((B, T, G)), "state": rng.normal(size=(B, G, K, V))}
    others["erase_key"] = inputs["k"] * rng.uniform(0.5, 1, size=(B, T, G, K))
    others["documents"] = np.array([[5, 5, 5, 7, 7, 5, 5], [1, 2, 3, 3, 3, 3, 3]])
    inputs |= {name: others[name] for name in names.split()}
    if axes:
        inputs["decay"] = rng.random(DECAYS[axes])
        if axes.startswith("b"):
            inputs["decay"][0, 3, 1] = 0.0
    return {"rule": rule}, inputs


def loops(rule: str, inputs: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """The state of every head as a list of rows, one position after the other."""
    x = {name: array.tolist() for name, array in inputs.items()}
    y, ends = np.zeros((B, T, G * R, V)), np.zeros((B, G, K, V))
    for n, g in np.ndindex(B, G):
        state = [list(row) for row in x["state"][n][g]] if "state" in x else [[0.0] * V for _ in range(K)]
        for t in range(T):
            if "documents" in x and t > 0 and x["documents"][n][t] != x["documents"][n][t - 1]:
                state = [[0.0] * V for _ in range(K)]
            key, value, beta = x["k"][n][t][g], x["v"][n][t][g], x["beta"][n][t][g] if "beta" in x else 1.0
            decay = np.broadcast_to(spread(inputs["decay"])[n, t, g] if "decay" in x else 1.0, K).tolist()
            state = [[decay[i] * s for s in row] for i, row in enumerate(state)]
            erased = x["erase_key"][n][t][g] if "erase_key" in x else key
            known = [sum(erased[i] * state[i][c] for i in range(K)) if "delta" in rule else 0.0 for c in range(V)]
            state = [
                [s + key[i] * beta * (value[c] - known[c]) for c, s in enumerate(row)] for i, row in enumerate(state)
            ]
            for h in range(g * R, g * R + R):
                query = x["q"][n][t][h]
                y[n, t, h] = [sum(query[i] * state[i][c] for i in range(K)) / K**0.5 for c in range(V)]
        ends[n, g] = state
    return y, ends


def spread(decay: np.ndarray) -> np.ndarray:
    """By position and head, with an axis of channels."""
    decay = decay if decay.ndim % 2 == 0 else decay[..., None]
    return np.broadcast_to(decay, (B, T, G, decay.shape[-1]))


def held(options: dict[str, Any], inputs: Arrays, package: Any = attn_np) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Outputs, last state and every gradient, with bounds; and the cotangents."""
    with precision(precision_of("float64")):
        outputs, pull = package.value_and_vjp(package.recur, **lifted(inputs), **options)
        dys = [cotangent(y.shape) for y in outputs]
        grads = pull(*(ErrArray(dy, 0.0) for dy in dys)).inputs
    return {"y": outputs[0], "state": outputs[1]} | {f"d{name}": x for name, x in grads.items()}, dys


def results(tree: Tree, options: dict[str, Any], inputs: Arrays, dys: list[np.ndarray]) -> Arrays:
    """The same without bounds, by a tree's own differentiation."""
    if tree.name == "numpy":
        outputs, pull = tree.package.value_and_vjp(tree.package.recur, **inputs, **options)
        grads = {f"d{name}": x for name, x in pull(*dys).inputs.items()}
    else:
        outputs, grads = differentiated(tree, compiled(tree, **options), inputs, *dys)
    return dict(zip(("y", "state"), outputs, strict=True)) | grads


def compiled(tree: Tree, **options: Any) -> Any:
    """`recur` with some options; in JAX as one program, which takes less time than its operations one by one."""
    call = partial(tree.package.recur, **options)
    return jax.jit(call) if tree.name == "jax" else call


@pytest.mark.parametrize(("name", "call", "form"), EVERYWHERE)
def test_outputs_states_and_gradients_stay_within_their_bounds(name: str, call: str, form: str) -> None:
    options, inputs = given(call)
    options |= {"form": form, "chunk_size": 3}
    want, dys = held(options, inputs)
    found = results(TREES[name], options, inputs, dys)
    assert set(found) == set(want)
    for key, x in found.items():
        assert ratio(x, want[key]) <= 1, key


@pytest.mark.parametrize("call", CALLS)
def test_scalar_loops(call: str) -> None:
    """One number at a time; both forms have the same gradients, within the bounds of both."""
    options, inputs = given(call)
    y, end = loops(options["rule"], inputs)
    want, dys = held(options | {"form": "recurrent"}, inputs)
    assert ratio(y, want["y"]) <= 1
    assert ratio(end, want["state"]) <= 1
    for form, size in (("parallel", 1), ("chunked", 1), ("chunked", 4), ("auto", 64)):
        chunked = {"form": form, "chunk_size": size}
        bounds = held(options | chunked, inputs)[0]
        for name, x in results(TREES["numpy"], options | chunked, inputs, dys).items():
            assert ratio(x, ErrArray(want[name].v, want[name].b + bounds[name].b)) <= 1, (name, form, size)


@pytest.mark.parametrize("call", ["gated", "gated, channels", "gated_delta, channels"])
@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_decays_of_any_size_neither_overflow_nor_underflow(name: str, call: str) -> None:
    """Products of 1e-200 are 0 in a chunk; what passes through none of them is as exact as ever."""
    options, inputs = given(call)
    inputs["decay"] = np.where(np.arange(inputs["decay"].size).reshape(inputs["decay"].shape) % 3 == 0, 1.0, 1e-200)
    want, dys = held(options | {"form": "recurrent"}, inputs)
    bounds = held(options | {"form": "parallel"}, inputs)[0]
    for key, x in results(TREES[name], options | {"form": "parallel"}, inputs, dys).items():
        assert np.isfinite(x).all(), key
        assert ratio(x, ErrArray(want[key].v, want[key].b + bounds[key].b)) <= 1, key


def test_a_call_goes_on_where_the_last_one_stopped(tree: Tree) -> None:
    options, inputs = given("gated_delta, channels")
    want, _ = held(options, inputs)
    arrays, parts = tree.arrays(inputs), []
    state = arrays["state"]
    for start, stop in ((0, 1), (1, 4), (4, 7)):
        some = {name: arrays[name][:, start:stop] for name in ("q", "k", "v", "beta", "decay")}
        y, state = compiled(tree, **options)(**some, state=state)
        parts.append(tree.numpy(y))
    for got, name in ((np.concatenate(parts, 1), "y"), (tree.numpy(state), "state")):
        assert ratio(got, ErrArray(want[name].v, 2 * want[name].b)) <= 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_have_a_state_in_float32(tree: Tree, dtype: str) -> None:
    options, inputs = given("gated_delta, channels")
    narrow = {name: x.astype(np.float32 if name in ("state", "decay") else DTYPES[dtype]) for name, x in inputs.items()}
    y, end = compiled(tree, **options, scale=np.float32(0.5))(**tree.arrays(narrow))
    wide = {name: x.astype(np.float32) for name, x in narrow.items()}
    whole, state = compiled(tree, **options, scale=0.5)(**tree.arrays(wide))
    assert same(tree.numpy(y), tree.numpy(whole).astype(DTYPES[dtype]))
    assert same(tree.numpy(end), tree.numpy(state))


def test_an_output_that_the_loss_does_not_use_is_none() -> None:
    options, inputs = given("gated_delta, channels")
    (y, end), pull = attn_np.value_and_vjp(attn_np.recur, **inputs, **options, chunk_size=2)
    for dys in ((None, end), (y,)):
        zeros = [np.zeros_like(x) if dy is None else dy for x, dy in zip((y, end), (*dys, None), strict=False)]
        found, want = pull(*dys).inputs, pull(*zeros).inputs
        assert all(same(found[name], x) for name, x in want.items())


X = np.zeros((2, 5, 4, 3))
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "rule": ({"rule": "gru"}, ValueError, "rule to be one of linear, gated, delta, gated_delta, got 'gru'"),
    "form": ({"form": "fast"}, ValueError, "form to be one of auto, parallel, recurrent, chunked, got 'fast'"),
    "chunks": ({"chunk_size": 0}, ValueError, "chunk_size to be an integer of at least 1, got 0"),
    "scale": ({"scale": float("nan")}, ValueError, "scale to be a finite int or float, got nan"),
    "large scale": ({"scale": 10**400}, ValueError, "scale to be a finite int or float, got 1"),
    "no queries": ({"q": None}, TypeError, "an array for q, got None; pass q="),
    "no heads": (
        dict.fromkeys("qkv", X[:, :, :0]),
        ValueError,
        "q with at least one head and a width, got (2, 5, 0, 3)",
    ),
    "no width": (dict.fromkeys("qk", X[..., :0]), ValueError, "q with at least one head and a width, got (2, 5, 4, 0)"),
    "axes": ({"q": X[0]}, ValueError, "q with four axes, got (5, 4, 3)"),
    "heads": ({"k": X[:, :, :3], "v": X[:, :, :3]}, ValueError, "queries with a multiple of the 3 heads of keys and v"),
    "lengths": ({"k": X[:, :4]}, ValueError, "k of shape (2, 5, 4, 3), got (2, 4, 4, 3)"),
    "beta": ({"beta": X}, ValueError, "beta of shape (2, 5, 4), got (2, 5, 4, 3)"),
    "state": ({"state": X}, ValueError, "state of shape (2, 4, 3, 3), got (2, 5, 4, 3)"),
    "decay": ({"rule": "gated", "decay": X[0]}, ValueError, "decay of shape (g,), (g, k), (b, t, g) or (b, t, g, k)"),
    "a decay above 1": (
        {"rule": "gated", "decay": np.linspace(0.5, 1.5, 4)},
        ValueError,
        "decay from 0 to 1, got 0.5 to 1.5; pass the factor itself",
    ),
    "a decay below 0": (
        {"rule": "gated", "decay": np.full(4, -0.5)},
        ValueError,
        "decay from 0 to 1, got -0.5 to -0.5",
    ),
    "no decay": ({"rule": "gated"}, ValueError, "decay= with rule='gated', got none; rule='linear' has none"),
    "a decay": (
        {"rule": "delta", "decay": X},
        ValueError,
        "no decay= with rule='delta', got one; rule='gated_delta' ha",
    ),
    "no floats": ({"q": X > 0}, TypeError, "q of dtype float64 or float32 or bfloat16 or float16, got bool"),
    "another width": (
        {"rule": "delta", "erase_key": X[..., :2]},
        ValueError,
        "erase_key of shape (2, 5, 4, 3), got (2",
    ),
    "nothing to erase": ({"erase_key": X}, ValueError, "no erase_key= with rule='linear', got one; rule='delta' and r"),
    "documents": ({"documents": np.zeros((2, 4), int)}, ValueError, "documents of shape (2, 5), got (2, 4)"),
    "documents of floats": (
        {"documents": X[..., 0, 0]},
        TypeError,
        "documents of integers, got float64; pass the numb",
    ),
    "two dtypes": ({"v": X.astype("float32")}, TypeError, "v of dtype float64, got float32"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_right_is_refused(tree: Tree, case: str) -> None:
    changed, error, words = REFUSED[case]
    arguments = {"q": X, "k": X, "v": X} | changed
    arrays = {name: tree.array(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
    with pytest.raises(error) as caught:
        tree.package.recur(**arrays)
    assert str(caught.value).startswith(f"recur: expected {words}")


def test_a_scale_that_asks_for_its_gradient_is_refused() -> None:
    """A number has none: PyTorch would drop it without a word."""
    q = torch.ones(1, 2, 1, 3)
    learned: Any = torch.nn.Parameter(torch.tensor(0.5))
    for call in (attn_torch.attend, attn_torch.recur):
        with pytest.raises((TypeError, ValueError), match="expected scale to be a finite int or float"):
            call(q, q, q, scale=learned)


BUGS = {
    "the written key is erased": (
        "erase_key = k if delta_rule and erase_key is None else erase_key",
        "erase_key = k if delta_rule else None",
    ),
    "old value of the state before it decays": (
        '"bgk,bgkv->bgv", erase_key, decayed)',
        '"bgk,bgkv->bgv", erase_key, state)',
    ),
    "keys of a chunk do not decay": (
        "with_chunk_axis(b, t, chunk_size, scaled_by(k, to_end)",
        "with_chunk_axis(b, t, chunk_size, k",
    ),
    "the state does not decay through a chunk": (
        "chunk_decay = from_start[:, -1]\n    scores",
        "chunk_decay = None\n    scores",
    ),
    "what a chunk erases does not decay": ("inverse, scaled_by(erasing, from_start)))", "inverse, erasing))"),
    "a query decays to the end of the chunk": (
        "rows[:, t // 2 :] * from_middle[:,",
        "rows[:, t // 2 :] * to_middle[:,",
    ),
    "a query sees later keys": (
        "causal_mask(chunk_size, q)[:, None, None], products",
        "causal_mask(chunk_size, q)[:, None, None] | True, products",
    ),
    "padding that decays": ("to_chunks(decay, chunk_size, 1.0))", "to_chunks(decay, chunk_size))"),
    "queries of other heads": (
        "group_heads(q, k.shape[2])\n    if",
        "q.reshape(b, t, h // k.shape[2], k.shape[2], q.shape[3]).swapaxes(2, 3)\n    if",
    ),
    "a document that goes on with the last one's state": (
        "begins_document(documents), 0.0, 1.0 +",
        "begins_document(documents), 1.0, 1.0 +",
    ),
    "a document that begins a position late": (
        "documents[:, 1:] != documents[:, :-1]",
        "concatenate([documents[:, :1] != documents[:, :1], documents[:, 1:-1] != documents[:, :-2]], 1)",
    ),
    "no scale": ("(1 / sqrt(width) if scale is None", "(1 if scale is None"),
}


def failures(tree: Tree, package: Any) -> list[str]:
    """The calls that are out of their bounds in a package."""
    found = []
    for call, form in (
        ("gated_delta, channels", "recurrent"),
        ("gated_delta, channels", "chunked"),
        ("delta", "chunked"),
        ("delta, documents", "chunked"),
        ("gated_delta, erase_key", "recurrent"),
    ):
        options, inputs = given(call)
        settings = options | {"form": form, "chunk_size": 4}
        want, _ = held(settings, inputs)
        outputs = package.recur(**tree.arrays(inputs), **settings)
        far = [not ratio(tree.numpy(y), want[name]) <= 1 for y, name in zip(outputs, ("y", "state"), strict=True)]
        found += [form] * any(far)
    return found


@pytest.mark.parametrize("package", ["attn_np", "attn_torch"])
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str, package: str) -> None:
    tree = next(tree for tree in TREES.values() if tree.package.__name__ == package)
    with planted(Mutant(bug, SHARED, *BUGS[bug], "", ""), package) as alias:
        assert failures(tree, __import__(alias))


RULES = {
    "the first state has no gradient": ("return *grads, dinitial_state", "return *grads, 0.0 * dinitial_state"),
    "a decay's gradient within the chunk alone": ("dfrom_start[:, -1:] + dchunk_decay]", "dfrom_start[:, -1:]]"),
    "keys without the part of the system": ("dk, derase_key = sum_grads(dk, derase_key), None", "derase_key = None"),
    "what is written without the difference": ("dv_new * difference, axis=-1", "dv_new * v, axis=-1"),
    "a middle that does not move": ("dfrom_middle[:, -1:] + dsecond]", "dfrom_middle[:, -1:]]"),
    "decays of the position after": (
        "ddecay = None if decay is None else sum_to(ddecay, decay.shape)",
        "ddecay = None if decay is None else sum_to(ddecay[:, ::-1], decay.shape)",
    ),
    "a scale without its gradient": ("dq = dq * (1 / sqrt(k.shape[3])", "dq = dq * (1.0"),
}


@pytest.mark.parametrize("bug", RULES)
def test_a_planted_bug_of_the_rule_is_seen(bug: str) -> None:
    options, inputs = given("gated_delta, channels")
    with planted(Mutant(bug, SHARED, *RULES[bug], "", ""), "attn_np") as alias:
        package, far = __import__(alias), []
        for form in ("recurrent", "chunked"):
            settings = options | {"form": form, "chunk_size": 4}
            want, dys = held(settings, inputs)
            grads = package.value_and_vjp(package.recur, **inputs, **settings)[1](*dys).inputs
            far += [name for name, x in grads.items() if not ratio(x, want[f"d{name}"]) <= 1]
    assert far
