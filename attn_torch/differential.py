"""Differential attention: the difference of two softmax maps, in which their common noise cancels."""

from typing import Any

from jaxtyping import Bool, Float

from attn_np.contract.differential import Config
from attn_torch._attend import attend, softmax_takes_fast_path
from attn_torch._decode import DecodeStep, append
from attn_torch._layer import Layer, Output, cast_output
from attn_torch._masks import hide_neg_inf, zero_unseen, zero_unseen_inputs
from attn_torch._ops import (
    Array,
    Tape,
    dropout,
    dtype_name,
    einsum,
    exp,
    linear,
    record,
    repeat_heads,
    rms_norm,
    scope,
    softmax,
    tanh,
    upcast,
)
from attn_torch._rotary import Positions, cos_sin_for, record_positions, rotate
from attn_torch._rows import attend_in_row_blocks


def for_both_maps(x: Array) -> Array:
    """An array that both maps share, with an axis for them: broadcastable to `b h t s` -> to `b h r t s`."""
    return x.reshape((1,) * (4 - x.ndim) + tuple(x.shape))[:, :, None]


def rotate_maps(x: Array, cos: Array | None, sin: Array | None, layout: str, *, inverse: bool = False) -> Array:
    """Queries or keys, `b t h r k`, rotated by their positions, those of both maps by the same angles."""
    if cos is None or sin is None:
        return x
    return rotate(x, cos[:, :, None, None], sin[:, :, None, None], layout, inverse=inverse)


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
    lambda_q: Float[Array, "r k"]
    lambda_k: Float[Array, "r k"]
    w_norm: Float[Array, "v"] | None

    def forward(
        self,
        query: Float[Array, "b t d"],
        key: Float[Array, "b s i"] | None = None,
        value: Float[Array, "b s j"] | None = None,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        keep: Bool[Array, "..."] | None = None,
        positions: Positions | None = None,
        tape: Tape = None,
        return_weights: bool = False,
        implementation: str = "auto",
        step: DecodeStep | None = None,
    ) -> Output:
        sizes = self.check(query=query, key=key, value=value, mask=mask, bias=bias, keep=keep, positions=positions)
        c, dtype = self.config, dtype_name(query)
        query, key, value = zero_unseen_inputs(
            tape, "bhts", query, key, value, mask=mask, causal=c.causal, window=c.window, step=step
        )
        positions = record_positions(tape, positions)
        q = linear("btd,dhrk->bthrk", query, self.w_q, self.b_q)
        k = linear("bsi,igrk->bsgrk", key, self.w_k, self.b_k)
        v = linear("bsj,jgv->bsgv", value, self.w_v, self.b_v)
        cos, sin = cos_sin_for(c, positions, sizes["t"], like=query, step=step)
        q, k = record(
            tape, q_rot=rotate_maps(q, cos, sin, c.rope_layout), k_rot=rotate_maps(k, cos, sin, c.rope_layout)
        )
        k, v = append(step, k=k, v=v)
        keep = self.draw_keep(keep, (sizes["b"], sizes["h"], sizes["t"], sizes["s"]), like=query)
        # exp(lambda_q1 . lambda_k1) - exp(lambda_q2 . lambda_k2) + lambda_init
        lambda_exps = record(tape, lambda_exps=exp(einsum("rk,rk->r", self.lambda_q, self.lambda_k)))
        lambda_full = record(tape, lambda_full=lambda_exps[:1] - lambda_exps[1:] + c.lambda_init_value())

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
            probs = record(tape, probs=maps[:, :, 0] - lambda_full * maps[:, :, 1])
            kept = record(tape, kept=dropout(probs, keep, c.dropout))
            context = record(tape, context=einsum("bhts,bshv->bthv", kept, v))
            return context, probs

        options: Any = {"tape": tape, "implementation": implementation, "return_weights": return_weights}
        if softmax_takes_fast_path(q, k, v, keep=keep, **options):
            # Upcast once for both maps, so that its two gradients are added before they are rounded.
            bias = upcast(bias)
            # (A1 - lambda A2) V = A1 V - lambda A2 V
            first, second = (
                attend(
                    q[:, :, :, r], k[:, :, :, r], v, mask=mask, bias=bias, causal=c.causal, window=c.window,
                    scale=c.scale, softcap=c.softcap, step=step, tape=scope(tape, name), implementation="fused",
                )[0]
                for r, name in enumerate(("first", "second"))
            )  # fmt: skip
            context, probs = record(tape, context=first - lambda_full * second), None
        else:
            context, probs = attend_in_row_blocks(
                attend_rows, tape, q, k, v, mask=mask, causal=c.causal, window=c.window, step=step,
                bias=bias, keep=keep, implementation=implementation, return_weights=return_weights,
            )  # fmt: skip
        normed = record(tape, normed=rms_norm(context, self.w_norm, c.norm_eps) * (1.0 - c.lambda_init_value()))
        y = record(tape, y=linear("bthv,hvo->bto", normed, self.w_o, self.b_o))
        return cast_output(dtype, y, probs, return_weights)
