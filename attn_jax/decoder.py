"""Decoder attention: the attention of today's decoder-only models; config fields switch its parts on."""

from typing import Any, Unpack

from jaxtyping import Float

from attn_jax.attention.decode import DecodeStep
from attn_jax.attention.masks import token_positions
from attn_jax.frame.call import AttentionCall, Options
from attn_jax.frame.layer import Layer, Output
from attn_jax.ops import (
    Array,
    clip,
    cumsum,
    known_range,
    layer_norm,
    linear,
    record,
    rms_norm,
    sigmoid,
    softplus,
    take,
    upcast,
    where,
)
from attn_jax.positions.rotary import (
    Positions,
    cos_sin_for,
    query_scale_table,
    record_positions,
    rotate,
)
from attn_np.contract._patterns import Chunks
from attn_np.contract.decoder import Config


def offset_weight(c: Config, weight: Array | None) -> Array | None:
    """The norm weight in the compute dtype, plus `norm_offset`."""
    weight = upcast(weight)
    return weight if weight is None or c.norm_offset == 0.0 else weight + c.norm_offset


def normalize(c: Config, x: Array, weight: Array | None, bias: Array | None) -> Array:
    """x normalised: each head over its last axis, or all heads of a position as one."""
    if c.norm is None:
        return x
    shape, weight = x.shape, offset_weight(c, weight)
    if c.norm_over == "all":
        x = x.reshape((*shape[:2], shape[2] * shape[3]))
        weight = None if weight is None else weight.reshape((shape[2] * shape[3],))
    x = rms_norm(x, weight, c.norm_eps) if c.norm == "rms" else layer_norm(x, weight, upcast(bias), c.norm_eps)
    return x.reshape(shape)


def clip_magnitude(x: Array, limit: float) -> Array:
    """x, with numbers larger than the limit in size replaced by the limit with their sign."""
    return where(x > limit, limit, where(x < -limit, -limit, x))


def query_scales(c: Config, positions: Any, t: int, *, like: Array, step: DecodeStep | None = None) -> Array | None:
    """The factor on each query, `b t 1 1`; None if the config has none."""
    if c.temperature_growth is None or c.temperature_interval is None:
        return None
    if positions is None:
        count = max(t, 1) if step is None else step.cache.max_length
        positions = clip(token_positions(t, t, like=like, step=step)[0], 0, count - 1)
    else:
        count, known = c.max_positions or 1, known_range(positions)
        if known is not None:
            c.check_position_range(*known)
    scales = query_scale_table(c.temperature_growth, c.temperature_interval, count, like=like)
    return take(scales, positions)[:, :, None, None]


class DecoderAttention(Layer[Config]):
    """The attention of today's decoder-only models; config fields switch its parts on."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d g k"]
    w_v: Float[Array, "d g v"]
    w_gate: Float[Array, "d h v"] | None
    w_forget: Float[Array, "d h"] | None
    b_forget: Float[Array, "h"] | None
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "g k"] | None
    b_v: Float[Array, "g v"] | None
    b_gate: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None
    w_q_norm: Float[Array, "k"] | None
    w_k_norm: Float[Array, "k"] | None
    b_q_norm: Float[Array, "k"] | None
    b_k_norm: Float[Array, "k"] | None
    w_q_norm_heads: Float[Array, "h k"] | None
    w_k_norm_heads: Float[Array, "g k"] | None
    sinks: Float[Array, "h"] | None

    def __call__(
        self,
        query: Float[Array, "b t d"],
        *,
        positions: Positions | None = None,
        **options: Unpack[Options],
    ) -> Output:
        call = AttentionCall(self, query, positions=positions, **options)
        c, tape, sizes = self.config, call.tape, call.sizes
        pattern = None if c.chunk_size is None else Chunks(c.chunk_size)
        query, key, value = call.inputs(pattern=pattern)
        positions = record_positions(tape, positions)
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsd,dgk->bsgk", key, self.w_k, self.b_k)
        v = linear("bsd,dgv->bsgv", value, self.w_v, self.b_v)
        q, k = record(tape, q_proj=q, k_proj=k)
        shared = c.norm_weight == "shared"
        q_weight = self.w_q_norm if shared else self.w_q_norm_heads
        k_weight = self.w_k_norm if shared else self.w_k_norm_heads
        q = record(tape, q_norm=normalize(c, q, q_weight, self.b_q_norm))
        k = record(tape, k_norm=normalize(c, k, k_weight, self.b_k_norm))
        if c.clip_qkv is not None:
            v = record(tape, v_proj=v)
            q, k = record(tape, q_clip=clip_magnitude(q, c.clip_qkv), k_clip=clip_magnitude(k, c.clip_qkv))
            v = record(tape, v_clip=clip_magnitude(v, c.clip_qkv))
        cos, sin = cos_sin_for(c, positions, sizes["t"], like=query, step=call.step)
        q, k = record(tape, q_rot=rotate(q, cos, sin, c.rope_layout), k_rot=rotate(k, cos, sin, c.rope_layout))
        q_scale = query_scales(c, positions, sizes["t"], like=query, step=call.step)
        q = q if q_scale is None else record(tape, q_tempered=q * q_scale)
        more = {}
        if self.w_forget is not None:
            # D_ij = c_i - c_j for the running sums c of the gates' logarithms, and a softmax does not see c_i.
            forget_scores = record(tape, forget_scores=linear("bsd,dh->bsh", key, self.w_forget, self.b_forget))
            log_forget = call.zero_unseen_keys("bhts->bsh", -softplus(-forget_scores))
            k, v, log_forget = call.cached(k=k, v=v, log_forget=log_forget)
            log_forget = record(tape, log_forget=log_forget)
            key_bias = record(tape, key_bias=-cumsum(log_forget, 1).swapaxes(1, 2)[:, :, None])  # b h 1 s
            more = {"relative_bias_fn": lambda _: key_bias, "varies_by_sequence": True}
        context = call.attend(q, k, v, **more, sinks=upcast(self.sinks))
        if self.w_gate is not None:
            gate = record(tape, gate=sigmoid(linear("btd,dhv->bthv", query, self.w_gate, self.b_gate)))
            context = record(tape, gated=gate * context)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))
