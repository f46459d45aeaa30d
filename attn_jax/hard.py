"""Hard attention: every query takes one key only; a softmax serves for the gradient, if there is one."""

from typing import Any

from jaxtyping import Bool, Float

from attn_jax._attend import attend
from attn_jax._decode import DecodeStep, append
from attn_jax._layer import Layer, Output, cast_output
from attn_jax._masks import hide_neg_inf, zero_unseen_inputs
from attn_jax._ops import Array, Tape, dtype_name, linear, record, softmax, upcast
from attn_jax._rows import attend_in_row_blocks
from attn_jax._sparse_weights import hardmax, straight_through
from attn_np.contract.hard import Config


class HardAttention(Layer[Config]):
    """Several heads attend in parallel; each query takes the value of its best key."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "i h k"]
    w_v: Float[Array, "j h v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

    def __call__(
        self,
        query: Float[Array, "b t d"],
        key: Float[Array, "b s i"] | None = None,
        value: Float[Array, "b s j"] | None = None,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        noise: Float[Array, "..."] | None = None,
        keep: Bool[Array, "..."] | None = None,
        tape: Tape = None,
        return_weights: bool = False,
        implementation: str = "auto",
        step: DecodeStep | None = None,
    ) -> Output:
        sizes = self.check(query=query, key=key, value=value, mask=mask, bias=bias, noise=noise, keep=keep)
        c, dtype = self.config, dtype_name(query)
        query, key, value = zero_unseen_inputs(
            tape, "bhts", query, key, value, mask=mask, causal=c.causal, window=c.window, step=step
        )
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsi,ihk->bshk", key, self.w_k, self.b_k)
        v = linear("bsj,jhv->bshv", value, self.w_v, self.b_v)
        k, v = append(step, k=k, v=v)
        keep = self.draw_keep(keep, (sizes["b"], sizes["h"], sizes["t"], sizes["s"]), like=query)

        def attend_rows(
            tape: Tape,
            q: Array,
            k: Array,
            v: Array,
            allowed: Any,
            relative_position: Any,
            noise: Array | None,
            **score_arrays: Any,
        ) -> Any:
            noise = record(tape, noise=upcast(noise))

            def hard_weights(scores: Array, allowed: Array | None) -> Array:
                noisy = scores if noise is None else record(tape, noisy=scores + noise)
                allowed = hide_neg_inf(allowed, noise)
                hard = hardmax(noisy, allowed)
                if c.estimator == "argmax":
                    return hard
                return straight_through(hard, record(tape, soft=softmax(noisy / c.temperature, allowed)))

            return attend(
                q, k, v, mask=allowed, **score_arrays, scale=c.scale, softcap=c.softcap, softmax_fn=hard_weights,
                rate=c.dropout, tape=tape, implementation=implementation, return_weights=return_weights,
            )  # fmt: skip

        context, weights = attend_in_row_blocks(
            attend_rows, tape, q, k, v, mask=mask, causal=c.causal, window=c.window, step=step,
            return_weights=return_weights, implementation=implementation, bias=bias, noise=noise, keep=keep,
        )  # fmt: skip
        y = record(tape, y=linear("bthv,hvo->bto", context, self.w_o, self.b_o))
        return cast_output(dtype, y, weights, return_weights)
