"""Multi-head latent attention: all heads' keys and values are made from one small latent per position."""

from math import sqrt
from typing import Any, Unpack

import numpy as np
from jaxtyping import Float

from attn_np.attention.chosen import attend_to_chosen, attend_to_chosen_vjp, choose_by_indexer
from attn_np.contract.mla import Config
from attn_np.frame.backward import AttentionBackward
from attn_np.frame.call import AttentionCall, Options
from attn_np.frame.layer import Layer, Output
from attn_np.ops import Array, Tape, concatenate, einsum, expand_to_heads, layer_norm, linear, record, rms_norm, where
from attn_np.ops.vjp import (
    Grads,
    einsum_vjp,
    linear_vjp,
    rms_norm_vjp,
    sum_grads,
)
from attn_np.positions.rotary import Positions, cos_sin_for, record_positions, recorded_positions, rotate


class MultiHeadLatentAttention(Layer[Config]):
    """All heads' keys and values are made from one small latent per position."""

    w_dq: Float[Array, "d e"] | None
    w_q_norm: Float[Array, "e"] | None
    w_q: Float[Array, "e h k"]
    w_dkv: Float[Array, "d z"]
    w_kv_norm: Float[Array, "z"]
    w_k_rot: Float[Array, "d y"]
    w_uk: Float[Array, "z h q"]
    w_uv: Float[Array, "z h v"]
    w_o: Float[Array, "h v o"]
    b_dq: Float[Array, "e"] | None
    b_dkv: Float[Array, "z"] | None
    b_k_rot: Float[Array, "y"] | None
    b_o: Float[Array, "o"] | None
    w_index_q: Float[Array, "e r m"] | None
    w_index_k: Float[Array, "d m"] | None
    w_index_norm: Float[Array, "m"] | None
    b_index_norm: Float[Array, "m"] | None
    w_index_heads: Float[Array, "d r"] | None

    def choose(self, call: AttentionCall, query: Array, q_latent: Array, key: Array, positions: Any) -> Array | None:
        """The keys that the indexer chooses for each query, `b t n`; None without an indexer."""
        c, w_q, w_k, w_heads = self.config, self.w_index_q, self.w_index_k, self.w_index_heads
        if w_q is None or w_k is None or w_heads is None or c.index_keys is None:
            return None
        layout, step = c.index_rope_layout, call.step
        cos, sin = cos_sin_for(c, positions, call.sizes["t"], like=query, step=step, layout=layout)
        index_q = rotate(linear("bte,erm->btrm", q_latent, w_q, None), cos, sin, layout)
        weights = linear("btd,dr->btr", query, w_heads, None) / sqrt(index_q.shape[2] * index_q.shape[3])
        index_k = linear("bsd,dm->bsm", key, w_k, None)
        index_k = layer_norm(index_k, self.w_index_norm, self.b_index_norm, c.index_norm_eps)
        index_k = record(call.tape, index_k=rotate(index_k, cos, sin, layout))
        index_q, weights = record(call.tape, index_q=index_q, index_weights=weights)
        return choose_by_indexer(call, index_q, call.cached(index_k=index_k), weights, c.index_keys)

    def __call__(
        self,
        query: Float[Array, "b t d"],
        *,
        positions: Positions | None = None,
        **options: Unpack[Options],
    ) -> Output:
        call = AttentionCall(self, query, positions=positions, **options)
        c, tape, sizes = self.config, call.tape, call.sizes
        query, key, value = call.inputs()
        positions = record_positions(tape, positions)
        cos, sin = cos_sin_for(c, positions, sizes["t"], like=query, step=call.step)
        q_latent = query
        if self.w_dq is not None:
            q_down = record(tape, q_down=linear("btd,de->bte", query, self.w_dq, self.b_dq))
            q_latent = record(tape, q_latent=rms_norm(q_down, self.w_q_norm, c.norm_eps))
        q = linear("bte,ehk->bthk", q_latent, self.w_q, None)
        q_nope, q_rot = q[..., : sizes["q"]], rotate(q[..., sizes["q"] :], cos, sin, c.rope_layout)
        q_nope, q_rot = record(tape, q_nope=q_nope, q_rot=q_rot)
        kv_down = record(tape, kv_down=linear("bsd,dz->bsz", value, self.w_dkv, self.b_dkv))
        latent = record(tape, latent=rms_norm(kv_down, self.w_kv_norm, c.norm_eps))
        k_rot = linear("bsd,dy->bsy", key, self.w_k_rot, self.b_k_rot)
        k_rot = record(tape, k_rot=rotate(k_rot, cos, sin, c.rope_layout))
        latent, k_rot = call.cached(latent=latent, k_rot=k_rot)
        if c.absorbed:
            q_absorbed = record(tape, q_absorbed=einsum("bthq,zhq->bthz", q_nope, self.w_uk))
            q = concatenate([q_absorbed, q_rot], -1)
            k, v = concatenate([latent, k_rot], -1)[:, :, None], latent[:, :, None]
        else:
            q = concatenate([q_nope, q_rot], -1)
            k = einsum("bsz,zhq->bshq", latent, self.w_uk)
            k = concatenate([k, expand_to_heads(k_rot, k)], -1)
            v = einsum("bsz,zhv->bshv", latent, self.w_uv)
        chosen = self.choose(call, query, q_latent, key, positions)
        if chosen is None:
            context = call.attend(q, k, v, scale=c.score_scale())
        else:
            context = attend_to_chosen(call, q, k, v, chosen, scale=c.score_scale())
        if c.absorbed:
            context = record(tape, expanded=einsum("bthz,zhv->bthv", context, self.w_uv))
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients, by the forward in reverse, with the same einsum strings."""
        c, sizes, back = self.config, self.config.sizes(), AttentionBackward(self, tape, dy)
        (query, key, value), dy, dw, latent = back.inputs, back.dy, back.dw, tape["latent"]
        cos, sin = cos_sin_for(c, recorded_positions(tape), dy.shape[1], like=dy)
        if c.absorbed:
            dexpanded, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", tape["expanded"], self.w_o, self.b_o, dy)
            dexpanded = record(tape, dexpanded=dexpanded)
            dcontext, dw["w_uv"] = einsum_vjp("bthz,zhv->bthv", tape["context"], self.w_uv, dexpanded)
            dq, dk, dv = attend_to_chosen_vjp(back, dcontext, scale=c.score_scale(), kv_heads=1)
            dlatent, dk_rot = sum_grads(dk[:, :, 0, : sizes["z"]], dv[:, :, 0]), dk[:, :, 0, sizes["z"] :]
            dq_absorbed, dq_rot = dq[..., : sizes["z"]], dq[..., sizes["z"] :]
            dq_absorbed = record(tape, dq_absorbed=dq_absorbed)
            dq_nope, dw["w_uk"] = einsum_vjp("bthq,zhq->bthz", tape["q_nope"], self.w_uk, dq_absorbed)
        else:
            dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", tape["context"], self.w_o, self.b_o, dy)
            dq, dk, dv = attend_to_chosen_vjp(back, dcontext, scale=c.score_scale())
            dq_nope, dq_rot = dq[..., : sizes["q"]], dq[..., sizes["q"] :]
            dlatent_v, dw["w_uv"] = einsum_vjp("bsz,zhv->bshv", latent, self.w_uv, dv)
            dlatent_k, dw["w_uk"] = einsum_vjp("bsz,zhq->bshq", latent, self.w_uk, dk[..., : sizes["q"]])
            dlatent, dk_rot = sum_grads(dlatent_k, dlatent_v), np.sum(dk[..., sizes["q"] :], axis=2)
        dlatent, dk_rot, dq_nope, dq_rot = record(tape, dlatent=dlatent, dk_rot=dk_rot, dq_nope=dq_nope, dq_rot=dq_rot)
        dk_rot = rotate(dk_rot, cos, sin, c.rope_layout, inverse=True)
        dkey, dw["w_k_rot"], dw["b_k_rot"] = linear_vjp("bsd,dy->bsy", key, self.w_k_rot, self.b_k_rot, dk_rot)
        dkv_down, dw["w_kv_norm"] = rms_norm_vjp(tape["kv_down"], self.w_kv_norm, c.norm_eps, dlatent)
        dkv_down = record(tape, dkv_down=dkv_down)
        dvalue, dw["w_dkv"], dw["b_dkv"] = linear_vjp("bsd,dz->bsz", value, self.w_dkv, self.b_dkv, dkv_down)
        dq = concatenate([dq_nope, rotate(dq_rot, cos, sin, c.rope_layout, inverse=True)], -1)
        if self.w_dq is None:
            dquery, dw["w_q"], _ = linear_vjp("bte,ehk->bthk", query, self.w_q, None, dq)
        else:
            dq_latent, dw["w_q"], _ = linear_vjp("bte,ehk->bthk", tape["q_latent"], self.w_q, None, dq)
            dq_latent = record(tape, dq_latent=dq_latent)
            dq_down, dw["w_q_norm"] = rms_norm_vjp(tape["q_down"], self.w_q_norm, c.norm_eps, dq_latent)
            dq_down = record(tape, dq_down=dq_down)
            dquery, dw["w_dq"], dw["b_dq"] = linear_vjp("btd,de->bte", query, self.w_dq, self.b_dq, dq_down)
        for name in ("w_index_q", "w_index_k", "w_index_norm", "b_index_norm", "w_index_heads"):
            w = getattr(self, name)
            dw[name] = None if w is None else where(False, w, 0.0)  # a choice has no gradient
        return back.end(dquery, dkey, dvalue)
