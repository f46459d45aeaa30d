"""Verdicts as plain data: what files of JSON hold. It needs no package but NumPy, as the judge itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from parity_tests.explain.findings import Finding
from parity_tests.judge.frameworks import versions
from parity_tests.judge.judging import Row
from parity_tests.judge.result import Result


def plain(value: Any) -> Any:
    """The same value as JSON can hold it: NumPy's numbers as Python's, and None for a number that is not finite."""
    if isinstance(value, dict):
        return {key: plain(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [plain(x) for x in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    return None if isinstance(value, float) and not np.isfinite(value) else value


def dumps(content: Any, **options: Any) -> str:
    """JSON as its standard has it; `null` stands for a number that is not finite."""
    return json.dumps(plain(content), allow_nan=False, **options)


class Reported:
    """A result that is written as JSON."""

    def as_dict(self) -> dict[str, Any]:
        """What it says, as JSON holds it; "agree" is the verdict."""
        raise NotImplementedError(f"{type(self).__name__}: expected as_dict of a kind of result, got none; define it")

    def to_json(self, path: Path | str | None = None) -> str:
        """The result as JSON, which is written to a file where a path is given; null is a number that is not finite."""
        text = dumps(self.as_dict() | {"versions": versions()}, indent=1) + "\n"
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text


def row_dict(row: Row) -> dict[str, Any]:
    """The verdict on one array."""
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


def rows_dict(rows: list[Row]) -> dict[str, Any]:
    """The figures of a verdict and, as "cases", an entry for each judged array."""
    return {"summary": Result(rows=rows).summary(), "cases": [row_dict(row) for row in rows]}


def finding_dict(finding: Finding) -> dict[str, Any]:
    """The first difference of a candidate, and what would explain it."""
    return {
        "candidate": finding.candidate,
        "case": finding.case,
        "first": row_dict(finding.first),
        "axes": finding.axes,
        "causes": [{"name": cause.name, "fix": cause.fix, "ratio": cause.ratio} for cause in finding.causes],
        "patterns": finding.patterns,
    }


def modules_dict(result: Any) -> dict[str, Any]:
    """A comparison of modules: the submodules of both and the gradients, with how far they are apart."""

    def entry(row: Any) -> dict[str, Any]:
        return {
            "a": row.a,
            "b": row.b,
            "kinds": list(row.kinds),
            "matched_by": row.how,
            "verdict": row.verdict,
            "inputs_ratio": None if row.inputs is None else row.inputs.ratio,
            "outputs_ratio": row.output.ratio,
            "apart": row.output.apart,
            "bound": row.output.bound,
            "not_compared": row.unpaired,
        }

    return {
        "agree": result.agree,
        "words": str(result),
        "sides": [{"who": side.who, "dtype": side.dtype} for side in (result.a, result.b)],
        "first": None if result.first is None else entry(result.first),
        "submodules": [entry(row) for row in result.rows],
        "gradients": [entry(row) for row in result.gradients],
        "only_a": result.only_a,
        "only_b": result.only_b,
        "finding": None if result.finding is None else finding_dict(result.finding),
        "advice": result.advice,
    }
