"""The verdict as one HTML file: readable offline, years later, by a colleague who was not there.

Everything that matters is in the page itself: headline, heat map, failures. A small script fills in the numbers of
single cases from a compact block of JSON when they are opened. Nothing is fetched, and no file exceeds `LIMIT`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from attn_np.contract._package import how_to_install

try:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"attn-parity: expected the package {missing.name}, got none; {how_to_install('parity')}", name=missing.name
    ) from None

from parity_tests.explain.findings import Finding
from parity_tests.judge.frameworks import versions
from parity_tests.judge.judging import Row, worst
from parity_tests.judge.result import Result
from parity_tests.report.cells import (
    Group,
    block,
    cells_by_variant,
    clipped,
    counted,
    figure,
    grouped,
    heat_map,
    legend,
    shade,
    words,
)
from parity_tests.report.pictures import finding_view, marked
from parity_tests.report.plain import dumps

LIMIT = 1_000_000  # bytes of a report
WINDOW = 48  # cells of a picture along each axis ...
SMALL_WINDOW = 16  # ... and where many pictures must fit
FEW = 6


@dataclass(frozen=True)
class Room:
    """How much of a result a page shows; it counts what it leaves out.

    Attributes:
        findings, block: bytes for the sections of findings and for the numbers of single cases.
        listed: findings, failures without one and exceptions that are shown one by one.
        cases: lines in the list of cases.
    """

    findings: int = 500_000
    block: int = 250_000
    listed: int = 50
    cases: int = 1500

    def half(self) -> "Room":
        return Room(self.findings // 2, self.block // 2, self.listed // 2, self.cases // 2)


def rendered_findings(env: Environment, findings: Sequence[Finding], room: Room) -> list[Markup]:
    """Sections of the first findings, as many as fit: with pictures, then without."""
    section = env.get_template("finding.html.j2").module.finding  # type: ignore[attr-defined]
    most = WINDOW if len(findings) <= FEW else SMALL_WINDOW
    out: list[Markup] = []
    left = room.findings
    for number, finding in enumerate(findings[: room.listed]):
        text = section(finding_view(finding, most), number)
        if len(text.encode()) > left:
            text = section(finding_view(finding, 0), number)
        left -= len(text.encode())
        if left < 0:
            break
        out.append(text)
    return out


def failure_view(group: Group) -> dict[str, Any]:
    row = worst(group.rows)
    return {
        "candidate": group.candidate,
        "case": row.case.name,
        "shade": shade(row.ratio),
        "figure": figure(row.ratio),
        "count": len(group.failed),
        "of": len(group.rows),
        "rows": [(r.stage, r.name, clipped(words(r))) for r in group.failed[:12]],
        "more": max(0, len(group.failed) - 12),
    }


def headline(result: Result, findings: Sequence[Finding], failures: list[Group]) -> dict[str, Any]:
    """The verdict in words, and a link to the first difference."""
    s = result.summary()
    counts = ", ".join(counted(s[n], w) for n, w in (("cases", "case"), ("checks", "array"), ("elements", "number")))
    if not result.rows and not result.errors and not findings:
        lead = ["There was nothing to compare, so this says nothing about agreement."]
        return {"verdict": "Nothing was judged", "mood": "none", "mark": "–", "jump": None, "lead": lead}
    if not s["failed"] and not findings:
        lead = [f"Rounding explains every difference: {counts}; worst error/bound {s['worst_ratio']:.4g}."]
        if s["vacuous"]:
            lead.append(f"For {s['vacuous']:,} numbers the bound is above their array's size and says little.")
        return {"verdict": "They agree", "mood": "agree", "mark": "✓", "jump": None, "lead": lead}
    lead, jump = [f"{len(result.failed):,} of {s['checks']:,} arrays are beyond their bound ({counts})."], None
    if result.errors:
        lead.append(f"Exceptions raised: {len(result.errors):,}.")
    if findings:
        lead.insert(0, first_words(findings[0].candidate, findings[0].case, findings[0].first))
        jump = ("findings", "See what differs")
    elif failures:
        row = failures[0].failed[0]
        lead.insert(0, first_words(row.candidate, row.case.name, row))
        jump = ("failures", "See what differs")
    elif result.errors:
        jump = ("errors", "See what was raised")
    return {"verdict": "They differ", "mood": "differ", "mark": "✗", "jump": jump, "lead": lead}


def first_words(candidate: str, case: str, row: Row) -> str:
    return f"First in {candidate}, {case}: {row.stage} {row.name}, {clipped(words(row))}."


def facts(result: Result) -> list[tuple[str, str]]:
    """When, on what and with what."""
    names = {row.candidate for row in result.rows}
    devices = sorted({name.partition(" on ")[2] or "CPU" for name in names}, key=lambda name: (name != "CPU", name))
    seeds = sorted({row.case.seed for row in result.rows})
    found = [("when", datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"))]
    found += [("device", ", ".join(devices))] * bool(devices)
    found += [("seed", ", ".join(map(str, seeds[:20])))] * bool(seeds)
    held = versions()
    return [*found, *sorted(held.items(), key=lambda item: item[0] == "platform")]


def environment(*rooms: str) -> Environment:
    """The templates of some rooms, with values escaped and none left out."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(room) for room in rooms]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def json_block(data: Any) -> Markup:
    """Data as JSON that stands inside a script element of a page."""
    text = dumps(data, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def write_html(
    path: Path,
    result: Result,
    dtypes: Sequence[str],
    findings: Sequence[Finding] = (),
    title: str = "attn-parity",
    notes: Sequence[str] = (),
) -> None:
    """Write a result as one page.

    Args:
        path: of the file.
        result: every verdict.
        dtypes: columns of the heat map, in this order.
        findings: what is known about candidates that differ; failures without one are listed all the same.
        title: which command or question this answers.
        notes: what else is to be said below the headline.
    """
    room = Room()
    text = page(result, dtypes, findings, title, notes, room)
    while len(text.encode()) > LIMIT and room.listed:
        room = room.half()
        text = page(result, dtypes, findings, title, notes, room)
    path.write_text(text, encoding="utf-8")


def page(
    result: Result,
    dtypes: Sequence[str],
    findings: Sequence[Finding],
    title: str,
    notes: Sequence[str],
    room: Room,
) -> str:
    """The text of a report that shows as much as there is room for."""
    env = environment("parity_tests.report")
    env.filters |= {"figure": figure, "marked": marked, "counted": counted}
    groups = grouped(result)
    known = {(finding.candidate, finding.case) for finding in findings}
    failures = [g for g in groups if g.failed and (g.candidate, g.rows[0].case.name) not in known]
    shown = rendered_findings(env, findings, room)
    drawn = heat_map(groups, dtypes)
    head = headline(result, findings, failures)
    head["lead"] += notes
    return env.get_template("report.html.j2").render(
        title=title,
        **head,
        facts=facts(result),
        findings=shown,
        findings_more=len(findings) - len(shown),
        failures=[failure_view(group) for group in failures[: room.listed]],
        failures_more=max(0, len(failures) - room.listed),
        errors=[clipped(line) for line in result.errors[: room.listed]],
        errors_more=max(0, len(result.errors) - room.listed),
        map=drawn,
        legend=legend(),
        skipped=list(result.skipped.items()),
        variants=cells_by_variant(drawn["cells"], len({row.case.seed for row in result.rows}) > 1, room.cases),
        block=block(groups, room.block),
    )
