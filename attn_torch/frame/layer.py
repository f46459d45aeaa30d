"""The base of PyTorch's layers: parameters, checks of a call, outputs, and decoding."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar, get_args

import torch

from attn_np.contract import Config, annotated_names, float_dtype_name, under_prefix
from attn_np.contract._base import shape_of
from attn_np.contract._call import call_error, config_of, described, spelled_out
from attn_np.contract._decode import DecodingMixin, arguments_to_check, check_step
from attn_np.contract._params import checked_params
from attn_np.contract._projections import (
    Projection,
    Projections,
    check_projections,
    projections,
    projections_of_child,
    refuse_module,
)
from attn_np.contract._rotary import unpack_positions_pair
from attn_torch.attention.decode import Cache, begin_step, empty_cache, end_step
from attn_torch.ops import DTYPES, Array, Tape, autocast_dtype, dtype_name, memoized_check, to_dtype, upcast, use_up
from attn_torch.ops.modules import linear_arrays, linear_module, mark, read_other_form
from attn_torch.ops.specs import checked_specs, spec_of

TREE = __name__.partition(".")[0]  # the package that this file, or a copy of it, is in

C = TypeVar("C", bound=Config)
Output = Any  # y, or (y, weights) with return_weights=True


def cast_output(dtype: str, y: Array, weights: Array | None = None, return_weights: bool = False) -> Output:
    """The output rounded once to the inputs' dtype; with `return_weights`, a pair with the weights.

    Under `torch.autocast` it is rounded to the autocast dtype, as by PyTorch's own modules.
    """
    dtype = dtype if dtype == "float64" else autocast_dtype(y) or dtype
    return (to_dtype(y, dtype), to_dtype(weights, dtype)) if return_weights else to_dtype(y, dtype)


def checked_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's call that says what to write instead of arguments that it does not have, with a full signature."""
    full = spelled_out(call)
    known = tuple(full.parameters)

    def run(self: Any, *inputs: Any, **options: Any) -> Any:
        try:
            for name in options:
                if name not in known:
                    raise TypeError(name)  # `call_error` below says it in words
            return call(self, *inputs, **options)
        except TypeError:
            error = call_error(self.config, run, inputs, options)
            if error is None:
                raise
        raise error

    # A code object of its own: torch.compile counts its programs by code object, and has a limit for each.
    run.__code__ = run.__code__.replace(co_name=call.__qualname__)
    return described(call, run, full)


class Layer(torch.nn.Module, DecodingMixin[Array], Generic[C]):
    """Base of the layers: the contract's parameters as `torch.nn.Parameter`s under their names, and the call's check.

    Args:
        config: the contract's Config; or its fields by name.
        device: where the parameters live; "meta" constructs without drawing.
        dtype: float64, float32, bfloat16 or float16; float32 by default.
        projections: "modules" for a `torch.nn.Linear` in the place of each projection's parameters.

    Attributes:
        projections: those that are modules; none with arrays.
    """

    projections: tuple[Projection, ...] = ()
    Config: ClassVar[type[Any]]

    def __init_subclass__(cls) -> None:
        cls.Config = get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]
        if "forward" in vars(cls):
            cls.forward = checked_call(vars(cls)["forward"])

    def __init__(
        self,
        config: C = None,  # type: ignore[assignment]
        *positional: object,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        projections: Projections = "arrays",
        _values: dict[str, Array] | None = None,
        **fields: Any,
    ) -> None:
        super().__init__()
        config = config_of(type(self), config, positional, fields)
        self.config, torch_dtype = config, DTYPES[float_dtype_name(config.variant, dtype or "float32")]
        shapes, own, children = config.shapes(), config.own_params(), config.children()
        self.projections = check_projections(config, projections)
        modules, in_modules = {x.name for x in self.projections}, {n for x in self.projections for n in x.names()}
        for name in annotated_names(type(self)):  # those that this config leaves out are None, and biases in modules
            if name not in (own.keys() - in_modules) | modules | children.keys():
                self.register_parameter(name, None)
        arrays = {}
        for name in own:
            empty = torch.empty(shapes[name], device=device, dtype=torch_dtype) if _values is None else _values[name]
            arrays[name] = empty.to(device=device, dtype=torch_dtype)
            if name not in in_modules:
                self.register_parameter(name, torch.nn.Parameter(arrays.pop(name)))
        for projection in self.projections:
            of_module = {name: arrays.pop(name) for name in projection.names()}
            setattr(self, projection.name, linear_module(projection, of_module))
        if _values is None:
            self._draw()
        for name, child in children.items():
            configs = {f"{name}.{i}": c for i, c in enumerate(child)} if isinstance(child, list) else {name: child}
            sublayers = [
                self._child(part, under_prefix(_values, p), device, torch_dtype, projections)
                for p, part in configs.items()
            ]
            setattr(self, name, torch.nn.ModuleList(sublayers) if isinstance(child, list) else sublayers[0])

    @classmethod
    def from_params(
        cls, config: C, values: dict[str, Array], dtype: str, seed: int = 0, projections: Projections = "arrays"
    ) -> "Layer[C]":
        """A layer in evaluation mode with given parameters; dropout draws from PyTorch's own generator, not a seed."""
        return cls(config, dtype=dtype, projections=projections, _values=values).eval()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; what replaces the module of a projection is told which one, or refused."""
        for projection in self.projections:
            if projection.name == name:
                mark(projection, value, self.dtype)
        if isinstance(value, torch.nn.Module) and name in self._parameters:
            refuse_module(self.config, name, value)
        super().__setattr__(name, value)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        """Read a state whose projections have the other form, arrays or modules, as if they had this one."""
        read_other_form(projections(self.config), bool(self.projections), state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def reset_parameters(self) -> None:
        """Draw every parameter again in place, as the constructor does: after `to_empty` of a layer made on "meta"."""
        for module in self.modules():
            if isinstance(module, Layer):
                module._draw()

    @torch.no_grad()
    def _draw(self) -> None:
        """Draw the layer's own parameters, without those of its children."""
        own, fans, params = self.config.own_params(), self.config.fans(), self._own_params()
        views = {name for x in self.projections for name in x.names()}
        for name in own:
            param = params[name]
            initial_value, limit = own[name].initial_value(), fans[name] ** -0.5
            if initial_value is not None:
                param.copy_(torch.tensor(initial_value, dtype=param.dtype))
            else:  # the weight of a module is not drawn in memory's order, so that it gets the array's numbers
                drawn = torch.empty_like(param, memory_format=torch.contiguous_format) if name in views else param
                drawn = drawn.normal_() if own[name].normal else drawn.uniform_(-limit, limit)
                if drawn is not param:
                    param.copy_(drawn)

    def _child(
        self, config: Any, values: dict[str, Array] | None, device: Any, dtype: torch.dtype, projections: str
    ) -> "Layer[Any]":
        cls = getattr(import_module(f"{TREE}.{config.variant}"), config.class_name)
        projections = projections_of_child(config, projections)
        return cls(config, device=device, dtype=dtype, projections=projections, _values=values)

    def _own_params(self) -> dict[str, Array]:
        """The layer's own parameters by name, those in modules as views."""
        params: dict[str, Array] = {name: param for name, param in self._parameters.items() if param is not None}
        for projection in self.projections:
            params |= linear_arrays(projection, getattr(self, projection.name))
        return params

    @property
    def dtype(self) -> str | None:
        """Name of the parameters' dtype; None for a layer without parameters."""
        for param in self._parameters.values():  # its own first: the walk over all is slow
            if param is not None:
                return dtype_name(param)
        return next((dtype_name(p) for p in self.parameters() if p.is_floating_point()), None)

    def extra_repr(self) -> str:
        return f"{self.config}, dtype={self.dtype!r}"

    def params(self) -> dict[str, Array]:
        """Every parameter by its dotted name: the dictionary that weight files hold. Of modules, views.

        Raises:
            ValueError: the module of a projection holds more than its weight and bias, such as an adapter.
        """
        layers = [(prefix, part) for prefix, part in self.named_modules() if isinstance(part, Layer)]
        if not any(part.projections for _, part in layers):
            return dict(self.named_parameters())
        found = {f"{prefix}.{name}".lstrip("."): x for prefix, part in layers for name, x in part._own_params().items()}
        return {name: found[name] for name in self.config.params()}

    def set_params(self, values: dict[str, Array]) -> None:
        """Copy tensors into the parameters, by dotted name: the dictionary that `params` returns.

        All are checked before one is changed.

        Raises:
            ValueError: a name that is missing or unknown, another shape or dtype than the parameter's, or a layer on
                the device "meta", whose parameters hold nothing.
            TypeError: no dictionary, or a value that is no tensor.
        """
        params = self.params()
        if any(param.is_meta for param in params.values()):
            fix = "call layer.to_empty(device=...) first"
            raise ValueError(f'{self.config.variant}: expected parameters with memory, got device "meta"; {fix}')
        values = checked_params(self.config.variant, params, values, checked_specs, dtype_name)
        with torch.no_grad():
            for name, param in params.items():
                param.copy_(values[name])

    def check(self, **arguments: Any) -> dict[str, int]:
        """The size of every axis letter of a call; arguments that cannot be right are refused."""
        config, dtype = self.config, self.dtype
        if dtype not in (None, "float32") and dtype == autocast_dtype(next(self.parameters())):
            dtype = "float32"
        if "positions" in arguments:
            arguments = unpack_positions_pair(config.variant, arguments)
        return memoized_check(config, dtype, checked_specs(config.variant, **arguments))

    def _empty_cache(self, batch_size: int, max_length: int, dtype: Any, sizes: dict[str, int]) -> Any:
        torch_dtype = DTYPES[float_dtype_name(self.config.variant, dtype or self.dtype or "float32")]
        device = next((p.device for p in self.parameters()), None)
        like = torch.zeros((), dtype=torch_dtype, device=device)
        return empty_cache(self.config, batch_size, max_length, sizes, like, upcast(like) if dtype is None else like)

    def _step(
        self, query: Array, cache: Any, valid: Array | None, tape: Tape, arguments: dict[str, Array]
    ) -> tuple[Array, Any]:
        config, contract_arguments = self.config, arguments_to_check(self.config, cache, Cache, **arguments)
        sizes = self.check(query=query, **contract_arguments)
        cache_specs = {name: spec_of(config.variant, f"the cache's {name}", x) for name, x in cache.arrays.items()}
        valid_spec = spec_of(config.variant, "valid", valid)
        check_step(config, self.training, sizes, valid_spec, cache_specs, cache.max_length)
        step = begin_step(config, cache, query, valid, sizes)
        y, cache_after = end_step(step, self(query, step=step, tape=tape, **arguments))
        if not step.reads:
            use_up(cache)
        return y, cache_after

    def draw_keep(self, keep: Array | None, axes: str, sizes: dict[str, int], like: Array) -> Array | None:
        """The keep-mask of a call: the caller's, or a random one in training with dropout, else None."""
        rate = self.config.dropout  # type: ignore[attr-defined]
        if keep is not None or not self.training or rate == 0:
            return keep
        shape = shape_of(axes, sizes)
        return torch.rand(shape, device=like.device, dtype=torch.float32) >= rate
