"""Flax linen's `GRUCell`: a product for each gate, and beside the state's products a bias of n alone.

Keys are the paths in the tree of parameters, joined by dots or slashes: `flatten_dict(params, sep=".")`. An `RNN` calls
its cell "cell": `prefix="cell."`.
"""

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts.flax_gru_cell import FIXED, LETTERS

OF_INPUT = ("ir", "iz", "in")
OF_STATE = ("hr", "hz", "hn")

LAYOUT = Layout(
    origin="flax: linen.GRUCell",
    variant_from_tensors=True,
    separator="/",
    tables={
        "gru": Table(
            rules={
                "layers.0.w_x": (tuple(f"{gate}.kernel" for gate in OF_INPUT), "f d e -> f d e"),
                "layers.0.w_h": (tuple(f"{gate}.kernel" for gate in OF_STATE), "f e a -> f e a"),
                "layers.0.b_x": (tuple(f"{gate}.bias" for gate in OF_INPUT), "f e -> f e"),
                "layers.0.b_h": (tuple(f"{gate}.bias" for gate in OF_STATE), "f e -> f e"),
            },
            letters=LETTERS,
            fixed=FIXED,
            absent=("hr.bias", "hz.bias"),
        )
    },
)
