"""`torch.nn.MultiheadAttention`: three projections in one array, or apart if the widths of the inputs differ.

The biases are packed either way. The heads are in order along the rows. The mask is no part of the file: True hides a
key there and allows it here. `bias_k` and `bias_v`, a learned key and value that the module may add, are refused; the
key of zeros of `add_zero_attn` leaves no trace in a file, so that such a module cannot be recognised.
"""

from attn_np.weights.layouts._base import Layout, Table

COMMON = {
    ("b_q", "b_k", "b_v"): ("in_proj_bias", "(p h k) -> p h k"),
    "w_o": ("out_proj.weight", "o (h v) -> h v o"),
    "b_o": ("out_proj.bias", "o -> o"),
}
FLAGS = {"use_bias": ("b_q", "b_k", "b_v", "b_o")}
# Fields that a torch module gets as the mask of a call.
FREE = ("causal", "window")

LAYOUT = Layout(
    origin="torch: nn.MultiheadAttention",
    tables={
        "mha": Table(
            rules={("w_q", "w_k", "w_v"): ("in_proj_weight", "(p h k) d -> p d h k"), **COMMON},
            sizes={"d_model": "d", "num_heads": "h"},
            flags=FLAGS,
            free=FREE,
        ),
        "split": Table(
            rules={
                "w_q": ("q_proj_weight", "(h k) d -> d h k"),
                "w_k": ("k_proj_weight", "(h k) i -> i h k"),
                "w_v": ("v_proj_weight", "(h v) j -> j h v"),
                **COMMON,
            },
            sizes={"d_model": "d", "num_heads": "h", "key_dim": "i", "value_dim": "j"},
            flags=FLAGS,
            free=FREE,
            variant="mha",
        ),
    },
    unsupported={"bias_[kv]": "a learned key and value (add_bias_kv), which no layer here has"},
    metadata={"format": "pt"},
)
