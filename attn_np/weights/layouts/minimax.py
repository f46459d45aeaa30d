"""MiniMax-Text-01 as `transformers` names it: layers of softmax attention, as Mixtral's, and of lightning attention.

Lightning attention decays by slopes, the less the deeper the layer; files also hold them, and arrays made from them.
"""

from dataclasses import replace
from math import exp
from typing import Any

from attn_np.weights.layouts import mixtral
from attn_np.weights.layouts._base import Table
from attn_np.weights.layouts._decoder import family, sizes, skip_rotary, sliding_window_field
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `MiniMaxConfig`: by default every second layer is of lightning attention."""
    hf.skip("rotary_dim")  # the library rotates whole heads
    hf.skip("block_size", *(f"{kind}_{name}_factor" for kind in PLACES for name in ("alpha", "beta")))
    kinds = ("full_attention", "linear_attention")
    fields = sizes(hf, kv_heads=8)
    if hf.layer_type(layer, lambda n: kinds[n % 2], *kinds) == "full_attention":
        return "decoder", fields | whole_head_rotary(hf, fields["head_dim"], base=1000000.0) | sliding_window_field(hf)
    skip_rotary(hf)
    hf.skip("sliding_window")
    hf.only("hidden_act", "silu")  # of queries, keys and values as well
    layers = hf.integer("num_hidden_layers", 32)
    share = 1 - layer / (layers - 1 + 1e-5) + 1e-5
    rates = tuple(share * slope for slope in geometric(fields["num_heads"]))
    del fields["num_kv_heads"]
    return "retention", fields | LIGHTNING | {"decay": tuple(exp(-rate) for rate in rates)}


def geometric(heads: int) -> tuple[float, ...]:
    """The slopes of a plain geometric sequence, whatever the number of heads."""
    return tuple(2.0 ** (-8 * (h + 1) / heads) for h in range(heads))


PLACES = ("full_attn", "linear_attn", "mlp")
LIGHTNING: dict[str, Any] = {
    "scale": 1.0,
    "activation": "silu",
    "norm": "rms",
    "norm_over": "all",
    "norm_weight": "own",
    "norm_eps": 0.000001,
    "gate_activation": "sigmoid",
}
RETENTION = Table(
    rules={
        ("w_q", "w_k", "w_v"): ("self_attn.qkv_proj.weight", "(h p k) d -> p d h k"),
        "w_gate": ("self_attn.output_gate.weight", "(h v) d -> d h v"),
        "w_norm": ("self_attn.norm.weight", "(h v) -> h v"),
        "w_o": ("self_attn.out_proj.weight", "o (h v) -> h v o"),
    },
    letters={"d_model": "d", "num_heads": "h", "head_dim": "k"},
    not_in_weights=("decay", "decay_rule", "form", "chunk_size"),
    fixed=LIGHTNING,
)
TABLES = {**mixtral.LAYOUT.tables, "retention": RETENTION}
DERIVED_BUFFERS = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
LAYOUT = replace(
    family(
        "MiniMaxModel",
        table_and_fields,
        TABLES,
        model_types=("minimax",),
        ignored=("block_sparse_moe.*", *(f"self_attn.{name}" for name in DERIVED_BUFFERS)),
    ),
    variant_from_tensors=True,
)
