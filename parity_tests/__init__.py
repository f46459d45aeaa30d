"""The tests, and the tool that checks whether implementations of attention agree.

As a library: `assert_parity` judges an implementation of your own, `compare` walks two traces.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parity_tests.ports.parity import ParityError, Verdict, assert_parity, compare, replay
    from parity_tests.ports.trace import Trace, load, record

__all__ = ["ParityError", "Trace", "Verdict", "assert_parity", "compare", "load", "record", "replay"]


def __getattr__(name: str) -> Any:
    """Load on first use: importing the package, as pytest does for its plugin, loads nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(
        import_module(f"{__name__}.ports.{'trace' if name in ('Trace', 'load', 'record') else 'parity'}"), name
    )
