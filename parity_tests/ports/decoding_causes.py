"""What is wrong with steps: the first that differs, whether the whole sequence at once is right, and the mistake."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from parity_tests.bounds.error_array import ErrArray, delivered
from parity_tests.bounds.precision import EXACT
from parity_tests.explain.catalogue import Mistake, catalogue
from parity_tests.explain.causes import explain
from parity_tests.explain.findings import MOST, Cause, Finding
from parity_tests.explain.search import REFUSALS
from parity_tests.explain.verdicts import Setup, tree_of
from parity_tests.judge.candidates import numpy_layer
from parity_tests.judge.cases import Case
from parity_tests.judge.judging import reference
from parity_tests.ports.differences import CHANCE
from parity_tests.ports.step_mistakes import CACHE_MISTAKES, PADDING_MISTAKES, StepMistake
from parity_tests.ports.steps import Decoding
from parity_tests.ports.trace import Trace

EVEN, RAGGED = "equal lengths", "unlike lengths"
AT_ONCE = "given the whole sequence at once it {}"
KEPT = "the state or cache is not reset between sequences"
KEPT_FIX = "begin each sequence with an empty cache: make it in init=, or where the cache is None"
Other = Callable[..., Trace | None]
PLACES = {"all": "", "prompt": ", in the prompt alone", "steps": ", in steps alone"}


def wanted(trace: Trace) -> ErrArray:
    """The outputs of the reference's full pass with their bounds."""
    found, _ = reference(trace.case, trace.drawn, {}, trace.judged().precision, backward=False)
    return delivered(found["y"], trace.case.dtype)


def found_in(trace: Trace, other: Other) -> Finding:
    """What is wrong with a candidate's steps: which is the first that differs, and what is wrong with the cache.

    Args:
        trace: its run, in pieces.
        other: gives a further run of it, by default with the whole sequence in one piece.
    """
    finding = explain(trace.judged(), causes=False)
    if finding is None:
        raise ValueError("found_in: expected steps that differ, got ones that agree; look at the verdicts")
    want, got = wanted(trace), trace.outcome.outputs["y"]
    if got.shape != want.shape:
        return finding
    wrong = np.any(beyond(got, want), axis=-1)
    if not wrong.any():  # of the gradients
        return explain(trace.judged()) or finding
    ragged = trace.case.example == RAGGED
    decoding = Decoding(trace.case, trace.drawn, ragged)
    first = int(np.argmax(wrong.any(0)))
    row = int(np.argmax(wrong[:, first]))
    number = next(i for i, at in enumerate(decoding.plan) if (at[row] == first).any())
    named = "the prompt" if number == 0 else f"step {number} after the prompt"
    words = "the position before it agrees" if first == 1 else f"the {first} positions before it agree"
    before = f"; {words}" if first else ""
    finding.patterns.insert(0, f"first wrong at position {first}, in {named}{before}")
    if ragged:
        finding.patterns.insert(1, f"in sequence {row} of a batch with padding; sequences of equal length agree")
    whole = other(trace)
    agrees = None if whole is None else not beyond(whole.outcome.outputs["y"], want).any()
    if agrees is not None:
        words = "agrees: only its steps are wrong" if agrees else "differs, too"
        finding.patterns.insert(1, AT_ONCE.format(words))
    chance = by_itself(trace, other, want)
    if chance is not None:
        finding.causes = [chance]
        return finding
    finding.causes = list(causes(decoding, got, want, agrees))[:MOST]
    if not finding.causes and whole is not None and not agrees:
        full = explain(whole.judged())
        finding.causes = [] if full is None else full.causes
        finding.after = None if full is None else full.after
    if not finding.causes:
        finding.next_step = next_step(decoding, number, agrees)
    return finding


def beyond(got: np.ndarray, want: ErrArray) -> np.ndarray:
    """Where numbers are beyond their bounds, NaN included; everywhere where shapes differ."""
    if got.shape != want.shape:
        return np.ones(want.shape, bool)
    with np.errstate(invalid="ignore"):
        return ~(np.abs(got - want.v) <= want.b)


def next_step(decoding: Decoding, number: int, agrees: bool | None) -> str:
    """What would show more, where no known mistake gives the numbers."""
    if agrees is False:
        return "give the layer's forward to assert_parity with taps=: its full pass is wrong before any cache is"
    variant, n = decoding.config.variant, decoding.plan[number].shape[1]
    what = ", ".join(decoding.config.cache_axes()) or "the state"
    when = "the prompt" if number == 0 else f"step {number}, of {n} new position{'s' * (n > 1)}"
    return (
        f"print the cache ({what}), positions and mask of {when}, beside those of "
        f"attn_np.build({variant!r}, ...).step(x, cache, tape=tape) on the same pieces"
    )


def causes(decoding: Decoding, got: np.ndarray, want: ErrArray, agrees: bool | None) -> Iterator[Cause]:
    """The mistakes that give a candidate's outputs when they are made in our steps, each once.

    Args:
        decoding: ours.
        got, want: the candidate's outputs, and what they should be.
        agrees: whether it is right where it gets the whole sequence at once; None where that is not known.
    """
    table = PADDING_MISTAKES if decoding.ragged else CACHE_MISTAKES
    tried = [mistake for mistake in table if not (agrees and mistake.whole)]
    tried.sort(key=lambda mistake: agrees is False and not mistake.whole)
    found = [cause for mistake in tried if (cause := fitted(decoding, got, want, mistake)) is not None]
    yield from found
    if not found and not decoding.ragged:
        yield from known(decoding, got, want, ("steps",) if agrees else ("all", "prompt", "steps"))


def fitted(decoding: Decoding, got: np.ndarray, want: ErrArray, mistake: StepMistake) -> Cause | None:
    """The cause that a mistake with a cache is, in the way of writing it that is nearest; None where none fits."""
    shares = []
    with suppress(*REFUSALS), np.errstate(all="ignore"):
        for pieces in mistake.runs(decoding):
            with suppress(*REFUSALS):
                shares.append(share_of(decoding, got, want, pieces))
    fits = [share for share in shares if share is not None]
    return (
        Cause(mistake.name, mistake.fix, min(fits), "our steps with this mistake give these numbers") if fits else None
    )


def share_of(decoding: Decoding, got: np.ndarray, want: ErrArray, pieces: Iterable[np.ndarray]) -> float | None:
    """The largest error/bound of a candidate against our pieces with a mistake; None beyond 1, or without an effect."""
    share, told, size = 0.0, False, float(np.max(np.abs(want.v)))
    for (_, _, at), y in zip(decoding.pieces(), pieces, strict=True):
        rows, columns = np.nonzero(at >= 0)
        there = rows, at[rows, columns]
        out, bound = y[rows, columns], want.b[there]
        if not np.isfinite(out).all():
            return None
        # What is larger than the right numbers rounds by more.
        bound = bound * max(1.0, float(np.max(np.abs(out), initial=0.0)) / size) if size else bound
        apart = np.abs(got[there] - out)
        if not np.all(apart <= bound):
            return None
        share = max(share, float(np.max(apart / np.where(bound == 0, np.inf, bound), initial=0.0)))
        told = told or bool(np.any(np.abs(out - want.v[there]) > 2 * want.b[there]))
    return share if told else None


def known(decoding: Decoding, got: np.ndarray, want: ErrArray, places: tuple[str, ...]) -> Iterator[Cause]:
    """The known mistakes of a layer, made in some of the pieces."""
    told: set[str] = set()
    for place in places:
        for mistake in sorted(catalogue(decoding.config.variant), key=lambda m: m.rank):
            if mistake.backward or mistake.rounding or mistake.argument or mistake.fix in told:
                continue
            share = made(decoding, got, want, mistake, place)
            if share is not None:
                told.add(mistake.fix)
                yield Cause(
                    mistake.name + PLACES[place], mistake.fix, share, "our steps with this mistake give these numbers"
                )
        if told:
            return


def made(decoding: Decoding, got: np.ndarray, want: ErrArray, mistake: Mistake, place: str) -> float | None:
    """How near a candidate is to our pieces, of which some are computed with a mistake; None where it is not."""
    forms = ["recurrent"] if getattr(decoding.config, "form", "recurrent") != "recurrent" else []
    cases = [decoding.case, *(replace(decoding.case, given=replace(decoding.config, form=form)) for form in forms)]
    shares = [share for case in cases if (share := made_in(case, decoding, got, want, mistake, place)) is not None]
    return min(shares, default=None)


def made_in(
    case: Case, decoding: Decoding, got: np.ndarray, want: ErrArray, mistake: Mistake, place: str
) -> float | None:
    """As `made`, where a layer computes in one of the forms that are equal without a mistake."""
    try:
        setup = mistake.made(Setup(case, decoding.drawn, EXACT))
        if setup is None or setup.drawn.inputs is not decoding.drawn.inputs:
            return None
        with tree_of(setup) as tree, np.errstate(all="ignore"):
            layer = numpy_layer(setup.case.at("float64"), setup.drawn.params, tree)

            def maker(number: int) -> Any:
                here = place == "all" or (place == "prompt") == (number == 0)
                return layer if here else decoding.layer

            return share_of(decoding, got, want, decoding.layered(maker))
    except REFUSALS:
        return None  # with the mistake these steps do not run: it is not the one that was made


def kept_in(again: Trace) -> Finding:
    """What is wrong with steps that are right the first time and not the second."""
    finding = explain(again.judged(), causes=False)
    if finding is None:
        raise ValueError("kept_in: expected a run that differs, got one that agrees; look at the verdicts")
    finding.patterns.insert(0, "the same steps agree the first time; this is the second run")
    text = "the first sequence agrees, the same one again does not"
    finding.causes = [Cause(KEPT, KEPT_FIX, 0.0, text)]
    return finding


def by_itself(trace: Trace, other: Other, want: ErrArray) -> Cause | None:
    """The cause of steps that give other numbers the next time: a state that was kept, or chance."""
    runs = [other(trace, at_once=False, times=times) for times in (1, 1, 2)]
    first, same, second = (None if run is None else run.outcome.outputs["y"] for run in runs)
    if first is None or same is None or second is None or not differ(first, second, want):
        return None
    if differ(first, same, want):
        return Cause("by chance", CHANCE, 0.0, "the same steps, run again, give other numbers")
    return Cause(KEPT, KEPT_FIX, 0.0, "the same steps give other numbers each time, the same ones from the same module")


def differ(got: np.ndarray, other: np.ndarray, want: ErrArray) -> bool:
    """Whether two runs are further apart than two right ones are."""
    with np.errstate(invalid="ignore"):
        return got.shape != other.shape or bool(np.any(~(np.abs(got - other) <= 2 * want.b)))
