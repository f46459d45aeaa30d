r"""Self-attention: queries, keys and values are projections of one sequence.

$$q = x\, w_q, \quad k = x\, w_k, \quad v = x\, w_v, \qquad
y = \mathrm{softmax}\left(\frac{q\, k^\top}{\sqrt K}\right) v$$

Paper: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.
"""

import numpy as np


def forward(x, w_q, w_k, w_v):
    """The outputs `b t v` for inputs `b t d` and weights `d k`, `d k`, `d v`."""
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    scores = np.einsum("btk,bsk->bts", q, k) / np.sqrt(q.shape[-1])
    e = np.exp(scores - scores.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    y = np.einsum("bts,bsv->btv", p, v)
    return y, (x, w_q, w_k, w_v, q, k, v, p)


def backward(dy, saved):
    """The lines of `forward` in reverse. x is used three times, so its gradient has three parts."""
    x, w_q, w_k, w_v, q, k, v, p = saved
    dp = np.einsum("btv,bsv->bts", dy, v)
    dv = np.einsum("bts,btv->bsv", p, dy)
    dscores = p * (dp - (p * dp).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
    dq = np.einsum("bts,bsk->btk", dscores, k)
    dk = np.einsum("bts,btk->bsk", dscores, q)
    dx = dq @ w_q.T + dk @ w_k.T + dv @ w_v.T
    dw_q = np.einsum("btd,btk->dk", x, dq)
    dw_k = np.einsum("btd,btk->dk", x, dk)
    dw_v = np.einsum("btd,btv->dv", x, dv)
    return {"x": dx, "w_q": dw_q, "w_k": dw_k, "w_v": dw_v}
