r"""Linear attention: a feature map in place of the softmax, so that a state of fixed size sums up the keys.

$$s_t = s_{t-1} + \phi(k_t)\, v_t^\top, \quad z_t = z_{t-1} + \phi(k_t), \qquad
c_t = \frac{\phi(q_t)^\top s_t}{\phi(q_t) \cdot z_t + \epsilon}, \quad \phi(x) = \mathrm{elu}(x) + 1$$

Paper: Katharopoulos et al. 2020, arXiv:2006.16236, equations 7 and 16 to 20.
"""

import numpy as np


def phi(x):
    """elu(x) + 1: x + 1 above 0, e^x below; and its slope, 1 above 0 and e^x below."""
    below = np.exp(np.minimum(x, 0))
    return np.where(x > 0, x + 1, below), np.where(x > 0, 1, below)


def forward(x, w_q, w_k, w_v, w_o, eps=1e-6):
    """The outputs `b t o` for inputs `b t d` and weights `d h k`, `d h k`, `d h v`, `h v o`."""
    q, q_slope = phi(np.einsum("btd,dhk->bthk", x, w_q))
    k, k_slope = phi(np.einsum("btd,dhk->bthk", x, w_k))
    v = np.einsum("btd,dhv->bthv", x, w_v)
    states = np.cumsum(np.einsum("bthk,bthv->bthkv", k, v), 1)
    sums = np.cumsum(k, 1)
    weight = np.einsum("bthk,bthk->bth", q, sums)[..., None] + eps
    context = np.einsum("bthk,bthkv->bthv", q, states) / weight
    y = np.einsum("bthv,hvo->bto", context, w_o)
    return y, (x, w_q, w_k, w_v, w_o, q, q_slope, k, k_slope, v, states, sums, weight, context)


def backward(dy, saved):
    """The lines of `forward` in reverse: what a position adds is part of all later states, a sum from the end."""
    x, w_q, w_k, w_v, w_o, q, q_slope, k, k_slope, v, states, sums, weight, context = saved
    dcontext = np.einsum("bto,hvo->bthv", dy, w_o)
    dw_o = np.einsum("bto,bthv->hvo", dy, context)
    dread = dcontext / weight
    dweight = -(dread * context).sum(-1)
    dq = np.einsum("bthv,bthkv->bthk", dread, states) + dweight[..., None] * sums
    dstates = np.einsum("bthv,bthk->bthkv", dread, q)
    dsums = dweight[..., None] * q
    dadded = np.cumsum(dstates[:, ::-1], 1)[:, ::-1]
    dk = np.einsum("bthkv,bthv->bthk", dadded, v) + np.cumsum(dsums[:, ::-1], 1)[:, ::-1]
    dv = np.einsum("bthkv,bthk->bthv", dadded, k)
    dq, dk = dq * q_slope, dk * k_slope
    dx = np.einsum("bthk,dhk->btd", dq, w_q)
    dx += np.einsum("bthk,dhk->btd", dk, w_k) + np.einsum("bthv,dhv->btd", dv, w_v)
    dw_q = np.einsum("bthk,btd->dhk", dq, x)
    dw_k = np.einsum("bthk,btd->dhk", dk, x)
    dw_v = np.einsum("bthv,btd->dhv", dv, x)
    return {"x": dx, "w_q": dw_q, "w_k": dw_k, "w_v": dw_v, "w_o": dw_o}
