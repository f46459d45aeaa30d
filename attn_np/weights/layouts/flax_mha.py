"""Flax's `MultiHeadDotProductAttention` (linen) and `MultiHeadAttention` (NNX): kernels with an axis for the heads.

Keys are the paths in the tree of parameters, joined by dots or slashes: `flatten_dict(params, sep=".")` of linen, with
`params.` in front or not, and `nnx.to_flat_state` of NNX. With `num_kv_heads` a module of NNX is grouped-query
attention. With `normalize_qk` a module is attention with normalised queries and keys, which may be in groups, too.
"""

from attn_np.weights.layouts._base import Layout, Names, Table
from attn_np.weights.layouts.keras_mha import FLAGS, LETTERS, NOT_IN_WEIGHTS, rules

NORMS: dict[Names, tuple[Names, str]] = {
    "w_q_norm": ("query_ln.scale", "k -> k"),
    "w_k_norm": ("key_ln.scale", "k -> k"),
}

LAYOUT = Layout(
    origin="flax: linen.MultiHeadDotProductAttention and nnx.MultiHeadAttention",
    prefixes=("", "params."),
    variant_from_tensors=True,
    separator="/",
    tables={
        "qk_norm": Table(
            rules=rules("out", "g") | NORMS,
            letters=LETTERS | {"num_kv_heads": "g"},
            flags=FLAGS,
            not_in_weights=NOT_IN_WEIGHTS,
            fixed={"norm": "layer", "norm_over": "head", "norm_eps": 1e-6},
        ),
        "mha": Table(rules=rules("out", "h"), letters=LETTERS, flags=FLAGS, not_in_weights=NOT_IN_WEIGHTS),
        "gqa": Table(
            rules=rules("out", "g"), letters=LETTERS | {"num_kv_heads": "g"}, flags=FLAGS, not_in_weights=NOT_IN_WEIGHTS
        ),
    },
    unsupported={"*_ln.*": "norms of queries and keys, which are in variant qk_norm alone"},
)
