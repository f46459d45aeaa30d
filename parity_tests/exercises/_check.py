"""The judge as a teacher: calls a reader's function as it wants to be called and names the mistake of its answer."""

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from parity_tests import bounds as bounds
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import EXACT, Precision, precision
from parity_tests.exercises._exercise import Exercise, Function, exercise
from parity_tests.mistakes import MUTANTS

# Readers may compute in 32 bits, in any order and by any of the usual forms: these are the bounds of an answer.
PROMISE = Precision("float32", "float32")
SEEDS = (3, 11)

NAMES = {
    "q": ("query", "queries", "Q", "xq"),
    "k": ("key", "keys", "K", "xk"),
    "v": ("value", "values", "V", "xv"),
    "z": ("scores", "score", "logits", "s"),
    "p": ("probs", "weights", "attention_weights", "attn", "a", "y", "prob", "w"),
    "dp": ("dprobs", "dweights", "dattn", "dy", "grad", "g", "d_p", "dw", "grad_output", "upstream"),
    "dy": ("dout", "grad", "g", "d_y", "doutput", "grad_output", "upstream", "do"),
    "x": ("inputs", "input", "X", "hidden_states", "h"),
    "allowed": ("mask", "visible", "attention_mask"),
    "t": ("queries", "T", "num_queries", "tgt_len", "n_q"),
    "s": ("keys", "S", "num_keys", "src_len", "n_k"),
    "window": ("w", "width", "size"),
    "positions": ("position", "pos"),
    "temperature": ("tau", "temp"),
    "gamma": ("g", "weight", "scale"),
    "beta": ("b", "bias", "shift"),
}


class ChangedInPlaceError(Exception):
    """A function changed an array that it was called with."""


@dataclass(frozen=True)
class Verdict:
    """What the teacher says of an answer. True where it is right.

    Attributes:
        exercise: the name of the exercise.
        right: the answer is right.
        mistake: the mistake in the words of the lesson; "" where it is right or not one that is known.
        says: the same as a sentence, with what was measured.
    """

    exercise: str
    right: bool
    mistake: str
    says: str

    def __bool__(self) -> bool:
        return self.right

    def __str__(self) -> str:
        return f"{self.exercise}: {'right' if self.right else 'not yet'}. {self.says}"

    __repr__ = __str__


def check(function: Function, name: str) -> Verdict:
    """Judge an answer to a graded exercise of the course.

    The function may name its arguments as is usual in the field (`q`, `query`, `queries`), return more than what is
    asked for (the output and the weights), want a batch axis in front, take NumPy arrays or PyTorch tensors, and
    compute in 32 or 64 bits.

    Args:
        function: the reader's.
        name: the exercise, "1.4", or the name of its function.

    Raises:
        ValueError: no graded exercise has this name.
    """
    one = exercise(name)
    calls = [one.draw(np.random.default_rng(seed)) for seed in SEEDS]
    best, failure = None, None
    for way in ways(function, one):
        try:
            results = [way(call) for call in calls]
        except ChangedInPlaceError as changed:
            says = f"It changes its argument {changed} in place, and the caller's array with it; make a new one."
            return Verdict(one.name, False, "argument changed in place", says)
        except Exception as error:
            failure = failure or error
            continue
        if fits(one.answer, calls, results):
            return Verdict(one.name, True, "", praise(one))
        fitting = [word for word, wrong in one.wrong.items() if fits(wrong, calls, results)]
        if fitting:
            return Verdict(one.name, False, fitting[0], f"It has this mistake: {fitting[0]}{advice(fitting[0])}.")
        best = best or results
    if best is None:
        said = f"{type(failure).__name__}: {failure}"
        says = f"It could not be called: {said}. Expected {one.call}, with {shapes(calls[0])}."
        return Verdict(one.name, False, "", says)
    word, says = described(one, calls, best)
    return Verdict(one.name, False, word, says)


def praise(one: Exercise) -> str:
    return f"Your {one.function} agrees on every number, within the rounding of 32 bits."


def advice(mistake: str) -> str:
    """What to do, where the judge of layers knows the same mistake."""
    fixes = {mutant.name: mutant.fix for mutant in MUTANTS}
    return f"; {fixes[mistake]}" if fixes.get(mistake) else ""


def shapes(call: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {np.shape(x)}" if np.ndim(x) else f"{name}={x}" for name, x in call.items())


# Calling --------------------------------------------------------------------------------------------------------------


def ways(function: Function, one: Exercise) -> Iterator[Callable[[Mapping[str, Any]], Any]]:
    """The ways in which a function may want to be called: as it is or with a batch axis, in NumPy or PyTorch."""
    bind = binder(function, one)
    for convert in (np.array, tensor):
        for batched in (False, True):

            def way(call: Mapping[str, Any], convert: Function = convert, batched: bool = batched) -> Any:
                given = {
                    name: convert(np.asarray(x)[None] if batched and name in batchable(call) else x)
                    if isinstance(x, np.ndarray)
                    else x
                    for name, x in call.items()
                }
                before = {name: np.array(numbers(x)) for name, x in given.items() if isinstance(call[name], np.ndarray)}
                positional, named = bind(given)
                with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
                    result = function(*positional, **named)
                changed = [name for name, x in before.items() if not np.array_equal(x, numbers(given[name]))]
                if changed:
                    raise ChangedInPlaceError(changed[0])
                return plain(result, batched)

            yield way


def batchable(call: Mapping[str, Any]) -> set[str]:
    """The arguments that a batch axis may be put before: activations, not weights and not masks."""
    return {name for name, x in call.items() if np.ndim(x) > 1 and not name.startswith(("w_", "allowed", "dw_"))}


def tensor(x: Any) -> Any:
    import torch

    return torch.tensor(np.asarray(x))


def plain(result: Any, batched: bool) -> Any:
    """A result as NumPy arrays, without the batch axis."""
    if isinstance(result, Mapping):
        result = tuple(result.values())
    if isinstance(result, tuple | list) and any(np.ndim(numbers(x)) for x in result if not np.isscalar(x)):
        return tuple(plain(x, batched) for x in result)
    result = numbers(result)
    return result[0] if batched and np.ndim(result) and len(result) == 1 else result


def numbers(x: Any) -> Any:
    if isinstance(x, ErrArray):  # an answer of ours
        x = x.v
    if hasattr(x, "detach"):
        x = x.detach().cpu().numpy()
    return x if isinstance(x, tuple | list | Mapping) and len({np.shape(y) for y in x}) > 1 else np.asarray(x)


def binder(function: Function, one: Exercise) -> Callable[[dict[str, Any]], tuple[list[Any], dict[str, Any]]]:
    """How arguments are handed over: by the names that the function gives them, and those left in their order."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return lambda given: (list(given.values()), {})
    usual = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters) or len(usual) < len(one.arguments):
        return lambda given: ([given[name] for name in one.arguments], {})
    owner: dict[str, str] = {}
    for parameter in usual:
        if parameter.name in one.arguments:
            owner[parameter.name] = parameter.name
    for parameter in usual:
        free = [name for name in one.arguments if name not in owner.values()]
        known = [name for name in free if parameter.name in NAMES.get(name, ()) or parameter.name.lower() == name]
        if parameter.name not in owner and known:
            owner[parameter.name] = known[0]
    for parameter in usual:
        free = [name for name in one.arguments if name not in owner.values()]
        if parameter.name not in owner and free:
            owner[parameter.name] = free[0]

    def bind(given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        first = [p for p in usual if p.kind is p.POSITIONAL_ONLY]
        named = [p for p in usual if p.kind is not p.POSITIONAL_ONLY]
        return [given[owner[p.name]] for p in first], {p.name: given[owner[p.name]] for p in named if p.name in owner}

    return bind


# Judging --------------------------------------------------------------------------------------------------------------


def bounded(function: Function, call: Mapping[str, Any]) -> list[tuple[np.ndarray, np.ndarray]]:
    """What an answer gives, each array with its bounds; booleans and whole numbers have to be met exactly."""
    lifted = {
        name: ErrArray(x, np.zeros(x.shape)) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x
        for name, x in call.items()
    }

    def run(promise: Precision) -> list[tuple[np.ndarray, np.ndarray]]:
        with precision(promise), np.errstate(all="ignore"):
            result = function(*lifted.values())
        parts = result if isinstance(result, tuple) else (result,)
        return [(x.v, x.b) if isinstance(x, ErrArray) else (np.asarray(x), np.zeros(np.shape(x))) for x in parts]

    # Where 32 bits promise nothing, as beyond their largest number, those of 64 bits count.
    narrow = run(PROMISE)
    if all(np.isfinite(b).all() for _, b in narrow):
        return narrow
    return [(v, np.where(np.isfinite(b), b, wide)) for (v, b), (_, wide) in zip(narrow, run(EXACT), strict=True)]


def paired(result: Any, wanted: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray] | None:
    """The arrays of a result that answer the question: the first ones of those returned; None if there are too few."""
    parts = list(result) if isinstance(result, tuple) else [result]
    return parts[: len(wanted)] if len(parts) >= len(wanted) else None


def meets(got: Any, want: np.ndarray, bound: np.ndarray) -> bool:
    got = np.asarray(got)
    if got.shape != want.shape or got.dtype.kind not in "fiub":
        return False
    got, want = got.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        near = (np.abs(got - want) <= bound) & np.isfinite(bound)
        return bool(np.all(near | (got == want) | (np.isnan(got) & np.isnan(want))))


def fits(function: Function, calls: list[dict[str, Any]], results: list[Any]) -> bool:
    """Whether results are those of a function, on every call."""
    for call, result in zip(calls, results, strict=True):
        wanted = bounded(function, call)
        parts = paired(result, wanted)
        if parts is None or not all(meets(x, *want) for x, want in zip(parts, wanted, strict=True)):
            return False
    return True


def described(one: Exercise, calls: list[dict[str, Any]], results: list[Any]) -> tuple[str, str]:
    """The mistake, if it is one of form, and what can be said of numbers that no known mistake gives."""
    wanted, parts = bounded(one.answer, calls[0]), paired(results[0], bounded(one.answer, calls[0]))
    if parts is None:
        count = len(results[0]) if isinstance(results[0], tuple) else 1
        return "too few results", f"Expected {len(wanted)} arrays, got {count}."
    for i, (got, (want, bound)) in enumerate(zip(parts, wanted, strict=True)):
        which = f"Result {i + 1} of {len(wanted)}" if len(wanted) > 1 else "The result"
        got = np.asarray(got)
        if got.dtype.kind not in "fiub":
            return "no numbers", f"{which} holds no numbers, but {got.dtype}."
        if got.shape != want.shape:
            if got.T.shape == want.shape and meets(got.T, want, bound):
                return "transposed", f"{which} is transposed: expected the shape {want.shape}, got {got.shape}."
            return "another shape", f"{which} has another shape: expected {want.shape}, got {got.shape}."
        if np.isnan(got.astype(float)).any() and not np.isnan(want.astype(float)).any():
            return "NaN", f"{which} has NaN, first at {first(np.isnan(got))}."
        if meets(got, want, bound):
            continue
        if meets(-got.astype(float), want, bound):
            return "the opposite sign", f"{which} has the opposite sign throughout."
        with suppress(FloatingPointError), np.errstate(all="raise"):
            factor = float((got * want).sum() / (want * want).sum())
            if meets(got, factor * want, abs(factor) * bound + np.abs(want * factor) * PROMISE.u):
                return "a constant factor", f"{which} is {factor:.4g} times what it should be, throughout."
        with np.errstate(invalid="ignore"):
            off = ~((np.abs(got.astype(float) - want) <= bound) | (got == want))
        at = first(off)
        places = f"{off.sum()} of {off.size} numbers differ, first at {at}: expected {want[at]:.6g}, got {got[at]:.6g}"
        return "", f"{which} is wrong in a way that this exercise does not know: {places}."
    return "", "It is right on one call and wrong on another: does it keep something from call to call?"


def first(where: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(where)[0])
