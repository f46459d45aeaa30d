r"""The gated delta rule: the delta rule on a state that each position first fades as a whole.

$$s_t = \alpha_t s_{t-1} + \beta_t\, k_t \left(v_t - \alpha_t s_{t-1}^\top k_t\right)^\top, \qquad
c_t = \frac{s_t^\top q_t}{\sqrt K}, \qquad y = \left(\mathrm{rms}(c) \odot \mathrm{silu}(x w_{gate})\right) w_o$$
$$\alpha_t = e^{-e^{a_{\log}}\, \mathrm{softplus}(x_t w_a + b_{dt})}, \quad \beta_t = \sigma(x_t w_\beta), \quad
q, k = \mathrm{unit}(\mathrm{silu}(x\, w_{q,k})), \quad v = \mathrm{silu}(x\, w_v)$$

Paper: Yang et al. 2024, arXiv:2412.06464, equation 10 and section 3.4, without its short convolutions.
"""

import numpy as np

from attn_np.textbook.delta import unit_silu, unit_silu_backward


def recurrence(q, k, v, alpha, beta):
    """What each query `b t h k` reads from its state, `b t h v`, and the states `b h k v` at each step."""
    states = [np.zeros((*k[:, 0].shape, v.shape[-1]))]
    for t in range(q.shape[1]):
        state = alpha[:, t, :, None, None] * states[t]
        written = beta[:, t, :, None] * (v[:, t] - np.einsum("bhk,bhkv->bhv", k[:, t], state))
        states.append(state + np.einsum("bhk,bhv->bhkv", k[:, t], written))
    return np.einsum("bthk,tbhkv->bthv", q, states[1:]), states


def recurrence_backward(dread, q, k, v, alpha, beta, states):
    """The loop in reverse: the gradients of q, k, v, alpha and beta."""
    dq = np.einsum("bthv,tbhkv->bthk", dread, states[1:])
    dk, dv, dalpha, dbeta, dstate = (np.zeros_like(z) for z in (k, v, alpha, beta, states[0]))
    for t in reversed(range(q.shape[1])):
        dstate = dstate + np.einsum("bhk,bhv->bhkv", q[:, t], dread[:, t])
        faded = alpha[:, t, :, None, None] * states[t]
        new = v[:, t] - np.einsum("bhk,bhkv->bhv", k[:, t], faded)
        dwritten = np.einsum("bhk,bhkv->bhv", k[:, t], dstate)
        dv[:, t] = beta[:, t, :, None] * dwritten
        dbeta[:, t] = (new * dwritten).sum(-1)
        dk[:, t] = np.einsum("bhkv,bhv->bhk", dstate, beta[:, t, :, None] * new)
        dk[:, t] -= np.einsum("bhkv,bhv->bhk", faded, dv[:, t])
        dfaded = dstate - np.einsum("bhk,bhv->bhkv", k[:, t], dv[:, t])
        dalpha[:, t] = (dfaded * states[t]).sum((-1, -2))
        dstate = alpha[:, t, :, None, None] * dfaded
    return dq, dk, dv, dalpha, dbeta


def silu(z):
    """z sigmoid(z), and its slope."""
    sigmoid = 1 / (1 + np.exp(-z))
    return z * sigmoid, sigmoid * (1 + z * (1 - sigmoid))


def forward(x, w_q, w_k, w_v, w_gate, w_beta, w_a, a_log, dt_bias, w_norm, w_o, eps=1e-6):
    """The outputs `b t o` for inputs `b t d`; weights `d h k`, `d h v`, `d h`, and `h`, `v` of decay and norm."""
    q, q_saved = unit_silu(np.einsum("btd,dhk->bthk", x, w_q), eps)
    k, k_saved = unit_silu(np.einsum("btd,dhk->bthk", x, w_k), eps)
    v, v_slope = silu(np.einsum("btd,dhv->bthv", x, w_v))
    gate, gate_slope = silu(np.einsum("btd,dhv->bthv", x, w_gate))
    beta = 1 / (1 + np.exp(-np.einsum("btd,dh->bth", x, w_beta)))
    a = np.einsum("btd,dh->bth", x, w_a) + dt_bias
    alpha = np.exp(-np.exp(a_log) * np.log1p(np.exp(a)))
    q = q / np.sqrt(q.shape[-1])
    context, states = recurrence(q, k, v, alpha, beta)
    root = np.sqrt((context**2).mean(-1, keepdims=True) + eps)
    gated = context / root * w_norm * gate
    y = np.einsum("bthv,hvo->bto", gated, w_o)
    core, gates = (q, k, v, alpha, beta, states), (q_saved, k_saved, v_slope, gate, gate_slope, a)
    return y, (x, (w_q, w_k, w_v, w_gate, w_beta, w_a, a_log, w_norm, w_o), core, gates, context / root, root, gated)


def backward(dy, saved):
    """The lines of `forward` in reverse. softplus' = sigmoid, so dalpha reaches a by -alpha e^a_log sigmoid(a)."""
    x, (w_q, w_k, w_v, w_gate, w_beta, w_a, a_log, w_norm, w_o), core, gates, normed, root, gated = saved
    q_saved, k_saved, v_slope, gate, gate_slope, a = gates
    alpha, beta = core[3:5]
    dgated, dw_o = np.einsum("bto,hvo->bthv", dy, w_o), np.einsum("bto,bthv->hvo", dy, gated)
    dgate = dgated * normed * w_norm * gate_slope
    dnormed = dgated * gate * w_norm
    dcontext = (dnormed - normed * (dnormed * normed).mean(-1, keepdims=True)) / root
    dq, dk, dv, dalpha, dbeta = recurrence_backward(dcontext, *core)
    dq = unit_silu_backward(dq / np.sqrt(dq.shape[-1]), q_saved)
    dk = unit_silu_backward(dk, k_saved)
    da = dalpha * alpha * -np.exp(a_log) / (1 + np.exp(-a))
    da_log = (dalpha * alpha * np.log(alpha)).sum((0, 1))
    wide = {"w_q": (w_q, dq), "w_k": (w_k, dk), "w_v": (w_v, dv * v_slope), "w_gate": (w_gate, dgate)}
    narrow = {"w_beta": (w_beta, dbeta * beta * (1 - beta)), "w_a": (w_a, da)}
    dx = sum(np.einsum("bthk,dhk->btd", dpart, w) for w, dpart in wide.values())
    dx += sum(np.einsum("bth,dh->btd", dpart, w) for w, dpart in narrow.values())
    dw = {name: np.einsum("bt...,btd->d...", dpart, x) for name, (_, dpart) in (wide | narrow).items()}
    dw |= {"a_log": da_log, "dt_bias": da.sum((0, 1)), "w_norm": (dgated * gate * normed).sum((0, 1, 2))}
    return {"x": dx, **dw, "w_o": dw_o}
