"""Linear attention: a feature map instead of the softmax, so that a state of fixed size sums up the keys."""

from typing import Unpack

import numpy as np
from jaxtyping import Float

from attn_np.attention.decode import DecodeStep, read_state, run_form, write_state
from attn_np.attention.masks import any_visible, zero_unseen
from attn_np.contract.linear import Config
from attn_np.frame.backward import RecurrentBackward
from attn_np.frame.call import RecurrentCall, RecurrentOptions, emptying_decay
from attn_np.frame.layer import Layer
from attn_np.ops import (
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
from attn_np.ops.specs import checked_specs
from attn_np.ops.vjp import Grads, einsum_vjp, linear_vjp, rule_of, sum_grads
from attn_np.recurrence.rules import causal_mask, chunk_size_for, from_chunks, recurrence, to_chunks


def elu_features(x: Array) -> Array:
    """elu(x) + 1: positive, x + 1 above 0 and e^x below, where the exponential cannot overflow."""
    return where(x > 0, x + 1.0, exp(where(x > 0, 0.0, x)))


def elu_features_vjp(x: Array, dy: Array) -> Array:
    """The slope is 1 above 0 and e^x below."""
    return dy * where(x > 0, 1.0, exp(where(x > 0, 0.0, x)))


def random_features(x: Array, w: Array) -> Array:
    """exp(w x' - |x'|^2 / 2) / sqrt(m), `b t h m`, with x' = x / k^(1/4).

    With standard normal rows of w, the features of a query and a key have the dot product
    exp(query . key / sqrt(width)) on average.
    """
    x = x * x.shape[-1] ** -0.25
    square = einsum("bthk,bthk->bth", x, x)
    return exp(einsum("bthk,mk->bthm", x, w) - 0.5 * square[..., None]) * w.shape[0] ** -0.5


def random_features_vjp(x: Array, w: Array, y: Array, dy: Array) -> tuple[Array, Array]:
    """The gradients of x and w, from the features y and their gradient.

    y is an exponential: it changes by y times the change of its exponent.
    """
    scale = x.shape[-1] ** -0.25
    dexponent = dy * y
    dx, dw = einsum_vjp("bthk,mk->bthm", x * scale, w, dexponent)
    return (dx - np.sum(dexponent, axis=-1, keepdims=True) * (x * scale)) * scale, dw


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


def running_states_vjp(dstates: Array) -> Array:
    """The gradient of what the steps add, from that of the states after them: it is part of all later ones."""
    return cumsum(dstates[:, ::-1], 1)[:, ::-1]


def chunked_form_vjp(
    tape: Tape, q: Array, k: Array, v: Array, chunk_size: int, dout: Array
) -> tuple[Array, Array, Array]:
    """The gradients of q, k and v: `chunked_form` in reverse. A state is read by the next chunk, the last by none."""
    b, t = q.shape[0], q.shape[1]
    q, k, v, dout = (to_chunks(x, chunk_size) for x in (q, k, v, dout))
    dmasked_scores, dv = einsum_vjp("bhts,bshv->bthv", tape["masked_scores"], v, dout)
    dscores = where(causal_mask(chunk_size, q), record(tape, dmasked_scores=dmasked_scores), 0.0)
    dq, dk = einsum_vjp("bthk,bshk->bhts", q, k, record(tape, dscores=dscores))
    dq_before, dstates_before = einsum_vjp("bthk,bhkv->bthv", q, tape["states_before"], dout)
    dstates_before = record(tape, dstates_before=dstates_before).reshape(
        b, -(-t // chunk_size), *dstates_before.shape[1:]
    )
    dstates_after = concatenate([dstates_before, zeros((b, 1, *dstates_before.shape[2:]), dstates_before)], 1)[:, 1:]
    dadded = record(tape, dadded=running_states_vjp(record(tape, dstates=dstates_after)))
    dk_added, dv_added = einsum_vjp("bshk,bshv->bhkv", k, v, dadded.reshape(q.shape[0], *dadded.shape[2:]))
    dq, dk, dv = sum_grads(dq, dq_before), sum_grads(dk, dk_added), sum_grads(dv, dv_added)
    return from_chunks(dq, b, t), from_chunks(dk, b, t), from_chunks(dv, b, t)


def recurrent_form_vjp(tape: Tape, q: Array, k: Array, v: Array, dout: Array) -> tuple[Array, Array, Array]:
    """The gradients of q, k and v: `recurrent_form` in reverse."""
    dq, dstates = einsum_vjp("bthk,bthkv->bthv", q, tape["states"], dout)
    dadded = record(tape, dadded=running_states_vjp(record(tape, dstates=dstates)))
    return dq, *einsum_vjp("bthk,bthv->bthkv", k, v, dadded)


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

    def features_vjp(self, x: Array, y: Array, dy: Array) -> tuple[Array, Array | None]:
        """The gradients of x and of w_features: `features` in reverse."""
        if self.w_features is not None:
            return random_features_vjp(x, self.w_features, y, dy)
        if callable(self.config.feature_map):
            # At padding the taped features are 0, not what the function returned, so they are computed again.
            return rule_of(self.config.feature_map)({"y": self.features(x, None)}, dy, x=x)["x"], None
        return where(x > 0, dy, 0.0) if self.config.feature_map == "relu" else elu_features_vjp(x, dy), None

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

    def weighted_sums_vjp(
        self, back: RecurrentBackward, q: Array, k: Array, v: Array, dsums: Array
    ) -> tuple[Array, ...]:
        """The gradients of q, k and v: `weighted_sums` in reverse, for a call without a cache."""
        c, tape = self.config, back.tape
        if not c.causal:
            dq, dstate = einsum_vjp("bthk,bhkv->bthv", q, tape["state"], dsums)
            return dq, *einsum_vjp("bshk,bshv->bhkv", k, v, record(tape, dstate=dstate))
        chunk_size = chunk_size_for(c.form, c.chunk_size, q.shape[1])
        if back.continues is not None:
            decay = emptying_decay(back.continues, v)
            return back.recurrence(q, k, v, None, decay, chunk_size, delta_rule=False, dout=dsums)[:3]
        if chunk_size is None:
            return recurrent_form_vjp(tape, q, k, v, dsums)
        return chunked_form_vjp(tape, q, k, v, chunk_size, dsums)

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients, by the forward in reverse; the sum of the weights is one column of `sums`."""
        c, back = self.config, RecurrentBackward(self, tape, dy)
        x, q, k, v, sums, real = (tape.get(name) for name in ("zeroed_query", "q", "k", "v", "sums", "real"))
        dy, dw = back.dy, back.dw
        context = tape["context"]
        dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", context, self.w_o, self.b_o, dy)
        dsums = dcontext = record(tape, dcontext=dcontext)
        if c.normalize:
            v = concatenate([v, 1.0 + zeros((*v.shape[:-1], 1), v)], -1)
            weight_sum = sums[..., -1:] + c.eps
            weight_sum = weight_sum if real is None else where(any_visible("bt->bthv", real), weight_sum, 1.0)
            # context = value sums / weight sum
            dvalue_sums = dcontext / weight_sum
            dweight_sum = zero_unseen(
                "bt->bthv", real, -np.sum(dcontext * context / weight_sum, axis=-1, keepdims=True)
            )
            dsums = concatenate([dvalue_sums, dweight_sum], -1)
        dsums = record(tape, dsums=dsums)
        q_features, k_features = tape["q_features"], tape["k_features"]
        dq_features, dk_features, dv = self.weighted_sums_vjp(back, q_features, k_features, v, dsums)
        dq_features, dk_features = record(tape, dq_features=dq_features, dk_features=dk_features)
        dq, dw_q = self.features_vjp(q, q_features, zero_unseen("bt->bthk", real, dq_features))
        dk, dw_k = self.features_vjp(k, k_features, zero_unseen("bt->bthk", real, dk_features))
        dw["w_features"] = None if dw_q is None or dw_k is None else sum_grads(dw_q, dw_k)
        dq, dk, dv = record(tape, dq=dq, dk=dk, dv=dv[..., :-1] if c.normalize else dv)
        dx_v, dw["w_v"], dw["b_v"] = linear_vjp("btd,dhv->bthv", x, self.w_v, self.b_v, dv)
        dx_k, dw["w_k"], dw["b_k"] = linear_vjp("btd,dhk->bthk", x, self.w_k, self.b_k, dk)
        dx_q, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhk->bthk", x, self.w_q, self.b_q, dq)
        return back.end(dx_q, dx_k, dx_v)
