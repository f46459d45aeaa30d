"""The largest entries of an axis: themselves in order, their indices, and where these are."""

import torch
from torch import Tensor

from attn_torch.ops.tracing import concrete, is_longer


def largest_first(x: Tensor) -> Tensor:
    """The entries of the last axis from the largest to the smallest, without a gradient."""
    return torch.sort(x.detach(), dim=-1, descending=True).values


def largest_indices(x: Tensor, count: int) -> Tensor:
    """The indices of the `count` largest entries of the last axis, largest first; no gradient.

    Of equals it takes the first, but of those that are -inf any.
    """
    x = x.detach()
    if count == 0 or not is_longer(x.shape[-1], count):
        return torch.sort(x, dim=-1, descending=True, stable=True).indices[..., :count]
    if not concrete(x) or x.device.type != "cpu":
        return first_of_equals(x, count)
    # `topk` takes any of equals: it tells which rows have others that are equal to the least, or NaN.
    entries, index = torch.topk(x, count + 1)
    least, next_entry = entries[..., -2], entries[..., -1]
    index = in_order(x, index[..., :-1].sort(-1).values)
    tied = (least != -torch.inf) & ~(least > next_entry)
    if tied.any():
        index[tied] = first_of_equals(x[tied], count)
    return index


def first_of_equals(x: Tensor, count: int) -> Tensor:
    """`largest_indices` of more entries than that by the least of them, and the first positions that have no less."""
    x = torch.where(torch.isnan(x), torch.inf, x)
    least = torch.topk(x, count).values[..., -1:]
    above, equal = x > least, x == least
    chosen = above | (equal & (torch.cumsum(equal, -1) <= count - above.sum(-1, keepdim=True)))
    position = torch.arange(x.shape[-1], 0, -1, device=x.device)
    return in_order(x, torch.topk(torch.where(chosen, position, 0), count).indices)


def in_order(x: Tensor, index: Tensor) -> Tensor:
    """Indices that rise, by their entries from the largest to the smallest."""
    order = torch.sort(x.gather(-1, index), dim=-1, descending=True, stable=True).indices
    return index.gather(-1, order)


def mark_indices(index: Tensor, n: int) -> Tensor:
    """True at the indices of the last axis: `... m` -> `... n`. The index n is none; other indices must fit."""
    marks = torch.zeros((*index.shape[:-1], n + 1), dtype=torch.bool, device=index.device)
    return marks.scatter(-1, index, True)[..., :n]
