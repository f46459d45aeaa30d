"""Projections as modules: `nnx.Linear`s that tools find, replace and change, and that a layer calls."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from attn_np.contract._projections import Projection

Array = jax.Array


def dot_general(x: Array, y: Array, dimensions: Any, precision: Any = None, **options: Any) -> Array:
    """JAX's own, in the highest precision unless the caller configured one, as every product of a layer."""
    asked = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    precision = precision if precision is not None or asked else jax.lax.Precision.HIGHEST
    return jax.lax.dot_general(x, y, dimensions, precision=precision, **options)


def widened(x: Array) -> Array:
    return x.astype(jnp.float32) if x.dtype in (jnp.float16, jnp.bfloat16) else x


def linear_module(projection: Projection, arrays: dict[str, Array]) -> nnx.Linear:
    """The module with the weight `arrays[name]`, `d h k`, as `d (h k)`, and the bias, if there is one."""
    weight, sizes = arrays[projection.name], (projection.in_features, projection.out_features)
    bias = None if projection.bias is None else arrays[projection.bias].reshape(-1)
    return nnx.Linear(
        *sizes,
        use_bias=bias is not None,
        param_dtype=weight.dtype,
        kernel_init=lambda *_: weight.reshape(sizes),
        bias_init=lambda *_: bias,
        dot_general=dot_general,
        rngs=nnx.Rngs(0),  # nothing is drawn from it
    )


def linear_arrays(projection: Projection, module: Any) -> dict[str, Array]:
    """The parameters by our names.

    Raises:
        ValueError: a module that holds something else, such as one with an adapter, or that computes something else.
    """
    leaves = nnx.to_flat_state(nnx.state(module))
    params: Any = {".".join(map(str, path)): leaf.get_value() for path, leaf in leaves}
    shape = params["kernel"].shape if "kernel" in params else ()
    projection.check_plain([*params], "kernel", shape)
    if type(module).__call__ is not nnx.Linear.__call__ or module.dot_general not in (dot_general, jax.lax.dot_general):
        raise projection.not_plain("be a plain Linear", module)
    arrays = {projection.name: reshaped(params["kernel"], (*shape[:-2], *projection.inputs, *projection.outputs))}
    if projection.bias is not None:
        arrays[projection.bias] = reshaped(params["bias"], (*shape[:-2], *projection.outputs))
    return arrays


def reshaped(x: Any, shape: tuple[int, ...]) -> Any:
    """The array in another shape, also one of an abstract model."""
    return jax.ShapeDtypeStruct(shape, x.dtype) if isinstance(x, jax.ShapeDtypeStruct) else x.reshape(shape)


def module_arrays(projection: Projection, arrays: dict[str, Array]) -> dict[str, Array]:
    """The parameters by the names of the module that `linear_arrays` reads: its inverse."""
    name, bias, weight = projection.name, projection.bias, arrays[projection.name]
    stacked = weight.shape[: weight.ndim - len(projection.inputs) - len(projection.outputs)]
    kernel = {f"{name}.kernel": weight.reshape(*stacked, projection.in_features, projection.out_features)}
    return kernel if bias is None else kernel | {f"{name}.bias": arrays[bias].reshape(*stacked, -1)}


def mark(projection: Projection, module: Any, dtype: str) -> None:
    """Tell a module which projection it computes, for `call_module`; what cannot be it in this dtype is refused."""
    kernel: Any = getattr(module, "kernel", None)
    known = isinstance(kernel, nnx.Variable) and jnp.issubdtype(kernel.get_value().dtype, jnp.floating)
    projection.check_module(module, nnx.Module, (kernel.get_value().dtype.name if known else "", dtype))
    module.projection = projection


def call_module(module: Any, x: Array) -> Array:
    """The projection of x by a module that a layer has: with the axes of x in one, then those of the output apart.

    Raises:
        TypeError: the module returns no array.
        ValueError: it returns another shape or dtype, or no layer knows it.
    """
    projection: Projection | None = getattr(module, "projection", None)
    if projection is None:
        got = f"{type(module).__name__}, which no attribute of a layer was set to"
        raise ValueError(f"linear: expected a module of a layer, got {got}; assign it: layer.w_q = module")
    x = widened(x)
    first = x.shape[: x.ndim - len(projection.inputs)]
    y = module(x.reshape(*first, projection.in_features))
    if not isinstance(y, Array) or y.shape != (*first, projection.out_features) or widened(y).dtype != x.dtype:
        projection.check_output(y, Array, first, (name(y), name(x)))
    return widened(y).reshape(*first, *projection.outputs)


def name(x: Any) -> str:
    """The name of an array's dtype as it is after widening."""
    return widened(x).dtype.name if isinstance(x, Array) else ""
