"""Can the judge be trusted? Plant bugs and count how many it sees: `make mutants`."""

from pathlib import Path
from typing import Annotated

import typer

from parity_tests.commands._shared import Overwrite, console, listed, progress, writable
from parity_tests.tests import mutation
from parity_tests.tests.mutation import planting, ratchet, show

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    trees: Annotated[str | None, typer.Option(help="numpy,torch,jax or some of them; all by default.")] = None,
    common: Annotated[bool, typer.Option(help="Also every bug in all three trees at once.")] = True,
    planted: Annotated[bool, typer.Option(help="Also every known mistake; without them careless edits alone.")] = True,
    generic: Annotated[bool, typer.Option(help="Also careless edits that know nothing of attention.")] = True,
    files: Annotated[str | None, typer.Option(help="Only careless edits of these files of attn_np: mha.py,...")] = None,
    short: Annotated[bool, typer.Option("--short", help="A sample that takes about a minute.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    ratchet_update: Annotated[
        bool, typer.Option("--ratchet-update", help="Record the files of whose careless edits more are seen.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write what became of every bug to this file.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Plant every known mistake and see whether it is noticed.

    In one tree, with the reference whole: the judge must see all. In all three at once, the reference included:
    witnesses and relations, which know no reference, must see 95 %.

    Careless edits are those of the shared files and of nine variants that use them in every way. The file of any other
    variant is examined with --files; without it such a variant has the mistakes planted for it. The share that is seen
    of each file must not fall below the recorded one; a file without a record is held to the lowest of all.
    """
    writable(json, overwrite=overwrite)
    generic, planted = generic or bool(files), planted and not files
    if not planted and not generic:
        raise typer.BadParameter("expected known mistakes or careless edits, got neither; leave out one of --no-...")
    if ratchet_update and (short or not generic):
        raise typer.BadParameter("--ratchet-update: expected all careless edits, got some or none; leave out --short")
    only = listed(files, mutation.every(), "a file of attn_np") if files else ()
    chosen = listed(trees, ("numpy", "torch", "jax"), "a framework")
    modes = [mode for mode, name in planting.MODES.items() if name in chosen or (common and mode == planting.COMMON)]
    verdicts: list[planting.Verdict] = []
    careless: list[mutation.Result] = []
    with progress() as bar:
        if planted:
            task = bar.add_task("planting known mistakes", total=None)
            verdicts = planting.run(modes, short, jobs, lambda done, of: bar.update(task, completed=done, total=of))
        if generic:
            more = bar.add_task("planting careless edits", total=None)
            careless = mutation.run(short, jobs, lambda done, of: bar.update(more, completed=done, total=of), only)
    if planted:
        show.show_planted(console, verdicts)
    wrong = bool(planting.missed(verdicts))
    if generic:
        kept = ratchet.read()
        show.show_careless(console, careless, kept, short)
        wrong = wrong or not careless or bool(ratchet.fallen(careless, kept, short))
        if ratchet_update:
            console.print(f"recorded: {', '.join(ratchet.update(careless)) or 'nothing is better'}")
    if json is not None:
        show.write_json(json, verdicts, careless)
        console.print(f"written: {json}")
    raise typer.Exit(1 if wrong else 0)


if __name__ == "__main__":
    app(prog_name="make mutants")
