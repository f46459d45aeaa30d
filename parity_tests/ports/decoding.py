"""A step with a cache of your own against the full pass and our steps, and what is wrong with the cache."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import numpy as np

from attn_np._decode import DecodeStep, begin_step, end_step
from attn_np.contract import Config
from parity_tests.bounds.error_array import ErrArray, delivered
from parity_tests.explain.causes import explain
from parity_tests.explain.findings import Cause, Finding
from parity_tests.judge.candidates import numpy_layer, to_torch
from parity_tests.judge.cases import Case, draw, given
from parity_tests.judge.consequences import wide
from parity_tests.judge.judging import Row, compare, reference
from parity_tests.ports.adapters import port
from parity_tests.ports.names import Names, Weights, framework_of
from parity_tests.ports.parity import ParityError, UntestedError, Verdict, config_of, judged_in_types
from parity_tests.ports.plan import prepared
from parity_tests.ports.port import Port
from parity_tests.ports.sizes import asked_sizes
from parity_tests.ports.trace import Trace, record

# The longest sequence that is judged unless another length is asked for: bounds of a full pass cost time.
LONGEST = 67


def assert_decoding_parity(
    candidate: Any,
    variant: str,
    config: Config | Mapping[str, Any] | None = None,
    *,
    step: Callable[..., tuple[Any, Any]],
    init: Callable[[Any, int, int], Any] | None = None,
    length: int | None = None,
    batch: int | None = None,
    strict: bool = False,
    weights: Weights = None,
    framework: str | None = None,
    dtype: str | None = None,
    seed: int = 0,
    device: str | None = None,
    **fields: Any,
) -> Verdict:
    """Judge an implementation's decoding: the outputs of its steps must be those of one pass over the whole sequence.

    A sequence is given in pieces, a prompt of about half of it, then two positions and then single ones, to a cache
    with room for just this many. Outputs are compared with the reference's full pass and with our steps over the same
    pieces, in float64 and in the candidate's own type, as `assert_parity` does. Where `step` takes `valid`, the same is
    done with sequences of different lengths: the prompt of the first has padding on its left. Gradients are judged
    through all steps where the cache lets them pass; `verdict.notes` says where it does not.

    Args:
        candidate, variant, config, weights, framework, dtype, batch, strict, seed, device, fields: those of
            `assert_parity`.
        step: `step(candidate, x, cache)` returns the outputs of new positions `b n d` and the cache after them. Where
            it is `step(candidate, x, cache, valid)`, `valid` of shape `b n` is False at padding.
        init: `init(candidate, batch_size, max_length)` returns an empty cache; without it the first cache is None.
        length: of the sequence; by default 11, and with a window more than twice what a query sees, up to 67.

    Returns:
        The verdict on outputs and gradients.

    Raises:
        ParityError: it differs; the message names the first step that does, and what is wrong with the cache.
        ValueError, TypeError: a variant that does not decode one sequence, or names that do not fit.
    """
    __tracebackhide__ = True
    made = config_of("assert_decoding_parity", variant, config, fields)
    if not made.cache_axes() or given(made, "plain") != ("query",):
        raise ValueError(
            f"assert_decoding_parity: expected a layer that decodes one sequence, got {made}; "
            f"use a causal self-attention config"
        )
    for name, function in (("step", step), ("init", init)):
        if not callable(function) and (name, function) != ("init", None):
            raise TypeError(
                f"assert_decoding_parity: expected {name}= to be a function, got {type(function).__name__}; "
                f"give one that calls the candidate"
            )
    if length is not None and (not isinstance(length, int) or length < 2):
        raise ValueError(f"assert_decoding_parity: expected length= from 2, got {length!r}; leave it out or raise it")
    sizes = asked_sizes("assert_decoding_parity", made, None, None, batch)
    notes: list[str] = []
    t = length or usual_length(made, notes)
    kind = framework or framework_of(candidate)

    def ported(dtype: str | None, ragged: bool = False, gradients: bool = True) -> Port:
        def decode(module: Any, query: Any) -> Any:
            return stepped(module, query, step, init, ragged)

        names = Names(weights, None, ("y",), {}, decode, gradients=gradients)
        return port(candidate, made, names, framework, dtype, device)

    def run(found: Port) -> Iterator[Trace]:
        for ragged in (False, True) if "valid" in signature(step).parameters else (False,):
            case = Case(made.variant, RAGGED if ragged else EVEN, "plain", found.dtype, seed, made)
            drawn = prepared(found, case, draw(case, lengths=sizes | {"t": t}), True, {"y"})
            chosen = ported(found.dtype, ragged) if ragged else found
            try:
                trace = record(chosen.candidate, case, drawn, partial=True)
            except Exception as error:  # whatever a cache raises that is written to where gradients are asked for
                chosen = ported(found.dtype, ragged, gradients=False)
                trace = record(chosen.candidate, case, drawn, partial=True)
                words = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"
                notes.append(f"gradients through the steps not judged: {words}")
            yield trace

    def check(found: Port, traces: list[Trace], note: str) -> list[Row]:
        __tracebackhide__ = True
        return judged_steps(found, traces, note, notes)

    verdict = judged_in_types(ported, run, check, kind, dtype)
    verdict.notes = list(dict.fromkeys([*verdict.notes, *notes]))
    if strict and verdict.untested:
        raise UntestedError(verdict)
    return verdict


EVEN, RAGGED = "equal lengths", "unlike lengths"


def usual_length(config: Config, notes: list[str]) -> int:
    """A sequence that makes a cache grow several times, and goes more than twice around a ring of slots."""
    slots, most = config.cache_slots() or 0, getattr(config, "max_positions", None) or LONGEST
    around = 2 * slots + 3
    if around > min(LONGEST, most):
        notes.append(f"the edge of the window not crossed: pass length={around} or more")
        around = 0
    return min(max(11, around), most)


def schedule(b: int, t: int, ragged: bool) -> list[np.ndarray]:
    """The positions of each piece, `b n`; -1 for padding.

    A prompt of about half, then two positions, then single ones. In a ragged batch the first sequence is behind by the
    padding on the left of its prompt, and the others end before it does.
    """
    lags = lag_of(b, t, ragged)
    columns = t + int(lags.max())
    at = np.arange(columns) - lags
    at = np.where((at >= 0) & (at < t), at, -1)
    starts = [0, t // 2, *range(t // 2 + 2, columns)] if t > 1 else [0]
    return [at[:, start:end] for start, end in zip(starts, [*starts[1:], columns], strict=True)]


def lag_of(b: int, t: int, ragged: bool) -> np.ndarray:
    """How many positions of padding the prompt of each sequence has on its left, `b 1`."""
    return min(2, t // 2 - 1) * (np.arange(b) == 0)[:, None] * ragged


def in_order(y: Any, t: int, ragged: bool) -> Any:
    """The outputs of all pieces, joined, at the positions of the sequences."""
    b = y.shape[0]
    return y[np.arange(b)[:, None], np.arange(t) + lag_of(b, t, ragged)] if ragged else y


def stepped(module: Any, query: Any, step: Any, init: Any, ragged: bool) -> Any:
    """The outputs of a candidate's steps, joined.

    Raises:
        TypeError: a step that returns something else than outputs and a cache.
    """
    b, t = query.shape[:2]
    plan, kind = schedule(b, t, ragged), type(query).__module__.partition(".")[0]
    cache = None if init is None else init(module, b, sum(at.shape[1] for at in plan))
    takes_valid, outputs = "valid" in signature(step).parameters, []
    for at in plan:
        # Padding holds numbers of the sequence's end.
        x = query[np.arange(b)[:, None], np.where(at < 0, t - 1, at)]
        valid = to_torch(at >= 0, query.device) if kind == "torch" else at >= 0
        result = step(module, x, cache, **({"valid": valid} if takes_valid else {}))
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(
                f"assert_decoding_parity: expected step= to return the outputs and the cache, got "
                f"{type(result).__name__}; return both as a tuple"
            )
        y, cache = result
        outputs.append(y)
    if kind == "torch":
        import torch

        return in_order(torch.cat(outputs, 1), t, ragged)
    if kind.startswith("jax"):
        import jax.numpy as jnp

        return in_order(jnp.concatenate(outputs, 1), t, ragged)
    return in_order(np.concatenate(outputs, 1), t, ragged)


def judged_steps(found: Port, traces: list[Trace], note: str, notes: list[str]) -> list[Row]:
    """The verdicts on a candidate's steps.

    Raises:
        ParityError: they differ.
    """
    __tracebackhide__ = True
    rows: list[Row] = []
    for trace in traces:
        part = trace.verdicts()[0]
        wrong = {row.stage for row in part if not row.ok}
        if wrong and "output" not in wrong and stops_gradients(found, trace):
            notes.append("gradients through the steps not judged: the cache stops them")
            part = [row for row in part if row.stage == "output"]
        if not all(row.ok for row in part):
            raise ParityError(found_in(trace), note)
        rows += part
        if trace.case.example == EVEN:
            want = ErrArray(our_steps(trace), whole(trace).b)
            rows.append(Row(trace.who, trace.case, "output", "y", **compare(trace.outcome.outputs["y"], want)))
    return rows


def stops_gradients(found: Port, trace: Trace) -> bool:
    """Whether what comes after the prompt gives the prompt no gradient, as caches that are detached do not."""
    dy = np.array(trace.drawn.pulled["y"])
    prompt = dy.shape[1] // 2
    dy[:, :prompt] = 0
    outcome = found.candidate.run(trace.case, replace(trace.drawn, pulled={"y": dy}), True)
    return not outcome.grads["dquery"][:, :prompt].any()


def whole(trace: Trace) -> ErrArray:
    """The outputs of the reference's full pass with their bounds."""
    found, _ = reference(trace.case, trace.drawn, {}, trace.judged().precision, backward=False)
    return delivered(found["y"], trace.case.dtype)


def found_in(trace: Trace) -> Finding:
    """What is wrong with a candidate's steps: which is the first that differs, and what is wrong with the cache.

    Where the prompt is wrong already, or no mistake with a cache gives the numbers, it is any other mistake.
    """
    finding = explain(trace.judged(), causes=False)
    if finding is None:
        raise ValueError("found_in: expected steps that differ, got ones that agree; look at the verdicts")
    want, got = whole(trace), trace.outcome.outputs["y"]
    if got.shape != want.shape:
        return finding
    with np.errstate(invalid="ignore"):
        wrong = np.any(~(np.abs(got - want.v) <= want.b), axis=-1)
    if not wrong.any():  # of the gradients
        return explain(trace.judged()) or finding
    first, ragged = int(np.argmax(wrong.any(0))), trace.case.example == RAGGED
    row = int(np.argmax(wrong[:, first]))
    plan = schedule(got.shape[0], got.shape[1], ragged)
    number = next(i for i, at in enumerate(plan) if (at[row] == first).any())
    named = "the prompt" if number == 0 else f"step {number} after the prompt"
    before = f"; the {first} positions before it agree" if first else ""
    finding.patterns.insert(0, f"first wrong at position {first}, in {named}{before}")
    if ragged:
        finding.patterns.insert(1, f"in sequence {row} of a batch with padding; sequences of equal length agree")
    finding.causes = list(cache_causes(trace, got, want)) if number or ragged else []
    if not finding.causes and not ragged:
        whole_pass = explain(trace.judged())
        finding.causes = [] if whole_pass is None else whole_pass.causes
    return finding


# What goes wrong with caches ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mistaken(DecodeStep):
    """A step whose mask is made of positions of its own.

    Attributes:
        mask_query_positions, mask_key_positions: the positions that decide who sees whom.
        newest: how many positions ahead of its own a query sees: -1 hides its own key.
    """

    mask_query_positions: Any = None
    mask_key_positions: Any = None
    newest: int = 0

    def window_mask(self, left: int | None, right: int | None) -> Any:
        plain = replace(self, query_positions=self.mask_query_positions, key_positions=self.mask_key_positions)
        right = right if right is None else right + self.newest
        return DecodeStep.window_mask(plain, left, right)


def mistaken(step: DecodeStep, shift: Any = 0, restart: bool = False, **changes: Any) -> Mistaken:
    """A step with another position for what is new; the mask stays right."""
    values = {name: getattr(step, name) for name in DecodeStep.__dataclass_fields__}
    at, n = step.query_positions, step.query_positions.shape[1]
    query_positions = np.broadcast_to(np.arange(n), at.shape) if restart else at + shift
    # The keys of this step have the positions of its queries; earlier ones keep those they were stored with.
    key_positions = np.array(step.key_positions)
    for b in range(at.shape[0]):
        for old, new in zip(at[b], query_positions[b], strict=True):
            key_positions[b, step.key_positions[b] == old] = new
    values |= {"query_positions": query_positions, "mask_query_positions": at}
    values |= {"key_positions": key_positions, "mask_key_positions": step.key_positions}
    return Mistaken(**values | changes)


def written_over(step: DecodeStep, config: Config, new: np.ndarray) -> DecodeStep:
    """The step that a count of cached positions gives that is one too small."""
    short = replace(step.cache, length=step.cache.length - 1)
    return begin_step(config, short, new, np.ones(new.shape[:2], bool))


Change = Callable[[DecodeStep, Config, np.ndarray], DecodeStep]
# With sequences of different lengths.
PADDING_MISTAKES: tuple[tuple[str, str, Change], ...] = (
    (
        "padding is seen",
        "leave padding out of the cache, or hide its keys in every later step, too",
        lambda step, config, new: begin_step(config, step.cache, new, np.ones(new.shape[:2], bool)),
    ),
    (
        "one position for all sequences",
        "count the positions of each sequence by itself: those with padding are behind",
        lambda step, *_: mistaken(step, behind(step) if step.cache.length.any() else 0),
    ),
)
CACHE_MISTAKES: tuple[tuple[str, str, Change], ...] = (
    (
        "cache position one too large",
        "count positions from 0: the first new one is at the number of cached positions",
        lambda step, *_: mistaken(step, 1),
    ),
    (
        "cache position one too small",
        "the first new position is the number of cached positions, not the last cached one",
        lambda step, *_: mistaken(step, -1),
    ),
    (
        "positions start again at 0 in every step",
        "add the number of cached positions to those of the new ones",
        lambda step, *_: mistaken(step, restart=True),
    ),
    (
        "keys and values written one slot too late",
        "write new entries at the number of cached positions, without a slot left empty",
        lambda step, *_: mistaken(step, slot=step.slot + 1),
    ),
    (
        "keys and values written one slot too early",
        "write new entries behind the last cached one, not over it",
        lambda step, *_: mistaken(step, slot=step.slot - 1),
    ),
    (
        "the newest key is not seen",
        "append first, attend then: a query sees its own position",
        lambda step, *_: mistaken(step, newest=-1),
    ),
    (
        "one key of the future is seen",
        "in a step of several positions each sees the cache and the new ones up to its own",
        lambda step, *_: mistaken(step, newest=1),
    ),
    (
        "the cache is not seen",
        "attend to the cached keys and values too, not to those of this step alone",
        lambda step, *_: forgetful(step),
    ),
    (
        "cache length one too small",
        "count every cached position: the last one is written over, and what follows has its position",
        written_over,
    ),
)


def behind(step: DecodeStep) -> np.ndarray:
    """How many positions fewer than the longest each sequence has, `b 1`."""
    return step.query_positions[:, -1:].max() - step.query_positions[:, -1:]


def forgetful(step: DecodeStep) -> DecodeStep:
    """A step that sees its own positions only."""
    own = step.key_positions >= step.query_positions[:, :1]
    return mistaken(step, mask_key_positions=np.where(own, step.key_positions, -1))


def our_steps(trace: Trace, change: Change | None = None) -> np.ndarray:
    """The outputs of our NumPy layer's steps in float64, maybe with a mistake: in those after the prompt, and in the
    prompt too where it has padding.
    """
    case, drawn = trace.case.at("float64"), wide(trace.drawn)
    layer, x, ragged = numpy_layer(case, drawn.params), drawn.inputs["query"], case.example == RAGGED
    b, t = x.shape[:2]
    plan, outputs = schedule(b, t, ragged), []
    room = sum(at.shape[1] for at in plan) + (change is not None)  # for an entry that is written too late
    cache = layer.init_cache(b, room)
    for i, at in enumerate(plan):
        new, valid = x[np.arange(b)[:, None], np.where(at < 0, t - 1, at)], at >= 0
        step = begin_step(case.config, cache, new, valid)
        step = change(step, case.config, new) if change is not None and (i or ragged) else step
        y, cache = end_step(step, layer(new, step=step))
        if isinstance(step, Mistaken):  # what comes next counts as it should
            true = begin_step(case.config, replace(cache, length=step.cache.length), new, valid)
            cache = replace(cache, positions=true.slot_positions)
        outputs.append(y)
    return in_order(np.concatenate(outputs, 1), t, ragged)


def cache_causes(trace: Trace, got: np.ndarray, want: ErrArray) -> Iterator[Cause]:
    """The mistakes with a cache that give a candidate's outputs, in our steps."""
    for name, fix, change in PADDING_MISTAKES if trace.case.example == RAGGED else CACHE_MISTAKES:
        with np.errstate(all="ignore"):
            outputs = our_steps(trace, change)
            share = np.abs(got - outputs) / np.where(want.b == 0, np.inf, want.b)
            told = bool((np.abs(outputs - want.v) > 2 * want.b).any())
        if told and np.isfinite(outputs).all() and share.max() <= 1:
            yield Cause(name, fix, float(share.max()), "our steps with this mistake give these numbers")
