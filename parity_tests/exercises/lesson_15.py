"""Graded exercises of lesson 15: the whole Transformer."""

import numpy as np

from attn_np.ops import einsum, softmax
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import FUNCTION, promised
from parity_tests.exercises._exercise import Exercise, arrays, normal


def pre_norm_mlp(x, w_1, w_2):
    hidden = np.maximum(einsum("td,de->te", norm(x), w_1), 0)
    return x + einsum("te,ed->td", hidden, w_2)


def sinusoids(length, width):
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    return np.stack([sin(angles), cos(angles)], axis=-1).reshape(length, width)


def cross_attention(x, memory, w_q, w_k, w_v):
    q = einsum("td,dk->tk", x, w_q)
    k, v = einsum("sd,dk->sk", memory, w_k), einsum("sd,dv->sv", memory, w_v)
    p = softmax(einsum("tk,sk->ts", q, k) / np.sqrt(k.shape[-1]))
    return einsum("ts,sv->tv", p, v)


def norm_vjp(x, dy):
    root = np.sqrt(variance(x))
    y = (x - mean(x)) / root
    return (dy - mean(dy) - y * mean(y * dy)) / root


def mean(x):
    return np.sum(x, axis=-1, keepdims=True) / x.shape[-1]


def variance(x):
    return mean((x - mean(x)) * (x - mean(x)))


def norm_of(x):
    return (x - mean(x)) / np.sqrt(variance(x))


def norm(x):
    return (x - mean(x)) / np.sqrt(variance(x) + 1e-5)


def of_angle(values, angles):
    """A sine or cosine with its bounds: the angle's roundings, each of which moves it by as much, and its own."""
    return ErrArray(values, FUNCTION * promised().u * (abs(angles) + abs(values)))


def sin(angles):
    return of_angle(np.sin(angles), angles)


def cos(angles):
    return of_angle(np.cos(angles), angles)


def mlp(x, w_1, w_2, activation=lambda a: np.maximum(a, 0)):
    return einsum("te,ed->td", activation(einsum("td,de->te", x, w_1)), w_2)


def attended(x, memory, w_q, w_k, w_v, weights):
    z = einsum("tk,sk->ts", einsum("td,dk->tk", x, w_q), einsum("sd,dk->sk", memory, w_k))
    return einsum("ts,sv->tv", weights(z, w_k.shape[1]), einsum("sd,dv->sv", memory, w_v))


def places(angles_of, in_turn=True, sine_first=True):
    def encode(length, width):
        angles = angles_of(np.arange(length)[:, None], np.arange(0, width, 2), width)
        pair = [sin(angles), cos(angles)] if sine_first else [cos(angles), sin(angles)]
        return np.stack(pair, axis=-1 if in_turn else 1).reshape(length, width)

    return encode


def usual_angles(t, i, width):
    return t * 10000.0 ** (-i / width)


EXERCISES = (
    Exercise(
        "15.4",
        (
            "The second half of a pre-norm block: the stream `x` (t, d) plus a ReLU MLP, `w_1` (d, e) and `w_2` (e, "
            "d), of its layer norm. The norm has no weights and adds $10^{-5}$ to the variance."
        ),
        pre_norm_mlp,
        arrays(x="td", w_1="de", w_2="ed"),
        {
            "post-norm: the sum is normed": lambda x, w_1, w_2: norm(x + mlp(x, w_1, w_2)),
            "norm left out": lambda x, w_1, w_2: x + mlp(x, w_1, w_2),
            "residual connection left out": lambda x, w_1, w_2: mlp(norm(x), w_1, w_2),
            "the normed stream added, not the stream": lambda x, w_1, w_2: norm(x) + mlp(norm(x), w_1, w_2),
            "activation left out": lambda x, w_1, w_2: x + mlp(norm(x), w_1, w_2, lambda a: a),
            "tanh in place of the ReLU": lambda x, w_1, w_2: x + mlp(norm(x), w_1, w_2, np.tanh),
            "norm behind the MLP": lambda x, w_1, w_2: x + norm(mlp(x, w_1, w_2)),
            "a second activation behind the MLP": lambda x, w_1, w_2: x + np.maximum(mlp(norm(x), w_1, w_2), 0),
        },
    ),
    Exercise(
        "15.5",
        (
            "The sinusoidal positions of the Transformer, (length, width): sine and cosine in turn, the first pair "
            "turning by 1 for each word, base 10000."
        ),
        sinusoids,
        lambda rng: {"length": 5 + int(rng.integers(3)), "width": 6},
        {
            "sines first, then cosines, not in turn": places(usual_angles, in_turn=False),
            "sine and cosine exchanged": places(usual_angles, sine_first=False),
            "positions counted from 1": places(lambda t, i, width: usual_angles(t + 1, i, width)),
            "wavelengths of base^(-i/d), without the 2": places(lambda t, i, width: usual_angles(t, i / 2, width)),
            "the 2 applied twice": places(lambda t, i, width: usual_angles(t, 2 * i, width)),
            "frequencies growing in place of falling": places(lambda t, i, width: usual_angles(t, -i, width)),
            "one frequency for all pairs": places(lambda t, i, width: usual_angles(t, 0 * i, width)),
        },
    ),
    Exercise(
        "15.6",
        (
            "Cross-attention with one head: `x` (t, d) of the decoder asks, `memory` (s, d) of the encoder answers. "
            "`w_q` and `w_k` (d, k), `w_v` (d, v)."
        ),
        cross_attention,
        lambda rng: arrays(x="td", memory="sd", w_q="dk", w_k="dk", w_v="dv")(rng),
        {
            "self-attention of the decoder": lambda x, memory, w_q, w_k, w_v: cross_attention(x, x, w_q, w_k, w_v),
            "self-attention of the encoder": lambda x, memory, w_q, w_k, w_v: cross_attention(
                memory, memory, w_q, w_k, w_v
            ),
            "encoder and decoder exchanged": lambda x, memory, w_q, w_k, w_v: cross_attention(memory, x, w_q, w_k, w_v),
            "scale missing": lambda x, memory, w_q, w_k, w_v: attended(
                x, memory, w_q, w_k, w_v, lambda z, k: softmax(z)
            ),
            "scale after the softmax": lambda x, memory, w_q, w_k, w_v: attended(
                x, memory, w_q, w_k, w_v, lambda z, k: softmax(z) / np.sqrt(k)
            ),
            "softmax over the queries": lambda x, memory, w_q, w_k, w_v: attended(
                x, memory, w_q, w_k, w_v, lambda z, k: softmax((z / np.sqrt(k)).swapaxes(0, 1)).swapaxes(0, 1)
            ),
            "a causal mask, which cross-attention has not": lambda x, memory, w_q, w_k, w_v: attended(
                x, memory, w_q, w_k, w_v, lambda z, k: softmax(z / np.sqrt(k), np.tri(*z.shape, dtype=bool))
            ),
            "queries and keys exchanged": lambda x, memory, w_q, w_k, w_v: cross_attention(x, memory, w_k, w_q, w_v),
        },
    ),
    Exercise(
        "15.7",
        (
            "The backward of the layer norm without weights and without a small constant, `y = (x - mean) / "
            "sqrt(variance)`: the gradient of `x` (t, d) from `dy`."
        ),
        norm_vjp,
        lambda rng: {"x": normal(rng, 5, 11), "dy": normal(rng, 5, 11)},
        {
            "mean and variance taken as constants": lambda x, dy: dy / np.sqrt(variance(x)),
            "no gradient through the root of the norm": lambda x, dy: (dy - mean(dy)) / np.sqrt(variance(x)),
            "no gradient through the mean": lambda x, dy: norm_vjp(x, dy) + mean(dy) / np.sqrt(variance(x)),
            "not divided by the root": lambda x, dy: norm_vjp(x, dy) * np.sqrt(variance(x)),
            "divided by the variance": lambda x, dy: norm_vjp(x, dy) / np.sqrt(variance(x)),
            "the input where its norm belongs": lambda x, dy: (dy - mean(dy) - x * mean(x * dy)) / np.sqrt(variance(x)),
            "sums in place of means": lambda x, dy: (
                (dy - x.shape[-1] * (mean(dy) + norm_of(x) * mean(norm_of(x) * dy))) / np.sqrt(variance(x))
            ),
            "gradient through the root with the wrong sign": lambda x, dy: (
                (dy - mean(dy) + norm_of(x) * mean(norm_of(x) * dy)) / np.sqrt(variance(x))
            ),
        },
    ),
)
