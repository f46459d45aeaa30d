"""What became of the planted bugs: a table, and a file."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parity_tests.mistakes.run import MODES, Verdict, missed, score

if TYPE_CHECKING:
    from rich.console import Console


def show(console: "Console", verdicts: Sequence[Verdict]) -> None:
    """Seen and planted by theme and mode, and everything that lives."""
    from rich.table import Table

    modes = [mode for mode in MODES if any(verdict.mode == mode for verdict in verdicts)]
    themes = list(dict.fromkeys(verdict.theme for verdict in verdicts))
    table = Table(box=None, pad_edge=False)
    for name in ("planted bugs seen", *(MODES[mode] for mode in modes)):
        table.add_column(name, justify="left" if name == "planted bugs seen" else "right")
    for theme in themes:
        mine = [verdict for verdict in verdicts if verdict.theme == theme]
        table.add_row(theme, *(of(score(mine, mode)) for mode in modes))
    table.add_row("[bold]all[/]", *(of(score(verdicts, mode)) for mode in modes))
    console.print(table)
    for verdict in verdicts:
        if verdict.seen is None and verdict.reason:
            console.print(f"[yellow]lives[/] {MODES[verdict.mode]}: {verdict.name}: {verdict.reason}", soft_wrap=True)
    for words in missed(verdicts):
        console.print(f"[bold red]missed[/] {words}", soft_wrap=True)


def of(pair: tuple[int, int]) -> str:
    seen, planted = pair
    return f"{seen} of {planted}" if planted else ""


def write_json(path: Path, verdicts: Sequence[Verdict], careless: Sequence[Any]) -> None:
    """Every verdict, and every careless edit with what saw it."""
    edits = [
        {"file": r.file, "line": r.line, "operator": r.operator, "before": r.before, "after": r.after,
         "seen": r.killed_by}
        for r in careless
    ]  # fmt: skip
    path.write_text(json.dumps({"planted": [asdict(v) for v in verdicts], "edits": edits}, indent=1) + "\n", "utf-8")
