"""Retention: attention without a softmax, whose weights fade with the distance at each head's own rate."""

from math import sqrt
from typing import NamedTuple

from jaxtyping import Bool, Float

from attn_jax._decode import DecodeStep, read_state, real_positions, write_state
from attn_jax._layer import Layer, output
from attn_jax._masks import zero_unseen
from attn_jax._ops import (
    Array,
    Tape,
    broadcast_to,
    concatenate,
    constants,
    cumsum,
    dtype_name,
    einsum,
    exp,
    layer_norm,
    linear,
    record,
    rms_norm,
    scan,
    silu,
    upcast,
    where,
    zeros,
)
from attn_jax._rotary import rotate, rotation
from attn_jax.linear import earlier, folded, unfolded
from attn_np.contract.retention import Config


class Fading(NamedTuple):
    """How much is left of a key over some positions, by heads.

    Attributes:
        pairs: `b h t s`, from a key to a query; 0 for later keys.
        since: `b t h`, from before the first position to a query.
        until: `b t h`, from a key to the last position.
        whole: `b h`, over all of them.
    """

    pairs: Array
    since: Array
    until: Array
    whole: Array


def fading(real: Array, logs: Array) -> Fading:
    """By the number of real positions in between: the others take no time."""
    b, t = real.shape
    one = where(real, 1.0 + zeros((b, t), logs), 0.0)
    count = cumsum(concatenate([zeros((b, 1), logs), one], 1), 1)
    at, last = count[:, 1:], count[:, -1:]
    near = earlier(t, real)
    apart = where(near, at[:, :, None] - at[:, None, :], 0.0)
    pairs = where(near, exp(apart[:, None] * logs[:, None, None]), 0.0)
    since, until = exp(at[:, :, None] * logs), exp((last - at)[:, :, None] * logs)
    return Fading(pairs, since, until, exp(last * logs))


def running(added: Array, left: Array, start: Array, tape: Tape) -> tuple[Array, Array]:
    """The states after each step, from what is left of the one before and what the step adds; and the last of them."""

    def step(state, xs):
        added, left = xs
        state = left[:, :, None, None] * state + added
        return state, (state,)

    end, (states,) = scan(step, start, (added, left), names=("states",), tape=tape)
    return states, end


def parallel(q: Array, k: Array, v: Array, start: Array, fade: Fading, tape: Tape) -> Array:
    """Faded scores of all pairs times the values, and what is left of the state before: `b t h v`."""
    scores = record(tape, scores=einsum("bthk,bshk->bhts", q, k))
    kept = record(tape, kept=scores * record(tape, decay=fade.pairs))
    rest = einsum("bthk,bhkv->bthv", q, start) * fade.since[..., None]
    return einsum("bhts,bshv->bthv", kept, v) + rest


def chunked(
    q: Array, k: Array, v: Array, start: Array, real: Array, logs: Array, size: int, tape: Tape
) -> tuple[Array, Array]:
    """States walk from chunk to chunk; within each, all pairs begin from the state before it."""
    b, t = q.shape[0], q.shape[1]
    q, k, v, fade = folded(q, size), folded(k, size), folded(v, size), fading(folded(real, size), logs)
    added = einsum("bshk,bshv->bhkv", k * fade.until[..., None], v)
    added = record(tape, added=added.reshape(b, -(-t // size), *added.shape[1:]))
    states, end = running(added, fade.whole.reshape(*added.shape[:3]), start, tape)
    before = concatenate([start[:, None], states], 1)[:, :-1].reshape(q.shape[0], *start.shape[1:])
    return unfolded(parallel(q, k, v, record(tape, before=before), fade, tape), b, t), end


def recurrent(q: Array, k: Array, v: Array, start: Array, real: Array, logs: Array, tape: Tape) -> tuple[Array, Array]:
    """At every position the state fades, gets the key times its value, and the query reads what is there then."""
    added = record(tape, added=einsum("bthk,bthv->bthkv", k, v))
    states, end = running(added, exp(where(real[..., None], logs, 0.0)), start, tape)
    return einsum("bthk,bthkv->bthv", q, states), end


class Retention(Layer[Config]):
    """Attention without a softmax, whose weights fade with the distance at each head's own rate."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_g: Float[Array, "d h v"]
    w_o: Float[Array, "h v d"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_g: Float[Array, "h v"] | None
    b_o: Float[Array, "d"] | None

    def read(self, q: Array, k: Array, v: Array, real: Array, step: DecodeStep | None, tape: Tape) -> Array:
        """What the queries read of the values, in the form asked for."""
        c = self.config
        logs = constants(c.decays(), q)
        start = read_state(step, "state", zeros((q.shape[0], *k.shape[2:], v.shape[-1]), q))
        if c.form == "parallel":
            fade = fading(real, logs)
            read = parallel(q, k, v, start, fade, tape)
            end = fade.whole[..., None, None] * start + einsum("bshk,bshv->bhkv", k * fade.until[..., None], v)
        elif c.form == "chunked":
            read, end = chunked(q, k, v, start, real, logs, c.chunk_size, tape)
        else:
            read, end = recurrent(q, k, v, start, real, logs, tape)
        write_state(step, state=end)
        return read

    def __call__(
        self,
        query: Float[Array, "b t d"],
        *,
        mask: Bool[Array, "..."] | None = None,
        tape: Tape = None,
        step: DecodeStep | None = None,
    ) -> Array:
        """Where the padding mask is False a position is not there: no state fades, and its context is 0.

        In a step `valid` says so of new positions.
        """
        n = self.check(query=query, mask=mask)
        c, dtype = self.config, dtype_name(query)
        x, real = record(tape, x=upcast(query), real=real_positions(mask, step))
        x = record(tape, seen_query=zero_unseen("bt->btd", real, x))
        q = zero_unseen("bt->bthk", real, linear("btd,dhk->bthk", x, self.w_q, self.b_q))
        k = zero_unseen("bt->bthk", real, linear("btd,dhk->bthk", x, self.w_k, self.b_k))
        v = zero_unseen("bt->bthv", real, linear("btd,dhv->bthv", x, self.w_v, self.b_v))
        q, k, v = record(tape, q=q, k=k, v=v)
        there = broadcast_to(zeros((1, 1), x) == 0 if real is None else real, (n["b"], n["t"]))
        if c.rope_base is not None:
            cos, sin = rotation(c, None, n["t"], like=x, step=step, real=there if step is None else None)
            q, k = record(tape, q_rot=rotate(q, cos, sin, c.layout), k_rot=rotate(k, cos, sin, c.layout))
        context = record(tape, context=self.read(q * (1 / sqrt(n["k"])), k, v, there, step, tape))
        norm = layer_norm(context, None, None, c.eps) if c.norm == "layer" else rms_norm(context, None, c.eps)
        g = linear("btd,dhv->bthv", x, self.w_g, self.b_g)
        normed, g = record(tape, normed=norm, g=g)
        gated = record(tape, gated=silu(g) * normed)
        y = record(tape, y=linear("bthv,hvd->btd", gated, self.w_o, self.b_o))
        return output(dtype, y)
