"""The frame of every call: what a layer does before its formula and after it, written once.

A call is made of four lines, and the formula between them:

    call = AttentionCall(self, query, key, value, **options)    arguments checked
    query, key, value = call.inputs()                           in one precision, 0 where nobody sees them
    context = call.attend(q, k, v)                              cache, dropout, masks, and the way to compute it
    return call.end(y)                                          taped, and rounded once
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypedDict

from jaxtyping import Bool, Float, Int

from attn_np.contract._band import Limits
from attn_np.contract._patterns import Pattern
from attn_np.contract._tape import scope
from attn_torch.attention.attend import attend_checked, softmax_takes_fast_path
from attn_torch.attention.decode import (
    DecodeStep,
    Form,
    append,
    continued_documents,
    read_cached,
    read_state,
    real_mask,
    run_form,
    write_state,
)
from attn_torch.attention.masks import attention_mask, query_and_key_masks, zero_unseen, zero_unseen_inputs
from attn_torch.attention.row_blocks import AttendRows, attend_in_row_blocks
from attn_torch.frame.layer import Output, cast_output
from attn_torch.frame.memory import with_memory
from attn_torch.ops import Array, Tape, dtype_name, record, to_dtype, upcast, zeros


class StateOptions(TypedDict, total=False):
    """Options of a call without attention weights.

    Attributes:
        mask: broadcastable to `b t`, or to `b t s` where keys have an axis; True = may attend.
        tape: a dictionary that gets every named intermediate.
        step: the step of decoding; `Layer.step` alone passes it.
    """

    mask: Bool[Array, "..."] | None
    tape: Tape
    step: DecodeStep | None


class RecurrentOptions(StateOptions, total=False):
    """Options of a call of a layer whose state sums up the positions so far.

    Attributes:
        documents: the number of each position's document, of several that are packed into one sequence: where it
            changes, from a real position to the next, state and convolutions begin anew. A step goes on with the
            cache's document, which is 0 at first, where the number is the same, or where none are passed.
    """

    documents: Int[Array, "b t"] | None


class ShownOptions(TypedDict, total=False):
    """Options of what a call shows beside its output.

    Attributes:
        tape: a dictionary that gets every named intermediate.
        return_weights: return the weights, too.
    """

    tape: Tape
    return_weights: bool


class RowOptions(TypedDict, total=False):
    """Options of a call with attention weights.

    Attributes:
        mask: broadcastable to `b h t s`, `b t s` without heads; True = may attend.
        bias: added to the scores, broadcastable likewise.
        keep: broadcastable likewise; False = dropped. In training it is drawn where it is not given.
        tape: a dictionary that gets every named intermediate.
        return_weights: return (y, weights).
        step: the step of decoding; `Layer.step` alone passes it.
    """

    mask: Bool[Array, "..."] | None
    bias: Float[Array, "..."] | None
    keep: Bool[Array, "..."] | None
    tape: Tape
    return_weights: bool
    step: DecodeStep | None


class Options(RowOptions, total=False):
    """Options of a call that may be computed in more than one way.

    Attributes:
        implementation: "auto", "textbook" or "fused"; see `attend`.
    """

    implementation: str


def scoring(config: Any) -> dict[str, Any]:
    """What a config says of scores and weights, as `attend` and its backward pass take it."""
    return {
        "scale": config.scale,
        "softcap": getattr(config, "softcap", None),
        "rate": config.dropout,
        "normalize_over": getattr(config, "normalize_over", "keys"),
    }


class LayerCall:
    """A call of any layer: its arguments are checked at the beginning, its output is rounded once at the end.

    Attributes:
        sizes: the size of every axis letter.
        dtype: the name of the output's dtype: that of the first argument, unless another is given.
        weights: the weights that the call returns beside the output, if it was asked for them.
    """

    def __init__(
        self,
        layer: Any,
        *,
        tape: Tape = None,
        return_weights: bool = False,
        dtype: str | None = None,
        step: DecodeStep | None = None,
        **arguments: Any,
    ) -> None:
        self.layer, self.tape, self.shows_weights, self.step = layer, tape, return_weights, step
        self.sizes = layer.check(**arguments) if step is None or step.sizes is None else step.sizes
        self.like = next(iter(arguments.values()))
        self.dtype = dtype_name(self.like) if dtype is None else dtype
        self.weights: Array | None = None

    def keep_mask(self, keep: Array | None, axes: str) -> Array | None:
        """A keep-mask with these axes: the caller's, in training a random one, or None."""
        return self.layer.draw_keep(keep, axes, self.sizes, like=self.like)

    def end(self, y: Array, **states: Array) -> Output:
        """The output of the call: y, and states behind it, taped and rounded once; then the weights, if returned."""
        outputs = record(self.tape, y=y, **states)
        if not states:
            return cast_output(self.dtype, outputs, self.weights, self.shows_weights)
        shown: Any = (self.weights,) if self.shows_weights else ()
        return tuple(to_dtype(x, self.dtype) for x in (*outputs, *shown))


class AttentionCall(LayerCall):
    """A call of a layer with attention weights.

    Attributes:
        masking: who may attend to whom: mask, causality, window, pattern and the step of decoding.
    """

    def __init__(
        self,
        layer: Any,
        query: Array,
        key: Array | None = None,
        value: Array | None = None,
        *,
        mask: Array | None = None,
        bias: Array | None = None,
        keep: Array | None = None,
        tape: Tape = None,
        return_weights: bool = False,
        implementation: str = "auto",
        step: DecodeStep | None = None,
        **others: Any,
    ) -> None:
        arrays = {"query": query, "key": key, "value": value, "mask": mask, "bias": bias, "keep": keep}
        if step is not None and step.reads:  # what lies in the cache is not passed
            others = {name: x for name, x in others.items() if x is not None}
        super().__init__(layer, tape=tape, return_weights=return_weights, step=step, **arrays, **others)
        self.passed, self.mask, self.bias, self.keep = (query, key, value), mask, bias, keep
        self.implementation = implementation

    def inputs(
        self,
        *,
        causal: bool | None = None,
        window: Limits | None = None,
        pattern: Pattern | None = None,
        projected: bool = True,
    ) -> tuple[Array, Array, Array]:
        """Query, key and value, upcast, 0 where unseen; a missing key is the query, a missing value the key.

        `attend` remembers who sees whom from here.

        Args:
            causal, window: who sees whom, if not as the config says.
            pattern: who sees whom besides.
            projected: False where the layer projects nothing: then `attend` sets to 0 what is unseen.
        """
        axes = "bhts" if "h" in self.sizes else "bts"
        masking: Any = self.who_sees_whom(causal, window, pattern)  # remembered for `attend`, too
        masking = masking if projected else {"step": self.step}
        return zero_unseen_inputs(self.tape, axes, *self.passed, **masking)

    def who_sees_whom(
        self, causal: bool | None = None, window: Limits | None = None, pattern: Pattern | None = None
    ) -> dict[str, Any]:
        """Set `masking`, and return it."""
        c = self.layer.config
        causal = getattr(c, "causal", False) if causal is None else causal
        window = getattr(c, "window", None) if window is None else window
        if self.step is not None and self.step.pattern is not None:
            pattern = self.step.pattern if pattern is None else pattern & self.step.pattern
        self.masking = {"mask": self.mask, "causal": causal, "window": window, "pattern": pattern, "step": self.step}
        return self.masking

    def zero_unseen_keys(self, subscripts: str, x: Array) -> Array:
        """x, one entry for each new key, 0 where no query sees the key, as `zero_unseen`; a step writes no such key."""
        if self.step is not None:
            return x
        t, s = self.like.shape[1], x.shape[1]
        masking: Any = {name: option for name, option in self.masking.items() if name != "step"}
        return zero_unseen(subscripts, query_and_key_masks(t=t, s=s, like=x, **masking)[1], x)

    def shared_keys(self, k: Any, v: Any) -> tuple[Array, Array]:
        """Keys and values of another layer, upcast, 0 where unseen; in a step those that its cache holds."""
        if self.step is not None and self.step.reads:
            return read_cached(self.step, self.like, "k", "v")
        k, v = record(self.tape, shared_k=upcast(k), shared_v=upcast(v))
        return self.zero_unseen_keys("bhts->bsgk", k), self.zero_unseen_keys("bhts->bsgk", v)

    def cached(self, **new: Array) -> Any:
        """The entries of the cache under these names, and the new ones behind them; without a cache the new alone."""
        return append(self.step, **new)

    def with_cached(self, k: Array, v: Array) -> tuple[Array, Array]:
        """Keys and values with those of the cache before them, unless the layer keeps something else or has done so."""
        step = self.step
        if step is None or "k" in step.arrays or "k" not in step.cache.arrays:
            return k, v
        return append(step, k=k, v=v)

    def allowed(self, t: int, s: int, like: Array) -> Array | None:
        """Who may attend to whom as one mask, broadcastable to the scores; None if every pair is allowed."""
        return attention_mask(t=t, s=s, like=like, head_axis="h" in self.sizes, **self.masking)

    def draw_keep(self) -> Array | None:
        """The keep-mask: the caller's, in training a random one, drawn once, or None."""
        if self.keep is None and self.layer.config.dropout > 0:
            axes = f"b {'h ' if 'h' in self.sizes else ''}t {'s' if 's' in self.sizes else 't'}"
            self.keep = self.keep_mask(None, axes)
        return self.keep

    def attend(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        part: str | None = None,
        memory_k: Array | None = None,
        memory_v: Array | None = None,
        **more: Any,
    ) -> Array:
        """The context: `attend_checked` of queries, keys and values as the call and the config ask for it.

        Args:
            part: where a layer attends more than once, the name of this time: its scope on the tape. Weights are added.
            memory_k, memory_v: learned keys and values, which every query sees beside those of the call.
            more: further options of `attend_checked`; they replace those of the call and of the config.
        """
        if self.step is not None and q.ndim == 4 and part is None and memory_k is None and self.goes_round(more):
            asked: Any = scoring(self.layer.config) | self.masking | more
            names = ("causal", "window", "pattern", "scale", "softcap", "sinks")
            return self.step.ring(q, k, v, **{name: asked.get(name) for name in names})
        k, v = (k, v) if self.step is None else self.with_cached(k, v)
        options: Any = {
            **self.masking, **scoring(self.layer.config), "bias": self.bias, "keep": self.draw_keep(),
            "tape": self.tape, "implementation": self.implementation, "return_weights": self.shows_weights,
        }  # fmt: skip
        if part is not None:  # one cast of the bias for all parts: their gradients are added before they are rounded
            self.bias, self.keep = upcast(self.bias), record(self.tape, keep=self.keep)
            options |= {"bias": self.bias, "tape": scope(self.tape, part)}
        s = k.shape[1]
        if memory_k is not None and memory_v is not None:
            q, k, v, options = with_memory(memory_k, memory_v, q, k, v, **options)
        context, weights = attend_checked(q, k, v, **options | more)
        weights = weights if weights is None or memory_k is None else weights[..., :s]
        self.weights = weights if self.weights is None or weights is None else self.weights + weights
        return context

    def goes_round(self, more: dict[str, Any]) -> bool:
        """Whether keys travel from device to device instead of being gathered: plain attention by position."""
        if self.step.ring is None or self.step.arrays:  # type: ignore[union-attr]
            return False
        is_plain = self.tape is None and not self.shows_weights and self.implementation == "auto"
        return is_plain and more.keys() <= {"scale", "sinks"}

    def takes_fast_path(self, q: Array, k: Array, v: Array, softmax_fn: Any = None) -> bool:
        """Whether `attend` with a softmax of these arrays, or these weights, never forms the weights."""
        options: Any = {"tape": self.tape, "return_weights": self.shows_weights, "softmax_fn": softmax_fn}
        return softmax_takes_fast_path(q, k, v, keep=self.draw_keep(), implementation=self.implementation, **options)

    def attend_in_rows(
        self, attend_rows: AttendRows, q: Array, k: Array, v: Array, softmax_fn: Any = None, **more: Any
    ) -> Array:
        """The context of a variant that says how some rows of queries attend: see `attend_in_row_blocks`."""
        if self.implementation != "auto":
            self.takes_fast_path(q, k, v, softmax_fn)  # of a short call and a long one, the same is refused
        k, v = self.with_cached(k, v)
        options: Any = {name: x for name, x in self.masking.items() if name != "pattern"}
        options |= {"bias": self.bias, "keep": self.draw_keep(), "implementation": self.implementation} | more
        context, self.weights = attend_in_row_blocks(
            attend_rows, self.tape, q, k, v, return_weights=self.shows_weights, **options
        )
        return context

    def attend_by(self, weigh: Callable[..., Array], q: Array, k: Array, v: Array, **more: Any) -> Array:
        """The context of a variant whose weights are no softmax: (tape, scores, allowed, **arrays) -> weights.

        With `weighing=`, the same weights by name, long calls without dropout and tape work in place, block by block.
        """
        options: Any = scoring(self.layer.config) | {"implementation": self.implementation}

        def attend_rows(
            tape: Tape, q: Array, k: Array, v: Array, allowed: Any, _: Any, bias: Any, keep: Any, **arrays: Any
        ) -> Any:
            softmax_fn = partial(weigh, tape, **arrays)
            shown: Any = {"tape": tape, "return_weights": self.shows_weights}
            return attend_checked(
                q, k, v, mask=allowed, bias=bias, keep=keep, softmax_fn=softmax_fn, **options, **shown
            )

        return self.attend_in_rows(attend_rows, q, k, v, weigh, **more)


def emptying_decay(continues: Array, v: Array) -> Array:
    """The decay of a state that does not decay, but is empty where a document begins, `b t h 1`."""
    return zero_unseen("bt->bthk", continues, 1.0 + zeros((*v.shape[:3], 1), v))


class RecurrentCall(LayerCall):
    """A call of a layer whose state sums up the positions so far; it is in the cache between steps of decoding.

    Attributes:
        x: the inputs, upcast, 0 at padding.
        real: the positions that are no padding, broadcastable to `b t`; None for all.
        continues: the positions that begin no document, `b t`; None for all.
    """

    def __init__(
        self,
        layer: Any,
        query: Array,
        *,
        mask: Array | None = None,
        documents: Array | None = None,
        tape: Tape = None,
        step: DecodeStep | None = None,
    ) -> None:
        super().__init__(layer, tape=tape, step=step, query=query, mask=mask, documents=documents)
        x, self.real = record(tape, x=upcast(query), real=real_mask(mask, step))
        self.continues = record(tape, continues=continued_documents(step, documents, self.real))
        self.x = record(tape, zeroed_query=zero_unseen("bt->btd", self.real, x))

    def run(self, form: Form, v: Array) -> Array:
        """The outputs `b t h v` of a recurrence from the cached state, or from 0; the last state is cached."""
        zero_state = zeros(tuple(self.sizes[letter] for letter in "bhkv"), self.x)
        y, state = run_form(self.step, form, v, read_state(self.step, "state", zero_state), self.tape)
        write_state(self.step, state=state)
        return y
