"""gpt-oss as `transformers` names it: a learned sink for each head, biases, and a window in every other layer."""

from typing import Any

from attn_np.weights.layouts._decoder import family, sizes, table, turned, window
from attn_np.weights.layouts._stated import Stated
from attn_np.weights.layouts.gemma2 import kind


def config(stated: Stated, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """`GptOssConfig`: the projections share one flag for their biases, which is True where it is not stated."""
    own, bias = sizes(stated, kv_heads=8, head_dim=64), stated.flag("attention_bias", True)
    own |= {"qkv_bias": bias, "output_bias": bias, "sinks": True}
    if "rope_parameters" not in stated and "rope_scaling" not in stated:
        stated.refuse("rope_parameters", "how positions are scaled")
    stated.skip(
        "num_local_experts", "num_experts", "num_experts_per_tok", "experts_per_token", "output_router_logits",
        "router_aux_loss_coef", "swiglu_alpha", "swiglu_limit", "initial_context_length", "sliding_window",
    )  # fmt: skip
    uncoded(stated)
    own |= turned(stated, own["head_dim"], base=150000.0)
    return "decoder", own | (window(stated, 128) if kind(stated, layer, 2) == "sliding_attention" else {})


def uncoded(stated: Stated) -> None:
    """A file whose weights are in a code is fine where it says that those of attention are not."""
    coded = stated.get("quantization_config")
    apart = coded.get("modules_to_not_convert") if isinstance(coded, dict) else None
    if coded is not None and not (isinstance(apart, list) and "model.layers.*.self_attn" in apart):
        stated.refuse("quantization_config", "'model.layers.*.self_attn' in its modules_to_not_convert")


TABLE = table(
    rules={"sinks": ("self_attn.sinks", "h -> h")},
    flags=("qkv_bias", "output_bias"),
    free=("window",),
    fixed={"sinks": True},
)
LAYOUT = family("GptOssModel", config, {"decoder": TABLE}, model_types=("gpt_oss",))
