"""FlexOlmo as `transformers` names it: OLMo 2's norms, and experts, which are not part of attention."""

from typing import Any

from attn_np.weights.layouts import olmo2
from attn_np.weights.layouts._decoder import family
from attn_np.weights.layouts._hf_config import HFConfig, whole_head_rotary


def table_and_fields(hf: HFConfig, layer: int, part: str) -> tuple[str, dict[str, Any]]:
    """The table and fields of a `FlexOlmoConfig`."""
    fields = olmo2.fields_but_positions(hf, norm_eps=1e-6)
    return "decoder", fields | whole_head_rotary(hf, fields["head_dim"], base=500000.0)


LAYOUT = family(
    "FlexOlmoModel", table_and_fields, {"decoder": olmo2.TABLE}, model_types=("flex_olmo",), ignored=olmo2.IGNORED
)
