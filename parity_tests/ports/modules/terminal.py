"""A line on the terminal for models that take a while."""

import sys
from collections.abc import Callable

from parity_tests.ports.modules.recordings import Arrays
from parity_tests.ports.modules.sides import LARGE, Side, size_of


def progress(name: str, side: Side, weights: Arrays | None = None) -> Callable[[str], None]:
    """Says in which type a side runs: on the terminal alone, in one line that the next replaces."""
    size = size_of(side.weights or weights or {})
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
