"""Types that are kin to a family, text models of models that see or hear, and keys around attention."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attn_np import contract, weights
from attn_np.weights import ConfigMismatchError, MissingKeysError, UnexpectedKeysError, layouts
from attn_np.weights._foreign_config import table_name_and_config
from attn_np.weights._known_types import KNOWN_TYPES
from attn_np.weights._pretrained import find_layout, layout_of_model_type
from attn_np.weights._text_models import TEXT_MODELS, text_model
from attn_np.weights.layouts._hf_config import HFConfig
from attn_np.weights.layouts._kin import KIN
from parity_tests.tests.weights.test_pretrained import LLAMA, WANT, llama, model

Fields = dict[str, Any]


def layer_of(stated: Fields, layer: int = 0, **fields: Any) -> contract.Config:
    """The config of a layer, every field of the file asked for."""
    hf, _ = text_model(HFConfig("config.json", stated), named=False)
    found = table_name_and_config(hf, find_layout(hf, None)[1], layer, "", fields)[1]
    hf.refuse_unread()
    return found


# The tables of types --------------------------------------------------------------------------------------------------


def test_each_type_has_one_place() -> None:
    names = [kind for name in layouts.names() for kind in layouts.get(name).model_types]
    assert len(names) == len(set(names))
    assert {one.family for one in KIN.values()} <= set(layouts.names())
    assert not {*names} & {*KNOWN_TYPES, *TEXT_MODELS} and not {*KNOWN_TYPES} & {*TEXT_MODELS}
    assert {*TEXT_MODELS.values()} <= set(layout_of_model_type())


QWEN3_MOE: Fields = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "use_sliding_window": False,
}
OURS3: Fields = {"d_model": 2048, "num_heads": 32, "num_kv_heads": 4, "head_dim": 128, "rope_base": 1e6, "norm": "rms"}
PUBLISHED = {
    "Qwen3 30B-A3B": (QWEN3_MOE, contract.config("decoder", **OURS3, norm_eps=1e-6)),
    "Gemma 7B": (
        {"model_type": "gemma", "head_dim": 256, "hidden_size": 3072, "num_attention_heads": 16, "rope_theta": 10000.0}
        | {"num_key_value_heads": 16, "hidden_act": "gelu", "attention_bias": False, "max_position_embeddings": 8192},
        contract.config("decoder", d_model=3072, num_heads=16, num_kv_heads=16, head_dim=256),
    ),
    "Mamba-Codestral 7B": (
        {
            "model_type": "mamba2",
            "hidden_size": 4096,
            "num_heads": 128,
            "head_dim": 64,
            "state_size": 128,
            "n_groups": 8,
        }
        | {"conv_kernel": 4, "hidden_act": "silu", "use_bias": False, "use_conv_bias": True, "layer_norm_epsilon": 1e-5}
        | {"norm_before_gate": True, "rms_norm": True, "time_step_init_scheme": "random", "time_step_scale": 1.0}
        | {"time_step_limit": [0.0, float("inf")], "time_step_rank": 256, "chunk_size": 256, "expand": 2},
        contract.config(
            "mamba2",
            d_model=4096,
            num_heads=128,
            num_key_heads=8,
            state_dim=128,
            head_dim=64,
            conv_size=4,
            norm_groups=8,
            norm_eps=1e-5,
        ),
    ),
    "Nemotron": (
        {"model_type": "nemotron", "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
        | {"partial_rotary_factor": 0.5, "rope_theta": 10000, "norm_eps": 1e-5, "mlp_bias": False},
        contract.config("decoder", d_model=32, num_heads=2, num_kv_heads=1, head_dim=16, rotary_dim=8, rope_base=10000),
    ),
}


@pytest.mark.parametrize("case", PUBLISHED)
def test_a_published_file_of_kin(case: str) -> None:
    stated, want = PUBLISHED[case]
    assert layer_of(stated) == want


REFUSED: dict[str, tuple[Fields, str]] = {
    "Gemma in both directions": (
        {"model_type": "gemma", "use_bidirectional_attention": True},
        "'use_bidirectional_attention': expected one of False",
    ),
    "Qwen 2 with experts without biases": ({"model_type": "qwen2_moe", "qkv_bias": False}, "'qkv_bias'"),
    "BigBird in blocks": ({"model_type": "big_bird", "attention_type": "block_sparse"}, "'attention_type'"),
    "a name of its own in the words": (
        {"model_type": "ernie4_5", "hidden_size": 8, "num_attention_heads": 2, "use_bias": "yes"},
        "'use_bias': expected true or false, got 'yes'",
    ),
    "Jamba, a recurrent layer": (
        {"model_type": "jamba", "hidden_size": 8, "num_attention_heads": 2},
        "'attn_layer_offset': expected a layer that attends",
    ),
    "Mamba-2 without its norm": ({"model_type": "mamba2", "rms_norm": False}, "'rms_norm': expected one of True"),
    "a field that nobody knows": (QWEN3_MOE | {"colour": 1}, "'colour': expected fields with a known meaning"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_kin_refuse(case: str) -> None:
    stated, words = REFUSED[case]
    with pytest.raises(ConfigMismatchError, match=words):
        layer_of(stated)


# Text models ----------------------------------------------------------------------------------------------------------

LLAVA: Fields = {
    "model_type": "llava",
    "text_config": LLAMA,
    "vision_config": {"hidden_size": 4},
    "image_token_index": 6,
}


@pytest.mark.parametrize("start", ["language_model.", "model.language_model.", "language_model.model."])
def test_the_text_model_of_a_model_that_sees(start: str, tmp_path: Path) -> None:
    tensors = {start + name.removeprefix("model.") if "language_model.m" not in start else f"language_model.{name}": x
               for name, x in llama().items()}  # fmt: skip
    tensors["vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight"] = np.zeros((4, 4), np.float32)
    folder = model(tmp_path, LLAVA, tensors)
    found = weights.read_pretrained(folder, 2)
    assert found.config == WANT and all("language_model" in key for key in found.keys)
    text = weights.read_pretrained(model(tmp_path / "text", LLAMA, llama()), 2)
    assert all(np.array_equal(x, found.values[name]) for name, x in text.values.items())


TOWER = {"hidden_size": 6, "num_attention_heads": 2, "num_hidden_layers": 2, "model_type": "siglip_vision_model"}


def tower(start: str) -> dict[str, np.ndarray]:
    """The attention of a vision tower's two layers."""
    rng, names = np.random.default_rng(4), ("q_proj", "k_proj", "v_proj", "out_proj")
    shapes = {"weight": (6, 6), "bias": (6,)}
    return {
        f"{start}encoder.layers.{n}.self_attn.{name}.{kind}": rng.normal(size=shape).astype(np.float32)
        for n in range(2)
        for name in names
        for kind, shape in shapes.items()
    }


@pytest.mark.parametrize(
    "start", ["model.vision_tower.", "vision_tower.vision_model.", "model.vision_tower.vision_model."]
)
def test_the_vision_tower_of_a_model_that_sees(start: str, tmp_path: Path) -> None:
    """The numbers of the tower saved alone; the text model is read without part=."""
    stated = LLAVA | {"vision_config": TOWER}
    folder = model(
        tmp_path / start, stated, {f"language_model.{name}": x for name, x in llama().items()} | tower(start)
    )
    alone = model(tmp_path / "alone", TOWER, tower("vision_model."))
    for layer in range(2):
        found, want = (weights.read_pretrained(place, layer, part="vision") for place in (folder, alone))
        assert found.config == want.config and found.values.keys() == want.values.keys()
        assert all(np.array_equal(x, found.values[name]) for name, x in want.values.items())
    assert len(list(weights.read_pretrained_layers(folder, part="vision"))) == 2
    assert weights.read_pretrained(folder, 2).config == WANT


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"hidden_size": 4}, "'vision_config': expected an object with the model_type of the vision tower"),
        (TOWER | {"model_type": "fairly-new"}, "'vision_config.model_type': expected the name of a known family"),
        (TOWER | {"colour": 1}, "'vision_config.colour': expected fields with a known meaning"),
    ],
)
def test_a_vision_tower_that_is_not_known_is_refused(stated: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = model(tmp_path, LLAVA | {"vision_config": stated}, tower("vision_tower."))
    with pytest.raises(ConfigMismatchError, match=words):
        weights.read_pretrained(folder, 0, part="vision")


def test_a_text_model_that_says_little_has_the_sizes_of_its_library() -> None:
    """As in LLaVA 1.5 and in Gemma 3 4B."""
    stated = {"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "vocab_size": 32064}
    config = layer_of({"model_type": "llava", "text_config": stated, "projector_hidden_act": "gelu"})
    assert config == contract.config("decoder", d_model=4096, num_heads=32, num_kv_heads=32, head_dim=128)
    sparse = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
    sparse |= {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    config = layer_of({"model_type": "gemma3", "text_config": sparse, "mm_tokens_per_image": 256}, 5)
    assert (config.as_dict()["num_heads"], config.as_dict()["head_dim"], config.as_dict()["scale"]) == (8, 256, 1 / 16)


def test_fields_of_a_text_model_are_named_with_where_they_are() -> None:
    with pytest.raises(ConfigMismatchError, match=r"'text_config.colour': expected fields with a known meaning"):
        layer_of({"model_type": "llava", "text_config": LLAMA | {"colour": 1}})
    with pytest.raises(ConfigMismatchError, match=r"'text_config.model_type': expected the name of a known family"):
        layer_of({"model_type": "llava", "text_config": LLAMA | {"model_type": "fairly-new"}})
    with pytest.raises(ConfigMismatchError, match=r"'text_config': expected an object"):
        layer_of({"model_type": "llava", "text_config": []})


def test_a_model_that_reads_in_both_directions_asks_for_one(tmp_path: Path) -> None:
    stated = {"model_type": "paligemma", "text_config": LLAMA | {"model_type": "gemma", "head_dim": 4}}
    folder = model(tmp_path, stated, {f"language_model.{name}": x for name, x in llama().items()})
    with pytest.raises(ConfigMismatchError, match=r"'causal': expected the direction.*pass causal=False"):
        weights.read_pretrained(folder, 0)
    for causal in (False, True):
        assert weights.read_pretrained(folder, 0, causal=causal).config.as_dict()["causal"] is causal


def test_layout_and_prefix_reach_the_text_model_of_an_unknown_model(tmp_path: Path) -> None:
    stated = {"model_type": "fairly-new", "text_config": LLAMA | {"model_type": "fairly-new-text"}}
    folder = model(tmp_path, stated, {f"brain.{name}": x for name, x in llama().items()})
    assert weights.read_pretrained(folder, 1, layout="llama", prefix="brain.").config == WANT


def test_a_tower_of_an_unknown_model_is_read_by_a_named_layout(tmp_path: Path) -> None:
    stated = LLAVA | {"model_type": "fairly-new", "vision_config": TOWER}
    folder = model(tmp_path / "new", stated, tower("vision_tower."))
    alone = model(tmp_path / "alone", TOWER, tower("vision_model."))
    found = weights.read_pretrained(folder, 1, layout=layout_of_model_type()[TOWER["model_type"]], part="vision")
    want = weights.read_pretrained(alone, 1, part="vision")
    assert found.config == want.config
    assert all(np.array_equal(x, found.values[name]) for name, x in want.values.items())


def test_a_prefix_without_layers_is_answered_by_those_with(tmp_path: Path) -> None:
    folder = model(tmp_path / "new", LLAMA, {f"language_model.{name}": x for name, x in llama().items()})
    words = "expected the keys of layers after prefix=, got them after 'language_model.'; pass what stands before them"
    with pytest.raises(MissingKeysError, match=words):
        weights.read_pretrained(folder, 1, prefix="model.language_model.")
    with pytest.raises(MissingKeysError, match="got them without a prefix; leave prefix= out"):
        weights.read_pretrained(model(tmp_path / "plain", LLAMA, llama()), 1, prefix="brain.")


# Keys around attention ------------------------------------------------------------------------------------------------

AROUND = ("model.layers.1.input_layernorm.bias", "model.layers.1.block_sparse_moe.gate.weight", "visual.proj", "extra")
WITHIN = ("model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.gate")


@pytest.mark.parametrize("key", AROUND)
def test_a_key_around_attention_refuses_no_load_under_a_layout(key: str, tmp_path: Path) -> None:
    tensors = llama() | {key: np.zeros((3,), np.float32)}
    other = model(tmp_path / "other", LLAMA | {"model_type": "fairly-new"}, tensors)
    assert weights.read_pretrained(other, 1, layout="llama").config == WANT
    assert (
        weights.read_pretrained(model(tmp_path / "kin", LLAMA | {"model_type": "aria_text"}, tensors), 1).config == WANT
    )
    with pytest.raises(UnexpectedKeysError, match=re.escape(key)):  # a Llama has no such key
        weights.read_pretrained(model(tmp_path / "llama", LLAMA, tensors), 1)


@pytest.mark.parametrize("key", WITHIN)
def test_a_key_within_attention_always_does(key: str, tmp_path: Path) -> None:
    tensors = llama() | {key: np.zeros((4,), np.float32)}
    for kind, layout in (("fairly-new", "llama"), ("aria_text", None), ("llama", None)):
        folder = model(tmp_path / kind, LLAMA | {"model_type": kind}, tensors)
        with pytest.raises(UnexpectedKeysError, match=re.escape(key)):
            weights.read_pretrained(folder, 1, layout=layout)


def test_load_reads_the_config_of_kin(tmp_path: Path) -> None:
    """As of the family itself: `load` and `load_pretrained` agree."""
    stated = json.loads(json.dumps(LLAMA | {"model_type": "nemotron"}))
    folder = model(tmp_path, stated, llama() | {"model.norm.bias": np.zeros(12, np.float32)})
    want = weights.read_pretrained(folder, 1)
    found = weights.read(folder / "model.safetensors", layout="llama", layer=1)
    assert found.config == want.config and found.config.as_dict()["rotary_dim"] == 2
