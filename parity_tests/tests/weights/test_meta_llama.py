"""Llama's own files: what `params.json` says, which files are meant, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from attn_np import contract, weights
from parity_tests.tests.inputs import Arrays
from parity_tests.tests.weights.test_pretrained import LLAMA, WANT, llama, model

SMALL: dict[str, Any] = {"dim": 12, "n_heads": 3, "n_kv_heads": 1, "n_layers": 3, "norm_eps": 1e-5, "vocab_size": -1}


def own_names() -> Arrays:
    """The tensors of a small Llama by Meta's names."""
    names = {"self_attn.": "attention.", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm"}
    names |= {f"{letter}_proj": f"w{letter}" for letter in "qkvo"} | {"mlp.": "feed_forward.", "model.": ""}
    names |= {"embed_tokens": "tok_embeddings", "lm_head": "output"}
    held = {}
    for name, x in llama().items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        held[name] = x
    return held | {"layers.0.attention.inner_attention.rope.freqs": np.ones(2, np.float32)}


def own(folder: Path, **fields: Any) -> Path:
    (folder / "params.json").write_text(json.dumps(SMALL | fields))
    return folder


def ours(**fields: Any) -> contract.Config:
    sizes = {"d_model": 12, "num_heads": 3, "num_kv_heads": 1, "head_dim": 4}
    return contract.config("decoder", **sizes | {"rope_layout": "interleaved", "rope_base": 10000.0} | fields)


SCALED = {"rope_theta": 500000.0, "use_scaled_rope": True}
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Llama 2": ({"multiple_of": 256}, {}),
    "Llama 3": ({"multiple_of": 1024, "ffn_dim_multiplier": 1.3, "rope_theta": 500000.0}, {"rope_base": 500000.0}),
    "Llama 3.1, with its factor": (
        SCALED | {"rope_scaling_factor": 8},
        {"rope_base": 500000.0, "rope_scaling": "llama3", "rope_scaling_factor": 8, "low_freq_factor": 1.0}
        | {"high_freq_factor": 4.0, "original_max_positions": 8192},
    ),
    "Mistral 7B": ({"head_dim": 4, "hidden_dim": 20, "sliding_window": 5}, {"window": (4, None)}),
    "Mixtral, whose base its code says": ({"head_dim": 4, "moe": {"num_experts": 8}}, {"rope_base": 1e6}),
    "Mixtral": ({"moe": {"num_experts": 8}, "rope_theta": 1e6}, {"rope_base": 1e6}),
}


@pytest.mark.parametrize("case", PUBLISHED)
def test_what_params_say(case: str, tmp_path: Path) -> None:
    stated, want = PUBLISHED[case]
    held = own_names()
    safetensors.numpy.save_file(held, own(tmp_path, **stated) / "consolidated.safetensors")
    found = list(weights.read_pretrained_layers(tmp_path))
    assert len(found) == 3
    for number, layer in enumerate(found):
        assert layer is not None and layer.config == ours(**want) and layer.layout == "meta_llama"
        assert np.array_equal(layer.values["w_q"].reshape(12, 12).T, held[f"layers.{number}.attention.wq.weight"])
        assert "rope.freqs" in "".join(layer.ignored) or number


def test_which_files_are_meant(tmp_path: Path) -> None:
    """Those of transformers, where a folder has both, unless the layout is named."""
    model(tmp_path, LLAMA, llama())
    safetensors.numpy.save_file(own_names(), own(tmp_path) / "consolidated.safetensors")
    assert weights.read_pretrained(tmp_path, 1).config == WANT
    found = weights.read_pretrained(tmp_path, 1, layout="meta_llama")
    assert found.config == ours() and found.path.endswith("consolidated.safetensors")


REFUSED = {
    "a factor that Meta's code says": (SCALED, "'rope_scaling_factor': .*write it into a copy of this file: 8 for"),
    "biases": ({"use_biases": True}, "'use_biases': expected one of False"),
    "too few layers": ({"n_layers": 1}, "'n_layers': expected more than 1, for layer 1"),
    "a field that is not known": ({"qkv_bias": True}, "'qkv_bias': expected fields with a known meaning"),
    "no width": ({"dim": None}, "params.json: 'dim': expected this field, got none"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, tmp_path: Path) -> None:
    stated, words = REFUSED[case]
    with pytest.raises(weights.ConfigMismatchError, match=words):
        weights.read_pretrained(own(tmp_path, **stated), 1)


def test_a_pickle_is_to_be_written_again(tmp_path: Path) -> None:
    (own(tmp_path) / "consolidated.00.pth").touch()
    words = r"got 'consolidated\.00\.pth', which is not read; write what torch\.load\(file, weights_only=True\) gives"
    with pytest.raises(FileNotFoundError, match=words):
        weights.read_pretrained(tmp_path, 0)
