r"""Grouped-query attention: r query heads share each of g key/value heads, so that a cache holds fewer.

$$y = \sum_{g,r} \mathrm{softmax}\left(\frac{q_{gr}\, k_g^\top}{\sqrt K}\right) v_g\, w_{o,gr}$$

Query head h is the pair (g, r) with g = h // r: heads that share keys stand beside each other.

Paper: Ainslie et al. 2023, arXiv:2305.13245, section 2.2.
"""

import numpy as np


def forward(x, w_q, w_k, w_v, w_o):
    """The outputs `b t o` for inputs `b t d` and weights `d h k`, `d g k`, `d g v`, `h v o`."""
    d, h, width = w_q.shape
    g = w_k.shape[1]
    q = np.einsum("btd,dgrk->btgrk", x, w_q.reshape(d, g, h // g, width))
    k = np.einsum("bsd,dgk->bsgk", x, w_k)
    v = np.einsum("bsd,dgv->bsgv", x, w_v)
    scores = np.einsum("btgrk,bsgk->bgrts", q, k) / np.sqrt(width)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    context = np.einsum("bgrts,bsgv->btgrv", p, v)
    y = np.einsum("btgrv,grvo->bto", context, w_o.reshape(g, h // g, *w_o.shape[1:]))
    return y, (x, w_q, w_k, w_v, w_o, q, k, v, p, context)


def backward(dy, saved):
    """The lines of `forward` in reverse: a key's gradient is summed over the query heads that share it."""
    x, w_q, w_k, w_v, w_o, q, k, v, p, context = saved
    d, h, width = w_q.shape
    g = w_k.shape[1]
    dcontext = np.einsum("bto,grvo->btgrv", dy, w_o.reshape(g, h // g, *w_o.shape[1:]))
    dw_o = np.einsum("bto,btgrv->grvo", dy, context).reshape(w_o.shape)
    dp = np.einsum("btgrv,bsgv->bgrts", dcontext, v)
    dv = np.einsum("btgrv,bgrts->bsgv", dcontext, p)
    dscores = p * (dp - (p * dp).sum(-1, keepdims=True)) / np.sqrt(width)
    dq = np.einsum("bgrts,bsgk->btgrk", dscores, k)
    dk = np.einsum("bgrts,btgrk->bsgk", dscores, q)
    dx = np.einsum("btgrk,dgrk->btd", dq, w_q.reshape(d, g, h // g, width))
    dx += np.einsum("bsgk,dgk->bsd", dk, w_k) + np.einsum("bsgv,dgv->bsd", dv, w_v)
    dw_q = np.einsum("btgrk,btd->dgrk", dq, x).reshape(w_q.shape)
    dw_k = np.einsum("bsgk,bsd->dgk", dk, x)
    dw_v = np.einsum("bsgv,bsd->dgv", dv, x)
    return {"x": dx, "w_q": dw_q, "w_k": dw_k, "w_v": dw_v, "w_o": dw_o}
