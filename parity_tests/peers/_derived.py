"""Models of `transformers` by their type alone: sizes, modules and masks are found in the installed library.

A family's own module here says what is special to it. For every other type that a layout names, the model is made of
`SIZES` and of what `TINY` adds, and its attention is where its file has the keys of the layout.
"""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import attn_np
from attn_np.contract import Config
from attn_np.weights import layouts
from attn_np.weights.layouts import Layout, Table
from attn_np.weights.layouts._base import as_tuple
from parity_tests.peers import Arrays, Found, Model, Way, names, tokens, weight_file
from parity_tests.peers.t5 import two_texts, written_keys
from parity_tests.peers.whisper import all_keys
from parity_tests.ports.modules.in_float64 import InFloat64

# Small numbers, by the names that configs have for them; a config gets those that it knows.
SIZES: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 24, "intermediate_size": 5, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "moe_intermediate_size": 5, "shared_expert_intermediate_size": 5, "num_local_experts": 4, "num_experts": 4,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
    "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1, "shared_intermediate_size": 5,
    "kv_lora_rank": 7, "q_lora_rank": 5, "qk_nope_head_dim": 3, "qk_rope_head_dim": 6, "v_head_dim": 10,
    "first_k_dense_replace": 2, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 64, "d_model": 24,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 5, "decoder_ffn_dim": 5, "ffn_dim": 5, "num_layers": 2, "num_heads": 4, "n_layers": 2,
    "n_heads": 4, "dim": 24, "hidden_dim": 5, "d_ff": 5, "d_kv": 8, "attention_heads": 4, "word_embed_proj_dim": 24,
    "image_size": 8, "patch_size": 2, "num_channels": 3, "embedding_size": 6, "attn_layer_period": 2,
    "attn_layer_offset": 1, "hidden_size_per_layer_input": 0,
}  # fmt: skip
HEAD_DIM, WINDOW = 8, 3
MAMBA = {"mamba_n_heads": 6, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1, "mamba_expand": 2}
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4, "linear_value_head_dim": 6,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
# The layers that are compared, where not every layer is one of ours; and the parts that a type has.
LAYERS = {"granitemoehybrid": (0,), "bamba": (0,), "nemotron_h": (0,), "olmo_hybrid": (1,), "jamba": (1,)}
PARTS = {"trocr": ("decoder", "cross")}
def no_bias_apart(model: Any) -> None:
    """The last layer's bias is added outside of the module of attention."""
    model.gpt_neox_japanese.layers[-1].attention.dense_bias.zero_()


PREPARE = {"gpt_neox_japanese": no_bias_apart}
# What a type needs beside these, or instead.
TINY: dict[str, dict[str, Any]] = {
    "helium": {"head_dim": 6},
    "ministral": {"head_dim": HEAD_DIM, "layer_types": ["sliding_attention", "full_attention"]},
    "exaone4": {"layer_types": ["sliding_attention", "full_attention"]},
    "exaone_moe": {"layer_types": ["sliding_attention", "full_attention"]},
    "kolibri1": {"layer_types": ["sliding_attention", "full_attention"]},
    "mellum": {"layer_types": ["sliding_attention", "full_attention"]},
    "flint": {"layer_types": ["sliding_attention", "full_attention"]},
    "afmoe": {"layer_types": ["sliding_attention", "full_attention"]},
    "glm4_moe": {"use_qk_norm": True, "head_dim": HEAD_DIM},
    "deepseek_v2": {"qk_nope_head_dim": 4, "kv_lora_rank": 8, "v_head_dim": 6},
    "granitemoehybrid": MAMBA | {"layer_types": ["full_attention", "linear_attention"]},
    "bamba": MAMBA | {"attn_layer_indices": [0], "hidden_size": 32, "mamba_n_heads": 8},
    "falcon_h1": MAMBA | {"mamba_d_ssm": 48, "key_multiplier": 0.7},
    "lfm2_moe": {"layer_types": ["full_attention", "full_attention"]},
    "modernbert-decoder": {"layer_types": ["sliding_attention", "full_attention"], "local_attention": 6},
    "nemotron_h": MAMBA | {"layers_block_type": ["full_attention", "mlp"]},
    "olmo_hybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": DELTA,
    "cohere2_moe": {"layer_types": ["sliding_attention", "full_attention"], "first_k_dense_replace": 0},
    "trocr": {"cross_attention_hidden_size": 24},
    "xmod": {"default_language": "en_XX"},
    "big_bird": {"attention_type": "original_full"},
}
AUTO = "transformers.models.auto.modeling_auto"
MAPPINGS = ("MODEL_FOR_CAUSAL_LM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM", "MODEL_FOR_MASKED_LM", "MODEL")
ENCODER_DECODERS = ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM", "MODEL", "MODEL_FOR_CAUSAL_LM")


def class_name(model_type: str, mappings: tuple[str, ...] = MAPPINGS) -> str | None:
    """The name of the library's class for a type: the first that a mapping has."""
    auto = importlib.import_module(AUTO)
    for mapping in mappings:
        name = getattr(auto, f"{mapping}_MAPPING_NAMES").get(model_type)
        if name is not None:
            return name if isinstance(name, str) else name[0]
    return None


def tiny(model_type: str) -> Any:
    """A small config of a type."""
    kind = importlib.import_module("transformers").CONFIG_MAPPING[model_type]
    more, aliases = TINY.get(model_type, {}), getattr(kind, "attribute_map", {}) or {}
    default = kind().to_dict()
    fields = {name: x for name, x in SIZES.items() if name in default}
    fields |= {own: SIZES[name] for name, own in aliases.items() if name in SIZES and own not in fields}
    if isinstance(default.get("head_dim"), int) and "qk_rope_head_dim" not in default:
        fields["head_dim"] = HEAD_DIM
    if isinstance(default.get("sliding_window"), int):
        fields["sliding_window"] = WINDOW
    if "kv_lora_rank" in default:
        fields["num_key_value_heads"] = 4
    if any("expert" in name for name in default):
        fields["experts_implementation"] = "eager"
    return kind(**fields | more)


@dataclass(frozen=True)
class Derived(Model):
    """A model of a type, of which only the type is said.

    Attributes:
        model_type: the type.
        heads: mappings of types to classes, the first of which that has the type gives the class.
    """

    model_type: str = ""
    heads: tuple[str, ...] = MAPPINGS

    def kind(self) -> Any:
        return getattr(importlib.import_module("transformers"), str(class_name(self.model_type, self.heads)))

    def settings(self) -> Any:
        return tiny(self.model_type)

    def found(self, folder: Path) -> Iterator[Found]:
        """Each layer that is compared, in each way that the model can be called."""
        model, given = self.model(), self.given(np.random.default_rng(5))
        model.save_pretrained(folder, max_shard_size=self.shards)
        held = {layer: self.loader(folder, layer)(attn_np) for layer in self.layers}
        places = {layer: modules_of(model, self.layout(), held[layer].config, layer, self.part or "") for layer in held}
        whole = called(model, places, [given])
        others = dict(self.others(model, given, places, held))
        for layer in self.layers:
            if layer not in whole:
                continue
            ways = tuple(way for name, calls in others.items() for way in self.way(name, calls, layer, held[layer]))
            inputs = self.inputs(given, whole[layer][0], held[layer].config)
            save = {"layer": layer, "part": self.part}
            yield Found(weight_file(folder), self.loader(folder, layer), save, inputs, whole[layer][0][2], ways)

    def layout(self) -> Layout:
        from attn_np.weights._pretrained import layout_of_model_type

        return layouts.get(layout_of_model_type()[self.model_type])

    def inputs(self, given: Mapping[str, torch.Tensor], call: tuple[Any, Any, np.ndarray], config: Config) -> Arrays:
        """The arguments of our layer that mean one call of the library's module."""
        positional, keywords, _ = call
        inputs = {"query": query_of(positional, keywords).numpy()} | self.meaning(given, keywords)
        if "mask" in inputs and len(config.arguments()["mask"].axes.split()) == 2:  # a layer with a state
            inputs["mask"] = inputs["mask"][:, 0, 0]
        return inputs | ({"key": keywords[self.key].numpy()} if self.key is not None else {})

    def others(self, model: Any, given: Mapping[str, torch.Tensor], places: Any, held: Any) -> Iterator[tuple[str, Any]]:
        """By the name of a way: what the model was called with, and what each layer got and gave."""
        if "attention_mask" not in given or self.part is not None:
            return
        left = {"attention_mask": given["attention_mask"].flip(1)}
        yield "filled up at the left", ([given | left], called(model, places, [given | left]))
        if not any(layer.config.cache_axes() for layer in held.values()):
            return
        ids = given["input_ids"]
        yield "in pieces", ([{"input_ids": ids}], called(model, places, in_pieces(ids), cached=True))
        if any(getattr(layer.config, "rope_base", None) for layer in held.values()):
            apart = {"input_ids": ids, "position_ids": torch.tensor([[0, 1, 4, 5, 9, 11, 12], [3, 4, 5, 8, 13, 20, 21]])}
            yield "at other positions", ([apart], called(model, places, [apart]))

    def way(self, name: str, calls: Any, layer: int, held: Any) -> Iterator[Way]:
        """A layer's call in a way, if it has it."""
        given, per_layer = calls
        if layer not in per_layer:
            return
        recorded = per_layer[layer]
        query = np.concatenate([query_of(*call[:2]).numpy() for call in recorded], axis=1)
        output = np.concatenate([call[2] for call in recorded], axis=1)
        if name == "in pieces":
            if held.config.cache_axes():
                yield Way(name, {"query": query}, output, tuple(call[2].shape[1] for call in recorded))
        elif name == "at other positions":
            if getattr(held.config, "rope_base", None):
                positions = given[0]["position_ids"].numpy()
                yield Way(name, {"query": query, "positions": positions}, output, fields={"max_positions": 64})
        else:
            inputs = self.inputs(given[0], recorded[0], held.config)
            yield Way(name, inputs, output, rows=given[0]["attention_mask"].numpy() == 1)


def written_beside(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """A text that is written, and what a model without an encoder is given of what another has read."""
    return tokens(rng) | {"encoder_hidden_states": torch.from_numpy(rng.normal(size=(2, 5, 24)))}


def in_pieces(ids: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    """A sequence in three pieces."""
    return [{"input_ids": ids[:, begin:end]} for begin, end in ((0, 4), (4, 5), (5, 7))]


def query_of(positional: Any, keywords: Any) -> torch.Tensor:
    return keywords["hidden_states"] if "hidden_states" in keywords else positional[0]


def called(model: Any, places: Mapping[int, tuple[str, str]], calls: Any, *, cached: bool = False) -> dict[int, list[Any]]:
    """What each layer's attention got and gave in some calls of a model, one after the other with one cache."""
    got: dict[int, list[Any]] = {layer: [] for layer in places}
    gave: dict[int, list[np.ndarray]] = {layer: [] for layer in places}
    handles = []
    for layer, (takes, gives) in places.items():

        def before(_: Any, args: Any, kwargs: Any, layer: int = layer) -> None:
            got[layer].append((args, kwargs))

        def after(_: Any, args: Any, output: Any, layer: int = layer) -> None:
            gave[layer].append((output[0] if isinstance(output, tuple) else output).numpy())

        handles.append(model.get_submodule(takes).register_forward_pre_hook(before, with_kwargs=True))
        handles.append(model.get_submodule(gives).register_forward_hook(after))
    cache = None
    with InFloat64(), torch.no_grad():
        for call in calls:
            result = model(**call, **({"past_key_values": cache, "use_cache": True} if cached else {}))
            cache = getattr(result, "past_key_values", None)
            if cached and cache is None:  # a model without a cache
                got = {layer: [] for layer in places}
                break
    for handle in handles:
        handle.remove()
    return {layer: [(*a, y) for a, y in zip(got[layer], gave[layer], strict=True)] for layer in places if got[layer]}


def modules_of(model: Any, layout: Layout, config: Any, layer: int, part: str) -> tuple[str, str]:
    """The module that gets a layer's input, and the one that gives its output: where the file has their weights."""
    table = layout.tables[str(layout.table_name_for(config))]
    names = [name for name, _ in model.named_modules()]
    for prefix in layout.prefixes_of(part):
        start = prefix.format(layer=layer)
        for begin in ("", "model.", model.base_model_prefix + "."):
            takes, gives = ((begin + start + end).rstrip(".") for end in ends_of(table))
            if takes in names and gives in names:
                return takes, gives
    raise LookupError(f"expected a module of {layout.prefixes_of(part)} in {model.__class__.__name__}, got none")


def ends_of(table: Table) -> tuple[str, str]:
    """What follows the prefix in the names of the module of attention, and of its output projection."""
    keys = {name: as_tuple(key)[0] for names, (key, _) in table.rules.items() for name in as_tuple(names)}
    query, output = keys.get("w_dq", keys["w_q"]), keys["w_o"]
    return ".".join(query.split(".")[:-2]), output.rpartition(".")[0]


@cache
def derived() -> dict[tuple[str, str], Model]:
    """A model of every type that a layout has from `_kin.py`, by the layout's name and the type."""
    found: dict[tuple[str, str], Model] = {}
    for name in layouts.names():
        layout = layouts.get(name)
        for model_type in layout.model_types if name not in names() else layout.kin:
            for part in PARTS.get(model_type, layout.parts()):
                found[name, model_type + (part and f", {part}")] = of_type(model_type, part or None)
    return found


def of_type(model_type: str, part: str | None = None) -> Model:
    """The model of a type, for a part of its layers."""
    model = Derived(model_type, {}, "", model_type=model_type)
    model = replace(model, layers=LAYERS.get(model_type, model.layers), prepare=PREPARE.get(model_type, model.prepare))
    if part is None:
        return model
    if model_type in PARTS:
        model = replace(model, part=part, given=written_beside)
        return model if part == "decoder" else replace(model, key="key_value_states", meaning=all_keys)
    model = replace(model, heads=ENCODER_DECODERS, part=part, given=two_texts)
    if part == "decoder":
        return replace(model, meaning=written_keys)
    return replace(model, key="key_value_states") if part == "cross" else model
