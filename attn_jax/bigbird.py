"""BigBird attention: in blocks, a window of neighbours, global blocks at both ends and a few drawn at random."""

from typing import Any, Unpack

from jaxtyping import Float

from attn_jax.frame.call import AttentionCall, Options
from attn_jax.frame.layer import Layer, Output
from attn_jax.ops import Array, arange, broadcast_to, constant_like, linear
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

    def __call__(self, query: Float[Array, "b t d"], **options: Unpack[Options]) -> Output:
        call = AttentionCall(self, query, **options)
        query, key, value = call.inputs(pattern=self.pattern(call.sizes["b"], call.sizes["t"], query))
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsd,dhk->bshk", key, self.w_k, self.b_k)
        v = linear("bsd,dhv->bshv", value, self.w_v, self.b_v)
        context = call.attend(q, k, v)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))
