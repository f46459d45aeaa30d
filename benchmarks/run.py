"""Runs races in processes of their own and keeps what it has after every one."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from threading import Event, Lock
from typing import Any

from benchmarks import machine, variants
from benchmarks.plan import ASKED, QUICK, ROUNDS, USUAL, Race, races

FORMAT = "attn-parity-benchmark/1"
# A list of numbers in JSON that is spread over lines.
LIST = re.compile(r"\[[-\s\d.,e+]+\]")
ROOT = Path(__file__).parents[1]

# What a run has found: JSON as it is written.
Found = dict[str, Any]
Told = Callable[[Race, int, int], None]


def chosen(level: int, only: Sequence[str], who: Sequence[str]) -> list[Race]:
    """The races of a run, with those entrants that match; targets without their entrants go.

    A race that is asked for by its whole name is run at any level. Those of variants are run where they are asked for,
    by the beginning of their names, too. Quick runs leave out textbook paths.
    """
    found = []
    for race in (*races(), *variants.races()):
        asked = race.level == ASKED
        matched = any(
            fnmatchcase(race.name, pattern) or (asked and race.name.startswith(f"{pattern}/")) for pattern in only
        )
        part = race.level <= level or race.name in only or (asked and matched)
        if not part or (only and not matched):
            continue
        kept = tuple(e for e in race.entrants if not who or any(fnmatchcase(e.who, pattern) for pattern in who))
        if level == QUICK and not who:
            judged = {name for target in race.targets for name in (target.ours, target.theirs)}
            kept = tuple(e for e in kept if not e.who.endswith(" textbook") or e.name in judged)
        names = {entrant.name for entrant in kept}
        targets = tuple(t for t in race.targets if t.ours in names and (t.theirs is None or t.theirs in names))
        if kept:
            found.append(replace(race, entrants=kept, targets=targets))
    return found


class Worker:
    """A process that runs races, for as long as it lives, on the cores of a lane."""

    def __init__(self, process: str, threads: int, lane: int = 0) -> None:
        count = str(threads)
        pinned = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
        environment = os.environ | dict.fromkeys(pinned, count)
        environment |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "KERAS_HOME": tempfile.gettempdir()}
        environment |= {"KERAS_BACKEND": "jax" if process == "jax" else "torch", "TF_CPP_MIN_LOG_LEVEL": "2"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.serves = process, threads
        # Closed with the process.
        self.said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.child = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.worker", str(lane)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
        )

    def answers(self, order: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """What it says of a race, up to the end of it; a process that ends before says so by an exception."""
        pipes = self.child.stdin, self.child.stdout
        if pipes[0] is None or pipes[1] is None:
            raise ChildProcessError("the process has no pipes")
        try:
            pipes[0].write(json.dumps(order) + "\n")
            pipes[0].flush()
        except BrokenPipeError:
            raise ChildProcessError(self.last_words()) from None
        for line in pipes[1]:
            answer = json.loads(line)
            yield answer
            if answer["event"] == "done":
                return
        raise ChildProcessError(self.last_words())

    def last_words(self) -> str:
        code = self.child.wait()
        self.said.seek(0)
        lines = [line.strip() for line in self.said.read().splitlines() if line.strip()]
        killed = "it was killed, most likely for its memory" if code == -9 else f"it ended with status {code}"
        return f"{killed}: {lines[-1][:200]}" if lines else killed

    def close(self) -> None:
        """End the process at once; what it was at is lost."""
        self.child.kill()
        self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:  # the last order never reached it
                    continue
        self.said.close()


def as_order(race: Race, rounds: int) -> dict[str, Any]:
    told = [{"who": e.who, "work": vars(e.work), "name": e.name} for e in race.entrants]
    return {"entrants": told, "rounds": rounds} | {n: getattr(race, n) for n in ("kind", "seconds", "weighed")}


def blank(race: Race) -> Found:
    """A race that has not been run: its facts, and entrants without samples."""
    entrants = [{"name": e.name, "who": e.who, "work": vars(e.work), "state": "not run"} for e in race.entrants]
    return {
        "name": race.name,
        "kind": race.kind,
        "entrants": entrants,
        "targets": [vars(target) for target in race.targets],
    }


def take(worker: Worker, race: Race, rounds: int, found: Found, told: Told, changing: Lock) -> None:
    """One race in a worker; its samples stand in `found` as they arrive, changed by one lane at a time."""
    by_name = {one["name"]: one for one in found["entrants"]}
    measured: list[str] = []
    done = 0
    for answer in worker.answers(as_order(race, rounds)):
        with changing:
            if answer["event"] == "ready":
                for name, notes in answer["entrants"].items():
                    by_name[name].update(notes)
                measured = [name for name, notes in answer["entrants"].items() if notes["state"] == "measured"]
            elif answer["event"] == "round":
                for name, seconds in zip(measured, answer["seconds"], strict=True):
                    by_name[name].setdefault("seconds", []).append(float(f"{seconds:.5g}"))
                done += 1
                told(race, done, rounds)


def header(command: str, level: int, rounds: int, threads: int) -> Found:
    return {
        "format": FORMAT,
        "state": "running",
        "command": command,
        "level": level,
        "pairs": rounds,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": machine.commit(),
        "machine": machine.facts(threads),
        "versions": machine.versions(),
        "races": [],
    }


def write(path: Path, found: Found) -> None:
    """Whole or not at all: a run that is stopped while writing leaves the file of before. Samples stand on one line."""
    beside = path.with_name(path.name + ".new")
    text = LIST.sub(lambda listed: " ".join(listed[0].split()), json.dumps(found, indent=1))
    beside.write_text(text + "\n", "utf-8")
    beside.replace(path)


def read(path: Path) -> Found:
    """What a run has written.

    Raises:
        ValueError: a file of another format.
    """
    found = json.loads(path.read_text("utf-8"))
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ValueError(f"{path.name}: expected results of the format {FORMAT}, got others; give a results.json")
    return found


class Lane:
    """Some of the cores, and the process that runs races on them."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.worker: Worker | None = None

    def worker_for(self, race: Race, threads: int) -> Worker:
        """The process of the race before if it serves this one, too; each memory is measured in a new one."""
        worker = self.worker
        if worker is not None and (race.kind == "memory" or worker.serves != (race.process, threads)):
            self.close()
        self.worker = self.worker or Worker(race.process, threads, self.number)
        return self.worker

    def kill(self) -> None:
        """End its race at once: who waits for an answer gets an exception."""
        if self.worker is not None:
            self.worker.child.kill()

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
            self.worker = None


def run(wanted: Sequence[Race], found: Found, rounds: int, threads: int, path: Path, told: Told) -> None:
    """All races; after each one the file holds what there is. An interrupted run ends with what it has.

    Races of fewer threads than the run has run side by side, each on cores of its own.
    """
    lanes = [Lane(number) for number in range(threads)]
    changing = Lock()

    def run_race(race: Race, lane: Lane) -> None:
        count = race.threads or threads
        result = blank(race)
        with changing:
            found["races"].append(result)
        groups = [(e,) for e in race.entrants] if race.kind == "memory" else [race.entrants]
        for number, group in enumerate(groups):
            with changing:
                worker = lane.worker_for(race, count)
                told(race, 0 if race.kind == "time" else number, rounds if race.kind == "time" else len(groups))
            part = replace(race, entrants=tuple(group), targets=())
            pids = os.getpid(), *(one.worker.child.pid for one in lanes if one.worker is not None)
            before = machine.busy(*pids)
            try:
                take(worker, part, rounds, result, told, changing)
                if race.kind == "time":
                    result["others"] = machine.others(before, machine.busy(*pids), os.cpu_count() or 1)
            except ChildProcessError as ended:
                names = {entrant.name for entrant in group}
                with changing:
                    for one in result["entrants"]:
                        if one["name"] in names and one["state"] in ("not run", "measured"):
                            one.update(state="failed", why=str(ended))
                            one.pop("seconds", None)
                    lane.close()
        with changing:
            write(path, found)

    def run_lane(lane: Lane, races: Iterator[Race]) -> None:
        while not stopped.is_set():
            with changing:
                race = next(races, None)
            if race is None:
                return
            run_race(race, lane)

    stopped = Event()
    try:
        for count, alike in groupby(wanted, lambda race: race.threads or threads):
            races, side_by_side = iter(list(alike)), lanes[: max(1, threads // count)]
            if len(side_by_side) == 1:
                run_lane(lanes[0], races)
                continue
            with ThreadPoolExecutor(len(side_by_side)) as pool:
                try:
                    for lane_run in [pool.submit(run_lane, lane, races) for lane in side_by_side]:
                        lane_run.result()
                except BaseException:
                    stopped.set()
                    for lane in lanes:
                        lane.kill()
                    raise
        found["state"] = "complete"
    except KeyboardInterrupt:
        found["state"] = "interrupted"
    finally:
        for lane in lanes:
            lane.close()
        write(path, found)


def default_rounds(level: int) -> int:
    return ROUNDS.get(level, ROUNDS[USUAL])
