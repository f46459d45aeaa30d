"""Model types whose attention is that of a family under another name: one line each, with what differs.

`layouts.get` adds them to their family's layout, so a type is read wherever its family is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from attn_np.weights.layouts._base import Layout
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary
from attn_np.weights.layouts._kin_readers import (
    Reader,
    all_normed_share,
    attending_granite,
    attending_olmo,
    every_fourth_whole,
    latents_with_values_of_a_head,
    multiplied_keys,
    no_output_bias,
    normed,
    one_in,
    one_tower,
    output_bias_apart,
    partly_rotated,
    positions_by_type,
    scaled_by_width,
    some_attend,
    switched_window,
    towers_in_both_directions,
    typed_windows,
    windowed_cohere,
    windowed_normed,
    windows_by_type,
    windows_that_rotate,
)


@dataclass(frozen=True)
class Kin:
    """What a model type has in common with a family, and what not.

    Attributes:
        family: the name of the layout that has its tables.
        defaults: the family's fields to this type's own defaults, where a file that leaves them out means those.
        renamed: the family's fields to what this type calls them.
        only: this type's fields that must be absent or have one of these values.
        skip: this type's fields that leave attention as it is.
        prefixes: what stands before the family's keys, in files that have more there than the family's; or, with
            `{layer}` in it, the whole prefix of a layer.
        reader: reads the fields, where the family's does not.
        ignored: patterns of keys among those of attention that belong to the rest of the layer.
    """

    family: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    skip: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    reader: Reader | None = None
    ignored: tuple[str, ...] = ()

    def read(self, family: Layout, hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
        """The table and our fields of a layer of this type."""
        hf.skip(*self.skip)
        for key, values in self.only.items():
            hf.only(key, *values)
        with hf.seen_as(self.renamed, self.defaults) as fields:
            return (self.reader or family.table_and_fields)(fields, layer, part)  # type: ignore[misc]


def with_kin(name: str, family: Layout) -> Layout:
    """A family's layout with the types that are its kin."""
    kin = {kind: one for kind, one in KIN.items() if one.family == name}
    if not kin:
        return family

    def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
        one = kin.get(hf.model_type())
        if one is None:
            return family.table_and_fields(hf, layer, part)  # type: ignore[misc]
        return one.read(family, hf, layer, part)

    return replace(
        family,
        prefixes=with_prefixes(family, [start for one in kin.values() for start in one.prefixes]),
        ignored=(*family.ignored, *(key for one in kin.values() for key in one.ignored)),
        model_types=(*family.model_types, *kin),
        kin=tuple(kin),
        table_and_fields=table_and_fields,
    )


def with_prefixes(family: Layout, starts: list[str]) -> tuple[str, ...] | Mapping[str, tuple[str, ...]]:
    """A family's prefixes, and its first ones after what stands before them in files of its kin."""
    if isinstance(family.prefixes, Mapping):
        return {
            part: (*own, *(start if "{" in start else start + own[-1] for start in starts))
            for part, own in family.prefixes.items()
        }
    return (*family.prefixes, *(start if "{" in start else start + family.prefixes[0] for start in starts))


LLAMA3_OF_CWM = {
    "rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_theta": 1e6,
}  # fmt: skip
LLAMA3_OF_APERTUS = LLAMA3_OF_CWM | {"factor": 8.0, "rope_theta": 12e6}
ROC = (
    "concat_input", "enable_pronunciation", "enable_shape", "pronunciation_embed_dim", "pronunciation_vocab_size",
    "shape_embed_dim", "shape_vocab_size",
)  # fmt: skip
XMOD = (
    "adapter_layer_norm", "adapter_reduction_factor", "adapter_reuse_layer_norm", "languages", "ln_before_adapter",
    "pre_norm", "default_language",
)  # fmt: skip
FALCON_H1 = (
    "attention_in_multiplier", "attention_out_multiplier", "embedding_multiplier", "lm_head_multiplier",
    "num_logits_to_keep", "projectors_bias", "time_step_limit",
)  # fmt: skip
XGLM = {"hidden_size": "d_model", "num_attention_heads": "attention_heads", "num_hidden_layers": "num_layers"}
OLMO_HYBRID = tuple(
    f"linear_{name}"
    for name in (
        "num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "a_log_min", "a_log_max", "dt_min",
        "dt_max", "dt_init_floor", "conv_kernel_dim", "allow_neg_eigval",
    )
)  # fmt: skip
JAMBA = (
    "use_associative_scan", "expert_layer_offset", "expert_layer_period", "use_mamba_kernels", "use_mambapy",
    "num_logits_to_keep",
)  # fmt: skip
MARKUP = (
    "max_xpath_tag_unit_embeddings", "max_xpath_subs_unit_embeddings", "tag_pad_id", "subs_pad_id",
    "xpath_unit_hidden_size", "max_depth",
)  # fmt: skip
CLIPSEG = (
    "conditional_layer", "decoder_attention_dropout", "decoder_hidden_act", "decoder_intermediate_size",
    "decoder_num_attention_heads", "extract_layers", "reduce_dim", "use_complex_transposed_convolution",
)  # fmt: skip
SWITCH = (
    "add_cross_attention", "add_router_probs", "encoder_sparse_step", "expert_capacity", "num_sparse_decoder_layers",
    "num_sparse_encoder_layers",
)  # fmt: skip
MASKED = (
    "decoder_hidden_size", "decoder_intermediate_size", "decoder_num_attention_heads", "decoder_num_hidden_layers",
    "mask_ratio", "norm_pix_loss",
)  # fmt: skip
DINO = (
    "apply_layernorm", "drop_path_rate", "layerscale_value", "out_features", "out_indices", "reshape_hidden_states",
    "stage_names", "use_mask_token", "use_swiglu_ffn", "num_register_tokens",
)  # fmt: skip
YOLOS = (
    "num_detection_tokens", "use_mid_position_embeddings", "auxiliary_loss", "class_cost", "bbox_cost", "giou_cost",
    "bbox_loss_coefficient", "giou_loss_coefficient", "eos_coefficient",
)  # fmt: skip
TOWER = "encoder.layers.{layer}.self_attn."
SIGHT = ("image_size", "patch_size", "num_channels", "num_patches", "projection_dim", "vision_use_head")
TABLES = (
    "aggregation_loss_weight", "aggregation_temperature", "allow_empty_column_selection", "answer_loss_importance",
    "average_approximation_function", "average_logits_per_cell", "disable_per_token_loss",
    "init_cell_selection_weights_to_zero", "max_num_columns", "max_num_rows", "num_aggregation_labels",
    "positive_label_weight", "reset_position_index_per_cell", "select_one_column", "type_vocab_sizes",
    "use_gumbel_for_aggregation", "use_gumbel_for_cells", "use_normalized_answer_loss", "aggregation_labels",
    "no_aggregation_label_index", "use_answer_as_supervision", "cell_selection_preference",
)  # fmt: skip
GRANITE_MOE = ("shared_intermediate_size",)
BIDIRECTIONAL = {"use_bidirectional_attention": (False,)}

KIN: dict[str, Kin] = {
    # Llama's
    "aria_text": Kin("llama"),
    "gemma": Kin("llama", {"head_dim": 256, "num_key_value_heads": 16}, only=BIDIRECTIONAL),
    "jais2": Kin("llama", {"attention_bias": True, "num_key_value_heads": 26}),
    "nemotron": Kin("llama", skip=("norm_eps",), reader=partly_rotated(0.5)),
    "seed_oss": Kin(
        "llama",
        {"attention_bias": True, "head_dim": 128, "num_key_value_heads": 8},
        skip=("residual_dropout",),
        reader=output_bias_apart,
    ),
    "solar_open": Kin(
        "llama",
        {"head_dim": 128, "num_key_value_heads": 8, "rope_theta": 1e6},
        reader=no_output_bias(whole_head_rotary),
    ),
    "emu3_text_model": Kin("llama", {"num_key_value_heads": 8, "rope_theta": 1e6}),
    "phi4_multimodal": Kin(
        "phi3",
        {"num_key_value_heads": 8},
        skip=("vision_config", "audio_config", "embd_layer", "img_processor", "audio_processor"),
    ),
    "qwen3_vl_moe": Kin("qwen3_vl"),
    "qwen3_vl_moe_text": Kin("qwen3_vl", {"num_key_value_heads": 16}),
    # Granite's
    "granitemoe": Kin("granite"),
    "granitemoeshared": Kin("granite", skip=GRANITE_MOE),
    "granite_docling_text": Kin("granite", {"num_key_value_heads": 4, "attention_multiplier": 0.015625}),
    # Mistral's and StarCoder 2's
    "cwm": Kin(
        "mistral",
        {"head_dim": 128, "num_key_value_heads": 8, "rope_parameters": LLAMA3_OF_CWM, "rope_theta": 1e6},
        reader=windows_by_type(every_fourth_whole, 8192),
    ),
    "ministral": Kin(
        "mistral", {"num_key_value_heads": 8}, reader=windows_by_type(lambda n: "sliding_attention", 4096)
    ),
    "phimoe": Kin(
        "starcoder2",
        {"use_bias": False, "num_key_value_heads": 8, "rope_theta": 1e6},
        {"use_bias": "attention_bias"},
        skip=("input_jitter_noise", "lm_head_bias"),
    ),
    # Qwen's
    "qwen2_moe": Kin("qwen2", {"num_key_value_heads": 16}, only={"qkv_bias": (True,)}, reader=typed_windows),
    "qwen3_moe": Kin("qwen3", {"num_key_value_heads": 4}, reader=switched_window),
    "dots1": Kin("qwen3", {"max_window_layers": 62}, reader=windowed_normed),
    "apertus": Kin(
        "qwen3", {"rope_parameters": LLAMA3_OF_APERTUS, "rope_theta": 12e6, "rms_norm_eps": 1e-5}, reader=normed
    ),
    "hy_v3": Kin(
        "qwen3",
        {"head_dim": 128, "num_key_value_heads": 8, "rope_theta": 11158840.0, "rms_norm_eps": 1e-5},
        skip=("enable_moe_fp32_combine",),
        reader=normed,
    ),
    "exaone4": Kin("qwen3", {"rms_norm_eps": 1e-5}, reader=windows_that_rotate(4, 4096)),
    "exaone_moe": Kin("qwen3", {"rms_norm_eps": 1e-5}, reader=windows_that_rotate(4, 4096)),
    "kolibri1": Kin(
        "qwen3",
        {"num_key_value_heads": 4, "head_dim": 128, "rms_norm_eps": 1e-6},
        reader=windows_that_rotate(5, 513, pattern_field=False),
    ),
    "mellum": Kin("qwen3", {"num_key_value_heads": 4, "head_dim": 128}, reader=positions_by_type),
    "qwen3_5_moe_text": Kin("qwen3_5", {"num_key_value_heads": 2}),
    # OLMo 2's
    "minimax_m2": Kin("olmo2", {"num_key_value_heads": 8, "head_dim": 128, "rope_theta": 5e6}, reader=all_normed_share),
    "olmo_hybrid": Kin("olmo2", skip=OLMO_HYBRID, reader=attending_olmo),
    # Layers of hybrids that attend
    "jamba": Kin(
        "llama", {"num_key_value_heads": 8}, skip=JAMBA, reader=one_in("attn_layer_period", "attn_layer_offset", (8, 4))
    ),
    "bamba": Kin(
        "llama",
        {"num_key_value_heads": 8},
        skip=("num_logits_to_keep", "time_step_limit", "z_loss_coefficient"),
        reader=some_attend,
    ),
    "granitemoehybrid": Kin("granite", skip=(*GRANITE_MOE, "time_step_limit"), reader=attending_granite),
    "falcon_h1": Kin("granite", {"num_key_value_heads": 8}, skip=FALCON_H1, reader=multiplied_keys),
    "granitemoe_swa": Kin("granite_swa", {"num_key_value_heads": None}),
    "lfm2_moe": Kin("lfm2"),
    # Cohere's: neighbouring dimensions are rotated
    "ernie4_5": Kin("cohere", {"head_dim": 128, "num_key_value_heads": 2}, {"attention_bias": "use_bias"}),
    "ernie4_5_moe": Kin("cohere", {"num_key_value_heads": 4}, {"attention_bias": "use_bias"}),
    "helium": Kin(
        "cohere",
        {"head_dim": 128, "num_key_value_heads": 20, "rope_theta": 100000.0},
        reader=no_output_bias(whole_head_rotary, rope_layout="interleaved"),
    ),
    "cohere2_moe": Kin("cohere2", {"num_key_value_heads": None, "head_dim": 128}, reader=windowed_cohere),
    # Gemma 2's
    "vaultgemma": Kin("gemma2"),
    # DeepSeek-V3's
    "deepseek_v2": Kin("deepseek_v3", only={"rope_interleave": (True,)}),
    "glm4_moe_lite": Kin("deepseek_v3", {"q_lora_rank": 768, "v_head_dim": 256, "qk_nope_head_dim": 192}),
    "axk1": Kin("deepseek_v3"),
    "minicpm3": Kin(
        "deepseek_v3",
        {"rope_interleave": False, "kv_lora_rank": 256, "q_lora_rank": 768, "qk_nope_head_dim": 64}
        | {"qk_rope_head_dim": 32},
        skip=("dim_model_base", "scale_depth", "scale_emb"),
        reader=latents_with_values_of_a_head,
    ),
    "youtu": Kin("deepseek_v3", skip=("embedding_initializer_range",)),
    # GPT-2's and OPT's
    "gpt-sw3": Kin("gpt2"),
    "imagegpt": Kin("gpt2"),
    "openai-gpt": Kin("gpt2", skip=("afn",)),
    "biogpt": Kin("opt", skip=("scale_embedding",), prefixes=("biogpt.layers.{layer}.self_attn.",)),
    "glm_ocr_text": Kin(
        "glm4v",
        {"num_key_value_heads": 8, "max_position_embeddings": 131072, "attention_bias": False},
        only={"attention_bias": (False,)},
    ),
    "xglm": Kin("opt", renamed=XGLM, only={"add_cross_attention": (False,)}, skip=("num_layers", "scale_embedding")),
    "internlm3": Kin("llama", {"num_key_value_heads": 2, "head_dim": 128}),
    "iquestcoder": Kin("llama", {"num_key_value_heads": 8, "head_dim": 128}),
    "hyperclovax": Kin("granite", skip=("use_post_norm",), reader=scaled_by_width),
    # BERT's
    "bert-generation": Kin("bert"),
    "data2vec-text": Kin("bert", prefixes=("data2vec_text.",)),
    "ernie": Kin("bert", skip=("task_type_vocab_size", "use_task_id"), prefixes=("ernie.",)),
    "rembert": Kin("bert", skip=("input_embedding_size", "output_embedding_size"), prefixes=("rembert.",)),
    "roc_bert": Kin("bert", skip=ROC, prefixes=("roc_bert.",)),
    "megatron-bert": Kin("bert", ignored=("attention.ln.*",)),
    "roberta-prelayernorm": Kin("bert", prefixes=("roberta_prelayernorm.",), ignored=("attention.LayerNorm.*",)),
    "xlm-roberta-xl": Kin("bert", ignored=("attention.self_attn_layer_norm.*",)),
    "xmod": Kin("bert", skip=XMOD),
    "big_bird": Kin(
        "bert",
        only={"attention_type": ("original_full",), "use_bias": (True,)},
        skip=("block_size", "num_random_blocks", "rescale_embeddings"),
    ),
    "layoutlm": Kin("bert", skip=("max_2d_position_embeddings",), prefixes=("layoutlm.",)),
    "markuplm": Kin("bert", skip=MARKUP, prefixes=("markuplm.",)),
    "splinter": Kin("bert", skip=("question_token_id",), prefixes=("splinter.",)),
    "tapas": Kin("bert", skip=TABLES, prefixes=("tapas.",)),
    "visual_bert": Kin(
        "bert",
        skip=("visual_embedding_dim", "bypass_transformer", "special_visual_initialize"),
        prefixes=("visual_bert.",),
    ),
    "dpr": Kin(
        "bert",
        skip=("projection_dim",),
        prefixes=tuple(f"{who}.bert_model." for who in ("question_encoder", "ctx_encoder", "span_predictor.encoder")),
    ),
    # Wav2Vec 2's
    "hubert": Kin("wav2vec2"),
    "data2vec-audio": Kin("wav2vec2"),
    "unispeech": Kin("wav2vec2"),
    "sew": Kin("wav2vec2"),
    "unispeech-sat": Kin("wav2vec2", skip=("num_clusters",)),
    "data2vec-vision": Kin("beit"),
    # XLM's, T5's and ViT's
    "flaubert": Kin("xlm"),
    "switch_transformers": Kin("t5", skip=SWITCH),
    "deit": Kin("vit", prefixes=("deit.",)),
    "vit_mae": Kin("vit", skip=MASKED, prefixes=("vit_mae.",)),
    "vit_msn": Kin("vit", prefixes=("vit_msn.",)),
    "ijepa": Kin("vit", prefixes=("ijepa.",)),
    "yolos": Kin("vit", skip=YOLOS, prefixes=("yolos.",)),
    "dinov2": Kin("vit", skip=DINO, prefixes=("dinov2.",)),
    "dinov2_with_registers": Kin("vit", skip=DINO, prefixes=("dinov2_with_registers.",)),
    "audio-spectrogram-transformer": Kin(
        "vit",
        skip=("frequency_stride", "num_mel_bins", "time_stride", "max_length"),
        prefixes=("audio_spectrogram_transformer.",),
    ),
    "pixio": Kin("vit", skip=(*DINO, "n_cls_tokens"), prefixes=("pixio.",)),
    "vivit": Kin("vit", skip=("num_frames", "tubelet_size", "video_size"), prefixes=("vivit.",)),
    # CLIP's
    "siglip": Kin("clip", reader=towers_in_both_directions),
    "siglip2": Kin("clip", reader=towers_in_both_directions),
    "metaclip_2": Kin("clip"),
    "owlvit": Kin("clip"),
    "owlv2": Kin("clip"),
    "clipseg": Kin("clip", skip=CLIPSEG),
    "clip_text_model": Kin("clip", skip=("projection_dim",), prefixes=(TOWER,), reader=one_tower("text")),
    "clip_vision_model": Kin("clip", skip=SIGHT, prefixes=(TOWER,), reader=one_tower("vision")),
    "siglip_vision_model": Kin("clip", skip=SIGHT, prefixes=(TOWER,), reader=one_tower("vision")),
    "siglip2_vision_model": Kin("clip", skip=SIGHT, prefixes=(TOWER,), reader=one_tower("vision")),
    "chinese_clip_vision_model": Kin("clip", skip=SIGHT, prefixes=(TOWER,), reader=one_tower("vision")),
    # BART's
    "trocr": Kin(
        "bart", skip=("layernorm_embedding", "use_learned_position_embeddings", "cross_attention_hidden_size")
    ),
    "blenderbot": Kin("bart"),
    "blenderbot-small": Kin("bart"),
    "marian": Kin("bart", skip=("decoder_vocab_size", "share_encoder_decoder_embeddings")),
    "mbart": Kin("bart"),
    "mvp": Kin("bart", only={"use_prompt": (False,)}, skip=("prompt_length", "prompt_mid_dim")),
    "pegasus": Kin("bart"),
    "plbart": Kin("bart"),
    "m2m_100": Kin("bart"),
}
