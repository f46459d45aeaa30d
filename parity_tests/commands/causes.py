"""attn-parity causes: the catalogue of known mistakes, and how well it is recognised."""

from pathlib import Path
from typing import Annotated

import typer

from parity_tests.commands._shared import Overwrite, console, listed, progress, writable


def main(
    variant: Annotated[str | None, typer.Argument(help="Only what this variant can hold; several with commas.")] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Plant every mistake in a candidate and see whether it is named.")
    ] = False,
    frameworks: Annotated[str, typer.Option(help="Where to plant: numpy,torch,jax or some of them.")] = "torch",
    black_box: Annotated[
        bool, typer.Option("--black-box", help="Show the judge outputs and gradients only, no intermediates.")
    ] = False,
    dtype: Annotated[str, typer.Option(help="In which the candidates compute.")] = "float32",
    json: Annotated[Path | None, typer.Option(help="Write what was measured to this file.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """List the mistakes that `compare`, `run` and `assert_parity` know by name, each with its fix.

    With --measure each is planted in a copy of a tree, the candidate is judged, and what the judge names is compared
    with what was planted.
    """

    from rich.markup import escape
    from rich.table import Table

    from attn_np import contract
    from parity_tests.explain.catalogue import catalogue
    from parity_tests.judge.frameworks import DTYPES, FRAMEWORKS, prepare
    from parity_tests.report.plain import dumps

    writable(json, overwrite=overwrite)
    behind = {name: of for name, (of, _) in contract.presets().items()}
    names = (
        listed(variant, (*contract.variants(), *behind), "the name of a variant") if variant else contract.variants()
    )
    variants = tuple(dict.fromkeys(behind.get(name, name) for name in names))
    if not measure:
        table = Table("mistake", "what to do", title="known mistakes", title_justify="left", show_lines=True)
        seen = set()
        for name in variants:
            for mistake in catalogue(name):
                if mistake.name not in seen:
                    seen.add(mistake.name)
                    table.add_row(escape(mistake.name), escape(mistake.fix))
        console.print(table)
        console.print(f"{len(seen)} mistakes")
        return
    from parity_tests.explain.measure import measured, planted_cases

    places = listed(frameworks, FRAMEWORKS, "a framework")
    listed(dtype, DTYPES, "a float dtype")
    prepare(places)
    pieces = [piece for piece in planted_cases(places) if piece[0].variant in variants]
    found = []
    with progress() as bar:
        task = bar.add_task("planting", total=len(pieces))
        for mutant, tree in pieces:
            bar.update(task, description=f"planting {mutant.name}")
            found.append(measured(mutant, tree, dtype, black_box))
            bar.advance(task)
    table = Table("planted", "in", "first difference", "named first", "fits too", title="not named first")
    for one in found:
        if not one.named:
            named, *others = one.causes or ("nothing",)
            table.add_row(*map(escape, (one.mistake, one.tree, one.first, named, ", ".join(others[:3]))))
    if table.row_count:
        console.print(table)
    seen_ = [one for one in found if one.seen]
    stages = [one for one in found if one.stage_right]
    named_ = [one for one in found if one.named]
    alike = [one for one in found if one.among]
    total = len(found)
    console.print(
        f"planted {total}: seen {len(seen_)}, guilty stage named {len(stages)}, cause named first {len(named_)}"
    )
    console.print(
        f"cause among those that fit: {len(alike)}; longest {max((x.seconds for x in found), default=0.0):.1f} s"
    )
    if json is not None:
        json.write_text(dumps([one.__dict__ for one in found], indent=1) + "\n", encoding="utf-8")
        console.print(f"written: {json}")
    raise typer.Exit(0 if total and len(stages) >= 0.98 * total and len(named_) >= 0.95 * total else 1)
