"""Constants as parameters: the value of a field, or of a factor, with which the reference gives a candidate's numbers.

Each is searched by itself: the decade that comes nearest, then Gauss-Newton steps. Where the mistake is this constant,
the difference vanishes at its value, and the steps end there.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from math import exp, floor, isfinite, log, log10, sqrt
from typing import Any

import numpy as np

from parity_tests.explain.catalogue import Mistake, in_variant, other_field
from parity_tests.explain.verdicts import Setup
from parity_tests.mistakes.constants import EPS, FACTORS, LOWERED, PLACES

# What a field is called in a message.
WORDS = {
    "rope_base": "rotary base",
    "norm_eps": "eps of the norm",
    "eps": "eps",
    "scale": "scale of the scores",
    "softcap": "softcap",
    "norm_offset": "offset of the norm's weight",
    "attention_factor": "attention factor",
    "max_distance": "largest distance",
}
# Fields that are None stand for a number that a method of the config gives.
STANDS_FOR = {
    "qk_norm_eps": "qk_eps",
    "lambda_init": "lambda_init_value",
    "attention_factor": "cos_sin_factor",
    "scale": "score_scale",
}
FACTOR = "factor on "  # begins the names of FACTORS; one of 0 leaves out what it stands on
STEPS = 12  # Gauss-Newton converges in five or six, or not at all
STEP = 1e-6  # relative, for derivatives in float64
DECADES = 8  # how far a constant may be off
WHOLE = 64  # whole numbers that are tried
# How likely chance may give a number of so few digits. Of constants in sixteen ports it was 0.014 and less; where other
# mistakes in angles and norms looked like a constant, 0.3 and more.
LUCK = 0.05


@dataclass(frozen=True)
class Constant:
    """One number that the reference computes with.

    Attributes:
        name, fix: what it is called, and what to do where a candidate has another.
        value: the reference's, that of a default too; None where it has none.
        made: the setup with another value; None where that is refused.
        whole: it is a whole number.
        own: it stands in the variant's own file.
        given: the config gives it; a default is less likely to be meant by what a candidate has.
    """

    name: str
    fix: str
    value: float | None
    made: Callable[[Setup, float], Setup | None]
    whole: bool = False
    own: bool = False
    given: bool = True

    def mistake(self, value: float, spread: float = 0.0) -> Mistake:
        """The mistake of having this value instead; with a spread of infinity it is only known to have no effect."""
        mine = "none" if self.value is None else f"{self.value:.6g}".replace("inf", "infinity")
        theirs = f"{value:.6g}" if spread < np.inf else "without an effect"
        name = f"{self.name} {theirs} in place of {mine}"
        if value == 0 and self.name.startswith(FACTOR):
            name = f"{self.name.removeprefix(FACTOR)} left out"

        def made(setup: Setup) -> Setup | None:
            found = self.made(setup, value)
            return None if found is None else replace(found, constants=found.constants | {self.name})

        return Mistake(name, self.fix, made, rank=0 if self.own else 4 if self.given else 5)


def constants_of(setup: Setup) -> Iterator[Constant]:
    """The numbers of the config, and the factors of the code."""
    config = setup.case.config
    yield from (constant for constant in every_constant(config) if constant.name not in setup.constants)


def every_constant(config: Any) -> Iterator[Constant]:
    for name, kind in ((f.name, str(f.type)) for f in fields(config)):
        value = getattr(config, name)
        if not isinstance(value, int | float | None) or isinstance(value, bool) or name == "dropout":
            continue
        if name == "chunk_size" and "form" in config.fields():
            continue
        if value is None and kind.replace("None", "").strip(" |") != "float":
            continue
        start = effective(config, name)
        words = WORDS.get(name, name)
        fix = f"set it to {start:.6g}; if yours is meant, build ours with {name}=" if start is not None else (
            f"leave it out; if it is meant, build ours with {name}="
        )  # fmt: skip
        given = value is not None
        yield Constant(words, fix, start, partial(with_value, name), isinstance(value, int), given=given)
        follow = [other for other in STANDS_FOR if follows(config, other, name)] if given else []
        for other in follow:
            kept = f"{words} ({WORDS.get(other, other)} as it is)"
            yield Constant(kept, fix, start, partial(with_value_alone, name, other), isinstance(value, int))
    for mutant in EPS:
        own = in_variant(mutant, config.variant)
        if own is not None and (eps := getattr(config, "norm_eps", None)) is not None:
            yield Constant(own.name, own.fix, eps, factor_made(own), own=True)
    for method, mutant in PLACES:
        if mutant.file == f"{config.variant}.py":
            yield Constant(mutant.name, mutant.fix, getattr(config, method)(), factor_made(mutant), own=True)
    for mutant in LOWERED:
        own = in_variant(mutant, config.variant)
        if own is not None:
            yield Constant(own.name, own.fix, -np.inf, partial(unless_zero, factor_made(own)), own=True)
    for factor in FACTORS:
        own = in_variant(factor, config.variant)
        if own is not None:
            yield Constant(own.name, own.fix, 1.0, factor_made(own), own=factor.file == f"{config.variant}.py")


def unless_zero(made: Callable[[Setup, float], Setup | None], setup: Setup, value: float) -> Setup | None:
    """The setup with a value, but for 0: to add nothing to hidden scores is to ignore what hides them."""
    return made(setup, value) if value else None


def with_value(name: str, setup: Setup, value: float) -> Setup | None:
    return other_field(setup, name, value)


def with_value_alone(name: str, other: str, setup: Setup, value: float) -> Setup | None:
    """Another value of a field, while a field that is None stands for what it stood for."""
    start = effective(setup.case.config, other)
    held = setup if start is None else other_field(setup, other, start)
    return None if held is None else other_field(held, name, value)


def effective(config: Any, name: str) -> float | None:
    """The value of a field, of one that is None what it stands for; None where that is no number."""
    value = getattr(config, name)
    if value is not None:
        return value
    own = getattr(config, STANDS_FOR.get(name, ""), None)
    if own is not None:
        return own()
    width = config.sizes().get("k")
    return None if name != "scale" or width is None else config.scale_or_default(width)


def follows(config: Any, other: str, name: str) -> bool:
    """Whether what a field stands for, being None, is another with another value of a second field."""
    if getattr(config, other, 0.0) is not None or other == "scale":
        return False
    try:
        changed = replace(config, **{name: type(getattr(config, name))(2 * getattr(config, name))})
        return effective(changed, other) != effective(config, other)
    except (ValueError, TypeError):
        return False


def factor_made(mutant: Any) -> Callable[[Setup, float], Setup]:
    def made(setup: Setup, value: float) -> Setup:
        edit = replace(mutant, new=mutant.new.replace("{value}", f"({value!r})"))
        return replace(setup, edits=(*setup.edits, edit))

    return made


Residual = Callable[[float], np.ndarray | None]


def fitted(constant: Constant, residual: Residual) -> float | None:
    """The value at which the residual nearly vanishes; None where there is none.

    Args:
        constant: which number.
        residual: value -> candidate less reference, at the first array that differs; None where it cannot be computed.
    """
    own = constant.value
    start = residual(own) if own is not None and isfinite(own) else None
    if start is not None and own and isfinite(own) and not used(constant, start, residual):
        return None
    values = list(whole_numbers(constant) if constant.whole else decades(constant))
    sizes = {value: size for value in values if (size := norm(residual(value))) is not None}
    if not sizes or (start is not None and all(size == norm(start) for size in sizes.values())):
        return None
    best = min(sizes, key=lambda value: sizes[value])
    if constant.whole:  # of several that fit the roundest: a power of two before others
        return min(
            (value for value in sizes if sizes[value] <= 2 * sizes[best]), key=lambda n: (int(n) & (int(n) - 1) != 0, n)
        )
    if best != 0:
        best = newton(best, residual)
    return shortest(best, residual)


def selects_steps(constant: Constant, value: float, residual: Residual) -> bool:
    """Whether a whole number only chooses between steps, as the bounds of buckets do: the next one, beside this value
    or beside the reference's own, gives the very same numbers.
    """
    for at in (value, constant.value):
        here = None if at is None else residual(at)
        beside = [] if at is None or here is None else [residual(at + by) for by in (-1, 1)]
        if any(other is not None and here is not None and np.array_equal(other, here) for other in beside):
            return True
    return False


def used(constant: Constant, start: np.ndarray, residual: Residual) -> bool:
    """Whether other values, far away, give other numbers."""
    own = constant.value or 1
    others = (1, 2, 3, 2 * int(own), 4 * int(own), WHOLE - 1) if constant.whole else (1024 * own, own / 1024)
    far = [residual(value) for value in others if value != own]
    return any(x is not None and not np.array_equal(x, start) for x in far)


def spread_of(value: float, residual: Residual) -> float:
    """How far a value may be off before the residual is twice as large, as a share of it; infinite where it may be
    twice or half as large.
    """
    error, beside = residual(value), residual(value * (1 + STEP))
    least = norm(error)
    if value == 0 or error is None or least is None or beside is None:
        return 0.0
    sizes = [norm(residual(factor * value)) for factor in (2.0, 0.5)]
    slope = norm(beside - error)
    if not slope or any(size is not None and size <= 2 * least for size in sizes):
        return np.inf
    # least^2 + (slope x)^2 = (2 least)^2
    return max(sqrt(3) * least * STEP / slope, float(np.finfo(np.float64).eps))


def written(value: float, own: float | None, spread: float) -> bool:
    """Whether a value has few digits, as what people write, or is a simple root; chance gives neither.

    Another mistake may move the numbers much as this constant does. The value that fits it best then has as many digits
    as the numbers tell apart.

    Args:
        value: the one that fits.
        own: the reference's.
        spread: how far it may be off, as `spread_of` gives it.
    """
    if value == 0 or spread == np.inf:
        return True
    size = abs(value)
    ratios = [size / abs(own)] if own and isfinite(own) else []
    others = [luck(x**power, abs(power) * spread, 0) for x in (size, *ratios) for power in (-2, -1, 2)]
    others += [luck(ratio, spread) for ratio in ratios]
    return luck(size, spread) <= LUCK or min(others) <= LUCK / len(others)


def luck(x: float, spread: float, decimals: int | None = None) -> float:
    """How many numbers with as few digits as the shortest one about x chance puts there.

    Args:
        x: above 0.
        spread: how far it may be off, as a share of it.
        decimals: how many digits behind the point are taken; as many as it has by default.
    """
    for digits in range(1, 18):
        short = float(f"{x:.{digits - 1}e}")
        place = floor(log10(x)) - digits + 1
        if decimals is not None and place < -decimals:
            break
        if abs(short - x) <= spread * x:
            return 2 * spread * x / 10.0**place
    return np.inf


def decades(constant: Constant) -> Iterator[float]:
    """Values around the reference's own, ten times apart, of both signs; nothing at all too."""
    middle = abs(constant.value) if constant.value and isfinite(constant.value) else 1.0
    for power in range(-DECADES, DECADES + 1):
        yield from (middle * 10.0**power, -middle * 10.0**power)
    yield from (middle * 2.0, middle / 2.0, 0.0)


def whole_numbers(constant: Constant) -> Iterator[int]:
    value = int(constant.value or 1)
    yield from (n for n in range(1, WHOLE) if n != value)
    yield from (n for n in (2 * value, 4 * value, value // 2) if n >= WHOLE)


def norm(error: np.ndarray | None) -> float | None:
    return None if error is None or not np.isfinite(error).all() else float(np.sqrt(np.sum(error**2)))


def newton(start: float, residual: Residual) -> float:
    """Gauss-Newton on the logarithm of a value; the best value on the way."""
    sign, at = (1.0 if start > 0 else -1.0), log(abs(start))
    best, least = start, np.inf
    for _ in range(STEPS):
        error, beside = residual(sign * exp(at)), residual(sign * exp(at + STEP))
        size = norm(error)
        if error is None or size is None or beside is None or not np.isfinite(beside).all():
            break
        if size < least:
            best, least = sign * exp(at), size
        slope = (beside - error) / STEP
        square = float(np.sum(slope * slope))
        if not square or size == 0:
            break
        step = -float(np.sum(slope * error)) / square
        at += min(max(step, -3.0), 3.0)
        if abs(step) < np.finfo(np.float64).eps or not -600 < at < 600:
            break
    return best


def shortest(value: float, residual: Residual) -> float:
    """The number with the fewest digits that fits as well."""
    least = norm(residual(value))
    if value == 0 or least is None:
        return value
    for digits in range(1, 17):
        short = float(f"{value:.{digits}g}")
        size = norm(residual(short))
        # The best value also fits some of the roundings: one that is right may be a little further away.
        if size is not None and size <= 2 * least:
            return short
        if short == value:
            break
    return value
