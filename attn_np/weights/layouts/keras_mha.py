"""Keras's `MultiHeadAttention` and `GroupQueryAttention`: kernels with an axis for the heads.

Keras has its own weight files. In a safetensors file the keys are the variables' paths with dots,
`{v.path.replace("/", "."): v for v in layer.weights}`; the layer's own name is then `prefix="name."`. The kernel of a
gate (`use_gate`) is not in our layer and is refused.
"""

from attn_np.weights.layouts._base import Layout, Table

# A setting of the module, and an argument of its call.
FREE = ("causal", "window")
FLAGS = {"use_bias": ("b_q", "b_k", "b_v", "b_o")}
SIZES = {"d_model": "d", "num_heads": "h", "head_dim": "k", "key_dim": "i", "value_dim": "j"}

LAYOUT = Layout(
    origin="keras: layers.MultiHeadAttention and layers.GroupQueryAttention",
    tables={
        "mha": Table(
            rules={
                "w_q": ("query.kernel", "d h k -> d h k"),
                "w_k": ("key.kernel", "i h k -> i h k"),
                "w_v": ("value.kernel", "j h v -> j h v"),
                "w_o": ("attention_output.kernel", "h v d -> h v d"),
                "b_q": ("query.bias", "h k -> h k"),
                "b_k": ("key.bias", "h k -> h k"),
                "b_v": ("value.bias", "h v -> h v"),
                "b_o": ("attention_output.bias", "d -> d"),
            },
            sizes=SIZES | {"value_head_dim": "v"},
            flags=FLAGS,
            free=FREE,
        ),
        "gqa": Table(
            rules={
                "w_q": ("query.kernel", "d h k -> d h k"),
                "w_k": ("key.kernel", "i g k -> i g k"),
                "w_v": ("value.kernel", "j g v -> j g v"),
                "w_o": ("attention_output.kernel", "h v d -> h v d"),
                "b_q": ("query.bias", "h k -> h k"),
                "b_k": ("key.bias", "g k -> g k"),
                "b_v": ("value.bias", "g v -> g v"),
                "b_o": ("attention_output.bias", "d -> d"),
            },
            sizes=SIZES | {"num_kv_heads": "g"},
            flags=FLAGS,
            free=FREE,
        ),
    },
)
