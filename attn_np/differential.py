"""Differential attention: the difference of two softmax maps, in which their common noise cancels."""

from typing import Any, Unpack

import numpy as np
from jaxtyping import Float

from attn_np.attention.masks import hide_neg_inf, zero_unseen
from attn_np.contract.differential import Config
from attn_np.frame.backward import AttentionBackward
from attn_np.frame.call import AttentionCall, Options
from attn_np.frame.layer import Layer, Output
from attn_np.ops import (
    Array,
    Tape,
    concatenate,
    dropout,
    einsum,
    exp,
    linear,
    record,
    repeat_heads,
    rms_norm,
    softmax,
    stack,
    tanh,
    upcast,
)
from attn_np.ops.vjp import (
    Grads,
    dropout_vjp,
    einsum_vjp,
    linear_vjp,
    repeat_heads_vjp,
    rms_norm_vjp,
    softmax_vjp,
    sum_grads,
    sum_to,
    tanh_vjp,
)
from attn_np.positions.rotary import Positions, cos_sin_for, record_positions, recorded_positions, rotate


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

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients, by the forward in reverse, with the same einsum strings."""
        c, back = self.config, AttentionBackward(self, tape, dy)
        (query, key, value), dy, dw = back.inputs, back.dy, back.dw
        cos, sin = cos_sin_for(c, recorded_positions(tape), dy.shape[1], like=dy)
        projected = tape["normed" if c.use_norm else "context"]
        dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", projected, self.w_o, self.b_o, dy)
        if c.use_norm:
            dnormed = record(tape, dnormed=dcontext) * (1.0 - c.lambda_init_value())
            dcontext, dw["w_norm"] = rms_norm_vjp(tape["context"], self.w_norm, c.norm_eps, dnormed)
        dcontext, lambda_full = record(tape, dcontext=dcontext), tape["lambda_full"]

        def attend_rows_vjp(tape: Tape, dcontext: Array) -> dict[str, Array | None]:
            dbias, allowed, bias = None, tape.get("allowed"), tape.get("bias")
            q, k, v, maps = (tape[name] for name in ("q", "k", "v", "maps"))
            scale = q.shape[-1] ** -0.5 if c.scale is None else c.scale
            dkept, dv = einsum_vjp("bhts,bshv->bthv", tape["kept"], v, dcontext)
            dkept = record(tape, dkept=dkept)
            dprobs = record(tape, dprobs=dropout_vjp(dkept, tape.get("keep"), c.dropout))
            factor = lambda_full[:, None, None]
            dlambda_full = -sum_to(dprobs * maps[:, :, 1], factor.shape)[:, 0, 0]
            dmaps = record(tape, dmaps=stack([dprobs, -(factor * dprobs)], 2))
            dscores = softmax_vjp(maps, dmaps)
            if bias is not None:
                dscores = record(tape, dbiased=dscores)
                dbias = sum_to(np.sum(dscores, axis=2), bias.shape)
            if c.softcap is not None:
                dscores = record(tape, dcapped=dscores)
                dscores = tanh_vjp(tape["capped"] / c.softcap, dscores)
            dscores = record(tape, dscores=dscores)
            dq, dk = einsum_vjp("bthrk,bshrk->bhrts", q, k, dscores * scale)
            dq, dk, dv = record(tape, dq=dq, dk=dk, dv=dv)
            dq, dk, dv = (
                zero_unseen("bhts->bthrk", allowed, dq),
                zero_unseen("bhts->bshrk", allowed, dk),
                zero_unseen("bhts->bshv", allowed, dv),
            )
            kv_heads = c.sizes()["g"]
            dv = repeat_heads_vjp(dv, kv_heads)
            # `repeat_heads_vjp` takes one axis after the heads: b s h r k -> b s h (r k).
            dk = repeat_heads_vjp(dk.reshape((*dk.shape[:3], 2 * dk.shape[-1])), kv_heads).reshape(
                (*dk.shape[:2], kv_heads, *dk.shape[3:])
            )
            return {"q": dq, "k": dk, "v": dv, "bias": dbias, "lambda_full": dlambda_full}

        if "second.context" in tape:
            dq, dk, dv = back.attend(dcontext, part="first")
            dq_2, dk_2, dv_2 = back.attend(-lambda_full[:, None] * dcontext, part="second")
            dq, dk, dv = stack([dq, dq_2], 3), stack([dk, dk_2], 3), sum_grads(dv, dv_2)
            dlambda_full = -sum_to(dcontext * tape["second.context"], lambda_full[:, None].shape)[:, 0]
        else:
            dq, dk, dv = back.attend_in_rows(attend_rows_vjp, dcontext)
            dlambda_full = dw.pop("lambda_full")
        dlambda_full = record(tape, dlambda_full=dlambda_full)
        if self.lambda_q is None or self.lambda_k is None:
            dw["lambda_layer" if self.lambda_heads is None else "lambda_heads"] = dlambda_full
        else:
            dlambda_exps = record(tape, dlambda_exps=concatenate([dlambda_full, -dlambda_full], 0))
            dw["lambda_q"], dw["lambda_k"] = einsum_vjp(
                "rk,rk->r", self.lambda_q, self.lambda_k, dlambda_exps * tape["lambda_exps"]
            )
        dq, dk = record(tape, dq_rot=dq, dk_rot=dk)
        dq, dk = (
            rotate_maps(dq, cos, sin, c.rope_layout, inverse=True),
            rotate_maps(dk, cos, sin, c.rope_layout, inverse=True),
        )
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsj,jgv->bsgv", value, self.w_v, self.b_v, dv)
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("bsi,igrk->bsgrk", key, self.w_k, self.b_k, dk)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhrk->bthrk", query, self.w_q, self.b_q, dq)
        return back.end(dquery, dkey, dvalue)
