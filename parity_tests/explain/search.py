"""The search for known mistakes that give a run's numbers: each is made in the reference, whose bounds then judge."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from parity_tests.bounds.error_array import ErrArray, nearest
from parity_tests.bounds.precision import EXACT
from parity_tests.explain.catalogue import Mistake, catalogue
from parity_tests.explain.constants import Constant, constants_of, fitted, selects_steps, spread_of, written
from parity_tests.explain.findings import Finding
from parity_tests.explain.forms import in_form, other_forms, stops
from parity_tests.explain.roundings import CERTAIN, balanced, evidence, likeness, rounded_arrays
from parity_tests.explain.verdicts import FORWARD, Judged, Setup, exact, tree_of, verdicts
from parity_tests.judge.cases import draw, seeing
from parity_tests.judge.judging import Anchor, Departure, Row
from parity_tests.mistakes import MUTANTS

LESS = 0.7  # how much of the difference may be left by the first of two
FAR = 1024  # times its bound: nothing that is right is so far away
# With the right mistake made the reference is as near as rounding allows, in 16 bits some 1 % of the array's size.
NEAR = 0.05
# What a copy of the reference may raise where this call cannot have the mistake.
REFUSALS = (ValueError, TypeError, KeyError, IndexError, AttributeError, NameError)
LONGER = {"t": 37, "s": 41}
EMPTY = "row without a key is NaN"
FILLED = "hidden scores filled with"
# Of the mistakes that may be the second of two so many are tried, those whose own effect points along what is left.
SECONDS, ALONG = 12, 0.3
ENOUGH = 8  # numbers that must differ before a mistake that explains one stage alone is named


@dataclass(frozen=True)
class Fit:
    """A mistake that gives the numbers of the first difference.

    Attributes:
        mistake, setup: which, and the reference with it.
        ratio: the largest error/bound with it.
        tightness: how wide the widest bounds are, in steps of two bits: closer than that, two are equally tight.
        stop: the next array that differs all the same; "" where none does.
        text: how it is known, where that is not by its bounds alone.
        place: the one array that it was made at, where others agree without it; "" where it was made everywhere.
        agrees: one of these others.
    """

    mistake: Mistake
    setup: Setup
    ratio: float
    tightness: int
    stop: str = ""
    text: str = ""
    place: str = ""
    agrees: str = ""


@dataclass
class Search:
    """The search for the mistakes that explain a run's first difference.

    Attributes:
        run, setup: the run, and the reference that it differs from.
        finding: the first difference.
        anchor: what was expected of each array.
        others: runs of the same candidate in other calls.
        among: the mistakes that are looked for, beside constants; all of the catalogue by default.
        whole: every array of the reference without bounds, in dataflow order.
        order: place of each array in the order of the computation.
        ends: of these the first that differs and the results.
        loose: how many numbers of each array have a bound that says little in the reference as it is.
        shares: mistakes that leave little of the difference, each with the share of it that they leave.
        values: the first array that differs with each mistake that was made.
        unwritten: constants of unlikely values that give the numbers; another mistake acts like them.
        selecting: whole numbers that give the numbers, as their neighbours may: they only choose between steps.
    """

    run: Judged
    setup: Setup
    finding: Finding
    anchor: Anchor
    others: Sequence[Judged] = ()
    among: Sequence[Mistake] | None = None
    whole: dict[str, Any] = field(init=False)
    order: dict[str, int] = field(init=False)
    ends: dict[str, Any] = field(init=False)
    loose: dict[tuple[str, str], int] = field(init=False)
    shares: list[tuple[float, Mistake]] = field(default_factory=list)
    values: list[tuple[Mistake, Any]] = field(default_factory=list)
    unwritten: list[str] = field(default_factory=list)
    selecting: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        finding, self.first = self.finding, self.finding.first
        self.got: Any = finding.got
        self.want: Any = finding.want
        self.bound: Any = finding.bound
        self.backward = self.first.stage not in FORWARD
        # In a scan a mistake comes back in the next step, also in arrays before it.
        self.bounds = {name: want for name, want in self.anchor.wanted.items() if name not in self.anchor.steps}
        with tree_of(self.setup) as tree:
            self.whole = exact(self.setup, self.backward, tree)
        self.order = {name: i for i, name in enumerate(self.whole)}
        names = {self.first.name, *self.run.outcome.outputs, *(self.run.outcome.grads if self.backward else ())}
        self.ends = {name: self.whole.get(name) for name in names if name in self.whole}
        self.loose = {(row.stage, row.name): row.vacuous for row in self.finding.rows}
        self.compared = np.ones(np.shape(self.got), bool)
        hidden = self.anchor.hidden.get(self.first.name)
        if hidden is not None and hidden.shape == self.compared.shape:
            self.compared &= ~hidden

    def fits(self) -> list[Fit]:
        """The mistakes that fit, best first; roundings only where nothing else does."""
        every = catalogue(self.run.case.variant) if self.among is None else self.among
        known = [m for m in every if (self.backward or not m.backward) and self.can_be(m)]
        known += stops(self.whole) if self.backward else []
        found = [fit for m in known if not m.rounding and (fit := self.tried(m))]
        sure = any(not fit.stop for fit in found)
        found += [fit for c in self.constants() if (c.own or c.whole or not sure) and (fit := self.fitted_constant(c))]
        if all(fit.stop for fit in found):
            found = [fit for fit in found if not self.agreed(fit.stop)] or self.alone()
        if not found:
            found = [fit for m in known if not m.rounding and (fit := self.tried(beside_nan(m)))] if self.nan() else []
        if not found:
            found = [fit for m in known if m.rounding and (fit := self.rounding(m))]
        return self.distinct(told_by_fill(self.confirmed(self.best(found))))

    def can_be(self, mistake: Mistake) -> bool:
        """Whether the argument that a mistake speaks of, if any, is given in one of the calls."""
        return not mistake.argument or any(mistake.argument in run.drawn.inputs for run in (self.run, *self.others))

    def nan(self) -> bool:
        """Whether the candidate has NaN, as plain softmax has in a row without a key; it hides what else is wrong."""
        got = self.got
        return not self.backward and got is not None and got.dtype.kind == "f" and bool(np.isnan(got).any())

    def best(self, found: list[Fit]) -> list[Fit]:
        """Those that explain all before those that explain the first difference alone; the tightest bounds first.

        Of two that hold the candidate the one with tighter bounds says more; bounds 2^8 times as wide hold the
        candidate of any tighter one.
        """
        whole = [fit for fit in found if not fit.stop]
        if not whole and found:
            furthest = max(self.order.get(fit.stop, len(self.order)) for fit in found)
            whole = [fit for fit in found if self.order.get(fit.stop, len(self.order)) == furthest]
        whole.sort(key=lambda fit: (fit.tightness, fit.mistake.rank))
        return [fit for fit in whole if fit.tightness <= whole[0].tightness + 4]

    # Systematic mistakes

    def tried(self, mistake: Mistake) -> Fit | None:
        """Whether the reference with a mistake gives this run's numbers; one that cannot be the one is passed over.

        What the reference's own form has not the code for is made in the others.
        """
        try:
            fit, acts = self.tried_as(mistake)
        except REFUSALS:
            return None  # with the mistake this call does not run: it is not the one that was made
        if not acts and mistake.forms:
            for config in other_forms(self.setup.case.config):
                try:
                    fit, _ = self.tried_as(in_form(mistake, config))
                except REFUSALS:
                    continue
                if fit is not None:
                    break
        return fit

    def tried_as(self, mistake: Mistake) -> tuple[Fit | None, bool]:
        """The fit of a mistake, if it is one, and whether it does anything."""
        setup = mistake.made(self.setup)
        if setup is None:
            return None, True
        with tree_of(setup) as tree, np.errstate(all="ignore"):
            arrays = exact(setup, self.backward, tree)
            if not set(self.run.outcome.tape) <= set(arrays):
                return None, True
            ends = ((x, arrays.get(n)) for n, x in self.ends.items())
            if all(x is not None and y is not None and np.array_equal(x, y, equal_nan=True) for x, y in ends):
                return None, False
            self.values.append((mistake, arrays.get(self.first.name)))
            self.remember(mistake, arrays)
            return self.judged(mistake, setup, tree, arrays) if self.possible(arrays) else None, True

    def remember(self, mistake: Mistake, arrays: dict[str, Any]) -> None:
        """Keep a mistake that leaves little of the difference, with the share that it leaves."""
        got: Any = self.got
        right: Any = self.whole.get(self.first.name)
        array: Any = arrays.get(self.first.name)
        if any(x is None or np.shape(x) != np.shape(got) or np.asarray(x).dtype.kind != "f" for x in (right, array)):
            return
        places = self.compared & np.isfinite(got) & np.isfinite(array)
        left, whole = (float(np.sum((x - got)[places] ** 2)) for x in (array, right))
        if whole and left < LESS**2 * whole and array.any():  # of nothing but 0 any second mistake makes 0
            self.shares.append((left / whole, mistake))

    def beside(self, first: Mistake) -> list[Mistake]:
        """The mistakes that may be the second of two: what each does by itself is like what the first one leaves."""
        arrays = {id(mistake): array for mistake, array in self.values}
        one, right = arrays.get(id(first)), self.whole.get(self.first.name)
        got = self.got
        if one is None or right is None or np.shape(one) != np.shape(got):
            return []
        found = []
        for mistake, array in self.values:
            if mistake is first or array is None or np.shape(array) != np.shape(got):
                continue
            places = self.compared & np.isfinite(got) & np.isfinite(array) & np.isfinite(one)
            left, does = (got - one)[places], (array - right)[places]
            size = float(np.sqrt(np.sum(left**2) * np.sum(does**2)))
            found.append((float(np.sum(left * does)) / size if size else 0.0, mistake))
        found.sort(key=lambda x: -x[0])
        return [mistake for share, mistake in found[:SECONDS] if share > ALONG]

    def possible(self, arrays: dict[str, Any]) -> bool:
        """Whether a mistake moves the first array that differs to where it is, and none before it beyond its bound."""
        for name, a in self.whole.items():
            b, want = arrays.get(name), self.bounds.get(name)
            if name != self.first.name and name not in self.bounds:
                continue
            if b is None or np.shape(a) != np.shape(b):
                return True
            if name == self.first.name:
                return a.tobytes() != b.tobytes() and self.near(b)
            if isinstance(want, ErrArray) and want.shape == a.shape and np.any(np.abs(a - b) > FAR * want.b):
                return False
        return True

    def near(self, array: np.ndarray) -> bool:
        """Whether most of an array is about what the candidate has."""
        got, bound = self.got, self.bound
        if got is None or bound is None or got.shape != array.shape or self.first.name in self.anchor.steps:
            return True
        apart, finite = np.abs(array - got), np.isfinite(array) & np.isfinite(got) & self.compared
        if not finite.any():
            return True
        size = float(np.sqrt(np.mean(got[finite] ** 2)))
        return bool(np.mean((apart > FAR * bound + NEAR * size)[finite]) < 0.5)

    def judged(self, mistake: Mistake, setup: Setup, tree: str, arrays: dict[str, Any]) -> Fit | None:
        """The fit of a mistake that was made, which gives these arrays; None where the first difference stays."""
        if not self.alike(arrays):
            return None
        run, stop = self.run.against(setup), ""
        try:
            rows, _ = verdicts(run, tree, self.backward, strict=True)
        except Departure as departure:
            stop = str(departure)
            if not self.behind(stop):
                return None
            rows, _ = verdicts(run, tree, self.backward)
        wrong = next((row for row in rows if not row.ok), None)
        if wrong is not None:
            stop = wrong.name
            if not self.behind(stop) or self.few():
                return None
            rows = rows[: rows.index(wrong)]
        if not rows or any(2 * (row.vacuous - self.loose.get((row.stage, row.name), 0)) > row.elements for row in rows):
            return None
        if (self.first.stage, self.first.name) not in {(row.stage, row.name) for row in rows}:
            return None
        return Fit(mistake, setup, max(row.ratio for row in rows), tightness(rows), stop)

    def agreed(self, name: str) -> bool:
        """Whether an array agrees without any mistake."""
        return all(row.ok for row in self.finding.rows if row.name == name)

    def alone(self) -> list[Fit]:
        """Mistakes that were made at the first difference alone, as an eps in one of two norms."""
        if self.first.stage != "tape" or self.first.name in self.anchor.steps or self.few():
            return []
        return [
            fit for mistake, array in self.values if not mistake.backward and (fit := self.made_here(mistake, array))
        ]

    def made_here(self, mistake: Mistake, array: Any) -> Fit | None:
        """Whether a mistake, which gives this array, explains the first difference, though other arrays agree."""
        name, right = self.first.name, self.whole.get(self.first.name)
        if array is None or right is None or array.shape != right.shape or array.tobytes() == right.tobytes():
            return None
        if not (self.near(array) and self.alike({name: array})):
            return None
        try:
            setup = mistake.made(self.setup)
            if setup is None:
                return None
            with tree_of(setup) as tree, np.errstate(all="ignore"):
                rows, _ = verdicts(self.run.against(setup), tree, backward=False)
        except REFUSALS:
            return None
        row = next((row for row in rows if row.name == name), None)
        other = next((row for row in rows if row.stage == "tape" and not row.ok and self.agreed(row.name)), None)
        if row is None or other is None or not row.ok or 2 * row.vacuous > row.elements:
            return None
        return Fit(mistake, self.setup, row.ratio, tightness([row]), place=name, agrees=other.name)

    def confirmed(self, fits: list[Fit]) -> list[Fit]:
        """Those that explain the candidate's other calls as well, if any does."""
        if len(fits) < 2 or any(fit.stop or fit.place for fit in fits):
            return fits
        return [fit for fit in fits if all(self.explains(fit.mistake, other) for other in self.others)] or fits

    def explains(self, mistake: Mistake, other: Judged) -> bool:
        """Whether a mistake gives the numbers of a run in another call; so too where it cannot be made there."""
        try:
            setup = mistake.made(other.setup) or other.setup
            with tree_of(setup) as tree, np.errstate(all="ignore"):
                rows, _ = verdicts(other.against(setup), tree, self.backward, strict=True)
        except Departure:
            return False
        except REFUSALS:
            return True
        return all(row.ok for row in rows)

    def distinct(self, fits: list[Fit]) -> list[Fit]:
        """Each mistake once: two that give the same results in a call with every argument and in one with few.

        These calls are longer than the run, so that two that only its length makes the same, as a window that is too
        wide and none at all, are both told. Every query sees a key there: what the two make of one that sees none is no
        difference that a port has.
        """
        found: list[tuple[Fit, list[dict[str, Any]]]] = []
        for fit in fits if len(fits) > 1 else []:
            results = [] if fit.mistake.rounding else [self.results(fit.mistake, call) for call in ("full", "plain")]
            if not any(same(results, other) for _, other in found):
                found.append((fit, results))
        return [fit for fit, _ in found] or fits

    def results(self, mistake: Mistake, call: str) -> dict[str, Any]:
        """The results of a call with a mistake, by the names that the candidate has; without it where it cannot be."""
        case = replace(self.run.case, call=call).at("float64")
        drawn = draw(case, lengths=LONGER)
        setup = Setup(case, replace(drawn, inputs={n: seeing(case, n, x) for n, x in drawn.inputs.items()}), EXACT)
        try:
            made = mistake.made(setup) or setup
            with tree_of(made) as tree:
                arrays = exact(made, self.backward, tree)
        except REFUSALS:
            arrays = exact(setup, self.backward)
        return {name: arrays[name] for name in self.run.outcome.outputs | self.run.outcome.grads if name in arrays}

    def behind(self, name: str) -> bool:
        """Whether an array comes after the first that differs, in the order of the computation."""
        if name in self.anchor.steps or self.first.name in self.anchor.steps:
            return False
        last = len(self.order)
        return self.order.get(name, last) > self.order.get(self.first.name, last)

    def few(self) -> bool:
        """Whether so few numbers differ that a mistake may give them by chance."""
        got, want, bound = self.got, self.want, self.bound
        if got is None or want is None or bound is None or got.shape != want.shape:
            return True
        with np.errstate(invalid="ignore"):
            return bool(np.sum(~(np.abs(got - want) <= bound)) < ENOUGH)

    # Constants

    def constants(self) -> list[Constant]:
        return [] if self.bound is None else list(constants_of(self.setup))

    def fitted_constant(self, constant: Constant) -> Fit | None:
        """Whether the reference with another value of one constant gives this run's numbers."""
        got = self.got
        places = self.compared & np.isfinite(got) if got is not None else self.compared

        def residual(value: float) -> np.ndarray | None:
            setup = constant.made(self.setup, value)
            if setup is None or got is None:
                return None
            try:
                with tree_of(setup) as tree, np.errstate(all="ignore"):
                    array = exact(setup, self.backward, tree).get(self.first.name)
            except (ValueError, OverflowError, ZeroDivisionError, IndexError, KeyError):
                return None
            return None if array is None or np.shape(array) != got.shape else (array - got)[places]

        value = fitted(constant, residual)
        if value is None:
            return None
        if constant.whole and selects_steps(constant, value, residual):
            fit = self.tried(constant.mistake(value))
            self.selecting += [constant.mistake(value).name] if fit is not None and not fit.stop else []
            return None
        spread = 0.0 if constant.whole else spread_of(value, residual)
        fit = self.tried(constant.mistake(value, spread))
        if fit is None or constant.whole or written(value, constant.value, spread):
            return fit
        self.unwritten += [] if fit.stop else [f"{constant.name} {value:.6g}"]
        return None

    # Roundings

    def rounding(self, mistake: Mistake) -> Fit | None:
        """Whether the candidate's errors are those that a smaller type makes in the reference, in any of its forms."""
        forms = other_forms(self.setup.case.config) if mistake.forms else ()
        every = (self.rounding_as(made) for made in (mistake, *(in_form(mistake, config) for config in forms)))
        return next(filter(None, every), None)

    def rounding_as(self, mistake: Mistake) -> Fit | None:
        setup, want = mistake.made(self.setup), self.want
        if setup is None or want is None or want.shape != np.shape(self.got):
            return None
        try:
            with tree_of(setup) as tree, np.errstate(all="ignore"):
                arrays = rounded_arrays(setup, self.backward, tree)
                error, made = self.moved(arrays)
                if not made.any():
                    return None
                if not balanced(error, want[self.places(arrays)]):
                    return None
                correlation = likeness(error, made)
                fit = self.judged(mistake, setup, tree, arrays)
        except REFUSALS:
            return None
        if fit is None and correlation >= CERTAIN:  # a number between two of the type may be rounded to the other
            fit = Fit(mistake, setup, 0.0, 0)
        return None if fit is None else replace(fit, text=evidence(correlation))

    def places(self, arrays: dict[str, Any]) -> np.ndarray:
        """Where the first array that differs can be compared with that of a mistake: both are finite."""
        name = self.first.name
        every = (self.got, self.want, arrays[name], self.whole[name])
        return self.compared & np.all([np.isfinite(x) for x in every], axis=0)

    def moved(self, arrays: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """The errors of the first array that differs, and what a mistake does there."""
        name, places = self.first.name, self.places(arrays)
        rounded = arrays[name]
        if self.first.stage in ("output", "stage gradient", "gradient"):
            rounded = nearest(rounded, self.run.precision.out)
        return (self.got - self.want)[places], (rounded - self.whole[name])[places]

    def alike(self, arrays: dict[str, Any]) -> bool:
        """Whether a mistake moves the first array that differs in the directions in which the candidate is off.

        Wide bounds hold errors of any kind: this is what tells them apart.
        """
        name = self.first.name
        every = (self.got, self.want, self.bound, arrays.get(name), self.whole.get(name))
        if name in self.anchor.steps or any(x is None or np.shape(x) != np.shape(self.got) for x in every):
            return True
        error, made = self.moved(arrays)
        if not np.any(np.abs(error) > self.bound[self.places(arrays)]):  # NaN and infinity are all that differs
            return True
        return likeness(error, made) > 0


def told_by_fill(fits: list[Fit]) -> list[Fit]:
    """The same fits, with one in place of those that fill hidden scores with one number or another: where several fit,
    the numbers do not tell which it was.
    """
    fills = [fit for fit in fits if fit.mistake.name.startswith(FILLED)]
    fills = [fit for fit in fills if fit.mistake.fix == fills[0].mistake.fix]
    if len(fills) < 2:
        return fits
    one = replace(fills[0], mistake=replace(fills[0].mistake, name=f"{FILLED} a finite number"))
    return [one if fit is fills[0] else fit for fit in fits if fit not in fills[1:]]


def beside_nan(mistake: Mistake) -> Mistake:
    """A mistake together with rows that are NaN where no key is seen."""
    nan = next(mutant for mutant in MUTANTS if mutant.name == EMPTY)

    def made(setup: Setup) -> Setup | None:
        other = mistake.made(setup)
        return None if other is None else replace(other, edits=(*other.edits, nan))

    return replace(mistake, name=f"{mistake.name}, and {nan.name}", fix=f"{mistake.fix}; {nan.fix}", made=made)


def tightness(rows: list[Row]) -> int:
    """How wide the widest bounds are, in steps of two bits: closer than that, two are equally tight."""
    width = max(row.width for row in rows)
    return round(float(np.log2(width)) / 2) if 0 < width < np.inf else -9999 if width == 0 else 9999


def same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> bool:
    """Whether all results of all calls are the same."""
    return bool(one and other) and all(
        a.keys() == b.keys() and all(np.array_equal(x, b[name], equal_nan=True) for name, x in a.items())
        for a, b in zip(one, other, strict=True)
    )
