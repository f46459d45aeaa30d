"""Graded exercises of lesson 9: sparse patterns."""

import numpy as np

from parity_tests.exercises._exercise import Exercise


def dilated_mask(n, reach, step):
    d = np.arange(n) - np.arange(n)[:, None]
    return (abs(d) <= reach * step) & (d % step == 0)


def chunk_mask(n, size):
    return np.arange(n)[:, None] // size == np.arange(n) // size


def layers_until_all(n, reach):
    return -(-(n - 1) // reach)


def apart(n):
    return np.arange(n) - np.arange(n)[:, None]


EXERCISES = (
    Exercise(
        "9.4",
        "A dilated window, (n, n): each word sees itself and, to each side, `reach` words that stand `step` apart.",
        dilated_mask,
        lambda rng: {"n": 17, "reach": 2 + int(rng.integers(2)), "step": 3},
        {
            "reach of a dilated window counted in positions": lambda n, reach, step: (
                (abs(apart(n)) <= reach) & (apart(n) % step == 0)
            ),
            "gaps of the window forgotten": lambda n, reach, step: abs(apart(n)) <= reach * step,
            "a plain window: the step forgotten": lambda n, reach, step: abs(apart(n)) <= reach,
            "dilated keys counted from the first position": lambda n, reach, step: (
                (abs(apart(n)) <= reach * step) & np.broadcast_to(np.arange(n) % step == 0, (n, n))
            ),
            "every word that many apart, without an end": lambda n, reach, step: apart(n) % step == 0,
            "one step less than asked for": lambda n, reach, step: dilated_mask(n, reach - 1, step),
            "one step more than asked for": lambda n, reach, step: dilated_mask(n, reach + 1, step),
            "window to the left alone": lambda n, reach, step: dilated_mask(n, reach, step) & (apart(n) <= 0),
            "a word does not see itself": lambda n, reach, step: dilated_mask(n, reach, step) & (apart(n) != 0),
        },
    ),
    Exercise(
        "9.5",
        "The mask of chunks, (n, n): the words are cut into chunks of `size`, and each sees its own chunk.",
        chunk_mask,
        lambda rng: {"n": 11, "size": 3 + int(rng.integers(2))},
        {
            "a window as wide as a chunk instead of chunks": lambda n, size: abs(apart(n)) < size,
            "chunks before the own one seen, too": lambda n, size: (
                np.arange(n) // size <= np.arange(n)[:, None] // size
            ),
            "positions of one remainder taken for a chunk": lambda n, size: apart(n) % size == 0,
            "chunks begin one position early": lambda n, size: (
                (np.arange(n) + 1) // size == (np.arange(n)[:, None] + 1) // size
            ),
            "causal where it was not asked for": lambda n, size: chunk_mask(n, size) & (apart(n) <= 0),
            "mask inverted": lambda n, size: ~chunk_mask(n, size),
            "the number of chunks taken for their size": lambda n, size: chunk_mask(n, -(-n // size)),
        },
    ),
    Exercise(
        "9.6",
        "How many layers until each of `n` words has heard of each, if a layer's window is `reach` to both sides?",
        layers_until_all,
        lambda rng: {"n": 17 if rng.random() < 0.11 else 23, "reach": 4},
        {
            "the distance from the first word to the last is n - 1": lambda n, reach: -(-n // reach),
            "a layer begun is a layer needed: round up": lambda n, reach: (n - 1) // reach,
            "both sides counted: a message goes one way": lambda n, reach: -(-(n - 1) // (2 * reach)),
            "the logarithm: the reach does not double": lambda n, reach: int(np.ceil(np.log2(n / reach))),
        },
    ),
)
