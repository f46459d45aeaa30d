"""Which positions of a sequence each device has, and arrays cut and joined by it."""

import numpy as np

from attn_np.attention.functions import to_python_scalar
from attn_np.contract import _parallel as contract
from attn_np.contract._base import check_present
from attn_np.ops import Array
from attn_np.ops.specs import checked_specs


def positions(t: int, *, devices: int, layout: str = "contiguous") -> Array:
    """The positions of every device in the whole sequence, `n t`.

    Args:
        t: how many positions each device has.
        devices: how many devices there are, n.
        layout: "contiguous", "zigzag" or "striped".

    Raises:
        ValueError: an unknown layout, or a number of positions that it does not divide.
    """
    t, devices = to_python_scalar(t), to_python_scalar(devices)
    contract.check_cut("positions", (1, t * devices), devices, layout)
    return contract.shard_positions(np.arange(devices)[:, None], devices, t, layout, np.arange(t))


def to_devices(x: Array, *, devices: int, layout: str = "contiguous") -> Array:
    """The array cut along its positions, a part for each device: `b (n t) ...` -> `n b t ...`.

    Args:
        x: any array `b t ...`, such as keys, gates or the numbers of documents.
        devices: how many devices there are, n.
        layout: "contiguous": one piece each; "zigzag": chunk i of 2 n and the ith from the end, so that under causality
            all devices see as many keys; "striped": every nth position.

    Raises:
        ValueError: an unknown layout, or a length that the devices do not divide.
    """
    devices = to_python_scalar(devices)
    shape = check_present("to_devices", "x", checked_specs("to_devices", x=x)["x"])[0]
    contract.check_cut("to_devices", shape, devices, layout)
    return x[:, positions(shape[1] // devices, devices=devices, layout=layout)].swapaxes(0, 1)


def from_devices(x: Array, *, layout: str = "contiguous") -> Array:
    """The devices' parts joined to the whole sequence: `n b t ...` -> `b (n t) ...`, the inverse of `to_devices`.

    Raises:
        ValueError: an unknown layout, or shapes that no cut gives.
    """
    shape = check_present("from_devices", "x", checked_specs("from_devices", x=x)["x"])[0]
    contract.check_parts("from_devices", shape, layout, "n b t")
    n, b, t, *rest = shape
    order = positions(t, devices=n, layout=layout).reshape(-1)
    return x.swapaxes(0, 1).reshape(b, n * t, *rest)[:, np.argsort(order)]
