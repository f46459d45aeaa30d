"""A verdict, a failure or a comparison of modules as a table for the terminal and as a page for a browser."""

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from parity_tests.explain.findings import Finding
from parity_tests.judge.frameworks import versions
from parity_tests.judge.judging import Row, worst
from parity_tests.judge.result import Result
from parity_tests.ports.modules.comparison import ModuleComparison, words
from parity_tests.ports.modules.rows import Row as ModuleRow
from parity_tests.ports.parity import ParityError, Verdict
from parity_tests.ports.unjudged import Unjudged
from parity_tests.ports.verdict import UntestedError
from parity_tests.report.cells import figure, shade
from parity_tests.report.html import Room, environment, rendered_findings, write_html
from parity_tests.report.modules import cells, gradient_table
from parity_tests.report.pictures import marked
from parity_tests.report.summary import kind_of, largest
from parity_tests.report.summary import shade as coloured

KINDS = ("tape", "cotangent", "output", "gradient")
Found = Verdict | ParityError | ModuleComparison


def verdict_in(found: Found) -> Found:
    """The verdict that an error stands for, where what it says is that an agreement leaves something open."""
    return found.verdict if isinstance(found, UntestedError) else found


def rows_and_finding(found: Verdict | ParityError) -> tuple[list[Row], Finding | None]:
    if isinstance(found, Verdict):
        return found.rows, None
    return found.finding.rows or [found.finding.first], found.finding


# In the terminal ------------------------------------------------------------------------------------------------------


def to_table(found: Found) -> Table | Group:
    """What was found as a table that rich prints: of calls and kinds of arrays, of arrays, or of submodules."""
    found = verdict_in(found)
    if isinstance(found, ModuleComparison):
        return modules_table(found)
    rows, finding = rows_and_finding(found)
    return arrays_table(rows, finding) if finding is not None else calls_table(rows, getattr(found, "unjudged", ()))


def calls_table(rows: list[Row], unjudged: Iterable[Unjudged] = ()) -> Table:
    """The worst ratio of each kind of array, for each type and call, and the arrays that were not judged."""
    left = {(part.dtype, part.call): ", ".join(part.names) for part in unjudged}
    out = Table(title="worst error / bound (at most 1 agrees)", title_justify="left")
    for head in ("type", "call"):
        out.add_column(head)
    for head in (*KINDS, "numbers"):
        out.add_column(head, justify="right")
    for head in ("worst in", *(["not judged"] if left else [])):
        out.add_column(head)
    for dtype, call in dict.fromkeys((row.case.dtype, row.case.call) for row in rows):
        part = [row for row in rows if (row.case.dtype, row.case.call) == (dtype, call)]
        ratios = [largest(row for row in part if kind_of(row) == kind) for kind in KINDS]
        far = worst(part)
        shown = ["–" if ratio is None else coloured(ratio) for ratio in ratios]
        more = [escape(left.get((dtype, call), ""))] if left else []
        numbers = f"{sum(row.elements for row in part):,}"
        out.add_row(dtype, call, *shown, numbers, escape(f"{far.stage} {far.name}"), *more)
    return out


def arrays_table(rows: list[Row], finding: Finding) -> Table:
    """Every array of a call in the order of the computation; the first difference carries a mark."""
    out = Table(title=f"{finding.candidate}, {finding.case}", title_justify="left")
    out.add_column("array")
    for head in ("error / bound", "numbers"):
        out.add_column(head, justify="right")
    for row in rows:
        mark = "[bold red]▶ [/]" if row is finding.first else ""
        out.add_row(f"{mark}{row.stage} {escape(row.name)}", coloured(row.ratio), f"{row.elements:,}")
    return out


def modules_table(found: ModuleComparison) -> Group:
    """The submodules of both in the order in which they end, and the gradients that do not agree."""
    out = Table(title="in the order in which they end (at most 1 agrees)", title_justify="left")
    for head in ("a", "b", "matched by"):
        out.add_column(head)
    for head in ("inputs: difference/bound", "outputs: difference/bound", "largest |a - b|"):
        out.add_column(head, justify="right")
    out.add_column("")
    for row in found.rows:
        out.add_row(*cells(row, row is found.first))
    apart = [row for row in found.gradients if row.verdict != "agrees"]
    return Group(out, *([gradient_table(apart, found.first)] if apart else []))


# In a browser ---------------------------------------------------------------------------------------------------------


def to_html(found: Found, path: Path | str, title: str = "attn-parity") -> None:
    """Write what was found as one page that fetches nothing.

    Args:
        found: what `assert_parity` returned, the error that it raised, or what `compare_modules` returned.
        path: of the file.
        title: which question this answers.
    """
    found = verdict_in(found)
    if isinstance(found, ModuleComparison):
        Path(path).write_text(modules_page(found, title), encoding="utf-8")
        return
    rows, finding = rows_and_finding(found)
    notes = [f"Not judged, with bounds above their size: {part}." for part in getattr(found, "unjudged", ())]
    notes += [f"Not tested: {part}." for part in getattr(found, "untested", ())]
    notes += [f"{note[:1].upper()}{note[1:]}." for note in getattr(found, "notes", ())]
    dtypes = tuple(dict.fromkeys(row.case.dtype for row in rows))
    write_html(Path(path), Result(rows=rows), dtypes, [finding] if finding else [], title, notes)


def modules_page(found: ModuleComparison, title: str) -> str:
    """The text of the page of a comparison of modules."""
    env = environment("parity_tests.report")
    env.filters |= {"figure": figure, "marked": marked}
    lines = list(words(found))
    return env.get_template("modules.html.j2").render(
        title=title,
        verdict="They agree" if found.agree else "They differ",
        mood="agree" if found.agree else "differ",
        mark="✓" if found.agree else "✗",
        lead=lines[0],
        lines=[line.strip() for line in lines[1:]],
        sides=[(name, side.who, side.dtype) for name, side in (("a", found.a), ("b", found.b))],
        facts=[("when", datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")), *versions().items()],
        submodules=[line_of(row, found.first) for row in found.rows],
        gradients=[line_of(row, found.first) for row in found.gradients],
        alone=[(name, calls) for name, calls in (("a", found.only_a), ("b", found.only_b)) if calls],
        findings=rendered_findings(env, [found.finding] if found.finding else [], Room()),
    )


def line_of(row: ModuleRow, first: ModuleRow | None) -> dict[str, Any]:
    """A row of the page: two names, what they are, and how far they are apart."""
    names = [name or "the module itself" for name in (row.a, row.b)]
    return {
        "first": row is first,
        "names": names if names[0] != names[1] else names[:1],
        "kinds": list(dict.fromkeys(row.kinds)),
        "how": row.how,
        "ratios": [None if x is None else (figure(x.ratio), shade(x.ratio)) for x in (row.inputs, row.output)],
        "apart": f"{row.output.apart:.2e}" if np.isfinite(row.output.apart) else "not finite",
        "verdict": row.verdict,
    }
