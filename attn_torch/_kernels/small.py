"""Few scores: all of them at once, by plain operations, which have derivatives of every order and every transform."""

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attn_torch._kernels.window import Window, near


def has_tangent(x: Tensor | None) -> bool:
    """Whether forward mode is at work on an array: plain operations alone have rules for it."""
    return x is not None and not torch.compiler.is_compiling() and forward_ad.unpack_dual(x).tangent is not None


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    sinks: Tensor | None,
    window: Window,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """The context, `b t h v`; sinks are `1 h`, masks have four axes."""
    (b, t, h, _), (s, g) = q.shape, k.shape[1:3]
    scores = (by_group(q, g) @ k.permute(0, 2, 3, 1)).view(b, h, t, s) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    allowed, empty = mask, None
    if window != (None, None):
        inside = near(window, t, s, q.device)
        allowed = inside if mask is None else inside & mask
    if bias is not None:
        shown = bias != -torch.inf
        allowed = shown if allowed is None else shown & allowed
        scores = scores + torch.where(allowed, bias, 0.0)
    if mask is not None or bias is not None:
        empty = ~allowed.amax(-1, keepdim=True)
        allowed = allowed | empty  # of finite scores, which a softmax needs
    if allowed is not None:
        scores = torch.where(allowed, scores, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, :, None, None].expand(b, h, t, 1)], -1)
    probs = torch.softmax(scores, -1)[..., :s]
    context = (probs.reshape(b, g, -1, s) @ v.transpose(1, 2)).view(b, h, t, v.shape[-1])
    return (context if empty is None else context.masked_fill(empty, 0.0)).transpose(1, 2)


def by_group(x: Tensor, g: int) -> Tensor:
    """`b t h k` -> `b g (r t) k`."""
    x = x.transpose(1, 2)
    return x if x.shape[1] == g else x.unflatten(1, (g, -1)).flatten(2, 3)
