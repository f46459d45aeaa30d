"""A process that runs what it is told, one race after another: a line of JSON in, lines of JSON out."""

import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.entrants import WHO, bytes_needed, prepare
from benchmarks.plan import Entrant, Work
from benchmarks.turns import Runner, rounds

Say = Callable[[dict[str, Any]], None]


def entrants(told: list[dict[str, Any]]) -> list[Entrant]:
    return [Entrant(one["who"], Work(**one["work"]), one["name"]) for one in told]


def physical() -> int:
    """Bytes of memory that the machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def ready(entrant: Entrant) -> tuple[Runner | None, dict[str, Any]]:
    """Its work, or why there is none: absent, too large, or failed."""
    needed = bytes_needed(entrant)
    if needed > 0.7 * physical():
        return None, {"state": "too large", "why": f"its attention matrices take {needed / 1e9:.0f} GB"}
    try:
        return prepare(entrant), {"state": "measured"}
    except ImportError as error:
        packages = ", ".join(WHO[entrant.who].packages)
        return None, {"state": "absent", "why": f"needs {packages}: {error}"}
    except Exception as error:
        return None, {"state": "failed", "why": f"{type(error).__name__}: {error}"[:300]}


def difference(one: Any, other: Any) -> float:
    """The largest difference of two results, relative to the largest number of the second."""
    if one.shape != other.shape:
        return float("inf")
    return float(np.abs(one - other).max(initial=0.0) / max(np.abs(other).max(initial=0.0), 1e-300))


def race(
    told: list[Entrant],
    count: int,
    say: Say,
    seconds: float | None = None,
    weighed: str = "",
    before: Mapping[Entrant, Runner] | None = None,
) -> dict[Entrant, Runner]:
    """Time all entrants in turns; those of the same work must also give the same numbers as the first.

    Entrants that the race before had, too, are ready; the runners of this one are returned.
    """
    found: dict[str, dict[str, Any]] = {}
    ready_before = before or {}
    runners: dict[Entrant, Runner] = {}
    notes: dict[str, Any]
    firsts: dict[Work, Any] = {}
    for entrant in sorted(told, key=lambda entrant: entrant.name == weighed):  # when all else has been loaded
        if entrant in ready_before:
            runner, notes = ready_before[entrant], {"state": "measured"}
        else:
            runner, notes = ready(entrant)
        if runner is not None:
            try:
                if entrant.name == weighed:
                    runner, result = weigh(runner, notes)
                else:
                    result = runner.run(runner.fresh())
                got = runner.output(result)
                del result
                if got is not None and entrant.work not in firsts:
                    firsts[entrant.work] = got
                if got is not None:
                    notes["differs"] = difference(got, firsts[entrant.work])
                runners[entrant] = runner
            except Exception as error:
                notes = {"state": "failed", "why": f"{type(error).__name__}: {error}"[:300]}
        found[entrant.name] = notes
    firsts.clear()
    say({"event": "ready", "entrants": found})
    if runners:
        turns = [(entrant.who, runner) for entrant, runner in runners.items()]
        for samples in rounds(turns, count, seconds, int(os.environ.get("OMP_NUM_THREADS", "2"))):
            say({"event": "round", "seconds": samples})
    say({"event": "done"})
    return runners


def status(name: str) -> int:
    """A figure of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text("ascii", "replace").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {name} in /proc/self/status")


def give_back() -> None:
    """Memory that was freed goes back to the system, where that can be asked for: the call must not find it ready."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


# glibc's names of two options, and the size from which arrays have pages of their own: while a call is weighed, and
# while calls are timed, as much as glibc would come to by itself.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
WEIGHED, TIMED = 2**17, 2**25


def separate_pages_from(size: int) -> None:
    """Arrays of at least so many bytes go back to the system as soon as they are freed, where glibc can be told so."""
    tell = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if tell is not None:
        tell(M_MMAP_THRESHOLD, size)
        tell(M_TRIM_THRESHOLD, 2 * size)


def weigh(runner: Runner, notes: dict[str, Any]) -> tuple[Runner, Any]:
    """The runner, compiled, and what one call returns. Its highest memory, beyond what is there before it and what it
    returns, goes into the notes.

    Linux can forget the highest memory so far, which imports and compilation have used. Elsewhere the highest memory of
    the process counts, before and after. What glibc keeps of freed arrays depends on all that the process has done
    before, so it keeps none of them here; by itself it would have kept up to 32 MB each.
    """
    runner = replace(runner, run=runner.ahead(), ahead=None) if runner.ahead is not None else runner
    state = runner.fresh()
    separate_pages_from(WEIGHED)
    give_back()
    try:
        Path("/proc/self/clear_refs").write_text("5", "ascii")
        before, after = status("VmRSS"), lambda: status("VmHWM")
        notes["method"] = "VmHWM"
    except OSError:
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        after = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit  # noqa: E731
        before = after()
        notes["method"] = "ru_maxrss"
    start = perf_counter()
    result = runner.run(state)
    took = perf_counter() - start
    notes["bytes"] = max(0, after() - before - runner.kept(result))
    separate_pages_from(TIMED)
    return replace(runner, took=took), result


def peak(entrant: Entrant, say: Say) -> None:
    """The memory of one call, after a small one that loads what there is to load."""
    small = Entrant(entrant.who, Work(**{**vars(entrant.work), "length": 32}), entrant.name)
    warm, _ = ready(small)
    if warm is not None:
        warm.run(warm.fresh())
    runner, notes = ready(entrant)
    if runner is not None:
        try:
            weigh(runner, notes)
        except Exception as error:
            notes = {"state": "failed", "why": f"{type(error).__name__}: {error}"[:300]}
    say({"event": "ready", "entrants": {entrant.name: notes}})
    say({"event": "done"})


def settle(threads: int, lane: int) -> None:
    """As many cores as threads, those of the lane: XLA takes as many threads as it finds cores."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[lane * threads :][:threads] or cores[:threads])
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def main(lane: int) -> None:
    # What libraries print must not come between the lines of the answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    settle(int(os.environ["OMP_NUM_THREADS"]), lane)
    runners: dict[Entrant, Runner] = {}
    for line in sys.stdin:
        order = json.loads(line)
        told = entrants(order["entrants"])
        if order["kind"] == "memory":
            peak(told[0], say)
        else:
            runners = race(told, order["rounds"], say, order["seconds"], order["weighed"], runners)


if __name__ == "__main__":
    main(int(sys.argv[1]))
