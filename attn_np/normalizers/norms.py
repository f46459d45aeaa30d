"""Norms of what heads hold, as a `Norm` of the contract describes them: which heads together, which weight, a bias."""

from typing import Any

from attn_np.contract._norms import Norm
from attn_np.ops import Array, l2_normalize, layer_norm, rms_norm, upcast
from attn_np.ops.pages import join_heads, reshape_as
from attn_np.ops.vjp import l2_normalize_vjp, layer_norm_vjp, rms_norm_vjp, sum_grads, sum_to


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


def unit_norm_vjp(norm: Norm, x: Array, dunit: Array) -> Array:
    """The gradient of x."""
    if norm.kind == "l2":
        return l2_normalize_vjp(x, norm.eps, dunit)
    return (
        rms_norm_vjp(x, None, norm.eps, dunit) if norm.kind == "rms" else layer_norm_vjp(x, None, None, norm.eps, dunit)
    )[0]


def normalize_vjp(layer: Any, norm: Norm | None, what: str, x: Array, dy: Array, dw: dict[str, Any]) -> Array:
    """The gradient of x, for y = unit (weight + offset) + bias; those of weight and bias go into dw by their names.

    Where queries and keys share a weight, its gradients add up.
    """
    if norm is None:
        return dy
    groups, (weight, bias) = in_groups(norm, x), norm_arrays(layer, norm, what)
    grads: list[Array | None] = [None, None if bias is None else sum_to(dy, bias.shape)]
    if weight is not None:
        grads[0] = sum_to(dy * reshape_as(unit_norm(norm, groups), x), weight.shape)
        dy = dy * offset_weight(norm, weight)
    for name, grad in zip(norm.names(what), grads, strict=True):
        if grad is not None:
            dw[name] = sum_grads(dw[name], grad) if name in dw else grad
    return unit_norm_vjp(norm, groups, in_groups(norm, dy)).reshape(x.shape)
