"""Gated delta rule: the state decays by a factor that each position chooses, and the delta rule writes into it."""

from math import sqrt
from typing import Unpack

import numpy as np
from jaxtyping import Float

from attn_np.attention.masks import zero_unseen
from attn_np.contract.gated_delta import Config
from attn_np.frame.backward import RecurrentBackward
from attn_np.frame.call import RecurrentCall, RecurrentOptions
from attn_np.frame.layer import Layer
from attn_np.ops import (
    Array,
    Tape,
    concatenate,
    cumsum,
    einsum,
    exp,
    l2_normalize,
    linear,
    record,
    repeat_heads,
    rms_norm,
    scan,
    sigmoid,
    silu,
    softplus,
    upcast,
    where,
    zeros,
)
from attn_np.ops.vjp import (
    Grads,
    einsum_vjp,
    l2_normalize_vjp,
    linear_vjp,
    repeat_heads_vjp,
    rms_norm_vjp,
    sigmoid_vjp,
    silu_vjp,
    softplus_vjp,
    sum_grads,
    sum_to,
)
from attn_np.recurrence.convolution import convolve, convolve_vjp
from attn_np.recurrence.rules import (
    causal_mask,
    chunk_size_for,
    earlier_mask,
    from_chunks,
    recurrence,
    to_chunks,
    unit_lower_inverse,
    unit_lower_inverse_vjp,
)
from attn_np.retention import ChunkDecays


def decay_from_logs(log_decay: Array) -> ChunkDecays:
    """Decay factors over the positions of a chunk, from their logarithms by position and head.

    Sums of logarithms are subtracted pair by pair before the exponential, which then is at most 1.
    """
    sums = cumsum(log_decay, 1)
    last, by_head = sums[:, -1:], sums.swapaxes(1, 2)
    visible = causal_mask(log_decay.shape[1], log_decay)
    log_matrix = where(visible, by_head[..., :, None] - by_head[..., None, :], 0.0)
    return ChunkDecays(where(visible, exp(log_matrix), 0.0), exp(sums), exp(last - sums), exp(last)[:, 0])


# The two forms below replace those of `recurrence`, which takes decays as factors that may be 0, so that it must halve
# chunks. Here they are logarithms, one for each head: differences of their sums are enough.


def chunked_form(
    q: Array, k: Array, v: Array, beta: Array, log_decay: Array, initial_state: Array, chunk_size: int, tape: Tape
) -> tuple[Array, Array]:
    """The outputs and the last state; the state is passed from chunk to chunk.

    Within a chunk the values to write solve a triangular system. The solution is linear in the state before the chunk:
    v_new = u - w @ state: u is what the chunk writes into an empty state, w what it removes (WY form).
    """
    b, t = q.shape[0], q.shape[1]
    q, k, v, beta = (to_chunks(x, chunk_size) for x in (q, k, v, beta[..., None]))
    beta_k = k * beta
    chunk_factors = decay_from_logs(to_chunks(log_decay, chunk_size))
    decayed = einsum("bthk,bshk->bths", beta_k, k) * chunk_factors.matrix.swapaxes(1, 2)
    key_products = record(tape, key_products=where(earlier_mask(chunk_size, q)[:, None], decayed, 0.0))
    inverse = record(tape, inverse=unit_lower_inverse(key_products))
    w = einsum("bths,bshk->bthk", inverse, beta_k * chunk_factors.from_start[..., None])
    u = einsum("bths,bshv->bthv", inverse, v * beta)
    w, u = record(tape, w=w, u=u)

    def body(state, xs):
        k_to_end, w, u, chunk_decay = xs
        v_new = u - einsum("bchk,bhkv->bchv", w, state)
        state = chunk_decay[:, :, None, None] * state + einsum("bchk,bchv->bhkv", k_to_end, v_new)
        return state, (v_new, state)

    # (b n) c ... -> b n c ...
    xs = k * chunk_factors.to_end[..., None], w, u, chunk_factors.overall
    xs = tuple(x.reshape(b, -(-t // chunk_size), *x.shape[1:]) for x in xs)
    final_state, (v_new, states_after) = scan(body, initial_state, xs, names=("v_new", "states"), tape=tape)
    states_before = concatenate([initial_state[:, None], states_after], 1)[:, :-1]
    states_before = record(tape, states_before=states_before.reshape(q.shape[0], *initial_state.shape[1:]))
    scores = record(tape, scores=einsum("bthk,bshk->bhts", q, k))
    decayed_scores = record(tape, decayed_scores=scores * chunk_factors.matrix)
    out_from_state = einsum("bthk,bhkv->bthv", q * chunk_factors.from_start[..., None], states_before)
    return from_chunks(
        einsum("bhts,bshv->bthv", decayed_scores, v_new.reshape(v.shape)) + out_from_state, b, t
    ), final_state


def recurrent_form(
    q: Array, k: Array, v: Array, beta: Array, log_decay: Array, initial_state: Array, tape: Tape
) -> tuple[Array, Array]:
    """The outputs and the last state: as in the delta rule, but each position first decays the state."""

    def body(state, xs):
        k, v, beta, decay = xs
        state = decay[:, :, None, None] * state
        v_new = beta[..., None] * (v - einsum("bhk,bhkv->bhv", k, state))
        state = state + einsum("bhk,bhv->bhkv", k, v_new)
        return state, (v_new, state)

    final_state, (_, states_after) = scan(
        body, initial_state, (k, v, beta, exp(log_decay)), names=("v_new", "states"), tape=tape
    )
    return einsum("bthk,bthkv->bthv", q, states_after), final_state


def decay_from_logs_vjp(
    decay: ChunkDecays, dmatrix: Array, dfrom_start: Array, dto_end: Array, dchunk_decay: Array
) -> Array:
    """The gradient of the logarithms: an exponential passes its gradient times itself to its sums of logarithms, and a
    position's logarithm is in the sums from its own on.
    """
    dlog_matrix = dmatrix * decay.matrix
    dsums = (np.sum(dlog_matrix, axis=-1) - np.sum(dlog_matrix, axis=-2)).swapaxes(1, 2)
    dlog_to_end = dto_end * decay.to_end
    dsums = dsums + dfrom_start * decay.from_start - dlog_to_end
    dlast = np.sum(dlog_to_end, axis=1) + dchunk_decay * decay.overall
    return cumsum(dsums[:, ::-1], 1)[:, ::-1] + dlast[:, None]


def chunked_form_vjp(
    tape: Tape, q: Array, k: Array, v: Array, beta: Array, log_decay: Array, chunk_size: int, dout: Array
) -> tuple[Array, ...]:
    """The gradients of q, k, v, beta and the logarithms: `chunked_form` in reverse."""
    b, t = q.shape[0], q.shape[1]
    q, k, v, beta, dout = (to_chunks(x, chunk_size) for x in (q, k, v, beta[..., None], dout))
    chunk_factors, beta_k = decay_from_logs(to_chunks(log_decay, chunk_size)), k * beta
    from_start, to_end = chunk_factors.from_start[..., None], chunk_factors.to_end[..., None]
    states_before, inverse, w = tape["states_before"], tape["inverse"], tape["w"]
    v_new = tape["v_new"].reshape(v.shape)
    ddecayed_scores, dv_new = einsum_vjp("bhts,bshv->bthv", tape["decayed_scores"], v_new, dout)
    dq_decayed, dstates_before = einsum_vjp("bthk,bhkv->bthv", q * from_start, states_before, dout)
    dscores = record(tape, ddecayed_scores=ddecayed_scores) * chunk_factors.matrix
    dq, dk_scores = einsum_vjp("bthk,bshk->bhts", q, k, record(tape, dscores=dscores))

    def body(dstate, xs):
        dv_new, dstate_before, k_to_end, w, v_new, chunk_decay, state_before = xs
        dv_new = dv_new + einsum("bchk,bhkv->bchv", k_to_end, dstate)
        dk_to_end, dchunk_decay = einsum("bchv,bhkv->bchk", v_new, dstate), np.sum(dstate * state_before, axis=(-2, -1))
        dstate = chunk_decay[:, :, None, None] * dstate + dstate_before - einsum("bchk,bchv->bhkv", w, dv_new)
        return dstate, (dv_new, dk_to_end, dchunk_decay)

    xs = dv_new, dstates_before, k * to_end, w, v_new, chunk_factors.overall, states_before
    xs = tuple(x.reshape(b, -(-t // chunk_size), *x.shape[1:]) for x in xs)
    names = ("dv_new", "dk_to_end", "dchunk_decay")
    _, (dv_new, dk_to_end, dchunk_decay) = scan(
        body, zeros((b, *states_before.shape[1:]), q), xs, names=names, reverse=True
    )
    dv_new, dk_to_end = dv_new.reshape(v.shape), dk_to_end.reshape(k.shape)
    dw = -einsum("bthv,bhkv->bthk", dv_new, states_before)
    dw, du = record(tape, dw=dw, du=dv_new)
    dinverse_k, dbeta_k_decayed = einsum_vjp("bths,bshk->bthk", inverse, beta_k * from_start, dw)
    dinverse_v, dbeta_v = einsum_vjp("bths,bshv->bthv", inverse, v * beta, du)
    dkey_products = where(
        earlier_mask(chunk_size, q)[:, None], unit_lower_inverse_vjp(inverse, sum_grads(dinverse_k, dinverse_v)), 0.0
    )
    dkey_products = record(tape, dkey_products=dkey_products)
    products = einsum("bthk,bshk->bths", beta_k, k)
    dbeta_k, dk_products = einsum_vjp("bthk,bshk->bths", beta_k, k, dkey_products * chunk_factors.matrix.swapaxes(1, 2))
    dbeta_k = sum_grads(dbeta_k, dbeta_k_decayed * from_start)
    dbeta = np.sum(dbeta_k * k, axis=-1) + np.sum(dbeta_v * v, axis=-1)
    dk = sum_grads(dk_scores, dk_products, dk_to_end * to_end, dbeta_k * beta)
    dmatrix = sum_grads((dkey_products * products).swapaxes(1, 2), ddecayed_scores * tape["scores"])
    dfrom_start = np.sum(dq_decayed * q, axis=-1) + np.sum(dbeta_k_decayed * beta_k, axis=-1)
    dlog_decay = decay_from_logs_vjp(
        chunk_factors,
        dmatrix,
        dfrom_start,
        np.sum(dk_to_end * k, axis=-1),
        dchunk_decay.reshape(chunk_factors.overall.shape),
    )
    cotangents = sum_grads(dq, dq_decayed * from_start), dk, dbeta_v * beta, dbeta, dlog_decay
    return tuple(from_chunks(x, b, t) for x in cotangents)


def recurrent_form_vjp(
    tape: Tape, q: Array, k: Array, v: Array, beta: Array, log_decay: Array, dout: Array
) -> tuple[Array, ...]:
    """The gradients of q, k, v, beta and the logarithms: `recurrent_form` in reverse."""
    states_after, v_new, decay = tape["states"], tape["v_new"], exp(log_decay)
    states_before = concatenate([zeros((q.shape[0], 1, *states_after.shape[2:]), q), states_after], 1)[:, :-1]
    dq, dstates_after = einsum_vjp("bthk,bthkv->bthv", q, states_after, dout)

    def body(dstate, xs):
        dstate_read, k, beta, v_new, decay, state_before = xs
        dstate = dstate + dstate_read
        dv_new = einsum("bhk,bhkv->bhv", k, dstate)
        dk = einsum("bhkv,bhv->bhk", dstate, v_new)
        dstate = dstate - einsum("bhk,bhv->bhkv", k, beta[..., None] * dv_new)
        ddecay = np.sum(dstate * state_before, axis=(-2, -1))
        return decay[:, :, None, None] * dstate, (dv_new, dk, ddecay)

    xs = record(tape, dstates=dstates_after), k, beta, v_new, decay, states_before
    names = ("dv_new", "dk", "ddecay")
    zero = zeros((q.shape[0], *states_after.shape[2:]), q)
    _, (dv_new, dk, ddecay) = scan(body, zero, xs, names=names, reverse=True)
    dv, decayed = beta[..., None] * dv_new, decay[..., None, None] * states_before
    dbeta = np.sum(dv_new * (v - einsum("bthk,bthkv->bthv", k, decayed)), axis=-1)
    return dq, sum_grads(dk, -einsum("bthkv,bthv->bthk", decayed, dv)), dv, dbeta, ddecay * decay


class GatedDeltaRule(Layer[Config]):
    """The state decays by a factor that each position chooses, and the delta rule writes into it."""

    w_q: Float[Array, "d g k"]
    w_k: Float[Array, "d g k"]
    w_v: Float[Array, "d h v"]
    w_gate: Float[Array, "d h v"]
    w_beta: Float[Array, "d h"]
    w_a: Float[Array, "d h"]
    a_log: Float[Array, "h"]
    dt_bias: Float[Array, "h"]
    w_norm: Float[Array, "v"]
    w_q_conv: Float[Array, "x g k"] | None
    w_k_conv: Float[Array, "x g k"] | None
    w_v_conv: Float[Array, "x h v"] | None
    w_o: Float[Array, "h v o"]

    def __call__(self, query: Float[Array, "b t d"], **options: Unpack[RecurrentOptions]) -> Array:
        """The outputs `b t o`; where the padding mask is False no state changes, and the context is 0."""
        call = RecurrentCall(self, query, **options)
        c, tape, sizes, x, real = self.config, call.tape, call.sizes, call.x, call.real
        q = linear("btd,dgk->btgk", x, self.w_q, None)
        k = linear("btd,dgk->btgk", x, self.w_k, None)
        v = linear("btd,dhv->bthv", x, self.w_v, None)
        if self.w_q_conv is not None and self.w_k_conv is not None and self.w_v_conv is not None:
            q = convolve("q", q, self.w_q_conv, real, call.continues, call.step, tape)
            k = convolve("k", k, self.w_k_conv, real, call.continues, call.step, tape)
            v = convolve("v", v, self.w_v_conv, real, call.continues, call.step, tape)
        q, k, v = record(tape, q=q, k=k, v=v)
        beta = record(tape, beta=sigmoid(linear("btd,dh->bth", x, self.w_beta, None)))
        a = record(tape, a=linear("btd,dh->bth", x, self.w_a, self.dt_bias))
        log_decay = record(tape, log_decay=zero_unseen("bt->bth", real, -(exp(upcast(self.a_log)) * softplus(a))))
        q_unit = zero_unseen("bt->btgk", real, l2_normalize(silu(q), c.qk_eps()))
        k_unit = zero_unseen("bt->btgk", real, l2_normalize(silu(k), c.qk_eps()))
        q_unit, k_unit, v_silu = record(tape, q_unit=q_unit, k_unit=k_unit, v_silu=silu(v))
        q_unit, k_unit = repeat_heads(q_unit, v_silu), repeat_heads(k_unit, v_silu)
        q_scaled = q_unit * (1 / sqrt(sizes["k"]))
        chunk_size = chunk_size_for(c.form, c.chunk_size, sizes["t"])

        def form(v, state, tape):
            if call.continues is not None:
                decay = zero_unseen("bt->bthk", call.continues, exp(log_decay)[..., None])
                return recurrence(q_scaled, k_unit, v, beta, decay, state, chunk_size, delta_rule=True, tape=tape)
            if chunk_size is None:
                return recurrent_form(q_scaled, k_unit, v, beta, log_decay, state, tape)
            return chunked_form(q_scaled, k_unit, v, beta, log_decay, state, chunk_size, tape)

        context = record(tape, context=call.run(form, v_silu))
        normed = record(tape, normed=rms_norm(context, self.w_norm, c.norm_eps))
        gate_scores = record(tape, gate_scores=linear("btd,dhv->bthv", x, self.w_gate, None))
        gated = record(tape, gated=silu(gate_scores) * normed)
        return call.end(linear("bthv,hvo->bto", gated, self.w_o, None))

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients, by the forward in reverse."""
        c, back = self.config, RecurrentBackward(self, tape, dy)
        x, q, k, v, gate_scores, real = (
            tape.get(name) for name in ("zeroed_query", "q", "k", "v", "gate_scores", "real")
        )
        q_unit, k_unit, v_silu, beta = (tape[name] for name in ("q_unit", "k_unit", "v_silu", "beta"))
        q_unit, k_unit = repeat_heads(q_unit, v_silu), repeat_heads(k_unit, v_silu)
        a, log_decay = tape["a"], tape["log_decay"]
        dy, dw, scale = back.dy, back.dw, 1 / sqrt(q.shape[-1])
        dgated, dw["w_o"], _ = linear_vjp("bthv,hvo->bto", tape["gated"], self.w_o, None, dy)
        dgated = record(tape, dgated=dgated)
        dnormed, dgate_scores = record(
            tape, dnormed=dgated * silu(gate_scores), dgate_scores=silu_vjp(gate_scores, dgated * tape["normed"])
        )
        dx_gate, dw["w_gate"], _ = linear_vjp("btd,dhv->bthv", x, self.w_gate, None, dgate_scores)
        dcontext, dw["w_norm"] = rms_norm_vjp(tape["context"], self.w_norm, c.norm_eps, dnormed)
        dcontext = record(tape, dcontext=dcontext)
        chunk_size = chunk_size_for(c.form, c.chunk_size, q.shape[1])
        if back.continues is not None:
            decay = zero_unseen("bt->bthk", back.continues, exp(log_decay)[..., None])
            rows = q_unit * scale, k_unit, v_silu, beta, decay
            *cotangents, ddecay = back.recurrence(*rows, chunk_size, delta_rule=True, dout=dcontext)
            cotangents = *cotangents, (ddecay * decay)[..., 0]
        elif chunk_size is None:
            cotangents = recurrent_form_vjp(tape, q_unit * scale, k_unit, v_silu, beta, log_decay, dcontext)
        else:
            cotangents = chunked_form_vjp(tape, q_unit * scale, k_unit, v_silu, beta, log_decay, chunk_size, dcontext)
        dq_scaled, dk_unit, dv_silu, dbeta, dlog_decay = cotangents
        dq_unit, dk_unit = (repeat_heads_vjp(dx, q.shape[2]) for dx in (dq_scaled * scale, dk_unit))
        dq_unit, dk_unit = record(tape, dq_unit=dq_unit, dk_unit=dk_unit)
        dv_silu, dlog_decay = record(tape, dv_silu=dv_silu, dlog_decay=dlog_decay)
        dq = silu_vjp(q, l2_normalize_vjp(silu(q), c.qk_eps(), zero_unseen("bt->btgk", real, dq_unit)))
        dk = silu_vjp(k, l2_normalize_vjp(silu(k), c.qk_eps(), zero_unseen("bt->btgk", real, dk_unit)))
        # log_decay = -rate softplus(a) with rate = exp(a_log)
        dlog_decay, rate = zero_unseen("bt->bth", real, dlog_decay), exp(upcast(self.a_log))
        dw["a_log"] = -sum_to(dlog_decay * softplus(a), self.a_log.shape) * rate
        da = softplus_vjp(a, -(dlog_decay * rate))
        dq, dk, dv, dbeta, da = record(tape, dq=dq, dk=dk, dv=silu_vjp(v, dv_silu), dbeta=dbeta, da=da)
        if self.w_q_conv is not None and self.w_k_conv is not None and self.w_v_conv is not None:
            dv, dw["w_v_conv"] = convolve_vjp("v", tape, self.w_v_conv, real, back.continues, dv)
            dk, dw["w_k_conv"] = convolve_vjp("k", tape, self.w_k_conv, real, back.continues, dk)
            dq, dw["w_q_conv"] = convolve_vjp("q", tape, self.w_q_conv, real, back.continues, dq)
        dx_a, dw["w_a"], dw["dt_bias"] = linear_vjp("btd,dh->bth", x, self.w_a, self.dt_bias, da)
        dx_beta, dw["w_beta"], _ = linear_vjp("btd,dh->bth", x, self.w_beta, None, sigmoid_vjp(beta, dbeta))
        dx_v, dw["w_v"], _ = linear_vjp("btd,dhv->bthv", x, self.w_v, None, dv)
        dx_k, dw["w_k"], _ = linear_vjp("btd,dgk->btgk", x, self.w_k, None, dk)
        dx_q, dw["w_q"], _ = linear_vjp("btd,dgk->btgk", x, self.w_q, None, dq)
        return back.end(dx_q, dx_k, dx_v, dx_gate, dx_beta, dx_a)
