"""What every kind of port shares: the port itself, its devices, and the gradients that its outputs get."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attn_np import contract
from parity_tests.judge.candidates import Candidate
from parity_tests.judge.cases import Drawn
from parity_tests.ports.watch import Watch


class MissingDeviceError(ValueError):
    """The machine does not have the device that was asked for."""


@dataclass(frozen=True)
class Port:
    """Somebody's implementation, ready to be judged.

    Attributes:
        candidate: runs a case, as the trees' own candidates do.
        params: its weights under our names; None for a function, which gets those that are drawn.
        dtype: of its weights, or the one asked for.
        arguments: the arguments of ours that it takes.
        required: those that it cannot do without.
        not_given: arguments of its own that none of ours maps to, which a call never gives.
        watch: what its runs computed with, such as a narrower type than float64; filled in as it runs.
        notes: what of it was not judged, in words; filled in as it runs.
    """

    candidate: Candidate
    params: dict[str, np.ndarray] | None
    dtype: str
    arguments: tuple[str, ...]
    required: tuple[str, ...]
    not_given: tuple[str, ...] = ()
    watch: Watch = field(default_factory=Watch)
    notes: dict[str, None] = field(default_factory=dict)


def refuse_unknown(framework: str, name: str, known: tuple[str, ...]) -> None:
    """A name that no machine has is a mistake, not an absent device.

    Raises:
        ValueError: naming the devices of the framework.
    """
    if name not in known:
        raise ValueError(
            f"device: expected a device of {framework}, got {name!r}; {contract.did_you_mean(name, known)}"
        )


def pulling(outputs: Mapping[str, Any], drawn: Drawn) -> dict[str, np.ndarray] | None:
    """The incoming gradients of what was returned; None where a shape is wrong, which the outputs' verdict tells.

    Raises:
        ValueError: an output that gets a gradient was not returned.
    """
    absent = [name for name, x in drawn.pulled.items() if name not in outputs and x.any()]
    if absent:
        raise ValueError(
            f"replay: expected the outputs that get a gradient in the trace, {', '.join(drawn.pulled)}, got none for "
            f"{', '.join(absent)}; return it, and name it in outputs="
        )
    held = {name: x for name, x in drawn.pulled.items() if name in outputs}
    return held if all(tuple(np.shape(outputs[name])) == x.shape for name, x in held.items()) else None
