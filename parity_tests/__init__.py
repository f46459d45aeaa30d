"""The tests, and the tool that checks whether implementations of attention agree.

As a library: `assert_parity` judges an implementation of your own, `assert_decoding_parity` its steps with a cache,
`compare` walks two traces.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parity_tests.ports.compare import compare
    from parity_tests.ports.decoding import assert_decoding_parity
    from parity_tests.ports.parity import ParityError, Verdict, assert_parity, replay
    from parity_tests.ports.trace import Trace, load, record

__all__ = [
    "ParityError",
    "Trace",
    "Verdict",
    "assert_decoding_parity",
    "assert_parity",
    "compare",
    "load",
    "record",
    "replay",
]
ROOMS = {
    "trace": ("Trace", "load", "record"),
    "compare": ("compare",),
    "decoding": ("assert_decoding_parity",),
}


def __getattr__(name: str) -> Any:
    """Load on first use: importing the package, as pytest does for its plugin, loads nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    room = next((room for room, names in ROOMS.items() if name in names), "parity")
    return getattr(import_module(f"{__name__}.ports.{room}"), name)
