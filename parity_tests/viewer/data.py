"""What a page of the viewer shows: the arrays of one run, their formulas, and every framework's numbers beside ours."""

import base64
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from attn_np.contract import Config
from attn_np.contract._letters import LETTERS
from parity_tests.bounds.error_array import ErrArray, widened
from parity_tests.bounds.precision import precision_of
from parity_tests.explain.patterns import axes_of
from parity_tests.explain.verdicts import Judged, verdicts
from parity_tests.judge.candidates import Outcome, extras, numpy_layer
from parity_tests.judge.cases import Case, Drawn
from parity_tests.judge.frameworks import FRAMEWORKS, NEEDS
from parity_tests.judge.judging import ratios
from parity_tests.ports.parity import float64_in_jax
from parity_tests.viewer.formulas import FormulaTape, Traced, plain

TREES = {"numpy": ("NumPy", "attn_np"), "torch": ("PyTorch", "attn_torch"), "jax": ("JAX", "attn_jax")}
MOST_WEIGHTS = 20_000  # numbers of a weight that a page holds
BEYOND = 255  # hundredths of a bound that a byte holds: this, and all above


def frameworks_here() -> tuple[str, ...]:
    """The frameworks that are installed."""
    return tuple(name for name in FRAMEWORKS if all(find_spec(needed) for needed in NEEDS.get(name, ())))


def one_row(case: Case, drawn: Drawn, row: int, lengths: Mapping[str, int | None]) -> Drawn:
    """The inputs of one row of the batch, the sequences of queries and keys cut to a length.

    Raises:
        ValueError: the batch has no such row.
    """
    letters = {name: letters_of(case.config, name, x) for name, x in drawn.inputs.items()}
    sizes = [
        n for name, x in drawn.inputs.items() for letter, n in zip(letters[name], x.shape, strict=True) if letter == "b"
    ]
    rows = max(sizes, default=1)
    if not (isinstance(row, int) and 0 <= row < rows):
        raise ValueError(f"show: expected a row of the {rows} of the batch, got {row!r}; count from 0")
    inputs, cut = {}, {"t": lengths.get("t"), "s": lengths.get("s")}
    if not has_keys(case.config, drawn.inputs):  # those of the queries
        cut["s"] = cut["s"] or cut["t"]
    for name, x in drawn.inputs.items():
        for axis, letter in enumerate(letters[name]):
            n = cut.get(letter)
            if letter == "b" and x.shape[axis] > 1:
                x = np.take(x, [row], axis)
            elif n is not None and x.shape[axis] > 1:
                x = np.take(x, range(min(n, x.shape[axis])), axis)
        inputs[name] = np.ascontiguousarray(x)
    return Drawn(inputs, drawn.params, drawn.seed)


def letters_of(config: Config, name: str, x: np.ndarray) -> list[str]:
    """The letters of the axes that an argument has; of a mask or bias with fewer than it may have, the last ones."""
    letters = config.arguments()[name].axes.split()
    return letters[len(letters) - x.ndim :]


def has_keys(config: Config, inputs: Mapping[str, np.ndarray]) -> bool:
    """Whether keys or values are a sequence of their own."""
    return any(
        config.arguments()[name].kind == "array" and "s" in letters_of(config, name, x) for name, x in inputs.items()
    )


def formulas(case: Case, drawn: Drawn) -> FormulaTape:
    """The tape of the reference with the formula of every array."""
    config, layer = case.config, numpy_layer(case, drawn.params)
    letters = {name: x.axes.replace(" ", "") for name, x in (config.arguments() | config.params()).items()}

    def traced(arrays: Mapping[str, np.ndarray]) -> dict[str, Traced]:
        floats = {name: x for name, x in arrays.items() if x.dtype.kind not in "biu"}
        return {name: Traced(x, "named", axes=letters[name], name=name) for name, x in floats.items()}

    inputs, weights = traced(drawn.inputs), traced(layer.params())
    tape = FormulaTape(inputs, weights)
    layer.set_params(weights)
    layer(**drawn.inputs | inputs, **extras(config.variant, config.class_name), tape=tape)
    return tape


def encoded(x: Any, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(x).astype(kind).tobytes()).decode()


class Nodes:
    """Formulas as a list of plain dictionaries, each naming its arguments by their places in the list."""

    def __init__(self, kind: str) -> None:
        self.kind, self.nodes, self.places, self.alive = kind, [], {}, []

    def add(self, x: Traced) -> int:
        """The place of a formula, which is appended where it is new."""
        if id(x) not in self.places:
            node = {"op": x.op, "shape": x.shape} | self.content(x)
            self.places[id(x)] = len(self.nodes)
            self.nodes.append(node)
            self.alive.append(x)  # an id is taken again where an array is gone
        return self.places[id(x)]

    def of(self, formula: Traced | list[Traced] | None) -> dict[str, Any] | None:
        """Where the formula of an array is: its place, or one place for each step of a scan."""
        if isinstance(formula, list):
            return {"steps": [self.add(step) for step in formula]}
        return None if formula is None else {"node": self.add(formula)}

    def content(self, x: Traced) -> dict[str, Any]:
        if x.op == "constant" and x.size == 1:
            return {"op": "number", "values": encoded(x.v, self.kind)}
        if x.op == "constant":
            return {"values": encoded(x.v, self.kind)}
        out: dict[str, Any] = {"args": [self.add(arg) for arg in x.args]} if x.args else {}
        options = dict(x.options)
        if x.op == "copy":
            at = np.ravel(options.pop("at"))
            out["at"] = None if np.array_equal(at, np.arange(at.size)) else encoded(at, "<i4")
        if x.op == "given":
            out["values"] = encoded(x.v, self.kind)
        if options.get("allowed") is not None:
            options["allowed"] = encoded(options["allowed"], "u1")
        return out | options


def shares(got: np.ndarray, want: ErrArray) -> np.ndarray:
    """Error/bound of each number in hundredths, rounded up."""
    share = ratios(got, want.v, want.b)
    with np.errstate(invalid="ignore"):
        return np.where(share <= 1, np.ceil(100 * share), BEYOND)


def forward(framework: str, case: Case, drawn: Drawn) -> Judged:
    """The forward pass alone of one of the trees, with its tape."""
    who, package = TREES[framework]
    tree, ops = (import_module(f"{package}.{module}") for module in ("frame.api", "ops"))
    config, tape = case.config, {}
    with float64_in_jax(framework):
        params, inputs = ({n: ops.from_numpy(x) for n, x in part.items()} for part in (drawn.params, drawn.inputs))
        layer = tree.layer_class(config.variant).from_params(config, params, case.dtype)
        layer(**inputs, **extras(config.variant, config.class_name), tape=tape)
        outcome = Outcome(tape={name: widened(ops.to_numpy(x)) for name, x in tape.items()})
    return Judged(who, case, drawn, outcome, precision_of(case.dtype))


def page_data(case: Case, drawn: Drawn, runs: Sequence[Judged], tokens: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Everything a page holds, as JSON values.

    Args:
        case, drawn: the call.
        runs: runs of it; the values that are shown and written out are those of the first.
        tokens: words of the positions by the letter of their axis, "t" and "s".
    """
    tape, kind = formulas(case, drawn), "<f8" if case.dtype == "float64" else "<f4"
    nodes, stages = Nodes(kind), []
    wanted = [verdicts(run, backward=False)[1].wanted for run in runs]
    for name, others in tape.aliases.items():
        value = tape.given.get(name, tape.get(name))
        x = np.asarray(plain(value))
        if x.ndim == 0 or x.size == 0:
            continue
        known = value.axes if isinstance(value, Traced) else ""
        stage: dict[str, Any] = {
            "name": name,
            "also": [other for other in dict.fromkeys(others) if other != name],
            "axes": known or axes_of(case, name, x.ndim).replace(" ", ""),
            "shape": x.shape,
        }
        if x.dtype.kind == "b":
            stages.append(stage | {"mask": encoded(x, "u1")})
            continue
        results = {i: run.outcome.tape.get(name) for i, run in enumerate(runs) if name not in tape.given}
        results = {i: got for i, got in results.items() if got is not None and got.shape == x.shape}
        stage["values"] = encoded(results.get(0, widened(x)), kind)
        stage["runs"] = [
            {
                "who": i,
                "values": encoded(got, kind) if i else None,
                "shares": encoded(shares(got, wanted[i][name]), "u1"),
            }
            for i, got in results.items()
            if isinstance(wanted[i].get(name), ErrArray)
        ]
        stages.append(stage | {"formula": nodes.of(tape.formulas.get(name))})
    weights = {
        name: {"axes": x.axes, "shape": x.shape, "values": encoded(x.v, kind) if x.size <= MOST_WEIGHTS else None}
        for name, x in tape.given.items()
        if name not in tape.aliases
    }
    return {
        "kind": kind,
        "who": [run.who for run in runs],
        "tokens": dict(tokens),
        "stages": stages,
        "weights": weights,
        "nodes": nodes.nodes,
        "letters": LETTERS,
        "about": about(case.config),
    }


def about(config: Config) -> dict[str, Any]:
    fields = ", ".join(f"{name}={value!r}" for name, value in config.as_dict().items() if value is not None)
    return {"variant": config.variant, "title": config.title, "idea": config.idea, "fields": fields}
