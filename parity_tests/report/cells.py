"""The verdicts of a report: shades and figures of ratios, the heat map, and the numbers of single cases as JSON."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from parity_tests.judge.judging import Row, rank, worst
from parity_tests.judge.result import Result
from parity_tests.report.plain import dumps
from parity_tests.report.summary import order

# Upper ends of the shades. 0 has a shade of its own, and so has what is beyond the last.
PASSES, FAILS = (0.001, 0.01, 0.1, 0.25, 0.5, 1.0), (10.0, 1000.0, 1000000.0)
TEXT = 300  # characters of a note or an error
# The order of the computation, as far as stages say it, and how a reader calls them.
STAGES = {
    "tape": "Forward, stage by stage (the tape)",
    "output": "Outputs, end to end",
    "cotangent": "Backward, stage by stage",
    "stage gradient": "Gradients of the last stages",
    "gradient": "Gradients, end to end",
    "sampled": "Where the bound says little: what random rounding does",
}


def shade(ratio: float) -> str:
    """The class of a ratio: p0 is exact, p1 to p6 agree, f1 to f4 fail. What is not a number fails."""
    if ratio <= 1:
        return "p0" if ratio == 0 else f"p{1 + sum(ratio > end for end in PASSES)}"
    return f"f{1 + sum(not ratio <= end for end in FAILS)}"


def counted(number: int, word: str) -> str:
    """A number with its word, of which it may need more than one."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


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


def words(row: Row) -> str:
    """What a failing row says, without repeating whose it is."""
    if row.note:
        return row.note
    where = f"at {row.index}: " if row.index else ""
    return f"{where}got {row.got!r}, expected {row.expected!r}, bound {row.bound:.3g}"


def clipped(text: str) -> str:
    return text if len(text) <= TEXT else f"{text[:TEXT]} …"


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
        ranked = sorted(((worst(group.rows), group) for group in groups), key=lambda pair: -rank(pair[0].ratio))
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
    return dumps(value, separators=(",", ":"), ensure_ascii=False)


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
    for group in sorted(groups, key=lambda g: -rank(worst(g.rows).ratio)):
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
