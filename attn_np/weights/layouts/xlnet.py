"""XLNet as `transformers` names it: Transformer-XL's distances in both directions, and axes as ours have them.

A call there may have token types, and then a third term of the scores, for words of one segment and of two. Our layer
is what the library computes without them: the weights of that term, `r_s_bias` and `seg_embed`, are left aside.
"""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._hf_config import HFConfig


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of an `XLNetConfig`: one order of the words, and every distance by itself."""
    hf.check_layer("n_layer", layer)
    for name, value in (("bi_data", False), ("same_length", False), ("untie_r", True)):
        hf.only(name, value)
    if hf.get("clamp_len", -1) != -1:
        hf.refuse("clamp_len", "-1, as distances are not limited here")
    hf.skip("mem_len", "reuse_len", "use_mems_eval", "use_mems_train")  # how much of a text is cached
    hf.skip("d_inner", "ff_activation", "n_token", "start_n_top", "end_n_top")
    hf.skip(*(f"summary_{name}" for name in ("type", "use_proj", "activation", "last_dropout")))
    width, heads = hf.integer("d_model", 1024), hf.integer("n_head", 16)
    return "transformer_xl", {
        "d_model": width,
        "num_heads": heads,
        "head_dim": hf.integer("d_head", width // max(heads, 1)),
        "causal": hf.only("attn_type", "bi", "uni") == "uni",
    }


LAYOUT = Layout(
    origin="transformers: XLNetModel",
    prefixes=("transformer.layer.{layer}.", "layer.{layer}."),
    tables={
        "transformer_xl": Table(
            rules={
                "w_q": ("rel_attn.q", "d h k -> d h k"),
                "w_k": ("rel_attn.k", "i h k -> i h k"),
                "w_v": ("rel_attn.v", "j h v -> j h v"),
                "w_r": ("rel_attn.r", "d h k -> d h k"),
                "w_o": ("rel_attn.o", "o h v -> h v o"),
                "b_content": ("rel_attn.r_w_bias", "h k -> h k"),
                "b_position": ("rel_attn.r_r_bias", "h k -> h k"),
            },
            letters={"d_model": "d", "num_heads": "h", "head_dim": "k"},
            not_in_weights=("causal",),
        )
    },
    ignored=("rel_attn.r_s_bias", "rel_attn.seg_embed", "rel_attn.layer_norm.*", "ff.*"),
    elsewhere=(
        *(
            f"{start}{key}"
            for start in ("", "transformer.")
            for key in ("word_embedding.weight", "mask_emb", "layer.*")
        ),
        "lm_loss.*",
        "logits_proj.*",
        "sequence_summary.*",
        "classifier.*",
        "qa_outputs.*",
        "start_logits.*",
        "end_logits.*",
        "answer_class.*",
    ),
    metadata={"format": "pt"},
    model_types=("xlnet",),
    table_and_fields=table_and_fields,
)
