"""Keras's `MultiHeadAttention` and `GroupQueryAttention`: kernels with an axis for the heads.

Keras has its own weight files. In a safetensors file the keys are the variables' paths with dots or slashes,
`{v.path: v for v in layer.weights}`; the layer's own name is then `prefix="name."`. With gates (`use_gate`) the first
is gated attention; gates beside shared heads of keys and values are refused.
"""

from attn_np.weights.layouts._base import Layout, Names, Table

# In Keras an argument of the call, and a setting of the module.
NOT_IN_WEIGHTS = ("causal", "window")
FLAGS = {"use_bias": ("b_q", "b_k", "b_v", "b_o")}
LETTERS = {"d_model": "d", "num_heads": "h", "head_dim": "k", "key_dim": "i", "value_dim": "j", "output_dim": "o"}


def rules(output: str, heads: str) -> dict[Names, tuple[Names, str]]:
    """The rules of a module with this name of the output projection, and the letter of the key and value heads."""
    return {
        "w_q": ("query.kernel", "d h k -> d h k"),
        "w_k": ("key.kernel", f"i {heads} k -> i {heads} k"),
        "w_v": ("value.kernel", f"j {heads} v -> j {heads} v"),
        "w_o": (f"{output}.kernel", "h v o -> h v o"),
        "b_q": ("query.bias", "h k -> h k"),
        "b_k": ("key.bias", f"{heads} k -> {heads} k"),
        "b_v": ("value.bias", f"{heads} v -> {heads} v"),
        "b_o": (f"{output}.bias", "o -> o"),
    }


OUTPUT = "attention_output"
GATES: dict[Names, tuple[Names, str]] = {
    "w_gate": ("gate.kernel", "d h f -> d h f"),
    "b_gate": ("gate.bias", "h f -> h f"),
}

LAYOUT = Layout(
    origin="keras: layers.MultiHeadAttention and layers.GroupQueryAttention",
    variant_from_tensors=True,
    separator="/",
    tables={
        "gated": Table(
            rules=rules(OUTPUT, "h") | GATES,
            letters=LETTERS | {"value_head_dim": "v"},
            flags={"use_bias": (*FLAGS["use_bias"], "b_gate")},
            not_in_weights=NOT_IN_WEIGHTS,
            fixed={"gate": "element"},
        ),
        "mha": Table(
            rules=rules(OUTPUT, "h"),
            letters=LETTERS | {"value_head_dim": "v"},
            flags=FLAGS,
            not_in_weights=NOT_IN_WEIGHTS,
        ),
        "gqa": Table(
            rules=rules(OUTPUT, "g"),
            letters=LETTERS | {"num_kv_heads": "g"},
            flags=FLAGS,
            not_in_weights=NOT_IN_WEIGHTS,
        ),
    },
    unsupported={"gate.*": "gates, which are in variant gated alone, where each head has keys of its own"},
)
