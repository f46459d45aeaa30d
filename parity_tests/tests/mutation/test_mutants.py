"""Can the judge be trusted? Every planted bug must be seen, in every tree that it is planted in."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from parity_tests.mistakes import MUTANTS, SHARED, TREES, Mutant, evidence, file_of, planted
from parity_tests.mistakes.plant import edited, shared
from parity_tests.tests.mutation import planting, ratchet, runner
from parity_tests.tests.mutation.__main__ import app
from parity_tests.tests.mutation.common_mode import oracle_free
from parity_tests.tests.mutation.planting import MODES, Verdict, missed, places
from parity_tests.tests.mutation.sources import files

NOTHING = Mutant("nothing planted", "mha.py", "w_q: Float", "w_q: Float", "mha", "cross")


def planted_somewhere() -> list[tuple[Mutant, str]]:
    """Every mutant in NumPy, where it takes milliseconds, every second in PyTorch, and a few in JAX, which compiles.

    `make mutants` plants each in all of its trees.
    """
    pairs = []
    for number, mutant in enumerate(MUTANTS):
        other = "attn_jax" if number % 24 == 0 else "attn_torch" if number % 2 else None
        pairs += [(mutant, tree) for tree in mutant.trees if len(mutant.trees) == 1 or tree in ("attn_np", other)]
    return pairs


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a planted bug may divide by zero
@pytest.mark.parametrize(("mutant", "tree"), planted_somewhere(), ids=lambda x: str(x))
def test_planted_bug_dies(mutant: Mutant, tree: str) -> None:
    seen = evidence(mutant, tree)
    assert seen is not None, f"{mutant.name} in {tree} survived {mutant.case.name}: {mutant.old!r} -> {mutant.new!r}"


def planted_in_all() -> list[Mutant]:
    """Every eighth of those that all trees can have and nothing lets live; `make mutants` takes all."""
    return [mutant for mutant in MUTANTS if mutant.trees == TREES and not mutant.survives][::8]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("mutant", planted_in_all(), ids=str)
def test_planted_bug_dies_where_no_reference_is_whole(mutant: Mutant) -> None:
    """In all three trees at once: witnesses and relations see it."""
    assert oracle_free(mutant), f"{mutant.name} in all trees survived {mutant.case.name}"


def test_where_nothing_is_planted_nothing_is_seen() -> None:
    assert oracle_free(NOTHING, thorough=True) == []


def test_what_only_one_tree_can_have_has_no_common_mode() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.trees != TREES)
    with pytest.raises(ValueError, match="expected a bug that all trees can have"):
        oracle_free(mutant)


@pytest.mark.parametrize("tree", TREES)
def test_a_copy_without_a_bug_lives(tree: str) -> None:
    """The copies themselves change nothing: what kills a mutant is its bug."""
    assert evidence(NOTHING, tree) is None


def test_there_are_enough_of_them() -> None:
    """At least 80 in all three trees, 20 of the backward written by hand, and no cause named twice."""
    assert sum(mutant.trees == TREES for mutant in MUTANTS) >= 80
    assert sum(mutant.trees == ("attn_np",) for mutant in MUTANTS) >= 20
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_every_cause_comes_with_advice() -> None:
    """One line, as a person is told it who has made the mistake."""
    for mutant in MUTANTS:
        assert mutant.fix, mutant.name
        assert "\n" not in mutant.fix, mutant.name
        assert not mutant.fix.endswith("."), mutant.name
        assert len(mutant.fix) <= 120, mutant.name


def test_every_mutant_fits_the_source() -> None:
    """A line that has changed, or that now stands twice: said here, before searches for causes trip over it."""
    for mutant in MUTANTS:
        for tree in mutant.trees:
            assert edited(mutant, tree)


def test_a_mutant_that_no_longer_fits_is_an_error() -> None:
    stale = Mutant("stale", "mha.py", "text that is not there", "", "mha", "cross")
    with pytest.raises(ValueError, match="mend the mutant"):
        evidence(stale, "attn_np")


def test_a_mutant_of_shared_files_finds_its_own() -> None:
    """Whatever the file is called; kernels say the same again, and a text of several files needs another beside it."""
    found = Mutant("root of the weights", SHARED, "root = np.sqrt(probs)", "root = probs", "mha", "cross")
    assert file_of(found, "attn_np") == "ops/vjp.py"
    assert "root = probs" in edited(found, "attn_np")
    several = Mutant("types", SHARED, "from attn_np", "", "mha", "cross", many=True)
    with pytest.raises(
        ValueError, match=r"in one shared file of attn_np, got attention/attend\.py and .*; mend the mutant"
    ):
        edited(several, "attn_np")
    assert file_of(replace(several, beside="root = np.sqrt(probs)"), "attn_np") == "ops/vjp.py"
    with pytest.raises(ValueError, match=r"in one shared file of attn_np, got none; mend the mutant"):
        edited(replace(found, old="root = np.cbrt(probs)"), "attn_np")
    assert {name for tree in TREES for name in shared(tree) if "kernel" in name} == {"kernels/weigh.py"}


def test_planting_leaves_no_trace() -> None:
    import sys

    before = set(sys.modules)
    with planted(MUTANTS[0], "attn_np") as alias:
        __import__(f"{alias}.mha")
        assert alias in sys.modules
    assert {name for name in sys.modules if name.startswith("attn_np_copy")} <= before


# The command ----------------------------------------------------------------------------------------------------------


def test_a_run_takes_every_bug_in_every_tree_that_can_have_it() -> None:
    whole, sample = (places(MODES, short) for short in (False, True))
    assert len(set(whole)) == len(whole)
    assert len(whole) == sum(len(mutant.trees) + (mutant.trees == TREES) for mutant in MUTANTS)
    assert set(sample) < set(whole)
    assert {mode for mode, _ in sample} == set(MODES)


def test_survivors_need_a_reason_and_targets_count() -> None:
    seen = [Verdict(f"bug {i}", "masks", "common", "witness: y 2") for i in range(19)]
    assert missed(seen) == []
    reviewed = Verdict("bug 19", "masks", "common", None, "nothing that is promised changes")
    assert missed([*seen, reviewed]) == []
    assert missed([*seen, replace(reviewed, reason="")]) == ["common: 'bug 19' lives and has no reason to"]
    assert missed([*seen, reviewed, replace(reviewed, name="bug 20")]) == [
        "common: expected 95% of the planted bugs to be seen, got 19 of 21"
    ]
    assert missed([Verdict("bug 0", "masks", "attn_np", None, "whatever is said")]) == [
        "numpy: expected 100% of the planted bugs to be seen, got 0 of 1"
    ]


@pytest.mark.parametrize(("seen", "code"), [("witness: y 2", 0), (None, 1)])
def test_the_command_fails_where_a_bug_lives(
    seen: str | None, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verdicts = [
        Verdict("bias subtracted", "scores", "attn_np", "y: error/bound 3"),
        Verdict("x", "masks", "common", seen),
    ]
    monkeypatch.setattr(planting, "run", lambda *_: verdicts)
    found = CliRunner().invoke(app, ["--no-generic", "--json", str(tmp_path / "found.json")])
    assert found.exit_code == code, found.output
    assert ["all", "1", "of", "1", f"{1 - code}", "of", "1"] in [line.split() for line in found.output.splitlines()]
    assert ("lives and has no reason" in found.output) is bool(code)
    assert [one["seen"] for one in json.loads((tmp_path / "found.json").read_text())["planted"]] == [
        "y: error/bound 3",
        seen,
    ]


# Generic ones ---------------------------------------------------------------------------------------------------------


@pytest.mark.left_out
def test_the_original_passes_every_check_and_a_sample_of_mutants_dies() -> None:
    """`run` begins with the original, and raises where it fails a check. As many die as the ratchet lets expect."""
    results = runner.run(short=True, jobs=1)
    assert {result.file for result in results} == set(files())
    fallen = ratchet.fallen(results, ratchet.read(), sample=True)
    assert ratchet.read(), "nothing is recorded"
    assert not fallen, "\n".join([*fallen, *(str(result.key) for result in results if not result.killed)])
