"""Modules of Flax NNX, Flax Linen and Equinox: their weights by name, and a call with others in their place."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from parity_tests.ports.names import second_run
from parity_tests.ports.watch import written

Called = Callable[[Any], Any]


@dataclass(frozen=True)
class JaxModule:
    """A module whose weights are given anew in every call.

    Attributes:
        weights: its own, by name.
        call: from weights, a function of the module and the patterns of taps= to its result and what it recorded, by
            name.
        constants: arrays of floats that are no weights, by name.
    """

    weights: dict[str, Any]
    call: Callable[[Mapping[str, Any], Called, Iterable[str]], tuple[Any, dict[str, Any]]]
    constants: dict[str, Any]

    def rounded(self) -> list[str]:
        """The constants of a narrower type than float64 that were rounded to it, in words."""
        narrow = {name: x for name, x in self.constants.items() if x.dtype != jnp.float64}
        return [f"{name} of {x.dtype}" for name, x in narrow.items() if not written(np.asarray(x))]


def jax_module(candidate: Any) -> JaxModule | None:
    """The module of a candidate; None for a function."""
    if isinstance(candidate, nnx.Module):
        return nnx_module(candidate)
    if isinstance(candidate, tuple):
        return linen_module(*candidate)
    if any(base.__module__.partition(".")[0] == "equinox" for base in type(candidate).__mro__):
        return equinox_module(candidate)
    return None


def floats(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {n: x for n, x in arrays.items() if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)}


def dotted(path: Iterable[Any]) -> str:
    return ".".join(map(str, path))


def nnx_module(module: nnx.Module) -> JaxModule:
    """A Flax NNX module; what it sows is what it records."""
    turns = count()

    def call(held: Mapping[str, Any], function: Called, taps: Iterable[str]) -> tuple[Any, dict[str, Any]]:
        graph, state, counts, rest = nnx.split(module, nnx.Param, nnx.RngCount, ...)
        turn = next(turns)
        counts = jax.tree.map(lambda x: x + turn, counts)  # each run draws anew, as a module of torch does
        flat = [(path, x.replace(held[dotted(path)])) for path, x in nnx.to_flat_state(state)]
        copy = nnx.merge(graph, nnx.from_flat_state(flat), counts, rest, copy=True)
        # Whatever it sows: outside of capture Flax warns of that.
        result, sown = nnx.capture(function, nnx.Intermediate)(copy)
        seen = {dotted(path): x.get_value() for path, x in nnx.to_flat_state(sown)}
        fix = "call self.sow(nnx.Intermediate, name, x) where it is computed"
        return result, last_of(seen, taps, f"the module to sow an intermediate named like {{}}, got {{}}; {fix}")

    _, weights, rest = nnx.split(module, nnx.Param, ...)
    others = {dotted(path): x.get_value() for path, x in nnx.to_flat_state(rest) if isinstance(x, nnx.Variable)}
    return JaxModule({dotted(path): x[...] for path, x in nnx.to_flat_state(weights)}, call, floats(others))


def linen_module(module: linen.Module, variables: Mapping[str, Any]) -> JaxModule:
    """A Linen module with its variables; it records what it sows and what its submodules return."""
    flat: Any = flatten_dict(variables)
    paths = {dotted(path[1:]): path for path in flat if path[0] == "params"}

    def call(held: Mapping[str, Any], function: Called, taps: Iterable[str]) -> tuple[Any, dict[str, Any]]:
        own = unflatten_dict(flat | {path: held[name] for name, path in paths.items()})
        if not taps:
            return module.apply(own, method=function), {}
        result, state = module.apply(own, method=function, mutable=["intermediates"], capture_intermediates=True)
        recorded: Any = flatten_dict(state["intermediates"])
        seen = {dotted(part for part in path if part != "__call__"): x for path, x in recorded.items()}
        fix = "call self.sow('intermediates', name, x) where it is computed"
        return result, last_of(seen, taps, f"a submodule or sown intermediate named like {{}}, got {{}}; {fix}")

    others = {dotted(path): x for path, x in flat.items() if path[0] != "params"}
    return JaxModule({name: jnp.asarray(flat[path]) for name, path in paths.items()}, call, floats(others))


def equinox_module(module: Any) -> JaxModule:
    """An Equinox module: every array of floats in it is a weight."""
    flat, tree = jax.tree_util.tree_flatten_with_path(module)
    names = {i: jax.tree_util.keystr(path, simple=True, separator=".") for i, (path, _) in enumerate(flat)}
    leaves = [leaf for _, leaf in flat]
    weights = floats({names[i]: leaf for i, leaf in enumerate(leaves)})

    def call(held: Mapping[str, Any], function: Called, taps: Iterable[str]) -> tuple[Any, dict[str, Any]]:
        if taps:
            raise ValueError(
                "assert_parity: expected no taps= of an Equinox module, whose submodules do not tell what they return, "
                "got some; return intermediates in a dictionary, by call="
            )
        return function(jax.tree.unflatten(tree, [held.get(names[i], leaf) for i, leaf in enumerate(leaves)])), {}

    return JaxModule({name: jnp.asarray(x) for name, x in weights.items()}, call, {})


def last_of(seen: dict[str, Any], taps: Iterable[str], expected: str) -> dict[str, Any]:
    """What was recorded, of a name that holds several the last.

    Raises:
        ValueError: a tap finds none, or one that was recorded twice.
    """
    for pattern in taps:
        found = [name for name in seen if re.fullmatch(pattern, name)]
        if not found:
            raise ValueError(f"assert_parity: expected {expected.format(repr(pattern), ', '.join(seen) or 'none')}")
        for name in found:
            if isinstance(seen[name], tuple) and len(seen[name]) > 1:
                raise second_run(name)
    return {name: x[-1] if isinstance(x, tuple) else x for name, x in seen.items()}
