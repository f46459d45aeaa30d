r"""The delta rule: before a key's value is written into the state, what the key finds there is taken out.

$$s_t = s_{t-1} + \beta_t\, k_t \left(v_t - s_{t-1}^\top k_t\right)^\top, \qquad c_t = s_t^\top q_t, \qquad
\beta_t = \sigma(x_t w_\beta), \quad q, k = \mathrm{unit}(\mathrm{silu}(x\, w_{q,k}))$$

Paper: Yang et al. 2024, arXiv:2406.06484, equations 4 to 7 and section 3.3, without its norm of the context.
"""

import numpy as np


def unit_silu(z, eps):
    """silu(z) divided by its length, over the last axis; and what the backward pass needs."""
    sigmoid = 1 / (1 + np.exp(-z))
    length = np.sqrt(((z * sigmoid) ** 2).sum(-1, keepdims=True) + eps)
    unit = z * sigmoid / length
    return unit, (z, sigmoid, length, unit)


def unit_silu_backward(dunit, saved):
    """What points along the vector only changes its length; then silu' = sigmoid (1 + z (1 - sigmoid))."""
    z, sigmoid, length, unit = saved
    along = (dunit * unit).sum(-1, keepdims=True)
    return (dunit - unit * along) / length * sigmoid * (1 + z * (1 - sigmoid))


def forward(x, w_q, w_k, w_v, w_beta, w_o, eps=1e-6):
    """The outputs `b t o` for inputs `b t d` and weights `d h k`, `d h k`, `d h v`, `d h`, `h v o`."""
    q, q_saved = unit_silu(np.einsum("btd,dhk->bthk", x, w_q), eps)
    k, k_saved = unit_silu(np.einsum("btd,dhk->bthk", x, w_k), eps)
    v = np.einsum("btd,dhv->bthv", x, w_v)
    beta = 1 / (1 + np.exp(-np.einsum("btd,dh->bth", x, w_beta)))
    states = [np.zeros((len(x), *k.shape[2:], v.shape[-1]))]  # b h k v
    for t in range(x.shape[1]):
        found = np.einsum("bhk,bhkv->bhv", k[:, t], states[t])
        written = beta[:, t, :, None] * (v[:, t] - found)
        states.append(states[t] + np.einsum("bhk,bhv->bhkv", k[:, t], written))
    context = np.einsum("bthk,tbhkv->bthv", q, states[1:])
    y = np.einsum("bthv,hvo->bto", context, w_o)
    return y, (x, w_q, w_k, w_v, w_beta, w_o, q, q_saved, k, k_saved, v, beta, states, context)


def backward(dy, saved):
    """The loop in reverse. A state is read by its query, and becomes the next one."""
    x, w_q, w_k, w_v, w_beta, w_o, q, q_saved, k, k_saved, v, beta, states, context = saved
    dcontext, dw_o = np.einsum("bto,hvo->bthv", dy, w_o), np.einsum("bto,bthv->hvo", dy, context)
    dq = np.einsum("bthv,tbhkv->bthk", dcontext, states[1:])
    dk, dv, dbeta, dstate = np.zeros_like(k), np.zeros_like(v), np.zeros_like(beta), 0
    for t in reversed(range(x.shape[1])):
        dstate = dstate + np.einsum("bhk,bhv->bhkv", q[:, t], dcontext[:, t])
        new = v[:, t] - np.einsum("bhk,bhkv->bhv", k[:, t], states[t])
        dwritten = np.einsum("bhk,bhkv->bhv", k[:, t], dstate)
        dv[:, t] = beta[:, t, :, None] * dwritten
        dbeta[:, t] = (new * dwritten).sum(-1)
        dk[:, t] = np.einsum("bhkv,bhv->bhk", dstate, beta[:, t, :, None] * new)
        dk[:, t] -= np.einsum("bhkv,bhv->bhk", states[t], dv[:, t])
        dstate = dstate - np.einsum("bhk,bhv->bhkv", k[:, t], dv[:, t])
    dq, dk = unit_silu_backward(dq, q_saved), unit_silu_backward(dk, k_saved)
    parts = {"w_q": (w_q, dq), "w_k": (w_k, dk), "w_v": (w_v, dv)}
    parts["w_beta"] = w_beta[..., None], (dbeta * beta * (1 - beta))[..., None]
    dx = sum(np.einsum("bthk,dhk->btd", dpart, w) for w, dpart in parts.values())
    dw = {name: np.einsum("bthk,btd->dhk", dpart, x).reshape(w.shape) for name, (w, dpart) in parts.items()}
    return {"x": dx, **dw, "w_beta": dw["w_beta"][..., 0], "w_o": dw_o}
