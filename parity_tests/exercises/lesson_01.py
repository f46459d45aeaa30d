"""Graded exercises of lesson 1: attention."""

import numpy as np

from attn_np.ops import einsum, softmax
from attn_np.ops.vjp import softmax_vjp
from parity_tests.exercises._exercise import Exercise, arrays, normal


def unshuffle(y, order):
    return y[np.argsort(order)]


def attention(q, k, v):
    p = softmax(einsum("tk,sk->ts", q, k) / np.sqrt(k.shape[-1]))
    return einsum("ts,sv->tv", p, v)


def self_attention(x, w_q, w_k, w_v):
    q, k, v = (einsum("td,dk->tk", x, w) for w in (w_q, w_k, w_v))
    return attention(q, k, v)


def attention_vjp(q, k, v, dy):
    p = softmax(einsum("tk,sk->ts", q, k) / np.sqrt(k.shape[-1]))
    dv = einsum("ts,tv->sv", p, dy)
    dz = softmax_vjp(p, einsum("tv,sv->ts", dy, v)) / np.sqrt(k.shape[-1])
    return einsum("ts,sk->tk", dz, k), einsum("ts,tk->sk", dz, q), dv


def weighted(weights):
    """Attention with other weights: a function of the products of queries and keys, and of all three arrays."""
    return lambda q, k, v: einsum("ts,sv->tv", weights(einsum("tk,sk->ts", q, k), q, k, v), v)


def backward(gradient, divisor=lambda root: root):
    """The backward with another rule for the scores, or divided by something else than the root of the width."""

    def vjp(q, k, v, dy):
        root = np.sqrt(k.shape[-1])
        p = softmax(einsum("tk,sk->ts", q, k) / root)
        dz = gradient(p, einsum("tv,sv->ts", dy, v)) / divisor(root)
        return einsum("ts,sk->tk", dz, k), einsum("ts,tk->sk", dz, q), einsum("ts,tv->sv", p, dy)

    return vjp


def over_queries(z):
    return softmax(z.swapaxes(0, 1)).swapaxes(0, 1)


def draw_order(rng):
    return {"y": normal(rng, 5, 4), "order": np.roll([3, 0, 4, 1, 2], rng.integers(5))}


EXERCISES = (
    Exercise(
        "1.2",
        "`y` holds the answers of words that were shuffled by `x[order]`. Give the answers in the old order.",
        unshuffle,
        draw_order,
        {"the order applied once more": lambda y, order: y[order], "left in the new order": lambda y, order: y},
    ),
    Exercise(
        "1.4",
        "The attention of this lesson: the answers `y`, for queries `q` (t, k), keys `k` (s, k) and values `v` (s, v).",
        attention,
        arrays(q="tk", k="sk", v="sv"),
        {
            "scale missing": weighted(lambda z, q, k, v: softmax(z)),
            "scale without the root": weighted(lambda z, q, k, v: softmax(z / k.shape[-1])),
            "scale from the value width": weighted(lambda z, q, k, v: softmax(z / np.sqrt(v.shape[-1]))),
            "scale from the number of keys": weighted(lambda z, q, k, v: softmax(z / np.sqrt(len(k)))),
            "scale the wrong way up": weighted(lambda z, q, k, v: softmax(z * np.sqrt(k.shape[-1]))),
            "softmax over the queries": weighted(lambda z, q, k, v: over_queries(z / np.sqrt(k.shape[-1]))),
            "scale after the softmax": weighted(lambda z, q, k, v: softmax(z) / np.sqrt(k.shape[-1])),
            "no softmax": weighted(lambda z, q, k, v: z / np.sqrt(k.shape[-1])),
            "exponentials not normalised": weighted(lambda z, q, k, v: np.exp(z / np.sqrt(k.shape[-1]))),
            "scale missing, and softmax over the queries": weighted(lambda z, q, k, v: over_queries(z)),
        },
    ),
    Exercise(
        "1.5",
        (
            "Self-attention of `x` (t, d): queries, keys and values are `x` times the three matrices, (d, k), (d, k), "
            "(d, v)."
        ),
        self_attention,
        arrays(x="td", w_q="dk", w_k="dk", w_v="dv"),
        {
            "scale missing": lambda x, w_q, w_k, w_v: attention(
                einsum("td,dk->tk", x, w_q) * np.sqrt(w_q.shape[1]),
                einsum("td,dk->tk", x, w_k),
                einsum("td,dv->tv", x, w_v),
            ),
            "scale from the width of the model": lambda x, w_q, w_k, w_v: attention(
                einsum("td,dk->tk", x, w_q) * np.sqrt(w_q.shape[1] / len(w_q)),
                einsum("td,dk->tk", x, w_k),
                einsum("td,dv->tv", x, w_v),
            ),
            "queries and keys exchanged": lambda x, w_q, w_k, w_v: self_attention(x, w_k, w_q, w_v),
            "queries projected with the weights of the keys": lambda x, w_q, w_k, w_v: self_attention(x, w_k, w_k, w_v),
            "keys projected with the weights of the queries": lambda x, w_q, w_k, w_v: self_attention(x, w_q, w_q, w_v),
            "values not projected": lambda x, w_q, w_k, w_v: attention(
                einsum("td,dk->tk", x, w_q), einsum("td,dk->tk", x, w_k), x
            ),
            "values projected with the weights of the keys": lambda x, w_q, w_k, w_v: self_attention(x, w_q, w_k, w_k),
            "softmax over the queries": lambda x, w_q, w_k, w_v: einsum(
                "ts,sv->tv",
                over_queries(
                    einsum("tk,sk->ts", einsum("td,dk->tk", x, w_q), einsum("td,dk->tk", x, w_k))
                    / np.sqrt(w_k.shape[1])
                ),
                einsum("td,dv->tv", x, w_v),
            ),
        },
    ),
    Exercise(
        "1.6",
        "The backward of `attention`: `(dq, dk, dv)` from the gradient `dy` (t, v) of its answers.",
        attention_vjp,
        arrays(q="tk", k="sk", v="sv", dy="tv"),
        {
            "scale missing in the backward": backward(softmax_vjp, lambda root: 1.0),
            "scale twice in the backward": backward(softmax_vjp, lambda root: root * root),
            "softmax backward without its sum": backward(lambda p, dp: p * dp),
            "softmax backward without the weights in front": backward(
                lambda p, dp: dp - np.sum(p * dp, axis=-1, keepdims=True)
            ),
            "softmax backward with its sum added": backward(
                lambda p, dp: p * (dp + np.sum(p * dp, axis=-1, keepdims=True))
            ),
            "softmax backward over the wrong axis": backward(
                lambda p, dp: p * (dp - np.sum(p * dp, axis=0, keepdims=True))
            ),
            "softmax left out of the backward": backward(lambda p, dp: dp),
            "gradients of queries and keys exchanged": lambda q, k, v, dy: (
                attention_vjp(q, k, v, dy)[1],
                attention_vjp(q, k, v, dy)[0],
                attention_vjp(q, k, v, dy)[2],
            ),
        },
    ),
)
