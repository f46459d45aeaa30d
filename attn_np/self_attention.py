"""Self-attention: every position of one sequence looks at all its positions, with a single head."""

from jaxtyping import Bool, Float

from attn_np._attend import attend, attend_vjp
from attn_np._decode import DecodeStep, append
from attn_np._layer import Layer, Output, cast_output
from attn_np._masks import zero_unseen_inputs
from attn_np._ops import Array, Tape, dtype_name, linear, record
from attn_np._vjp import Grads, linear_vjp, make_grads, prepare_dy, zero_unseen_inputs_vjp
from attn_np.contract.self_attention import Config


class SelfAttention(Layer[Config]):
    """Every position of one sequence looks at all its positions, with a single head."""

    w_q: Float[Array, "d k"]
    w_k: Float[Array, "d k"]
    w_v: Float[Array, "d v"]
    w_o: Float[Array, "v o"] | None
    b_q: Float[Array, "k"] | None
    b_k: Float[Array, "k"] | None
    b_v: Float[Array, "v"] | None
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
            tape, "bts", query, mask=mask, causal=c.causal, window=c.window, step=step
        )
        q = linear("btd,dk->btk", query, self.w_q, self.b_q)
        k = linear("bsd,dk->bsk", key, self.w_k, self.b_k)
        v = linear("bsd,dv->bsv", value, self.w_v, self.b_v)
        k, v = append(step, k=k, v=v)
        keep = self.draw_keep(keep, (sizes["b"], sizes["t"], sizes["t"]), like=query)
        context, weights = attend(
            q, k, v, mask=mask, bias=bias, causal=c.causal, window=c.window, scale=c.scale, softcap=c.softcap,
            keep=keep, rate=c.dropout, step=step, tape=tape, implementation=implementation,
            return_weights=return_weights,
        )  # fmt: skip
        y = context if self.w_o is None else linear("btv,vo->bto", context, self.w_o, self.b_o)
        y = record(tape, y=y)
        return cast_output(dtype, y, weights, return_weights)

    def vjp(self, tape: Tape, dy: Float[Array, "b t _"]) -> Grads:
        """The gradients: the lines of the forward pass in reverse order, with the same einsum strings."""
        c, dtype, dw = self.config, dtype_name(dy), {}
        query, key, value = tape["zeroed_query"], tape["zeroed_key"], tape["zeroed_value"]
        dcontext = dy = prepare_dy(tape, dy)
        if self.w_o is not None:
            dcontext, dw["w_o"], dw["b_o"] = linear_vjp("btv,vo->bto", tape["context"], self.w_o, self.b_o, dy)
        dq, dk, dv, dbias = attend_vjp(tape, dcontext, scale=c.scale, softcap=c.softcap, rate=c.dropout)
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsd,dv->bsv", value, self.w_v, self.b_v, dv)
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("bsd,dk->bsk", key, self.w_k, self.b_k, dk)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dk->btk", query, self.w_q, self.b_q, dq)
        return make_grads(dtype, zero_unseen_inputs_vjp(tape, "bts", dquery, dkey, dvalue) | {"bias": dbias}, dw)
