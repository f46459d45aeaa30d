"""OPT as `transformers` names it: plain heads in the decoder's stack, with BART's names."""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._encoder_decoder import RULES
from attn_np.weights.layouts._hf_config import HFConfig


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of an `OPTConfig`: positions are added to the inputs, before the first layer."""
    hf.skip("do_layer_norm_before", "_remove_final_layer_norm", "word_embed_proj_dim", "ffn_dim", "activation_function")
    hf.skip("layer_norm_elementwise_affine", "init_std")
    bias = hf.flag("enable_bias", True)
    sizes = {"d_model": hf.integer("hidden_size"), "num_heads": hf.integer("num_attention_heads"), "causal": True}
    return "mha", sizes | {"use_bias": bias}


LAYOUT = Layout(
    origin="transformers: OPTModel and the models that keep its names",
    prefixes=tuple(f"{start}layers.{{layer}}.self_attn." for start in ("model.decoder.", "decoder.", "model.", "")),
    tables={
        "mha": Table(
            rules=RULES | {"b_k": ("k_proj.bias", "(h k) -> h k")},
            letters={"d_model": "d", "num_heads": "h"},
            flags={"use_bias": ("b_q", "b_k", "b_v", "b_o")},
            fixed={"causal": True},
        )
    },
    elsewhere=(
        *(f"{start}decoder.{key}" for start in ("model.", "") for key in ("embed_tokens.weight", "embed_positions.*")),
        *(
            f"{start}decoder.{key}"
            for start in ("model.", "")
            for key in ("layers.*", "project_*", "final_layer_norm.*")
        ),
        "lm_head.weight",
        "score.weight",
        "qa_outputs.*",
    ),
    metadata={"format": "pt"},
    model_types=("opt",),
    table_and_fields=table_and_fields,
)
