"""The contracts of the functions that stand in for those of PyTorch and JAX: what they refuse, and batch axes."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from reprlib import repr as short
from sys import float_info
from typing import Any

from attn_np.contract._base import FLOATS, Arg, Config, Spec, check_present, field_error, is_integer, is_number, require
from attn_np.contract._functions import check_floats

# The names of the functions, as errors say them.
TORCH_FUNCTION, JAX_FUNCTION = "scaled_dot_product_attention", "dot_product_attention"
FLAX_FUNCTION, TRANSFORMERS_FUNCTION = "attention_fn", "transformers_attention"
ARRAY_NAMES = ("query", "key", "value")


@dataclass(frozen=True, kw_only=True)
class PositionsFirst(Config):
    """The arrays of a call of JAX's function, and of Flax's, checked as the arguments of a layer are.

    Attributes:
        batched: whether query, key and value have an axis of sequences.
    """

    batched: bool

    def sizes(self) -> dict[str, int]:
        return {}

    def arguments(self) -> dict[str, Arg]:
        axes = {"query": "b t h k", "key": "b s g k", "value": "b s g v"}
        masks = {"bias": Arg("b h t s", "bias", optional=True), "mask": Arg("b h t s", "mask", optional=True)}
        arrays = {name: Arg(letters) if self.batched else Arg(letters).without("b") for name, letters in axes.items()}
        return arrays | masks


class JaxArguments(PositionsFirst):
    """The arguments of `jax.nn.dot_product_attention`."""


class FlaxArguments(PositionsFirst):
    """The arguments of an `attention_fn`."""


JaxArguments.variant, FlaxArguments.variant = JAX_FUNCTION, FLAX_FUNCTION


def check_flag(who: str, name: str, value: Any) -> None:
    """Refuse a value that is neither True nor False.

    Raises:
        ValueError: naming the argument.
    """
    if not isinstance(value, bool):
        raise field_error(who, f"{name} to be True or False", repr(value), f"set {name}=")


def check_arrays_present(who: str, specs: Mapping[str, Spec | None]) -> None:
    """Refuse a call without query, key or value.

    Raises:
        TypeError: naming the first that is missing.
    """
    for name in ARRAY_NAMES:
        check_present(who, name, specs[name])


def spec_shape(spec: Spec | None) -> tuple[int, ...]:
    """The shape of an array; () where it was left out."""
    return () if spec is None else spec[0]


def broadcast_size(who: str, name: str, *sizes: int, fix: str = "broadcast them") -> int:
    """The size that some axes are broadcast to.

    Raises:
        ValueError: two sizes other than 1.
    """
    whole = sizes[0]
    for size in sizes[1:]:
        if (
            size == whole
        ):  # first: two symbols of a compiled program may be known to be equal, and not whether they are 1
            continue
        fits = size == 1 or whole == 1
        require(fits, who, f"one size for the axis of {name} in query, key and value", sizes, fix)
        whole = size if whole == 1 else whole
    return whole


def checked_heads_first_sizes(
    who: str, specs: Mapping[str, Spec | None], mask_name: str, *, may_share_heads: bool
) -> tuple[tuple[int, ...], int, int]:
    """The batch axes of arrays `... h t k`, the heads of the queries, and those of keys and values.

    Args:
        who: the function, as its caller wrote it.
        specs: shape and dtype name of query, key, value, a mask, and of `keep` where there is one.
        mask_name: what the caller calls the mask.
        may_share_heads: whether several heads of queries may share one of keys and values.

    Raises:
        ValueError: shapes that do not fit.
        TypeError: dtypes that do not fit.
    """
    query, key, value = shapes = [spec_shape(specs[name]) for name in ARRAY_NAMES]
    dtype = (specs["query"] or ((), ""))[1]
    for name, shape in zip(ARRAY_NAMES, shapes, strict=True):
        spec = specs[name]
        check_floats(who, name, spec)
        got = spec and spec[1]
        if got != dtype:
            raise TypeError(f"{who}: expected {name} of dtype {dtype}, as query, got {got}; convert it")
        require(len(shape) >= 2, who, f"{name} of shape (..., h, t, k)", shape, "give it its axes in this order")
    fits, fix = key[-1] == query[-1] and query[-1] > 0, "they are multiplied with each other"
    require(fits, who, "key of the width of query, at least 1, on the last axis", f"{key} and {query}", fix)
    expected, fix = "value of the length of key on the axis before the last", "give each key a value"
    require(value[-2] == key[-2], who, expected, f"{value} and {key}", fix)
    rank = max(4, *map(len, shapes))
    full = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    batch = tuple(
        broadcast_size(who, "the batch", *sizes) for sizes in zip(*(shape[:-3] for shape in full), strict=True)
    )
    heads, kv_heads = full[0][-3], broadcast_size(who, "heads", full[1][-3], full[2][-3])
    if may_share_heads:
        if kv_heads <= 0 or heads % kv_heads:
            expected, got = "heads of query as a multiple of those of key and value", f"{heads} and {kv_heads}"
            raise field_error(who, expected, got, "share each among equally many")
    else:
        heads = broadcast_size(who, "heads", heads, kv_heads, fix="pass enable_gqa=True where heads share keys")
    scores_shape = (*batch, heads, query[-2], key[-2])
    for name in (mask_name, "keep"):
        spec = specs.get(name)
        if spec is not None:
            check_broadcast(who, name, spec[0], scores_shape)
    mask, keep = specs.get(mask_name), specs.get("keep")
    if mask is not None and mask[1] not in (*FLOATS, "bool"):
        raise TypeError(f"{who}: expected {mask_name} to be bool or float, got {mask[1]}; pass {mask_name} == 1")
    if keep is not None and keep[1] != "bool":
        raise TypeError(f"{who}: expected a boolean keep (True = not dropped), got {keep[1]}; pass keep == 1")
    return batch, heads, kv_heads


def check_broadcast(who: str, name: str, shape: tuple[int, ...], scores_shape: tuple[int, ...]) -> None:
    """Refuse a mask that does not fit scores `... h t s`.

    Raises:
        ValueError: naming the mask.
    """
    pairs = zip(reversed(shape), reversed(scores_shape), strict=False)
    fits = len(shape) <= len(scores_shape) and all(n == size or n == 1 for n, size in pairs)
    fix = "add axes of size 1 where it does not vary"
    require(fits, who, f"{name} broadcastable to the scores' shape {scores_shape}", shape, fix)


def checked_torch_sizes(
    specs: Mapping[str, Spec | None], *, dropout_p: float, is_causal: Any, enable_gqa: Any, scale: Any, has_keep: bool
) -> tuple[tuple[int, ...], int, int]:
    """The batch axes of a call, the heads of the queries, and those of keys and values.

    Args:
        specs: shape and dtype name of query, key, value, attn_mask and keep; None for one that was left out.
        has_keep: whether the call says which weights dropout keeps.

    Raises:
        ValueError, TypeError: a call that cannot be right, or that has no meaning here.
    """
    check_flag(TORCH_FUNCTION, "is_causal", is_causal)
    check_flag(TORCH_FUNCTION, "enable_gqa", enable_gqa)
    check_scale(TORCH_FUNCTION, "scale", scale)
    fits = is_number(dropout_p) and 0 <= dropout_p < 1
    if not fits:
        raise field_error(TORCH_FUNCTION, "dropout_p in [0, 1)", repr(dropout_p), "it is the share of weights set to 0")
    if dropout_p > 0 and not has_keep:
        fix = "draw it, or leave dropout_p out; attn_torch.drop_in draws by itself"
        raise field_error(TORCH_FUNCTION, "keep=, True where a weight is not dropped, with dropout_p", "none", fix)
    if specs["attn_mask"] is not None and is_causal:
        fix = "put causality into the mask: whether PyTorch takes both depends on its kernel"
        raise field_error(TORCH_FUNCTION, "attn_mask or is_causal=True", "both", fix)
    return checked_heads_first_sizes(TORCH_FUNCTION, specs, "attn_mask", may_share_heads=enable_gqa)


def check_scale(who: str, name: str, value: Any) -> None:
    """Refuse a factor on the scores that is not a finite number.

    Raises:
        ValueError: naming the argument.
    """
    if value is not None and not (is_number(value) and abs(value) <= float_info.max):
        raise field_error(who, f"{name} to be a finite int or float", short(value), f"set {name}=, None for 1/sqrt(K)")


def check_transformers(specs: Mapping[str, Spec | None], scaling: Any, softcap: Any) -> None:
    """Refuse a call of an attention function of `transformers` that cannot be right.

    Args:
        specs: of query, key and value `b h t k`, of attention_mask, which may have more keys, and of the sinks s_aux.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    who, mask, sinks, key = TRANSFORMERS_FUNCTION, specs["attention_mask"], specs["s_aux"], specs["key"]
    check_scale(who, "scaling", scaling)
    check_scale(who, "softcap", softcap)
    check_arrays_present(who, specs)
    for name in ARRAY_NAMES:
        spec = specs[name]
        require(
            spec is not None and len(spec[0]) == 4, who, f"{name} of shape (b, h, t, k)", spec and spec[0], "reshape it"
        )
    if mask is not None and key is not None:  # of a mask for a longer cache the first keys count
        mask = ((*mask[0][:-1], min(mask[0][-1], key[0][-2])), mask[1])
    masked = {**specs, "attention_mask": mask}
    _, heads, _ = checked_heads_first_sizes(who, masked, "attention_mask", may_share_heads=True)
    if sinks is not None and sinks[0] != (heads,):
        expected = f"s_aux of shape ({heads},), one sink for each head of query"
        raise field_error(who, expected, sinks[0], "reshape it")


def merged_mask_shape(shape: tuple[int, ...], batch: tuple[int, ...]) -> tuple[int, ...] | None:
    """The shape that a mask is broadcast to before its batch axes become one.

    None where the call has at most one batch axis, or the mask has none.
    """
    return (*batch, *((1,) * (3 - len(shape)) + shape)[-3:]) if len(batch) > 1 and len(shape) > 3 else None


def merged_batch_size(batch: tuple[int, ...]) -> int:
    """The size of all batch axes as one."""
    return prod(batch)


def check_positions_first(arguments_class: type[PositionsFirst], specs: Mapping[str, Spec | None]) -> None:
    """Refuse arrays `b t h k`, or `t h k`, that cannot be right.

    Raises:
        ValueError: shapes that do not fit.
        TypeError: dtypes that do not fit.
    """
    who, rank, dtype = arguments_class.variant, len((specs["query"] or ((),))[0]), (specs["query"] or ((), ""))[1]
    check_arrays_present(who, specs)
    for name in ARRAY_NAMES:
        spec = specs[name]
        fits = spec is None or (len(spec[0]) in (3, 4) and len(spec[0]) == rank)
        expected = f"{name} of shape (b, t, h, k) or (t, h, k), as query"
        require(fits, who, expected, spec and spec[0], "give it these axes")
    bias = specs.get("bias")
    as_query = {"bias": (bias[0], dtype)} if bias is not None and bias[1] in FLOATS else {}
    sizes = arguments_class(batched=rank == 4).check(None, **{**specs, **as_query})
    fits, fix = sizes["g"] > 0 and sizes["h"] % sizes["g"] == 0, "share each among equally many"
    got = f"{sizes['h']} and {sizes['g']}"
    require(fits, who, "heads of query as a multiple of those of key and value", got, fix)
    require(sizes["k"] > 0, who, "query and key of width at least 1", "width 0", "give them at least one dimension")


def check_flax(specs: Mapping[str, Spec | None]) -> None:
    """Refuse arrays `... t h k` that cannot be right.

    Raises:
        ValueError: shapes that do not fit.
        TypeError: dtypes that do not fit.
    """
    query, key, value = (spec_shape(specs[name]) for name in ARRAY_NAMES)
    batch, last = query[:-3], {}
    for name, shape in zip(ARRAY_NAMES, (query, key, value), strict=True):
        fits, expected = len(shape) >= 3 and shape[:-3] == batch, f"{name} of shape {batch}, as query, and (t, h, k)"
        require(fits, FLAX_FUNCTION, expected, shape, "give it these axes")
        last[name] = (shape[-3:], (specs[name] or ((), ""))[1])
    check_positions_first(FlaxArguments, last)
    for name in ("bias", "mask"):
        spec = specs[name]
        if spec is not None:
            check_broadcast(FLAX_FUNCTION, name, spec[0], (*batch, query[-2], query[-3], key[-3]))


def checked_jax_window(
    specs: Mapping[str, Spec | None],
    *,
    is_causal: Any,
    window: Any,
    implementation: Any,
    return_residual: Any,
    scale: Any,
) -> tuple[int | None, int | None]:
    """Refuse a call that cannot be right; give its window (left, right), None for no limit.

    Raises:
        ValueError, TypeError: a call that cannot be right, or that has no meaning here.
    """
    check_flag(JAX_FUNCTION, "is_causal", is_causal)
    if implementation not in (None, "xla"):
        raise field_error(
            JAX_FUNCTION,
            "implementation=None or 'xla'",
            repr(implementation),
            "call jax.nn.dot_product_attention for cuDNN",
        )
    if return_residual is not False:
        raise field_error(
            JAX_FUNCTION,
            "return_residual=False",
            repr(return_residual),
            "call jax.nn.dot_product_attention for the residual",
        )
    check_scale(JAX_FUNCTION, "scale", scale)
    check_positions_first(JaxArguments, specs)
    query = specs["query"]
    for name in ("query_seq_lengths", "key_value_seq_lengths"):
        spec, batch = specs[name], query[0][0] if query is not None and len(query[0]) == 4 else 1
        if spec is not None and (spec[0] != (batch,) or not spec[1].startswith("int")):
            raise field_error(
                JAX_FUNCTION, f"{name} of shape ({batch},) and an integer dtype", spec, "give each sequence one"
            )
    sides = (window, window) if is_integer(window) else window
    left, right = (None, None) if sides is None else checked_window_sides(sides)
    return left, 0 if is_causal else right


def checked_window_sides(sides: Any) -> tuple[int, int]:
    """Both sides of `local_window_size`.

    Raises:
        ValueError: not an int or two of them from 0.
    """
    is_pair = isinstance(sides, tuple | list) and len(sides) == 2
    if not is_pair or any(not is_integer(n) or n < 0 for n in sides):
        expected = "local_window_size to be an int from 0, or (left, right) of them"
        raise field_error(JAX_FUNCTION, expected, repr(sides), "leave it out for no window")
    return sides[0], sides[1]
