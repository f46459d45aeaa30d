"""What a difference looks like, where no known mistake explains it: permuted, scaled, or only in some places."""

from collections.abc import Iterator
from itertools import permutations
from math import sqrt

import numpy as np

from parity_tests.bounds.error_array import ErrArray, nearest
from parity_tests.bounds.precision import UNIT
from parity_tests.judge.cases import Case

# Axes of the names that tapes share; without heads there is no h.
AXES = {
    **dict.fromkeys(("scores", "capped", "biased", "masked", "probs", "kept", "allowed", "bias", "keep"), "bhts"),
    **dict.fromkeys(("q", "q_proj", "q_norm", "q_rot"), "bthk"),
    **dict.fromkeys(("k", "k_proj", "k_norm", "k_rot"), "bshk"),
    "v": "bshv",
    **dict.fromkeys(("x", "y", "query", "zeroed_query"), "btd"),
    **dict.fromkeys(("key", "zeroed_key"), "bsi"),
    **dict.fromkeys(("value", "zeroed_value"), "bsj"),
    **dict.fromkeys(("h", "r", "z", "n"), "bte"),
    "context": "bthv",
    "features": "btse",
    "out1": "bhts",
}
WORDS = {
    "b": "batch row",
    "h": "head",
    "t": "query position",
    "s": "key position",
    "d": "channel",
    "k": "channel",
    "v": "channel",
    "e": "unit",
}
ONLY_EMPTY = "only queries that see no key differ"
MOST = 6  # axes up to which permutations are tried, and places that are listed


# Keys before the heads of a group share them; `k` and `v` are those that meet the queries.
UNSHARED = ("k_proj", "k_norm", "k_rot")


def axes_of(case: Case, name: str, ndim: int) -> str:
    """Letters of an array's axes, "b h t s"; "" where they are not known."""
    last = name.rpartition(".")[2]
    arguments, params = case.config.arguments(), case.config.params()
    if name in arguments and arguments[name].kind in ("array", "integers"):
        found = arguments[name].axes.replace(" ", "")
    elif name in params or (last[1:] if last.startswith("d") else "") in params:
        found = (params.get(name) or params[last[1:]]).axes.replace(" ", "")
    else:
        stage = last if last in AXES else last.removeprefix("d")
        found = AXES.get(stage, "")
        if stage in UNSHARED and "g" in case.config.sizes():
            found = found.replace("h", "g")
    for letters in (found, found.replace("h", "")):
        if len(letters) == ndim:
            return " ".join(letters)
    return ""


def patterns(got: np.ndarray, want: ErrArray, axes: str = "", allowed: np.ndarray | None = None) -> list[str]:
    """What the difference looks like, strongest first.

    Args:
        got: the candidate's array.
        want: the reference's, with bounds.
        axes: letters of the axes, as `axes_of` gives them.
        allowed: who may see whom, broadcastable to an array with the axes `b h t s` or `b t s`.
    """
    letters = axes.split() or [str(i) for i in range(got.ndim)]
    if got.shape != want.shape:
        return list(other_shape(got, want, axes.split() or [str(i) for i in range(want.ndim)]))
    if got.size == 0 or not np.issubdtype(got.dtype, np.floating):
        return []
    bad = beyond(got, want)
    if not bad.any():
        return []
    found = list(strange(got, want))
    if np.isfinite(got).all() and np.isfinite(want.v).all():
        ways = (list(way(got, want, letters)) for way in (moved, scaled, lower_precision))
        found += next((lines for lines in ways if lines), [])
    return found + list(places(bad, letters, allowed))


def beyond(got: np.ndarray, want: ErrArray) -> np.ndarray:
    """Where a number is further away than its bound, or one of the two is no number."""
    with np.errstate(invalid="ignore"):
        return ~((np.abs(got - want.v) <= want.b) | (got == want.v) | (np.isnan(got) & np.isnan(want.v)))


def same(got: np.ndarray, v: np.ndarray, b: np.ndarray) -> bool:
    return got.shape == v.shape and not beyond(got, ErrArray(v, b)).any()


def axis_order(got: np.ndarray, want: ErrArray) -> tuple[int, ...] | None:
    """The order of the expected array's axes that gives the candidate's array; None where none but its own does."""
    if got.ndim != want.ndim or want.ndim > MOST:
        return None
    for order in permutations(range(want.ndim)):
        if order != tuple(range(want.ndim)) and same(got, want.v.transpose(order), want.b.transpose(order)):
            return order
    return None


def shape_order(got: tuple[int, ...], want: tuple[int, ...]) -> tuple[int, ...] | None:
    """The one order of the expected axes that gives a candidate's shape; None where none does, or several do."""
    if got == want or sorted(got) != sorted(want) or len(want) > MOST:
        return None
    orders = [order for order in permutations(range(len(want))) if tuple(want[i] for i in order) == got]
    return orders[0] if len(orders) == 1 else None


def other_shape(got: np.ndarray, want: ErrArray, letters: list[str]) -> Iterator[str]:
    order = axis_order(got, want)
    if order is not None:
        yield f"the same numbers with the axes in the order {' '.join(letters[i] for i in order)}"
    elif got.size == want.size:
        flat = same(got.reshape(-1), want.v.reshape(-1), want.b.reshape(-1))
        order = shape_order(got.shape, want.shape)
        words = f"the axes in the order {' '.join(letters[i] for i in order)}, and other numbers" if order else ""
        yield "the same numbers in another shape" if flat else words or "another shape, and other numbers"
    else:
        yield f"shape {got.shape} where {want.shape} is expected"


def strange(got: np.ndarray, want: ErrArray) -> Iterator[str]:
    for name, place in (("NaN", np.isnan(got)), ("infinity", np.isinf(got))):
        new = place & np.isfinite(want.v)
        if new.any():
            zero = ", all where 0 is expected" if not want.v[new].any() else ""
            yield f"{name} in {int(new.sum())} of {got.size} numbers{zero}"


def moved(got: np.ndarray, want: ErrArray, letters: list[str]) -> Iterator[str]:
    """Axes exchanged, an axis reversed, shifted by one place, or its slices in another order."""
    order = axis_order(got, want)
    if order is not None:
        yield f"the same numbers with the axes in the order {' '.join(letters[i] for i in order)}"
        return
    for axis, letter in enumerate(letters):
        if got.shape[axis] < 2:
            continue
        if same(got, np.flip(want.v, axis), np.flip(want.b, axis)):
            yield f"reversed along {letter}"
            return
        for by in (1, -1):
            if same(got, np.roll(want.v, by, axis), np.roll(want.b, by, axis)):
                yield f"shifted by {by} along {letter}"
                return
        order = [match(x, want, axis) for x in np.moveaxis(got, axis, 0)]
        if None not in order and order != list(range(len(order))):
            listed = ", ".join(map(str, order[: 2 * MOST]))
            yield f"the slices along {letter} are those of {listed}{', ...' if len(order) > 2 * MOST else ''}"
            return


def match(x: np.ndarray, want: ErrArray, axis: int) -> int | None:
    """Which slice of the expected array this is."""
    pairs = zip(np.moveaxis(want.v, axis, 0), np.moveaxis(want.b, axis, 0), strict=True)
    return next((i for i, (v, b) in enumerate(pairs) if same(x, v, b)), None)


def scaled(got: np.ndarray, want: ErrArray, letters: list[str]) -> Iterator[str]:
    """A constant factor, an offset, or a factor or an offset for each row."""
    big = np.abs(want.v) == np.max(np.abs(want.v))
    factor = float(got[big][0] / want.v[big][0]) if want.v.any() else 0.0
    if not got.any():
        yield "all 0"
    elif same(got, want.v, 4 * want.b):
        return  # so near that any factor or offset of about a rounding fits
    elif same(got, factor * want.v, (abs(factor) + 1) * want.b * 2):
        yield f"multiplied by {factor:.6g}{known_as(factor, dict(zip(letters, got.shape, strict=True)))}"
    elif got.shape[-1] > 1:
        gap = got - want.v
        if same(gap, np.broadcast_to(gap[..., :1], gap.shape), 2 * (want.b + want.b[..., :1])):
            alike = same(gap, np.broadcast_to(gap.flat[0], gap.shape), 2 * (want.b + want.b.flat[0]))
            yield f"too large by {gap.flat[0]:.6g} everywhere" if alike else f"an offset for each row of {letters[-1]}"


def known_as(factor: float, sizes: dict[str, int]) -> str:
    """A factor in terms of the array's sizes."""
    for letter, n in sizes.items():
        for value, name in ((n, "{}"), (1 / n, "1/{}"), (sqrt(n), "sqrt({})"), (1 / sqrt(n), "1/sqrt({})")):
            if n > 1 and letter != "b" and abs(factor - value) <= 1024 * UNIT["float32"] * value:
                return f", which is {name.format(f'the size of {letter}, {n}')}"
    return ", the opposite sign" if factor == -1 else ""


def lower_precision(got: np.ndarray, want: ErrArray, letters: list[str]) -> Iterator[str]:
    """Numbers that all end where another type's do, a rounding away from what is expected."""
    for name in ("bfloat16", "float16", "float32"):
        near = np.abs(got - want.v) <= 4 * UNIT[name] * np.max(np.abs(want.v)) + want.b
        if near.all() and np.array_equal(nearest(got, name), got) and not np.array_equal(nearest(want.v, name), want.v):
            yield f"as if rounded to {name}: no number has more digits"
            return


def places(bad: np.ndarray, letters: list[str], allowed: np.ndarray | None) -> Iterator[str]:
    """Where it differs, if not everywhere."""
    if allowed is not None:
        yield from masked_places(bad, letters, allowed)
    for axis, letter in enumerate(letters):
        n = bad.shape[axis]
        hit = np.flatnonzero(bad.any(axis=tuple(i for i in range(bad.ndim) if i != axis)))
        word = WORDS.get(letter, f"index of axis {letter}")
        if n > 1 and len(hit) == 1:
            yield f"only {word} {hit[0]}"
        elif n > 2 and 0 < len(hit) < n:
            consecutive = hit[-1] - hit[0] + 1 == len(hit)
            listed = f"{hit[0]} to {hit[-1]}" if consecutive else ", ".join(map(str, hit[:MOST]))
            more = "" if consecutive or len(hit) <= MOST else ", ..."
            yield f"only {word}s {listed}{more} of {n}"
    yield f"{int(bad.sum())} of {bad.size} numbers differ"


def masked_places(bad: np.ndarray, letters: list[str], allowed: np.ndarray) -> Iterator[str]:
    """Whether it differs only at hidden keys, or only for queries that see none."""
    if letters[-2:] == ["t", "s"] and allowed.ndim <= bad.ndim:
        hidden = ~np.broadcast_to(allowed, bad.shape)
        if hidden.any() and not hidden.all():
            if not (bad & ~hidden).any():
                yield "only hidden keys differ"
            elif not (bad & hidden).any():
                yield "hidden keys agree, visible ones differ"
    if "t" in letters and allowed.ndim >= 2:
        empty = ~allowed.any(axis=-1)  # ... t
        rows = np.moveaxis(bad, letters.index("t"), 1)
        rows = rows.reshape(*rows.shape[:2], -1).any(axis=-1)  # b t
        empty = empty.reshape(-1, *empty.shape[-2:]).all(axis=tuple(range(empty.ndim - 2))) if empty.ndim > 2 else empty
        if empty.shape == rows.shape and empty.any() and not (rows & ~empty).any():
            yield ONLY_EMPTY
