"""Why do they differ? The first stage that is wrong on its own inputs, and the known mistakes that give its numbers.

Every mistake of the catalogue is made in the reference, which then goes on from the candidate's own tape. A mistake
explains a candidate if all of the candidate's numbers lie within the bounds of that reference. If only the first
difference vanishes with it, the search goes on behind it with the mistake made.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from parity_tests.bounds.error_array import ErrArray
from parity_tests.explain.advice import (
    NARROW,
    as_if,
    its_lines,
    next_step,
    not_made_of,
    rounds_throughout,
    selecting,
)
from parity_tests.explain.catalogue import Mistake
from parity_tests.explain.findings import Cause, Finding
from parity_tests.explain.forms import STOPPED, THROUGH
from parity_tests.explain.patterns import axes_of, axis_order, patterns, shape_order
from parity_tests.explain.search import REFUSALS, Fit, Search
from parity_tests.explain.slopes import slopes
from parity_tests.explain.verdicts import FORWARD, Judged, Setup, tree_of, verdicts
from parity_tests.judge.candidates import scoped
from parity_tests.judge.consequences import consequences, source_of
from parity_tests.judge.judging import Anchor, Row

REAL = "fiu"  # kinds of dtypes whose numbers have a picture
MISTAKES_AT_ONCE = 3
PAIRS = 3  # mistakes that are tried as the first of two


def explain(run: Judged, causes: bool = True, others: Sequence[Judged] = ()) -> Finding | None:
    """What is wrong with a run; None where nothing is.

    Args:
        run: the candidate's.
        causes: whether mistakes are searched.
        others: runs of the same candidate in other calls; a mistake that does not explain these is told only where
            none does.
    """
    try:
        with np.errstate(all="ignore"):
            finding = explained(run, run.setup, causes=causes, others=others)
    except Exception as error:  # whatever a copy of the reference with a mistake in it does with a candidate's numbers
        if not causes:
            raise
        finding = explained(run, run.setup, causes=False)
        if finding is None:
            raise
        finding.failure = f"{type(error).__name__}: {error}"
        return finding
    if finding is not None and causes:
        near = consequences(run.case, run.drawn).neighbours(finding.first.name)
        finding.made_of, finding.goes_into = near
        if not finding.causes and not finding.next_step:
            finding.next_step = its_lines(finding.first, finding.made_of)
    return finding


def explained(
    run: Judged,
    setup: Setup,
    backward: bool = True,
    causes: bool = True,
    most: int = MISTAKES_AT_ONCE,
    others: Sequence[Judged] = (),
    among: Sequence[Mistake] | None = None,
) -> Finding | None:
    """What is wrong with a run against the reference of a setup.

    Args:
        run: the candidate's.
        setup: the reference, with the mistakes that were found before.
        backward: whether gradients are judged: the backward pass by hand does not follow a mistake of the forward one.
        causes: whether mistakes are searched.
        most: how many mistakes may still be found, one behind the other.
        others: runs of the same candidate in other calls.
        among: the mistakes that are looked for, beside constants; all of the catalogue by default.
    """
    with tree_of(setup) as tree:
        rows, anchor = verdicts(run.against(setup), tree, backward)
    first = next((row for row in rows if not row.ok), None)
    if first is None:
        return None
    finding = described(run, first, rows, anchor)
    if not causes:
        return finding
    aside = [] if setup.edits else shown_aside(run, rows)
    if aside and order_of(run, finding) is None:
        finding.next_step = not_made_of(aside, run)
        return finding
    finding.causes = list(dropped(run))
    search = Search(run, setup, finding, anchor, others, among)
    fits = search.fits() if finding.got is not None else []
    if fits and not finding.causes:
        finding.after = behind(run, fits[0], backward, most)
        if finding.after is None and backward and first.stage in FORWARD and not (fits[0].stop or fits[0].place):
            finding.after = own_gradients(run, fits[0], rows, anchor)
    cut = list(cut_off(finding))
    finding.causes += [*cut, *told_once(fits)] if all_cut(run) else [*told_once(fits), *cut]
    finding.explains_all = bool(fits) and explains(fits[0], finding.after)
    order = None if finding.causes or finding.got is None else order_of(run, finding)
    if order is not None:
        finding.after = explained(moved(run, first.name, order), setup, backward, most > 1, most - 1)
        finding.causes = [other_order(finding, order)]
        finding.explains_all = finding.after is None or finding.after.explains_all
    elif not finding.causes and most > 1 and not search.selecting:
        finding.causes, finding.after = two_at_once(run, search)
    if not finding.causes:
        told = selecting(search.selecting), as_if(search.unwritten), next_step(run, first, anchor)
        finding.next_step = "; ".join(filter(None, told))
    elif search.selecting:
        finding.next_step = selecting(search.selecting)
    elif run.partial and run.case.dtype in NARROW and fits and fits[0].mistake.rounding:
        meant = f"none, if it is meant to compute in {run.case.dtype}"
        finding.causes = [replace(cause, fix=meant) for cause in finding.causes]
        finding.next_step = rounds_throughout(run.case.dtype)
    return finding


def behind(run: Judged, fit: Fit, backward: bool, most: int) -> Finding | None:
    """What else is wrong with a run, where a mistake explains its first difference; None where it explains all."""
    if fit.place:
        run = replace(run, explained=run.explained | {fit.place})
        return explained(run, fit.setup, False, most > 1, most - 1)
    if fit.stop and most > 1:
        return explained(run, fit.setup, backward and fit.mistake.backward, True, most - 1)
    return None


def own_gradients(run: Judged, fit: Fit, rows: list[Row], anchor: Anchor) -> Finding | None:
    """A gradient that is not that of the candidate's own forward pass, which a mistake explains; None where all are."""
    grads = {row.name: row for row in rows if row.stage.endswith("gradient")}
    found_by = slopes(run, fit.mistake.made, anchor.wanted)
    wrong = [name for name in found_by.wrong() if name in grads]
    if not wrong:
        return None
    found = Finding(run.who, run.case.name, grads[wrong[0]], got=run.outcome.grads[wrong[0]])
    found.want = np.asarray(anchor.wanted[wrong[0]].v)
    found.patterns = [f"not the slope of its own outputs: {', '.join(wrong)}"]
    text = "with the first mistake made, differences of the outputs in which this array stands still give the gradients"
    stops = [Cause(STOPPED.format(name), THROUGH.format(name), 0.0, text) for name in found_by.stopped_at()]
    found.causes = stops[:1] or list(cut_off(found))
    found.explains_all = bool(stops)
    if not found.causes:
        found.next_step = "mend the first, then judge it again: a gradient differs by itself"
    return found


def explains(fit: Fit, rest: Finding | None) -> bool:
    """Whether a mistake, with those of the rest, gives all of the numbers."""
    if rest is not None:
        return rest.explains_all
    return not fit.stop


def described(run: Judged, first: Row, rows: list[Row], anchor: Anchor) -> Finding:
    """The first difference with its arrays and what it looks like."""
    theirs = run.outcome.names.get(first.name, run.outcome.names.get(source_of(first.name), ""))
    finding = Finding(run.who, run.case.name, first, rows=rows, theirs="" if theirs == first.name else theirs)
    got, want = run.results().get(first.name), anchor.wanted.get(first.name)
    if got is None or want is None or got.dtype.kind not in REAL:
        return finding
    finding.axes, finding.got = axes_of(run.case, first.name, got.ndim), got
    finding.hidden = anchor.hidden.get(first.name)
    if isinstance(want, ErrArray):
        if finding.hidden is not None and got.shape == want.shape:
            got = np.where(finding.hidden, want.v, got)
        finding.want, finding.bound = want.v, want.b
        allowed = anchor.get("allowed")
        # What is hidden was not compared, so it says nothing.
        allowed = None if isinstance(allowed, ErrArray) or finding.hidden is not None else allowed
        finding.patterns = patterns(got, want, finding.axes, allowed)
    else:
        finding.want = np.asarray(want)
    return finding


def shown_aside(run: Judged, rows: list[Row]) -> list[str]:
    """The intermediates that are wrong though right results follow where they are not shown; none in other cases.

    The reference goes on from what was recorded. So an array that the results are not made of, as queries that were
    scaled for another use, makes everything behind it differ as well.
    """
    shown: list[str] = []
    wrong = differing = [row for row in rows if not row.ok and row.stage in FORWARD]
    while wrong:
        if wrong[0].stage != "tape" or not run.partial:
            return []
        shown.append(wrong[0].name)
        run = without(run, wrong[0].name)
        wrong = [row for row in verdicts(run, backward=False)[0] if not row.ok]
    return shown if {row.name for row in differing} - {*shown} else []


def without(run: Judged, name: str) -> Judged:
    """The run as if an intermediate had not been recorded."""
    tape, cotangents = run.outcome.tape, run.outcome.cotangents
    rest = {n: x for n, x in tape.items() if n != name}, {n: x for n, x in cotangents.items() if n != scoped(name)}
    return replace(run, outcome=replace(run.outcome, tape=rest[0], cotangents=rest[1]))


def order_of(run: Judged, finding: Finding) -> tuple[int, ...] | None:
    """The order of the first array's axes, where the candidate has them in another: the one in which its numbers fit,
    hidden places aside, or else its shape alone.
    """
    name, got, want = finding.first.name, finding.got, finding.want
    if got is None or want is None or finding.bound is None:
        return None
    hidden = consequences(run.case, run.drawn).hidden(name, want.shape) if run.partial else False
    order = axis_order(got, ErrArray(want, np.where(hidden, np.inf, finding.bound)))
    return order or shape_order(got.shape, want.shape)


def other_order(finding: Finding, order: tuple[int, ...]) -> Cause:
    """The cause of a difference that is the order of the axes alone."""
    name, stage = finding.first.name, finding.first.stage
    letters = finding.axes.split() or [f"axis{i}" for i in range(len(order))]
    theirs, ours = " ".join(letters[i] for i in order), " ".join(letters)
    how = f'("{name}", "{theirs} -> {ours}")'
    where = {"tape": f"name the order in taps=: {how}", "output": f"name the order in outputs=: {how}"}
    return Cause(
        f"axes in the order {theirs} where {ours} is expected",
        f"{where[stage]}, or transpose it" if stage in where else "transpose it",
        0.0,
        "its shape fits no other order; in this one its numbers still differ"
        if finding.after is not None and finding.after.first.name == name
        else "in this order all of its numbers lie within their bounds",
    )


def moved(run: Judged, name: str, order: tuple[int, ...]) -> Judged:
    """The run with the axes of an array, and of its gradient, in the reference's order."""
    back = np.argsort(order)

    def turned(part: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {
            n: x.transpose(back) if n in (name, scoped(name)) and x.ndim == len(back) else x for n, x in part.items()
        }

    old = run.outcome
    parts = {kind: turned(getattr(old, kind)) for kind in ("tape", "cotangents", "outputs", "grads")}
    return replace(run, outcome=replace(old, **parts))


def dropped(run: Judged) -> Iterator[Cause]:
    """Dropout in evaluation: seen by what was recorded, without a comparison."""
    if "keep" in run.outcome.tape and "keep" not in run.drawn.inputs:
        text = "a mask of kept weights was recorded, and none was given"
        yield Cause("dropout in evaluation", "call eval() first: dropout belongs to training", 0.0, text)


def all_cut(run: Judged) -> bool:
    """Whether no input gets a gradient: then no mistake at one of them is the cause."""
    grads = [grad for name, grad in run.outcome.grads.items() if name.removeprefix("d") in run.drawn.inputs]
    return bool(grads) and not any(grad.any() for grad in grads)


def cut_off(finding: Finding) -> Iterator[Cause]:
    """A gradient that is 0 everywhere although it should not be."""
    backward = finding.first.stage not in FORWARD
    if backward and finding.got is not None and finding.want is not None and not finding.got.any():
        yield Cause(
            "cut from the graph",
            "let the gradient through: no detach(), no_grad(), stop_gradient or numpy() on the way",
            0.0,
            "the gradient is 0 everywhere",
        )


def two_at_once(run: Judged, search: Search) -> tuple[list[Cause], Finding | None]:
    """Two mistakes that give a run's numbers together, where no intermediate tells them apart.

    The one that does most of the difference, made in the reference, leaves the other to be found.
    """
    if search.backward or search.first.stage == "tape":
        return [], None
    for _, mistake in sorted(search.shares, key=lambda x: x[0])[:PAIRS]:
        try:
            setup = mistake.made(search.setup)
            after = None if setup is None else explained(run, setup, False, most=1, among=search.beside(mistake))
        except REFUSALS:  # its bounds cannot be had
            continue
        if after is not None and after.causes and after.explains_all:
            text = "with this mistake and the next the reference gives these numbers, within its bounds"
            return [Cause(mistake.name, mistake.fix, 0.0, text)], after
    return [], None


def told_once(fits: list[Fit]) -> list[Cause]:
    """The causes, best first, each advice once: two with the same are one mistake in other words."""
    found: dict[str, Cause] = {}
    for fit in fits:
        name = f"{fit.mistake.name}, at {fit.place} alone" if fit.place else fit.mistake.name
        cause = Cause(name, fit.mistake.fix, fit.ratio)
        if fit.place:
            text = f"with this mistake there the reference gives these numbers; {fit.agrees} agrees without it"
            cause = replace(cause, evidence=text)
        elif fit.text:
            cause = replace(cause, evidence=fit.text)
        elif fit.stop:
            cause = replace(cause, evidence=f"the reference with this mistake gives these numbers, up to {fit.stop}")
        found.setdefault(fit.mistake.fix, cause)
    return list(found.values())
