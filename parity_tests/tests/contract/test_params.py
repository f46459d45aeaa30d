"""`set_params` replaces all parameters of a layer or none: names, shapes and dtypes are checked before."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import nnx

from attn_np import contract
from parity_tests.tests.contract.test_bad_input import refused_by_all
from parity_tests.tests.inputs import TREES, Arrays, Tree

pytestmark = pytest.mark.usefixtures("unchecked")

WIDTHS: dict[str, Any] = {"d_model": 6, "num_heads": 2}
LAYERS: dict[str, dict[str, Any]] = {
    "mha": WIDTHS,
    "decoder": {**WIDTHS, "head_dim": 4, "num_kv_heads": 1},
    "gru": {"input_dim": 3, "hidden_dim": 5, "num_layers": 2},
    "seq2seq": {"input_dim": 3, "hidden_dim": 5, "vocab_size": 6},
}
ALL = "a value for each of the layer's parameters and no others"
# What is done to the values of the last parameter, by its name and the tree; the error and its words.
BAD: dict[str, tuple[Callable[[dict[str, Any], str, Tree], Any], type[Exception], str]] = {
    "left out": (
        lambda values, last, tree: values.pop(last),
        ValueError,
        f"{ALL}, got none for LAST; pass the names of params()",
    ),
    "misspelt": (
        lambda values, last, tree: values.update(w_z=values.pop(last)),
        ValueError,
        f"{ALL}, got none for LAST and the unknown w_z; pass the names of params()",
    ),
    "one more": (
        lambda values, last, tree: values.update(w_z=values[last]),
        ValueError,
        f"{ALL}, got the unknown w_z; pass the names of params()",
    ),
    "an axis longer": (
        lambda values, last, tree: values.update({last: tree.array(np.ones((2, *values[last].shape), np.float32))}),
        ValueError,
        "LAST of shape SHAPE, got LONGER; reshape it",
    ),
    "broadcastable": (
        lambda values, last, tree: values.update({last: tree.array(np.ones((), np.float32))}),
        ValueError,
        "LAST of shape SHAPE, got (); reshape it",
    ),
    "another dtype": (
        lambda values, last, tree: values.update({last: tree.array(np.ones(values[last].shape, np.float16))}),
        ValueError,
        "LAST of dtype float32, as the layer has, got float16; convert it, or build the layer with another dtype",
    ),
    "None": (lambda values, last, tree: values.update({last: None}), TypeError, "an array for LAST, got None; give"),
    "a list": (
        lambda values, last, tree: values.update({last: [1.0]}),
        TypeError,
        "LAST as a array, got list; convert",
    ),
}


def bits(tree: Tree, layer: Any) -> Arrays:
    return {name: tree.numpy(x).copy() for name, x in layer.params().items()}


def new_values(tree: Tree, params: Arrays) -> dict[str, Any]:
    return {name: tree.array(x + np.float32(1)) for name, x in params.items()}


@pytest.mark.parametrize("variant", LAYERS)
@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused_and_changes_nothing(case: str, variant: str) -> None:
    """In the same words in all three trees."""
    change, error, words = BAD[case]
    layers = {name: tree.package.build(variant, **LAYERS[variant]) for name, tree in TREES.items()}
    before = {name: bits(tree, layers[name]) for name, tree in TREES.items()}
    last = list(before["numpy"])[-1]

    def call(tree: Tree) -> None:
        values = new_values(tree, before[tree.name])
        change(values, last, tree)
        layers[tree.name].set_params(values)

    text = refused_by_all(call, error, variant)
    shape = before["numpy"][last].shape
    words = words.replace("LAST", last).replace("SHAPE", str(shape)).replace("LONGER", str((2, *shape)))
    assert text.startswith(f"{variant}: expected {words}")
    for name, tree in TREES.items():
        after = bits(tree, layers[name])
        assert all(np.array_equal(after[key], x) for key, x in before[name].items())


@pytest.mark.parametrize("values", [None, [], "w_q", 3])
def test_what_is_no_dictionary_is_refused(values: Any) -> None:
    def call(tree: Tree) -> None:
        tree.package.build("mha", **WIDTHS).set_params(values)

    got = type(values).__name__
    text = refused_by_all(call, TypeError, "mha")
    assert text == f"mha: expected a dictionary of arrays by name, got {got}; pass one such as params() returns"


@pytest.mark.parametrize("variant", LAYERS)
def test_what_fits_is_taken_in_any_order(variant: str) -> None:
    for tree in TREES.values():
        layer = tree.package.build(variant, **LAYERS[variant])
        want = {name: x + np.float32(1) for name, x in bits(tree, layer).items()}
        layer.set_params(dict(reversed(tree.arrays(want).items())))
        found = bits(tree, layer)
        assert list(found) == list(want)
        assert all(np.array_equal(found[name], x) for name, x in want.items())


def test_traced_arrays_are_taken_in_jax() -> None:
    """Only their shapes and dtypes are looked at; so are those of a layer that has no arrays yet."""
    layer = TREES["jax"].package.build("mha", **WIDTHS)
    x, doubled = np.ones((1, 2, 6), np.float32), {name: 2 * x for name, x in layer.params().items()}
    abstract = nnx.eval_shape(lambda: type(layer)(layer.config, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(layer)

    def in_traced(state: Any, values: Any) -> Any:
        inside = nnx.merge(graph, state)
        inside.set_params(values)
        return inside.params(), inside(x)

    abstract.set_params(doubled)
    for params in (jax.jit(in_traced)(state, doubled)[0], abstract.params()):
        assert all(np.array_equal(params[name], want) for name, want in doubled.items())
    with pytest.raises(ValueError, match=r"^mha: expected b_o of shape \(6,\), got \(3,\); "):
        jax.jit(in_traced)(state, doubled | {"b_o": doubled["b_o"][:3]})


def test_parameters_stay_the_same_objects_in_torch() -> None:
    """Also of another dtype than they were built in, and under autocast."""
    layer = TREES["torch"].package.build("mha", **WIDTHS).to(torch.bfloat16)
    before = layer.params()
    with torch.autocast("cpu", torch.bfloat16):
        layer.set_params({name: 2 * x.detach() for name, x in before.items()})
    assert all(x is before[name] for name, x in layer.params().items())


def test_stacked_layers_take_stacked_arrays_in_jax() -> None:
    """`nnx.vmap` gives parameters one more axis; new values have it, too."""
    config = contract.config("mha", **WIDTHS)
    layer_type = type(TREES["jax"].package.build("mha", **WIDTHS))
    split = nnx.split_rngs(splits=3)
    stacked = split(nnx.vmap(lambda rngs: layer_type(config, rngs=rngs)))(nnx.Rngs(0))
    want = {name: 2 * x for name, x in stacked.params().items()}
    stacked.set_params(want)
    assert all(x.shape[0] == 3 and np.array_equal(x, want[name]) for name, x in stacked.params().items())
