"""What became of the planted bugs and of the careless edits: tables, and a file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from parity_tests.tests.mutation.planting import MODES, Verdict, missed, score
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


def show_careless(console: Console, results: Sequence[Result], kept: Mapping[str, Count], sample: bool = False) -> None:
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


def show_planted(console: Console, verdicts: Sequence[Verdict]) -> None:
    """Seen and planted by theme and mode, and everything that lives."""
    modes = [mode for mode in MODES if any(verdict.mode == mode for verdict in verdicts)]
    themes = list(dict.fromkeys(verdict.theme for verdict in verdicts))
    table = Table(box=None, pad_edge=False)
    for name in ("planted bugs seen", *(MODES[mode] for mode in modes)):
        table.add_column(name, justify="left" if name == "planted bugs seen" else "right")
    for theme in themes:
        mine = [verdict for verdict in verdicts if verdict.theme == theme]
        table.add_row(theme, *(share(score(mine, mode)) for mode in modes))
    table.add_row("[bold]all[/]", *(share(score(verdicts, mode)) for mode in modes))
    console.print(table)
    for verdict in verdicts:
        if verdict.seen is None and verdict.reason:
            console.print(f"[yellow]lives[/] {MODES[verdict.mode]}: {verdict.name}: {verdict.reason}", soft_wrap=True)
    for words in missed(verdicts):
        console.print(f"[bold red]missed[/] {words}", soft_wrap=True)


def share(pair: tuple[int, int]) -> str:
    seen, planted = pair
    return f"{seen} of {planted}" if planted else ""


def write_json(path: Path, verdicts: Sequence[Verdict], careless: Sequence[Result]) -> None:
    """Every verdict, and every careless edit with what saw it."""
    edits = [
        {"file": r.file, "line": r.line, "operator": r.operator, "before": r.before, "after": r.after,
         "seen": r.killed_by}
        for r in careless
    ]  # fmt: skip
    path.write_text(json.dumps({"planted": [asdict(v) for v in verdicts], "edits": edits}, indent=1) + "\n", "utf-8")
