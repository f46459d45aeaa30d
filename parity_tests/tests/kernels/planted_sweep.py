"""Planted mistakes before the referee: how many are seen, named and wrongly named; and right kernels of each class.

python -m parity_tests.tests.kernels.planted_sweep [--every N] [--seconds S]
python -m parity_tests.tests.kernels.planted_sweep --right 5000 [--dtype D] [--only CLASS]
"""

import argparse
import sys
from collections import Counter
from functools import partial
from typing import Any

from parity_tests.kernels.arithmetic import CLASSES, classes_of
from parity_tests.kernels.mistakes import MISTAKES
from parity_tests.kernels.referee import Verdict, judge_kernel
from parity_tests.tests.kernels import own_kernels as own


def judged(mistake: Any, seconds: float) -> Verdict:
    """The verdict on the kernel with a mistake, of the first kind that may have it."""
    kind = mistake.kinds[0]
    given: dict[str, Any] = {"dtypes": ("bfloat16",) if mistake.precise else ("float32",)}
    of_states = kind == "recurrent"
    if of_states:
        given |= {"groups": (1, 2)}
    narrow = "float32"
    f = partial(own.of_simulated, mistake=mistake.name)
    back = None if kind == "paged" else partial(own.of_simulated_backward, mistake=mistake.name)
    return judge_kernel(f, own.OF_KIND[kind], given, narrow, backward=back, seconds=seconds, cases=150)


def shows(verdict: Verdict, mistake: Any) -> bool:
    """Whether the snippet, run by itself, prints the wrong number that it says."""
    printed: list[Any] = []
    f, back = (partial(of, mistake=mistake.name) for of in (own.of_simulated, own.of_simulated_backward))
    try:
        exec(verdict.code, {"f": f, "print": printed.append, "backward": back})
    except Exception as error:  # of any kind: it is shown, and the sweep goes on
        print(f"{error!r} in\n{verdict.code}")
        return False
    shown = f"# {float(printed[0]):.6g}; right" in verdict.code
    if not shown:
        print(f"got {printed[0]} from\n{verdict.code}")
    return shown


def sweep(every: int, seconds: float, first: int) -> int:
    """How many mistakes are not seen or have the name of another."""
    seen = named = wrong = large = shown = 0
    chosen = MISTAKES[first::every]
    for mistake in chosen:
        verdict = judged(mistake, seconds)
        seen += not verdict.agrees
        named += verdict.cause == mistake.name
        wrong += verdict.cause not in ("", mistake.name)
        smallest = verdict.smallest
        if smallest is not None:
            block, spec = 8, smallest.spec
            # Which of two key heads four query heads share shows with no fewer.
            heads = spec.h <= 2 or (spec.h, spec.g) == (4, 2)
            large += not heads or max(spec.t, spec.s) > 2 * block or len(verdict.code.split("\n")) > 15
            shown += shows(verdict, mistake)
        said = "not seen" if verdict.agrees else f"cause: {verdict.cause or 'none'}"
        size = "" if smallest is None else f", {smallest.spec}"
        print(f"{mistake.kinds[0]}: {mistake.name}: {said}, {sum(verdict.cases.values())} cases{size}", flush=True)
    print(f"{len(chosen)} mistakes: {seen} seen, {named} named, {wrong} wrong causes, {large} cases that stay large,")
    print(f"{shown} snippets that print the wrong number")
    return len(chosen) - seen + wrong


def right(cases: int, dtype: str, only: str) -> int:
    """How many right kernels of every class and kind raise an alarm, or are within a narrower class on every case."""
    bad = 0
    for arithmetic, held in enumerate(CLASSES):
        if dtype not in held.dtypes or only not in held.name:
            continue
        asked, numbers, alarms, found = 0, 0, 0, Counter[str]()
        for kind, like in own.OF_KIND.items():
            f = partial(own.of_simulated, arithmetic=arithmetic)
            back = None if kind == "paged" else partial(own.of_simulated_backward, arithmetic=arithmetic)
            n = -(-cases // len(own.OF_KIND))
            verdict = judge_kernel(f, like, {"dtypes": (dtype,)}, held, backward=back, all=True, cases=n)
            asked, numbers = asked + verdict.cases[dtype], numbers + verdict.numbers[dtype]
            alarms, narrowest = alarms + len(verdict.failures), verdict.classes.get(dtype)
            found[str(narrowest)] += 1
            print(f"  {kind}: {verdict.cases[dtype]:,} cases, narrowest that holds: {narrowest}", flush=True)
            if verdict.failures:
                print(verdict)
        narrower = "" if held is classes_of(dtype)[0] else ", refused by the narrower classes"
        said = narrower if found[held.name] else ", WITHIN A NARROWER CLASS"
        print(f"{held}, {dtype}: {asked:,} cases, {numbers:,} numbers, {alarms} alarms{said}", flush=True)
        bad += alarms + (not found[held.name])
    return bad


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--right", type=int, default=0)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", default="", help="classes with this in their names")
    given = parser.parse_args()
    bad = right(given.right, given.dtype, given.only) if given.right else sweep(given.every, given.seconds, given.first)
    sys.exit(min(1, bad))
