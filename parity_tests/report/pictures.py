"""One finding in a report: the place and its numbers, pictures of the slice around it, and every array beside it."""

import math
from typing import Any

import numpy as np
from markupsafe import Markup

from parity_tests.explain.findings import Finding
from parity_tests.judge.judging import Row, ratios
from parity_tests.report.cells import STAGES, figure, shade

VALUE_LEVELS = 4
NEAR = 12  # names beside the first difference that are listed
HIDDEN = "hid"  # the class of a place that is not compared


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
    hidden = np.zeros(want.shape, bool) if finding.hidden is None else np.broadcast_to(finding.hidden, want.shape)
    share = np.where(hidden, 0.0, ratios(got, want, bound))
    # The place that the text names; another one only where it names none.
    index = (
        finding.first.index if len(finding.first.index) == want.ndim else np.unravel_index(share.argmax(), share.shape)
    )
    flat = [x.reshape((1,) * max(0, 2 - x.ndim) + x.shape) for x in (share, got, want, hidden)]
    place = [int(i) for i in (0,) * max(0, 2 - share.ndim) + tuple(index)]
    rows, columns = (window(n, at, most) for n, at in zip(flat[0].shape[-2:], place[-2:], strict=True))
    share, got, want, hidden = (x[(*place[:-2], rows, columns)] for x in flat)
    scale = float(np.max(np.abs(want), where=np.isfinite(want) & np.logical_not(hidden), initial=0.0))
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
        "cells": int(np.sum(np.logical_not(hidden))),
        "hidden": int(np.sum(hidden)),
        "scale": f"{scale:.3g}",
        "whole": share.shape == flat[0].shape[-2:],
        "shown": [
            ("error/bound", strokes(np.where(hidden, HIDDEN, np.vectorize(shade, otypes=[object])(share)))),
            ("got", strokes(np.where(hidden, HIDDEN, np.vectorize(value_class, otypes=[object])(got, scale)))),
            ("expected", strokes(np.where(hidden, HIDDEN, np.vectorize(value_class, otypes=[object])(want, scale)))),
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
        "figure": f"{row.ratio:.3g}" if math.isfinite(row.ratio) else "beyond any bound",
        "shade": shade(row.ratio),
        "axes": finding.axes,
        "place": place_of(finding),
        "theirs": finding.theirs,
        "made_of": neighbours(finding, finding.made_of),
        "goes_into": neighbours(finding, finding.goes_into),
        "pictures": pictures(finding, most) if most else None,
        "causes": [(cause.name, cause.fix, figure(cause.ratio), cause.evidence) for cause in finding.causes[:8]],
        "next": finding.next_step,
        "after": None if finding.after is None else finding_view(finding.after, 0),
        "patterns": finding.patterns[:8],
        "stages": chips(finding.rows[:200], row),
        "more": max(0, len(finding.rows) - 200),
    }


def neighbours(finding: Finding, names: list[str]) -> list[tuple[str, str, str]]:
    """Names beside the first difference, each with its ratio and shade; both empty where it was not recorded."""
    rows = {row.name: row for row in reversed(finding.rows)}
    return [(n, figure(rows[n].ratio), shade(rows[n].ratio)) if n in rows else (n, "", "") for n in names[:NEAR]]
