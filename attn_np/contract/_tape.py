"""The tape: a dictionary of named intermediates, written by the same line in every package."""

from collections.abc import Sequence
from typing import Any

Tape = dict[str, Any]


def record(tape: Any, **values: Any) -> Any:
    """Write values under their names and return them: `q, k = record(tape, q=q, k=k)`.

    `tape=None` writes nothing. Values that are None are returned and not written. A tape with a method `tap(name,
    value)` may return another value to continue with: the judge uses it to continue the reference from a
    candidate's numbers and to read JAX's cotangents.
    """
    if tape is not None:
        tap = getattr(tape, "tap", None)
        for name, value in values.items():
            if value is None:
                continue
            if tap is None:
                tape[name] = value
            else:
                values[name] = tap(name, value)
    out = tuple(values.values())
    return out[0] if len(out) == 1 else out


class BackwardTape(dict[str, Any]):
    """A tape that asks for no intermediates: with it `attend` may take the fast path, and `vjp` uses what that leaves.

    Attributes:
        residuals: what calls on the fast path, or in blocks of rows, leave for their backward pass, by the prefix of
            the scope that they were made in.
    """

    def __init__(self) -> None:
        super().__init__()
        self.residuals: dict[str, Any] = {}


def unscoped(tape: Any) -> tuple[Any, str]:
    """The tape behind the scopes, and their prefix."""
    prefix = ""
    while isinstance(tape, Scope):
        tape, prefix = tape.tape, f"{tape.prefix}.{prefix}"
    return tape, prefix


def save_residuals(tape: Any, value: Any) -> None:
    """In a `BackwardTape`, save what a call on the fast path, or in blocks of rows, leaves for its backward pass."""
    tape, prefix = unscoped(tape)
    if isinstance(tape, BackwardTape):
        tape.residuals[prefix] = value


def residuals_of(tape: Any) -> Any:
    """What `save_residuals` saved; None if nothing was, as on the textbook path."""
    tape, prefix = unscoped(tape)
    return tape.residuals.get(prefix) if isinstance(tape, BackwardTape) else None


def wants_intermediates(tape: Any) -> bool:
    """Whether there is a tape, and not one for the backward pass alone."""
    return tape is not None and not isinstance(unscoped(tape)[0], BackwardTape)


class Scope:
    """A view of a tape in which every name carries a prefix: the tape of a sub-layer."""

    def __init__(self, tape: Any, prefix: str) -> None:
        self.tape, self.prefix = tape, prefix

    def tap(self, name: str, value: Any) -> Any:
        return record(self.tape, **{f"{self.prefix}.{name}": value})

    def __getitem__(self, name: str) -> Any:
        return self.tape[f"{self.prefix}.{name}"]

    def __contains__(self, name: str) -> bool:
        return f"{self.prefix}.{name}" in self.tape

    def get(self, name: str) -> Any:
        return self[name] if name in self else None  # noqa: SIM401 - a view, without a dict's get

    @property
    def tap_step(self) -> Any:
        inner = getattr(self.tape, "tap_step", None)
        if inner is None:
            return None
        return lambda names, i, carry, ys: inner([f"{self.prefix}.{n}" for n in names], i, carry, ys)


def scope(tape: Any, prefix: str) -> Any:
    """The tape of a sub-layer: None stays None."""
    return None if tape is None else Scope(tape, prefix)


def tap_step(tape: Any, names: Sequence[str], i: int, carry: Any, ys: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """The carry and results of one step of a scan, as the tape returns them: only a judge's tape, which has
    `tap_step`, may change them.
    """
    tap = getattr(tape, "tap_step", None)
    return (carry, ys) if tap is None else tap(list(names), i, carry, ys)
