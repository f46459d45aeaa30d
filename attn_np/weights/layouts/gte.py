"""GTE as `transformers` names it: an encoder that rotates, with one matrix for queries, keys and values."""

from attn_np.weights.layouts._fused_encoder import fused_encoder

LAYOUT = fused_encoder(
    "GteModel",
    "gte",
    projections="attention.qkv_proj",
    output="attention.o_proj",
    prefix="gte.encoder.layer.",
    bias=True,
    base=160000.0,
)
