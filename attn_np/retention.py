"""Retention: attention without a softmax, whose weights fade with the distance at each head's own rate."""

from math import sqrt
from typing import NamedTuple

from jaxtyping import Bool, Float

from attn_np._decode import DecodeStep, read_state, real_positions, write_state
from attn_np._layer import Layer, output
from attn_np._masks import zero_unseen
from attn_np._ops import (
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
from attn_np._rotary import rotate, rotation
from attn_np._vjp import (
    Grads,
    cotangent,
    einsum_vjp,
    grads,
    layer_norm_vjp,
    linear_vjp,
    rms_norm_vjp,
    silu_vjp,
    total,
)
from attn_np.contract.retention import Config
from attn_np.linear import earlier, folded, unfolded


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


def running_vjp(left: Array, dstates: Array, tape: Tape) -> Array:
    """The gradient of a state comes from its readers and, faded, from the state after it."""

    def step(carry, xs):
        dlater, later = carry
        dstate, left = xs
        dstate = dstate + later[:, :, None, None] * dlater
        return (dstate, left), (dstate,)

    none = zeros((dstates.shape[0], *dstates.shape[2:]), dstates)
    carry = none, none[..., 0, 0]
    return scan(step, carry, (dstates, left), names=("dadded",), tape=tape, reverse=True)[1][0]


def parallel_vjp(
    tape: Tape, q: Array, k: Array, v: Array, start: Array, fade: Fading, dread: Array
) -> tuple[Array, ...]:
    """Read `parallel` upwards: gradients of q, k, v and the state before."""
    dearlier = dread * fade.since[..., None]
    dkept, dv = einsum_vjp("bhts,bshv->bthv", tape["kept"], v, dread)
    dscores = record(tape, dkept=dkept) * fade.pairs
    dq, dk = einsum_vjp("bthk,bshk->bhts", q, k, record(tape, dscores=dscores))
    dq_earlier, dstart = einsum_vjp("bthk,bhkv->bthv", q, start, dearlier)
    return total(dq, dq_earlier), dk, dv, dstart


def chunked_vjp(
    tape: Tape, q: Array, k: Array, v: Array, real: Array, logs: Array, size: int, dread: Array
) -> tuple[Array, Array, Array]:
    """Read `chunked` upwards. A state was read by the chunk after it; nobody reads the last one."""
    b, t = q.shape[0], q.shape[1]
    q, k, v, fade = folded(q, size), folded(k, size), folded(v, size), fading(folded(real, size), logs)
    dq, dk, dv, dbefore = parallel_vjp(tape, q, k, v, tape["before"], fade, folded(dread, size))
    dbefore = record(tape, dbefore=dbefore).reshape(b, -(-t // size), *dbefore.shape[1:])
    dstates = concatenate([dbefore, zeros((b, 1, *dbefore.shape[2:]), dbefore)], 1)[:, 1:]
    dadded = running_vjp(fade.whole.reshape(*dbefore.shape[:3]), record(tape, dstates=dstates), tape)
    dadded = dadded.reshape(q.shape[0], *dadded.shape[2:])
    dfaded, dv_added = einsum_vjp("bshk,bshv->bhkv", k * fade.until[..., None], v, dadded)
    dk = total(dk, dfaded * fade.until[..., None])
    return unfolded(dq, b, t), unfolded(dk, b, t), unfolded(total(dv, dv_added), b, t)


def recurrent_vjp(
    tape: Tape, q: Array, k: Array, v: Array, real: Array, logs: Array, dread: Array
) -> tuple[Array, Array, Array]:
    """Read `recurrent` upwards."""
    dq, dstates = einsum_vjp("bthk,bthkv->bthv", q, tape["states"], dread)
    dadded = running_vjp(exp(where(real[..., None], logs, 0.0)), record(tape, dstates=dstates), tape)
    return dq, *einsum_vjp("bthk,bthv->bthkv", k, v, dadded)


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

    def read_vjp(self, tape: Tape, q: Array, k: Array, v: Array, real: Array, dread: Array) -> tuple[Array, ...]:
        """Read `read` upwards, for a call without a past."""
        c, logs = self.config, constants(self.config.decays(), q)
        if c.form == "parallel":
            start = zeros((q.shape[0], *k.shape[2:], v.shape[-1]), q)
            return parallel_vjp(tape, q, k, v, start, fading(real, logs), dread)[:3]
        if c.form == "chunked":
            return chunked_vjp(tape, q, k, v, real, logs, c.chunk_size, dread)
        return recurrent_vjp(tape, q, k, v, real, logs, dread)

    def vjp(self, tape: Tape, dy: Float[Array, "b t d"]) -> Grads:
        """Read the forward upwards: one line here for each line there."""
        c, w = self.config, {}
        turned = ("q", "k") if c.rope_base is None else ("q_rot", "k_rot")
        x, q, k, v, g, real = (tape.get(name) for name in ("seen_query", *turned, "v", "g", "real"))
        normed, context, scale = tape["normed"], tape["context"], 1 / sqrt(q.shape[-1])
        dtype, dy = dtype_name(dy), cotangent(tape, dy)
        dgated, w["w_o"], w["b_o"] = linear_vjp("bthv,hvd->btd", tape["gated"], self.w_o, self.b_o, dy)
        dgated = record(tape, dgated=dgated)
        dnormed, dg = record(tape, dnormed=dgated * silu(g), dg=silu_vjp(g, dgated * normed))
        dx_g, w["w_g"], w["b_g"] = linear_vjp("btd,dhv->bthv", x, self.w_g, self.b_g, dg)
        if c.norm == "layer":
            dcontext = layer_norm_vjp(context, None, None, c.eps, dnormed)[0]
        else:
            dcontext = rms_norm_vjp(context, None, c.eps, dnormed)[0]
        dcontext = record(tape, dcontext=dcontext)
        there = broadcast_to(zeros((1, 1), x) == 0 if real is None else real, x.shape[:2])
        dq, dk, dv = self.read_vjp(tape, q * scale, k, v, there, dcontext)
        dq = dq * scale
        if c.rope_base is not None:
            dq, dk = record(tape, dq_rot=dq, dk_rot=dk)
            cos, sin = rotation(c, None, dy.shape[1], like=dy, real=there)
            dq, dk = rotate(dq, cos, sin, c.layout, back=True), rotate(dk, cos, sin, c.layout, back=True)
        dq, dk, dv = record(tape, dq=dq, dk=dk, dv=dv)
        dq, dk, dv = (zero_unseen(f"bt->bth{axis}", real, dz) for axis, dz in (("k", dq), ("k", dk), ("v", dv)))
        dx_v, w["w_v"], w["b_v"] = linear_vjp("btd,dhv->bthv", x, self.w_v, self.b_v, dv)
        dx_k, w["w_k"], w["b_k"] = linear_vjp("btd,dhk->bthk", x, self.w_k, self.b_k, dk)
        dx_q, w["w_q"], w["b_q"] = linear_vjp("btd,dhk->bthk", x, self.w_q, self.b_q, dq)
        return grads(dtype, {"query": zero_unseen("bt->btd", real, total(dx_q, dx_k, dx_v, dx_g))}, w)
