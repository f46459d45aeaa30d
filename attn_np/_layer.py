"""The base of NumPy's layers: parameters, checks of a call, inputs and outputs, and decoding."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar, get_args

import numpy as np

from attn_np._decode import Cache, closed, empty_cache, opened
from attn_np._masks import hide
from attn_np._ops import DTYPES, Array, Tape, dtype_name, narrow, record, where, widen
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


class Layer(Generic[C]):
    """Base of the layers: the contract's parameters as attributes, the call's check, training and evaluation mode.

    Args:
        config: the contract's Config.
        rng: a NumPy generator, or a seed for one, that draws the parameters and, in training, dropout.
        dtype: float64, float32, bfloat16 or float16.
    """

    Config: ClassVar[type[Any]]

    def __init_subclass__(cls) -> None:
        cls.Config = get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]

    def __init__(
        self,
        config: C,
        *,
        rng: np.random.Generator | int | None = None,
        dtype: str = "float32",
        _values: dict[str, Array] | None = None,
    ) -> None:
        check_config(type(self), config)
        self.config, self.training, self.dtype = config, True, check_dtype(config.variant, dtype)
        self.rng = np.random.default_rng(rng)
        shapes, fans, own, children = config.shapes(), config.fans(), config.own_params(), config.children()
        for name in declared(type(self)):
            if name not in own and name not in children:
                setattr(self, name, None)
        for name in own:
            limit, start = fans[name] ** -0.5, own[name].first()
            if _values is not None:
                drawn = _values[name]
            elif start is not None:
                drawn = np.full(shapes[name], start)
            else:
                drawn = self.rng.uniform(-limit, limit, shapes[name])
            setattr(self, name, drawn.astype(DTYPES[self.dtype]))
        for name, child in children.items():
            parts = {f"{name}.{i}": c for i, c in enumerate(child)} if isinstance(child, list) else {name: child}
            built = [self._child(part, within(_values, prefix)) for prefix, part in parts.items()]
            setattr(self, name, built if isinstance(child, list) else built[0])

    def _child(self, config: Any, values: dict[str, Array] | None) -> "Layer[Any]":
        cls = getattr(import_module(f"{__package__}.{config.variant}"), config.layer)
        return cls(config, rng=self.rng, dtype=self.dtype, _values=values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config}, dtype={self.dtype!r})"

    def walk(self) -> Iterator[tuple[str, "Layer[Any]"]]:
        """The layer itself and every layer inside it, with the prefix of its parameters."""
        yield "", self
        for name, child in self.config.children().items():
            parts = getattr(self, name)
            named = [(f"{name}.{i}", p) for i, p in enumerate(parts)] if isinstance(child, list) else [(name, parts)]
            for prefix, part in named:
                yield from ((f"{prefix}.{inner}".rstrip("."), layer) for inner, layer in part.walk())

    def params(self) -> dict[str, Array]:
        """Every parameter by its dotted name: the dictionary that weight files hold."""
        owners = dict(self.walk())
        return {
            name: getattr(owners[name.rpartition(".")[0]], name.rpartition(".")[2]) for name in self.config.params()
        }

    def set_params(self, values: dict[str, Array]) -> None:
        """Put arrays in the place of the parameters, by dotted name."""
        owners = dict(self.walk())
        for name in self.config.params():
            setattr(owners[name.rpartition(".")[0]], name.rpartition(".")[2], values[name])

    def train(self) -> "Layer[C]":
        for _, layer in self.walk():
            layer.training = True
        return self

    def eval(self) -> "Layer[C]":
        for _, layer in self.walk():
            layer.training = False
        return self

    def check(self, **given: Array | None) -> dict[str, int]:
        """Refuse arguments that cannot be right; sizes of all axis letters."""
        config = self.config

        def check() -> dict[str, int]:
            return config.check(self.dtype if config.params() else None, **specs(config.variant, **given))

        return config.remembered(signature(self.dtype, given), check)

    def init_cache(self, batch_size: int, max_length: int, *, dtype: str | None = None, **sizes: int) -> Any:
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

        kind = check_dtype(self.config.variant, dtype or self.dtype)
        like = np.zeros((), DTYPES[kind])
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
        config, dropping = self.config, self.training

        def check() -> dict[str, int]:
            sizes, v = self.check(query=query, **given), config.variant
            held = {name: spec_of(v, f"the cache's {name}", x) for name, x in cache.arrays.items()}
            check_step(config, dropping, sizes, spec_of(v, "valid", valid), held, cache.max_length)
            return sizes

        new = {"query": query, **given, "valid": valid}
        words = "step", self.dtype, dropping, cache.max_length
        config.remembered(signature(words, new, cache.arrays), check)
        past = opened(self.config, cache, query, valid)
        found = closed(past, self(query, past=past, tape=tape, **arguments))  # type: ignore[operator]
        object.__setattr__(cache, "spent", True)
        return found

    def draw_keep(self, keep: Array | None, shape: tuple[int, ...], like: Array) -> Array | None:
        """The keep-mask of this call: the one given, in training a random one, else None."""
        rate = self.config.dropout  # type: ignore[attr-defined]
        if keep is not None or not self.training or rate == 0:
            return keep
        return self.rng.random(shape) >= rate


def specs(variant: str, **given: Array | None) -> dict[str, tuple[tuple[int, ...], str] | None]:
    """Shape and dtype name of every argument, as the contract's checks take them; None where it was left out."""
    return {name: spec_of(variant, name, x) for name, x in given.items()}


def signature(words: Any, *given: dict[str, Array | None]) -> Any:
    """What a check sees of a call, as a key: whose check, some words, then the type, shape and dtype of every array.

    None where it must look itself.
    """
    try:
        return (
            __name__,
            words,
            *[(n, type(x), x.shape, x.dtype) for some in given for n, x in some.items() if x is not None],
        )
    except AttributeError:
        return None


def spec_of(variant: str, name: str, x: Any) -> tuple[tuple[int, ...], str] | None:
    if x is None:
        return None
    if not hasattr(x, "__array_function__"):
        raise TypeError(f"{variant}: expected {name} as a NumPy array, got {type(x).__name__}; convert it")
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            f"{variant}: expected {name} as a NumPy array, got {type(x).__name__}; give its data, and say by mask= "
            "what may be attended to"
        )
    return tuple(x.shape), dtype_name(x)
