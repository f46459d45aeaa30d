r"""Attention with rotary positions (RoPE): queries and keys turn with their positions, so scores know the distance.

Dimensions i and i + K/2 of a head are one point of a plane, turned by the position times a frequency:

$$\theta_i = \mathrm{base}^{-2i/K}, \qquad
\mathrm{rot}_t(x)_i = x_i \cos t\theta_i - x_{i+K/2} \sin t\theta_i, \quad
\mathrm{rot}_t(x)_{i+K/2} = x_{i+K/2} \cos t\theta_i + x_i \sin t\theta_i$$

The dot product of two turned vectors depends on the difference of their angles, which is that of their positions.

Paper: Su et al. 2021, arXiv:2104.09864, section 3.2; the halves are those of GPT-NeoX and Llama.
"""

import numpy as np


def rotate(x, angles):
    """x, `b t h k`, turned by angles `t k/2`; by the negative angles it turns back."""
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    first, second = np.split(x, 2, -1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def forward(x, w_q, w_k, w_v, w_o, base=10000.0):
    """The outputs `b t o` for inputs `b t d` and weights `d h k`, `d h k`, `d h v`, `h v o`."""
    width = w_q.shape[-1]
    angles = np.arange(x.shape[1])[:, None] * base ** (-np.arange(0, width, 2) / width)
    q = rotate(np.einsum("btd,dhk->bthk", x, w_q), angles)
    k = rotate(np.einsum("bsd,dhk->bshk", x, w_k), angles)
    v = np.einsum("bsd,dhv->bshv", x, w_v)
    scores = np.einsum("bthk,bshk->bhts", q, k) / np.sqrt(width)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    context = np.einsum("bhts,bshv->bthv", p, v)
    y = np.einsum("bthv,hvo->bto", context, w_o)
    return y, (x, w_q, w_k, w_v, w_o, angles, q, k, v, p, context)


def backward(dy, saved):
    """The lines of `forward` in reverse. A rotation's transpose is its inverse: gradients turn back."""
    x, w_q, w_k, w_v, w_o, angles, q, k, v, p, context = saved
    dcontext = np.einsum("bto,hvo->bthv", dy, w_o)
    dw_o = np.einsum("bto,bthv->hvo", dy, context)
    dp = np.einsum("bthv,bshv->bhts", dcontext, v)
    dv = np.einsum("bthv,bhts->bshv", dcontext, p)
    dscores = p * (dp - (p * dp).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
    dq = rotate(np.einsum("bhts,bshk->bthk", dscores, k), -angles)
    dk = rotate(np.einsum("bhts,bthk->bshk", dscores, q), -angles)
    dx = np.einsum("bthk,dhk->btd", dq, w_q)
    dx += np.einsum("bshk,dhk->bsd", dk, w_k)
    dx += np.einsum("bshv,dhv->bsd", dv, w_v)
    dw_q = np.einsum("bthk,btd->dhk", dq, x)
    dw_k = np.einsum("bshk,bsd->dhk", dk, x)
    dw_v = np.einsum("bshv,bsd->dhv", dv, x)
    return {"x": dx, "w_q": dw_q, "w_k": dw_k, "w_v": dw_v, "w_o": dw_o}
