"""python -m parity_tests.ast_mutants [FILE ...]: run the generic mutants of attn_np.

Without files those of the shared arithmetic and of some variants; the file of any other variant may be named.
"""

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from parity_tests.ast_mutants.runner import run
from parity_tests.ast_mutants.show import show, well, write_json
from parity_tests.ast_mutants.sources import every, files


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m parity_tests.ast_mutants", description=__doc__)
    parser.add_argument("--short", action="store_true", help="every eightieth mutant only")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("files", nargs="*", help=f"some of {', '.join(every())}; by default {', '.join(files())}")
    parser.add_argument("--json", type=Path, help="write every result to this file")
    given = parser.parse_args()
    console, start = Console(highlight=False, width=None if sys.stdout.isatty() else 160), time.perf_counter()
    columns = (TextColumn("mutants"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("mutants", total=None)
        results = run(
            given.short, given.jobs, lambda done, of: bar.update(task, completed=done, total=of), only=given.files
        )
    show(console, results)
    console.print(f"{len(results)} mutants in {time.perf_counter() - start:.0f} s")
    if given.json is not None:
        write_json(given.json, results)
        console.print(f"written: {given.json}")
    return 0 if well(results) else 1


if __name__ == "__main__":
    sys.exit(main())
