"""Every known mistake that a variant can hold, and how the reference makes it."""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from functools import cache, partial
from typing import Any

from attn_np import contract
from parity_tests.explain.calls import CALLS, fields
from parity_tests.explain.roundings import ONCE, PRECISIONS, WIDE
from parity_tests.explain.verdicts import Setup
from parity_tests.judge.cases import CALLS as CALLED
from parity_tests.judge.cases import Case, draw
from parity_tests.mistakes import MUTANTS, Mutant, file_of
from parity_tests.mistakes.plant import places_of, root, sources, spelled

# Mistakes in a call that no example's sizes allow, and others do.
RARE = ("another number of heads", "no mscale squared")


@dataclass(frozen=True)
class Mistake:
    """A way to make a known mistake in the reference.

    Attributes:
        name, fix: the mistake in words, and what to do about it in one line.
        made: the setup with the mistake; None where it cannot be made.
        backward: it is one of the backward pass only.
        rank: which of several that fit is named first; lower is earlier.
        rounding: it rounds more than was promised, so that its bounds hold small errors of any kind.
        argument: the argument of a call that the name speaks of; where no call gives it, it is not this mistake.
        forms: it stands in the source, and perhaps in another form of the layer.
    """

    name: str
    fix: str
    made: Callable[[Setup], Setup | None]
    backward: bool = False
    rank: int = 0
    rounding: bool = False
    argument: str = ""
    forms: bool = False


@cache
def catalogue(variant: str) -> tuple[Mistake, ...]:
    """Every known mistake that a variant can hold."""
    return (
        *call_mistakes(variant),
        *source_mistakes(variant),
        *field_mistakes(variant),
        *precision_mistakes(),
    )


# Mistakes in the source -----------------------------------------------------------------------------------------------


def source_mistakes(variant: str) -> Iterator[Mistake]:
    """The planted bugs, made in a copy of the reference's own code."""
    for mutant in MUTANTS:
        own = in_variant(mutant, variant) if mutant.fix and "attn_np" in mutant.trees else None
        if own is not None:
            alone = mutant.trees == ("attn_np",)
            rank = 0 if mutant.file == f"{variant}.py" else 1  # what the variant alone has is said first
            rounds = own.fix in (WIDE, ONCE)
            yield Mistake(own.name, own.fix, planting(own), alone, rank, rounds, own.argument, True)


def planting(mutant: Mutant) -> Callable[[Setup], Setup]:
    return lambda setup: replace(setup, edits=(*setup.edits, mutant))


def in_variant(mutant: Mutant, variant: str) -> Mutant | None:
    """A planted bug as a variant can have it; None where it has not the code.

    A bug of another variant's own file is one of this variant's where its file holds the same text.
    """
    file, own = file_of(mutant, "attn_np"), f"{variant}.py"
    if file.removesuffix(".py") in contract.variants():
        if file in (own, *imported(variant)):
            return mutant
        count = places_of(mutant, "attn_np", source_of(own))
        return replace(mutant, file=own) if count == 1 or (count and mutant.many) else None
    return mutant if {(file, name) for name in changed(mutant)} & reached(variant) else None


@cache
def changed(mutant: Mutant) -> frozenset[str]:
    """The functions and classes of its file that a planted bug edits."""
    file = file_of(mutant, "attn_np")
    source, old = source_of(file), spelled(mutant.old, "attn_np")
    spots = [match.span() for match in re.finditer(old if mutant.pattern else re.escape(old), source)]
    lines = [tuple(source.count("\n", 0, at) + 1 for at in span) for span in spots]
    found = definitions(file).items()
    return frozenset(name for name, node in found if any(a <= node.end_lineno and b >= node.lineno for a, b in lines))


def source_of(file: str) -> str:
    return sources("attn_np").get(root("attn_np") / file, "")


@cache
def definitions(file: str) -> dict[str, Any]:
    """The syntax of what a file of attn_np defines at its top level, by name."""
    found: dict[str, Any] = {}
    for node in ast.parse(source_of(file)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {x.id: node for target in node.targets for x in ast.walk(target) if isinstance(x, ast.Name)}
    return found


def file_of_module(name: str) -> str:
    place = name.removeprefix("attn_np.").replace(".", "/")
    return f"{place}/__init__.py" if source_of(f"{place}/__init__.py") else f"{place}.py"


@cache
def imports(file: str) -> dict[str, tuple[str, str]]:
    """Where the names come from that a file of attn_np imports from another: (file, name)."""
    return {
        alias.asname or alias.name: (file_of_module(node.module or ""), alias.name)
        for node in ast.walk(ast.parse(source_of(file)))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("attn_np.")
        for alias in node.names
    }


def imported(variant: str) -> set[str]:
    """The files of other variants that a variant is made of."""
    return {file for file, _ in reached(variant) if file.removesuffix(".py") in contract.variants()}


@cache
def reached(variant: str) -> frozenset[tuple[str, str]]:
    """The functions and classes of attn_np that a variant's own file calls, directly or by others: (file, name)."""
    found: set[tuple[str, str]] = set()
    todo = [(f"{variant}.py", name) for name in definitions(f"{variant}.py")]
    while todo:
        file, name = todo.pop()
        if (file, name) not in found and name in definitions(file):
            found.add((file, name))
            used = names_in(file, name)
            todo += [imports(file).get(other, (file, other)) for other in used]
    return frozenset(found)


@cache
def names_in(file: str, name: str) -> frozenset[str]:
    """The names that a definition uses."""
    return frozenset(node.id for node in ast.walk(definitions(file)[name]) if isinstance(node, ast.Name))


# Mistakes in the call and in the precision ----------------------------------------------------------------------------


def call_mistakes(variant: str) -> Iterator[Mistake]:
    """Mistakes in how a layer is called and filled that one of the variant's examples can show."""
    shown = [Case(variant, example, call, "float64") for example in contract.examples(variant) for call in CALLED]
    drawn = [(case, draw(case)) for case in shown]
    for name, fix, change in CALLS:
        if not any(change(*pair) for pair in drawn) and not name.startswith(RARE):
            continue

        def made(setup: Setup, change: Callable[..., tuple | None] = change) -> Setup | None:
            found = change(setup.case, setup.drawn)
            return None if found is None else replace(setup, case=found[0], drawn=found[1])

        yield Mistake(name, fix, made, rank=2)


def field_mistakes(variant: str) -> Iterator[Mistake]:
    """Another choice of a field than the config's: the values that it has in the examples of any variant.

    Some are refused by every example and taken by a config of other sizes.
    """
    own = contract.examples(variant).values()
    every = [config for other in contract.variants() for config in contract.examples(other).values()]
    for name, kind in ((f.name, str(f.type)) for f in dataclass_fields(next(iter(own)))):
        met = {getattr(config, name) for config in every if name in config.fields()}
        met |= {True, False} if "bool" in kind else set()
        for value in sorted((x for x in met if isinstance(x, bool | str)), key=str):
            made = partial(other_field, name=name, value=value)
            fix = f"compute with the {name} of the config, or build ours with {name}={value!r}"
            yield Mistake(f"computed with {name}={value!r}", fix, made, rank=3)


def other_field(setup: Setup, name: str, value: float | str) -> Setup | None:
    """The setup with another value of a field; None where the config refuses it or has other parameters then."""
    try:
        found = fields(**{name: value})(setup.case, setup.drawn)
    except (ValueError, TypeError, OverflowError):
        return None
    same = found is not None and found[0].config.arguments().keys() == setup.case.config.arguments().keys()
    return replace(setup, case=found[0]) if found is not None and same else None


def precision_mistakes() -> Iterator[Mistake]:
    """A computation in a smaller type than the one that was promised."""
    for name, fix, smaller in PRECISIONS:

        def made(setup: Setup, smaller: Callable[..., Any] = smaller) -> Setup | None:
            precision = smaller(setup.precision)
            return None if precision is None else replace(setup, precision=precision)

        yield Mistake(name, fix, made, rank=5, rounding=True)
