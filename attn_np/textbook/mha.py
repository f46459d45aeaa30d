r"""Multi-head attention: several heads attend in parallel, and their outputs are added.

$$q_h = x\, w_{q,h}, \quad k_h = x\, w_{k,h}, \quad v_h = x\, w_{v,h}, \qquad
y = \sum_h \mathrm{softmax}\left(\frac{q_h\, k_h^\top}{\sqrt K}\right) v_h\, w_{o,h}$$

Paper: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.
"""

import numpy as np


def forward(x, w_q, w_k, w_v, w_o):
    """The outputs `b t o` for inputs `b t d` and weights `d h k`, `d h k`, `d h v`, `h v o`."""
    q = np.einsum("btd,dhk->bthk", x, w_q)
    k = np.einsum("bsd,dhk->bshk", x, w_k)
    v = np.einsum("bsd,dhv->bshv", x, w_v)
    scores = np.einsum("bthk,bshk->bhts", q, k) / np.sqrt(q.shape[-1])
    e = np.exp(scores - scores.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    context = np.einsum("bhts,bshv->bthv", p, v)
    y = np.einsum("bthv,hvo->bto", context, w_o)
    return y, (x, w_q, w_k, w_v, w_o, q, k, v, p, context)


def backward(dy, saved):
    """The lines of `forward` in reverse: the same letters, with the output's and one operand's exchanged."""
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
