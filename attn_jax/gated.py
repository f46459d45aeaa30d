"""Gated attention: every head's output is multiplied by a gate that is computed from the layer's input."""

from jaxtyping import Bool, Float

from attn_jax._attend import attend
from attn_jax._decode import DecodeStep, append
from attn_jax._layer import Layer, Output, cast_output
from attn_jax._masks import zero_unseen_inputs
from attn_jax._ops import Array, Tape, dtype_name, linear, record, sigmoid
from attn_np.contract.gated import Config


class GatedAttention(Layer[Config]):
    """Every head's output is multiplied by a gate that is computed from the layer's input."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "i h k"]
    w_v: Float[Array, "j h v"]
    w_o: Float[Array, "h v o"]
    w_gate: Float[Array, "d h f"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None
    b_gate: Float[Array, "h f"] | None

    def __call__(
        self,
        query: Float[Array, "b t d"],
        key: Float[Array, "b s i"] | None = None,
        value: Float[Array, "b s j"] | None = None,
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        keep: Bool[Array, "..."] | None = None,
        tape: Tape = None,
        return_weights: bool = False,
        implementation: str = "auto",
        step: DecodeStep | None = None,
    ) -> Output:
        sizes = self.check(query=query, key=key, value=value, mask=mask, bias=bias, keep=keep)
        c, dtype = self.config, dtype_name(query)
        query, key, value = zero_unseen_inputs(
            tape, "bhts", query, key, value, mask=mask, causal=c.causal, window=c.window, step=step
        )
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsi,ihk->bshk", key, self.w_k, self.b_k)
        v = linear("bsj,jhv->bshv", value, self.w_v, self.b_v)
        k, v = append(step, k=k, v=v)
        keep = self.draw_keep(keep, (sizes["b"], sizes["h"], sizes["t"], sizes["s"]), like=query)
        context, weights = attend(
            q, k, v, mask=mask, bias=bias, causal=c.causal, window=c.window, scale=c.scale, softcap=c.softcap,
            keep=keep, rate=c.dropout, step=step, tape=tape, implementation=implementation,
            return_weights=return_weights,
        )  # fmt: skip
        gate_scores = record(tape, gate_scores=linear("btd,dhf->bthf", query, self.w_gate, self.b_gate))
        gate = record(tape, gate=sigmoid(gate_scores))
        gated = record(tape, gated=context * gate)
        y = record(tape, y=linear("bthv,hvo->bto", gated, self.w_o, self.b_o))
        return cast_output(dtype, y, weights, return_weights)
