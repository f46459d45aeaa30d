"""Arrays in parts and in another order: pages of a pool, rows and positions of sequences, heads in groups."""

import torch
from torch import Tensor, where

from attn_torch.ops.caches import refuse_plain_cache


def take_pages(pool: Tensor, index: Tensor) -> Tensor:
    """Pages of a pool by an index that must fit: `n p ...`, `b c` -> `b c p ...`."""
    return pool.index_select(0, index.flatten()).unflatten(0, index.shape)


def write_entries(pool: Tensor, page: Tensor, place: Tensor, x: Tensor, is_written: Tensor) -> Tensor:
    """The pool with some entries of x written: `n p ...`, thrice `b t` and `b t ...` -> `n p ...`.

    In place unless gradients flow. Which are written is not read from the device: the others write once more what the
    first of these does, or what there was.
    """
    refuse_plain_cache(pool, x)
    if is_written.numel() == 0:
        return pool
    is_written = is_written & (page >= 0) & (page < pool.shape[0])  # known pages have been checked
    needs_grad = torch.is_grad_enabled() and (x.requires_grad or pool.requires_grad)
    own, x = is_written.flatten(), x.flatten(0, 1)
    order = torch.arange(own.shape[0], device=own.device)
    source = where(own, order, torch.argmax(own.long(), 0))
    page, place = (where(is_written, index, 0).flatten()[source] for index in (page, place))
    something, own = own.any(), along_first(own, x)
    values = where(something, x[source], pool[page, place])
    values = where(own | (~something & along_first(order == 0, x)), values, values.detach()) if needs_grad else values
    return pool.index_put((page, place), values) if needs_grad else pool.index_put_((page, place), values)


def along_first(x: Tensor, like: Tensor) -> Tensor:
    """An array `n` with as many axes as `like`, `n ...`."""
    return x.reshape(x.shape[0], *(1,) * (like.ndim - 1))


def split_rows(x: Tensor, rows: int) -> Tensor:
    """Batch rows as sequences of some rows each: `(b h) ...` -> `b h ...`."""
    return x.reshape(x.shape[0] // rows, rows, *x.shape[1:])


def group_heads(x: Tensor, heads: int) -> Tensor:
    """Query heads by the head of keys that they share: `b t (g r) k` -> `b t g r k`."""
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads, x.shape[3])


def join_heads(x: Tensor, groups: int) -> Tensor:
    """The heads of each group as one: `b t h k` -> `b t groups (h/groups k)`."""
    b, t, h, k = x.shape
    return x.reshape((b, t, groups, h // groups * k))


def reshape_as(x: Tensor, like: Tensor) -> Tensor:
    """The entries of x in the shape of `like`."""
    return x.reshape(like.shape)


def real_first(real: Tensor) -> Tensor:
    """The positions, those where the mask is True first, each kind in its order: `b t` -> `b t`."""
    return torch.argsort((~real).to(torch.uint8), dim=1, stable=True)


def take_positions(x: Tensor, index: Tensor) -> Tensor:
    """Positions of each sequence by an index that must fit: `b n ...`, `b t` -> `b t ...`."""
    return torch.take_along_dim(x, index.reshape(*index.shape, *(1 for _ in x.shape[2:])), dim=1)


def latest(places: Tensor) -> Tensor:
    """The largest entry up to each position, `b t`."""
    return torch.cummax(places, dim=1).values
