"""attn-parity modules: two recordings of modules, submodule by submodule."""

from pathlib import Path
from typing import Annotated

import typer

from parity_tests.commands._shared import Overwrite, console, refused, say_written, writable


def main(
    a: Annotated[Path, typer.Argument(help="A recording, of `parity_tests.record_modules`.")],
    b: Annotated[Path, typer.Argument(help="Another one, of the module that should be the same.")],
    names: Annotated[
        Path | None,
        typer.Option(help='JSON: names in A to names in B, as {"layers.{i}.mlp": "blocks.{i}.ffn"}.'),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write what was found to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report to this file, to be opened in a browser.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Say where two modules part: the first submodule that differs although its inputs agree.

    Each environment records its module with `parity_tests.record_modules(module, inputs, "a.safetensors")`; the second
    takes the weights of the first with `like="a.safetensors"`.
    """
    import json as js

    from parity_tests import compare_recordings, load_modules
    from parity_tests.report.modules import show_modules
    from parity_tests.report.results import to_html

    writable(json, html, read=(a, b, names), overwrite=overwrite)
    try:
        try:
            renamed = None if names is None else js.loads(names.read_text(encoding="utf-8"))
        except js.JSONDecodeError:
            raise ValueError(f"{names}: expected a JSON object, names in A to names in B, got other text") from None
        if renamed is not None and not isinstance(renamed, dict):
            raise ValueError(f"{names}: expected a JSON object, names in A to names in B, got {type(renamed).__name__}")
        recordings = load_modules(a), load_modules(b)
        with console.status("comparing"):
            result = compare_recordings(*recordings, renamed)
    except (ValueError, TypeError, OSError) as error:
        raise refused(error, main) from None
    if json is not None:
        result.to_json(json)
    if html is not None:
        to_html(result, html, f"{a.name} against {b.name}")
    show_modules(console, result, (str(a), str(b)))
    say_written(json, html)
    raise typer.Exit(0 if result.agree else 1)
