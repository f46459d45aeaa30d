"""The contracts of the functions that stand in for those of PyTorch and JAX: what they refuse, and batch axes."""

from collections.abc import Mapping
from math import prod
from typing import Any

from attn_np.contract._base import Spec, field_error, is_integer, is_number, require

TORCH, JAX = "scaled_dot_product_attention", "dot_product_attention"


def flag(who: str, name: str, value: Any) -> None:
    """Refuse a value that is neither True nor False.

    Raises:
        ValueError: naming the argument.
    """
    if not isinstance(value, bool):
        raise field_error(who, f"{name} to be True or False", repr(value), f"set {name}=")


def common(who: str, name: str, sizes: tuple[int, ...]) -> int:
    """The size that some axes are broadcast to.

    Raises:
        ValueError: two sizes other than 1.
    """
    others = {size for size in sizes if size != 1}
    require(len(others) <= 1, who, f"one size for the axis of {name} in query, key and value", sizes, "broadcast them")
    return max(others, default=1) if others else 1


def check_torch(
    specs: Mapping[str, Spec | None], *, dropout_p: float, is_causal: Any, enable_gqa: Any, has_keep: bool
) -> tuple[tuple[int, ...], int, int]:
    """The batch axes of a call, the heads of the queries, and those of keys and values.

    Args:
        specs: shape and dtype name of query, key, value and attn_mask; None for one that was left out.
        has_keep: whether the call says which weights dropout keeps.

    Raises:
        ValueError, TypeError: a call that cannot be right, or that has no meaning here.
    """
    flag(TORCH, "is_causal", is_causal)
    flag(TORCH, "enable_gqa", enable_gqa)
    known = is_number(dropout_p) and 0 <= dropout_p < 1
    if not known:
        raise field_error(TORCH, "dropout_p in [0, 1)", repr(dropout_p), "it is the share of weights set to 0")
    if dropout_p > 0 and not has_keep:
        todo = "draw it, or leave dropout_p out; attn_torch.drop_in draws by itself"
        raise field_error(TORCH, "keep=, True where a weight is not dropped, with dropout_p", "none", todo)
    shapes = [spec[0] for name in ("query", "key", "value") if (spec := specs[name])]
    for name, shape in zip(("query", "key", "value"), shapes, strict=True):
        require(len(shape) >= 2, TORCH, f"{name} of shape (..., h, t, k)", shape, "give it its axes in this order")
    mask = specs["attn_mask"]
    if mask is not None and is_causal:
        todo = "put causality into the mask: PyTorch refuses both, or not, by the kernel that it chooses"
        raise field_error(TORCH, "attn_mask or is_causal=True", "both", todo)
    if mask is not None and mask[1].startswith(("int", "uint")):
        raise TypeError(f"{TORCH}: expected attn_mask to be bool or float, got {mask[1]}; pass attn_mask == 1")
    full = [(1,) * (4 - len(shape)) + shape for shape in shapes]
    rank = max(map(len, full))
    full = [(1,) * (rank - len(shape)) + shape for shape in full]
    batch = tuple(common(TORCH, "the batch", sizes) for sizes in zip(*(shape[:-3] for shape in full), strict=True))
    heads, kv_heads = full[0][-3], common(TORCH, "heads", (full[1][-3], full[2][-3]))
    if enable_gqa:
        fits, expected = (
            kv_heads > 0 and heads % kv_heads == 0,
            "heads of query as a multiple of those of key and value",
        )
        require(fits, TORCH, expected, f"{heads} and {kv_heads}", "share each among equally many")
    else:
        heads = common(TORCH, "heads (enable_gqa=True for shared ones)", (heads, kv_heads))
    return batch, heads, kv_heads


def batch_mask(shape: tuple[int, ...], batch: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that a mask is broadcast to before its batch axes become one; None where it has at most one."""
    return (*batch, *((1,) * (3 - len(shape)) + shape)[-3:]) if len(batch) > 1 and len(shape) > 3 else None


def merged(batch: tuple[int, ...]) -> int:
    """The size of all batch axes as one."""
    return prod(batch)


def check_jax(
    specs: Mapping[str, Spec | None], *, is_causal: Any, window: Any, implementation: Any, return_residual: Any
) -> tuple[int | None, int | None]:
    """How many keys before and after its own position a query sees, None for all.

    Raises:
        ValueError, TypeError: a call that cannot be right, or that has no meaning here.
    """
    flag(JAX, "is_causal", is_causal)
    if implementation not in (None, "xla"):
        raise field_error(JAX, "implementation=None or 'xla'", repr(implementation), "call jax.nn's for cuDNN's")
    if return_residual is not False:
        raise field_error(JAX, "return_residual=False", repr(return_residual), "call jax.nn's for the residual")
    query = specs["query"]
    for name in ("query", "key", "value"):
        spec = specs[name]
        if query is not None and spec is not None:
            fits = len(spec[0]) in (3, 4) and len(spec[0]) == len(query[0])
            require(fits, JAX, f"{name} of shape (b, t, h, k) or (t, h, k), as query", spec[0], "give it these axes")
    for name in ("query_seq_lengths", "key_value_seq_lengths"):
        spec, batch = specs[name], query[0][0] if query is not None and len(query[0]) == 4 else 1
        if spec is not None and (spec[0] != (batch,) or not spec[1].startswith("int")):
            raise field_error(JAX, f"{name} of shape ({batch},) and an integer dtype", spec, "give each sequence one")
    sides = (window, window) if is_integer(window) else window
    left, right = (None, None) if sides is None else window_sides(sides)
    return left, 0 if is_causal else right


def window_sides(sides: Any) -> tuple[int, int]:
    """Both sides of `local_window_size`.

    Raises:
        ValueError: not an int or two of them from 0.
    """
    known = isinstance(sides, tuple | list) and len(sides) == 2
    if not known or any(not is_integer(n) or n < 0 for n in sides):
        expected = "local_window_size to be an int from 0, or (left, right) of them"
        raise field_error(JAX, expected, repr(sides), "leave it out for no window")
    return sides[0], sides[1]
