"""The base of JAX's layers: parameters, checks of a call, outputs, and decoding."""

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from inspect import isfunction
from types import MethodType
from typing import Any, ClassVar, Generic, TypeVar, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attn_jax.attention.decode import Cache, begin_step, empty_cache, end_step
from attn_jax.ops import DTYPES, Array, Tape, dtype_name, float_dtype_name, memoized_check, to_dtype, upcast
from attn_jax.ops.modules import linear_arrays, linear_module, mark, module_arrays
from attn_jax.ops.sharded import varying_as
from attn_jax.ops.specs import checked_specs, refuse_silent_float32, spec_of
from attn_np.contract import Config, annotated_names, under_prefix
from attn_np.contract._base import shape_of
from attn_np.contract._call import call_error, config_of, described, spelled_out
from attn_np.contract._decode import DecodingMixin, arguments_to_check, check_step
from attn_np.contract._params import checked_params
from attn_np.contract._projections import (
    Projection,
    Projections,
    check_projections,
    projections_of_child,
    refuse_module,
)
from attn_np.contract._rotary import unpack_positions_pair

TREE = __name__.partition(".")[0]  # the package that this file, or a copy of it, is in

C = TypeVar("C", bound=Config)
Output = Any  # y, or (y, weights) with return_weights=True


def cast_output(dtype: str, y: Array, weights: Array | None = None, return_weights: bool = False) -> Output:
    """The output rounded once to the inputs' dtype; with `return_weights`, a pair with the weights."""
    return (to_dtype(y, dtype), to_dtype(weights, dtype)) if return_weights else to_dtype(y, dtype)


class UncompiledMethod:
    """A method that `nnx.tabulate` does not call: `tabulate` compiles the public methods of a class, and some of ours
    take or return sizes and functions, which cannot be compiled.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __get__(self, layer: Any, cls: type) -> Any:
        return partial(self.function) if layer is None else MethodType(self.function, layer)


def cast_inputs(call: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's call that first casts float arrays to the layer's dtype, if its user has set one.

    It says what to write instead of arguments that the call does not have, and has a full signature.
    """
    full = spelled_out(call)
    known = tuple(full.parameters)

    def cast(x: Any, dtype: str) -> Any:
        floating = isinstance(x, jax.Array | np.ndarray) and dtype_name(x) in DTYPES
        return jnp.asarray(x, DTYPES[dtype]) if floating else x

    def cast_and_call(self: Any, *inputs: Any, **options: Any) -> Any:
        if self.casts_inputs:
            inputs = tuple(cast(x, self.dtype) for x in inputs)
            options = {name: cast(x, self.dtype) for name, x in options.items()}
        try:
            for name in options:
                if name not in known:
                    raise TypeError(name)  # `call_error` below says it in words
            return call(self, *inputs, **options)
        except TypeError:
            error = call_error(self.config, cast_and_call, inputs, options)
            if error is None:
                raise
        raise error

    return described(call, cast_and_call, full)


class Layer(nnx.Module, DecodingMixin[Array], Generic[C]):
    """Base of the layers: the contract's parameters as `nnx.Param`s under their names, and the call's check.

    Args:
        config: the contract's Config; or its fields by name.
        rngs: draws the parameters (stream `params`) and, in training, dropout (stream `dropout`).
        dtype: of inputs and outputs, as in Flax: float inputs are cast to it. By default inputs must have the
            parameters' dtype, and others are refused as in the other packages. Sums are formed in float32 at least.
        param_dtype: of the parameters, which keep it; float32 by default.
        projections: "modules" for an `nnx.Linear` in the place of each projection's parameters.

    Attributes:
        projections: those that are modules; none with arrays.
    """

    projections: tuple[Projection, ...] = ()
    Config: ClassVar[type[Any]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.Config = get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]
        for name, value in list(vars(cls).items()):
            if name == "__call__":
                setattr(cls, name, cast_inputs(value))
            elif isfunction(value) and not name.startswith("_"):
                setattr(cls, name, UncompiledMethod(value))

    def __init__(
        self,
        config: C = None,  # type: ignore[assignment]
        *positional: object,
        rngs: nnx.Rngs | None = None,
        dtype: Any = None,
        param_dtype: Any = "float32",
        projections: Projections = "arrays",
        _values: dict[str, Array] | None = None,
        **fields: Any,
    ) -> None:
        config = config_of(type(self), config, positional, fields)
        if not isinstance(rngs, nnx.Rngs):
            got = "none" if rngs is None else repr(rngs)
            raise TypeError(f"{config.variant}: expected rngs= to be an nnx.Rngs, got {got}; pass rngs=nnx.Rngs(0)")
        jax_dtype = DTYPES[float_dtype_name(config.variant, param_dtype)]
        self.config, self.deterministic, self.casts_inputs = config, False, dtype is not None
        self.param_dtype = float_dtype_name(config.variant, param_dtype)
        self.dtype = self.param_dtype if dtype is None else float_dtype_name(config.variant, dtype)
        if jax_dtype == jnp.float64 and self.dtype != "float64":
            raise ValueError(
                f"{config.variant}: expected float64 inputs for float64 parameters, got dtype={self.dtype!r}; "
                "leave dtype out, or set param_dtype to it"
            )
        if getattr(config, "dropout", 0) and not {"dropout", "default"} & set(rngs):
            raise ValueError(
                f"{config.variant}: expected rngs with a stream for dropout, got {', '.join(rngs) or 'none'}; "
                "pass nnx.Rngs(params=..., dropout=...) or nnx.Rngs(seed)"
            )
        self.rngs: Any = rngs.dropout.fork() if getattr(config, "dropout", 0) else None
        shapes, fans, own, children = config.shapes(), config.fans(), config.own_params(), config.children()
        self.has_params = bool(shapes)
        self.projections = check_projections(config, projections)
        modules, in_modules = {x.name for x in self.projections}, {n for x in self.projections for n in x.names()}
        for name in annotated_names(type(self)):
            if name not in (own.keys() - in_modules) | modules | children.keys():
                setattr(self, name, None)
        arrays = {}
        for name in own:
            limit, initial_value = fans[name] ** -0.5, own[name].initial_value()
            if _values is not None:
                value = jnp.asarray(_values[name], jax_dtype)
            elif initial_value is not None:
                value = jnp.full(shapes[name], np.array(initial_value), jax_dtype)
            elif own[name].normal:
                value = jax.random.normal(rngs.params(), shapes[name], jax_dtype)
            else:
                value = jax.random.uniform(rngs.params(), shapes[name], jax_dtype, -limit, limit)
            if name in in_modules:
                arrays[name] = value
            else:
                setattr(self, name, nnx.Param(value))
        for projection in self.projections:
            setattr(self, projection.name, linear_module(projection, arrays))
        for name, child in children.items():
            configs = {f"{name}.{i}": c for i, c in enumerate(child)} if isinstance(child, list) else {name: child}
            sublayers = [
                self._child(part, under_prefix(_values, p), rngs, dtype, param_dtype, projections)
                for p, part in configs.items()
            ]
            setattr(self, name, nnx.List(sublayers) if isinstance(child, list) else sublayers[0])

    def _child(
        self, config: Any, values: Any, rngs: nnx.Rngs, dtype: Any, param_dtype: Any, projections: str
    ) -> "Layer[Any]":
        cls = getattr(import_module(f"{TREE}.{config.variant}"), config.class_name)
        projections = projections_of_child(config, projections)
        return cls(config, rngs=rngs, dtype=dtype, param_dtype=param_dtype, projections=projections, _values=values)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; what replaces the module of a projection is told which one, or refused."""
        for projection in self.projections:
            if projection.name == name:
                mark(projection, value, self.param_dtype)
                break
        else:
            if isinstance(value, nnx.Module) and "config" in vars(self) and name in self.config.own_params():
                refuse_module(self.config, name, value)
        super().__setattr__(name, value)

    @classmethod
    def from_params(
        cls, config: C, values: dict[str, Array], dtype: str, seed: int = 0, projections: Projections = "arrays"
    ) -> "Layer[C]":
        """A layer in evaluation mode with given parameters; the seed is that of dropout, should it be trained."""
        layer = cls(config, rngs=nnx.Rngs(seed), param_dtype=dtype, projections=projections, _values=values)
        layer.eval()
        return layer

    def set_view(self, deterministic: bool | None = None) -> None:
        """Set the mode of this layer alone, for `nnx.view(layer, deterministic=...)`, which visits every one."""
        self.deterministic = self.deterministic if deterministic is None else deterministic

    def params(self) -> dict[str, Array]:
        """Every parameter by its dotted name: the dictionary that weight files hold.

        Raises:
            ValueError: the module of a projection holds more than its weight and bias, such as an adapter.
        """
        flat = nnx.to_flat_state(nnx.state(self, nnx.Param))
        params = {".".join(map(str, path)): leaf.get_value() for path, leaf in flat}
        for prefix, layer, projection in self._modules():
            arrays = linear_arrays(projection, getattr(layer, projection.name))
            params |= {prefix + name: x for name, x in arrays.items()}
        return {name: params[name] for name in self.config.params()}

    def _modules(self) -> Iterator[tuple[str, "Layer[Any]", Projection]]:
        """Every projection that is a module, here and in the layers inside, with its layer and the prefix of that."""
        for path, layer in nnx.iter_modules(self):
            if isinstance(layer, Layer):
                prefix = "".join(f"{part}." for part in path)
                yield from ((prefix, layer, projection) for projection in layer.projections)

    def set_params(self, values: dict[str, Array]) -> None:
        """Replace the parameters by arrays, by dotted name, with the devices and sharding of those replaced.

        All are checked before one is replaced.

        Raises:
            ValueError: a name that is missing or unknown, or another shape or dtype than the parameter's.
            TypeError: no dictionary, or a value that is no array.
        """
        values = checked_params(self.config.variant, self.params(), values, checked_specs, dtype_name)
        for prefix, _, projection in self._modules():
            arrays = {name: values[prefix + name] for name in projection.names()}
            values |= {prefix + name: x for name, x in module_arrays(projection, arrays).items()}
        flat = nnx.to_flat_state(nnx.state(self, nnx.Param))
        leaves = []
        for path, leaf in flat:
            sharding = getattr(leaf.get_value(), "sharding", None)  # a traced array has none
            x = jax.device_put(jnp.array(values[".".join(map(str, path))]), sharding)
            leaves.append((path, leaf.replace(x)))
        nnx.update(self, nnx.from_flat_state(leaves))

    @UncompiledMethod
    def check(self, **arguments: Any) -> dict[str, int]:
        """The size of every axis letter of a call; arguments that cannot be right are refused."""
        config, dtype = self.config, self.dtype if self.has_params else None
        if dtype is None:
            refuse_silent_float32(config.variant, *arguments.values())
        if "positions" in arguments:
            arguments = unpack_positions_pair(config.variant, arguments)
        return memoized_check(config, dtype, checked_specs(config.variant, **arguments))

    def _empty_cache(self, batch_size: int, max_length: int, dtype: Any, sizes: dict[str, int]) -> Any:
        entry_dtype = float_dtype_name(self.config.variant, dtype or self.dtype)
        like = jnp.zeros((), DTYPES[entry_dtype])
        return empty_cache(self.config, batch_size, max_length, sizes, like, upcast(like) if dtype is None else like)

    def _step(
        self, query: Array, cache: Any, valid: Array | None, tape: Tape, arguments: dict[str, Array]
    ) -> tuple[Array, Any]:
        config, contract_arguments = self.config, arguments_to_check(self.config, cache, Cache, **arguments)
        sizes = self.check(query=query, **contract_arguments)
        cache_specs = {name: spec_of(config.variant, f"the cache's {name}", x) for name, x in cache.arrays.items()}
        valid_spec = spec_of(config.variant, "valid", valid)
        check_step(config, not self.deterministic, sizes, valid_spec, cache_specs, cache.max_length)
        step = begin_step(config, varying_as(cache, query), query, valid, sizes)
        return end_step(step, self(query, step=step, tape=tape, **arguments))

    @UncompiledMethod
    def draw_keep(self, keep: Array | None, axes: str, sizes: dict[str, int], like: Array) -> Array | None:
        """The keep-mask of a call: the caller's, or a random one in training with dropout, else None."""
        rate = self.config.dropout  # type: ignore[attr-defined]
        if keep is not None or self.deterministic or rate == 0:
            return keep
        shape = shape_of(axes, sizes)
        return jax.random.bernoulli(self.rngs(), 1 - rate, shape)
