"""The base of NumPy's layers: parameters, checks of a call, outputs, and decoding."""

from collections.abc import Callable, Iterator
from functools import wraps
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar, get_args

import numpy as np

from attn_np.attention.decode import Cache, begin_step, empty_cache, end_step
from attn_np.contract import Config, annotated_names, float_dtype_name, under_prefix
from attn_np.contract._base import shape_of
from attn_np.contract._call import call_error, config_of, described, spelled_out
from attn_np.contract._decode import DecodingMixin, arguments_to_check, check_step
from attn_np.contract._params import checked_params
from attn_np.contract._projections import Projections, refuse_module, refuse_modules
from attn_np.contract._rotary import unpack_positions_pair
from attn_np.ops import DTYPES, Array, Tape, dtype_name, memoized_check, to_dtype, upcast, use_up
from attn_np.ops.specs import checked_specs, spec_of

TREE = __name__.partition(".")[0]  # the package that this file, or a copy of it, is in

C = TypeVar("C", bound=Config)
Output = Any  # y, or (y, weights) with return_weights=True


def cast_output(dtype: str, y: Array, weights: Array | None = None, return_weights: bool = False) -> Output:
    """The output rounded once to the inputs' dtype; with `return_weights`, a pair with the weights."""
    return (to_dtype(y, dtype), to_dtype(weights, dtype)) if return_weights else to_dtype(y, dtype)


def checked_vjp(vjp: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's vjp that refuses what is not the tape of a call, and gradients that are not arrays.

    Raises:
        TypeError: no tape, or no arrays.
        ValueError: a tape without what the pass reads, or with arrays of other sizes.
    """

    @wraps(vjp)
    def run(self: Any, tape: Any, *dys: Any, **named: Any) -> Any:
        variant = self.config.variant
        fix = "call y, tape = trace(layer, ...) first and pass the tape as it is"
        if not hasattr(tape, "get"):
            raise TypeError(f"{variant}: expected the tape of a call in vjp, got {type(tape).__name__}; {fix}")
        if (dys[0] if dys else named.get("dy")) is None:
            raise TypeError(f"{variant}: expected the gradient of y in vjp, got none; pass dL/dy")
        checked_specs(variant, **{f"gradient {i}": x for i, x in enumerate(dys)}, **named)
        try:
            return vjp(self, tape, *dys, **named)
        except KeyError as missing:
            got = f"one without {missing}"
            raise ValueError(f"{variant}: expected the tape of a call in vjp, got {got}; {fix}") from missing
        except ValueError as wrong:
            if ": expected " in str(wrong):
                raise
            got = f"one whose arrays do not fit ({wrong})"
            raise ValueError(f"{variant}: expected the tape of this layer's call in vjp, got {got}; {fix}") from wrong

    return run


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

    return described(call, run, full)


class Layer(DecodingMixin[Array], Generic[C]):
    """Base of the layers: the contract's parameters as attributes, the call's check, training and evaluation mode.

    Args:
        config: the contract's Config; or its fields by name.
        rng: a NumPy generator, or a seed for one, that draws the parameters and, in training, dropout.
        dtype: float64, float32, bfloat16 or float16.
        projections: "arrays"; the other packages have modules, too.
    """

    Config: ClassVar[type[Any]]

    def __init_subclass__(cls) -> None:
        cls.Config = get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]
        cls.vjp = checked_vjp(cls.vjp)  # every variant defines one
        if "__call__" in vars(cls):
            cls.__call__ = checked_call(vars(cls)["__call__"])

    def __init__(
        self,
        config: C = None,  # type: ignore[assignment]
        *positional: object,
        rng: np.random.Generator | int | None = None,
        dtype: str = "float32",
        projections: Projections = "arrays",
        _values: dict[str, Array] | None = None,
        **fields: Any,
    ) -> None:
        config = config_of(type(self), config, positional, fields)
        refuse_modules(config, projections)
        self.config, self.training, self.dtype = config, True, float_dtype_name(config.variant, dtype)
        self.rng = np.random.default_rng(rng)
        shapes, fans, own, children = config.shapes(), config.fans(), config.own_params(), config.children()
        self.has_params = bool(shapes)
        for name in annotated_names(type(self)):  # those that this config leaves out are None
            if name not in own and name not in children:
                setattr(self, name, None)
        for name in own:
            limit, initial_value = fans[name] ** -0.5, own[name].initial_value()
            if _values is not None:
                value = _values[name]
            elif initial_value is not None:
                value = np.full(shapes[name], initial_value)
            elif own[name].normal:
                value = self.rng.normal(size=shapes[name])
            else:
                value = self.rng.uniform(-limit, limit, shapes[name])
            setattr(self, name, value.astype(DTYPES[self.dtype]))
        for name, child in children.items():
            configs = {f"{name}.{i}": c for i, c in enumerate(child)} if isinstance(child, list) else {name: child}
            sublayers = [self._child(part, under_prefix(_values, prefix)) for prefix, part in configs.items()]
            setattr(self, name, sublayers if isinstance(child, list) else sublayers[0])

    def _child(self, config: Any, values: dict[str, Array] | None) -> "Layer[Any]":
        cls = getattr(import_module(f"{TREE}.{config.variant}"), config.class_name)
        return cls(config, rng=self.rng, dtype=self.dtype, _values=values)

    @classmethod
    def from_params(
        cls, config: C, values: dict[str, Array], dtype: str, seed: int = 0, projections: Projections = "arrays"
    ) -> "Layer[C]":
        """A layer in evaluation mode with given parameters; the seed is that of dropout, should it be trained."""
        return cls(config, rng=seed, dtype=dtype, projections=projections, _values=values).eval()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; a module of another framework is refused in the place of a parameter."""
        if callable(value) and not isinstance(value, Layer) and name in annotated_names(type(self)):
            refuse_module(self.config, name, value, "layers of attn_torch and attn_jax take it")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config}, dtype={self.dtype!r})"

    def walk(self) -> Iterator[tuple[str, "Layer[Any]"]]:
        """The layer itself and every layer inside it, with the prefix of its parameters."""
        yield "", self
        for name, child in self.config.children().items():
            children = getattr(self, name)
            named = (
                [(f"{name}.{i}", p) for i, p in enumerate(children)] if isinstance(child, list) else [(name, children)]
            )
            for prefix, part in named:
                yield from ((f"{prefix}.{inner}".rstrip("."), layer) for inner, layer in part.walk())

    def params(self) -> dict[str, Array]:
        """Every parameter by its dotted name: the dictionary that weight files hold."""
        owners = dict(self.walk())
        return {
            name: getattr(owners[name.rpartition(".")[0]], name.rpartition(".")[2]) for name in self.config.params()
        }

    def set_params(self, values: dict[str, Array]) -> None:
        """Replace the parameters by arrays, by dotted name: the dictionary that `params` returns.

        All are checked before one is replaced.

        Raises:
            ValueError: a name that is missing or unknown, or another shape or dtype than the parameter's.
            TypeError: no dictionary, or a value that is no array.
        """
        params, owners = self.params(), dict(self.walk())
        for name, x in checked_params(self.config.variant, params, values, checked_specs, dtype_name).items():
            setattr(owners[name.rpartition(".")[0]], name.rpartition(".")[2], x)

    def train(self) -> "Layer[C]":
        for _, layer in self.walk():
            layer.training = True
        return self

    def eval(self) -> "Layer[C]":
        for _, layer in self.walk():
            layer.training = False
        return self

    def check(self, **arguments: Any) -> dict[str, int]:
        """The size of every axis letter of a call; arguments that cannot be right are refused."""
        config, dtype = self.config, self.dtype if self.has_params else None
        if "positions" in arguments:
            arguments = unpack_positions_pair(config.variant, arguments)
        return memoized_check(config, dtype, checked_specs(config.variant, **arguments))

    def _empty_cache(self, batch_size: int, max_length: int, dtype: str | None, sizes: dict[str, int]) -> Any:
        entry_dtype = float_dtype_name(self.config.variant, dtype or self.dtype)
        like = np.zeros((), DTYPES[entry_dtype])
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
        return self.rng.random(shape) >= rate
