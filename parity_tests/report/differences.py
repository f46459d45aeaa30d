"""How findings and comparisons are shown: words and tables for the terminal, JSON for machines."""

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from parity_tests.explain.findings import FAR
from parity_tests.explain.verdicts import verdicts
from parity_tests.judge.frameworks import versions
from parity_tests.judge.result import Result
from parity_tests.ports.compare import Comparison
from parity_tests.report.html import write_html
from parity_tests.report.plain import dumps, finding_dict
from parity_tests.report.summary import show_finding


def ratio(x: float | None) -> str:
    if x is None:
        return "[dim]–[/]"
    text = "far beyond" if x > FAR else f"{x:.3g}"
    return f"[green]{text}[/]" if x <= 1 else f"[bold red]{text}[/]"


def number(x: float | None) -> str:
    return "[dim]–[/]" if x is None else "other shapes" if np.isnan(x) else "NaN" if np.isinf(x) else f"{x:.2e}"


def show_comparison(console: Console, found: Comparison, labels: tuple[str, str]) -> None:
    """The walk through both traces, the first difference, whose it is, and why."""
    names = ("A", "B")
    for name, label, trace in zip(names, labels, (found.one, found.other), strict=True):
        about = ", ".join(f"{k} {v}" for k, v in trace.about.items() if k != "platform")
        console.print(f"[bold]{name}[/] {escape(label)}: {trace.who}, {trace.case.dtype}; {about}", soft_wrap=True)
    for line in found.given:
        console.print(f"[bold red]given something else[/] {escape(line)}", soft_wrap=True)
    table = Table(title="in dataflow order (at most 1 agrees)", title_justify="left")
    for head in ("array", "axes"):
        table.add_column(head)
    for head in ("largest |A - B|", "of both bounds", "A on its own inputs", "B on its own inputs"):
        table.add_column(head, justify="right")
    last = ""
    alone = [line for line in found.lines if line.apart is None and line.ok]
    for line in found.lines:
        if line in alone:
            continue
        if line.kind != last:
            table.add_section()
        last = line.kind
        mark = "" if line.ok else "[bold red]▶ [/]" if line is found.first else "[red]· [/]"
        cells = (number(line.apart), ratio(line.ratio), ratio(line.one), ratio(line.other))
        table.add_row(f"{mark}{line.kind} {escape(line.name)}", line.axes, *cells)
    if table.row_count:
        console.print(table)
    if alone:
        listed = ", ".join(f"{line.kind} {line.name}" for line in alone)
        console.print(f"[dim]recorded by one side only, and right: {escape(listed)}[/]", soft_wrap=True)
    for finding in found.findings:
        show_finding(console, finding)
    console.print(verdict(found), soft_wrap=True)


def verdict(found: Comparison) -> str:
    """One line: do they agree, and if not, where they part and who is wrong."""
    if found.agree:
        return f"[bold green]THEY AGREE[/]: {found.shared} arrays of both, each within its bound"
    if found.given:
        return "[bold red]NOT COMPARABLE[/]: the two were given different things; give them the same first"
    if not found.shared and not found.findings:
        return "[bold red]NOT COMPARABLE[/]: no array was recorded by both; record the same in both, or map --names"
    first = found.first
    where = "nowhere that both recorded" if first is None else f"first at {first.kind} {first.name}"
    wrong = [name for name, bad in zip(("A", "B"), found.wrong, strict=True) if bad]
    whose = " and ".join(wrong)
    departs = "departs" if len(wrong) == 1 else "depart"
    side = f"{whose} {departs} from the reference" if wrong else "each is right on its own inputs of every stage"
    return f"[bold red]THEY DIFFER[/]: {where}; {side}"


def write_comparison(found: Comparison, labels: tuple[str, str], to_json: Path | None, to_html: Path | None) -> None:
    """What was found as JSON, and as a report."""
    if to_json is not None:
        content = {
            "agree": found.agree,
            "traces": [
                {"file": label, "who": trace.who, "dtype": trace.case.dtype, "about": trace.about}
                for label, trace in zip(labels, (found.one, found.other), strict=True)
            ],
            "given": found.given,
            "first": None if found.first is None else {"kind": found.first.kind, "name": found.first.name},
            "lines": [
                {
                    "kind": line.kind,
                    "name": line.name,
                    "ok": line.ok,
                    **{k: getattr(line, k) for k in ("apart", "ratio", "one", "other")},
                }
                for line in found.lines
            ],
            "findings": [finding_dict(finding) for finding in found.findings],
            "versions": versions(),
        }
        to_json.write_text(dumps(content, indent=1) + "\n", encoding="utf-8")
    if to_html is not None:
        rows = [row for trace in (found.one, found.other) for row in verdicts(trace.judged())[0]]
        dtypes = tuple(dict.fromkeys(row.case.dtype for row in rows))
        title = f"{Path(labels[0]).name} against {Path(labels[1]).name}"
        write_html(to_html, Result(rows=rows), dtypes, found.findings, title=title)
