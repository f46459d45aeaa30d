"""One layer out of a model's folder: what is read, what is refused and in which words, and how much memory it takes."""

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from attn_np import contract, weights
from attn_np.weights import layouts
from attn_np.weights._foreign_config import table_name_and_config
from attn_np.weights._pretrained import layout_of_model_type
from attn_np.weights.layouts._hf_config import HFConfig
from parity_tests.tests.inputs import TREES, Arrays

ROOT = Path(__file__).resolve().parents[3]
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "num_hidden_layers": 3,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
    "torch_dtype": "float32",
    "vocab_size": 7,
}
WANT = contract.config(
    "decoder", d_model=12, num_heads=3, num_kv_heads=1, head_dim=4, rope_base=500000.0, max_positions=64
)


def llama(layers: int = 3, **shapes: tuple[int, ...]) -> Arrays:
    """Every kind of key that such a checkpoint has."""
    rng, sizes = np.random.default_rng(0), {"q": (12, 12), "k": (4, 12), "v": (4, 12), "o": (12, 12)} | shapes
    held = {"model.embed_tokens.weight": (7, 12), "model.norm.weight": (12,), "lm_head.weight": (7, 12)}
    for n in range(layers):
        start = f"model.layers.{n}."
        held |= {f"{start}self_attn.{name}_proj.weight": shape for name, shape in sizes.items()}
        held |= {f"{start}input_layernorm.weight": (12,), f"{start}post_attention_layernorm.weight": (12,)}
        held |= {f"{start}mlp.{name}_proj.weight": (5, 12) for name in ("gate", "up")}
        held[f"{start}mlp.down_proj.weight"] = (12, 5)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in held.items()}


def model(folder: Path, stated: dict[str, Any], tensors: Arrays, shards: int = 1) -> Path:
    """A folder as `save_pretrained` leaves it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(stated))
    if shards == 1:
        safetensors.numpy.save_file(tensors, folder / "model.safetensors")
        return folder
    place = {name: f"model-{n % shards + 1:05}-of-{shards:05}.safetensors" for n, name in enumerate(tensors)}
    for shard in set(place.values()):
        own = {name: x for name, x in tensors.items() if place[name] == shard}
        safetensors.numpy.save_file(own, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": place}))
    return folder


def test_layers_take_the_positions_that_their_model_has(tmp_path: Path) -> None:
    """As many as `config.json` says, or the caller; a model may have millions, of which no table is made."""
    stated = LLAMA | {"max_position_embeddings": 10**12}
    folder, x = model(tmp_path, stated, llama()), np.random.default_rng(0).normal(size=(1, 3, 12)).astype("float32")
    for tree in TREES.values():
        layer, places = tree.package.load_pretrained(folder, 1), tree.array(np.array([[0, 5, 9]]))
        assert layer.config.max_positions == 10**12
        narrow = tree.package.load_pretrained(folder, 1, max_positions=10)
        outputs = [tree.numpy(of(tree.array(x), positions=places)) for of in (layer, narrow)]
        assert np.array_equal(outputs[0], outputs[1])
        with pytest.raises(ValueError, match="expected positions from 0 to 8, got 0 to 9"):
            tree.package.load_pretrained(folder, 1, max_positions=9)(tree.array(x), positions=places)
    sections = {"type": "mrope", "mrope_section": [2, 1, 1]}
    sees = HFConfig("config.json", LLAMA | {"model_type": "qwen2_vl", "head_dim": 8, "rope_parameters": sections})
    _, config = table_name_and_config(sees, layouts.get("qwen2_vl"), 0, "", {"max_positions": 9})
    assert config.as_dict()["max_positions"] == 9


@pytest.mark.parametrize("shards", [1, 4])
def test_a_layer_by_its_indices(shards: int, tmp_path: Path) -> None:
    held = llama()
    folder = model(tmp_path, LLAMA, held, shards)
    for tree in TREES.values():
        layer = tree.package.load_pretrained(folder, layer=2)
        assert layer.config == WANT
        p = {name: np.asarray(tree.numpy(x)) for name, x in layer.params().items()}
        start = "model.layers.2.self_attn."
        for d, h, k in np.ndindex(12, 3, 4):
            assert p["w_q"][d, h, k] == held[f"{start}q_proj.weight"][4 * h + k, d]
            assert p["w_o"][h, k, d] == held[f"{start}o_proj.weight"][d, 4 * h + k]
        assert np.array_equal(p["w_k"][:, 0], held[f"{start}k_proj.weight"].T)
        assert np.array_equal(p["w_v"][:, 0], held[f"{start}v_proj.weight"].T)


def test_a_real_model_in_one_line() -> None:
    """MiniLM, from its folder: the same layer as with every field given by hand."""
    for tree in TREES.values():
        layer = tree.package.load_pretrained(ROOT / "examples" / "minilm", layer=5)
        by_hand = tree.package.load(ROOT / "examples/minilm/model.safetensors", layout="bert", layer=5, num_heads=12)
        assert layer.config == by_hand.config == contract.config("mha", d_model=384, num_heads=12)
        same = zip(layer.params().values(), by_hand.params().values(), strict=True)
        assert all(np.array_equal(tree.numpy(a), tree.numpy(b)) for a, b in same)


CONTRADICTIONS: dict[str, Any] = {
    "window": (3, None), "rope_scaling_factor": 2.0, "rope_layout": "interleaved", "norm_position": "after_rotation",
    "scale": 1.0, "softcap": 5.0, "clip_qkv": 1.0, "chunk_size": 4, "rope_base": 10.0, "rotary_dim": 2, "norm": "rms",
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_model_of_its_own_family_says_every_field(name: str, tmp_path: Path) -> None:
    """What it leaves out is its family's default: a caller cannot contradict it, as with what it states."""
    told = {name: CONTRADICTIONS[name]}
    told |= {"rope_scaling": "linear"} if name == "rope_scaling_factor" else {}
    told |= {"norm": "rms"} if name == "norm_position" else {}
    with pytest.raises(weights.ConfigMismatchError, match=r"expected .*, as the model has it, got .*; leave \w+= out"):
        weights.read_pretrained(model(tmp_path, LLAMA, llama()), 0, **told)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torch_dtype", "write dtype="),
        ("device_map", "write device="),
        ("into", "call load(file, layout=, layer=, into=layer)"),
        ("config", "leave it out, as config.json says it"),
        ("variant", "leave it out, as config.json says it"),
    ],
)
def test_arguments_of_other_functions_say_what_to_write(name: str, words: str, tmp_path: Path) -> None:
    folder, told = model(tmp_path, LLAMA, llama()), {name: "float32"}
    for tree in TREES.values():
        for options in ({"layer": 1}, {}):
            with pytest.raises(TypeError) as caught:
                tree.package.load_pretrained(folder, **options, **told)
            expected = "load_pretrained: expected its own arguments or fields of the Config"
            assert str(caught.value) == f"{expected}, got {name}=; {words}"
        if name in ("torch_dtype", "device_map"):
            with pytest.raises(TypeError, match=f"load: expected its own .*, got {name}=; {words}"):
                tree.package.load(folder / "model.safetensors", layout="llama", layer=1, **told)


def test_missing_keys_name_arguments_that_there_are(tmp_path: Path) -> None:
    tensors = {name: x for name, x in llama().items() if not name.endswith("1.self_attn.o_proj.weight")}
    with pytest.raises(weights.MissingKeysError, match="or check layout=, prefix= and the layer's config"):
        weights.read_pretrained(model(tmp_path, LLAMA, tensors), 1)


def test_load_takes_a_config(tmp_path: Path) -> None:
    """Instead of its fields: of a model's file, under a prefix, and of our own names without a config."""
    file = model(tmp_path, LLAMA, llama()) / "model.safetensors"
    (tmp_path / "config.json").unlink()
    for tree in TREES.values():
        layer = tree.package.load(file, layout="llama", layer=1, config=WANT)
        assert layer.config == WANT
        state = {f"blocks.0.{name}": np.asarray(tree.numpy(x)) for name, x in layer.params().items()}
        safetensors.numpy.save_file(state, tmp_path / "own.safetensors")
        own = tree.package.load(tmp_path / "own.safetensors", prefix="blocks.0.", variant="decoder", config=WANT)
        assert own.config == WANT and np.array_equal(tree.numpy(own.w_q), tree.numpy(layer.w_q))
        for told, words in (
            ({"config": {}}, "load: expected config= to be a Config, got dict; pass its fields by name"),
            ({"config": WANT, "into": layer}, "load: expected config= without into= and fields, got into=; leave one"),
            ({"config": WANT, "scale": 2.0}, "load: expected config= without into= and fields, got scale=; leave one"),
        ):
            with pytest.raises((TypeError, ValueError)) as caught:
                tree.package.load(file, layout="llama", layer=1, **told)
            assert str(caught.value).startswith(words)


def test_what_was_left_out_is_said(tmp_path: Path) -> None:
    folder = model(tmp_path, LLAMA, llama())
    found = weights.read_pretrained(folder, 1)
    assert found.layout == "llama"
    assert {key.rpartition("self_attn.")[2] for key in found.keys} == {f"{n}_proj.weight" for n in "qkvo"}
    mine = {key for key in llama() if key.startswith("model.layers.1.")}
    assert set(found.keys) | set(found.ignored) == mine and not set(found.keys) & set(found.ignored)
    for tree in TREES.values():
        said: list[str] = []
        tree.package.load_pretrained(folder, 1, report=said.append)
        assert all(key in said[0] for key in mine) and "num_kv_heads=1" in said[0]


def test_fields_that_no_file_states(tmp_path: Path) -> None:
    folder = model(tmp_path, LLAMA, llama())
    for tree in TREES.values():
        config = tree.package.load_pretrained(folder, 0, dropout=0.5, max_positions=9).config
        assert (config.dropout, config.max_positions) == (0.5, 9)
        config = tree.package.load_pretrained(folder, 0, causal=False, num_heads=3).config
        assert config == replace(WANT, causal=False)
        with pytest.raises(
            weights.ConfigMismatchError, match=r"config.json: 'num_heads': expected \d+, as the model has"
        ):
            tree.package.load_pretrained(folder, 0, num_heads=2)
        with pytest.raises(weights.ConfigMismatchError, match="'rotary_dim': expected None, as the model has it"):
            tree.package.load_pretrained(folder, 0, rotary_dim=2)
        with pytest.raises(weights.ConfigMismatchError, match="'sinks': expected False, as the model has it, got True"):
            tree.package.load_pretrained(folder, 0, sinks=True)
        with pytest.raises(TypeError, match="decoder: expected one of its fields"):
            tree.package.load_pretrained(folder, 0, heads=2)


def test_another_dtype(tmp_path: Path) -> None:
    folder = model(tmp_path, LLAMA, {name: x.astype(np.float16) for name, x in llama().items()})
    for tree in TREES.values():
        assert tree.package.load_pretrained(folder, 0).dtype == "float16"
        with pytest.raises(weights.DtypeMismatchError, match="pass cast=True"):
            tree.package.load_pretrained(folder, 0, dtype="float32")
        assert tree.package.load_pretrained(folder, 0, dtype="float32", cast=True).dtype == "float32"
        with pytest.raises(ValueError, match="expected dtype to be one of"):
            tree.package.load_pretrained(folder, 0, dtype="int8")


def test_load_takes_what_stands_beside_the_file(tmp_path: Path) -> None:
    """As load_pretrained does, and into a layer; what says otherwise, or what nobody knows, is refused."""
    folder = model(tmp_path, LLAMA, llama())
    file = folder / "model.safetensors"
    for tree in TREES.values():
        package = tree.package
        layer, whole = package.load(file, layout="llama", layer=1), package.load_pretrained(folder, 1)
        assert layer.config == whole.config == WANT
        same = zip(layer.params().values(), whole.params().values(), strict=True)
        assert all(np.array_equal(tree.numpy(a), tree.numpy(b)) for a, b in same)
        told = package.load(file, layout="llama", layer=1, num_heads=3, max_positions=9, dropout=0.5).config
        assert (told.rope_base, told.max_positions, told.dropout) == (500000.0, 9, 0.5)
        for told in ({}, {"max_positions": 9}, {"dropout": 0.5}, {"max_positions": 9, "dropout": 0.5}):
            layer = package.load(file, layout="llama", layer=1, **told)  # fields that no model states
            config = layer.config
            assert package.load(file, into=layer, layout="llama", layer=0).config == config
    fields = WANT.as_dict() | {"rope_base": 10000.0}
    wrongs: list[dict[str, Any]] = [{"rope_base": 10000.0}, {"config": contract.config("decoder", **fields)}]
    for wrong in wrongs:
        with pytest.raises(weights.ConfigMismatchError, match="rope_base"):
            weights.read(file, layout="llama", layer=1, **wrong)
    with pytest.raises(weights.ConfigMismatchError, match="expected more than 1, for layer 1"):
        weights.read(model(folder, LLAMA | {"num_hidden_layers": 1}, llama()) / file.name, layout="llama", layer=1)
    with pytest.raises(weights.ConfigMismatchError, match=r"'colour'.*load_pretrained, as allow="):
        weights.read(model(folder, LLAMA | {"colour": "brown"}, llama()) / file.name, layout="llama", layer=1)


def test_a_base_of_positions_that_nobody_says(tmp_path: Path) -> None:
    """Weights look the same for every base: without a `config.json` of the family the caller gives it."""
    file = model(tmp_path, LLAMA | {"model_type": "alpaca"}, llama()) / "model.safetensors"
    for _ in range(2):
        with pytest.raises(weights.ConfigMismatchError, match=r"'rope_base': .*pass rope_base="):
            weights.read(file, layout="llama", layer=1, num_heads=3)
        found = weights.read(file, layout="llama", layer=1, num_heads=3, rope_base=5e5)
        assert found.config.as_dict()["rope_base"] == 5e5
        (tmp_path / "config.json").unlink(missing_ok=True)


# Positions ------------------------------------------------------------------------------------------------------------

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
OURS3 = {"rope_scaling": "llama3", "rope_scaling_factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
OURS3["original_max_positions"] = 16
LONG = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0]}
OURS_LONG = {"rope_scaling": "longrope", "short_factor": (1.0, 1.5), "long_factor": (2.0, 3.0)}
OLD: dict[str, Any] = {"rope_parameters": None, "rope_theta": 10.0}
YARN = {"rope_scaling": "yarn", "rope_scaling_factor": 4.0, "original_max_positions": 64}
TURNING: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none stated": ({"rope_parameters": None}, {"rope_base": 10000.0}),
    "the old way": (OLD, {"rope_base": 10.0}),
    "the old way, scaled": (
        OLD | {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_base": 10.0, "rope_scaling": "linear", "rope_scaling_factor": 2.0},
    ),
    "dynamic": (
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
        {"rope_base": 10000.0, "rope_scaling": "dynamic", "rope_scaling_factor": 2.0, "original_max_positions": 64},
    ),
    "llama3": ({"rope_parameters": {"rope_theta": 5.0, "rope_type": "llama3"} | LLAMA3}, {"rope_base": 5.0} | OURS3),
    "llama3 the old way": (OLD | {"rope_scaling": {"rope_type": "llama3"} | LLAMA3}, {"rope_base": 10.0} | OURS3),
    "longrope": (
        OLD | {"rope_scaling": {"type": "longrope"} | LONG, "original_max_position_embeddings": 8},
        {"rope_base": 10.0, "original_max_positions": 8, "rope_scaling_factor": 8.0} | OURS_LONG,
    ),
    "yarn": (OLD | {"rope_scaling": {"type": "yarn", "factor": 4.0}}, {"rope_base": 10.0} | YARN),
    "yarn with a ramp": (
        OLD
        | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 2, "truncate": False}},
        {"rope_base": 10.0, "beta_fast": 16, "beta_slow": 2, "yarn_truncate": False} | YARN,
    ),
    "yarn with magnitudes": (
        OLD | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.5, "mscale_all_dim": 0.5}},
        {"rope_base": 10.0, "attention_factor": 1.0} | YARN,
    ),
}


@pytest.mark.parametrize("case", TURNING)
def test_rotary_positions_in_every_spelling(case: str, tmp_path: Path) -> None:
    stated, want = TURNING[case]
    found = weights.read_pretrained(model(tmp_path, LLAMA | stated, llama()), 0).config
    fields = {name: value for name, value in WANT.as_dict().items() if name != "rope_base"}
    assert found == contract.config("decoder", **fields | want)


# Refusals -------------------------------------------------------------------------------------------------------------

UNKNOWN: dict[str, tuple[dict[str, Any], str]] = {
    "another family": (
        {"model_type": "mamba"},
        "'model_type': expected the name of a known family, got 'mamba'",
    ),
    "no family": ({"model_type": None}, "'model_type': .* got None"),
    "a rope type": (
        {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}},
        "'rope_parameters.rope_type': expected one of 'default', 'linear'.*, got 'proportional'",
    ),
    "a field": ({"attention_sinks": 4}, "'attention_sinks': expected fields with a known meaning.* pass allow="),
    "a field of positions": (
        {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [1, 1]}},
        "'rope_parameters.mrope_section'",
    ),
    "a share of the head": (
        {"partial_rotary_factor": 0.5},
        "'partial_rotary_factor': expected 1, as this family rotates whole heads, got 0.5",
    ),
    "weights in a code": (
        {"quantization_config": {"bits": 4}},
        "'quantization_config': .*quantised ones",
    ),
    "heads that are text": ({"num_attention_heads": "3"}, "'num_attention_heads': expected an integer from 0, got '3'"),
    "no heads": ({"num_attention_heads": 0}, "'num_attention_heads': expected a number above 0, got 0"),
    "no width": ({"hidden_size": None}, "'hidden_size': expected this field, got none"),
    "a flag that is a number": ({"attention_bias": 1}, "'attention_bias': expected true or false, got 1"),
    "heads that don't fit": ({"num_key_value_heads": 2}, "expected a possible layer, got .*num_kv_heads"),
    "scaling without a factor": (
        {"rope_parameters": {"rope_type": "linear"}},
        "'rope_parameters.factor': expected this field, got none",
    ),
    "positions that are a list": ({"rope_parameters": [1]}, "'rope_parameters': expected an object"),
    "fewer layers": (
        {"num_hidden_layers": 1},
        "expected more than 1, for layer 1, got 1; pass layer= from 0 to 0",
    ),
    "other shapes": ({"head_dim": 6}, "expected shape"),
    "biases that are not there": ({"attention_bias": True}, "self_attn.q_proj.bias"),
}


@pytest.mark.parametrize("why", UNKNOWN)
def test_what_cannot_be_represented_is_refused(why: str, tmp_path: Path) -> None:
    stated, words = UNKNOWN[why]
    folder = model(tmp_path, LLAMA | stated, llama())
    with pytest.raises(weights.WeightFileError, match=words) as first:
        TREES["numpy"].package.load_pretrained(folder, 1)
    for tree in ("torch", "jax"):
        with pytest.raises(weights.WeightFileError) as caught:
            TREES[tree].package.load_pretrained(folder, 1)
        assert str(caught.value) == str(first.value)


NO_NUMBERS = (float("nan"), float("inf"), -float("inf"), True, "1", [1.0], {}, 10**400)
NUMBERS = {
    "default": ("rope_theta", "partial_rotary_factor"),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow"),
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_that_are_none_are_refused(kind: str, tmp_path: Path) -> None:
    """In every number of the positions, in words that name it."""
    folder = model(tmp_path, LLAMA, llama())
    right: dict[str, Any] = {"rope_theta": 1e4, "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    right = {name: x for name, x in right.items() if name in ("rope_theta", *NUMBERS[kind])}
    right |= {"rope_type": kind, "original_max_position_embeddings": 32}
    for name, wrong in itertools.product(NUMBERS[kind], NO_NUMBERS):
        (folder / "config.json").write_text(json.dumps(LLAMA | {"rope_parameters": right | {name: wrong}}))
        with pytest.raises(weights.ConfigMismatchError, match=f"'rope_parameters.{name}': expected "):
            weights.read_pretrained(folder, 0)


def test_a_name_that_nobody_knows_can_be_told(tmp_path: Path) -> None:
    folder = model(tmp_path, LLAMA | {"model_type": "alpaca", "colour": "brown"}, llama())
    with pytest.raises(weights.ConfigMismatchError, match="'colour'"):
        weights.read_pretrained(folder, 0, layout="llama")
    assert weights.read_pretrained(folder, 0, layout="llama", allow=["colour"]).config == WANT
    assert weights.read_pretrained(folder, 0, layout="llama", allow="colour").config == WANT
    with pytest.raises(ValueError, match="expected a layout whose models have"):
        weights.read_pretrained(folder, 0, layout="torch_gru")
    folder = model(tmp_path, LLAMA, llama())
    with pytest.raises(
        weights.ConfigMismatchError, match=r"expected a model whose layout is bert, .*, got 'llama'; leave layout= out"
    ):
        weights.read_pretrained(folder, 0, layout="bert")


@pytest.mark.parametrize(
    ("kind", "near"),
    [
        ("lfm3", None),
        ("zamba2", None),
        ("starcoder", "starcoder2"),
        ("mamba3", "mamba2_model"),
        ("bambu", "llama"),
    ],
)
def test_no_family_is_guessed(kind: str, near: str | None, tmp_path: Path) -> None:
    """A name that is spelt alike may have other numbers; the refusal is one line, with layouts that may be meant."""
    with pytest.raises(weights.ConfigMismatchError) as caught:
        weights.read_pretrained(model(tmp_path, LLAMA | {"model_type": kind}, llama()), 0)
    words = str(caught.value).removeprefix(str(tmp_path))
    assert "name a layout as layout= if the model has its names and numbers" in words and len(words) < 400
    if near is None:
        assert f"got {kind!r}, which is known and has no layout yet; name a layout" in words
    else:
        hint = words.partition("did you mean ")[2].partition("?")[0]
        assert f"layout={near!r}" in hint.split(" or ")


def test_a_model_type_is_no_layout(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got 'bamba', a model_type that layout llama reads; pass 'llama', or leave"):
        weights.read_pretrained(model(tmp_path, LLAMA, llama()), 0, layout="bamba")


def test_experts_are_no_part_of_attention(tmp_path: Path) -> None:
    stated = LLAMA | {"num_experts_per_tok": 2, "router_aux_loss_coef": 0.1, "mlp_only_layers": [], "num_experts": 4}
    assert weights.read_pretrained(model(tmp_path, stated, llama()), 0).config == WANT


def test_save_takes_a_layer_and_a_path(tmp_path: Path) -> None:
    layers = {name: tree.package.build("mha", d_model=2, num_heads=1) for name, tree in TREES.items()}
    for name, tree in TREES.items():
        for other, layer in layers.items():
            if other != name:
                with pytest.raises(TypeError, match=f"expected a layer of {tree.package.__name__} first, got attn_"):
                    tree.package.save(layer, tmp_path / "a")
                with pytest.raises(TypeError, match=f"into= to be a layer of {tree.package.__name__}, got attn_"):
                    tree.package.load(tmp_path / "a", into=layer)
        with pytest.raises(TypeError, match=r"first, got .*; call save\(layer, path\)"):
            tree.package.save(tmp_path / "a", layers[name])
        with pytest.raises(TypeError, match=r"bytes or os\.PathLike.*, got int"):
            tree.package.save(layers[name], 3)
    assert not list(tmp_path.iterdir())


def test_files_of_another_family(tmp_path: Path) -> None:
    folder = model(tmp_path, {"model_type": "bert", "hidden_size": 12, "num_attention_heads": 3}, llama())
    with pytest.raises(weights.MissingKeysError, match=r"encoder\.layer\.0\.attention\.self\.query\.weight"):
        weights.read_pretrained(folder, 0)
    folder = model(tmp_path, LLAMA, llama() | {"model.layers.1.self_attn.q_norm.weight": np.ones(4, np.float32)})
    with pytest.raises(weights.UnexpectedKeysError, match="q_norm"):
        weights.read_pretrained(folder, 1)
    held = llama()
    del held["model.layers.1.self_attn.v_proj.weight"]
    with pytest.raises(weights.MissingKeysError, match="v_proj"):
        weights.read_pretrained(model(tmp_path, LLAMA, held), 1)


def test_arguments_that_cannot_be_right(tmp_path: Path) -> None:
    folder = model(tmp_path, LLAMA, llama())
    for layer in (-1, True, "1"):
        with pytest.raises(ValueError, match="expected layer= to be an integer from 0"):
            weights.read_pretrained(folder, layer)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected no part=, as a layer has one block of attention, got 'cross'"):
        weights.read_pretrained(folder, 0, part="cross")


def test_folders_that_are_not_whole(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected a model's folder or a weight file, got neither"):
        weights.read_pretrained(tmp_path / "nothing", 0)
    with pytest.raises(FileNotFoundError, match="got none; get it"):
        weights.read_pretrained(tmp_path, 0)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(
        FileNotFoundError,
        match=r"got .pytorch_model\.bin., which is not read; .*as save_pretrained\(folder\) of transf",
    ):
        weights.read_pretrained(tmp_path, 0)
    safetensors.numpy.save_file(llama(), tmp_path / "a.safetensors")
    with pytest.raises(FileNotFoundError, match=r"expected a config\.json beside the weights, got none"):
        weights.read_pretrained(tmp_path / "a.safetensors", 0)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert weights.read_pretrained(tmp_path, 0).config == WANT
    safetensors.numpy.save_file(llama(), tmp_path / "b.safetensors")
    with pytest.raises(weights.ShardIndexError, match="name the file"):
        weights.read_pretrained(tmp_path, 0)
    assert weights.read_pretrained(tmp_path / "b.safetensors", 0).config == WANT
    for text in ("[]", "{", "[" * 100_000, "{" + " " * 2**22 + "}"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(weights.ConfigMismatchError, match="expected a JSON object"):
            weights.read_pretrained(tmp_path / "b.safetensors", 0)


def test_shards(tmp_path: Path) -> None:
    """Only those that hold the layer are opened; one that is missing or lies elsewhere is refused."""
    folder = model(tmp_path / "model", LLAMA, llama(), 4)
    found = folder / "model.safetensors.index.json"
    index = json.loads(found.read_text())
    needed = {index["weight_map"][f"model.layers.0.self_attn.{n}_proj.weight"] for n in "qkvo"}
    (folder / min(needed)).rename(tmp_path / "elsewhere.safetensors")
    with pytest.raises(weights.ShardIndexError, match="got no file; get the shard too"):
        weights.read_pretrained(folder, 0)
    (folder / min(needed)).symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(weights.UnsafePathError, match="a link out of it"):
        weights.read_pretrained(folder, 0)
    named = {k: v.replace(min(needed), "../elsewhere.safetensors") for k, v in index["weight_map"].items()}
    found.write_text(json.dumps({"metadata": {}, "weight_map": named}))
    with pytest.raises(weights.UnsafePathError, match="the plain name of a file beside the index"):
        weights.read_pretrained(folder, 0)
    place = {name: "mine.safetensors" if ".1.self_attn" in name else "not here.safetensors" for name in llama()}
    mine = {name: x for name, x in llama().items() if place[name] == "mine.safetensors"}
    safetensors.numpy.save_file(mine, folder / "mine.safetensors")
    found.write_text(json.dumps({"metadata": {}, "weight_map": place}))
    assert weights.read_pretrained(folder, 1).config == WANT


# Families -------------------------------------------------------------------------------------------------------------


def test_every_family_is_recognised_by_one_layout() -> None:
    kinds = [kind for name in layouts.names() for kind in layouts.get(name).model_types]
    assert len(kinds) == len(set(kinds)) and set(kinds) == set(layout_of_model_type())
    for name in layouts.names():
        layout = layouts.get(name)
        assert bool(layout.model_types) == (layout.table_and_fields is not None)


# Memory ---------------------------------------------------------------------------------------------------------------

MEASURE = """
import importlib, sys
def resident(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
package = importlib.import_module(sys.argv[1])
warm = package.load_pretrained(sys.argv[2], 0)
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew: a process inherits that of its parent
before = resident("VmRSS")
layer = package.load_pretrained(sys.argv[3], 1)
print(resident("VmHWM") - before, sum(x.nbytes for x in layer.params().values()))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux for a process's peak")
@pytest.mark.parametrize(
    "package", ["attn_np", *(pytest.param(name, marks=pytest.mark.left_out) for name in ("attn_torch", "attn_jax"))]
)
def test_peak_memory(package: str, tmp_path: Path) -> None:
    """Less than twice the layer, out of a checkpoint of 2 GB in two shards whose other tensors are holes."""
    width = 2048
    stated = LLAMA | {"hidden_size": width, "num_attention_heads": 16, "num_key_value_heads": None}
    folder = tmp_path / "large"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(stated))
    place = {}
    for n in range(2):
        shapes = {f"model.layers.{n}.self_attn.{x}_proj.weight": (width, width) for x in "qkvo"}
        shapes[f"model.layers.{n}.mlp.up_proj.weight"] = (width, 2**29 // (2 * width))
        shapes[f"model.layers.{n}.mlp.down_proj.weight"] = (2**29 // (2 * width), width)
        place |= dict.fromkeys(shapes, f"{n}.safetensors")
        hollow(folder / f"{n}.safetensors", shapes)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": place}))
    assert sum(path.stat().st_size for path in folder.glob("*.safetensors")) > 2 * 2**30
    small = model(tmp_path / "small", LLAMA, llama())
    command = [sys.executable, "-c", MEASURE, package, str(small), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    peak, size = map(int, done.stdout.split())
    assert size == 4 * 4 * width**2
    # The layer, one of its four tensors as it stands in the file, and room for two more: below two layers.
    assert size <= peak < size + 3 * size // 4


def hollow(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A file of float32 zeros that takes no room on the disk."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as stream:
        stream.write(len(raw).to_bytes(8, "little") + raw)
        stream.truncate(8 + len(raw) + end)
