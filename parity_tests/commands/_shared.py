"""What the commands share: the console, progress, checks of options, and how an error is said."""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from typer.models import OptionInfo

from attn_np import contract


class Output(Console):
    """The console of all commands. Where its reader has gone, as `head` does, a command goes on without a word: what it
    writes to files, and how it ends, is the same."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        with suppress(OSError, ValueError):  # no file of the system behind it: nothing is left to flush
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# Where the output goes to a file or a pipe, lines are as long as they need to be.
console = Output(highlight=False, width=None if Console().is_terminal else 160)
bars: list[Progress] = []
SECONDS = 60.0


class Bar(Progress):
    """A bar for long work; where no terminal shows it, a line on stderr every `SECONDS` seconds."""

    def start(self) -> None:
        super().start()
        self.told_at = monotonic()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        super().update(task_id, **changes)
        self.tell(task_id)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self.tell(task_id)

    def tell(self, task_id: TaskID) -> None:
        if self.console.is_terminal or monotonic() - self.told_at < SECONDS:
            return
        self.told_at, task = monotonic(), self.tasks[self.task_ids.index(task_id)]
        of = "" if task.total is None else f" of {task.total:,.0f}"
        print(f"{task.description}: {task.completed:,.0f}{of}", file=sys.stderr, flush=True)


def progress(*more: str) -> Progress:
    """A bar for long work, gone when it is done, with more columns of text; off a terminal, lines."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bars.append(Bar(*columns, *map(TextColumn, more), console=console, transient=True))
    return bars[-1]


INTERRUPTED = 130  # how a shell calls a command that Ctrl-C ended


def interruptible(name: str, command: Callable[..., None]) -> Callable[..., None]:
    """The command, which says on Ctrl-C what it was doing."""

    @wraps(command)
    def run(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except KeyboardInterrupt:
            tasks = [task for bar in bars for task in bar.tasks]
            at = f" at {tasks[-1].description}, {tasks[-1].completed:.0f} of {tasks[-1].total:.0f}" if tasks else ""
            console.print(f"[bold red]interrupted[/] attn-parity {name}{at}: no verdict, nothing written")
            raise typer.Exit(INTERRUPTED) from None

    return run


def needs_clone() -> None:
    """Refuse, outside of a clone, a command that examines the project itself: what it reads is not installed.

    Raises:
        typer.Exit: there is no clone.
    """
    if find_spec("parity_tests.judge.relations") is None:
        fix = "clone attn-parity and run this there"
        console.print(f"[bold red]refused[/] expected a clone of the project, got an installed package; {fix}")
        raise typer.Exit(2)


def listed(text: str | None, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    """A comma-separated option, each word known; for a preset among variants, the error names its variant."""
    names = known if not text else tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if name not in known and name in contract.presets() and contract.presets()[name][0] in known:
            fix = f"that is {behind_preset(name)}: pass {contract.presets()[name][0]}"
            raise typer.BadParameter(f"expected {what}, got {name!r}; {fix}")
        if name not in known:
            raise typer.BadParameter(f"expected {what}, got {name!r}; {contract.did_you_mean(name, known)}")
    return names


def behind_preset(name: str) -> str:
    """The variant of a preset, with the preset's fields."""
    variant, preset = contract.presets()[name]
    return f"{variant} with {', '.join(f'{field}={value!r}' for field, value in preset.fields.items())}"


Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files to write that exist.")]


def writable(*written: Path | None, read: Sequence[Path | None] = (), overwrite: bool) -> None:
    """Refuse files that a command cannot or must not write, before any work is done.

    Args:
        written: the files; None for one that is not asked for.
        read: what the command reads, which is never replaced; of a folder, all that is in it.
        overwrite: replace files that exist.
    """
    for path in filter(None, written):
        sources = [source for source in read if source is not None and path.resolve().is_relative_to(source.resolve())]
        if not path.resolve().parent.is_dir():
            raise typer.BadParameter(f"expected a file in a folder that exists, got {path}; make {path.parent} first")
        if path.is_dir():
            raise typer.BadParameter(f"expected a file, got the folder {path}; name a file in it")
        if path.exists() and sources:
            raise typer.BadParameter(f"expected a file to write, got {path}, which is read; name another")
        if path.exists() and not overwrite:
            raise typer.BadParameter(f"expected a new file, got {path}, which exists; name another or pass --overwrite")


def say_written(*paths: Path | None) -> None:
    """Name the files that a command has written."""
    for path in filter(None, paths):
        console.print(f"written: {path}")


def refused(error: Exception, command: Callable[..., None], **others: str) -> typer.Exit:
    """The end of a command that cannot be done, with the error in words of the command's options.

    Args:
        error: what was raised.
        command: the command's function.
        others: flags of arguments that the error names otherwise than the command does.
    """
    console.print(f"[bold red]refused[/] {escape(in_flags(str(error), flags(command) | others))}", soft_wrap=True)
    return typer.Exit(2)


def flags(command: Callable[..., None]) -> dict[str, str]:
    """The flag of every option of a command, by the name of its argument."""
    found = {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        for option in getattr(hint, "__metadata__", ()):
            if isinstance(option, OptionInfo):
                # In Annotated, typer keeps the first name of an option where its default would be.
                declared = (option.default, *(option.param_decls or ()))
                named = (flag for flag in declared if isinstance(flag, str) and flag.startswith("--"))
                found[name] = next(named, f"--{name.replace('_', '-')}")
    return found


def in_flags(text: str, names: Mapping[str, str]) -> str:
    """The same text with flags for arguments: for `layer=` anywhere, for `layer=0` in the advice behind the last ;."""
    rule, semicolon, advice = text.rpartition("; ")
    for name, flag in names.items():
        advice = re.sub(rf"\b{name}=(?=[\w'\"])", f"{flag} ", advice)
        rule, advice = (re.sub(rf"\b{name}=(?![\w'\"])", flag, part) for part in (rule, advice))
    return rule + semicolon + advice
