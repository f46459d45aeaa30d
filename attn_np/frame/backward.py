"""The frame of every backward pass: the frame of the call in reverse, written once.

A backward pass is made of these lines, and the formula in reverse between them:

    back = AttentionBackward(self, tape, dy)        the gradient of y checked
    dq, dk, dv = back.attend(dcontext)              those of a bias and a memory are put aside
    back.dw["w_q"] = ...                            those of parameters, for `end`
    return back.end(dquery, dkey, dvalue)           all of them, rounded once
"""

from collections.abc import Callable
from typing import Any

from attn_np.attention.attend import attend_vjp
from attn_np.attention.masks import zero_unseen, zero_unseen_inputs_vjp
from attn_np.attention.row_blocks import attend_in_row_blocks_vjp
from attn_np.contract._tape import scope
from attn_np.frame.call import scoring
from attn_np.frame.memory import with_memory_vjp
from attn_np.ops import Array, Tape, dtype_name, record, zeros
from attn_np.ops.vjp import Grads, checked_dy, make_grads, prepare_dy, sum_grads, sum_to
from attn_np.recurrence.rules import recurrence_vjp


class LayerBackward:
    """The backward pass of any layer: the output's gradient is checked first, gradients are rounded once at the end.

    Attributes:
        dy: the output's gradient, upcast.
        dw: the gradients of the parameters, by name; `end` reads it.
    """

    def __init__(self, layer: Any, tape: Tape, dy: Array) -> None:
        self.layer, self.tape, self.dtype, self.dw = layer, tape, dtype_name(dy), dict[str, Array | None]()
        self.dy = prepare_dy(tape, dy)

    def dy_of(self, name: str, dy: Array | None) -> Array | None:
        """The gradient of another output, by its name on the tape, checked, upcast and taped; or None."""
        checked = None if dy is None else checked_dy(self.tape.get(name), dy)
        return record(self.tape, **{f"d{name}": checked})

    def end(self, **dinputs: Array | None) -> Grads:
        """The gradients of inputs and parameters, rounded once."""
        return make_grads(self.dtype, dinputs, self.dw)


class AttentionBackward(LayerBackward):
    """The backward pass of an `AttentionCall`.

    Attributes:
        dothers: the gradients of inputs beside query, key and value: the bias.
    """

    def __init__(self, layer: Any, tape: Tape, dy: Array) -> None:
        super().__init__(layer, tape, dy)
        self.dothers: dict[str, Array | None] = {}

    @property
    def inputs(self) -> tuple[Array, Array, Array]:
        """Query, key and value as the call's projections read them."""
        return self.tape["zeroed_query"], self.tape["zeroed_key"], self.tape["zeroed_value"]

    def zero_unseen_keys(self, subscripts: str, dx: Array) -> Array:
        """The gradient of `AttentionCall.zero_unseen_keys`, in a full pass."""
        return zero_unseen(subscripts, self.tape.get("key_mask"), dx)

    def attend(
        self,
        dcontext: Array,
        *,
        part: str | None = None,
        relative_bias: bool = False,
        memory_k: Array | None = None,
        **more: Any,
    ) -> tuple[Array, Array, Array]:
        """The gradients of q, k and v: `AttentionCall.attend` in reverse.

        Args:
            part: as it was passed to the call.
            memory_k: as it was passed to the call; the gradients of the memory go into `dw`.
            relative_bias: whether the call added to the bias, which then is not the caller's alone.
            more: options that replaced those of the config.
        """
        tape = self.tape if part is None else scope(self.tape, part)
        options = scoring(self.layer.config) | {"kv_heads": self.layer.config.sizes().get("g")} | more
        dq, dk, dv, dbias = attend_vjp(tape, dcontext, **options)
        if memory_k is not None:
            s = dk.shape[1] - memory_k.shape[0]
            dq, dk, dv, dbias, dmemory = with_memory_vjp(tape, s, dq, dk, dv, dbias, rate=options["rate"])
            self.dw |= dmemory
        if relative_bias:
            caller_bias = tape.get("caller_bias")
            dbias = None if caller_bias is None else sum_to(tape["dbiased"], caller_bias.shape)
        before = self.dothers.get("bias")
        self.dothers["bias"] = dbias if before is None or dbias is None else sum_grads(before, dbias)
        return dq, dk, dv

    def attend_in_rows(
        self,
        attend_rows_vjp: Callable[[Tape, Array], dict[str, Array | None]],
        dcontext: Array,
        attend_without_blocks_vjp: Callable[[Tape, Array], dict[str, Array | None]] | None = None,
    ) -> tuple[Array, Array, Array]:
        """The gradients of q, k and v: `AttentionCall.attend_in_rows` in reverse; those of parameters go into `dw`."""
        grads = attend_in_row_blocks_vjp(attend_rows_vjp, self.tape, dcontext, attend_without_blocks_vjp)
        arguments = self.layer.config.arguments()
        for name, grad in grads.items():
            if name not in ("q", "k", "v"):
                (self.dothers if name in arguments else self.dw)[name] = grad
        return grads["q"], grads["k"], grads["v"]

    def attend_by(
        self, weigh_vjp: Callable[[Tape, Array, Array], tuple[Array, dict[str, Array | None]]], dcontext: Array
    ) -> tuple[Array, Array, Array]:
        """The gradients of q, k and v: `AttentionCall.attend_by` in reverse.

        Args:
            weigh_vjp: (tape, weights, their gradient) -> the gradient of the scores, and others by name.
        """

        def attend_rows_vjp(tape: Tape, dcontext: Array) -> dict[str, Array | None]:
            dothers: dict[str, Array | None] = {}

            def softmax_fn_vjp(probs: Array, dprobs: Array) -> Array:
                dscores, others = weigh_vjp(tape, probs, dprobs)
                dothers.update(others)
                return dscores

            options = scoring(self.layer.config)
            dq, dk, dv, dbias = attend_vjp(tape, dcontext, softmax_fn_vjp=softmax_fn_vjp, **options)
            return {"q": dq, "k": dk, "v": dv, "bias": dbias} | dothers

        return self.attend_in_rows(attend_rows_vjp, dcontext)

    def end(self, dquery: Array, dkey: Array, dvalue: Array | None) -> Grads:  # type: ignore[override]
        """The gradients of inputs and parameters, rounded once: what was unseen gets 0, one array's uses are added."""
        axes = "bhts" if "h" in self.layer.config.sizes() else "bts"
        return self.end_with(**zero_unseen_inputs_vjp(self.tape, axes, dquery, dkey, dvalue))

    def end_shared(self, dquery: Array, dk: Array, dv: Array) -> Grads:
        """The same of a call that got keys and values by `AttentionCall.shared_keys`."""
        dk, dv = self.zero_unseen_keys("bhts->bsgk", dk), self.zero_unseen_keys("bhts->bsgk", dv)
        dquery = zero_unseen("bhts->btd", self.tape.get("query_mask"), dquery)
        return self.end_with(query=dquery, shared_k=dk, shared_v=dv)

    def end_with(self, **dinputs: Array | None) -> Grads:
        """The same from gradients of the inputs themselves, of a layer that does not use `AttentionCall.inputs`."""
        return super().end(**dinputs, **self.dothers)


class RecurrentBackward(LayerBackward):
    """The backward pass of a `RecurrentCall`."""

    def __init__(self, layer: Any, tape: Tape, dy: Array) -> None:
        super().__init__(layer, tape, dy)
        self.x, self.real, self.continues = tape["zeroed_query"], tape.get("real"), tape.get("continues")

    def recurrence(
        self, q: Array, k: Array, v: Array, beta: Array | None, decay: Array, chunk_size: int | None, delta_rule: bool,
        dout: Array,
    ) -> tuple[Array, ...]:  # fmt: skip
        """The gradients of q, k, v, beta and the decay: `recurrence` in reverse, from an empty state."""
        empty = zeros((k.shape[0], k.shape[2], k.shape[3], v.shape[3]), q)
        return recurrence_vjp(self.tape, q, k, v, beta, decay, empty, chunk_size, delta_rule, dout, empty)[:5]

    def end(self, *dxs: Array) -> Grads:  # type: ignore[override]
        """The gradients of the inputs, whose uses are added and which are 0 at padding, and of the parameters."""
        return super().end(query=zero_unseen("bt->btd", self.real, sum_grads(*dxs)))
