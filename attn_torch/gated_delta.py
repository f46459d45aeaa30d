"""Gated delta rule: the state decays by a factor that each position chooses, and the delta rule writes into it."""

from math import sqrt
from typing import Unpack

from jaxtyping import Float

from attn_np.contract.gated_delta import Config
from attn_torch.attention.masks import zero_unseen
from attn_torch.frame.call import RecurrentCall, RecurrentOptions
from attn_torch.frame.layer import Layer
from attn_torch.ops import (
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
)
from attn_torch.recurrence.convolution import convolve
from attn_torch.recurrence.rules import (
    causal_mask,
    chunk_size_for,
    earlier_mask,
    from_chunks,
    recurrence,
    to_chunks,
    unit_lower_inverse,
)
from attn_torch.retention import ChunkDecays


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

    def forward(self, query: Float[Array, "b t d"], **options: Unpack[RecurrentOptions]) -> Array:
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
