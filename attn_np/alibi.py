"""Attention with linear biases (ALiBi): a score falls with the distance between query and key."""

from jaxtyping import Bool, Float

from attn_np._attend import attend, attend_vjp
from attn_np._decode import DecodeStep, append
from attn_np._layer import Layer, Output, cast_output
from attn_np._masks import zero_unseen_inputs
from attn_np._ops import Array, Tape, constants, dtype_name, linear, record, to_dtype, upcast
from attn_np._vjp import Grads, linear_vjp, make_grads, prepare_dy, sum_to, zero_unseen_inputs_vjp
from attn_np.contract.alibi import Config


class AlibiAttention(Layer[Config]):
    """A score falls with the distance between query and key."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

    def __call__(
        self,
        query: Float[Array, "b t d"],
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        keep: Bool[Array, "..."] | None = None,
        tape: Tape = None,
        return_weights: bool = False,
        implementation: str = "auto",
        step: DecodeStep | None = None,
    ) -> Output:
        sizes = self.check(query=query, mask=mask, bias=bias, keep=keep)
        c, dtype = self.config, dtype_name(query)
        query, key, value = zero_unseen_inputs(
            tape, "bhts", query, mask=mask, causal=c.causal, window=c.window, step=step
        )
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsd,dhk->bshk", key, self.w_k, self.b_k)
        v = linear("bsd,dhv->bshv", value, self.w_v, self.b_v)
        k, v = append(step, k=k, v=v)
        keep = self.draw_keep(keep, (sizes["b"], sizes["h"], sizes["t"], sizes["t"]), like=query)
        bias = record(tape, caller_bias=upcast(bias))

        def relative_bias_fn(relative_position: Array) -> Array:
            distance = to_dtype(abs(relative_position), dtype_name(q))
            # h 1 1 times b 1 t s, or times 1 1 1 n by diagonal
            return record(tape, alibi=-constants(c.slopes(), q)[:, None, None] * distance[:, None])

        context, weights = attend(
            q, k, v, mask=mask, bias=bias, relative_bias_fn=relative_bias_fn, causal=c.causal, window=c.window,
            scale=c.scale, keep=keep, rate=c.dropout, step=step, tape=tape, implementation=implementation,
            return_weights=return_weights,
        )  # fmt: skip
        y = record(tape, y=linear("bthv,hvo->bto", context, self.w_o, self.b_o))
        return cast_output(dtype, y, weights, return_weights)

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order, with the same einsum strings."""
        c, dw = self.config, {}
        query, key, value = tape["zeroed_query"], tape["zeroed_key"], tape["zeroed_value"]
        dtype, dy = dtype_name(dy), prepare_dy(tape, dy)
        dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", tape["context"], self.w_o, self.b_o, dy)

        dq, dk, dv, _ = attend_vjp(tape, dcontext, scale=c.scale, rate=c.dropout)
        caller_bias = tape.get("caller_bias")
        dbias = None if caller_bias is None else sum_to(tape["dbiased"], caller_bias.shape)
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsd,dhv->bshv", value, self.w_v, self.b_v, dv)
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("bsd,dhk->bshk", key, self.w_k, self.b_k, dk)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhk->bthk", query, self.w_q, self.b_q, dq)
        return make_grads(dtype, zero_unseen_inputs_vjp(tape, "bhts", dquery, dkey, dvalue) | {"bias": dbias}, dw)
