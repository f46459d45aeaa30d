"""Graded exercises of lesson 11: a language model."""

import numpy as np

from attn_np.ops import softmax
from parity_tests.exercises._exercise import Exercise, normal


def layer_norm(x, g, b):
    centred = x - mean(x)
    return g * centred / np.sqrt(mean(centred * centred) + 1e-5) + b


def cross_entropy(z, right):
    z = z - np.max(z, axis=-1, keepdims=True)
    log_p = z - np.log(np.sum(np.exp(z), axis=-1, keepdims=True))
    chosen = np.take_along_axis(log_p, right[:, None], -1)[:, 0]
    return -np.sum(chosen, axis=0) / len(right)


def cross_entropy_vjp(z, right):
    return (softmax(z) - np.eye(z.shape[-1])[right]) / len(right)


def mean(x, axis=-1):
    return np.sum(x, axis=axis, keepdims=True) / x.shape[axis]


def losses(of_p):
    """The mean over the places of another loss of the weights of the right answers."""
    return lambda z, right: np.sum(of_p(np.take_along_axis(softmax(z), right[:, None], -1)[:, 0]), axis=0) / len(right)


def normed(centre, root, axis=-1):
    def layer(x, g, b):
        centred = x - mean(x, axis) if centre else x
        return g * centred / root(mean(centred * centred, axis), x.shape[axis]) + b

    return layer


def draw_logits(rng):
    return {"z": normal(rng, 5, 7), "right": rng.integers(0, 7, 5)}


EXERCISES = (
    Exercise(
        "11.4",
        (
            "The layer norm of `x` (t, d) over the last axis, with the gain `g` and the offset `b` (d). $10^{-5}$ is "
            "added to the variance."
        ),
        layer_norm,
        lambda rng: {"x": normal(rng, 5, 7) / 128, "g": normal(rng, 7), "b": normal(rng, 7)},
        {
            "variance of the layer norm divided by n - 1": normed(True, lambda s, n: np.sqrt(s * n / (n - 1) + 1e-5)),
            "eps of the norm added to the root": normed(True, lambda s, n: np.sqrt(s) + 1e-5),
            "eps left out": normed(True, lambda s, n: np.sqrt(s)),
            "mean left in before the norm": normed(False, lambda s, n: np.sqrt(s + 1e-5)),
            "divided by the variance, without its root": normed(True, lambda s, n: s + 1e-5),
            "sum of the squares where the norm has their mean": normed(True, lambda s, n: np.sqrt(s * n + 1e-5)),
            "norm over the words": normed(True, lambda s, n: np.sqrt(s + 1e-5), 0),
            "gain and offset left out": lambda x, g, b: layer_norm(x, np.ones(7), np.zeros(7)),
            "offset left out": lambda x, g, b: layer_norm(x, g, np.zeros(7)),
            "gain and offset exchanged": lambda x, g, b: layer_norm(x, b, g),
        },
    ),
    Exercise(
        "11.5",
        (
            "The cross-entropy of scores `z` (t, n), one number: minus the logarithm of the weight of the `right` "
            "answers (t), whole numbers, averaged over the places."
        ),
        cross_entropy,
        draw_logits,
        {
            "summed over the places, not averaged": lambda z, right: cross_entropy(z, right) * len(right),
            "the opposite sign": lambda z, right: -cross_entropy(z, right),
            "no logarithm": losses(lambda p: 1 - p),
            "a softmax of a softmax": lambda z, right: cross_entropy(softmax(z), right),
            "logarithm to the base 2": lambda z, right: cross_entropy(z, right) / np.log(2),
            "the score in place of the logarithm of its weight": lambda z, right: (
                -np.sum(np.take_along_axis(z, right[:, None], -1)[:, 0], axis=0) / len(right)
            ),
            "logarithm of the average weight": lambda z, right: -np.log(losses(lambda p: p)(z, right)),
            "averaged over places and classes": lambda z, right: cross_entropy(z, right) / z.shape[-1],
        },
    ),
    Exercise(
        "11.6",
        "The gradient of the scores `z` (t, n) of that loss.",
        cross_entropy_vjp,
        draw_logits,
        {
            "not divided by the number of places": lambda z, right: cross_entropy_vjp(z, right) * len(right),
            "the opposite sign": lambda z, right: -cross_entropy_vjp(z, right),
            "right answer not taken off": lambda z, right: softmax(z) / len(right),
            "gradient of the logarithm alone, not of the softmax": lambda z, right: (
                -np.eye(z.shape[-1])[right] / softmax(z) / len(right)
            ),
            "scores in place of their softmax": lambda z, right: (z - np.eye(z.shape[-1])[right]) / len(right),
            "gradient of the weight, without its logarithm": lambda z, right: (
                softmax(z)
                * (np.sum(softmax(z) * np.eye(z.shape[-1])[right], axis=-1, keepdims=True) - np.eye(z.shape[-1])[right])
                / len(right)
            ),
            "divided by places and classes": lambda z, right: cross_entropy_vjp(z, right) / z.shape[-1],
        },
    ),
)
