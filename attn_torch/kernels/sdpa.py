"""PyTorch's own kernel, `scaled_dot_product_attention`, which never writes the scores to memory.

Its errors are larger than the textbook's by what `parity_tests.bounds.precision` says. For scores that overflow
it differs from the textbook in two ways, which are not checked for here:

- a query whose every score is -inf gives 0, as one that sees no key does, where the textbook gives NaN;
- it hides by adding -inf, so a hidden score of inf gives NaN, where the textbook selects.
"""

from math import log

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import pad

from attn_np.contract._band import Band, Limits, Span
from attn_torch.kernels.context_parallel import (
    scaled_dot_product_attention,  # PyTorch's, even where that has replaced it
)
from attn_torch.kernels.small import has_tangent
from attn_torch.kernels.unseen import statically_true
from attn_torch.ops import diagonals_to_pairs as skew_last_query_first

# This many queries at a time go to the kernel in `attend_by_diagonals` where causality or a window hides keys: with
# fewer than 768 it is slow.
ROWS_PER_CALL = 1024
# On a CPU, calls whose key and value widths differ by this factor use `blocks`: the kernel takes one width for both.
BLOCKS_WIDTH_RATIO = 3


def supports(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, limits: Limits, scale: float
) -> bool:
    """Whether the kernel computes the same function, does not form all scores, and is no slower than blocks."""
    if statically_true(q.numel() * k.numel() * v.numel() == 0) or under_transform(q, k, v, mask, bias):
        return False
    widths = k.shape[-1], v.shape[-1]
    if q.is_cpu and max(widths) >= BLOCKS_WIDTH_RATIO * min(widths):
        return False
    if mask is None and bias is None:
        # Its causal mask puts query 0 at key 0, and it hides before it scales.
        return limits == (None, None) or (limits == (None, 0) and q.shape[1] == k.shape[1] and scale > 0)
    # On other devices the kernels differ in what they take; none gives the gradient of a bias in O(t) memory.
    constant = bias is None or not (bias.requires_grad and torch.is_grad_enabled())
    return limits == (None, None) and q.is_cpu and constant


def under_transform(*arrays: Tensor | None) -> bool:
    """Whether `vmap`, `torch.func` or forward mode is at work: the kernel on a CPU has no rules for them."""
    functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    if torch.compiler.is_compiling() or (forward_ad._current_level < 0 and functorch.peek_interpreter_stack() is None):
        return False
    return any(x is not None and (torch.func.debug_unwrap(x) is not x or has_tangent(x)) for x in arrays)


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, limits: Limits, scale: float
) -> Tensor:
    """The context, `b t h v`."""
    if mask is not None:
        bias = torch.where(mask, 0.0 if bias is None else bias, -torch.inf).to(q.dtype)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    missing = (width := v.shape[-1]) - q.shape[-1]
    if missing > 0:  # of keys and values that differ in width the kernel would form all scores: zeros change none
        q, k = pad(q, (0, missing)), pad(k, (0, missing))
    elif missing < 0:
        v = pad(v, (0, -missing))
    shared = not statically_true(q.shape[1] == k.shape[1])  # one number of heads for both may be called shared, too
    context = scaled_dot_product_attention(q, k, v, bias, is_causal=limits[1] == 0, scale=scale, enable_gqa=shared)
    return (context if missing >= 0 else context[..., :width]).transpose(1, 2)


def supports_diagonal_bias(q: Tensor, k: Tensor, v: Tensor, diagonal_bias: Tensor) -> bool:
    """Whether the kernel takes this bias by diagonal as a view that serves all queries: only without a gradient."""
    constant = not (diagonal_bias.requires_grad and torch.is_grad_enabled())
    return constant and q.is_cpu and supports(q, k, v, None, diagonal_bias, (None, None), 1.0)


def negligible_diagonals(q: Tensor, k: Tensor, diagonal_bias: Tensor, scale: float) -> Tensor:
    """Where a bias by diagonal makes weights so small that a processor is slow with them: `1 h 1 n`.

    That is where the weight, divided by that of the query's own position, is surely below the normal numbers; no
    product exceeds |q| |k| in size.
    """
    longest_query, longest_key = (x.detach().norm(dim=-1).amax((0, 1)) for x in (q, k))
    longest_key = longest_key.repeat_interleave(len(longest_query) // len(longest_key))
    product_bound = abs(scale) * (longest_query * longest_key)[:, None, None]
    underflow_bias = diagonal_bias[..., k.shape[1] - 1, None] - 2 * product_bound + log(torch.finfo(q.dtype).tiny)
    return diagonal_bias < underflow_bias


def attend_by_diagonals(q: Tensor, k: Tensor, v: Tensor, diagonal_bias: Tensor, limits: Limits, scale: float) -> Tensor:
    """The context, `b t h v`, of calls with one number per diagonal, `1 h 1 n`; what the limits hide is hidden here."""
    band = Band(q.shape[1], k.shape[1], *limits)
    relative_position = torch.arange(band.t + band.s - 1, device=q.device) + (1 - band.s)
    left, right = band.s if band.left is None else band.left, band.t if band.right is None else band.right
    hidden = (relative_position < -left) | (relative_position > right)
    if band.t <= band.s:  # a query's own position is among its keys
        hidden = hidden | negligible_diagonals(q, k, diagonal_bias, scale)
    diagonal_bias = diagonal_bias.masked_fill(hidden, -torch.inf)
    rows = max(1, band.t) if limits == (None, None) else ROWS_PER_CALL
    contexts = []
    for start in range(0, band.t, rows):
        queries = Span(start, min(start + rows, band.t))
        keys = band.keys(queries)
        diagonals = diagonal_bias[..., band.t - queries.stop + keys.start :][..., : queries.length + keys.length - 1]
        last_first = q[:, slice(*queries)].flip(1)
        bias_by_pair = skew_last_query_first(diagonals, queries.length, keys.length)
        of_keys = k[:, slice(*keys)], v[:, slice(*keys)]
        contexts.append(attend(last_first, *of_keys, None, bias_by_pair, (None, None), scale).flip(1))
    return torch.cat(contexts, 1)
