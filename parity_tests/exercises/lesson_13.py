"""Graded exercises of lesson 13: ports."""

import numpy as np

from attn_np.ops import einsum, softmax
from parity_tests.exercises import lesson_01, lesson_04, lesson_05
from parity_tests.exercises._exercise import Exercise, arrays


def ported_mha(x, w_q, w_k, w_v, w_o):
    b, t, d = x.shape
    heads = w_q.shape[1]
    projected = (einsum("btd,de->bte", x, w.reshape(d, -1)) for w in (w_q, w_k, w_v))
    q, k, v = (y.reshape(b, t, heads, -1).swapaxes(1, 2) for y in projected)
    p = softmax(einsum("bhtk,bhsk->bhts", q, k) / np.sqrt(k.shape[-1]))
    merged = einsum("bhts,bhsv->bhtv", p, v).swapaxes(1, 2).reshape(b, t, -1)
    return einsum("bte,ed->btd", merged, w_o.reshape(-1, d))


def ported_additive(q, k, v, w_q, w_k, w_score):
    a, b = einsum("tk,ke->te", q, w_q), einsum("sd,de->se", k, w_k)
    e = np.tanh(a[:, None] + b[None])
    p = softmax(einsum("tse,e->ts", e, w_score))
    return einsum("ts,sv->tv", p, v)


def ported_vjp(q, k, v, dy):
    p = softmax(einsum("tk,sk->ts", q, k) / np.sqrt(k.shape[-1]))
    dp, dv = einsum("tv,sv->ts", dy, v), einsum("ts,tv->sv", p, dy)
    dz = p * (dp - np.sum(p * dp, axis=-1, keepdims=True)) / np.sqrt(k.shape[-1])
    return einsum("ts,sk->tk", dz, k), einsum("ts,tk->sk", dz, q), dv


def without_moving(queries=True, keys=True, values=True):
    """The port with some of its arrays cut into (b, h, t, k) by a reshape alone."""

    def port(x, w_q, w_k, w_v, w_o):
        b, t, d = x.shape
        h = w_q.shape[1]

        def cut(w, wrong):
            y = einsum("btd,de->bte", x, w.reshape(d, -1))
            return y.reshape(b, h, t, -1) if wrong else y.reshape(b, t, h, -1).swapaxes(1, 2)

        q, k, v = cut(w_q, queries), cut(w_k, keys), cut(w_v, values)
        p = softmax(einsum("bhtk,bhsk->bhts", q, k) / np.sqrt(k.shape[-1]))
        return einsum("bhtv,hvd->btd", einsum("bhts,bhsv->bhtv", p, v), w_o)

    return port


def additive_with(weights):
    """The port with other weights: a function of its scores."""

    def port(q, k, v, w_q, w_k, w_score):
        z = lesson_05.additive_scores(q, k, w_q, w_k, w_score)
        return einsum("ts,sv->tv", weights(z), v)

    return port


MHA = """\
def ported_mha(x, w_q, w_k, w_v, w_o):
    b, t, d = x.shape
    h = w_q.shape[1]
    q, k, v = ((x @ w.reshape(d, -1)).reshape(b, h, t, -1) for w in (w_q, w_k, w_v))
    z = q @ k.swapaxes(2, 3) / np.sqrt(k.shape[-1])
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    merged = (p @ v).swapaxes(1, 2).reshape(b, t, -1)
    return merged @ w_o.reshape(-1, d)"""
ADDITIVE = """\
def ported_additive(q, k, v, w_q, w_k, w_score):
    e = np.tanh((q @ w_q)[:, None] + (k @ w_k)[None])
    z = e @ w_score
    e = np.exp(z - z.max(axis=0))
    p = e / e.sum(axis=0)
    return p @ v"""
VJP = """\
def ported_vjp(q, k, v, dy):
    z = q @ k.T / np.sqrt(k.shape[-1])
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    p = e / e.sum(axis=-1, keepdims=True)
    dp, dv = dy @ v.T, p.T @ dy
    dz = p * (dp - (p * dp).sum(axis=-1, keepdims=True))
    return dz @ k, dz.T @ q, dv"""

EXERCISES = (
    Exercise(
        "13.4",
        (
            "Find the mistake in this port of `mha` and mend it. No shape complains, and with a text of one word it "
            "is right."
        ),
        ported_mha,
        arrays(x="btd", w_q="dhk", w_k="dhk", w_v="dhv", w_o="hvd"),
        {
            "queries, keys and values reshaped to (b, h, t, k) without moving the head axis": without_moving(),
            "queries reshaped to (b, h, t, k) without moving the head axis": without_moving(True, False, False),
            "keys reshaped to (b, h, t, k) without moving the head axis": without_moving(False, True, False),
            "values reshaped to (b, h, t, k) without moving the head axis": without_moving(False, False, True),
            "queries and keys reshaped to (b, h, t, k) without moving the head axis": without_moving(True, True, False),
            "keys and values reshaped to (b, h, t, k) without moving the head axis": without_moving(False, True, True),
            "scale missing": next(one for one in lesson_04.EXERCISES if one.name == "4.5").wrong["scale missing"],
        },
        MHA,
    ),
    Exercise(
        "13.5",
        "Find the mistake in this port of `additive` attention and mend it.",
        ported_additive,
        arrays(q="tk", k="sd", v="sv", w_q="ke", w_k="de", w_score="e"),
        {
            "softmax over the queries": additive_with(lambda z: softmax(z.swapaxes(0, 1)).swapaxes(0, 1)),
            "no softmax": additive_with(lambda z: z),
            "exponentials not normalised": additive_with(np.exp),
            "additive score with a scale": lambda q, k, v, w_q, w_k, w_score: ported_additive(
                q, k, v, w_q, w_k, w_score / np.sqrt(len(w_score))
            ),
            "one sum for all queries": additive_with(
                lambda z: np.exp(z) / np.sum(np.sum(np.exp(z), axis=-1, keepdims=True), axis=0, keepdims=True)
            ),
        },
        ADDITIVE,
    ),
    Exercise(
        "13.6",
        "Find the mistake in this backward and mend it. Its gradients point in the right direction.",
        ported_vjp,
        arrays(q="tk", k="sk", v="sv", dy="tv"),
        dict(next(one for one in lesson_01.EXERCISES if one.name == "1.6").wrong)
        | {
            "scale missing in the gradient of the keys": lambda q, k, v, dy: (
                ported_vjp(q, k, v, dy)[0],
                ported_vjp(q, k, v, dy)[1] * np.sqrt(k.shape[-1]),
                ported_vjp(q, k, v, dy)[2],
            ),
            "scale missing in the gradient of the queries": lambda q, k, v, dy: (
                ported_vjp(q, k, v, dy)[0] * np.sqrt(k.shape[-1]),
                *ported_vjp(q, k, v, dy)[1:],
            ),
            "a scale in the gradient of the values": lambda q, k, v, dy: (
                *ported_vjp(q, k, v, dy)[:2],
                ported_vjp(q, k, v, dy)[2] / np.sqrt(k.shape[-1]),
            ),
        },
        VJP,
    ),
)
