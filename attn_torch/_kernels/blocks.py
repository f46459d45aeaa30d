"""Blocks of queries: a part of the scores at a time, in memory that grows with t, not with t s.

A block of queries meets only the keys that its window leaves, or those that a pattern may show to one of them: what is
hidden by position is hardly ever computed. Its scores, of a size that stays in a processor's cache, become weights in
place, and then are gone: the backward pass computes them again (Chen et al. 2016, arXiv:1604.06174; Dao et al. 2022,
arXiv:2205.14135).

Forward and backward are operations of their own, in which compiled programs do not look: so lengths may vary in them.
"""

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad

from attn_np.contract import _patterns as patterns
from attn_torch._kernels.window import PatternArrays
from attn_torch._masks import block_table, unmasked_by_bias, visible_pairs
from attn_torch._ops import without_autocast

PACKAGE = __name__.split(".")[0]

# How many scores a block holds at most: on a CPU they should stay in its caches, a GPU wants large products.
CPU_BLOCK, GPU_BLOCK = 2**20, 2**25
CPU_ROWS, GPU_ROWS = 128, 1024  # queries of a head in a block
PATTERN_KEYS = 64  # a pattern is asked about so many keys at a time


class Block(NamedTuple):
    """A part of a call.

    Attributes:
        b, g, t: stretches of the batch, of key/value heads and of queries.
        s: a stretch of keys; of keys that are scattered, their indices.
        allowed: who sees whom, `b g r t s` with axes of 1, where more than the positions of a window decides.
    """

    b: slice
    g: slice
    t: slice
    s: slice | Tensor
    allowed: Tensor | None = None

    def of(self, x: Tensor, axes: str) -> Tensor:
        """The part of an array; an axis of length 1 serves all. Of scattered keys it is a copy."""
        at = self._asdict()
        return x[tuple(at.get(a, slice(None)) if n > 1 else slice(None) for a, n in zip(axes, x.shape, strict=True))]

    def add(self, total: Tensor, axes: str, x: Tensor) -> None:
        """Add to the part of an array, summed over the axes that have length 1 in it."""
        keys = axes.find("s")
        scattered = self.s if isinstance(self.s, Tensor) and keys >= 0 and total.shape[keys] > 1 else None
        part = (self if scattered is None else self._replace(s=slice(None))).of(total, axes)
        shape = list(part.shape)
        if scattered is not None:
            shape[keys] = len(scattered)
        x = x.view(shape) if x.numel() == prod(shape) else x.sum_to_size(shape)
        if scattered is None:
            part += x
        else:
            part.index_add_(keys, scattered, x)


class Blocked:
    """A call cut into blocks, its arrays with their heads first: q `b g r t k`, k `b g s k`, masks `b g r t s`.

    A sink takes the place of one more key before those of a block: its score is set, and its weight is 0 afterwards.
    """

    def __init__(self, *inputs: Any) -> None:
        q, k, v, mask, bias, sinks, *packed, self.left, self.right, self.scale, self.softcap, words = inputs
        (self.b, self.t, h, _), (self.s, self.g) = q.shape, k.shape[1:3]
        self.r, self.extra = h // self.g, 0 if sinks is None else 1
        self.q = self.grouped(q * self.scale)
        self.k, self.v = (pad(x.transpose(1, 2), (0, 0, self.extra, 0)).contiguous() for x in (k, v))
        self.mask, self.bias = (None if x is None else self.by_group(x) for x in (mask, bias))
        self.sinks = None if sinks is None else self.by_group(sinks)
        self.most, rows = (CPU_BLOCK, CPU_ROWS) if q.device.type == "cpu" else (GPU_BLOCK, GPU_ROWS)
        self.rows = min(self.t, rows)
        self.pattern: patterns.Pattern | None = None
        if words:  # of which causality and the window are a part, then
            given: Any = PatternArrays(words, *packed).pattern()
            self.pattern = patterns.Window(self.left, self.right) & given
            self.left = self.right = None
        self.later = torch.ones(self.rows, self.rows, dtype=torch.bool, device=q.device).triu()
        if self.pattern is not None:
            self.table = block_table(self.pattern, self.t, self.s, self.rows, PATTERN_KEYS, like=q)
        self.memory: dict[str, Tensor] = {}

    def grouped(self, x: Tensor) -> Tensor:
        """`b t h k` -> `b g r t k`."""
        return x.unflatten(2, (self.g, self.r)).permute(0, 2, 3, 1, 4)

    def by_group(self, x: Tensor) -> Tensor:
        """`b h ...` -> `b g r ...`; one head serves all."""
        return x.unflatten(1, (1, 1) if x.shape[1] == 1 else (self.g, self.r))

    def blocks(self) -> Iterator[Block]:
        """From the first query to the last, with every key that a query of the block may see."""
        for start in range(0, self.t, self.rows):
            t, ahead = slice(start, min(start + self.rows, self.t)), self.s - self.t
            first = 0 if self.left is None else max(0, t.start + ahead - self.left)
            last = self.s if self.right is None else max(first, min(self.s, t.stop + ahead + self.right))
            stretch = slice(first, last)
            keys = stretch if self.pattern is None else self.met(slice(self.b), t)
            heads = max(1, self.most // (self.r * self.rows * max(1, count(keys))))
            for b, g in stretches(self.b, self.g, heads):
                keys = stretch if self.pattern is None else self.met(b, t)
                yield self.with_sink(Block(b, g, t, keys, self.allowed(Block(b, g, t, keys))))

    def met(self, b: slice, t: slice) -> slice | Tensor:
        """The keys that the pattern may show to these queries."""
        if self.s == 1:
            return slice(0, 1)
        blocks = of_rows(self.table.some, b)[:, t.start // self.rows].any(0).nonzero()[:, 0].tolist()
        if blocks and blocks[-1] - blocks[0] == len(blocks) - 1:
            return slice(blocks[0] * PATTERN_KEYS, min(self.s, (blocks[-1] + 1) * PATTERN_KEYS))
        stretches = [range(i * PATTERN_KEYS, min(self.s, (i + 1) * PATTERN_KEYS)) for i in blocks]
        return torch.tensor([key for stretch in stretches for key in stretch], dtype=torch.long, device=self.q.device)

    def allowed(self, block: Block) -> Tensor | None:
        """Who sees whom by mask, bias and pattern, `b g r t s` with axes of 1; None if the window alone says it."""
        mask, bias = (None if x is None else block.of(x, "bgrts") for x in (self.mask, self.bias))
        allowed = unmasked_by_bias(mask, bias)
        if self.pattern is None:
            return allowed
        at = {"b t": (slice(None), block.t), "b s": (slice(None), block.s), "b": (slice(None),)}
        part = self.pattern.map(lambda axes, x: of_rows(x, block.b)[at[axes]])
        query_positions = torch.arange(block.t.start, block.t.stop, device=self.q.device) + (self.s - self.t)
        pairs = visible_pairs(part, query_positions[None], torch.arange(self.s, device=self.q.device)[None, block.s])[
            :, None
        ]
        return pairs if allowed is None else pairs & allowed

    def with_sink(self, block: Block) -> Block:
        """The block with one more key before its own, if there are sinks."""
        if not self.extra:
            return block
        if isinstance(block.s, slice):
            return block._replace(s=slice(block.s.start, block.s.stop + 1))
        return block._replace(s=pad(block.s + 1, (1, 0)))

    def product(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        """x y for each head."""
        return torch.bmm(x, y, out=self.room(name, (*x.shape[:-1], y.shape[-1])))

    def room(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Memory for a result, reused from the last result of this name: allocating takes longer than computing."""
        if name not in self.memory or self.memory[name].numel() < prod(shape):
            self.memory[name] = self.q.new_empty(prod(shape))
        return self.memory[name][: prod(shape)].view(shape)

    def queries(self, x: Tensor, block: Block) -> Tensor:
        """A block of what is by queries: `b g r t k` -> `(b g) (r t) k`."""
        part = block.of(x, "bgrtk")
        if self.pattern is not None and block.allowed is not None:  # that see no key: 0 times their NaN would be NaN
            part = part.masked_fill(~block.allowed.any(-1, keepdim=True), 0.0)
        return part.flatten(2, 3).flatten(0, 1)

    def keys(self, x: Tensor, block: Block) -> Tensor:
        """A block of what is by keys: `b g s k` -> `(b g) s k`."""
        part = block.of(x, "bgsk")
        if self.pattern is not None and block.allowed is not None:  # that no query sees
            part = part.masked_fill(~pad(block.allowed.any(3).any(2), (self.extra, 0))[..., None], 0.0)
        return part.flatten(0, 1)

    def split(self, x: Tensor, block: Block) -> Tensor:
        """`(b g) (r t) s` -> `b g r t s`."""
        b, g, t = (at.stop - at.start for at in (block.b, block.g, block.t))
        return x.view(b, g, self.r, t, x.shape[-1])

    def real(self, block: Block) -> Block:
        """The block without the sink."""
        if not self.extra:
            return block
        if isinstance(block.s, slice):
            return block._replace(s=slice(block.s.start, block.s.stop - 1))
        return block._replace(s=block.s[1:] - 1)

    def hide(self, scores: Tensor, block: Block) -> Tensor | None:
        """Select hidden scores to -inf: by position those in a triangle at either end of the keys, the others by mask.

        What comes back says which queries see no key, where that may be.
        """
        rows, keys = scores.shape[-2:]
        first = block.s.start if isinstance(block.s, slice) else 0
        at = block.t.start + self.s - self.t - first  # of the first query, from the first key on
        edges = []
        if self.right is not None and (first := at + self.right + 1) < keys:
            edges.append((slice(first, keys), self.later[:rows, : keys - first]))
        if self.left is not None and (last := min(keys, at - self.left + rows - 1)) > 0:
            skipped = self.left - at
            edges.append((slice(last), ~self.later[:rows, skipped : skipped + last]))
        allowed = block.allowed
        if allowed is None:
            for stretch, hidden in edges:
                scores[..., stretch].masked_fill_(hidden, -torch.inf)
            return None
        if edges:
            allowed = allowed.expand(*allowed.shape[:3], rows, keys).clone()
            for stretch, hidden in edges:
                allowed[..., stretch] &= ~hidden
        scores.masked_fill_(~allowed, -torch.inf)
        return ~allowed.any(-1, keepdim=True)

    def weights(self, block: Block) -> tuple[Tensor, Tensor | None, Tensor]:
        """The weights, `(b g) (r t) s`; the queries that see no key, whose weights are NaN; the tanh of the softcap."""
        scores = tanh = self.product("scores", self.queries(self.q, block), self.keys(self.k, block).mT)
        if self.softcap is not None:
            tanh = scores.div_(self.softcap).tanh_()
            scores = torch.mul(tanh, self.softcap, out=self.room("capped", tanh.shape))
        whole, real = self.split(scores, block), self.real(block)
        if self.bias is not None:
            whole[..., self.extra :] += real.of(self.bias, "bgrts")
        empty = self.hide(whole[..., self.extra :], real)
        if self.sinks is not None:
            whole[..., 0] = block.of(self.sinks, "bgr")[..., None]
        return torch.softmax(scores, -1, out=scores), empty, tanh


def count(keys: slice | Tensor) -> int:
    return keys.stop - keys.start if isinstance(keys, slice) else len(keys)


def of_rows(x: Tensor, b: slice) -> Tensor:
    """Rows of the batch; an axis of length 1 serves all."""
    return x[b] if x.shape[0] > 1 else x


def stretches(b: int, g: int, heads: int) -> Iterator[tuple[slice, slice]]:
    """The batch and the heads in parts of about as many heads: rows of the batch with all of them, or some of a row."""
    rows, heads = max(1, heads // g), min(heads, g)
    for i in range(0, b, rows):
        for j in range(0, g, heads):
            yield slice(i, min(i + rows, b)), slice(j, min(j + heads, g))


# Operations -----------------------------------------------------------------------------------------------------------


ARRAYS = 9  # of the inputs; the last three are `PatternArrays`
SCHEMA = "Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? bias, Tensor? sinks"
SCHEMA += ", Tensor? by_query, Tensor? by_key, Tensor? by_row"
SCHEMA += ", SymInt? left, SymInt? right, float scale, float? softcap, str pattern"


@torch.library.custom_op(f"{PACKAGE}::blocks", mutates_args=(), schema=f"({SCHEMA}) -> Tensor")
@without_autocast
def forward(*inputs: Any) -> Tensor:
    """The context, `b t h v`; masks have four axes, sinks are `1 h` or `b h`."""
    call, out = Blocked(*inputs), context_like(*inputs[:3])
    context = call.grouped(out)
    for block in call.blocks():
        probs, empty, _ = call.weights(block)
        if call.extra:
            probs[..., 0] = 0.0
        part = call.split(call.product("context", probs, call.keys(call.v, block)), block)
        block.of(context, "bgrtk").copy_(part if empty is None else part.masked_fill_(empty, 0.0))
    return out


@torch.library.custom_op(
    f"{PACKAGE}::blocks_backward",
    mutates_args=(),
    schema=f"(Tensor dout, Tensor out, {SCHEMA}, bool bias_too) -> Tensor[]",
)
@without_autocast
def backward(dout: Tensor, out: Tensor, *inputs: Any) -> list[Tensor]:
    """The gradients of q, k and v, then of the sinks if there are any, then of the bias if it is asked for.

    Every block's weights again, then the rules of the textbook. The sum over the keys of probs dprobs, which the
    softmax's rule needs, is that of dout out over the width.
    """
    *given, bias_too = inputs
    call = Blocked(*given)
    dq, dk, dv = torch.empty_like(inputs[0]), torch.zeros_like(call.k), torch.zeros_like(call.v)
    dsinks = None if call.sinks is None else torch.zeros_like(call.sinks)
    dbias = torch.zeros_like(call.bias) if call.bias is not None and bias_too else None
    dcontext, dqueries = call.grouped(dout), call.grouped(dq)
    total = call.grouped((dout * out).sum(-1, keepdim=True))
    for block in call.blocks():
        probs, empty, tanh = call.weights(block)
        if empty is not None:
            call.split(probs, block).masked_fill_(empty, 0.0)
        df = call.queries(dcontext, block)
        dscores = call.product("dprobs", df, call.keys(call.v, block).mT)
        if dsinks is not None:
            dscores[..., 0] = 0.0
        dscores.sub_(call.queries(total, block)).mul_(probs)
        whole = call.split(dscores, block)
        if dsinks is not None:
            block.add(dsinks, "bgr", whole[..., 0].sum(-1))
            probs[..., 0] = dscores[..., 0] = 0.0
        block.add(dv, "bgsk", call.product("dv", probs.mT, df))
        if dbias is not None:
            call.real(block).add(dbias, "bgrts", whole[..., call.extra :])
        if call.softcap is not None:
            dscores.mul_(tanh.square_().neg_().add_(1.0))
        block.add(dk, "bgsk", call.product("dk", dscores.mT, call.queries(call.q, block)))
        dqueries_block = call.product("dq", dscores, call.keys(call.k, block))
        block.of(dqueries, "bgrtk").copy_(call.split(dqueries_block, block))
    dk, dv = (x[:, :, call.extra :].transpose(1, 2).contiguous() for x in (dk, dv))
    return [dq * call.scale, dk, dv, *(x.flatten(1, 2) for x in (dsinks, dbias) if x is not None)]


@forward.register_fake
def context_like(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


@backward.register_fake
def _(dout: Tensor, out: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[Tensor]:
    bias, sinks, bias_too = *rest[1:3], rest[-1]
    return [x.new_empty(x.shape) for x in (q, k, v, sinks, bias if bias_too else None) if x is not None]


# Derivatives and vmap -------------------------------------------------------------------------------------------------


class Blocks(Function):
    """`forward` with its derivatives. torch.compile wants every argument by name."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q, k, v, mask, bias, sinks, by_query, by_key, by_row, left, right, scale, softcap, pattern):
        return forward(q, k, v, mask, bias, sinks, by_query, by_key, by_row, left, right, scale, softcap, pattern)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output, *inputs[:ARRAYS])
        ctx.options = inputs[ARRAYS:]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (dout,) = grad_outputs
        sinks, bias_too = ctx.saved_tensors[6], ctx.needs_input_grad[4]  # a bias may be as large as all scores
        dq, dk, dv, *more = Gradients.apply(dout, *ctx.saved_tensors, *ctx.options, bias_too)
        dsinks = more.pop(0) if sinks is not None else None
        return dq, dk, dv, None, more[0] if bias_too else None, dsinks, *[None] * 8


class Gradients(Function):
    """`backward`, which has no derivatives of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        dout, out, q, k, v, mask, bias, sinks, by_query, by_key, by_row, left, right, scale, softcap, pattern, bias_too
    ):
        arrays = q, k, v, mask, bias, sinks, by_query, by_key, by_row
        return tuple(backward(dout, out, *arrays, left, right, scale, softcap, pattern, bias_too))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        raise NotImplementedError(
            "attend: expected derivatives of the first order, got a second; set implementation='textbook'"
        )


def merged(n: int, dims: tuple[Any, ...], arrays: tuple[Any, ...]) -> list[Any]:
    """The arrays with the mapped axis and the axis of the batch as one."""
    wide = [
        x if x is None else x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip(arrays, dims, strict=True)
    ]
    b = max(x.shape[1] for x in wide if x is not None)
    return [x if x is None else x.expand(n, b, *x.shape[2:]).flatten(0, 1) for x in wide]


@forward.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
    n = info.batch_size
    out = forward(*merged(n, in_dims[:ARRAYS], inputs[:ARRAYS]), *inputs[ARRAYS:])
    return out.unflatten(0, (n, -1)), 0


@backward.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[list[Tensor], list[int]]:
    n, last = info.batch_size, ARRAYS + 2
    found = [x.unflatten(0, (n, -1)) for x in backward(*merged(n, in_dims[:last], inputs[:last]), *inputs[last:])]
    given = [x if dim is None else x.select(dim, 0) for x, dim in zip(inputs[:last], in_dims, strict=False)]
    bias, sinks = given[6:8]
    shared = [x.shape[0] == 1 for x in (sinks, bias) if x is not None]  # by all rows of a batch
    for i in range(3, len(found)):
        found[i] = found[i].sum(1, keepdim=True) if shared[i - 3] else found[i]
    return found, [0 for _ in found]
