"""What the commands share: the console, progress, and checks of options."""

from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from attn_np import contract

# Where the output goes to a file or a pipe, lines are as long as they need to be.
console = Console(highlight=False, width=None if Console().is_terminal else 160)


def progress(*more: str) -> Progress:
    """A bar for long work, gone when it is done, with more columns of text."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, *map(TextColumn, more), console=console, transient=True)


def listed(text: str | None, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    """A comma-separated option, each word known."""
    names = known if not text else tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"expected {what}, got {name!r}; {contract.nearest(name, known)}")
    return names


def writable(*paths: Path | None) -> None:
    """Refuse files in folders that are not there before any work is done."""
    for path in paths:
        if path is not None and not path.resolve().parent.is_dir():
            raise typer.BadParameter(f"expected a file in a folder that exists, got {path}; make {path.parent} first")
        if path is not None and path.is_dir():
            raise typer.BadParameter(f"expected a file, got the folder {path}; name a file in it")
