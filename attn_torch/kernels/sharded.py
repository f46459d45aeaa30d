"""DTensors: every process attends over its own part of the batch and its own heads.

PyTorch's kernel has no sharding strategy on a CPU, and blocks are an operation that DTensors do not know: both run on
local parts. Whatever else is sharded, such as positions, is gathered before.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from attn_torch.kernels.unseen import PackedPattern
from attn_torch.ops import to_device_of

SHARDING_AXES = {"q": "bthk", "k": "bshk", "v": "bshv", "mask": "bhts", "bias": "bhts", "sinks": "h"}
SHARDING_AXES |= {"diagonal_bias": "bhxn", "by_query": "bnt", "by_key": "bns", "by_batch": "bn"}


def is_sharded(x: Tensor) -> bool:
    """Whether an array is a DTensor; importing their module takes longer than to look."""
    return type(x) is not Tensor and hasattr(x, "device_mesh")


def attend_locally(
    attend: Callable[..., tuple[Tensor, Tensor | None]],
    q: Any,
    k: Any,
    v: Any,
    arrays: dict[str, Any],
    options: dict[str, Any],
    pattern: PackedPattern,
) -> tuple[Tensor, Tensor | None]:
    """What `attend` gives of the local parts of DTensors, as DTensors sharded as the queries are.

    Args:
        arrays: mask, bias and bias by diagonal with four axes and sinks, or None.
        options: arguments without arrays.
        pattern: who may attend to whom besides.
    """
    from torch.distributed.tensor import Partial, Placement, Replicate, Shard
    from torch.distributed.tensor.experimental import local_map

    # A single key/value head serves all query heads, wherever they are.
    heads = k.shape[2] if k.shape[2] > 1 else q.shape[2]
    mesh, sizes = q.device_mesh, {"b": q.shape[0], "h": heads}
    letters: list[str | None] = []  # the axis that each axis of the mesh splits
    for n, placement in zip(mesh.shape, q.placements, strict=True):
        letter = {Shard(0): "b", Shard(2): "h"}.get(placement)
        if letter is not None and sizes[letter] % n == 0:
            sizes[letter] //= n
        else:
            letter = None
        letters.append(letter)

    def placements(shape: Any, axes: str, absent: Placement) -> list[Placement]:
        """How the mesh splits an array: along the axes that queries are split along; `absent` for those it lacks."""
        at = {letter: axes.index(letter) for letter in axes if shape[axes.index(letter)] > 1}
        return [Shard(at[a]) if a in at else Replicate() if a is None else absent for a in letters]

    arrays = {"q": q, "k": k, "v": v} | arrays | pattern._asdict()
    present = [(arrays[name], axes, name) for name, axes in SHARDING_AXES.items() if arrays[name] is not None]

    def local(*parts: Tensor) -> tuple[Tensor, Tensor | None]:
        local_arrays = dict.fromkeys(SHARDING_AXES) | dict(zip((name for _, _, name in present), parts, strict=True))
        pattern_arrays = [local_arrays.pop(name) for name in pattern._fields[1:]]
        local_pattern = PackedPattern(pattern.text, *pattern_arrays).pattern()
        return attend(**local_arrays, pattern=local_pattern, **options)

    b, t, h, _ = q.shape
    lse = placements((b, h, t), "bht", Replicate()) if options["return_lse"] else None
    mapped: Any = local_map(
        local,
        out_placements=(placements(q.shape, "bthv", Replicate()), lse),
        in_placements=tuple(placements(x.shape, a, Replicate()) for x, a, _ in present),
        in_grad_placements=tuple(placements(x.shape, a, Partial()) for x, a, _ in present),
        device_mesh=mesh,
        redistribute_inputs=True,
    )
    return mapped(*(x if is_sharded(x) else to_device_of(x, q) for x, _, _ in present))
