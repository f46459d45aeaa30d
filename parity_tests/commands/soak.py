"""attn-parity soak: how often the judge alarms where nothing is wrong."""

from pathlib import Path
from typing import Annotated

import typer

from parity_tests.commands._shared import Overwrite, console, listed, needs_clone, progress, writable


def main(
    cases: Annotated[int, typer.Option(min=1, help="How many to judge at least.")] = 2000,
    variants: Annotated[str | None, typer.Option(help="Comma-separated names; all by default.")] = None,
    dtypes: Annotated[str | None, typer.Option(help="float64,float32,bfloat16,float16 or some of them.")] = None,
    frameworks: Annotated[str, typer.Option(help="numpy,torch,jax or some of them.")] = "numpy,torch",
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    ports: Annotated[int, typer.Option(min=0, help="Judge this many ports that tap what they like instead.")] = 0,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Judge correct implementations on hard inputs, many times: every alarm is a false one, and there must be none.

    The styles are those of `parity_tests.judge.hard_inputs`: saturated softmaxes, sums that cancel, numbers near
    underflow.

    With --ports, the candidates are layers that do not zero hidden places, where their inputs hold large numbers, and
    each records a random part of the names on the tape. In a clone of the project.
    """
    needs_clone()
    from concurrent.futures import as_completed

    from rich.table import Table

    from attn_np import contract
    from parity_tests.judge.candidates import attends
    from parity_tests.judge.frameworks import DTYPES, FRAMEWORKS
    from parity_tests.judge.hard_inputs import STYLES, hard_cases, soaked
    from parity_tests.judge.workers import workers
    from parity_tests.report.plain import dumps

    writable(json, overwrite=overwrite)
    names = listed(variants, contract.variants(), "the name of a variant")
    types = listed(dtypes, DTYPES, "a float dtype")
    places = listed(frameworks, FRAMEWORKS, "a framework")
    if ports:
        raise typer.Exit(soak_ports(ports, names, types, places, seed, jobs, json))
    pieces = [(name,) for name in names]
    # What calls `attend` is judged twice: stage by stage, and as users call it.
    hard = hard_cases(names, types, seed)
    per_round = len(places) * sum(1 + attends(each.case.variant, each.case.config.class_name) for each in hard)
    rounds = -(-cases // per_round)
    tasks = [(piece, types, places, seed + n) for n in range(rounds) for piece in pieces]
    total: dict[tuple[str, str], list[float]] = {}
    alarms: list[str] = []
    with progress() as bar, workers(jobs) as pool:
        task = bar.add_task("judging", total=rounds * per_round)
        for future in as_completed([pool.submit(soaked, t) for t in tasks]):
            found = future.result()
            alarms += found["alarms"]
            for key, new in found["figures"].items():
                old = total.get(key, [0, 0, 0, 0, 0.0])
                total[key] = [*(a + b for a, b in zip(old[:4], new[:4], strict=True)), max(old[4], new[4])]
                bar.advance(task, int(new[0]))
    table = Table(title="worst error / bound, nothing being wrong", title_justify="left")
    for head in ("inputs", *types, "cases", "numbers", "with a bound that says little"):
        table.add_column(head, justify="left" if head == "inputs" else "right")
    for style in STYLES:
        held = [total[style, name] for name in types if (style, name) in total]
        worst = [f"{total[style, name][4]:.3g}" if (style, name) in total else "–" for name in types]
        sums = [sum(part[i] for part in held) for i in (0, 2)]
        loose = sum(part[3] for part in held) / max(sums[1], 1)
        table.add_row(style, *worst, f"{sums[0]:,.0f}", f"{sums[1]:,.0f}", f"{loose:.2%}")
    console.print(table)
    for line in alarms[:20]:
        console.print(f"[bold red]false alarm[/] {line}", soft_wrap=True)
    judged = sum(part[0] for part in total.values())
    arrays, numbers = (sum(part[i] for part in total.values()) for i in (1, 2))
    word = "[bold red]FALSE ALARMS[/]" if alarms else "[bold green]NO FALSE ALARM[/]"
    console.print(f"{word}: {len(alarms)} in {judged:,} cases, {arrays:,} arrays, {numbers:,} numbers", soft_wrap=True)
    if json is not None:
        content = {
            "cases": judged,
            "arrays": arrays,
            "numbers": numbers,
            "alarms": alarms,
            "worst": {f"{style} {name}": part[4] for (style, name), part in sorted(total.items())},
        }
        json.write_text(dumps(content, indent=1) + "\n", encoding="utf-8")
        console.print(f"written: {json}")
    raise typer.Exit(1 if alarms else 0)


SUBSETS = 20  # random parts of the names that are judged of each run of a port


def soak_ports(
    ports: int,
    names: tuple[str, ...],
    types: tuple[str, ...],
    frameworks: tuple[str, ...],
    seed: int,
    jobs: int,
    json: Path | None,
) -> int:
    """Judge correct ports with random taps, and return the exit status."""
    from concurrent.futures import as_completed

    from attn_np import contract
    from parity_tests.commands._shared import console, progress
    from parity_tests.judge.workers import workers
    from parity_tests.ports.free import RUNS, soaked_ports
    from parity_tests.report.plain import dumps

    places = tuple(name for name in frameworks if name in RUNS)
    per_round = SUBSETS * sum(len(contract.examples(name)) for name in names)
    tasks = [((name,), types, places, seed + n, SUBSETS) for n in range(-(-ports // per_round)) for name in names]
    judged, free, alarms = 0, 0, []
    with progress() as bar, workers(jobs) as pool:
        task = bar.add_task("judging", total=per_round * len(tasks) // len(names))
        for future in as_completed([pool.submit(soaked_ports, t) for t in tasks]):
            found = future.result()
            judged, free, alarms = judged + found["candidates"], free + found["free"], alarms + found["alarms"]
            bar.advance(task, found["candidates"])
    for line in alarms[:20]:
        console.print(f"[bold red]false alarm[/] {line}", soft_wrap=True)
    word = "[bold red]FALSE ALARMS[/]" if alarms else "[bold green]NO FALSE ALARM[/]"
    counts = f"{len(alarms)} in {judged:,} ports with random taps, {free:,} of them without zeros at hidden places"
    console.print(f"{word}: {counts}", soft_wrap=True)
    if json is not None:
        json.write_text(dumps({"ports": judged, "free": free, "alarms": alarms}, indent=1) + "\n", encoding="utf-8")
        console.print(f"written: {json}")
    return 1 if alarms else 0
