"""The results of a run as a table, held against the ratchet."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from parity_tests.tests.mutation.ratchet import Count, counts, fallen
from parity_tests.tests.mutation.runner import Result


def table(results: Sequence[Result], kept: Mapping[str, Count]) -> Table:
    """How many mutants of each file were killed, beside the share that is recorded."""
    out = Table(title="careless edits of attn_np", title_justify="left")
    for name in ("file", "mutants", "killed", "survived", "rate", "recorded"):
        out.add_column(name, justify="left" if name == "file" else "right")
    found = counts(results)
    for file, count in found.items():
        out.add_row(file, *cells(count), f"{float(kept[file].rate):.1%}" if file in kept else "–")
    out.add_section()
    whole = Count(sum(count.mutants for count in found.values()), sum(count.killed for count in found.values()))
    out.add_row("all", *cells(whole), "")
    return out


def cells(count: Count) -> tuple[str, ...]:
    return str(count.mutants), str(count.killed), str(count.survived), f"{float(count.rate):.1%}"


def show(console: Console, results: Sequence[Result], kept: Mapping[str, Count], sample: bool = False) -> None:
    """The table, what fell, and the survivors of the files that fell or have no record."""
    console.print(table(results, kept))
    low = fallen(results, kept, sample)
    for result in results:
        fell = any(words.startswith(f"{result.file}:") for words in low)
        if not result.killed and (fell or result.file not in kept):
            line = f"survived line {result.line}, {result.operator}: {result.key}"
            console.print(line, soft_wrap=True, markup=False)
    for words in low:
        console.print(f"[bold red]fallen[/] {words}", soft_wrap=True)
