"""JAX and Flax: interceptors around every submodule, and float64 wherever code asks for a smaller type."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.core import Tracer
from jax.extend.core import Primitive

from parity_tests.bounds.error_array import widened
from parity_tests.ports.modules.known import attention_of
from parity_tests.ports.modules.match import numbered
from parity_tests.ports.modules.recordings import Arrays, Call, Run, call_of, flat, mapped
from parity_tests.ports.modules.sides import (
    Caller,
    Mode,
    Side,
    Turns,
    cotangent,
    dtype_of,
    function_name,
    gradients_of_whole,
    is_float,
    moved,
    named,
    parameters_of,
    place_names,
    renamed_place,
    renamed_places,
    rounded,
    split,
    with_whole,
)

SMALL = tuple(map(jnp.dtype, ("float32", "float16", "bfloat16")))


@contextmanager
def exactly() -> Iterator[None]:
    """JAX with float64 wherever code asks for a smaller type.

    Every operation gets its numbers and its types in float64. Without compilation every operation is asked for by
    itself, and nothing of this run is kept for another.
    """
    bind = Primitive.bind

    def wide(x: Any) -> Any:
        small = getattr(x, "dtype", None) in SMALL
        return jax.lax.convert_element_type(x, jnp.float64) if small else x

    def in_float64(self: Primitive, *args: Any, **params: Any) -> Any:
        if self.name == "bitcast_convert_type":
            return bind(self, *args, **params)
        params = {n: jnp.dtype("float64") if is_type(x) and x in SMALL else x for n, x in params.items()}
        return bind(self, *(args if self.name == "convert_element_type" else map(wide, args)), **params)

    with jax.enable_x64(True), mock.patch.object(Primitive, "bind", in_float64):
        yield


def is_type(x: Any) -> bool:
    return isinstance(x, np.dtype)


def nnx_side(module: nnx.Module, call: Caller) -> Side:
    """A Flax NNX module: every run is of a copy with the weights given."""
    graph, held, rest = nnx.split(module, (nnx.Param, nnx.BatchStat), ...)
    weights = {dotted(path): np.asarray(x[...]) for path, x in nnx.to_flat_state(held)}
    own_type = first_type(weights)
    others = {dotted(path): np.asarray(value_of(x)) for path, x in nnx.to_flat_state(rest)}
    constants = [name for name, x in others.items() if is_float(x) and rounded(x).any()]

    def build(own: Mapping[str, Any], mode: Mode) -> nnx.Module:
        params = nnx.from_flat_state([(path, x.replace(own[dotted(path)])) for path, x in nnx.to_flat_state(held)])
        left = []
        for path, x in nnx.to_flat_state(rest):
            if mode.exact and dotted(path) in constants:
                constant = others[dotted(path)]
                new = jnp.asarray(moved(constant) if mode.moved else widened(constant))
                x = x.replace(new) if isinstance(x, nnx.Variable) else new
            left.append((path, x))
        copy = nnx.merge(graph, params, nnx.from_flat_state(left), copy=True)
        for _, sub in nnx.iter_modules(copy):
            kind = getattr(sub, "dtype", None)
            if kind is not None and (mode.exact or own_type == "float64"):
                setattr(sub, "dtype", mode.dtype if isinstance(kind, str) else jnp.dtype(mode.dtype))  # noqa: B010
        return copy

    def run(args: Any, kwargs: Any, params: Arrays, mode: Mode) -> Run:
        def forward(own: Mapping[str, Any], args: Any, kwargs: Any, ear: Ear) -> Any:
            copy = build(own, mode)
            with nnx_listening(copy, ear):
                return call(copy, *args, **kwargs) if call else copy(*args, **kwargs)

        return run_jax(forward, args, kwargs, params, mode, type(module).__name__)

    return Side(
        f"nnx {type(module).__name__}",
        own_type,
        weights,
        tuple(constants),
        run,
        in_first(weights),
        lambda weights: attention_of({dotted(path): sub for path, sub in nnx.iter_modules(module)}, weights),
    )


def linen_side(module: Any, call: Caller, inputs: Any) -> Side:
    """A Linen module with its variables; without them, with zeros in their shapes."""
    module, variables = module if isinstance(module, tuple) else (module, None)
    # Linen calls a method with the bound module first, as `call` wants it.
    method = call
    if variables is None and module.scope is not None:
        module, variables = module.unbind()
    if variables is None:
        args, kwargs = split(inputs)
        args, kwargs = mapped((args, kwargs), lambda _, x: jnp.asarray(x))
        shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), *args, method=method, **kwargs))
        variables = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)
    flattened: Any = flatten_dict(variables)
    paths = {dotted(path[1:]): path for path, x in flattened.items() if is_float(x)}
    weights = {name: np.asarray(flattened[path]) for name, path in paths.items()}

    def run(args: Any, kwargs: Any, params: Arrays, mode: Mode) -> Run:
        def forward(own: Mapping[str, Any], args: Any, kwargs: Any, ear: Ear) -> Any:
            everything = unflatten_dict(flattened | {path: own[name] for name, path in paths.items()})
            with linen.intercept_methods(linen_interceptor(ear)):
                return module.apply(everything, *args, method=method, **kwargs)

        return run_jax(forward, args, kwargs, params, mode, type(module).__name__)

    return Side(f"linen {type(module).__name__}", first_type(weights), weights, (), run, in_first(weights))


def jax_function_side(function: Any, call: Caller, weights: bool) -> Side:
    """A function of JAX arrays, and of a dictionary of weights before them."""

    def run(args: Any, kwargs: Any, params: Arrays, mode: Mode) -> Run:
        def forward(own: Mapping[str, Any], args: Any, kwargs: Any, ear: Ear) -> Any:
            first = (dict(own),) if weights else ()
            return call(function, *first, *args, **kwargs) if call else function(*first, *args, **kwargs)

        return run_jax(forward, args, kwargs, params if weights else {}, mode, "function")

    return Side(f"jax {function_name(function)}", "", {}, (), run)


def run_jax(forward: Callable[..., Any], args: Any, kwargs: Any, params: Arrays, mode: Mode, kind: str) -> Run:
    """The calls of one run, and the gradients of a random projection of the first output of another."""
    result, ear = Run(), Ear(mode)
    with ExitStack() as stack:
        if mode.exact:
            stack.enter_context(exactly())
        stack.enter_context(jax.disable_jit())

        def array(name: str, x: Any) -> Any:
            return jnp.asarray(x, mode.dtype) if is_float(x) else jnp.asarray(x)

        args, kwargs = mapped(args, array), mapped(kwargs, array)
        own = {name: array(name, np.asarray(x)) for name, x in params.items()}
        inputs = named(args, kwargs)
        outputs = dict(flat(forward(own, args, kwargs, ear)))
        result.calls = with_whole(ear.calls, kind, arrays(inputs), arrays(outputs))
        first = next((name for name, x in outputs.items() if is_float(x)), None)
        if first is not None and mode.gradients:
            leaves = {name: x for name, x in inputs.items() if is_float(x)}

            def of_leaves(own: Any, leaves: Any, probes: Any) -> Any:
                given = mapped((args, kwargs), lambda name, x: leaves.get(name.partition(".")[2], x))
                return dict(flat(forward(own, *given, Ear(mode, probes))))[first]

            y, pull = jax.vjp(of_leaves, own, leaves, probes_of(ear.calls, mode.dtype))
            *taken, at_calls = pull(jnp.asarray(cotangent(y.shape, mode.tokens), y.dtype))
            result.weight_grads = {name: np.asarray(x) for name, x in taken[0].items()}
            result.input_grads = arrays(taken[1])
            for (name, turn, part, key), call in places_of(ear.calls):
                getattr(call, f"{part}_grads")[key] = widened(np.asarray(at_calls[name, turn, part, key]))
            gradients_of_whole(result, result.calls[-1].outputs, mode.tokens)
    return result


# The name of a call, which of the calls of this name, "input" or "output", and the path of an array in that.
Place = tuple[str, int, str, str]


def places_of(calls: list[Call]) -> Iterator[tuple[Place, Call]]:
    """The places of all numbers that calls get and give."""
    for (name, turn), i in numbered([call.name for call in calls]).items():
        for part in ("input", "output"):
            for key, x in getattr(calls[i], f"{part}s").items():
                if x.dtype.kind == "f":
                    yield (name, turn, part, key), calls[i]


def probes_of(calls: list[Call], dtype: str) -> dict[Place, Any]:
    """Zeros to add to what calls get and give: their gradient is that of the sum."""
    return {place: jnp.zeros(getattr(call, f"{place[2]}s")[place[3]].shape, dtype) for place, call in places_of(calls)}


class Ear:
    """Listens to the calls of one run, or adds zeros to them whose gradients are taken.

    Attributes:
        calls: the calls in the order in which they end.
        probes: the zeros; None in a run that listens.
    """

    def __init__(self, mode: Mode, probes: Mapping[Place, Any] | None = None) -> None:
        self.calls: list[Call] = []
        self.turns, self.probes = Turns(mode), probes
        self.started, self.ended = Counter[str](), Counter[str]()

    def enter(self, name: str, parameters: tuple[str, ...], args: Any, kwargs: Any) -> Any:
        """The arguments of a call."""
        if self.probes is None:
            return args, kwargs
        names = place_names(parameters, args)
        turn = self.started[name]
        self.started[name] += 1
        return (
            mapped(args, lambda key, x: self.probed((name, turn, "input", renamed_place(key, names)), x)),
            mapped(kwargs, lambda key, x: self.probed((name, turn, "input", key), x)),
        )

    def probed(self, place: Place, x: Any) -> Any:
        probe = (self.probes or {}).get(place)
        return x if probe is None or probe.shape != x.shape else x + probe.astype(x.dtype)

    def leave(self, name: str, module: Any, parameters: tuple[str, ...], args: Any, kwargs: Any, output: Any) -> Any:
        """The output of a call."""
        if self.probes is None:
            inputs = renamed_places(arrays(args), place_names(parameters, args)) | arrays(kwargs)
            self.calls.append(call_of(name, module, inputs, arrays(output), parameters))
            return self.turns.settle(name, output, like)
        turn = self.ended[name]
        self.ended[name] += 1
        return mapped(output, lambda key, x: self.probed((name, turn, "output", key), x))


def arrays(tree: Any) -> Arrays:
    """The arrays that hold numbers: those of a traced function do not."""
    return {n: widened(np.asarray(x)) for n, x in flat(tree) if not isinstance(x, Tracer)}


@contextmanager
def nnx_listening(module: nnx.Module, ear: Ear) -> Iterator[None]:
    """Hear the calls of a module and all its submodules.

    The classes are wrapped while it listens: Python finds `__call__` on the class alone.
    """
    names = {id(sub): dotted(path) for path, sub in nnx.iter_modules(module)}

    def wrapped(cls: type) -> Any:
        inner: Any = cls.__call__
        parameters = parameters_of(inner)

        def listened(self: Any, *args: Any, **kwargs: Any) -> Any:
            # A class that calls its parent's is one call.
            name = names.get(id(self), "") if type(self) is cls else ""
            if not name:
                return inner(self, *args, **kwargs)
            args, kwargs = ear.enter(name, parameters, args, kwargs)
            return ear.leave(name, self, parameters, args, kwargs, inner(self, *args, **kwargs))

        return listened

    with ExitStack() as stack:
        for cls in {type(sub) for _, sub in nnx.iter_modules(module)}:
            if callable(getattr(cls, "__call__", None)):  # noqa: B004 - the class's own method is meant
                stack.enter_context(mock.patch.object(cls, "__call__", wrapped(cls)))
        yield


def like(value: np.ndarray, x: Any) -> Any:
    return jnp.asarray(value, x.dtype)


def linen_interceptor(ear: Ear) -> Any:
    def listened(inner: Any, args: Any, kwargs: Any, context: Any) -> Any:
        name = dotted(context.module.path)
        if context.method_name != "__call__" or not name:
            return inner(*args, **kwargs)
        parameters = parameters_of(context.orig_method)
        args, kwargs = ear.enter(name, parameters, args, kwargs)
        return ear.leave(name, context.module, parameters, args, kwargs, inner(*args, **kwargs))

    return listened


def dotted(path: Any) -> str:
    return ".".join(map(str, path))


def value_of(x: Any) -> Any:
    """An array, whether a variable holds it or not; a key of random numbers as its bits."""
    x = x.get_value() if isinstance(x, nnx.Variable) else x
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def first_type(weights: Arrays) -> str:
    return next((dtype_of(x) for x in weights.values() if is_float(x)), "")


def in_first(weights: Arrays) -> list[str]:
    """Flax stores the kernels of its layers as [in, out]."""
    return [name for name in weights if name.rpartition(".")[2] == "kernel"]
