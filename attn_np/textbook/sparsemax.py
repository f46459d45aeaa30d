r"""Sparsemax attention: the nearest point of the simplex in place of the softmax, so that most weights are 0.

$$p_s = \max(z_s - \tau, 0) \quad \text{with } \tau \text{ such that } \sum_s p_s = 1, \qquad
\tau = \frac{1}{n} \left(\sum_{i \le n} z_{(i)} - 1\right)$$

n is the number of weights above 0: the largest n for which the n-th largest score lies above its tau.

Paper: Martins and Astudillo 2016, arXiv:1602.02068, algorithm 1 and proposition 2.
"""

import numpy as np


def sparsemax(z):
    """The weights over the last axis."""
    ordered = -np.sort(-z, axis=-1)
    n = np.arange(1, z.shape[-1] + 1)
    taus = (np.cumsum(ordered, -1) - 1) / n
    support = (ordered > taus).sum(-1, keepdims=True)
    return np.maximum(z - np.take_along_axis(taus, support - 1, -1), 0)


def sparsemax_backward(p, dp):
    """Where p is 0, nothing; elsewhere dz = dp minus the mean of dp over the support, as tau moves with all of it."""
    support = p > 0
    mean = (dp * support).sum(-1, keepdims=True) / support.sum(-1, keepdims=True)
    return (dp - mean) * support


def forward(x, w_q, w_k, w_v, w_o):
    """The outputs `b t o` for inputs `b t d` and weights `d h k`, `d h k`, `d h v`, `h v o`."""
    q = np.einsum("btd,dhk->bthk", x, w_q)
    k = np.einsum("bsd,dhk->bshk", x, w_k)
    v = np.einsum("bsd,dhv->bshv", x, w_v)
    p = sparsemax(np.einsum("bthk,bshk->bhts", q, k) / np.sqrt(q.shape[-1]))
    context = np.einsum("bhts,bshv->bthv", p, v)
    y = np.einsum("bthv,hvo->bto", context, w_o)
    return y, (x, w_q, w_k, w_v, w_o, q, k, v, p, context)


def backward(dy, saved):
    """The lines of `forward` in reverse."""
    x, w_q, w_k, w_v, w_o, q, k, v, p, context = saved
    dcontext = np.einsum("bto,hvo->bthv", dy, w_o)
    dw_o = np.einsum("bto,bthv->hvo", dy, context)
    dp = np.einsum("bthv,bshv->bhts", dcontext, v)
    dv = np.einsum("bthv,bhts->bshv", dcontext, p)
    dscores = sparsemax_backward(p, dp) / np.sqrt(q.shape[-1])
    dq = np.einsum("bhts,bshk->bthk", dscores, k)
    dk = np.einsum("bhts,bthk->bshk", dscores, q)
    dx = np.einsum("bthk,dhk->btd", dq, w_q)
    dx += np.einsum("bshk,dhk->bsd", dk, w_k)
    dx += np.einsum("bshv,dhv->bsd", dv, w_v)
    dw_q = np.einsum("bthk,btd->dhk", dq, x)
    dw_k = np.einsum("bshk,bsd->dhk", dk, x)
    dw_v = np.einsum("bshv,bsd->dhv", dv, x)
    return {"x": dx, "w_q": dw_q, "w_k": dw_k, "w_v": dw_v, "w_o": dw_o}
