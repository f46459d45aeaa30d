r"""Dot-product attention: a mean of the values, weighted by how well each key fits the query.

$$p_{ts} = \mathrm{softmax}_s\left(\frac{q_t \cdot k_s}{\sqrt K}\right), \qquad y_t = \sum_s p_{ts}\, v_s$$

Paper: Vaswani et al. 2017, arXiv:1706.03762, equation 1.
"""

import numpy as np


def forward(query, key, value):
    """The outputs `b t v` for queries `b t k`, keys `b s k` and values `b s v`."""
    scores = np.einsum("btk,bsk->bts", query, key) / np.sqrt(query.shape[-1])
    e = np.exp(scores - scores.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    y = np.einsum("bts,bsv->btv", p, value)
    return y, (query, key, value, p)


def backward(dy, saved):
    """The lines of `forward` in reverse. Of the softmax: dscores = p (dp - sum_s p dp)."""
    query, key, value, p = saved
    dp = np.einsum("btv,bsv->bts", dy, value)
    dvalue = np.einsum("bts,btv->bsv", p, dy)
    dscores = p * (dp - (p * dp).sum(-1, keepdims=True)) / np.sqrt(query.shape[-1])
    dquery = np.einsum("bts,bsk->btk", dscores, key)
    dkey = np.einsum("bts,btk->bsk", dscores, query)
    return {"query": dquery, "key": dkey, "value": dvalue}
