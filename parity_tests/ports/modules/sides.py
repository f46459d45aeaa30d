"""The two sides of a comparison: a module or function of any framework, ready to be run and listened to."""

import ctypes
import gc
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import numpy as np

from attn_np.ops import DTYPES
from parity_tests.bounds.error_array import widened
from parity_tests.bounds.precision import UNIT
from parity_tests.judge.candidates import from_torch
from parity_tests.ports.modules.recordings import (
    Arrays,
    Attention,
    Call,
    Recording,
    Run,
    blocks,
    flat,
    is_array,
    mapped,
    real,
)

# See `parity_tests.ports.modules.bounds`.
ROUNDINGS = 16
# Numbers in the weights of a module from which on it is told what runs, and memory counts.
LARGE = 10_000_000
Caller = Callable[..., Any] | None


@dataclass(frozen=True)
class Mode:
    """How a module is run.

    Attributes:
        dtype: of inputs and weights.
        exact: float64 wherever the code asks for a smaller type.
        moved: rounded constants are moved by the error that they may have.
        values: the first output of some calls, by name and turn, from which the run goes on in place of its own. Such a
            run has no gradients.
        gradients: they are taken.
        tokens: which positions hold tokens, `b t`; the projection whose gradients are taken leaves the others out.
    """

    dtype: str
    exact: bool = False
    moved: bool = False
    values: Mapping[tuple[str, int], np.ndarray] = field(default_factory=dict)
    gradients: bool = True
    tokens: np.ndarray | None = None


@dataclass
class Side:
    """A module or a function.

    Attributes:
        who: framework and class.
        dtype: the type of its weights; of the inputs if there are none.
        weights: by name, in that type.
        constants: names of arrays that are no weights and that were rounded to a smaller type than float64.
        run: from inputs (positional and by keyword), weights and a mode to what was called, in order, and gradients.
        in_first: the weights that are stored as [in, out].
        attention: finds the submodules that are attention, from all the weights.
        adapted: a function calls it.
        given: the inputs that it ran with last.
    """

    who: str
    dtype: str
    weights: Arrays
    constants: tuple[str, ...]
    run: Callable[[tuple[Any, ...], dict[str, Any], Arrays, Mode], Run]
    in_first: list[str] = field(default_factory=list)
    attention: Callable[[Arrays], dict[str, Attention]] = lambda _: {}
    adapted: bool = False
    given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})


def numpy_function_side(function: Any, call: Caller, weights: bool) -> Side:
    """A function of NumPy arrays: its inputs and outputs, no gradients."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any], params: Arrays, mode: Mode) -> Run:
        def typed(name: str, x: Any) -> np.ndarray:
            return x.astype(DTYPES[mode.dtype]) if is_float(x) else x.copy()

        first = ({name: typed(name, x) for name, x in params.items()},) if weights else ()
        args, kwargs = mapped(args, typed), mapped(kwargs, typed)
        inputs = named(args, kwargs)
        result = call(function, *first, *args, **kwargs) if call else function(*first, *args, **kwargs)
        outputs = {name: widened(np.asarray(x)) for name, x in flat(result)}
        return Run([Call("", "function", {name: widened(x) for name, x in inputs.items()}, outputs)])

    return Side(f"numpy {function_name(function)}", "", {}, (), run)


def function_name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def is_float(x: Any) -> bool:
    return str(x.dtype).rpartition(".")[2] in UNIT


def named(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a call, by keyword or place."""
    return dict(flat(args)) | dict(flat(kwargs))


def parameters_of(function: Any) -> tuple[str, ...]:
    """The names of the parameters that a function takes by place, but for `self`; none where it does not say."""
    try:
        found = signature(function).parameters.values()
    except (ValueError, TypeError):  # built in, or no function
        return ()
    return tuple(x.name for x in found if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD) and x.name != "self")


def place_names(parameters: tuple[str, ...], args: tuple[Any, ...]) -> dict[str, str]:
    """Places of positional arguments to the names of the parameters that they are given to."""
    return {str(i): name for i, name in enumerate(parameters[: len(args)])}


def renamed_place(key: str, names: Mapping[str, str]) -> str:
    """The path of an array in positional arguments, with the parameter's name for its place."""
    place, dot, rest = key.partition(".")
    return f"{names.get(place, place)}{dot}{rest}"


def renamed_places(arrays: Arrays, names: Mapping[str, str]) -> Arrays:
    return {renamed_place(key, names): x for key, x in arrays.items()}


def with_whole(calls: list[Call], kind: str, inputs: Arrays, outputs: Arrays) -> list[Call]:
    """The calls of the submodules, and as the last one that of the whole, as its caller sees it."""
    return [*(call for call in calls if call.name), Call("", kind, inputs, outputs)]


def gradients_of_whole(result: Run, outputs: Arrays, tokens: np.ndarray | None) -> None:
    """Give the call of the whole the gradients of its inputs and, at its first output, that of the projection."""
    first = next((name for name, x in outputs.items() if x.dtype.kind == "f"), None)
    if first is not None and (result.input_grads or result.weight_grads):
        result.calls[-1].input_grads = dict(result.input_grads)
        result.calls[-1].output_grads = {first: cotangent(outputs[first].shape, tokens)}


def cotangent(shape: tuple[int, ...], tokens: np.ndarray | None) -> np.ndarray:
    """The same random gradient of the output on both sides, in numbers that every type holds exactly.

    Shapes that differ by axes of size 1 get the same numbers.
    """
    return real(np.random.default_rng(11).integers(-8, 9, shape) / 8.0, tokens)


def rounded(x: np.ndarray) -> np.ndarray:
    """Which numbers of a constant were rounded to float32 or a smaller type, whatever type holds them now.

    A number that bfloat16 holds, such as 1 or 0.5, is taken for exact unless it comes in bfloat16.
    """
    wide = widened(x)
    with np.errstate(over="ignore"):
        short = wide.astype(np.float32) == wide
        few = wide.astype(DTYPES["bfloat16"]).astype(np.float64) == wide
    return short & (~few | (dtype_of(x) == "bfloat16"))


def moved(x: np.ndarray) -> np.ndarray:
    """A constant with each rounded number moved by as much as what made it errs, up or down at random."""
    # A table is made in float32, and cast to a smaller type at most.
    unit = UNIT[dtype_of(x)] if UNIT[dtype_of(x)] > UNIT["float32"] else ROUNDINGS * UNIT["float32"]
    signs = np.random.default_rng(12).choice([-1.0, 1.0], x.shape)
    return np.asarray(widened(x) * (1 + np.where(rounded(x), unit * signs, 0.0)))


class Turns:
    """The value from which a run goes on after each call, where it is given."""

    def __init__(self, mode: Mode) -> None:
        self.values, self.seen = mode.values, Counter[str]()

    def settle(self, name: str, output: Any, make: Callable[[np.ndarray, Any], Any]) -> Any:
        """The output of a call, or the same with the given value in place of its first floating array."""
        value = self.values.get((name, self.seen[name]))
        self.seen[name] += 1
        first = next((key for key, x in flat(output) if is_float(x)), None)
        if value is None or first is None or (not is_array(output) and not isinstance(output, tuple | list)):
            return output
        return mapped(output, lambda key, x: make(value, x) if key == first else x)


def go_on(side: Side, recording: Recording, values: Mapping[tuple[str, int], np.ndarray]) -> tuple[Run, Run | None]:
    """The float64 run of a recording and the one with moved constants, going on from the values given."""
    args, kwargs = side.given
    modes = [Mode("float64", True, moved, values, gradients=False) for moved in (False, True)]
    first, *more = (side.run(args, kwargs, recording.weights, mode) for mode in modes[: 1 + bool(side.constants)])
    return first, next(iter(more), None)


def record(
    side: Side,
    inputs: Any,
    weights: Arrays | None = None,
    tokens: np.ndarray | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Recording:
    """Run a side in float64 and in its own type, on weights of another side or its own."""
    side.given = args, kwargs = split(inputs)
    params = side.weights | (weights or {})
    arrays = named(args, kwargs)
    own = side.dtype or next((dtype_of(x) for x in arrays.values() if is_float(x)), "float32")
    probe = "float32" if own == "float64" else own

    def run(mode: Mode) -> Run:
        say(f"{mode.dtype}{', with moved constants' if mode.moved else ''}")
        result = side.run(args, kwargs, params, mode)
        if size_of(params) >= LARGE:
            give_back()
        return result

    exact = run(Mode("float64", exact=True, tokens=tokens))
    result = Recording(
        side.who, own, exact, run(Mode(probe, tokens=tokens)), None, arrays, params, side.in_first, tokens=tokens
    )
    errors = of_weights(exact, result.own)
    spreads = dict.fromkeys(errors, (0.0, 0.0))
    if side.constants:
        result.moved = run(Mode("float64", exact=True, moved=True, tokens=tokens))
        spreads = of_weights(exact, result.moved)
    result.weight_errors = {name: (errors[name][0], spreads[name][1]) for name in errors}
    if size_of(params) >= LARGE:
        give_back()
    if side.adapted:  # an input that the calling function leaves out has no gradient there
        used = [name for name, x in exact.input_grads.items() if x.any()]
        for done in (exact, result.own, result.moved):
            if done is not None:
                done.input_grads = {name: done.input_grads[name] for name in used}
    result.attention = side.attention(params)
    return result


def give_back() -> None:
    """Free the copy that ran, which may hold itself, and give its memory to what runs next.

    The C library keeps what is freed in pieces that the next copy, in another type, does not fit.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def size_of(weights: Arrays) -> int:
    """How many numbers some weights are."""
    return sum(x.size for x in weights.values())


def of_weights(exact: Run, other: Run) -> dict[str, tuple[float, float]]:
    """How far the gradients of the weights are apart in two runs: the largest difference, and the root mean square.

    The other run's gradients go: they are as large as the model.
    """
    found = {}
    for name in list(other.weight_grads):
        most, squares, count = 0.0, 0.0, 0
        for x, y in blocks(other.weight_grads.pop(name), exact.weight_grads[name]):
            with np.errstate(invalid="ignore"):
                gap = widened(x) - y
            gap = gap[np.isfinite(gap)]
            most, squares = max(most, float(np.max(np.abs(gap), initial=0.0))), squares + float(np.sum(gap**2))
            count += gap.size
        found[name] = most, (squares / count) ** 0.5 if count else 0.0
    return found


def dtype_of(x: Any) -> str:
    return str(x.dtype).rpartition(".")[2]


def split(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword inputs, their arrays as NumPy's."""
    given = inputs if isinstance(inputs, tuple | list | Mapping) else (inputs,)
    given = mapped(given, lambda _, x: as_numpy(x))
    return ((), dict(given)) if isinstance(given, Mapping) else (tuple(given), {})


def as_numpy(x: Any) -> np.ndarray:
    if type(x).__module__.partition(".")[0] == "torch":
        return from_torch(x)
    return np.asarray(x)
