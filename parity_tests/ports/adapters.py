"""Bring your own: a torch module, a Flax module or a function, made into a candidate that the judge takes.

Weights are read from the candidate and stay as they are.
"""

from typing import Any

import numpy as np

from attn_np import contract
from attn_np._ops import DTYPES
from attn_np.contract import Config
from parity_tests.judge.candidates import Candidate, Outcome, collect
from parity_tests.judge.cases import Case, Drawn
from parity_tests.ports.jax_port import jax_port
from parity_tests.ports.names import (
    Names,
    accepted,
    framework_of,
    in_our_axes,
    invoke,
    letters_of,
    needed,
    not_given,
    returned,
)
from parity_tests.ports.port import MissingDeviceError, Port
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
    makers = {"torch": torch_port, "jax": jax_port, "numpy": array_port}
    if framework not in makers:
        raise ValueError(
            f"assert_parity: expected framework= to be one of {', '.join(makers)}, got {framework!r}; "
            f"{contract.did_you_mean(framework, tuple(makers))}"
        )
    return makers[framework](candidate, config, names, dtype, device)


def array_port(candidate: Any, config: Config, names: Names, dtype: str | None, device: str | None) -> Port:
    """A function of NumPy arrays, or of anything that takes and gives them: outputs and intermediates, no gradients."""
    if device not in (None, "cpu"):
        raise MissingDeviceError(f"device: expected cpu for a function of NumPy arrays, got {device!r}; set framework=")
    taken = accepted(candidate, config, names)
    notes: dict[str, None] = {}

    def run(case: Case, drawn: Drawn, taped: bool) -> Outcome:
        sizes, outcome = letters_of(case, drawn), Outcome()
        held = {name: x.copy() for name, x in drawn.params.items()}
        function = (lambda *a, **k: candidate(held, *a, **k)) if held else candidate
        given = {name: x.copy() for name, x in drawn.inputs.items()}
        outputs, tape = returned(invoke(function, given, taken, names, sizes), names, sizes, notes)
        collect(outcome, "outputs", outputs, np.asarray)
        collect(outcome, "tape", in_our_axes(tape, names, sizes), np.asarray)
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
