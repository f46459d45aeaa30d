"""Attention with a fused projection: one product makes queries, keys and values together."""

from jaxtyping import Bool, Float

from attn_jax._attend import attend
from attn_jax._decode import DecodeStep, append
from attn_jax._layer import Layer, Output, cast_output
from attn_jax._masks import any_visible, query_and_key_masks
from attn_jax._memory import with_memory
from attn_jax._ops import Array, Tape, dtype_name, linear, record, upcast, where
from attn_np.contract.fused_qkv import Config


def zero_unused_positions(
    x: Array, query_mask: Array | None, key_mask: Array | None, step: DecodeStep | None = None
) -> Array:
    """x with the positions set to 0 that see no key and are seen by no query: padding reaches no projection."""
    if step is not None:
        return x if step.like_full_pass else where(step.is_appended[:, :, None], x, 0.0)
    if query_mask is None or key_mask is None:
        return x
    return where(any_visible("bhts->btd", query_mask) | any_visible("bhts->bsd", key_mask), x, 0.0)


class FusedQKVAttention(Layer[Config]):
    """One product makes queries, keys and values together."""

    w_qkv: Float[Array, "d p h k"]
    w_o: Float[Array, "h k o"] | None
    b_qkv: Float[Array, "p h k"] | None
    b_o: Float[Array, "o"] | None
    memory_k: Float[Array, "m h k"] | None
    memory_v: Float[Array, "m h k"] | None

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
        x = record(tape, x=upcast(query))
        query_mask, key_mask = query_and_key_masks(
            mask, sizes["t"], sizes["t"], like=query, causal=c.causal, window=c.window
        )
        query_mask, key_mask = record(tape, query_mask=query_mask, key_mask=key_mask)
        x = record(tape, live=zero_unused_positions(x, query_mask, key_mask, step))
        qkv = record(tape, qkv=linear("btd,dphk->btphk", x, self.w_qkv, self.b_qkv))
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        k, v = append(step, k=k, v=v)
        keep = self.draw_keep(keep, (sizes["b"], sizes["h"], sizes["t"], sizes["t"]), like=query)
        s = k.shape[1]
        q, k, v, options = with_memory(
            self.memory_k, self.memory_v, q, k, v, mask=mask, bias=bias, causal=c.causal, window=c.window,
            keep=keep, rate=c.dropout, step=step, tape=tape,
        )  # fmt: skip
        context, weights = attend(
            q, k, v, **options, scale=c.scale, softcap=c.softcap, tape=tape, implementation=implementation,
            return_weights=return_weights,
        )  # fmt: skip
        weights = None if weights is None else weights[..., :s]
        if self.w_o is None:
            y = context.reshape((sizes["b"], sizes["t"], sizes["h"] * sizes["k"]))
        else:
            y = linear("bthk,hko->bto", context, self.w_o, self.b_o)
        y = record(tape, y=y)
        return cast_output(dtype, y, weights, return_weights)
