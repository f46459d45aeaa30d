"""Which known mistake gives a kernel's wrong numbers: planted ones are run on the same cases and compared.

A mistake is named only if it alone explains every case, those that a kernel gets right and those that it does not:
where the kernel is wrong the planted one is wrong by the same numbers, and elsewhere both are right.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from parity_tests.kernels import arithmetic as arithmetics
from parity_tests.kernels.arithmetic import Arithmetic
from parity_tests.kernels.canonical import Array, Case, Results
from parity_tests.kernels.mistakes import MISTAKES
from parity_tests.kernels.planted import Mistake, run

# Sizes of blocks that are tried where the kernel's own is not known.
BLOCKS = (16, 32, 64, 128)
EXACT = arithmetics.CLASSES[0]


@lru_cache(maxsize=8)
def judged(case: Case, arithmetic: Arithmetic) -> tuple[Results, Results]:
    """The right results of a case and their bounds."""
    return arithmetics.reference(case), arithmetics.bounds(case, arithmetic)


def wrong_results(case: Case, got: Results, arithmetic: Arithmetic) -> frozenset[str]:
    """The names of the results that are beyond their bounds, or have another shape."""
    want, bound = judged(case, arithmetic)
    return frozenset(
        name
        for name, x in got.items()
        if name in want
        and (np.shape(x) != want[name].shape or not np.all(arithmetics.ratios(x, want[name], bound[name]) <= 1))
    )


def rows(x: Array) -> Array:
    """The largest finite number of each row."""
    return np.max(np.where(np.isfinite(x), x, 0.0), axis=-1, keepdims=True, initial=0.0) if np.ndim(x) else np.abs(x)


def agrees(got: Array, planted: Array, other: Array, right: Array, bound: Array) -> bool:
    """Whether two wrong results are the same numbers.

    Both err by the bound, which grows with what the mistake makes of the numbers, and by what the planted kernel errs
    in another arithmetic, `other`: a mistake may be harder on the arithmetic than the right kernel is.
    """
    if np.shape(got) != np.shape(planted):
        return False
    with np.errstate(all="ignore"):
        usual, now = (np.max(np.abs(np.where(np.isfinite(x), x, 0.0)), initial=0.0) for x in (right, planted))
        grown = max(1.0, now / usual) if usual > 0 else 1.0
        room = 2 * (grown * rows(bound) + rows(np.abs(planted - other)))
    return bool(np.all(arithmetics.ratios(got, planted, room) <= 1))


def planted_results(mistake: Mistake, case: Case, arithmetic: Arithmetic) -> Results | None:
    """What a kernel with the mistake returns; None where it reads or writes outside."""
    try:
        return run(case, arithmetic, mistake)
    except (IndexError, ValueError):
        return None


def explains(mistake: Mistake, case: Case, got: Results, arithmetic: Arithmetic) -> bool:
    """Whether a kernel with this mistake returns what was returned, within the bounds."""
    found = planted_results(mistake, case, EXACT) if case.kind in mistake.kinds else None
    if found is None:
        return False
    (want, bound), wrong = judged(case, arithmetic), wrong_results(case, got, arithmetic)

    def wrong_too(planted: Results) -> frozenset[str]:
        return wrong_results(case, {name: planted[name] for name in got if name in planted}, arithmetic)

    # Some mistakes are those of a number's range, which float64 does not show.
    if wrong and not wrong & wrong_too(found) and all(np.isfinite(got[name]).all() for name in wrong):
        return False
    rounded = planted_results(mistake, case, arithmetic)
    if rounded is None:
        return False
    for planted, other in ((found, rounded), (rounded, found)):
        also_wrong = wrong_too(planted)
        if bool(wrong) == bool(wrong & also_wrong) and all(
            agrees(np.asarray(got[name], np.float64), planted[name], other[name], want[name], bound[name])
            for name in wrong | also_wrong
        ):
            return True
    return False


def causes(
    results: Sequence[tuple[Case, Results]], arithmetic: Arithmetic, blocks: Sequence[int] | None = None,
    mistakes: Sequence[Mistake] = MISTAKES,
) -> tuple[Mistake, ...]:  # fmt: skip
    """The mistakes that explain every result, those of a kernel with blocks of one of some sizes.

    Args:
        results: cases, and what the kernel returned by name; some of them wrong.
        arithmetic: what the kernel promises, or the widest class of its type.
        blocks: sizes to try; each case's own by default.
        mistakes: those to try.
    """
    failing = [wrong_results(case, got, arithmetic) for case, got in results]
    # Wrong cases first, which rule out most, and small ones before large ones.
    order = sorted(range(len(results)), key=lambda i: (not failing[i], results[i][0].q.size * results[i][0].k.size))
    if not results or not failing[order[0]]:
        return ()
    found: dict[str, Mistake] = {}
    for size in blocks or (None,):
        left = list(mistakes)
        for i in order:
            case, got = results[i]
            case = case if size is None else sized(case, size)
            left = [mistake for mistake in left if explains(mistake, case, got, arithmetic)]
            if not left:
                break
        found |= {mistake.name: mistake for mistake in left}
    return tuple(found.values())


def explaining(
    case: Case, got: Results, arithmetic: Arithmetic, blocks: Sequence[int], mistakes: Sequence[Mistake]
) -> tuple[Mistake, ...]:
    """Those of some mistakes that explain one more case, with blocks of one of some sizes."""
    return tuple(
        mistake for mistake in mistakes if any(explains(mistake, sized(case, size), got, arithmetic) for size in blocks)
    )


@lru_cache(maxsize=64)
def sized(case: Case, size: int) -> Case:
    """The case for a kernel with blocks of this size."""
    return replace(case, block=size)


def cause(
    results: Sequence[tuple[Case, Results]], arithmetic: Arithmetic, blocks: Sequence[int] | None = None,
    mistakes: Sequence[Mistake] = MISTAKES,
) -> Mistake | None:  # fmt: skip
    """The one mistake that explains every result; None where none does, or several."""
    found = causes(results, arithmetic, blocks, mistakes)
    return found[0] if len(found) == 1 else None
