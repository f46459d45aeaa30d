"""Which entries of a named array have consequences: hidden places may hold anything in a port.

The library zeroes keys that no query sees and queries that see no key; a port need not. No rule says which names
and places these are: the reference is asked. An entry whose cotangent is 0 reaches no output. An entry that stays the
same when all weights and inputs move a little does not depend on them, so its cotangent reaches no gradient. What
changes a decision on the tape, such as which blocks are chosen, has consequences although no output may show it: where
all keys are equal any choice gives the same output, and other gradients.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from parity_tests.bounds.error_array import widened
from parity_tests.judge.candidates import extras, leaves, numpy_layer, pulled, scoped
from parity_tests.judge.cases import Case, Drawn, draw

NUDGE = 2.0**-20  # is what every number is moved by to see what depends on it: too little to change a decision
POISON = 1000.0  # is what entries are moved by at least to see whether an output changes
# How many entries of an array are tried by themselves at most: positions where there are no cotangents, and each entry
# where these are all 0, which happens where inputs are all equal or each query sees one key.
FEW, MANY = 64, 8192


class Poison:
    """A tape that moves some entries of one named array far away, up or down at random; or each the other way.

    No two are moved as far: moved alike, they would leave the largest where it is.
    """

    def __init__(self, name: str, entries: np.ndarray, sign: int = 1) -> None:
        rng = np.random.default_rng(0)
        amount = sign * POISON * rng.choice([-1.0, 1.0], entries.shape) * rng.uniform(1.0, 2.0, entries.shape)
        self.name, self.amount = name, np.where(entries, amount, 0.0)
        self.values: dict[str, Any] = {}

    def tap(self, name: str, value: Any) -> Any:
        if name == self.name and np.shape(value) == self.amount.shape:
            value = value + self.amount
        self.values[name] = value
        return value

    def tap_step(self, names: list[str], i: int, carry: Any, ys: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """One step of a scan: a y that is the carry, or part of it, is moved in both."""
        moved = []
        for name, y in zip(names, ys, strict=True):
            new = y + self.amount[:, i] if name == self.name else y
            carry = replaced(carry, y, new)
            moved.append(new)
        return carry, tuple(moved)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str) -> Any:
        return self.values.get(name)


def source_of(name: str) -> str:
    """The name whose cotangent a name is, as a scoped tape writes it."""
    prefix, dot, last = name.rpartition(".")
    return f"{prefix}{dot}{last.removeprefix('d')}"


def replaced(carry: Any, old: Any, new: Any) -> Any:
    """A carry, maybe nested, with one array exchanged."""
    if carry is old:
        return new
    return tuple(replaced(part, old, new) for part in carry) if isinstance(carry, tuple) else carry


class Consequences:
    """The entries of each named array of one call that matter, found when they are asked for."""

    def __init__(self, case: Case, drawn: Drawn) -> None:
        self.case = case.at("float64")
        self.drawn = wide(drawn)
        self._hidden: dict[str, np.ndarray | bool] = {}

    def hidden(self, name: str, shape: tuple[int, ...]) -> np.ndarray | bool:
        """Where an array, or a cotangent of one, may hold anything; False for nowhere."""
        if name not in self._hidden:
            self._hidden[name] = self._find(name)
        hidden = self._hidden[name]
        return hidden if isinstance(hidden, np.ndarray) and hidden.shape == shape else False

    def neighbours(self, name: str) -> tuple[list[str], list[str]]:
        """The names that an array is made of and those that are made of it, without a third between; or of a cotangent.

        An array is made of an earlier one if it changes where that one is moved.
        """
        forward = self._graph
        behind = name not in forward
        here = source_of(name) if behind else name
        if here not in forward:
            return [], []

        def nearest(names: list[str], of: Callable[[str, str], bool]) -> list[str]:
            return [n for n in names if not any(of(n, m) for m in names if m != n)]

        before = nearest([n for n in forward if here in forward[n]], lambda n, m: m in forward[n])
        after = nearest([n for n in forward if n in forward[here]], lambda n, m: n in forward[m])
        if behind:
            known = self._sources
            return [scoped(n) for n in after if scoped(n) in known], [scoped(n) for n in before if scoped(n) in known]
        return before, after

    @cached_property
    def _graph(self) -> dict[str, set[str]]:
        """For each float array of the forward pass those behind it that change when it is moved.

        Through a recurrence those before it change, too.
        """
        whole: dict[str, Any] = {}
        outputs_of(self.case, self.drawn, whole)
        floats = {n: x for n, x in whole.items() if isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.size}
        graph: dict[str, set[str]] = {}
        for name, x in floats.items():
            tape = Poison(name, np.ones(x.shape, bool))
            outputs_of(self.case, self.drawn, tape)
            behind = list(floats)[list(floats).index(name) + 1 :]
            graph[name] = {n for n in behind if not np.array_equal(tape.values[n], floats[n], equal_nan=True)}
        return graph

    def _find(self, name: str) -> np.ndarray | bool:
        tape, nudged = self._tapes
        value = tape.get(name)
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or value.size == 0:
            return False
        source = self._sources.get(name)
        if source is not None:
            return tape[source] == nudged[source]
        cotangent = tape.get(scoped(name))
        if cotangent is None or cotangent.shape != value.shape:
            return self._tried(name, value.shape, FEW)
        # A decision, such as which score is the largest, has the gradient 0 and consequences.
        return cotangent == 0 if cotangent.any() else self._tried(name, value.shape, MANY)

    @cached_property
    def _sources(self) -> dict[str, str]:
        """Names of cotangents, with the arrays that they belong to."""
        forward = self._tapes[0]
        return {scoped(name): name for name in forward if scoped(name) in forward}

    def _tried(self, name: str, shape: tuple[int, ...], most: int) -> np.ndarray | bool:
        """The entries that change no output when they are moved: parts of the array are tried, then parts of these."""
        tried = units(shape, most)
        hidden, entries = np.zeros(tried, bool), np.arange(np.prod(tried)).reshape(tried)
        if inert(self.case, self.drawn, self._effects, name, np.ones(shape, bool)):
            return self._on_the_way(name) and np.ones(shape, bool)
        parts = np.array_split(entries.ravel(), 2)
        while parts:
            part = parts.pop()
            here = np.isin(entries, part)
            if part.size and inert(self.case, self.drawn, self._effects, name, np.broadcast_to(here, shape)):
                hidden |= here
            elif part.size > 1:
                parts += np.array_split(part, 2)
        return np.broadcast_to(hidden, shape)

    def _on_the_way(self, name: str) -> bool:
        """Whether the outputs of some call depend on an array; else it is only recorded, and compared."""
        case = replace(self.case, call="full")
        drawn, arguments = draw(case), case.config.arguments()
        for marks in (False, True):  # positions that are set apart, all or none
            inputs = {n: np.full_like(x, marks if arguments[n].kind == "marks" else True) if x.dtype == bool else x
                      for n, x in drawn.inputs.items()}  # fmt: skip
            open_call, tape = replace(drawn, inputs=inputs), {}
            effects = effects_of(case, open_call, tape)
            if name in tape and not inert(case, open_call, effects, name, np.ones(tape[name].shape, bool)):
                return True
        return False

    @cached_property
    def _effects(self) -> dict[str, np.ndarray]:
        return effects_of(self.case, self.drawn, {})

    @cached_property
    def _tapes(self) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Values and cotangents by name; and the values where all numbers are moved a little."""
        tape: dict[str, Any] = {}
        outputs = outputs_of(self.case, self.drawn, tape)
        dys = pulled(self.case, self.drawn, {name: x.shape for name, x in outputs.items()})
        with np.errstate(all="ignore"):
            numpy_layer(self.case, self.drawn.params).vjp(tape, *dys.values())
        nudged: dict[str, Any] = {}
        outputs_of(self.case, moved_a_little(self.drawn), nudged)
        return tape, nudged


def wide(drawn: Drawn) -> Drawn:
    """The same numbers in float64."""
    inputs, params, cotangents = (
        {name: widened(x) for name, x in part.items()} for part in (drawn.inputs, drawn.params, drawn.pulled)
    )
    return Drawn(inputs, params, drawn.seed, cotangents)


def outputs_of(case: Case, drawn: Drawn, tape: Any) -> dict[str, np.ndarray]:
    """The outputs of the reference in float64."""
    layer, options = numpy_layer(case, drawn.params), extras(case.config.variant, case.config.class_name)
    with np.errstate(all="ignore"):
        return leaves(layer(**drawn.inputs, **options, tape=tape))


def effects_of(case: Case, drawn: Drawn, tape: Any) -> dict[str, np.ndarray]:
    """The outputs of the reference in float64, and the decisions on its tape: numbers of places, and who sees whom."""
    outputs = outputs_of(case, drawn, tape)
    values = tape.values if isinstance(tape, Poison) else tape
    decisions = {n: x for n, x in values.items() if isinstance(x, np.ndarray) and x.dtype.kind in "biu"}
    return outputs | {f"decision {name}": x for name, x in decisions.items()}


def results_of(case: Case, drawn: Drawn) -> dict[str, np.ndarray]:
    """The outputs and gradients of the reference in float64, by name."""
    tape: dict[str, Any] = {}
    outputs = outputs_of(case, drawn, tape)
    dys = pulled(case, drawn, {name: x.shape for name, x in outputs.items()})
    with np.errstate(all="ignore"):
        grads = numpy_layer(case, drawn.params).vjp(tape, *dys.values())
    return outputs | {f"d{name}": x for name, x in (grads.inputs | grads.params).items()}


def inert(case: Case, drawn: Drawn, effects: dict[str, np.ndarray], name: str, entries: np.ndarray) -> bool:
    """Whether outputs and decisions stay the same, bit by bit, when entries of an array are moved.

    Each is moved up and down: what is chosen stays so when it grows, and what is not when it shrinks.
    """
    for sign in (1, -1):
        moved = effects_of(case, drawn, Poison(name, entries, sign))
        if not all(np.array_equal(moved[n], x, equal_nan=True) for n, x in effects.items()):
            return False
    return True


def moved_a_little(drawn: Drawn) -> Drawn:
    """The same call with every float moved by chance."""
    rng = np.random.default_rng([drawn.seed, 7])

    def other(x: np.ndarray) -> np.ndarray:
        return x + NUDGE * rng.normal(size=x.shape) if x.dtype.kind == "f" else x

    inputs, params = ({name: other(x) for name, x in part.items()} for part in (drawn.inputs, drawn.params))
    return replace(drawn, inputs=inputs, params=params)


def units(shape: tuple[int, ...], most: int) -> tuple[int, ...]:
    """The shape of an array with its last axes taken as one where it has too many entries to try each."""
    kept = len(shape)
    while kept > 2 and np.prod(shape[:kept]) > most:
        kept -= 1
    return (*shape[:kept], *(1,) * (len(shape) - kept))


_known: OrderedDict[tuple[Case, str], Consequences] = OrderedDict()
KNOWN = 16


def consequences(case: Case, drawn: Drawn) -> Consequences:
    """The consequences of a call; the last few are remembered, because a search for a cause asks again and again."""
    digest = hashlib.sha256()
    for part in (drawn.inputs, drawn.params, drawn.pulled):
        for name, x in part.items():
            digest.update(f"{name} {x.dtype} {x.shape}".encode() + x.tobytes())
    key = case, digest.hexdigest()
    if key not in _known:
        _known[key] = Consequences(case, drawn)
        while len(_known) > KNOWN:
            _known.popitem(last=False)
    return _known[key]
