"""Bring your own: a torch module, a Flax module or a function, made into a candidate that the judge takes.

Weights are read from the candidate and stay as they are.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config
from attn_np.ops import DTYPES
from attn_np.weights.layouts._rearrange import reverse
from parity_tests.judge.candidates import Candidate, Outcome, collect
from parity_tests.judge.cases import Case, Drawn
from parity_tests.ports.arguments import accepted, needed, not_given
from parity_tests.ports.jax_port import jax_port
from parity_tests.ports.names import (
    Names,
    arguments_of,
    arranged,
    axes_moved,
    framework_of,
    in_our_axes,
    invoke,
    letters_of,
    pair,
    returned,
)
from parity_tests.ports.port import MissingDeviceError, Port, pulling
from parity_tests.ports.torch_port import torch_port


def port(
    candidate: Any,
    config: Config,
    names: Names,
    framework: str | None = None,
    dtype: str | None = None,
    device: str | None = None,
) -> Port:
    """Make a candidate of a torch module, a Flax module or a function.

    Raises:
        TypeError: it is none of them.
        MissingDeviceError: there is no such device.
        ValueError: names that do not fit the variant or the candidate.
    """
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(
            f"assert_parity: expected dtype= to be one of {', '.join(map(repr, DTYPES))}, got {dtype!r}; name it so"
        )
    kind = framework_of(candidate)
    framework = framework or kind
    if names.vjp is not None and framework != "numpy":
        raise ValueError(
            f"assert_parity: expected vjp= with a function of NumPy arrays, got a candidate of {framework}; leave it "
            f"out: its own gradients are judged"
        )
    makers = {"torch": torch_port, "jax": jax_port, "numpy": array_port}
    if framework not in makers:
        raise ValueError(
            f"assert_parity: expected framework= to be one of {', '.join(makers)}, got {framework!r}; "
            f"{contract.did_you_mean(framework, tuple(makers))}"
        )
    return makers[framework](candidate, config, names, dtype, device)


NO_GRADIENTS = (
    "gradients not judged: a function of NumPy arrays has none of its own; vjp= takes its backward pass by hand"
)


def array_port(candidate: Any, config: Config, names: Names, dtype: str | None, device: str | None) -> Port:
    """A function of NumPy arrays, or of anything that takes and gives them: outputs and intermediates, and gradients
    where its backward pass is given.
    """
    if device not in (None, "cpu"):
        raise MissingDeviceError(f"device: expected cpu for a function of NumPy arrays, got {device!r}; set framework=")
    taken = accepted(candidate, config, names)
    notes: dict[str, None] = {} if names.vjp else {NO_GRADIENTS: None}

    def run(case: Case, drawn: Drawn, taped: bool) -> Outcome:
        sizes, outcome = letters_of(case, drawn), Outcome()
        held = {name: x.copy() for name, x in drawn.params.items()}
        function = (lambda *a, **k: candidate(held, *a, **k)) if held else candidate
        given = {name: x.copy() for name, x in drawn.inputs.items()}
        outputs, tape = returned(invoke(function, given, taken, names, sizes), names, sizes, notes)
        collect(outcome, "outputs", outputs, np.asarray)
        collect(outcome, "tape", in_our_axes(tape, names, sizes), np.asarray)
        dys = pulling(outputs, drawn)
        if names.vjp is not None and dys is not None:
            collect(outcome, "grads", gradients_by_hand(names, drawn, dys, taken, sizes, notes), np.asarray)
        return outcome

    return Port(
        Candidate("your", "function", "cpu", run),
        None,
        dtype or "float64",
        tuple(taken),
        needed(candidate, config, names, taken),
        not_given(candidate, config, names, taken),
        notes=notes,
    )


def gradients_by_hand(
    names: Names,
    drawn: Drawn,
    dys: Mapping[str, np.ndarray],
    taken: Mapping[str, Any],
    sizes: Mapping[str, int],
    notes: dict[str, None],
) -> dict[str, np.ndarray]:
    """What a backward pass by hand returns, under the judge's names and in our axes.

    Raises:
        TypeError: it returns no dictionary.
        ValueError: a gradient that it leaves out, or one of something else.
    """
    given = {name: x.copy() for name, x in drawn.inputs.items()}
    positional, keywords = arguments_of(given, taken, names, sizes)
    held = ({name: x.copy() for name, x in drawn.params.items()},) if drawn.params else ()
    axes = dict(pair(named) for named in names.outputs if named is not None)
    back = {name: None if pattern is None else reverse(pattern) for name, pattern in axes.items()}
    pulls = {name: arranged(dy, back[name], sizes, axes_moved) for name, dy in dys.items()}
    result = names.vjp and names.vjp(*held, *positional, **keywords, **{f"d{name}": dy for name, dy in pulls.items()})
    floats = [name for name, x in drawn.inputs.items() if x.dtype.kind not in "biu"]
    known = (*floats, *drawn.params)
    if not isinstance(result, Mapping):
        raise TypeError(
            f"assert_parity: expected vjp= to return a dictionary of gradients, got {type(result).__name__}; its keys "
            f"are {', '.join(known)}"
        )
    absent = [name for name in known if name not in result]
    if absent:
        raise ValueError(
            f"assert_parity: expected vjp= to return a gradient of each of {', '.join(known)}, got none of "
            f"{', '.join(absent)}; return 0 where nothing depends on it, None where it is not to be judged"
        )
    other = [name for name in result if name not in known]
    if other:
        fix = contract.did_you_mean(other[0], known)
        raise ValueError(f"assert_parity: expected gradients of {', '.join(known)} from vjp=, got {other[0]!r}; {fix}")
    unjudged = [f"d{name}" for name in known if result[name] is None]
    if unjudged:
        notes[f"gradients not judged, for which vjp= returned None: {', '.join(unjudged)}"] = None
    shapes = {name: x.shape for name, x in (drawn.inputs | drawn.params).items()}
    grads = {name: np.asarray(x, float if np.ndim(x) == 0 else None) for name, x in result.items() if x is not None}
    grads = {name: x if x.ndim else np.broadcast_to(x, shapes[name]) for name, x in grads.items()}
    moved = {n for n in floats if pair(taken[n])[1] is not None and np.ndim(result[n])}
    return {f"d{name}": axes_back(x, drawn, name, taken, sizes) if name in moved else x for name, x in grads.items()}


def axes_back(
    grad: np.ndarray, drawn: Drawn, name: str, taken: Mapping[str, Any], sizes: Mapping[str, int]
) -> np.ndarray:
    """The gradient of an argument in our axes, from one in those that its pattern gave it."""
    shape, (_, pattern) = drawn.inputs[name].shape, pair(taken[name])
    places = axes_moved(np.arange(drawn.inputs[name].size).reshape(shape), str(pattern), sizes)
    if grad.shape != places.shape:
        raise ValueError(
            f"assert_parity: expected a gradient of {name} in the shape that it was given, {places.shape}, from vjp=, "
            f"got {grad.shape}; return it with the axes of {pattern!r}"
        )
    back = np.empty(drawn.inputs[name].size, grad.dtype)
    back[places.reshape(-1)] = grad.reshape(-1)
    return back.reshape(shape)
