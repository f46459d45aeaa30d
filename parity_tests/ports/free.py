"""Correct ports that tap what they like: the judge must raise no alarm at any of them.

They are the layers of the trees without the zeros that these put at hidden places, as a textbook writes them. Hidden
positions of their inputs hold large numbers, and each candidate records a random part of the names on the tape.
"""

import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attn_np import contract
from parity_tests.bounds.precision import precision_of
from parity_tests.explain.verdicts import Judged, verdicts
from parity_tests.judge.candidates import Outcome, output_shapes, pulled, run_numpy, run_torch, scoped
from parity_tests.judge.cases import CALLS, Case, Drawn, given
from parity_tests.judge.consequences import consequences
from parity_tests.judge.hard_inputs import STYLES, Hard
from parity_tests.judge.judging import Row
from parity_tests.mistakes.plant import Copy, root, sources

GARBAGE = 1000.0  # at hidden positions of the inputs
RUNS = {"numpy": run_numpy, "torch": run_torch}
CHOSEN_BY = ("affinity", "index_scores")  # what blocks of keys are chosen by
MASKS = ("as drawn", "all", "one key", "no query", "last keys hidden", "-inf in the bias")


@contextmanager
def free_tree(framework: str) -> Iterator[str]:
    """A copy of a framework's tree whose `zero_unseen` zeroes nothing."""
    tree = f"attn_{'np' if framework == 'numpy' else framework}"
    source = sources(tree)[root(tree) / "attention/masks.py"]
    head, mark, body = source.partition("def zero_unseen(")
    body = body.replace("return x if allowed is None else where(any_visible(subscripts, allowed), x, 0.0)", "return x")
    if body == source.partition("def zero_unseen(")[2]:
        raise ValueError(f"free ports: expected the line of zero_unseen in the masks of {tree}, got another; mend this")
    with Copy(tree, {"attention/masks.py": head + mark + body}).importable() as alias:
        yield alias


@dataclass(frozen=True)
class Free:
    """One correct port in one call.

    Attributes:
        hard: the case and the style of its inputs.
        framework: whose arrays it computes on.
        mask: which keys are hidden.
    """

    hard: Hard
    framework: str
    mask: str

    def drawn(self) -> Drawn:
        """The inputs, with the mask and with garbage wherever nothing depends on them."""
        case, drawn = self.hard.case, self.hard.drawn()
        drawn = masked(case, drawn, self.mask)
        matter, rng = consequences(case, drawn), np.random.default_rng([drawn.seed, 11])
        inputs = dict(drawn.inputs)
        for name, arg in case.config.arguments().items():
            taped = "x" if name == "query" and "key" not in inputs else name
            if arg.kind == "array" and name in inputs:
                hidden = matter.hidden(taped, inputs[name].shape)
                noise = (GARBAGE * rng.normal(size=inputs[name].shape)).astype(inputs[name].dtype)
                inputs[name] = np.where(hidden, noise, inputs[name])
        drawn = replace(drawn, inputs=inputs)
        return replace(drawn, pulled=pulled(case, drawn, output_shapes(case, drawn)))


def masked(case: Case, drawn: Drawn, kind: str) -> Drawn:
    """The same call with another mask: every argument that is one, or a bias."""
    arguments, inputs = case.config.arguments(), dict(drawn.inputs)
    for name, x in drawn.inputs.items():
        if kind == "-inf in the bias" and arguments[name].kind == "bias":
            inputs[name] = np.where(
                np.random.default_rng(drawn.seed).random(x.shape) < 0.2, np.array(-np.inf, x.dtype), x
            )
        if arguments[name].kind != "mask":
            continue
        mask = x.copy()
        if kind == "all":
            mask[...] = True
        elif kind == "one key":
            mask[..., 1:] = False
        elif kind == "no query":
            mask[0] = False
        elif kind == "last keys hidden":
            mask[..., -2:] = False
        inputs[name] = mask
    return replace(drawn, inputs=inputs)


def free_ports(
    variants: tuple[str, ...], dtypes: tuple[str, ...], frameworks: tuple[str, ...], seed: int
) -> Iterator[Free]:
    """Every example of every variant once, with a style, a mask, a call, a type and a framework that the seed draws."""
    for variant in variants:
        for example, config in contract.examples(variant).items():
            rng = np.random.default_rng([zlib.crc32(f"{variant}/{example}".encode()), seed])
            calls = [call for call in CALLS if given(config, call)]
            case = Case(variant, example, str(rng.choice(calls)), str(rng.choice(dtypes)), seed)
            yield Free(Hard(case, str(rng.choice(list(STYLES)))), str(rng.choice(frameworks)), str(rng.choice(MASKS)))


def tapping(outcome: Outcome, names: set[str]) -> Outcome:
    """What a port records that taps some names: their values and cotangents, and all its results."""
    tape = {name: x for name, x in outcome.tape.items() if name in names}
    cotangents = {name: x for name, x in outcome.cotangents.items() if name in {scoped(n) for n in names}}
    return replace(outcome, tape=tape, cotangents=cotangents)


def differing(port: Free, drawn: Drawn, outcome: Outcome, names: set[str]) -> list[Row]:
    """The alarms at a port that taps these names."""
    case = port.hard.case
    run = Judged("a port", case, drawn, tapping(outcome, names), precision_of(case.dtype), partial=True)
    return [row for row in verdicts(run)[0] if not row.ok]


def needs_zeros(port: Free, tree: str) -> bool:
    """Whether a layer's own arithmetic needs the zeros, which its results say.

    Those of ordinary inputs are asked, too: where all inputs are 0, nothing that comes in changes a result.
    """
    ordinary = replace(port, hard=replace(port.hard, style="ordinary"))
    for other in (port, ordinary):
        drawn = other.drawn()
        if differing(other, drawn, RUNS[port.framework](port.hard.case, drawn, True, tree=tree), set()):
            return True
    return False


def alarms(port: Free, trees: dict[str, str], subsets: int) -> tuple[int, bool, list[tuple[list[str], Row]]]:
    """How many candidates a port gave, whether it is free of zeros, and each alarm with the names that were tapped.

    Where a layer needs the zeros, the port is the layer as it is. What a choice is made of is always tapped: equal
    positions leave a choice to the roundings, and no port can make that of the reference.
    """
    tree, drawn = trees[port.framework], port.drawn()
    with np.errstate(all="ignore"):
        free = not needs_zeros(port, tree)
        outcome = RUNS[port.framework](port.hard.case, drawn, True, **({"tree": tree} if free else {}))
        rng, names, found = np.random.default_rng([drawn.seed, 13]), sorted(outcome.tape), []
        for _ in range(subsets):
            share = rng.choice([0.1, 0.3, 0.6, 1.0])
            names_tapped = {name for name in names if rng.random() < share} or {str(rng.choice(names))}
            names_tapped |= {name for name in names if name in CHOSEN_BY}
            found += [(sorted(names_tapped), row) for row in differing(port, drawn, outcome, names_tapped)]
    return subsets, free, found


def soaked_ports(task: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], int, int]) -> dict[str, Any]:
    """One round of free ports: how many candidates, how many of them free of zeros, and every alarm in words."""
    variants, dtypes, frameworks, seed, subsets = task
    judged, free, told = 0, 0, []
    with ExitStack() as stack:
        trees = {name: stack.enter_context(free_tree(name)) for name in frameworks}
        for port in free_ports(variants, dtypes, frameworks, seed):
            count, is_free, found = alarms(port, trees, subsets)
            judged, free = judged + count, free + count * is_free
            told += [
                f"{port.framework}, {port.hard.style}, mask {port.mask}, taps {','.join(names)}: {row}"
                for names, row in found
            ]
    return {"candidates": judged, "free": free, "alarms": told}
