"""Differential attention: the difference of two softmax maps, in which their common noise cancels."""

from typing import Any, Unpack

from jaxtyping import Float

from attn_jax.attention.masks import hide_neg_inf, zero_unseen
from attn_jax.frame.call import AttentionCall, Options
from attn_jax.frame.layer import Layer, Output
from attn_jax.ops import (
    Array,
    Tape,
    dropout,
    einsum,
    exp,
    linear,
    record,
    repeat_heads,
    rms_norm,
    softmax,
    tanh,
    upcast,
)
from attn_jax.positions.rotary import Positions, cos_sin_for, record_positions, rotate
from attn_np.contract.differential import Config


def for_both_maps(x: Array) -> Array:
    """An array that both maps share, with an axis for them: broadcastable to `b h t s` -> to `b h r t s`."""
    return x.reshape((1,) * (4 - x.ndim) + tuple(x.shape))[:, :, None]


def rotate_maps(x: Array, cos: Array | None, sin: Array | None, layout: str, *, inverse: bool = False) -> Array:
    """Queries or keys, `b t h r k`, rotated by their positions, those of both maps by the same angles."""
    if cos is None or sin is None:
        return x
    return rotate(x, cos[:, :, None], sin[:, :, None], layout, inverse=inverse)


class DifferentialAttention(Layer[Config]):
    """The difference of two softmax maps, in which their common noise cancels."""

    w_q: Float[Array, "d h r k"]
    w_k: Float[Array, "i g r k"]
    w_v: Float[Array, "j g v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h r k"] | None
    b_k: Float[Array, "g r k"] | None
    b_v: Float[Array, "g v"] | None
    b_o: Float[Array, "o"] | None
    lambda_q: Float[Array, "r k"] | None
    lambda_k: Float[Array, "r k"] | None
    lambda_layer: Float[Array, "f"] | None
    lambda_heads: Float[Array, "h"] | None
    w_norm: Float[Array, "v"] | None

    def __call__(
        self,
        query: Float[Array, "b t d"],
        key: Float[Array, "b s i"] | None = None,
        value: Float[Array, "b s j"] | None = None,
        *,
        positions: Positions | None = None,
        **options: Unpack[Options],
    ) -> Output:
        call = AttentionCall(self, query, key, value, positions=positions, **options)
        c, tape, sizes = self.config, call.tape, call.sizes
        query, key, value = call.inputs()
        positions = record_positions(tape, positions)
        q = linear("btd,dhrk->bthrk", query, self.w_q, self.b_q)
        k = linear("bsi,igrk->bsgrk", key, self.w_k, self.b_k)
        v = linear("bsj,jgv->bsgv", value, self.w_v, self.b_v)
        cos, sin = cos_sin_for(c, positions, sizes["t"], like=query, step=call.step)
        q, k = record(
            tape, q_rot=rotate_maps(q, cos, sin, c.rope_layout), k_rot=rotate_maps(k, cos, sin, c.rope_layout)
        )
        if self.lambda_q is not None and self.lambda_k is not None:
            # exp(lambda_q1 . lambda_k1) - exp(lambda_q2 . lambda_k2) + lambda_init
            lambda_exps = record(tape, lambda_exps=exp(einsum("rk,rk->r", self.lambda_q, self.lambda_k)))
            lambda_full = record(tape, lambda_full=lambda_exps[:1] - lambda_exps[1:] + c.lambda_init_value())
        else:
            number = self.lambda_layer if self.lambda_heads is None else self.lambda_heads
            lambda_full = record(tape, lambda_full=upcast(number))

        def attend_rows(
            tape: Tape, q: Array, k: Array, v: Array, allowed: Any, relative_position: Any, bias: Any, keep: Any
        ) -> Any:
            allowed = record(tape, allowed=allowed)
            k, v = repeat_heads(k, q), repeat_heads(v, q)
            q, k, v = (
                zero_unseen("bhts->bthrk", allowed, q),
                zero_unseen("bhts->bshrk", allowed, k),
                zero_unseen("bhts->bshv", allowed, v),
            )
            q, k, v = record(tape, q=q, k=k, v=v)
            bias, keep = record(tape, bias=upcast(bias), keep=keep)
            scale = sizes["k"] ** -0.5 if c.scale is None else c.scale
            scores = record(tape, scores=einsum("bthrk,bshrk->bhrts", q, k) * scale)
            if c.softcap is not None:
                scores = record(tape, capped=c.softcap * tanh(scores / c.softcap))
            visible = hide_neg_inf(allowed, bias)
            # Both maps see the same keys: b h t s -> b h 1 t s.
            if bias is not None:
                scores = record(tape, biased=scores + for_both_maps(bias))
            maps = record(tape, maps=softmax(scores, None if visible is None else for_both_maps(visible)))
            probs = record(tape, probs=maps[:, :, 0] - lambda_full[:, None, None] * maps[:, :, 1])
            kept = record(tape, kept=dropout(probs, keep, c.dropout))
            context = record(tape, context=einsum("bhts,bshv->bthv", kept, v))
            return context, probs

        k, v = call.cached(k=k, v=v)
        if call.takes_fast_path(q, k, v):
            # (A1 - lambda A2) V = A1 V - lambda A2 V
            first = call.attend(q[:, :, :, 0], k[:, :, :, 0], v, part="first", implementation="fused")
            second = call.attend(q[:, :, :, 1], k[:, :, :, 1], v, part="second", implementation="fused")
            context = record(tape, context=first - lambda_full[:, None] * second)
        else:
            context = call.attend_in_rows(attend_rows, q, k, v)
        if c.use_norm:
            normed = rms_norm(context, self.w_norm, c.norm_eps) * (1.0 - c.lambda_init_value())
            context = record(tape, normed=normed)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))
