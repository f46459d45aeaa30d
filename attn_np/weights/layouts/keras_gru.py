"""Keras' `GRU` and `GRUCell`: the gates in the order z r n along the columns.

The file shows which biases there are, and so whether the reset gate acts after the state's product. Without biases it
does, unless the call says `reset_after=False`. Keys are the weights' paths, joined by slashes or dots.
"""

from dataclasses import replace

from attn_np.weights.layouts._base import Layout, Table

PLAIN = Table(
    variant="gru",
    rules={
        "layers.0.w_x": ("kernel", "d (f e) -> f d e"),
        "layers.0.w_h": ("recurrent_kernel", "e (f a) -> f e a"),
    },
    letters={"input_dim": "d", "hidden_dim": "e"},
    not_in_weights=("reset_after",),
    fixed={"num_layers": 1, "use_bias": False, "bidirectional": False},
    constants={"f": 3},
    orders={"f": (1, 0, 2)},
)
TWO_BIASES = {("layers.0.b_x", "layers.0.b_h"): ("bias", "p (f e) -> p f e")}
ONE_BIAS = {"layers.0.b_x": ("bias", "(f e) -> f e")}

LAYOUT = Layout(
    origin="keras: layers.GRU and layers.GRUCell",
    prefixes=("gru_cell.", ""),
    variant_from_tensors=True,
    separator="/",
    tables={
        "two biases": replace(
            PLAIN,
            rules={**PLAIN.rules, **TWO_BIASES},
            not_in_weights=(),
            fixed={**PLAIN.fixed, "use_bias": True, "reset_after": True},
        ),
        "one bias": replace(
            PLAIN,
            rules={**PLAIN.rules, **ONE_BIAS},
            not_in_weights=(),
            fixed={**PLAIN.fixed, "use_bias": True, "reset_after": False},
        ),
        "no bias": PLAIN,
    },
)
