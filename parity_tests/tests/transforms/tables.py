"""Tables of transforms: which of a tree's transforms every variant goes through, and which it does not, and why.

`test_transforms_<tree>.py` has them: TRANSFORMS, the name of each with what is asked of it; EXEMPT, which gives a
(transform, variant) that is left out its reason; and, where another file asks and not of every variant, ELSEWHERE, that
file and the variants. `test_transforms_functions.py` has calls of functions. `make sync` writes all into
docs/transforms.md (`-m parity_tests.tests.transforms.tables`).
"""

import sys
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from attn_np import contract
from parity_tests.sync.generate import ROOT, update
from parity_tests.sync.tables import COMMAND

Exemptions = dict[tuple[str, str], str]
Elsewhere = dict[str, tuple[str, tuple[str, ...]]]
PAGE = ROOT / "docs" / "transforms.md"
BEGIN = f"<!-- tables: written by `{COMMAND}` -->\n"
TREES = {"torch": "PyTorch", "jax": "Flax", "numpy": "NumPy"}


def cells(exempt: Exemptions, *transforms: str) -> Any:
    """A decorator that asks a test of each transform in every variant that is not exempt: `[transform-variant]`."""
    pairs = [(t, v) for t in transforms for v in contract.variants() if (t, v) not in exempt]
    return pytest.mark.parametrize(("transform", "variant"), pairs, ids=[f"{t}-{v}" for t, v in pairs])


def tables(tree: str) -> tuple[dict[str, str], Exemptions, Elsewhere]:
    """TRANSFORMS, EXEMPT and ELSEWHERE of a tree."""
    tests = import_module(f"parity_tests.tests.transforms.test_transforms_{tree}")
    return dict(tests.TRANSFORMS), tests.EXEMPT, getattr(tests, "ELSEWHERE", {})


def page() -> dict[Path, str]:
    """The page of transforms, by its path: the tables below what a person wrote."""
    return {PAGE: PAGE.read_text(encoding="utf-8").partition(BEGIN)[0] + BEGIN + "\n" + markdown()}


def markdown() -> str:
    """The tables of all trees and the reasons of what is exempt."""
    lines: list[str] = []
    for tree, title in TREES.items():
        transforms, exempt, elsewhere = tables(tree)
        lines += [f"## {title}", "", "| Transform | What is asked | Variants |", "| --- | --- | --- |"]
        lines += [f"| {name} | {asked} | {cell(name, exempt, elsewhere)} |" for name, asked in transforms.items()]
        lines += ["", *reasons(exempt)]
    return "\n".join([*lines, *functions()])


def functions() -> list[str]:
    """The table of calls of functions and of fields, by the transforms that each goes through."""
    tests = import_module("parity_tests.tests.transforms.test_transforms_functions")
    titles = [title for tree, title in TREES.items() if tree in tests.TRANSFORMS]
    asked = (
        "Functions, and layers with fields that their first examples lack, by the transforms of the tables above. "
        "`dynamic` is at most two graphs for three numbers of sequences and of positions, forward and backward. On a "
        "mesh, of either kind, sequences are sharded: the numbers are right, and nothing moves but what they share "
        "(pages of one pool travel to the sequences that read them; "
        "`parity_tests/tests/transforms/test_sharding_jax.py`). "
        "Two calls are refused where positions are traced, as their angles depend on the largest one: "
        '`rope_scaling="dynamic"` with positions, and `rotary_angles` without `max_positions`. `make compiled` also '
        "puts the remaining examples of every variant through `torch.compile`, `jax.jit` with gradients, `vmap`, "
        "`shard_map` and `jax.export`; each field differs from its default in one of them at least."
    )
    lines = ["## Functions", "", asked, "", f"| Call | {' | '.join(titles)} |", "| --- | --- | --- |"]
    for name in tests.CALLS:
        done = [
            ", ".join(t for t in transforms if name in tests.asked(tree) and (tree, t, name) not in tests.EXEMPT)
            for tree, transforms in tests.TRANSFORMS.items()
        ]
        lines.append(f"| {name} | {' | '.join(done)} |")
    reasons: dict[tuple[str, str, str], list[str]] = {}
    for (tree, transform, name), why in tests.EXEMPT.items():
        reasons.setdefault((TREES[tree], transform, why), []).append(name)
    in_steps = [name for name in tests.CALLS if tests.steps(name)]
    rows = (
        f"- {title}, {transform}, not {'calls in steps' if names == in_steps else '; '.join(names)}: {why}."
        for (title, transform, why), names in reasons.items()
    )
    return [*lines, "", *rows, ""]


def cell(transform: str, exempt: Exemptions, elsewhere: Elsewhere) -> str:
    file, variants = elsewhere.get(transform, ("", contract.variants()))
    count = sum(name == transform for name, _ in exempt)
    whole = len(set(variants)) + count * bool(file) >= len(contract.variants())
    which = (f"all but {count}, see below" if count else "all") if whole else listed(variants)
    return f"{which} (`{file}`)" if file else which


def reasons(exempt: Exemptions) -> list[str]:
    """One line for each transform and reason."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for (transform, variant), reason in exempt.items():
        by_reason.setdefault((transform, reason), []).append(variant)
    lines = [f"- {transform}, not {listed(variants)}: {why}." for (transform, why), variants in by_reason.items()]
    return [*lines, ""] if lines else []


def listed(variants: Collection[str]) -> str:
    return ", ".join(f"`{variant}`" for variant in dict.fromkeys(variants))


if __name__ == "__main__":
    sys.exit(update((page,)))
