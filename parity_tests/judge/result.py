"""What a run of the judge found."""

from dataclasses import dataclass, field
from typing import Any

from parity_tests.explain.findings import Finding
from parity_tests.judge.judging import Row, worst


@dataclass
class Result:
    """Every verdict of a run, what was left out with its reason, and for candidates that differ, why.

    Attributes:
        scope: which part of all cases was judged, in words; empty for all.
    """

    rows: list[Row] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    scope: str = ""

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if not row.ok]

    def summary(self) -> dict[str, Any]:
        """The figures of the verdict, as `--json` writes them."""
        return {
            "cases": len({(row.candidate, row.case) for row in self.rows}),
            "checks": len(self.rows),
            "elements": sum(row.elements for row in self.rows),
            "failed": len(self.failed) + len(self.errors),
            "skipped": len(self.skipped),
            "vacuous": sum(row.vacuous for row in self.rows),
            "worst_ratio": worst(self.rows).ratio if self.rows else 0.0,
            "scope": self.scope,
        }
