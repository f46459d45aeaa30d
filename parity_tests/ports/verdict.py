"""What judging an implementation of your own comes to: a verdict, or the error that names the first difference."""

from dataclasses import dataclass, field
from typing import Any

from parity_tests.explain.findings import Finding, told
from parity_tests.judge.judging import Row, worst
from parity_tests.ports.names import of_keys_alone
from parity_tests.ports.trace import Trace
from parity_tests.ports.unjudged import Unjudged, in_every_type
from parity_tests.ports.untested import Untested
from parity_tests.report.plain import Reported, finding_dict, rows_dict


class ParityError(Reported, AssertionError):
    """An implementation differs from the reference by more than rounding explains.

    Attributes:
        finding: the first difference, what it looks like, and the known mistakes that give its numbers.
    """

    def __init__(self, finding: Finding, note: str = "", first: str = "") -> None:
        super().__init__("\n  ".join(filter(None, (first, self.told(finding), note))))
        self.finding = finding

    def told(self, finding: Finding) -> str:
        """The finding in words."""
        return told(finding)

    def as_dict(self) -> dict[str, Any]:
        """The first difference, what explains it, and every verdict of that call."""
        found = {"agree": False, "words": str(self), "finding": finding_dict(self.finding)}
        return found | rows_dict(self.finding.rows or [self.finding.first])


@dataclass
class Verdict(Reported):
    """What `assert_parity` found where it found no difference.

    Attributes:
        rows: the verdict on every array of every call, in float64 first where both types were judged.
        traces: what was computed in the candidate's own type, by call.
        untested: the config's fields that these runs did not determine, and the other values that would agree, too.
        why: why float64 was not judged; "" where it was, or was not asked for.
        not_given: arguments of the candidate's own that no call gave, because none of ours maps to them.
        notes: what was not judged, and why.
        unjudged: the arrays of a call and type that no run of it judged: their bounds would let any number pass.
    """

    rows: list[Row]
    traces: dict[str, Trace] = field(default_factory=dict)
    untested: list[Untested] = field(default_factory=list)
    why: str = ""
    not_given: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    unjudged: list[Unjudged] = field(default_factory=list)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The types in which arrays were judged."""
        return tuple(dict.fromkeys(row.case.dtype for row in self.rows))

    @property
    def open(self) -> bool:
        """Whether there are fields that no run determines, or arrays of a call that none judges in any type."""
        return bool(self.untested or in_every_type(self.unjudged, self.dtypes))

    @property
    def worst(self) -> Row:
        return worst(self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Its figures, what was not judged or tested, and every array's verdict."""
        found = {
            "agree": True,
            "words": str(self),
            "untested": [str(part) for part in self.untested],
            "unjudged": [
                {"dtype": part.dtype, "call": part.call, "arrays": list(part.names)} for part in self.unjudged
            ],
            "not_given": list(self.not_given),
            "notes": self.notes,
            "calls": {call: list(trace.drawn.inputs) for call, trace in self.traces.items()},
        }
        return found | rows_dict(self.rows)

    def of_keys(self) -> str:
        """How an argument that no call gave is had as a mask of the keys alone; "" where none looks like one."""
        arguments = {n: arg for trace in self.traces.values() for n, arg in trace.case.config.arguments().items()}
        masks = [name for name in self.not_given if "mask" in name] if "mask" in arguments else []
        return of_keys_alone(len(arguments["mask"].axes.split()), masks[0]) if masks else ""

    def not_told_apart(self) -> str:
        """The values that a candidate may have and agree; "" where every value is determined."""
        return f"; not told apart by this run: {'; '.join(map(str, self.untested))}" if self.untested else ""

    def not_judged(self) -> str:
        """The arrays whose bounds would let any number pass; "" where there are none."""
        return (
            f"; not judged, with bounds above their size: {', '.join(map(str, self.unjudged))}" if self.unjudged else ""
        )

    def __str__(self) -> str:
        numbers = sum(row.elements for row in self.rows)
        loose = sum(row.vacuous for row in self.rows)
        more = f"; {loose:,} numbers had a bound above their array's size" if loose else ""
        more += self.not_judged() + self.not_told_apart()
        never = f"; never given: {', '.join(self.not_given)} (arguments= maps ours to them{self.of_keys()})"
        more += never if self.not_given else ""
        more += "".join(f"; {note}" for note in self.notes)
        types = " and ".join(self.dtypes)
        return (
            f"agrees in {types}: {len(self.rows)} arrays, {numbers:,} numbers, worst error/bound "
            f"{self.worst.ratio:.3g} ({self.worst.stage} {self.worst.name}){more}; called with "
            + "; with ".join(
                ", ".join(trace.drawn.inputs) + (sizes_of(trace) if name == trace.case.call else f" of {name}")
                for name, trace in self.traces.items()
            )
        )


def sizes_of(trace: Trace) -> str:
    """The sizes of a call that the config leaves open, but for the batch: " (t=5, s=7)"."""
    config, inputs = trace.case.config, trace.drawn.inputs
    letters = ((config.arguments()[name].axes.split(), x.shape) for name, x in inputs.items())
    found = {letter: n for axes, shape in letters for letter, n in zip(axes, shape, strict=False)}
    told = [f"{x}={n}" for x, n in found.items() if x not in config.sizes() and x in ("t", "s")]
    return f" ({', '.join(told)})" if told else ""


class UntestedError(ParityError):
    """An implementation agrees, but with other values of the config's fields, or of an array, it would agree, too, and
    `strict=True`.

    Attributes:
        finding: the array that comes nearest to its bound; it is within.
        verdict: the verdict, whose `untested` names the fields and whose `unjudged` the arrays.
    """

    def __init__(self, verdict: Verdict) -> None:
        self.verdict, row = verdict, verdict.worst
        notes = (ENLARGE if verdict.untested else "", TIGHTEN if verdict.unjudged else "")
        super().__init__(Finding(row.candidate, row.case.name, row), "\n  ".join(filter(None, notes)))

    def as_dict(self) -> dict[str, Any]:
        """The verdict's, but that it is not taken for an agreement."""
        return self.verdict.as_dict() | {"agree": False, "words": str(self)}

    def told(self, finding: Finding) -> str:
        fields = f", and would with other values of its fields{self.verdict.not_told_apart()}"
        words = f"{finding.candidate} agrees{fields if self.verdict.untested else ''}"
        return f"{words}{self.verdict.not_judged()}"


ENLARGE = "a longer sequence may tell them apart, length= or sizes=, or a config with smaller values"
TIGHTEN = "a shorter sequence may judge them, length= or sizes=, or taps=, which judge stage by stage"
