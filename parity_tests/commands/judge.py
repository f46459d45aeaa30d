"""attn-parity judge: an implementation of your own against a variant."""

from pathlib import Path
from typing import Annotated, Any

import typer

from parity_tests.commands._shared import Overwrite, console, refused, say_written, writable


def main(
    candidate: Annotated[
        str,
        typer.Argument(
            help="package.module:name of a function, a module or its class; a class may be called with literals, as in "
            "'pkg.mod:Attention(12, heads=3)', and takes the fields that it has parameters for otherwise."
        ),
    ],
    fields: Annotated[
        list[str] | None, typer.Argument(help="Fields of the config, as d_model=12 causal=true 'window=(3, null)'.")
    ] = None,
    variant: Annotated[str, typer.Option(help="The variant or preset that it should be, such as mha.")] = ...,  # type: ignore[assignment]
    weights: Annotated[
        str | None, typer.Option(help="How its parameters map to ours: a layout's name, such as llama.")
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option(help="JSON with weights, arguments, outputs and taps as `parity_tests.assert_parity` takes them."),
    ] = None,
    framework: Annotated[
        str | None, typer.Option(help="torch, jax or numpy: whose arrays a function takes; numpy by default.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="The only type that is judged; float64 and its own by default.")
    ] = None,
    calls: Annotated[str | None, typer.Option(help="plain,full,shared,self or some of them.")] = None,
    empty_rows: Annotated[bool, typer.Option(help="Masks may hide every key from some query.")] = True,
    length: Annotated[
        int | None, typer.Option(min=1, help="Of the sequence; by default a few positions, and others that show more.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="A field or array that the runs leave open is a difference.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of all inputs, weights and cotangents.")] = 0,
    device: Annotated[str | None, typer.Option(help="Where it runs: cpu, cuda or another of its framework.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the verdict to this file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report to this file, to be opened in a browser.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Judge outputs and gradients of your own function or module, and name the mistake where it differs.

    Modules run in evaluation mode. Exits with 0 where it agrees, 1 where it differs, or with
    --strict leaves something open, and 2 where it cannot be judged.
    """
    import traceback

    from rich.markup import escape

    from parity_tests.ports.named import arranged, called, config_fields, found
    from parity_tests.ports.parity import ParityError, UntestedError, assert_parity
    from parity_tests.report.results import to_html, to_table

    writable(json, html, read=(names,), overwrite=overwrite)
    options: dict[str, Any] = {"framework": framework, "dtype": dtype, "empty_rows": empty_rows, "device": device}
    try:
        settings = config_fields(fields or [])
        options |= {"length": length, "strict": strict, "seed": seed, "weights": weights} | arranged(names)
        options |= {"calls": tuple(part.strip() for part in calls.split(","))} if calls else {}
        target = called(candidate, found(candidate), settings, seed)
        with console.status(f"judging {escape(candidate)}"):
            result: Any = assert_parity(target, variant, settings, **options)
    except ParityError as error:
        result = error
    except Exception as error:
        # What the candidate raises is no verdict on it; its lines and what it was called with help.
        if getattr(error, "__notes__", ()) or not isinstance(error, ValueError | TypeError | ImportError | OSError):
            traceback.print_exc()
            error = ValueError(raised(candidate, error))
        raise refused(error, main, **IN_NAMES) from None
    agrees = not isinstance(result, ParityError)
    if json is not None:
        result.to_json(json)
    if html is not None:
        to_html(result, html, f"{candidate} against {variant}")
    console.print(to_table(result))
    word = "[bold green]AGREES[/]" if agrees else "[bold red]DIFFERS[/]"
    word = "[bold red]LEFT OPEN[/]" if isinstance(result, UntestedError) else word
    console.print(f"{word} {escape(str(result))}", soft_wrap=True)
    say_written(json, html)
    raise typer.Exit(0 if agrees else 1)


# What `--names` holds, as errors should call it.
IN_NAMES = {name: f"{name} in the JSON of --names" for name in ("arguments", "outputs", "taps")}
IN_NAMES["weights"] = "--weights (a layout's name) or weights in the JSON of --names"


def raised(candidate: str, error: Exception) -> str:
    return f"{candidate}: expected a call without an error, got {type(error).__name__}: {error}; the lines are above"
