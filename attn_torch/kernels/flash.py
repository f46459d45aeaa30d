"""The fast path of `attend`. Not for calls that

- return weights, drop weights out or replace the softmax by `softmax_fn`;
- normalise the weights over the queries instead of the keys;
- have a tape, unless they ask for "fused".

Without a pattern, the leading queries that see no key and the leading keys that no query sees, by causality and the
window, are cut off; then other such queries and keys are set to 0, so that what stands there has no effect. (With
a pattern nothing is cut off; `blocks` sets to 0 what it hides.) The first of three that can take the call computes the
rest:

- `sdpa`: PyTorch's own kernel, which never writes the scores to memory, where it computes the same function and is no
  slower than blocks, as `sdpa.supports` says;
- `small`: where there are few scores, or in forward mode, all of them at once, by plain operations that every
  transform knows;
- `blocks`: else a block of queries at a time, with every feature, in memory that grows with t.

The choice depends on shapes, devices and flags alone, never on numbers, so that calls compile and export. 16-bit arrays
are widened to float32 before: PyTorch's kernels round the weights to 16 bits between the two products, which is a
rounding more than we promise, and on a CPU they are no faster.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

import attn_torch.kernels.sdpa as sdpa
import attn_torch.kernels.small as small
from attn_np.contract._band import Limits
from attn_np.contract._patterns import Pattern
from attn_torch.kernels.blocks import BlockAttention, queries_per_block
from attn_torch.kernels.sharded import attend_locally, is_sharded
from attn_torch.kernels.unseen import PackedPattern, limits_of, statically_true, trim_unseen, zero_unseen_qkv
from attn_torch.ops import diagonals_to_pairs as skew_last_query_first
from attn_torch.ops import upcast

# With at most so many scores on a CPU, or a 128th of that in each head, as in many windows of 64 positions, computing
# all of them at once is faster than blocks.
SMALL_MAX_SCORES = 2**19


def supports(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the fast path can take these arrays: it takes all."""
    return True


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    window: Limits | None = None,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    pattern: Pattern | None = None,
    diagonal_bias: Tensor | None = None,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The context `b t h v` of q `b t h k`, k `b s g k`, v `b s g v`, as `attn_torch.attend` defines it; and, if asked
    for, the lse `b h t`. A `diagonal_bias` is added to the scores, one number for each diagonal, `1 h 1 n`.
    """
    mask, bias = rank4(mask), rank4(bias)
    if is_sharded(q):
        arrays = {"mask": mask, "bias": bias, "sinks": sinks, "diagonal_bias": diagonal_bias}
        options = {"causal": causal, "window": window, "scale": scale, "softcap": softcap}
        options["return_lse"] = return_lse
        return attend_locally(attend, q, k, v, arrays, options, PackedPattern.of(pattern))
    dtype, t, s = q.dtype, q.shape[1], k.shape[1]
    q, k, v = upcast(q), upcast(k), upcast(v)
    limits = limits_of(causal, window, t, s)
    if pattern is None:
        q, k, v, mask, bias, limits = trim_unseen(q, k, v, mask, bias, limits)
    all_at_once = few_scores(q, k) or any(small.has_tangent(x) for x in (q, k, v, mask, bias, sinks, diagonal_bias))
    if diagonal_bias is not None:
        first_query, first_key = t - q.shape[1], s - k.shape[1]
        diagonal_bias = diagonal_bias.to(q.dtype)[..., first_key : t + s - 1 - first_query]
        sdpa_eligible = mask is bias is softcap is sinks is pattern is None and not (all_at_once or return_lse)
        sdpa_eligible = sdpa_eligible and not needs_grad(q, k, v, diagonal_bias)
        if sdpa_eligible and sdpa.supports_diagonal_bias(q, k, v, diagonal_bias):
            context = sdpa.attend_by_diagonals(q, k, v, diagonal_bias, limits, float(scale))
            return prepend_empty_rows(first_query, context).to(dtype), None
        if all_at_once or sdpa.under_transform(q, k, v, mask, bias, diagonal_bias):
            bias_by_pair = skew_last_query_first(diagonal_bias, q.shape[1], k.shape[1]).flip(2)
            bias, diagonal_bias = bias_by_pair if bias is None else bias_by_pair + bias, None
    if pattern is None or all_at_once:  # blocks see for themselves what a pattern hides
        q, k, v, mask = zero_unseen_qkv(q, k, v, mask, limits, pattern)
    bias = None if bias is None else upcast(bias).to(q.dtype)
    sinks = None if sinks is None else upcast(sinks).to(q.dtype)[None]
    scale, softcap = float(scale), None if softcap is None else float(softcap)
    arrays = q, k, v, mask, bias
    sdpa_eligible = pattern is softcap is sinks is diagonal_bias is None and not return_lse
    # PyTorch's kernel first, also where scores are few.
    if sdpa_eligible and sdpa.supports(*arrays, limits, scale):
        context, lse = sdpa.attend(*arrays, limits, scale), None
    elif all_at_once:
        context, lse = small.attend(*arrays, sinks, limits, scale, softcap, pattern, return_lse)
    else:
        pattern_text, *pattern_arrays = packed_pattern = PackedPattern.of(pattern)
        skewed_bias = None
        if diagonal_bias is not None:
            rows = queries_per_block(q, packed_pattern)
            skewed_bias = skew_last_query_first(diagonal_bias, rows, diagonal_bias.shape[-1] - rows + 1)
            skewed_bias = skewed_bias.flip(2).contiguous()
        if torch.compiler.is_compiling():  # an operation with derivatives takes no array twice
            k, v = k.view_as(k), v.view_as(v)
        inputs = q, k, v, mask, bias, sinks, *pattern_arrays, skewed_bias
        context, lse = BlockAttention.apply(*inputs, *limits, scale, softcap, pattern_text, return_lse)
    first_query = t - q.shape[1]
    if lse is not None and not statically_true(first_query == 0):
        lse_before = small.lse_of_nothing(sinks, lse).expand(*lse.shape[:2], first_query)
        lse = torch.cat([lse_before, lse], -1)
    return prepend_empty_rows(first_query, context).to(dtype), lse if return_lse else None


def prepend_empty_rows(first: int, context: Tensor) -> Tensor:
    """The context of the queries from the first on, with zeros put in front for those before it."""
    return context if statically_true(first == 0) else pad(context, (0, 0, 0, 0, first, 0))


def supports_diagonal_bias(q: Tensor, k: Tensor) -> bool:
    """Whether the fast path takes a bias by diagonal as one number for each diagonal.

    Not in a compiled program, on the meta device, or where q or k is empty.
    """
    return not (torch.compiler.is_compiling() or q.is_meta or 0 in q.shape or 0 in k.shape)


def rank4(x: Tensor | None) -> Tensor | None:
    """A mask or bias with four axes, the first of length 1 where they were missing."""
    return x if x is None else x.reshape((1,) * (4 - x.ndim) + tuple(x.shape))


def needs_grad(*arrays: Tensor) -> bool:
    """Whether autograd will ask for the gradient of one of these."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in arrays)


def few_scores(q: Tensor, k: Tensor) -> bool:
    """Whether all scores at once are faster than blocks: there are few, in all or in each head, or none."""
    most, of_head = SMALL_MAX_SCORES if q.is_cpu else 0, q.shape[1] * k.shape[1]
    return statically_true(q.shape[0] * q.shape[2] * of_head <= most) or statically_true(of_head <= most // 128)
