"""PyTorch's own kernel, `scaled_dot_product_attention`, which never writes the scores to memory.

Its errors are larger than the textbook's by what `parity_tests.judge.kernels.contract` says. For scores that overflow
it differs from the textbook in two ways, which are not checked for here:

- a query whose every score is -inf gives 0, as one that sees no key does, where the textbook gives NaN;
- it hides by adding -inf, so a hidden score of inf gives NaN, where the textbook selects.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from attn_np.contract._band import Limits
from attn_torch._kernels.small import has_tangent


def serves(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, limits: Limits, scale: float
) -> bool:
    """Whether the kernel means what we mean, and does not fall back to forming all scores."""
    if 0 in (*q.shape, *k.shape, *v.shape) or under_torch_func(q, k, v, mask, bias):
        return False
    if mask is None and bias is None:
        # It counts from the first key, and hides before it scales.
        return limits == (None, None) or (limits == (None, 0) and q.shape[1] == k.shape[1] and scale > 0)
    # Elsewhere the kernels differ in what they take; none gives the gradient of a bias in O(t) memory.
    constant = bias is None or not (bias.requires_grad and torch.is_grad_enabled())
    return limits == (None, None) and q.is_cpu and constant


def under_torch_func(*arrays: Tensor | None) -> bool:
    """Whether `vmap`, `torch.func` or forward mode is at work: the kernel on a CPU has no rules for them."""
    if torch.compiler.is_compiling():
        return False
    return any(x is not None and (torch.func.debug_unwrap(x) is not x or has_tangent(x)) for x in arrays)


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, limits: Limits, scale: float
) -> Tensor:
    """The context, `b t h v`."""
    if mask is not None:
        bias = torch.where(mask, 0.0 if bias is None else bias, -torch.inf).to(q.dtype)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    missing = (width := v.shape[-1]) - q.shape[-1]
    if missing > 0:  # of keys and values that differ in width the kernel would form all scores: zeros change none
        q, k = pad(q, (0, missing)), pad(k, (0, missing))
    elif missing < 0:
        v = pad(v, (0, -missing))
    shared = bool(q.shape[1] != k.shape[1])  # of compiled calls, sizes may be symbols
    context = scaled_dot_product_attention(q, k, v, bias, is_causal=limits[1] == 0, scale=scale, enable_gqa=shared)
    return context[..., :width].transpose(1, 2)
