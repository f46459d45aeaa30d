"""Which positions of a sequence each device has, and whole arrays put into that order and back."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AxisType

from attn_jax.attention.functions import to_python_scalar
from attn_jax.ops.specs import checked_specs
from attn_jax.parallel.messages import axis_size
from attn_np.contract import _parallel as contract
from attn_np.contract._base import check_present, require


def positions(t: int, *, axis_name: str | tuple[str, ...], layout: str = "contiguous") -> Array:
    """The positions in the whole sequence that this device has, `t`; inside `shard_map`.

    Args:
        t: how many positions each device has.
        axis_name: the axis of the mesh that the sequence lies on, or several.
        layout: "contiguous", "zigzag" or "striped".

    Raises:
        ValueError: an unknown axis or layout, or a number of positions that the layout does not divide.
    """
    t, devices = to_python_scalar(t), axis_size("positions", axis_name)
    contract.check_cut("positions", (1, t * devices), devices, layout)
    return contract.shard_positions(lax.axis_index(axis_name), devices, t, layout, jnp.arange(t, dtype=jnp.int32))


def to_devices(x: Array, *, devices: int, layout: str = "contiguous") -> Array:
    """The array in the order of the devices, `b (n t) ...`; outside of `shard_map`, which gives each its equal part.

    Args:
        x: any array `b t ...` of all positions, such as keys, gates or the numbers of documents.
        devices: how many devices the sequence lies on, n.
        layout: "contiguous": one piece each, the order as it is; "zigzag": chunk i of 2 n and the ith from the end, so
            that under causality all devices see as many keys; "striped": every nth position.

    Raises:
        ValueError: an unknown layout, a length that the devices do not divide, or positions that lie on the devices of
            an explicit axis already.
    """
    return reordered("to_devices", x, device_order("to_devices", x, devices, layout))


def from_devices(x: Array, *, devices: int, layout: str = "contiguous") -> Array:
    """The array in the order of the sequence again, `b (n t) ...`, the inverse of `to_devices`.

    Raises:
        ValueError: an unknown layout, a length that the devices do not divide, or positions that lie on the devices of
            an explicit axis already.
    """
    return reordered("from_devices", x, np.argsort(device_order("from_devices", x, devices, layout)))


def reordered(who: str, x: Array, order: np.ndarray) -> Array:
    """The positions in another order; refuses those that lie on the devices of an explicit axis.

    Raises:
        ValueError: naming the axis.
    """
    if np.array_equal(order, np.arange(len(order))):
        return x
    sharding = jax.typeof(x).sharding
    axis = sharding.spec[1] if AxisType.Explicit in sharding.mesh.axis_types else None
    fix = "call it with jax.sharding.reshard(x, jax.P())"
    require(axis is None, who, "positions that every device has, on a mesh with explicit axes", f"axis {axis!r}", fix)
    return jnp.take(x, order, axis=1)


def device_order(who: str, x: Array, devices: int, layout: str) -> np.ndarray:
    """The positions of the first device, then those of the second, and so on; refuses what cannot be divided."""
    devices = to_python_scalar(devices)
    shape = check_present(who, "x", checked_specs(who, x=x)["x"])[0]
    contract.check_cut(who, shape, devices, layout)
    t = shape[1] // devices
    return contract.shard_positions(np.arange(devices)[:, None], devices, t, layout, np.arange(t)).reshape(-1)
