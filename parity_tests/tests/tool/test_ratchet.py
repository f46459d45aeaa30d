"""The ratchet: errors that have grown within their bounds are warned about, what chance does is not."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from attn_np import contract
from parity_tests.bounds.error_array import delivered
from parity_tests.bounds.precision import precision_of
from parity_tests.commands.app import app
from parity_tests.judge import ratchet, runner
from parity_tests.judge.candidates import Candidate, Outcome, candidates, untaped
from parity_tests.judge.cases import Case, Drawn, cases
from parity_tests.judge.frameworks import DTYPES
from parity_tests.judge.judging import Row, expected, judge
from parity_tests.judge.result import Result
from parity_tests.judge.runner import Plan

PLAN = Plan(("mha",), ("float32",), ("torch",), everything=True)
Loss = Callable[[Case, Outcome, bool], None]


def nothing(case: Case, outcome: Outcome, taped: bool) -> None:
    """The candidate as it is."""


def coarse(case: Case, outcome: Outcome, taped: bool) -> None:
    """The context keeps 21 bits of its 24: the last three are rounded away."""
    if taped:
        digits, exponent = np.frexp(outcome.tape["context"])
        outcome.tape["context"] = np.ldexp(np.round(digits * 2.0**21), exponent - 21)


def noisy(case: Case, outcome: Outcome, taped: bool) -> None:
    """Noise of half a bound on the output, ten times its own error."""
    if not taped:
        want, _ = expected(case, precision_of(case.dtype))
        noise = np.random.default_rng(0).uniform(-0.5, 0.5, size=want["y"].shape)
        outcome.outputs["y"] = outcome.outputs["y"] + noise * delivered(want["y"], case.dtype).b


def judged(loss: Loss) -> Result:
    """PyTorch's multi-head attention in float32, with a loss of precision in it."""
    result = Result()
    (candidate,) = candidates("cpu", ("torch",))

    def run(case: Case, drawn: Drawn, taped: bool) -> Outcome:
        outcome = candidate.run(case, drawn, taped)
        loss(case, outcome, taped)
        return outcome

    for case in cases(PLAN.variants, PLAN.dtypes):
        if runner.selected(case, candidate.framework, candidate.mode, everything=True):
            result.rows += judge(case, Candidate(candidate.framework, candidate.mode, candidate.device, run))
    return result


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ratchet") / "ratchet.json"
    ratchet.update(judged(nothing), path)
    return path


# What is seen ---------------------------------------------------------------------------------------------------------


def test_same_run_is_silent(record: Path) -> None:
    held = ratchet.compare(judged(nothing), PLAN, record)
    assert held.compared > 50
    assert not held.drifts
    assert not held.lines(8)


@pytest.mark.parametrize(
    ("loss", "stage", "name", "times"), [(coarse, "tape", "context", 3), (noisy, "output", "y", 10)]
)
def test_loss_within_the_bounds_is_warned_about(loss: Loss, stage: str, name: str, times: int, record: Path) -> None:
    """The judge passes what has lost three bits, or has ten times the error; the ratchet names it."""
    result = judged(loss)
    assert not result.failed
    held = ratchet.compare(result, PLAN, record)
    found = {(drift.stage, drift.name): drift for drift in held.drifts}
    assert found[stage, name].times > times
    assert str(found[stage, name]) in " ".join(held.lines(len(held.drifts)))
    assert len(found) < held.compared / 4


def test_other_inputs_are_mostly_silent(record: Path) -> None:
    """Two seeds differ by more than two versions of a library: what warns here would warn by chance."""
    result = Result()
    (candidate,) = candidates("cpu", ("torch",))
    for case in cases(PLAN.variants, PLAN.dtypes, seed=1):
        if runner.selected(case, candidate.framework, candidate.mode, everything=True):
            result.rows += judge(case, candidate)
    held = ratchet.compare(result, PLAN, record)
    assert held.compared > 50
    assert len(held.drifts) <= 1


# The rules, one by one ------------------------------------------------------------------------------------------------


def rows_of(rms: float, ratio: float, elements: int = 1000, vacuous: int = 0, name: str = "probs") -> list[Row]:
    """Two cases of one array."""
    first = Case("mha", "cross", "full", "float32")
    row = Row("torch eager", first, "tape", name, ratio, elements=elements, vacuous=vacuous, rms=rms)
    return [row, replace(row, case=replace(first, example="split"), ratio=ratio / 2)]


@pytest.mark.parametrize(
    ("rows", "drifted"),
    [
        (rows_of(0.1, 0.3), False),
        (rows_of(0.2, 0.6), False),
        (rows_of(0.21, 0.6), True),
        (rows_of(0.25, 1.0), True),
        (rows_of(0.25, 1.0, elements=32), False),
        (rows_of(0.25, 1.0, vacuous=1), False),
        (rows_of(0.5, 1.5), False),
        (rows_of(np.inf, np.inf), False),
        (rows_of(np.nan, np.nan), False),
    ],
    ids=["same", "doubled", "more", "spread", "few numbers", "loose bound", "fails", "infinite", "not a number"],
)
def test_what_counts_as_drift(rows: list[Row], drifted: bool, tmp_path: Path) -> None:
    """More than twice, made by enough numbers, within bounds that say something; what fails is said already."""
    path = tmp_path / "ratchet.json"
    ratchet.update(Result(rows_of(0.1, 0.3)), path)
    held = ratchet.compare(Result(rows), PLAN, path)
    assert held.compared == 1
    assert len(held.drifts) == drifted


def test_one_number_makes_no_drift(tmp_path: Path) -> None:
    """A single rounding among thousands of exact numbers is chance."""
    path = tmp_path / "ratchet.json"
    ratchet.update(Result(rows_of(0.001, 0.01)), path)
    one = np.zeros(1000)
    one[0] = 0.9
    rms = float(np.sqrt(np.mean(one**2)))
    assert not ratchet.compare(Result(rows_of(rms, 0.9)), PLAN, path).drifts


def test_cases_are_weighed_by_their_numbers() -> None:
    few, lots = rows_of(0.5, 0.9)
    (entries,) = ratchet.entries([replace(few, elements=4), replace(lots, rms=0.25, elements=12)]).values()
    assert entries["tape", "probs"].rms == np.sqrt((4 * 0.25 + 12 * 0.0625) / 16)


def test_what_was_exact_and_is_not_is_drift(tmp_path: Path) -> None:
    path = tmp_path / "ratchet.json"
    ratchet.update(Result(rows_of(0.0, 0.0)), path)
    held = ratchet.compare(Result(rows_of(0.2, 0.6)), PLAN, path)
    assert ["was exact" in str(drift) for drift in held.drifts] == [True]
    assert json.loads(json.dumps(held.as_dict()))["drifted"][0]["times"] is None


def test_only_what_is_in_both_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "ratchet.json"
    ratchet.update(Result(rows_of(0.1, 0.3)), path)
    held = ratchet.compare(Result(rows_of(0.5, 0.9, name="scores")), PLAN, path)
    assert not held.compared
    assert not held.drifts
    assert "--ratchet-update adds them" in held.note


def test_real_layers_are_left_out() -> None:
    """They are not at hand everywhere, so their numbers may be missing from a line."""
    config = contract.examples("mha")["cross"]
    rows = [replace(row, case=replace(row.case, given=config)) for row in rows_of(0.1, 0.3)]
    assert not ratchet.entries(rows)


@pytest.mark.parametrize(
    "plan",
    [
        replace(PLAN, seed=1),
        replace(PLAN, repeat=2),
        replace(PLAN, device="accelerator"),
        replace(PLAN, everything=False),
        replace(PLAN, calls=("full",)),
    ],
)
def test_other_plans_are_not_compared_and_say_so(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "ratchet.json"
    ratchet.update(Result(rows_of(0.1, 0.3)), path)
    held = ratchet.compare(Result(rows_of(0.9, 1.0)), plan, path)
    assert not held.drifts
    assert "Not held against" in " ".join(held.lines(8))


def test_no_record_is_said(tmp_path: Path) -> None:
    held = ratchet.compare(Result(rows_of(0.1, 0.3)), PLAN, tmp_path / "ratchet.json")
    assert "there is none" in " ".join(held.lines(8))


def test_long_lists_are_cut_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "ratchet.json"
    ratchet.update(Result([row for i in range(20) for row in rows_of(0.1, 0.3, name=f"x{i}")]), path)
    worse = Result([row for i in range(20) for row in rows_of(0.3 + i / 100, 0.9, name=f"x{i}")])
    lines = ratchet.compare(worse, PLAN, path).lines(8)
    assert len(lines) == 9
    assert "tape x19" in lines[0]
    assert lines[-1].endswith("12 more")


# The file -------------------------------------------------------------------------------------------------------------


def test_update_keeps_the_lines_of_what_was_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "ratchet.json"
    other = [replace(row, candidate="jax jit") for row in rows_of(0.4, 0.9)]
    ratchet.update(Result(rows_of(0.1, 0.3) + rows_of(0.1, 0.3, name="gone") + other), path)
    ratchet.update(Result(rows_of(0.2345, 0.9)), path)
    _, lines = ratchet.read(path)
    assert lines["mha", "torch eager", "float32"] == {"tape": {"probs": 0.23}}
    assert lines["mha", "jax jit", "float32"] == {"tape": {"probs": 0.4}}


def test_file_is_the_same_whatever_the_order_of_the_run(tmp_path: Path) -> None:
    rows = [replace(row, candidate=name) for name in ("jax jit", "numpy by hand") for row in rows_of(0.1, 0.3)]
    ratchet.update(Result(rows), tmp_path / "one.json")
    ratchet.update(Result(rows[::-1]), tmp_path / "other.json")
    text = (tmp_path / "one.json").read_text()
    assert text == (tmp_path / "other.json").read_text()
    ratchet.update(Result(rows), tmp_path / "one.json")
    assert text == (tmp_path / "one.json").read_text()
    versions, _ = ratchet.read(tmp_path / "one.json")
    assert len(versions["platform"].split()) == 2


def test_committed_record() -> None:
    """A line for each variant, candidate and dtype, ordered; ratios of a run that agrees; no name of a machine."""
    versions, lines = ratchet.read(ratchet.FILE)
    text = ratchet.FILE.read_text(encoding="utf-8")
    assert text.count("\n") == len(lines) + 5
    assert set(versions) >= {"numpy", "torch", "jax", "python"}
    assert len(versions["platform"].split()) == 2
    known = contract.variants()
    for variant, candidate, dtype in lines:
        assert variant in known
        assert candidate in {found.name for found in (*candidates(), *untaped())}
        assert dtype in DTYPES
    values = [value for line in lines.values() for stage in line.values() for value in stage.values()]
    assert all(0 <= value <= 1 and value == ratchet.rounded(value) for value in values)


# The command ----------------------------------------------------------------------------------------------------------


SMALL = ["run", "--variants", "self_attention", "--dtypes", "float32", "--frameworks", "torch"]
SMALL += ["--all", "--no-real", "--jobs", "1"]


def test_run_records_then_warns_without_failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ratchet.json"
    monkeypatch.setattr(ratchet, "FILE", path)
    first = CliRunner().invoke(app, [*SMALL, "--ratchet-update"])
    assert first.exit_code == 0, first.output
    assert "recorded" in first.output
    silent = CliRunner().invoke(app, SMALL)
    assert "drifted" not in silent.output
    versions, lines = ratchet.read(path)
    tape = lines["self_attention", "torch eager", "float32"]["tape"]
    tape["context"] /= 4
    whole = {" | ".join(line): stages for line, stages in lines.items()}
    path.write_text(json.dumps({"versions": versions, "lines": whole}))
    files = ["--json", str(tmp_path / "out.json"), "--html", str(tmp_path / "out.html")]
    warned = CliRunner().invoke(app, [*SMALL, *files])
    assert warned.exit_code == 0, warned.output
    assert "drifted self_attention, torch eager, float32, tape context" in warned.output
    assert "THEY AGREE" in warned.output
    (entry,) = json.loads((tmp_path / "out.json").read_text())["ratchet"]["drifted"]
    assert (entry["stage"], entry["name"]) == ("tape", "context")
    assert "float32, tape context" in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_run_that_differs_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(case: Case, candidate: Candidate) -> list[Row]:
        return [Row(candidate.name, case, "tape", "probs", 3.0, elements=99, rms=1.0)]

    monkeypatch.setattr(runner, "judge", wrong)
    monkeypatch.setattr(ratchet, "FILE", tmp_path / "ratchet.json")
    result = CliRunner().invoke(app, [*SMALL, "--ratchet-update"])
    assert result.exit_code == 1
    assert "not recorded" in result.output
    assert not (tmp_path / "ratchet.json").exists()


@pytest.mark.parametrize("options", ["--all --seed 1", "--all --repeat 2", "--all --calls full", ""])
def test_update_from_another_run_is_refused_before_any_work(options: str) -> None:
    result = CliRunner().invoke(app, ["run", "--no-real", *options.split(), "--ratchet-update"])
    assert result.exit_code == 2
    assert "expected a run with --all" in " ".join(result.output.split())
