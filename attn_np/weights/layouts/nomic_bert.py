"""Nomic BERT as `transformers` names it: an encoder that rotates, with one matrix for queries, keys and values."""

from attn_np.weights.layouts._fused_encoder import fused_encoder

LAYOUT = fused_encoder(
    "NomicBertModel",
    "nomic_bert",
    projections="attn.Wqkv",
    output="attn.out_proj",
    prefix="nomic_bert.encoder.layers.",
    bias=False,
    base=1000.0,
)
