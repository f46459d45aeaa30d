"""Decoder attention: the attention of today's decoder-only models; config fields switch its parts on."""

from typing import Any, Unpack

from jaxtyping import Bool, Float

from attn_np.attention.decode import DecodeStep
from attn_np.attention.masks import token_positions
from attn_np.contract._patterns import Chunks
from attn_np.contract.decoder import Config
from attn_np.frame.backward import AttentionBackward
from attn_np.frame.call import AttentionCall, Options
from attn_np.frame.layer import Layer, Output
from attn_np.normalizers.norms import normalize, normalize_vjp
from attn_np.ops import (
    Array,
    Tape,
    clip,
    cumsum,
    known_range,
    linear,
    record,
    reverse_cumsum,
    sigmoid,
    silu,
    softplus,
    take,
    to_dtype,
    upcast,
    where,
)
from attn_np.ops.vjp import (
    Grads,
    linear_vjp,
    sigmoid_vjp,
    silu_vjp,
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

ACTIVATIONS = {"sigmoid": sigmoid, "silu": silu, "softplus": softplus}


def activation_vjp(name: str, gate: Array, gate_scores: Array, dgate: Array) -> Array:
    """The gradient of a gate's scores."""
    if name == "sigmoid":
        return sigmoid_vjp(gate, dgate)
    return silu_vjp(gate_scores, dgate) if name == "silu" else softplus_vjp(gate_scores, dgate)


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
    w_k: Float[Array, "d g k"] | None
    w_v: Float[Array, "d g v"] | None
    w_gate: Float[Array, "d h f"] | None
    w_forget: Float[Array, "d h"] | None
    b_forget: Float[Array, "h"] | None
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "g k"] | None
    b_v: Float[Array, "g v"] | None
    b_gate: Float[Array, "h f"] | None
    b_o: Float[Array, "o"] | None
    w_q_norm: Float[Array, "k"] | None
    w_k_norm: Float[Array, "k"] | None
    b_q_norm: Float[Array, "k"] | None
    b_k_norm: Float[Array, "k"] | None
    w_q_norm_heads: Float[Array, "h k"] | None
    w_k_norm_heads: Float[Array, "g k"] | None
    b_q_norm_heads: Float[Array, "h k"] | None
    b_k_norm_heads: Float[Array, "g k"] | None
    w_qk_norm_heads: Float[Array, "g k"] | None
    w_context_norm: Float[Array, "v"] | None
    b_context_norm: Float[Array, "v"] | None
    w_context_norm_heads: Float[Array, "h v"] | None
    b_context_norm_heads: Float[Array, "h v"] | None
    sinks: Float[Array, "h"] | None

    def __call__(
        self,
        query: Float[Array, "b t d"],
        *,
        shared_k: Float[Array, "b t g k"] | None = None,
        shared_v: Float[Array, "b t g v"] | None = None,
        positions: Positions | None = None,
        **options: Unpack[Options],
    ) -> Output:
        call = AttentionCall(self, query, shared_k=shared_k, shared_v=shared_v, positions=positions, **options)
        c, tape, sizes = self.config, call.tape, call.sizes
        (query, key, value), positions, cos, sin = self.placed_inputs(call, positions)
        q = record(tape, q_proj=linear("btd,dhk->bthk", query, self.w_q, self.b_q))
        q = self.before_rotation(tape, "q", q)
        q = record(tape, q_rot=rotate(q, cos, sin, c.rope_layout))
        q = self.normed(tape, "q", "after_rotation", q)
        q_scale = query_scales(c, positions, sizes["t"], like=query, step=call.step)
        q = q if q_scale is None else record(tape, q_tempered=q * q_scale)
        if c.shared_kv:
            k, v = call.shared_keys(shared_k, shared_v)
        else:
            k, v = self.projected_keys_and_values(tape, key, value, cos, sin)
        more: dict[str, Any] = {}
        if self.w_forget is not None:
            # D_ij = c_i - c_j for the running sums c of the gates' logarithms, and a softmax does not see c_i.
            forget_scores = record(tape, forget_scores=linear("bsd,dh->bsh", key, self.w_forget, self.b_forget))
            log_forget = call.zero_unseen_keys("bhts->bsh", -softplus(-forget_scores))
            k, v, log_forget = call.cached(k=k, v=v, log_forget=log_forget)
            log_forget = record(tape, log_forget=log_forget)
            key_bias = record(tape, key_bias=-cumsum(log_forget, 1).swapaxes(1, 2)[:, :, None])  # b h 1 s
            more = {"layer_bias": key_bias}
        more |= {} if c.norm != "l2" else {"scale": c.scale_or_default(sizes["k"])}
        context = call.attend(q, k, v, **more, sinks=upcast(self.sinks))
        context_norm = c.norms()[1]
        if context_norm is not None:
            context = record(tape, normed=normalize(self, context_norm, "context", context))
        if self.w_gate is not None:
            gate_scores = record(tape, gate_scores=linear("btd,dhf->bthf", query, self.w_gate, self.b_gate))
            gate = record(tape, gate=ACTIVATIONS[c.gate_activation](gate_scores))
            context = record(tape, gated=gate * context)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))

    def keys_and_values(
        self,
        query: Float[Array, "b t d"],
        *,
        mask: Bool[Array, "..."] | None = None,
        positions: Positions | None = None,
    ) -> tuple[Float[Array, "b t g k"], Float[Array, "b t g v"]]:
        """The keys and values of a call with these arguments: what layers with `shared_kv=True` are called with.

        Raises:
            ValueError, TypeError: as the call.
        """
        fits, fix = not self.config.shared_kv, "ask the layer whose keys it shares"
        self.config.require(fits, "a layer with keys of its own for keys_and_values", "shared_kv=True", fix)
        call = AttentionCall(self, query, mask=mask, positions=positions)
        (_, key, value), _, cos, sin = self.placed_inputs(call, positions)
        k, v = self.projected_keys_and_values(None, key, value, cos, sin)
        return to_dtype(k, call.dtype), to_dtype(v, call.dtype)

    def placed_inputs(self, call: AttentionCall, positions: Any) -> tuple[Any, Any, Any, Any]:
        """The call's query, key and value, its positions, and their cosines and sines."""
        c = self.config
        inputs = call.inputs(pattern=None if c.chunk_size is None else Chunks(c.chunk_size))
        positions = record_positions(call.tape, positions)
        return inputs, positions, *cos_sin_for(c, positions, call.sizes["t"], like=inputs[0], step=call.step)

    def normed(self, tape: Tape, what: str, when: str, x: Array) -> Array:
        """Queries "q" or keys "k", normalised if the config asks for it at this point."""
        c = self.config
        if c.norm_position == when:
            norm = c.norms()[0]
            x = record(tape, **{f"{what}_norm": normalize(self, norm, what, x)})
        return x

    def before_rotation(self, tape: Tape, what: str, x: Array) -> Array:
        """Projected queries "q" or keys "k", normalised and clipped."""
        limit, x = self.config.clip_qkv, self.normed(tape, what, "before_rotation", x)
        return x if limit is None else record(tape, **{f"{what}_clip": clip_magnitude(x, limit)})

    def projected_keys_and_values(
        self, tape: Tape, key: Array, value: Array, cos: Any, sin: Any
    ) -> tuple[Array, Array]:
        """The keys as queries meet them, `b s g k`, and the values, `b s g v`."""
        c = self.config
        k = record(tape, k_proj=linear("bsd,dgk->bsgk", key, self.w_k, self.b_k))  # type: ignore[arg-type]
        v = k if c.keys_as_values else linear("bsd,dgv->bsgv", value, self.w_v, self.b_v)  # type: ignore[arg-type]
        v = record(tape, v_proj=v)
        k = self.before_rotation(tape, "k", k)
        k = record(tape, k_rot=rotate(k, cos, sin, c.rope_layout))
        k = self.normed(tape, "k", "after_rotation", k)
        if c.value_norm:
            v = record(tape, v_norm=normalize(self, c.norm_of_values(), "v", v))
        if c.clip_qkv is not None:
            v = record(tape, v_clip=clip_magnitude(v, c.clip_qkv))
        return k, v

    def vjp(
        self,
        tape: Tape,
        dy: Float[Array, "b t o"],
        dshared_k: Float[Array, "b t g k"] | None = None,
        dshared_v: Float[Array, "b t g v"] | None = None,
    ) -> Grads:
        """The gradients: the lines of the forward pass in reverse order, with the same einsum strings.

        Args:
            tape, dy: of this layer's call.
            dshared_k, dshared_v: those that layers which share its keys and values give back.
        """
        c, back = self.config, AttentionBackward(self, tape, dy)
        (query, key, value), dy, dw = back.inputs, back.dy, back.dw
        context_norm = c.norms()[1]
        context = tape["context" if context_norm is None else "normed"]
        cos, sin = cos_sin_for(c, recorded_positions(tape), dy.shape[1], like=dy)

        if self.w_gate is None:
            dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", context, self.w_o, self.b_o, dy)
            dquery_gate = None
        else:
            gate, gate_scores = tape["gate"], tape["gate_scores"]
            dgated, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", tape["gated"], self.w_o, self.b_o, dy)
            dgated = record(tape, dgated=dgated)
            dcontext, dgate = dgated * gate, record(tape, dgate=sum_to(dgated * context, gate.shape))
            dgate_scores = record(tape, dgate_scores=activation_vjp(c.gate_activation, gate, gate_scores, dgate))
            dquery_gate, dw["w_gate"], dw["b_gate"] = linear_vjp(
                "btd,dhf->bthf", query, self.w_gate, self.b_gate, dgate_scores
            )
        if context_norm is not None:
            dnormed = record(tape, dnormed=dcontext)
            dcontext = normalize_vjp(self, context_norm, "context", tape["context"], dnormed, dw)
            dcontext = record(tape, dcontext=dcontext)
        more: dict[str, Any] = {} if c.norm != "l2" else {"scale": c.scale_or_default(self.w_q.shape[-1])}
        dq, dk, dv = back.attend(dcontext, relative_bias=self.w_forget is not None, **more)
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
        dq = record(tape, dq_proj=self.turned_vjp(tape, "q", dq, cos, sin, dw))
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhk->bthk", query, self.w_q, self.b_q, dq)
        dquery = sum_grads(dquery, dquery_gate)
        if c.shared_kv:
            return back.end_shared(dquery, dk, dv)
        dk, dv = sum_grads(dk, upcast(dshared_k)), sum_grads(dv, upcast(dshared_v))
        dkey, dvalue = self.projected_keys_and_values_vjp(tape, key, value, dk, dv, cos, sin, dw)
        return back.end(dquery, sum_grads(dkey, dkey_forget), dvalue)

    def turned_vjp(self, tape: Tape, what: str, dx: Array, cos: Any, sin: Any, dw: dict[str, Any]) -> Array:
        """The gradient of projected queries or keys: `turned` in reverse."""
        c, norm = self.config, self.config.norms()[0]
        if c.norm_position == "after_rotation":
            dx = record(tape, **{f"d{what}_norm": dx})
            dx = normalize_vjp(self, norm, what, tape[f"{what}_rot"], dx, dw)
        dx = record(tape, **{f"d{what}_rot": dx})
        dx = rotate(dx, cos, sin, c.rope_layout, inverse=True)
        if c.clip_qkv is not None:
            dx = record(tape, **{f"d{what}_clip": dx})
            before = "norm" if c.norm_position == "before_rotation" else "proj"
            dx = clip_magnitude_vjp(tape[f"{what}_{before}"], c.clip_qkv, dx)
        if c.norm_position == "before_rotation":
            dx = record(tape, **{f"d{what}_norm": dx})
            dx = normalize_vjp(self, norm, what, tape[f"{what}_proj"], dx, dw)
        return dx

    def projected_keys_and_values_vjp(
        self, tape: Tape, key: Array, value: Array, dk: Array, dv: Array, cos: Any, sin: Any, dw: dict[str, Any]
    ) -> tuple[Array, Array | None]:
        """The gradients of key and value: `projected_keys_and_values` in reverse."""
        c = self.config
        if c.clip_qkv is not None:
            dv = record(tape, dv_clip=dv)
            dv = clip_magnitude_vjp(tape["v_norm" if c.value_norm else "v_proj"], c.clip_qkv, dv)
        if c.value_norm:
            dv = record(tape, dv_norm=dv)
            dv = normalize_vjp(self, c.norm_of_values(), "v", tape["v_proj"], dv, dw)
        dv = record(tape, dv_proj=dv)
        dk, dvalue = self.turned_vjp(tape, "k", dk, cos, sin, dw), None
        dk = record(tape, dk_proj=sum_grads(dk, dv) if c.keys_as_values else dk)
        if not c.keys_as_values:
            dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsd,dgv->bsgv", value, self.w_v, self.b_v, dv)  # type: ignore[arg-type]
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("bsd,dgk->bsgk", key, self.w_k, self.b_k, dk)  # type: ignore[arg-type]
        return dkey, dvalue
