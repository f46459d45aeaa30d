"""Arrays that remember how they were computed, so that any number of a run can be written as what it is made of.

The reference itself runs on them, through NumPy's dispatch protocols, as it does on arrays that carry errors. An array
with a name on the tape is an end: the formula of `scores` is made of `q` and `k`, that of `q` of `x` and `w_q`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from parity_tests.judge.consequences import replaced

# Functions whose results hold entries of their arguments, or of a list of them, in other places: which arguments.
MOVES: dict[Any, tuple[int, ...]] = {
    np.where: (1, 2),
    np.concatenate: (0,),
    np.stack: (0,),
    np.broadcast_to: (0,),
    np.take_along_axis: (0,),
    np.transpose: (0,),
    np.reshape: (0,),
    np.swapaxes: (0,),
    np.moveaxis: (0,),
    np.expand_dims: (0,),
    np.repeat: (0,),
    np.roll: (0,),
    np.flip: (0,),
}
REDUCTIONS = {np.sum: "sum", np.max: "max", np.amax: "max"}
# Functions of ours that act on each entry by itself, or on an axis.
OF_ENTRIES = ("sigmoid", "softplus", "lerp")


class Traced(NDArrayOperatorsMixin):
    """A value and its formula; immutable.

    Attributes:
        v: the value.
        op: what was done: "named" for an array with a name, "constant", "copy", "einsum", "sum", "max", "cumsum",
            "softmax", a function of entries such as "add", or "given" for any other, whose values are taken as given.
        args: what it was done to.
        axes: letters of the axes, "" where they are not known.
        options: what else says what was done.
    """

    __slots__ = ("args", "axes", "op", "options", "v")

    def __init__(self, v: Any, op: str, args: Iterable[Any] = (), axes: str = "", **options: Any) -> None:
        self.v, self.op, self.args, self.axes, self.options = np.asarray(v), op, tuple(map(lift, args)), axes, options
        if len(axes) != self.v.ndim:
            self.axes = ""

    shape = property(lambda self: self.v.shape)
    ndim = property(lambda self: self.v.ndim)
    size = property(lambda self: self.v.size)
    dtype = property(lambda self: self.v.dtype)

    def __len__(self) -> int:
        return len(self.v)

    def __getitem__(self, index: Any) -> "Traced":
        out = moved(lambda x: x[index], (self,))
        if out.op == "copy" and out.ndim == self.ndim:
            out.axes = self.axes
        return out

    def reshape(self, *shape: Any) -> "Traced":
        return moved(lambda x: x.reshape(*shape), (self,))

    def transpose(self, *axes: Any) -> "Traced":
        out = moved(lambda x: x.transpose(*axes), (self,))
        order = axes[0] if axes and isinstance(axes[0], list | tuple) else axes
        out.axes = "".join(self.axes[i] for i in order) if self.axes and order else out.axes
        return out

    def swapaxes(self, i: int, j: int) -> "Traced":
        order = list(range(self.ndim))
        order[i], order[j] = order[j], order[i]
        return self.transpose(order)

    def sum(self, axis: Any = None, keepdims: bool = False) -> "Traced":
        v = self.v.sum(axis=axis, keepdims=keepdims)
        return reduced("sum", v, self, axis=axis, keepdims=keepdims)

    def astype(self, dtype: Any, **_: Any) -> "Traced":
        return self if np.dtype(dtype) == self.v.dtype else Traced(self.v.astype(dtype), "identity", [self], self.axes)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if method != "__call__" or kwargs:
            return NotImplemented
        v = ufunc(*map(plain, args))
        if v.dtype.kind != "f" or ufunc is np.matmul:
            return v if v.dtype.kind != "f" else Traced(v, "given", args, name=ufunc.__name__)
        return Traced(v, ufunc.__name__, args, common_axes(v, args))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        name = function.__name__
        if function in MOVES:
            out = moved(lambda *parts: function(*parts, **kwargs), args, MOVES[function])
            if function is np.concatenate and not out.axes:
                out.axes = next((x.axes for x in args[0] if isinstance(x, Traced)), "")
            return out
        v: Any = getattr(function, "__wrapped__", function)(
            *map(plain, args), **{n: plain(x) for n, x in kwargs.items()}
        )
        if not isinstance(v, np.ndarray | np.floating) or v.dtype.kind != "f":
            return v
        if name == "einsum":
            return Traced(v, name, args[1:], args[0].partition("->")[2], spec=args[0])
        if function in REDUCTIONS or name == "amax_detached":
            return reduced(REDUCTIONS.get(function, "max"), v, *args, **kwargs)
        if function is np.cumsum:
            axis = args[1] if len(args) > 1 else kwargs["axis"]
            return Traced(v, "cumsum", args[:1], args[0].axes, axis=axis % args[0].ndim)
        if name == "softmax":
            return softmaxed(v, *args, **kwargs)
        if name == "straight_through":
            return args[0]
        if name == "constants":
            return v
        if name in OF_ENTRIES:
            return Traced(v, name, args, common_axes(v, args))
        parts = [x for x in args if isinstance(x, Traced)]
        return Traced(v, "given", parts, common_axes(v, parts), name=name)


def plain(x: Any) -> Any:
    """The value without its formula, in lists too."""
    return x.v if isinstance(x, Traced) else [plain(part) for part in x] if isinstance(x, list | tuple) else x


def lift(x: Any) -> Traced:
    """A constant, where it is not traced."""
    return x if isinstance(x, Traced) else Traced(np.asarray(x), "constant")


def common_axes(v: Any, args: Iterable[Any]) -> str:
    """The letters of the first argument that has the result's shape."""
    return next((x.axes for x in args if isinstance(x, Traced) and x.shape == v.shape and x.axes), "")


def reduced(op: str, v: Any, x: Traced, axis: Any = None, keepdims: bool = False, **_: Any) -> Traced:
    given = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = sorted(i % x.ndim for i in given)
    letters = x.axes if keepdims else "".join(c for i, c in enumerate(x.axes) if i not in axes)
    return Traced(v, op, [x], letters, over=axes, keepdims=bool(keepdims))


def softmaxed(v: Any, scores: Traced, allowed: Any = None, axis: int = -1) -> Traced:
    allowed = None if allowed is None else np.broadcast_to(allowed, v.shape)
    return Traced(v, "softmax", [scores], scores.axes, axis=axis % v.ndim, allowed=allowed)


def moved(function: Callable[..., Any], args: tuple[Any, ...], data: tuple[int, ...] = (0,)) -> Traced:
    """The result of a function that only moves entries: run on their numbers, it says where each comes from.

    A part that is a copy itself is passed over: what is copied are entries of the arrays behind it.
    """
    sources: dict[int, tuple[Traced, int]] = {}

    def start(x: Traced) -> int:
        if id(x) not in sources:
            sources[id(x)] = x, sum(source.size for source, _ in sources.values())
        return sources[id(x)][1]

    def numbers(x: Any) -> Any:
        if isinstance(x, list | tuple):
            return [numbers(part) for part in x]
        x = lift(x)
        if x.op != "copy":
            return start(x) + np.arange(x.size).reshape(x.shape)
        starts = np.array([start(source) for source in x.args])
        ends = np.cumsum([source.size for source in x.args])
        which = np.searchsorted(ends, x.options["at"], side="right")
        return x.options["at"] - np.concatenate([[0], ends[:-1]])[which] + starts[which]

    def run(of: Callable[[Any], Any]) -> Any:
        return function(*(of(x) if i in data else plain(x) for i, x in enumerate(args)))

    v, at = run(plain), run(numbers)
    traced = [x for i in data if i < len(args) for x in (args[i] if isinstance(args[i], list | tuple) else [args[i]])]
    only = next(iter(sources.values()))[0] if len(sources) == 1 else None
    if only is not None and only.shape == np.shape(at) and np.array_equal(np.ravel(at), np.arange(only.size)):
        return only
    kept = {id(x): x for x, first in sources.values() if np.any((at >= first) & (at < first + x.size))}
    if len(kept) == 1 and len(sources) > 1 and isinstance(traced[0], Traced):
        (source,) = kept.values()
        at = at - sources[id(source)][1]
        if source.shape == at.shape and np.array_equal(at.ravel(), np.arange(source.size)):
            return source
        return Traced(v, "copy", [source], common_axes(v, traced), at=at)
    return Traced(v, "copy", [x for x, _ in sources.values()], common_axes(v, traced), at=at)


class FormulaTape(dict[str, Any]):
    """A tape that keeps the formula of each name and goes on from the name.

    Attributes:
        given: what the layer was given, by name: one whose name the tape has for another array is renamed.
        formulas: by name, for a scan one formula for each of its steps; None where the value is a constant.
        aliases: other names of the same array, by the first.
    """

    def __init__(self, inputs: Mapping[str, Traced], weights: Mapping[str, Traced]) -> None:
        super().__init__()
        self.given = {**inputs, **weights}
        self.formulas: dict[str, Traced | list[Traced] | None] = {}
        self.aliases: dict[str, list[str]] = {name: [] for name in inputs}
        self.steps: dict[str, dict[int, Traced]] = {}

    def tap(self, name: str, value: Any) -> Any:
        if isinstance(value, Traced) and value.op == "named" and "step" not in value.options:
            first = value.options["name"]
            if first in self.aliases and name != first:
                self.aliases[first].append(name)
            self[name] = value
            return value
        if name in self.given:
            self.rename(name, f"{name} (given)")
        steps = self.steps.get(name)
        if steps is not None:
            self.formulas[name] = [steps[i] for i in sorted(steps)]
            letters = steps[0].axes and f"{steps[0].axes[0]}t{steps[0].axes[1:]}"
        else:
            self.formulas[name] = value if isinstance(value, Traced) else None
            letters = value.axes if isinstance(value, Traced) else ""
        self.aliases[name] = []
        v = plain(value)
        self[name] = Traced(v, "named", axes=letters, name=name) if v.dtype.kind == "f" else value
        return self[name]

    def rename(self, name: str, new: str) -> None:
        self.given[name].options["name"] = new
        self.given = {new if old == name else old: x for old, x in self.given.items()}
        self.aliases = {new if old == name else old: x for old, x in self.aliases.items()}

    def tap_step(self, names: list[str], i: int, carry: Any, ys: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """One step of a scan: the next goes on from its results by name."""
        out = []
        for name, y in zip(names, ys, strict=True):
            if isinstance(y, Traced):
                self.steps.setdefault(name, {})[i] = y
                new = Traced(y.v, "named", axes=y.axes, name=name, step=i)
                carry, y = replaced(carry, y, new), new
            out.append(y)
        return carry, tuple(out)
