"""The ratchet: which share of the careless edits of each file the checks see, so that no change quietly lowers it.

`ratchet.json` holds how many mutants a file had and how many were killed when the whole run was last recorded. Some
edits change nothing that is promised, so the share is seldom 1, and nothing says which they are: names and lines may
change freely. Whoever accepts a lower share takes the file's line out and records it again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb, floor
from pathlib import Path

from parity_tests.tests.mutation.runner import Result
from parity_tests.tests.mutation.sources import every

FILE = Path(__file__).with_name("ratchet.json")
RARE = Fraction(1, 1000)  # a sample fails where so many survivors would come about less often by chance


@dataclass(frozen=True)
class Count:
    """How many mutants there were, and how many were killed."""

    mutants: int
    killed: int

    @property
    def survived(self) -> int:
        return self.mutants - self.killed

    @property
    def rate(self) -> Fraction:
        return Fraction(self.killed, self.mutants)


def counts(results: Sequence[Result]) -> dict[str, Count]:
    """By file, in the order of the run."""
    files = dict.fromkeys(result.file for result in results)
    mine = {file: [result for result in results if result.file == file] for file in files}
    return {file: Count(len(some), sum(result.killed for result in some)) for file, some in mine.items()}


def read(path: Path = FILE) -> dict[str, Count]:
    """What is recorded, by file; nothing where there is no record."""
    if not path.exists():
        return {}
    return {file: Count(**entry) for file, entry in json.loads(path.read_text(encoding="utf-8")).items()}


def expected(file: str, kept: Mapping[str, Count]) -> Fraction:
    """The recorded share of a file; of one that has no record, the lowest share that any has."""
    if file in kept:
        return kept[file].rate
    return min((count.rate for count in kept.values()), default=Fraction(0))


def tail(survived: int, mutants: int, share: Fraction) -> Fraction:
    """How likely at least so many of some mutants survive, where each does with the probability `share`."""
    below = (comb(mutants, k) * share**k * (1 - share) ** (mutants - k) for k in range(survived))
    return 1 - sum(below, Fraction(0))


def fallen(results: Sequence[Result], kept: Mapping[str, Count], sample: bool = False) -> list[str]:
    """The files of which fewer mutants are killed than recorded, in words.

    All mutants of a file may have one survivor more than the recorded share gives: its lines change, and the share of
    a count moves by no less. A sample of them fails where chance would hardly let so many survive.
    """
    words = []
    for file, count in counts(results).items():
        rate = expected(file, kept)
        most = floor((1 - rate) * count.mutants) + 1
        low = tail(count.survived, count.mutants, 1 - rate) < RARE if sample else count.survived > most
        if low and count.survived > most:
            whose = "recorded" if file in kept else "the lowest recorded, as it has no record"
            words.append(
                f"{file}: expected {float(rate):.1%} of its careless edits to be seen ({whose}), got {count.killed} of "
                f"{count.mutants}; add the check that sees them to parity_tests/tests/mutation"
            )
    return words


def update(results: Sequence[Result], path: Path = FILE) -> list[str]:
    """Record the files whose share has risen or was not recorded, and forget those that are gone; gives their names."""
    kept, known = read(path), every()
    better = {
        file: count for file, count in counts(results).items() if file not in kept or count.rate > kept[file].rate
    }
    held = {file: count for file, count in sorted((kept | better).items()) if file in known}
    lines = [f'"{file}": {{"mutants": {count.mutants}, "killed": {count.killed}}}' for file, count in held.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return list(better)
