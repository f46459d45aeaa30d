"""Graded exercises of lesson 14: a real model."""

import numpy as np

from attn_np.ops import einsum, softmax
from parity_tests.exercises._exercise import Exercise, normal


def project(x, weight, bias, heads):
    y = einsum("btd,od->bto", x, weight) + bias
    return y.reshape(*y.shape[:2], heads, y.shape[2] // heads).swapaxes(1, 2)


def padded_attention(q, k, v, real):
    allowed = np.broadcast_to(real, (len(q), len(k)))
    p = softmax(einsum("tk,sk->ts", q, k) / np.sqrt(k.shape[-1]), allowed)
    return einsum("ts,sv->tv", p, v)


def head_entropy(p):
    by_query = -np.sum(p * np.log(p), axis=-1)
    return np.sum(by_query, axis=-1) / p.shape[1]


def cut(y, heads):
    return y.reshape(*y.shape[:2], heads, y.shape[2] // heads).swapaxes(1, 2)


def padded(weights):
    """Attention with other weights: a function of the scores and of which words are real."""
    return lambda q, k, v, real: einsum("ts,sv->tv", weights(einsum("tk,sk->ts", q, k) / np.sqrt(k.shape[-1]), real), v)


def draw_project(rng):
    return {"x": normal(rng, 2, 5, 12), "weight": normal(rng, 12, 12), "bias": normal(rng, 12), "heads": 3}


def draw_padded(rng):
    real = np.arange(6) < 3 + rng.integers(2)
    return {"q": normal(rng, 6, 3), "k": normal(rng, 6, 3), "v": normal(rng, 6, 4), "real": real}


def draw_probs(rng):
    e = np.exp(normal(rng, 2, 5, 7))
    return {"p": (e / e.sum(axis=-1, keepdims=True)).astype(np.float32).astype(np.float64)}


EXERCISES = (
    Exercise(
        "14.4",
        (
            "Project `x` (b, t, d) by a matrix as PyTorch keeps it, `weight` (out, in) with `bias` (out), and cut the "
            "result into heads, (b, heads, t, out / heads)."
        ),
        project,
        draw_project,
        {
            "matrix not transposed": lambda x, weight, bias, heads: project(x, weight.swapaxes(0, 1), bias, heads),
            "bias left out": lambda x, weight, bias, heads: project(x, weight, 0.0 * bias, heads),
            "heads split as k h": lambda x, weight, bias, heads: np.transpose(
                (einsum("btd,od->bto", x, weight) + bias).reshape(*x.shape[:2], x.shape[2] // heads, heads),
                (0, 3, 1, 2),
            ),
            "reshaped to (b, h, t, k) without moving the head axis": lambda x, weight, bias, heads: (
                einsum("btd,od->bto", x, weight) + bias
            ).reshape(x.shape[0], heads, x.shape[1], -1),
            "matrix not transposed, and the bias left out": lambda x, weight, bias, heads: project(
                x, weight.swapaxes(0, 1), 0.0 * bias, heads
            ),
            "the head axis not moved: (b, t, h, k)": lambda x, weight, bias, heads: (
                einsum("btd,od->bto", x, weight) + bias
            ).reshape(*x.shape[:2], heads, -1),
        },
    ),
    Exercise(
        "14.5",
        (
            "Attention with padding: `real` (s) is True for real words. What all queries answer, (t, v), those of "
            "padding as well."
        ),
        padded_attention,
        draw_padded,
        {
            "padding not hidden": padded(lambda z, real: softmax(z)),
            "padding mask on the rows of the queries": padded(
                lambda z, real: softmax(z, np.broadcast_to(real[:, None], z.shape))
            ),
            "mask inverted": padded(lambda z, real: softmax(z, np.broadcast_to(~real, z.shape))),
            "mask after the softmax without normalising again": padded(
                lambda z, real: np.where(real[None], softmax(z), 0.0)
            ),
            "mask added to the scores as 0 and 1": padded(lambda z, real: softmax(z + 1.0 * real)),
            "mask multiplied into the scores": padded(lambda z, real: softmax(z * (1.0 * real))),
            "padding hidden as keys and as queries": padded(
                lambda z, real: softmax(z, np.broadcast_to(real & real[:, None], z.shape))
            ),
            "scale missing": lambda q, k, v, real: padded_attention(q * np.sqrt(k.shape[-1]), k, v, real),
        },
    ),
    Exercise(
        "14.6",
        (
            "How spread out is a head? The entropy of its weights `p` (h, t, s), all above 0, in the natural "
            "logarithm and averaged over the queries: a number for each head."
        ),
        head_entropy,
        draw_probs,
        {
            "summed over the queries, not averaged": lambda p: head_entropy(p) * p.shape[1],
            "the opposite sign": lambda p: -head_entropy(p),
            "logarithm to the base 2": lambda p: head_entropy(p) / np.log(2),
            "the logarithm without its weight": lambda p: -np.sum(np.sum(np.log(p), axis=-1), axis=-1) / p.shape[1],
            "averaged over the keys, too": lambda p: head_entropy(p) / p.shape[2],
            "entropy of the average weights": lambda p: (
                -np.sum(np.sum(p, axis=1) / p.shape[1] * np.log(np.sum(p, axis=1) / p.shape[1]), axis=-1)
            ),
            "a softmax of the weights": lambda p: head_entropy(softmax(p)),
        },
    ),
)
