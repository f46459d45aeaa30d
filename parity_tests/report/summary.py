"""How verdicts are shown: a table, plain words, JSON."""

import math
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from parity_tests.explain.findings import Finding, told
from parity_tests.judge.frameworks import versions
from parity_tests.judge.judging import Row, worst
from parity_tests.judge.result import Result
from parity_tests.report.plain import dumps, rows_dict

SHOWN = 8
LONG = 12


def shade(ratio: float) -> str:
    """A ratio with its verdict in colour: green passes, red fails."""
    text = f"{ratio:.3g}" if math.isfinite(ratio) else "fail"
    return f"[green]{text}[/]" if ratio <= 1 else f"[bold red]{text}[/]"


def largest(rows: Iterable[Row]) -> float | None:
    """The worst ratio of some rows; None where there are none."""
    found = list(rows)
    return worst(found).ratio if found else None


def table(result: Result, dtypes: tuple[str, ...]) -> Table:
    """Worst error/bound for every variant, candidate and dtype, and for every kind of quantity over all dtypes."""
    out = Table(title="worst error / bound (at most 1 agrees)", title_justify="left")
    out.add_column("variant")
    out.add_column("framework")
    for name in dtypes:
        out.add_column(name, justify="right")
    kinds = ("tape", "cotangent", "output", "gradient")
    for kind in kinds:
        out.add_column(kind + "s" if kind != "tape" else "tape", justify="right", style="dim")
    out.add_column("numbers", justify="right", style="dim")
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in result.rows:
        groups.setdefault((row.case.variant, row.candidate), []).append(row)
    last = ""
    for (variant, candidate), rows in sorted(groups.items(), key=lambda g: (g[0][0], order(g[0][1]))):
        cells = [largest(r for r in rows if r.case.dtype == name) for name in dtypes]
        cells += [largest(r for r in rows if kind_of(r) == kind) for kind in kinds]
        shown = ["–" if ratio is None else shade(ratio) for ratio in cells]
        if variant != last:
            out.add_section()
        out.add_row(variant if variant != last else "", candidate, *shown, f"{sum(r.elements for r in rows):,}")
        last = variant
    return out


def overview(result: Result, dtypes: tuple[str, ...]) -> Table:
    """The same with one line for each variant: the worst of every candidate, and of every dtype."""
    out = Table(title="worst error / bound (at most 1 agrees)", title_justify="left")
    candidates = sorted({row.candidate for row in result.rows}, key=order)
    for name in ("variant", *candidates, *dtypes, "numbers"):
        out.add_column(name, justify="left" if name == "variant" else "right", style="dim" if name == "numbers" else "")
    for variant in sorted({row.case.variant for row in result.rows}):
        rows = [row for row in result.rows if row.case.variant == variant]
        cells = [largest(r for r in rows if r.candidate == name) for name in candidates]
        cells += [largest(r for r in rows if r.case.dtype == name) for name in dtypes]
        shown = ["–" if ratio is None else shade(ratio) for ratio in cells]
        out.add_row(variant, *shown, f"{sum(r.elements for r in rows):,}")
    return out


def kind_of(row: Row) -> str:
    """The column of a verdict."""
    return {"stage gradient": "gradient", "sampled": "output" if row.name[:1] != "d" else "gradient"}.get(
        row.stage, row.stage
    )


def order(candidate: str) -> tuple[int, str]:
    framework = candidate.split()[0]
    return ("numpy", "torch", "jax").index(framework) if framework in ("numpy", "torch", "jax") else 3, candidate


def show(console: Console, result: Result, dtypes: tuple[str, ...]) -> None:
    """The table, with a line for each variant where there are many; failures in words, the verdict."""
    many = len({row.case.variant for row in result.rows}) > LONG
    console.print(overview(result, dtypes) if many else table(result, dtypes))
    for name, reason in result.skipped.items():
        console.print(f"[yellow]skipped[/] {name}: {reason}")
    for line in result.errors[:SHOWN]:
        console.print(f"[bold red]raised[/] {line}", soft_wrap=True)
    seen: set[tuple[str, str]] = set()
    for row in result.failed:  # the first of each candidate and case: later stages may only follow from it
        key = (row.candidate, row.case.name)
        if key not in seen and len(seen) < SHOWN:
            seen.add(key)
            console.print(f"[bold red]differs[/] {row}", soft_wrap=True)
    for finding in result.findings[:SHOWN]:
        show_finding(console, finding)
    for line in suspicion(result):
        console.print(line, soft_wrap=True)
    console.print(verdict(result), soft_wrap=True)


def show_finding(console: Console, finding: Finding) -> None:
    """The first difference in words, its cause and its fix."""
    for line in told(finding).splitlines():
        word, colon, rest = line.strip().partition(": ")
        style = {"cause": "bold red", "fix": "bold green", "fits too": "yellow", "seen": "cyan"}.get(word)
        indent = " " * (len(line) - len(line.lstrip()))
        shown = f"{indent}[{style}]{word}[/]{colon}{escape(rest)}" if style and colon else escape(line)
        console.print(shown, soft_wrap=True)


def suspicion(result: Result) -> list[str]:
    """The reference is attn_np's own code: where all others differ from it alike, it is the one to look at."""
    judged: dict[tuple[str, str], dict[str, bool]] = {}
    for row in result.rows:
        verdicts = judged.setdefault((row.case.variant, f"{row.stage} {row.name}"), {})
        framework = row.candidate.split()[0]
        verdicts[framework] = verdicts.get(framework, True) and row.ok
    return [
        f"[yellow]look at attn_np first[/] {variant}, {what}: torch and jax both differ from its code, the reference"
        for (variant, what), verdicts in judged.items()
        if {"torch", "jax"} <= set(verdicts) and not verdicts["torch"] and not verdicts["jax"]
    ][:1]


def verdict(result: Result) -> str:
    s = result.summary()
    counts = f"{s['cases']} cases, {s['checks']:,} arrays, {s['elements']:,} numbers"
    if not result.rows and not result.errors:
        return "[yellow]NOTHING JUDGED[/]: nothing was there to compare"
    if s["failed"]:
        return f"[bold red]THEY DIFFER[/]: {s['failed']} of {s['checks']:,} arrays beyond their bound ({counts})"
    loose = f"; {s['vacuous']:,} numbers had a bound above their array's size" if s["vacuous"] else ""
    part = f"; {result.scope}" if result.scope else ""
    return f"[bold green]THEY AGREE[/]: {counts}, worst error/bound {s['worst_ratio']:.3g}{loose}{part}"


def write_json(path: Path, result: Result) -> None:
    """`summary`, `cases` (an entry per judged array), `skipped`, `errors` and `versions`; null: not finite."""
    content = rows_dict(result.rows) | {
        "summary": result.summary(),
        "skipped": result.skipped,
        "errors": result.errors,
        "versions": versions(),
    }
    path.write_text(dumps(content, indent=1) + "\n", encoding="utf-8")
