"""What is judged: for every variant and example, a few calls with random inputs, weights and cotangents.

Sizes are prime and differ from those of the config, keys and queries have different lengths, masks hide whole rows and
whole keys: with equal sizes, T = 1 and an all-ones cotangent most mistakes cannot be seen.
"""

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config
from attn_np.ops import DTYPES

PRIMES = (5, 7, 11, 13, 17, 19, 23, 29)
CALLS = ("plain", "full", "shared")
ALL_CALLS = (*CALLS, "packed")


@dataclass(frozen=True)
class Case:
    """One judged call: a variant's example, which arguments are given, the dtype and the seed of everything random.

    Calls: "plain" gives what must be given; "full" gives every argument, with t != s, a mask that hides whole rows and
    whole keys, a bias and a keep-mask, but documents that are packed into a sequence with a state: these and all others
    are in "packed"; "shared" gives a key that serves as value too and a mask for all heads. "self", which is for
    implementations that are not ours, gives the query with mask, bias and keep-mask.
    """

    variant: str
    example: str
    call: str
    dtype: str
    seed: int = 0
    given: Config | None = None  # the config itself, for a layer that is no example

    @property
    def config(self) -> Config:
        return self.given or contract.examples(self.variant)[self.example]

    @property
    def name(self) -> str:
        return f"{self.variant}/{self.example}/{self.call}/{self.dtype}"

    def at(self, dtype: str) -> "Case":
        return replace(self, dtype=dtype)


@dataclass(frozen=True)
class Drawn:
    """The inputs and weights of a case, in its dtype, and the gradients that its outputs get.

    Attributes:
        inputs, params: by name.
        seed: draws the gradients of the outputs.
        pulled: those gradients by the output's name, where they are given instead.
    """

    inputs: dict[str, np.ndarray]
    params: dict[str, np.ndarray]
    seed: int
    pulled: Mapping[str, np.ndarray] = field(default_factory=dict)

    def cotangent(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        return np.random.default_rng([self.seed, 3]).normal(size=shape).astype(DTYPES[dtype])


def call_sizes(config: Config) -> dict[str, int]:
    """Sizes of the axes that the config leaves open: b, t, s and any other, distinct primes that the config lacks."""
    fixed = config.sizes()
    free = iter(p for p in PRIMES if p not in fixed.values())
    sizes = {"b": 2, **fixed}
    for arg in config.arguments().values():
        for letter in arg.axes.split():
            if letter not in sizes:
                sizes[letter] = next(free)
    return sizes


def tokens_below(config: Config, argument: str) -> int:
    """What the numbers of an argument that holds tokens stay under, or are drawn under."""
    arg = config.arguments()[argument]
    return arg.below or arg.judge_below or call_sizes(config).get("u", 2)


def given(config: Config, call: str) -> tuple[str, ...]:
    """Names of the arguments that a call gives."""
    arguments, sizes = config.arguments(), config.sizes()

    def replaceable(name: str) -> bool:
        """Whether another input can stand in: its last axis has the same size, or may have."""
        arg = arguments[name]
        if arg.falls_back_to is None:
            return arg.optional
        want, have = arg.axes.split()[-1], arguments[arg.falls_back_to].axes.split()[-1]
        return want not in sizes or have not in sizes or sizes[want] == sizes[have]

    if call == "packed":
        return tuple(arguments)
    if call == "full":
        return tuple(n for n, arg in arguments.items() if not arg.packed)
    if call == "self":
        return tuple(n for n, arg in arguments.items() if not (replaceable(n) and (arg.kind == "array" or arg.packed)))
    left_out = {name for name in arguments if replaceable(name)}
    if call == "shared":
        left_out -= {"key", "mask"}
    return tuple(name for name in arguments if name not in left_out)


# Share of a boolean argument that is True where it is drawn by chance, by its kind: marks set few positions apart.
TRUE = {"mask": 0.75, "keep": 0.75, "marks": 0.25}


def draw(
    case: Case,
    only: Collection[str] | None = None,
    also: Collection[str] = (),
    lengths: Mapping[str, int] | None = None,
) -> Drawn:
    """Everything random of a case, rounded to its dtype: what every framework and the reference get.

    `also` names arguments that are given in every call; `only` leaves out all but those it names. `lengths` are sizes
    of axes that the config leaves open, where they are not to be those of `call_sizes`.
    """
    config, kind = case.config, DTYPES[case.dtype]
    seed = zlib.crc32(f"{case.variant}/{case.example}/{case.call}".encode()) + 1_000_003 * case.seed
    rng = np.random.default_rng([seed, 1])
    arguments, names = config.arguments(), given(config, case.call)
    sizes = call_sizes(config) | dict(lengths or {}) | config.sizes()
    names = tuple(n for n in arguments if (n in names or n in also) and (only is None or n in only))
    for name, arg in arguments.items():  # an input that stands in for another gives it its length
        if name not in names and arg.falls_back_to is not None:
            source = arguments[arg.falls_back_to].axes.split()
            sizes |= {mine: sizes[its] for mine, its in zip(arg.axes.split(), source, strict=True) if mine != its}
    inputs = {}
    for name in names:
        arg = arguments[name]
        letters = arg.axes.split()
        shape = tuple(sizes[letter] for letter in letters)
        if case.call == "shared" and arg.kind == "mask" and len(shape) == 4:
            shape = (shape[0], 1, *shape[2:])
        if arg.kind in ("array", "bias"):
            inputs[name] = rng.normal(size=shape).astype(kind)
        elif arg.kind == "integers":
            inputs[name] = rng.integers(0, tokens_below(config, name), size=shape)
        elif arg.kind == "keep":
            inputs[name] = rng.random(shape) >= getattr(config, "dropout", 0.0)
        elif arg.kind == "marks":
            inputs[name] = rng.random(shape) < TRUE["marks"]
        else:
            inputs[name] = draw_mask(rng, letters, shape)
    shapes, fans = config.shapes(), config.fans()
    params = {n: (rng.normal(size=shape) * 1.5 * fans[n] ** -0.5).astype(kind) for n, shape in shapes.items()}
    return Drawn(inputs, params, seed)


def draw_mask(rng: np.random.Generator, letters: list[str], shape: tuple[int, ...]) -> np.ndarray:
    """About two thirds allowed; one query of the first row sees nothing, one key of the last row is seen by nobody."""
    mask = rng.random(shape) < 0.65
    if len(letters) > 2 and mask.size:  # b ... queries keys: self-attention names both axes t
        queries, keys = len(shape) - 2, len(shape) - 1
        for row, axis in ((0, queries), (-1, keys)):
            index: list[Any] = [slice(None)] * len(shape)
            index[letters.index("b")], index[axis] = row, shape[axis] // 2
            mask[tuple(index)] = False
    return mask


def seeing(case: Case, name: str, x: np.ndarray) -> np.ndarray:
    """A mask in which every query sees a key, its own place or the last one, and is kept from another.

    Where it is the same for all queries, a hidden key stands between two visible ones: a window shows one of them.
    """
    if case.config.arguments()[name].kind != "mask" or x.ndim < 3:
        return x
    t, s = x.shape[-2:]
    if t == 1:
        places = np.arange(s)
        return (x | (places % 2 == 0) | (places == s - 1)) & (places != 1)
    own = np.minimum(np.arange(t) + max(s - t, 0), s - 1)[:, None]
    return (x | (np.arange(s) == own)) & (np.arange(s) != (own + s - 1) % s)


def cases(
    variants: Iterable[str] | None = None,
    dtypes: Iterable[str] = ("float64", "float32", "bfloat16", "float16"),
    seed: int = 0,
) -> Iterator[Case]:
    """Every case: each example with each call that differs from the ones before it. The full call comes first, as some
    candidates take no other: where all arguments must be given, it is the only one.
    """
    for variant in variants or contract.variants():
        for example, config in contract.examples(variant).items():
            seen = set()
            for call in ("full", *ALL_CALLS):
                key = given(config, call)
                if key in seen:
                    continue
                seen.add(key)
                for dtype in dtypes:
                    yield Case(variant, example, call, dtype, seed)
