"""DiffLlama as `transformers` names it: Llama whose heads attend in pairs, the second map subtracted from the first.

The heads of a pair are not neighbours: queries and keys of all first maps come before those of all second maps. A
head's values are those of two of the model's heads, half of all heads apart. The norm has no weight.
"""

from typing import Any

from attn_np.weights.layouts._base import Layout, Table
from attn_np.weights.layouts._decoder import sizes
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary
from attn_np.weights.layouts.llama import LAYOUT as LLAMA


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `DiffLlamaConfig`: its heads are twice ours; lambda's start depends on the layer.

    Raises:
        ConfigMismatchError: heads that do not come in pairs, or scaled positions.
    """
    fields = sizes(hf)
    for key, name in (("num_attention_heads", "num_heads"), ("num_key_value_heads", "num_kv_heads")):
        if fields[name] % 2 != 0 or not fields[name]:
            hf.refuse(key, "an even number from 2, as heads attend in pairs", fields[name])
        fields[name] //= 2
    # For initialisation.
    hf.skip("lambda_std_dev")
    fields |= {"use_bias": hf.flag("attention_bias", False), "causal": True, "norm_weight": False}
    fields |= {"depth": layer + 1, "norm_eps": hf.number("rms_norm_eps", 1e-5)}
    positions = whole_head_rotary(hf, fields["head_dim"])
    if "rope_scaling" in positions:
        hf.refuse("rope_parameters", "rotary positions without scaling", positions["rope_scaling"])
    return "differential", fields | positions


LAYOUT = Layout(
    origin="transformers: DiffLlamaModel and the models that keep its names",
    prefixes=LLAMA.prefixes,
    tables={
        "differential": Table(
            rules={
                "w_q": ("self_attn.q_proj.weight", "(r h k) d -> d h r k"),
                "w_k": ("self_attn.k_proj.weight", "(r g k) i -> i g r k"),
                "w_v": ("self_attn.v_proj.weight", "(r g k) j -> j g (r k)"),
                "w_o": ("self_attn.o_proj.weight", "o (h v) -> h v o"),
                "b_q": ("self_attn.q_proj.bias", "(r h k) -> h r k"),
                "b_k": ("self_attn.k_proj.bias", "(r g k) -> g r k"),
                "b_v": ("self_attn.v_proj.bias", "(r g k) -> g (r k)"),
                "b_o": ("self_attn.o_proj.bias", "o -> o"),
                "lambda_q": (("self_attn.lambda_q1", "self_attn.lambda_q2"), "r k -> r k"),
                "lambda_k": (("self_attn.lambda_k1", "self_attn.lambda_k2"), "r k -> r k"),
            },
            letters={"d_model": "d", "num_heads": "h", "num_kv_heads": "g", "head_dim": "k"},
            flags={"use_bias": ("b_q", "b_k", "b_v", "b_o")},
            not_in_weights=("depth", "lambda_init", "norm_eps", "rope_base", "max_positions"),
            fixed={"causal": True, "norm_weight": False},
            constants={"r": 2},
        )
    },
    ignored=LLAMA.ignored,
    elsewhere=LLAMA.elsewhere,
    metadata=LLAMA.metadata,
    model_types=("diffllama",),
    table_and_fields=table_and_fields,
)
