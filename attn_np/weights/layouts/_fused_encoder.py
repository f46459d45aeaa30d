"""Encoders that rotate, with one matrix for queries, keys and values: their layouts by the names of their modules."""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._base import Layout
from attn_np.weights.layouts._decoder import BIAS_FLAGS, family, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary
from attn_np.weights.layouts.modernbert import ROWS


def fused_encoder(
    origin: str, model_type: str, *, projections: str, output: str, prefix: str, bias: bool, base: float
) -> Layout:
    """The layout of such a family.

    Args:
        origin: the library's class.
        model_type: the type.
        projections: the name of the module of queries, keys and values, within a layer.
        output: that of the output.
        prefix: what stands before a layer's number.
        bias: whether the projections have biases.
        base: the default base of rotary positions.
    """

    def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
        hf.skip(*OTHER_FIELDS)
        if "n_embd" in hf:
            hf.check_layer("n_layer", layer)
            for key, value in (("rotary_emb_fraction", 1.0), ("rotary_emb_interleaved", False), ("causal", False)):
                hf.only(key, value, int(value))
            hf.only("qkv_proj_bias", bias)
        width = hf.integer("n_embd" if "n_embd" in hf else "hidden_size")
        heads = hf.integer("n_head" if "n_head" in hf else "num_attention_heads")
        hf.only("num_key_value_heads", heads)
        head_dim = hf.integer("head_dim", width // heads)
        theta = hf.number("rotary_emb_base", base)
        fields = {"d_model": width, "num_heads": heads, "head_dim": head_dim, "causal": False}
        fields |= dict.fromkeys(BIAS_FLAGS, bias)
        return "decoder", fields | whole_head_rotary(hf, head_dim, base=theta)

    rules: dict[Any, Any] = {ROWS: (f"{projections}.weight", "(p h k) d -> p d h k")}
    rules |= {("b_q", "b_k", "b_v"): (f"{projections}.bias", "(p h k) -> p h k")} if bias else {}
    names = {"self_attn.o_proj": output}
    fixed = {"causal": False} | dict.fromkeys(BIAS_FLAGS, bias)
    layout = family(
        origin,
        table_and_fields,
        {"decoder": table(rules=rules, fixed=fixed, names=names)},
        model_types=(model_type,),
    )
    start = prefix.partition(".")[0]
    return replace(
        layout,
        prefixes=(f"{prefix}{{layer}}.", f"{prefix.partition('.')[2]}{{layer}}."),
        ignored=("norm1.*", "norm2.*", "attn_ln.*", "mlp_ln.*", "mlp.*"),
        elsewhere=(
            f"{start}.*",
            "embeddings.*",
            "encoder.*",
            "emb_ln.*",
            "cls.*",
            "lm_head.*",
            "classifier.*",
            "pooler.*",
        ),
    )


# The rest of the model, and fields of the published files that the library does not read.
OTHER_FIELDS = (
    "activation_function", "n_inner", "n_positions", "n_layer", "type_vocab_size", "use_flash_attn", "use_rms_norm",
    "use_xentropy", "rotary_emb_scale_base", "rotary_scaling_factor", "scale_attn_by_inverse_layer_idx",
    "scale_attn_weights", "mlp_fc1_bias", "mlp_fc2_bias", "pad_vocab_size_multiple", "parallel_block",
    "parallel_block_tied_norm", "prenorm", "fused_bias_fc", "fused_dropout_add_ln", "reorder_and_upcast_attn",
    "dense_seq_output", "mask_token_id", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
    "summary_type", "summary_use_proj", "max_trained_positions", "lora_adaptations", "lora_alpha", "lora_dropout_p",
    "lora_main_params_trainable", "lora_rank", "load_trained_adapters", "matryoshka_dimensions", "task_instructions",
    "truncate_dim", "emb_pooler", "use_reentrant", "position_embedding_type",
)  # fmt: skip
