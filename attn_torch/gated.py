"""Gated attention: every head's output is multiplied by a gate that is computed from the layer's input."""

from typing import Unpack

from jaxtyping import Float

from attn_np.contract.gated import Config
from attn_torch.frame.call import AttentionCall, Options
from attn_torch.frame.layer import Layer, Output
from attn_torch.ops import Array, linear, record, sigmoid


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

    def forward(
        self,
        query: Float[Array, "b t d"],
        key: Float[Array, "b s i"] | None = None,
        value: Float[Array, "b s j"] | None = None,
        **options: Unpack[Options],
    ) -> Output:
        call = AttentionCall(self, query, key, value, **options)
        tape = call.tape
        query, key, value = call.inputs()
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsi,ihk->bshk", key, self.w_k, self.b_k)
        v = linear("bsj,jhv->bshv", value, self.w_v, self.b_v)
        context = call.attend(q, k, v)
        gate_scores = record(tape, gate_scores=linear("btd,dhf->bthf", query, self.w_gate, self.b_gate))
        gate = record(tape, gate=sigmoid(gate_scores))
        gated = record(tape, gated=context * gate)
        return call.end(linear("bthv,hvo->bto", gated, self.w_o, self.b_o))
