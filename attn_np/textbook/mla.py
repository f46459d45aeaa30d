r"""Multi-head latent attention: all heads' keys and values are made from one small latent, all that a cache holds.

$$c = \mathrm{rms}(x\, w_{dkv})\, w_{norm}, \quad k_h = [c\, w_{uk,h};\ \mathrm{rot}(x\, w_{k,rot})], \quad
v_h = c\, w_{uv,h}, \quad q_h = [q^C_h;\ \mathrm{rot}(q^R_h)]$$
$$y = \sum_h \mathrm{softmax}\left(\frac{q_h\, k_h^\top}{\sqrt K}\right) v_h\, w_{o,h}$$

Only the second part of a query and of a key turns with the position, and that of the keys is the same for all heads.

Paper: DeepSeek-V2 2024, arXiv:2405.04434, section 2.1, without the queries' own latent.
"""

import numpy as np

from attn_np.textbook.rotary import rotate


def forward(x, w_q, w_dkv, w_kv_norm, w_k_rot, w_uk, w_uv, w_o, base=10000.0, eps=1e-6):
    """The outputs `b t o`; weights `d h k`, `d z`, `z`, `d y`, `z h q`, `z h v`, `h v o` with k = q + y."""
    still, turning = w_uk.shape[-1], w_k_rot.shape[-1]
    angles = np.arange(x.shape[1])[:, None] * base ** (-np.arange(0, turning, 2) / turning)
    q = np.einsum("btd,dhk->bthk", x, w_q)
    q = np.concatenate([q[..., :still], rotate(q[..., still:], angles)], -1)
    down = x @ w_dkv
    root = np.sqrt((down**2).mean(-1, keepdims=True) + eps)
    latent = down / root * w_kv_norm
    k_rot = rotate((x @ w_k_rot)[:, :, None], angles)  # b s 1 y
    k = np.einsum("bsz,zhq->bshq", latent, w_uk)
    k = np.concatenate([k, np.broadcast_to(k_rot, (*k.shape[:3], turning))], -1)
    v = np.einsum("bsz,zhv->bshv", latent, w_uv)
    scores = np.einsum("bthk,bshk->bhts", q, k) / np.sqrt(still + turning)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    context = np.einsum("bhts,bshv->bthv", p, v)
    y = np.einsum("bthv,hvo->bto", context, w_o)
    weights = w_q, w_dkv, w_kv_norm, w_k_rot, w_uk, w_uv, w_o
    return y, (x, weights, angles, down, root, latent, q, k, v, p, context)


def backward(dy, saved):
    """The lines of `forward` in reverse. The latent is used for keys and values; the turned key by every head."""
    x, (w_q, w_dkv, w_kv_norm, w_k_rot, w_uk, w_uv, w_o), angles, down, root, latent, q, k, v, p, context = saved
    still = w_uk.shape[-1]
    dcontext, dw_o = np.einsum("bto,hvo->bthv", dy, w_o), np.einsum("bto,bthv->hvo", dy, context)
    dp, dv = np.einsum("bthv,bshv->bhts", dcontext, v), np.einsum("bthv,bhts->bshv", dcontext, p)
    dscores = p * (dp - (p * dp).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
    dq = np.einsum("bhts,bshk->bthk", dscores, k)
    dk = np.einsum("bhts,bthk->bshk", dscores, q)
    dw_uv, dw_uk = np.einsum("bshv,bsz->zhv", dv, latent), np.einsum("bshq,bsz->zhq", dk[..., :still], latent)
    dlatent = np.einsum("bshv,zhv->bsz", dv, w_uv) + np.einsum("bshq,zhq->bsz", dk[..., :still], w_uk)
    dk_rot = rotate(dk[..., still:].sum(2, keepdims=True), -angles)[:, :, 0]
    dq = np.concatenate([dq[..., :still], rotate(dq[..., still:], -angles)], -1)
    dunit = dlatent * w_kv_norm
    ddown = (dunit - down / root * (dunit * down / root).mean(-1, keepdims=True)) / root
    dx = np.einsum("bthk,dhk->btd", dq, w_q) + ddown @ w_dkv.T + dk_rot @ w_k_rot.T
    return {
        "x": dx, "w_q": np.einsum("bthk,btd->dhk", dq, x), "w_dkv": np.einsum("bsz,bsd->dz", ddown, x),
        "w_kv_norm": (dlatent * down / root).sum((0, 1)), "w_k_rot": np.einsum("bsy,bsd->dy", dk_rot, x),
        "w_uk": dw_uk, "w_uv": dw_uv, "w_o": dw_o,
    }  # fmt: skip
