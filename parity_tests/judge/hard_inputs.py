"""Hard inputs for the judge: where correct implementations differ most, it must not raise an alarm.

Each style changes the ordinary random inputs of a case in one way that is hard on the arithmetic: scores that saturate
the softmax, sums that cancel, numbers near underflow, rows with one key. None of them is a mistake, so every alarm is
a false one.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attn_np import contract
from parity_tests.judge.candidates import attends, candidates, untaped
from parity_tests.judge.cases import Case, Drawn, draw, given
from parity_tests.judge.frameworks import prepare
from parity_tests.judge.judging import judge, judge_call, rank

Style = Callable[[np.random.Generator, Case, Drawn], Drawn]


def floats(drawn: Drawn, change: Callable[[str, np.ndarray], np.ndarray]) -> Drawn:
    """Other float inputs in the same dtype; masks, tokens and weights stay."""
    held = {
        name: x if x.dtype.kind in "biu" else change(name, x.astype(np.float64)).astype(x.dtype)
        for name, x in drawn.inputs.items()
    }
    return replace(drawn, inputs=held)


def times(factor: float) -> Style:
    """Every input larger: the scores of attention grow with the square, and a softmax picks one key."""
    return lambda rng, case, drawn: floats(drawn, lambda name, x: x * (1.0 if name in ("bias", "state") else factor))


def equal(rng: np.random.Generator, case: Case, drawn: Drawn) -> Drawn:
    """All positions the same: equal scores, and sums of equal terms, whose roundings all go one way."""
    return floats(drawn, lambda name, x: np.broadcast_to(x[:, :1], x.shape) if x.ndim == 3 else x)


def cancelling(rng: np.random.Generator, case: Case, drawn: Drawn) -> Drawn:
    """Every second position is nearly the negative of the one before: weighted sums that cancel."""

    def change(name: str, x: np.ndarray) -> np.ndarray:
        if x.ndim != 3:
            return x
        half = x[:, : (x.shape[1] + 1) // 2]
        both = np.stack([half, -half * (1 + 2.0**-9 * rng.normal(size=half.shape))], axis=2)
        return both.reshape(x.shape[0], -1, x.shape[2])[:, : x.shape[1]]

    return floats(drawn, change)


def crossing(rng: np.random.Generator, case: Case, drawn: Drawn) -> Drawn:
    """Each position's second half is nearly the negative of its first: inner products that cancel."""

    def change(name: str, x: np.ndarray) -> np.ndarray:
        if x.ndim != 3 or x.shape[2] < 2:
            return x
        half = x.shape[2] // 2
        x = x.copy()
        x[..., half : 2 * half] = -x[..., :half] * (1 + 2.0**-9 * rng.normal(size=x[..., :half].shape))
        return x

    return floats(drawn, change)


def offset(rng: np.random.Generator, case: Case, drawn: Drawn) -> Drawn:
    """A large part that all positions share: it cancels in the softmax, and not before."""
    return floats(drawn, lambda name, x: x + 30.0 * rng.normal(size=x.shape[-1]) if x.ndim == 3 else x)


def outlier(rng: np.random.Generator, case: Case, drawn: Drawn) -> Drawn:
    """One channel a hundred times as large as the others, as real models have it."""

    def change(name: str, x: np.ndarray) -> np.ndarray:
        x = x.copy()
        if x.ndim == 3:
            x[..., rng.integers(x.shape[2])] *= 100.0
        return x

    return floats(drawn, change)


def sparse(rng: np.random.Generator, case: Case, drawn: Drawn) -> Drawn:
    """Masks that leave nearly nothing, keep-masks that drop nearly everything."""
    held = {
        name: rng.random(x.shape) < 0.06 if x.dtype == bool and name != "real" else x
        for name, x in drawn.inputs.items()
    }
    return replace(drawn, inputs=held)


def biased(rng: np.random.Generator, case: Case, drawn: Drawn) -> Drawn:
    """A bias from 0 down to -60: weights over many orders of magnitude."""
    return floats(drawn, lambda name, x: -60.0 * rng.random(x.shape) if name == "bias" else x)


def zero(rng: np.random.Generator, case: Case, drawn: Drawn) -> Drawn:
    """Nothing but zeros, some of them negative."""
    return floats(drawn, lambda name, x: np.where(rng.random(x.shape) < 0.5, 0.0, -0.0))


def mixed(rng: np.random.Generator, case: Case, drawn: Drawn) -> Drawn:
    """Magnitudes from 2^-12 to 2^4, each its own."""
    return floats(drawn, lambda name, x: x * 2.0 ** rng.uniform(-12, 4, x.shape))


def steep(rng: np.random.Generator, case: Case, drawn: Drawn) -> Drawn:
    """Weights four times as large: gates and features at the ends of their range."""
    return replace(
        drawn, params={name: (4.0 * x.astype(np.float64)).astype(x.dtype) for name, x in drawn.params.items()}
    )


STYLES: dict[str, Style] = {
    "ordinary": lambda rng, case, drawn: drawn,
    "times 4": times(4.0),
    "times 32": times(32.0),
    "times 2^-10": times(2.0**-10),
    "equal": equal,
    "cancelling": cancelling,
    "crossing": crossing,
    "offset": offset,
    "outlier": outlier,
    "sparse": sparse,
    "biased": biased,
    "zero": zero,
    "mixed": mixed,
    "steep": steep,
}


@dataclass(frozen=True)
class Hard:
    """One hard case: the ordinary case and the style of its inputs."""

    case: Case
    style: str

    def drawn(self) -> Drawn:
        rng = np.random.default_rng([zlib.crc32(f"{self.style}/{self.case.name}".encode()), self.case.seed])
        return STYLES[self.style](rng, self.case, draw(self.case))


def hard_cases(variants: tuple[str, ...], dtypes: tuple[str, ...], seed: int) -> Iterator[Hard]:
    """Every example of every variant in every type and style, each with a seed of its own."""
    for variant in variants:
        for example, config in contract.examples(variant).items():
            call = "full" if given(config, "full") else "plain"
            for dtype in dtypes:
                for style in STYLES:
                    yield Hard(Case(variant, example, call, dtype, seed), style)


def soaked(task: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], int]) -> dict[str, Any]:
    """Judge one round of hard cases; figures by style and type, and every alarm in words."""
    variants, dtypes, frameworks, seed = task
    prepare(frameworks)
    found = [(judge, c) for c in candidates("cpu", frameworks) if (c.framework, c.mode) != ("jax", "eager")]
    calls = [(judge_call, c) for c in untaped("cpu", frameworks)]
    figures: dict[tuple[str, str], list[float]] = {}
    alarms: list[str] = []
    for hard in hard_cases(variants, dtypes, seed):
        drawn = hard.drawn()
        for how, candidate in found + (calls if attends(hard.case.variant, hard.case.config.class_name) else []):
            with np.errstate(all="ignore"):  # beyond the range of float16 is one of the hard places
                rows = list(how(hard.case, candidate, drawn))
            old = figures.get((hard.style, hard.case.dtype), [0, 0, 0, 0, 0.0])
            worst = max(rank(row.ratio) for row in rows)
            numbers, loose = sum(row.elements for row in rows), sum(row.vacuous for row in rows)
            new = [old[0] + 1, old[1] + len(rows), old[2] + numbers, old[3] + loose, max(old[4], worst)]
            figures[hard.style, hard.case.dtype] = new
            alarms += [f"{hard.style}, seed {hard.case.seed}: {row}" for row in rows if not row.ok]
    return {"figures": figures, "alarms": alarms}
