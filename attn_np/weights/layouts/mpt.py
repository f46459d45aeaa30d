"""MPT as `transformers` names it: queries, keys and values side by side, without biases, and positions as slopes."""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._hf_config import HFConfig


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of an `MptConfig`; for other numbers of heads than powers of two its slopes differ."""
    hf.check_layer("n_layers", layer)
    hf.skip("expansion_ratio", "max_seq_len", "emb_pdrop", "learned_pos_emb", "no_bias", "embedding_fraction")
    hf.skip("norm_type", "logit_scale", "init_device", "init_config", "ffn_config", "fc_type", "verbose")
    width, heads, more = hf.integer("d_model"), hf.integer("n_heads"), hf.nested("attn_config")
    more.skip(*more._values.keys() - {"alibi", "alibi_bias_max", "clip_qkv", "softmax_scale", "prefix_lm", "qk_ln"})
    more.only("alibi", True)
    more.only("alibi_bias_max", 8)
    for name in ("prefix_lm", "qk_ln"):
        more.only(name, False)
    if more.get("clip_qkv") is not None:
        more.refuse("clip_qkv", "none, as layers with slopes here have no limit")
    if not heads or heads & (heads - 1):
        hf.refuse("n_heads", "a power of two, as other numbers of heads have other slopes here", heads)
    scale = {} if more.get("softmax_scale") is None else {"scale": more.number("softmax_scale")}
    return "alibi", {"d_model": width, "num_heads": heads, "use_bias": False, "causal": True} | scale


LAYOUT = Layout(
    origin="transformers: MptModel",
    prefixes=("transformer.blocks.{layer}.", "blocks.{layer}."),
    tables={
        "alibi": Table(
            rules={
                ("w_q", "w_k", "w_v"): ("attn.Wqkv.weight", "(p h k) d -> p d h k"),
                "w_o": ("attn.out_proj.weight", "o (h v) -> h v o"),
            },
            letters={"d_model": "d", "num_heads": "h"},
            not_in_weights=("scale",),
            fixed={"causal": True, "use_bias": False},
        )
    },
    ignored=("norm_1.*", "norm_2.*", "ffn.*"),
    elsewhere=("transformer.*", "blocks.*", "wte.weight", "norm_f.*", "lm_head.weight"),
    metadata={"format": "pt"},
    model_types=("mpt",),
    table_and_fields=table_and_fields,
)
