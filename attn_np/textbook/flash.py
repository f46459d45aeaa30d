r"""Flash attention: dot-product attention block by block, without ever holding a row of scores.

Over the blocks of keys a query keeps the largest score m so far, the sum l (`total`) of its exponentials and the sum a
of values:

$$m' = \max(m, \max_s z_s), \quad l' = e^{m - m'} l + \sum_s e^{z_s - m'}, \quad
a' = e^{m - m'} a + \sum_s e^{z_s - m'} v_s, \qquad y = a / l$$

The backward pass keeps m + log l alone, and computes each block's weights again: p = exp(z - m - log l).

Papers: Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135, algorithms 1 and 4.
"""

import numpy as np


def forward(query, key, value, block=2):
    """The outputs `b t v` for queries `b t k`, keys `b s k` and values `b s v`."""
    scale = 1 / np.sqrt(query.shape[-1])
    m = np.full(query.shape[:2], -np.inf)
    total, a = np.zeros_like(m), np.zeros((*m.shape, value.shape[-1]))
    for start in range(0, key.shape[1], block):
        k, v = key[:, start : start + block], value[:, start : start + block]
        z = np.einsum("btk,bsk->bts", query, k) * scale
        larger = np.maximum(m, z.max(-1))
        shrink, e = np.exp(m - larger), np.exp(z - larger[..., None])
        total = shrink * total + e.sum(-1)
        a = shrink[..., None] * a + np.einsum("bts,bsv->btv", e, v)
        m = larger
    y = a / total[..., None]
    return y, (query, key, value, y, m + np.log(total), block)


def backward(dy, saved):
    """A block at a time. The softmax's sum over all keys of p dp is dy . y, which needs no block but the outputs."""
    query, key, value, y, lse, block = saved
    scale = 1 / np.sqrt(query.shape[-1])
    delta = (dy * y).sum(-1, keepdims=True)
    dquery, dkey, dvalue = np.zeros_like(query), np.zeros_like(key), np.zeros_like(value)
    for start in range(0, key.shape[1], block):
        here = slice(start, start + block)
        p = np.exp(np.einsum("btk,bsk->bts", query, key[:, here]) * scale - lse[..., None])
        dvalue[:, here] = np.einsum("bts,btv->bsv", p, dy)
        dp = np.einsum("btv,bsv->bts", dy, value[:, here])
        dscores = p * (dp - delta) * scale
        dquery += np.einsum("bts,bsk->btk", dscores, key[:, here])
        dkey[:, here] = np.einsum("bts,btk->bsk", dscores, query)
    return {"query": dquery, "key": dkey, "value": dvalue}
