"""How a comparison of modules is shown in the terminal: a table and words."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from parity_tests.ports.modules.comparison import ModuleComparison, words
from parity_tests.ports.modules.rows import Row


def show_modules(console: Console, result: ModuleComparison, labels: tuple[str, str]) -> None:
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
    console.print(table)
    shown = [row for row in result.gradients if row.verdict != "agrees"]
    if shown:
        console.print(gradient_table(shown, result.first))
    for line in words(result):
        console.print(escape(line.replace("names=", "--names")), soft_wrap=True)


def gradient_table(rows: list[Row], first: Row | None) -> Table:
    """The gradients that do not agree: of inputs, and of weights."""
    table = Table(title="gradients that do not agree", title_justify="left")
    for head in ("of", "a", "b"):
        table.add_column(head)
    for head in ("difference/bound", "largest |a - b|"):
        table.add_column(head, justify="right")
    table.add_column("")
    for row in rows:
        kind = row.kinds[0].removeprefix("gradient of the ")
        name_a, name_b, _, _, *numbers = cells(row, row is first)
        table.add_row(kind, name_a, name_b, *numbers)
    return table


def cells(row: Row, first: bool) -> list[str]:
    """A row of the table; the first difference carries a mark."""
    colour = {"agrees": "green", "differs": "bold red", "less precise": "bold red"}.get(row.verdict, "dim")
    names = [name or "the module itself" for name in (row.a, row.b)]
    ratios = ["[dim]–[/]" if x is None else f"{x.ratio:.3g}" for x in (row.inputs, row.output)]
    mark = "[bold red]▶ [/]" if first else ""
    return [
        f"{mark}{escape(names[0])}",
        escape(names[1]),
        row.how,
        *ratios,
        f"{row.output.apart:.2e}",
        f"[{colour}]{row.verdict}[/]",
    ]
