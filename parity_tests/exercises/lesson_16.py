"""Graded exercises of lesson 16: idiomatic frameworks."""

import numpy as np

from parity_tests.exercises._exercise import Exercise, normal


def heads_of_joint(in_proj_weight, heads):
    d = in_proj_weight.shape[1]
    w = in_proj_weight.reshape(3, d, d)
    return tuple(w[i].swapaxes(0, 1).reshape(d, heads, d // heads) for i in range(3))


def written(cache, row, at):
    here = np.arange(len(cache))[:, None] == at
    return np.where(here, row, cache)


def dropout(x, keep, rate):
    return np.where(keep, x / (1 - rate), 0.0)


def read_as(split):
    """The joint matrix read otherwise: a function of the matrix and the number of heads, to three arrays (out, in)."""

    def other(in_proj_weight, heads):
        d = in_proj_weight.shape[1]
        return tuple(w.swapaxes(0, 1).reshape(d, heads, d // heads) for w in split(in_proj_weight, heads))

    return other


def thirds(w, heads):
    d = w.shape[1]
    return w[:d], w[d : 2 * d], w[2 * d :]


def heads_first(w, heads):
    d = w.shape[1]
    cut = w.reshape(heads, 3, d // heads, d)
    return tuple(cut[:, i].reshape(d, d) for i in range(3))


def in_turn(w, heads):
    return tuple(w[i::3] for i in range(3))


def draw_joint(rng):
    return {"in_proj_weight": normal(rng, 18, 6), "heads": 2}


def draw_cache(rng):
    return {"cache": normal(rng, 7, 3), "row": normal(rng, 3), "at": 1 + int(rng.integers(5))}


def draw_dropout(rng):
    return {"x": normal(rng, 5, 7), "keep": rng.random((5, 7)) < 0.7, "rate": 0.375}


EXERCISES = (
    Exercise(
        "16.4",
        (
            "From PyTorch to Flax: `in_proj_weight` (3 d, d) of `torch.nn.MultiheadAttention` holds the matrices of "
            "queries, keys and values one below the other, each (out, in). Give the three kernels (d, heads, d / "
            "heads)."
        ),
        heads_of_joint,
        draw_joint,
        {
            "matrices not transposed": lambda in_proj_weight, heads: tuple(
                w.reshape(w.shape[1], heads, w.shape[1] // heads) for w in thirds(in_proj_weight, heads)
            ),
            "joint projection read as (heads, 3, width)": read_as(heads_first),
            "rows of queries, keys and values read in turn": read_as(in_turn),
            "k and v swapped in the joint projection": read_as(lambda w, heads: np.stack(thirds(w, heads))[[0, 2, 1]]),
            "q and k swapped in the joint projection": read_as(lambda w, heads: np.stack(thirds(w, heads))[[1, 0, 2]]),
            "heads split as k h": lambda in_proj_weight, heads: tuple(
                w.swapaxes(0, 1).reshape(w.shape[1], w.shape[1] // heads, heads).swapaxes(1, 2)
                for w in thirds(in_proj_weight, heads)
            ),
        },
    ),
    Exercise(
        "16.5",
        (
            "Write `row` (k) into `cache` (s, k) at position `at`, from 0 to s - 1, as JAX does it: the result is a "
            "new array, and the old one stays what it was."
        ),
        written,
        draw_cache,
        {
            "one position too late": lambda cache, row, at: written(cache, row, at + 1),
            "one position too early": lambda cache, row, at: written(cache, row, at - 1),
            "the row added, not written": lambda cache, row, at: np.where(
                np.arange(len(cache))[:, None] == at, cache + row, cache
            ),
            "put in between: the later rows moved on": lambda cache, row, at: np.concatenate(
                [cache[:at], row[None], cache[at:]], axis=0
            ),
            "all later rows written, too": lambda cache, row, at: np.where(
                np.arange(len(cache))[:, None] >= at, row, cache
            ),
            "the cache as it was: the result thrown away": lambda cache, row, at: cache,
        },
    ),
    Exercise(
        "16.6",
        (
            "Dropout with the mask handed in, as a pure function: `x` where `keep` is True, so scaled that its "
            "average stays what it was; 0 elsewhere. `rate` is the share that is dropped."
        ),
        dropout,
        draw_dropout,
        {
            "dropout without its rescale": lambda x, keep, rate: np.where(keep, x, 0.0),
            "kept weights divided by the rate": lambda x, keep, rate: np.where(keep, x / rate, 0.0),
            "kept weights multiplied by the share kept": lambda x, keep, rate: np.where(keep, x * (1 - rate), 0.0),
            "dropout mask inverted": lambda x, keep, rate: np.where(keep, 0.0, x / (1 - rate)),
            "dropout left out": lambda x, keep, rate: x,
            "dropped numbers left as they were": lambda x, keep, rate: np.where(keep, x / (1 - rate), x),
            "divided by the share that this mask keeps": lambda x, keep, rate: np.where(keep, x / keep.mean(), 0.0),
        },
    ),
)
