"""Norms of what heads hold, as a `Norm` of the contract describes them: which heads together, which weight, a bias."""

from typing import Any

from attn_np.contract._norms import Norm
from attn_torch.ops import Array, l2_normalize, layer_norm, rms_norm, upcast
from attn_torch.ops.pages import join_heads, reshape_as


def normalize(layer: Any, norm: Norm | None, what: str, x: Array) -> Array:
    """x, `b t h k`, normalised in the norm's groups of heads, by the layer's weight and bias for the norm of `what`."""
    if norm is None:
        return x
    unit, weight, bias = reshape_as(unit_norm(norm, in_groups(norm, x)), x), *norm_arrays(layer, norm, what)
    unit = unit if weight is None else unit * offset_weight(norm, weight)
    return unit if bias is None else unit + upcast(bias)


def norm_arrays(layer: Any, norm: Norm, what: str) -> tuple[Array | None, Array | None]:
    """The layer's weight and bias for the norm of `what`; None where the norm has none."""
    weight, bias = norm.names(what)
    return None if norm.weight is None else getattr(layer, weight), getattr(layer, bias) if norm.bias else None


def in_groups(norm: Norm, x: Array) -> Array:
    """The heads that are normalised together as one: `b t h k` -> `b t groups (h/groups k)`."""
    if norm.over == "head":
        return x
    return join_heads(x, norm.groups(x.shape[2]))


def unit_norm(norm: Norm, x: Array) -> Array:
    """x normalised over its last axis, without a weight."""
    if norm.kind == "rms":
        return rms_norm(x, None, norm.eps)
    return l2_normalize(x, norm.eps) if norm.kind == "l2" else layer_norm(x, None, None, norm.eps)


def offset_weight(norm: Norm, weight: Array) -> Array:
    """The norm's weight in the compute dtype, plus its offset."""
    weight = upcast(weight)
    return weight if norm.offset == 0.0 else weight + norm.offset
