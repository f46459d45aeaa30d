"""Block-sparse attention: a query sees its own block of keys and others that it chooses by the mean of their keys."""

from jaxtyping import Float

from attn_np.attention.attend import attend_checked, attend_vjp
from attn_np.attention.chosen import top_k_indices
from attn_np.attention.decode import DecodeStep
from attn_np.attention.masks import token_positions, visible_pairs
from attn_np.contract._patterns import Causal, ChosenChunk, Chunks, Pattern
from attn_np.contract.block_sparse import Config
from attn_np.frame.backward import LayerBackward
from attn_np.frame.call import AttentionCall
from attn_np.frame.layer import Layer
from attn_np.ops import (
    Array,
    Tape,
    arange,
    broadcast_to,
    einsum,
    expand_to_heads,
    linear,
    record,
    reorder,
    split_rows,
    upcast,
    where,
)
from attn_np.ops.vjp import Grads, linear_vjp, sum_grads
from attn_np.positions.relative import as_floats


def heads_as_batch(x: Array) -> Array:
    """Heads as batch rows, because every head sees keys of its own: `b t h k` -> `(b h) t 1 k`."""
    b, t, h, k = x.shape
    return reorder(x, (0, 2, 1, 3)).reshape(b * h, t, k)[:, :, None]


def batch_as_heads(x: Array, h: int) -> Array:
    """The inverse of `heads_as_batch`."""
    return reorder(split_rows(x[:, :, 0], h), (0, 2, 1, 3))


class BlockSparseAttention(Layer[Config]):
    """A query sees its own block of keys and others that it chooses by the mean of their keys."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

    def choose_blocks(self, tape: Tape, q: Array, k: Array, query_positions: Array, key_positions: Array) -> Array:
        """The numbers of the blocks that each query chooses, `b h t n`.

        Where fewer than n are eligible, the rest hold the count of blocks, which is no block's index.
        """
        c, (b, t, _, _) = self.config, q.shape
        blocks = arange(max(1, -(-k.shape[1] // c.block_size)), q)
        own = query_positions[:, :: c.query_block, None] // c.block_size
        eligible = broadcast_to(blocks < own if c.causal else blocks != own, (b, own.shape[1], blocks.shape[0]))
        inside = as_floats(key_positions[..., None] // c.block_size == blocks, k)
        inside = broadcast_to(inside, (b, *inside.shape[1:]))
        num_keys = inside.sum(1)[:, :, None, None]
        real_keys = where((key_positions >= 0)[..., None, None], k, 0.0)
        means = record(tape, means=einsum("bsm,bshk->bmhk", inside, real_keys) / where(num_keys == 0, 1.0, num_keys))
        affinity = record(tape, affinity=einsum("bthk,bmhk->bhtm", q[:, :: c.query_block], means))
        chosen = top_k_indices(affinity, eligible[:, None], c.chosen_blocks)
        return record(tape, chosen=chosen[:, :, arange(t, q) // c.query_block])

    def pattern(self, chosen: Array) -> Pattern:
        """Who sees whom, in batch rows of one head."""
        c, (b, h, t, n) = self.config, chosen.shape
        chosen = chosen.reshape(b * h, t, n)
        pattern: Pattern = Chunks(c.block_size)
        for i in range(c.chosen_blocks):
            pattern = pattern | ChosenChunk(c.block_size, chosen[..., i])
        return pattern & Causal() if c.causal else pattern

    def __call__(
        self,
        query: Float[Array, "b t d"],
        *,
        tape: Tape = None,
        implementation: str = "auto",
        step: DecodeStep | None = None,
    ) -> Array:
        call = AttentionCall(self, query, tape=tape, implementation=implementation, step=step)
        c, sizes, x = self.config, call.sizes, upcast(query)
        if step is not None and not step.like_full_pass:
            x = where(step.is_appended[:, :, None], x, 0.0)  # padding, whatever it holds, reaches no projection
        x = record(tape, x=x)
        q = linear("btd,dhk->bthk", x, self.w_q, self.b_q)
        k = linear("bsd,dhk->bshk", x, self.w_k, self.b_k)
        v = linear("bsd,dhv->bshv", x, self.w_v, self.b_v)
        k, v = call.with_cached(k, v)
        positions = token_positions(sizes["t"], k.shape[1], like=query, step=step)
        pattern = self.pattern(self.choose_blocks(tape, q, k, *positions))
        mask = None
        if step is not None:
            row_positions = [
                heads_as_batch(expand_to_heads(p[..., None], like))[:, :, 0, 0]
                for p, like in zip(positions, (q, k), strict=True)
            ]
            mask, pattern = visible_pairs(pattern, *row_positions), None
        context, _ = attend_checked(
            heads_as_batch(q), heads_as_batch(k), heads_as_batch(v), mask=mask, pattern=pattern, scale=c.scale,
            tape=tape,
            implementation=implementation,
        )  # fmt: skip
        context = batch_as_heads(context, sizes["h"])
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"]) -> Grads:
        """The gradients, by the forward in reverse; the choice has none."""
        c, h, back = self.config, self.config.num_heads, LayerBackward(self, tape, dy)
        x, dy, dw = tape["x"], back.dy, back.dw
        context = batch_as_heads(tape["context"], h)
        dcontext, dw["w_o"], dw["b_o"] = linear_vjp("bthv,hvo->bto", context, self.w_o, self.b_o, dy)
        dq, dk, dv, _ = attend_vjp(tape, heads_as_batch(dcontext), scale=c.scale)
        dx_v, dw["w_v"], dw["b_v"] = linear_vjp("bsd,dhv->bshv", x, self.w_v, self.b_v, batch_as_heads(dv, h))
        dx_k, dw["w_k"], dw["b_k"] = linear_vjp("bsd,dhk->bshk", x, self.w_k, self.b_k, batch_as_heads(dk, h))
        dx_q, dw["w_q"], dw["b_q"] = linear_vjp("btd,dhk->bthk", x, self.w_q, self.b_q, batch_as_heads(dq, h))
        return back.end(query=sum_grads(dx_q, dx_k, dx_v))
