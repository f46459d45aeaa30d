r"""Gated recurrent unit: a state walks along the sequence, and gates decide how much each step replaces.

$$r = \sigma(x w_x^r + b_x^r + h w_h^r + b_h^r), \quad z = \sigma(x w_x^z + b_x^z + h w_h^z + b_h^z)$$
$$n = \tanh(x w_x^n + b_x^n + r \odot (h w_h^n + b_h^n)), \qquad h' = (1 - z) \odot n + z \odot h$$

Papers: Cho et al. 2014, arXiv:1406.1078, appendix A; with the reset after the product, as in PyTorch.
"""

import numpy as np


def cell(x, h, w_x, w_h, b_x, b_h):
    """The next state `b e` for an input `b d`, a state `b e` and weights `f d e`, `f e a`, `f e`, `f e`.

    The gates f are r, z and n.
    """
    from_x = np.einsum("bd,fde->fbe", x, w_x) + b_x[:, None]
    from_h = np.einsum("be,fea->fba", h, w_h) + b_h[:, None]
    r = 1 / (1 + np.exp(-(from_x[0] + from_h[0])))
    z = 1 / (1 + np.exp(-(from_x[1] + from_h[1])))
    n = np.tanh(from_x[2] + r * from_h[2])
    return (1 - z) * n + z * h, (x, h, w_x, w_h, r, z, n, from_h[2])


def cell_backward(dnew, saved):
    """The lines of `cell` in reverse. sigmoid' = r (1 - r), tanh' = 1 - n^2."""
    x, h, w_x, w_h, r, z, n, n_from_h = saved
    dn = dnew * (1 - z) * (1 - n**2)
    dz = dnew * (h - n) * z * (1 - z)
    dr = dn * n_from_h * r * (1 - r)
    dfrom_x = np.stack([dr, dz, dn])
    dfrom_h = np.stack([dr, dz, dn * r])
    dx = np.einsum("fbe,fde->bd", dfrom_x, w_x)
    dh = dnew * z + np.einsum("fba,fea->be", dfrom_h, w_h)
    dw_x = np.einsum("bd,fbe->fde", x, dfrom_x)
    dw_h = np.einsum("be,fba->fea", h, dfrom_h)
    return dx, dh, {"w_x": dw_x, "w_h": dw_h, "b_x": dfrom_x.sum(1), "b_h": dfrom_h.sum(1)}


def forward(x, w_x, w_h, b_x, b_h):
    """The states `b t e` after each step, for inputs `b t d`; the first state is 0."""
    h, states, steps = np.zeros((len(x), w_h.shape[-1])), [], []
    for t in range(x.shape[1]):
        h, step = cell(x[:, t], h, w_x, w_h, b_x, b_h)
        states.append(h)
        steps.append(step)
    return np.stack(states, 1), steps


def backward(dy, steps):
    """Back through time: a state's gradient comes from its own output and from the step after it."""
    dh, dx, total = 0, np.zeros((*dy.shape[:2], steps[0][0].shape[-1])), {}
    for t in reversed(range(dy.shape[1])):
        dx[:, t], dh, grads = cell_backward(dy[:, t] + dh, steps[t])
        total = {name: total.get(name, 0) + grad for name, grad in grads.items()}
    return {"x": dx, **total}
