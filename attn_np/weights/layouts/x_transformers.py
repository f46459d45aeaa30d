"""x-transformers' `Attention`: four matrices without biases, and a memory of learned keys and values.

Key/value heads are repeated as a block there: query head h of H uses the key/value head h mod G, so the heads of `to_q`
and `to_out` are in another order than here. What leaves no trace in a file is the caller's to say: slopes of a bias by
distance are variant `alibi`, rotary positions variant `decoder`, a key of zeros (`add_zero_kv`) is variant `sinks`.
"""

from typing import Any

from attn_np.weights.layouts._base import Layout, Names, Table

OWN_HEADS: dict[Names, tuple[Names, str]] = {
    "w_q": ("to_q.weight", "(h k) d -> d h k"),
    "w_k": ("to_k.weight", "(h k) i -> i h k"),
    "w_v": ("to_v.weight", "(h v) j -> j h v"),
    "w_o": ("to_out.weight", "o (h v) -> h v o"),
}
SHARED_HEADS: dict[Names, tuple[Names, str]] = {
    "w_k": ("to_k.weight", "(g k) i -> i g k"),  # first, as it shows how many groups there are
    "w_q": ("to_q.weight", "(r g k) d -> d (g r) k"),
    "w_v": ("to_v.weight", "(g v) j -> j g v"),
    "w_o": ("to_out.weight", "o (r g v) -> (g r) v o"),
}
SELF: dict[Names, tuple[Names, str]] = {
    "w_q": ("to_q.weight", "(h k) d -> d h k"),
    "w_k": ("to_k.weight", "(h k) d -> d h k"),
    "w_v": ("to_v.weight", "(h v) d -> d h v"),
    "w_o": ("to_out.weight", "o (h v) -> h v o"),
}
SHARED_SELF: dict[Names, tuple[Names, str]] = {
    "w_k": ("to_k.weight", "(g k) d -> d g k"),
    "w_q": ("to_q.weight", "(r g k) d -> d (g r) k"),
    "w_v": ("to_v.weight", "(g v) d -> d g v"),
    "w_o": ("to_out.weight", "o (r g v) -> (g r) v o"),
}
MEMORY: dict[Names, tuple[Names, str]] = {
    "memory_k": ("mem_k", "h m k -> m h k"),
    "memory_v": ("mem_v", "h m v -> m h v"),
}
SINKS: dict[Names, tuple[Names, str]] = {"sinks": ("attend.head_attn_sink", "h -> h")}
WIDTHS = {"d_model": "d", "head_dim": "k", "value_head_dim": "v", "output_dim": "o"}
CROSS = WIDTHS | {"key_dim": "i", "value_dim": "j"}
HEADS, GROUPS = {"num_heads": "h"}, {"num_kv_heads": "g"}
NO_BIAS: dict[str, Any] = {"use_bias": False}
DECODER_FIXED: dict[str, Any] = {"qkv_bias": False, "output_bias": False, "rope_layout": "interleaved"}
NOT_IN_WEIGHTS = ("causal", "window", "scale")  # settings of the module
DECODER_NOT_IN_WEIGHTS = ("softcap", "num_heads", "rope_base", "rotary_dim")


def table(
    variant: str,
    rules: dict[Names, tuple[Names, str]],
    letters: dict[str, str],
    not_in_weights: tuple[str, ...] = (),
    fixed: dict[str, Any] = NO_BIAS,
) -> Table:
    """A table without biases."""
    return Table(
        rules=rules, letters=letters, not_in_weights=(*NOT_IN_WEIGHTS, *not_in_weights), fixed=fixed, variant=variant
    )


LAYOUT = Layout(
    origin="x-transformers: Attention",
    variant_from_tensors=True,
    tables={
        "mha": table("mha", OWN_HEADS, CROSS | HEADS, ("softcap",)),
        "memory": table("mha", OWN_HEADS | MEMORY, CROSS | HEADS | {"memory_keys": "m"}, ("softcap",)),
        "gqa": table("gqa", SHARED_HEADS, CROSS | GROUPS, ("softcap", "num_heads")),
        "decoder": table("decoder", SHARED_SELF, WIDTHS | GROUPS, DECODER_NOT_IN_WEIGHTS, DECODER_FIXED),
        "alibi": table("alibi", SELF, WIDTHS | HEADS),
        "sinks": table("sinks", OWN_HEADS | SINKS, CROSS | HEADS, ("softcap",), NO_BIAS | {"sink": "learned"}),
        "key of zeros": table("sinks", OWN_HEADS, CROSS | HEADS, ("softcap",), NO_BIAS | {"sink": "zero"}),
    },
    unsupported={
        "q_rmsnorm.*": "a norm of queries with a weight for each head",
        "k_rmsnorm.*": "a norm of keys with a weight for each head",
        "value_rmsnorm.*": "a norm of values",
        "qk_norm_*_scale": "a norm of queries and keys with weights for each head",
        "to_v_gate.*": "gates of values",
        "to_v_head_gate.*": "gates of heads",
        "to_output_gate.*": "gates of outputs",
        "head_scale_params": "a factor for each head",
        "to_latent_*": "latent queries, keys or values",
        "to_rotateable_k.*": "keys that are rotated apart",
        "attend.p*": "heads that are mixed",
    },
)
