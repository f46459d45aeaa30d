"""A recording: which submodules a module called, in order, with what they got and gave.

A module is run twice, in float64 and in its own type, which for a float64 module is float32. The difference of the two
runs is the error of the own type, at every submodule. Every array is kept as float64, exactly.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from os import PathLike, fspath
from typing import Any

import numpy as np

from attn_np.weights import tensors
from attn_np.weights._safetensors import TensorFile, write_tensors
from parity_tests.bounds.error_array import widened
from parity_tests.ports.trace import narrowest

FORMAT = "attn-modules/2"
Arrays = dict[str, np.ndarray]
BLOCK = 2**18
PARTS = ("inputs", "outputs", "input_grads", "output_grads")


@dataclass
class Call:
    """One call of a submodule.

    Attributes:
        name: its path in the module, such as "layers.0.mlp"; "" for the module itself.
        kind: the name of its class.
        inputs, outputs: the arrays, by argument and by place in what is returned.
        numbers: the attributes that are a float, such as the eps of a norm.
        input_grads, output_grads: the gradients of a random projection of the module's output with respect to what
            this call gets, through this call alone, and gives. One that is left out is 0.
        parameters: what the module takes, by name.
    """

    name: str
    kind: str
    inputs: Arrays = field(default_factory=dict)
    outputs: Arrays = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    input_grads: Arrays = field(default_factory=dict)
    output_grads: Arrays = field(default_factory=dict)
    parameters: tuple[str, ...] = ()


def call_of(name: str, module: Any, inputs: Arrays, outputs: Arrays, parameters: tuple[str, ...] = ()) -> Call:
    """The call of a submodule."""
    numbers = {key: x for key, x in vars(module).items() if type(x) is float}
    return Call(name, type(module).__name__, inputs, outputs, numbers, parameters=parameters)


@dataclass
class Run:
    """One run: the calls in the order in which they ended, and the gradients of a random projection of the output."""

    calls: list[Call] = field(default_factory=list)
    input_grads: Arrays = field(default_factory=dict)
    weight_grads: Arrays = field(default_factory=dict)


@dataclass
class Attention:
    """A submodule that is a known variant of attention: its config and its weights, under our names.

    Attributes:
        keys: our parameters to their names in the module, with the pattern that leads from their axes to ours.
    """

    variant: str
    config: dict[str, Any]
    params: Arrays
    keys: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def output_owner(self) -> str:
        """The module that holds the output projection; "" where none is known."""
        return self.keys.get("w_o", ("", ""))[0].rpartition(".")[0]


@dataclass
class Recording:
    """A module that was run and listened to.

    Attributes:
        who: framework and class, such as "torch LlamaModel".
        dtype: its own type.
        exact: the run in float64, in which every cast to a smaller type is left out.
        own: the run in its own type, or in float32 for a float64 module.
        moved: the run in float64 with every rounded constant, such as a table of frequencies, moved by the error that
            it may have; None if the module holds none.
        inputs, weights: what it ran with.
        in_first: the weights that are stored as [in, out].
        attention: submodules that are attention, by name.
        weight_errors: of the gradient of each weight, how far the own type's is from that in float64, and the root mean
            square of what moved constants change in it. These stand in for the gradients of those runs.
        tokens: which positions hold tokens, `b t`; None where all do.
    """

    who: str
    dtype: str
    exact: Run
    own: Run
    moved: Run | None
    inputs: Arrays
    weights: Arrays
    in_first: list[str] = field(default_factory=list)
    attention: dict[str, Attention] = field(default_factory=dict)
    weight_errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    tokens: np.ndarray | None = None

    @property
    def probe(self) -> str:
        """The type of the run `own`."""
        return "float32" if self.dtype == "float64" else self.dtype

    @property
    def never_called(self) -> list[str]:
        """The submodules that hold weights and were not called, nor anything in them."""
        called = [call.name for call in self.exact.calls]
        if self.exact.calls[-1].kind == "function":  # which has no submodules
            return []
        owners = dict.fromkeys(name.rpartition(".")[0] for name in self.weights)
        return [at for at in owners if not any(name == at or name.startswith(f"{at}.") for name in called)]

    def save(self, path: str | PathLike[str]) -> None:
        """Write the recording, whole or not at all."""
        values: Arrays = {}
        about: dict[str, Any] = {"who": self.who, "dtype": self.dtype, "in_first": self.in_first, "runs": {}}
        for kind, part in (("inputs", self.inputs), ("weights", self.weights)):
            values |= {f"{kind}/{name}": x for name, x in part.items()}
        for kind, run in (("exact", self.exact), ("own", self.own), ("moved", self.moved)):
            if run is not None:
                about["runs"][kind] = [[call.name, call.kind, call.numbers, call.parameters] for call in run.calls]
                values |= {f"{kind}/{name}": narrowest(x, self.probe) for name, x in flat_run(run)}
        if self.tokens is not None:
            values["tokens"] = self.tokens
        about["weight_errors"] = self.weight_errors
        about["attention"] = {
            name: {"variant": x.variant, "config": x.config, "keys": x.keys} for name, x in self.attention.items()
        }
        for at, x in self.attention.items():
            values |= {f"attention/{at}/{name}": param for name, param in x.params.items()}
        write_tensors(path, values, {"format": FORMAT, "about": json.dumps(about)})


def flat_run(run: Run) -> Iterator[tuple[str, np.ndarray]]:
    """Every array of a run with its name in the file."""
    for i, call in enumerate(run.calls):
        for part in PARTS:
            yield from ((f"{i}/{part}/{name}", x) for name, x in getattr(call, part).items())
    yield from ((f"input_grads/{name}", x) for name, x in run.input_grads.items())
    yield from ((f"weight_grads/{name}", x) for name, x in run.weight_grads.items())


def load_modules(path: str | PathLike[str]) -> Recording:
    """The recording in a file that `record_modules` wrote.

    Raises:
        WeightFileError: the file is no safetensors file.
        ValueError: it is no recording of modules.
    """
    with TensorFile(path) as file:
        metadata = dict(file.metadata)
    if metadata.get("format") != FORMAT:
        got = metadata.get("format", "another file")
        raise ValueError(
            f"{fspath(path)}: expected a recording of the format {FORMAT}, got {got}; write it with record_modules"
        )
    about, held = json.loads(metadata["about"]), tensors(path)

    def part(prefix: str) -> Arrays:
        return {name.removeprefix(prefix): x for name, x in held.items() if name.startswith(prefix)}

    def run(kind: str) -> Run:
        calls = []
        for i, (name, cls, numbers, parameters) in enumerate(about["runs"][kind]):
            arrays = {key: wide(part(f"{kind}/{i}/{key}/")) for key in PARTS}
            calls.append(Call(name, cls, numbers=numbers, parameters=tuple(parameters), **arrays))
        return Run(calls, wide(part(f"{kind}/input_grads/")), wide(part(f"{kind}/weight_grads/")))

    attention = {
        name: Attention(
            x["variant"], x["config"], part(f"attention/{name}/"), {k: (v[0], v[1]) for k, v in x["keys"].items()}
        )
        for name, x in about["attention"].items()
    }
    moved = run("moved") if "moved" in about["runs"] else None
    return Recording(
        about["who"], about["dtype"], run("exact"), run("own"), moved, part("inputs/"), part("weights/"),
        about["in_first"], attention, {name: (x[0], x[1]) for name, x in about["weight_errors"].items()},
        held.get("tokens"),
    )  # fmt: skip


def wide(part: Mapping[str, np.ndarray]) -> Arrays:
    return {name: widened(x) for name, x in part.items()}


def real(x: np.ndarray, tokens: np.ndarray | None) -> np.ndarray:
    """An array with 0 at the positions that hold no token.

    Positions are the second axis, or the third after heads, or one axis with the rows of the batch.
    """
    if tokens is None or x.ndim == 0:
        return x
    (b, t), n = tokens.shape, x.ndim
    if x.shape[:2] == (b, t):
        shape = (b, t) + (1,) * (n - 2)
    elif n > 2 and (x.shape[0], x.shape[2]) == (b, t):
        shape = (b, 1, t) + (1,) * (n - 3)
    elif x.shape[0] == b * t:
        shape = (b * t,) + (1,) * (n - 1)
    else:
        return x
    return np.where(tokens.reshape(shape), x, np.zeros((), x.dtype))


def blocks(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """The numbers of arrays of one shape, some at a time: what is computed of them takes no memory of their size."""
    flat = [x.reshape(-1) for x in arrays]
    for start in range(0, flat[0].size, BLOCK):
        yield tuple(x[start : start + BLOCK] for x in flat)


# Nested values --------------------------------------------------------------------------------------------------------


def is_array(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


def flat(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The arrays in nested tuples, lists, dictionaries and dataclasses, by their paths; all else is left out."""
    if is_array(tree):
        yield name, tree
        return
    if isinstance(tree, Mapping):
        items = list(tree.items())
    elif isinstance(tree, tuple | list):
        items = list(enumerate(tree))
    elif is_dataclass(tree) and not isinstance(tree, type):
        items = [(x.name, getattr(tree, x.name)) for x in fields(tree)]
    else:
        return
    for key, value in items:
        yield from flat(value, f"{name}.{key}" if name else str(key))


def mapped(tree: Any, change: Callable[[str, Any], Any], name: str = "") -> Any:
    """The same nested value with every array changed, by its path."""
    if is_array(tree):
        return change(name, tree)
    if isinstance(tree, Mapping):
        return {key: mapped(value, change, f"{name}.{key}" if name else str(key)) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*mapped(tuple(tree), change, name))
    if isinstance(tree, tuple | list):
        return type(tree)(mapped(value, change, f"{name}.{i}" if name else str(i)) for i, value in enumerate(tree))
    return tree
