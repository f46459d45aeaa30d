"""Files as they are published, family by family: what a layer of theirs is here, and what is refused."""

from dataclasses import replace
from math import log
from typing import Any

import numpy as np
import pytest

from attn_np import contract
from attn_np.weights import WeightFileError
from attn_np.weights._foreign_config import table_name_and_config
from attn_np.weights._pretrained import find_layout
from attn_np.weights.layouts import gpt_neo
from attn_np.weights.layouts._hf_config import HFConfig, rotary

Fields = dict[str, Any]


def layer_of(stated: Fields, layer: int) -> contract.Config:
    """The config of a layer, every field of the file asked for."""
    file = HFConfig("config.json", stated)
    found = table_name_and_config(file, find_layout(file, None)[1], layer, "")[1]
    file.refuse_unread()
    return found


def decoder(**fields: Any) -> contract.Config:
    return contract.config("decoder", **fields)


MISTRAL: Fields = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
}
EIGHT: Fields = {"d_model": 4096, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128}
STARCODER2: Fields = {
    "architectures": ["Starcoder2ForCausalLM"],
    "model_type": "starcoder2",
    "activation_function": "gelu",
    "attention_dropout": 0.1,
    "attention_softmax_in_fp32": True,
    "embedding_dropout": 0.1,
    "hidden_size": 3072,
    "mlp_type": "default",
    "norm_epsilon": 1e-05,
    "norm_type": "layer_norm",
    "num_attention_heads": 24,
    "num_hidden_layers": 30,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16384,
    "residual_dropout": 0.1,
    "rope_theta": 1e6,
    "scale_attention_softmax_in_fp32": True,
    "scale_attn_weights": True,
    "sliding_window": 4096,
    "use_bias": True,
}
STARCODER2_LAYER = decoder(
    d_model=3072, num_heads=24, num_kv_heads=2, head_dim=128, qkv_bias=True, output_bias=True, rope_base=1e6,
    window=(4095, None),
)  # fmt: skip
QWEN2: Fields = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "attention_dropout": 0.0,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "max_window_layers": 21,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "use_sliding_window": False,
}
OURS2 = decoder(d_model=3584, num_heads=28, num_kv_heads=4, head_dim=128, qkv_bias=True, rope_base=1e6)
VISION: Fields = {"depth": 32, "embed_dim": 1280, "hidden_size": 3584, "num_heads": 16, "model_type": "qwen2_vl"}
QWEN2_VL: Fields = QWEN2 | {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "vision_token_id": 151654,
    "vision_config": VISION,
    "max_position_embeddings": 32768,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
}
TYPES = ["sliding_attention", "full_attention"]
QWEN3: Fields = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 2560,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "use_sliding_window": False,
}
OURS3: Fields = EIGHT | {"d_model": 2560, "norm": "rms", "norm_eps": 1e-5, "rope_base": 1000000}
GEMMA2: Fields = {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "attention_bias": False,
    "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0,
    "head_dim": 128,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 4608,
    "num_attention_heads": 32,
    "num_hidden_layers": 46,
    "num_key_value_heads": 16,
    "max_position_embeddings": 8192,
    "query_pre_attn_scalar": 144,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "sliding_window_size": 4096,
}
OURG: Fields = {"d_model": 4608, "num_heads": 32, "num_kv_heads": 16, "head_dim": 128, "scale": 144**-0.5}
GEMMA3: Fields = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": None,
    "head_dim": 128,
    "hidden_size": 5376,
    "num_attention_heads": 32,
    "num_hidden_layers": 62,
    "num_key_value_heads": 16,
    "max_position_embeddings": 131072,
    "query_pre_attn_scalar": 168,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "rope_theta": 1000000,
    "sliding_window": 1024,
    "sliding_window_pattern": 6,
}
BOTH3: Fields = {
    "rope_scaling": None,
    "rope_parameters": {
        "full_attention": {"factor": 8.0, "rope_theta": 1000000, "rope_type": "linear"},
        "sliding_attention": {"rope_theta": 10000, "rope_type": "default"},
    },
}
OFFSET: Fields = {"norm": "rms", "norm_offset": 1.0}
OURG3: Fields = {"d_model": 5376, "num_heads": 32, "num_kv_heads": 16, "head_dim": 128, "scale": 168**-0.5} | OFFSET
FAR: Fields = {"rope_base": 1000000, "rope_scaling": "linear", "rope_scaling_factor": 8.0}
PHI3: Fields = {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "attention_bias": False,
    "embd_pdrop": 0.0,
    "full_attn_mod": 1,
    "hidden_size": 16,
    "interpolate_factor": 1,
    "lm_head_bias": False,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "partial_rotary_factor": 0.75,
    "resid_pdrop": 0.0,
    "rope_scaling": {"long_factor": [1, 2.5, 4], "short_factor": [1, 1, 1.5], "type": "longrope"},
    "rope_theta": 10000.0,
    "sliding_window": 262144,
}
LONG: Fields = {
    "long_factor": (1, 2.5, 4),
    "short_factor": (1, 1, 1.5),
    "rope_scaling": "longrope",
    "rope_scaling_factor": 32.0,
}
OURS_PHI: Fields = {"d_model": 16, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8, "window": (262143, None)}
COHERE: Fields = {
    "architectures": ["CohereForCausalLM"],
    "model_type": "cohere",
    "attention_bias": False,
    "hidden_size": 12288,
    "layer_norm_eps": 1e-05,
    "logit_scale": 0.8333333333333334,
    "num_attention_heads": 96,
    "num_hidden_layers": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rope_theta": 75000000.0,
    "use_qk_norm": True,
}
PLUS: Fields = {"d_model": 12288, "num_heads": 96, "num_kv_heads": 8, "head_dim": 128, "rope_layout": "interleaved"}
OLMO2: Fields = {
    "architectures": ["Olmo2ForCausalLM"],
    "model_type": "olmo2",
    "attention_bias": False,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 500000,
}
OURS_OLMO: Fields = {"norm": "rms", "norm_over": "all", "norm_weight": "own", "rope_base": 500000}
RAMP = {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096}
APART = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
GPT_OSS: Fields = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "attention_bias": True,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "layer_types": TYPES,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "max_position_embeddings": 131072,
    "output_router_logits": False,
    "quantization_config": {"modules_to_not_convert": APART, "quant_method": "mxfp4"},
    "rope_scaling": RAMP | {"rope_type": "yarn", "truncate": False},
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
}
OURS_OSS: Fields = {"d_model": 2880, "num_heads": 64, "num_kv_heads": 8, "head_dim": 64, "sinks": True}
OURS_OSS |= {
    "qkv_bias": True,
    "output_bias": True,
    "rope_base": 150000,
    "rope_scaling": "yarn",
    "rope_scaling_factor": 32.0,
}
OURS_OSS |= {"original_max_positions": 4096, "beta_fast": 32.0, "beta_slow": 1.0, "yarn_truncate": False}
DEEPSEEK: Fields = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "attention_bias": False,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 163840,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rope_scaling": RAMP | {"factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "type": "yarn"},
    "rope_theta": 10000,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
}
LATENT: Fields = {"d_model": 7168, "num_heads": 128, "kv_rank": 512, "nope_dim": 128, "rope_dim": 64}
LATENT |= {"value_head_dim": 128, "causal": True, "rope_base": 10000}
RAISED: Fields = {
    "rope_scaling": "yarn",
    "rope_scaling_factor": 40,
    "original_max_positions": 4096,
    "attention_factor": 1.0,
}
RAISED |= {"beta_fast": 32.0, "beta_slow": 1.0, "scale": 192**-0.5 * (0.1 * log(40) + 1) ** 2}
DIFFLLAMA: Fields = {
    "architectures": ["DiffLlamaForCausalLM"],
    "model_type": "diffllama",
    "attention_bias": False,
    "hidden_size": 1024,
    "lambda_std_dev": 0.1,
    "num_attention_heads": 32,
    "num_hidden_layers": 9,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-06,
    "rope_theta": 500000.0,
}
HUNYUAN: Fields = {
    "architectures": ["HunYuanDenseV1ForCausalLM"],
    "model_type": "hunyuan_v1_dense",
    "attention_bias": False,
    "attention_head_dim": 128,
    "cla_share_factor": 2,
    "head_dim": 128,
    "hidden_size": 4096,
    "max_position_embeddings": 32768,
    "mlp_bias": False,
    "norm_type": "rms",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "type": "dynamic",
    },
    "rope_theta": 10000.0,
    "use_cla": False,
    "use_qk_norm": True,
    "use_rotary_pos_emb": True,
}  # fmt: skip
OURS_HUNYUAN = decoder(
    d_model=4096, num_heads=32, num_kv_heads=8, head_dim=128, norm="rms", norm_position="after_rotation",
    norm_eps=1e-5, rope_base=1e4 * 1000.0 ** (128 / 126),
)  # fmt: skip
BITNET: Fields = {
    "architectures": ["BitNetForCausalLM"],
    "model_type": "bitnet",
    "hidden_act": "relu2",
    "hidden_size": 2560,
    "max_position_embeddings": 4096,
    "num_attention_heads": 20,
    "num_hidden_layers": 30,
    "num_key_value_heads": 5,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
}
OURS_BITNET = decoder(
    d_model=2560, num_heads=20, num_kv_heads=5, head_dim=128, rope_base=5e5, context_norm="rms",
    context_norm_over="all", context_norm_weight="own", context_norm_eps=1e-5,
)  # fmt: skip
OURS_DIFF: Fields = {"d_model": 1024, "num_heads": 16, "num_kv_heads": 4, "head_dim": 32, "causal": True}
OURS_DIFF |= {"norm_weight": False, "use_bias": False}

# What a file states, the number of a layer, and what that layer is.
PUBLISHED: dict[str, tuple[Fields, int, contract.Config]] = {
    "Mistral 7B": (MISTRAL, 31, decoder(**EIGHT, window=(4095, None))),
    "Mistral 7B without a window": (
        MISTRAL | {"sliding_window": None, "rope_theta": 1e6, "head_dim": 128, "num_key_value_heads": None},
        0,
        decoder(**EIGHT | {"num_kv_heads": 32}, rope_base=1e6),
    ),
    "Mistral that says little": (
        {"model_type": "mistral", "hidden_size": 4096, "num_attention_heads": 32},
        0,
        decoder(**EIGHT, window=(4095, None)),
    ),
    "Qwen 2 7B": (QWEN2, 27, OURS2),
    "StarCoder 2": (STARCODER2, 3, STARCODER2_LAYER),
    "Hunyuan 7B": (HUNYUAN, 31, OURS_HUNYUAN),
    "Hunyuan without alpha": (
        {name: x for name, x in HUNYUAN.items() if name != "rope_scaling"},
        0,
        replace(OURS_HUNYUAN, rope_base=1e4),
    ),
    "BitNet 2B": (BITNET, 29, OURS_BITNET),
    "Qwen2-VL 7B": (QWEN2_VL, 27, replace(OURS2, rope_sections=(16, 24, 24), max_positions=32768)),
    "Qwen 2 7B, window used, below": (QWEN2 | {"use_sliding_window": True}, 20, OURS2),
    "Qwen 2 7B, window used, above": (
        QWEN2 | {"use_sliding_window": True, "sliding_window": 100},
        21,
        replace(OURS2, window=(99, None)),
    ),
    "Qwen 2 7B, window of none": (QWEN2 | {"use_sliding_window": True, "sliding_window": None}, 27, OURS2),
    "Qwen 3 4B": (QWEN3, 35, decoder(**OURS3)),
    "Qwen 3 with biases": (
        QWEN3 | {"attention_bias": True, "rms_norm_eps": None},
        0,
        decoder(**OURS3 | {"norm_eps": 1e-6}, qkv_bias=True, output_bias=True),
    ),
    "Gemma 2 27B, window": (GEMMA2, 0, decoder(**OURG, softcap=50.0, window=(4095, None))),
    "Gemma 2 27B, whole": (GEMMA2, 45, decoder(**OURG, softcap=50.0)),
    "Gemma 2 without a cap": (GEMMA2 | {"attn_logit_softcapping": None}, 1, decoder(**OURG)),
    "Gemma 2 that says little": (
        {"model_type": "gemma2", "hidden_size": 2304, "num_attention_heads": 8},
        1,
        decoder(d_model=2304, num_heads=8, num_kv_heads=4, head_dim=256, scale=1 / 16, softcap=50.0),
    ),
    "Gemma 3 27B, window": (GEMMA3, 60, decoder(**OURG3, rope_base=10000, window=(1023, None))),
    "Gemma 3 27B, whole": (GEMMA3, 59, decoder(**OURG3, **FAR)),
    "Gemma 3 27B as it is written now, window": (
        GEMMA3 | BOTH3,
        0,
        decoder(**OURG3, rope_base=10000, window=(1023, None)),
    ),
    "Gemma 3 27B as it is written now, whole": (GEMMA3 | BOTH3, 5, decoder(**OURG3, **FAR)),
    "Gemma 3 that says little, window": (
        {"model_type": "gemma3_text", "hidden_size": 2304, "num_attention_heads": 8},
        4,
        decoder(d_model=2304, num_heads=8, num_kv_heads=4, head_dim=256, scale=1 / 16, window=(4095, None), **OFFSET),
    ),
    "Gemma 3 that says little, whole": (
        {"model_type": "gemma3_text", "hidden_size": 2304, "num_attention_heads": 8},
        5,
        decoder(d_model=2304, num_heads=8, num_kv_heads=4, head_dim=256, scale=1 / 16, rope_base=1e6, **OFFSET),
    ),
    "Phi-4 mini, as small as a toy": (PHI3, 1, decoder(**OURS_PHI, **LONG, rotary_dim=6, original_max_positions=4096)),
    "Phi-3 mini 4k, as small as a toy": (
        PHI3 | {"rope_scaling": None, "partial_rotary_factor": None, "sliding_window": 2047},
        1,
        decoder(**OURS_PHI | {"window": (2046, None)}),
    ),
    "Command R+": (
        COHERE,
        63,
        decoder(**PLUS, rope_base=75000000.0, norm="layer", norm_weight="own", norm_eps=1e-5),
    ),
    "Command R": (COHERE | {"use_qk_norm": None, "rope_theta": None}, 0, decoder(**PLUS, rope_base=500000.0)),
    "OLMo 2 7B": (OLMO2, 0, decoder(**EIGHT | {"num_kv_heads": 32}, **OURS_OLMO)),
    "OLMo 2 with biases": (
        OLMO2 | {"attention_bias": True, "rms_norm_eps": None, "num_key_value_heads": None},
        0,
        decoder(**EIGHT | {"num_kv_heads": 32}, **OURS_OLMO, norm_eps=1e-5, qkv_bias=True, output_bias=True),
    ),
    "gpt-oss 20B, window": (GPT_OSS, 0, decoder(**OURS_OSS, window=(127, None))),
    "gpt-oss 20B, whole": (GPT_OSS, 1, decoder(**OURS_OSS)),
    "gpt-oss without types": (GPT_OSS | {"layer_types": None}, 0, decoder(**OURS_OSS, window=(127, None))),
    "DeepSeek-V3": (DEEPSEEK, 60, contract.config("mla", **LATENT, **RAISED, q_rank=1536)),
    "DeepSeek-V3 with biases": (
        DEEPSEEK | {"attention_bias": True},
        60,
        contract.config("mla", **LATENT, **RAISED, q_rank=1536, use_bias=True),
    ),
    "DeepSeek-V3 that rotates halves": (
        DEEPSEEK | {"rope_interleave": False},
        60,
        contract.config("mla", **LATENT, **RAISED, q_rank=1536, rope_layout="half"),
    ),
    "DeepSeek-V3 without a latent of queries": (
        DEEPSEEK | {"q_lora_rank": None, "rope_scaling": None, "rope_interleave": True},
        0,
        contract.config("mla", **LATENT),
    ),
    "DiffLlama": (
        DIFFLLAMA,
        8,
        contract.config("differential", **OURS_DIFF, rope_base=500000.0, norm_eps=1e-6, depth=9),
    ),
    "DiffLlama that says little": (
        {"model_type": "diffllama", "hidden_size": 1024, "num_attention_heads": 32, "attention_bias": True},
        0,
        contract.config("differential", **OURS_DIFF | {"num_kv_heads": 16, "use_bias": True}, rope_base=10000.0),
    ),
}

# What else a file states, and the words of the refusal.
REFUSED: dict[str, tuple[Fields, str]] = {
    "StarCoder 2 without a scale": (STARCODER2 | {"scale_attn_weights": False}, "'scale_attn_weights'"),
    "Hunyuan without norms": (HUNYUAN | {"use_qk_norm": False}, "'use_qk_norm': expected one of True"),
    "Hunyuan with layers that share keys": (HUNYUAN | {"use_cla": True}, "'use_cla': expected one of False"),
    "Mistral with types": (MISTRAL | {"layer_types": ["full_attention"] * 32}, "'layer_types'"),
    "Mistral that turns in part": (
        MISTRAL | {"partial_rotary_factor": 0.5},
        "'partial_rotary_factor': expected 1, as this family rotates whole heads, got 0.5",
    ),
    "Mistral without a past": (MISTRAL | {"sliding_window": 0}, r"expected a possible layer, got .*window"),
    "Qwen 2 with types but no window": (
        QWEN2 | {"layer_types": TYPES},
        "'sliding_window': expected a window for layer 0, with use_sliding_window, got None",
    ),
    "Qwen 2 of another type": (QWEN2 | {"layer_types": ["linear_attention"]}, "'layer_types': expected one of sliding"),
    "Qwen 2 with pairs for pictures": (
        QWEN2 | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
        "'rope_scaling.rope_type': expected one of",
    ),
    "Qwen 3 with a gate": (
        QWEN3 | {"attn_output_gate": True},
        "'attn_output_gate': expected fields with a known meaning",
    ),
    "Gemma 2 in both directions": (
        GEMMA2 | {"use_bidirectional_attention": True},
        "'use_bidirectional_attention': expected one of False",
    ),
    "Gemma 2 with a scale of nothing": (GEMMA2 | {"query_pre_attn_scalar": 0}, "expected a number above 0"),
    "Gemma 2 with two windows": (GEMMA2 | {"sliding_window_size": 512}, "'sliding_window_size': expected one of 4096"),
    "Gemma 3 in both directions": (
        GEMMA3 | {"use_bidirectional_attention": True},
        "'use_bidirectional_attention': expected one of False",
    ),
    "Gemma 3 with a cap": (GEMMA3 | {"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping': expected none"),
    "Gemma 3 without a base in its windows": (
        GEMMA3 | {"rope_parameters": {"sliding_attention": {"rope_type": "default"}}},
        "'rope_parameters.sliding_attention.rope_theta': expected this field, got none",
    ),
    "Gemma 3 with one kind of positions": (
        GEMMA3 | {"rope_parameters": {"rope_theta": 10000.0}},
        "'rope_parameters.sliding_attention': expected the positions of such layers, got none",
    ),
    "Gemma 3 scaled twice": (GEMMA3 | BOTH3 | {"rope_scaling": {"factor": 8.0}}, "'rope_scaling': expected fields"),
    "Gemma 3 in no pattern": (GEMMA3 | {"sliding_window_pattern": 0}, "expected a number above 0"),
    "Phi-3 with the first name of its factors": (
        PHI3 | {"rope_scaling": {"long_factor": [1], "short_factor": [1], "type": "su"}},
        "'rope_scaling.rope_type': expected one of .*, got 'su'",
    ),
    "Phi-3 with what is yarn elsewhere": (
        PHI3 | {"rope_scaling": {"factor": 2.0, "type": "yarn"}},
        "'rope_scaling': expected none or 'longrope', as in these models, got 'yarn'",
    ),
    "Phi-3 with biases": (PHI3 | {"attention_bias": True}, "'attention_bias': expected one of False"),
    "Phi-3 with blocks": (PHI3 | {"full_attn_mod": 2}, "'full_attn_mod': expected one of 1"),
    "Command R with a window": (
        COHERE | {"sliding_window": 4096},
        "'sliding_window': expected fields with a known meaning",
    ),
    "OLMo 2 with values cut off": (OLMO2 | {"clip_qkv": 8.0}, "'clip_qkv': expected fields with a known meaning"),
    "gpt-oss whose attention is in a code": (
        GPT_OSS | {"quantization_config": {"modules_to_not_convert": ["lm_head"]}},
        "'quantization_config': expected 'model.layers.*.self_attn' in its modules_to_not_convert",
    ),
    "gpt-oss that says nothing of positions": (
        GPT_OSS | {"rope_scaling": None},
        "'rope_parameters': expected how positions are scaled, got none",
    ),
    "DeepSeek-V3 with shared heads": (
        DEEPSEEK | {"num_key_value_heads": 8},
        "'num_key_value_heads': expected one of 128",
    ),
    "DeepSeek-V3 in a code": (DEEPSEEK | {"quantization_config": {"fmt": "e4m3"}}, "'quantization_config'"),
    "DiffLlama with a head over": (
        DIFFLLAMA | {"num_attention_heads": 5, "num_key_value_heads": 5},
        "'num_attention_heads': expected an even number from 2, as heads attend in pairs, got 5",
    ),
    "DiffLlama with a head of keys over": (
        DIFFLLAMA | {"num_key_value_heads": 1},
        "'num_key_value_heads': expected an even number from 2, as heads attend in pairs, got 1",
    ),
    "DeepSeek-V3, the layer that predicts further": (DEEPSEEK | {"num_hidden_layers": 0}, "'num_hidden_layers'"),
}


@pytest.mark.parametrize("case", PUBLISHED)
def test_a_published_file(case: str) -> None:
    stated, layer, want = PUBLISHED[case]
    assert layer_of(stated, layer) == want


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    stated, words = REFUSED[case]
    with pytest.raises(WeightFileError, match=words):
        layer_of(stated, 0)


def test_attention_types_of_several_entries_are_repeated_one_after_the_other() -> None:
    """As the library writes them out: each entry's kinds, as often as it says."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        entries = [
            [[str(kind) for kind in rng.choice(["global", "local"], rng.integers(1, 4))], int(rng.integers(1, 4))]
            for _ in range(rng.integers(1, 4))
        ]
        kinds = [kind for names, times in entries for _ in range(times) for kind in names]
        file = HFConfig("config.json", {"attention_types": entries})
        assert [gpt_neo.kind(file, layer) for layer in range(len(kinds))] == kinds
        with pytest.raises(WeightFileError, match="attention_types"):
            gpt_neo.kind(file, len(kinds))


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.5, 40.0])
def test_a_stretch_of_one_or_less_leaves_the_size_of_angles(factor: float) -> None:
    """YaRN's size for positions stretched by a factor is 0.1 mscale log(factor) + 1, and 1 up to a factor of 1."""
    rope = {"rope_type": "yarn", "factor": factor, "mscale": 0.7, "mscale_all_dim": 1.2}
    rope |= {"original_max_position_embeddings": 16, "rope_theta": 100.0}
    sizes = [0.1 * mscale * log(factor) + 1 if factor > 1 else 1.0 for mscale in (0.7, 1.2)]
    found = rotary(HFConfig("config.json", {"rope_parameters": rope, "max_position_embeddings": 64}), 8)
    assert found["attention_factor"] == sizes[0] / sizes[1]
