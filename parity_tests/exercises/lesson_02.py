"""Graded exercises of lesson 2: the softmax."""

import numpy as np

from attn_np.ops import softmax
from parity_tests.exercises._exercise import Exercise, normal


def softmax_vjp(p, dp):
    return p * (dp - np.sum(p * dp, axis=-1, keepdims=True))


def log_softmax(z):
    z = z - np.max(z, axis=-1, keepdims=True)
    return z - np.log(np.sum(np.exp(z), axis=-1, keepdims=True))


def softmax_at(z, temperature):
    return softmax(z / temperature)


def draw_weights(rng):
    z = normal(rng, 5, 7)
    e = np.exp(z)
    return {"p": np.float64(np.float32(e / e.sum(-1, keepdims=True))), "dp": normal(rng, 5, 7)}


def draw_scores(rng):
    """Rows with ordinary scores, and rows whose exponentials are beyond every type."""
    return {
        "z": normal(rng, 6, 7) * np.array([1, 1, 1, 64, 2048, 4096.0])[:, None]
        + np.array([0, 0, 0, 0, 4096, -4096.0])[:, None]
    }


def total(x, axis=-1):
    return np.sum(x, axis=axis, keepdims=True)


EXERCISES = (
    Exercise(
        "2.4",
        "The backward of the softmax over the last axis: `dz` from its weights `p` (t, s) and their gradient `dp`.",
        softmax_vjp,
        draw_weights,
        {
            "softmax backward without its sum": lambda p, dp: p * dp,
            "softmax backward with its sum added": lambda p, dp: p * (dp + total(p * dp)),
            "softmax backward over the wrong axis": lambda p, dp: p * (dp - total(p * dp, 0)),
            "softmax backward without the weights in front": lambda p, dp: dp - total(p * dp),
            "each weight by its own score alone": lambda p, dp: p * (1 - p) * dp,
            "the plain mean instead of the average under the weights": lambda p, dp: p * (dp - total(dp) / p.shape[-1]),
            "the sum without the weights": lambda p, dp: p * (dp - total(dp)),
            "the sum over the whole array": lambda p, dp: p * (dp - total(total(p * dp), 0)),
            "a softmax of the weights": lambda p, dp: softmax_vjp(softmax(p), dp),
        },
    ),
    Exercise(
        "2.5",
        "The logarithm of the softmax over the last axis, for scores of any size: some of `z` are beyond 4000.",
        log_softmax,
        draw_scores,
        {
            "no maximum subtracted": lambda z: z - np.log(total(np.exp(z))),
            "the logarithm of a softmax": lambda z: np.log(softmax(z)),
            "no logarithm": lambda z: softmax(z),
            "log_softmax over the wrong axis": lambda z: log_softmax(z.swapaxes(0, 1)).swapaxes(0, 1),
            "the sum without its logarithm": lambda z: (
                (z - np.max(z, axis=-1, keepdims=True)) - total(np.exp(z - np.max(z, axis=-1, keepdims=True)))
            ),
            "the maximum subtracted in the sum alone": lambda z: (
                z - np.log(total(np.exp(z - np.max(z, axis=-1, keepdims=True))))
            ),
        },
    ),
    Exercise(
        "2.6",
        "The softmax of `z` (t, s) over the last axis at a temperature.",
        softmax_at,
        lambda rng: {"z": normal(rng, 5, 7), "temperature": 2.5},
        {
            "temperature the wrong way up": lambda z, temperature: softmax(z * temperature),
            "temperature after the softmax": lambda z, temperature: softmax(z) / temperature,
            "temperature ignored": lambda z, temperature: softmax(z),
            "the root of the temperature": lambda z, temperature: softmax(z / np.sqrt(temperature)),
            "softmax over the queries": lambda z, temperature: softmax((z / temperature).swapaxes(0, 1)).swapaxes(0, 1),
            "exponentials not normalised": lambda z, temperature: np.exp(z / temperature),
            "one sum for all rows": lambda z, temperature: (
                np.exp(z / temperature) / total(total(np.exp(z / temperature)), 0)
            ),
        },
    ),
)
