"""Gemma 3n's text model as `transformers` names it: values are normed, and the last layers share an earlier one's keys.

A layer that shares them is called with `shared_k` and `shared_v`, of the last earlier layer of its type that has keys.
"""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._base import Table
from attn_np.weights.layouts._decoder import BIAS_FLAGS, family, sizes, sliding_window_field, table
from attn_np.weights.layouts._hf_config import HFConfig
from attn_np.weights.layouts.gemma2 import IGNORED, kind
from attn_np.weights.layouts.gemma3 import positions
from attn_np.weights.layouts.qwen3 import TABLE as NORMED

# The rest of a layer: streams side by side, embeddings for each layer, sparse activations.
OTHER_FIELDS = (
    "altup_active_idx", "altup_coef_clip", "altup_correct_scale", "altup_num_inputs", "laurel_rank",
    "activation_sparsity_pattern", "hidden_size_per_layer_input", "vocab_size_per_layer_input",
)  # fmt: skip
AROUND = ("per_layer_input_gate.*", "per_layer_projection.*", "post_per_layer_input_norm.*")
ELSEWHERE = ("embed_tokens_per_layer.*", "per_layer_model_projection.*", "per_layer_projection_norm.*")


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `Gemma3nTextConfig`."""
    hf.skip(*OTHER_FIELDS, "final_logit_softcapping", "sliding_window", "rope_scaling")
    fields = sizes(hf, kv_heads=2, head_dim=256) | common(hf)
    layer_type = kind(hf, layer, 5)
    fields |= positions(hf, fields["head_dim"], layer_type)
    fields |= sliding_window_field(hf, 512) if layer_type == "sliding_attention" else {}
    name = "decoder, shared" if shares(hf, layer, 35, 15) else "decoder"
    return name, fields | dict(TABLES[name].fixed)


def common(hf: HFConfig) -> dict[str, Any]:
    """Our fields that Gemma 3n and 4 have in common, beside their sizes."""
    return dict.fromkeys(BIAS_FLAGS, hf.flag("attention_bias", False)) | {"norm_eps": hf.number("rms_norm_eps", 1e-6)}


def shares(hf: HFConfig, layer: int, layers: int, sharing: int) -> bool:
    """Whether a layer is one of the last, which share keys; the two numbers are the family's defaults."""
    return layer >= hf.integer("num_hidden_layers", layers) - hf.integer("num_kv_shared_layers", sharing)


def without(own: Table, *letters: str, **fixed: Any) -> Table:
    """The table of layers without projections of keys "k" or values "v"."""
    gone = {f"{kind}_{x}" for x in letters for kind in "wb"} | ({"w_k_norm"} if "k" in letters else set())
    sizes = {name: x for name, x in own.letters.items() if x != "g" or "k" not in letters}
    return replace(
        own,
        rules={name: rule for name, rule in own.rules.items() if name not in gone},
        letters=sizes,
        flags={flag: tuple(name for name in names if name not in gone) for flag, names in own.flags.items()},
        not_in_weights=(*own.not_in_weights, *own.letters.keys() - sizes.keys()),
        fixed=dict(own.fixed) | fixed,
        variant="decoder",
    )


OWN = table(
    rules={names: NORMED.rules[names] for names in ("w_q_norm", "w_k_norm")},
    flags=BIAS_FLAGS,
    not_in_weights=("window", "norm_eps"),
    fixed={"norm": "rms", "scale": 1.0, "value_norm": True},
)
TABLES = {"decoder": OWN, "decoder, shared": without(OWN, "k", "v", shared_kv=True, value_norm=False)}
TOP = (*ELSEWHERE, "altup_projections.*", "altup_unembed_projections.*")
LAYOUT = family(
    "Gemma3nTextModel",
    table_and_fields,
    TABLES,
    model_types=("gemma3n_text",),
    ignored=(*IGNORED, *AROUND, "altup.*", "laurel.*"),
    elsewhere=tuple(f"{at}{key}" for at in ("model.", "") for key in TOP),
)
