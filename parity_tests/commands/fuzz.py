"""The word `fuzz`: the reader of weight files against spoilt ones."""

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parity_tests.commands._shared import console, needs_clone, progress

if TYPE_CHECKING:
    from parity_tests.judge.fuzz import Tally


def main(
    files: Annotated[int, typer.Option(min=1, help="How many files to spoil and read.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="File n of a seed is always the same.")] = 0,
    first: Annotated[int, typer.Option(min=0, help="Number of the first file.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    keep: Annotated[Path, typer.Option(help="Folder for the files of findings; made when there is one.")] = Path(
        "fuzz-findings"
    ),
    replay: Annotated[Path | None, typer.Option(help="Read this one file instead, and say what comes out.")] = None,
) -> None:
    """Spoil weight files at random and read them: each must be refused by name, or give what it says. In a clone."""
    needs_clone()
    from parity_tests.judge import fuzz

    if sys.platform == "win32":
        raise typer.BadParameter(
            "expected a system whose timers stop a file that takes too long, got Windows; use Linux"
        )
    if replay is not None:
        if not replay.is_file():
            raise typer.BadParameter(f"expected a weight file, got {replay}, which is none; correct --replay")
        tally, found = fuzz.replay(replay)
        show(tally, found)
        raise typer.Exit(1 if found else 0)
    told, tally, seconds = [], fuzz.Tally(), 1.0
    with progress("{task.fields[state]}") as bar, closing(fuzz.run(seed, first, files, jobs)) as tallies:
        task = bar.add_task("reading spoilt files", total=files, state="")
        for tally in tallies:
            # Kept as they come: a run that is stopped has them.
            for found in tally.findings[len(told) :]:
                place = fuzz.keep(found, keep)
                told.append(f"{found.what}; replay: attn-parity fuzz --replay {place}" if place else found.what)
            seconds = bar.tasks[0].elapsed or 1.0
            state = f"{tally.files / seconds:.0f} files/s, {len(told)} findings"
            bar.update(task, completed=tally.files, state=state)
    show(tally, told)
    about = f"{tally.files} files of seed {seed} in {seconds:.0f} s, {tally.files / seconds:.0f} files/s"
    console.print(f"{about}, {tally.seconds / max(tally.files, 1) * 1000:.2f} ms of a processor for each")
    raise typer.Exit(1 if tally.findings or not tally.files else 0)


def show(tally: "Tally", findings: list[str]) -> None:
    """Print the table of outcomes, and every finding."""
    from rich.table import Table

    from parity_tests.judge import fuzz

    table = Table(box=None, pad_edge=False)
    table.add_column("outcome")
    for way in fuzz.WAYS:
        table.add_column(f"as {way}", justify="right")
    names = {name for _, name in tally.outcomes}
    for name in sorted(names, key=lambda name: (-sum(tally.outcomes[way, name] for way in fuzz.WAYS), name)):
        table.add_row(name, *(str(tally.outcomes[way, name]) for way in fuzz.WAYS))
    console.print(table)
    memory = f"most memory {tally.memory / 2**20:.1f} MiB, traced in every {fuzz.TRACED}th file"
    console.print(f"slowest file {tally.slowest:.2f} s; {memory}")
    for found in findings:
        console.print(f"[bold red]finding[/] {found}", soft_wrap=True)
    console.print("[bold red]FINDINGS[/]" if findings else "[bold green]NOTHING FOUND[/]")
