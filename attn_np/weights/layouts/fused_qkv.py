"""One projection for queries, keys and values, and the variants with three: the same layer, stacked or apart."""

from attn_np.weights.layouts._base import Layout, Table

LAYOUT = Layout(
    origin="attn-parity: fused_qkv",
    origin_variant="fused_qkv",
    tables={
        "mha": Table(
            rules={
                ("w_q", "w_k", "w_v"): ("w_qkv", "d p h k -> p d h k"),
                ("b_q", "b_k", "b_v"): ("b_qkv", "p h k -> p h k"),
                "w_o": ("w_o", "h k o -> h k o"),
                "b_o": ("b_o", "o -> o"),
            },
            fixed={"memory_keys": None},
            origin_fixed={"use_output": True},
        ),
        "self_attention": Table(
            rules={
                ("w_q", "w_k", "w_v"): ("w_qkv", "d p h k -> p d (h k)"),
                ("b_q", "b_k", "b_v"): ("b_qkv", "p h k -> p (h k)"),
                "w_o": ("w_o", "h k d -> (h k) d"),
                "b_o": ("b_o", "d -> d"),
            },
            constants={"h": 1},
            origin_fixed={"num_heads": 1, "output_dim": None},
        ),
    },
)
