"""Jina's third embeddings as `transformers` names it: one matrix for queries, keys and values."""

from attn_np.weights.layouts._fused_encoder import fused_encoder

LAYOUT = fused_encoder(
    "JinaEmbeddingsV3Model",
    "jina_embeddings_v3",
    projections="mixer.Wqkv",
    output="mixer.out_proj",
    prefix="roberta.encoder.layers.",
    bias=True,
    base=20000.0,
)
