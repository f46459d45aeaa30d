"""How a comparison of modules is shown: words, and a table for the terminal."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from parity_tests.explain.findings import told

if TYPE_CHECKING:
    from parity_tests.ports.modules.bounds import Distance
    from parity_tests.ports.modules.rows import Row
    from parity_tests.ports.modules.walk import ModuleComparison


def words(result: "ModuleComparison") -> Iterator[str]:
    """The comparison in words, line by line."""
    first = result.first
    if first is None:
        yield from agreement(result)
        return
    probes = list(dict.fromkeys((result.a.probe, result.b.probe)))
    gradient = first.places[0] < 0
    what = f"{first.kinds[0]} {first.label}" if gradient else f"{first.label}: {first.kinds[0]} and {first.kinds[1]}"
    if first.verdict == "less precise":
        whose = result.a if first.output.less_precise == "a" else result.b
        yield f"mean the same, but {first.output.less_precise} ({whose.who}) is less precise first at {what}"
        yield f"  errors in float32: {first.output.errors[0]:.2g} in a, {first.output.errors[1]:.2g} in b"
    else:
        yield f"differ first at {what}"
        if first.inputs is not None:
            yield f"  inputs: {apart(first.inputs)}, agree"
        yield f"  {'gradients' if gradient else 'outputs'}: {apart(first.output)}"
        yield f"  in {' and '.join(probes)}: {first.output.own:.2g} apart"
    before = result.rows if gradient else result.rows[: result.rows.index(first)]
    yield f"  agree before it: {sum(row.verdict == 'agrees' for row in before)} submodules"
    if first.how != "name":
        yield f"  matched by {first.how}; names= makes it sure"
    more = [f"{row.kinds[0]} {row.label}" if row.places[0] < 0 else row.label for row in result.differences[1:]]
    if more:
        yield f"  differ by themselves, too: {', '.join(more)}"
    if result.finding is not None:
        yield from (f"  {line}" for line in told(result.finding).splitlines())
    if result.advice:
        yield f"  next: {result.advice}"


def agreement(result: "ModuleComparison") -> Iterator[str]:
    """That the two agree, how well, and what was not compared."""
    count = sum(row.places[0] >= 0 for row in result.rows)
    types = list(dict.fromkeys(("float64", result.a.probe, result.b.probe)))
    worst = max([*result.rows, *result.gradients], key=lambda row: row.output.ratio if row.verdict == "agrees" else 0.0)
    yield (
        f"agree: {result.a.who} and {result.b.who}, {count} submodules and {len(result.gradients)} gradients, in "
        f"{' and '.join(types)}; largest difference/bound {worst.output.ratio:.3g} ({worst.label})"
    )
    odd = [row.label for row in result.rows if row.verdict != "agrees"]
    if odd:
        yield f"  other numbers inside, although the outputs agree: {', '.join(odd)}"
    if result.unmatched_weights:
        yield f"  no partner: {', '.join(result.unmatched_weights)}"


def apart(x: "Distance") -> str:
    """How far two arrays are apart, beside what they may be."""
    return f"{x.apart:.2g} apart in float64, with a bound of {x.bound:.1g}"


def show_modules(console: Console, result: "ModuleComparison", labels: tuple[str, str]) -> None:
    """The walk through both modules as a table, and the comparison in words."""
    for name, label, side in zip("ab", labels, (result.a, result.b), strict=True):
        console.print(f"[bold]{name}[/] {escape(label)}: {side.who}, {side.dtype}", soft_wrap=True)
    table = Table(title="in the order in which they end (at most 1 agrees)", title_justify="left")
    for head in ("a", "b", "matched by"):
        table.add_column(head)
    for head in ("inputs: difference/bound", "outputs: difference/bound", "largest |a - b|"):
        table.add_column(head, justify="right")
    table.add_column("")
    for row in result.rows:
        table.add_row(*cells(row, row is result.first))
    shown = [row for row in result.gradients if row.verdict != "agrees"]
    if shown:
        table.add_section()
    for row in shown:
        table.add_row(*cells(row, row is result.first))
    console.print(table)
    for name, calls in (("a", result.only_a), ("b", result.only_b)):
        if calls:
            console.print(f"[dim]in {name} alone: {escape(', '.join(calls))}[/]", soft_wrap=True)
    for line in words(result):
        console.print(escape(line), soft_wrap=True)


def cells(row: "Row", first: bool) -> list[str]:
    """A row of the table; the first difference carries a mark."""
    colour = {"agrees": "green", "differs": "bold red", "less precise": "bold red"}.get(row.verdict, "dim")
    names = [name or "the module itself" for name in (row.a, row.b)]
    kind = "" if row.places[0] >= 0 else f"{row.kinds[0]} "
    ratios = ["[dim]–[/]" if x is None else f"{x.ratio:.3g}" for x in (row.inputs, row.output)]
    mark = "[bold red]▶ [/]" if first else ""
    return [
        f"{mark}{escape(kind + names[0])}",
        escape(names[1]),
        row.how,
        *ratios,
        f"{row.output.apart:.2e}",
        f"[{colour}]{row.verdict}[/]",
    ]
