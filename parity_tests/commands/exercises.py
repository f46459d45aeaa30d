"""attn-parity exercises: the graded exercises of the course, and what the teacher says of a file of answers."""

from pathlib import Path
from typing import Annotated

import typer

from parity_tests.commands._shared import console


def main(
    name: Annotated[str | None, typer.Argument(help="Show this exercise, as 2.4; or those of a lesson, as 2.")] = None,
    check: Annotated[
        Path | None, typer.Option(help="Judge the functions of this file that have the names of exercises.")
    ] = None,
    score: Annotated[
        Path | None,
        typer.Option(help="Where the score is kept; by default beside the answers, .score.json."),
    ] = None,
    answer: Annotated[bool, typer.Option("--answer", help="Show the answer of the exercise, too.")] = False,
) -> None:
    """List the graded exercises of the course, show one, or judge a file of answers.

    A file of answers is Python: each function with the name of an exercise is judged, and what is right is kept in the
    file of the score, so that `attn-parity exercises --score FILE` shows how far you are.
    """

    from rich.markup import escape
    from rich.table import Table

    from parity_tests.exercises import exercise, exercises
    from parity_tests.exercises._score import answers_of, kept, merged, verdicts

    try:
        if name is not None and "." not in name and name.isdigit():
            chosen = [one for one in exercises().values() if one.name.partition(".")[0] == name]
            if not chosen:
                exercise(name)
        else:
            chosen = [exercise(name)] if name is not None else list(exercises().values())
        if check is not None:
            found = answers_of(check)
            said = verdicts(found, chosen)
            file = score or check.with_suffix(".score.json")
            right = merged(file, said)
            for verdict in said:
                mark = "[green]right[/]" if verdict else "[red]not yet[/]"
                console.print(f"{verdict.exercise:5} {mark}  {escape(verdict.says)}")
            if not said:
                fix = f"name a function {chosen[0].function}" if len(chosen) == 1 else "see `attn-parity exercises`"
                raise ValueError(f"exercises: expected functions named as exercises, got none in {check}; {fix}")
            console.print(f"{len(right)} of {len(exercises())} right; kept in {file}")
            raise typer.Exit(0 if all(said) else 1)
        right = kept(score) if score is not None else set()
    except (ValueError, OSError) as error:
        console.print(f"[bold red]refused[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(2) from None
    if len(chosen) == 1:
        one = chosen[0]
        console.print(f"[bold]{one.name}[/] {escape(one.call)}\n\n{escape(one.task)}", soft_wrap=True)
        if one.given:
            console.print(f"\n{escape(one.given)}", soft_wrap=True)
        if answer:
            console.print(f"\n{escape(one.source)}", soft_wrap=True)
        return
    table = Table(box=None, pad_edge=False)
    for column in ("", "exercise", "what to write"):
        table.add_column(column, no_wrap=column != "what to write")
    for one in chosen:
        table.add_row("[green]right[/]" if one.name in right else "", one.name, escape(one.call))
    console.print(table)
    if score is not None:
        console.print(f"{len(right)} of {len(exercises())} right")
