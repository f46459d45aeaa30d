"""All scores at once, where they are few or in forward mode: by plain operations, which support every transform
and derivatives of every order."""

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attn_np.contract._band import Limits
from attn_np.contract._patterns import Pattern
from attn_torch.attention.masks import attention_mask, hide_neg_inf
from attn_torch.ops import without_autocast


def has_tangent(x: Tensor | None) -> bool:
    """Whether forward mode is at work on an array: plain operations alone have rules for it."""
    return x is not None and not torch.compiler.is_compiling() and forward_ad.unpack_dual(x).tangent is not None


def lse_of_nothing(sinks: Tensor | None, like: Tensor) -> Tensor:
    """The lse of a query that sees no key, each head's sink, `1 h 1`; -inf without sinks."""
    return like.new_full((1, 1, 1), -torch.inf) if sinks is None else sinks[:, :, None]


@without_autocast
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    limits: Limits,
    scale: float,
    softcap: float | None,
    pattern: Pattern | None = None,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The context, `b t h v`, and the lse, `b h t`; sinks are `1 h`, masks have four axes."""
    (b, t, h, width), (s, g) = q.shape, k.shape[1:3]
    rows = t * (h // g)  # of scores: the queries of all heads that share a key/value head
    q = q.transpose(1, 2).reshape(b, g, rows, width)
    scores = (q @ k.permute(0, 2, 3, 1)).view(b, h, t, s) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    allowed = attention_mask(mask, t, s, like=scores, window=limits, pattern=pattern)
    allowed, empty_rows = hide_neg_inf(allowed, bias), None
    if bias is not None and allowed is not None:
        scores = scores + torch.where(allowed, bias, 0.0)
    if allowed is not None and not (mask is bias is pattern is None):
        empty_rows = ~allowed.any(-1, keepdim=True)  # queries that see no key
        allowed = allowed | empty_rows  # a softmax needs a finite score
    if allowed is not None:
        scores = torch.where(allowed, scores, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, :, None, None].expand(b, h, t, 1)], -1)
    probs = torch.softmax(scores, -1)[..., :s]
    context = (probs.reshape(b, g, rows, s) @ v.transpose(1, 2)).view(b, h, t, v.shape[-1])
    lse = torch.logsumexp(scores, -1) if return_lse else None
    if empty_rows is not None:
        context = context.masked_fill(empty_rows, 0.0)
        lse = None if lse is None else torch.where(empty_rows[..., 0], lse_of_nothing(sinks, lse), lse)
    return context.transpose(1, 2), lse
