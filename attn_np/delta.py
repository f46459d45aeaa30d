"""Delta rule: a key's old value is removed from the state before the new one is written."""

from typing import Unpack

import numpy as np
from jaxtyping import Float

from attn_np.attention.masks import zero_unseen
from attn_np.contract.delta import Config
from attn_np.frame.backward import RecurrentBackward
from attn_np.frame.call import RecurrentCall, RecurrentOptions, emptying_decay
from attn_np.frame.layer import Layer
from attn_np.ops import (
    Array,
    Tape,
    concatenate,
    einsum,
    l2_normalize,
    linear,
    record,
    rms_norm,
    scan,
    sigmoid,
    silu,
    where,
    zeros,
)
from attn_np.ops.vjp import (
    Grads,
    einsum_vjp,
    l2_normalize_vjp,
    linear_vjp,
    rms_norm_vjp,
    sigmoid_vjp,
    silu_vjp,
    sum_grads,
)
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


def chunked_form(
    q: Array, k: Array, v: Array, beta: Array, initial_state: Array, chunk_size: int, tape: Tape
) -> tuple[Array, Array]:
    """The outputs and the last state; the state is passed from chunk to chunk.

    Within a chunk the values to write solve a triangular system. The solution is linear in the state before the chunk:
    v_new = u - w @ state: u is what the chunk writes into an empty state, w what it removes (WY form).
    """
    b, t = q.shape[0], q.shape[1]
    # Now b counts the chunks of all sequences, and t and s positions within a chunk.
    q, k, v, beta = (to_chunks(x, chunk_size) for x in (q, k, v, beta[..., None]))
    beta_k = k * beta
    # t 1 s: below the diagonal, for all heads
    key_products = where(earlier_mask(chunk_size, q)[:, None], einsum("bthk,bshk->bths", beta_k, k), 0.0)
    inverse = record(tape, inverse=unit_lower_inverse(record(tape, key_products=key_products)))
    w, u = einsum("bths,bshk->bthk", inverse, beta_k), einsum("bths,bshv->bthv", inverse, v * beta)
    w, u = record(tape, w=w, u=u)

    def body(state, xs):
        k, w, u = xs
        v_new = u - einsum("bchk,bhkv->bchv", w, state)
        state = state + einsum("bchk,bchv->bhkv", k, v_new)
        return state, (v_new, state)

    # (b n) c ... -> b n c ...
    xs = tuple(x.reshape(b, -(-t // chunk_size), *x.shape[1:]) for x in (k, w, u))
    final_state, (v_new, states_after) = scan(body, initial_state, xs, names=("v_new", "states"), tape=tape)
    states_before = concatenate([initial_state[:, None], states_after], 1)[:, :-1]
    states_before = record(tape, states_before=states_before.reshape(q.shape[0], *initial_state.shape[1:]))
    scores = record(tape, scores=einsum("bthk,bshk->bhts", q, k))
    masked_scores = record(tape, masked_scores=where(causal_mask(chunk_size, q), scores, 0.0))
    out = einsum("bhts,bshv->bthv", masked_scores, v_new.reshape(v.shape)) + einsum("bthk,bhkv->bthv", q, states_before)
    return from_chunks(out, b, t), final_state


def recurrent_form(q: Array, k: Array, v: Array, beta: Array, initial_state: Array, tape: Tape) -> tuple[Array, Array]:
    """The outputs and the last state: a position looks up its key's value and writes a share of the difference."""

    def body(state, xs):
        k, v, beta = xs
        v_new = beta[..., None] * (v - einsum("bhk,bhkv->bhv", k, state))
        state = state + einsum("bhk,bhv->bhkv", k, v_new)
        return state, (v_new, state)

    final_state, (_, states_after) = scan(body, initial_state, (k, v, beta), names=("v_new", "states"), tape=tape)
    return einsum("bthk,bthkv->bthv", q, states_after), final_state


def chunked_form_vjp(
    tape: Tape, q: Array, k: Array, v: Array, beta: Array, chunk_size: int, dout: Array
) -> tuple[Array, Array, Array, Array]:
    """The gradients of q, k, v and beta: `chunked_form` in reverse."""
    b, t = q.shape[0], q.shape[1]
    q, k, v, beta, dout = (to_chunks(x, chunk_size) for x in (q, k, v, beta[..., None], dout))
    beta_k = k * beta
    states_before, inverse = tape["states_before"], tape["inverse"]
    w, v_new = tape["w"], tape["v_new"].reshape(v.shape)
    dmasked_scores, dv_new = einsum_vjp("bhts,bshv->bthv", tape["masked_scores"], v_new, dout)
    dq_before, dstates_before = einsum_vjp("bthk,bhkv->bthv", q, states_before, dout)
    dscores = where(causal_mask(chunk_size, q), record(tape, dmasked_scores=dmasked_scores), 0.0)
    dq, dk_scores = einsum_vjp("bthk,bshk->bhts", q, k, record(tape, dscores=dscores))

    def body(dstate, xs):
        dv_new, dstate_before, k, w, v_new = xs
        dv_new = dv_new + einsum("bchk,bhkv->bchv", k, dstate)
        dk = einsum("bchv,bhkv->bchk", v_new, dstate)
        dstate = dstate + dstate_before - einsum("bchk,bchv->bhkv", w, dv_new)
        return dstate, (dv_new, dk)

    xs = tuple(x.reshape(b, -(-t // chunk_size), *x.shape[1:]) for x in (dv_new, dstates_before, k, w, v_new))
    zero = zeros((b, *states_before.shape[1:]), q)
    _, (dv_new, dk_added) = scan(body, zero, xs, names=("dv_new", "dk_added"), reverse=True)
    dv_new, dk_added = dv_new.reshape(v.shape), dk_added.reshape(k.shape)
    dw = -einsum("bthv,bhkv->bthk", dv_new, states_before)
    dw, du = record(tape, dw=dw, du=dv_new)
    dinverse_k, dbeta_k = einsum_vjp("bths,bshk->bthk", inverse, beta_k, dw)
    dinverse_v, dbeta_v = einsum_vjp("bths,bshv->bthv", inverse, v * beta, du)
    dkey_products = where(
        earlier_mask(chunk_size, q)[:, None], unit_lower_inverse_vjp(inverse, sum_grads(dinverse_k, dinverse_v)), 0.0
    )
    dbeta_k_products, dk_products = einsum_vjp("bthk,bshk->bths", beta_k, k, record(tape, dkey_products=dkey_products))
    dbeta_k = sum_grads(dbeta_k, dbeta_k_products)
    dk = sum_grads(dk_scores, dk_added, dk_products, dbeta_k * beta)
    dbeta = np.sum(dbeta_k * k, axis=-1) + np.sum(dbeta_v * v, axis=-1)
    dq, dk, dv, dbeta = (from_chunks(x, b, t) for x in (sum_grads(dq, dq_before), dk, dbeta_v * beta, dbeta))
    return dq, dk, dv, dbeta


def recurrent_form_vjp(
    tape: Tape, q: Array, k: Array, v: Array, beta: Array, dout: Array
) -> tuple[Array, Array, Array, Array]:
    """The gradients of q, k, v and beta: `recurrent_form` in reverse."""
    states_after, v_new = tape["states"], tape["v_new"]
    states_before = concatenate([zeros((q.shape[0], 1, *states_after.shape[2:]), q), states_after], 1)[:, :-1]
    dq, dstates_after = einsum_vjp("bthk,bthkv->bthv", q, states_after, dout)

    def body(dstate, xs):
        dstate_read, k, beta, v_new = xs
        dstate = dstate + dstate_read
        dv_new = einsum("bhk,bhkv->bhv", k, dstate)
        dk = einsum("bhkv,bhv->bhk", dstate, v_new)
        return dstate - einsum("bhk,bhv->bhkv", k, beta[..., None] * dv_new), (dv_new, dk)

    xs = record(tape, dstates=dstates_after), k, beta, v_new
    zero = zeros((q.shape[0], *states_after.shape[2:]), q)
    _, (dv_new, dk) = scan(body, zero, xs, names=("dv_new", "dk"), reverse=True)
    dv = beta[..., None] * dv_new
    dbeta = np.sum(dv_new * (v - einsum("bthk,bthkv->bthv", k, states_before)), axis=-1)
    return dq, sum_grads(dk, -einsum("bthkv,bthv->bthk", states_before, dv)), dv, dbeta


class DeltaRule(Layer[Config]):
    """A key's old value is removed from the state before the new one is written."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_beta: Float[Array, "d h"]
    w_o: Float[Array, "h v o"]
    w_norm: Float[Array, "v"] | None

    def __call__(self, query: Float[Array, "b t d"], **options: Unpack[RecurrentOptions]) -> Array:
        """The outputs `b t o`; positions where the padding mask is False change no state, and their context is 0."""
        call = RecurrentCall(self, query, **options)
        c, tape, sizes, x, real = self.config, call.tape, call.sizes, call.x, call.real
        q = linear("btd,dhk->bthk", x, self.w_q, None)
        k = linear("btd,dhk->bthk", x, self.w_k, None)
        v = linear("btd,dhv->bthv", x, self.w_v, None)
        q, k, v = record(tape, q=q, k=k, v=v)
        beta = record(tape, beta=sigmoid(linear("btd,dh->bth", x, self.w_beta, None)))
        q_unit = zero_unseen("bt->bthk", real, l2_normalize(silu(q), c.norm_eps))
        k_unit = zero_unseen("bt->bthk", real, l2_normalize(silu(k), c.norm_eps))
        q_unit, k_unit = record(tape, q_unit=q_unit, k_unit=k_unit)
        chunk_size = chunk_size_for(c.form, c.chunk_size, sizes["t"])

        def form(v, state, tape):
            if call.continues is not None:
                decay = emptying_decay(call.continues, v)
                return recurrence(q_unit, k_unit, v, beta, decay, state, chunk_size, delta_rule=True, tape=tape)
            if chunk_size is None:
                return recurrent_form(q_unit, k_unit, v, beta, state, tape)
            return chunked_form(q_unit, k_unit, v, beta, state, chunk_size, tape)

        context = record(tape, context=call.run(form, v))
        normed = record(tape, normed=rms_norm(context, self.w_norm, c.norm_eps) if c.use_norm else context)
        return call.end(linear("bthv,hvo->bto", normed, self.w_o, None))

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order."""
        c, back = self.config, RecurrentBackward(self, tape, dy)
        x, q, k, v, beta, real = (tape.get(name) for name in ("zeroed_query", "q", "k", "v", "beta", "real"))
        q_unit, k_unit = tape["q_unit"], tape["k_unit"]
        dy, dw = back.dy, back.dw
        dnormed, dw["w_o"], _ = linear_vjp("bthv,hvo->bto", tape["normed"], self.w_o, None, dy)
        dcontext = dnormed = record(tape, dnormed=dnormed)
        if c.use_norm:
            dcontext, dw["w_norm"] = rms_norm_vjp(tape["context"], self.w_norm, c.norm_eps, dnormed)
        dcontext = record(tape, dcontext=dcontext)
        chunk_size = chunk_size_for(c.form, c.chunk_size, q.shape[1])
        if back.continues is not None:
            decay = emptying_decay(back.continues, v)
            cotangents = back.recurrence(q_unit, k_unit, v, beta, decay, chunk_size, delta_rule=True, dout=dcontext)
            dq_unit, dk_unit, dv, dbeta, _ = cotangents
        elif chunk_size is None:
            dq_unit, dk_unit, dv, dbeta = recurrent_form_vjp(tape, q_unit, k_unit, v, beta, dcontext)
        else:
            dq_unit, dk_unit, dv, dbeta = chunked_form_vjp(tape, q_unit, k_unit, v, beta, chunk_size, dcontext)
        dq_unit, dk_unit = record(tape, dq_unit=dq_unit, dk_unit=dk_unit)
        dq = silu_vjp(q, l2_normalize_vjp(silu(q), c.norm_eps, zero_unseen("bt->bthk", real, dq_unit)))
        dk = silu_vjp(k, l2_normalize_vjp(silu(k), c.norm_eps, zero_unseen("bt->bthk", real, dk_unit)))
        dq, dk, dv, dbeta = record(tape, dq=dq, dk=dk, dv=dv, dbeta=dbeta)
        dx_beta, dw["w_beta"], _ = linear_vjp("btd,dh->bth", x, self.w_beta, None, sigmoid_vjp(beta, dbeta))
        dx_v, dw["w_v"], _ = linear_vjp("btd,dhv->bthv", x, self.w_v, None, dv)
        dx_k, dw["w_k"], _ = linear_vjp("btd,dhk->bthk", x, self.w_k, None, dk)
        dx_q, dw["w_q"], _ = linear_vjp("btd,dhk->bthk", x, self.w_q, None, dq)
        return back.end(dx_q, dx_k, dx_v, dx_beta)
