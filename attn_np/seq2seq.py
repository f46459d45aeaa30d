"""Sequence to sequence with attention: a decoder looks back at everything the encoder read, at every step."""

from collections.abc import Callable
from typing import Any, Unpack

from jaxtyping import Bool, Float, Integer

from attn_np.additive import AdditiveAttention
from attn_np.attention.masks import any_visible, zero_unseen
from attn_np.attention.row_blocks import attend_in_row_blocks, attend_in_row_blocks_vjp
from attn_np.contract._tape import BackwardTape
from attn_np.contract.seq2seq import Config, RecurrentDecoderConfig
from attn_np.frame.backward import LayerBackward
from attn_np.frame.call import LayerCall, ShownOptions
from attn_np.frame.layer import Layer, Output
from attn_np.gru import GatedRecurrentUnit, cell, cell_vjp, dx_to_dh_gate_inputs_vjp
from attn_np.ops import (
    Array,
    Tape,
    argmax,
    broadcast_to,
    concatenate,
    dropout,
    einsum,
    linear,
    record,
    scan,
    scope,
    softmax,
    stack,
    take,
    tanh,
    upcast,
    where,
    zeros,
)
from attn_np.ops.vjp import (
    Grads,
    dropout_vjp,
    einsum_vjp,
    linear_vjp,
    softmax_vjp,
    sum_grads,
    sum_to,
    take_vjp,
    tanh_vjp,
)


def attend_once(
    q: Array, k: Array, v: Array, w_score: Array, allowed: Array | None, keep: Array | None, rate: float
) -> tuple[Array, Array]:
    """The context and the weights of additive attention, from one projected query to projected keys."""
    scores = einsum("bse,e->bs", tanh(q[:, None, :] + k), w_score)
    probs = softmax(scores, allowed)
    return einsum("bs,bsv->bv", dropout(probs, keep, rate), v), probs


def attend_once_vjp(
    q: Array, k: Array, v: Array, w_score: Array, probs: Array, keep: Array | None, rate: float, dcontext: Array
) -> Array:
    """The gradient of the query of `attend_once`.

    Those of keys, values and w_score are computed afterwards, for all steps at once.
    """
    dkept = einsum("bv,bsv->bs", dcontext, v)
    dscores = softmax_vjp(probs, dropout_vjp(dkept, keep, rate))
    dsum = tanh_vjp(tanh(q[:, None, :] + k), dscores[:, :, None] * w_score)
    return sum_to(dsum, (dsum.shape[0], 1, dsum.shape[2]))[:, 0]


class RecurrentDecoder(Layer[RecurrentDecoderConfig]):
    """A decoder that looks at the memory before each step, with the last layer's state as the query."""

    attention: AdditiveAttention
    gru: GatedRecurrentUnit
    w_o: Float[Array, "e o"]
    b_o: Float[Array, "o"]

    def step_params(self) -> dict[str, Any]:
        """The parameters of a step, upcast once; those of the first layer's input are split for context and target."""
        layers, e = self.gru.layers, self.config.hidden_dim
        w_x = [upcast(layer.w_x) for layer in layers]
        return {
            "q": upcast(self.attention.w_q),
            "score": upcast(self.attention.w_score),
            "target": w_x[0][:, e:],
            "x": [w[:, :e] for w in w_x],
            "h": [upcast(layer.w_h) for layer in layers],
            "b_x": [upcast(layer.b_x) for layer in layers],
            "b_h": [upcast(layer.b_h) for layer in layers],
        }

    def static_gate_inputs(self, target: Array, w: dict[str, Any]) -> list[Array]:
        """The part of each layer's gate inputs that needs no state: biases and, in the first layer, the target."""
        first, *rest = [broadcast_to(b_x, (target.shape[0], target.shape[1], *b_x.shape)) for b_x in w["b_x"]]
        return [first + einsum("btd,fde->btfe", target, w["target"]), *rest]

    def make_step(self, with_probs: bool) -> Callable[..., Any]:
        """The body of a scan over the steps: it takes the states of all layers to the next ones.

        Keys, memory and parameters (`k`, `memory`, `w`) are the same in every step.
        """
        num_layers, rate = self.config.num_layers, self.config.dropout

        def body(state, xs, k, memory, w):
            allowed, keep = xs[2 * num_layers :]
            q = einsum("bd,de->be", state[-1], w["q"])
            context, probs = attend_once(q, k, memory, w["score"], allowed, keep, rate)
            x, new_state, outputs = context, [], [context, probs] if with_probs else [context]
            for i in range(num_layers):
                x_gate_inputs = xs[i] + einsum("bd,fde->bfe", x, w["x"][i])
                r, z, n, h = cell(x_gate_inputs, state[i], w["h"][i], w["b_h"][i])
                x = dropout(h, xs[num_layers + i], rate)
                new_state.append(h)
                outputs += [r, z, n, h]
            return tuple(new_state), tuple(outputs)

        return body

    def run(
        self,
        target: Array,
        memory: Array,
        state: Array,
        allowed: Array | None,
        keep: Array | None = None,
        gru_keep: Array | None = None,
        tape: Tape = None,
        with_probs: bool = False,
    ) -> tuple[Array, Array, Array | None]:
        """The forward without checks and rounding: outputs, state, and the weights where they or a tape are wanted."""
        with_probs = with_probs or tape is not None
        b, t, s, num_layers = target.shape[0], target.shape[1], memory.shape[1], self.config.num_layers
        allowed = None if allowed is None else broadcast_to(allowed, (b, t, s))
        keep = None if keep is None else broadcast_to(keep, (b, t, s))
        memory = zero_unseen("bts->bse", allowed, memory)
        target, memory, state = record(tape, x=target, memory=memory, state=state)
        allowed, keep, gru_keep = record(tape, allowed=allowed, keep=keep, gru_keep=gru_keep)
        k = record(tape, k=einsum("bsi,ie->bse", memory, self.attention.w_k))
        w, layer_tapes = self.step_params(), [scope(tape, f"gru.layers.{i}") for i in range(num_layers)]
        static_gate_inputs = self.static_gate_inputs(target, w)
        static_gate_inputs = [
            record(tape_of_layer, static_gate_inputs=x)
            for tape_of_layer, x in zip(layer_tapes, static_gate_inputs, strict=True)
        ]
        last, (_, *stacked) = scan(
            self.make_step(with_probs),
            tuple(state[i] for i in range(num_layers)),
            (*static_gate_inputs, *self.gru.layer_keep_masks(gru_keep, b, t), allowed, keep),
            names=(
                "context",
                *(("probs",) if with_probs else ()),
                *(f"gru.layers.{i}.{name}" for i in range(num_layers) for name in "rznh"),
            ),
            tape=tape,
            recompute_with=(k, memory, w),
        )
        probs, gates_and_states = (stacked[0], stacked[1:]) if with_probs else (None, stacked)
        return linear("bte,eo->bto", gates_and_states[-1], self.w_o, self.b_o), stack(last), probs

    def __call__(
        self,
        target: Float[Array, "b t d"],
        memory: Float[Array, "b s e"],
        state: Float[Array, "l b e"],
        *,
        mask: Bool[Array, "..."] | None = None,
        keep: Bool[Array, "..."] | None = None,
        gru_keep: Bool[Array, "..."] | None = None,
        **options: Unpack[ShownOptions],
    ) -> Output:
        """Outputs `b t o` and the state of every layer after the last step; with the weights `b t s` as a third."""
        call = LayerCall(
            self, target=target, memory=memory, state=state, mask=mask, keep=keep, gru_keep=gru_keep, **options
        )
        keep, gru_keep = call.keep_mask(keep, "b t s"), call.keep_mask(gru_keep, "w b t e")
        y, last, call.weights = self.run(
            upcast(target), upcast(memory), upcast(state), mask, keep, gru_keep, call.tape, call.shows_weights
        )
        return call.end(y, last=last)

    def run_vjp(self, tape: Tape, dy: Array, dlast: Array | None) -> Grads:
        """The gradients, by `run` in reverse. A scan backwards in time gives those at the gates of every step.

        From them the gradients of everything that the steps share follow, each in one product over all steps. As in
        GRULayer, the product for a step's gates is computed at the beginning of the step before.
        """
        c, dw, w, layers = self.config, {}, self.step_params(), self.gru.layers
        x, memory, k, probs, context = (tape[name] for name in ("x", "memory", "k", "probs", "context"))
        keep, allowed, num_layers = tape.get("keep"), tape.get("allowed"), c.num_layers
        keep_masks = self.gru.layer_keep_masks(tape.get("gru_keep"), x.shape[0], x.shape[1])
        # Of each layer, for all steps: r, z, n, the state before the step, and its recurrent product for n.
        residuals_by_layer, layer_inputs = [], [concatenate([context, x], axis=-1)]
        for i, keep_mask in enumerate(keep_masks):
            r, z, n, h = (tape[f"gru.layers.{i}.{name}"] for name in "rznh")
            residuals_by_layer.append((r, z, n, *layers[i].residuals_for_vjp(tape["state"][i], h)))
            layer_inputs.append(dropout(h, keep_mask, c.dropout))
        queries = residuals_by_layer[-1][3]
        q = einsum("btd,de->bte", queries, self.attention.w_q)
        dh, dw["w_o"], dw["b_o"] = linear_vjp("bte,eo->bto", layer_inputs[-1], self.w_o, self.b_o, dy)

        def dstate_before(dh_around, dx_gate_inputs, step_values):
            if step_values is None:
                return dh_around
            q, probs, keep, residuals = step_values
            dstate = [
                dh_around[i]
                + einsum("bfa,fea->be", dx_to_dh_gate_inputs_vjp(dx_gate_inputs[i], residuals[5 * i]), w["h"][i])
                for i in range(num_layers)
            ]
            dcontext = einsum("bfe,fde->bd", dx_gate_inputs[0], w["x"][0])
            dq = attend_once_vjp(q, k, memory, w["score"], probs, keep, c.dropout, dcontext)
            return (*dstate[:-1], dstate[-1] + einsum("be,de->bd", dq, w["q"]))

        def body(carry, xs):
            doutput, q, probs, keep, *rest = xs
            keep_masks, residuals, dstate, dh_around, dx_gate_inputs = (
                rest[:num_layers],
                rest[num_layers:],
                dstate_before(*carry),
                (),
                (),
            )
            for i in reversed(range(num_layers)):
                dh = dstate[i] + dropout_vjp(doutput, keep_masks[i], c.dropout)
                dx_of_layer, dh = cell_vjp(dh, *residuals[5 * i : 5 * i + 5])
                doutput = einsum("bfe,fde->bd", dx_of_layer, w["x"][i])
                dh_around, dx_gate_inputs = (dh, *dh_around), (dx_of_layer, *dx_gate_inputs)
            return (dh_around, dx_gate_inputs, (q, probs, keep, residuals)), dx_gate_inputs

        dlast = zeros(tape["state"].shape, x) if dlast is None else dlast
        carry, dx_gate_inputs = scan(
            body,
            (tuple(dlast[i] for i in range(num_layers)), (), None),
            (
                dh,
                q,
                probs,
                keep,
                *keep_masks,
                *(value for layer_residuals in residuals_by_layer for value in layer_residuals),
            ),
            names=tuple(f"gru.layers.{i}.dstatic_gate_inputs" for i in range(num_layers)),
            tape=tape,
            reverse=True,
        )
        grads_by_layer = [
            layers[i].gate_inputs_vjp(layer_inputs[i], h, r, dx_gate_inputs[i])
            for i, (r, _, _, h, _) in enumerate(residuals_by_layer)
        ]
        for i, layer_grads in enumerate(grads_by_layer):
            dw |= {f"gru.layers.{i}.{name}": value for name, value in layer_grads.params.items()}
        djoined = grads_by_layer[0].inputs["x"]
        dcontext, dx = djoined[:, :, : c.hidden_dim], djoined[:, :, c.hidden_dim :]
        attention_tape = BackwardTape()
        attend_in_row_blocks(
            self.attention.attend_rows, attention_tape, q, k, memory, mask=allowed, bias=None, keep=keep, min_rows=1
        )
        row_grads = attend_in_row_blocks_vjp(self.attention.attend_rows_vjp, attention_tape, dcontext)
        dkey, dw["attention.w_k"] = einsum_vjp("bsi,ie->bse", memory, self.attention.w_k, row_grads["k"])
        _, dw["attention.w_q"] = einsum_vjp("btd,de->bte", queries, self.attention.w_q, row_grads["q"])
        dw["attention.w_score"], dmemory = (
            row_grads["w_score"],
            zero_unseen("bts->bse", allowed, sum_grads(dkey, row_grads["v"])),
        )
        dx, dmemory, dk = record(tape, dx=dx, dmemory=dmemory, dk=row_grads["k"])
        return Grads({"target": dx, "memory": dmemory, "state": record(tape, dstate=stack(dstate_before(*carry)))}, dw)

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"], dlast: Float[Array, "l b e"] | None = None) -> Grads:
        """The gradients, from those of the outputs and, if it was used, of the returned state."""
        back = LayerBackward(self, tape, dy)
        unrounded = self.run_vjp(tape, back.dy, back.dy_of("last", dlast))
        back.dw |= unrounded.params
        return back.end(**unrounded.inputs)


class Seq2Seq(Layer[Config]):
    """An encoder leaves a memory; a decoder looks back at it at every step."""

    embedding: Float[Array, "u d"] | None
    encoder: GatedRecurrentUnit
    decoder: RecurrentDecoder

    def embed(self, source: Array, target: Array) -> tuple[Array, Array, Any]:
        """Source and target as vectors, tokens by their rows of the table; and the table, upcast once for both."""
        table = upcast(self.embedding)
        if table is None:
            return upcast(source), upcast(target), table
        return take(table, source), take(table, target), table

    def encode(self, source: Array, mask: Array | None, keep: Array | None, tape: Tape) -> tuple[Array, Array]:
        """The memory and the encoder's last state. A position that no target sees is padding and is skipped."""
        real = None if mask is None else broadcast_to(any_visible("bts->bs", mask), source.shape[:2])
        # Without `recompute` PyTorch kept twice as much for a step of the encoder as for one of the decoder
        # (benchmarks/NOTES.md).
        return self.encoder.run(source, None, keep, real, tape, recompute=True)

    def make_decode_step(
        self, source: Array, mask: Array | None, state: Array | None
    ) -> tuple[Callable[..., Any], tuple[Array, ...]]:
        """A function of one step without dropout, (input, state) to (output, state), and the initial state."""
        memory, last = self.encode(source, mask, None, None)
        start, decoder = last if state is None else upcast(state), self.decoder
        b, s, _ = memory.shape
        allowed = None if mask is None else broadcast_to(mask, (b, 1, s))
        k, w = einsum("bsi,ie->bse", memory, decoder.attention.w_k), decoder.step_params()
        step_body, w_o, b_o = decoder.make_step(False), upcast(decoder.w_o), upcast(decoder.b_o)
        allowed = None if allowed is None else allowed[:, 0]

        def decode_step(x, state):
            static_gate_inputs = [x_step[:, 0] for x_step in decoder.static_gate_inputs(x[:, None], w)]
            xs = *static_gate_inputs, *decoder.gru.layer_keep_masks(None, b, 1), allowed, None
            state, outputs = step_body(state, xs, k, memory, w)
            return linear("be,eo->bo", outputs[-1], w_o, b_o), state

        return decode_step, tuple(start[i] for i in range(self.config.num_layers))

    def generate(
        self,
        source: Float[Array, "b s d"],
        target: Float[Array, "b 1 d"],
        *,
        steps: int,
        state: Float[Array, "l b e"] | None = None,
        mask: Bool[Array, "..."] | None = None,
    ) -> tuple[Array, Array]:
        """Outputs and last state of a free run from one first target: every output is the next input; no dropout."""
        call = LayerCall(self, source=source, target=target, state=state, mask=mask)
        self.config.check_generation(call.sizes["t"], steps, tokens=False)
        x = upcast(target)
        decode_step, start = self.make_decode_step(upcast(source), mask, state)

        def body(carry, xs):
            y, state = decode_step(*carry)
            return (y, state), (y,)

        (_, last), (y,) = scan(body, (x[:, 0], start), (zeros((call.sizes["b"], steps), x),), names=("y",))
        return call.end(y, last=stack(last))

    def greedy(
        self,
        source: Integer[Array, "b s"],
        target: Integer[Array, "b 1"],
        *,
        steps: int,
        stop: int,
        state: Float[Array, "l b e"] | None = None,
        mask: Bool[Array, "..."] | None = None,
    ) -> tuple[Array, Array]:
        """Decode greedily from one first token, without dropout.

        Returns:
            Tokens `b steps`, after the first stop token only stop tokens, and how many come before it.
        """
        sizes = self.check(source=source, target=target, state=state, mask=mask)
        self.config.check_generation(sizes["t"], steps, tokens=True, stop=stop)
        source, x, table = self.embed(source, target)
        decode_step, start = self.make_decode_step(source, mask, state)

        def body(carry, xs):
            x, done, state = carry
            y, state = decode_step(x, state)
            token = where(done, stop, argmax(y, axis=-1))
            done = done | (token == stop)
            return (take(table, token), done, state), (token, done)

        done = zeros((sizes["b"],), x) != 0
        blank_steps = zeros((sizes["b"], steps), x)
        _, (tokens, done) = scan(body, (x[:, 0], done, start), (blank_steps,), names=("tokens", "done"))
        ends = concatenate([done, zeros((sizes["b"], 1), x) == 0], 1)
        return tokens, argmax(where(ends, 1, 0), axis=1)

    def __call__(
        self,
        source: Float[Array, "b s d"] | Integer[Array, "b s"],
        target: Float[Array, "b t d"] | Integer[Array, "b t"],
        *,
        state: Float[Array, "l b e"] | None = None,
        mask: Bool[Array, "..."] | None = None,
        keep: Bool[Array, "..."] | None = None,
        encoder_keep: Bool[Array, "..."] | None = None,
        decoder_keep: Bool[Array, "..."] | None = None,
        **options: Unpack[ShownOptions],
    ) -> Output:
        """The outputs for the targets and the state to continue from; with the weights `b t s` as a third.

        A `state` that an earlier call returned replaces the encoder's last one, so a target may be passed in
        pieces. A source position that no target sees by the mask is padding. The state comes back in the layer's
        dtype, so that with a 16-bit type a target in pieces equals the whole up to the rounding of the state.
        """
        call = LayerCall(
            self, source=source, target=target, state=state, mask=mask, keep=keep, encoder_keep=encoder_keep,
            decoder_keep=decoder_keep, dtype=self.dtype, **options,
        )  # fmt: skip
        tape, keep = call.tape, call.keep_mask(keep, "b t s")
        encoder_keep, decoder_keep = call.keep_mask(encoder_keep, "w b s e"), call.keep_mask(decoder_keep, "w b t e")
        if self.embedding is not None:
            source, target = record(tape, source_tokens=source, target_tokens=target)
        source, target, _ = self.embed(source, target)
        source, target = record(tape, source=source, target=target)
        state = record(tape, state=upcast(state))
        memory, last = self.encode(source, mask, encoder_keep, scope(tape, "encoder"))
        start = last if state is None else state
        decoder_tape = scope(tape, "decoder")
        y, last, call.weights = self.decoder.run(
            target, memory, start, mask, keep, decoder_keep, decoder_tape, call.shows_weights
        )
        return call.end(y, last=last)

    def vjp(self, tape: Tape, dy: Float[Array, "b t o"], dlast: Float[Array, "l b e"] | None = None) -> Grads:
        """The gradients, from those of the outputs and, if it was used, of the returned state."""
        has_state = tape.get("state") is not None
        back = LayerBackward(self, tape, dy)
        dw = back.dw
        decoder_grads = self.decoder.run_vjp(scope(tape, "decoder"), back.dy, back.dy_of("last", dlast))
        dstate, dtarget = decoder_grads.inputs["state"], decoder_grads.inputs["target"]
        dmemory, dencoder_state = decoder_grads.inputs["memory"], None if has_state else dstate
        encoder_grads = self.encoder.run_vjp(scope(tape, "encoder"), dmemory, dencoder_state)
        dw |= {f"encoder.{name}": value for name, value in encoder_grads.params.items()}
        dw |= {f"decoder.{name}": value for name, value in decoder_grads.params.items()}
        dsource, dtarget = record(tape, dsource=encoder_grads.inputs["x"], dtarget=dtarget)
        dinputs = {"source": dsource, "target": dtarget}
        if self.embedding is not None:
            from_source = take_vjp(self.embedding, tape["source_tokens"], dinputs.pop("source"))
            from_target = take_vjp(self.embedding, tape["target_tokens"], dinputs.pop("target"))
            dw["embedding"] = sum_grads(from_source, from_target)
        return back.end(**dinputs, state=dstate if has_state else None)
