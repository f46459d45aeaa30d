"""Llama's own files, made of a model of `transformers`: its rows of queries and keys in Meta's order.

In a head of `transformers` the first numbers of all pairs come before the second ones; Meta's pairs are neighbours.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from parity_tests.peers import Found, Model
from parity_tests.peers.llama import AT, LLAMA3, SMALL, scaled

PARAMS = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_key_value_heads": "n_kv_heads"}
PARAMS |= {"num_hidden_layers": "n_layers", "sliding_window": "sliding_window"}
NAMES = {"q": "wq", "k": "wk", "v": "wv", "o": "wo"}


@dataclass(frozen=True)
class OwnFiles(Model):
    """A Llama with `params.json` and Meta's names."""

    def found(self, folder: Path) -> Iterator[Found]:
        model, given = self.model(), self.given(np.random.default_rng(5))
        state = {name: x.numpy() for name, x in model.state_dict().items()}
        file, params = folder / "consolidated.safetensors", self.stated()
        held = {"norm.weight": state["model.norm.weight"], "output.weight": state["lm_head.weight"]}
        for layer in range(params["n_layers"]):
            for name, own in NAMES.items():
                w = state[f"model.layers.{layer}.self_attn.{name}_proj.weight"]
                heads = params["n_heads"] if name == "q" else params["n_kv_heads"]
                held[f"layers.{layer}.attention.{own}.weight"] = neighbours(w, heads) if name in "qk" else w
            held[f"layers.{layer}.attention_norm.weight"] = state[f"model.layers.{layer}.input_layernorm.weight"]
        safetensors.numpy.save_file({name: np.ascontiguousarray(x) for name, x in held.items()}, file)
        del params["model_type"]
        (folder / "params.json").write_text(json.dumps(params))
        calls = self.calls(model, given)
        for layer in self.layers:
            _, keywords, output = calls[layer]
            inputs = {"query": keywords["hidden_states"].numpy()} | self.meaning(given, keywords)
            yield Found(file, self.loader(folder, layer), {"layer": layer}, inputs, output)

    def loader(self, folder: Path, layer: int) -> Callable[..., Any]:
        return lambda package, **more: package.load_pretrained(folder, layer, **more)

    def type_name(self) -> str:
        return "meta_llama"

    def stated(self) -> dict[str, Any]:
        """What `params.json` states, and the type that it does not."""
        settings = self.settings()
        params = {own: getattr(settings, name, None) for name, own in PARAMS.items()}
        params |= {"head_dim": settings.head_dim, "norm_eps": settings.rms_norm_eps, "vocab_size": -1}
        rope = settings.rope_parameters
        params["rope_theta"] = rope["rope_theta"]
        if rope["rope_type"] == "llama3":
            params |= {"use_scaled_rope": True, "rope_scaling_factor": rope["factor"]}
            params |= {name: rope[name] for name in ("low_freq_factor", "high_freq_factor")}
            params["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
        return {"model_type": "meta_llama"} | {name: x for name, x in params.items() if x is not None}


def neighbours(w: np.ndarray, heads: int) -> np.ndarray:
    """Rows of heads whose pairs are half a head apart, in the order in which they are neighbours."""
    out = np.empty_like(w)
    width = len(w) // heads
    for head in range(heads):
        for pair in range(width // 2):
            out[head * width + 2 * pair] = w[head * width + pair]
            out[head * width + 2 * pair + 1] = w[head * width + pair + width // 2]
    return out


PEERS = {
    "plain": OwnFiles("LlamaForCausalLM", SMALL | {"head_dim": 6}, AT),
    "longer": OwnFiles("LlamaForCausalLM", scaled(**LLAMA3), AT, layers=(1,)),
    "a window": OwnFiles("MistralForCausalLM", SMALL | {"head_dim": 6, "sliding_window": 3}, AT, layers=(1,)),
}
REFUSED: dict[str, Any] = {}
