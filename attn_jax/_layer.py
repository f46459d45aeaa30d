"""The base of JAX's layers: parameters, checks of a call, inputs and outputs, and decoding."""

from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer

from attn_jax._decode import Cache, closed, empty_cache, opened
from attn_jax._masks import hide
from attn_jax._ops import DTYPES, Array, Tape, dtype_name, narrow, record, where, widen
from attn_np.contract import Config, check_config, check_dtype, declared, within
from attn_np.contract._decode import check_given, check_step

__all__ = [
    "Layer",
    "Output",
    "inputs",
    "output",
    "signature",
    "specs",
]

C = TypeVar("C", bound=Config)
Output = Any  # y, or (y, weights) with return_weights=True


def inputs(
    tape: Tape,
    axes: str,
    allowed: Array | None,
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    *,
    past: Any = None,
) -> tuple[Array, Array, Array]:
    """Widen the inputs, let one stand in for those left out; keys nobody sees and queries that see none become 0.

    The tape gets what was given: `x` alone for self-attention, else `query`, `key` and `value`; and what goes on. In a
    step of decoding new positions that are not real become 0.
    """
    if key is None and value is None:
        query = key = value = record(tape, x=widen(query))
    else:
        query, key, value = record(tape, query=widen(query), key=widen(key), value=widen(value))
        key = query if key is None else key
        value = key if value is None else value
    if past is None:
        query = hide(f"{axes}->btd", allowed, query)
        key, value = hide(f"{axes}->bsi", allowed, key), hide(f"{axes}->bsj", allowed, value)
    elif past.real is not None:
        given: tuple[Any, ...] = (query, key, value)
        query, key, value = (where(past.real[:, :, None], x, 0.0) for x in given)
    allowed = record(tape, allowed=allowed)
    return record(tape, seen_query=query, seen_key=key, seen_value=value)


def output(dtype: str, y: Array, weights: Array | None, return_weights: bool) -> Output:
    """Round the results once to the inputs' dtype; y alone, or with the weights where they are asked for."""
    return (narrow(y, dtype), narrow(weights, dtype)) if return_weights else narrow(y, dtype)


class Layer(nnx.Module, Generic[C]):
    """Base of the layers: the contract's parameters as `nnx.Param`s under their names, and the call's check.

    Args:
        config: the contract's Config.
        rngs: draws the parameters (stream `params`) and, in training, dropout (stream `dropout`).
        dtype: of inputs and outputs; `param_dtype` by default.
        param_dtype: of the parameters; float32 by default.
    """

    Config: ClassVar[type[Any]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.Config = get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]

    def __init__(
        self,
        config: C,
        *,
        rngs: nnx.Rngs,
        dtype: Any = None,
        param_dtype: Any = "float32",
        _values: dict[str, Array] | None = None,
    ) -> None:
        check_config(type(self), config)
        kind = DTYPES[check_dtype_on(config.variant, param_dtype)]
        self.config, self.deterministic = config, False
        self.dtype = check_dtype_on(config.variant, param_dtype if dtype is None else dtype)
        if kind == jnp.float64 and self.dtype != "float64":
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
        for name in declared(type(self)):
            if name not in own and name not in children:
                setattr(self, name, None)
        for name in own:
            limit, start = fans[name] ** -0.5, own[name].first()
            if _values is not None:
                value = jnp.asarray(_values[name], kind)
            elif start is not None:
                value = jnp.full(shapes[name], np.array(start), kind)
            else:
                value = jax.random.uniform(rngs.params(), shapes[name], kind, -limit, limit)
            setattr(self, name, nnx.Param(value))
        for name, child in children.items():
            parts = {f"{name}.{i}": c for i, c in enumerate(child)} if isinstance(child, list) else {name: child}
            built = [self._child(part, within(_values, p), rngs, dtype, param_dtype) for p, part in parts.items()]
            setattr(self, name, nnx.List(built) if isinstance(child, list) else built[0])

    def _child(self, config: Any, values: Any, rngs: nnx.Rngs, dtype: Any, param_dtype: Any) -> "Layer[Any]":
        cls = getattr(import_module(f"{__package__}.{config.variant}"), config.layer)
        return cls(config, rngs=rngs, dtype=dtype, param_dtype=param_dtype, _values=values)

    def params(self) -> dict[str, Array]:
        """Every parameter by its dotted name: the dictionary that weight files hold."""
        flat = nnx.to_flat_state(nnx.state(self, nnx.Param))
        found = {".".join(map(str, path)): leaf.get_value() for path, leaf in flat}
        return {name: found[name] for name in self.config.params()}

    def set_params(self, values: dict[str, Array]) -> None:
        """Put arrays in the place of the parameters, by dotted name, on the devices where those are."""
        flat = nnx.to_flat_state(nnx.state(self, nnx.Param))
        placed = [
            (path, leaf.replace(jax.device_put(jnp.array(values[".".join(map(str, path))]), leaf.get_value().sharding)))
            for path, leaf in flat
        ]
        nnx.update(self, nnx.from_flat_state(placed))

    def check(self, **given: Array | None) -> dict[str, int]:
        """Refuse arguments that cannot be right; sizes of all axis letters."""
        config = self.config

        def check() -> dict[str, int]:
            if config.params():
                return config.check(self.dtype, **{n: spec_of(config.variant, n, x) for n, x in given.items()})
            return config.check(None, **specs(config.variant, **given))

        return config.remembered(signature(self.dtype, given), check)

    def init_cache(self, batch_size: int, max_length: int, *, dtype: Any = None, **sizes: int) -> Any:
        """An empty cache to decode with, by `step`.

        Args:
            batch_size: how many sequences.
            max_length: how many positions each may have.
            dtype: that keys, values and states are kept in; by default the layer's, but states, whose roundings would
                add up from step to step, in float32 in the place of 16 bits.
            sizes: of axis letters that the config leaves open, such as k=64, v=64 for `dot_product`.

        Raises:
            ValueError: a layer that does not decode, or sizes below 1.
        """

        kind = check_dtype_on(self.config.variant, dtype or self.dtype)
        like = jnp.zeros((), DTYPES[kind])
        return empty_cache(self.config, batch_size, max_length, sizes, like, widen(like) if dtype is None else like)

    def step(
        self, query: Array, cache: Any, *, valid: Array | None = None, tape: Tape = None, **arguments: Array
    ) -> tuple[Array, Any]:
        """Go on with sequences: the outputs of new positions, and the cache with them in it.

        Positions that are not real, such as padding on either side, take no place: every sequence goes on from its own
        length. Their outputs say nothing. The cache that goes in is used up; `cache.copy()` before keeps it.

        Args:
            query: `b t d`, the new positions, one or many.
            cache: from `init_cache` or the step before.
            valid: `b t`, True = a real position; all of them by default.
            tape: gets every named intermediate.
            arguments: what else the layer takes of new positions. No mask, bias or keep: their keys would be slots of
                the cache; no `return_weights` either: the tape has them.

        Raises:
            TypeError: a cache of another package, or none.
            ValueError: a cache of another layer, or no room in it, where the lengths are known. Under jit and compile
                nothing is written then, the outputs without room are NaN and `cache.overrun` says so.
        """

        given = check_given(self.config, cache, Cache, **arguments)
        config, dropping = self.config, not self.deterministic

        def check() -> dict[str, int]:
            sizes, v = self.check(query=query, **given), config.variant
            held = {name: spec_of(v, f"the cache's {name}", x) for name, x in cache.arrays.items()}
            check_step(config, dropping, sizes, spec_of(v, "valid", valid), held, cache.max_length)
            return sizes

        new = {"query": query, **given, "valid": valid}
        words = "step", self.dtype, dropping, cache.max_length
        config.remembered(signature(words, new, cache.arrays), check)
        past = opened(self.config, cache, query, valid)
        return closed(past, self(query, past=past, tape=tape, **arguments))

    def draw_keep(self, keep: Array | None, shape: tuple[int, ...], like: Array) -> Array | None:
        """The keep-mask of this call: the one given, in training a random one, else None."""
        rate = self.config.dropout  # type: ignore[attr-defined]
        if keep is not None or self.deterministic or rate == 0:
            return keep
        return jax.random.bernoulli(self.rngs(), 1 - rate, shape)


def check_dtype_on(variant: str, dtype: Any) -> str:
    """The name of a float dtype that JAX will really use.

    Raises:
        ValueError: not a float type, or float64 while JAX has it switched off.
    """
    name = check_dtype(variant, dtype)
    if name == "float64" and not jax.config.read("jax_enable_x64"):
        raise ValueError(
            f"{variant}: expected JAX to have float64 switched on, got jax_enable_x64=False; "
            'call jax.config.update("jax_enable_x64", True) first, or set dtype="float32"'
        )
    return name


def specs(variant: str, **given: Array | None) -> dict[str, tuple[tuple[int, ...], str] | None]:
    """Shape and dtype name of every argument, as the contract's checks take them; None where it was left out.

    Where no parameters say which dtype is meant, NumPy's float64 is refused while JAX would make float32 of it.
    """
    if any(isinstance(x, np.ndarray) and dtype_name(x) == "float64" for x in given.values()):
        check_dtype_on(variant, "float64")
    return {name: spec_of(variant, name, x) for name, x in given.items()}


def signature(words: Any, *given: dict[str, Array | None]) -> Any:
    """What a check sees of a call, as a key: whose check, some words, then the type, shape and dtype of every array.

    None where it must look itself.
    """
    every = [(n, x) for some in given for n, x in some.items() if x is not None]
    # What is traced is looked at once anyway. NumPy's float64 passes or not as JAX is set.
    if not all(isinstance(x, jax.Array) and not isinstance(x, Tracer) for _, x in every):
        return None
    return __name__, words, *[(n, type(x), x.shape, x.dtype) for n, x in every]


def spec_of(variant: str, name: str, x: Any) -> tuple[tuple[int, ...], str] | None:
    if x is None:
        return None
    if not isinstance(x, jax.Array | np.ndarray):
        raise TypeError(f"{variant}: expected {name} as a jax.Array, got {type(x).__name__}; convert it")
    return tuple(x.shape), dtype_name(x)
