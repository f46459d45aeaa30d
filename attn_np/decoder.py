"""Decoder attention: the attention of today's decoder-only models; config fields switch its parts on."""

from typing import Any, Unpack

from jaxtyping import Float

from attn_np.attention.decode import DecodeStep
from attn_np.attention.masks import token_positions
from attn_np.contract._patterns import Chunks
from attn_np.contract.decoder import Config
from attn_np.frame.backward import AttentionBackward
from attn_np.frame.call import AttentionCall, Options
from attn_np.frame.layer import Layer, Output
from attn_np.ops import (
    Array,
    Tape,
    clip,
    cumsum,
    known_range,
    layer_norm,
    linear,
    record,
    reverse_cumsum,
    rms_norm,
    sigmoid,
    softplus,
    take,
    upcast,
    where,
)
from attn_np.ops.vjp import (
    Grads,
    layer_norm_vjp,
    linear_vjp,
    rms_norm_vjp,
    sigmoid_vjp,
    softplus_vjp,
    sum_grads,
    sum_to,
)
from attn_np.positions.rotary import (
    Positions,
    cos_sin_for,
    query_scale_table,
    record_positions,
    recorded_positions,
    rotate,
)


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


def normalize_vjp(
    c: Config, x: Array, weight: Array | None, bias: Array | None, dy: Array
) -> tuple[Array, Array | None, Array | None]:
    """The gradients of x, of the norm's weight and of its bias, in their shapes."""
    if c.norm is None:
        return dy, None, None
    shape, full_weight = x.shape, offset_weight(c, weight)
    if c.norm_over == "all":
        x, dy = (a.reshape((*shape[:2], shape[2] * shape[3])) for a in (x, dy))
        full_weight = None if full_weight is None else full_weight.reshape((shape[2] * shape[3],))
    dbias = None
    if c.norm == "rms":
        dx, dweight = rms_norm_vjp(x, full_weight, c.norm_eps, dy)
    else:
        dx, dweight, dbias = layer_norm_vjp(x, full_weight, bias, c.norm_eps, dy)
    return dx.reshape(shape), None if weight is None or dweight is None else dweight.reshape(weight.shape), dbias


def clip_magnitude(x: Array, limit: float) -> Array:
    """x, with numbers larger than the limit in size replaced by the limit with their sign."""
    return where(x > limit, limit, where(x < -limit, -limit, x))


def clip_magnitude_vjp(x: Array, limit: float, dy: Array) -> Array:
    """The gradient of x: 0 beyond the limit."""
    return where(x > limit, 0.0, where(x < -limit, 0.0, dy))


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

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order, with the same einsum strings."""
        c, back = self.config, AttentionBackward(self, tape, dy)
        (query, key, value), dy, dw = back.inputs, back.dy, back.dw
        context = tape["context"]
        cos, sin = cos_sin_for(c, recorded_positions(tape), dy.shape[1], like=dy)
        if self.w_gate is None:
            dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", context, self.w_o, self.b_o, dy)
            dquery_gate = None
        else:
            gate = tape["gate"]
            dgated, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", tape["gated"], self.w_o, self.b_o, dy)
            dgated = record(tape, dgated=dgated)
            dcontext, dgate = dgated * gate, record(tape, dgate=dgated * context)
            dquery_gate, dw["w_gate"], dw["b_gate"] = linear_vjp(
                "btd,dhv->bthv", query, self.w_gate, self.b_gate, sigmoid_vjp(gate, dgate)
            )
        dq, dk, dv = back.attend(dcontext, relative_bias=self.w_forget is not None)
        dkey_forget = None
        if self.w_forget is not None:
            dkey_bias = record(tape, dkey_bias=sum_to(tape["dbiased"], tape["key_bias"].shape))
            dlog_forget = record(tape, dlog_forget=-reverse_cumsum(dkey_bias)[:, :, 0].swapaxes(1, 2))
            dlog_forget = back.zero_unseen_keys("bhts->bsh", dlog_forget)
            dforget_scores = record(tape, dforget_scores=softplus_vjp(-tape["forget_scores"], dlog_forget))
            dkey_forget, dw["w_forget"], dw["b_forget"] = linear_vjp(
                "bsd,dh->bsh", key, self.w_forget, self.b_forget, dforget_scores
            )
        dw["sinks"] = None if self.sinks is None else tape["dsinks"]
        q_scale = query_scales(c, tape.get("positions"), dy.shape[1], like=dy)
        dq = dq if q_scale is None else record(tape, dq_tempered=dq) * q_scale
        dq, dk = record(tape, dq_rot=dq, dk_rot=dk)
        dq, dk = rotate(dq, cos, sin, c.rope_layout, inverse=True), rotate(dk, cos, sin, c.rope_layout, inverse=True)
        if c.clip_qkv is not None:
            dq, dk, dv = record(tape, dq_clip=dq, dk_clip=dk, dv_clip=dv)
            unclipped = zip(("q_norm", "k_norm", "v_proj"), (dq, dk, dv), strict=True)
            dq, dk, dv = (clip_magnitude_vjp(tape[name], c.clip_qkv, dx) for name, dx in unclipped)
            dv = record(tape, dv_proj=dv)
        dq, dk = record(tape, dq_norm=dq, dk_norm=dk)
        suffix = "norm" if c.norm_weight == "shared" else "norm_heads"
        q_weight, k_weight = getattr(self, f"w_q_{suffix}"), getattr(self, f"w_k_{suffix}")
        dk, dw[f"w_k_{suffix}"], dw["b_k_norm"] = normalize_vjp(c, tape["k_proj"], k_weight, self.b_k_norm, dk)
        dq, dw[f"w_q_{suffix}"], dw["b_q_norm"] = normalize_vjp(c, tape["q_proj"], q_weight, self.b_q_norm, dq)
        dq, dk = record(tape, dq_proj=dq, dk_proj=dk)
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsd,dgv->bsgv", value, self.w_v, self.b_v, dv)
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("bsd,dgk->bsgk", key, self.w_k, self.b_k, dk)
        dkey = dkey if dkey_forget is None else sum_grads(dkey, dkey_forget)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhk->bthk", query, self.w_q, self.b_q, dq)
        dquery = dquery if dquery_gate is None else sum_grads(dquery, dquery_gate)
        return back.end(dquery, dkey, dvalue)
