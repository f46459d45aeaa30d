"""Calls and constructors with arguments that do not exist: what to write instead, in the same words in every tree."""

import inspect
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from flax import nnx

import attn_jax
import attn_np
import attn_torch
from attn_np import contract
from attn_np.contract import _call
from parity_tests.tests.everything import WHOLE
from parity_tests.tests.inputs import TREES, random_inputs

VARIANTS = contract.variants()
PACKAGES = {"numpy": attn_np, "jax": attn_jax, "torch": attn_torch}
DRAWN_BY: dict[str, Callable[[], dict[str, Any]]] = {
    "numpy": lambda: {"rng": 0},
    "jax": lambda: {"rngs": nnx.Rngs(0)},
    "torch": dict,
}


@cache
def layer_of(tree: str, variant: str) -> Any:
    """A layer of a variant's first example."""
    config = next(iter(contract.examples(variant).values()))
    return PACKAGES[tree].build(variant, **config.as_dict())


def words_of(call: Callable[[], Any]) -> str:
    with pytest.raises(TypeError) as error:
        call()
    return str(error.value)


def words_in_all_trees(variant: str, *inputs: Any, **options: Any) -> str:
    """The words with which every tree refuses a call."""
    found = {words_of(lambda tree=tree: layer_of(tree, variant)(*inputs, **options)) for tree in PACKAGES}
    assert len(found) == 1
    return found.pop()


NAMES = (
    *(name for names in _call.SAME_ARGUMENT.values() for name in names),
    *(*_call.PADDING_MASKS, *_call.MASKS, *_call.CAUSALITY, *_call.CACHES, *_call.MODES),
    *("quary", "frobnicate"),
)


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_argument_that_does_not_exist_is_refused_in_words(variant: str) -> None:
    config, first = layer_of("numpy", variant).config, next(iter(layer_of("numpy", variant).config.arguments()))
    known = inspect.signature(type(layer_of("numpy", variant)).__call__).parameters
    for name in (name for name in NAMES if name not in known):
        words = words_in_all_trees(variant, **{first: None, name: 1})
        assert words.startswith(f"{variant}: expected the arguments {first}, ") and f", got {name!r}; " in words
        fix = words.rpartition(f"got {name!r}; ")[2]
        ours = next((our for our, theirs in _call.SAME_ARGUMENT.items() if name in theirs and our in known), None)
        if ours is not None:
            assert fix == f"write {ours}="
        elif name in _call.CAUSALITY and "causal" in config.fields():
            plain = f"build the layer with causal={not config.causal}"
            assert fix == ("leave it out: this layer is causal" if config.causal else plain)
        elif name in (*_call.PADDING_MASKS, *_call.MASKS):
            assert ("write mask=" in fix) == ("mask" in config.arguments())
        assert "step," not in words


@pytest.mark.parametrize("variant", [v for v in VARIANTS if "mask" in layer_of("numpy", v).config.arguments()])
def test_a_padding_mask_as_it_is_advised_has_the_axes_of_the_mask(variant: str) -> None:
    """What the error says to write is taken: an axis for the batch, one for the keys, and none that does not fit."""
    layer = layer_of("numpy", variant)
    inputs = {
        k: x.astype("float32") if x.dtype.kind == "f" else x for k, x in random_inputs(layer.config, "full").items()
    }
    mask = inputs.pop("mask")
    first = next(iter(inputs))
    words = words_in_all_trees(variant, **{first: None, "key_padding_mask": None})
    code = re.search(r"write mask=~key_padding_mask(?:\[(.*)\])? if its True", words)
    assert code is not None, words
    index = tuple(slice(None) if axis == ":" else None for axis in (code[1] or ":, :").split(", "))
    written = np.zeros((mask.shape[0], mask.shape[-1]), bool)[index]
    assert np.broadcast_shapes(written.shape, mask.shape) == mask.shape
    assert layer.check(**{k: x for k, x in inputs.items() if k in layer.config.arguments()}, mask=written)


@pytest.mark.parametrize("variant", VARIANTS)
def test_arguments_by_position_that_do_not_fit(variant: str) -> None:
    parameters = list(inspect.signature(type(layer_of("numpy", variant)).__call__).parameters.values())[1:]
    by_position = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    count = len(by_position)
    words = words_in_all_trees(variant, *[None] * (count + 1))
    assert words.startswith(
        f"{variant}: expected at most {count} arguments without a name, {', '.join(by_position)}, got "
    )
    assert words_in_all_trees(variant) == f"{variant}: expected {by_position[0]}, got none; pass {by_position[0]}="
    twice = words_in_all_trees(variant, None, **{by_position[0]: None})
    assert twice == f"{variant}: expected {by_position[0]} once, got two; pass one of them"


def test_an_error_within_a_call_stays_what_it_is() -> None:
    for tree in PACKAGES:
        x = TREES[tree].array(np.ones((1, 2, 6), np.int32))
        layer = PACKAGES[tree].build("mha", d_model=6, num_heads=2)
        assert "mha: expected query of a float dtype, got int32" in words_of(lambda layer=layer, x=x: layer(x))


def test_calls_are_as_they_are_written() -> None:
    """A signature that tools can read; in PyTorch a code object for each variant: its compiler counts by them."""
    entries = [type(layer_of("torch", variant)).forward for variant in VARIANTS]
    assert len({id(entry.__code__) for entry in entries}) == len(VARIANTS)
    for variant, entry in zip(VARIANTS, entries, strict=True):
        names = list(inspect.signature(entry).parameters)
        assert names == list(inspect.signature(type(layer_of("numpy", variant)).__call__).parameters)
        assert names == list(inspect.signature(type(layer_of("jax", variant)).__call__).parameters)


# Constructors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", PACKAGES)
def test_a_class_takes_a_config_or_its_fields(tree: str) -> None:
    for variant in WHOLE if tree == "jax" else VARIANTS:
        cls = getattr(PACKAGES[tree], contract.get(variant).Config.class_name)
        config = next(iter(contract.examples(variant).values()))
        for given, fields in (((), config.as_dict()), ((config,), {})):
            made = lambda given=given, fields=fields, cls=cls: cls(*given, **fields, **DRAWN_BY[tree]())  # noqa: E731
            assert (nnx.eval_shape(made) if tree == "jax" else made()).config == config


@pytest.mark.parametrize("tree", PACKAGES)
def test_what_a_constructor_refuses(tree: str) -> None:
    cls, drawn = PACKAGES[tree].MultiHeadAttention, DRAWN_BY[tree]
    config = cls.Config(d_model=12, num_heads=3)
    fields = "write MultiHeadAttention(d_model=..., num_heads=...)"
    assert words_of(lambda: cls(12, 3, **drawn())) == (
        f"mha: expected a Config or fields by name, got 2 values without a name; {fields}"
    )
    assert words_of(lambda: cls(12, **drawn())).endswith("pass MultiHeadAttention.Config(...), or its fields by name")
    both = words_of(lambda: cls(config, causal=True, **drawn()))
    assert both.startswith("mha: expected a Config or fields by name, got both; pass dataclasses.replace(")
    one = words_of(lambda: cls(d_model=12, **drawn()))
    assert one == "mha: expected a value for num_heads, got none; pass num_heads="
    assert "got 'num_head'; did you mean 'num_heads'" in words_of(lambda: cls(d_model=12, num_head=3, **drawn()))
    with pytest.raises(ValueError, match="mha: expected d_model divisible by num_heads"):
        cls(d_model=12, num_heads=5, **drawn())


def test_where_and_in_which_type_a_constructor_makes_a_layer() -> None:
    layer = attn_torch.MultiHeadAttention(d_model=12, num_heads=3, device="meta", dtype=torch.float64)
    assert (layer.w_q.device.type, layer.w_q.dtype, layer.training) == ("meta", torch.float64, True)
    flax = attn_jax.MultiHeadAttention(d_model=12, num_heads=3, rngs=nnx.Rngs(0), param_dtype="bfloat16")
    assert str(flax.w_q.dtype) == "bfloat16"
    words = "mha: expected rngs= to be an nnx.Rngs, got none; pass rngs=nnx.Rngs(0)"
    jax_class: Any = attn_jax.MultiHeadAttention
    assert words_of(lambda: jax_class(d_model=12, num_heads=3)) == words
    assert words_of(lambda: jax_class(d_model=12, num_heads=3, rngs=0)) == words.replace("none", "0")


# Seeds ----------------------------------------------------------------------------------------------------------------


def weights_of(layer: Any, tree: str) -> dict[str, np.ndarray]:
    return {name: np.asarray(TREES[tree].numpy(x)) for name, x in layer.params().items()}


def equal(a: Any, b: Any, tree: str) -> bool:
    x, y = weights_of(a, tree), weights_of(b, tree)
    return all(np.array_equal(x[name], y[name]) for name in x)


@pytest.mark.parametrize("tree", PACKAGES)
def test_no_seed_draws_anew(tree: str) -> None:
    """By the framework's own generator, which makes it the same again; the default stays the seed 0."""
    build: Any = PACKAGES[tree].build

    def drawn(source: dict[str, Any], **fields: Any) -> Any:
        return build("mha", d_model=12, num_heads=3, **fields, **source)

    def again() -> dict[str, Any]:
        torch.manual_seed(5)
        return {"seed": None} | {"numpy": {"rng": 5}, "jax": {"rngs": nnx.Rngs(5)}, "torch": {}}[tree]

    assert equal(drawn(again()), drawn(again()), tree)
    source = again() | ({"rng": np.random.default_rng(5)} if tree == "numpy" else {})
    first, second = drawn(source), drawn(source)
    assert not equal(first, second, tree) and equal(first, drawn(again()), tree)
    assert equal(drawn({}), drawn({"seed": 0}), tree) and not equal(drawn({}), drawn({"seed": 1}), tree)
    layer = drawn(again(), dtype="bfloat16", device="cpu", dropout=0.5)
    assert {str(x.dtype).removeprefix("torch.") for x in layer.params().values()} == {"bfloat16"}
    assert getattr(layer, "deterministic", True) and not getattr(layer, "training", False)
    x = TREES[tree].array(np.ones((1, 2, 12), np.float32))
    evaluated = drawn(again(), dropout=0.5)
    assert np.array_equal(TREES[tree].numpy(evaluated(x)), TREES[tree].numpy(evaluated(x)))


def test_a_generator_beside_a_seed_is_refused() -> None:
    numpy_build: Any = attn_np.build
    jax_build: Any = attn_jax.build
    words = words_of(lambda: numpy_build("mha", d_model=12, num_heads=3, rng=0))
    assert words == "mha: expected rng= with seed=None, got seed=0; pass seed=None"
    assert words_of(lambda: jax_build("mha", seed=3, d_model=12, num_heads=3, rngs=nnx.Rngs(0))) == (
        "mha: expected rngs= with seed=None, got seed=3; pass seed=None"
    )
    assert "expected rngs= to be an nnx.Rngs, got none" in words_of(
        lambda: jax_build("mha", seed=None, d_model=12, num_heads=3)
    )


# Names ----------------------------------------------------------------------------------------------------------------

ASKED = {
    "MultiHeadAttention": "did you mean 'mha'?",
    "MultiheadAttention": "did you mean 'mha'?",
    "rope": 'here that is build("rotary"); or rotate',
    "flash_attention": 'here that is build("blockwise"); attend does so by itself',
    "bahdanau": "did you mean 'additive'?",
    "encoder_decoder": "did you mean 'mha' or 'seq2seq'?",
    "GRU": "did you mean 'gru'?",
    "perceiver": (
        'here that is build("mha"); called with the latents, once for each row of the batch, as the query; key_dim= of '
        "the input"
    ),
    "rwkv7": "here that is in a few lines: docs/names.md",
    "sLSTM": "not here: its next state is no linear function of the one before",
    "mhaa": "did you mean 'mha' or 'mamba2' or 'mqa'?",
}


def hint(name: str) -> str:
    with pytest.raises(ValueError, match="expected the name of a variant") as error:
        contract.get(name)
    return str(error.value).partition("; ")[2]


def test_other_names_of_a_variant_lead_to_it() -> None:
    for name, words in ASKED.items():
        assert hint(name) == words
    for cls, variant in contract.variant_by_class_name().items():
        for name in (cls, cls.upper(), re.sub("(?<=[a-z])(?=[A-Z])", "-", cls)):
            assert hint(name) == f"did you mean {variant!r}?"
    for variant in VARIANTS:
        assert hint(variant.upper()) == f"did you mean {variant!r}?"
