"""Who may attend to whom, where queries and keys lie in several processes."""

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from attn_np.contract import _functions as functions_contract
from attn_np.contract import _parallel as contract
from attn_np.contract._patterns import At, Pattern, check_pattern
from attn_torch.attention.functions import to_python_scalar
from attn_torch.ops import known_range
from attn_torch.ops.specs import checked_specs, spec_of
from attn_torch.parallel.layouts import positions
from attn_torch.parallel.messages import described, gather, group_of, same_call


def visible_by_position(
    who: str, q: Tensor, k: Tensor, v: Tensor, *, group: Any, sinks: Tensor | None, layout: Any, causal: Any,
    window: Any, pattern: Any, offset: Any, lengths: Tensor | None, scale: Any, softcap: Any,
) -> tuple[ProcessGroup, Pattern | None]:  # fmt: skip
    """The process group, and who may attend to whom for this process's queries and keys; None if everyone to everyone.

    A call that cannot be right, or that another process makes otherwise, is refused.
    """
    group = group_of(who, group)

    def checked() -> tuple[str, Pattern | None]:
        masking = {"causal": causal, "window": window, "offset": offset, "lengths": lengths}
        contract.check_numbers(scale, softcap, to_python_scalar)
        visible = checked_pattern(who, group, q, k, v, sinks=sinks, layout=layout, pattern=pattern, **masking)
        given = {"q": q, "k": k, "v": v, "sinks": sinks, "layout": layout, **masking, "pattern": pattern}
        given |= {"scale": scale, "softcap": softcap}
        return "; ".join(described(name, x) for name, x in given.items()), visible

    return group, same_call(who, group, getattr(q, "device", None), checked)


def checked_pattern(
    who: str, group: ProcessGroup, q: Tensor, k: Tensor, v: Tensor, *, sinks: Tensor | None, layout: Any, causal: Any,
    window: Any, pattern: Any, offset: Any, lengths: Tensor | None,
) -> Pattern | None:  # fmt: skip
    """Who may attend to whom; refuses what cannot be right."""
    for name, x in {"q": q, "k": k, "v": v}.items():
        if hasattr(x, "to_local"):
            raise TypeError(
                f"{who}: expected {name} as this process's own tensor, got a DTensor; pass {name}.to_local()"
            )
    contract.check_shards(who, checked_specs(who, q=q, k=k, v=v, sinks=sinks), layout)
    n, (b, t), s = dist.get_world_size(group), q.shape[:2], k.shape[1]
    causal, offset = to_python_scalar(causal), to_python_scalar(offset)
    window = functions_contract.python_window(window, to_python_scalar)
    if hasattr(offset, "shape") and offset.shape == ():
        offset = offset.expand(b)
    check_masking(who, q, k, causal, window, pattern, offset, lengths)
    check_pattern(who, pattern, {"b": b, "t": t, "s": s}, spec_of)
    pattern = contract.pattern_of_call(causal, window, pattern, lengths)
    if pattern is None:
        return None
    start = n * (s - t) if offset is None else offset[:, None] if hasattr(offset, "shape") else offset
    query_positions, key_positions = (
        positions(length, group=group, layout=layout, device=q.device) for length in (t, s)
    )
    return At(pattern, (query_positions + start).expand(b, t), key_positions.expand(b, s))


def check_masking(
    who: str, q: Tensor, k: Tensor, causal: Any, window: Any, pattern: Any, offset: Any, lengths: Tensor | None
) -> None:
    """Refuse what `attend` refuses in one device's call."""
    is_array = hasattr(offset, "shape")
    array_specs = checked_specs(who, q=q, k=k, lengths=lengths, offset=offset if is_array else None)
    functions_contract.check_offset_and_lengths(array_specs, None if is_array else offset, causal, window, pattern)
    if offset is not None:
        functions_contract.check_offset(known_range(offset) if is_array else (offset,))
    functions_contract.check_lengths(None if lengths is None else known_range(lengths))


def seen_by_all(visible: Pattern | None, group: ProcessGroup) -> Any:
    """The pattern for the queries of all processes."""
    return visible and visible.map(lambda axes, x: gather(x, group) if axes == "b t" else x)
