"""Additive attention: a small network with one hidden layer scores each pair of a query and a key."""

from jaxtyping import Bool, Float

from attn_jax._decode import DecodeStep, append
from attn_jax._layer import Layer, Output, cast_output, prepare_inputs
from attn_jax._masks import attention_mask, hide_by_bias
from attn_jax._ops import Array, Tape, dropout, dtype_name, einsum, record, softmax, tanh, upcast
from attn_np.contract._attend import AXES
from attn_np.contract.additive import Config


class AdditiveAttention(Layer[Config]):
    """A small network with one hidden layer scores each pair of a query and a key."""

    w_q: Float[Array, "d e"]
    w_k: Float[Array, "i e"]
    w_score: Float[Array, "e"]

    def __call__(
        self,
        query: Float[Array, "b t d"],
        key: Float[Array, "b s i"] | None = None,
        value: Float[Array, "b s v"] | None = None,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        keep: Bool[Array, "..."] | None = None,
        tape: Tape = None,
        return_weights: bool = False,
        step: DecodeStep | None = None,
    ) -> Output:
        sizes = self.check(query=query, key=key, value=value, mask=mask, bias=bias, keep=keep)
        c, dtype = self.config, dtype_name(query)
        by_position = {"causal": c.causal, "step": step}
        query, key, value = prepare_inputs(tape, "bts", query, key, value, mask=mask, **by_position)
        keep = self.draw_keep(keep, (sizes["b"], sizes["t"], sizes["s"]), like=query)
        bias, keep = record(tape, bias=upcast(bias), keep=keep)
        q = einsum("btd,de->bte", query, self.w_q)
        k = einsum("bsi,ie->bse", key, self.w_k)
        k, v = append(step, k=k, v=value)
        mask = attention_mask(mask, sizes["t"], k.shape[1], like=query, head_axis=False, **by_position)
        q, k, mask = record(tape, q=q, k=k, allowed=mask)
        # b t 1 e + b 1 s e -> b t s e: every query meets every key.
        features = record(tape, features=tanh(q[:, :, None, :] + k[:, None, :, :]))
        scores = record(tape, scores=einsum("btse,e->bts", features, self.w_score))
        if bias is not None:
            scores = record(tape, biased=scores + bias)
        mask = hide_by_bias(mask, bias)
        probs = record(tape, probs=softmax(scores, mask, AXES[c.normalize_over]))
        kept = record(tape, kept=dropout(probs, keep, c.dropout))
        context = record(tape, context=einsum("bts,bsv->btv", kept, v))
        y = record(tape, y=context)
        return cast_output(dtype, y, probs, return_weights)
