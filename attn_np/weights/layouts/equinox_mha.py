"""Equinox's `nn.MultiheadAttention`: four linear layers, [out, in], with the heads in order along rows or columns.

Keys are the paths of the module's arrays, without the dot in front: `query_proj.weight`. There each projection may have
a bias; here all four have one or none has, so a module with some of them is refused.
"""

from attn_np.weights.layouts._base import Layout, Table

LAYOUT = Layout(
    origin="equinox: nn.MultiheadAttention",
    tables={
        "mha": Table(
            rules={
                "w_q": ("query_proj.weight", "(h k) d -> d h k"),
                "w_k": ("key_proj.weight", "(h k) i -> i h k"),
                "w_v": ("value_proj.weight", "(h v) j -> j h v"),
                "w_o": ("output_proj.weight", "o (h v) -> h v o"),
                "b_q": ("query_proj.bias", "(h k) -> h k"),
                "b_k": ("key_proj.bias", "(h k) -> h k"),
                "b_v": ("value_proj.bias", "(h v) -> h v"),
                "b_o": ("output_proj.bias", "o -> o"),
            },
            letters={
                "d_model": "d",
                "num_heads": "h",
                "head_dim": "k",
                "value_head_dim": "v",
                "key_dim": "i",
                "value_dim": "j",
                "output_dim": "o",
            },
            flags={"use_bias": ("b_q", "b_k", "b_v", "b_o")},
            # The mask of a call, in the module.
            not_in_weights=("causal", "window"),
        ),
    },
)
