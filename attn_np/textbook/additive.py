r"""Additive attention: a small network with one hidden layer scores each pair of a query and a key.

$$z_{ts} = w_{score} \cdot \tanh(w_q^\top q_t + w_k^\top k_s), \qquad
y_t = \sum_s \mathrm{softmax}_s(z_{ts})\, v_s$$

Paper: Bahdanau et al. 2015, arXiv:1409.0473, section 3.1 and appendix A.1.2.
"""

import numpy as np


def forward(query, key, value, w_q, w_k, w_score):
    """The outputs `b t v` for queries `b t d`, keys `b s i`, values `b s v` and weights `d e`, `i e`, `e`."""
    hidden = np.tanh((query @ w_q)[:, :, None] + (key @ w_k)[:, None])  # b t s e: every query meets every key
    scores = hidden @ w_score
    e = np.exp(scores - scores.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    y = np.einsum("bts,bsv->btv", p, value)
    return y, (query, key, value, w_q, w_k, w_score, hidden, p)


def backward(dy, saved):
    """The lines of `forward` in reverse. A query was broadcast over the keys, so its gradient is summed over them."""
    query, key, value, w_q, w_k, w_score, hidden, p = saved
    dp = np.einsum("btv,bsv->bts", dy, value)
    dvalue = np.einsum("bts,btv->bsv", p, dy)
    dscores = p * (dp - (p * dp).sum(-1, keepdims=True))
    dw_score = np.einsum("bts,btse->e", dscores, hidden)
    dsum = dscores[..., None] * w_score * (1 - hidden**2)
    dq, dk = dsum.sum(2), dsum.sum(1)
    dquery, dw_q = dq @ w_q.T, np.einsum("btd,bte->de", query, dq)
    dkey, dw_k = dk @ w_k.T, np.einsum("bsi,bse->ie", key, dk)
    return {"query": dquery, "key": dkey, "value": dvalue, "w_q": dw_q, "w_k": dw_k, "w_score": dw_score}
