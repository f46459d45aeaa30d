"""Verdicts as plain data: what JSON, tables and pages show; needs no other package than NumPy."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from parity_tests.explain.findings import Finding
from parity_tests.judge.judging import Row


def plain(value: Any) -> Any:
    """The same value as JSON can hold it: NumPy's numbers as Python's, and None where a number is not finite."""
    if isinstance(value, dict):
        return {key: plain(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [plain(x) for x in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    return None if isinstance(value, float) and not np.isfinite(value) else value


def dumps(content: Any, **options: Any) -> str:
    """JSON that every reader takes; `null` stands for a number that is not finite."""
    return json.dumps(plain(content), allow_nan=False, **options)


def written(content: Any, path: Path | str | None) -> str:
    """The text of a JSON file, which is written where a path is given."""
    text = dumps(content, indent=1) + "\n"
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def row_dict(row: Row) -> dict[str, Any]:
    """The verdict on one array as JSON holds it."""
    return {
        "candidate": row.candidate,
        "variant": row.case.variant,
        "example": row.case.example,
        "call": row.case.call,
        "dtype": row.case.dtype,
        "seed": row.case.seed,
        "stage": row.stage,
        "name": row.name,
        "ok": row.ok,
        "ratio": row.ratio,
        "rms": row.rms,
        "index": list(row.index),
        "elements": row.elements,
        "vacuous": row.vacuous,
        "note": row.note,
    }


def finding_dict(finding: Finding) -> dict[str, Any]:
    """A finding as JSON holds it."""
    return {
        "candidate": finding.candidate,
        "case": finding.case,
        "first": row_dict(finding.first),
        "axes": finding.axes,
        "causes": [{"name": cause.name, "fix": cause.fix, "ratio": cause.ratio} for cause in finding.causes],
        "patterns": finding.patterns,
    }
