"""Attention with rotary positions: queries and keys rotate with their positions, so scores depend on the distance."""

from jaxtyping import Bool, Float

from attn_np.contract.rotary import Config
from attn_torch._attend import attend
from attn_torch._decode import DecodeStep, append
from attn_torch._layer import Layer, Output, cast_output
from attn_torch._masks import zero_unseen_inputs
from attn_torch._ops import Array, Tape, dtype_name, linear, record
from attn_torch._rotary import Positions, cos_sin_for, record_positions, rotate


class RotaryAttention(Layer[Config]):
    """Queries and keys rotate with their positions, so scores depend on the distance."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_o: Float[Array, "h v o"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

    def forward(
        self,
        query: Float[Array, "b t d"],
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        keep: Bool[Array, "..."] | None = None,
        positions: Positions | None = None,
        tape: Tape = None,
        return_weights: bool = False,
        implementation: str = "auto",
        step: DecodeStep | None = None,
    ) -> Output:
        sizes = self.check(query=query, mask=mask, bias=bias, keep=keep, positions=positions)
        c, dtype = self.config, dtype_name(query)
        query, key, value = zero_unseen_inputs(
            tape, "bhts", query, mask=mask, causal=c.causal, window=c.window, step=step
        )
        positions = record_positions(tape, positions)
        cos, sin = cos_sin_for(c, positions, sizes["t"], like=query, step=step)
        q = rotate(linear("btd,dhk->bthk", query, self.w_q, self.b_q), cos, sin, c.rope_layout)
        k = rotate(linear("bsd,dhk->bshk", key, self.w_k, self.b_k), cos, sin, c.rope_layout)
        v = linear("bsd,dhv->bshv", value, self.w_v, self.b_v)
        q, k = record(tape, q_rot=q, k_rot=k)
        k, v = append(step, k_rot=k, v=v)
        keep = self.draw_keep(keep, (sizes["b"], sizes["h"], sizes["t"], sizes["t"]), like=query)
        context, weights = attend(
            q, k, v, mask=mask, bias=bias, causal=c.causal, window=c.window, scale=c.scale, softcap=c.softcap,
            keep=keep, rate=c.dropout, step=step, tape=tape, implementation=implementation,
            return_weights=return_weights,
        )  # fmt: skip
        y = record(tape, y=linear("bthv,hvo->bto", context, self.w_o, self.b_o))
        return cast_output(dtype, y, weights, return_weights)
