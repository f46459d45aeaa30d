"""BigBird attention: in blocks, a window of neighbours, global blocks at both ends and a few drawn at random."""

from typing import Any

from jaxtyping import Bool, Float

from attn_np._attend import attend, attend_vjp
from attn_np._layer import Layer, Output, cast_output
from attn_np._masks import zero_unseen_inputs
from attn_np._ops import Array, Tape, arange, broadcast_to, constant_like, dtype_name, linear, record
from attn_np._vjp import Grads, linear_vjp, make_grads, prepare_dy, zero_unseen_inputs_vjp
from attn_np.contract._patterns import ChosenChunk, Chunks, GlobalKeys, GlobalQueries, Pattern
from attn_np.contract.bigbird import Config


@constant_like
def drawn_blocks(xp: Any, config: Config, num_blocks: int) -> Any:
    """The random blocks of each of `num_blocks` blocks: `n r`."""
    return xp.asarray(config.drawn_blocks(num_blocks), dtype=xp.int32).reshape(num_blocks, config.random_blocks)


class BigBirdAttention(Layer[Config]):
    """In blocks, a window of neighbours, global blocks at both ends and a few drawn at random."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

    def pattern(self, b: int, t: int, like: Array) -> Pattern:
        """Who sees whom in a call."""
        c, num_blocks = self.config, -(-t // self.config.block_size)
        block = arange(t, like) // c.block_size
        is_global = broadcast_to((block < c.global_blocks) | (block >= num_blocks - c.global_blocks), (b, t))
        pattern = Chunks(c.block_size, c.near_blocks, c.near_blocks) | GlobalKeys(is_global) | GlobalQueries(is_global)
        numbers = drawn_blocks(c, num_blocks, like=block)[block]
        for i in range(c.random_blocks):
            pattern = pattern | ChosenChunk(c.block_size, broadcast_to(numbers[:, i], (b, t)))
        return pattern

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
    ) -> Output:
        sizes = self.check(query=query, mask=mask, bias=bias, keep=keep)
        c, dtype = self.config, dtype_name(query)
        pattern = self.pattern(sizes["b"], sizes["t"], query)
        query, key, value = zero_unseen_inputs(tape, "bhts", query, mask=mask, pattern=pattern)
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsd,dhk->bshk", key, self.w_k, self.b_k)
        v = linear("bsd,dhv->bshv", value, self.w_v, self.b_v)
        keep = self.draw_keep(keep, (sizes["b"], sizes["h"], sizes["t"], sizes["t"]), like=query)
        context, weights = attend(
            q, k, v, mask=mask, bias=bias, pattern=pattern, scale=c.scale, keep=keep, rate=c.dropout,
            tape=tape, implementation=implementation, return_weights=return_weights,
        )  # fmt: skip
        y = record(tape, y=linear("bthv,hvo->bto", context, self.w_o, self.b_o))
        return cast_output(dtype, y, weights, return_weights)

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients, by the forward in reverse; the pattern has no gradient."""
        c, dw = self.config, {}
        query, key, value = tape["zeroed_query"], tape["zeroed_key"], tape["zeroed_value"]
        dtype, dy = dtype_name(dy), prepare_dy(tape, dy)
        dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", tape["context"], self.w_o, self.b_o, dy)
        dq, dk, dv, dbias = attend_vjp(tape, dcontext, scale=c.scale, rate=c.dropout)
        dvalue, dw["w_v"], dw["b_v"] = linear_vjp("bsd,dhv->bshv", value, self.w_v, self.b_v, dv)
        dkey, dw["w_k"], dw["b_k"] = linear_vjp("bsd,dhk->bshk", key, self.w_k, self.b_k, dk)
        dquery, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhk->bthk", query, self.w_q, self.b_q, dq)
        return make_grads(dtype, zero_unseen_inputs_vjp(tape, "bhts", dquery, dkey, dvalue) | {"bias": dbias}, dw)
