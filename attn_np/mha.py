"""Multi-head attention: several heads attend in parallel, each in a subspace of its own."""

import numpy as np
from jaxtyping import Bool, Float

from attn_np._attend import attend, attend_vjp
from attn_np._decode import DecodeStep, append
from attn_np._layer import Layer, Output, cast_output, prepare_inputs
from attn_np._masks import attention_mask, hide_by_bias, zero_unseen
from attn_np._ops import Array, Tape, broadcast_to, concatenate, dtype_name, linear, record, upcast, zeros
from attn_np._vjp import Grads, cotangent, grads, linear_vjp, prepare_inputs_vjp, sum_to
from attn_np.contract.mha import Config


def with_memory(x: Array, memory: Array, share: float = 1.0) -> Array:
    """Keys or values `b s h k`, and behind them those of the memory, `m h k`, times a number."""
    return concatenate([x, broadcast_to(share * upcast(memory), (x.shape[0], *memory.shape))], 1)


def beside_memory(x: Array | None, s: int, memory: Array) -> Array | None:
    """A mask or a bias of s keys, with the memory's behind them: True, or 0."""
    if x is None:
        return None
    own = zeros((*x.shape[:-1], memory.shape[0]), memory)
    return concatenate([broadcast_to(x, (*x.shape[:-1], s)), own == 0 if "bool" in str(x.dtype) else own], -1)


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
        query, key, value = prepare_inputs(
            tape, "bhts", query, key, value, mask=mask, causal=c.causal, window=c.window, step=step
        )
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsi,ihk->bshk", key, self.w_k, self.b_k)
        v = linear("bsj,jhv->bshv", value, self.w_v, self.b_v)
        k, v = append(step, k=k, v=v)
        keep = self.draw_keep(keep, (sizes["b"], sizes["h"], sizes["t"], sizes["s"]), like=query)
        masking, s = {"causal": c.causal, "window": c.window, "step": step}, k.shape[1]
        if self.memory_k is not None and self.memory_v is not None:
            # Causality and window are about the keys of the call alone, so they become part of the mask.
            mask = attention_mask(mask, sizes["t"], s, like=query, **masking)
            q = zero_unseen("bhts->bthk", hide_by_bias(mask, bias), q) if s else zeros(q.shape, q)
            mask, keep = beside_memory(mask, s, self.memory_k), beside_memory(keep, s, self.memory_k)
            bias = beside_memory(record(tape, caller_bias=upcast(bias)), s, self.memory_k)
            # Weights that are not dropped are divided by 1 - rate: the memory's are never dropped.
            share = 1.0 if keep is None else 1.0 - c.dropout
            k, v, masking = with_memory(k, self.memory_k), with_memory(v, self.memory_v, share), {}
        context, weights = attend(
            q, k, v, mask=mask, bias=bias, scale=c.scale, softcap=c.softcap,
            keep=keep, rate=c.dropout, tape=tape, implementation=implementation, return_weights=return_weights,
            **masking,
        )  # fmt: skip
        weights = None if weights is None else weights[..., :s]
        y = record(tape, y=linear("bthv,hvo->bto", context, self.w_o, self.b_o))
        return cast_output(dtype, y, weights, return_weights)

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients, by the forward in reverse, with the same strings."""
        c, w = self.config, {}
        query, key, value = tape["seen_query"], tape["seen_key"], tape["seen_value"]
        dtype, dy = dtype_name(dy), cotangent(tape, dy)
        dcontext, w["w_o"], w["b_o"] = linear_vjp("bthv,hvo->bto", tape["context"], self.w_o, self.b_o, dy)
        dq, dk, dv, dbias = attend_vjp(tape, dcontext, scale=c.scale, softcap=c.softcap, rate=c.dropout)
        if self.memory_k is not None:
            s, share = key.shape[1], 1.0 - c.dropout if "keep" in tape else 1.0
            w["memory_k"], w["memory_v"] = np.sum(dk[:, s:], axis=0), share * np.sum(dv[:, s:], axis=0)
            dk, dv = dk[:, :s], dv[:, :s]
            visible = hide_by_bias(tape.get("allowed"), tape.get("bias"))
            visible = None if visible is None else visible[..., :s]
            dq = zero_unseen("bhts->bthk", visible, dq) if s else zeros(dq.shape, dq)
            dbias = None if dbias is None else sum_to(dbias[..., :s], tape["caller_bias"].shape)
        dvalue, w["w_v"], w["b_v"] = linear_vjp("bsj,jhv->bshv", value, self.w_v, self.b_v, dv)
        dkey, w["w_k"], w["b_k"] = linear_vjp("bsi,ihk->bshk", key, self.w_k, self.b_k, dk)
        dquery, w["w_q"], w["b_q"] = linear_vjp("btd,dhk->bthk", query, self.w_q, self.b_q, dq)
        return grads(dtype, prepare_inputs_vjp(tape, "bhts", dquery, dkey, dvalue) | {"bias": dbias}, w)
