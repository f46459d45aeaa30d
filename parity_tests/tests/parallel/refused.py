"""Calls of `parallel` that cannot be right, with the words that the three trees share.

Of each: the function, changes of the arrays of one of `DEVICES` devices, other arguments, the error and its words.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from attn_np import patterns

DEVICES = 4
X = np.zeros((2, 6, 4, 3))
ARRAYS = {"q": X, "k": X[:, :, :2], "v": X[:, :, :2]}
RING = "ring_attend: expected"
REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "layout": (
        "ring_attend",
        {},
        {"layout": "spiral"},
        ValueError,
        f"{RING} layout to be one of contiguous, zigzag, striped, got 'spiral'; set layout=",
    ),
    "a list of layouts": (
        "gather_attend",
        {},
        {"layout": ["zigzag"]},
        ValueError,
        "gather_attend: expected layout to be one of contiguous, zigzag, striped, got ['zigzag']; set layout=",
    ),
    "queries of odd length": (
        "ring_attend",
        {"q": X[:, :5]},
        {"layout": "zigzag"},
        ValueError,
        f"{RING} queries with an even number of positions on each device for layout='zigzag', got 5; pad the sequence",
    ),
    "keys of odd length": (
        "ring_attend",
        {"k": X[:, :3, :2], "v": X[:, :3, :2]},
        {"layout": "zigzag"},
        ValueError,
        f"{RING} keys with an even number of positions on each device for layout='zigzag', got 3; pad the sequence",
    ),
    "heads": (
        "ulysses_attend",
        {"q": np.zeros((2, 6, 6, 3))},
        {},
        ValueError,
        "ulysses_attend: expected queries with a multiple of 4 heads, one for each device, got 6; call ring_attend or",
    ),
    "no heads": (
        "ring_attend",
        {"q": X[:, :, 0]},
        {},
        ValueError,
        f"{RING} q with four axes on each device, got (2, 6, 3); batch, positions, heads, width",
    ),
    "values of another length": (
        "ring_attend",
        {"v": X[:, :4, :2]},
        {},
        ValueError,
        f"{RING} v of shape (2, 6, 2, 3), got (2, 4, 2, 3); q is b t h k, k is b s g k, v is b s g v, sinks are h",
    ),
    "keys of another width": (
        "ring_attend",
        {"k": X[:, :, :2, :2]},
        {},
        ValueError,
        f"{RING} k of shape (2, 6, 2, 3), got (2, 6, 2, 2); q is",
    ),
    "shared heads": (
        "ring_attend",
        dict.fromkeys("kv", X[:, :, :3]),
        {},
        ValueError,
        f"{RING} queries with a multiple of the 3 heads of keys and values, got 4; repeat some heads",
    ),
    "sinks": (
        "ring_attend",
        {},
        {"sinks": np.zeros(3)},
        ValueError,
        f"{RING} sinks of shape (4,), got (3,); q is b t h k",
    ),
    "two dtypes": (
        "ring_attend",
        {"v": X[:, :, :2].astype("float32")},
        {},
        TypeError,
        f"{RING} v of dtype float64, got float32; convert it",
    ),
    "no floats": (
        "ring_attend",
        {"q": X > 0},
        {},
        TypeError,
        f"{RING} q of dtype float64 or float32 or bfloat16 or flo",
    ),
    "no keys": ("ring_attend", {"k": None}, {}, TypeError, f"{RING} an array for k, got None; pass k="),
    "window": (
        "ring_attend",
        {},
        {"window": (-1, 0)},
        ValueError,
        "attend: expected window to be a tuple (left, right) of ints from 0, got (-1, 0); say how many keys",
    ),
    "pattern": (
        "ring_attend",
        {},
        {"pattern": "causal"},
        TypeError,
        "attend: expected pattern to be one of `patterns`, such as",
    ),
    "offset": ("ring_attend", {}, {"offset": 0.5}, ValueError, "attend: expected offset as an integer, or an array of"),
    "lengths": (
        "ring_attend",
        {},
        {"lengths": np.array([1, 2, 3])},
        ValueError,
        "attend: expected lengths of shape (b,) = (2,), got (3,); give one for each sequence",
    ),
    "softcap": (
        "ring_attend",
        {},
        {"softcap": -1.0},
        ValueError,
        "attend: expected softcap to be a finite int or float abo",
    ),
    "rule": (
        "recur",
        {},
        {"rule": "gru"},
        ValueError,
        "recur: expected rule to be one of linear, gated, delta, gated_del",
    ),
    "a decay": (
        "recur",
        {},
        {"decay": np.ones(2)},
        ValueError,
        "recur: expected no decay= with rule='linear', got one; rule='gated'",
    ),
    "state": (
        "recur",
        {},
        {"state": np.zeros((2, 4, 3, 3))},
        ValueError,
        "recur: expected state of shape (2, 2, 3, 3), got (2, 4, 3, 3); ",
    ),
    "chunks": (
        "recur",
        {},
        {"chunk_size": 0},
        ValueError,
        "recur: expected chunk_size to be an integer of at least 1, got 0",
    ),
}
# Whole arrays that cannot be cut: the shape, other arguments, and the words.
UNCUT: dict[str, tuple[tuple[int, ...], dict[str, Any], str]] = {
    "length": (
        (2, 6, 3),
        {},
        "to_devices: expected positions in a multiple of 4, for 4 devices and layout='contiguous', got 6; pad",
    ),
    "a zigzag": (
        (2, 12),
        {"layout": "zigzag"},
        "to_devices: expected positions in a multiple of 8, for 4 devices and layout='zigzag', got 12; pad",
    ),
    "layout": (
        (2, 8),
        {"layout": "ring"},
        "to_devices: expected layout to be one of contiguous, zigzag, striped, got 'ring'; set",
    ),
    "axes": (
        (8,),
        {},
        "to_devices: expected x with the axes b t ..., got (8,); put the batch first, then the positions",
    ),
}
# Calls of `apply` on one device's part `2 6 12`: variant, fields, options, the error and its words. `numbers` are those
# of documents, for a pattern.
NUMBERS = np.zeros((2, 6), int)
REFUSED_LAYERS: dict[str, tuple[str, dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "documents of a layer without them": (
        "decoder",
        {"causal": True},
        {"documents": NUMBERS},
        ValueError,
        "apply: decoder: expected arguments of the layer's call, got documents; say pattern=patterns.Documents(d, d), "
        "with d the numbers on this device",
    ),
    "positions": (
        "decoder",
        {"causal": True, "rope_base": 100.0},
        {"positions": NUMBERS},
        ValueError,
        "apply: decoder: expected arguments of the layer's call, got positions; leave it out: apply says which "
        "positions each device has",
    ),
    "a pattern of a layer that gathers keys": (
        "alibi",
        {"causal": True},
        {"numbers": NUMBERS},
        ValueError,
        "apply: expected pattern= with keys that travel in a ring, got a call that gathers them; leave out tape=, ",
    ),
    "a pattern with a tape": (
        "mha",
        {"causal": True},
        {"numbers": NUMBERS, "tape": {}},
        ValueError,
        "apply: expected pattern= with keys that travel in a ring, got a call that gathers them; leave out tape=, ",
    ),
    "a pattern of a layer with a state": (
        "gla",
        {"head_dim": 2},
        {"numbers": NUMBERS},
        ValueError,
        "apply: gla: expected a layer without a state for pattern=, got one with a state; say documents=",
    ),
    "no pattern": (
        "mha",
        {"causal": True},
        {"pattern": "documents"},
        TypeError,
        "apply: mha: expected pattern to be one of `patterns`, such as patterns.Chunks(128), or None, got str; ",
    ),
    "a pattern of another length": (
        "mha",
        {"causal": True},
        {"numbers": NUMBERS[:, :5]},
        ValueError,
        "apply: mha: expected an array of the pattern of shape ",
    ),
}


def arguments(case: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The function, the arrays of one device, and the other arguments."""
    function, changes, options, *_ = REFUSED[case]
    return function, ARRAYS | changes, options


def layer_arguments(case: str, put: Callable[[np.ndarray], Any]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The variant, its fields, and the options of the call, whose arrays a tree has put where they belong."""
    variant, fields, options, *_ = REFUSED_LAYERS[case]
    given = {name: put(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    numbers = given.pop("numbers", None)
    given |= {} if numbers is None else {"pattern": patterns.Documents(numbers, numbers)}
    return variant, {"d_model": 12, "num_heads": 2} | fields, given
