"""The command attn-parity: do the three trees agree, on this machine and on these weights?"""

import os
import pkgutil
import sys
from importlib import import_module

from attn_np.contract._package import how_to_install

try:
    import typer
    from rich.console import Console  # noqa: F401
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"attn-parity: expected the package {missing.name}, got none; {how_to_install('parity')}"
    ) from None

from parity_tests import commands
from parity_tests.commands._shared import INTERRUPTED, interruptible

HELP = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False, context_settings=HELP
)

for name in sorted(module.name for module in pkgutil.iter_modules(commands.__path__)):
    if name != "app" and not name.startswith("_"):
        command = import_module(f"{commands.__name__}.{name}").main
        app.command(name.rstrip("_"), context_settings=HELP)(interruptible(name.rstrip("_"), command))


def main() -> None:
    """Run a command; where it needs a package that is not installed, say which and what to do."""
    try:
        app()
    except ModuleNotFoundError as missing:
        if "pip install" not in str(missing):
            raise
        raise SystemExit(str(missing)) from None
    except SystemExit as end:
        if end.code != INTERRUPTED:
            raise
        # The threads of a framework may still be at work; that Python takes the process down around them can crash.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED)
