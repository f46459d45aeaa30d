"""nanochat as `transformers` names it: norms without a weight after a rotation the other way round.

A pair that rotates backwards is the pair in the other order that rotates forwards. So the halves of each head of
queries and keys are exchanged: their scores are the same, and norms without a weight, too.
"""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._decoder import BIAS_FLAGS, DECODER, biases, family, sizes, table
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `NanoChatConfig`; the cap is that of the model's logits."""
    hf.skip("final_logit_softcapping")
    fields: dict[str, Any] = sizes(hf) | biases(hf) | NORM | {"norm_eps": hf.number("rms_norm_eps", 1e-6)}
    return "decoder", fields | whole_head_rotary(hf, fields["head_dim"])


NORM = {"norm": "rms", "norm_position": "after_rotation", "norm_weight": None}
HALVES: Any = {
    "w_q": ("self_attn.q_proj.weight", "(h x y) d -> d h (x y)"),
    "w_k": ("self_attn.k_proj.weight", "(g x y) d -> d g (x y)"),
    "b_q": ("self_attn.q_proj.bias", "(h x y) -> h (x y)"),
    "b_k": ("self_attn.k_proj.bias", "(g x y) -> g (x y)"),
}
TABLE = replace(
    table(rules=HALVES, flags=BIAS_FLAGS, not_in_weights=("norm_eps",), fixed=NORM),
    letters={**DECODER.letters, "head_dim": "v"},
    constants={"x": 2},
    orders={"x": (1, 0)},
)
LAYOUT = family("NanoChatModel", table_and_fields, {"decoder": TABLE}, model_types=("nanochat",))
