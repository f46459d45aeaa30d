"""`return_lse` and `merge`: the logarithm of a row's sum of exponentials, and attention to some keys at a time."""

from math import exp, inf, log
from typing import Any

import jax
import numpy as np
import pytest
import torch

import attn_np
from attn_np import patterns
from attn_np.ops import DTYPES
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.judge import kernels
from parity_tests.mistakes import SHARED, Mutant, planted
from parity_tests.tests.inputs import TREES, Arrays, Tree, same
from parity_tests.tests.kernels.test_attend import given
from parity_tests.tests.witness import cotangent, ratio

CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({}, ""),
    "masked": ({"softcap": 1.5}, "mask"),
    "all": ({"causal": True, "softcap": 1.5}, "mask bias sinks"),
    "a row that sees its sink alone": ({"lengths": np.array([0, 5])}, "sinks"),
    "a row that sees nothing": ({"lengths": np.array([0, 5])}, ""),
}
# What leaves some queries without a key, with the sink of their head and without.
WITHOUT_KEYS: dict[str, dict[str, Any]] = {
    "few keys": {"causal": True},
    "a window ahead": {"window": (None, 0)},
    "a window behind": {"window": (0, None), "offset": 4},
    "a mask": {},
    "a bias": {},
    "a pattern": {"pattern": patterns.GlobalQueries(np.eye(2, 5, dtype=bool))},
    "causality and a pattern": {"causal": True, "pattern": ~patterns.Prefix(np.array([2, 3]))},
}
# The textbook path, the fast one of a small call, and that in blocks.
PATHS = ("textbook", "fused", "blocks", "one block")


def constants(tree: Tree, path: str) -> dict[str, Any]:
    """Those of the tree's kernels: blocks that fall everywhere, or PyTorch's with the whole batch in one."""
    one_block = {"SMALL_MAX_SCORES": 0} if tree.name == "torch" else {}
    return {"blocks": kernels.SMALL[tree.name][0], "one block": one_block}.get(path, {})


def lifted(inputs: Arrays) -> Any:
    return {n: ErrArray(x, 0.0) if x.dtype.kind == "f" else x for n, x in inputs.items()}


def cotangents(lse: np.ndarray) -> np.ndarray:
    """Random, 0 where a query sees nothing."""
    return np.where(np.isfinite(lse), cotangent(lse.shape), 0.0)


def held(inputs: Arrays, options: dict[str, Any]) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """The lse and every gradient of a loss of context and lse, with bounds, and the two cotangents."""
    with precision(precision_of("float64")), np.errstate(invalid="ignore"):
        outputs, pull = attn_np.value_and_vjp(attn_np.attend, **lifted(inputs), **options, return_lse=True)
        dy, dlse = cotangent(outputs[0].shape), cotangents(outputs[2].v)
        grads = pull(ErrArray(dy, 0.0), None, ErrArray(dlse, 0.0)).inputs
    return {"context": outputs[0], "lse": outputs[2]} | {f"d{name}": x for name, x in grads.items()}, dy, dlse


def differentiated(tree: Tree, call: Any, inputs: Arrays, *dys: np.ndarray) -> tuple[list[np.ndarray], Arrays]:
    """The outputs that `dys` belong to, and the gradients of all floats."""
    arrays = tree.arrays(inputs)
    names = [name for name, x in inputs.items() if x.dtype.kind == "f"]
    if tree.name == "torch":
        arrays |= {name: arrays[name].requires_grad_() for name in names}
        outputs = call(**arrays)
        finite = [torch.where(torch.isfinite(y), y, 0.0) for y in outputs]
        loss: Any = sum((y * torch.from_numpy(dy)).sum() for y, dy in zip(finite, dys, strict=True))
        loss.backward()
        return [y.detach().numpy() for y in outputs], {f"d{name}": arrays[name].grad.numpy() for name in names}
    rest = {name: x for name, x in arrays.items() if name not in names}
    outputs, pull = jax.vjp(lambda floats: call(**floats, **rest), {name: arrays[name] for name in names})
    (grads,) = pull(tuple(tree.array(dy) for dy in dys))
    return [np.asarray(y) for y in outputs], {f"d{name}": np.asarray(x) for name, x in grads.items()}


def results(tree: Tree, package: Any, call: str, path: str) -> tuple[Arrays, dict[str, Any]]:
    """The context, the lse and every gradient by a path of a package, and their bounds."""
    options, names = CALLS[call]
    return results_of(tree, package, given(2, names), options, path)


def results_of(tree: Tree, package: Any, inputs: Any, options: Any, path: str) -> tuple[Arrays, dict[str, Any]]:
    """Those of any call."""
    want, dy, dlse = held(inputs, options)
    pattern = options.get("pattern")
    options = options | {"pattern": pattern and pattern.map(lambda axes, x: tree.array(x))}
    options = {name: tree.array(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    options |= {"implementation": "textbook" if path == "textbook" else "fused", "return_lse": True}
    with kernels.blocks(package.__name__, constants(tree, path)):
        if tree.name == "numpy":
            (y, _, lse), pull = package.value_and_vjp(package.attend, **inputs, **options)
            outputs, grads = [y, lse], {f"d{name}": x for name, x in pull(dy, None, dlse).inputs.items()}
        else:
            outputs, grads = differentiated(tree, lambda **x: package.attend(**x, **options)[::2], inputs, dy, dlse)
    return {"context": outputs[0], "lse": outputs[1]} | grads, want


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("call", CALLS)
def test_lse_and_its_gradients_stay_within_their_bounds(tree: Tree, call: str, path: str) -> None:
    outputs, want = results(tree, tree.package, call, path)
    for name, x in outputs.items():
        assert ratio(x, want[name]) <= 1, name


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("sinks", ["", "sinks"])
@pytest.mark.parametrize("why", WITHOUT_KEYS)
def test_the_lse_of_queries_without_keys(name: str, why: str, sinks: str) -> None:
    """Whatever hides all keys from them, on every path. (JAX, which compiles each, is asked in `test_dependence`.)"""
    tree = TREES[name]
    inputs = given(2, " ".join([sinks, *(x for x in ("mask", "bias") if why == f"a {x}")]))
    inputs |= {x: inputs[x][:, :3] for x in "kv"} if why in ("few keys", "a window ahead") else {}
    if why == "a bias":
        inputs["bias"][..., 1, :] = -inf
    if not sinks:
        assert np.isneginf(held(inputs, WITHOUT_KEYS[why])[0]["lse"].v).any()
    for path in PATHS:
        outputs, want = results_of(tree, tree.package, inputs, WITHOUT_KEYS[why], path)
        for of, x in outputs.items():
            assert ratio(x, want[of]) <= 1, (path, of)


def test_scalar_loops() -> None:
    """log sum exp of what is in sight, the head's sink among it; -inf where nothing is."""
    inputs: Any = given(2, "mask sinks")
    (_, _, lse), tape = attn_np.trace(attn_np.attend, **inputs, return_lse=True)
    scores, found = tape["scores"], np.zeros(lse.shape)
    for n, h, i in np.ndindex(lse.shape):
        seen = [exp(scores[n, h, i, j]) for j in range(7) if inputs["mask"][n, h, i, j]]
        found[n, h, i] = log(sum(seen) + exp(inputs["sinks"][h]))
    assert ratio(found, held(inputs, {})[0]["lse"]) <= 1
    alone = attn_np.attend(**{name: x for name, x in inputs.items() if name != "sinks"}, return_lse=True)[2]
    assert alone[0, -1, 2] == -inf
    assert np.isfinite(alone).sum() == alone.size - np.sum(~inputs["mask"].any(-1))


def test_parts_merge_into_the_whole(tree: Tree) -> None:
    """Whatever the parts are, and where a query sees nothing of one or of all of them."""
    inputs = given(2, "mask bias")
    inputs["mask"][0, :, 1, :4] = False

    def part(a: int, b: int) -> Any:
        keys = {name: x[:, a:b] if name in "kv" else x if name == "q" else x[..., a:b] for name, x in inputs.items()}
        context, _, lse = tree.package.attend(**tree.arrays(keys), return_lse=True)
        return context, lse

    context, lse = tree.package.merge([part(0, 1), part(1, 3), part(3, 7)])
    want = held(inputs, {})[0]
    bounds = {name: ErrArray(want[name].v, 8 * want[name].b) for name in ("context", "lse")}  # of parts and their sum
    assert ratio(tree.numpy(context), bounds["context"]) <= 1
    assert ratio(tree.numpy(lse), bounds["lse"]) <= 1
    assert not tree.numpy(context)[0, 2, -1].any()


@pytest.mark.parametrize("heads", [True, False])
def test_merge_and_its_gradients_stay_within_their_bounds(tree: Tree, heads: bool) -> None:
    rng, shape = np.random.default_rng(2), (2, 5, 3, 4) if heads else (2, 5, 4)
    rows = (shape[0], *shape[2:-1], shape[1])
    inputs = {name: rng.normal(size=shape) for name in ("c0", "c1", "c2")}
    inputs |= {name: rng.normal(size=rows) * 3 for name in ("l0", "l1", "l2")}
    inputs["l1"][0] = -inf
    inputs["l0"][0, ..., 1] = inputs["l2"][0, ..., 1] = -inf

    def call(package: Any, x: Any) -> Any:
        return package.merge([(x[f"c{i}"], x[f"l{i}"]) for i in range(3)])

    x = lifted(inputs)
    with precision(precision_of("float64")), np.errstate(invalid="ignore"):
        (y, lse), pull = attn_np.value_and_vjp(attn_np.merge, [(x[f"c{i}"], x[f"l{i}"]) for i in range(3)])
        dy, dlse = cotangent(y.shape), cotangents(lse.v)
        parts = pull(ErrArray(dy, 0.0), ErrArray(dlse, 0.0)).inputs["parts"]
    want: Any = {"context": y, "lse": lse}
    want |= {f"d{name}{i}": g for i, pair in enumerate(parts) for name, g in zip("cl", pair, strict=True)}
    if tree.name == "numpy":
        outputs, back = attn_np.value_and_vjp(attn_np.merge, [(inputs[f"c{i}"], inputs[f"l{i}"]) for i in range(3)])
        pairs: Any = back(dy, dlse).inputs["parts"]
        grads = {f"d{name}{i}": g for i, pair in enumerate(pairs) for name, g in zip("cl", pair, strict=True)}
    else:
        outputs, grads = differentiated(tree, lambda **x: call(tree.package, x), inputs, dy, dlse)
    for name, found in ({"context": outputs[0], "lse": outputs[1]} | grads).items():
        assert ratio(found, want[name]) <= 1, name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_have_an_lse_in_float32(tree: Tree, dtype: str) -> None:
    inputs = {name: x.astype(DTYPES[dtype]) for name, x in given(2).items()}
    context, _, lse = tree.package.attend(**tree.arrays(inputs), return_lse=True)
    wide = {name: x.astype(np.float32) for name, x in inputs.items()}
    assert same(tree.numpy(lse), tree.numpy(tree.package.attend(**tree.arrays(wide), return_lse=True)[2]))
    merged, _ = tree.package.merge([(context, lse)])
    assert same(tree.numpy(merged), tree.numpy(context))


C, L = np.zeros((2, 5, 3, 4)), np.zeros((2, 3, 5))
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "no parts": ([], ValueError, "expected a list of pairs (context, lse), at least one, got a list of 0"),
    "no pairs": ([C], ValueError, "expected a list of pairs (context, lse), at least one, got a list of 1"),
    "weights among them": (
        [(C, None, L)],
        ValueError,
        "expected a list of pairs (context, lse), at least one, got triples",
    ),
    "no lse": ([(C, None)], TypeError, "expected an array for lse, got None; take both from return_lse=True"),
    "heads last": ([(C, L.swapaxes(1, 2))], ValueError, "expected lse of shape (2, 3, 5), got (2, 5, 3); put its axes"),
    "other rows": ([(C, L[:1])], ValueError, "expected lse of shape (2, 3, 5), got (1, 3, 5)"),
    "other queries": ([(C, L), (C[:, :1], L)], ValueError, "expected contexts of one shape and dtype"),
    "no floats": ([(C, L > 0)], TypeError, "expected lse of a float dtype, got bool"),
    "no contexts": ([(C[0, 0], L)], ValueError, "expected contexts b t h v, or b t v without heads"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_merged_is_refused(tree: Tree, case: str) -> None:
    parts, error, words = REFUSED[case]
    arrays = [
        tuple(None if x is None else tree.array(x) for x in part) if isinstance(part, tuple) else tree.array(part)
        for part in parts
    ]
    with pytest.raises(error) as caught:
        tree.package.merge(arrays)
    assert str(caught.value).startswith(f"merge: {words}")


@pytest.mark.parametrize(
    ("options", "got"),
    [
        ({"normalize_over": "queries"}, "with the softmax over the keys, got 'queries'"),
        ({"softmax_fn": lambda scores, allowed: scores}, "with the softmax over the keys, got softmax_fn"),
    ],
)
def test_an_lse_that_there_is_not_is_refused(tree: Tree, options: dict[str, Any], got: str) -> None:
    with pytest.raises(ValueError, match="attend: expected return_lse=True") as caught:
        tree.package.attend(**tree.arrays(given(2)), **options, return_lse=True)
    assert got in str(caught.value)


BUGS = {
    "the largest score not added again": ('float("-inf"), top + log(where(nothing', 'float("-inf"), log(where(nothing'),
    "hidden scores counted": ("lse = log_sum_exp(scores, visible)", "lse = log_sum_exp(scores)"),
    "the sink forgotten": ("lse = log_sum_exp(stack([lse, column], -1))", "lse = lse + 0 * column"),
}


@pytest.mark.parametrize("package", ["attn_np", "attn_jax", "attn_torch"])
@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str, package: str) -> None:
    tree = next(tree for tree in TREES.values() if tree.package.__name__ == package)
    options, names = CALLS["all"]
    inputs = given(2, names)
    with planted(Mutant(bug, SHARED, *BUGS[bug], "", ""), package) as alias:
        options = options | {"implementation": "textbook"}
        lse = __import__(alias).attend(**tree.arrays(inputs), **options, return_lse=True)[2]
    assert not ratio(tree.numpy(lse), held(inputs, options)[0]["lse"]) <= 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('tape["probs_and_sink"] * dlse', "0 * dlse"),
        ("sum_grads(dscores, probs * dlse[..., None])", "dscores"),
    ],
)
def test_a_planted_bug_of_the_rule_is_seen(old: str, new: str) -> None:
    options, names = CALLS["all" if "sink" in old else "masked"]
    inputs: Any = given(2, names)
    want, dy, dlse = held(inputs, options)
    options = options | {"implementation": "textbook"}
    with planted(Mutant("rule", SHARED, old, new, "", ""), "attn_np") as alias:
        package = __import__(alias)
        grads = package.value_and_vjp(package.attend, **inputs, **options, return_lse=True)[1](dy, None, dlse).inputs
    assert not ratio(grads["q"], want["dq"]) <= 1


KERNEL_BUGS: dict[tuple[str, str], tuple[str, str, str]] = {  # by tree and name: the path and the edit
    ("numpy", "its gradient forgotten"): ("fused", "delta - dlse.astype(dtype, copy=False)", "delta"),
    ("numpy", "the largest score not added again"): ("blocks", "lse = self.row_shift /", "lse = 0 * self.row_shift /"),
    ("jax", "its gradient forgotten"): ("blocks", "- where(empty_rows, 0.0, dlse_i / total_i)", ""),
    ("jax", "its gradient not divided by the sum"): ("blocks", "dlse_i / total_i)", "dlse_i)"),
    ("jax", "the largest score not added again"): ("fused", "where(empty_rows, 0.0, top) + log(", "log("),
    ("jax", "no sink for a query without keys"): ("blocks", "inf, dlse, 0.0)", "inf, 0.0 * dlse, 0.0)"),
    ("torch", "its gradient forgotten"): ("blocks", "delta - dlse.mT[..., None] if ctx.return_lse else delta", "delta"),
    ("torch", "no sink for a query without keys"): (
        "blocks",
        "empty_rows & (sinks == -torch.inf)[..., None]",
        "empty_rows",
    ),
    ("torch", "the sink forgotten"): ("blocks", "top - probs.amax(", "top - probs[..., call.sink_columns :].amax("),
    ("torch", "the largest score not added again"): ("blocks", "top - probs.amax(", "-probs.amax("),
}


@pytest.mark.parametrize(("name", "bug"), KERNEL_BUGS)
def test_a_planted_bug_of_a_fast_path_is_seen(name: str, bug: str) -> None:
    path, old, new = KERNEL_BUGS[name, bug]
    tree = TREES[name]
    file = "kernels/blocks.py" if name == "torch" else "kernels/flash.py"
    with planted(Mutant(bug, file, old, new, "", ""), tree.package.__name__) as alias:
        outputs, want = results(tree, __import__(alias), "all", path)
    assert any(not ratio(x, want[name]) <= 1 for name, x in outputs.items())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("names", ["", "sinks"])
def test_queries_before_the_first_key_have_their_sink_alone(tree: Tree, names: str, path: str) -> None:
    """More queries than keys: -inf without sinks, and what the others' rows are is not touched."""
    inputs = given(2, names)
    inputs |= {name: inputs[name][:, :2] for name in "kv"}
    want = held(inputs, {"causal": True})[0]["lse"]
    options: dict[str, Any] = {"causal": True, "implementation": "textbook" if path == "textbook" else "fused"}
    with kernels.blocks(tree.package.__name__, constants(tree, path)):
        lse = tree.numpy(tree.package.attend(**tree.arrays(inputs), **options, return_lse=True)[2])
    assert ratio(lse, want) <= 1
    assert names or np.all(lse[..., :3] == -inf)
