"""Multi-head attention: several heads attend in parallel, each in a subspace of its own."""

from jaxtyping import Bool, Float

from attn_np._attend import attend, attend_vjp
from attn_np._decode import DecodeStep, append
from attn_np._layer import Layer, Output, cast_output
from attn_np._masks import zero_unseen_inputs
from attn_np._memory import with_memory, with_memory_vjp
from attn_np._ops import Array, Tape, dtype_name, linear, record
from attn_np._vjp import Grads, linear_vjp, make_grads, prepare_dy, zero_unseen_inputs_vjp
from attn_np.contract.mha import Config


class MultiHeadAttention(Layer[Config]):
    """Several heads attend in parallel, each in a subspace of its own."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "i h k"]
    w_v: Float[Array, "j h v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None
    memory_k: Float[Array, "m h k"] | None
    memory_v: Float[Array, "m h v"] | None

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
        s = k.shape[1]
        q, k, v, options = with_memory(
            self.memory_k, self.memory_v, q, k, v, mask=mask, bias=bias, causal=c.causal, window=c.window,
            keep=keep, rate=c.dropout, step=step, tape=tape,
        )  # fmt: skip
        context, weights = attend(
            q, k, v, **options, scale=c.scale, softcap=c.softcap, tape=tape, normalize_over=c.normalize_over,
            implementation=implementation, return_weights=return_weights,
        )  # fmt: skip
        weights = None if weights is None else weights[..., :s]
        y = record(tape, y=linear("bthv,hvo->bto", context, self.w_o, self.b_o))
        return cast_output(dtype, y, weights, return_weights)

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients, by the forward in reverse, with the same einsum strings."""
        c, dw = self.config, {}
        query, key, value = tape["zeroed_query"], tape["zeroed_key"], tape["zeroed_value"]
        dtype, dy = dtype_name(dy), prepare_dy(tape, dy)
        dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", tape["context"], self.w_o, self.b_o, dy)
        dq, dk, dv, dbias = attend_vjp(
            tape, dcontext, scale=c.scale, softcap=c.softcap, rate=c.dropout, normalize_over=c.normalize_over
        )
        if self.memory_k is not None:
            dq, dk, dv, dbias, dmemory = with_memory_vjp(tape, key.shape[1], dq, dk, dv, dbias, rate=c.dropout)
            dw |= dmemory
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsj,jhv->bshv", value, self.w_v, self.b_v, dv)
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("bsi,ihk->bshk", key, self.w_k, self.b_k, dk)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhk->bthk", query, self.w_q, self.b_q, dq)
        return make_grads(dtype, zero_unseen_inputs_vjp(tape, "bhts", dquery, dkey, dvalue) | {"bias": dbias}, dw)
