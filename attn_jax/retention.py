"""Retention: attention without a softmax, whose weights decay with the distance at each head's own rate."""

from math import sqrt
from typing import NamedTuple, Unpack

from jaxtyping import Float

from attn_jax.attention.decode import DecodeStep, read_state, run_form, write_state
from attn_jax.attention.masks import broadcast_mask, zero_unseen
from attn_jax.frame.call import RecurrentCall, RecurrentOptions
from attn_jax.frame.layer import Layer
from attn_jax.ops import (
    Array,
    Tape,
    concatenate,
    constants,
    cumsum,
    einsum,
    exp,
    layer_norm,
    linear,
    record,
    rms_norm,
    scan,
    sigmoid,
    silu,
    upcast,
    where,
    zeros,
)
from attn_jax.positions.rotary import cos_sin_for, rotate
from attn_jax.recurrence.rules import causal_mask, chunk_size_for, from_chunks, recurrence, to_chunks
from attn_np.contract.retention import Config


class ChunkDecays(NamedTuple):
    """Decay factors over the positions of a sequence or a chunk, by head.

    Attributes:
        matrix: `b h t s`, from a key to a query; 0 for later keys.
        from_start: `b t h`, from before the first position to a query.
        to_end: `b t h`, from a key to the last position.
        overall: `b h`, over all of them.
    """

    matrix: Array
    from_start: Array
    to_end: Array
    overall: Array


def decay_from_counts(real_counts: Array, log_decay_by_head: Array) -> ChunkDecays:
    """Decay factors by the number of real positions in between: padding decays nothing.

    `real_counts`, `b t`: for each position 1, or 0 for padding; or for each chunk how many real positions it has.
    """
    b, t = real_counts.shape
    running_count = cumsum(concatenate([zeros((b, 1), log_decay_by_head), real_counts], 1), 1)
    position, last = running_count[:, 1:], running_count[:, -1:]
    visible = causal_mask(t, real_counts)
    distance = where(visible, position[:, :, None] - position[:, None, :], 0.0)
    matrix = where(visible, exp(distance[:, None] * log_decay_by_head[:, None, None]), 0.0)
    from_start, to_end = (
        exp(position[:, :, None] * log_decay_by_head),
        exp((last - position)[:, :, None] * log_decay_by_head),
    )
    return ChunkDecays(matrix, from_start, to_end, exp(last * log_decay_by_head))


def decay_within_and_between(real: Array, log_decay_by_head: Array, chunk_size: int) -> tuple[ChunkDecays, ChunkDecays]:
    """Decay factors within each chunk, and from chunk to chunk."""
    b, t = real.shape
    real_counts = to_chunks(where(real, 1.0 + zeros((b, t), log_decay_by_head), 0.0), chunk_size)
    chunk_counts = real_counts.sum(1).reshape(b, -(-t // chunk_size))
    return decay_from_counts(real_counts, log_decay_by_head), decay_from_counts(chunk_counts, log_decay_by_head)


def decay_by_position(real: Array, continues: Array, log_decay_by_head: Array) -> Array:
    """The factors that multiply the state at each position, `b t h 1`: 1 at padding, 0 where a document begins."""
    decay = exp(where(real[..., None], log_decay_by_head, 0.0))
    return zero_unseen("bt->bthk", continues, decay[..., None])


def chunked_form(
    q: Array,
    k: Array,
    v: Array,
    initial_state: Array,
    real: Array,
    log_decay_by_head: Array,
    chunk_size: int,
    tape: Tape,
) -> tuple[Array, Array]:
    """The outputs `b t h v` and the last state: decayed scores of all pairs within a chunk, a state for those before.

    What a chunk adds to the state decays in those that follow just as a key decays within its chunk.
    """
    b, t = q.shape[0], q.shape[1]
    within, between = decay_within_and_between(real, log_decay_by_head, chunk_size)
    q, k, v = to_chunks(q, chunk_size), to_chunks(k, chunk_size), to_chunks(v, chunk_size)
    added = einsum("bshk,bshv->bhkv", k * within.to_end[..., None], v)
    added = record(tape, added=added.reshape(b, -(-t // chunk_size), *added.shape[1:]))
    old = between.from_start[..., None, None] * initial_state[:, None]
    states_after = record(tape, states=einsum("bhij,bjhkv->bihkv", between.matrix, added) + old)
    all_states = concatenate([initial_state[:, None], states_after], 1)
    states_before = record(tape, states_before=all_states[:, :-1].reshape(q.shape[0], *initial_state.shape[1:]))
    scores = record(tape, scores=einsum("bthk,bshk->bhts", q, k))
    decayed_scores = record(tape, decayed_scores=scores * record(tape, decay=within.matrix))
    out_from_state = einsum("bthk,bhkv->bthv", q, states_before) * within.from_start[..., None]
    return from_chunks(einsum("bhts,bshv->bthv", decayed_scores, v) + out_from_state, b, t), all_states[:, -1]


def recurrent_form(
    q: Array, k: Array, v: Array, initial_state: Array, real: Array, log_decay_by_head: Array, tape: Tape
) -> tuple[Array, Array]:
    """The outputs and the last state: a position decays the state, adds its key times its value, and reads it."""

    def body(state, xs):
        added, decay = xs
        state = decay[:, :, None, None] * state + added
        return state, (state,)

    added = record(tape, added=einsum("bthk,bthv->bthkv", k, v))
    decay = exp(where(real[..., None], log_decay_by_head, 0.0))
    final_state, (states_after,) = scan(body, initial_state, (added, decay), names=("states",), tape=tape)
    return einsum("bthk,bthkv->bthv", q, states_after), final_state


class Retention(Layer[Config]):
    """Attention without a softmax, whose weights decay with the distance at each head's own rate."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_gate: Float[Array, "d h v"] | None
    w_norm: Float[Array, "h v"] | None
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_gate: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

    def compute_context(
        self, q: Array, k: Array, v: Array, real: Array, continues: Array | None, step: DecodeStep | None, tape: Tape
    ) -> Array:
        """The context, computed in the config's form."""
        c = self.config
        log_decay_by_head = constants(c.log_decays(), q)
        initial_state = read_state(step, "state", zeros((q.shape[0], *k.shape[2:], v.shape[-1]), q))
        chunk_size = chunk_size_for(c.form, c.chunk_size, q.shape[1])

        def form(v, state, tape):
            if continues is not None:
                decay = decay_by_position(real, continues, log_decay_by_head)
                return recurrence(q, k, v, None, decay, state, chunk_size, delta_rule=False, tape=tape)
            if chunk_size is None:
                return recurrent_form(q, k, v, state, real, log_decay_by_head, tape)
            return chunked_form(q, k, v, state, real, log_decay_by_head, chunk_size, tape)

        context, final_state = run_form(step, form, v, initial_state, tape)
        write_state(step, state=final_state)
        return context

    def normalize(self, context: Array) -> Array:
        """The context by the norm of the config, each head by itself or all heads of a position as one."""
        c, shape = self.config, context.shape
        if c.norm == "none":
            return context
        context, weight = self.flatten_normed(context)
        if c.norm == "layer":
            return layer_norm(context, weight, None, c.norm_eps).reshape(shape)
        return rms_norm(context, weight, c.norm_eps).reshape(shape)

    def flatten_normed(self, x: Array) -> tuple[Array, Array | None]:
        """x, `b t h v`, and the norm's weight, both reshaped so that the norm is over the last axis."""
        (b, t, h, v), weight = x.shape, upcast(self.w_norm)
        if self.config.norm_over == "head":
            return x, weight
        return x.reshape((b, t, h * v)), None if weight is None else weight.reshape((h * v,))

    def __call__(self, query: Float[Array, "b t d"], **options: Unpack[RecurrentOptions]) -> Array:
        """The outputs `b t o`; where the padding mask is False no state changes, and the context is 0.

        In a step, the argument `valid` of `Layer.step` marks the real positions.
        """
        call = RecurrentCall(self, query, **options)
        c, tape, sizes, x, real = self.config, call.tape, call.sizes, call.x, call.real
        q = zero_unseen("bt->bthk", real, linear("btd,dhk->bthk", x, self.w_q, self.b_q))
        k = zero_unseen("bt->bthk", real, linear("btd,dhk->bthk", x, self.w_k, self.b_k))
        v = zero_unseen("bt->bthv", real, linear("btd,dhv->bthv", x, self.w_v, self.b_v))
        if c.activation is not None:
            q, k, v = record(tape, q_proj=q, k_proj=k, v_proj=v)
            q, k, v = silu(q), silu(k), silu(v)
        q, k, v = record(tape, q=q, k=k, v=v)
        is_real = broadcast_mask(real, (sizes["b"], sizes["t"]), x)
        if c.rope_base is not None:
            cos, sin = cos_sin_for(
                c, None, sizes["t"], like=x, step=call.step, real=is_real if call.step is None else None
            )
            q, k = record(tape, q_rot=rotate(q, cos, sin, c.rope_layout), k_rot=rotate(k, cos, sin, c.rope_layout))
        scale = 1 / sqrt(sizes["k"]) if c.scale is None else c.scale
        context = record(tape, context=self.compute_context(q * scale, k, v, is_real, call.continues, call.step, tape))
        gated = normed = record(tape, normed=self.normalize(context))
        if self.w_gate is not None:
            gate_scores = record(tape, gate_scores=linear("btd,dhv->bthv", x, self.w_gate, self.b_gate))
            gate = silu(gate_scores) if c.gate_activation == "silu" else sigmoid(gate_scores)
            gated = record(tape, gated=gate * normed)
        return call.end(linear("bthv,hvo->bto", gated, self.w_o, self.b_o))
