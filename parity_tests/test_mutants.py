"""Can the judge be trusted? Every planted bug must be seen, in every tree that it is planted in."""

from importlib import import_module
from importlib.util import find_spec

import pytest

from attn_np import contract
from parity_tests.mutants import MUTANTS, Mutant, evidence, planted


def planted_everywhere() -> list[tuple[Mutant, str]]:
    """The common planted bugs, and those that the test of a variant adds as `MUTANTS`; each in every tree it names."""
    modules = [f"{__package__}.test_{variant}" for variant in contract.variants()]
    own = [mutant for name in modules if find_spec(name) for mutant in getattr(import_module(name), "MUTANTS", ())]
    return [(mutant, tree) for mutant in (*MUTANTS, *own) for tree in mutant.trees]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a planted bug may divide by zero
@pytest.mark.parametrize(("mutant", "tree"), planted_everywhere(), ids=lambda x: str(x))
def test_planted_bug_dies(mutant: Mutant, tree: str) -> None:
    seen = evidence(mutant, tree)
    assert seen is not None, f"{mutant.name} in {tree} survived {mutant.case.name}: {mutant.old!r} -> {mutant.new!r}"


@pytest.mark.parametrize("tree", ["attn_np", "attn_torch", "attn_jax"])
def test_a_copy_without_a_bug_lives(tree: str) -> None:
    """The copies themselves change nothing: what kills a mutant is its bug."""
    whole = Mutant("nothing planted", "mha.py", "w_q: Float", "w_q: Float", "mha", "cross")
    assert evidence(whole, tree) is None


def test_there_are_enough_of_them() -> None:
    assert len(MUTANTS) >= 30
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_a_mutant_that_no_longer_fits_is_an_error() -> None:
    stale = Mutant("stale", "mha.py", "text that is not there", "", "mha", "cross")
    with pytest.raises(ValueError, match="mend the mutant"):
        evidence(stale, "attn_np")


def test_planting_leaves_no_trace() -> None:
    import sys

    before = set(sys.modules)
    with planted(MUTANTS[0], "attn_np") as alias:
        __import__(f"{alias}.mha")
        assert alias in sys.modules
    assert {name for name in sys.modules if name.startswith("attn_np_copy")} <= before
