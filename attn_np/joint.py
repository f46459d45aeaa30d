"""Joint attention: two streams, each with projections of its own, attend to both by one softmax."""

from typing import Any

from jaxtyping import Bool, Float, Int

from attn_np.attention.masks import broadcast_mask, zero_unseen
from attn_np.contract.joint import Config
from attn_np.frame.backward import AttentionBackward
from attn_np.frame.call import AttentionCall
from attn_np.frame.layer import Layer, Output, cast_output
from attn_np.normalizers.norms import normalize, normalize_vjp
from attn_np.ops import Array, Tape, concatenate, linear, record, upcast, zeros
from attn_np.ops.vjp import Grads, linear_vjp, sum_grads
from attn_np.positions.rotary import Positions, cos_sin_for, record_positions, recorded_positions, rotate

# As `Positions`, of the added stream.
AddedPositions = Int[Array, "b s"] | Int[Array, "a b s"] | tuple[Float[Array, "..."], Float[Array, "..."]]
CosSin = tuple[Array | None, Array | None]  # each `b t r`; None without a rotation


class JointAttention(Layer[Config]):
    """Two streams, each with projections of its own, attend to both by one softmax."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None
    w_added_q: Float[Array, "i h k"] | None
    w_added_k: Float[Array, "i h k"]
    w_added_v: Float[Array, "i h v"]
    w_added_o: Float[Array, "h v i"] | None
    b_added_q: Float[Array, "h k"] | None
    b_added_k: Float[Array, "h k"] | None
    b_added_v: Float[Array, "h v"] | None
    b_added_o: Float[Array, "i"] | None
    w_q_norm: Float[Array, "k"] | None
    w_k_norm: Float[Array, "k"] | None
    w_added_q_norm: Float[Array, "k"] | None
    w_added_k_norm: Float[Array, "k"] | None

    def __call__(
        self,
        query: Float[Array, "b t d"],
        added: Float[Array, "b s i"],
        *,
        mask: Bool[Array, "..."] | None = None,
        added_mask: Bool[Array, "..."] | None = None,
        positions: Positions | None = None,
        added_positions: AddedPositions | None = None,
        tape: Tape = None,
        return_weights: bool = False,
        implementation: str = "auto",
    ) -> Output:
        """The outputs of both streams, `b t o` and `b s i`; of the first alone where the config says so.

        Args:
            mask, added_mask: broadcastable to `b t` and `b s`; False = a key that nothing sees, such as padding.
            positions, added_positions: of a layer that rotates: integers `b t` and `b s` below the field
                `max_positions`, `a b t` and `a b s` with `rope_axes`; or pairs (cos, sin). By default one stream stands
                behind the other, on every axis: the query at 0 to t - 1, the added stream at t to t + s - 1.
            tape: a dictionary that gets every named intermediate; q, k, v and context are of one stream behind the
                other.
            return_weights: return the weights, too, `b h (t + s) (t + s)`.
            implementation: "auto", "textbook" or "fused"; see `attend`.
        """
        options: Any = {"tape": tape, "return_weights": return_weights, "implementation": implementation}
        arrays: Any = {"added": added, "added_mask": added_mask, "added_positions": added_positions}
        call = AttentionCall(self, query, mask=mask, positions=positions, **arrays, **options)
        b, t, s = (call.sizes[letter] for letter in "bts")
        query, added, mask, added_mask = record(
            tape, query=upcast(query), added=upcast(added), mask=mask, added_mask=added_mask
        )
        if not (mask is added_mask is None):
            masks = broadcast_mask(mask, (b, t), query), broadcast_mask(added_mask, (b, s), added)
            call.mask = record(tape, seen=concatenate(masks, 1)[:, None, None])
        call.who_sees_whom()
        key, added_key = zero_unseen("bt->btd", mask, query), zero_unseen("bs->bsi", added_mask, added)
        query, added = zero_unseen("bhts->btd", call.mask, query), zero_unseen("bhts->btd", call.mask, added)
        query, key = record(tape, zeroed_query=query, zeroed_key=key)
        added, added_key = record(tape, zeroed_added=added, zeroed_added_key=added_key)
        q = record(tape, q_proj=linear("btd,dhk->bthk", query, self.w_q, self.b_q))
        k = record(tape, k_proj=linear("btd,dhk->bthk", key, self.w_k, self.b_k))
        v = linear("btd,dhv->bthv", key, self.w_v, self.b_v)
        added_k = record(tape, added_k_proj=linear("bsi,ihk->bshk", added_key, self.w_added_k, self.b_added_k))
        added_v = linear("bsi,ihv->bshv", added_key, self.w_added_v, self.b_added_v)
        positions = record_positions(tape, positions)
        added_positions = record_positions(tape, added_positions, "added_")
        cos_sin, added_cos_sin = self.angles(positions, added_positions, t, s, query)
        q, k = self.placed(tape, "q", q, cos_sin), self.placed(tape, "k", k, cos_sin)
        if self.w_added_q is not None:
            added_q = record(tape, added_q_proj=linear("bsi,ihk->bshk", added, self.w_added_q, self.b_added_q))
            q = concatenate([q, self.placed(tape, "added_q", added_q, added_cos_sin)], 1)
        k = concatenate([k, self.placed(tape, "added_k", added_k, added_cos_sin)], 1)
        context = call.attend(q, k, concatenate([v, added_v], 1))
        y = linear("bthv,hvo->bto", context[:, :t], self.w_o, self.b_o)
        if self.w_added_o is None:
            return call.end(y)
        added_y = linear("bshv,hvi->bsi", context[:, t:], self.w_added_o, self.b_added_o)
        outputs: Any = record(tape, y=y, added_y=added_y)
        outputs = (*outputs, call.weights) if return_weights else outputs
        return tuple(cast_output(call.dtype, x) for x in outputs)

    def angles(self, positions: Any, added_positions: Any, t: int, s: int, like: Array) -> tuple[CosSin, CosSin]:
        """Cosines and sines of the positions of both streams, by default of one behind the other."""
        c = self.config
        of_query = cos_sin_for(c, positions, t, like=like)
        if added_positions is not None:
            return of_query, cos_sin_for(c, added_positions, s, like=like)
        cos, sin = cos_sin_for(c, None, t + s, like=like)
        return of_query, (None, None) if cos is None or sin is None else (cos[:, t:], sin[:, t:])

    def placed(self, tape: Tape, what: str, x: Array, cos_sin: CosSin) -> Array:
        """Queries or keys of a stream, normalised, then rotated, where the config says so."""
        c, (cos, sin), normed = self.config, cos_sin, normalize(self, self.config.qk_norm(), what, x)
        if c.rope_base is None:
            return normed
        normed = record(tape, **{f"{what}_norm": normed})
        return record(tape, **{f"{what}_rot": rotate(normed, cos, sin, c.rope_layout)})

    def placed_vjp(self, tape: Tape, what: str, dx: Array, cos_sin: CosSin, dw: dict[str, Any]) -> Array:
        """The gradient of projected queries or keys: `placed` in reverse."""
        c, (cos, sin) = self.config, cos_sin
        if c.rope_base is not None:
            dx = record(tape, **{f"d{what}_rot": dx})
            dx = record(tape, **{f"d{what}_norm": rotate(dx, cos, sin, c.rope_layout, inverse=True)})
        return normalize_vjp(self, c.qk_norm(), what, tape[f"{what}_proj"], dx, dw)

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"], dadded_y: Float[Array, "b s i"] | None = None) -> Grads:
        """The gradients, from those of the outputs: the forward in reverse, with the same einsum strings."""
        back, t = AttentionBackward(self, tape, dy), dy.shape[1]
        context, dw, names = tape["context"], back.dw, ("query", "key", "added", "added_key")
        query, key, added, added_key = (tape[f"zeroed_{name}"] for name in names)
        dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", context[:, :t], self.w_o, self.b_o, back.dy)
        if self.w_added_o is not None and dadded_y is None:
            dadded_y = zeros(tape["added_y"].shape, added)
        dout: Any = back.dy_of("added_y", dadded_y)
        if self.w_added_o is not None:
            dadded_context, dw["w_added_o"], dw["b_added_o"] = linear_vjp(
                "bshv,hvi->bsi", context[:, t:], self.w_added_o, self.b_added_o, dout
            )
            dcontext = concatenate([dcontext, dadded_context], 1)
        dq, dk, dv = back.attend(dcontext)
        positions = recorded_positions(tape), recorded_positions(tape, "added_")
        cos_sin, added_cos_sin = self.angles(*positions, t, added.shape[1], query)
        dadded = None
        if self.w_added_q is not None:
            dadded_q = self.placed_vjp(tape, "added_q", dq[:, t:], added_cos_sin, dw)
            dadded_q = record(tape, dadded_q_proj=dadded_q)
            dadded, dw["w_added_q"], dw["b_added_q"] = linear_vjp(
                "bsi,ihk->bshk", added, self.w_added_q, self.b_added_q, dadded_q
            )
            dadded = zero_unseen("bhts->btd", tape.get("seen"), dadded)
        dq_proj = self.placed_vjp(tape, "q", dq[:, :t], cos_sin, dw)
        dk_proj = self.placed_vjp(tape, "k", dk[:, :t], cos_sin, dw)
        dadded_k = self.placed_vjp(tape, "added_k", dk[:, t:], added_cos_sin, dw)
        dq_proj, dk_proj, dadded_k = record(tape, dq_proj=dq_proj, dk_proj=dk_proj, dadded_k_proj=dadded_k)
        dadded_v, dw["w_added_v"], dw["b_added_v"] = linear_vjp(
            "bsi,ihv->bshv", added_key, self.w_added_v, self.b_added_v, dv[:, t:]
        )
        dadded_key, dw["w_added_k"], dw["b_added_k"] = linear_vjp(
            "bsi,ihk->bshk", added_key, self.w_added_k, self.b_added_k, dadded_k
        )
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("btd,dhv->bthv", key, self.w_v, self.b_v, dv[:, :t])
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("btd,dhk->bthk", key, self.w_k, self.b_k, dk_proj)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhk->bthk", query, self.w_q, self.b_q, dq_proj)
        dkey = zero_unseen("bt->btd", tape.get("mask"), sum_grads(dkey, dvalue))
        dadded_key = zero_unseen("bs->bsi", tape.get("added_mask"), sum_grads(dadded_key, dadded_v))
        dquery = zero_unseen("bhts->btd", tape.get("seen"), dquery)
        return back.end_with(query=sum_grads(dquery, dkey), added=sum_grads(dadded_key, dadded))
