"""Graded exercises of lesson 12: bounds."""

import numpy as np

from attn_np.ops import einsum
from parity_tests.exercises._exercise import Exercise, arrays, normal


def product_bound(x, y, u):
    n = x.shape[-1]
    gamma = n * u / (1 - n * u)
    return gamma * einsum("tk,ks->ts", abs(x), abs(y))


def log_sum_exp(z):
    top = np.max(z, axis=-1, keepdims=True)
    return np.log(np.sum(np.exp(z - top), axis=-1)) + top[:, 0]


def roundings_in_pairs(n):
    return int(np.ceil(np.log2(n)))


def draw_large(rng):
    return {"z": normal(rng, 5, 7) + np.array([0, 4, -900, 900, 2000.0])[:, None]}


EXERCISES = (
    Exercise(
        "12.4",
        (
            "How far may a product of matrices, `x` (t, k) times `y` (k, s), both exact, be from the truth, in "
            "arithmetic with unit roundoff `u`? A bound for every number, for any order of the sums."
        ),
        product_bound,
        lambda rng: arrays(x="tk", y="ks")(rng) | {"u": 2.0**-8},
        {
            "sizes of the sums in place of sums of the sizes": lambda x, y, u: (
                x.shape[-1] * u / (1 - x.shape[-1] * u) * abs(einsum("tk,ks->ts", x, y))
            ),
            "one rounding for the whole sum": lambda x, y, u: u * einsum("tk,ks->ts", abs(x), abs(y)),
            "products of roundings left out: n u, not n u / (1 - n u)": lambda x, y, u: (
                x.shape[-1] * u * einsum("tk,ks->ts", abs(x), abs(y))
            ),
            "roundings counted along another axis": lambda x, y, u: (
                len(x) * u / (1 - len(x) * u) * einsum("tk,ks->ts", abs(x), abs(y))
            ),
            "rounding errors taken as independent: the root of n": lambda x, y, u: (
                np.sqrt(x.shape[-1]) * u * einsum("tk,ks->ts", abs(x), abs(y))
            ),
            "one addition too few: n - 1": lambda x, y, u: (
                (x.shape[-1] - 1) * u / (1 - (x.shape[-1] - 1) * u) * einsum("tk,ks->ts", abs(x), abs(y))
            ),
        },
    ),
    Exercise(
        "12.5",
        "The logarithm of the sum of the exponentials of each row of `z` (t, s), for scores of any size.",
        log_sum_exp,
        draw_large,
        {
            "maximum not subtracted before exp": lambda z: np.log(np.sum(np.exp(z), axis=-1)),
            "maximum not added back": lambda z: log_sum_exp(z) - np.max(z, axis=-1),
            "maximum of the whole array": lambda z: (
                np.log(np.sum(np.exp(z - np.max(np.max(z, axis=-1, keepdims=True), axis=0, keepdims=True)), axis=-1))
                + np.max(np.max(z, axis=-1, keepdims=True), axis=0, keepdims=True)[:, 0]
            ),
            "the largest score alone": lambda z: np.max(z, axis=-1),
            "averaged in place of summed": lambda z: log_sum_exp(z) - np.log(z.shape[-1]),
            "maximum added to the sum, not to its logarithm": lambda z: np.log(
                np.sum(np.exp(z - np.max(z, axis=-1, keepdims=True)), axis=-1) + np.max(abs(z), axis=-1)
            ),
        },
    ),
    Exercise(
        "12.6",
        (
            "Of `n` numbers neighbours are added, then neighbours of the sums, and so on. How many roundings does a "
            "term go through at most?"
        ),
        roundings_in_pairs,
        lambda rng: {"n": 100 + int(rng.integers(20))},
        {
            "the sum one by one": lambda n: n - 1,
            "rounded down: the last pair adds, too": lambda n: int(np.log2(n)),
            "as many as there are terms": lambda n: n,
            "half of the terms": lambda n: n // 2,
            "one too many": lambda n: int(np.ceil(np.log2(n))) + 1,
            "the root of n": lambda n: int(np.ceil(np.sqrt(n))),
        },
    ),
)
