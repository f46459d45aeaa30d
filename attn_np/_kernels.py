"""The fast path of `attend`: the textbook's numbers without the textbook's matrix.

The scores of a block of queries against a block of keys are made, weighted and used up before the next block, so that
they never leave the processor's cache and memory beyond inputs and output is that of a few blocks (Rabe and Staats
2021; Dao et al. 2022). Four things make it fast:

1. Both matrix products are BLAS's, one thread each; the blocks of queries are spread over as many threads as BLAS had.
2. Everything between the products happens in place, in one scratch block for each thread.
3. Blocks that causality, a window or the mask hide whole are never computed, and only those that they hide in part
   are masked.
4. The largest score of a row is subtracted in a softmax so that `exp` cannot overflow. Where Cauchy and Schwarz say
   that no score can be large, |q k| <= |q| |k|, it is neither looked for nor subtracted.

The backward pass keeps two numbers of each row, its largest score and its sum, and makes the weights again from them.
(Their usual union, top + log(sum), would round away what a row with large scores can still tell.)
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from threading import Lock, local
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from attn_np._core import Array, hide, narrow, visible, widen
from attn_np.contract._band import Band, Span
from attn_np.contract._tape import save

QUERIES, KEYS = 512, 512  # the block: its scores, a megabyte in float32, fit a core's second cache
WHOLE = 2**20  # so many scores are computed in one piece: below, threads cost more than they give
LARGEST = 30.0  # exp(LARGEST) summed over a million keys, times values up to 2**60, is a float32; so is exp(-LARGEST)


def serves(q: Array, k: Array, v: Array) -> bool:
    """Plain arrays only: those of other types bring operations of their own, which the textbook path calls."""
    return type(q) is type(k) is type(v) is np.ndarray


@dataclass(frozen=True)
class Call:
    """What `attend` was asked for, 16-bit types widened.

    Attributes:
        q, k, v: `b t h k`, `b s g k`, `b s g v`.
        mask, bias: None, or `b h t s` with axes of 1 where they are the same for all.
        band: causality and window.
        sinks: None, or `h`.
    """

    q: Array
    k: Array
    v: Array
    mask: Array | None
    bias: Array | None
    band: Band
    scale: float
    softcap: float | None
    sinks: Array | None

    def of(self, h: int) -> int:
        """The key/value head of a query head."""
        return h * self.k.shape[2] // self.q.shape[2]

    def allowed(self) -> Array | None:
        """Who sees whom, as one array; None where all see all."""
        found = self.mask
        if not self.band.full:
            found = visible(found, self.band.t, self.band.s, like=self.q, window=(self.band.left, self.band.right))
        if self.bias is not None and (shut := self.bias == -np.inf).any():
            found = ~shut if found is None else found & ~shut
        return found if found is None else found.reshape((1,) * (4 - found.ndim) + found.shape)

    def cleaned(self) -> "Call":
        """Without what nobody sees: 0 times a NaN would be NaN."""
        allowed = self.allowed()
        if allowed is None:
            return self
        near, (g, h) = allowed, (self.k.shape[2], self.q.shape[2])
        if 1 < g < h and near.shape[1] > 1:
            near = near.reshape(near.shape[0], g, h // g, *near.shape[2:]).any(2)
        elif g == 1:
            near = near.any(1, keepdims=True)
        q = hide("bhts->bthk", allowed, self.q)
        return replace(self, q=q, k=hide("bhts->bshk", near, self.k), v=hide("bhts->bshv", near, self.v))

    def hidden(self, n: int, h: int, queries: Span, keys: Span) -> Array | None:
        """What these queries may not see of these keys, broadcastable to `t s`; None for nothing."""
        found = None
        if not self.band.covers(queries, keys):
            ahead = keys.start - queries.start - (self.band.s - self.band.t)
            found = beyond(size(queries), size(keys), ahead, self.band.left, self.band.right)
        if self.mask is not None and not (near := block(self.mask, n, h, queries, keys)).all():
            found = ~near if found is None else found | ~near
        if self.bias is not None and (shut := block(self.bias, n, h, queries, keys) == -np.inf).any():
            found = shut if found is None else found | shut
        return found

    def rows(self) -> list[Span]:
        """The queries, in blocks: lower ones where much of a block may be hidden, since the rest of it is computed."""
        t = self.band.t
        rows = QUERIES if self.band.full else max(1, QUERIES // 2)
        return [Span(i, min(i + rows, t)) for i in range(0, t, rows)]

    def keys(self, n: int, h: int, queries: Span) -> Iterator[tuple[Span, Array | None]]:
        """The keys that some of these queries see, block by block, with what is hidden of a block."""
        start, stop = self.band.keys(queries)
        for i in range(start, stop, KEYS):
            keys = Span(i, min(i + KEYS, stop))
            hidden = self.hidden(n, h, queries, keys)
            if hidden is None or not hidden.all():
                yield keys, hidden

    def scores(
        self, n: int, h: int, queries: Span, keys: Span, hidden: Array | None, q: Array, out: Array
    ) -> Array | None:
        """Fill a block with scores as they go into `exp`, hidden ones -inf; q is scaled already.

        Returns the tanh of the softcap, which the backward pass asks for, if there is one.
        """
        np.matmul(q, self.k[n, keys.start : keys.stop, self.of(h)].T, out=out)
        bent = None
        if self.softcap is not None:
            out /= self.softcap
            np.tanh(out, out=out)
            bent = out.copy()
            out *= self.softcap
        if self.bias is not None:
            out += block(self.bias, n, h, queries, keys)
        if hidden is not None:
            np.copyto(out, -np.inf, where=hidden)
        return bent


def size(span: Span) -> int:
    return span.stop - span.start


def block(x: Array, n: int, h: int, queries: Span, keys: Span) -> Array:
    """One block of an array that is broadcastable to `b h t s`: `t s`, with axes of 1."""
    x = x[n if x.shape[0] > 1 else 0, h if x.shape[1] > 1 else 0]
    x = x[queries.start : queries.stop] if x.shape[0] > 1 else x
    return x[:, keys.start : keys.stop] if x.shape[1] > 1 else x


@lru_cache(maxsize=64)
def beyond(t: int, s: int, ahead: int, left: int | None, right: int | None) -> Array:
    """What lies outside the window in a block whose first key stands `ahead` of its first query: the same for many."""
    distance = np.arange(s, dtype=np.int32) - np.arange(t, dtype=np.int32)[:, None] + ahead
    found = np.zeros((t, s), np.bool_)
    found = found if right is None else found | (distance > right)
    found = found if left is None else found | (distance < -left)
    found.setflags(write=False)
    return found


# Threads --------------------------------------------------------------------------------------------------------------


@cache
def blas() -> ThreadpoolController:
    """The BLAS libraries of this process; NumPy's among them."""
    return ThreadpoolController().select(user_api="blas")


class OneThread:
    """Holds BLAS at one thread while somebody computes in threads of ours, however many do at a time."""

    def __init__(self) -> None:
        self.lock, self.callers, self.threads = Lock(), 0, 1
        self.limit: Any = None

    @contextmanager
    def __call__(self) -> Iterator[int]:
        """Gives the number of threads that BLAS had."""
        with self.lock:
            if self.callers == 0:
                found = [library.num_threads for library in blas().lib_controllers if library.num_threads]
                self.threads, self.limit = max(found, default=1), blas().limit(limits=1)
            self.callers += 1
            threads = self.threads
        try:
            yield threads
        finally:
            with self.lock:
                self.callers -= 1
                if self.callers == 0:
                    self.limit.restore_original_limits()


one_thread = OneThread()


def in_threads(work: Callable[..., None], tasks: Sequence[tuple[Any, ...]]) -> None:
    """Do every task, each in one thread and as many at a time as BLAS had threads."""

    def quietly(task: tuple[Any, ...]) -> None:
        # What nobody may see can overflow or be NaN; what comes of numbers that are seen shows in the result.
        with np.errstate(invalid="ignore", over="ignore"):
            work(*task)

    with one_thread() as threads:
        if min(threads, len(tasks)) < 2:
            for task in tasks:
                quietly(task)
            return
        with ThreadPoolExecutor(min(threads, len(tasks))) as pool:
            list(pool.map(quietly, tasks))


class Scratch(local):
    """Room for blocks, each thread its own: taking it anew for every block would cost more than to fill it."""

    def __init__(self) -> None:
        self.held: dict[str, Array] = {}

    def __call__(self, name: str, rows: int, columns: int, like: Array) -> Array:
        if name not in self.held or self.held[name].size < rows * columns:
            self.held[name] = np.empty(rows * columns, like.dtype)
        return self.held[name][: rows * columns].reshape(rows, columns)


# Forward --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Saved:
    """What the backward pass needs: the weights are exp(score - top) / total.

    Attributes:
        context: `b t h v`.
        top: `b h t`, what was subtracted from the scores of a row.
        total: `b h t`, infinite where a row sees nothing.
        weights, bent: `b h t s`, exp(score - top) and the tanh of the softcap, of a call done in one piece.
    """

    call: Call
    context: Array
    top: Array
    total: Array
    weights: Array | None = None
    bent: Array | None = None


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None,
    bias: Array | None,
    causal: bool,
    window: tuple[int | None, int | None] | None,
    scale: float,
    softcap: float | None,
    sinks: Array | None,
    tape: Any = None,
) -> Array:
    """Softmax attention as `attn_np.attend` defines it: `b t h k`, `b s g k`, `b s g v` -> `b t h v`."""
    mask, bias = (x if x is None else x.reshape((1,) * (4 - x.ndim) + x.shape) for x in (mask, bias))
    wide = widen(q)
    band = Band.of(q.shape[1], k.shape[1], causal, window)
    sinks = None if sinks is None else sinks.astype(wide.dtype)
    call = Call(wide, widen(k), widen(v), mask, bias, band, scale, softcap, sinks)
    (b, t, h, _), s = q.shape, k.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):
        found = at_once(call) if b * h * t * s <= WHOLE else in_blocks(call)
    save(tape, found)
    return narrow(found.context, q.dtype.name)


def at_once(call: Call) -> Saved:
    """All scores in one piece, for small calls and steps of decoding. Keys and values are read where they lie."""
    (b, t, h, _), s = call.q.shape, call.k.shape[1]
    scores = np.matmul(by_group(call.q * call.scale, call), call.k.transpose(0, 2, 3, 1)).reshape(b, h, t, s)
    bent = None
    if call.softcap is not None:
        bent = np.tanh(scores / call.softcap)
        scores = bent * call.softcap
    if call.bias is not None:
        scores += call.bias
    allowed = call.allowed()
    if allowed is not None:
        np.copyto(scores, -np.inf, where=~allowed)
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    if call.sinks is not None:
        top = np.maximum(top, call.sinks[:, None, None])
    lost = top == -np.inf
    top[lost] = 0.0
    scores -= top
    np.exp(scores, out=scores)
    total = np.sum(scores, axis=-1, keepdims=True)
    if call.sinks is not None:
        total += np.exp(call.sinks[:, None, None] - top)
    if lost.any() and s > 0:  # allowed scores that are all -inf have overflowed
        some: Any = True if allowed is None else np.any(allowed, axis=-1, keepdims=True)
        total[lost & some] = np.nan
    context = mixed(scores, call.v)
    if allowed is not None and not np.isfinite(context).all():
        context = mixed(scores, call.cleaned().v)
    total[total == 0] = np.inf  # a row that sees nothing gives 0
    context /= total
    return Saved(call, context.transpose(0, 2, 1, 3), top[..., 0], total[..., 0], scores, bent)


def by_group(x: Array, call: Call) -> Array:
    """Queries that share a key/value head as the rows of one matrix, `b t h k` -> `b g r*t k`."""
    b, t, h, width = x.shape
    g = call.k.shape[2]
    return x.reshape(b, t, g, h // g, width).transpose(0, 2, 3, 1, 4).reshape(b, g, h // g * t, width)


def mixed(weights: Array, v: Array) -> Array:
    """`b h t s`, `b s g v` -> `b h t v`."""
    (b, h, t, s), (_, _, g, width) = weights.shape, v.shape
    return np.matmul(weights.reshape(b, g, h // g * t, s), v.transpose(0, 2, 1, 3)).reshape(b, h, t, width)


def in_blocks(call: Call) -> Saved:
    """Block by block, the blocks of queries in threads."""
    (b, t, heads, _), width, dtype = call.q.shape, call.v.shape[-1], call.q.dtype
    context, top = np.empty((b, t, heads, width), dtype), np.empty((b, heads, t), dtype)
    total = np.empty_like(top)
    # The longest key, and whether the values leave room for weights that are far from 1.
    longest = np.sqrt(np.max(np.einsum("bsgk,bsgk->bsg", call.k, call.k), axis=1, initial=0))
    most = np.maximum(np.max(call.v, axis=1, initial=0), -np.min(call.v, axis=1, initial=0))
    gentle = np.all((most == 0) | ((most >= 2.0**-60) & (most <= 2.0**60)), axis=-1)
    if not (np.isfinite(longest).all() and gentle.all()):
        call = call.cleaned()
    scratch = Scratch()

    def rows(n: int, h: int, queries: Span) -> None:
        q = call.q[n, queries.start : queries.stop, h] * dtype.type(call.scale)
        largest = call.softcap
        if largest is None:
            largest = float(np.sqrt(np.max(np.einsum("tk,tk->t", q, q)))) * float(longest[n, call.of(h)])
        if call.sinks is not None:
            largest = max(largest, abs(float(call.sinks[h])))
        small = call.bias is None and gentle[n, call.of(h)] and largest <= LARGEST
        values, sums, tops = (summed if small else summed_online)(call, n, h, queries, q, scratch)
        sums[sums == 0] = np.inf  # a row that sees nothing gives 0
        at = slice(queries.start, queries.stop)
        np.divide(values, sums[:, None], out=context[n, at, h])
        top[n, h, at], total[n, h, at] = tops, sums

    in_threads(rows, [(n, h, span) for n in range(b) for h in range(heads) for span in call.rows()])
    return Saved(call, context, top, total)


def summed(call: Call, n: int, h: int, queries: Span, q: Array, scratch: Scratch) -> tuple[Array, Array, Array | float]:
    """Weighted values and weights of rows whose scores are all small, added up over the blocks of keys."""
    rows, width = size(queries), call.v.shape[-1]
    mixed, total = np.zeros((rows, width), q.dtype), np.zeros(rows, q.dtype)
    if call.sinks is not None:
        total += np.exp(call.sinks[h])
    for keys, hidden in call.keys(n, h, queries):
        weights = scratch("weights", rows, size(keys), q)
        call.scores(n, h, queries, keys, hidden, q, weights)
        np.exp(weights, out=weights)
        total += weights @ np.ones(size(keys), q.dtype)
        part = np.matmul(weights, call.v[n, keys.start : keys.stop, call.of(h)], out=scratch("part", rows, width, q))
        mixed += part
    return mixed, total, 0.0


def summed_online(
    call: Call, n: int, h: int, queries: Span, q: Array, scratch: Scratch
) -> tuple[Array, Array, Array | float]:
    """The same for any scores: relative to the largest so far, and what was added before shrinks when it grows."""
    rows, width = size(queries), call.v.shape[-1]
    mixed, total, top = np.zeros((rows, width), q.dtype), np.zeros(rows, q.dtype), np.full(rows, -np.inf, q.dtype)
    if call.sinks is not None and call.sinks[h] != -np.inf:
        total[:], top[:] = 1.0, call.sinks[h]
    some = np.zeros(rows, np.bool_)
    for keys, hidden in call.keys(n, h, queries):
        weights = scratch("weights", rows, size(keys), q)
        call.scores(n, h, queries, keys, hidden, q, weights)
        before, top = top, np.maximum(top, weights.max(-1))
        base = np.where(top == -np.inf, 0.0, top)
        if (base != top).any():
            some |= True if hidden is None else ~np.all(np.broadcast_to(hidden, weights.shape), axis=-1)
        weights -= base[:, None]
        np.exp(weights, out=weights)
        fade = np.exp(before - base)
        total *= fade
        total += weights @ np.ones(size(keys), q.dtype)
        part = np.matmul(weights, call.v[n, keys.start : keys.stop, call.of(h)], out=scratch("part", rows, width, q))
        mixed *= fade[:, None]
        mixed += part
    total[some & (top == -np.inf)] = np.nan  # allowed scores that are all -inf have overflowed
    return mixed, total, np.where(top == -np.inf, 0.0, top)


# Backward -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gradients:
    """Of q, k and v; of the sinks, and of the scores with their bias, `b h t s`, where the call had them."""

    dq: Array
    dk: Array
    dv: Array
    dsinks: Array | None
    dbiased: Array | None


def attend_vjp(saved: Saved, dcontext: Array) -> Gradients:
    """The gradients of `attend` from that of its result, `b t h v`.

    With the weights p = exp(score - top) / total, made again block by block, and the rule of the softmax

        dscore = p (dp - sum of p dp over the row),   sum of p dp = dcontext . context,

    so that a row needs two numbers of the forward pass and one of this. What is divided by the total is a row of
    dcontext, not the block. Heads that share keys and values are done by one thread, which alone adds to their
    gradients.
    """
    call, context = saved.call, saved.context
    if not all(np.isfinite(x).all() for x in (call.q, call.k, call.v)):
        call = call.cleaned()
    (b, t, heads, _), g, dtype = call.q.shape, call.k.shape[2], call.q.dtype
    dcontext = dcontext.astype(dtype, copy=False)
    shares = np.einsum("bthv,bthv->bht", dcontext, context)
    dsinks = None
    if call.sinks is not None:
        # The sink's weight has no value, so its score gets what the others lose.
        dsinks = -np.sum(np.exp(call.sinks[:, None] - saved.top) / saved.total * shares, axis=(0, 2))
    if saved.weights is not None:
        return at_once_vjp(replace(saved, call=call), dcontext, shares, dsinks)
    dq, dk, dv = np.zeros_like(call.q), np.zeros_like(call.k), np.zeros_like(call.v)
    dbiased = None if call.bias is None else np.zeros((b, heads, t, call.k.shape[1]), dtype)
    scratch = Scratch()

    def group(n: int, i: int) -> None:
        for h in range(i * heads // g, (i + 1) * heads // g):
            for queries in call.rows():
                rows(n, h, queries)

    def rows(n: int, h: int, queries: Span) -> None:
        at, count = slice(queries.start, queries.stop), size(queries)
        q, total = call.q[n, at, h] * dtype.type(call.scale), saved.total[n, h, at, None]
        dy, share, top = dcontext[n, at, h] / total, shares[n, h, at, None] / total, saved.top[n, h, at, None]
        for keys, hidden in call.keys(n, h, queries):
            there, i = slice(keys.start, keys.stop), call.of(h)
            weights, dscores = scratch("weights", count, size(keys), q), scratch("dscores", count, size(keys), q)
            bent = call.scores(n, h, queries, keys, hidden, q, weights)
            weights -= top
            np.exp(weights, out=weights)
            dv[n, there, i] += weights.T @ dy
            np.matmul(dy, call.v[n, there, i].T, out=dscores)
            dscores -= share
            dscores *= weights
            if hidden is not None:
                np.copyto(dscores, 0.0, where=hidden)
            if dbiased is not None:
                dbiased[n, h, at, there] = dscores
            if bent is not None:
                dscores *= 1 - bent * bent
            dk[n, there, i] += dscores.T @ q
            dq[n, at, h] += dscores @ call.k[n, there, i]
        dq[n, at, h] *= dtype.type(call.scale)

    in_threads(group, [(n, i) for n in range(b) for i in range(g)])
    return Gradients(dq, dk, dv, dsinks, dbiased)


def at_once_vjp(saved: Saved, dcontext: Array, shares: Array, dsinks: Array | None) -> Gradients:
    """The same in one piece, where the forward pass was: its weights are still there."""
    call, weights, bent = saved.call, saved.weights, saved.bent
    (b, t, h, width), (_, s, g, _) = call.q.shape, call.k.shape
    probs = (weights / saved.total[..., None]).reshape(b, g, h // g * t, s)
    dy, q = by_group(dcontext, call), by_group(call.q * call.scale, call)
    dv = np.matmul(probs.transpose(0, 1, 3, 2), dy).transpose(0, 2, 1, 3)
    dscores = np.matmul(dy, call.v.transpose(0, 2, 3, 1)).reshape(b, h, t, s) - shares[..., None]
    dscores *= probs.reshape(b, h, t, s)
    allowed = call.allowed()
    if allowed is not None:
        np.copyto(dscores, 0.0, where=~allowed)
    dbiased = None if call.bias is None else dscores
    if bent is not None:
        dscores = dscores * (1 - bent * bent)
    dgroup = dscores.reshape(b, g, h // g * t, s)
    dk = np.matmul(dgroup.transpose(0, 1, 3, 2), q).transpose(0, 2, 1, 3)
    dq = np.matmul(dgroup, call.k.transpose(0, 2, 1, 3)).reshape(b, h, t, width).transpose(0, 2, 1, 3) * call.scale
    return Gradients(dq, dk, dv, dsinks, dbiased)
