"""GPT-Neo as `transformers` names it: unscaled scores, a bias on the output alone, and a window in some layers."""

from dataclasses import replace
from typing import Any

from attn_np.weights.layouts._decoder import table
from attn_np.weights.layouts._hf_config import HFConfig
from attn_np.weights.layouts.gpt2 import LAYOUT as GPT2
from attn_np.weights.layouts.gpt2 import SUMMARY


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `GPTNeoConfig`: the model was trained with larger weights instead of a scale."""
    hf.check_layer("num_layers", layer)
    hf.skip("num_layers", "activation_function", "resid_dropout", "embed_dropout", "attention_layers")
    hf.skip(*(f"summary_{name}" for name in SUMMARY))
    window = hf.integer("window_size", 256)
    fields = {"d_model": hf.integer("hidden_size"), "num_heads": hf.integer("num_heads"), **UNSCALED}
    return "decoder", fields | ({"window": (window - 1, None)} if kind(hf, layer) == "local" else {})


def kind(hf: HFConfig, layer: int) -> str:
    """ "global" or "local", from `attention_types`: lists of kinds, each with how many times it is repeated."""
    start = 0
    for kinds, count in hf.get("attention_types", [[["global", "local"], 12]]):
        if layer < start + len(kinds) * count and kinds[(layer - start) % len(kinds)] in ("global", "local"):
            return kinds[(layer - start) % len(kinds)]
        start += len(kinds) * count
    return hf.refuse("attention_types", f"'global' or 'local' for layer {layer}")


UNSCALED = {"scale": 1.0, "rope_base": None, "output_bias": True}
LAYOUT = replace(
    GPT2,
    origin="transformers: GPTNeoModel",
    prefixes=("transformer.h.{layer}.", "h.{layer}."),
    tables={
        "decoder": table(
            not_in_weights=("window",), fixed=UNSCALED, names={"self_attn": "attn.attention", "o_proj": "out_proj"}
        )
    },
    ignored=("attn.attention.bias", "attn.attention.masked_bias", *GPT2.ignored),
    model_types=("gpt_neo",),
    table_and_fields=table_and_fields,
)
