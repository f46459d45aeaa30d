"""The verdict as one HTML file: readable offline, years later, by a colleague who was not there.

Everything that matters is in the page itself: headline, heat map, failures. A small script fills in the numbers of
single cases from a compact block of JSON when they are opened. Nothing is fetched, and no file exceeds `LIMIT`.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from parity_tests.explain.findings import Finding
from parity_tests.judge.frameworks import versions
from parity_tests.judge.judging import Row, ratios
from parity_tests.judge.ratchet import Comparison
from parity_tests.judge.result import Result
from parity_tests.report.summary import order

LIMIT = 1_000_000  # bytes of a report
WINDOW = 48  # cells of a picture along each axis ...
SMALL_WINDOW = 16  # ... and where many pictures must fit
FEW = 6
# Upper ends of the shades. 0 has a shade of its own, and so has what is beyond the last.
PASSES, FAILS = (0.001, 0.01, 0.1, 0.25, 0.5, 1.0), (10.0, 1000.0, 1000000.0)
VALUE_LEVELS = 4
TEXT = 300  # characters of a note or an error
# The order of the computation, as far as stages say it, and how a reader calls them.
STAGES = {
    "tape": "Forward, stage by stage (the tape)",
    "cotangent": "Backward, stage by stage",
    "stage gradient": "Gradients of the last stages",
    "output": "Outputs, end to end",
    "gradient": "Gradients, end to end",
    "sampled": "Where the bound says little: what random rounding does",
}


@dataclass(frozen=True)
class Room:
    """How much of a result a page shows; it counts what it leaves out.

    Attributes:
        findings, block: bytes for the sections of findings and for the numbers of single cases.
        listed: findings, failures without one, exceptions and drifts that are shown one by one.
        cases: lines in the list of cases.
    """

    findings: int = 500_000
    block: int = 250_000
    listed: int = 50
    cases: int = 1500

    def half(self) -> "Room":
        return Room(self.findings // 2, self.block // 2, self.listed // 2, self.cases // 2)


def shade(ratio: float) -> str:
    """The class of a ratio: p0 is exact, p1 to p6 agree, f1 to f4 fail. What is not a number fails."""
    if ratio <= 1:
        return "p0" if ratio == 0 else f"p{1 + sum(ratio > end for end in PASSES)}"
    return f"f{1 + sum(not ratio <= end for end in FAILS)}"


def legend() -> list[tuple[str, str]]:
    """Every shade with what it means."""
    shown = [("p0", "exactly 0")] + [(f"p{i + 1}", f"to {end:g}") for i, end in enumerate(PASSES)]
    shown += [(f"f{i + 1}", f"✗ to {end:,.0f}") for i, end in enumerate(FAILS)]
    return [*shown, (f"f{len(FAILS) + 1}", "✗ beyond, or not comparable")]


def figure(ratio: float) -> str:
    """A ratio in few characters; a cross marks what fails."""
    if not math.isfinite(ratio):
        return "✗ fail"
    text = f"{ratio:.2g}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    if ratio <= 1:
        return ">0.99" if text == "1" and ratio < 1 else text
    return "✗ >1" if text == "1" else f"✗ {text}"


def worst(rows: Iterable[Row]) -> Row:
    """The row with the largest ratio; what is not a number counts as the largest."""
    return max(rows, key=lambda row: math.inf if math.isnan(row.ratio) else row.ratio)


def words(row: Row) -> str:
    """What a failing row says, without repeating whose it is."""
    if row.note:
        return row.note
    where = f"at {row.index}: " if row.index else ""
    return f"{where}got {row.got!r}, expected {row.expected!r}, bound {row.bound:.3g}"


# The heat map ---------------------------------------------------------------------------------------------------------


@dataclass
class Group:
    """The rows of one candidate in one case, and where the page shows them."""

    candidate: str
    rows: list[Row]
    number: int = 0

    @property
    def variant(self) -> str:
        return self.rows[0].case.variant

    @property
    def dtype(self) -> str:
        return self.rows[0].case.dtype

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if not row.ok]

    def label(self, seeds: bool) -> str:
        case = self.rows[0].case
        return f"{case.example} / {case.call}" + (f" / seed {case.seed}" if seeds else "")


def grouped(result: Result) -> list[Group]:
    """Rows by candidate and case, ordered as the page shows them; numbered."""
    found: dict[tuple[str, str, int], list[Row]] = {}
    for row in result.rows:
        found.setdefault((row.candidate, row.case.name, row.case.seed), []).append(row)
    groups = [Group(key[0], rows) for key, rows in found.items()]
    groups.sort(key=lambda g: (g.variant, order(g.candidate)))
    for number, group in enumerate(groups):
        group.number = number
    return groups


def heat_map(groups: list[Group], dtypes: Sequence[str]) -> dict[str, Any]:
    """Variants as rows; as columns, under each dtype, the candidates that it has."""
    held: dict[tuple[str, str, str], list[Group]] = {}
    for group in groups:
        held.setdefault((group.variant, group.dtype, group.candidate), []).append(group)
    dtypes = [*dtypes, *sorted({group.dtype for group in groups} - set(dtypes))]
    columns = [
        (dtype, sorted({candidate for _, d, candidate in held if d == dtype}, key=order))
        for dtype in dtypes
        if any(d == dtype for _, d, _ in held)
    ]
    variants = sorted({variant for variant, _, _ in held})
    ids = {key: f"cell-{i}" for i, key in enumerate(held)}

    def cell(variant: str, dtype: str, candidate: str) -> dict[str, Any] | None:
        if (variant, dtype, candidate) not in held:
            return None
        row = worst(row for group in held[variant, dtype, candidate] for row in group.rows)
        what = f"{variant}, {candidate}, {dtype}: {row.ratio:.3g} in {row.stage} {row.name}"
        return {
            "id": ids[variant, dtype, candidate],
            "shade": shade(row.ratio),
            "figure": figure(row.ratio),
            "title": what,
        }

    return {
        "columns": columns,
        "rows": [(v, [(c, d, cell(v, d, c)) for d, names in columns for c in names]) for v in variants],
        "cells": [
            (ids[v, d, c], v, d, c, held[v, d, c])
            for v in variants
            for d, names in columns
            for c in names
            if (v, d, c) in held
        ],
    }


def cells_by_variant(cells: list[Any], seeds: bool, most: int) -> list[dict[str, Any]]:
    """Under each variant its cells, under each cell its cases with their worst array; failing and worst cases first."""
    left = most
    found: dict[str, dict[str, Any]] = {}
    for name, variant, dtype, candidate, groups in cells:
        entry = found.setdefault(variant, {"variant": variant, "cells": [], "cases": 0, "failed": 0})
        ranked = sorted(((worst(group.rows), group) for group in groups), key=lambda pair: -rank(pair[0]))
        shown = ranked[:left]
        left -= len(shown)
        lines = [
            {
                "number": group.number,
                "label": group.label(seeds),
                "shade": shade(row.ratio),
                "figure": figure(row.ratio),
                "what": f"{row.stage} {row.name}",
            }
            for row, group in shown
        ]
        entry["cells"].append(
            {
                "id": name,
                "title": f"{candidate}, {dtype}",
                "lines": lines,
                "more": len(ranked) - len(shown),
            }
        )
        entry["cases"] += len(ranked)
        entry["failed"] += sum(not row.ok for row, _ in ranked)
    return list(found.values())


def rank(row: Row) -> float:
    return row.ratio if math.isfinite(row.ratio) else math.inf


# The block of JSON ----------------------------------------------------------------------------------------------------


class Table:
    """Values that are written once and referred to by number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.bytes = 0

    def number(self, value: Any) -> int:
        text = compact(value)
        if text not in self.numbers:
            self.numbers[text] = len(self.numbers)
            self.bytes += len(text.encode()) + 1
        return self.numbers[text]

    def __str__(self) -> str:
        return f"[{','.join(self.numbers)}]"


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def short(ratio: float) -> float | int:
    """Three digits, as few characters as they take; -1 is what is not finite."""
    if not math.isfinite(ratio):
        return -1
    rounded = float(f"{ratio:.3g}")
    # Rounding must not turn what fails into what agrees.
    rounded = ratio if (rounded <= 1) != (ratio <= 1) else rounded
    return int(rounded) if rounded == int(rounded) else rounded


def block(groups: list[Group], room: int) -> Markup:
    """All numbers of all cases: names, sizes and counts once each, ratios in a list per case.

    Cases that fail and those with the largest ratios come first; what does not fit into `room` bytes is left out, and
    the page says so where it is opened.
    """
    names, sizes, counts = Table(), Table(), Table()
    cases: list[str] = ["0"] * len(groups)
    used = 0
    for group in sorted(groups, key=lambda g: -rank(worst(g.rows))):
        rows = sorted(group.rows, key=lambda row: list(STAGES).index(row.stage) if row.stage in STAGES else len(STAGES))
        notes = {str(i): clipped(words(row)) for i, row in enumerate(rows) if not row.ok}
        text = compact(
            [
                names.number([[row.stage, row.name] for row in rows]),
                sizes.number([row.elements for row in rows]),
                counts.number([row.vacuous for row in rows]),
                [short(row.ratio) for row in rows],
                notes,
            ]
        )
        used += len(text.encode()) + 1
        if used + names.bytes + sizes.bytes + counts.bytes > room:
            break
        cases[group.number] = text
    stages = compact(STAGES)
    text = f'{{"stages":{stages},"names":{names},"sizes":{sizes},"counts":{counts},"cases":[{",".join(cases)}]}}'
    # A name cannot end the script element that holds it.
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


# Findings -------------------------------------------------------------------------------------------------------------


def strokes(classes: np.ndarray) -> Markup:
    """Cells of an image as one path for each class; equal neighbours in a row are one stroke."""
    paths: dict[str, list[str]] = {}
    for y, line in enumerate(classes):
        x = 0
        while x < len(line):
            end = x + 1
            while end < len(line) and line[end] == line[x]:
                end += 1
            paths.setdefault(str(line[x]), []).append(f"M{x} {y}h{end - x}")
            x = end
    return Markup("").join(
        Markup('<path class="{}" d="{}"/>').format(name, "".join(parts)) for name, parts in sorted(paths.items())
    )


def value_class(value: float, scale: float) -> str:
    """n4 to n1 are negative, z is zero, q1 to q4 positive; x is not finite."""
    if not math.isfinite(value):
        return "x"
    if value == 0:
        return "z"
    level = min(VALUE_LEVELS, 1 + int(VALUE_LEVELS * min(abs(value) / scale, 1.0))) if scale else VALUE_LEVELS
    return f"{'q' if value > 0 else 'n'}{level}"


def marked(text: str) -> Markup:
    """Text whose passages between backticks are code."""
    parts = [Markup("<code>{}</code>" if i % 2 else "{}").format(part) for i, part in enumerate(text.split("`"))]
    return Markup("").join(parts)


def window(size: int, at: int, most: int) -> slice:
    """At most `most` neighbours of an index."""
    start = min(max(at - most // 2, 0), max(size - most, 0))
    return slice(start, min(start + most, size))


def pictures(finding: Finding, most: int) -> dict[str, Any] | None:
    """Error/bound, got and expected around the worst number, over the last two axes; None where shapes differ."""
    if finding.got is None or finding.want is None:
        return None
    got, want = (np.asarray(x).astype(np.float64) for x in (finding.got, finding.want))
    if got.shape != want.shape or got.size == 0:
        return None
    bound = np.zeros_like(want) if finding.bound is None else np.broadcast_to(finding.bound, want.shape)
    share = ratios(got, want, bound)
    index = np.unravel_index(int(np.argmax(share)), share.shape)
    flat = [x.reshape((1,) * max(0, 2 - x.ndim) + x.shape) for x in (share, got, want)]
    place = [int(i) for i in (0,) * max(0, 2 - share.ndim) + tuple(index)]
    rows, columns = (window(n, at, most) for n, at in zip(flat[0].shape[-2:], place[-2:], strict=True))
    share, got, want = (x[(*place[:-2], rows, columns)] for x in flat)
    scale = float(np.max(np.abs(want), where=np.isfinite(want), initial=0.0))
    letters = finding.axes.split()
    letters = letters if len(letters) == len(index) else [f"axis {i}" for i in range(len(index))]
    letters = [""] * max(0, 2 - len(index)) + letters

    height, width = share.shape
    return {
        "width": width,
        "height": height,
        "cell": max(4, min(16, 288 // max(width, height))),
        "x": place[-1] - columns.start,
        "y": place[-2] - rows.start,
        "fixed": ", ".join(f"{a} = {i}" for a, i in zip(letters[:-2], place[:-2], strict=True)),
        "down": f"{letters[-2]} from {rows.start} to {rows.stop - 1}" if letters[-2] else "",
        "across": f"{letters[-1]} from {columns.start} to {columns.stop - 1}" if letters[-1] else "",
        "beyond": int(np.sum(~(share <= 1))),
        "cells": share.size,
        "scale": f"{scale:.3g}",
        "whole": share.shape == flat[0].shape[-2:],
        "shown": [
            ("error/bound", strokes(np.vectorize(shade, otypes=[object])(share))),
            ("got", strokes(np.vectorize(value_class, otypes=[object])(got, scale))),
            ("expected", strokes(np.vectorize(value_class, otypes=[object])(want, scale))),
        ],
    }


def place_of(finding: Finding) -> str:
    """The index of the first difference with the letters of its axes."""
    letters, index = finding.axes.split(), finding.first.index
    if len(letters) == len(index):
        return ", ".join(f"{letter} = {i}" for letter, i in zip(letters, index, strict=True))
    return str(index) if index else ""


def chips(rows: list[Row], first: Row) -> list[dict[str, Any]]:
    """Every array of a finding by stage; what comes after the first difference may only follow from it."""
    out: list[dict[str, Any]] = []
    later = False
    for row in rows:
        if not out or out[-1]["stage"] != row.stage:
            out.append({"stage": row.stage, "title": STAGES.get(row.stage, row.stage), "chips": []})
        mark = "first" if row == first else "later" if later else ""
        out[-1]["chips"].append((row.name, figure(row.ratio), shade(row.ratio), mark))
        later = later or row == first
    return out


def finding_view(finding: Finding, most: int) -> dict[str, Any]:
    row = finding.first
    return {
        "candidate": finding.candidate,
        "case": finding.case,
        "row": row,
        "words": row.note,
        "figure": "not comparable" if not math.isfinite(row.ratio) else f"{row.ratio:.3g}",
        "shade": shade(row.ratio),
        "axes": finding.axes,
        "place": place_of(finding),
        "shapes": shapes(finding),
        "pictures": pictures(finding, most) if most else None,
        "causes": [(cause.name, cause.fix, figure(cause.ratio)) for cause in finding.causes[:8]],
        "patterns": finding.patterns[:8],
        "stages": chips(finding.rows[:200], row),
        "more": max(0, len(finding.rows) - 200),
    }


def shapes(finding: Finding) -> str:
    """Both shapes where they differ: then there is nothing to draw."""
    if finding.got is None or finding.want is None or finding.got.shape == finding.want.shape:
        return ""
    return f"got {finding.got.shape}, expected {finding.want.shape}"


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


# The page -------------------------------------------------------------------------------------------------------------


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


def clipped(text: str) -> str:
    return text if len(text) <= TEXT else f"{text[:TEXT]} …"


def headline(result: Result, findings: Sequence[Finding], failures: list[Group]) -> dict[str, Any]:
    """The verdict in words, and a link to the first difference."""
    s = result.summary()
    counts = f"{s['cases']:,} cases, {s['checks']:,} arrays, {s['elements']:,} numbers"
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


def write_html(
    path: Path,
    result: Result,
    dtypes: Sequence[str],
    findings: Sequence[Finding] = (),
    title: str = "attn-parity",
    comparison: Comparison | None = None,
) -> None:
    """Write a result as one page.

    Args:
        path: of the file.
        result: every verdict.
        dtypes: columns of the heat map, in this order.
        findings: what is known about candidates that differ; failures without one are listed all the same.
        title: which command or question this answers.
        comparison: with the recorded precision.
    """
    room = Room()
    text = page(result, dtypes, findings, title, comparison, room)
    while len(text.encode()) > LIMIT and room.listed:
        room = room.half()
        text = page(result, dtypes, findings, title, comparison, room)
    path.write_text(text, encoding="utf-8")


def page(
    result: Result,
    dtypes: Sequence[str],
    findings: Sequence[Finding],
    title: str,
    comparison: Comparison | None,
    room: Room,
) -> str:
    """The text of a report that shows as much as there is room for."""
    env = Environment(
        loader=PackageLoader("parity_tests.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {"figure": figure, "marked": marked}
    groups = grouped(result)
    known = {(finding.candidate, finding.case) for finding in findings}
    failures = [g for g in groups if g.failed and (g.candidate, g.rows[0].case.name) not in known]
    shown = rendered_findings(env, findings, room)
    drawn = heat_map(groups, dtypes)
    drifts = [] if comparison is None else comparison.drifts
    return env.get_template("report.html.j2").render(
        title=title,
        **headline(result, findings, failures),
        facts=facts(result),
        findings=shown,
        findings_more=len(findings) - len(shown),
        failures=[failure_view(group) for group in failures[: room.listed]],
        failures_more=max(0, len(failures) - room.listed),
        errors=[clipped(line) for line in result.errors[: room.listed]],
        errors_more=max(0, len(result.errors) - room.listed),
        map=drawn,
        legend=legend(),
        drift_note="" if comparison is None else comparison.note,
        drifts=[str(drift) for drift in drifts[: room.listed]],
        drifts_more=max(0, len(drifts) - room.listed),
        skipped=list(result.skipped.items()),
        variants=cells_by_variant(drawn["cells"], len({row.case.seed for row in result.rows}) > 1, room.cases),
        block=block(groups, room.block),
    )
