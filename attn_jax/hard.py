"""Hard attention: every query takes one key only; a softmax serves for the gradient, if there is one."""

from typing import Unpack

from jaxtyping import Float

from attn_jax.attention.masks import hide_neg_inf
from attn_jax.frame.call import AttentionCall, Options
from attn_jax.frame.layer import Layer, Output
from attn_jax.normalizers.sparse import hardmax, straight_through
from attn_jax.ops import Array, Tape, linear, record, softmax, upcast
from attn_np.contract.hard import Config


class HardAttention(Layer[Config]):
    """Several heads attend in parallel; each query takes the value of its best key."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "i h k"]
    w_v: Float[Array, "j h v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

    def __call__(
        self,
        query: Float[Array, "b t d"],
        key: Float[Array, "b s i"] | None = None,
        value: Float[Array, "b s j"] | None = None,
        *,
        noise: Float[Array, "..."] | None = None,
        **options: Unpack[Options],
    ) -> Output:
        call = AttentionCall(self, query, key, value, noise=noise, **options)
        query, key, value = call.inputs()
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsi,ihk->bshk", key, self.w_k, self.b_k)
        v = linear("bsj,jhv->bshv", value, self.w_v, self.b_v)
        context = call.attend_by(self.weigh, q, k, v, noise=noise)
        return call.end(linear("bthv,hvo->bto", context, self.w_o, self.b_o))

    def weigh(self, tape: Tape, scores: Array, allowed: Array | None, noise: Array | None) -> Array:
        """The weights of a call's scores: 1 for the best key."""
        c, noise = self.config, record(tape, noise=upcast(noise))
        noisy = scores if noise is None else record(tape, noisy=scores + noise)
        allowed = hide_neg_inf(allowed, noise)
        hard = hardmax(noisy, allowed)
        if c.estimator == "argmax":
            return hard
        return straight_through(hard, record(tape, soft=softmax(noisy / c.temperature, allowed)))
