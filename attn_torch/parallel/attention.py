"""Attention over the positions of all processes: in a ring, with all keys gathered, or with heads for positions."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from attn_np.contract import _parallel as contract
from attn_np.contract._band import Limits
from attn_np.contract._patterns import Pattern
from attn_torch.attention.functions import attend, merge
from attn_torch.ops import dtype_name, to_dtype, upcast
from attn_torch.parallel.messages import gather, heads_for_positions, positions_for_heads, send_on
from attn_torch.parallel.visibility import seen_by_all, visible_by_position

# A context, `b t h v`, and the logarithm of its sum of exponentials, `b h t`.
Part = tuple[Tensor, Tensor]


def ring_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Any = None,
    causal: bool = False,
    window: Limits | int | None = None,
    pattern: Pattern | None = None,
    offset: Tensor | int | None = None,
    lengths: Tensor | None = None,
    layout: str = "contiguous",
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """`attend` over the keys of all processes, which travel around a ring: the context, `b t h v`.

    In each of n turns every process attends to the keys that it holds, merges the result with what it has, and sends
    the keys on: it holds those of one process at a time, and so does the backward pass. Liu et al. 2023,
    arXiv:2310.01889.

    Args:
        q, k, v: this process's queries `b t h k`, keys `b s g k` and values `b s g v`.
        group: a process group, or a `DeviceMesh` with one axis; all processes by default.
        causal, window: as in `attend`, by positions in the whole sequence.
        pattern: who may attend to whom by position, with this process's tensors, `b t` of queries and `b s` of keys.
        offset: the position of the first query of the whole sequence, an integer or `b`; by default the last query is
            at the last key.
        lengths: `b`, how many keys of each whole sequence are real.
        layout: which positions each process has, as `to_devices` cuts: "contiguous", "zigzag" or "striped".
        scale, softcap: as in `attend`.
        sinks: `h`, for each head one more score, without a value. It counts once, not once in each process.
        return_lse: whether to return a second result, `b h t`, the lse of `attend`.

    Raises:
        ValueError: shapes that do not fit, an unknown layout, a length that it does not divide, no processes, or
            another call in another process.
        TypeError: dtypes that do not fit, or no group.
    """
    group, visible = visible_by_position(
        "ring_attend", q, k, v, group=group, sinks=sinks, layout=layout, causal=causal, window=window, pattern=pattern,
        offset=offset, lengths=lengths, scale=scale, softcap=softcap,
    )  # fmt: skip
    call = attend_to(visible, scale, softcap)
    whole: Any = Ring.apply(q, k, v, group, call, contract.key_arrays(visible))
    return with_sinks(q, whole, sinks, return_lse)


def gather_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Any = None,
    causal: bool = False,
    window: Limits | int | None = None,
    pattern: Pattern | None = None,
    offset: Tensor | int | None = None,
    lengths: Tensor | None = None,
    layout: str = "contiguous",
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """`attend` over the keys of all processes, which every process gets at once: the context, `b t h v`.

    One message in place of n - 1, and memory for all keys. Arguments and results are those of `ring_attend`.

    Raises:
        ValueError: shapes that do not fit, an unknown layout, a length that it does not divide, no processes, or
            another call in another process.
        TypeError: dtypes that do not fit, or no group.
    """
    group, visible = visible_by_position(
        "gather_attend", q, k, v, group=group, sinks=sinks, layout=layout, causal=causal, window=window,
        pattern=pattern, offset=offset, lengths=lengths, scale=scale, softcap=softcap,
    )  # fmt: skip
    keys = [gather(x, group) for x in (k, v, *contract.key_arrays(visible))]
    return with_sinks(q, attend_to(visible, scale, softcap)(q, *keys), sinks, return_lse)


def ulysses_attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Any = None,
    causal: bool = False,
    window: Limits | int | None = None,
    pattern: Pattern | None = None,
    offset: Tensor | int | None = None,
    lengths: Tensor | None = None,
    layout: str = "contiguous",
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """`attend` with heads exchanged for positions: every process has all positions of some heads; `b t h v`.

    One exchange before, of queries, keys and values, and one after, of the context. The processes divide the heads of
    the queries; heads of keys and values that they do not divide are repeated as often as needed. Arguments and results
    are those of `ring_attend`. Jacobs et al. 2023, arXiv:2309.14509.

    Raises:
        ValueError: shapes that do not fit, an unknown layout, heads or lengths that cannot be divided, no processes, or
            another call in another process.
        TypeError: dtypes that do not fit, or no group.
    """
    group, visible = visible_by_position(
        "ulysses_attend", q, k, v, group=group, sinks=sinks, layout=layout, causal=causal, window=window,
        pattern=pattern, offset=offset, lengths=lengths, scale=scale, softcap=softcap,
    )  # fmt: skip
    n = dist.get_world_size(group)
    contract.check_heads("ulysses_attend", q.shape[2], n)
    copies = contract.head_copies(k.shape[2], n)
    arrays = q, k.repeat_interleave(copies, 2), v.repeat_interleave(copies, 2)
    q_heads, k_heads, v_heads = (heads_for_positions(x, group) for x in arrays)
    keys = [gather(x, group) for x in contract.key_arrays(visible)]
    context, lse = attend_to(seen_by_all(visible, group), scale, softcap)(q_heads, k_heads, v_heads, *keys)
    context = positions_for_heads(context, group)
    if sinks is not None or return_lse:
        lse = positions_for_heads(lse.mT[..., None], group)[..., 0].mT
        return with_sinks(q, (context, lse), sinks, return_lse)
    return to_dtype(context, dtype_name(q))


# Parts and their merge ------------------------------------------------------------------------------------------------


def attend_to(visible: Pattern | None, scale: float | None, softcap: float | None) -> Callable[..., Part]:
    """A function of q, and of the k, v and tensors of the pattern that a process holds: what q gets of these."""

    def call(q: Tensor, k: Tensor, v: Tensor, *arrays: Tensor) -> Part:
        part = contract.with_key_arrays(visible, arrays)
        context, _, lse = attend(q, k, v, pattern=part, scale=scale, softcap=softcap, return_lse=True)
        return upcast(context), lse

    return call


class Ring(torch.autograd.Function):
    """Context and lse of the keys of all processes."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        group: ProcessGroup,
        call: Callable[..., Part],
        arrays: Sequence[Tensor],
    ) -> Part:
        travelling, n = [k, v, *arrays], dist.get_world_size(group)
        whole = None
        for turn in range(n):
            wait = send_on(travelling, group) if turn < n - 1 else None
            part = call(q, *travelling)  # while the next keys arrive
            whole = part if whole is None else merge([whole, part])
            travelling = wait() if wait else travelling
        ctx.group, ctx.call, ctx.arrays = group, call, arrays
        ctx.save_for_backward(q, k, v, *whole)  # type: ignore[misc]
        return whole  # type: ignore[return-value]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # type: ignore[override]
        """One more round. The gradients of keys and values travel with them, and after n turns they are home."""
        q, k, v, *whole = ctx.saved_tensors
        travelling, n = [k, v, *ctx.arrays], dist.get_world_size(ctx.group)
        dq, *dkv = (torch.zeros_like(upcast(x)) for x in (q, k, v))
        for turn in range(n):
            wait = send_on(travelling, ctx.group) if turn < n - 1 else None
            with torch.enable_grad():
                leaves = [x.detach().requires_grad_() for x in (q, *travelling[:2])]
                part = ctx.call(*leaves, *travelling[2:])
            cotangents = part_cotangents(tuple(x.detach() for x in part), tuple(whole), grad_outputs)
            dq_part, *dkv_part = torch.autograd.grad(part, leaves, cotangents)
            dq = dq + dq_part
            wait_for_gradients = send_on([x + dx for x, dx in zip(dkv, dkv_part, strict=True)], ctx.group)
            travelling, dkv = wait() if wait else travelling, wait_for_gradients()
        grads = (to_dtype(dx, dtype_name(x)) for dx, x in zip((dq, *dkv), (q, k, v), strict=True))
        return *grads, None, None, None


def part_cotangents(part: Part, whole: Part, cotangents: Part) -> Part:
    """The gradients of a part's context and lse, from those of all parts' context y and lse.

    A part weighs w = exp(its lse - lse) in y = sum w context, so its context gets w dy. A larger lse of its own raises
    w, lowers the weights of the others and raises lse: dlse_part = w (dy . (context - y) + dlse).
    """
    (context, lse_part), (y, lse), (dy, dlse) = part, whole, cotangents
    weight = torch.where(lse_part == -torch.inf, 0.0, torch.exp(lse_part - lse))
    gain = (dy * (context - y)).sum(-1).mT + dlse
    return weight.mT[..., None] * dy, torch.where(weight == 0, 0.0, weight * gain)


def with_sinks(q: Tensor, whole: Part, sinks: Tensor | None, return_lse: bool) -> Any:
    """What the functions return, of all keys' part and the sinks, in the dtype of the queries.

    The sinks are one more part: a key with the score of its head's sink and a value of 0.
    """
    context, lse = whole
    if sinks is not None:
        sink = sinks.to(lse.dtype)[:, None].expand(lse.shape)
        context, lse = merge([whole, (torch.zeros_like(context), sink)])
    y = to_dtype(context, dtype_name(q))
    return (y, lse) if return_lse else y
