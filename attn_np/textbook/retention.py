r"""Retention: attention without a softmax, whose weights fade with the distance at each head's own rate.

$$c_{h,t} = \sum_{s \le t} \gamma_h^{\,t-s}\, \frac{q_{h,t} \cdot k_{h,s}}{\sqrt K}\, v_{h,s}, \qquad
y = \sum_h \left(\mathrm{silu}(x w_{gate,h}) \odot \mathrm{norm}(c_h)\right) w_{o,h}, \qquad
\gamma_h = 1 - 2^{-5-h}, \quad h = 0 \ldots$$

Paper: Sun et al. 2023, arXiv:2307.08621, equations 5, 7 and 8, without its rotation of queries and keys.
"""

import numpy as np


def forward(x, w_q, w_k, w_v, w_gate, w_o, eps=1e-5):
    """The outputs `b t o` for inputs `b t d` and weights `d h k`, `d h k`, `d h v`, `d h v`, `h v o`."""
    t, h = x.shape[1], w_q.shape[1]
    gap = np.arange(t)[:, None] - np.arange(t)
    gamma = (1 - 2.0 ** (-5 - np.arange(h)))[:, None, None]
    decay = np.where(gap >= 0, gamma ** np.maximum(gap, 0), 0) / np.sqrt(w_q.shape[-1])  # h t s
    q = np.einsum("btd,dhk->bthk", x, w_q)
    k = np.einsum("bsd,dhk->bshk", x, w_k)
    v = np.einsum("bsd,dhv->bshv", x, w_v)
    p = np.einsum("bthk,bshk->bhts", q, k) * decay
    context = np.einsum("bhts,bshv->bthv", p, v)
    spread = np.sqrt(context.var(-1, keepdims=True) + eps)
    normed = (context - context.mean(-1, keepdims=True)) / spread
    z = np.einsum("btd,dhv->bthv", x, w_gate)
    sigmoid = 1 / (1 + np.exp(-z))
    gated = z * sigmoid * normed
    y = np.einsum("bthv,hvo->bto", gated, w_o)
    return y, (x, w_q, w_k, w_v, w_gate, w_o, decay, q, k, v, p, spread, normed, z, sigmoid, gated)


def backward(dy, saved):
    """The lines of `forward` in reverse. Through the norm passes what is neither a common shift nor a common factor."""
    x, w_q, w_k, w_v, w_gate, w_o, decay, q, k, v, p, spread, normed, z, sigmoid, gated = saved
    dgated = np.einsum("bto,hvo->bthv", dy, w_o)
    dw_o = np.einsum("bto,bthv->hvo", dy, gated)
    dz = dgated * normed * sigmoid * (1 + z * (1 - sigmoid))
    dnormed = dgated * z * sigmoid
    factor = (dnormed * normed).mean(-1, keepdims=True)
    dcontext = (dnormed - dnormed.mean(-1, keepdims=True) - normed * factor) / spread
    dscores = np.einsum("bthv,bshv->bhts", dcontext, v) * decay
    dv = np.einsum("bthv,bhts->bshv", dcontext, p)
    dq = np.einsum("bhts,bshk->bthk", dscores, k)
    dk = np.einsum("bhts,bthk->bshk", dscores, q)
    parts = {"w_q": (w_q, dq), "w_k": (w_k, dk), "w_v": (w_v, dv), "w_gate": (w_gate, dz)}
    dx = sum(np.einsum("bthk,dhk->btd", dpart, w) for w, dpart in parts.values())
    dw = {name: np.einsum("bthk,btd->dhk", dpart, x) for name, (_, dpart) in parts.items()}
    return {"x": dx, **dw, "w_o": dw_o}
