"""The results of a run: a table for each file, the survivors, and whether all is well."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from parity_tests.ast_mutants.runner import Result

LEAST = 0.95  # of the mutants that are not equivalent, this share must be killed


def counted(results: Sequence[Result]) -> Counter[str]:
    return Counter(result.verdict for result in results)


def score(results: Sequence[Result]) -> float:
    """Which share of the mutants that are not equivalent is killed."""
    found = counted(results)
    killed = found["killed"] + found["refuted"]
    return killed / max(killed + found["survived"], 1)


def well(results: Sequence[Result]) -> bool:
    """Nobody survived without a reason, no reason was refuted, and enough were killed."""
    found = counted(results)
    return bool(results) and not found["survived"] and not found["refuted"] and score(results) >= LEAST


def table(results: Sequence[Result]) -> Table:
    out = Table(title="mutants of attn_np", title_justify="left")
    for name in ("file", "mutants", "killed", "equivalent", "survived", "refuted", "score"):
        out.add_column(name, justify="left" if name == "file" else "right")
    names = list(dict.fromkeys(result.file for result in results))
    for name in (*names, "all"):
        some = [result for result in results if name in (result.file, "all")]
        found = counted(some)
        if name == "all":
            out.add_section()
        cells = [found[verdict] for verdict in ("killed", "equivalent", "survived", "refuted")]
        out.add_row(name, str(len(some)), *map(str, cells), f"{score(some):.1%}")
    return out


def show(console: Console, results: Sequence[Result]) -> None:
    """The table, then every survivor and every refuted reason."""
    console.print(table(results))
    for result in results:
        if result.verdict in ("survived", "refuted"):
            why = "" if result.killed_by is None else f"; not equivalent: {result.killed_by}"
            line = f"{result.verdict} line {result.line}, {result.operator}: {result.key}{why}"
            console.print(line, soft_wrap=True, markup=False)


def write_json(path: Path, results: Sequence[Result]) -> None:
    rows = [asdict(result) | {"verdict": result.verdict} for result in results]
    path.write_text(json.dumps({"score": score(results), "mutants": rows}, indent=1) + "\n", encoding="utf-8")
