"""The fast paths of `attend`: the same numbers as the textbook path, without the `t s` matrix of scores.

Blocks. Queries are cut into blocks and so are the keys; only the scores of one block with another exist at a time. The
softmax runs along ("online", Milakov and Gimelshein 2018): each block of queries keeps the largest score so far, the
sum of exponentials relative to it and the weighted sum of values; where a block of keys raises the largest score, the
two sums are scaled down. What a causal order or a window hides from a whole block of queries is not in the loop at all.

Backward. Only the output and each query's largest score and sum are kept; the weights are computed again, block by
block (Rabe and Staats 2021, Dao et al. 2022): memory grows with t, not with t s. So first-order reverse mode only.

Why it is fast. On a CPU, XLA divides a product among the cores and starts and joins them for each, which takes about
as long as a small product. So a step takes several heads and many queries: about a million scores, which stay in the
caches between the two products. Query heads that share a key/value head are rows of one product, so keys are never
repeated. The products of the backward pass are written such that none of them reads a matrix across its rows.

Small inputs take one block and no loop: quicker to compile and to run, and differentiable in every mode.

Few queries of many keys take blocks of keys where they lie, all heads at a time: keys and values put in order for a
product would be a copy of the cache. The loop ends with the last key that a mask shows. One query, as in a step of
decoding, takes the keys up to there, or up to twice as many, at a time: pieces whose place is not known beforehand are
slow to read.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from attn_jax._masks import attention_mask, unmasked_by_bias, zero_unseen
from attn_jax._ops import Array, broadcast_to, dtype_name, einsum, exp, maximum, tanh, to_dtype, upcast, where, zeros

ONE_BLOCK = 3 << 19  # up to so many scores are computed as one block
SMALL = 1 << 15  # and so are all heads that have no more each
FEW = 16  # so few queries do not make blocks of their own
KEYS_OF_FEW, FEW_KEYS = 128, 4  # keys in a step where queries are few; in up to so many steps they are few as well
ONE_QUERY = 512  # keys that one query reads though they may be hidden
ROWS = 2048  # queries in a step, those of all its heads together
QUERIES = 512  # at most so many of one head where causality or a window hides keys: more would hide less
KEYS, HEADS = 512, 2  # keys and heads in a step
IN_WINDOW = 256, 4  # the same where a window leaves few keys to a query
EVEN = 8  # sizes of blocks are multiples


class Plan(NamedTuple):
    """What is known before the numbers are.

    Attributes:
        t, s: numbers of queries and keys.
        parts, heads: the key/value heads are so many parts of so many heads; a step takes one part.
        shared: query heads that share a key/value head.
        queries, keys: sizes of the blocks.
        left, right: how many keys before and after its own position a query sees; None for all.
        softcap: as in `attend`.
    """

    t: int
    s: int
    parts: int
    heads: int
    shared: int
    queries: int
    keys: int
    left: int | None
    right: int | None
    softcap: float | None

    @property
    def blocks(self) -> int:
        """Number of blocks of queries."""
        return -(-self.t // self.queries)

    def span(self, i: Any) -> tuple[Any, Any]:
        """The first key that any query of block i sees, and how many blocks of keys begin there."""
        place = i * self.queries + self.s - self.t
        first = 0 if self.left is None else _clip(place - self.left, 0, self.s)
        end = self.s if self.right is None else _clip(place + self.queries + self.right, 0, self.s)
        return first, _clip(-((first - end) // self.keys), 0, self.s)

    @property
    def hides(self) -> bool:
        """Whether causality, a window or padding hides any key."""
        return self.left is not None or self.right is not None or self.room > self.s

    @property
    def room(self) -> int:
        """How many keys the blocks reach over; those beyond s are padding."""
        return max(first + self.keys * count for first, count in map(self.span, range(self.blocks)))


def _clip(x: Any, low: int, high: int) -> Any:
    return min(max(x, low), high) if isinstance(x, int) else jnp.clip(x, low, high)


def _even(n: int, size: int) -> int:
    """The size of as many equal blocks as blocks of `size` would be, which hold n with little to spare."""
    return -(-n // (-(-n // size) * EVEN)) * EVEN


def _plan(q: Array, k: Array, left: int | None, right: int | None, softcap: float | None) -> Plan:
    (t, h), (s, g) = q.shape[1:3], k.shape[1:3]
    size, most = (KEYS, HEADS) if left is None else IN_WINDOW
    heads = max(n for n in range(1, most + 1) if g % n == 0 and (n == 1 or n * h // g <= most))
    queries = max(ROWS // (heads * (h // g)), 1)
    if left is not None or right is not None:
        queries = min(queries, QUERIES)
    keys = size if left is not None else _even(s, size)
    return Plan(t, s, g // heads, heads, h // g, _even(t, queries), keys, left, right, softcap)


def serves(q: Array, k: Array, v: Array) -> bool:
    """Whether the fast path can take these arrays."""
    return True


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
) -> Array:
    """Softmax dot-product attention with the arguments of `attn_jax.attend`, all checked: `b t h v`."""
    left, right = (None, None) if window is None else window
    right = 0 if causal else right
    q, k, v = (x[...] if isinstance(x, nnx.Variable) else jnp.asarray(x) for x in (q, k, v))
    bare = all(x is None for x in (mask, bias, softcap, sinks))
    if bare and cudnn_serves(q, k, v, left, right):
        return by_cudnn(q, k, v, left, right, scale)
    dtype = dtype_name(q)
    t, s = q.shape[1], k.shape[1]
    if t == 1:  # it stands at the last key: a window is a stretch of keys, and nothing comes later
        first, left, right = 0 if left is None else max(0, s - 1 - left), None, None
        k, v, mask, bias = k[:, first:], v[:, first:], _from(first, mask), _from(first, bias)
        s = k.shape[1]
    q, k, v = (upcast(x) for x in (q, k, v))
    arrays = [q, k, v, *(x if x is None else jnp.asarray(x).astype(q.dtype) for x in (bias, sinks))]
    if t <= FEW and s > FEW_KEYS * KEYS_OF_FEW and 0 not in (q.size, v.size):
        few = _one_query if t == 1 else _few_queries
        return to_dtype(few(*arrays, mask, left, right, scale, softcap), dtype)
    if q.shape[0] * q.shape[2] * t * s <= ONE_BLOCK or t * s <= SMALL or 0 in (q.size, v.size):
        return to_dtype(_one_block(*arrays, mask, left, right, scale, softcap), dtype)
    return to_dtype(_many_blocks(*arrays, mask, scale, _plan(q, k, left, right, softcap)), dtype)


# One block ------------------------------------------------------------------------------------------------------------


def _grouped(x: Array | None, g: int) -> Array | None:
    """Something broadcastable to the scores `b h t s` as `b g r t s`."""
    if x is None:
        return None
    x = x.reshape((1,) * (4 - x.ndim) + x.shape)
    b, h, t, s = x.shape
    return x.reshape(b, *((1, 1) if h == 1 else (g, h // g)), t, s)


def _allowed(
    mask: Array | None, bias: Array | None, t: int, s: int, left: int | None, right: int | None, like: Array
) -> Array | None:
    return unmasked_by_bias(attention_mask(mask, t, s, like=like, window=(left, right)), bias)


@partial(jax.jit, static_argnums=(6, 7, 8, 9))
def _one_block(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    sinks: Array | None,
    mask: Array | None,
    left: int | None,
    right: int | None,
    scale: float,
    softcap: float | None,
) -> Array:
    (b, t, h, width), (s, g) = q.shape, k.shape[1:3]
    mask, bias = _grouped(mask, g), _grouped(bias, g)
    allowed = _allowed(mask, bias, t, s, left, right, q)
    # Axes in the order of a product, so that XLA turns nothing around; query heads that share keys are rows of one.
    q, k, v = (q * scale).reshape(b, t, g, h // g, width).transpose(0, 2, 3, 1, 4), k.swapaxes(1, 2), v.swapaxes(1, 2)
    q = zero_unseen("bgrts->bgrtk", allowed, q).reshape(b * g, h // g * t, width)
    k, v = zero_unseen("bgrts->bgsk", allowed, k), zero_unseen("bgrts->bgsv", allowed, v)
    x = einsum("ntk,nsk->nts", q, k.reshape(b * g, s, width)).reshape(b, g, h // g, t, s)
    if softcap is not None:
        x = softcap * tanh(x / softcap)
    if bias is not None:
        x = x + bias
    x = x if allowed is None else where(allowed, x, -jnp.inf)
    sinks = None if sinks is None else sinks.reshape(g, h // g, 1, 1)
    some = None if allowed is None else jnp.any(allowed, -1, keepdims=True)
    y = _average(x, v.reshape(b * g, s, v.shape[3]), sinks, some).reshape(b, g, h // g, t, v.shape[3])
    return y.transpose(0, 3, 1, 2, 4).reshape(b, t, h, v.shape[3])


def _weights(x: Array, sinks: Array | None, some: Array | None) -> tuple[Array, Array, Array]:
    """Exponentials, their sum and the sink's share; `some`: which queries see any key, None for all."""
    top = jnp.max(jax.lax.stop_gradient(x), -1, keepdims=True, initial=-jnp.inf)
    top = top if sinks is None else maximum(top, jax.lax.stop_gradient(sinks))
    lost = (top == -jnp.inf) & (x.shape[-1] > 0)  # allowed scores that are all -inf have overflowed
    lost = lost if some is None else lost & some
    level = where(top == -jnp.inf, 0.0, top)
    e = exp(x - level)
    total = jnp.sum(e, -1, keepdims=True)
    sink: Any = 0.0
    if sinks is not None:
        sink = exp(sinks - level)
        total = total + sink
    total = where(lost, jnp.nan, where(total == 0, 1.0, total))
    return e, total, sink / total


@jax.custom_jvp
def _average(x: Array, v: Array, sinks: Array | None, some: Array | None) -> Array:
    """Values weighted by the softmax of scores: `b g r t s`, `n s v` -> `n (r t) v`, n for b g."""
    e, total, _ = _weights(x, sinks, some)
    rows = len(v), x.shape[2] * x.shape[3]
    # The sum divides what the product gives: fewer numbers than the weights, and no pass over them.
    return einsum("nts,nsv->ntv", e.reshape(*rows, x.shape[4]), v) / total.reshape(*rows, 1)


@_average.defjvp
def _average_jvp(given: Any, slopes: Any) -> Any:
    """Weights are turned around for the gradient of the values; without the barrier XLA would undo that."""
    (x, v, sinks, some), (dx, dv, dsinks, _) = given, slopes
    e, total, sink = _weights(x, sinks, some)
    p, shape = e / total, (len(v), x.shape[2] * x.shape[3], x.shape[4])
    mean = jnp.sum(p * dx, -1, keepdims=True) + (0.0 if sinks is None else sink * dsinks)
    across = jax.lax.optimization_barrier(p.reshape(shape).mT)
    dy = einsum("nts,nsv->ntv", (p * (dx - mean)).reshape(shape), v) + einsum("nst,nsv->ntv", across, dv)
    return _average(x, v, sinks, some), dy


def _from(first: int, x: Array | None) -> Array | None:
    """A mask or bias without the keys before one."""
    return x if x is None or x.ndim == 0 or x.shape[-1] == 1 else x[..., first:]


# Few queries ----------------------------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8, 9))
@partial(jax.jit, static_argnums=(6, 7, 8, 9))
def _few_queries(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    sinks: Array | None,
    mask: Array | None,
    left: int | None,
    right: int | None,
    scale: float,
    softcap: float | None,
) -> Array:
    """Block after block of the keys, all heads at a time, up to the last key that any query sees."""
    (b, t, h, width), (s, g) = q.shape, k.shape[1:3]
    mask, bias = _grouped(mask, g), _grouped(bias, g)
    q = (q * scale).reshape(b, t, g, h // g, width).transpose(0, 2, 3, 1, 4)
    size = min(KEYS_OF_FEW, s)

    def block(x: Array, axis: int, first: Array) -> Array:
        return x if x.shape[axis] == 1 else jax.lax.dynamic_slice_in_dim(x, first, size, axis)

    def step(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        top, total, context = carry
        first = jnp.minimum(j * size, s - size)  # the last block may overlap the one before
        key = first + jnp.arange(size)
        ahead = key - (jnp.arange(t)[:, None] + (s - t))
        limits = [key >= j * size]
        limits += [] if left is None else [ahead >= -left]
        limits += [] if right is None else [ahead <= right]
        limits += [] if mask is None else [block(mask, 4, first)]
        ks, vs = block(k, 1, first), block(v, 1, first)
        x = einsum("bgrtk,bsgk->bgrts", q, ks)
        if softcap is not None:
            x = softcap * tanh(x / softcap)
        if bias is not None:
            added = block(bias, 4, first)
            x = x + added
            limits.append(added != -jnp.inf)
        allowed = broadcast_to(_all(limits), x.shape)
        x = where(allowed, maximum(x, _least(x)), -jnp.inf)
        new = maximum(top, jnp.max(x, -1))
        level = where(new == -jnp.inf, 0.0, new)
        e, shrink = exp(x - level[..., None]), exp(top - level)
        part = einsum("bgrts,bsgv->bgrtv", e, zero_unseen("bgrts->bsgv", allowed, vs))
        return new, total * shrink + jnp.sum(e, -1), context * shrink[..., None] + part

    end = s
    if mask is not None and mask.shape[4] == s:
        end = jnp.max(where(jnp.any(mask, (0, 1, 2, 3)), jnp.arange(1, s + 1), 0))
    start = 0 if left is None else max(0, s - t - left) // size
    shape = (b, g, h // g, t)
    carry = (zeros(shape, q) - jnp.inf, zeros(shape, q), zeros((*shape, v.shape[-1]), q))
    top, total, context = jax.lax.fori_loop(start, -(-end // size), step, carry)
    dead = top == -jnp.inf
    if sinks is not None:
        new = maximum(top, sinks.reshape(g, h // g, 1))
        level = where(new == -jnp.inf, 0.0, new)
        shrink = exp(top - level)
        total = total * shrink + exp(sinks.reshape(g, h // g, 1) - level)
        top, context = new, context * shrink[..., None]
    total = where(dead, 1.0, where(top == _least(q), jnp.nan, total))
    context = where(dead[..., None], 0.0, context / total[..., None])
    return context.transpose(0, 3, 1, 2, 4).reshape(b, t, h, -1)


def _few_queries_fwd(*args: Any) -> tuple[Array, Any]:
    return _few_queries(*args), args[:6]


def _few_queries_bwd(*args: Any) -> Any:
    """Those of all scores in one piece: a gradient reads every key and value once more anyway."""
    *options, kept, dy = args
    *floats, mask = kept
    _, pull = jax.vjp(lambda *floats: _one_block(*floats, mask, *options), *floats)
    return *pull(dy), None


_few_queries.defvjp(_few_queries_fwd, _few_queries_bwd)


@partial(jax.custom_vjp, nondiff_argnums=(6, 7, 8, 9))
@partial(jax.jit, static_argnums=(6, 7, 8, 9))
def _one_query(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    sinks: Array | None,
    mask: Array | None,
    left: int | None,
    right: int | None,
    scale: float,
    softcap: float | None,
) -> Array:
    """All, half, a quarter of the keys and so on: the fewest with the last one that a mask or bias for each shows."""
    (b, _, h, width), (s, g) = q.shape, k.shape[1:3]
    mask, bias = _grouped(mask, g), _grouped(bias, g)
    allowed = _allowed(mask, bias, 1, s, left, right, q)
    allowed = None if allowed is None else allowed.reshape((1,) * (5 - allowed.ndim) + allowed.shape)
    some = None if allowed is None else jnp.any(allowed, -1, keepdims=True)
    sinks = None if sinks is None else sinks.reshape(g, h // g, 1, 1)
    q = (q * scale).reshape(b, 1, g, h // g, width)

    def first(n: int) -> Array:
        """The context, of the first n keys."""
        x, values = _sum_by_halves(q * k[:, :n, :, None]).transpose(0, 2, 3, 1)[:, :, :, None], v[:, :n]
        if softcap is not None:
            x = softcap * tanh(x / softcap)
        if bias is not None:
            x = x + bias[..., :n]
        if allowed is not None:
            x, values = where(allowed[..., :n], x, -jnp.inf), zero_unseen("bgrts->bsgv", allowed[..., :n], values)
        e, total, _ = _weights(x, sinks, some)
        return (einsum("bgrts,bsgv->bgrtv", e, values) / total).reshape(b, 1, h, v.shape[3])

    if allowed is None or allowed.shape[4] < s:
        return first(s)
    sizes = [s]
    while sizes[0] > ONE_QUERY:
        sizes.insert(0, -(-sizes[0] // 2))
    end = jnp.max(where(jnp.any(allowed, (0, 1, 2, 3)), jnp.arange(1, s + 1), 0))
    return jax.lax.switch(jnp.searchsorted(jnp.array(sizes), end), [partial(first, n) for n in sizes])


def _sum_by_halves(x: Array) -> Array:
    """The sum over the last axis by additions of halves, which are long vectors: XLA adds a short axis by numbers."""
    while x.shape[-1] % 2 == 0:
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return jnp.sum(x, -1)


_one_query.defvjp(lambda *args: (_one_query(*args), args[:6]), _few_queries_bwd)


# Many blocks ----------------------------------------------------------------------------------------------------------
#
# Letters: n parts of all batch rows, i blocks of queries, p heads of a part, r query heads that share one of them.


@partial(jax.jit, static_argnums=(6, 7))
def _many_blocks(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    sinks: Array | None,
    mask: Array | None,
    scale: float,
    plan: Plan,
) -> Array:
    b, t, h, _ = q.shape
    mask, bias = _grouped(mask, k.shape[2]), _grouped(bias, k.shape[2])
    k, v = _hide_keys(plan, k, v, mask, bias)
    lead, rows, room = (b * plan.parts, plan.blocks), plan.blocks * plan.queries, plan.room
    q = _pad(q * scale, 1, rows).reshape(b, plan.blocks, plan.queries, plan.parts, plan.heads, plan.shared, -1)
    q = q.transpose(0, 3, 1, 4, 5, 2, 6).reshape(*lead, plan.heads, plan.shared * plan.queries, -1)
    k, v = (_pad(x, 1, room).reshape(b, room, plan.parts, plan.heads, -1) for x in (k, v))
    k, v = (x.transpose(0, 2, 3, 1, 4).reshape(b * plan.parts, plan.heads, room, -1) for x in (k, v))
    mask, bias = _tiled(plan, mask), _tiled(plan, bias)
    sinks = None if sinks is None else sinks.reshape(plan.parts, plan.heads, plan.shared)
    y: Any = _online(plan, q, k, v, bias, sinks, mask)
    y = y.reshape(b, plan.parts, plan.blocks, plan.heads, plan.shared, plan.queries, -1)
    return y.transpose(0, 2, 5, 1, 3, 4, 6).reshape(b, rows, h, -1)[:, :t]


def _pad(x: Array, axis: int, size: int) -> Array:
    """Zeros, or False, at the end of an axis."""
    return jnp.pad(x, [(0, size - n if i == axis else 0) for i, n in enumerate(x.shape)])


def _hide_keys(plan: Plan, k: Array, v: Array, mask: Array | None, bias: Array | None) -> tuple[Array, Array]:
    """Select to 0 the keys that no query sees."""
    before = 0 if plan.left is None else plan.s - plan.t - plan.left
    if mask is not None or bias is not None:
        allowed = _allowed(mask, bias, plan.t, plan.s, plan.left, plan.right, k)
        k, v = zero_unseen("bgrts->bsgk", allowed, k), zero_unseen("bgrts->bsgv", allowed, v)
    elif before > 0:
        seen = (jnp.arange(plan.s) >= before)[:, None, None]
        k, v = where(seen, k, 0.0), where(seen, v, 0.0)
    return k, v


def _tiled(plan: Plan, x: Array | None) -> Array | None:
    """Something broadcastable to the scores, `b g r t s` to `b parts heads r t s`, the last two padded."""
    if x is None:
        return None
    b, g, r, t, s = x.shape
    x = x.reshape(b, *((1, 1) if g == 1 else (plan.parts, plan.heads)), r, t, s)
    x = x if t == 1 else _pad(x, 4, plan.blocks * plan.queries)
    return x if s == 1 else _pad(x, 5, plan.room)


class Block(NamedTuple):
    """A block of scores: part n, block i of the queries, keys from `first` on."""

    n: Any
    i: Any
    first: Any

    def place(self, plan: Plan, x: Array) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        """Where its part of a tiled array begins, and the shape; on an axis that broadcasts JAX begins at 0."""
        begin = (self.n // plan.parts, self.n % plan.parts, 0, 0, self.i * plan.queries, self.first)
        sizes = (1, 1, plan.heads, plan.shared, plan.queries, plan.keys)
        return begin, tuple(size if n > 1 else 1 for size, n in zip(sizes, x.shape, strict=True))

    def read(self, plan: Plan, x: Array) -> Array:
        begin, sizes = self.place(plan, x)
        return jax.lax.dynamic_slice(x, begin, sizes)[0, 0]

    def near(self, plan: Plan) -> Array | None:
        """Who sees whom by causality and window; padding is seen by nobody. None for all."""
        key = self.first + jnp.arange(plan.keys)
        ahead = key - (self.i * plan.queries + jnp.arange(plan.queries)[:, None] + (plan.s - plan.t))
        limits = [key < plan.s] if plan.room > plan.s else []
        limits += [] if plan.left is None else [ahead >= -plan.left]
        limits += [] if plan.right is None else [ahead <= plan.right]
        return None if not limits else broadcast_to(_all(limits), ahead.shape)

    def scores(
        self, plan: Plan, q: Array, k: Array, bias: Array | None, mask: Array | None
    ) -> tuple[Array, Array | None, Array | None]:
        """Scores `p r t s`, -inf where hidden; who sees whom; and the slope of the cap.

        An allowed score that is -inf becomes the least finite number, so that only a query that sees no key has
        nothing but -inf.
        """
        x = einsum("ptk,psk->pts", q, k).reshape(plan.heads, plan.shared, plan.queries, plan.keys)
        slope = None
        if plan.softcap is not None:
            x = tanh(x / plan.softcap)
            slope = 1.0 - x * x
            x = plan.softcap * x
        near = self.near(plan)
        limits = [] if near is None else [near]
        limits += [] if mask is None else [self.read(plan, mask)]
        if bias is not None:
            added = self.read(plan, bias)
            x = x + added
            limits.append(added != -jnp.inf)
        if not limits:
            return x, None, slope
        allowed = _all(limits)
        slope = None if slope is None else where(allowed, slope, 0.0)
        return where(allowed, maximum(x, _least(x)), -jnp.inf), allowed, slope


def _all(limits: list[Array]) -> Array:
    allowed = limits[0]
    for limit in limits[1:]:
        allowed = allowed & limit
    return allowed


def _least(x: Array) -> Any:
    return jnp.finfo(x.dtype).min


def _block_of(x: Array, n: Any, first: Any, size: int) -> Array:
    """Some rows of part n: `n p s k` -> `p s k`."""
    _, heads, _, width = x.shape
    return jax.lax.dynamic_slice(x, (n, 0, first, 0), (1, heads, size, width))[0]


def _forward(
    plan: Plan, q: Array, k: Array, v: Array, bias: Array | None, sinks: Array | None, mask: Array | None
) -> tuple[Array, Array, Array]:
    """Outputs `n i p (r t) v`, the largest scores and the sums of exponentials relative to them, both `n i p (r t)`.

    The largest score of a query that sees no key is said to be inf, so that all its exponentials are 0.
    """
    shape = q.shape[2:4]

    def rows(at: Array) -> tuple[Array, Array, Array]:
        n, i = at // plan.blocks, at % plan.blocks
        qi = q[n, i]
        first, count = plan.span(i)

        def step(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            top, total, context = carry
            block = Block(n, i, first + j * plan.keys)
            x, _, _ = block.scores(plan, qi, _block_of(k, n, block.first, plan.keys), bias, mask)
            x = x.reshape(*shape, plan.keys)
            new = maximum(top, jnp.max(x, -1))
            level = where(new == -jnp.inf, 0.0, new)
            e, shrink = exp(x - level[..., None]), exp(top - level)
            part = einsum("pts,psv->ptv", e, _block_of(v, n, block.first, plan.keys))
            return new, total * shrink + jnp.sum(e, -1), context * shrink[..., None] + part

        start = (zeros(shape, q) - jnp.inf, zeros(shape, q), zeros((*shape, v.shape[-1]), q))
        top, total, context = jax.lax.fori_loop(0, count, step, start)
        dead = top == -jnp.inf if hiding else None
        if sinks is not None:
            sink = broadcast_to(sinks[n % plan.parts][..., None], (plan.heads, plan.shared, plan.queries)).reshape(
                shape
            )
            new = maximum(top, sink)
            level = where(new == -jnp.inf, 0.0, new)
            shrink = exp(top - level)
            top, total, context = new, total * shrink + exp(sink - level), context * shrink[..., None]
        if dead is None:
            return context / total[..., None], top, total
        total = where(dead, 1.0, where(top == _least(q), jnp.nan, total))
        y = where(dead[..., None], 0.0, context / total[..., None])
        return y, where(dead, jnp.inf, top), total

    hiding = mask is not None or bias is not None or plan.hides
    lead = q.shape[:2]
    found = jax.lax.map(rows, jnp.arange(lead[0] * lead[1]))
    y, top, total = (x.reshape(*lead, *x.shape[1:]) for x in found)
    return y, top, total


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _online(
    plan: Plan, q: Array, k: Array, v: Array, bias: Array | None, sinks: Array | None, mask: Array | None
) -> Array:
    return _forward(plan, q, k, v, bias, sinks, mask)[0]


def _online_fwd(plan: Plan, *arrays: Any) -> tuple[Array, Any]:
    y, top, total = _forward(plan, *arrays)
    return y, (arrays, y, top, total)


def _online_bwd(plan: Plan, kept: Any, dy: Array) -> Any:
    """Gradients: ds = p (dy v - dy y), and of the products dq = ds k, dk = ds q, dv = p dy.

    The exponentials stand for the weights p, because dy is divided by their sum beforehand.
    """
    (q, k, v, bias, sinks, mask), y, top, total = kept
    dead = (top == jnp.inf)[..., None]
    q, dy = where(dead, 0.0, q), where(dead, 0.0, dy / total[..., None])
    mean = jnp.sum(dy * y, -1)
    shape = q.shape[2:4]

    def part(dbias: Array | None, n: Array) -> tuple[Any, Any]:
        def rows(i: Array, carry: Any) -> Any:
            qi, dyi, top_i, mean_i = q[n, i], dy[n, i], top[n, i][..., None], mean[n, i][..., None]
            across, dacross = qi.mT, dyi.mT
            first, count = plan.span(i)

            def step(j: Array, carry: Any) -> Any:
                dqi, dk, dv, dbias = carry
                block = Block(n, i, first + j * plan.keys)
                kj, vj = (_block_of(x, n, block.first, plan.keys) for x in (k, v))
                x, allowed, slope = block.scores(plan, qi, kj, bias, mask)
                e = exp(x.reshape(*shape, plan.keys) - top_i)
                ds = (e * (einsum("ptv,psv->pts", dyi, vj) - mean_i)).reshape(x.shape)
                ds = ds if allowed is None else where(allowed, ds, 0.0)
                if dbias is not None:
                    dbias = _add_to_bias(plan, block, dbias, ds)
                ds = (ds if slope is None else ds * slope).reshape(e.shape)
                dk = _add_columns(dk, block.first, einsum("pkt,pts->pks", across, ds))
                dv = _add_columns(dv, block.first, einsum("pvt,pts->pvs", dacross, e))
                return dqi + einsum("pts,psk->ptk", ds, kj), dk, dv, dbias

            dq, dk, dv, dbias = carry
            dqi, dk, dv, dbias = jax.lax.fori_loop(0, count, step, (zeros(qi.shape, q), dk, dv, dbias))
            return jax.lax.dynamic_update_index_in_dim(dq, dqi, i, 0), dk, dv, dbias

        columns = [zeros((x.shape[1], x.shape[3], x.shape[2]), q) for x in (k, v)]
        dq, dk, dv, dbias = jax.lax.fori_loop(0, plan.blocks, rows, (zeros(q.shape[1:], q), *columns, dbias))
        return dbias, (dq, dk, dv)

    start = None if bias is None else zeros(bias.shape, q)
    dbias, (dq, dk, dv) = jax.lax.scan(part, start, jnp.arange(q.shape[0]))
    dsinks = None
    if sinks is not None:
        split = (-1, plan.parts, plan.blocks, plan.heads, plan.shared, plan.queries)
        top, mean = top.reshape(split), mean.reshape(split)
        dsinks = -jnp.sum(exp(sinks[:, None, :, :, None] - top) * mean, (0, 2, 5))
    return dq, dk.mT, dv.mT, dbias, dsinks, None


def _add_columns(x: Array, first: Any, y: Array) -> Array:
    """Add to some columns, in place: `p k s`."""
    place = (0, 0, first)
    return jax.lax.dynamic_update_slice(x, jax.lax.dynamic_slice(x, place, y.shape) + y, place)


def _add_to_bias(plan: Plan, block: Block, dbias: Array, ds: Array) -> Array:
    """Add the gradient of a block's scores, summed over the axes on which the bias broadcasts."""
    begin, sizes = block.place(plan, dbias)
    ds = jnp.sum(ds[None, None], [axis for axis, n in enumerate(sizes) if n == 1 and axis > 1], keepdims=True)
    return jax.lax.dynamic_update_slice(dbias, jax.lax.dynamic_slice(dbias, begin, sizes) + ds, begin)


_online.defvjp(_online_fwd, _online_bwd)


# cuDNN ----------------------------------------------------------------------------------------------------------------


def cudnn_serves(q: Array, k: Array, v: Array, left: int | None, right: int | None) -> bool:
    """Whether cuDNN's kernel means the same for these arrays and is there; nothing else chooses it.

    It counts positions from the first key, leaves its output undefined where a query sees no key, and knows no cap and
    no sinks. It keeps the weights in the type of the arrays, so it serves 16-bit types alone.
    """
    (t, heads, width), (s, groups) = q.shape[1:], k.shape[1:3]
    device = jax.config.jax_default_device or jax.devices()[0]  # pyright: ignore[reportAttributeAccessIssue]
    capability = str(getattr(device, "compute_capability", ""))
    return (
        capability[:1].isdigit()
        and float(capability) >= 8
        and {dtype_name(x) for x in (q, k, v)} in ({"float16"}, {"bfloat16"})
        and 0 not in (q.size, k.size)
        and heads % groups == 0
        and v.shape[-1] == width <= 128
        and width % 8 == 0
        and ((left, right) == (None, None) or (right == 0 and t == s))
    )


def by_cudnn(
    q: Array, k: Array, v: Array, left: int | None, right: int | None, scale: float, implementation: Any = "cudnn"
) -> Array:
    """The call of JAX's function that means the same where `cudnn_serves`."""
    window = None if left is None else (left, 0)
    causal = right == 0
    return jax.nn.dot_product_attention(
        q, k, v, scale=scale, is_causal=causal, local_window_size=window, implementation=implementation
    )
