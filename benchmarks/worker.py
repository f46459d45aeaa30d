"""A process that runs what it is told, one race after another: a line of JSON in, lines of JSON out."""

import ctypes
import gc
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
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


def race(told: list[Entrant], count: int, say: Say) -> None:
    """Time all entrants in turns; those of the same work must also give the same numbers as the first."""
    found: dict[str, dict[str, Any]] = {}
    runners: dict[str, Runner] = {}
    firsts: dict[Work, Any] = {}
    for entrant in told:
        runner, notes = ready(entrant)
        if runner is not None:
            try:
                got = runner.output(runner.run(runner.fresh()))
                if got is not None and entrant.work not in firsts:
                    firsts[entrant.work] = got
                if got is not None:
                    notes["differs"] = difference(got, firsts[entrant.work])
                runners[entrant.name] = runner
            except Exception as error:
                notes = {"state": "failed", "why": f"{type(error).__name__}: {error}"[:300]}
        found[entrant.name] = notes
    firsts.clear()
    by_name = {entrant.name: entrant for entrant in told}
    samples: dict[str, list[float]] = {name: [] for name in runners}
    say({"event": "ready", "entrants": found})
    if runners:
        turns = [(by_name[name].who, runner) for name, runner in runners.items()]
        for seconds in rounds(turns, count):
            for name, one in zip(samples, seconds, strict=True):
                samples[name].append(one)
            say({"event": "round", "seconds": seconds})
    say({"event": "done"})


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


def peak(entrant: Entrant, say: Say) -> None:
    """The highest memory of one call, beyond what is there before it and what it returns.

    Linux can forget the highest memory so far, which imports and compilation have used. Elsewhere the highest memory of
    the process counts, before and after.
    """
    small = Entrant(entrant.who, Work(**{**vars(entrant.work), "length": 32}), entrant.name)
    warm, _ = ready(small)
    if warm is not None:
        warm.run(warm.fresh())
    runner, notes = ready(entrant)
    if runner is not None:
        work, state = runner.ahead() if runner.ahead is not None else runner.run, runner.fresh()
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
        try:
            result = work(state)
            notes["bytes"] = max(0, after() - before - runner.kept(result))
        except Exception as error:
            notes = {"state": "failed", "why": f"{type(error).__name__}: {error}"[:300]}
    say({"event": "ready", "entrants": {entrant.name: notes}})
    say({"event": "done"})


def settle(threads: int) -> None:
    """As many cores as threads: XLA takes as many threads as it finds cores."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def main() -> None:
    # What libraries print must not come between the lines of the answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    settle(int(os.environ["OMP_NUM_THREADS"]))
    for line in sys.stdin:
        order = json.loads(line)
        told = entrants(order["entrants"])
        if order["kind"] == "memory":
            peak(told[0], say)
        else:
            race(told, order["rounds"], say)


if __name__ == "__main__":
    main()
