"""attn-parity fast: the fast paths of `attend`, whatever a call asks for."""

from pathlib import Path
from typing import Annotated

import typer

from parity_tests.commands._shared import Overwrite, console, listed, needs_clone, progress, writable


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How many seeds: the even ones with small blocks.")] = 2,
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    share: Annotated[int, typer.Option(min=1, help="One combination in so many.")] = 1,
    dtypes: Annotated[str | None, typer.Option(help="float64,float32,bfloat16,float16 or some of them.")] = None,
    frameworks: Annotated[str, typer.Option(help="numpy,torch,jax or some; JAX compiles every call.")] = "numpy,torch",
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Judge `attend(implementation="fused")`: every combination of what a call may ask for, forward and backward.

    Masks and biases of every shape, causality, windows, softcap, sinks, grouped heads and no heads, fewer and more
    queries than keys; lengths, widths, scales and how hard the numbers are on the arithmetic are drawn by the seed.
    In a clone of the project.
    """
    needs_clone()
    from concurrent.futures import as_completed
    from dataclasses import asdict

    from rich.table import Table

    from parity_tests.judge.frameworks import DTYPES, FRAMEWORKS
    from parity_tests.judge.kernels import Judged, combinations, work
    from parity_tests.judge.workers import workers
    from parity_tests.report.plain import dumps

    writable(json, overwrite=overwrite)
    places, types = listed(frameworks, FRAMEWORKS, "a framework"), listed(dtypes, DTYPES, "a float dtype")
    numbers = range(0, len(combinations()), share)
    pieces = [tuple(numbers[i : i + 12]) for i in range(0, len(numbers), 12)]
    total = Judged()
    with progress() as bar, workers(jobs) as pool:
        task = bar.add_task("judging", total=rounds * len(numbers))
        tasks = [(places, types, seed + n, piece) for n in range(rounds) for piece in pieces]
        futures = {pool.submit(work, given): len(given[3]) for given in tasks}
        for future in as_completed(futures):
            total.add(future.result())
            bar.advance(task, futures[future])
    table = Table(title=f"fast paths of attend, {len(numbers)} combinations, {rounds} rounds", title_justify="left")
    for head in ("", "type", "calls", "arrays", "numbers", "with a bound that says little", "worst error / bound"):
        table.add_column(head, justify="left" if head in ("", "type") else "right")
    for name in places:
        for kind in types:
            held = total.figures.get((name, kind))
            if held is not None:
                loose = f"{held.loose / max(held.numbers, 1):.2%}"
                counts = (f"{held.calls:,}", f"{held.arrays:,}", f"{held.numbers:,}", loose, f"{held.worst:.3g}")
                table.add_row(name, kind, *counts)
    console.print(table)
    for line in total.alarms[:20]:
        console.print(f"[bold red]alarm[/] {line}", soft_wrap=True, markup=True)
    judged = [sum(getattr(held, name) for held in total.figures.values()) for name in ("calls", "arrays", "numbers")]
    word = "[bold red]ALARMS[/]" if total.alarms else "[bold green]NO ALARM[/]"
    console.print("{}: {:,} in {:,} calls, {:,} arrays, {:,} numbers".format(word, len(total.alarms), *judged))
    if json is not None:
        held = {" ".join(key): asdict(found) for key, found in sorted(total.figures.items())}
        json.write_text(dumps({"alarms": total.alarms, "figures": held}, indent=1) + "\n", encoding="utf-8")
        console.print(f"written: {json}")
    raise typer.Exit(1 if total.alarms else 0)
