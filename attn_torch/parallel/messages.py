"""What processes send each other, and the check that all of them make the same call."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from attn_np.contract._base import field_error
from attn_np.contract._patterns import Pattern

# How many bytes of a call's description are compared.
DESCRIPTION_BYTES = 2048
T = TypeVar("T")


def group_of(who: str, group: Any) -> ProcessGroup:
    """The process group of an argument: a group, a mesh with one axis, or None for all processes.

    Raises:
        ValueError: no processes, a mesh with several axes, or a group that this process is not in.
        TypeError: something else.
    """
    if not dist.is_available() or not dist.is_initialized():
        fix = "call torch.distributed.init_process_group first"
        raise field_error(who, "processes of torch.distributed", "none", fix)
    group = dist.group.WORLD if group is None else group
    names = getattr(group, "mesh_dim_names", None)
    if hasattr(group, "get_group") and hasattr(group, "ndim"):
        if group.ndim != 1:
            raise field_error(who, "a mesh with one axis", f"axes {names}", "take the one of the sequence: mesh['seq']")
        group = group.get_group()
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise field_error(who, "a group that this process is in", "another", "call it in its members alone")
    if not isinstance(group, ProcessGroup):
        got = type(group).__name__
        raise TypeError(
            f"{who}: expected group to be a process group or a DeviceMesh, got {got}; None is all processes"
        )
    return group


def same_call(who: str, group: ProcessGroup, device: Any, describe: Callable[[], tuple[str, T]]) -> T:
    """What `describe` returns beside the words for this process's call, where all processes say the same.

    A call that one process refuses, or makes with other shapes, would leave the others waiting: so all tell each other
    before anything else is sent. Compiled code tells nothing.

    Raises:
        ValueError: other words in another process.
    """
    refusal: Exception | None = None
    words, found = "a call that it refuses", None
    try:
        words, found = describe()
    except Exception as error:
        refusal = error
    n, every = dist.get_world_size(group), [words]
    if n > 1 and not torch.compiler.is_compiling():
        own = torch.frombuffer(bytearray(fixed_size(f"{who}; {words}".encode())), dtype=torch.uint8)
        gathered = torch.empty(n * DESCRIPTION_BYTES, dtype=torch.uint8, device=device)
        all_gather(gathered, own.to(device), group)
        every = [bytes(x.tolist()).decode(errors="replace").rstrip() for x in gathered.reshape(n, -1).cpu()]
    if refusal is not None:
        raise refusal
    for i, others in enumerate(every):
        if others != every[0]:
            first, other = difference(every[0], others)
            got = f"{first} in process 0 and {other} in process {i} of the group"
            raise field_error(who, "the same call in every process", got, "give all of them the same arguments")
    return found  # type: ignore[return-value]


def described(name: str, x: Any) -> str:
    """An argument in words: of a tensor what must be the same in every process, its values apart."""
    if isinstance(x, Tensor):
        grad = " with a gradient" if x.requires_grad and torch.is_grad_enabled() else ""
        return f"{name} of shape {tuple(x.shape)} and {x.dtype}{grad}"
    return f"{name}={x.as_text() if isinstance(x, Pattern) else repr(x)}"


def fixed_size(words: bytes) -> bytes:
    """A description in `DESCRIPTION_BYTES`; of a longer one the beginning, and a digest of all."""
    if len(words) > DESCRIPTION_BYTES:
        digest = f"; more, with the digest {sha256(words).hexdigest()}".encode()
        words = words[: DESCRIPTION_BYTES - len(digest)] + digest
    return words.ljust(DESCRIPTION_BYTES)


def difference(first: str, other: str) -> tuple[str, str]:
    """The first part of two descriptions that differs; parts end in semicolons."""
    pairs = zip(first.split("; "), other.split("; "), strict=False)
    return next(((x, y) for x, y in pairs if x != y), (first, other))


def all_gather(gathered: Tensor, x: Tensor, group: ProcessGroup) -> None:
    """What every process has, one after the other, in the first tensor."""
    # Its name since PyTorch 2.13, in which the old one warns.
    call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    call(gathered, x, group=group)


def as_bytes(x: Tensor) -> Tensor:
    """Booleans as bytes, which every backend sends."""
    return x.view(torch.uint8) if x.dtype == torch.bool else x


def send_on(tensors: Sequence[Tensor], group: ProcessGroup) -> Callable[[], list[Tensor]]:
    """Sends tensors to the next process; the function that it returns waits for those of the one before."""
    n, me = dist.get_world_size(group), dist.get_rank(group)
    if n == 1:
        return lambda: list(tensors)
    sent = [x.detach().contiguous() for x in tensors]
    arriving = [torch.empty_like(x) for x in sent]
    after, before = (dist.get_global_rank(group, i % n) for i in (me + 1, me - 1))
    sends = [dist.P2POp(dist.isend, as_bytes(x), after, group) for x in sent]
    receives = [dist.P2POp(dist.irecv, as_bytes(x), before, group) for x in arriving]
    requests = dist.batch_isend_irecv([op for pair in zip(sends, receives, strict=True) for op in pair])

    def wait() -> list[Tensor]:
        for request in requests:
            request.wait()
        del sent[:]  # kept until then
        return arriving

    return wait


class Gather(torch.autograd.Function):
    """A tensor of every process: `...` -> `n ...`. The gradients of the copies go home, where they are summed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group, n = group, dist.get_world_size(group)
        gathered = torch.empty((n * x.numel(),), dtype=x.dtype, device=x.device)
        all_gather(as_bytes(gathered), as_bytes(x.contiguous()).reshape(-1), group)
        return gathered.reshape(n, *x.shape)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        # Sent as an exchange and summed here: in the dtype of the sum, and on backends without reduce-scatter.
        return exchanged(grad_outputs[0], ctx.group).sum(0), None


class Exchange(torch.autograd.Function):
    """The nth part of a tensor for the nth process, `n ...` -> `n ...`: its own inverse, and so its rule."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return exchanged(x, group)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return exchanged(grad_outputs[0], ctx.group), None


def exchanged(x: Tensor, group: ProcessGroup) -> Tensor:
    x = x.contiguous()
    arrived = torch.empty_like(x)
    dist.all_to_all_single(as_bytes(arrived), as_bytes(x), group=group)
    return arrived


def gather(x: Tensor, group: ProcessGroup) -> Tensor:
    """The positions of all processes, one process's after another's: `b s ...` -> `b (n s) ...`."""
    return Gather.apply(x, group).movedim(0, 1).flatten(1, 2)


def last_before(x: Tensor, size: int, group: ProcessGroup) -> Tensor:
    """The last positions before this process's, `b t ...` -> `b size ...`; 0 before the first of all."""
    tail = x[:, max(0, x.shape[1] - size) :]
    before = torch.cat([x.new_zeros((x.shape[0], size, *x.shape[2:])), gather(tail, group)], 1)
    return before.narrow(1, dist.get_rank(group) * tail.shape[1], size)


def heads_for_positions(x: Tensor, group: ProcessGroup) -> Tensor:
    """All positions of some heads, from some positions of all heads: `b t (n h) k` -> `b (n t) h k`."""
    parts = x.unflatten(2, (dist.get_world_size(group), -1)).movedim(2, 0)  # n b t h k
    return Exchange.apply(parts, group).movedim(0, 1).flatten(1, 2)


def positions_for_heads(x: Tensor, group: ProcessGroup) -> Tensor:
    """The inverse: `b (n t) h k` -> `b t (n h) k`."""
    parts = x.unflatten(1, (dist.get_world_size(group), -1)).movedim(1, 0)  # n b t h k
    return Exchange.apply(parts, group).movedim(0, 2).flatten(2, 3)
