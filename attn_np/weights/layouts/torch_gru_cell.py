"""`torch.nn.GRUCell`: one layer of `torch.nn.GRU`, under names without a number."""

from attn_np.weights.layouts._base import Layout, Table

LAYOUT = Layout(
    origin="torch: nn.GRUCell",
    tables={
        "gru": Table(
            rules={
                "layers.0.w_x": ("weight_ih", "(f e) d -> f d e"),
                "layers.0.w_h": ("weight_hh", "(f a) e -> f e a"),
                "layers.0.b_x": ("bias_ih", "(f e) -> f e"),
                "layers.0.b_h": ("bias_hh", "(f e) -> f e"),
            },
            letters={"input_dim": "d", "hidden_dim": "e"},
            flags={"use_bias": ("layers.0.b_x", "layers.0.b_h")},
            fixed={"num_layers": 1, "reset_after": True, "bidirectional": False},
            constants={"f": 3},
        )
    },
    metadata={"format": "pt"},
)
