"""Our layers as a module made of `torch.nn.Linear`, for tools that work on such modules.

Keys: `q_proj`, `k_proj`, `v_proj` and `out_proj` (`qkv_proj` for the three in one), each with `weight` [out, in] and,
with biases, `bias` [out]. The heads are in order along the projected side.
"""

from attn_np.weights.layouts._base import Layout, Table

NOT_IN_WEIGHTS = ("scale", "causal", "window", "softcap")
BIAS_PARAMS = ("b_q", "b_k", "b_v", "b_o")

LAYOUT = Layout(
    origin="torch: a module with nn.Linear projections, as in examples/torch_linear_module.py",
    tables={
        "mha": Table(
            rules={
                "w_q": ("q_proj.weight", "(h k) d -> d h k"),
                "w_k": ("k_proj.weight", "(h k) i -> i h k"),
                "w_v": ("v_proj.weight", "(h v) j -> j h v"),
                "w_o": ("out_proj.weight", "o (h v) -> h v o"),
                "b_q": ("q_proj.bias", "(h k) -> h k"),
                "b_k": ("k_proj.bias", "(h k) -> h k"),
                "b_v": ("v_proj.bias", "(h v) -> h v"),
                "b_o": ("out_proj.bias", "o -> o"),
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
            flags={"use_bias": BIAS_PARAMS},
            not_in_weights=NOT_IN_WEIGHTS,
        ),
        "self_attention": Table(
            rules={
                "w_q": ("q_proj.weight", "k d -> d k"),
                "w_k": ("k_proj.weight", "k d -> d k"),
                "w_v": ("v_proj.weight", "v d -> d v"),
                "w_o": ("out_proj.weight", "o v -> v o"),
                "b_q": ("q_proj.bias", "k -> k"),
                "b_k": ("k_proj.bias", "k -> k"),
                "b_v": ("v_proj.bias", "v -> v"),
                "b_o": ("out_proj.bias", "o -> o"),
            },
            letters={"d_model": "d", "head_dim": "k", "value_head_dim": "v", "output_dim": "o"},
            flags={"use_bias": BIAS_PARAMS, "use_output": ("w_o",)},
            not_in_weights=NOT_IN_WEIGHTS,
        ),
        "fused_qkv": Table(
            rules={
                "w_qkv": ("qkv_proj.weight", "(p h k) d -> d p h k"),
                "b_qkv": ("qkv_proj.bias", "(p h k) -> p h k"),
                "w_o": ("out_proj.weight", "o (h k) -> h k o"),
                "b_o": ("out_proj.bias", "o -> o"),
            },
            letters={"d_model": "d", "num_heads": "h", "head_dim": "k", "output_dim": "o"},
            flags={"use_bias": ("b_qkv", "b_o"), "use_output": ("w_o",)},
            not_in_weights=NOT_IN_WEIGHTS,
            constants={"p": 3},
        ),
    },
    metadata={"format": "pt"},
)
