"""The fast paths of `attend` before the judge: whatever a call may ask for beside what else, forward and backward.

A fast path has no intermediates to show, so it is judged end to end: the context and every gradient, against the bound
that the textbook derives for the type. What a call may ask for are a few switches, and every combination of them is
tried. Sizes, the scale and how hard the numbers are on the arithmetic are drawn, and so is what kernels are written
wrong for: rows of the batch with numbers of other sizes, keys that some heads alone may see, axes of length 1, windows
that end where the lengths do, patterns of every kind, and NaN at every key and query that is hidden from all. In rounds
of an even seed the blocks are so small that these sizes fill several, the last in part; in the others they are the
path's own.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import combinations as choose
from itertools import product
from typing import Any

import numpy as np

from attn_np.contract import _patterns as patterns
from attn_np.contract._tape import BackwardTape
from attn_np.ops import DTYPES
from parity_tests.bounds.error_array import ErrArray, widened
from parity_tests.bounds.precision import fast_precision_of, precision, precision_of
from parity_tests.bounds.softmax import recompute
from parity_tests.judge.candidates import from_torch, to_torch
from parity_tests.judge.cases import Case, Drawn
from parity_tests.judge.frameworks import prepare
from parity_tests.judge.hard_inputs import STYLES
from parity_tests.judge.judging import compare, rank

HARD = tuple(style for style in STYLES if style != "steep")  # which is about weights, and there are none
LENGTHS = (5, 7, 11, 13, 17)
# Constants of each tree's kernels, by room and name: blocks that these sizes fill several times, one setting after the
# other. NumPy's hold one head or several, and the weights are powers of 2 or of e, by the processor: all are judged.
POWERS = [{"exp2_is_fast": lambda dtype, fast=fast: fast} for fast in (True, False)]
SMALL: dict[str, list[dict[str, Any]]] = {
    "numpy": [
        *(
            {"BLOCK_QUERIES": 4, "BLOCK_KEYS": 3, "EDGE_QUERIES": 2, "FEW_QUERIES": 0, "PATTERN_KEYS": 2} | powers
            for powers in POWERS
        ),
        {"BLOCK_QUERIES": 4, "BLOCK_KEYS": 50, "EDGE_QUERIES": 2, "MIN_BLOCKS": 1, "PATTERN_KEYS": 3},
    ],
    "torch": [{"SMALL_MAX_SCORES": 0, "blocks.CPU_QUERIES": 3, "blocks.CPU_SCORES": 70, "blocks.PATTERN_KEYS": 2}],
    "jax": [
        {
            "ONE_BLOCK_SCORES": 0,
            "ONE_BLOCK_HEAD_SCORES": 0,
            "SHORT_QUERIES": 0,
            "MAX_ROWS": 6,
            "WINDOW_BLOCK_QUERIES": 2,
            "MIN_KEYS": 3,
            "MIN_PRODUCT_MULTIPLICATIONS": 0,
            "PATTERN_BLOCK": 3,
            "QUERY_PATTERN_BLOCK": 3,
            "QUERY_MULTIPLE": 1,
        },
        {"SHORT_KEY_BLOCK": 3, "SHORT_UNCUT_BLOCKS": 0},
    ],
}
PATTERN_KINDS = 12  # of `drawn_pattern`
OWN: dict[str, list[dict[str, Any]]] = {"numpy": POWERS, "torch": [{}], "jax": [{}]}


@dataclass(frozen=True)
class Asked:
    """What a call asks for.

    Attributes:
        mask, bias: "" for none, "scores" for one of each head, "pairs" for `t s`; a mask also "keys" for padding.
        causal, softcap, sinks: whether they are given.
        window: "" for none, "before" and "around".
        heads: "own" key/value heads, some "shared", "one" for all, or "none": no axis for them.
    """

    mask: str
    bias: str
    causal: bool
    window: str
    softcap: bool
    sinks: bool
    heads: str

    def __str__(self) -> str:
        given = {name: x for name, x in vars(self).items() if x}
        return ", ".join(name if x is True else f"{name} {x}" for name, x in given.items())


@cache
def combinations() -> tuple[Asked, ...]:
    """All of them: sinks belong to heads."""
    kinds = (("", "scores", "keys", "pairs"), ("", "scores", "pairs"), (False, True), ("", "before", "around"))
    heads = ("own", "shared", "one", "none")
    every = (Asked(*given) for given in product(*kinds, (False, True), (False, True), heads))
    return tuple(asked for asked in every if not (asked.sinks and asked.heads == "none"))


@cache
def spread() -> tuple[int, ...]:
    """The numbers of a few dozen combinations in which every three switches meet with all of their values: each is the
    one that holds the most threes that none before had.
    """
    threes = [frozenset(choose(vars(asked).items(), 3)) for asked in combinations()]
    found, missing = [], set().union(*threes)
    while missing:
        found.append(max(range(len(threes)), key=lambda n: len(threes[n] & missing)))
        missing -= threes[found[-1]]
    return tuple(found)


@dataclass(frozen=True)
class Call:
    """One call of `attend`: its arrays in their type, the gradient of its context, and the arguments besides."""

    inputs: dict[str, np.ndarray]
    dy: np.ndarray
    options: dict[str, Any]
    style: str

    @property
    def floats(self) -> list[str]:
        return [name for name, x in self.inputs.items() if x.dtype != bool]

    @property
    def dtype(self) -> str:
        return self.dy.dtype.name


def drawn(number: int, seed: int, dtype: str) -> Call:
    """The call of a combination."""
    asked, rng = combinations()[number], np.random.default_rng([number, seed])
    short, long = sorted(int(n) for n in rng.choice(LENGTHS, 2, replace=False))
    t, s = ((short, long), (long, short), (long, long), (1, long))[rng.integers(4)]
    h, g = {"own": (3, 3), "shared": (6, int(rng.choice([2, 3]))), "one": (3, 1), "none": (1, 1)}[asked.heads]
    width = int(rng.choice([3, 5, 8]))
    v, b = width if rng.random() < 0.5 else 7, int(rng.choice([1, 2, 5]))
    style = HARD[rng.integers(len(HARD))]
    shapes = {"q": (b, t, h, width), "k": (b, s, g, width), "v": (b, s, g, v), "dy": (b, t, h, v)}
    wide = {"scores": (b, h, t, s), "pairs": (t, s), "keys": (b, 1, 1, s)}

    def narrow(kind: str) -> tuple[int, ...]:
        """One axis in three has length 1 and serves all."""
        return tuple(n if rng.random() < 2 / 3 else 1 for n in wide[kind])

    found: dict[str, Any] = {n: rng.normal(size=(*shape[:2], shape[2] * shape[3])) for n, shape in shapes.items()}
    if asked.bias:
        found["bias"] = rng.normal(size=narrow(asked.bias))
    if asked.sinks:
        found["sinks"] = rng.normal(size=h)
    if asked.mask:
        found["mask"] = rng.random(narrow(asked.mask)) < 0.7
    found = STYLES[style](rng, Case("dot_product", "", "", dtype), Drawn(found, {}, seed)).inputs
    found = {name: x.reshape(shapes.get(name, x.shape)) for name, x in found.items()}
    # What holds for one row and head does not hold for the others.
    if rng.random() < 0.5:
        found["k"][-1, :, -1] *= 10.0 if dtype == "float16" else 300.0
    if rng.random() < 0.3:
        found["v"][-1, :, -1] *= {"float16": 10.0, "float64": 1e15}.get(dtype, 1e28)
    if asked.bias and rng.random() < 0.5:  # hides as a mask does
        found["bias"][..., min(t // 2, found["bias"].shape[-2] - 1), : int(rng.choice([s // 2, s]))] = -np.inf
    if asked.mask:
        mask = found["mask"]
        mask[..., s // 2 if mask.shape[-1] > 1 else slice(0)] = False
        if mask.shape[-1] > 1 and rng.random() < 0.3:  # a row of the batch that has the first keys alone
            mask[-1, ..., max(1, s // 3) :] = False
        if mask.shape[-2] > 1:
            mask[..., t // 2, :] = False
        if mask.ndim == 4 and mask.shape[1] > 1:
            mask[:, 0, :, : s // 3] = False
    left, right = (int(max(0, n)) for n in rng.choice([0, 1, t - 2, t - 1, t, s - 2, s - 1, s, s // 2], 2))
    window = {"": None, "before": (left, None), "around": (left, right)}[asked.window]
    pattern, pairs = drawn_pattern(rng, b, t, s) if rng.random() < 0.5 else (None, True)
    if rng.random() < 0.5:
        seen = visible(found.get("mask"), (b, h, t, s), asked.causal, window) & pairs
        unseen = ~np.any(seen.reshape(b, g, h // g, t, s), axis=(2, 3)).swapaxes(1, 2)
        found["q"][~np.any(seen, axis=-1).swapaxes(1, 2)] = found["k"][unseen] = np.nan
        found["v"][unseen] = rng.choice([0.0, np.inf])
    if asked.heads == "none":
        at = {name: 2 if name in shapes else 1 for name, x in found.items() if x.ndim == 4}
        found = {name: np.squeeze(x, at[name]) if name in at else x for name, x in found.items()}
    if asked.bias and rng.random() < 0.5:  # alone beyond what exp can take, beside scores of any size
        found["bias"][..., -1, :] += {"float16": 200.0, "float64": 2000.0}.get(dtype, 500.0)
    options = {
        "causal": asked.causal,
        "window": window,
        "softcap": float(rng.choice([0.5, 2.0, 20.0])) if asked.softcap else None,
        "scale": (None, None, None, 0.375, -0.5, 0.0)[rng.integers(6)],
        "pattern": pattern,
    }
    kept = {name: x if x.dtype == bool else x.astype(DTYPES[dtype]) for name, x in found.items()}
    return Call(kept, kept.pop("dy"), options, style)


def drawn_pattern(
    rng: np.random.Generator, b: int, t: int, s: int, kind: int | None = None
) -> tuple[patterns.Pattern, np.ndarray]:
    """A pattern, one of `PATTERN_KINDS` kinds, and who sees whom by its definition, `b 1 t s`: no code of the trees."""
    n = int(rng.integers(1, 6))
    i, j = np.arange(t)[:, None] + (s - t), np.arange(s)
    documents = rng.integers(0, 3, (b, s + t))
    documents = np.sort(documents, axis=1) if rng.random() < 0.5 else documents  # packed, or in any order
    documents = documents << (33 if n % 2 else 0)  # numbers of more than 32 bits, or of fewer
    of_queries, of_keys = documents[:, s:], documents[:, :s]
    marked_queries, marked_keys = rng.random((b, t)) < 0.3, rng.random((b, s)) < 0.3
    prefix = rng.integers(0, s + 1, b)
    near, other_document = abs(i - j) <= n, of_queries[:, :, None] != of_keys[:, None]
    window, causal, chosen = patterns.Window(n, n), patterns.Causal(), patterns.ChosenChunk(n, of_queries)
    in_chosen = of_queries[:, :, None] == j // n
    found = [
        (patterns.Chunks(n), i // n == j // n),
        (patterns.Chunks(n, 2, 1), (j // n - i // n >= -2) & (j // n - i // n <= 1)),
        (chosen | window, near | in_chosen),
        (patterns.Dilated(n) & patterns.Window(2 * n, None), ((i - j) % n == 0) & (j >= i - 2 * n)),
        (patterns.Documents(of_queries, of_keys), ~other_document),
        (~patterns.Documents(of_queries, of_keys) | window, other_document | near),
        (patterns.Prefix(prefix) | causal, (j < prefix[:, None, None]) | (j <= i)),
        (patterns.GlobalQueries(marked_queries), marked_queries[:, :, None]),
        (
            (window | patterns.GlobalKeys(marked_keys)) & ~patterns.GlobalQueries(marked_queries),
            (near | marked_keys[:, None]) & ~marked_queries[:, :, None],
        ),
        (patterns.Documents(of_queries, of_keys) & patterns.Chunks(n), ~other_document & (i // n == j // n)),
        (
            patterns.Chunks(n, 1, 1)
            | chosen
            | patterns.GlobalKeys(marked_keys)
            | patterns.GlobalQueries(marked_queries),
            (abs(j // n - i // n) <= 1) | in_chosen | marked_keys[:, None] | marked_queries[:, :, None],
        ),
        ((patterns.Chunks(n) | chosen) & causal, ((i // n == j // n) | in_chosen) & (j <= i)),
    ]
    pattern, pairs = found[rng.integers(PATTERN_KINDS) if kind is None else kind]
    return pattern, np.broadcast_to(pairs, (b, t, s))[:, None]


def with_arrays(options: Mapping[str, Any], convert: Any) -> dict[str, Any]:
    """The options with the pattern's arrays as a framework's own."""
    pattern = options["pattern"]
    return {**options, "pattern": pattern and pattern.map(lambda axes, x: convert(x))}


def visible(
    mask: np.ndarray | None, shape: tuple[int, ...], causal: bool, window: tuple[int | None, int | None] | None
) -> np.ndarray:
    """Which keys every query sees, `b h t s`, from the words of the contract: no code of the trees."""
    t, s = shape[2:]
    left, right = window or (None, None)
    right = 0 if causal else right
    ahead = np.arange(s) - (np.arange(t)[:, None] + s - t)
    found = np.broadcast_to(True if mask is None else mask, shape)
    found = found if left is None else found & (ahead >= -left)
    return found if right is None else found & (ahead <= right)


def expected(call: Call, framework: str) -> dict[str, Any]:
    """What the textbook gives in float64, each number with the bound for a fast path in the call's type."""
    given = {n: ErrArray(widened(x), 0.0) if n in call.floats else x for n, x in call.inputs.items()}
    with precision(fast_precision_of(framework, call.dtype)), np.errstate(all="ignore"):
        return by_numpy(given, ErrArray(widened(call.dy), 0.0), call.options, "textbook")


# The trees ------------------------------------------------------------------------------------------------------------


def by_numpy(
    inputs: Mapping[str, Any], dy: Any, options: Mapping[str, Any], implementation: str, tree: str = "attn_np"
) -> dict[str, Any]:
    module, tape = import_module(f"{tree}.attention.attend"), BackwardTape()
    context, _ = module.attend(**inputs, **options, implementation=implementation, tape=tape)
    recompute(tape)
    backward = {name: options[name] for name in ("scale", "softcap")}
    heads = inputs["k"].shape[2] if len(inputs["k"].shape) == 4 else None
    dq, dk, dv, dbias = module.attend_vjp(tape, dy, **backward, kv_heads=heads)
    found = {"context": context, "dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "dsinks": tape.get("dsinks")}
    return {name: x for name, x in found.items() if x is not None}


def run_numpy(call: Call, tree: str = "attn_np") -> dict[str, np.ndarray]:
    """By hand: `attend_vjp` takes and gives the type that is computed in."""
    return by_numpy(call.inputs, call.dy.astype(precision_of(call.dtype).work), call.options, "fused", tree)


def run_torch(call: Call) -> dict[str, np.ndarray]:
    """Without gradients and with them, which go other ways."""
    import torch

    from attn_torch import attend

    arrays = {name: to_torch(x, "cpu") for name, x in call.inputs.items()}
    options = with_arrays(call.options, lambda x: to_torch(x, "cpu"))
    with torch.no_grad():
        alone = attend(**arrays, **options, implementation="fused")[0]
    leaves = [arrays[name].requires_grad_() for name in call.floats]
    context = attend(**arrays, **options, implementation="fused")[0]
    grads = torch.autograd.grad(context, leaves, to_torch(call.dy, "cpu"))
    found = {"context": context, "context alone": alone}
    found |= {f"d{name}": x for name, x in zip(call.floats, grads, strict=True)}
    return {name: from_torch(x) for name, x in found.items()}


def run_jax(call: Call) -> dict[str, np.ndarray]:
    """Without gradients and with them, compiled together."""
    import jax

    from attn_jax import attend

    floats = {name: call.inputs[name] for name in call.floats}
    rest = {name: x for name, x in call.inputs.items() if name not in floats}

    def context(floats: Any, rest: Any) -> Any:
        options = with_arrays(call.options, jax.numpy.asarray)
        return attend(**floats, **rest, **options, implementation="fused")[0]

    @jax.jit
    def everything(floats: Any, rest: Any, dy: Any) -> Any:
        y, pull = jax.vjp(lambda x: context(x, rest), floats)
        return {"context": y, "context alone": context(floats, rest)}, pull(dy)[0]

    found, grads = everything(*jax.tree.map(jax.numpy.asarray, (floats, rest, call.dy)))
    return {name: np.asarray(x) for name, x in (found | {f"d{n}": x for n, x in grads.items()}).items()}


RUN = {"numpy": run_numpy, "torch": run_torch, "jax": run_jax}
TREES = {"numpy": "attn_np", "torch": "attn_torch", "jax": "attn_jax"}


@contextmanager
def blocks(tree: str, setting: Mapping[str, Any]) -> Iterator[None]:
    """A tree's kernels with other constants."""
    places = [name.rpartition(".") for name in setting]
    rooms = [vars(import_module(f"{tree}.kernels.{room or 'flash'}")) for room, _, _ in places]
    before = [room[name] for room, (_, _, name) in zip(rooms, places, strict=True)]

    def put(values: Iterable[Any]) -> None:
        for room, (_, _, name), value in zip(rooms, places, values, strict=True):
            room[name] = value

    put(setting.values())
    try:
        yield
    finally:
        put(before)


# Verdicts -------------------------------------------------------------------------------------------------------------


@dataclass
class Figures:
    """What was judged of one framework in one type; `loose` numbers have a bound that says little."""

    calls: int = 0
    arrays: int = 0
    numbers: int = 0
    loose: int = 0
    worst: float = 0.0

    def add(self, other: "Figures") -> None:
        for name in ("calls", "arrays", "numbers", "loose"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.worst = max(self.worst, other.worst)


@dataclass
class Judged:
    figures: dict[tuple[str, str], Figures] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)

    def add(self, other: "Judged") -> None:
        for key, found in other.figures.items():
            self.figures.setdefault(key, Figures()).add(found)
        self.alarms += other.alarms


def judge(found: Mapping[str, np.ndarray], want: Mapping[str, Any], call: Call, hand: bool = False) -> dict[str, Any]:
    """The verdict on every array, as `compare` gives it; gradients by `hand` come in the type that is computed in."""
    verdicts = {}
    for name, x in found.items():
        out = precision_of(call.dtype).work if hand and name.startswith("d") else call.dtype
        verdicts[name] = compare(widened(x), want[name.removesuffix(" alone")], out)
        if x.dtype.name != out:
            verdicts[name] |= {"ratio": np.inf, "note": f"dtype {x.dtype.name}, expected {out}"}
    for name in set(want) - set(found):
        verdicts[name] = {"ratio": np.inf, "note": "missing"}
    return verdicts


def types(framework: str, dtypes: tuple[str, ...], number: int, seed: int) -> tuple[str, ...]:
    """In which types a combination is called: all of them; in JAX, which compiles every call, in one that is drawn."""
    rng = np.random.default_rng([number, seed, len(dtypes)])
    return dtypes if framework != "jax" else (dtypes[rng.integers(len(dtypes))],)


def work(task: tuple[tuple[str, ...], tuple[str, ...], int, tuple[int, ...]]) -> Judged:
    """Judge some combinations, in a process of its own."""
    frameworks, dtypes, seed, numbers = task
    prepare(frameworks)
    result = Judged()
    for number in numbers:
        for dtype in dtypes:
            asking = [name for name in frameworks if dtype in types(name, dtypes, number, seed)]
            if not asking:
                continue
            call = drawn(number, seed, dtype)
            settings = SMALL if seed % 2 == 0 else OWN
            bounds = {name: expected(call, name) for name in asking}
            for framework, setting in [(name, setting) for name in asking for setting in settings[name]]:
                want = bounds[framework]
                with blocks(TREES[framework], setting):
                    verdicts = judge(RUN[framework](call), want, call, framework == "numpy")
                figures = Figures(1, len(verdicts), worst=max(rank(x["ratio"]) for x in verdicts.values()))
                figures.numbers = sum(x.get("elements", 0) for x in verdicts.values())
                figures.loose = sum(x.get("vacuous", 0) for x in verdicts.values())
                result.add(Judged({(framework, dtype): figures}))
                result.alarms += [
                    f"{framework}, {dtype}, seed {seed}, combination {number} ({combinations()[number]}), "
                    f"inputs {call.style}, {call.options}, blocks {list(setting.items())}: {name}: {verdict}"
                    for name, verdict in verdicts.items()
                    if not verdict["ratio"] <= 1
                ]
    return result
