"""The fast paths of `attend`, for the calls that ask for no weights, no tape and no dropout.

Three ways, chosen in `attend_seen` by shapes and flags, and by what PyTorch's kernel tells of its own numbers:

- *Plain.* On a CPU, calls of few scores: all of them at once, by operations that autograd knows, without gradients in
  place. Blocks, made for long calls, take up to five times as long. The kernel loses to it where nothing is hidden, no
  gradient is asked for and a head has some hundred queries.
- *One kernel.* Where `scaled_dot_product_attention` means what we mean, it is called: PyTorch has tuned kernels that
  never write the scores to memory. Heads are moved by views, key/value heads that several query heads share are not
  repeated, and key/value or query rows that nobody sees are cut off or selected to 0 before. Where a call has nothing
  besides queries, keys and values, they go there at once (`straight`).
- *Blocks of queries.* All else of many scores: sinks, softcap, windows, causal with fewer queries than keys, a bias
  with a gradient, values of another width than keys. A block of queries meets only the stretch of keys that its causal
  limit and window leave, so what they hide is never computed. Its scores, of a size that stays in a processor's cache,
  go through the softmax in place and are gone. The backward pass computes them again (Chen et al. 2016,
  arXiv:1604.06174; Dao et al. 2022, arXiv:2205.14135), so that memory grows with t, not with t s.

A causal call whose last query stands at the last key sees every key, so nothing is hidden from all; a window hides
stretches at both ends, which are cut off. Only a mask needs a look at its entries.

16-bit arrays are widened to float32 before: PyTorch's kernels round the weights to 16 bits between the two products,
which is a rounding more than we promise, and on a CPU they are no faster.
"""

from collections.abc import Callable, Hashable, Iterator
from math import isnan, prod, sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import pad, scaled_dot_product_attention

from attn_np.contract import _attend as contract
from attn_torch._layer import specs
from attn_torch._masks import any_visible, attention_mask, zero_unseen
from attn_torch._ops import concrete, dtype_name, to_dtype, upcast

Window = tuple[int | None, int | None]

# How many scores a block holds at most: on a CPU they should stay in its caches, a GPU wants large products.
CPU_BLOCK, GPU_BLOCK = 2**20, 2**25
CPU_ROWS, GPU_ROWS = 128, 1024  # queries of a head in a block

# How many scores the plain way forms at most; from how many queries of a head on and up to how many scores it is faster
# than the kernel.
PLAIN = 2**19
PLAIN_ROWS, OUTRUNS = 96, 2**17

# With fewer queries and keys together than twice this, the bound has no room for the gradients of PyTorch's kernel.
LEAST_ROOM = 8

# What `scaled_dot_product_attention` calls on a CPU: it returns the log-sum-exp of the scores of every query, too.
with_lse = torch._scaled_dot_product_flash_attention_for_cpu

# What gives the context of queries, keys and values, or None where they go the usual way; one for each kind of call.
Way = Callable[[Tensor, Tensor, Tensor], Tensor | None]
WAYS: dict[Hashable, Way] = {}

MAX_CALLS = 256
WIDE = torch.float32, torch.float64

# From 2.9 on PyTorch's CPU kernel takes keys and values that several query heads share.
SHARES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9)


def serves(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the fast path can take these arrays: it takes all."""
    return True


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    window: Window | None = None,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Weighted average of the values, `b t h v`, of q `b t h k`, k `b s g k`, v `b s g v`; see `attn_torch.attend`."""
    dtype = dtype_name(q)
    q, k, v = upcast(q), upcast(k), upcast(v)
    t, s = q.shape[1], k.shape[1]
    left, right = limits(causal, window, t, s)
    first_query = 0 if right is None else max(0, t - s - right)
    first_key = 0 if left is None else max(0, s - t - left)
    mask, bias = rank4(mask), rank4(bias)
    if first_query or first_key:
        q, k, v = q[:, first_query:], k[:, first_key:], v[:, first_key:]
        mask, bias = (cut(x, first_query, first_key) for x in (mask, bias))
        left, right = limits(False, (left, right), t - first_query, s - first_key)
    context = attend_seen(q, k, v, mask, bias, (left, right), scale, softcap, sinks)
    return to_dtype(pad(context, (0, 0, 0, 0, first_query, 0)) if first_query else context, dtype)


def limits(causal: bool, window: Window | None, t: int, s: int) -> Window:
    """How far a query sees to the left and to the right; None where that hides nothing."""
    left, right = (None, None) if window is None else window
    right = 0 if causal else right
    return None if left is None or left >= s - 1 else left, None if right is None or right >= t - 1 else right


def rank4(x: Tensor | None) -> Tensor | None:
    return x if x is None else x.reshape((1,) * (4 - x.ndim) + tuple(x.shape))


def cut(x: Tensor | None, first_query: int, first_key: int) -> Tensor | None:
    """A mask or bias without the queries and keys before those given."""
    if x is None:
        return None
    x = x if x.shape[2] == 1 else x[:, :, first_query:]
    return x if x.shape[3] == 1 else x[..., first_key:]


def attend_seen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    window: Window,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """`attend` where every query and key is within the limits of another; the mask and the bias have four axes."""
    t, s, h, g = q.shape[1], k.shape[1], q.shape[2], k.shape[2]
    if mask is not None:
        allowed: Any = attention_mask(mask, t, s, like=q, window=window) if mask.shape[2] > 1 else mask
        allowed = by_group(allowed, h, g)
        if not sure(allowed, 2):
            k, v = (zero_unseen("bhts->bshk", allowed, x) for x in (k, v))
    bare, wide = softcap is None and sinks is None, window == (None, None)
    if bare and wide and mask is None and bias is None and outruns(q, k, v) and few(q, s, OUTRUNS):
        return plain(q, k, v, mask, bias, window, scale, softcap, sinks)
    if bare and wide and mask is not None and not sure(mask, 3):
        q = zero_unseen("bhts->bthk", mask, q)
    if bare and one_kernel(q, k, v, mask, bias, window):
        added = None if mask is None else limit(mask, q).clamp_max_(0.0)
        if bias is not None:
            added = bias.to(q.dtype) if mask is None else torch.where(mask, bias.to(q.dtype), -torch.inf)
        context = by_one_kernel(q, k, v, added, window[1] == 0, scale)
        if context is not None:
            return context
    return by_scores(q, k, v, mask, bias, window, scale, softcap, sinks)


def by_scores(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    window: Window,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """`attend_seen` where scores are formed: all at once, or block by block."""
    if few(q, k.shape[1], PLAIN) or forward_mode():
        return plain(q, k, v, mask, bias, window, scale, softcap, sinks)
    sinks = None if sinks is None else upcast(sinks).to(q.dtype)[None]
    bias = None if bias is None else upcast(bias).to(q.dtype)
    return Blocked.apply(q, k, v, mask, bias, sinks, *window, scale, softcap)


def straight(q: Tensor, k: Tensor, v: Tensor, words: tuple[Any, ...]) -> Tensor | None:
    """The context, `b t h v`, of a call of arrays and a few words; None where it goes the usual way.

    For speed alone: all else that `attend` does takes as long as a small kernel. A call like one before passed its
    check then, and goes the same way at once; the key holds all that decides of either.

    Args:
        words: causal, scale, rate, normalize_over, implementation and return_weights.
    """
    if torch.compiler.is_compiling() or watched() or not type(q) is type(k) is type(v) is Tensor:
        return None
    learning = torch.is_grad_enabled() and (q.requires_grad, k.requires_grad, v.requires_grad)
    kinds = q.dtype, k.dtype, v.dtype, q.is_cpu, k.is_cpu, v.is_cpu
    call = q.shape, k.shape, v.shape, kinds, learning, words, *map(type, words)
    try:
        way = WAYS.get(call)
    except TypeError:  # words that have no hash are none that pass
        return None
    if way is None:
        way = way_of(q, k, v, *words)
        if len(WAYS) >= MAX_CALLS:
            WAYS.clear()
        WAYS[call] = way
    return way(q, k, v)


def way_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float | None,
    rate: float,
    normalize_over: str,
    implementation: str,
    return_weights: bool,
) -> Way:
    """What gives the context of such calls, which this checks."""
    given = {"q": q, "k": k, "v": v, "mask": None, "bias": None, "sinks": None, "keep": None}
    asked = (causal, None, scale, None, rate), normalize_over, implementation, False
    contract.check(*asked, **specs("attend", **given))
    factor = 1 / sqrt(q.shape[-1]) if scale is None else scale
    window = None, 0 if causal else None
    textbook = return_weights or normalize_over != "keys" or implementation == "textbook"
    bare = q.is_cpu and k.is_cpu and v.is_cpu and q.ndim == 4 and q.dtype in WIDE and not (causal and not factor > 0)

    def kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        context = judged(q, k, v, None, causal, factor)
        return by_scores(q, k, v, None, None, window, factor, None, None) if context is None else context

    if textbook or not bare or not one_kernel(q, k, v, None, None, window):
        return lambda q, k, v: None
    if not causal and outruns(q, k, v) and few(q, k.shape[1], OUTRUNS):
        return lambda q, k, v: plain(q, k, v, None, None, window, factor, None, None)
    return kernel


def by_group(allowed: Tensor, h: int, g: int) -> Tensor:
    """What any query head of a key/value head may see."""
    if allowed.shape[1] == 1 or g == h:
        return allowed
    return any_visible("bgrts->bgts", allowed.unflatten(1, (g, h // g)))


def sure(allowed: Tensor, axis: int) -> bool:
    """Whether it is known, and at little cost, that along an axis something is allowed everywhere."""
    if allowed.device.type != "cpu" or not concrete(allowed) or 0 in allowed.shape:
        return False
    return allowed.view(torch.uint8).amax(axis).amin().item() == 1


def one_kernel(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, window: Window) -> bool:
    """Whether PyTorch's kernel computes this, and fast."""
    square = window == (None, 0) and q.shape[1] == k.shape[1] and mask is None and bias is None
    if not (square or window == (None, None)) or v.shape[-1] != q.shape[-1] or 0 in (q.numel(), k.numel()):
        return False
    if transformed(q, k, v, mask, bias) or (q.is_cpu and not SHARES and q.shape[2] != k.shape[2]):
        return False  # the other ways have rules for it
    if learns(q, k, v) and (bias is not None or q.shape[1] + k.shape[1] < 2 * LEAST_ROOM):
        return False
    if mask is None and bias is None:
        return True
    if q.device.type != "cpu" or learns(bias):
        return False  # the kernels elsewhere differ in what they take; none gives the gradient of a bias in O(t) memory
    if mask is not None and bias is not None:
        both = torch.broadcast_shapes(mask.shape, bias.shape)
        return both in (mask.shape, bias.shape)
    return True


def by_one_kernel(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, causal: bool, scale: float) -> Tensor | None:
    """What PyTorch's kernel gives; None where its numbers are not ours: on a CPU one looks, elsewhere nobody does."""
    if causal and not scale > 0:
        return None  # it hides by -inf before it scales
    if all(x.is_cpu and concrete(x) for x in (q, k, v)):
        return judged(q, k, v, added, causal, scale)
    shared = bool(q.shape[2] != k.shape[2])  # sizes may be symbols
    context = scaled_dot_product_attention(
        heads(q), heads(k), heads(v), added, is_causal=causal, scale=scale, enable_gqa=shared
    )
    return context.transpose(1, 2)


def judged(q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, causal: bool, scale: float) -> Tensor | None:
    """`by_one_kernel` on a CPU, where the kernel also gives the log-sum-exp of every query's scores, which tells.

    It is not finite where a score is NaN or inf, which a limit of -inf should have hidden, and 0 for a query whose
    scores are all -inf: one that sees no key or, as the kernel can't know, one whose scores have overflowed.

    In its backward pass the weights are exp(score - log-sum-exp), whose relative error is u |log-sum-exp|: more than a
    softmax errs, where one score is far above the others. The bound grants the gradient of the values t u for the sum
    over the queries and s u for that over the keys, of which the kernel, which adds in lanes and blocks, does not use
    half.
    """
    context, lse = with_lse(heads(q), heads(k), heads(v), 0.0, causal, attn_mask=added, scale=scale)
    learning, low, high = context.requires_grad, 0.0, 0.0
    if learning or added is not None:
        room = (q.shape[1] + k.shape[1]) / 2 if learning else torch.finfo(q.dtype).max
        low, high = (x.item() for x in torch.aminmax(lse))
        if not (-room <= low and high <= room):
            return None
    lost = low <= 0.0 <= high and lse.count_nonzero().item() < lse.numel()
    if lost and not largest(q, k, max(1.0, abs(scale))) < torch.finfo(q.dtype).max:
        return None
    return context.transpose(1, 2)


def heads(x: Tensor) -> Tensor:
    """`b t h k` -> `b h t k`, the entries of a head side by side: a view wherever they are."""
    x = x.transpose(1, 2)
    return x if x.stride(-1) == 1 else x.contiguous()


def learns(*arrays: Tensor | None) -> bool:
    """Whether derivatives are asked for."""
    return forward_mode() or (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in arrays))


def forward_mode() -> bool:
    """Whether arrays may have tangents, which plain operations alone pass on."""
    return forward_ad._current_level >= 0


def few(q: Tensor, s: int, most: int) -> bool:
    """Whether there are so few scores that the plain way is faster than another."""
    return q.is_cpu and 0 < q.shape[0] * q.shape[2] * q.shape[1] * s <= most


def outruns(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether each head has so many queries that plain products beat the kernel, which takes 32 of them at a time.

    Not with gradients, nor in compiled calls: where lengths may vary they would have to be told apart.
    """
    return not torch.compiler.is_compiling() and q.shape[1] >= PLAIN_ROWS and not learns(q, k, v)


def largest(q: Tensor, k: Tensor, factor: float) -> float:
    """No product of a query and a key, times a factor, is larger, by the inequality of Cauchy and Schwarz."""
    norms = (torch.linalg.vector_norm(x.detach(), dim=-1).amax().item() for x in (q, k))
    return prod(norms) * factor


def watched() -> bool:
    """Whether `vmap`, derivatives of `torch.func`, forward mode or a mode that sees every operation may be at work."""
    level = torch._C._functorch.maybe_current_level()  # pyright: ignore[reportAttributeAccessIssue]
    return forward_mode() or level is not None or torch._C._len_torch_dispatch_stack() > 0


def transformed(*arrays: Tensor | None) -> bool:
    """Whether `vmap`, `torch.func.grad` or forward mode is at work: PyTorch's CPU kernel has no rule for them."""
    if torch.compiler.is_compiling():
        return False
    if forward_mode():
        return True
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # pyright: ignore[reportAttributeAccessIssue]
    return any(x is not None and wrapped(x) for x in arrays)


# Plain ----------------------------------------------------------------------------------------------------------------


def plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    window: Window,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """All scores at once; what nobody sees is selected to 0 in keys and values before."""
    (b, t, h, _), (s, g) = q.shape, k.shape[1:3]
    learning, eager = learns(q, k, v, bias, sinks), all(x is None or concrete(x) for x in (q, k, mask, bias, sinks))
    free = eager and not learning
    most, empty = limits_of(q, mask, bias, window, s)
    if empty is not None:
        q = q.masked_fill(empty.transpose(1, 2), 0.0)
    k, v = by_head(k, g), by_head(v, g)
    factor = scale if softcap is None else scale / softcap
    if learning:
        scores = torch.bmm(by_head(q * factor, g), k.mT)
    else:
        scores = torch.baddbmm(q.new_empty(()), by_head(q, g), k.mT, beta=0, alpha=factor)
    if softcap is not None:
        tanh = torch.tanh(scores, out=scores if free else None)
        scores = torch.mul(tanh, softcap, out=tanh if free else None)
    if bias is not None or most is not None or sinks is not None:
        scores = scores.view(b, h, t, s)
        if bias is not None and most is not None and empty is not None:
            bias = torch.where((most > 0) & ~empty, upcast(bias).to(q.dtype), 0.0)  # what is hidden may be -inf or NaN
            scores = torch.add(scores, bias, out=scores if free else None)
        if most is not None and eager:
            # Without a record: where a weight is 0, the softmax passes no gradient on.
            select(scores.detach(), most, True)
        elif most is not None:
            scores = torch.where(most > 0, scores, -torch.inf)
        if sinks is not None:
            column = upcast(sinks).to(q.dtype)[:, None, None].expand(b, h, t, 1)
            scores = torch.cat([scores, column], -1)
        scores = scores.reshape(b * g, -1, scores.shape[-1])
    probs = torch.softmax(scores, -1, out=scores if free else None)
    context = torch.bmm(probs if sinks is None else probs[..., :-1], v)
    if b == 1 and g == h:
        context = context.transpose(0, 1).unsqueeze(0)
    else:
        context = context.view(b, h, t, v.shape[-1]).transpose(1, 2)
    return context if empty is None else context.masked_fill(empty.transpose(1, 2), 0.0)


def by_head(x: Tensor, g: int) -> Tensor:
    """`b t h k` -> `(b g) (r t) k`; a view of one row of the batch."""
    if x.shape[2] != g:
        return x.unflatten(2, (g, -1)).permute(0, 2, 3, 1, 4).reshape(x.shape[0] * g, -1, x.shape[3])
    return x.squeeze(0).transpose(0, 1) if x.shape[0] == 1 else x.transpose(1, 2).flatten(0, 1)


def limits_of(
    q: Tensor, mask: Tensor | None, bias: Tensor | None, window: Window, s: int
) -> tuple[Tensor | None, Tensor | None]:
    """The limits of the scores, broadcastable to `b h t s`, and the queries that see nothing, which get no limit."""
    (left, right), ahead = window, s - q.shape[1]
    near = None
    if window != (None, None):
        near = torch.ones(q.shape[1], s, dtype=torch.bool, device=q.device)
        near = near if right is None else near.tril_(ahead + right)
        near = near if left is None else near.triu_(ahead - left)
    if mask is None and bias is None:
        return None if near is None else limit(near, q), None
    allowed = shown_by(near, mask, None if bias is None else bias != -torch.inf)
    empty = allowed.view(torch.uint8).amax(-1, keepdim=True) == 0
    return limit(allowed | empty, q), empty


# Blocks of queries ----------------------------------------------------------------------------------------------------


class Blocked(torch.autograd.Function):
    """`attend` by blocks of queries; the mask and the bias have four axes, the sinks are `1 h` or `b h`."""

    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        sinks: Tensor | None,
        left: int | None,
        right: int | None,
        scale: float,
        softcap: float | None,
    ) -> Tensor:
        return forward(Call(q, k, v, mask, bias, sinks, left, right, scale, softcap))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:ARRAYS])
        ctx.options = inputs[ARRAYS:]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (dout,), inputs = grad_outputs, (*ctx.saved_tensors, *ctx.options)
        compiling = torch.compiler.is_compiling()
        learns_bias = ctx.needs_input_grad[4]  # its gradient may be as large as all scores
        found = backward(Call(*inputs), dout, learns_bias) if compiling else Gradients.apply(dout, *inputs, learns_bias)
        dq, dk, dv, dbias, dsinks = found
        return (dq, dk, dv, None, dbias, dsinks, *(None for _ in ctx.options))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        n = info.batch_size
        arrays = merge(n, in_dims, inputs[:ARRAYS])
        return Blocked.apply(*arrays, *inputs[ARRAYS:]).unflatten(0, (n, -1)), 0


class Gradients(torch.autograd.Function):
    """The gradients of `Blocked`, an operation of their own, so that `vmap` and `torch.func.grad` can take them."""

    @staticmethod
    def forward(dout: Tensor, *inputs: Any) -> tuple[Tensor | None, ...]:
        *given, learns_bias = inputs
        return backward(Call(*given), dout, learns_bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise NotImplementedError(
            "attend: expected derivatives of the first order, got a second; set implementation='textbook'"
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        n, last = info.batch_size, ARRAYS + 1
        given = (*merge(n, in_dims[:1], inputs[:1]), *merge(n, in_dims[1:last], inputs[1:last], shared=False))
        found: list[Any] = [
            x if x is None else x.unflatten(0, (n, -1)) for x in Gradients.apply(*given, *inputs[last:])
        ]
        for i, x, dim in ((3, inputs[5], in_dims[5]), (4, inputs[6], in_dims[6])):
            if found[i] is not None and x.shape[0 if dim is None else int(dim == 0)] == 1:
                found[i] = found[i].sum(1, keepdim=True)
        return tuple(found), tuple(None if x is None else 0 for x in found)


ARRAYS = 6  # of the inputs: q, k, v, mask, bias, sinks


def merge(n: int, dims: tuple[Any, ...], arrays: tuple[Any, ...], shared: bool = True) -> list[Any]:
    """Join a mapped axis and the axis of the batch; a mask, a bias or sinks that are not mapped may stay one row."""
    rows, found = None, []
    for i, (x, dim) in enumerate(zip(arrays, dims, strict=False)):
        if x is None or (shared and i > 2 and dim is None and x.shape[0] == 1):
            found.append(x)
            continue
        x = x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)
        rows = x.shape[1] if rows is None else rows
        found.append(x.expand(n, rows, *x.shape[2:]).flatten(0, 1))
    return found


class Block(NamedTuple):
    """Stretches of the batch, of key/value heads, of queries and of keys."""

    b: slice
    g: slice
    t: slice
    s: slice

    def of(self, x: Tensor, axes: str) -> Tensor:
        """The part of an array; an axis of length 1 serves all."""
        at = self._asdict()
        return x[tuple(at.get(a, slice(None)) if n > 1 else slice(None) for a, n in zip(axes, x.shape, strict=True))]


class Call:
    """The arrays of a call with their heads first: q `b g r t k`, k `b g s k`, v `b g s v`, mask and bias `b g r t s`.

    The queries are scaled. A sink is one more key before the others, whose score is set.
    """

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        sinks: Tensor | None,
        left: int | None,
        right: int | None,
        scale: float,
        softcap: float | None,
    ) -> None:
        (self.b, self.t, h, _), (self.s, self.g) = q.shape, k.shape[1:3]
        self.r = h // self.g if self.g else 0
        self.left, self.right, self.softcap = left, right, softcap
        self.scale, self.extra = scale if softcap is None else scale / softcap, 0 if sinks is None else 1
        self.q = self.grouped(q * self.scale).contiguous()
        self.k, self.v = (pad(x.transpose(1, 2), (0, 0, self.extra, 0)).contiguous() for x in (k, v))
        self.mask, self.bias = (None if x is None else self.by_group(x) for x in (mask, bias))
        self.sinks = None if sinks is None else self.by_group(sinks[:, :, None])[..., 0]
        self.rows = max(1, min(self.t, CPU_ROWS if q.device.type == "cpu" else GPU_ROWS))
        later = torch.ones(self.rows, self.rows, dtype=torch.bool, device=q.device).triu()
        self.edges = limit(~later, q), limit(later, q)
        self.rooms: dict[str, Tensor] = {}

    def new(self, like: Tensor) -> Tensor:
        """`b t h k` for what is by queries, of the width of another array."""
        return like.new_zeros(self.b, self.t, self.g * self.r, like.shape[-1])

    def grouped(self, x: Tensor) -> Tensor:
        """`b t h k` -> `b g r t k`."""
        return x.unflatten(2, (self.g, self.r)).permute(0, 2, 3, 1, 4)

    def by_group(self, x: Tensor) -> Tensor:
        """`b h ...` -> `b g r ...`; one head serves all."""
        return x.unflatten(1, (1, 1) if x.shape[1] == 1 else (self.g, self.r))

    def blocks(self) -> Iterator[Block]:
        """What is computed at once, from the first query to the last; nothing where there is nothing to see."""
        if 0 in (self.b, self.t, self.s, self.g, self.r):
            return
        most = CPU_BLOCK if self.q.device.type == "cpu" else GPU_BLOCK
        for i in range(0, self.t, self.rows):
            t = slice(i, min(i + self.rows, self.t))
            ahead = self.s - self.t
            first = 0 if self.left is None else max(0, t.start + ahead - self.left)
            last = self.s if self.right is None else min(self.s, t.stop + ahead + self.right)
            heads = max(1, most // (self.r * self.rows * (last - first)))
            for b, g in stretches(self.b, self.g, heads):
                yield Block(b, g, t, slice(first, last + self.extra))

    def into(self, name: str, shape: tuple[int, ...], operation: Callable[..., Tensor], *args: Any) -> Tensor:
        """The result of an operation, in the memory that the last one of this name had: new memory is dear."""
        if torch.compiler.is_compiling():
            return operation(*args)
        if name not in self.rooms or self.rooms[name].numel() < prod(shape):
            self.rooms[name] = self.q.new_empty(prod(shape))
        return operation(*args, out=self.rooms[name][: prod(shape)].view(shape))

    def product(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        return self.into(name, (x.shape[0], x.shape[1], y.shape[2]), torch.bmm, x, y)

    def split(self, x: Tensor, block: Block) -> Tensor:
        """`(b g) (r t) s` -> `b g r t s`."""
        b, g, t = (at.stop - at.start for at in (block.b, block.g, block.t))
        return x.view(b, g, self.r, t, x.shape[-1])

    def queries(self, x: Tensor, block: Block, empty: Tensor | None) -> Tensor:
        """A block of what is by queries, `(b g) (r t) k`; 0 where a query sees no key."""
        x = block.of(x, "bgrtk")
        x = x if empty is None else x.masked_fill(empty, 0.0)
        return x.reshape(x.shape[0] * x.shape[1], self.r * x.shape[3], x.shape[4])

    def limits(self, block: Block) -> tuple[Tensor | None, Tensor | None]:
        """The limits by mask, bias and window, and the queries that see nothing, which get no limit then."""
        block = self.real(block)
        mask = None if self.mask is None else block.of(self.mask, "bgrts")
        bias = None if self.bias is None else block.of(self.bias, "bgrts") != -torch.inf
        if mask is None and bias is None:
            return None, None
        near = None if self.left is None and self.right is None else self.near(block)
        allowed = shown_by(near, mask, bias)
        empty = allowed.view(torch.uint8).amax(-1, keepdim=True) == 0
        return limit(allowed | empty, self.q), empty

    def real(self, block: Block) -> Block:
        """The block without the sink."""
        return block._replace(s=slice(block.s.start, block.s.stop - self.extra))

    def near(self, block: Block) -> Tensor:
        """Who is within the limits: `t s`."""
        device = self.q.device
        at = torch.arange(block.t.start, block.t.stop, device=device)[:, None] + (self.s - self.t)
        ahead = torch.arange(block.s.start, block.s.stop, device=device) - at
        near = torch.ones_like(ahead, dtype=torch.bool)
        near = near if self.right is None else near & (ahead <= self.right)
        return near if self.left is None else near & (ahead >= -self.left)

    def hide_edges(self, scores: Tensor, block: Block, exactly: bool) -> None:
        """Hide what is outside the limits: two triangles at the ends of the stretch of keys."""
        rows, keys = scores.shape[-2:]
        at = block.t.start + self.s - self.t - block.s.start  # of the first query, from the first key on
        if self.right is not None and (first := at + self.right + 1) < keys:
            select(scores[..., first:], self.edges[0][:rows, : keys - first], exactly)
        if self.left is not None and (last := min(keys, at - self.left + rows - 1)) > 0:
            skipped = self.left - at
            select(scores[..., :last], self.edges[1][:rows, skipped : skipped + last], exactly)

    def weights(self, block: Block, exactly: bool = False) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """The weights `(b g) (r t) s`; the queries, the queries that see nothing, and the tanh of the softcap.

        Args:
            exactly: hide scores that are NaN too, and give queries that see nothing weights of 0. Where the weights can
                be looked at, one that is NaN asks for it.
        """
        looks = self.q.device.type == "cpu" and concrete(self.q)
        exactly = exactly or not looks
        most, empty = self.limits(block)
        q, tanh = self.queries(self.q, block, empty), None
        scores = self.product("scores", q, block.of(self.k, "bgsk").flatten(0, 1).mT)
        if self.softcap is not None:
            tanh = scores.tanh_()
            scores = self.into("capped", tanh.shape, torch.mul, tanh, self.softcap)
        whole = self.split(scores, block)
        real = whole[..., self.extra :]
        if self.bias is not None:
            bias = self.real(block).of(self.bias, "bgrts")
            real += torch.nan_to_num(bias, torch.inf, torch.inf, 0.0)  # either makes a row NaN, and inf can be hidden
        if most is None:
            self.hide_edges(real, block, exactly)
        else:
            select(real, most, exactly)
        if self.sinks is not None:
            whole[..., 0] = block.of(self.sinks, "bgr")[..., None]
        probs = torch.softmax(scores, -1, out=None if torch.compiler.is_compiling() else scores)
        hides = most is not None or self.left is not None or self.right is not None
        if hides and not exactly and isnan(probs[..., 0].sum().item()):  # a row is NaN as a whole
            return self.weights(block, True)
        if exactly and empty is not None:
            self.split(probs, block).masked_fill_(empty, 0.0)
        return probs, q, empty, tanh


def shown_by(*limits: Tensor | None) -> Tensor:
    """What every one of some masks shows; None shows all."""
    given = [x for x in limits if x is not None]
    allowed = given[0]
    for x in given[1:]:
        allowed = allowed & x
    return allowed


def limit(allowed: Tensor, like: Tensor) -> Tensor:
    """inf where allowed and -inf elsewhere: the smaller of this and a score selects, as `where` does, and is faster."""
    return allowed.view(torch.uint8).to(like.dtype).sub_(0.5).mul_(torch.inf)


def select(scores: Tensor, most: Tensor, exactly: bool) -> None:
    """The smaller of scores and their limit, in the place of the scores; exactly: that of NaN and -inf is -inf.

    A NaN that is not hidden becomes inf then, which makes its row NaN as well. On a CPU that is several times slower.
    """
    if not exactly:
        scores.clamp_max_(most)
    elif torch.compiler.is_compiling():
        scores.copy_(torch.fmin(scores, most))
    else:
        torch.fmin(scores, most, out=scores)


def forward(call: Call) -> Tensor:
    out = call.new(call.v)
    context = call.grouped(out)
    for block in call.blocks():
        probs, _, empty, _ = call.weights(block)
        if call.extra:
            probs[..., 0] = 0.0
        found = call.split(call.product("context", probs, block.of(call.v, "bgsk").flatten(0, 1)), block)
        block.of(context, "bgrtk").copy_(found if empty is None else found.masked_fill_(empty, 0.0))
    return out


def backward(call: Call, dout: Tensor, learns_bias: bool) -> tuple[Tensor | None, ...]:
    """The gradients of q, k, v, the bias, where it learns, and the sinks: every block's weights again, then the rules
    of the textbook.
    """
    dq, dk, dv = call.new(call.q), torch.zeros_like(call.k), torch.zeros_like(call.v)
    dbias = torch.zeros_like(call.bias) if call.bias is not None and learns_bias else None
    dsinks = None if call.sinks is None else torch.zeros_like(call.sinks)
    dcontext, dqueries = call.grouped(dout), call.grouped(dq)
    for block in call.blocks():
        probs, q, empty, tanh = call.weights(block)
        k, v = (block.of(x, "bgsk").flatten(0, 1) for x in (call.k, call.v))
        df = call.queries(dcontext, block, empty)
        dprobs = call.product("dprobs", df, v.mT)
        if dsinks is not None:
            dprobs[..., 0] = 0.0
        dscores = softmax_backward(dprobs, probs)
        if dsinks is not None:
            add(block.of(dsinks, "bgr"), call.split(dscores, block)[..., 0].sum(-1))
            dscores[..., 0] = probs[..., 0] = 0.0
        add(block.of(dv, "bgsk"), call.product("dv", probs.mT, df))
        if dbias is not None:
            add(call.real(block).of(dbias, "bgrts"), call.split(dscores, block)[..., call.extra :])
        if tanh is not None:
            dscores = tanh_backward(dscores, tanh)
        add(block.of(dk, "bgsk"), call.product("dk", dscores.mT, q))
        block.of(dqueries, "bgrtk").copy_(call.split(call.product("dq", dscores, k), block))
    dk = dk if call.softcap is None else dk * call.softcap
    dk, dv = (x[:, :, call.extra :].transpose(1, 2) for x in (dk, dv))
    factor = call.scale if call.softcap is None else call.scale * call.softcap
    found = (None if x is None else x.flatten(1, 2) for x in (dbias, dsinks))
    return dq * factor, dk, dv, *found


def softmax_backward(dprobs: Tensor, probs: Tensor) -> Tensor:
    """probs (dprobs - sum of probs dprobs), in the place of dprobs."""
    if torch.compiler.is_compiling():
        return torch.ops.aten._softmax_backward_data(dprobs, probs, -1, probs.dtype)
    return torch.ops.aten._softmax_backward_data.out(dprobs, probs, -1, probs.dtype, grad_input=dprobs)


def tanh_backward(dy: Tensor, tanh: Tensor) -> Tensor:
    """dy (1 - tanh^2), in the place of dy."""
    if torch.compiler.is_compiling():
        return torch.ops.aten.tanh_backward(dy, tanh)
    return torch.ops.aten.tanh_backward.grad_input(dy, tanh, grad_input=dy)


def add(total: Tensor, x: Tensor) -> None:
    """Add in place, summed over the axes that have length 1 in the total."""
    total += x.view(total.shape) if x.numel() == total.numel() else x.sum_to_size(total.shape)


def stretches(b: int, g: int, heads: int) -> Iterator[tuple[slice, slice]]:
    """The batch and the heads in parts of about as many heads: rows of the batch with all of them, or some of a row."""
    if heads >= g:
        for i in range(0, b, heads // g):
            yield slice(i, min(i + heads // g, b)), slice(0, g)
    else:
        for i in range(b):
            for j in range(0, g, heads):
                yield slice(i, i + 1), slice(j, min(j + heads, g))
