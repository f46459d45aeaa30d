"""Taking turns: every entrant once in a round, so that what slows the machine down slows down all alike."""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from time import perf_counter, sleep
from typing import Any

# A sample lasts at least so long: work that takes less is done several times. Seconds.
LEAST = 0.005
# Work that takes longer needs no more than one run to be warm. Seconds.
LONG = 0.1
# Idle threads of OpenMP and OpenBLAS look for work for so long before they sleep. Seconds.
SPINNING = {"attn_np": 0.1, "two products": 0.1}
OTHERS_SPIN = 0.008
# As many rounds are run even if they take longer than they should, up to this multiple.
FEWEST, OVER = 3, 3.0


@dataclass(frozen=True)
class Runner:
    """Work that is ready to be done: made, compiled, its inputs in place.

    Attributes:
        run: does it once and waits until it is done; takes what `fresh` gave.
        fresh: what a run uses up, made outside the time.
        units: what is counted within a run, such as tokens; seconds are given for one.
        output: the result of a run as a float64 array, to see that all do the same work.
        kept: bytes that a run returns.
        took: seconds of a call that has been made; None before.
        ahead: gives `run` with its first-time work, such as compiling, done: what is to be weighed begins with it.
    """

    run: Callable[[Any], Any]
    fresh: Callable[[], Any] = lambda: None
    units: int = 1
    output: Callable[[Any], Any] = lambda result: result
    kept: Callable[[Any], int] = lambda result: 0
    took: float | None = None
    ahead: Callable[[], Callable[[Any], Any]] | None = None


def order(number: int, of: int) -> list[int]:
    """Who runs when in a round, after Williams (1949): over 2n rounds each of n stands in each place twice, and within
    rounds comes right after each other one equally often: what somebody leaves in caches and memory the next one pays
    for.

    The first row goes 0, 1, -1, 2, -2, ...; others are one place later, or read backwards. Two alternate as A B, B A,
    B A, A B.
    """
    row = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(of)]
    places = [(who + number // 2) % of for who in row]
    return places[::-1] if number % 2 else places


def timed(runner: Runner, times: int) -> float:
    """Seconds for one unit, over so many runs."""
    states = [runner.fresh() for _ in range(times)]
    start = perf_counter()
    for state in states:
        runner.run(state)
    return (perf_counter() - start) / times / runner.units


def repeats(seconds: float) -> int:
    """How many runs of that length make a sample."""
    return max(1, ceil(LEAST / max(seconds, 1e-9)))


def rounds(
    runners: Sequence[tuple[str, Runner]], count: int, seconds: float | None = None, threads: int = 2
) -> Iterator[list[float]]:
    """Seconds of every entrant, round by round; the first runs are not in them.

    After `seconds` no round begins but the FEWEST; after OVER times as many none at all.
    """
    times = []
    for _, runner in runners:
        tried = timed(runner, 1) * runner.units if runner.took is None else runner.took
        if tried < LONG:
            tried = min(tried, *(timed(runner, 1) * runner.units for _ in range(3)))
        times.append(repeats(tried))
    gc.collect()
    gc.disable()
    try:
        start = perf_counter()
        for number in range(count):
            if seconds is not None and perf_counter() - start > seconds * (OVER if number < FEWEST else 1.0):
                return
            found = [0.0] * len(runners)
            for at in order(number, len(runners)):
                who, runner = runners[at]
                if times[at] > 1:
                    runner.run(runner.fresh())
                found[at] = timed(runner, times[at])
                if len(runners) > 1 and threads > 1:
                    sleep(next((s for name, s in SPINNING.items() if who.startswith(name)), OTHERS_SPIN))
            yield found
    finally:
        gc.enable()
