"""Graded exercises of lesson 8: flash attention."""

import numpy as np

from attn_np.ops import einsum
from parity_tests.exercises._exercise import Exercise, arrays, normal


def merge(y1, top1, total1, y2, top2, total2):
    top = np.maximum(top1, top2)
    share1, share2 = total1 * np.exp(top1 - top), total2 * np.exp(top2 - top)
    return (share1[:, None] * y1 + share2[:, None] * y2) / (share1 + share2)[:, None]


def online_step(top, total, sums, z, v):
    new_top = np.maximum(top, np.max(z, axis=-1))
    rescale, e = np.exp(top - new_top), np.exp(z - new_top[:, None])
    total = total * rescale + np.sum(e, axis=-1)
    return new_top, total, sums * rescale[:, None] + einsum("ts,sv->tv", e, v)


def scores_vjp(p, dp, y, dy):
    return p * (dp - np.sum(dy * y, axis=-1, keepdims=True))


def merged_by(share):
    """Two answers merged by other shares: a function of a top, a total and the common top."""

    def other(y1, top1, total1, y2, top2, total2):
        top = np.maximum(top1, top2)
        share1, share2 = share(top1, total1, top), share(top2, total2, top)
        return (share1[:, None] * y1 + share2[:, None] * y2) / (share1 + share2)[:, None]

    return other


def step_by(total=True, sums=True, new=True):
    """A step that brings only some of its parts to the new largest score."""

    def step(top, total_, sums_, z, v):
        of_block = np.max(z, axis=-1)
        new_top = np.maximum(top, of_block)
        rescale, e = np.exp(top - new_top), np.exp(z - (new_top if new else of_block)[:, None])
        return (
            new_top,
            total_ * (rescale if total else 1.0) + np.sum(e, axis=-1),
            sums_ * (rescale if sums else np.ones(len(z)))[:, None] + einsum("ts,sv->tv", e, v),
        )

    return step


def divided(top, total, sums, z, v):
    new_top, total, sums = online_step(top, total, sums, z, v)
    return new_top, total, sums / total[:, None]


def forgotten(top, total, sums, z, v):
    return online_step(top, 0.0 * total, 0.0 * sums, z, v)


def draw_halves(rng):
    (y1, top1, total1), (y2, top2, total2) = (
        (normal(rng, 5, 4), normal(rng, 5), abs(normal(rng, 5)) + 1.0) for _ in range(2)
    )
    total1, total2 = (x.astype(np.float32).astype(np.float64) for x in (total1, total2))
    return {"y1": y1, "top1": top1, "total1": total1, "y2": y2, "top2": top2, "total2": total2}


def draw_running(rng):
    total = (abs(normal(rng, 5)) + 1.0).astype(np.float32).astype(np.float64)
    return {
        "top": normal(rng, 5),
        "total": total,
        "sums": normal(rng, 5, 4),
        "z": normal(rng, 5, 7),
        "v": normal(rng, 7, 4),
    }


def draw_backward(rng):
    call = arrays(p="ts", dp="ts", y="tv", dy="tv")(rng)
    e = np.exp(call["p"])
    return call | {"p": (e / e.sum(axis=-1, keepdims=True)).astype(np.float32).astype(np.float64)}


EXERCISES = (
    Exercise(
        "8.3",
        "Merge the answers of two halves of the keys, `y1` and `y2` (t, v), by their largest scores and totals (t).",
        merge,
        draw_halves,
        {
            "sums not brought to the new largest score": merged_by(lambda top, total, new: total),
            "totals forgotten: shares of the largest scores alone": merged_by(
                lambda top, total, new: np.exp(top - new)
            ),
            "the plain average of both halves": merged_by(lambda top, total, new: np.ones(np.shape(top))),
            "rescaled the wrong way round": merged_by(lambda top, total, new: total * np.exp(new - top)),
            "both halves added": lambda y1, top1, total1, y2, top2, total2: y1 + y2,
            "the shares exchanged": lambda y1, top1, total1, y2, top2, total2: merge(
                y1, top2, total2, y2, top1, total1
            ),
        },
    ),
    Exercise(
        "8.4",
        (
            "One block of flash attention: `(top, total, sums)` of a block of queries, (t), (t) and (t, v), after a "
            "block of scores `z` (t, s) with values `v` (s, v)."
        ),
        online_step,
        draw_running,
        {
            "running sum not rescaled": step_by(total=False),
            "running values not rescaled": step_by(sums=False),
            "neither sum nor values rescaled": step_by(total=False, sums=False),
            "each block by its own largest score": step_by(new=False),
            "what was there before is forgotten": forgotten,
            "divided before the last block": divided,
            "the largest score of the block alone": lambda top, total, sums, z, v: (
                np.max(z, axis=-1),
                *online_step(top, total, sums, z, v)[1:],
            ),
        },
    ),
    Exercise(
        "8.5",
        (
            "The gradient of a block of scores from its weights `p` (t, s) and their gradient `dp`, where the sum of "
            "`p * dp` over *all* keys is not at hand: take it from the answers `y` (t, v) and their gradient `dy`."
        ),
        scores_vjp,
        draw_backward,
        {
            "share of all keys left out of a block's gradient": lambda p, dp, y, dy: p * dp,
            "the sum over this block's keys alone": lambda p, dp, y, dy: (
                p * (dp - np.sum(p * dp, axis=-1, keepdims=True))
            ),
            "the sum added": lambda p, dp, y, dy: p * (dp + np.sum(dy * y, axis=-1, keepdims=True)),
            "the gradient of the answers without the answers": lambda p, dp, y, dy: (
                p * (dp - np.sum(dy, axis=-1, keepdims=True))
            ),
            "softmax backward without the weights in front": lambda p, dp, y, dy: (
                dp - np.sum(dy * y, axis=-1, keepdims=True)
            ),
            "the sum over the queries": lambda p, dp, y, dy: (
                p * (dp - np.sum(np.sum(dy * y, axis=-1, keepdims=True), axis=0, keepdims=True))
            ),
        },
    ),
)
