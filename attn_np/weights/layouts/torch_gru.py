"""`torch.nn.GRU`: one pair of weights per layer, with the gates r z n in order along the rows."""

from attn_np.weights.layouts._base import Layout, Table

LAYOUT = Layout(
    origin="torch: nn.GRU",
    tables={
        "gru": Table(
            rules={
                "layers.{n}.w_x": ("weight_ih_l{n}", "(f e) d -> f d e"),
                "layers.{n}.w_h": ("weight_hh_l{n}", "(f a) e -> f e a"),
                "layers.{n}.b_x": ("bias_ih_l{n}", "(f e) -> f e"),
                "layers.{n}.b_h": ("bias_hh_l{n}", "(f e) -> f e"),
                "backward_layers.{n}.w_x": ("weight_ih_l{n}_reverse", "(f e) d -> f d e"),
                "backward_layers.{n}.w_h": ("weight_hh_l{n}_reverse", "(f a) e -> f e a"),
                "backward_layers.{n}.b_x": ("bias_ih_l{n}_reverse", "(f e) -> f e"),
                "backward_layers.{n}.b_h": ("bias_hh_l{n}_reverse", "(f e) -> f e"),
            },
            letters={"input_dim": "d", "hidden_dim": "e"},
            flags={
                "use_bias": ("layers.0.b_x", "layers.0.b_h"),
                "bidirectional": (
                    "backward_layers.0.w_x",
                    "backward_layers.0.w_h",
                    "backward_layers.0.b_x",
                    "backward_layers.0.b_h",
                ),
            },
            counts={"num_layers": "layers.{n}.w_x"},
            fixed={"reset_after": True},
            constants={"f": 3},
        )
    },
    unsupported={
        "weight_hr_l*": "projections of the states (proj_size), which no layer here has",
    },
    metadata={"format": "pt"},
)
