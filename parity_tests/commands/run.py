"""attn-parity run: do the three trees agree?"""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from attn_np import contract
from parity_tests.commands._shared import Overwrite, console, listed, progress, say_written, writable


def main(
    variants: Annotated[str | None, typer.Option(help="Comma-separated names; all by default.")] = None,
    dtypes: Annotated[str | None, typer.Option(help="float64,float32,bfloat16,float16 or some of them.")] = None,
    frameworks: Annotated[str | None, typer.Option(help="numpy,torch,jax or some of them.")] = None,
    device: Annotated[str, typer.Option(help="cpu, or accelerator: every one that is found.")] = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="Of all inputs, weights and cotangents.")] = 0,
    repeat: Annotated[int, typer.Option(min=1, help="How many seeds, from --seed on.")] = 1,
    calls: Annotated[str | None, typer.Option(help="plain,full,shared,packed or some of them.")] = None,
    products: Annotated[
        str, typer.Option(help="full, or tf32: matrix products of float32 may round their factors to TF32.")
    ] = "full",
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    everything: Annotated[bool, typer.Option("--all", help="Every example, call and type: some minutes.")] = False,
    real: Annotated[bool, typer.Option(help="Also the real layer in examples/, where it is at hand.")] = True,
    json: Annotated[Path | None, typer.Option(help="Write every verdict to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report to read: one page, complete in itself.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Judge NumPy, PyTorch and Flax against the float64 reference: outputs, gradients, every taped intermediate.

    By default the first example of each variant, with all of its arguments, in float64 and float32.
    """
    from parity_tests.judge import runner
    from parity_tests.judge.cases import ALL_CALLS
    from parity_tests.judge.frameworks import DTYPES, FRAMEWORKS
    from parity_tests.judge.result import Result
    from parity_tests.report import summary
    from parity_tests.report.html import write_html

    if device not in ("cpu", "accelerator"):
        raise typer.BadParameter(f"expected cpu or accelerator, got {device!r}; set --device")
    if products not in ("full", "tf32"):
        raise typer.BadParameter(f"expected full or tf32, got {products!r}; set --products")
    writable(json, html, overwrite=overwrite)
    plan = runner.Plan(
        variants=listed(variants, contract.variants(), "the name of a variant"),
        dtypes=listed(dtypes, DTYPES, "a float dtype") if dtypes or everything else runner.USUAL,
        frameworks=listed(frameworks, FRAMEWORKS, "a framework"),
        device=device,
        seed=seed,
        repeat=repeat,
        calls=listed(calls, ALL_CALLS, "a kind of call") if calls or everything else ("full",),
        everything=everything,
        real=real and device == "cpu",
        products=products,
    )
    result = Result()
    try:
        with progress() as bar, closing(runner.run(plan, jobs)) as pieces:
            task = bar.add_task("judging")
            for done, of, what, so_far in pieces:
                result = so_far
                bar.update(task, total=of, completed=done, description=f"judged {what}")
    except KeyboardInterrupt:
        if result.rows:
            console.print(summary.overview(result, plan.dtypes))  # what was judged till then; no verdict
        raise
    if json is not None:
        summary.write_json(json, result)
    if html is not None:
        write_html(html, result, plan.dtypes, result.findings, title="attn-parity run")
    summary.show(console, result, plan.dtypes)
    say_written(json, html)
    differ = bool(result.failed or result.errors or not result.rows)
    raise typer.Exit(1 if differ else 0)
