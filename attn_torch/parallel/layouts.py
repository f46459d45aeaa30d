"""Which positions of a sequence each process has, and tensors cut and joined by it."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from attn_np.contract import _parallel as contract
from attn_np.contract._base import check_present
from attn_torch.attention.functions import to_python_scalar
from attn_torch.ops.specs import checked_specs
from attn_torch.parallel.messages import described, gather, group_of, same_call


def positions(t: int, *, group: Any = None, layout: str = "contiguous", device: Any = None) -> Tensor:
    """The positions in the whole sequence that this process has, `t`.

    Args:
        t: how many positions each process has.
        group: a process group, or a `DeviceMesh` with one axis; all processes by default.
        layout: "contiguous", "zigzag" or "striped".
        device: that of the tensor.

    Raises:
        ValueError: an unknown layout, a number of positions that it does not divide, or no processes.
        TypeError: no group.
    """
    group, t = group_of("positions", group), to_python_scalar(t)
    n, me = dist.get_world_size(group), dist.get_rank(group)
    contract.check_cut("positions", (1, t * n), n, layout)
    return contract.shard_positions(me, n, t, layout, torch.arange(t, device=device))


def to_devices(x: Tensor, *, group: Any = None, layout: str = "contiguous") -> Tensor:
    """This process's part of a whole tensor: `b (n t) ...` -> `b t ...`. Nothing is sent.

    Args:
        x: any tensor `b t ...` of all positions, the same in every process, such as keys, gates or the numbers of
            documents.
        group: a process group, or a `DeviceMesh` with one axis; all processes by default.
        layout: "contiguous": one piece each; "zigzag": chunk i of 2 n and the ith from the end, so that under causality
            all processes see as many keys; "striped": every nth position.

    Raises:
        ValueError: an unknown layout, a length that the processes do not divide, or no processes.
        TypeError: no tensor or no group.
    """
    group = group_of("to_devices", group)
    shape = check_present("to_devices", "x", checked_specs("to_devices", x=x)["x"])[0]
    n = dist.get_world_size(group)
    contract.check_cut("to_devices", shape, n, layout)
    return x[:, positions(shape[1] // n, group=group, layout=layout, device=x.device)]


def from_devices(x: Tensor, *, group: Any = None, layout: str = "contiguous") -> Tensor:
    """The whole tensor in every process, from the parts of all: `b t ...` -> `b (n t) ...`, without a gradient.

    Raises:
        ValueError: an unknown layout, an odd length in a zigzag, no processes, or another call in another process.
        TypeError: no tensor or no group.
    """
    group = group_of("from_devices", group)

    def checked() -> tuple[str, Tensor]:
        shape = check_present("from_devices", "x", checked_specs("from_devices", x=x)["x"])[0]
        contract.check_parts("from_devices", shape, layout, "b t")
        return f"{described('x', x.detach())}; {layout=}", x.detach()

    return in_order(same_call("from_devices", group, getattr(x, "device", "cpu"), checked), group, layout)


def in_order(x: Tensor, group: ProcessGroup, layout: str) -> Tensor:
    """The whole tensor in every process, whose gradient goes back to the parts."""
    n, t = dist.get_world_size(group), x.shape[1]
    parts = [contract.shard_positions(i, n, t, layout, torch.arange(t, device=x.device)) for i in range(n)]
    return gather(x, group)[:, torch.argsort(torch.cat(parts))]
