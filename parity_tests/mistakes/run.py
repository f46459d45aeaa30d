"""Every planted bug in every tree, and in all of them at once: what saw it, in parallel."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from multiprocessing import get_context

from parity_tests.judge.xla import compile_quickly
from parity_tests.mistakes import THEMES, TREES, Mutant, evidence, oracle_free

COMMON = "common"
MODES = {"attn_np": "numpy", "attn_torch": "torch", "attn_jax": "jax", COMMON: COMMON}
# A short run takes one of so many. JAX compiles each.
SHARES = {"attn_np": 1, "attn_torch": 4, "attn_jax": 12, COMMON: 12}
TARGETS = {"attn_np": 1.0, "attn_torch": 1.0, "attn_jax": 1.0, COMMON: 0.95}
CHUNK = 8

Place = tuple[str, int]
Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class Verdict:
    """What became of one planted bug.

    Attributes:
        name, theme: of the mutant.
        mode: the tree it stood in, or "common" for all three at once.
        seen: what gave it away, in words; None where nothing did.
        reason: why it may live, where it was reviewed.
    """

    name: str
    theme: str
    mode: str
    seen: str | None
    reason: str = ""


@cache
def everything() -> tuple[tuple[str, Mutant], ...]:
    """The catalogue with its themes."""
    return tuple((theme, mutant) for theme, mutants in THEMES.items() for mutant in mutants)


def places(modes: Iterable[str], short: bool) -> list[Place]:
    """Which bugs are planted where: all, or every so many; those of one case next to each other."""
    found: list[Place] = []
    for mode in modes:
        fit = [i for i, (_, m) in enumerate(everything()) if (m.trees == TREES if mode == COMMON else mode in m.trees)]
        chosen = fit[:: SHARES[mode]] if short else fit
        found += [(mode, i) for i in sorted(chosen, key=lambda i: (everything()[i][1].case.name, i))]
    return found


def judged(place: Place) -> Verdict:
    """Plant one bug and look."""
    mode, number = place
    theme, mutant = everything()[number]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a planted bug may divide by zero
        seen = "; ".join(oracle_free(mutant)) or None if mode == COMMON else evidence(mutant, mode)
    return Verdict(mutant.name, theme, mode, None if seen is None else str(seen), mutant.survives * (mode == COMMON))


def prepare() -> None:
    """What a process needs before it imports JAX: programs that run once are not worth being made fast."""
    compile_quickly()
    from parity_tests.judge.runner import prepare as prepare_frameworks

    prepare_frameworks(("torch", "jax"))


def judged_all(chunk: Sequence[Place]) -> list[Verdict]:
    """Some bugs in one process. What JAX compiled for their case serves no other and takes much memory."""
    found = [judged(place) for place in chunk]
    if chunk[0][0] == "attn_jax":
        import jax

        jax.clear_caches()
    return found


def run(
    modes: Sequence[str] = tuple(MODES), short: bool = False, jobs: int = 2, tell: Tell | None = None
) -> list[Verdict]:
    """Plant the bugs and look, in the order of the catalogue.

    Args:
        modes: trees, and "common".
        short: a sample that takes about a minute.
        jobs: processes.
        tell: called with how many are done, and of how many.
    """
    todo, tell = places(modes, short), tell or (lambda done, of: None)
    chunks = []
    for (mode, _), group in groupby(todo, key=lambda place: (place[0], everything()[place[1]][1].case)):
        same = list(group)
        size = len(same) if mode == "attn_jax" else CHUNK  # what JAX compiles for one case serves all of its bugs
        chunks += [same[i : i + size] for i in range(0, len(same), size)]
    chunks.sort(key=lambda chunk: -weight(chunk))
    found: list[Verdict] = []
    if jobs == 1:
        prepare()
        for chunk in chunks:
            found += judged_all(chunk)
            tell(len(found), len(todo))
    else:
        with ProcessPoolExecutor(jobs, get_context("spawn"), prepare) as pool:
            for future in as_completed([pool.submit(judged_all, chunk) for chunk in chunks]):
                found += future.result()
                tell(len(found), len(todo))
    order = {place: n for n, place in enumerate((mode, m.name) for mode in MODES for _, m in everything())}
    return sorted(found, key=lambda verdict: order[verdict.mode, verdict.name])


def weight(chunk: Sequence[Place]) -> float:
    """About how long a chunk takes, to begin with the longest."""
    first, each = {"attn_np": (0.0, 0.05), "attn_torch": (0.0, 0.1), "attn_jax": (5.0, 0.2), COMMON: (0.0, 0.5)}[
        chunk[0][0]
    ]
    return first + len(chunk) * each


def score(verdicts: Sequence[Verdict], mode: str) -> tuple[int, int]:
    """How many bugs of a mode were seen, and of how many."""
    mine = [verdict for verdict in verdicts if verdict.mode == mode]
    return sum(verdict.seen is not None for verdict in mine), len(mine)


def missed(verdicts: Sequence[Verdict]) -> list[str]:
    """What is not as it should be, in words: survivors that nobody reviewed, and targets."""
    found = []
    for mode, target in TARGETS.items():
        seen, of = score(verdicts, mode)
        if seen < target * of:
            found.append(f"{MODES[mode]}: expected {target:.0%} of the planted bugs to be seen, got {seen} of {of}")
    lives = [v for v in verdicts if v.seen is None and not v.reason]
    return found + [f"{MODES[v.mode]}: {v.name!r} lives and has no reason to" for v in lives]
