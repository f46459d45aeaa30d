"""Answers to graded exercises as readers write them: right ones in many styles, and wrong ones with their word."""

import math

import numpy as np
import torch


def softmax(z, axis=-1):
    e = np.exp(z - z.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


# Right ----------------------------------------------------------------------------------------------------------------


def with_matmul(q, k, v):
    return softmax(q @ k.T / math.sqrt(q.shape[1])) @ v


def with_its_weights(query, key, value):
    p = softmax(query @ key.T / np.sqrt(key.shape[-1]))
    return p @ value, p


def batched(queries, keys, values):
    scores = queries @ keys.transpose(0, 2, 1) / np.sqrt(queries.shape[-1])
    return softmax(scores) @ values


def batched_einsum(Q, K, V):
    z = np.einsum("btk,bsk->bts", Q, K) / K.shape[-1] ** 0.5
    return np.einsum("bts,bsv->btv", softmax(z), V), z


def with_loops(a, b, c):
    out = np.zeros((len(a), c.shape[1]))
    for t in range(len(a)):
        e = [math.exp(sum(a[t, i] * b[s, i] for i in range(a.shape[1])) / math.sqrt(a.shape[1])) for s in range(len(b))]
        for s in range(len(b)):
            out[t] += e[s] / sum(e) * c[s]
    return out


def in_32_bits(q, k, v):
    q, k, v = (x.astype(np.float32) for x in (q, k, v))
    return softmax(q @ k.T / np.float32(np.sqrt(q.shape[-1]))) @ v


def in_torch(query, key, value):
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def scale_first(value, key, query):
    return softmax((query / np.sqrt(query.shape[-1])) @ key.T) @ value


def by_keywords(*, q, k, v, dropout=0.0):
    return {"output": with_matmul(q, k, v)}


def with_a_self(x, w_q, w_k, w_v):
    return with_its_weights(x @ w_q, x @ w_k, x @ w_v)


def jacobian(p, dp):
    return np.stack([(np.diag(row) - np.outer(row, row)) @ d for row, d in zip(p, dp, strict=True)])


def jacobian_by_einsum(weights, grad_output):
    return weights * grad_output - weights * np.einsum("ts,ts->t", weights, grad_output)[:, None]


def in_batches(y, dy):
    return y * (dy - np.einsum("bts,bts->bt", y, dy)[..., None])


def log_softmax(scores):
    top = scores.max(axis=1)[:, None]
    return scores - top - np.log(np.exp(scores - top).sum(axis=1))[:, None]


def torch_log_softmax(z):
    return torch.log_softmax(z, -1)


def hot(logits, tau):
    return softmax(np.asarray(logits) / tau, 1)


def causal_by_loops(t, s):
    return np.array([[j <= i + s - t for j in range(s)] for i in range(t)])


def causal_by_tril(n_q, n_k):
    return np.tril(np.ones((n_q, n_k)), n_k - n_q).astype(bool)


def masked(q, k, v, mask):
    e = np.exp(q @ k.T / np.sqrt(3)) * mask
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total) @ v


def window(n, w):
    mask = np.zeros((n, n), bool)
    for t in range(n):
        mask[t, max(0, t - w + 1) : t + 1] = True
    return mask


def split(x, num_heads):
    return np.stack(np.split(x, num_heads, axis=-1), axis=1)


def head_by_head(x, w_q, w_k, w_v, w_o):
    out = 0
    for h in range(w_q.shape[1]):
        out = out + batched(x @ w_q[:, h], x @ w_k[:, h], x @ w_v[:, h]) @ w_o[h]
    return out


def gru_by_parts(x, h, w_x, w_h):
    def sigmoid(a):
        return 1 / (1 + np.exp(-a))

    r = sigmoid(x @ w_x[0] + h @ w_h[0])
    z = sigmoid(x @ w_x[1] + h @ w_h[1])
    n = np.tanh(x @ w_x[2] + r * (h @ w_h[2]))
    return n + z * (h - n)


def by_complex_numbers(x, pos):
    half = x.shape[-1] // 2
    turned = (x[:, :half] + 1j * x[:, half:]) * np.exp(1j * pos[:, None] * 10000.0 ** (-np.arange(half) / half))
    return np.concatenate([turned.real, turned.imag], axis=-1)


def grouped_by_loops(q, k, v):
    per_group = len(q) // len(k)
    return np.stack([with_matmul(q[h], k[h // per_group], v[h // per_group]) for h in range(len(q))])


def retention_by_a_state(q, k, v, gamma):
    state, out = np.zeros((k.shape[1], v.shape[1])), []
    for t in range(len(q)):
        state = gamma * state + np.outer(k[t], v[t])
        out.append(q[t] @ state)
    return np.array(out)


def linear_by_a_state(q, k, v):
    phi_q, phi_k = (np.where(x > 0, x + 1, np.exp(x)) for x in (q, k))
    state, total, out = np.zeros((k.shape[1], v.shape[1])), np.zeros(k.shape[1]), []
    for t in range(len(q)):
        state, total = state + np.outer(phi_k[t], v[t]), total + phi_k[t]
        out.append(phi_q[t] @ state / (phi_q[t] @ total))
    return np.array(out)


def norm_by_numpy(x, gamma, beta):
    return gamma * (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) + beta


def torch_loss(logits, targets):
    return torch.nn.functional.cross_entropy(logits, targets)


def loss_slope(z, targets):
    p = softmax(z)
    p[np.arange(len(p)), targets] -= 1
    return p / len(p)


def block(x, w1, w2):
    normed = norm_by_numpy(x, 1.0, 0.0)
    return np.clip(normed @ w1, 0, None) @ w2 + x


def sinusoids(n, d):
    out = np.zeros((n, d))
    for pos in range(n):
        for i in range(0, d, 2):
            out[pos, i], out[pos, i + 1] = math.sin(pos / 10000 ** (i / d)), math.cos(pos / 10000 ** (i / d))
    return out


def write_row(cache, row, at):
    new = cache.copy()
    new[at] = row
    return new


RIGHT = (
    ("1.4", with_matmul),
    ("1.4", with_its_weights),
    ("1.4", batched),
    ("1.4", batched_einsum),
    ("1.4", with_loops),
    ("1.4", in_32_bits),
    ("1.4", in_torch),
    ("1.4", scale_first),
    ("1.4", by_keywords),
    ("1.5", with_a_self),
    ("2.4", jacobian),
    ("2.4", jacobian_by_einsum),
    ("2.4", in_batches),
    ("2.5", log_softmax),
    ("2.5", torch_log_softmax),
    ("2.6", hot),
    ("3.1", causal_by_loops),
    ("3.1", causal_by_tril),
    ("3.4", masked),
    ("3.5", window),
    ("4.4", split),
    ("4.5", head_by_head),
    ("5.5", gru_by_parts),
    ("6.4", by_complex_numbers),
    ("7.5", grouped_by_loops),
    ("10.2", retention_by_a_state),
    ("10.4", linear_by_a_state),
    ("11.4", norm_by_numpy),
    ("11.5", torch_loss),
    ("11.6", loss_slope),
    ("15.4", block),
    ("15.5", sinusoids),
    ("16.5", write_row),
)


# Wrong ----------------------------------------------------------------------------------------------------------------


def rotated_with_itself(x, positions):
    angle = positions[:, None] * 10000.0 ** (-np.arange(0, x.shape[1], 2) / x.shape[1])
    a, b = x[:, 0::2], x[:, 1::2]
    out = np.empty_like(x)
    out[:, 0::2], out[:, 1::2] = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
    return out


def given_port(x, w_q, w_k, w_v, w_o):
    b, t, d = x.shape
    h = w_q.shape[1]
    q, k, v = ((x @ w.reshape(d, -1)).reshape(b, h, t, -1) for w in (w_q, w_k, w_v))
    p = softmax(q @ k.swapaxes(2, 3) / np.sqrt(k.shape[-1]))
    return (p @ v).swapaxes(1, 2).reshape(b, t, -1) @ w_o.reshape(-1, d)


def given_backward(q, k, v, dy):
    p = softmax(q @ k.T / np.sqrt(k.shape[-1]))
    dp = dy @ v.T
    dz = p * (dp - (p * dp).sum(axis=-1, keepdims=True))
    return dz @ k, dz.T @ q, p.T @ dy


def keeps_in_place(cache, row, at):
    cache[at] = row
    return cache


def filled_with(fill):
    def attention(q, k, v, mask):
        return softmax(np.where(mask, q @ k.T / np.sqrt(k.shape[1]), fill)) @ v

    return attention


def masked_to_nan(q, k, v, mask):
    z = np.where(mask, q @ k.T / np.sqrt(k.shape[1]), -np.inf)
    return softmax(z) @ v


def gru_upside_down(x, h, w_x, w_h):
    r, z = (1 / (1 + np.exp(-(x @ w_x[i] + h @ w_h[i]))) for i in (0, 1))
    n = np.tanh(x @ w_x[2] + r * (h @ w_h[2]))
    return z * n + (1 - z) * h


def gru_of_the_paper(x, h, w_x, w_h):
    r, z = (1 / (1 + np.exp(-(x @ w_x[i] + h @ w_h[i]))) for i in (0, 1))
    return (1 - z) * np.tanh(x @ w_x[2] + (r * h) @ w_h[2]) + z * h


def forgetful(top, total, sums, z, v):
    new = np.maximum(top, z.max(1))
    e = np.exp(z - new[:, None])
    return new, total + e.sum(1), sums * np.exp(top - new)[:, None] + e @ v


def bessel(x, g, b):
    return g * (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, ddof=1, keepdims=True) + 1e-5) + b


def post_norm(x, w_1, w_2):
    return norm_by_numpy(x + np.maximum(x @ w_1, 0) @ w_2, 1.0, 0.0)


def tiled(q, k, v):
    k, v = np.tile(k, (3, 1, 1)), np.tile(v, (3, 1, 1))
    return softmax(q @ k.swapaxes(1, 2) / np.sqrt(k.shape[2])) @ v


WRONG = (
    ("1.4", lambda q, k, v: softmax(q @ k.T) @ v, "scale missing"),
    ("1.4", lambda queries, keys, values: softmax(queries @ keys.T / 3) @ values, "scale without the root"),
    ("1.4", lambda q, k, v: softmax(q @ k.T / np.sqrt(v.shape[1])) @ v, "scale from the value width"),
    ("1.4", lambda q, k, v: softmax(q @ k.T / np.sqrt(3), axis=0) @ v, "softmax over the queries"),
    ("1.4", lambda q, k, v: softmax(q @ k.swapaxes(1, 2) / 3**0.5, axis=1) @ v, "softmax over the queries"),
    ("1.4", lambda query, key, value: softmax(query @ key.T) / 3**0.5 @ value, "scale after the softmax"),
    ("1.4", lambda q, k, v: (q @ k.T / 3**0.5 @ v, q @ k.T), "no softmax"),
    ("1.5", lambda x, wq, wk, wv: with_matmul(x @ wk, x @ wq, x @ wv), "queries and keys exchanged"),
    ("1.5", lambda x, wq, wk, wv: with_matmul(x @ wq, x @ wk, x), "values not projected"),
    ("1.6", given_backward, "scale missing in the backward"),
    ("2.4", lambda p, dp: p * (1 - p) * dp, "each weight by its own score alone"),
    ("2.4", lambda p, dp: p * (dp - (p * dp).sum(0)), "softmax backward over the wrong axis"),
    ("2.4", lambda y, dy: dy - (y * dy).sum(-1, keepdims=True), "softmax backward without the weights in front"),
    ("2.5", lambda z: np.log(softmax(z)), "the logarithm of a softmax"),
    ("2.5", lambda z: z - np.log(np.exp(z).sum(-1, keepdims=True)), "no maximum subtracted"),
    ("2.6", lambda z, t: softmax(z * t), "temperature the wrong way up"),
    ("3.1", lambda t, s: np.tril(np.ones((t, s), bool)), "causal aligned at the first key"),
    ("3.4", filled_with(-1e9), "row without a key shared evenly: a finite fill such as -1e9"),
    ("3.4", filled_with(-1e-25), "a fill that hides nothing, such as -1e-25 or 1e-9"),
    ("3.4", filled_with(1e-9), "a fill that hides nothing, such as -1e-25 or 1e-9"),
    ("3.4", masked_to_nan, "row without a key is NaN"),
    ("3.4", lambda q, k, v, m: (softmax(q @ k.T / 3**0.5) * m) @ v, "mask after the softmax without normalising again"),
    (
        "3.5",
        lambda n, w: (np.tri(n) - np.tri(n, k=-w - 1)) > 0,
        "window one key too wide on the left",
    ),
    ("4.4", lambda x, heads: x.reshape(2, heads, 5, -1), "reshaped to (b, h, t, k) without moving the head axis"),
    ("5.5", gru_upside_down, "update gate the other way round"),
    ("5.5", gru_of_the_paper, "reset before the recurrent product"),
    ("6.4", rotated_with_itself, "rotary layouts exchanged"),
    ("7.5", tiled, "shared heads tiled"),
    ("8.4", forgetful, "running sum not rescaled"),
    ("11.4", bessel, "variance of the layer norm divided by n - 1"),
    ("13.4", given_port, "queries, keys and values reshaped to (b, h, t, k) without moving the head axis"),
    ("13.6", given_backward, "scale missing in the backward"),
    ("16.5", keeps_in_place, "argument changed in place"),
    ("16.6", lambda x, keep, rate: x * keep, "dropout without its rescale"),
)
