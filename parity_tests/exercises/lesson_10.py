"""Graded exercises of lesson 10: states."""

import numpy as np

from attn_np.ops import einsum, softmax
from parity_tests.exercises._exercise import Exercise, arrays, normal


def retention(q, k, v, gamma):
    at = np.arange(len(q))
    decay = np.where(at[:, None] >= at, gamma ** np.maximum(at[:, None] - at, 0), 0.0)
    return einsum("ts,sv->tv", einsum("tk,sk->ts", q, k) * decay, v)


def linear_attention(q, k, v):
    q, k = features(q), features(k)
    weights = einsum("tk,sk->ts", q, k) * np.tri(len(q))
    return einsum("ts,sv->tv", weights, v) / np.sum(weights, axis=-1, keepdims=True)


def delta_step(state, k, v, beta):
    error = v - einsum("k,kv->v", k, state)
    return state + beta * k[:, None] * error


def features(x):
    return np.where(x > 0, x + 1, np.exp(-np.maximum(-x, 0)))


def decayed(power, causal=True):
    """Retention with another power of gamma, a function of how many words ago a key was."""

    def layer(q, k, v, gamma):
        ago = np.arange(len(q))[:, None] - np.arange(len(q))
        decay = np.where((ago >= 0) | (not causal), gamma ** (1.0 * power(ago)), 0.0)
        return einsum("ts,sv->tv", einsum("tk,sk->ts", q, k) * decay, v)

    return layer


def by_features(phi, mask=np.tri, divided=True):
    """Linear attention with other features or another mask."""

    def layer(q, k, v):
        weights = einsum("tk,sk->ts", phi(q), phi(k)) * mask(len(q))
        y = einsum("ts,sv->tv", weights, v)
        return y / np.sum(weights, axis=-1, keepdims=True) if divided else y

    return layer


def softmax_attention(q, k, v):
    z = einsum("tk,sk->ts", q, k) / np.sqrt(k.shape[-1])
    return einsum("ts,sv->tv", softmax(z, np.tri(len(q), dtype=bool)), v)


def outer(k, v):
    return k[:, None] * v


EXERCISES = (
    Exercise(
        "10.2",
        (
            "Retention as attention, without a loop: the answers (t, v) from `q`, `k` (t, k), `v` (t, v) and the "
            "number `gamma`. No softmax, no scale; a word's own key does not fade."
        ),
        retention,
        lambda rng: arrays(q="tk", k="tk", v="tv")(rng) | {"gamma": 0.75},
        {
            "a key fades at its own position": decayed(lambda ago: ago + 1),
            "the state does not fade": decayed(lambda ago: 0 * ago),
            "later keys seen": decayed(abs, causal=False),
            "later keys seen, and they grow": decayed(lambda ago: ago, causal=False),
            "keys grow with their age": decayed(lambda ago: -ago),
            "faded by the key's position, not by its age": decayed(lambda ago: np.arange(len(ago)) + 0 * ago),
            "a softmax in place of the fading": lambda q, k, v, gamma: softmax_attention(q, k, v),
            "divided by the root of the width": lambda q, k, v, gamma: retention(q, k, v, gamma) / np.sqrt(k.shape[-1]),
        },
    ),
    Exercise(
        "10.4",
        (
            "Causal linear attention, normalised, with the features `elu(x) + 1`: the answers (t, v) from `q`, `k` "
            "(t, k) and `v` (t, v), no small constant in the denominator."
        ),
        linear_attention,
        arrays(q="tk", k="tk", v="tv"),
        {
            "feature map without its 1": by_features(lambda x: features(x) - 1),
            "relu in place of the feature map": by_features(lambda x: np.maximum(x, 0) + 0.0),
            "no feature map": by_features(lambda x: x),
            "the exponential for all numbers": by_features(np.exp),
            "causality forgotten": by_features(features, lambda n: np.ones((n, n))),
            "gradient's mask: later keys alone": by_features(features, lambda n: np.tri(n).T),
            "normaliser left out": by_features(features, divided=False),
            "softmax in place of linear attention": softmax_attention,
            "features of the queries alone": lambda q, k, v: by_features(lambda x: x)(features(q), k, v),
        },
    ),
    Exercise(
        "10.5",
        (
            "One write of the delta rule: the new `state` (k, v) after the key `k` (k) and the value `v` (v), with "
            "strength `beta`. The key has length 1."
        ),
        delta_step,
        lambda rng: {"state": normal(rng, 3, 4), "k": np.array([0.5, -0.5, 0.75]), "v": normal(rng, 4), "beta": 0.5},
        {
            "old value not taken out of the state": lambda state, k, v, beta: state + beta * outer(k, v),
            "values written at full strength": lambda state, k, v, beta: delta_step(state, k, v, 1.0),
            "writing strength missing in what is taken out": lambda state, k, v, beta: (
                state + outer(k, beta * v - einsum("k,kv->v", k, state))
            ),
            "writing strength missing in what is written": lambda state, k, v, beta: (
                state + outer(k, v - beta * einsum("k,kv->v", k, state))
            ),
            "old value added once more": lambda state, k, v, beta: (
                state + beta * outer(k, v + einsum("k,kv->v", k, state))
            ),
            "the old state forgotten": lambda state, k, v, beta: delta_step(state, k, v, beta) - state,
            "the whole state faded": lambda state, k, v, beta: (1 - beta) * state + beta * outer(k, v),
            "the sign of the step": lambda state, k, v, beta: delta_step(state, k, v, -beta),
        },
    ),
)
