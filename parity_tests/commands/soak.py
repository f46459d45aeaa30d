"""attn-parity soak: how often the judge alarms where nothing is wrong."""

from pathlib import Path
from typing import Annotated

import typer

from parity_tests.commands._shared import console, listed, progress, writable


def main(
    cases: Annotated[int, typer.Option(min=1, help="How many to judge at least.")] = 2000,
    variants: Annotated[str | None, typer.Option(help="Comma-separated names; all by default.")] = None,
    dtypes: Annotated[str | None, typer.Option(help="float64,float32,bfloat16,float16 or some of them.")] = None,
    frameworks: Annotated[str, typer.Option(help="numpy,torch,jax or some of them.")] = "numpy,torch",
    seed: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
) -> None:
    """Judge correct implementations on hard inputs, many times: every alarm is a false one, and there must be none.

    The styles are those of `parity_tests.judge.hard_inputs`: saturated softmaxes, sums that cancel, numbers near
    underflow.
    """
    import json as js
    from concurrent.futures import as_completed

    from rich.table import Table

    from attn_np import contract
    from parity_tests.judge.candidates import attends
    from parity_tests.judge.frameworks import DTYPES, FRAMEWORKS
    from parity_tests.judge.hard_inputs import STYLES, hard_cases, soaked
    from parity_tests.judge.workers import workers

    writable(json=json)
    names = listed(variants, contract.variants(), "the name of a variant")
    types = listed(dtypes, DTYPES, "a float dtype")
    places = listed(frameworks, FRAMEWORKS, "a framework")
    pieces = [(name,) for name in names]
    # What calls `attend` is judged twice: stage by stage, and as users call it.
    hard = hard_cases(names, types, seed)
    per_round = len(places) * sum(1 + attends(each.case.variant, each.case.config.layer) for each in hard)
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
        json.write_text(js.dumps(content, indent=1) + "\n", encoding="utf-8")
        console.print(f"written: {json}")
    raise typer.Exit(1 if alarms else 0)
