"""attn-parity fast: the fast paths of `attend`, judged as kernels."""

from pathlib import Path
from typing import Annotated

import typer

from parity_tests.commands._shared import Overwrite, console, listed, needs_clone, writable


def main(
    seconds: Annotated[float, typer.Option(min=1, help="How long to ask each kernel.")] = 60.0,
    cases: Annotated[int | None, typer.Option(min=1, help="How many cases at most.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of what is drawn.")] = 0,
    dtypes: Annotated[str | None, typer.Option(help="float64,float32,bfloat16,float16 or some of them.")] = None,
    frameworks: Annotated[str, typer.Option(help="numpy,torch,jax or some; JAX compiles every call.")] = "numpy,torch",
    only: Annotated[str, typer.Option(help="Kernels with this in their names, such as BLOCK_KEYS.")] = "",
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Judge `attend(implementation="fused")` of each tree, as `attn-parity kernel` judges a kernel.

    Each with the constants of its blocks and with others, so small that short sequences fill several blocks; with an
    axis for heads and without. Right is what holds in the narrowest class of arithmetic of each type. In a clone of the
    project.
    """
    needs_clone()
    from parity_tests.judge.frameworks import DTYPES, FRAMEWORKS
    from parity_tests.judge.kernels import ATTEND, HEADLESS, Fast, judged, settings
    from parity_tests.report.plain import dumps

    writable(json, overwrite=overwrite)
    places, types = listed(frameworks, FRAMEWORKS, "a framework"), listed(dtypes, DTYPES, "a float dtype")
    kernels = [Fast(tree, setting) for tree in places for setting in settings(tree)]
    verdicts = []
    for kernel, like in [(kernel, like) for kernel in kernels for like in (ATTEND, HEADLESS)]:
        if only in kernel.__name__:
            # A call of JAX is compiled first.
            given = {"seconds": seconds, "cases": cases, "seed": seed, "call_seconds": 120.0}
            verdicts.append(judged(kernel, like, types, **given))
            console.print(str(verdicts[-1]), soft_wrap=True, markup=False)
    wrong = [verdict for verdict in verdicts if not verdict.agrees]
    asked, numbers = (sum(sum(getattr(x, name).values()) for x in verdicts) for name in ("cases", "numbers"))
    word = "[bold red]ALARMS[/]" if wrong or not verdicts else "[bold green]NO ALARM[/]"
    console.print(f"{word}: {len(wrong)} of {len(verdicts)} kernels differ; {asked:,} cases, {numbers:,} numbers")
    if json is not None:
        figures = [
            {
                "kernel": x.name, "like": x.like, "cases": x.cases, "numbers": x.numbers, "unjudged": x.unjudged,
                "classes": {dtype: str(held) for dtype, held in x.classes.items()}, "seconds": x.seconds,
            }
            for x in verdicts
        ]  # fmt: skip
        json.write_text(
            dumps({"alarms": [str(x) for x in wrong], "figures": figures}, indent=1) + "\n", encoding="utf-8"
        )
        console.print(f"written: {json}")
    raise typer.Exit(1 if wrong or not verdicts else 0)
