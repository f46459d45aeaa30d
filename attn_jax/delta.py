"""Delta rule: a key's old value is removed from the state before the new one is written."""

from typing import Unpack

from jaxtyping import Float

from attn_jax.attention.masks import zero_unseen
from attn_jax.frame.call import RecurrentCall, RecurrentOptions, emptying_decay
from attn_jax.frame.layer import Layer
from attn_jax.ops import (
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
)
from attn_jax.recurrence.rules import (
    causal_mask,
    chunk_size_for,
    earlier_mask,
    from_chunks,
    recurrence,
    to_chunks,
    unit_lower_inverse,
)
from attn_np.contract.delta import Config


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
