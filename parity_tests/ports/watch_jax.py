"""JAX: every operation in a narrower type than float64 is done again in float64, and compared."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx
from jax.core import Tracer
from jax.extend.core import Primitive

from parity_tests.ports.watch import Watch, holder, place, written

ENOUGH = 3  # operations that are told
SMALL = tuple(map(jnp.dtype, ("float32", "float16", "bfloat16")))
BITS = "bitcast_convert_type"


class Enough(Exception):
    """As many operations were found as are told."""


@dataclass
class JaxWatch(Watch):
    """What a candidate's runs in JAX computed with.

    Attributes:
        programs: the runs, forward and with their gradients, whose numbers have not been looked at.
    """

    programs: list[tuple[Callable[[], Any], Callable[[], Any]]] = field(default_factory=list)

    def settle(self) -> None:
        """Run them without compilation, each operation in a narrower type in float64 as well."""
        while self.programs:
            forward, whole = self.programs.pop()
            crossings: dict[str, None] = {}
            with watching(self, self.forward, crossings):
                forward()
            if not self.forward:
                inner: dict[str, None] = {}
                with watching(self, inner, {}):
                    whole()
                self.backward |= (crossings or inner) if inner else {}


def narrow_types(jaxpr: Any) -> Iterator[Any]:
    """The narrower types than float64 that a program's operations take or give."""
    for equation in jaxpr.eqns:
        for variable in (*equation.invars, *equation.outvars):
            kind = getattr(variable.aval, "dtype", None)
            if kind is not None and jnp.issubdtype(kind, jnp.floating) and kind != jnp.float64:
                yield kind
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from narrow_types(inner)


@contextmanager
def watching(watch: Watch, told: dict[str, None], crossings: dict[str, None]) -> Iterator[None]:
    """Look at each operation while it runs.

    Args:
        watch: gets the number by which keys are hidden, where it asks for that.
        told: gets the operations in a narrower type whose results are not those of float64.
        crossings: gets those in which float64 goes over to a narrower type and loses nothing.
    """
    bind = Primitive.bind
    made: dict[int, Any] = {}

    def seen(self: Primitive, *args: Any, **params: Any) -> Any:
        out = bind(self, *args, **params)
        gives = jax.tree.leaves(out)
        if any(isinstance(x, Tracer) or callable(x) for x in (*args, *gives)):
            return out  # what is traced is run later, or was run before
        if watch.hidden is not None and not (self.name in ("add", "sub") and all(np.ndim(x) for x in args)):
            for x in (*args, *gives):
                if jnp.issubdtype(jnp.result_type(x), jnp.floating):
                    watch.look(np.asarray(x, np.float64))
        narrow = [x for x in (*args, *gives) if small(x)]
        if narrow:
            judge(self, args, params, gives, narrow)
        return out

    def judge(self: Primitive, args: Any, params: Any, gives: list[Any], narrow: list[Any]) -> None:
        for x in args:
            if small(x) and id(x) not in made and not written(np.asarray(x)):
                told[f"a constant of {x.dtype}{where()}"] = None
        made.update({id(x): x for x in (*args, *gives)})
        label = f"{self.name} in {' and '.join(dict.fromkeys(str(x.dtype) for x in narrow))}{where()}"
        wide = {n: jnp.dtype("float64") if isinstance(x, np.dtype) and x in SMALL else x for n, x in params.items()}
        cast = self.name == "convert_element_type"
        try:
            again = bind(self, *(x if cast else jnp.asarray(x, jnp.float64) if small(x) else x for x in args), **wide)
        except (ValueError, TypeError, NotImplementedError):  # it has a type of its own, as what scatters sums
            again = None
        if again is None or self.name == BITS or not all(map(same, gives, jax.tree.leaves(again))):
            told[label] = None
            if len(told) >= ENOUGH:
                raise Enough
        elif any(small(x) for x in gives) and any(getattr(x, "dtype", None) == jnp.float64 for x in args):
            crossings[label] = None

    with suppress(Enough), mock.patch.object(Primitive, "bind", seen), jax.disable_jit():
        yield


def small(x: Any) -> bool:
    return getattr(x, "dtype", None) in SMALL


def same(x: Any, wide: Any) -> bool:
    x, wide = np.asarray(x), np.asarray(wide)
    return x.shape == wide.shape and np.array_equal(x.astype(wide.dtype), wide, equal_nan=wide.dtype.kind == "f")


def where() -> str:
    """The candidate's line, and the module that has a type of its own, in words."""
    line, module = place(), holder((nnx.Module, linen.Module))
    kind = getattr(module, "dtype", None)
    words = [line]
    if kind is not None and np.dtype(kind) in SMALL:
        own = f"in {type(module).__name__}, whose dtype is {np.dtype(kind)}"
        words.append(f"{own}: with its dtype set to None it follows its weights")
    return f" ({', '.join(filter(None, words))})" if any(words) else ""
