"""Models that see or hear beside reading: the text model and the vision tower in them, whose layers are a family's."""

from collections.abc import Mapping
from typing import Any

from attn_np.weights._errors import ConfigMismatchError
from attn_np.weights.layouts._hf_config import HFConfig

# By `model_type`, the text model's own if its `text_config` does not say it.
TEXT_MODELS: Mapping[str, str] = {
    "aria": "aria_text",
    "audioflamingo3": "qwen2",
    "aya_vision": "cohere2",
    "cohere2_vision": "cohere2",
    "deepseek_vl": "llama",
    "deepseek_vl_hybrid": "llama",
    "emu3": "emu3_text_model",
    "exaone4_5": "exaone4",
    "fuyu": "persimmon",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "glm46v": "glm4v_text",
    "glm4v": "glm4v_text",
    "glm_ocr": "glm_ocr_text",
    "glmasr": "llama",
    "glmga": "glm4v_text",
    "got_ocr2": "qwen2",
    "granite_docling": "granite_docling_text",
    "granite_speech": "granite",
    "granite_speech_plus": "granite",
    "hyperclovax_vision_v2": "hyperclovax",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internvl": "qwen2",
    "janus": "llama",
    "lfm2_vl": "lfm2",
    "lighton_ocr": "qwen3",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "minicpm_ocr": "qwen3_5_text",
    "minicpmv4_6": "qwen3_5_text",
    "minicpmv4_7": "qwen3_5_text",
    "mistral3": "mistral",
    "modernvbert": "modernbert",
    "moss_transcribe_diarize": "qwen3",
    "musicflamingo": "qwen2",
    "ovis2": "qwen2",
    "paligemma": "gemma",
    "qwen2_audio": "qwen2",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_asr": "qwen3",
    "smolvlm": "llama",
    "vibevoice": "qwen2",
    "vibevoice_asr": "qwen2",
    "video_llama_3": "qwen2",
    "video_llava": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
}
# Sizes that a `text_config` may leave out, as it means its library's own.
SIZES: Mapping[str, Mapping[str, int]] = {
    "gemma": {"hidden_size": 3072, "num_attention_heads": 16},
    "gemma3_text": {"hidden_size": 2304, "num_attention_heads": 8},
    "llama": {"hidden_size": 4096, "num_attention_heads": 32},
    "mistral": {"hidden_size": 4096, "num_attention_heads": 32},
    "qwen2": {"hidden_size": 4096, "num_attention_heads": 32},
}
# What stands before the text model's keys.
PREFIXES = ("model.language_model.", "language_model.", "model.text_model.", "text_model.", "")


# The part of a model that sees beside reading, and what stands before the keys of its vision tower.
VISION = "vision"
VISION_PREFIXES = (
    "model.vision_tower.", "vision_tower.", "model.vision_model.", "vision_model.", "model.vision_tower.vision_model.",
    "vision_tower.vision_model.",
)  # fmt: skip


# Models that read a prompt in both directions, and what follows it in one.
PREFIX_MODELS = ("paligemma",)


def require_direction(hf: HFConfig, fields: Mapping[str, Any]) -> None:
    """Refuse a model whose layers read in both directions or in one, depending on the text, if the caller does not say.

    Raises:
        ConfigMismatchError: the fields have no `causal`.
    """
    if hf.model_type() in PREFIX_MODELS and "causal" not in fields:
        expected = "the direction, as this model reads a prompt in both and what follows it in one"
        fix = "pass causal=False for a layer that reads a prompt, causal=True for one that writes"
        raise ConfigMismatchError(hf.path, "causal", expected, "none", fix)


def text_model(hf: HFConfig, *, named: bool) -> tuple[HFConfig, tuple[str, ...]]:
    """The fields of the text model and the prefixes its keys may have; of another model, its own fields and no prefix.

    Args:
        hf: the fields of a `config.json`.
        named: whether the caller names the layout, so that a `text_config` of any model is read by it.
    """
    kind = hf.model_type()
    if kind not in TEXT_MODELS and not (named and "text_config" in hf and "hidden_size" not in hf):
        return hf, ("",)
    stated: dict[str, Any] = hf.get("text_config", {})
    if not isinstance(stated, dict):
        hf.refuse("text_config", "an object")
    text_kind = stated.get("model_type") or TEXT_MODELS.get(kind, "")
    defaults = SIZES.get(text_kind, {}) if kind in TEXT_MODELS else {}
    if kind in PREFIX_MODELS:
        stated = {key: x for key, x in stated.items() if key not in ("use_bidirectional_attention", "num_image_tokens")}
    return hf.part("text_config", {**defaults, **stated, "model_type": text_kind}), PREFIXES


def vision_model(hf: HFConfig) -> tuple[HFConfig, tuple[str, ...]]:
    """The fields of the vision tower of a model that sees beside reading, and the prefixes its keys may have.

    Raises:
        ConfigMismatchError: its `vision_config` does not say which model the tower is.
    """
    stated: Any = hf.get("vision_config")
    if not isinstance(stated, dict) or not isinstance(stated.get("model_type"), str):
        hf.refuse("vision_config", "an object with the model_type of the vision tower", stated)
    return hf.part("vision_config", stated), VISION_PREFIXES
