"""attn-parity compare: two traces, side by side in dataflow order."""

from pathlib import Path
from typing import Annotated

import typer

from parity_tests.commands._shared import Overwrite, console, refused, say_written, writable


def main(
    one: Annotated[Path, typer.Argument(help="A trace, of `attn-parity trace` or `parity_tests.record`.")],
    other: Annotated[Path, typer.Argument(help="Another one, or any safetensors file with --names.")],
    names: Annotated[
        Path | None,
        typer.Option(
            help='JSON: name in the other file to ours, as {"attn.softmax": "tape.probs"}; null leaves one out.'
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write what was found to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report to this file, to be opened in a browser.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Say where two runs part: the first array that differs although what it is made of agrees, whose it is, and why.

    Each run is judged on its own numbers stage by stage, so that a difference in an earlier stage does not hide or
    excuse one in a later stage.
    """
    import json as js

    from parity_tests import compare
    from parity_tests.ports import trace
    from parity_tests.report.differences import show_comparison, write_comparison

    def mapped(path: Path) -> dict[str, str | None]:
        try:
            return js.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise ValueError(f"{path}: expected a JSON object, their names to ours, got other text; mend it") from None

    writable(json, html, read=(one, other, names), overwrite=overwrite)
    try:
        renamed = None if names is None else mapped(names)
        first = trace.load(one)
        second = trace.load(other, like=first, names=renamed)
        with console.status("comparing"):
            found = compare(first, second)
    except (ValueError, TypeError, OSError) as error:
        raise refused(error, main) from None
    write_comparison(found, (str(one), str(other)), json, html)
    show_comparison(console, found, (str(one), str(other)))
    say_written(json, html)
    raise typer.Exit(0 if found.agree else 1)
