"""Run the mutants: each in a copy of its own, against the checks that reach its line, until the first that sees it."""

import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from parity_tests.judge.workers import workers
from parity_tests.tests.mutation.battery import Check, battery
from parity_tests.tests.mutation.calls import Caught
from parity_tests.tests.mutation.sources import (
    RAN,
    VARIANTS,
    Key,
    Lines,
    Mutant,
    copied,
    every,
    files,
    marked,
    mutants,
    needed,
    shared,
)

SECONDS = 300.0  # of processor time; the whole battery takes a few: a mutant that loops is stopped
SHORT_SHARE = 720  # of so many mutants, a short run takes one
CHUNK = 24

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Result:
    """What became of one mutant: the check that saw it and what it said, or None."""

    key: Key
    line: int
    operator: str
    killed_by: str | None

    file = property(lambda self: self.key.file)
    before = property(lambda self: self.key.before)
    after = property(lambda self: self.key.after)
    killed = property(lambda self: self.killed_by is not None)


class TooLong(BaseException):
    """A mutant that does not end. No `except Exception` stops it on its way out."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TooLong in a block that takes more processor time, where the system has such alarms in this thread."""
    if not hasattr(signal, "SIGPROF") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise TooLong(f"still running after {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def broken(check: Check, alias: str) -> str | None:
    """How a copy breaks a promise, in words; None where it keeps it. Warnings and exceptions break every promise."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            check(alias)
        except Caught as e:
            return f"{check.name}: {e}"
        except Exception as e:  # whatever a mutant raises, the original does not: `reach` makes sure
            return f"{check.name}: {type(e).__name__}: {e}"
    return None


@cache
def reach(variants: tuple[str, ...]) -> tuple[Lines, ...]:
    """For every check of some variants, the lines of the copy that it runs.

    Raises:
        ValueError: a check fails on a copy without a mutant.
    """
    found = []
    with copied({file: marked(file) for file in (*shared(), *(f"{v}.py" for v in variants))}) as alias:
        for check in battery(variants):
            RAN.clear()
            said = broken(check, alias)
            if said is not None:
                raise ValueError(f"mutants: expected the original to pass every check, got {said}; mend it first")
            found.append(frozenset(RAN))
    return tuple(found)


def killer(mutant: Mutant, reached: Sequence[Lines], variants: tuple[str, ...] = VARIANTS) -> str | None:
    """What the first check that sees the mutant says; None where none does.

    A check that does not run the edited statement in the original does the same in the copy, so it is left out.
    """
    chosen = [check for check, lines in zip(battery(variants), reached, strict=True) if mutant.touched(lines)]
    with copied({mutant.key.file: mutant.code()}) as alias:
        try:
            with limited(SECONDS):
                for check in chosen:
                    said = broken(check, alias)
                    if said is not None:
                        return said
        except TooLong as e:
            return str(e)
    return None


def examine(places: Sequence[tuple[str, int]], reached: Sequence[Lines], variants: tuple[str, ...]) -> list[Result]:
    """The results of some mutants, given by file and number, by the checks of some variants."""
    found = []
    for file, number in places:
        mutant = mutants(file)[number]
        said = killer(mutant, reached, variants)
        found.append(Result(mutant.key, mutant.line, mutant.operator, said))
    return found


_given: tuple[Sequence[Lines], tuple[str, ...]] = (), ()


def _start(reached: Sequence[Lines], variants: tuple[str, ...]) -> None:
    global _given
    _given = reached, variants


def _examine(places: Sequence[tuple[str, int]]) -> list[Result]:
    return examine(places, *_given)


def chosen(short: bool, only: Sequence[str] = ()) -> list[tuple[str, int]]:
    """Which mutants a run takes, by file and number: all, or one of every `SHORT_SHARE` of each file."""
    found = []
    for file in only or files():
        count, step = len(mutants(file)), SHORT_SHARE if short else 1
        found += [(file, i) for i in range(min(step, count) // 2, count, step)]
    return found


def run(short: bool = False, jobs: int = 2, progress: Progress | None = None, only: Sequence[str] = ()) -> list[Result]:
    """Examine the mutants of attn_np, in the order of their files and lines.

    Args:
        short: one of every `SHORT_SHARE`.
        jobs: processes.
        progress: called with how many are done, and of how many.
        only: files, such as "gru.py"; by default the shared ones and those of `VARIANTS`.

    Raises:
        ValueError: a check fails on the original, or a file that is none.
    """
    unknown = [file for file in only if file not in every()]
    if unknown:
        raise ValueError(f"mutants: expected files of attn_np, got {unknown[0]}; name some of {', '.join(every())}")
    places, tell = chosen(short, only), progress or (lambda done, of: None)
    tell(0, len(places))
    variants = needed(only or files())
    reached = reach(variants)
    if jobs == 1:
        found = []
        for place in places:
            found += examine([place], reached, variants)
            tell(len(found), len(places))
        return found
    pieces = [places[i : i + CHUNK] for i in range(0, len(places), CHUNK)]
    results: dict[int, list[Result]] = {}
    with workers(jobs, _start, reached, variants) as pool:
        futures = {pool.submit(_examine, piece): i for i, piece in enumerate(pieces)}
        for future in as_completed(futures):
            results[futures[future]] = future.result()
            tell(sum(map(len, results.values())), len(places))
    return [result for i in sorted(results) for result in results[i]]
