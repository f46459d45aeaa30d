"""A step with a cache of your own against the full pass and our steps, and what is wrong with the cache."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from inspect import signature
from typing import Any

import numpy as np

from attn_np.contract import Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.judge.candidates import to_torch
from parity_tests.judge.cases import Case, draw, given
from parity_tests.judge.judging import Row, compare
from parity_tests.ports.adapters import NO_GRADIENTS, port
from parity_tests.ports.decoding_causes import EVEN, RAGGED, Other, found_in, kept_in, wanted
from parity_tests.ports.names import Names, Weights, framework_of
from parity_tests.ports.parity import ParityError, UntestedError, Verdict, config_of, judged_in_types
from parity_tests.ports.plan import prepared
from parity_tests.ports.port import Port
from parity_tests.ports.sizes import asked_sizes
from parity_tests.ports.steps import Decoding, decodes, in_order, schedule
from parity_tests.ports.trace import Trace, record

__tracebackhide__ = True  # pytest shows the test and what was found, not the way between them
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

    A sequence is given in pieces, a prompt of about half of it, then three positions and then single ones, to a cache
    with room for just this many. Outputs are compared with the reference's full pass and with our steps over the same
    pieces, in float64 and in the candidate's own type, as `assert_parity` does. Where `step` takes `valid`, the same is
    done with sequences of different lengths: the prompt of the first has padding on its left. Gradients are judged
    through all steps where the cache lets them pass; `verdict.notes` says where it does not. The steps run a second
    time, so that a state that is kept between sequences shows; where they differ, the whole sequence is also given in
    one step, and the message says whether that is right.

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
    if not decodes(made):
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
    t = judged_length(made, length, notes)
    kind = framework or framework_of(candidate)

    def ported(dtype: str | None, ragged: bool = False, gradients: bool = True, at_once: bool = False) -> Port:
        def decode(module: Any, query: Any) -> Any:
            return stepped(module, query, step, init, ragged, at_once)

        def decode_x(module: Any, x: Any) -> Any:
            return decode(module, x)

        call = decode if given(made, "plain") == ("query",) else decode_x
        names = Names(weights, None, ("y",), {}, call, gradients=gradients)
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

    def other(trace: Trace, at_once: bool = True, times: int = 1) -> Trace | None:
        """The last of some runs in one piece or in the same ones, without gradients; None where it raises."""
        try:
            found = ported(trace.case.dtype, trace.case.example == RAGGED, gradients=False, at_once=at_once)
            return [record(found.candidate, trace.case, trace.drawn, partial=True) for _ in range(times)][-1]
        except Exception:  # whatever a cache raises that has no room, or a module that cannot be copied
            return None

    def check(found: Port, traces: list[Trace], note: str) -> list[Row]:
        __tracebackhide__ = True
        return judged_steps(found, traces, note, notes, other)

    verdict = judged_in_types(ported, run, check, kind, dtype)
    own = [NO_GRADIENTS.partition(";")[0] if note == NO_GRADIENTS else note for note in verdict.notes]  # takes no vjp=
    verdict.notes = list(dict.fromkeys([*own, *notes]))
    if strict and verdict.open:
        raise UntestedError(verdict)
    return verdict


def judged_length(config: Config, length: int | None, notes: list[str]) -> int:
    """The length that is asked for, or one that makes a cache grow several times and goes more than twice around a ring
    of slots; what a shorter one leaves open gets a note.
    """
    slots, most = config.cache_slots() or 0, getattr(config, "max_positions", None) or LONGEST
    around = 2 * slots + 3
    usual = min(max(11, around if around <= LONGEST else 0), most)
    t = length or usual
    if t <= slots:
        notes.append(f"the edge of the window not crossed: pass length={around} or more")
    elif t < around:
        notes.append(f"a ring of {slots} slots not gone round twice: pass length={around} or more")
    return t


def stepped(module: Any, query: Any, step: Any, init: Any, ragged: bool, at_once: bool = False) -> Any:
    """The outputs of a candidate's steps, joined; or of one step with the whole sequence.

    Raises:
        TypeError: a step that returns something else than outputs and a cache.
    """
    b, t = query.shape[:2]
    plan, kind = schedule(b, t, ragged), type(query).__module__.partition(".")[0]
    plan = [np.concatenate(plan, 1)] if at_once else plan
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


def judged_steps(found: Port, traces: list[Trace], note: str, notes: list[str], other: Other) -> list[Row]:
    """The verdicts on a candidate's steps.

    Args:
        found: the candidate.
        traces: what it computed.
        note: is added to the message.
        notes: gets what was not judged.
        other: gives a further run of it.

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
            raise ParityError(found_in(trace, other), note)
        rows += part
        if trace.case.example == EVEN:
            want = ErrArray(ours(trace), wanted(trace).b)
            rows.append(Row(trace.who, trace.case, "output", "y", **compare(trace.outcome.outputs["y"], want)))
            again = other(trace, at_once=False, times=2)
            if again is not None and not all(row.ok for row in again.verdicts()[0] if row.stage == "output"):
                raise ParityError(kept_in(again), note)
    return rows


def stops_gradients(found: Port, trace: Trace) -> bool:
    """Whether what comes after the prompt gives the prompt no gradient, as caches that are detached do not."""
    dy, name = np.array(trace.drawn.pulled["y"]), given(trace.case.config, "plain")[0]
    prompt = dy.shape[1] // 2
    dy[:, :prompt] = 0
    outcome = found.candidate.run(trace.case, replace(trace.drawn, pulled={**trace.drawn.pulled, "y": dy}), True)
    return not outcome.grads[f"d{name}"][:, :prompt].any()


def ours(trace: Trace) -> np.ndarray:
    """The outputs of our steps in float64, over the same pieces."""
    pieces = Decoding(trace.case, trace.drawn, ragged=False).layered()
    return np.concatenate(list(pieces), 1)
