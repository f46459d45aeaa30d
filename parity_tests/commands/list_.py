"""attn-parity list: the catalogue of variants, and the stages of one."""

from typing import Annotated

import typer
from rich.table import Table

from attn_np import contract
from attn_np.contract import _names as names
from parity_tests.commands._shared import behind_preset, console, listed


def main(
    variant: Annotated[
        str | None, typer.Argument(help="List the stages of this variant, or of a preset's, which taps= may name.")
    ] = None,
    family: Annotated[str | None, typer.Option(help="Only this family.")] = None,
    like: Annotated[
        str | None, typer.Option(help='What the field calls it, such as "RWKV": what that is here.')
    ] = None,
) -> None:
    """The catalogue: every variant with its family, class and name in full; or the stages of one variant."""
    if like is not None:
        show_names(like)
        return
    if variant in contract.presets():
        console.print(f"{variant} is {behind_preset(variant)}; the stages of {contract.presets()[variant][0]}:")
        variant = contract.presets()[variant][0]
    if variant is not None:
        listed(variant, contract.variants(), "the name of a variant")
        console.print(stages(variant))
        return
    families = tuple(sorted({contract.get(variant).Config.family for variant in contract.variants()}))
    if family is not None:
        listed(family, families, "the name of a family")
    out = Table(box=None, pad_edge=False)
    for name in ("variant", "family", "class", "what it is"):
        out.add_column(name, no_wrap=name != "what it is")
    for variant in contract.variants():
        config = contract.get(variant).Config
        if family in (None, config.family):
            out.add_row(f"[bold]{variant}[/]", config.family, config.class_name, config.title)
            for name, (behind, preset) in contract.presets().items():
                if behind == variant:
                    what = f"{preset.title}: {behind_preset(name)}"
                    out.add_row(f"  {name}", config.family, config.class_name, what)
    console.print(out)


def show_names(text: str) -> None:
    """What the names that hold a text are here; an error where none does."""
    found = names.like(text)
    if not found:
        fix = "`attn-parity list` has all variants"
        raise typer.BadParameter(f"expected a name that the field has, got {text!r}; {fix}", param_hint="--like")
    out = Table(box=None, pad_edge=False)
    out.add_column("name")
    out.add_column("here")
    for known in found:
        out.add_row(", ".join(known.names), known.spelled().replace("`", ""))
    console.print(out)


def stages(variant: str) -> Table:
    """The float arrays on the tape of a variant's forward pass in order, with their axes and the examples that have
    them.
    """
    from parity_tests.explain.patterns import axes_of
    from parity_tests.judge.cases import Case, draw
    from parity_tests.judge.consequences import outputs_of

    found: dict[str, tuple[str, list[str]]] = {}
    examples = contract.examples(variant)
    for example, config in examples.items():
        case, tape = Case(variant, example, "full", "float64"), {}
        outputs_of(case, draw(case), tape)
        arrays = {
            n: x for n, x in tape.items() if x is not None and x.dtype.kind == "f" and not n.startswith("zeroed_")
        }
        for name in [n for n in arrays if n not in ("x", *config.arguments())]:
            found.setdefault(name, (axes_of(case, name, arrays[name].ndim), []))[1].append(example)
    out = Table(box=None, pad_edge=False)
    for column in ("stage", "axes", "in the examples"):
        out.add_column(column)
    for name, (axes, having) in found.items():
        out.add_row(name, axes, "all" if len(having) == len(examples) else ", ".join(having))
    return out
