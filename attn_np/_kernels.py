"""The fast path of `attend`: the textbook's numbers without the textbook's matrix.

The scores of a block of queries against a block of keys are made, weighted and used up before the next block, so that
they never leave the processor's cache and memory beyond inputs and output is that of a few blocks (Rabe and Staats
2021; Dao et al. 2022). Five things make it fast:

1. Both matrix products are BLAS's, one thread each; the blocks of queries are spread over as many threads as BLAS had.
2. Everything between the products happens in place, in one scratch block for each thread.
3. Blocks that causality, a window or the mask hide whole are never computed, and only those that they hide in part
   are masked; along a causal edge or in a window blocks are lower, so that less of them is in vain, and of more heads,
   so that they are no more in number.
4. Powers of 2 in the place of e, where NumPy makes them faster: the scale of the scores takes the factor log2(e).
5. The largest score of a row is subtracted in a softmax so that `exp` cannot overflow. Where Cauchy and Schwarz say
   that no score can be large, |q k| <= |q| |k|, it is neither looked for nor subtracted.

The backward pass keeps two numbers of each row, its largest score and its sum, and makes the weights again from them.
(Their usual union, top + log(sum), would round away what a row with large scores can still tell.)
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import log2, prod
from threading import Lock, local
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import ThreadpoolController

from attn_np._masks import attention_mask, zero_unseen
from attn_np._ops import Array, to_dtype, upcast
from attn_np.contract._band import Band, Span
from attn_np.contract._tape import save

QUERIES, KEYS = 1024, 512  # the block: its scores, two megabytes in float32, fit a core's caches
EDGE = 128  # so many queries, at most, where causality or a window hides a part of a block
PARTS = 16  # blocks of queries, at least, where that is possible: there should be work for every thread
WHOLE = 2**20  # so many scores are computed in one piece: below, threads cost more than they give
LARGEST = 30.0  # exp(LARGEST) summed over a million keys, times values up to 2**60, is a float32; so is exp(-LARGEST)


def serves(q: Array, k: Array, v: Array) -> bool:
    """Plain arrays and memmaps only: other types bring operations of their own, which the textbook path calls."""
    return all(type(x) in (np.ndarray, np.memmap) for x in (q, k, v))


E = 2.718281828459045


@cache
def base(dtype: np.dtype) -> float:
    """Whose powers are the weights before they are divided by their sum: 2 where NumPy has a loop of its own for this
    processor, as it has for AVX-512, else e.
    """
    inspect = getattr(np.lib, "introspect", None)  # since NumPy 2.1
    found = {} if inspect is None else inspect.opt_func_info(func_name="^exp2$").get("exp2", {})
    return E if found.get(2 * dtype.char, {}).get("current", "baseline").startswith("baseline") else 2.0


class Part(NamedTuple):
    """What a thread does at a time: some queries of some heads of a row of the batch.

    Attributes:
        n: the row of the batch.
        heads, shared: the query heads, and the key/value heads that they use.
        queries: the queries.
    """

    n: int
    heads: Span
    shared: Span
    queries: Span


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

    @property
    def units(self) -> float:
        """What scores are multiplied by in blocks, so that a power of `base` is the weight."""
        # A bias would have to be multiplied too, number by number, which takes what a power of 2 saves.
        return 1.0 if self.bias is not None or base(self.q.dtype) == E else log2(E)

    @property
    def factor(self) -> float:
        """What queries are multiplied by in blocks."""
        return self.scale * self.units if self.softcap is None else self.scale / self.softcap

    def power(self, x: Array) -> Array:
        """Of `base`, in place."""
        return np.exp(x, out=x) if self.units == 1.0 else np.exp2(x, out=x)

    def allowed(self) -> Array | None:
        """Who sees whom, as one array; None where all see all."""
        found = self.mask
        if not self.band.full:
            found = attention_mask(
                found, self.band.t, self.band.s, like=self.q, window=(self.band.left, self.band.right)
            )
        if self.bias is not None and (gone := self.bias == -np.inf).any():
            found = ~gone if found is None else found & ~gone
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
        q = zero_unseen("bhts->bthk", allowed, self.q)
        return replace(self, q=q, k=zero_unseen("bhts->bshk", near, self.k), v=zero_unseen("bhts->bshv", near, self.v))

    @property
    def alike(self) -> int:
        """How many heads a block may take: heads of their own each, or those that share one."""
        h, g = self.q.shape[2], self.k.shape[2]
        return h if g == h else h // g

    @property
    def sizes(self) -> tuple[int, int]:
        """How many queries and keys a block has at most, forward and backward: other products would round otherwise."""
        (b, t, h, _), s = self.q.shape, self.band.s
        if self.band.full:
            return min(t, QUERIES, max(EDGE, -(-b * h * t // PARTS))), min(s, KEYS)
        if self.stretch is not None:
            return min(t, EDGE), self.stretch
        low, to_dtype = 2 * EDGE, max(1, KEYS // 2)
        heads = max(1, min(self.alike, QUERIES * KEYS // (low * to_dtype)))
        rows = min(t, QUERIES, max(1, QUERIES * KEYS // (heads * to_dtype) // low) * low)
        return rows, min(s, KEYS, max(1, QUERIES * KEYS // (heads * rows)))

    def parts(self, threads: int, apart: bool = False) -> list[Part]:
        """The work in parts: stretches of queries, of several heads at a time where one head's would be little.

        Args:
            threads: how many there are to do it.
            apart: there should be many parts that share no key/value head with each other.
        """
        (b, t, h, _), g, (rows, keys) = self.q.shape, self.k.shape[2], self.sizes
        # Heads that share keys are rows of one product, so their number must not depend on the threads.
        least = PARTS if self.band.full or self.stretch is not None or g < h else 2 * threads
        shares = b * g // 4 if apart else b * h * -(-t // rows) // least
        most = min(QUERIES * KEYS // (rows * keys), shares)
        heads = max([n for n in range(1, most + 1) if self.alike % n == 0], default=1)
        return [
            Part(n, Span(i, i + heads), Span(i * g // h, (i + heads - 1) * g // h + 1), Span(j, min(j + rows, t)))
            for n in range(b)
            for i in range(0, h, heads)
            for j in reversed(range(0, t, rows))  # the longest first where causality makes them unequal
        ]

    @property
    def stretch(self) -> int | None:
        """How many keys a low block of queries sees within a narrow window; None where the window is none or wide."""
        left, right = self.band.left, self.band.right
        if left is None or right is None or left + right >= KEYS:
            return None
        return left + right + EDGE

    def blocks(self, part: Part) -> Iterator[tuple[Span, Span, Array | None]]:
        """The keys that some queries of a part see, block by block: queries, keys, and what is hidden of them."""
        (start, stop), (_, step) = self.band.keys(part.queries), self.sizes
        for i in range(start, stop, step):
            yield from self.cut(part, Span(i, min(i + step, stop)))

    def cut(self, part: Part, keys: Span) -> Iterator[tuple[Span, Span, Array | None]]:
        """One block; where causality or a window runs through it, its halves, each with the keys that it sees."""
        queries, near = part.queries, self.band.keys(part.queries)
        keys = Span(max(keys.start, near.start), min(keys.stop, near.stop))
        if size(keys) < 1:
            return
        if size(queries) > EDGE and not self.band.covers(queries, keys):
            middle = (queries.start + queries.stop) // 2
            for half in Span(queries.start, middle), Span(middle, queries.stop):
                yield from self.cut(part._replace(queries=half), keys)
        elif (hidden := self.hidden(part, keys)) is None or not hidden.all():
            yield queries, keys, hidden

    def hidden(self, part: Part, keys: Span) -> Array | None:
        """What the queries of a part may not see of these keys, broadcastable to `h t s`; None for nothing."""
        found, queries = None, part.queries
        if not self.band.covers(queries, keys):
            ahead = keys.start - queries.start - (self.band.s - self.band.t)
            found = beyond(size(queries), size(keys), ahead, self.band.left, self.band.right)
        if self.mask is not None and not (near := block(self.mask, part, keys)).all():
            found = ~near if found is None else found | ~near
        if self.bias is not None and (gone := block(self.bias, part, keys) == -np.inf).any():
            found = gone if found is None else found | gone
        return found

    def queries(self, x: Array, part: Part) -> Array:
        """A part of what is by queries, `b t h k` -> `h t k`."""
        return x[part.n, slice(*part.queries), slice(*part.heads)].swapaxes(0, 1)

    def scaled(self, part: Part) -> Array:
        """The queries of a part as they go into `scores`; in one order for any heads, as BLAS may round by strides."""
        return np.multiply(self.queries(self.q, part), self.q.dtype.type(self.factor), order="C")

    def keys(self, x: Array, part: Part, keys: Span) -> Array:
        """A block of what is by keys, `b s g k` -> `g s k`."""
        return x[part.n, slice(*keys), slice(*part.shared)].swapaxes(0, 1)

    def scores(self, part: Part, keys: Span, q: Array, out: Array) -> Array | None:
        """Fill a block `h t s` with scores as they go into `power`, hidden ones too; q is scaled already.

        Returns the tanh of the softcap, which the backward pass asks for, if there is one.
        """
        k = self.keys(self.k, part, keys)
        np.matmul(by_shared(q, k), k.swapaxes(1, 2), out=by_shared(out, k))
        bent = None
        if self.softcap is not None:
            np.tanh(out, out=out)
            bent = out.copy()
            out *= self.softcap * self.units
        if self.bias is not None:
            out += block(self.bias, part, keys)
        return bent

    def mixed(self, part: Part, keys: Span, weights: Array, room: "Scratch") -> Array:
        """The values of a block by their weights, `h t s` -> `h t v`."""
        v = self.keys(self.v, part, keys)
        found = room("mixed", (*weights.shape[:2], v.shape[-1]), weights)
        np.matmul(by_shared(weights, v), v, out=by_shared(found, v))
        return found


def by_shared(x: Array, like: Array) -> Array:
    """Queries that share a key/value head as the rows of one matrix, `h t k` -> `g (h t) k`."""
    return x.reshape(like.shape[0], -1, x.shape[-1])


def size(span: Span) -> int:
    return span.stop - span.start


def block(x: Array, part: Part, keys: Span) -> Array:
    """One block of an array that is broadcastable to `b h t s`: `h t s`, with axes of 1."""
    spans = Span(part.n, part.n + 1), part.heads, part.queries, keys
    return x[tuple(slice(*span) if n > 1 else slice(0, 1) for span, n in zip(spans, x.shape, strict=True))][0]


def zero(x: Array, hidden: Array) -> None:
    """Select what is hidden to 0, in place. By its bits, which are kept or not: where every number has to be asked, as
    `copyto` does, a processor guesses, and a random mask takes 20 times as long.
    """
    bits = x.view(f"i{x.itemsize}")
    bits &= (hidden.view(np.int8) - np.int8(1)).astype(bits.dtype)


def shut(x: Array, hidden: Array) -> None:
    """Select what is hidden to -inf, in place: the smaller of a score and +-inf. A NaN that is seen becomes inf, which
    makes its row NaN as well.
    """
    np.fmin(x, (x.dtype.type(0.5) - hidden) * x.dtype.type(np.inf), out=x)


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

    def __call__(self, name: str, shape: tuple[int, ...], like: Array) -> Array:
        count = prod(shape)
        if name not in self.held or self.held[name].size < count:
            self.held[name] = np.empty(count, like.dtype)
        return self.held[name][:count].reshape(shape)


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
    wide = upcast(q)
    band = Band.of(q.shape[1], k.shape[1], causal, window)
    sinks = None if sinks is None else sinks.astype(wide.dtype)
    call = Call(wide, upcast(k), upcast(v), mask, bias, band, scale, softcap, sinks)
    (b, t, h, _), s = q.shape, k.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):
        found = at_once(call) if b * h * t * s <= WHOLE else in_blocks(call)
    save(tape, found)
    return to_dtype(found.context, q.dtype.name)


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
        shut(scores, ~allowed)
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
    squares = np.einsum("bsgv,bsgv->bg", call.v, call.v)
    gentle = (squares >= 2.0**-100) & (squares <= 2.0**100)
    if not (np.isfinite(longest).all() and gentle.all()):
        call = call.cleaned()
    units, room = call.units, Scratch()

    def work(part: Part) -> None:
        q = call.scaled(part)
        largest = call.softcap
        if largest is None:
            norms = np.sqrt(np.max(np.einsum("htk,htk->ht", q, q), axis=1))
            largest = float(np.max(norms * longest[part.n, slice(*part.shared)])) / units
        if call.sinks is not None:
            largest = max(largest, float(np.max(np.abs(call.sinks[slice(*part.heads)]))))
        small = call.bias is None and gentle[part.n, slice(*part.shared)].all() and largest <= LARGEST
        values, sums, tops = (summed if small else summed_online)(call, part, q, room)
        sums[sums == 0] = np.inf  # a row that sees nothing gives 0
        np.divide(values, sums[:, :, None], out=call.queries(context, part))
        at = part.n, slice(*part.heads), slice(*part.queries)
        top[at], total[at] = tops, sums

    with one_thread() as threads:
        in_threads(work, [(part,) for part in call.parts(threads)])
    return Saved(call, context, top, total)


def summed(call: Call, part: Part, q: Array, room: Scratch) -> tuple[Array, Array, Array | float]:
    """Weighted values `h t v` and weights `h t` of rows whose scores are small, added up over the blocks of keys."""
    heads, rows, _ = q.shape
    mixed, total = np.zeros((heads, rows, call.v.shape[-1]), q.dtype), np.zeros((heads, rows), q.dtype)
    if call.sinks is not None:
        total += call.power(call.sinks[slice(*part.heads), None] * q.dtype.type(call.units))
    for queries, keys, hidden in call.blocks(part):
        at = slice(queries.start - part.queries.start, queries.stop - part.queries.start)
        weights = room("weights", (heads, size(queries), size(keys)), q)
        call.scores(part._replace(queries=queries), keys, q[:, at], weights)
        call.power(weights)  # of hidden scores too: that of -inf takes several times as long
        if hidden is not None:
            zero(weights, hidden)
        total[:, at] += weights @ np.ones(size(keys), q.dtype)
        mixed[:, at] += call.mixed(part, keys, weights, room)
    return mixed, total, 0.0


def summed_online(call: Call, part: Part, q: Array, room: Scratch) -> tuple[Array, Array, Array | float]:
    """The same for any scores: relative to the largest so far, and what was added before shrinks when it grows."""
    heads, rows, _ = q.shape
    mixed, total = np.zeros((heads, rows, call.v.shape[-1]), q.dtype), np.zeros((heads, rows), q.dtype)
    top, some = np.full((heads, rows), -np.inf, q.dtype), np.zeros((heads, rows), np.bool_)
    if call.sinks is not None:
        top[:] = call.sinks[slice(*part.heads), None] * q.dtype.type(call.units)
        total[top > -np.inf] = 1.0
    for queries, keys, hidden in call.blocks(part):
        at = slice(queries.start - part.queries.start, queries.stop - part.queries.start)
        weights = room("weights", (heads, size(queries), size(keys)), q)
        call.scores(part._replace(queries=queries), keys, q[:, at], weights)
        if hidden is not None:
            shut(weights, hidden)
        before, top[:, at] = top[:, at].copy(), np.maximum(top[:, at], weights.max(-1))
        level = np.where(top[:, at] == -np.inf, 0.0, top[:, at])
        if (level != top[:, at]).any():
            shown = True if hidden is None else ~np.all(np.broadcast_to(hidden, weights.shape), axis=-1)
            some[:, at] |= shown
        weights -= level[:, :, None]
        call.power(weights)
        fade = call.power(before - level)
        total[:, at] *= fade
        total[:, at] += weights @ np.ones(size(keys), q.dtype)
        mixed[:, at] *= fade[:, :, None]
        mixed[:, at] += call.mixed(part, keys, weights, room)
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
        if saved.weights is None:
            weight = call.power(call.sinks[:, None] * dtype.type(call.units) - saved.top)
        else:
            weight = np.exp(call.sinks[:, None] - saved.top)
        dsinks = -np.sum(weight / saved.total * shares, axis=(0, 2))
    if saved.weights is not None:
        return at_once_vjp(replace(saved, call=call), dcontext, shares, dsinks)
    dq, dk, dv = np.zeros_like(call.q), np.zeros_like(call.k), np.zeros_like(call.v)
    dbiased = None if call.bias is None else np.zeros((b, heads, t, call.k.shape[1]), dtype)
    room = Scratch()

    def work(parts: list[Part]) -> None:
        for part in parts:
            q = call.scaled(part)
            for queries, keys, hidden in call.blocks(part):
                at = slice(queries.start - part.queries.start, queries.stop - part.queries.start)
                add(part._replace(queries=queries), keys, hidden, q[:, at])

    def add(part: Part, keys: Span, hidden: Array | None, q: Array) -> None:
        at = part.n, slice(*part.heads), slice(*part.queries)
        total = saved.total[at][:, :, None]
        dy, share = call.queries(dcontext, part) / total, shares[at][:, :, None] / total
        shape = (*q.shape[:2], size(keys))
        weights, dscores = room("weights", shape, q), room("dscores", shape, q)
        bent = call.scores(part, keys, q, weights)
        weights -= saved.top[at][:, :, None]
        call.power(weights)
        if hidden is not None:
            zero(weights, hidden)
        k, v = call.keys(call.k, part, keys), call.keys(call.v, part, keys)
        call.keys(dv, part, keys)[...] += by_shared(weights, v).swapaxes(1, 2) @ by_shared(dy, v)
        np.matmul(by_shared(dy, v), v.swapaxes(1, 2), out=by_shared(dscores, v))
        dscores -= share
        dscores *= weights
        if hidden is not None:
            zero(dscores, hidden)
        if dbiased is not None:
            dbiased[*at, slice(*keys)] = dscores
        if bent is not None:
            dscores *= 1 - bent * bent
        call.keys(dk, part, keys)[...] += by_shared(dscores, k).swapaxes(1, 2) @ by_shared(q, k)
        call.queries(dq, part)[...] += (by_shared(dscores, k) @ k).reshape(q.shape)

    together: dict[tuple[int, Span], list[Part]] = {}
    with one_thread() as threads:
        for part in call.parts(threads, apart=call.q.shape[2] == g):
            together.setdefault((part.n, part.shared), []).append(part)
        in_threads(work, [(parts,) for parts in together.values()])
    dq *= dtype.type(call.scale)
    dk *= dtype.type(1 / call.units if call.softcap is None else call.softcap)
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
        zero(dscores, ~allowed)
    dbiased = None if call.bias is None else dscores
    if bent is not None:
        slope = 1 - bent * bent
        if allowed is not None:
            zero(slope, ~allowed)  # of a key that nobody sees it may be NaN
        dscores = dscores * slope
    dgroup = dscores.reshape(b, g, h // g * t, s)
    dk = np.matmul(dgroup.transpose(0, 1, 3, 2), q).transpose(0, 2, 1, 3)
    dq = np.matmul(dgroup, call.k.transpose(0, 2, 1, 3)).reshape(b, h, t, width).transpose(0, 2, 1, 3) * call.scale
    return Gradients(dq, dk, dv, dsinks, dbiased)
