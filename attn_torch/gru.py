"""Gated recurrent unit: a state walks along the sequence, and gates decide how much each step replaces."""

from jaxtyping import Bool, Float

from attn_np.contract.gru import Config, LayerConfig
from attn_torch.frame.call import LayerCall
from attn_torch.frame.layer import Layer
from attn_torch.ops import (
    Array,
    Tape,
    broadcast_to,
    concatenate,
    dropout,
    einsum,
    lerp,
    linear,
    record,
    scan,
    scope,
    sigmoid,
    stack,
    tanh,
    upcast,
    where,
    zeros,
)


def cell(x_gate_inputs: Array, h_before: Array, w_h: Array, b_h: Array | None) -> tuple[Array, Array, Array, Array]:
    """One step from `x_gate_inputs`, what the input adds to each gate: the gates r, z, n and the new state.

    The reset gate acts on the recurrent product and its bias.
    """
    h_gate_inputs = linear("be,fea->bfa", h_before, w_h, b_h)
    r = sigmoid(x_gate_inputs[:, 0] + h_gate_inputs[:, 0])
    z = sigmoid(x_gate_inputs[:, 1] + h_gate_inputs[:, 1])
    n = tanh(x_gate_inputs[:, 2] + r * h_gate_inputs[:, 2])
    return r, z, n, lerp(n, h_before, z)


def cell_with_reset_before(x_gate_inputs: Array, h_before: Array, w_h: Array) -> tuple[Array, Array, Array, Array]:
    """One step as `cell`, with the reset gate on the state: the product for n is r * h_before's, without a bias."""
    h_gate_inputs = einsum("be,fea->bfa", h_before, w_h[:2])
    r, z = (sigmoid(x_gate_inputs[:, f] + h_gate_inputs[:, f]) for f in (0, 1))
    n = tanh(x_gate_inputs[:, 2] + einsum("be,ea->ba", r * h_before, w_h[2]))
    return r, z, n, lerp(n, h_before, z)


class GRULayer(Layer[LayerConfig]):
    """One layer of a stack in one direction, which passes arrays on in the compute dtype."""

    w_x: Float[Array, "f d e"]
    w_h: Float[Array, "f e a"]
    b_x: Float[Array, "f e"] | None
    b_h: Float[Array, "f e"] | None

    def forward(
        self,
        x: Float[Array, "b t d"],
        state: Float[Array, "b e"],
        real: Bool[Array, "b t"] | None = None,
        tape: Tape = None,
        recompute: bool = False,
    ) -> tuple[Array, Array]:
        x, state = record(tape, x=x, state=state)
        x_gate_inputs = record(tape, x_gate_inputs=linear("btd,fde->btfe", x, self.w_x, self.b_x))
        c, w_h, b_h = self.config, upcast(self.w_h), upcast(self.b_h)

        def body(h, xs, w_h=w_h, b_h=b_h):
            x_gate_inputs, real = xs
            r, z, n, new = (
                cell(x_gate_inputs, h, w_h, b_h) if c.reset_after else cell_with_reset_before(x_gate_inputs, h, w_h)
            )
            h = new if real is None else where(real[:, None], new, h)
            return h, (r, z, n, h)

        xs, recompute_with = (x_gate_inputs, real), (w_h, b_h) if recompute else ()
        names = "r", "z", "n", "h"
        final_state, (r, z, n, h) = scan(
            body, state, xs, names=names, tape=tape, reverse=c.backward, recompute_with=recompute_with
        )
        return h, final_state


class GatedRecurrentUnit(Layer[Config]):
    """Layers of gated recurrence, each reading the states of the one below."""

    layers: list[GRULayer]
    backward_layers: list[GRULayer] | None

    def layer_keep_masks(self, keep: Array | None, b: int, t: int) -> list[Array | None]:
        """The keep-mask after each layer; None after the last."""
        c = self.config
        if keep is None:
            return [None] * c.num_layers
        keep = broadcast_to(keep, (c.num_layers - 1, b, t, c.sizes()["o"]))
        return [keep[i] for i in range(c.num_layers - 1)] + [None]

    def run(
        self,
        x: Array,
        state: Array | None,
        keep: Array | None,
        real: Array | None = None,
        tape: Tape = None,
        recompute: bool = False,
    ) -> tuple[Array, Array]:
        """The forward without checks and rounding, as layers that hold this one call it.

        Where `real` is False a step is padding: its input is ignored and the state stays as it is. With `recompute`
        automatic differentiation keeps the states alone and computes each step again.
        """
        c, final_states = self.config, []
        x = x if real is None else where(real[:, :, None], x, 0.0)
        state, keep, real = record(tape, state=state, keep=keep, real=real)
        sizes, directions = c.sizes(), 2 if c.bidirectional else 1
        start = zeros((sizes["l"], x.shape[0], c.hidden_dim), x) if state is None else state
        for i, layer_keep in enumerate(self.layer_keep_masks(keep, x.shape[0], x.shape[1])):
            h, final_state = self.layers[i](x, start[directions * i], real, scope(tape, f"layers.{i}"), recompute)
            final_states.append(final_state)
            if self.backward_layers is not None:
                back_scope = scope(tape, f"backward_layers.{i}")
                back, final_state = self.backward_layers[i](x, start[2 * i + 1], real, back_scope, recompute)
                h = concatenate([h, back], -1)
                final_states.append(final_state)
            x = dropout(h, layer_keep, c.dropout)
        return x, stack(final_states)

    def forward(
        self,
        x: Float[Array, "b t d"],
        state: Float[Array, "l b e"] | None = None,
        *,
        keep: Bool[Array, "..."] | None = None,
        tape: Tape = None,
    ) -> tuple[Array, Array]:
        """The last layer's states, `b t o`, and the state of every layer after its last step, `l b e`."""
        call = LayerCall(self, tape=tape, x=x, state=state, keep=keep)
        keep = call.keep_mask(keep, "w b t o")
        y, last = self.run(upcast(x), upcast(state), keep, tape=tape)
        return call.end(y, last=last)
