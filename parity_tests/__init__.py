"""The tests, and the tool that checks whether implementations of attention agree.

As a library: `assert_parity` judges an implementation of your own, `assert_decoding_parity` its steps with a cache,
`assert_kernel` judges a kernel within what it takes, `compare` walks two traces, `compare_modules` finds where any two
modules part, `show` makes a page of a call. What the first two and `compare_modules` find is shown by `to_table` and
`to_html`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parity_tests.kernels.likes import Like
    from parity_tests.kernels.limits import Limits
    from parity_tests.kernels.referee import KernelError, assert_kernel
    from parity_tests.ports.compare import compare
    from parity_tests.ports.decoding import assert_decoding_parity
    from parity_tests.ports.modules import compare_modules, record_modules
    from parity_tests.ports.modules.comparison import ModuleComparison
    from parity_tests.ports.modules.recordings import load_modules
    from parity_tests.ports.modules.walk import compare_recordings
    from parity_tests.ports.parity import ParityError, Verdict, assert_parity, replay
    from parity_tests.ports.trace import Trace, load, record
    from parity_tests.report.results import to_html, to_table
    from parity_tests.viewer.page import show

__all__ = [
    "KernelError",
    "Like",
    "Limits",
    "ModuleComparison",
    "ParityError",
    "Trace",
    "Verdict",
    "assert_decoding_parity",
    "assert_kernel",
    "assert_parity",
    "compare",
    "compare_modules",
    "compare_recordings",
    "load",
    "load_modules",
    "record",
    "record_modules",
    "replay",
    "show",
    "to_html",
    "to_table",
]
ROOMS = {
    "kernels.likes": ("Like",),
    "kernels.limits": ("Limits",),
    "kernels.referee": ("KernelError", "assert_kernel"),
    "ports.trace": ("Trace", "load", "record"),
    "ports.compare": ("compare",),
    "ports.decoding": ("assert_decoding_parity",),
    "ports.modules": ("ModuleComparison", "compare_modules", "compare_recordings", "load_modules", "record_modules"),
    "report.results": ("to_html", "to_table"),
    "viewer.page": ("show",),
}


def __getattr__(name: str) -> Any:
    """Load on first use: importing the package, as pytest does for its plugin, loads nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    room = next((room for room, names in ROOMS.items() if name in names), "ports.parity")
    return getattr(import_module(f"{__name__}.{room}"), name)
