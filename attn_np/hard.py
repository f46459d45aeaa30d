"""Hard attention: every query takes one key only; a softmax serves for the gradient, if there is one."""

from typing import Any

from jaxtyping import Bool, Float

from attn_np._attend import attend, attend_vjp
from attn_np._decode import DecodeStep, append
from attn_np._layer import Layer, Output, cast_output
from attn_np._masks import hide_neg_inf, zero_unseen_inputs
from attn_np._ops import Array, Tape, dtype_name, linear, record, softmax, upcast, where
from attn_np._rows import attend_in_row_blocks, attend_in_row_blocks_vjp
from attn_np._sparse_weights import hardmax, straight_through
from attn_np._vjp import Grads, linear_vjp, make_grads, prepare_dy, softmax_vjp, sum_to, zero_unseen_inputs_vjp
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

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order, with the same einsum strings."""
        c, dw = self.config, {}
        query, key, value = tape["zeroed_query"], tape["zeroed_key"], tape["zeroed_value"]
        dtype, dy = dtype_name(dy), prepare_dy(tape, dy)
        dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", tape["context"], self.w_o, self.b_o, dy)

        def attend_rows_vjp(tape: Tape, dcontext: Array) -> dict[str, Array | None]:
            noise, dnoise = tape.get("noise"), None

            def hard_weights_vjp(probs: Array, dprobs: Array) -> Array:
                nonlocal dnoise
                if c.estimator == "argmax":
                    # zeros of dprobs' type, which in the judge carries error bounds
                    dnoisy = where(False, dprobs, 0.0)
                else:
                    dsoft = record(tape, dsoft=dprobs)
                    dnoisy = softmax_vjp(tape["soft"], dsoft) / c.temperature
                if noise is not None:
                    dnoisy = record(tape, dnoisy=dnoisy)
                    dnoise = sum_to(dnoisy, noise.shape)
                return dnoisy

            dq, dk, dv, dbias = attend_vjp(
                tape, dcontext, scale=c.scale, softcap=c.softcap, rate=c.dropout, softmax_fn_vjp=hard_weights_vjp
            )
            return {"q": dq, "k": dk, "v": dv, "bias": dbias, "noise": dnoise}

        dq, dk, dv, dbias, dnoise = attend_in_row_blocks_vjp(attend_rows_vjp, tape, dcontext).values()
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsj,jhv->bshv", value, self.w_v, self.b_v, dv)
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("bsi,ihk->bshk", key, self.w_k, self.b_k, dk)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhk->bthk", query, self.w_q, self.b_q, dq)
        dinputs = zero_unseen_inputs_vjp(tape, "bhts", dquery, dkey, dvalue) | {"bias": dbias, "noise": dnoise}
        return make_grads(dtype, dinputs, dw)
