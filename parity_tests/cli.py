"""The command attn-parity: do the three trees agree, on this machine and on these weights?"""

import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Annotated

try:
    import typer
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"attn-parity: expected the package {missing.name}, got none; run pip install 'attn-parity[parity]'"
    ) from None

from attn_np import contract
from parity_tests import commands

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False)
# Where the output goes to a file or a pipe, lines are as long as they need to be.
console = Console(highlight=False, width=None if Console().is_terminal else 160)


def listed(text: str | None, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    """A comma-separated option, each word known."""
    names = known if not text else tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"expected {what}, got {name!r}; {contract.nearest(name, known)}")
    return names


def writable(*paths: Path | None) -> None:
    """Refuse files in folders that are not there before any work is done."""
    for path in paths:
        if path is not None and not path.resolve().parent.is_dir():
            raise typer.BadParameter(f"expected a file in a folder that exists, got {path}; make {path.parent} first")
        if path is not None and path.is_dir():
            raise typer.BadParameter(f"expected a file, got the folder {path}; name a file in it")


@app.command("list")
def list_variants(
    family: Annotated[str | None, typer.Option(help="Only this family.")] = None,
) -> None:
    """The catalogue: every variant with its family, class and name in full."""
    families = tuple(sorted({contract.get(variant).Config.family for variant in contract.variants()}))
    if family is not None:
        listed(family, families, "the name of a family")
    out = Table(box=None, pad_edge=False)
    for name in ("variant", "family", "class", "what it is"):
        out.add_column(name, no_wrap=name != "what it is")
    for variant in contract.variants():
        config = contract.get(variant).Config
        if family in (None, config.family):
            out.add_row(f"[bold]{variant}[/]", config.family, config.layer, config.title)
            for name, (behind, preset) in contract.presets().items():
                if behind == variant:
                    fields = ", ".join(f"{field}={value!r}" for field, value in preset.fields.items())
                    out.add_row(f"  {name}", config.family, config.layer, f"{preset.title}: {variant} with {fields}")
    console.print(out)


@app.command()
def run(
    variants: Annotated[str | None, typer.Option(help="Comma-separated names; all by default.")] = None,
    dtypes: Annotated[str | None, typer.Option(help="float64,float32,bfloat16,float16 or some of them.")] = None,
    frameworks: Annotated[str | None, typer.Option(help="numpy,torch,jax or some of them.")] = None,
    device: Annotated[str, typer.Option(help="cpu, or accelerator: every one that is found.")] = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="Of all inputs, weights and cotangents.")] = 0,
    repeat: Annotated[int, typer.Option(min=1, help="How many seeds, from --seed on.")] = 1,
    calls: Annotated[str | None, typer.Option(help="plain,full,shared or some of them.")] = None,
    products: Annotated[
        str, typer.Option(help="full, or tf32: matrix products of float32 may round their factors to TF32.")
    ] = "full",
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    everything: Annotated[bool, typer.Option("--all", help="Every example, call and type: some minutes.")] = False,
    real: Annotated[bool, typer.Option(help="Also the real layer in examples/, where it is at hand.")] = True,
    json: Annotated[Path | None, typer.Option(help="Write every verdict to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report to read: one page, complete in itself.")] = None,
    ratchet_update: Annotated[
        bool, typer.Option("--ratchet-update", help="Record this run's precision in ratchet.json.")
    ] = False,
) -> None:
    """Judge NumPy, PyTorch and Flax against the float64 reference: outputs, gradients, every taped intermediate.

    By default the first example of each variant, with all of its arguments, in float64 and float32.
    """
    from parity_tests import matrix, ratchet, report
    from parity_tests.cases import CALLS
    from parity_tests.html import write_html

    if device not in ("cpu", "accelerator"):
        raise typer.BadParameter(f"expected cpu or accelerator, got {device!r}; set --device")
    if products not in ("full", "tf32"):
        raise typer.BadParameter(f"expected full or tf32, got {products!r}; set --products")
    writable(json, html)
    plan = matrix.Plan(
        variants=listed(variants, contract.variants(), "the name of a variant"),
        dtypes=listed(dtypes, matrix.DTYPES, "a float dtype") if dtypes or everything else matrix.USUAL,
        frameworks=listed(frameworks, matrix.FRAMEWORKS, "a framework"),
        device=device,
        seed=seed,
        repeat=repeat,
        calls=listed(calls, CALLS, "a kind of call") if calls or everything else ("full",),
        everything=everything,
        real=real and device == "cpu",
        products=products,
    )
    if ratchet_update and ratchet.reason(plan):
        raise typer.BadParameter(f"--ratchet-update: expected a run with --all, got another: {ratchet.reason(plan)}")
    result = matrix.Result()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("judging")
        for done, of, what, so_far in matrix.run(plan, jobs):
            result = so_far
            bar.update(task, total=of, completed=done, description=f"judged {what}")
    held = ratchet.compare(result, plan, ratchet.FILE)
    report.show(console, result, plan.dtypes, held.lines(report.SHOWN))
    differ = bool(result.failed or result.errors or not result.rows)
    if json is not None:
        report.write_json(json, result, ratchet=held.as_dict())
        console.print(f"written: {json}")
    if html is not None:
        write_html(html, result, plan.dtypes, result.findings, title="attn-parity run", comparison=held)
        console.print(f"written: {html}")
    if ratchet_update and differ:
        console.print("[yellow]not recorded[/] only a run that agrees is")
    elif ratchet_update:
        ratchet.update(result, ratchet.FILE)
        console.print(f"recorded: {ratchet.FILE}")
    raise typer.Exit(1 if differ else 0)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A weight file, ours or foreign with --layout, or a model's folder.")],
    layout: Annotated[str | None, typer.Option(help="Whose names the file uses, such as bert.")] = None,
    variant: Annotated[str | None, typer.Option(help="Which variant, where the layout has several.")] = None,
    layer: Annotated[int | None, typer.Option(min=0, help="Which layer of the file or model.")] = None,
    part: Annotated[str | None, typer.Option(help="Which block, where a layer has several, such as cross.")] = None,
    prefix: Annotated[str, typer.Option(help="What stands before the layout's names.")] = "",
    num_heads: Annotated[int | None, typer.Option(min=1, help="Heads; else from config.json beside the file.")] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            help="safetensors with query or hidden_states (key, value, mask or attention_mask, bias), and what was "
            "recorded: output or attention_output, weights or attention_weights."
        ),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Write one head's attention weights as a picture.")] = None,
    sequence: Annotated[int, typer.Option(min=0, help="Of the picture.")] = 0,
    head: Annotated[int, typer.Option(min=0, help="Of the picture.")] = 0,
    json: Annotated[Path | None, typer.Option(help="Write every verdict to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report to read: one page, complete in itself.")] = None,
) -> None:
    """Load one layer into all three frameworks and compare them with each other and with a recorded output."""
    from parity_tests import real, report
    from parity_tests.html import write_html
    from parity_tests.matrix import Result

    result = Result()
    writable(json, html, picture)
    try:
        with console.status("judging"):
            where = {"layout": layout, "variant": variant, "layer": layer, "part": part, "prefix": prefix}
            found = real.load(file, inputs=inputs, num_heads=num_heads, **where)
            if picture is not None:
                real.draw_attention(found, picture, sequence, head)
            real.judge_layer(found, result)
    except (ValueError, TypeError, OSError) as error:
        console.print(f"[bold red]refused[/] {error}", soft_wrap=True, markup=True)
        raise typer.Exit(2) from None
    console.print(f"{found.variant} from {file}: {found.config}", soft_wrap=True)
    if found.report:
        console.print(found.report, soft_wrap=True, markup=False)
    report.show(console, result, (found.dtype,))
    real.show_pairs(console, found)
    if inputs is not None and not found.recorded:
        console.print(f"[yellow]no recording[/] {inputs} holds no output to compare with: only the three were compared")
    if picture is not None:
        console.print(f"written: {picture}")
    if json is not None:
        report.write_json(json, result)
        console.print(f"written: {json}")
    if html is not None:
        write_html(html, result, (found.dtype,), result.findings, title=f"attn-parity check {file.name}")
        console.print(f"written: {html}")
    raise typer.Exit(1 if result.failed or result.errors else 0)


for _module in pkgutil.iter_modules(commands.__path__):
    app.command(_module.name)(import_module(f"{commands.__name__}.{_module.name}").main)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
