"""Attention with a fused projection: one product makes queries, keys and values together."""

from typing import Unpack

from jaxtyping import Float

from attn_np.contract.fused_qkv import Config
from attn_torch.attention.decode import DecodeStep
from attn_torch.attention.masks import any_visible, query_and_key_masks
from attn_torch.frame.call import AttentionCall, Options
from attn_torch.frame.layer import Layer, Output
from attn_torch.ops import Array, linear, record, upcast, where


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

    def forward(self, query: Float[Array, "b t d"], **options: Unpack[Options]) -> Output:
        call = AttentionCall(self, query, **options)
        tape, sizes, masking = call.tape, call.sizes, call.who_sees_whom()
        x = record(tape, x=upcast(query))
        query_mask, key_mask = query_and_key_masks(
            masking["mask"], sizes["t"], sizes["t"], like=query, causal=masking["causal"], window=masking["window"]
        )
        query_mask, key_mask = record(tape, query_mask=query_mask, key_mask=key_mask)
        x = record(tape, live=zero_unused_positions(x, query_mask, key_mask, call.step))
        qkv = record(tape, qkv=linear("btd,dphk->btphk", x, self.w_qkv, self.b_qkv))
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        context = call.attend(q, k, v, memory_k=self.memory_k, memory_v=self.memory_v)
        if self.w_o is None:
            y = context.reshape((sizes["b"], sizes["t"], sizes["h"] * sizes["k"]))
        else:
            y = linear("bthk,hko->bto", context, self.w_o, self.b_o)
        return call.end(y)
