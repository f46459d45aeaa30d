"""attn-parity check: one layer of a weight file in all three frameworks."""

from pathlib import Path
from typing import Annotated

import typer

from parity_tests.commands._shared import Overwrite, console, refused, say_written, writable


def main(
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
    overwrite: Overwrite = False,
) -> None:
    """Load one layer into all three frameworks and compare them with each other and with a recorded output."""
    from parity_tests.judge import checkpoint
    from parity_tests.judge.result import Result
    from parity_tests.report import summary
    from parity_tests.report.checkpoint import draw_attention, show_pairs
    from parity_tests.report.html import write_html

    result = Result()
    writable(json, html, picture, read=(file, file.with_name("config.json"), inputs), overwrite=overwrite)
    try:
        with console.status("judging"):
            where = {"layout": layout, "variant": variant, "layer": layer, "part": part, "prefix": prefix}
            found = checkpoint.load(file, inputs=inputs, num_heads=num_heads, **where)
            if picture is not None:
                draw_attention(found, picture, sequence, head)
            checkpoint.judge_layer(found, result)
    except (ValueError, TypeError, OSError) as error:
        raise refused(error, main) from None
    if json is not None:
        summary.write_json(json, result)
    if html is not None:
        write_html(html, result, (found.dtype,), result.findings, title=f"attn-parity check {file.name}")
    console.print(f"{found.variant} from {file}: {found.config}", soft_wrap=True)
    if found.report:
        console.print(found.report, soft_wrap=True, markup=False)
    summary.show(console, result, (found.dtype,))
    show_pairs(console, found)
    if inputs is not None and not found.recorded:
        console.print(f"[yellow]no recording[/] {inputs} holds no output to compare with: only the three were compared")
    if found.note:
        console.print(f"[yellow]float32[/] {found.note}", soft_wrap=True, highlight=False)
    say_written(picture, json, html)
    raise typer.Exit(1 if result.failed or result.errors else 0)
