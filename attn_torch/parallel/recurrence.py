"""`recur` over the positions of all processes, in parallel: what each does to the state, combined in order."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from attn_np.contract import _recur as recur_contract
from attn_torch.attention.functions import to_python_scalar
from attn_torch.ops import dtype_name, einsum, group_heads, to_dtype, upcast
from attn_torch.ops.specs import checked_specs
from attn_torch.parallel.messages import Gather, described, group_of, same_call
from attn_torch.recurrence.functions import recur as local_recur


def recur(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    group: Any = None,
    rule: str = "linear",
    beta: Tensor | None = None,
    decay: Tensor | None = None,
    state: Tensor | None = None,
    form: str = "auto",
    chunk_size: int = 64,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`recur` over the positions of all processes: the outputs, `b t h v`, and the last state, `b g k v`, in every one.

    Every rule is linear in the state: a process's positions turn a state S into A S + B. One call in each process finds
    both: B from an empty state, and A in as many more columns as keys are wide, which start from the identity and get
    values of 0. In these columns a query reads what it would read of S. So no process waits for the one before it; then
    every process gets the pairs (A, B) of all, combines them in order, and adds what its queries read of the state
    before it. What processes send does not grow with t. The layout is contiguous.

    Args:
        q, k, v: this process's queries `b t h k`, keys `b t g k` and values `b t g v`.
        group: a process group, or a `DeviceMesh` with one axis; all processes by default.
        rule, form, chunk_size, scale: as in `recur`; the chunks are those of each process.
        beta, decay: as in `recur`; what has an axis t is this process's.
        state: `b g k v`, the one before the first position of all, the same in every process; 0 by default. Only the
            first process returns a gradient of it that is not 0.

    Raises:
        ValueError: shapes that do not fit, an unknown rule or form, a decay that the rule has no use for, no processes,
            or another call in another process.
        TypeError: dtypes that do not fit, or no group.
    """
    group = group_of("recur", group)
    scale, chunk_size = to_python_scalar(scale), to_python_scalar(chunk_size)
    arrays = {"q": q, "k": k, "v": v, "beta": beta, "decay": decay, "state": state}
    options: dict[str, Any] = {"rule": rule, "form": form, "chunk_size": chunk_size, "scale": scale}

    def checked() -> tuple[str, None]:
        array_specs = checked_specs("recur", **arrays)
        recur_contract.check_qkv_present(array_specs)
        recur_contract.check_recur(array_specs, rule, form, chunk_size, scale, dtype_name(upcast(q)))
        return "; ".join(described(name, x) for name, x in (arrays | options).items()), None

    same_call("recur", group, getattr(q, "device", None), checked)
    own, reads, A, B = of_this_process(q, k, v, beta, decay, options)
    first = torch.zeros_like(B) if state is None else state
    before, last = States.apply(A, B, first, group)
    y = own + einsum("btgrk,bgkv->btgrv", reads, before).reshape(own.shape)
    return to_dtype(y, dtype_name(q)), last


def run_form(
    form: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], v: Tensor, first: Tensor, group: ProcessGroup
) -> tuple[Tensor, Tensor]:
    """The outputs `b t h v` of a form of a recurrence over the positions of all processes, and the last state.

    Args:
        form: from values `b t h v` and a first state `b g k v` to the outputs and the last state of this process's
            positions, linear in both.
        v: this process's values.
        first: the state before the first position of all, the same in every process.
        group: the processes.
    """
    (b, g, width, value_width) = first.shape
    identity = torch.eye(width, dtype=first.dtype, device=first.device).expand(b, g, width, width)
    wide = torch.cat([v, v.new_zeros((*v.shape[:-1], width))], -1)
    y, change = form(wide, torch.cat([torch.zeros_like(first), identity], -1))
    own, reads = y.split([value_width, width], 3)
    B, A = change.split([value_width, width], 3)
    before, last = States.apply(A, B, first, group)
    return own + einsum("btgrk,bgkv->btgrv", group_heads(reads, g), before).reshape(own.shape), last


def of_this_process(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, decay: Tensor | None, options: dict[str, Any]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What this process finds alone: the outputs from an empty state, `b t h v`, what the queries would read of a
    state, `b t g r k`, A and B.
    """
    (b, _, g, width), value_width = k.shape, v.shape[3]
    q, k, v = (upcast(x) for x in (q, k, v))
    identity = torch.eye(width, dtype=k.dtype, device=k.device).expand(b, g, width, width)
    start = torch.cat([k.new_zeros((b, g, width, value_width)), identity], 3)
    wide = torch.cat([v, torch.zeros_like(k)], 3)
    y, change = local_recur(q, k, wide, beta=beta, decay=decay, state=start, **options)
    own, reads = y.split([value_width, width], 3)
    B, A = change.split([value_width, width], 3)
    return own, group_heads(reads, g), A, B


class States(torch.autograd.Function):
    """The state before this process's positions, and the one after all, from every process's pair (A, B)."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, B: Tensor, first: Tensor, group: ProcessGroup) -> tuple[Tensor, Tensor]:
        me = dist.get_rank(group)
        pairs = Gather.apply(torch.cat([A, B], -1), group)
        every_A, every_B = pairs.split([A.shape[-1], B.shape[-1]], -1)
        before, after = first, first
        for i, (A_i, B_i) in enumerate(zip(every_A, every_B, strict=True)):
            before = after if i == me else before
            after = A_i @ after + B_i
        ctx.group, ctx.me = group, me
        ctx.save_for_backward(every_A, before)
        return before.clone(), after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # type: ignore[override]
        """The gradients of the states go back from process to process: each gets those of all, and does it for itself.

        The last state of every process takes part in the loss, so its gradients are summed.
        """
        every_A, before = ctx.saved_tensors
        gathered = Gather.apply(torch.cat(grad_outputs, -1), ctx.group)
        every_dbefore, every_dlast = gathered.chunk(2, -1)
        dafter = every_dlast.sum(0)
        dA = dB = dafter
        for i in reversed(range(len(every_A))):
            if i == ctx.me:
                dA, dB = dafter @ before.mT, dafter
            dafter = every_A[i].mT @ dafter + every_dbefore[i]
        return dA, dB, dafter if ctx.me == 0 else torch.zeros_like(dafter), None
