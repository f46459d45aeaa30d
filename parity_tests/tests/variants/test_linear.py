"""Linear attention against scalar loops, its three forms against each other, and softmax-free attention by hand."""

from dataclasses import replace
from math import exp, sqrt
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import attn_np
from attn_np import linear
from attn_np.contract.linear import Config
from attn_np.weights import ConfigMismatchError
from parity_tests.judge.cases import ALL_CALLS, Case
from parity_tests.tests.forms import forms_apart, padding_seen, scalar_rows, steps_apart
from parity_tests.tests.inputs import TREES, Arrays, Tree
from parity_tests.tests.witness import bounded, cotangent, disagreement, layer_of, ratio, torch_gradients, weights_of

FORMS = Config(d_model=5, num_heads=2, head_dim=3, value_head_dim=7, causal=True)
MAPS = {"relu": replace(FORMS, feature_map="relu"), "exp": replace(FORMS, feature_map="exp", num_features=11)}


# Scalar loops: equation 5 with the similarity phi(q) phi(k), pair by pair ---------------------------------------------


def projected(x: list[float], w: Any, b: Any, h: int) -> list[float]:
    width = range(len(w[0][h]))
    return [sum(a * w[d][h][e] for d, a in enumerate(x)) + (b[h][e] if b else 0.0) for e in width]


def elu(x: Any) -> Any:
    return linear.elu_features(x)


def elu_vjp(tape: Arrays, dy: Any, *, x: Any) -> dict[str, Any]:
    return {"x": linear.elu_features_vjp(x, dy)}


setattr(elu, "vjp", elu_vjp)  # noqa: B010 as a type checker knows no attribute of a function


def first_squares(x: Any) -> Any:
    """A feature map of one's own, with fewer features than dimensions: squares of the first two, and a quarter."""
    return x[..., :2] * x[..., :2] + 0.25


def first_squares_vjp(tape: Arrays, dy: Any, *, x: Any) -> dict[str, Any]:
    return {"x": np.concatenate([2 * x[..., :2] * dy, 0.0 * x[..., 2:]], -1)}


setattr(first_squares, "vjp", first_squares_vjp)  # noqa: B010 as a type checker knows no attribute of a function
MAPS["own"] = replace(FORMS, feature_map=first_squares, num_features=2)


def phi(config: Config, w: Any, x: list[float]) -> list[float]:
    if callable(config.feature_map):
        return [a * a + 0.25 for a in x[:2]]
    if config.feature_map == "relu":
        return [max(a, 0.0) for a in x]
    if config.feature_map == "elu":
        return [a + 1 if a > 0 else exp(a) for a in x]
    x = [a / len(x) ** 0.25 for a in x]
    half, rows = sum(a * a for a in x) / 2, w["w_features"]
    return [exp(sum(a * b for a, b in zip(row, x, strict=True)) - half) / sqrt(len(rows)) for row in rows]


def loops(config: Config, w: Any, x: Any) -> Any:
    """Outputs of one sequence: no state anywhere, every query meets every key it may see."""
    y = [list(w.get("b_o", [0.0] * len(w["w_o"][0][0]))) for _ in x]
    for h in range(config.num_heads):
        q, k, v = ([projected(row, w[f"w_{p}"], w.get(f"b_{p}"), h) for row in x] for p in "qkv")
        for i, q_i in enumerate(q):
            pairs = list(zip(k, v, strict=True))[: i + 1 if config.causal else len(k)]
            weights = [
                sum(a * b for a, b in zip(phi(config, w, q_i), phi(config, w, k_j), strict=True)) for k_j, _ in pairs
            ]
            total = sum(weights) + config.eps if config.normalize else 1.0
            for c in range(len(v[0])):
                context = sum(a * v_j[c] for a, (_, v_j) in zip(weights, pairs, strict=True)) / total
                for d in range(len(w["w_o"][0][0])):
                    y[i][d] += context * w["w_o"][h][c][d]
    return y


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs."""
    return {"y": scalar_rows(config, loops, inputs, params)}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("call", ALL_CALLS)
def test_scalar_loops_of_a_function(call: str, causal: bool) -> None:
    config = replace(MAPS["own"], causal=causal, chunk_size=2)
    assert not disagreement(witness, Case("linear", "", call, "float64", given=config))


def test_a_function_like_the_map_of_that_name(tree: Tree) -> None:
    """elu(x) + 1 by the tree's own words: outputs and gradients."""
    own: Any = {"numpy": elu, "jax": lambda x: jax.nn.elu(x) + 1, "torch": lambda x: torch.nn.functional.elu(x) + 1}
    mask = np.arange(5) < np.array([[5], [3]])
    w, inputs = weights_of(FORMS), {"query": np.random.default_rng(0).normal(size=(2, 5, 5)), "mask": mask}
    want, layer = bounded(FORMS, inputs, w), layer_of(tree, replace(FORMS, feature_map=own[tree.name]), w)
    (y,) = tree(layer, inputs)
    assert ratio(y, want["y"]) <= 1
    for name, grad in tree.gradients(layer, inputs, cotangent(y.shape)).items():
        assert ratio(grad, want[name]) <= 1, name


def test_a_cache_has_the_features_of_a_function(tree: Tree) -> None:
    layer = tree.package.build("linear", **MAPS["own"].as_dict())
    arrays = layer.init_cache(2, 8).arrays
    assert {name: tuple(x.shape) for name, x in arrays.items()} == {
        "state": (2, 2, 2, 7),
        "key_sum": (2, 2, 2),
        "documents": (2,),
    }


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (
            lambda x: x[..., :1],
            ValueError,
            r"features of shape \(1, 4, 2, 3\) from feature_map, got \(1, 4, 2, 1\); re",
        ),
        (lambda x: x > 0, TypeError, "features of dtype float32 from feature_map, got bool; keep the dtype of its arg"),
    ],
    ids=["width", "dtype"],
)
def test_features_that_do_not_fit(tree: Tree, function: Any, error: type[Exception], words: str) -> None:
    layer = tree.package.build("linear", **replace(FORMS, feature_map=function).as_dict())
    with pytest.raises(error, match=f"linear: expected {words}"):
        layer(tree.array(np.ones((1, 4, 5), np.float32)))


def test_a_function_without_a_backward_pass() -> None:
    """NumPy has no other gradient of it; JAX and PyTorch need no rule."""
    layer = attn_np.build("linear", **replace(FORMS, feature_map=lambda x: x * x).as_dict())
    y, tape = attn_np.trace(layer, np.ones((1, 4, 5), np.float32))
    with pytest.raises(TypeError, match="expected a layer or a function with a backward pass, got <lambda>; set its"):
        layer.vjp(tape, y)


def test_no_file_can_hold_a_function(tree: Tree, tmp_path: Path) -> None:
    """Saving is refused with a way that works: the arrays alone, and the function again when they are loaded."""
    fields = MAPS["own"].as_dict()
    layer, file = tree.package.build("linear", **fields), tmp_path / "own.safetensors"
    with pytest.raises(ConfigMismatchError, match=r"feature_map.*: expected a field that .*, got a function"):
        tree.package.save(layer, file)
    assert not file.exists()
    save_file({name: np.array(tree.numpy(x)) for name, x in layer.params().items()}, file)
    loaded = tree.package.load(file, variant="linear", **fields)
    x = tree.array(np.ones((1, 4, 5), np.float32))
    assert np.array_equal(tree.numpy(loaded(x)), tree.numpy(layer(x)))


# One result in three forms --------------------------------------------------------------------------------------------


def test_the_parallel_form_is_causal_in_every_tree(tree: Tree) -> None:
    """No example has it: that in this form sees every key."""
    assert not forms_apart(tree, replace(FORMS, form="recurrent"), form="parallel")


def test_the_state_does_not_grow(tree: Tree) -> None:
    """However many positions there is room for, the cache is one matrix and one vector for each head."""
    layer = tree.package.build("linear", **FORMS.as_dict())
    for room in (1, 64):
        arrays = layer.init_cache(2, room).arrays
        shapes = {"state": (2, 2, 3, 7), "key_sum": (2, 2, 3), "documents": (2,)}
        assert {name: tuple(x.shape) for name, x in arrays.items()} == shapes


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("feature_map", MAPS)
def test_every_feature_map_has_three_forms_and_steps(feature_map: str, name: str) -> None:
    tree, config = TREES[name], MAPS[feature_map]
    assert not forms_apart(tree, replace(config, form="recurrent"), form="chunked", chunk_size=3)
    assert not padding_seen(tree, replace(config, chunk_size=3))
    assert not steps_apart(tree, replace(config, chunk_size=3))


def test_random_features_estimate_softmax() -> None:
    """The mean of m products with standard normal rows is within 5 standard deviations of exp(q k / sqrt(K)), as the
    weights of `build` give it; the variance of one is exp(2 q k) (exp(|q + k|^2) - 1), of scaled q and k.
    """
    m = 4096
    layer = attn_np.build("linear", dtype="float64", d_model=4, num_heads=1, feature_map="exp", num_features=m)
    w = np.asarray(layer.params()["w_features"])
    q, k = 0.5 * np.random.default_rng(0).normal(size=(2, 50, 4))
    products = np.sum(layer.features(q[None, :, None], w) * layer.features(k[None, :, None], w), axis=-1)[0, :, 0]
    want, length = np.exp(np.sum(q * k, axis=-1) / 2), np.sum((q + k) ** 2, axis=-1) / 2
    assert np.all(np.abs(products - want) <= 5 * want * np.sqrt(np.expm1(length) / m))


# PyTorch's own functions ----------------------------------------------------------------------------------------------


def test_torch_elu_by_pairs() -> None:
    """phi is torch's elu + 1, and the causal sum one masked matrix; gradients by PyTorch's autograd."""
    config = replace(FORMS, use_bias=False)
    weights, x = weights_of(config), np.random.default_rng(1).normal(size=(2, 7, 5))
    leaves = {"query": torch.from_numpy(x).requires_grad_()}
    leaves |= {name: torch.from_numpy(p).requires_grad_() for name, p in weights.items()}
    q, k, v = (torch.einsum("btd,dhk->bhtk", leaves["query"], leaves[f"w_{p}"]) for p in "qkv")
    scores = torch.tril((torch.nn.functional.elu(q) + 1) @ (torch.nn.functional.elu(k) + 1).mT)
    context = (scores / (scores.sum(-1, keepdim=True) + config.eps)) @ v
    y = torch.einsum("bhtv,hvd->btd", context, leaves["w_o"])
    want = bounded(config, {"query": x}, weights)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, **leaves).items():
        assert ratio(grad, want[name]) <= 1, name


# Numbers known beforehand ---------------------------------------------------------------------------------------------


def test_equal_keys_share_evenly(tree: Tree) -> None:
    """With w_k = 0 every key is the same: normalised, a query reads the mean of the values so far."""
    config = Config(d_model=2, num_heads=1, causal=True, form="recurrent", eps=0.0, use_bias=False)
    eye = np.eye(2)[:, None]
    layer = layer_of(tree, config, {"w_q": eye, "w_k": 0 * eye, "w_v": eye, "w_o": np.eye(2)[None]})
    x = np.array([[[4.0, 0.0], [0.0, 2.0], [0.0, 4.0], [4.0, 2.0]]])
    assert tree(layer, {"query": x})[0].tolist() == [[[4.0, 0.0], [2.0, 1.0], [4 / 3, 2.0], [2.0, 2.0]]]


def test_large_inputs_have_finite_gradients(tree: Tree) -> None:
    """Where exp would overflow the feature map is x + 1."""
    layer, inputs = layer_of(tree, FORMS, weights_of(FORMS)), {"query": np.full((1, 3, 5), 2.0**12)}
    assert all(np.isfinite(x).all() for x in tree.gradients(layer, inputs, np.ones((1, 3, 5))).values())


# Fields ---------------------------------------------------------------------------------------------------------------


REFUSED = {
    "eps": ({"eps": -1.0}, "eps of at least 0, got -1.0; it is added to a sum of weights"),
    "feature map": (
        {"feature_map": "gelu"},
        "feature_map to be one of elu, relu, exp or a function, got 'gelu'; set feature_map=",
    ),
    "eps of relu": (
        {"feature_map": "relu", "eps": 0.0},
        "eps above 0 for feature_map='relu' or a function, got 0.0; the weights of a query may all be 0",
    ),
    "no features": (
        {"feature_map": "exp"},
        "num_features for feature_map='exp' or a function, and for them only, "
        "got num_features=None, feature_map='exp'; set num_features=",
    ),
    "features": (
        {"num_features": 8},
        "num_features for feature_map='exp' or a function, and for them only, "
        "got num_features=8, feature_map='elu'; "
        "leave num_features out, or set feature_map='exp'",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_fields_that_do_not_go_together(tree: Tree, why: str) -> None:
    fields, words = REFUSED[why]
    with pytest.raises(ValueError) as caught:
        tree.package.build("linear", d_model=6, num_heads=2, **fields)
    assert str(caught.value) == f"linear: expected {words}"
