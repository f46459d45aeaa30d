"""How a comparison of modules is shown: words, and a table for the terminal."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from parity_tests.explain.findings import told

if TYPE_CHECKING:
    from parity_tests.ports.modules.walk import ModuleComparison


def words(result: "ModuleComparison") -> Iterator[str]:
    """The comparison in words."""
    count, first = sum(row.places[0] >= 0 for row in result.rows), result.first
    types = f"{result.a.dtype} and {result.b.dtype}" if result.a.dtype != result.b.dtype else result.a.dtype
    if first is None:
        whole = next(row for row in result.rows if not row.a)
        yield (
            f"agree: {result.a.who} and {result.b.who}, {count} submodules and {len(result.gradients)} gradients, in "
            f"float64 and {types}; outputs {whole.output.apart:.2g} apart in float64, {whole.output.own:.2g} in their "
            f"own type"
        )
        odd = [row.label for row in result.rows if row.verdict != "agrees"]
        if odd:
            yield f"  give other numbers, without consequence: {', '.join(odd)}"
        return
    gradient = first.places[0] < 0
    what = f"{first.kinds[0]} {first.label}" if gradient else first.label
    kinds = "" if gradient else f": {first.kinds[0]} and {first.kinds[1]}"
    if first.verdict == "less precise":
        whose = result.a if first.output.less_precise == "a" else result.b
        yield f"mean the same, but {first.output.less_precise} ({whose.who}) is less precise first at {what}{kinds}"
        yield f"  errors in float32: {first.output.errors[0]:.2g} in a, {first.output.errors[1]:.2g} in b"
    else:
        yield f"differ first at {what}{kinds}"
        if first.inputs is not None:
            yield f"  inputs agree: {first.inputs.apart:.2g} apart in float64, with a bound of {first.inputs.bound:.1g}"
        out = first.output
        yield f"  {'gradients' if gradient else 'outputs'}: {out.apart:.2g} apart in float64, bound {out.bound:.1g}"
        yield f"  in their own types ({types}): {out.own:.2g} apart"
    before = result.rows[: result.rows.index(first)] if not gradient else result.rows
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
