"""Linear attention: a feature map instead of the softmax, so that a state of fixed size sums up the keys."""

from typing import Unpack

from jaxtyping import Float

from attn_jax.attention.decode import DecodeStep, read_state, run_form, write_state
from attn_jax.attention.masks import any_visible, zero_unseen
from attn_jax.frame.call import RecurrentCall, RecurrentOptions, emptying_decay
from attn_jax.frame.layer import Layer
from attn_jax.ops import (
    Array,
    Tape,
    concatenate,
    cumsum,
    einsum,
    exp,
    linear,
    record,
    upcast,
    where,
    zeros,
)
from attn_jax.ops.specs import checked_specs
from attn_jax.recurrence.rules import causal_mask, chunk_size_for, from_chunks, recurrence, to_chunks
from attn_np.contract.linear import Config


def elu_features(x: Array) -> Array:
    """elu(x) + 1: positive, x + 1 above 0 and e^x below, where the exponential cannot overflow."""
    return where(x > 0, x + 1.0, exp(where(x > 0, 0.0, x)))


def random_features(x: Array, w: Array) -> Array:
    """exp(w x' - |x'|^2 / 2) / sqrt(m), `b t h m`, with x' = x / k^(1/4).

    With standard normal rows of w, the features of a query and a key have the dot product
    exp(query . key / sqrt(width)) on average.
    """
    x = x * x.shape[-1] ** -0.25
    square = einsum("bthk,bthk->bth", x, x)
    return exp(einsum("bthk,mk->bthm", x, w) - 0.5 * square[..., None]) * w.shape[0] ** -0.5


def running_states(added: Array, initial_state: Array, tape: Tape) -> Array:
    """The state before the first step and after each, from what the steps add."""
    states_after = record(tape, states=initial_state[:, None] + cumsum(added, 1))
    return concatenate([initial_state[:, None], states_after], 1)


def chunked_form(
    q: Array, k: Array, v: Array, initial_state: Array, chunk_size: int, tape: Tape
) -> tuple[Array, Array]:
    """The outputs `b t h v` and the last state: within a chunk all pairs are scored, a state holds what came before."""
    b, t = q.shape[0], q.shape[1]
    q, k, v = to_chunks(q, chunk_size), to_chunks(k, chunk_size), to_chunks(v, chunk_size)
    added = einsum("bshk,bshv->bhkv", k, v)
    added = record(tape, added=added.reshape(b, -(-t // chunk_size), *added.shape[1:]))
    all_states = running_states(added, initial_state, tape)
    states_before = record(tape, states_before=all_states[:, :-1].reshape(q.shape[0], *initial_state.shape[1:]))
    scores = record(tape, scores=einsum("bthk,bshk->bhts", q, k))
    masked_scores = record(tape, masked_scores=where(causal_mask(chunk_size, q), scores, 0.0))
    out = einsum("bhts,bshv->bthv", masked_scores, v) + einsum("bthk,bhkv->bthv", q, states_before)
    return from_chunks(out, b, t), all_states[:, -1]


def recurrent_form(q: Array, k: Array, v: Array, initial_state: Array, tape: Tape) -> tuple[Array, Array]:
    """The outputs and the last state, by a running sum: a state is the keys times values so far, read by its query."""
    all_states = running_states(record(tape, added=einsum("bthk,bthv->bthkv", k, v)), initial_state, tape)
    return einsum("bthk,bthkv->bthv", q, all_states[:, 1:]), all_states[:, -1]


class LinearAttention(Layer[Config]):
    """A feature map instead of the softmax, so that a state of fixed size sums up the keys."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None
    w_features: Float[Array, "m k"] | None

    def features(self, x: Array, w: Array | None) -> Array:
        """Queries or keys by the config's feature map, with the random rows in the compute dtype."""
        if w is not None:
            return random_features(x, w)
        if callable(self.config.feature_map):
            features = self.config.feature_map(x)
            self.config.check_features(**checked_specs("linear", x=x, features=features))
            return features
        return where(x > 0, x, 0.0) if self.config.feature_map == "relu" else elu_features(x)

    def weighted_sums(
        self, q: Array, k: Array, v: Array, continues: Array | None, step: DecodeStep | None, tape: Tape
    ) -> Array:
        """The values summed with the weights of each query, in the config's form. With `normalize`, v has a column of
        ones, so the last sum is that of the weights.
        """
        c = self.config
        zero_state = zeros((q.shape[0], *k.shape[2:], v.shape[-1]), q)
        if not c.causal:
            return einsum("bthk,bhkv->bthv", q, record(tape, state=einsum("bshk,bshv->bhkv", k, v)))
        if c.normalize:
            # b h k v, b h k -> b h k (v 1)
            state, key_sum = (
                read_state(step, "state", zero_state[..., :-1]),
                read_state(step, "key_sum", zero_state[..., -1]),
            )
            initial_state = concatenate([state, key_sum[..., None]], -1)
        else:
            initial_state = read_state(step, "state", zero_state)
        chunk_size = chunk_size_for(c.form, c.chunk_size, q.shape[1])

        def form(v, state, tape):
            if continues is not None:
                decay = emptying_decay(continues, v)
                return recurrence(q, k, v, None, decay, state, chunk_size, delta_rule=False, tape=tape)
            if chunk_size is None:
                return recurrent_form(q, k, v, state, tape)
            return chunked_form(q, k, v, state, chunk_size, tape)

        sums, final_state = run_form(step, form, v, initial_state, tape)
        if c.normalize:
            write_state(step, state=final_state[..., :-1], key_sum=final_state[..., -1])
        else:
            write_state(step, state=final_state)
        return sums

    def __call__(self, query: Float[Array, "b t d"], **options: Unpack[RecurrentOptions]) -> Array:
        """The outputs `b t o`; positions where the padding mask is False change no state, and their context is 0."""
        call = RecurrentCall(self, query, **options)
        c, tape, x, real = self.config, call.tape, call.x, call.real
        q = linear("btd,dhk->bthk", x, self.w_q, self.b_q)
        k = linear("btd,dhk->bthk", x, self.w_k, self.b_k)
        v = linear("btd,dhv->bthv", x, self.w_v, self.b_v)
        q, k, v = record(tape, q=q, k=k, v=v)
        # A feature map need not take 0 to 0 (elu(0) + 1 is 1), so padding is set to 0 after it.
        # Cast once for both: a framework would round the gradient of each cast by itself.
        w = upcast(self.w_features)
        q_features = record(tape, q_features=zero_unseen("bt->bthk", real, self.features(q, w)))
        k_features = record(tape, k_features=zero_unseen("bt->bthk", real, self.features(k, w)))
        if c.normalize:
            v = concatenate([v, 1.0 + zeros((*v.shape[:-1], 1), v)], -1)
        sums = self.weighted_sums(q_features, k_features, v, call.continues, call.step, tape)
        context = sums = record(tape, sums=sums)
        if c.normalize:
            weight_sum = sums[..., -1:] + c.eps
            weight_sum = weight_sum if real is None else where(any_visible("bt->bthv", real), weight_sum, 1.0)
            context = sums[..., :-1] / weight_sum
        context = record(tape, context=context)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))
