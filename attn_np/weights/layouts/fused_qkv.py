"""One projection for queries, keys and values, and the variants with three: the same layer, stacked or apart."""

from attn_np.weights.layouts._base import Layout, Table

LAYOUT = Layout(
    origin="attn-parity: fused_qkv",
    own_variant="fused_qkv",
    tables={
        "mha": Table(
            rules={
                ("w_q", "w_k", "w_v"): ("w_qkv", "d p h k -> p d h k"),
                ("b_q", "b_k", "b_v"): ("b_qkv", "p h k -> p h k"),
                "w_o": ("w_o", "h k o -> h k o"),
                "b_o": ("b_o", "o -> o"),
                "memory_k": ("memory_k", "m h k -> m h k"),
                "memory_v": ("memory_v", "m h k -> m h k"),
            },
            fixed={"normalize_over": "keys"},
            origin_fixed={"use_output": True},
        ),
        "self_attention": Table(
            rules={
                ("w_q", "w_k", "w_v"): ("w_qkv", "d p h k -> p d (h k)"),
                ("b_q", "b_k", "b_v"): ("b_qkv", "p h k -> p (h k)"),
                "w_o": ("w_o", "h k o -> (h k) o"),
                "b_o": ("b_o", "o -> o"),
            },
            constants={"h": 1},
            origin_fixed={"num_heads": 1, "memory_keys": None},
        ),
    },
)
