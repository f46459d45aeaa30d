"""Graded exercises of lesson 3: masks."""

import numpy as np

from attn_np.ops import einsum, softmax
from parity_tests.exercises._exercise import Exercise, normal


def causal(t, s):
    return np.arange(s) <= np.arange(t)[:, None] + s - t


def masked_attention(q, k, v, allowed):
    p = softmax(einsum("tk,sk->ts", q, k) / np.sqrt(k.shape[-1]), allowed)
    return einsum("ts,sv->tv", p, v)


def window(n, width):
    t, s = np.arange(n)[:, None], np.arange(n)
    return (s <= t) & (t - s < width)


GIVEN = """\
def window(n, width):
    t, s = np.arange(n)[:, None], np.arange(n)
    return t - s <= width"""


def draw_masked(rng):
    allowed = rng.random((5, 7)) < 0.6
    allowed[1], allowed[2, :2] = False, True
    allowed[0, 0], allowed[0, 1] = True, False
    return {"q": normal(rng, 5, 3), "k": normal(rng, 7, 3), "v": normal(rng, 7, 4), "allowed": allowed}


def from_scores(weights):
    """Attention with other weights: a function of the scores and the mask."""
    return lambda q, k, v, allowed: einsum(
        "ts,sv->tv", weights(einsum("tk,sk->ts", q, k) / np.sqrt(k.shape[-1]), allowed), v
    )


def nan_where_empty(z, allowed):
    return np.where(np.any(allowed, axis=-1, keepdims=True), softmax(z, allowed), np.nan)


EXERCISES = (
    Exercise(
        "3.1",
        "The causal mask, (t, s), of queries that are the last `t` of `s` words. True is visible.",
        causal,
        lambda rng: {"t": 2 + int(rng.integers(2)), "s": 7},
        {
            "causal aligned at the first key": lambda t, s: np.arange(s) <= np.arange(t)[:, None],
            "causal hides a query's own position": lambda t, s: np.arange(s) < np.arange(t)[:, None] + s - t,
            "causal off by one": lambda t, s: np.arange(s) <= np.arange(t)[:, None] + s - t + 1,
            "causal mask upside down": lambda t, s: np.arange(s) >= np.arange(t)[:, None] + s - t,
            "mask inverted": lambda t, s: ~causal(t, s),
            "aligned at the first key, and a query's own position hidden": lambda t, s: (
                np.arange(s) < np.arange(t)[:, None]
            ),
            "causal ignored": lambda t, s: np.ones((t, s), bool),
        },
    ),
    Exercise(
        "3.4",
        "Attention with a mask `allowed` (t, s), True where visible. A query that sees nothing gets zeros.",
        masked_attention,
        draw_masked,
        {
            "mask ignored": from_scores(lambda z, allowed: softmax(z)),
            "mask inverted": from_scores(lambda z, allowed: softmax(z, ~allowed)),
            "a fill that hides nothing, such as -1e-25 or 1e-9": from_scores(
                lambda z, allowed: softmax(np.where(allowed, z, -1e-25))
            ),
            "hidden scores filled with -1": from_scores(lambda z, allowed: softmax(np.where(allowed, z, -1.0))),
            "mask added to the scores as 0 and 1": from_scores(lambda z, allowed: softmax(z + 1.0 * allowed)),
            "mask after the softmax without normalising again": from_scores(
                lambda z, allowed: np.where(allowed, softmax(z), 0.0)
            ),
            "row without a key is NaN": from_scores(nan_where_empty),
            "row without a key shared evenly: a finite fill such as -1e9": from_scores(
                lambda z, allowed: softmax(np.where(allowed, z, -1e9))
            ),
            "scale missing": lambda q, k, v, allowed: masked_attention(q * np.sqrt(k.shape[-1]), k, v, allowed),
            "softmax over the queries": from_scores(
                lambda z, allowed: softmax(z.swapaxes(0, 1), allowed.swapaxes(0, 1)).swapaxes(0, 1)
            ),
        },
    ),
    Exercise(
        "3.5",
        "Make this window right. Of `n` words each sees `width` words: itself and the `width - 1` before it.",
        window,
        lambda rng: {"n": 11, "width": 3 + int(rng.integers(2))},
        {
            "causal ignored, and window one key too wide on the left": lambda n, width: (
                np.arange(n)[:, None] - np.arange(n) <= width
            ),
            "window one key too wide on the left": lambda n, width: window(n, width + 1),
            "window one key too narrow on the left": lambda n, width: window(n, width - 1),
            "causal ignored": lambda n, width: np.arange(n)[:, None] - np.arange(n) < width,
            "window as wide on the right as on the left": lambda n, width: (
                abs(np.arange(n)[:, None] - np.arange(n)) < width
            ),
            "window as wide on the right as on the left, and one key too wide": lambda n, width: (
                abs(np.arange(n)[:, None] - np.arange(n)) <= width
            ),
            "causal hides a query's own position": lambda n, width: window(n, width) & ~np.eye(n, dtype=bool),
            "the width before the word, without itself": lambda n, width: window(n, width + 1) & ~np.eye(n, dtype=bool),
            "mask transposed": lambda n, width: window(n, width).T,
            "mask inverted": lambda n, width: ~window(n, width),
            "window ignored": lambda n, width: causal(n, n),
        },
        GIVEN,
    ),
)
