"""Models of `transformers` by their type alone: sizes, modules and masks are found in the installed library.

A family's own module here says what is special to it. For every other type that a layout names, the model is made of
`SIZES` and of what `TINY` adds, and its attention is where its file has the keys of the layout.
"""

import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch

import attn_np
from attn_np.contract import Config
from attn_np.contract._decode import reads_cache
from attn_np.weights import layouts
from attn_np.weights._pretrained import layout_of_model_type
from attn_np.weights._text_models import PREFIXES as TEXT_PREFIXES
from attn_np.weights._text_models import TEXT_MODELS
from attn_np.weights.layouts import Layout, Table
from attn_np.weights.layouts._base import as_tuple
from parity_tests.peers import Arrays, Found, Model, Way, modules, shared_keys, tokens, weight_file
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
LAYERS_OF = ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers")
HEAD_DIM, WINDOW = 8, 3
MAMBA = {"mamba_n_heads": 6, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1, "mamba_expand": 2}
DELTA = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 4, "linear_value_head_dim": 6,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
SOUND = {
    "conv_dim": [6, 6], "conv_stride": [4, 4], "conv_kernel": [5, 5], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "conv_pos_kernel_size": 3,
}  # fmt: skip
SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 1]}}
# The layers that are compared, where not every layer is one of ours; and the parts that a type has.
LAYERS = {
    "albert": (0,),
    "granitemoehybrid": (0,),
    "bamba": (0,),
    "nemotron_h": (0,),
    "olmo_hybrid": (1,),
    "jamba": (1,),
    **dict.fromkeys(("gemma3n", "gemma3n_text", "gemma4", "gemma4_text"), (0, 1, 2, 3)),
}
KEY = {"umt5": "encoder_hidden_states"}
# Types that the library has only inside of others.
INSIDE = ("emu3_text_model",)
# Types with a part that a further library has; their text models are compared by themselves.
UNBUILT = ("gemma3n",)
PARTS = {
    "trocr": ("decoder", "cross"),
    "clip_text_model": ("text",),
    "clip_vision_model": ("vision",),
    "siglip_vision_model": ("vision",),
    "siglip2_vision_model": ("vision",),
    "chinese_clip_vision_model": ("vision",),
}
# Fields of the Config that a caller must give.
FIELDS: dict[str, dict[str, Any]] = {"paligemma": {"causal": False}}


def no_bias_apart(model: Any) -> None:
    """The last layer's bias is added outside of the module of attention."""
    model.gpt_neox_japanese.layers[-1].attention.dense_bias.zero_()


# Models of a type beside the one of its own name, for tables that this does not need: by name the layout and the type.
OTHER_CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "glm4_moe, no norms": ("glm4_moe", "glm4_moe", {"use_qk_norm": False}),
    "granitemoehybrid, rotated": ("granite", "granitemoehybrid", {"position_embedding_type": "rope"}),
    "olmo_hybrid, not rotated": ("olmo2", "olmo_hybrid", {"rope_theta": None}),
    "opt, no biases": ("opt", "opt", {"enable_bias": False}),
}
PREPARE = {"gpt_neox_japanese": no_bias_apart}
LOCAL, WHOLE = ["sliding_attention"], ["full_attention"]
# Four layers, the last two of which share the keys of the first two.
SHARING = {
    "num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": 2 * (LOCAL + WHOLE),
    "hidden_size_per_layer_input": 3, "vocab_size_per_layer_input": 23,
}  # fmt: skip
GEMMA_3N = {"activation_sparsity_pattern": [0.0] * 4, "laurel_rank": 3, "altup_num_inputs": 2}
GEMMA_4 = {"attention_k_eq_v": True, "global_head_dim": 12, "num_global_key_value_heads": 1}
# What a type needs beside these, or instead.
TINY: dict[str, dict[str, Any]] = {
    "helium": {"head_dim": 6},
    "gemma3n_text": SHARING | GEMMA_3N | {"intermediate_size": [5] * 4},
    "gemma4_text": SHARING | GEMMA_4,
    "gemma4_unified_text": GEMMA_4 | {"layer_types": LOCAL + WHOLE},
    "ministral": {"head_dim": HEAD_DIM, "layer_types": LOCAL + WHOLE},
    "exaone4": {"layer_types": LOCAL + WHOLE},
    "exaone_moe": {"layer_types": LOCAL + WHOLE},
    "kolibri1": {"layer_types": LOCAL + WHOLE},
    "mellum": {"layer_types": LOCAL + WHOLE},
    "flint": {"layer_types": LOCAL + WHOLE},
    "afmoe": {"layer_types": LOCAL + WHOLE},
    "glm4_moe": {"use_qk_norm": True, "head_dim": HEAD_DIM},
    "deepseek_v2": {"qk_nope_head_dim": 4, "kv_lora_rank": 8, "v_head_dim": 6},
    "granitemoehybrid": MAMBA | {"layer_types": ["full_attention", "linear_attention"]},
    "bamba": MAMBA | {"attn_layer_indices": [0], "hidden_size": 32, "mamba_n_heads": 8},
    "falcon_h1": MAMBA | {"mamba_d_ssm": 48, "key_multiplier": 0.7},
    "lfm2_moe": {"layer_types": ["full_attention", "full_attention"]},
    "modernbert-decoder": {"layer_types": LOCAL + WHOLE, "local_attention": 6},
    "internlm3": {"attention_bias": False},
    "nemotron_h": MAMBA | {"attention_bias": False, "layers_block_type": ["full_attention", "mlp"]},
    "olmo_hybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": DELTA,
    "cohere2_moe": {"layer_types": LOCAL + WHOLE, "mlp_layer_types": ["sparse", "dense"]},
    "cohere2": {"head_dim": 6},
    "persimmon": {"hidden_size": 32},
    "janus_vqgan": {"base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1, "embed_dim": 4},
    "audio-spectrogram-transformer": {"max_length": 12, "num_mel_bins": 8, "frequency_stride": 2, "time_stride": 2},
    **dict.fromkeys(("wav2vec2", "hubert", "unispeech", "unispeech-sat", "data2vec-audio", "sew"), SOUND),
    "vivit": {"video_size": [2, 8, 8], "tubelet_size": [1, 2, 2], "num_frames": 2},
    "qwen3_vl_moe_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}},
    **dict.fromkeys(("glm4v_text", "glm_ocr_text"), SECTIONS),
    "paddleocr_vl_text": {"rope_parameters": SECTIONS["rope_parameters"] | {"mrope_section": [2, 1, 1]}},
    "emu3_vqgan": {"base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1, "attn_resolutions": []},
    "emu3": {"vocabulary_map": {"<image>": 5}},
    "albert": {"num_hidden_layers": 1},
    "yolos": {"image_size": [8, 8]},
    "trocr": {"cross_attention_hidden_size": 24},
    "xmod": {"default_language": "en_XX"},
    "big_bird": {"attention_type": "original_full"},
    "granite_docling_vision": {"out_hidden_size": 24},
    "vibevoice_acoustic_tokenizer": {"num_filters": 4},
    "vibevoice_acoustic_tokenizer_encoder": {"num_filters": 4},
    # Types that no layout names.
    "cohere_compass_text": {
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in LOCAL + WHOLE}
    },
    "cosmos3_edge_text": {"rope_parameters": SECTIONS["rope_parameters"] | {"mrope_section": [2, 1, 1]}},
    "qwen2_5_omni_text": SECTIONS,
    "esmc": {"num_key_value_heads": 4},
    "reformer": {"is_decoder": True, "axial_pos_embds_dim": [8, 16], "axial_pos_shape": [4, 2]},
    "zaya": {"num_experts_per_tok": 1},
    "glm5_next_text": {"qk_rope_head_dim": 0, "qk_nope_head_dim": 8},
}
AUTO = "transformers.models.auto.modeling_auto"
MAPPINGS = tuple(
    f"MODEL{kind}"
    for kind in ("_FOR_MULTIMODAL_LM", "_FOR_CAUSAL_LM", "_FOR_SEQ_TO_SEQ_CAUSAL_LM", "_FOR_MASKED_LM", "")
)
ENCODER_DECODERS = ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM", "MODEL", "MODEL_FOR_CAUSAL_LM")


def class_name(model_type: str, mappings: tuple[str, ...] = MAPPINGS) -> str | None:
    """The name of the library's class for a type: the first that a mapping has."""
    auto = importlib.import_module(AUTO)
    for mapping in mappings:
        name = getattr(auto, f"{mapping}_MAPPING_NAMES").get(model_type)
        if name is not None:
            return name if isinstance(name, str) else name[0]
    return None


def tiny(model_type: str, more: Mapping[str, Any] | None = None) -> Any:
    """A small config of a type."""
    fields = small_fields(model_type) | dict(more or {})
    return importlib.import_module("transformers").CONFIG_MAPPING[model_type](**fields)


def small_fields(model_type: str, sizes: Mapping[str, Any] = SIZES) -> dict[str, Any]:
    """The fields of a small config of a type, and of the models in it."""
    kind = importlib.import_module("transformers").CONFIG_MAPPING[model_type]
    aliases, default = getattr(kind, "attribute_map", {}) or {}, kind().to_dict()
    fields = {name: as_many(name, x, default[name]) for name, x in sizes.items() if name in default}
    fields |= {own: sizes[name] for name, own in aliases.items() if name in sizes and own not in fields}
    count = next((default[name] for name in LAYERS_OF if isinstance(default.get(name), int)), 0)
    fields |= {name: two_of(x) for name, x in default.items() if isinstance(x, list) and len(x) == count > 2}
    if isinstance(default.get("head_dim"), int) and "qk_rope_head_dim" not in default:
        fields["head_dim"] = HEAD_DIM
    if isinstance(default.get("sliding_window"), int):
        fields["sliding_window"] = WINDOW
    if default.get("attention_bias") is False:  # which draws the biases as well
        fields["attention_bias"] = True
    if "kv_lora_rank" in default:
        fields["num_key_value_heads"] = 4
    if any("expert" in name for name in default):
        fields["experts_implementation"] = "eager"
    for name, x in default.items():
        if isinstance(x, dict) and x.get("model_type") in importlib.import_module("transformers").CONFIG_MAPPING:
            fields[name] = {"model_type": x["model_type"]} | small_fields(x["model_type"], sizes)
        elif isinstance(x, dict) and name.endswith("_config") and sizes.keys() & x.keys():
            fields[name] = {key: as_many(key, size, x[key]) for key, size in sizes.items() if key in x}
        if name in fields and isinstance(fields[name], dict) and "experts_implementation" in fields[name]:
            fields["experts_implementation"] = "eager"
    return fields | TINY.get(model_type, {})


def two_of(entries: list[Any]) -> list[Any]:
    """What a config says of each of its layers, for two of them: two that differ, if any do."""
    return [entries[0], next((x for x in entries if x != entries[0]), entries[0])]


def as_many(name: str, x: Any, default: Any) -> Any:
    """A size as often as a config has it: once, or in a list for each stage or axis."""
    listed = isinstance(default, list | tuple) and not isinstance(x, list) and not name.endswith("_id")
    return [x] * len(default) if listed else x


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

    def type_name(self) -> str:
        return self.model_type

    def settings(self) -> Any:
        return tiny(self.model_type, self.config)

    def found(self, folder: Path) -> Iterator[Found]:
        """Each layer that is compared, in each way that the model can be called."""
        model, given = self.model(), self.given(np.random.default_rng(5))
        if not any(folder.iterdir()):  # else it is there from another layout
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
            save = None if self.fields else {"layer": layer, "part": self.part}
            yield Found(weight_file(folder), self.loader(folder, layer), save, inputs, whole[layer][0][2], ways)

    def layout(self) -> Layout:
        return layouts.get(layout_of_model_type()[self.text_type()])

    def text_type(self) -> str:
        """The type of the text model, of a model that sees or hears as well."""
        if self.model_type not in TEXT_MODELS:
            return self.model_type
        return self.settings().text_config.model_type

    def inputs(self, given: Mapping[str, torch.Tensor], call: tuple[Any, Any, np.ndarray], config: Config) -> Arrays:
        """The arguments of our layer that mean one call of the library's module."""
        positional, keywords, _ = call
        meaning = all_keys if self.part == "vision" else self.meaning
        inputs = {"query": query_of(positional, keywords).numpy()} | meaning(given, keywords)
        if "mask" in inputs and len(config.arguments()["mask"].axes.split()) == 2:  # a layer with a state
            inputs["mask"] = inputs["mask"][:, 0, 0]
        inputs |= shared_keys(config, keywords)
        return inputs | ({} if self.key is None else {"key": keywords[self.key].numpy()})

    def others(self, model: Any, given: dict[str, torch.Tensor], places: Any, held: Any) -> Iterator[tuple[str, Any]]:
        """By the name of a way: what the model was called with, and what each layer got and gave."""
        if "attention_mask" not in given or self.part is not None:
            return
        left = {"attention_mask": given["attention_mask"].flip(1)}
        yield "filled up at the left", ([given | left], called(model, places, [given | left]))
        if not any(layer.config.cache_axes() for layer in held.values()):
            return
        ids = given["input_ids"]
        yield "in pieces", ([{"input_ids": ids}], called(model, places, in_pieces(model, ids), cached=True))
        if any(getattr(layer.config, "rope_base", None) for layer in held.values()):
            apart = {
                "input_ids": ids,
                "position_ids": torch.tensor([[0, 1, 4, 5, 9, 11, 12], [3, 4, 5, 8, 13, 20, 21]]),
            }
            # Without a mask the library takes a jump of positions for another sequence.
            apart["attention_mask"] = torch.ones_like(ids)
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
            if held.config.cache_axes() and not reads_cache(held.config):
                yield Way(name, {"query": query}, output, tuple(call[2].shape[1] for call in recorded))
        elif name == "at other positions":
            if getattr(held.config, "rope_base", None):
                positions = given[0]["position_ids"].numpy()
                if getattr(held.config, "rope_sections", None):  # on each axis the same
                    positions = np.stack([positions] * 3)
                inputs = {"query": query, "positions": positions} | shared_keys(held.config, recorded[0][1])
                yield Way(name, inputs, output, fields={"max_positions": 64})
        else:
            inputs = self.inputs(given[0], recorded[0], held.config)
            yield Way(name, inputs, output, rows=given[0]["attention_mask"].numpy() == 1)


def of_its_kind(model: "Derived") -> Any:
    """What a model of one input is called with: words, a picture, sound or a film."""

    def given(rng: np.random.Generator) -> dict[str, torch.Tensor]:
        kind = model.kind().main_input_name
        if kind == "input_ids":
            return tokens(rng)
        config = model.settings()
        if kind == "input_values" and hasattr(config, "conv_dim"):
            return {kind: torch.from_numpy(rng.normal(size=(2, 90)))}
        if kind == "input_values":
            return {kind: torch.from_numpy(rng.normal(size=(2, config.max_length, config.num_mel_bins)))}
        size = config.image_size[0] if isinstance(config.image_size, list) else config.image_size
        frames = (config.num_frames,) if hasattr(config, "num_frames") else ()
        return {kind: torch.from_numpy(rng.normal(size=(2, *frames, config.num_channels, size, size)))}

    return given


def read_in_both_directions(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Words that all belong to the prompt."""
    words = tokens(rng)
    return words | {"token_type_ids": torch.zeros_like(words["input_ids"])}


def patches(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Two texts, and two pictures cut into sixteen patches."""
    pictures = {"pixel_values": torch.from_numpy(rng.normal(size=(2, 16, 12)))}
    pictures["pixel_attention_mask"] = torch.ones(2, 16, dtype=torch.int64)
    return tokens(rng) | pictures | {"spatial_shapes": torch.tensor([[4, 4], [4, 4]])}


def pictures(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Two pictures."""
    return {"pixel_values": torch.from_numpy(rng.normal(size=(2, 3, 8, 8)))}


def patches_alone(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Two pictures cut into patches."""
    return {name: x for name, x in patches(rng).items() if name not in tokens(rng)}


LONE_TOWERS = ("clip_vision_model", "siglip_vision_model", "chinese_clip_vision_model")
GIVEN: dict[str, Any] = {
    "paligemma": read_in_both_directions,
    "siglip2": patches,
    "siglip2_vision_model": patches_alone,
    "clip_text_model": tokens,
    **dict.fromkeys(LONE_TOWERS, pictures),
}


def of_towers(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Two texts, the second filled up, and two pictures."""
    return tokens(rng) | {"pixel_values": torch.from_numpy(rng.normal(size=(2, 3, 8, 8)))}


def written_beside(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """A text that is written, and what a model without an encoder is given of what another has read."""
    return tokens(rng) | {"encoder_hidden_states": torch.from_numpy(rng.normal(size=(2, 5, 24)))}


def in_pieces(model: Any, ids: torch.Tensor) -> list[dict[str, torch.Tensor]]:
    """A sequence in three pieces, with their positions where a model does not count on by itself."""
    pieces = [{"input_ids": ids[:, begin:end]} for begin, end in ((0, 4), (4, 5), (5, 7))]
    if "position_ids" not in signature(model.forward).parameters:
        return pieces
    places = torch.arange(ids.shape[1]).expand(ids.shape)
    return [
        piece | {"position_ids": places[:, slice(*ends)]}
        for piece, ends in zip(pieces, ((0, 4), (4, 5), (5, 7)), strict=True)
    ]


def query_of(positional: Any, keywords: Any) -> torch.Tensor:
    return keywords["hidden_states"] if "hidden_states" in keywords else positional[0]


def called(
    model: Any, places: Mapping[int, tuple[str, str]], calls: Any, *, cached: bool = False
) -> dict[int, list[Any]]:
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
        for begin in ("", "model.", model.base_model_prefix + ".", *TEXT_PREFIXES):
            takes, gives = ((begin + start + end).rstrip(".") for end in ends_of(table))
            if takes in names and gives in names:
                return takes, gives
    # In memory some models have other names than in a file.
    own = re.compile(rf"(.*\.)?(layers?|blocks|h)\.{layer}\.(attention|self_attn|attn)")
    found = [name for name in names if own.fullmatch(name) and (not part or name.startswith(f"{part}_model."))]
    if len(found) == 1:
        return found[0], found[0]
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
        own = layout.model_types if name not in modules() else layout.kin
        for model_type in (kind for kind in own if kind not in INSIDE):
            for part in PARTS.get(model_type, layout.parts()):
                found[name, model_type + (part and f", {part}")] = of_type(model_type, part or None)
    for name, (family, model_type, config) in OTHER_CONFIGS.items():
        found[family, name] = replace(of_type(model_type), config=config)
    for model_type, text_type in TEXT_MODELS.items():
        if model_type in UNBUILT:
            continue
        name = layout_of_model_type()[text_type]
        found[name, model_type] = of_type(model_type)
    return found


def of_type(model_type: str, part: str | None = None) -> Model:
    """The model of a type, for a part of its layers."""
    model = Derived(model_type, {}, "", model_type=model_type)
    model = replace(model, fields=FIELDS.get(model_type, {}))
    model = replace(model, layers=LAYERS.get(model_type, model.layers), prepare=PREPARE.get(model_type, model.prepare))
    if part is None:
        return replace(model, given=GIVEN.get(model_type, of_its_kind(model)))
    if part in ("text", "vision"):
        return replace(model, part=part, given=GIVEN.get(model_type, of_towers))
    if model_type in PARTS:
        model = replace(model, part=part, given=written_beside)
        return model if part == "decoder" else replace(model, key="key_value_states", meaning=all_keys)
    model = replace(model, heads=ENCODER_DECODERS, part=part, given=two_texts)
    if part == "decoder":
        return replace(model, meaning=written_keys)
    return replace(model, key=KEY.get(model_type, "key_value_states")) if part == "cross" else model
