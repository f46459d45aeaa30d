"""A step with a cache of your own against the full pass and our steps, and what is wrong with the cache."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attn_np._decode import DecodeStep, begin_step, end_step
from attn_np.contract import Config
from parity_tests.bounds.error_array import ErrArray, delivered
from parity_tests.explain.causes import explain
from parity_tests.explain.findings import Cause, Finding
from parity_tests.explain.verdicts import verdicts
from parity_tests.judge.candidates import numpy_layer
from parity_tests.judge.cases import given
from parity_tests.judge.consequences import wide
from parity_tests.judge.judging import Row, compare, reference
from parity_tests.ports.adapters import port
from parity_tests.ports.names import Names, Weights, framework_of
from parity_tests.ports.parity import ParityError, Verdict, config_of, judged_in_types, runs
from parity_tests.ports.port import Port
from parity_tests.ports.trace import Trace


def assert_decoding_parity(
    candidate: Any,
    variant: str,
    config: Config | Mapping[str, Any] | None = None,
    *,
    step: Callable[[Any, Any, Any], tuple[Any, Any]],
    init: Callable[[Any, int, int], Any] | None = None,
    weights: Weights = None,
    framework: str | None = None,
    dtype: str | None = None,
    seed: int = 0,
    device: str | None = None,
    **fields: Any,
) -> Verdict:
    """Judge an implementation's decoding: the outputs of its steps must be those of one pass over the whole sequence.

    A sequence is given in pieces, a prompt, then two positions and then single ones, to a cache with room for just this
    many. Outputs are compared with the reference's full pass and with our steps over the same pieces, in float64 and
    in the candidate's own type, as `assert_parity` does. Gradients are not asked for.

    Args:
        candidate, variant, config, weights, framework, dtype, seed, device, fields: those of `assert_parity`.
        step: `step(candidate, x, cache)` returns the outputs of new positions `b n d` and the cache after them.
        init: `init(candidate, batch_size, max_length)` returns an empty cache; without it the first cache is None.

    Returns:
        The verdict on the outputs.

    Raises:
        ParityError: it differs; the message names the first step that does, and what is wrong with the cache.
        ValueError, TypeError: a variant that does not decode one sequence, or names that do not fit.
    """
    __tracebackhide__ = True
    made = config_of("assert_decoding_parity", variant, config, fields)
    if not made.cached() or given(made, "plain") != ("query",):
        raise ValueError(
            f"assert_decoding_parity: expected a layer that decodes one sequence, got {made}; "
            f"use a causal self-attention config"
        )

    def decode(module: Any, query: Any) -> Any:
        return stepped(module, query, step, init)

    names = Names(weights, None, ("y",), {}, decode, gradients=False)
    return judged_in_types(
        lambda kind: port(candidate, made, names, framework, kind, device),
        lambda found: runs(found, made, ("plain",), True, seed, ("y",)),
        judged_steps,
        framework or framework_of(candidate),
        dtype,
    )


def pieces(t: int) -> list[slice]:
    """A prompt of about half, then two positions, then single ones."""
    starts = [0, t // 2, *range(t // 2 + 2, t)] if t > 1 else [0]
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], t], strict=True)]


def stepped(module: Any, query: Any, step: Any, init: Any) -> Any:
    """The outputs of a candidate's steps, joined.

    Raises:
        TypeError: a step that returns something else than outputs and a cache.
    """
    cache = None if init is None else init(module, query.shape[0], query.shape[1])
    outputs = []
    for part in pieces(query.shape[1]):
        result = step(module, query[:, part], cache)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(
                f"assert_decoding_parity: expected step= to return the outputs and the cache, got "
                f"{type(result).__name__}; return both as a tuple"
            )
        y, cache = result
        outputs.append(y)
    kind = type(outputs[0]).__module__.partition(".")[0]
    if kind == "torch":
        import torch

        return torch.cat(outputs, 1)
    if kind.startswith("jax"):
        import jax.numpy as jnp

        return jnp.concatenate(outputs, 1)
    return np.concatenate(outputs, 1)


def judged_steps(found: Port, traces: list[Trace], note: str) -> list[Row]:
    """The verdicts on a candidate's steps.

    Raises:
        ParityError: they differ.
    """
    __tracebackhide__ = True
    (trace,) = traces
    rows = [*verdicts(trace.judged())[0]]
    if all(row.ok for row in rows):
        got, bound = trace.outcome.outputs["y"], whole(trace).b
        ours = Row(trace.who, trace.case, "output", "y", **compare(got, ErrArray(our_steps(trace), bound)))
        return [*rows, ours]
    raise ParityError(found_in(trace), note)


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
        wrong = ~(np.abs(got - want.v) <= want.b)
    first = int(np.argmax(wrong.any(axis=tuple(i for i in range(wrong.ndim) if i != 1))))
    number = next(i for i, part in enumerate(pieces(got.shape[1])) if part.start <= first < part.stop)
    named = "the prompt" if number == 0 else f"step {number} after the prompt"
    before = f"; the {first} positions before it agree" if first else ""
    finding.patterns.insert(0, f"first wrong at position {first}, in {named}{before}")
    finding.causes = list(cache_causes(trace, got, want)) if number else []
    if not finding.causes:
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

    def attention_mask(self, left: int | None, right: int | None) -> Any:
        plain = replace(self, query_positions=self.mask_query_positions, key_positions=self.mask_key_positions)
        right = right if right is None else right + self.newest
        return DecodeStep.attention_mask(plain, left, right)


def mistaken(step: DecodeStep, shift: int = 0, restart: bool = False, **changes: Any) -> Mistaken:
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


def forgetful(step: DecodeStep) -> DecodeStep:
    """A step that sees its own positions only."""
    own = step.key_positions >= step.query_positions[:, :1]
    return mistaken(step, mask_key_positions=np.where(own, step.key_positions, -1))


def our_steps(trace: Trace, change: Change | None = None) -> np.ndarray:
    """The outputs of our NumPy layer's steps in float64, maybe with a mistake in those after the prompt."""
    case, drawn = trace.case.at("float64"), wide(trace.drawn)
    layer, x = numpy_layer(case, drawn.params), drawn.inputs["query"]
    room = x.shape[1] + (change is not None)  # for an entry that is written too late
    cache, outputs = layer.init_cache(x.shape[0], room), []
    for i, part in enumerate(pieces(x.shape[1])):
        new = x[:, part]
        step = begin_step(case.config, cache, new, np.ones(new.shape[:2], bool))
        step = change(step, case.config, new) if change is not None and i else step
        y, cache = end_step(step, layer(new, step=step))
        if isinstance(step, Mistaken):  # what comes next counts as it should
            true = begin_step(case.config, replace(cache, length=step.cache.length), new, np.ones(new.shape[:2], bool))
            cache = replace(cache, positions=true.slot_positions)
        outputs.append(y)
    return np.concatenate(outputs, 1)


def cache_causes(trace: Trace, got: np.ndarray, want: ErrArray) -> Iterator[Cause]:
    """The mistakes with a cache that give a candidate's outputs, in our steps."""
    for name, fix, change in CACHE_MISTAKES:
        with np.errstate(all="ignore"):
            outputs = our_steps(trace, change)
            share = np.abs(got - outputs) / np.where(want.b == 0, np.inf, want.b)
            told = bool((np.abs(outputs - want.v) > 2 * want.b).any())
        if told and np.isfinite(outputs).all() and share.max() <= 1:
            yield Cause(name, fix, float(share.max()), "our steps with this mistake give these numbers")
