"""uMT5 as `transformers` names it: T5 whose every block has a table of distances of its own."""

from dataclasses import replace

from attn_np.weights.layouts.t5 import LAYOUT as T5

LAYOUT = replace(
    T5,
    origin="transformers: UMT5Model",
    tables={**T5.tables, "t5_bias": replace(T5.tables["t5_bias"], first_layer_keys=())},
    model_types=("umt5",),
)
