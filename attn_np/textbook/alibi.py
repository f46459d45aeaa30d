r"""Attention with linear biases (ALiBi): a score falls with the distance, in each head at a rate of its own.

$$y = \sum_h \mathrm{softmax}_s\left(\frac{q_{h,t} \cdot k_{h,s}}{\sqrt K} - m_h\, |t - s|\right) v_h\, w_{o,h},
\qquad m_h = 2^{-8h/H}, \quad h = 1 \ldots H$$

Paper: Press et al. 2022, arXiv:2108.12409, section 3, for a number of heads that is a power of 2.
"""

import numpy as np


def forward(x, w_q, w_k, w_v, w_o):
    """The outputs `b t o` for inputs `b t d` and weights `d h k`, `d h k`, `d h v`, `h v o`."""
    t, h = x.shape[1], w_q.shape[1]
    slopes = 2.0 ** (-8 * np.arange(1, h + 1) / h)
    distance = np.abs(np.arange(t)[:, None] - np.arange(t))
    q = np.einsum("btd,dhk->bthk", x, w_q)
    k = np.einsum("bsd,dhk->bshk", x, w_k)
    v = np.einsum("bsd,dhv->bshv", x, w_v)
    scores = np.einsum("bthk,bshk->bhts", q, k) / np.sqrt(q.shape[-1]) - slopes[:, None, None] * distance
    e = np.exp(scores - scores.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    context = np.einsum("bhts,bshv->bthv", p, v)
    y = np.einsum("bthv,hvo->bto", context, w_o)
    return y, (x, w_q, w_k, w_v, w_o, q, k, v, p, context)


def backward(dy, saved):
    """The lines of `forward` in reverse. The biases are constants: they change p, and nothing else here."""
    x, w_q, w_k, w_v, w_o, q, k, v, p, context = saved
    dcontext = np.einsum("bto,hvo->bthv", dy, w_o)
    dw_o = np.einsum("bto,bthv->hvo", dy, context)
    dp = np.einsum("bthv,bshv->bhts", dcontext, v)
    dv = np.einsum("bthv,bhts->bshv", dcontext, p)
    dscores = p * (dp - (p * dp).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
    dq = np.einsum("bhts,bshk->bthk", dscores, k)
    dk = np.einsum("bhts,bthk->bshk", dscores, q)
    dx = np.einsum("bthk,dhk->btd", dq, w_q)
    dx += np.einsum("bshk,dhk->bsd", dk, w_k)
    dx += np.einsum("bshv,dhv->bsd", dv, w_v)
    dw_q = np.einsum("bthk,btd->dhk", dq, x)
    dw_k = np.einsum("bshk,bsd->dhk", dk, x)
    dw_v = np.einsum("bshv,bsd->dhv", dv, x)
    return {"x": dx, "w_q": dw_q, "w_k": dw_k, "w_v": dw_v, "w_o": dw_o}
