"""The ratchet: has precision got worse since it was last recorded, though every bound still holds?

A bound is the worst that rounding can do; real errors are mostly a small part of it. So a candidate can lose a digit
and still pass. `ratchet.json` holds, for a run with `--all`, the root mean square of error/bound of every named array
over all cases of a variant, candidate and dtype. A later run is compared with it, and what has more than doubled is a
warning, never a failure: another processor or another version of a library may round differently and be as right.

Root mean square, because it moves least by chance. Two seeds differ in all inputs, by more than a new library does.
Between them, of 5554 arrays, the largest error/bound halves or doubles in 264, its root mean square in 184. Those are
mostly arrays with few errors: products of 16-bit numbers are exact in float32, a short sum of them is seldom rounded,
and one rounding is most of the sum of squares. How many numbers share in it is known: as no ratio is above the largest,
it takes at least

    count * rms^2 / largest^2

numbers to make it up, and the relative error of a root mean square of so many is about 1 / (2 sqrt(their number)).
Arrays with fewer than `ENOUGH` = 16, where that is an eighth, are not warned about, nor are those with numbers whose
bound says little: there the ratio measures the bound. Of 1600 arrays that are left, one doubles between two seeds, in
one direction.

What it sees: of 3632 arrays that are not exact, errors ten times as large break the bound in 2666 and double the root
mean square of enough numbers in 210 more; errors three times as large do so in 1252 and in 874 more.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from platform import machine, system
from typing import Any

from parity_tests.judge.cases import CALLS
from parity_tests.judge.frameworks import versions
from parity_tests.judge.judging import Row
from parity_tests.judge.result import Result
from parity_tests.judge.runner import Plan
from parity_tests.report.summary import order

FILE = Path(__file__).with_name("ratchet.json")
SEED = 0
FACTOR = 2  # what has grown by more is warned about
ENOUGH = 16

Line = tuple[str, str, str]  # variant, candidate, dtype
Lines = dict[Line, dict[str, dict[str, float]]]


@dataclass
class Entry:
    """One named array over all cases of a variant, candidate and dtype."""

    elements: int = 0
    squares: float = 0.0
    largest: float = 0.0
    vacuous: int = 0

    def add(self, row: Row) -> None:
        self.elements += row.elements
        self.squares += row.elements * row.rms**2
        self.largest = max(self.largest, row.ratio)
        self.vacuous += row.vacuous

    @property
    def rms(self) -> float:
        return math.sqrt(self.squares / self.elements) if self.elements else 0.0

    @property
    def telling(self) -> bool:
        """Whether the root mean square is made by enough numbers, all of them within bounds that say something."""
        return 0 < self.largest <= 1 and not self.vacuous and self.squares >= ENOUGH * self.largest**2


@dataclass(frozen=True)
class Drift:
    """An array whose errors have grown: `was` and `now` are root mean squares of error/bound."""

    variant: str
    candidate: str
    dtype: str
    stage: str
    name: str
    was: float
    now: float

    @property
    def times(self) -> float:
        return self.now / self.was if self.was else math.inf

    def __str__(self) -> str:
        grown = f"{self.times:.1f} times" if self.was else "was exact"
        return (
            f"{self.variant}, {self.candidate}, {self.dtype}, {self.stage} {self.name}: root mean square of "
            f"error/bound {self.now:.2g}, recorded {self.was:.2g} ({grown})"
        )


@dataclass
class Comparison:
    """A run held against the record: what has drifted, most first, and what was compared or why nothing was."""

    note: str
    compared: int = 0
    drifts: list[Drift] = field(default_factory=list)

    def lines(self, most: int) -> list[str]:
        """What the command prints: nothing where nothing has drifted."""
        shown = [f"[yellow]drifted[/] {drift}" for drift in self.drifts[:most]]
        if len(self.drifts) > most:
            shown.append(f"[yellow]drifted[/] {len(self.drifts) - most} more")
        return shown or ([] if self.compared else [f"[dim]{self.note}[/]"])

    def as_dict(self) -> dict[str, Any]:
        drifted = [vars(drift) | {"times": None if drift.was == 0 else drift.times} for drift in self.drifts]
        return {"note": self.note, "compared": self.compared, "drifted": drifted}


def entries(rows: Iterable[Row]) -> dict[Line, dict[tuple[str, str], Entry]]:
    """Rows summed up by variant, candidate and dtype, and under each by stage and name. Real layers are left out."""
    found: dict[Line, dict[tuple[str, str], Entry]] = {}
    for row in rows:
        if row.case.given is None:
            line = found.setdefault((row.case.variant, row.candidate, row.case.dtype), {})
            line.setdefault((row.stage, row.name), Entry()).add(row)
    return found


def reason(plan: Plan) -> str:
    """Why a plan's numbers are not those of the record; empty where they are. Fewer variants are the same numbers."""
    if plan.device != "cpu":
        return "the record is of the CPU"
    if (plan.seed, plan.repeat) != (SEED, 1):
        return f"the record is of seed {SEED} alone"
    if plan.products != "full":
        return "the record is of full products"
    if not plan.everything or set(plan.calls) != set(CALLS):
        return "the record is of a run with --all"
    return ""


def read(path: Path) -> tuple[dict[str, str], Lines]:
    """Versions and lines of a record."""
    content = json.loads(path.read_text(encoding="utf-8"))
    lines = {}
    for key, stages in content["lines"].items():
        variant, candidate, dtype = key.split(" | ")
        lines[variant, candidate, dtype] = stages
    return content["versions"], lines


def compare(result: Result, plan: Plan, path: Path) -> Comparison:
    """Everything that is in the run and in the record."""
    why = reason(plan)
    if why:
        return Comparison(f"Not held against {path.name}: {why}.")
    if not path.exists():
        return Comparison(f"Not held against {path.name}: there is none; --ratchet-update writes it.")
    recorded, lines = read(path)
    compared, drifts = 0, []
    for line, found in entries(result.rows).items():
        for (stage, name), entry in found.items():
            was = lines.get(line, {}).get(stage, {}).get(name)
            if was is None:
                continue
            compared += 1
            if entry.telling and entry.rms > FACTOR * was:
                drifts.append(Drift(*line, stage, name, was, entry.rms))
    if not compared:
        return Comparison(f"Not held against {path.name}: it has none of these arrays; --ratchet-update adds them.")
    drifts.sort(key=lambda drift: -drift.times)
    with_what = ", ".join(f"{name} {version}" for name, version in recorded.items())
    note = (
        f"{len(drifts)} of {compared} arrays that are in {path.name} have errors more than {FACTOR} times as large as "
        f"recorded, though within their bounds. Recorded with {with_what}."
    )
    return Comparison(note, compared, drifts)


def rounded(value: float) -> float:
    """Two digits, as the record holds them."""
    return float(f"{value:.2g}")


def update(result: Result, path: Path) -> None:
    """Record a run. Lines of what it did not judge stay; a line holds one variant, candidate and dtype."""
    lines: Lines = read(path)[1] if path.exists() else {}
    for line, found in entries(result.rows).items():
        lines[line] = {}
        for (stage, name), entry in found.items():
            lines[line].setdefault(stage, {})[name] = rounded(entry.rms)
    ranked = sorted(lines, key=lambda line: (line[0], order(line[1]), line[2]))
    text = ",\n".join(f"{json.dumps(' | '.join(line))}: {compact(lines[line])}" for line in ranked)
    held = {**versions(), "platform": f"{system()} {machine()}"}
    head = f'{{\n"versions": {json.dumps(held)},\n"lines": {{\n'
    path.write_text(f"{head}{text}\n}}\n}}\n", encoding="utf-8")


def compact(stages: dict[str, dict[str, float]]) -> str:
    """Without blanks and without the point of whole numbers, which are mostly 0."""
    whole = {s: {n: int(v) if v == int(v) else v for n, v in names.items()} for s, names in stages.items()}
    return json.dumps(whole, separators=(",", ":"))
