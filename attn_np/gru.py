"""Gated recurrent unit: a state walks along the sequence, and gates decide how much each step replaces."""

from jaxtyping import Bool, Float

from attn_np.contract.gru import Config, LayerConfig
from attn_np.frame.backward import LayerBackward
from attn_np.frame.call import LayerCall
from attn_np.frame.layer import Layer
from attn_np.ops import (
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
from attn_np.ops.vjp import (
    Grads,
    dropout_vjp,
    einsum_vjp,
    lerp_vjp,
    linear_vjp,
    sigmoid_vjp,
    sum_grads,
    tanh_vjp,
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


def cell_vjp(dh: Array, r: Array, z: Array, n: Array, h_before: Array, n_from_h: Array) -> tuple[Array, Array]:
    """The gradient of x_gate_inputs, and that of the state before by the path around the gates: `cell` in reverse.

    Args:
        dh: gradient of the state after the step.
        r, z, n: the gates.
        h_before: the state before the step.
        n_from_h: its recurrent product for n, before the reset.
    """
    dn, dh_before, dz = lerp_vjp(n, h_before, z, dh)
    dn = tanh_vjp(n, dn)
    dz = sigmoid_vjp(z, dz)
    dr = sigmoid_vjp(r, dn * n_from_h)
    return stack([dr, dz, dn], axis=1), dh_before


def cell_with_reset_before(x_gate_inputs: Array, h_before: Array, w_h: Array) -> tuple[Array, Array, Array, Array]:
    """One step as `cell`, with the reset gate on the state: the product for n is r * h_before's, without a bias."""
    h_gate_inputs = einsum("be,fea->bfa", h_before, w_h[:2])
    r, z = (sigmoid(x_gate_inputs[:, f] + h_gate_inputs[:, f]) for f in (0, 1))
    n = tanh(x_gate_inputs[:, 2] + einsum("be,ea->ba", r * h_before, w_h[2]))
    return r, z, n, lerp(n, h_before, z)


def cell_with_reset_before_vjp(
    dh: Array, r: Array, z: Array, n: Array, h_before: Array, w_h: Array
) -> tuple[Array, Array]:
    """The gradients of x_gate_inputs and of the state before the step: `cell_with_reset_before` in reverse.

    Of the state's paths those through r and z are left out: the caller adds them, in one product with w_h.
    """
    dn, dh_before, dz = lerp_vjp(n, h_before, z, dh)
    dn = tanh_vjp(n, dn)
    dz = sigmoid_vjp(z, dz)
    dreset_state = einsum("ba,ea->be", dn, w_h[2])
    dr = sigmoid_vjp(r, dreset_state * h_before)
    return stack([dr, dz, dn], axis=1), dh_before + dreset_state * r


def dx_to_dh_gate_inputs_vjp(dx_gate_inputs: Array, r: Array) -> Array:
    """The gradient of the recurrent products: as for x_gate_inputs, but that of n passes the reset gate."""
    return concatenate([dx_gate_inputs[..., :2, :], dx_gate_inputs[..., 2:, :] * r[..., None, :]], axis=-2)


class GRULayer(Layer[LayerConfig]):
    """One layer of a stack in one direction, which passes arrays on in the compute dtype."""

    w_x: Float[Array, "f d e"]
    w_h: Float[Array, "f e a"]
    b_x: Float[Array, "f e"] | None
    b_h: Float[Array, "f e"] | None

    def __call__(
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

    def residuals_for_vjp(self, initial_state: Array, h: Array) -> tuple[Array, Array]:
        """The state before each step, and its recurrent product for n, which the backward of `reset_after` needs."""
        if self.config.backward:
            h_before = concatenate([h, initial_state[:, None]], 1)[:, 1:]
        else:
            h_before = concatenate([initial_state[:, None], h], 1)[:, :-1]
        return h_before, linear("bte,fea->btfa", h_before, self.w_h, self.b_h)[:, :, 2]

    def vjp(self, tape: Tape, dy: Array, dstate: Array, real: Array | None = None) -> Grads:
        """The gradients, by the forward in reverse; the scan runs against the layer's direction.

        A state is used three times: as an output, and in the next step both around its gates and inside them. For the
        last use the gradients at the gates are multiplied by w_h. The scan does so in its next step, the step before in
        time: its carry holds the gradients at the gates, not the product. Without `reset_after` the product for n
        cannot wait, as dr needs it: only those for r and z do.
        """
        x, r, z, n = (tape[name] for name in ("x", "r", "z", "n"))
        h_before, n_from_h = self.residuals_for_vjp(tape["state"], tape["h"])
        c, w_h = self.config, upcast(self.w_h)

        def dstate_before(dh_around, dx_gate_inputs, r):
            dh_gate_inputs, w = (
                (dx_to_dh_gate_inputs_vjp(dx_gate_inputs, r), w_h)
                if c.reset_after
                else (dx_gate_inputs[:, :2], w_h[:2])
            )
            return dh_around + einsum("bfa,fea->be", dh_gate_inputs, w)

        def body(carry, xs):
            dy, real, r, z, n, h_before, n_from_h = xs
            dh = dy + dstate_before(*carry)
            dnew = dh if real is None else where(real[:, None], dh, 0.0)
            if c.reset_after:
                dx_gate_inputs, dh_around = cell_vjp(dnew, r, z, n, h_before, n_from_h)
            else:
                dx_gate_inputs, dh_around = cell_with_reset_before_vjp(dnew, r, z, n, h_before, w_h)
            dh_around = dh_around if real is None else where(real[:, None], dh_around, dh)
            return (dh_around, dx_gate_inputs, r), (dx_gate_inputs,)

        carry = dstate, zeros((x.shape[0], 3, dstate.shape[1]), x), zeros(dstate.shape, x)
        xs = dy, real, r, z, n, h_before, n_from_h
        carry, (dx_gate_inputs,) = scan(body, carry, xs, names=("dx_gate_inputs",), tape=tape, reverse=not c.backward)
        grads = self.gate_inputs_vjp(x, h_before, r, dx_gate_inputs)
        dx, dstate = record(tape, dx=grads.inputs["x"], dstate=dstate_before(*carry))
        return Grads({"x": dx, "state": dstate}, grads.params)

    def gate_inputs_vjp(self, x: Array, h_before: Array, r: Array, dx_gate_inputs: Array) -> Grads:
        """The gradients of x and the weights, for all steps at once; `h_before` is the state before each step."""
        dw = {}
        if self.config.reset_after:
            _, dw["w_h"], dw["b_h"] = linear_vjp(
                "bte,fea->btfa", h_before, self.w_h, self.b_h, dx_to_dh_gate_inputs_vjp(dx_gate_inputs, r)
            )
        else:
            _, dw["w_h"] = einsum_vjp(
                "btfe,fea->btfa", stack([h_before, h_before, r * h_before], axis=2), self.w_h, dx_gate_inputs
            )
        dx, dw["w_x"], dw["b_x"] = linear_vjp("btd,fde->btfe", x, self.w_x, self.b_x, dx_gate_inputs)
        return Grads({"x": dx}, dw)


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

    def __call__(
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

    def run_vjp(self, tape: Tape, dy: Array, dlast: Array | None) -> Grads:
        """The gradients, by `run` in reverse, layer by layer."""
        c, dw, dstates, keep, real = self.config, {}, [], tape.get("keep"), tape.get("real")
        b, t, _ = dy.shape
        sizes, directions, e = c.sizes(), 2 if c.bidirectional else 1, c.hidden_dim
        dlast = zeros((sizes["l"], b, e), dy) if dlast is None else dlast
        for i, layer_keep in reversed(list(enumerate(self.layer_keep_masks(keep, b, t)))):
            dh, back_dx = dropout_vjp(dy, layer_keep, c.dropout), None
            if self.backward_layers is not None:
                inner = scope(tape, f"backward_layers.{i}")
                layer_grads = self.backward_layers[i].vjp(inner, dh[..., e:], dlast[2 * i + 1], real)
                dw |= {f"backward_layers.{i}.{name}": value for name, value in layer_grads.params.items()}
                back_dx = layer_grads.inputs["x"]
                dstates.append(layer_grads.inputs["state"])
            layer_grads = self.layers[i].vjp(scope(tape, f"layers.{i}"), dh[..., :e], dlast[directions * i], real)
            dw |= {f"layers.{i}.{name}": value for name, value in layer_grads.params.items()}
            dy = layer_grads.inputs["x"] if back_dx is None else sum_grads(layer_grads.inputs["x"], back_dx)
            dstates.append(layer_grads.inputs["state"])
        dx = dy if real is None else where(real[:, :, None], dy, 0.0)
        if tape.get("state") is None:
            return Grads({"x": dx}, dw)
        return Grads({"x": dx, "state": record(tape, dstate=stack(dstates[::-1]))}, dw)

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"], dlast: Float[Array, "l b e"] | None = None) -> Grads:
        """The gradients, from those of the output and, if it was used, of the returned state."""
        back = LayerBackward(self, tape, dy)
        unrounded = self.run_vjp(tape, back.dy, back.dy_of("last", dlast))
        back.dw |= unrounded.params
        return back.end(**unrounded.inputs)
