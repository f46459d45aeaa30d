"""Flax's `nnx.GRUCell`: the gates r z n along the columns, and no bias beside the state's product.

Keys are the paths in the tree of parameters, joined by dots or slashes: `nnx.to_flat_state` of the cell.
"""

from attn_np.weights.layouts._base import Layout, Table

LETTERS = {"input_dim": "d", "hidden_dim": "e"}
FIXED = {"num_layers": 1, "use_bias": True, "reset_after": True, "bidirectional": False}

LAYOUT = Layout(
    origin="flax: nnx.GRUCell",
    variant_from_tensors=True,
    separator="/",
    tables={
        "gru": Table(
            rules={
                "layers.0.w_x": ("dense_i.kernel", "d (f e) -> f d e"),
                "layers.0.w_h": ("dense_h.kernel", "e (f a) -> f e a"),
                "layers.0.b_x": ("dense_i.bias", "(f e) -> f e"),
                "layers.0.b_h": ("dense_h.bias", "(f e) -> f e"),
            },
            letters=LETTERS,
            fixed=FIXED,
            constants={"f": 3},
            absent=("dense_h.bias",),
        )
    },
)
