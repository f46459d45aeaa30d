"""Laguna as `transformers` names it: gates by a softplus, one for each head or each number, and heads by layer."""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._base import Table
from attn_np.weights.layouts._decoder import biases, family, is_sliding, required_window_field, sizes
from attn_np.weights.layouts._hf_config import HFConfig, rotary
from attn_np.weights.layouts.afmoe import TABLE as AFMOE

GATE = {"gate": True, "gate_activation": "softplus"}


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `LagunaConfig`: each type of layers has its positions, each layer its heads."""
    hf.skip("moe_routed_scaling_factor", "moe_router_logit_softcapping", "moe_apply_router_weight_on_input")
    fields: dict[str, Any] = sizes(hf, kv_heads=8, head_dim=128) | biases(hf) | GATE
    fields |= {"norm": "rms", "norm_eps": hf.number("rms_norm_eps", 1e-6)}
    heads = hf.get("num_attention_heads_per_layer", [])
    if not isinstance(heads, list) or (heads and layer >= len(heads)):
        hf.refuse("num_attention_heads_per_layer", f"a list with an entry for layer {layer}")
    fields |= {"num_heads": heads[layer]} if heads else {}
    over = "element" if hf.only("gating", True, "per-head", "per-element") == "per-element" else "head"
    fields |= {"gate_over": over}
    if is_sliding(hf, layer, lambda n: "full_attention"):
        fields |= rotary(hf, fields["head_dim"], layer_type="sliding_attention")
        return over, fields | required_window_field(hf, layer, 512)
    hf.skip("sliding_window")
    positions = rotary(hf, fields["head_dim"], layer_type="full_attention", base=500000.0, share=0.5)
    return over, fields | positions


def gated(over: str, axes: str) -> Table:
    """AFMoE's table with gates of these axes."""
    names = {"w_gate": ("self_attn.g_proj.weight", f"({axes}) d -> d {axes}")}
    names |= {"b_gate": ("self_attn.g_proj.bias", f"({axes}) -> {axes}")}
    return replace(
        AFMOE,
        rules={**AFMOE.rules, **names},
        fixed={**AFMOE.fixed, **GATE, "gate_over": over},
        absent=("self_attn.g_proj.bias",),
        variant="decoder",
    )


LAYOUT = family(
    "LagunaModel",
    table_and_fields,
    {"element": gated("element", "h v"), "head": gated("head", "h f")},
    model_types=("laguna",),
)
