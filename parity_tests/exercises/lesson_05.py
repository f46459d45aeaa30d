"""Graded exercises of lesson 5: from a state to attention."""

import numpy as np

from attn_np.ops import einsum, sigmoid, softmax
from parity_tests.exercises._exercise import Exercise, arrays


def additive_scores(q, k, w_q, w_k, w_score):
    a, b = einsum("tk,ke->te", q, w_q), einsum("sd,de->se", k, w_k)
    e = np.tanh(a[:, None] + b[None])
    return einsum("tse,e->ts", e, w_score)


def gru_step(x, h, w_x, w_h):
    a, c = einsum("bd,gde->gbe", x, w_x), einsum("bd,gde->gbe", h, w_h)
    r, z = sigmoid(a[0] + c[0]), sigmoid(a[1] + c[1])
    n = np.tanh(a[2] + r * c[2])
    return (1 - z) * n + z * h


def additive_vjp(e, w_score, dz):
    return dz[..., None] * w_score * (1 - e * e), einsum("ts,tse->e", dz, e)


def scores_of(features):
    """Additive scores with other features of the projected query and key."""

    def scores(q, k, w_q, w_k, w_score):
        a, b = einsum("tk,ke->te", q, w_q)[:, None], einsum("sd,de->se", k, w_k)[None]
        return einsum("tse,e->ts", features(a, b), w_score)

    return scores


def summed_features(q, k, w_q, w_k, w_score):
    return np.sum(np.tanh(einsum("tk,ke->te", q, w_q)[:, None] + einsum("sd,de->se", k, w_k)[None]), axis=-1)


def cell(gates):
    """A cell with other gates: a function of both products, (3, b, e) each, and the state."""
    return lambda x, h, w_x, w_h: gates(einsum("bd,gde->gbe", x, w_x), einsum("bd,gde->gbe", h, w_h), h)


def usual(a, c, h, reset=0, update=1):
    r, z = sigmoid(a[reset] + c[reset]), sigmoid(a[update] + c[update])
    return r, z, np.tanh(a[2] + r * c[2])


def reset_first(x, h, w_x, w_h):
    a, c = einsum("bd,gde->gbe", x, w_x), einsum("bd,gde->gbe", h, w_h)
    r, z = sigmoid(a[0] + c[0]), sigmoid(a[1] + c[1])
    n = np.tanh(a[2] + einsum("bd,de->be", r * h, w_h[2]))
    return (1 - z) * n + z * h


def mixed(n, z, h):
    return (1 - z) * n + z * h


def draw_step(rng):
    call = arrays(x="bk", h="be", w_x="ke", w_h="ee")(rng)
    more = [arrays(w_x="ke", w_h="ee")(rng) for _ in range(2)]
    return call | {name: np.stack([call[name], *(one[name] for one in more)]) for name in ("w_x", "w_h")}


def draw_features(rng):
    call = arrays(e="tse", w_score="e", dz="ts")(rng)
    return call | {"e": np.tanh(call["e"]).astype(np.float32).astype(np.float64)}


EXERCISES = (
    Exercise(
        "5.4",
        (
            "The additive scores (t, s) of queries `q` (t, k) and keys `k` (s, d), with `w_q` (k, e), `w_k` (d, e) "
            "and `w_score` (e)."
        ),
        additive_scores,
        arrays(q="tk", k="sd", w_q="ke", w_k="de", w_score="e"),
        {
            "additive score without tanh": scores_of(lambda a, b: a + b),
            "relu in place of tanh": scores_of(lambda a, b: np.maximum(a + b, 0)),
            "difference in place of the sum in the additive score": scores_of(lambda a, b: np.tanh(a - b)),
            "product in place of the sum in the additive score": scores_of(lambda a, b: np.tanh(a * b)),
            "tanh of query and key each": scores_of(lambda a, b: np.tanh(a) + np.tanh(b)),
            "features summed without the score's weights": summed_features,
            "additive score with a scale": lambda q, k, w_q, w_k, w_score: (
                additive_scores(q, k, w_q, w_k, w_score) / np.sqrt(len(w_score))
            ),
            "a softmax that was not asked for": lambda q, k, w_q, w_k, w_score: softmax(
                additive_scores(q, k, w_q, w_k, w_score)
            ),
        },
    ),
    Exercise(
        "5.5",
        (
            "One step of a GRU without biases: the new state from `x` (b, k) and the state `h` (b, e). `w_x` (3, k, "
            "e) and `w_h` (3, e, e) hold the matrices of the reset gate, the update gate and the new state, in this "
            "order. The reset gate multiplies the product of the state with its matrix, and $h' = (1 - z) n + z h$."
        ),
        gru_step,
        draw_step,
        {
            "update gate the other way round": cell(lambda a, c, h: mixed(h, *usual(a, c, h)[1:])),
            "reset before the recurrent product": reset_first,
            "reset left out": cell(lambda a, c, h: mixed(np.tanh(a[2] + c[2]), usual(a, c, h)[1], h)),
            "reset and update gate exchanged": cell(
                lambda a, c, h: mixed(usual(a, c, h, 1, 0)[2], usual(a, c, h, 1, 0)[1], h)
            ),
            "new state without tanh": cell(
                lambda a, c, h: mixed(a[2] + usual(a, c, h)[0] * c[2], usual(a, c, h)[1], h)
            ),
            "reset applied to the input, not to the state": cell(
                lambda a, c, h: mixed(np.tanh(usual(a, c, h)[0] * a[2] + c[2]), usual(a, c, h)[1], h)
            ),
            "gates without the state": cell(
                lambda a, c, h: mixed(np.tanh(a[2] + sigmoid(a[0]) * c[2]), sigmoid(a[1]), h)
            ),
            "the new state without the old one": cell(lambda a, c, h: usual(a, c, h)[2]),
        },
    ),
    Exercise(
        "5.6",
        (
            "The backward of additive scores `z = e @ w_score` with `e = tanh(a)`, (t, s, e): `(da, dw_score)` from "
            "`e`, `w_score` and `dz` (t, s)."
        ),
        additive_vjp,
        draw_features,
        {
            "tanh backward without the square": lambda e, w_score, dz: (
                dz[..., None] * w_score * (1 - e),
                einsum("ts,tse->e", dz, e),
            ),
            "tanh forgotten in the backward": lambda e, w_score, dz: (
                dz[..., None] * w_score + 0.0 * e,
                einsum("ts,tse->e", dz, e),
            ),
            "the score's weights forgotten in the backward": lambda e, w_score, dz: (
                dz[..., None] * (1 - e * e),
                einsum("ts,tse->e", dz, e),
            ),
            "sigmoid's slope in place of tanh's": lambda e, w_score, dz: (
                dz[..., None] * w_score * e * (1 - e),
                einsum("ts,tse->e", dz, e),
            ),
            "tanh taken a second time": lambda e, w_score, dz: (
                dz[..., None] * w_score * (1 - np.tanh(e) * np.tanh(e)),
                einsum("ts,tse->e", dz, e),
            ),
        },
    ),
)
