"""The base of PyTorch's layers: parameters, checks of a call, inputs and outputs, and decoding."""

from importlib import import_module
from typing import Any, ClassVar, Generic, TypeVar, get_args

import torch
from torch import Tensor

from attn_np.contract import Config, check_config, check_dtype, declared, within
from attn_np.contract._decode import check_given, check_step
from attn_torch._decode import Cache, closed, empty_cache, opened
from attn_torch._masks import hide
from attn_torch._ops import DTYPES, Array, Tape, dtype_name, narrow, record, where, widen

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


class Layer(torch.nn.Module, Generic[C]):
    """Base of the layers: the contract's parameters as `torch.nn.Parameter`s under their names, and the call's check.

    Args:
        config: the contract's Config.
        device: where the parameters live; "meta" constructs without drawing.
        dtype: float64, float32, bfloat16 or float16; float32 by default.
    """

    Config: ClassVar[type[Any]]

    def __init_subclass__(cls) -> None:
        cls.Config = get_args(cls.__orig_bases__[0])[0]  # type: ignore[attr-defined]

    def __init__(
        self,
        config: C,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        _values: dict[str, Array] | None = None,
    ) -> None:
        super().__init__()
        check_config(type(self), config)
        self.config, kind = config, DTYPES[check_dtype(config.variant, dtype or "float32")]
        shapes, fans, own, children = config.shapes(), config.fans(), config.own_params(), config.children()
        for name in declared(type(self)):
            if name not in own and name not in children:
                self.register_parameter(name, None)
        for name in own:
            limit, start = fans[name] ** -0.5, own[name].first()
            if _values is not None:
                value = _values[name].to(device=device, dtype=kind)
            elif start is not None:
                value = torch.tensor(start, device=device, dtype=kind).expand(shapes[name]).clone()
            else:
                value = torch.empty(shapes[name], device=device, dtype=kind)
                torch.nn.init.uniform_(value, -limit, limit)
            self.register_parameter(name, torch.nn.Parameter(value))
        for name, child in children.items():
            parts = {f"{name}.{i}": c for i, c in enumerate(child)} if isinstance(child, list) else {name: child}
            built = [self._child(part, within(_values, p), device, kind) for p, part in parts.items()]
            setattr(self, name, torch.nn.ModuleList(built) if isinstance(child, list) else built[0])

    def _child(self, config: Any, values: dict[str, Array] | None, device: Any, dtype: torch.dtype) -> "Layer[Any]":
        cls = getattr(import_module(f"{__package__}.{config.variant}"), config.layer)
        return cls(config, device=device, dtype=dtype, _values=values)

    @property
    def dtype(self) -> str | None:
        """Name of the parameters' dtype; None for a layer without parameters."""
        own = next((p for p in self._parameters.values() if p is not None), None)  # faster than the walk over all
        return next((dtype_name(p) for p in self.parameters()), None) if own is None else dtype_name(own)

    def extra_repr(self) -> str:
        return f"{self.config}, dtype={self.dtype!r}"

    def params(self) -> dict[str, Array]:
        """Every parameter by its dotted name: the dictionary that weight files hold."""
        return dict(self.named_parameters())

    def set_params(self, values: dict[str, Array]) -> None:
        """Copy tensors into the parameters, by dotted name.

        Raises:
            ValueError: a layer on the device "meta", whose parameters hold nothing.
        """
        found = self.params()
        if any(param.is_meta for param in found.values()):
            todo = "call layer.to_empty(device=...) first"
            raise ValueError(f'{self.config.variant}: expected parameters with memory, got device "meta"; {todo}')
        with torch.no_grad():
            for name, param in found.items():
                param.copy_(values[name])

    def check(self, **given: Array | None) -> dict[str, int]:
        """Refuse arguments that cannot be right; sizes of all axis letters."""
        config, dtype = self.config, self.dtype
        call = signature(dtype, given)
        return config.remembered(call, lambda: config.check(dtype, **specs(config.variant, **given)))

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

        kind = DTYPES[check_dtype(self.config.variant, dtype or self.dtype or "float32")]
        device = next((p.device for p in self.parameters()), None)
        like = torch.zeros((), dtype=kind, device=device)
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
        found = closed(past, self(query, past=past, tape=tape, **arguments))
        if not torch.compiler.is_compiling():
            object.__setattr__(cache, "spent", True)
        return found

    def draw_keep(self, keep: Array | None, shape: tuple[int, ...], like: Array) -> Array | None:
        """The keep-mask of this call: the one given, in training a random one, else None."""
        rate = self.config.dropout  # type: ignore[attr-defined]
        if keep is not None or not self.training or rate == 0:
            return keep
        return torch.rand(shape, device=like.device, dtype=torch.float32) >= rate


def specs(variant: str, **given: Array | None) -> dict[str, tuple[tuple[int, ...], str] | None]:
    """Shape and dtype name of every argument, as the contract's checks take them; None where it was left out."""
    return {name: spec_of(variant, name, x) for name, x in given.items()}


def signature(words: Any, *given: dict[str, Array | None]) -> Any:
    """What a check sees of a call, as a key: whose check, some words, then the type, shape and dtype of every array.

    None where it must look itself.
    """
    if torch.compiler.is_compiling():
        return None
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
    if not isinstance(x, Tensor):
        raise TypeError(f"{variant}: expected {name} as a torch.Tensor, got {type(x).__name__}; convert it")
    return tuple(x.shape), dtype_name(x)
