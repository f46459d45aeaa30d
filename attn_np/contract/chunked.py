"""Chunked attention: a query sees the keys of its own chunk of the sequence."""

from dataclasses import dataclass

from attn_np.contract import _heads


@dataclass(frozen=True, kw_only=True)
class Config(_heads.MultiHeadSelfAttentionConfig):
    """Fields of chunked attention.

    Attributes:
        causal: query i sees the keys up to its own position.
    """

    class_name = "ChunkedAttention"
    family = "sparse"
    title = "Chunked attention"
    idea = (
        "Cut the sequence into chunks of the same length and let every position attend within its own. The cost grows "
        "with the length, not with its square, and a cache holds one chunk. Nothing crosses a border: layers without "
        "chunks in between, as in Llama 4, must carry information from earlier chunks."
    )
    formula = (
        r"p_{ts} > 0 \quad \mathrm{only\ where} \quad \lfloor t / c \rfloor = \lfloor s / c \rfloor, "
        r"\qquad y_t = b_o + \sum_h \sum_s p_{hts}\, v_{hs}\, w_{o,h}"
    )
    notation = {
        "attention_chunk_size": "chunk_size",
        "block of a blocked local attention": "chunk",
    }
    cost = (
        "time b t chunk_size h (k + v), of chunks from about 128 positions on;"
        " memory b t h (k + v), and b h t t where weights are returned"
    )
    paper = (
        "Llama 4 (Meta 2025), attention_chunk_size of its layers with rotary positions; as the first part of the fixed "
        "pattern of Child et al. 2019, Sparse Transformers, arXiv:1904.10509, section 4.3"
    )
    equals = (
        "mha with a block-diagonal mask",
        "a chunk as long as the sequence: mha",
        "segments numbered by chunk",
    )
    traps = (
        "a chunk is not a sliding window: the first position of a chunk sees nothing before itself",
        "chunks are counted from position 0 of the array: padding on the left takes places in the first chunk and "
        "moves all borders, so pad on the right; steps of decoding count real positions alone",
        "a cache of chunk_size positions is enough, but its entries of the chunk before must be hidden",
        "without causality a position sees the rest of its chunk, later positions too",
    )

    chunk_size: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("chunk_size")

    def cache_slots(self) -> int | None:
        return self.chunk_size

    def broken_relations(self) -> dict[str, str]:
        why = "keys of other chunks are hidden too"
        return {
            "keys_have_no_order": "the mask depends on positions",
            "weights_add_up_to_one": why,
            "a_large_bias_decides": why,
            "indifferent_scores_share_evenly": why,
            "hidden_keys_may_as_well_not_be_there": "without some keys, others belong to another chunk",
        }


EXAMPLES = {
    "both": Config(d_model=6, num_heads=2, output_dim=5, dropout=0.25, chunk_size=3),
    "causal": Config(
        d_model=5, num_heads=3, head_dim=2, value_head_dim=7, scale=0.75, causal=True, use_bias=False, chunk_size=2
    ),
}
