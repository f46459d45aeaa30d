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


KINDS = {"json": (".json",), "html": (".html", ".htm"), "picture": (".png", ".svg", ".pdf", ".jpg", ".jpeg")}


def writable(*read: Path | None, **reports: Path | None) -> None:
    """Refuse files that a command cannot or must not write, before any work is done.

    A report replaces one of its own kind, which its name tells; never another file, nor what the command reads.

    Args:
        read: what the command reads; of a folder, all that is in it.
        reports: what it writes, by kind.
    """
    for kind, path in reports.items():
        if path is None:
            continue
        given = [source for source in read if source is not None and path.resolve().is_relative_to(source.resolve())]
        if given and path.exists():
            raise typer.BadParameter(f"expected a file to write, got {path}, which is read; name another")
        if path.exists() and not path.is_dir() and path.suffix.lower() not in KINDS[kind]:
            raise typer.BadParameter(f"expected a new file or {kind} to replace, got {path}; name another or remove it")
        creatable(path)


def creatable(path: Path, overwrite: bool = True) -> None:
    """Refuse a file in a folder that is not there, and without `overwrite` one that exists."""
    if not path.resolve().parent.is_dir():
        raise typer.BadParameter(f"expected a file in a folder that exists, got {path}; make {path.parent} first")
    if path.is_dir():
        raise typer.BadParameter(f"expected a file, got the folder {path}; name a file in it")
    if path.exists() and not overwrite:
        raise typer.BadParameter(f"expected a new file, got {path}, which exists; name another, or pass --overwrite")
