"""Medians, ratios of medians with a bootstrap interval, verdicts. Standard library and NumPy only."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
SEED = 0
COVERED = 0.95


@dataclass(frozen=True)
class Ratio:
    """A ratio of two medians, and the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


def median(samples: Sequence[float]) -> float:
    return float(np.median(samples))


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    """Where the middle half of the samples begins and ends."""
    low, high = np.quantile(samples, (0.25, 0.75))
    return float(low), float(high)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Median of ours by median of theirs.

    Entry i of both was taken in the same round, so whole rounds are drawn again: what slowed a round down slowed down
    both. One round has no interval; its ends are the value itself.

    Raises:
        ValueError: no rounds, or not the same number of them.
    """
    if len(ours) != len(theirs) or not len(ours):
        raise ValueError(f"ratio: expected as many rounds on both sides, got {len(ours)} and {len(theirs)}; pair them")
    a, b = np.asarray(ours, float), np.asarray(theirs, float)
    drawn = np.random.default_rng(SEED).integers(0, len(a), (RESAMPLES, len(a)))
    found = np.median(a[drawn], axis=1) / np.median(b[drawn], axis=1)
    low, high = np.quantile(found, ((1 - COVERED) / 2, (1 + COVERED) / 2))
    return Ratio(median(ours) / median(theirs), float(low), float(high))


def verdict(found: Ratio, at_most: float) -> str:
    """A target is met if the interval's lower end is at or under it, "within noise" if the ratio itself is not."""
    if found.low > at_most:
        return "missed"
    return "met" if found.value <= at_most else "met within noise"
