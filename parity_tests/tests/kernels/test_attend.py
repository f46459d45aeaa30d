"""`attend` in the three trees, above all key/value heads that several query heads share."""

from importlib import import_module
from itertools import product
from math import exp, sqrt, tanh
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

import attn_np
from attn_np.attention.attend import attend, attend_vjp
from attn_np.attention.masks import any_visible, query_and_key_masks
from attn_np.ops import DTYPES
from attn_np.ops.vjp import softmax_vjp, value_and_vjp
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.judge.kernels import visible
from parity_tests.mistakes import SHARED, Mutant, planted
from parity_tests.tests.inputs import TREES, Arrays, Tree, same
from parity_tests.tests.witness import cotangent, ratio, torch_gradients

B, T, S, H, K, V = 2, 5, 7, 6, 3, 11
BACKWARD = ("scale", "softcap", "rate", "normalize_over")

# What a call may ask for: arguments that are no arrays, and the arrays that it gives beside q, k and v.
CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({}, ""),
    "masked": ({"scale": 0.375}, "mask"),
    "near": ({"causal": True, "window": (3, None)}, "mask"),
    "all": ({"window": (None, 1), "softcap": 1.5, "rate": 0.25}, "mask bias keep"),
    "queries": ({"normalize_over": "queries"}, "mask"),
    "sinks": ({"causal": True, "scale": 0.375}, "sinks"),
    "all-sinks": ({"window": (None, 1), "softcap": 1.5, "rate": 0.25}, "mask bias sinks keep"),
}


def given(groups: int, names: str = "", queries: int = H) -> Arrays:
    """Random arrays; one query sees nothing, one key is seen by nobody, one is hidden from the first half of heads."""
    rng = np.random.default_rng(groups)
    shapes = {"q": (B, T, queries, K), "k": (B, S, groups, K), "v": (B, S, groups, V)}
    found: Arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    scores = (B, queries, T, S)
    others = {"mask": rng.random(scores) < 0.6, "bias": rng.normal(size=scores), "keep": rng.random(scores) >= 0.25}
    others["sinks"] = rng.normal(size=queries)
    others["mask"][0, -1, 2] = False
    others["mask"][1, ..., 4] = False
    others["mask"][0, : queries // 2, :, 3] = False
    return found | {name: others[name] for name in names.split()}


def context_shape(inputs: Arrays) -> tuple[int, ...]:
    return (*inputs["q"].shape[:-1], inputs["v"].shape[-1])


def held(inputs: Arrays, options: dict[str, Any]) -> dict[str, ErrArray]:
    """Context, weights and gradients, each number with the bound for a computation in float64."""
    arrays: dict[str, Any] = {n: ErrArray(x, 0.0) if x.dtype.kind == "f" else x for n, x in inputs.items()}
    groups = inputs["k"].shape[2] if inputs["k"].ndim == 4 else None
    with precision(precision_of("float64")), np.errstate(invalid="ignore"):
        return numpy_results(arrays, ErrArray(cotangent(context_shape(inputs)), 0.0), options, groups)


def numpy_results(inputs: dict[str, Any], dy: Any, options: dict[str, Any], groups: int | None) -> dict[str, Any]:
    tape: dict[str, Any] = {}
    context, weights = attend(**inputs, **options, tape=tape, return_weights=True)
    backward = {name: x for name, x in options.items() if name in BACKWARD}
    dq, dk, dv, dbias = attend_vjp(tape, dy, **backward, kv_heads=groups)
    found = {"context": context, "weights": weights, "dq": dq, "dk": dk, "dv": dv, "dbias": dbias}
    found["dsinks"] = tape.get("dsinks")
    return {name: x for name, x in found.items() if x is not None}


def results(tree: Tree, inputs: Arrays, options: dict[str, Any]) -> Arrays:
    """What a tree gives: NumPy by its own backward pass, the others by automatic differentiation."""
    dy = cotangent(context_shape(inputs))
    if tree.name == "numpy":
        groups = inputs["k"].shape[2] if inputs["k"].ndim == 4 else None
        return numpy_results(inputs, dy, options, groups)
    arrays = tree.arrays(inputs)
    leaves = {name: x for name, x in arrays.items() if inputs[name].dtype.kind == "f"}
    rest = {name: x for name, x in arrays.items() if name not in leaves}
    if tree.name == "torch":
        leaves = {name: x.requires_grad_() for name, x in leaves.items()}
        context, weights = tree.package.attend(**leaves, **rest, **options, return_weights=True)
        grads = torch_gradients(context, **leaves)
    else:

        def call(leaves: Any) -> Any:
            return tree.package.attend(**leaves, **rest, **options, return_weights=True)

        (context, weights), pull = jax.vjp(call, leaves)
        (found,) = pull((tree.array(dy), np.zeros_like(weights)))
        grads = {f"d{name}": np.asarray(g) for name, g in found.items()}
    return {"context": tree.numpy(context), "weights": tree.numpy(weights)} | grads


def judged(got: dict[str, Any], want: dict[str, ErrArray]) -> None:
    assert set(got) == set(want)
    for name, x in got.items():
        assert ratio(x, want[name]) <= 1, name


# Scalar loops ---------------------------------------------------------------------------------------------------------


def loops(inputs: Arrays, options: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Context and weights one number at a time: query head h asks key/value head h // r."""
    q, k, v = (inputs[name].tolist() for name in "qkv")
    (b, t, heads, width), (s, groups) = inputs["q"].shape, inputs["k"].shape[1:3]
    r = heads // groups
    scale = options.get("scale", 1 / sqrt(width))
    left, right = options.get("window", (None, None))
    softcap, rate = options.get("softcap"), options.get("rate", 0.0)
    raised = np.zeros((b, heads, t, s))
    for n, h, i, j in np.ndindex(raised.shape):
        place = i + s - t
        shown = "mask" not in inputs or inputs["mask"][n, h, i, j]
        shown = shown and not (options.get("causal") and j > place)
        shown = shown and (left is None or j >= place - left) and (right is None or j <= place + right)
        if not shown:
            continue
        score = scale * sum(q[n][i][h][c] * k[n][j][h // r][c] for c in range(width))
        score = score if softcap is None else softcap * tanh(score / softcap)
        raised[n, h, i, j] = exp(score + (inputs["bias"][n, h, i, j] if "bias" in inputs else 0.0))
    weights, context = np.zeros(raised.shape), np.zeros(context_shape(inputs))
    for n, h, i, j in np.ndindex(raised.shape):
        rivals = raised[n, h, :, j] if options.get("normalize_over") == "queries" else raised[n, h, i]
        sunk = exp(inputs["sinks"][h]) if "sinks" in inputs else 0.0
        weights[n, h, i, j] = raised[n, h, i, j] / (sum(rivals) + sunk) if raised[n, h, i, j] else 0.0
        used = weights[n, h, i, j] / (1 - rate) if "keep" not in inputs or inputs["keep"][n, h, i, j] else 0.0
        for c in range(context.shape[-1]):
            context[n, i, h, c] += used * v[n][j][h // r][c]
    return context, weights


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_scalar_loops(groups: int, call: str) -> None:
    options, names = CALLS[call]
    inputs = given(groups, names)
    want = held(inputs, options)
    context, weights = loops(inputs, options)
    assert ratio(context, want["context"]) <= 1
    assert ratio(weights, want["weights"]) <= 1


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_the_trees_give_what_the_reference_gives(tree: Tree, groups: int, call: str) -> None:
    """Context, weights and the gradients of q, k, v and the bias: by hand in NumPy, else automatically."""
    options, names = CALLS[call]
    inputs = given(groups, names)
    judged(results(tree, inputs, options), held(inputs, options))


# PyTorch's own function -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", ["", "mask", "bias"])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_torch_scaled_dot_product_attention(groups: int, masked: str) -> None:
    """`enable_gqa` repeats the heads in the same order; forward and gradients."""
    inputs = given(groups, masked)
    leaves = {n: torch.from_numpy(x).requires_grad_() for n, x in inputs.items() if n != "mask"}
    q, k, v = (leaves[name].transpose(1, 2) for name in "qkv")
    hidden = torch.from_numpy(inputs["mask"]) if masked == "mask" else leaves.get("bias")
    y = scaled_dot_product_attention(q, k, v, hidden, enable_gqa=True).transpose(1, 2)
    want = held(inputs, {})
    assert ratio(y.detach(), want["context"]) <= 1
    for name, grad in torch_gradients(y, **leaves).items():
        assert ratio(grad, want[name]) <= 1, name


# Identities -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_shared_heads_are_repeated_heads(tree: Tree, groups: int) -> None:
    """The same numbers, to the bit; a shared head's gradient is the sum over those that share it."""
    options, names = CALLS["all"]
    inputs, r = given(groups, names), H // groups
    repeated = inputs | {name: np.repeat(inputs[name], r, axis=2) for name in "kv"}
    got, spread = results(tree, inputs, options), results(tree, repeated, options)
    for name in ("context", "weights", "dq", "dbias"):
        assert same(got[name], spread[name]), name
    want = held(inputs, options)
    for name in ("dk", "dv"):
        assert ratio(spread[name].reshape(B, S, groups, r, -1).sum(axis=3), want[name]) <= 1, name


def test_a_shared_head_reaches_its_own_queries_only(tree: Tree) -> None:
    """Another key/value head changes r neighbouring query heads and no others."""
    inputs = given(2)
    changed = inputs | {name: inputs[name].copy() for name in "kv"}
    for name in "kv":
        changed[name][:, :, 1] += 1.0
    before, after = (results(tree, x, {})["context"] for x in (inputs, changed))
    assert same(before[:, :, :3], after[:, :, :3])
    assert not np.any(before[:, :, 3:] == after[:, :, 3:])


@pytest.mark.parametrize("call", ["all", "queries"])
def test_without_a_head_axis(tree: Tree, call: str) -> None:
    """One head's values and gradients, its axis left out."""
    options, names = CALLS[call]
    inputs = given(1, names, queries=1)
    want = held(inputs, options)
    flat = {name: x[:, :, 0] if name in "qkv" else x[:, 0] for name, x in inputs.items()}
    for name, x in results(tree, flat, options).items():
        full = np.expand_dims(x, 1 if name in ("weights", "dbias") else 2)
        assert ratio(full, want[name]) <= 1, name


# Hidden keys ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["all", "all-sinks"])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_a_query_without_keys(tree: Tree, groups: int, call: str) -> None:
    """Its weights, its context and its gradient are exactly 0; everything stays finite."""
    options, names = CALLS[call]
    inputs = given(groups, names)
    got = results(tree, inputs, options)
    assert all(np.isfinite(x).all() for x in got.values())
    assert not np.any(got["weights"][0, -1, 2])
    assert not np.any(got["context"][0, 2, -1])
    assert not np.any(got["dq"][0, 2, -1])
    assert not np.any(got["dbias"][0, -1, 2])
    assert not np.any(got["dk"][1, 4])
    assert not np.any(got["dv"][1, 4])


@pytest.mark.parametrize("call", ["all", "all-sinks"])
@pytest.mark.parametrize("value", [1e3, np.inf, np.nan])
def test_a_key_hidden_from_all_that_share_it_influences_nothing(tree: Tree, value: float, call: str) -> None:
    """The first of two key/value heads has a key that the first half of the query heads may not see."""
    options, names = CALLS[call]
    clean = given(2, names)
    dirty = clean | {name: clean[name].copy() for name in "kv"}
    for name in "kv":
        dirty[name][0, 3, 0] = value
    got, want = results(tree, dirty, options), results(tree, clean, options)
    for name, x in got.items():
        assert np.isfinite(x).all(), name
        assert same(x, want[name]), name
    assert not np.any(got["dk"][0, 3, 0])
    assert not np.any(got["dv"][0, 3, 0])
    assert np.all(got["dv"][0, 3, 1])


# Sinks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("masked", ["", "mask", "bias"])
def test_a_sink_is_one_more_key_without_a_value(masked: str) -> None:
    """PyTorch's softmax over scores with one more column, whose weight is thrown away; forward and gradients."""
    inputs = given(H, f"{masked} sinks")
    leaves = {n: torch.from_numpy(x).requires_grad_() for n, x in inputs.items() if n != "mask"}
    q, k, v = (leaves[name].transpose(1, 2) for name in "qkv")
    scores = q @ k.transpose(-1, -2) / sqrt(K)
    if masked == "mask":
        scores = scores.masked_fill(torch.from_numpy(~inputs["mask"]), -torch.inf)
    elif masked == "bias":
        scores = scores + leaves["bias"]
    column = leaves["sinks"][:, None, None].expand(B, H, T, 1)
    y = (torch.softmax(torch.cat([scores, column], -1), -1)[..., :-1] @ v).transpose(1, 2)
    want = held(inputs, {})
    assert ratio(y.detach(), want["context"]) <= 1
    for name, grad in torch_gradients(y, **leaves).items():
        assert ratio(grad, want[name]) <= 1, name


def test_a_sink_of_minus_infinity_is_none(tree: Tree) -> None:
    """Rows without a key included; its gradient is 0."""
    options, names = CALLS["all"]
    inputs = given(2, names)
    got = results(tree, inputs | {"sinks": np.full(H, -np.inf)}, options)
    assert not np.any(got.pop("dsinks"))
    judged(got, held(inputs, options))


def test_a_sink_beyond_all_scores_takes_everything(tree: Tree) -> None:
    got = results(tree, given(2) | {"sinks": np.full(H, 1e4)}, {})
    assert all(np.isfinite(x).all() for x in got.values())
    assert not any(np.any(x) for x in got.values())


def test_scores_far_below_their_sink_and_far_above_it(tree: Tree) -> None:
    """The largest of both is subtracted before exp: a head whose sink is far below gives what it gives without one."""
    inputs = given(2)
    inputs["q"] *= 1e4
    got = results(tree, inputs | {"sinks": np.full(H, -1e7)}, {})
    assert not np.any(got.pop("dsinks"))
    judged(got, held(inputs, {}))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sinks_of_16_bits_are_widened_first(tree: Tree, dtype: str) -> None:
    inputs = {name: x.astype(DTYPES[dtype]) for name, x in given(2, "sinks").items()}
    context, weights = tree.package.attend(**tree.arrays(inputs), return_weights=True)
    wide = {name: x.astype(np.float32) for name, x in inputs.items()}
    for x, y in zip((context, weights), tree.package.attend(**tree.arrays(wide), return_weights=True), strict=True):
        assert same(tree.numpy(x), tree.numpy(y).astype(DTYPES[dtype]))


# Weights made otherwise -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["plain", "near", "all"])
def test_a_function_may_take_the_softmaxs_place(tree: Tree, call: str) -> None:
    """The softmax itself, given as such a function, gives the same bits; its rule goes the same way back."""
    options, names = CALLS[call]
    core, inputs = import_module(f"{tree.package.__name__}.ops"), given(2, names)
    want, got = ({}, {})
    for found, more in ((want, {}), (got, {"softmax_fn": core.softmax})):
        if tree.name == "numpy":
            tape: dict[str, Any] = {}
            found["context"], found["weights"] = attend(**inputs, **options, **more, tape=tape, return_weights=True)
            backward = {name: x for name, x in options.items() if name in BACKWARD}
            back: dict[str, Any] = {"softmax_fn_vjp": softmax_vjp} if more else {}
            grads = attend_vjp(tape, cotangent(context_shape(inputs)), **backward, **back, kv_heads=2)
            found |= dict(zip(("dq", "dk", "dv"), grads[:3], strict=True))
        else:
            found |= results(tree, inputs, options | more)
    for name, x in want.items():
        assert same(got[name], x), name


def test_a_function_sees_what_is_hidden(tree: Tree) -> None:
    """It gets the capped and biased scores and the mask, a bias of -inf included."""
    core, inputs, seen = import_module(f"{tree.package.__name__}.ops"), given(H, "mask bias"), []
    inputs["bias"][1, 0, 0, 2] = -np.inf

    def weigh(scores: Any, allowed: Any) -> Any:
        seen.extend([scores, allowed])
        return core.where(allowed, 0.5, 0.0 * scores.shape[0])

    tree.package.attend(**tree.arrays(inputs), softmax_fn=lambda s, a: weigh(s, a) + core.zeros(s.shape, s))
    scores, allowed = (tree.numpy(x) for x in seen)
    assert np.array_equal(allowed, inputs["mask"] & (inputs["bias"] > -np.inf))
    assert ratio(scores[allowed], held_scores(inputs)[allowed]) <= 1


def held_scores(inputs: Arrays) -> ErrArray:
    tape: dict[str, Any] = {}
    arrays: dict[str, Any] = {n: ErrArray(x, 0.0) if x.dtype.kind == "f" else x for n, x in inputs.items()}
    with precision(precision_of("float64")), np.errstate(invalid="ignore"):
        attend(**arrays, tape=tape)
    return tape["biased"]


# Refused --------------------------------------------------------------------------------------------------------------


def refusal(inputs: Arrays, **options: Any) -> str:
    """The words of the three trees, which are the same."""
    texts = []
    for tree in TREES.values():
        with pytest.raises(ValueError, match=r"^attend: expected ") as caught:
            tree.package.attend(**tree.arrays(inputs), **options)
        texts.append(str(caught.value))
    assert len(set(texts)) == 1, texts
    return texts[0]


@pytest.mark.parametrize("name", ["", "flash", "Auto", "text book"])
def test_an_unknown_implementation_is_refused(name: str) -> None:
    assert f"implementation to be one of auto, textbook, fused, got {name!r}" in refusal(given(2), implementation=name)


def test_the_textbook_can_be_asked_for(tree: Tree) -> None:
    options, names = CALLS["all"]
    inputs = given(2, names)
    judged(results(tree, inputs, options | {"implementation": "textbook"}), held(inputs, options))


def bad_shapes() -> dict[str, tuple[Arrays, str]]:
    """Shapes that are wrong by their heads, and words of the refusal."""
    good, few = given(2, "mask"), "the heads of q to be a multiple of those of k, which has at least 1, got"
    q, k, v, mask = good.values()
    return {
        "4-for-6": (given(4), f"{few} 6 and 4"),
        "more-keys-than-queries": (given(6, queries=2), f"{few} 2 and 6"),
        "no-key-heads": (given(0), f"{few} 6 and 0"),
        "no-width": (good | {"q": q[..., :0], "k": k[..., :0]}, "q and k of width at least 1, got width 0; "),
        "values-of-other-heads": (good | {"v": given(3)["v"]}, "expected v "),
        "keys-without-heads": (good | {"k": k[:, :, 0]}, "expected k "),
        "queries-without-heads": ({"q": q[:, :, 0], "k": k, "v": v}, "expected k "),
        "heads-before-positions": ({n: x.swapaxes(1, 2) for n, x in (("q", q), ("k", k), ("v", v))}, few),
        "mask-of-key-heads": (good | {"mask": mask[:, :2]}, "expected mask "),
        "mask-without-heads": (good | {"mask": mask[:, 0]}, "expected mask "),
        "sinks-of-key-heads": (good | {"sinks": np.zeros(2)}, "expected sinks broadcastable to (h=6,), got (2,)"),
        "one-sink-for-all-heads": (good | {"sinks": np.zeros(1)}, "one sink for each head of q"),
        "sinks-of-each-query": (good | {"sinks": np.zeros((H, T, 1))}, "expected sinks "),
        "sinks-without-heads": (
            {"q": q[:, :, 0], "k": k[:, :, 0], "v": v[:, :, 0], "sinks": np.zeros(())},
            "one sink for each head of q",
        ),
    }


@pytest.mark.parametrize("what", bad_shapes())
def test_bad_shapes_are_refused(what: str) -> None:
    inputs, words = bad_shapes()[what]
    assert words in refusal(inputs)


def test_sinks_and_weights_of_keys_that_add_up_to_one_are_refused() -> None:
    words = (
        "one sink for each head of q, and normalize_over='keys', got sinks of shape (6,), 'queries'; leave sinks out"
    )
    assert words in refusal(given(2, "sinks"), normalize_over="queries")


@pytest.mark.parametrize("what", ["sinks", "queries"])
def test_a_function_beside_the_softmaxs_options_is_refused(what: str) -> None:
    options = {"normalize_over": "queries"} if what == "queries" else {}
    words = "softmax_fn without sinks and with normalize_over='keys', which belong to the softmax, got "
    assert words in refusal(given(2, "sinks" if what == "sinks" else ""), softmax_fn=lambda s, a: s, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"softmax_fn": 3}, "softmax_fn to be a function of the scores and the mask, or None, got 3; set softmax_fn="),
        ({"normalize_over": ["keys"]}, "normalize_over to be one of keys, queries, got ['keys']"),
        ({"window": [1.0, 0]}, "window to be a tuple (left, right) of ints from 0, got (1.0, 0)"),
        ({"scale": np.float32("inf")}, "scale to be a finite int or float, got inf; set scale="),
        ({"scale": 10**400}, "scale to be a finite int or float, got 100000000000000000...0000000000000000000; set"),
    ],
)
def test_options_of_another_type_are_refused(options: dict[str, Any], words: str) -> None:
    assert words in refusal(given(2), **options)


class Sub(np.ndarray):
    """Adds nothing to an ndarray."""


@pytest.mark.parametrize("kind", [np.memmap, Sub])
def test_a_subclass_that_overrides_nothing_is_an_array(kind: type[np.ndarray], tmp_path: Path) -> None:
    options: dict[str, Any] = {"window": (None, 1), "softcap": 1.5}
    inputs = given(2, "mask bias sinks")
    viewed: Arrays = {}
    for name, x in inputs.items():
        if kind is np.memmap:
            viewed[name] = np.memmap(tmp_path / name, x.dtype, "w+", shape=x.shape)
            viewed[name][...] = x
        else:
            viewed[name] = x.view(kind)
    paths = {"auto": "auto" if kind is np.memmap else "textbook", "textbook": "textbook"}
    for asked, taken in paths.items():
        got = attend(**viewed, **options, implementation=asked)[0]
        assert np.array_equal(got, attend(**inputs, **options, implementation=taken)[0]), asked
    hidden: dict[str, Any] = inputs | {"q": np.ma.masked_array(inputs["q"])}
    with pytest.raises(TypeError, match=r"^attend: expected q as a NumPy array, got MaskedArray; give its data, and"):
        attend(**hidden)


def test_a_memmap_goes_the_fast_path(tmp_path: Path) -> None:
    inputs = given(2)
    mapped = [np.memmap(tmp_path / name, x.dtype, "w+", shape=x.shape) for name, x in inputs.items()]
    assert attend(*mapped, implementation="fused")[0].shape == (B, T, H, V)


def test_sinks_that_are_no_floats_are_refused(tree: Tree) -> None:
    with pytest.raises(TypeError, match=r"^attend: expected sinks of a float dtype, got int64"):
        tree.package.attend(**tree.arrays(given(2) | {"sinks": np.zeros(H, np.int64)}))


# Planted bugs ---------------------------------------------------------------------------------------------------------

# What repeats the heads, and repeats them in turn.
REPEATED = "arange(like.shape[2], like) // (like.shape[2] // x.shape[2])", "arange(like.shape[2], like) % x.shape[2]"
REPEATED_IN_JAX = (
    "broadcast_to(x[:, :, :, None], (*x.shape[:3], like.shape[2] // x.shape[2], *x.shape[3:]))",
    "broadcast_to(x[:, :, None], (*x.shape[:2], like.shape[2] // x.shape[2], *x.shape[2:]))",
)


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("name", ["attn_np", "attn_jax", "attn_torch"])
def test_heads_shared_in_turn_are_seen(name: str, groups: int) -> None:
    """h % g instead of h // r: the same shapes and other numbers."""
    tree = next(tree for tree in TREES.values() if tree.package.__name__ == name)
    inputs, want = given(groups), held(given(groups), {})
    found = {}
    texts = REPEATED_IN_JAX if name == "attn_jax" else REPEATED
    for new in texts:
        mutant = Mutant("heads shared in turn", SHARED, texts[0], new, "", "")
        with planted(mutant, name) as alias:
            context, weights = import_module(f"{alias}.attention.attend").attend(
                **tree.arrays(inputs), return_weights=True
            )
        found[new] = ratio(tree.numpy(context), want["context"]), ratio(tree.numpy(weights), want["weights"])
    right, wrong = found.values()
    assert max(right) <= 1
    assert min(wrong) > 1


@pytest.mark.parametrize("groups", [2, 3])
def test_gradients_shared_in_turn_are_seen(groups: int) -> None:
    """The hand-written backward pass has to undo the same order."""
    inputs, want = given(groups), held(given(groups), {})
    old, new = "b, s, heads, h // heads, k), axis=3", "b, s, h // heads, heads, k), axis=2"
    with planted(Mutant("gradients shared in turn", SHARED, old, new, "", ""), "attn_np") as alias:
        module, tape = import_module(f"{alias}.attention.attend"), {}
        module.attend(**inputs, tape=tape)
        dq, dk, dv, _ = module.attend_vjp(tape, cotangent(context_shape(inputs)), kv_heads=groups)
    assert ratio(dq, want["dq"]) <= 1
    assert ratio(dk, want["dk"]) > 1
    assert ratio(dv, want["dv"]) > 1


SUNK = {
    "the sink's weight kept in place of the first key's": ("probs_and_sink[..., :-1]", "probs_and_sink[..., 1:]"),
    "a sink for each key in place of each head": ("sinks[:, None, None]", "sinks[None, None, :1]"),
    "the sink scaled as the scores are": ("record(tape, sinks=sinks)", "record(tape, sinks=scale * sinks)"),
    "weights of the keys normalised without the sink": (
        "probs=probs_and_sink[..., :-1]",
        "probs=softmax(scores, visible)",
    ),
}
SUNK_BACKWARD = {
    "the sinks' gradient without those of the batch": (
        "np.sum(dcolumn, axis=(0, 2))",
        "np.sum(dcolumn[:1], axis=(0, 2))",
    ),
    "the sinks' gradient with the other sign": ("np.sum(dcolumn, axis=(0, 2))", "-np.sum(dcolumn, axis=(0, 2))"),
    "a value for the sink in the backward pass": (
        "zeros((*dprobs.shape[:3], 1), dprobs)",
        "1 + zeros((*dprobs.shape[:3], 1), dprobs)",
    ),
}


@pytest.mark.parametrize("name", ["attn_np", "attn_jax", "attn_torch"])
@pytest.mark.parametrize("bug", SUNK)
def test_mistakes_with_sinks_are_seen(name: str, bug: str) -> None:
    tree = next(tree for tree in TREES.values() if tree.package.__name__ == name)
    inputs = given(2, "sinks")
    want = held(inputs, {})
    with planted(Mutant(bug, SHARED, *SUNK[bug], "", ""), name) as alias:
        context, _ = import_module(f"{alias}.attention.attend").attend(**tree.arrays(inputs), return_weights=True)
    assert ratio(tree.numpy(context), want["context"]) > 1


@pytest.mark.parametrize("bug", SUNK_BACKWARD)
def test_mistakes_in_the_gradient_of_sinks_are_seen(bug: str) -> None:
    inputs, tape = given(H, "sinks"), {}
    want = held(inputs, {})
    with planted(Mutant(bug, SHARED, *SUNK_BACKWARD[bug], "", ""), "attn_np") as alias:
        module = import_module(f"{alias}.attention.attend")
        module.attend(**inputs, tape=tape)
        dq, _, _, _ = module.attend_vjp(tape, cotangent(context_shape(inputs)))
    assert max(ratio(dq, want["dq"]), ratio(tape["dsinks"], want["dsinks"])) > 1


@pytest.mark.parametrize("implementation", ["auto", "textbook"])
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_no_keys_give_zeros_beside_a_mask_or_a_bias(tree: Tree, implementation: str) -> None:
    arrays = {"q": np.ones((1, 3, 2, 4)), "k": np.ones((1, 0, 2, 4)), "v": np.ones((1, 0, 2, 4))}
    for more in ({"mask": np.ones((3, 0), bool)}, {"bias": np.zeros((3, 0))}):
        context, _ = tree.package.attend(**tree.arrays(arrays | more), implementation=implementation)
        assert not tree.numpy(context).any()


@pytest.mark.parametrize("t", [8, 40])
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_sink_that_is_nan_shows(tree: Tree, t: int) -> None:
    """In its own head, at every length: a training that diverges must not look healthy."""
    x = np.random.default_rng(0).normal(size=(1, t, 2, 4))
    arrays = tree.arrays({"q": x, "k": x, "v": x, "sinks": np.array([np.nan, 0.0])})
    nan = np.isnan(tree.numpy(tree.package.attend(**arrays)[0]))
    assert nan[:, :, 0].all() and not nan[:, :, 1].any()


@pytest.mark.parametrize("implementation", ["auto", "textbook"])
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_wider_bias_or_sink_leaves_the_dtype_of_the_queries(tree: Tree, implementation: str) -> None:
    x = np.ones((1, 3, 2, 4), np.float32)
    for more in ({"bias": np.zeros((3, 3))}, {"sinks": np.zeros(2)}):
        arrays = tree.arrays({"q": x, "k": x, "v": x} | more)
        assert tree.numpy(tree.package.attend(**arrays, implementation=implementation)[0]).dtype == np.float32


# Who sees and is seen -------------------------------------------------------------------------------------------------


def test_visibility_is_that_of_the_whole_mask() -> None:
    """Of all small lengths, 0 too, windows, and masks with few axes: reduced, it says what the mask of `t s` says."""
    rng, limits = np.random.default_rng(0), (None, 0, 1, 2, 4)
    for t, s, left, right in product(range(7), range(7), limits, limits):
        for shape in (None, (), (s,), (1,), (t, 1), (2, 1, 1, s), (2, 3, t, s)):
            mask = None if shape is None else np.asarray(rng.random(shape) < 0.4)
            queries, keys = query_and_key_masks(mask, t, s, like=np.zeros(1), window=(left, right))
            seen = visible(mask, (2, 3, t, s), False, (left, right))
            for found, spec, axis in ((queries, "bhts->bht", 3), (keys, "bhts->bhs", 2)):
                every, want = True if found is None else any_visible(spec, found), seen.any(axis)
                assert np.array_equal(np.broadcast_to(every, want.shape), want), (spec, t, s, left, right, mask)


@pytest.mark.parametrize("implementation", ["textbook", "fused"])
def test_a_window_may_be_wider_than_32_bits(tree: Tree, implementation: str) -> None:
    """JAX has integers of 32 bits where float64 is not switched on."""
    inputs = {name: x.astype("float32") for name, x in given(H).items()}
    for wide, as_wide in (((2**40, 0), (S + T, 0)), ((2**31, 2**40), (None, None)), ((2, 2**31 - 1), (2, None))):
        with jax.enable_x64(False):
            got, want = (
                tree.numpy(tree.package.attend(**tree.arrays(inputs), window=window, implementation=implementation)[0])
                for window in (wide, as_wide)
            )
        assert same(got, want), wide


@pytest.mark.parametrize("implementation", ["textbook", "fused"])
def test_a_call_without_heads_is_a_call_of_one_head(implementation: str) -> None:
    """Forward and backward, with masks and biases of any axes, in NumPy, whose backward is by hand."""
    rng = np.random.default_rng(0)
    q, k, v, dy = (rng.normal(size=(B, n, w)) for n, w in ((T, K), (S, K), (S, V), (T, V)))
    for lengths in [*product((1, B), (1, T), (1, S)), (T, S), (S,)]:
        bias, mask = rng.normal(size=lengths), rng.random(lengths) < 0.7
        for names, alone in (({"bias": bias}, bias), ({"bias": bias, "mask": mask}, bias), ({"mask": mask}, None)):
            inputs: Any = {"q": q, "k": k, "v": v} | names
            heads: Any = {
                n: x[:, :, None] if n in "qkv" else x[:, None] if x.ndim == 3 else x for n, x in inputs.items()
            }
            y, pull = value_and_vjp(attn_np.attend, **inputs, implementation=implementation)
            want, pull_heads = value_and_vjp(attn_np.attend, **heads, implementation=implementation)
            grads, wanted = pull(dy).inputs, pull_heads(dy[:, :, None]).inputs
            assert same(y[0], want[0][:, :, 0])
            assert all(same(grads[n], wanted[n][:, :, 0]) for n in "qkv")
            assert alone is None or same(grads["bias"], wanted["bias"].reshape(alone.shape)), lengths
