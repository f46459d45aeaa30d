"""Flax's `MultiHeadDotProductAttention` (linen) and `MultiHeadAttention` (NNX): kernels with an axis for the heads.

Keys are the paths in the tree of parameters, joined by dots: `flatten_dict(params, sep=".")` of linen, with `params.`
in front or not, and `nnx.to_flat_state` of NNX. With `num_kv_heads` a module of NNX is grouped-query attention. The
norms of `normalize_qk` are not in our layer and are refused.
"""

from attn_np.weights.layouts._base import Layout, Table

FREE = ("causal", "window")  # the mask of a call, in the module
FLAGS = {"use_bias": ("b_q", "b_k", "b_v", "b_o")}
SIZES = {"d_model": "d", "num_heads": "h", "head_dim": "k", "key_dim": "i", "value_dim": "j"}

LAYOUT = Layout(
    origin="flax: linen.MultiHeadDotProductAttention and nnx.MultiHeadAttention",
    prefixes=("", "params."),
    tables={
        "mha": Table(
            rules={
                "w_q": ("query.kernel", "d h k -> d h k"),
                "w_k": ("key.kernel", "i h k -> i h k"),
                "w_v": ("value.kernel", "j h v -> j h v"),
                "w_o": ("out.kernel", "h v d -> h v d"),
                "b_q": ("query.bias", "h k -> h k"),
                "b_k": ("key.bias", "h k -> h k"),
                "b_v": ("value.bias", "h v -> h v"),
                "b_o": ("out.bias", "d -> d"),
            },
            sizes=SIZES,
            flags=FLAGS,
            free=FREE,
        ),
        "gqa": Table(
            rules={
                "w_q": ("query.kernel", "d h k -> d h k"),
                "w_k": ("key.kernel", "i g k -> i g k"),
                "w_v": ("value.kernel", "j g v -> j g v"),
                "w_o": ("out.kernel", "h v d -> h v d"),
                "b_q": ("query.bias", "h k -> h k"),
                "b_k": ("key.bias", "g k -> g k"),
                "b_v": ("value.bias", "g v -> g v"),
                "b_o": ("out.bias", "d -> d"),
            },
            sizes=SIZES | {"num_kv_heads": "g"},
            flags=FLAGS,
            free=FREE,
        ),
    },
)
