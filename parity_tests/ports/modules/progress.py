"""A line on the terminal for models that take a while."""

import sys
from collections.abc import Callable, Mapping

import numpy as np

from parity_tests.ports.modules.sides import Side

# Numbers in the weights of a side from which on it is told what runs.
LARGE = 10_000_000


def progress(name: str, side: Side, weights: Mapping[str, np.ndarray] | None = None) -> Callable[[str], None]:
    """Says in which type a side runs: on the terminal alone, in one line that the next replaces."""
    size = sum(x.size for x in (side.weights or weights or {}).values())
    if size < LARGE or not sys.stderr.isatty():
        return lambda _: None

    def say(what: str) -> None:
        line = f"compare_modules: {name} ({side.who}, {size / 1e6:.0f} million weights) runs in {what}"
        print(f"\r{line}\033[K", end="", file=sys.stderr, flush=True)

    return say


def done() -> None:
    """Clear the line."""
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
