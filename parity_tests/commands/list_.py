"""attn-parity list: the catalogue of variants."""

from typing import Annotated

import typer
from rich.table import Table

from attn_np import contract
from parity_tests.commands._shared import console, listed


def main(
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
