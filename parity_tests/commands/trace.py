"""attn-parity trace: one run with everything it computed, in a file."""

from pathlib import Path
from typing import Annotated

import typer

from parity_tests.commands._shared import Overwrite, console, refused, writable


def main(
    variant: Annotated[
        str | None,
        typer.Argument(
            help="Name of a variant or preset; not with --like, and with --weights where the layout has several."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("trace.safetensors"),
    framework: Annotated[str, typer.Option(help="numpy, torch or jax.")] = "numpy",
    example: Annotated[str | None, typer.Option(help="Which example of the variant; its first by default.")] = None,
    config: Annotated[str | None, typer.Option(help="The config's fields as JSON, in place of an example.")] = None,
    weights: Annotated[Path | None, typer.Option(help="A weight file to take the layer from.")] = None,
    layout: Annotated[str | None, typer.Option(help="Whose names the weight file uses, such as bert.")] = None,
    layer: Annotated[int | None, typer.Option(min=0, help="Which layer of the weight file.")] = None,
    like: Annotated[Path | None, typer.Option(help="A trace whose config, weights and inputs to use again.")] = None,
    call: Annotated[str, typer.Option(help="plain, full, shared or packed: which arguments are given.")] = "full",
    dtype: Annotated[str | None, typer.Option(help="float64, float32, bfloat16 or float16.")] = None,
    device: Annotated[str, typer.Option(help="cpu, or the framework's name of an accelerator.")] = "cpu",
    jit: Annotated[bool, typer.Option(help="Compile with jax.jit.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of inputs, weights and incoming gradients.")] = 0,
    overwrite: Overwrite = False,
) -> None:
    """Record one run of a layer of ours: inputs, weights, every intermediate, outputs and gradients.

    The file goes to another machine or environment, where `attn-parity trace --like` runs the same call and
    `attn-parity compare` says where the two part.
    """
    import json

    from attn_np import contract
    from parity_tests.judge.cases import ALL_CALLS, Case, draw
    from parity_tests.judge.checkpoint import load as load_layer
    from parity_tests.judge.frameworks import DTYPES, FRAMEWORKS, prepare
    from parity_tests.ports import trace

    def refuse(expected: str, got: object, option: str) -> typer.BadParameter:
        return typer.BadParameter(f"expected {expected}, got {got!r}; set {option}")

    def fields_of(text: str) -> dict[str, object]:
        try:
            fields = json.loads(text)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise refuse("the config's fields as a JSON object", text, "--config '{\"num_heads\": 3}'")
        return fields

    for value, known, option in ((framework, FRAMEWORKS, "--framework"), (call, ALL_CALLS, "--call")):
        if value not in known:
            raise refuse(f"one of {', '.join(known)}", value, option)
    if dtype is not None and dtype not in DTYPES:
        raise refuse(f"one of {', '.join(DTYPES)}", dtype, "--dtype")
    if (variant or weights or like) is None or (like is not None and (variant or weights) is not None):
        raise typer.BadParameter("expected one of VARIANT, --weights and --like, got none or several; give one")
    writable(out, read=(weights, like), overwrite=overwrite)
    prepare((framework,))
    try:
        if like is not None:
            before = trace.load(like)
            case, drawn = before.case, before.drawn
            if dtype is not None and dtype != case.dtype:
                case, drawn = case.at(dtype), trace.cast(drawn, dtype)
        elif weights is not None:
            found = load_layer(weights, layout=layout, variant=variant, layer=layer)
            case, drawn = found.case, found.drawn
        else:
            name = str(variant)
            examples = contract.examples(name)
            chosen = example or next(iter(examples))
            if chosen not in examples:
                raise refuse(
                    f"an example of {name}", chosen, f"--example, {contract.did_you_mean(chosen, tuple(examples))}"
                )
            given = contract.config(name, **fields_of(config)) if config else examples[chosen]
            case = Case(given.variant, "given" if config else chosen, call, dtype or "float32", seed, given)
            drawn = draw(case)
        with console.status("recording"):
            found = trace.record(trace.candidate(framework, device, jit), case, drawn)
    except (ValueError, TypeError, OSError) as error:
        raise refused(error, main) from None
    found.save(out)
    console.print(
        f"written: {out}: {case.config.variant}, {found.who}, {case.dtype}, {len(found.outcome.tape)} intermediates, "
        f"{len(found.outcome.grads)} gradients",
        soft_wrap=True,
    )
