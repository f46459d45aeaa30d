"""`torch.nn.MultiheadAttention`: three projections in one array, or apart if the widths of the inputs differ.

The biases are packed either way. The heads are in order along the rows. The mask is not part of the file: True hides a
key there and allows it here. `bias_k` and `bias_v` are a memory of one key. The key of zeros of `add_zero_attn` leaves
no trace in a file: a caller who passes `variant="sinks"` says that it is there.
"""

from typing import Any

from attn_np.weights.layouts._base import Layout, Names, Table

PACKED: dict[Names, tuple[Names, str]] = {("w_q", "w_k", "w_v"): ("in_proj_weight", "(p h k) d -> p d h k")}
SPLIT: dict[Names, tuple[Names, str]] = {
    "w_q": ("q_proj_weight", "(h k) d -> d h k"),
    "w_k": ("k_proj_weight", "(h k) i -> i h k"),
    "w_v": ("v_proj_weight", "(h v) j -> j h v"),
}
COMMON: dict[Names, tuple[Names, str]] = {
    ("b_q", "b_k", "b_v"): ("in_proj_bias", "(p h k) -> p h k"),
    "w_o": ("out_proj.weight", "o (h v) -> h v o"),
    "b_o": ("out_proj.bias", "o -> o"),
}
MEMORY: dict[Names, tuple[Names, str]] = {
    "memory_k": ("bias_k", "a m (h k) -> (a m) h k"),
    "memory_v": ("bias_v", "a m (h v) -> (a m) h v"),
}


def table(projections: dict[Names, tuple[Names, str]], *, memory: bool = False, zero_key: bool = False) -> Table:
    """The table of a module with these projections, with a learned key and value or without, or with a key of zeros."""
    fixed: dict[str, Any] = {"memory_keys": 1} if memory else {"sink": "zero"} if zero_key else {}
    widths: Any = {"key_dim": "i", "value_dim": "j"} if projections is SPLIT else {}
    return Table(
        rules=projections | COMMON | (MEMORY if memory else {}),
        letters={"d_model": "d", "num_heads": "h"} | widths,
        flags={"use_bias": ("b_q", "b_k", "b_v", "b_o")},
        not_in_weights=("causal", "window"),  # the mask of a call there
        fixed=fixed,
        constants={"a": 1, "m": 1} if memory else {},
        variant="sinks" if zero_key else "mha",
    )


LAYOUT = Layout(
    origin="torch: nn.MultiheadAttention",
    variant_from_tensors=True,
    tables={
        "packed": table(PACKED),
        "split": table(SPLIT),
        "packed, memory": table(PACKED, memory=True),
        "split, memory": table(SPLIT, memory=True),
        "packed, key of zeros": table(PACKED, zero_key=True),
        "split, key of zeros": table(SPLIT, zero_key=True),
    },
    metadata={"format": "pt"},
)
