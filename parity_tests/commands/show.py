"""attn-parity show: one run as a page to look through."""

from pathlib import Path
from typing import Annotated

import typer

from parity_tests.commands._shared import Overwrite, console, listed, refused, writable


def main(
    variant: Annotated[
        str | None,
        typer.Argument(help="Name of a variant or preset; not with --trace, and with --weights where needed."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("viewer.html"),
    tokens: Annotated[
        str | None, typer.Option(help="Words of the positions; fewer words than positions cut the sequence.")
    ] = None,
    key_tokens: Annotated[str | None, typer.Option(help="Words of the keys, where they are others.")] = None,
    example: Annotated[str | None, typer.Option(help="Which example of the variant; its first by default.")] = None,
    call: Annotated[str, typer.Option(help="plain, full, shared or packed: which arguments are given.")] = "plain",
    seed: Annotated[int, typer.Option(min=0, help="Of inputs and weights.")] = 0,
    trace: Annotated[Path | None, typer.Option(help="A trace to show, beside the same call here.")] = None,
    weights: Annotated[Path | None, typer.Option(help="A weight file, or a model's folder.")] = None,
    layout: Annotated[str | None, typer.Option(help="Whose names the weight file uses, such as bert.")] = None,
    layer: Annotated[int | None, typer.Option(min=0, help="Which layer of the weight file.")] = None,
    inputs: Annotated[Path | None, typer.Option(help="Activations to run the weights on.")] = None,
    row: Annotated[int, typer.Option(min=0, help="Which row of the batch.")] = 0,
    frameworks: Annotated[str | None, typer.Option(help="numpy, torch, jax; all installed ones by default.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write one run as a page: maps of every head, every number as the sum it is, three frameworks side by side.

    The page is one file that fetches nothing. It shows an example of a variant, a trace of `attn-parity trace`, or a
    layer of a weight file.
    """
    from attn_np import contract
    from parity_tests.judge.cases import ALL_CALLS, Case, draw
    from parity_tests.judge.checkpoint import load as load_layer
    from parity_tests.judge.frameworks import FRAMEWORKS
    from parity_tests.ports import trace as traces
    from parity_tests.viewer.data import frameworks_here
    from parity_tests.viewer.page import page_of

    if call not in ALL_CALLS:
        raise typer.BadParameter(f"expected one of {', '.join(ALL_CALLS)}, got {call!r}; set --call")
    if (variant or weights or trace) is None or (trace is not None and (variant or weights) is not None):
        raise typer.BadParameter("expected one of VARIANT, --weights and --trace, got none or several; give one")
    chosen = frameworks_here() if frameworks is None else listed(frameworks, FRAMEWORKS, "a framework")
    writable(out, read=(trace, weights, inputs), overwrite=overwrite)
    words = {"t": (tokens or "").split(), "s": (key_tokens or "").split()}
    lengths = {letter: len(given) for letter, given in words.items() if given}
    try:
        run = None
        if trace is not None:
            run = traces.load(trace)
            case, drawn = run.case, run.drawn
        elif weights is not None:
            real = load_layer(weights, layout=layout, variant=variant, layer=layer, inputs=inputs)
            case, drawn = real.case, real.drawn
        else:
            name, examples = str(variant), contract.examples(str(variant))
            named = example or next(iter(examples))
            if named not in examples:
                nearest = contract.did_you_mean(named, tuple(examples))
                raise typer.BadParameter(f"expected an example of {name}, got {named!r}; set --example, {nearest}")
            case = Case(examples[named].variant, named, call, "float32", seed, examples[named])
            drawn = draw(case, lengths={"s": len(words["t"]), **lengths} if words["t"] else lengths)
        with console.status("recording"):
            page = page_of(case, drawn, words=words, row=row, frameworks=chosen, trace=run)
    except (ValueError, TypeError, OSError) as error:
        raise refused(error, main) from None
    page.save(out)
    console.print(f"written: {out}: {case.config.variant}, {len(page.html):,} characters; open it", soft_wrap=True)
