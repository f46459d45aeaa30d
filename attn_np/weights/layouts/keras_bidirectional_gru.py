"""Keras' `Bidirectional` around a `GRU`: a unit that reads each way, and their states side by side.

The output is that of `merge_mode="concat"`, Keras' default. Keys are the weights' paths, joined by slashes or dots, as
in layout `keras_gru`. They contain the name of the inner layer, which may be any.
"""

from dataclasses import replace

from attn_np.weights.layouts import keras_gru
from attn_np.weights.layouts._base import Layout, Names, Table, as_tuple

STARTS = {"layers.0": "forward_gru.gru_cell.", "backward_layers.0": "backward_gru.gru_cell."}


def both_ways(table: Table) -> Table:
    """The table of two units from that of one."""
    rules: dict[Names, tuple[Names, str]] = {}
    for unit, start in STARTS.items():
        for params, (key, pattern) in table.rules.items():
            rules[tuple(name.replace("layers.0", unit) for name in as_tuple(params))] = f"{start}{key}", pattern
    return replace(table, rules=rules, fixed={**table.fixed, "bidirectional": True})


LAYOUT = Layout(
    origin="keras: layers.Bidirectional of layers.GRU",
    variant_from_tensors=True,
    separator="/",
    renamed={r"(?<![^.])(forward|backward)_[^.]+\.gru_cell\.": r"\1_gru.gru_cell."},
    tables={name: both_ways(table) for name, table in keras_gru.LAYOUT.tables.items()},
)
