"""A line on a terminal that says what long work is at."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

# Work that takes no longer says nothing.
SECONDS = 1.0


@contextmanager
def progress(who: str) -> Iterator[Callable[[str], None]]:
    """A function that shows where the work is, in a line on stderr that is gone at the end; mute off a terminal."""
    start, shown = monotonic(), False

    def tell(words: str) -> None:
        nonlocal shown
        if sys.stderr.isatty() and monotonic() - start >= SECONDS:
            sys.stderr.write(f"\r{who}: {words}\x1b[K")
            sys.stderr.flush()
            shown = True

    try:
        yield tell
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
