"""Sigmoid attention: every key is weighed by itself, and the keys of a query do not compete."""

from typing import Any

from jaxtyping import Bool, Float

from attn_np._attend import attend, attend_vjp
from attn_np._decode import DecodeStep, append
from attn_np._layer import Layer, Output, cast_output
from attn_np._masks import broadcast_mask, zero_unseen_inputs
from attn_np._ops import (
    Array,
    Tape,
    broadcast_to,
    constants,
    dtype_name,
    einsum,
    linear,
    log,
    maximum,
    record,
    sigmoid,
    where,
)
from attn_np._rows import attend_in_row_blocks, attend_in_row_blocks_vjp
from attn_np._vjp import Grads, linear_vjp, make_grads, prepare_dy, sigmoid_vjp, zero_unseen_inputs_vjp
from attn_np.contract._weighing import Weighing
from attn_np.contract.sigmoid_attention import Config


class SigmoidAttention(Layer[Config]):
    """Several heads attend in parallel; the weight of a key does not depend on other keys' scores."""

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
        keep: Bool[Array, "..."] | None = None,
        tape: Tape = None,
        return_weights: bool = False,
        implementation: str = "auto",
        step: DecodeStep | None = None,
    ) -> Output:
        sizes = self.check(query=query, key=key, value=value, mask=mask, bias=bias, keep=keep)
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
            tape: Tape, q: Array, k: Array, v: Array, allowed: Any, relative_position: Any, **score_arrays: Any
        ) -> Any:
            def sigmoid_weights(scores: Array, allowed: Array | None) -> Array:
                if c.score_offset is None:
                    # 1 for a visible key, else 0; one row serves all queries without a mask.
                    one = constants([1.0], scores)
                    if allowed is None:
                        visible = broadcast_to(one, (1, 1, 1, scores.shape[-1]))
                    else:
                        visible = where(broadcast_mask(allowed, scores.shape, scores), one, 0.0)
                    count = einsum("bhts,s->bht", visible, broadcast_to(one, (scores.shape[-1],)))
                    shifted = scores - log(maximum(count, 1.0))[..., None]
                else:
                    shifted = scores + c.score_offset
                if allowed is None:
                    return sigmoid(record(tape, shifted=shifted))
                shifted = record(tape, shifted=where(allowed, shifted, 0.0))
                return where(allowed, sigmoid(shifted), 0.0)

            return attend(
                q, k, v, mask=allowed, **score_arrays, scale=c.scale, softcap=c.softcap, softmax_fn=sigmoid_weights,
                rate=c.dropout, tape=tape, implementation=implementation, return_weights=return_weights,
            )  # fmt: skip

        scale = sizes["k"] ** -0.5 if c.scale is None else c.scale
        context, weights = attend_in_row_blocks(
            attend_rows, tape, q, k, v, mask=mask, causal=c.causal, window=c.window, step=step,
            return_weights=return_weights, implementation=implementation, bias=bias, keep=keep,
            weighing=Weighing("sigmoid", scale, c.softcap, c.score_offset),
        )  # fmt: skip
        y = record(tape, y=linear("bthv,hvo->bto", context, self.w_o, self.b_o))
        return cast_output(dtype, y, weights, return_weights)

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order, with the same einsum strings."""
        c, dw = self.config, {}
        query, key, value = tape["zeroed_query"], tape["zeroed_key"], tape["zeroed_value"]
        dtype, dy = dtype_name(dy), prepare_dy(tape, dy)
        dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", tape["context"], self.w_o, self.b_o, dy)

        def attend_rows_vjp(tape: Tape, dcontext: Array) -> dict[str, Array | None]:
            def sigmoid_weights_vjp(probs: Array, dprobs: Array) -> Array:
                # A hidden key weighs 0, and there the sigmoid's rule gives 0.
                return record(tape, dshifted=sigmoid_vjp(probs, dprobs))

            dq, dk, dv, dbias = attend_vjp(
                tape, dcontext, scale=c.scale, softcap=c.softcap, rate=c.dropout, softmax_fn_vjp=sigmoid_weights_vjp
            )
            return {"q": dq, "k": dk, "v": dv, "bias": dbias}

        dq, dk, dv, dbias = attend_in_row_blocks_vjp(attend_rows_vjp, tape, dcontext).values()
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsj,jhv->bshv", value, self.w_v, self.b_v, dv)
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("bsi,ihk->bshk", key, self.w_k, self.b_k, dk)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhk->bthk", query, self.w_q, self.b_q, dq)
        return make_grads(dtype, zero_unseen_inputs_vjp(tape, "bhts", dquery, dkey, dvalue) | {"bias": dbias}, dw)
