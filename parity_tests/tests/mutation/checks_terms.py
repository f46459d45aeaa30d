"""What patterns, terms and weighings must do together: what a mask and a bias by pairs do, forward and backward."""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import fast_precision_of, precision
from parity_tests.judge import kernels
from parity_tests.tests.mutation.calls import Arrays, claim, refuses, same
from parity_tests.tests.witness import cotangent, ratio

B, H, WIDTH = 2, 4, 3
LIMITS: dict[str, dict[str, Any]] = {"all keys": {}, "causal": {"causal": True}, "window": {"window": (3, 1)}}
KINDS = (
    "chunks", "chunks and neighbours", "chosen chunk or window", "dilated", "documents", "not documents, or window",
    "prefix or causal", "global queries", "window or global keys", "documents and chunks",
    "near or chosen chunks or global", "own or chosen chunk, causal",
)  # fmt: skip
PATTERNS = (*LIMITS, *KINDS)
TERMS = ("none", "slopes", "table")
WEIGHINGS = ("softmax", "softcap", "sinks")


@dataclass(frozen=True)
class Case:
    """A pattern, a term and a weighing, each by its name."""

    pattern: str
    term: str
    weighing: str

    def __str__(self) -> str:
        return f"{self.pattern}, {self.term}, {self.weighing}"


CASES = tuple(Case(*names) for names in product(PATTERNS, TERMS, WEIGHINGS))


def buckets(relative_position: Any) -> Any:
    """Six buckets of the relative position, key minus query: the outermost hold all that are farther."""
    return relative_position.clip(-3, 2) + 3


@cache
def drawn(case: Case) -> tuple[Arrays, Any, np.ndarray, dict[str, Any]]:
    """The arrays of a call, its pattern, who sees whom by it, `b h t s`, and the options."""
    number = CASES.index(case)
    rng = np.random.default_rng(number)
    (t, s), g = ((11, 13), (13, 11), (13, 13))[rng.integers(3)], int(rng.choice([4, 2, 1]))
    arrays = {"q": rng.normal(size=(B, t, H, WIDTH)), "k": rng.normal(size=(B, s, g, WIDTH))}
    arrays["v"] = rng.normal(size=(B, s, g, WIDTH))
    if rng.random() < 0.3:
        arrays["bias"] = rng.normal(size=(H, 1, s))
    if case.weighing == "sinks":
        arrays["sinks"] = rng.normal(size=H)
    if case.term != "none":
        arrays[case.term] = rng.uniform(0.1, 0.9, H) if case.term == "slopes" else rng.normal(size=(6, H))
    options = dict(LIMITS.get(case.pattern, {}))
    if options or case.pattern == "all keys":
        limits: dict[str, Any] = {"causal": False, "window": None} | options
        pattern, pairs = None, kernels.visible(None, (B, H, t, s), **limits)
    else:
        pattern, pairs = kernels.drawn_pattern(rng, B, t, s, KINDS.index(case.pattern))
    if case.weighing == "softcap":
        options["softcap"] = 1.5
    return arrays, pattern, np.broadcast_to(pairs, (B, H, t, s)), options


def by_pairs(
    tree: str, arrays: Arrays, pairs: np.ndarray, apart: np.ndarray, softcap: float | None
) -> dict[str, ErrArray]:
    """What the textbook gives of a mask and of a bias by pairs, with bounds for a fast path.

    Args:
        arrays: of the call, with the `slopes`, `h`, or the `table`, `x h` or `x 1`, of its terms.
        pairs: who sees whom, `b h t s`.
        apart: the key's position minus the query's, `b 1 t s` or `1 1 t s`.
    """
    exact: dict[str, Any] = {name: ErrArray(x, 0.0) for name, x in arrays.items()}
    slopes, table, bias = (exact.pop(name, None) for name in ("slopes", "table", "bias"))
    far, shape, hot = abs(apart).astype(float), pairs.shape, np.eye(6)[buckets(apart)]
    with precision(fast_precision_of(tree, "float64")), np.errstate(all="ignore"):
        added: Any = ErrArray(np.zeros(shape), 0.0)
        if slopes is not None:
            added = added - slopes[:, None, None] * far
        if table is not None:
            added = added + table.swapaxes(0, 1)[:, buckets(apart)[:, 0]].swapaxes(0, 1)
        if bias is not None:
            added = added + bias
        options = {"scale": None, "softcap": softcap}
        dy = ErrArray(cotangent((*arrays["q"].shape[:-1], arrays["v"].shape[-1])), 0.0)
        want = kernels.by_numpy(exact | {"mask": pairs, "bias": added}, dy, options, "textbook")
        dpairs = want.pop("dbias")
        if bias is not None:
            axes = tuple(i for i, n in enumerate((1,) * (4 - len(bias.shape)) + tuple(bias.shape)) if n == 1)
            want["dbias"] = np.sum(dpairs, axis=axes).reshape(bias.shape)
        if slopes is not None:
            want["dslopes"] = -np.sum(dpairs * far, axis=(0, 2, 3))
        if table is not None:
            axes = (0, 2, 3) if table.shape[1] > 1 else (0, 1, 2, 3)
            want["dtable"] = np.sum(dpairs.reshape(*shape, 1) * hot, axis=axes).reshape(-1, 6).swapaxes(0, 1)
    return want


@cache
def expected(case: Case, tree: str) -> dict[str, ErrArray]:
    """What the textbook gives of a case, with bounds for a fast path."""
    arrays, _, pairs, options = drawn(case)
    t, s = pairs.shape[2:]
    apart = np.arange(s) - np.arange(t)[:, None] - (s - t)
    return by_pairs(tree, arrays, pairs, apart[None, None], options.get("softcap"))


def term_of(terms: Any, case: Case, x: Any) -> Any:
    """The term of a case, of a tree's own module `terms`; None for no term."""
    return None if x is None else terms.Slopes(x) if case.term == "slopes" else terms.Table(x, buckets)


def by_numpy(alias: str, case: Case, implementation: str = "fused") -> Arrays:
    """What NumPy gives, forward and backward."""
    package, (arrays, pattern, _, options) = import_module(alias), drawn(case)
    named: dict[str, Any] = {name: x for name, x in arrays.items() if name != case.term}
    named |= options | {"pattern": pattern, "implementation": implementation}
    named["terms"] = term_of(package.terms, case, arrays.get(case.term))
    (context, _), pull = package.value_and_vjp(package.attend, **named)
    grads = dict(pull(cotangent(context.shape)).inputs)
    grads |= grads.pop("terms", {})
    alone = package.attend(**named)[0]
    return {"context": context, "context alone": alone} | {f"d{name}": x for name, x in grads.items()}


def terms_added(alias: str) -> None:
    """On both paths a term is the bias by pairs of its numbers, forward and backward."""
    for number in (1, 2, 13, 23, 34, 61, 77, 113):
        case = CASES[number]
        for implementation in ("fused", "textbook"):
            want, got = expected(case, "numpy"), by_numpy(alias, case, implementation)
            claim({name.removesuffix(" alone") for name in got} == set(want), f"{case}: {sorted(got)}")
            for name, x in got.items():
                claim(ratio(x, want[name.removesuffix(" alone")]) <= 1, f"{case}, {implementation}: {name}")


def terms_from_places(alias: str) -> None:
    """Terms count from where the queries stand; 16 bits, no heads and one number for all heads; lists of terms."""
    package, rng = import_module(alias), np.random.default_rng(3)
    attend, terms, pull_of = package.attend, package.terms, package.value_and_vjp
    b, t, s = B, 5, 7
    q, k, v = rng.normal(size=(b, t, H, 3)), rng.normal(size=(b, s, 2, 3)), rng.normal(size=(b, s, 2, 5))
    slopes, table, bias = rng.uniform(0.1, 0.9, H), rng.normal(size=(6, 1)), rng.normal(size=(t, s))
    arrays = {"q": q, "k": k, "v": v, "bias": bias, "slopes": slopes, "table": table}
    both = [terms.Slopes(slopes), terms.Table(table, buckets)]
    for offset in (None, 0, 3, -2, np.int64(1), np.array(2), np.array([0, 4]), np.array([3, 1], np.uint8)):
        at = np.broadcast_to(s - t if offset is None else offset, b).astype(int)
        apart = np.arange(s) - (at[:, None, None, None] + np.arange(t)[:, None])
        want = by_pairs("numpy", arrays, np.ones((b, H, t, s), bool), apart, None)
        for implementation in ("textbook", "fused"):
            more: dict[str, Any] = {"offset": offset, "bias": bias, "implementation": implementation}
            (context, _), pull = pull_of(attend, q, k, v, terms=both, **more)
            grads = dict(pull(cotangent(context.shape)).inputs)
            of_slopes, of_table = grads.pop("terms")
            got = {"context": context} | {f"d{name}": x for name, x in (grads | of_slopes | of_table).items()}
            claim(set(got) == set(want), f"{offset}: {sorted(got)}")
            for name, x in got.items():
                claim(ratio(x, want[name]) <= 1, f"from {offset}, {implementation}: {name}")
    flat = attend(q[:, :, 0], k[:, :, 0], v[:, :, 0], terms=terms.Slopes(slopes[:1]), implementation="textbook")[0]
    alone = attend(q[:, :, :1], k[:, :, :1], v[:, :, :1], terms=terms.Slopes(slopes[:1]), implementation="textbook")[0]
    claim(same(flat, alone[:, :, 0]), "no heads")
    (y, _), pull = pull_of(attend, q[:, :, 0], k[:, :, 0], v[:, :, 0], terms=terms.Slopes(slopes[:1]))
    (_, _), whole = pull_of(attend, q[:, :, :1], k[:, :, :1], v[:, :, :1], terms=terms.Slopes(slopes[:1]))
    claim(same(pull(y).inputs["terms"]["slopes"], whole(y[:, :, None]).inputs["terms"]["slopes"]), "no heads, backward")
    claim(same(attend(q, k, v, terms=())[0], attend(q, k, v)[0]), "no terms")
    narrow = [x.astype(np.float16) for x in (q, k, v)]
    (y, _), pull = pull_of(attend, *narrow, terms=(terms.Slopes(slopes.astype(np.float32)),))
    (of_slopes,) = pull(y).inputs["terms"]
    claim(y.dtype == np.float16 and of_slopes["slopes"].dtype == np.float32, "dtypes")
    for shape in ((0, 3), (2, 0), (0, 0)):
        x = np.zeros((*shape, H, 3))
        (y, _), pull = pull_of(attend, x, x, x, terms=both)
        claim(y.shape == x.shape and not pull(y).inputs["terms"][1]["table"].any(), f"no positions {shape}")
    wrong: tuple[tuple[Any, type[Exception], str], ...] = (
        (slopes, TypeError, "attend: expected terms to be one or several of `terms`"),
        ([terms.Slopes(slopes), 3], TypeError, "got int; pass an array"),
        (terms.Slopes, TypeError, "got the class Slopes; pass an array"),
        (terms.Term(), NotImplementedError, "Term: expected a method bias(relative_position), got none; write it"),
        (
            terms.Slopes(slopes[:3]),
            ValueError,
            "Slopes: expected bias(relative_position) of shape (h, n) = (4, 11), or (1, 11)",
        ),
        (
            terms.Table(table[:, 0, None, None], buckets),
            ValueError,
            "Table: expected table of shape (x, h), got (6, 1, 1); reshape it",
        ),
        (
            terms.Table(np.repeat(table, 3, 1), buckets),
            ValueError,
            "Table: expected bias(relative_position) of shape (h, n)",
        ),
        (
            made(terms, lambda offset: offset[None]),
            TypeError,
            "Made: expected floats from bias(relative_position), got int64",
        ),
        (
            made(terms, lambda offset: None),
            ValueError,
            "Made: expected bias(relative_position) of shape (h, n) = (4, 11)",
        ),
        (made(terms, lambda offset: [0.0]), TypeError, "Made: expected the result of bias as a NumPy array, got list"),
    )
    for term, error, words in wrong:
        refuses(lambda term=term: attend(q, k, v, terms=term), error, words)
    fixed = made(terms, lambda offset: np.cos(offset)[None])
    (y, _), pull = pull_of(attend, q, k, v, terms=fixed)
    claim(pull(y).inputs["terms"] == {}, "a term without a backward pass")


def made(terms: Any, bias: Any) -> Any:
    """A term of a user's own."""
    return type("Made", (terms.Term,), {"bias": lambda self, offset: bias(offset)})()
