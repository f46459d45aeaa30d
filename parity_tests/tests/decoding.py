"""Decoding: what is stepped, the layer that steps, and laws, each said once.

Pytest asks them of the trees, the mutation check of copies with a mistake. The reference is the full pass of the NumPy
layer on error-carrying arrays: what comes out of the steps must lie within the bound of the same numbers at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np

from attn_np.contract import Config
from attn_np.ops import DTYPES
from parity_tests.bounds.error_array import ErrArray, widened
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.judge.candidates import numpy_layer
from parity_tests.judge.cases import Case, Drawn, call_sizes, draw, tokens_below
from parity_tests.judge.judging import compare, reference
from parity_tests.tests.inputs import Arrays, same
from parity_tests.tests.laws import refuses

T, BATCH, WIDTH = 7, 2, 11  # WIDTH: of values whose width the config leaves open
CHUNKS = ((7,), (1,) * 7, (4, 1, 2), (2, 3, 1, 1))
TREES = ("attn_np", "attn_torch", "attn_jax")


# What is stepped ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Work:
    """A layer with random weights and T positions of some of its inputs, for two sequences."""

    case: Case
    drawn: Drawn
    inputs: Arrays

    config = property(lambda self: self.case.config)
    x = property(lambda self: self.inputs["query"])
    more = property(lambda self: {name: x for name, x in self.inputs.items() if name != "query"})

    def part(self, start: int, stop: int) -> Arrays:
        """Some positions of the inputs."""
        return {name: x[:, start:stop] for name, x in self.inputs.items()}

    @cache  # noqa: B019 - works live as long as the process
    def tape(self, row: int | None = None, start: int = 0, stop: int = T) -> dict[str, Any]:
        """What the whole reference tapes for some positions of a sequence, or of both, each number with its bound."""
        layer = numpy_layer(self.case, self.drawn.params)
        layer.set_params({name: ErrArray(x, 0.0) for name, x in layer.params().items()})
        rows = slice(None) if row is None else slice(row, row + 1)
        given = {name: x[rows] for name, x in self.part(start, stop).items()}
        tape: dict[str, Any] = {}
        with precision(precision_of("float64")):
            layer(**{n: ErrArray(x, 0.0) if x.dtype.kind == "f" else x for n, x in given.items()}, tape=tape)
        return tape

    def full(self, row: int | None = None, start: int = 0, stop: int = T) -> ErrArray:
        """The outputs of these positions, all at once, with their bounds."""
        return self.tape(row, start, stop)["y"]

    def sizes(self) -> dict[str, int]:
        """Those that the config leaves open, as `init_cache` takes them."""
        arguments, known = self.config.arguments(), {}
        for name in ("query", "key", "value"):
            if name in arguments:
                given: Any = self.inputs.get(name, self.inputs.get(arguments[name].falls_back_to or "", self.x))
                known |= dict(zip(arguments[name].axes.split(), given.shape, strict=True))
        letters = {letter for axes in self.config.cache_axes().values() for letter in axes.split()} - {"b", "s"}
        return {letter: known[letter] for letter in sorted(letters) if letter not in self.config.sizes()}


@cache
def work(config: Config, names: tuple[str, ...] | None = None, dtype: str = "float64") -> Work:
    """Positions of inputs of these names; by default those that nothing stands in for, and all integers."""
    arguments, rng = config.arguments(), np.random.default_rng(5)
    case = Case(config.variant, "", "plain", dtype, given=config)
    sizes = call_sizes(config) | {"b": BATCH, "t": T, "s": T} | ({} if "v" in config.sizes() else {"v": WIDTH})
    inputs = {}
    for name in names or (*ways(config)[0], *integers(config)):
        shape = [sizes[letter] for letter in arguments[name].axes.split()]
        if name in inputs:
            continue
        if arguments[name].kind != "integers":
            inputs[name] = rng.normal(size=shape).astype(DTYPES[dtype])
        elif arguments[name].below or arguments[name].judge_below:
            inputs[name] = rng.integers(0, tokens_below(config, name), size=shape)
        else:
            inputs[name] = np.cumsum(rng.integers(0, 2, shape), axis=1)
    return Work(case, draw(case), inputs)


def integers(config: Config) -> list[str]:
    """The integers, such as positions, that a step may do without."""
    return [name for name, arg in config.arguments().items() if arg.kind == "integers" and arg.optional]


def ways(config: Config) -> tuple[tuple[str, ...], ...]:
    """Which inputs a step may get: those that it must, and each that may be another, where others can stand in."""
    arguments, sizes = config.arguments(), config.sizes()
    arrays = [name for name, arg in arguments.items() if arg.kind in ("array", "integers")]

    def fits(names: tuple[str, ...]) -> bool:
        """Whether the inputs that are not given have a stand-in: a value of the width of the keys has."""
        for name in arrays:
            source = arguments[name].falls_back_to
            if name not in names and source is not None:
                mine, theirs = (arguments[x].axes.split()[-1] for x in (name, source))
                if sizes.get(mine) != sizes.get(theirs):
                    return False
        return True

    needed = tuple(n for n in arrays if arguments[n].falls_back_to is None and not arguments[n].optional)
    found = dict.fromkeys((needed, *((*needed, n) for n in arrays if n not in needed), tuple(arrays)))
    return tuple(names for names in found if fits(names))


# The layer that steps -------------------------------------------------------------------------------------------------


@dataclass
class Decoder:
    """A layer in one of the trees, stepped with NumPy's arrays."""

    step: Callable[..., Any]
    init: Callable[..., Any]
    compiled: Callable[[], int] = lambda: 0

    def run(self, todo: Work, chunks: tuple[int, ...]) -> np.ndarray:
        cache, at, found = self.empty(todo), 0, []
        for size in chunks:
            y, cache = self.step(**todo.part(at, at + size), cache=cache)
            found.append(y)
            at += size
        return np.concatenate(found, axis=1)

    def empty(self, todo: Work, room: int = T, **options: Any) -> Any:
        """A cache of the work's dtype, or of another."""
        return self.init(BATCH, room, **{"dtype": todo.case.dtype, **todo.sizes(), **options})


def decoder(todo: Work, tree: str, copy: str | None = None, jit: bool | None = None) -> Decoder:
    """The work's layer in a tree or in a copy of NumPy's; by default Flax's steps are compiled, and no others."""
    if tree == "attn_np":
        layer = numpy_layer(todo.case, todo.drawn.params, copy or tree)
        return Decoder(layer.step, layer.init_cache)
    package = import_module(tree)
    layer = package.build(todo.case.variant, dtype=todo.case.dtype, **todo.config.as_dict())
    if tree == "attn_torch":
        import torch

        from attn_torch.ops import from_numpy as tensor
        from attn_torch.ops import to_numpy as array

        layer.set_params({name: tensor(x) for name, x in todo.drawn.params.items()})

        stepped = torch.compile(layer.step, backend="aot_eager") if jit else layer.step

        @torch.no_grad()
        def step(query: np.ndarray, cache: Any, **more: np.ndarray) -> Any:
            y, cache = stepped(tensor(query), cache, **{name: tensor(a) for name, a in more.items()})
            return array(y), cache

        return Decoder(step, layer.init_cache)
    import jax
    import jax.numpy as jnp
    from flax import nnx

    layer.set_params(todo.drawn.params)
    graph, state = nnx.split(layer)
    traces = []

    def call(state: Any, query: Any, cache: Any, more: Any) -> Any:
        traces.append(query.shape)
        return nnx.merge(graph, state).step(query, cache, **more)

    stepped = call if jit is False else jax.jit(call)

    def traced(query: np.ndarray, cache: Any, **more: np.ndarray) -> Any:
        y, cache = stepped(state, jnp.asarray(query), cache, {name: jnp.asarray(x) for name, x in more.items()})
        return np.asarray(y), cache

    return Decoder(traced, layer.init_cache, lambda: len(traces))


def wrong(got: np.ndarray, want: ErrArray) -> str:
    found = compare(np.asarray(got, np.float64), want)
    return "" if found["ratio"] <= 1 else str(found)


def array_of(tree: str) -> Callable[[np.ndarray], Any]:
    """NumPy's array as one of a tree's own."""
    if tree == "attn_np":
        return np.asarray
    if tree == "attn_jax":
        import jax.numpy as jnp

        return jnp.asarray
    return import_module("attn_torch.ops").from_numpy


def bare(x: Any) -> np.ndarray:
    return x.detach().numpy() if hasattr(x, "detach") else np.asarray(x)


def fields_of(cache: Any) -> dict[str, np.ndarray]:
    """Copies of all arrays of a cache."""
    fields = {name: getattr(cache, name) for name in ("positions", "length", "overflowed")}
    return {name: np.array(bare(x)) for name, x in (cache.arrays | fields).items()}


# Laws -----------------------------------------------------------------------------------------------------------------


def steps_are_the_full_pass(todo: Work, made: Decoder, chunkings: tuple[tuple[int, ...], ...] = CHUNKS) -> None:
    """Whatever the pieces, the outputs are those of the full pass; the cache says what it holds."""
    for chunks in chunkings:
        kept, at, found = made.empty(todo), 0, []
        for size in chunks:
            y, kept = made.step(**todo.part(at, at + size), cache=kept)
            found.append(y)
            at += size
            assert bare(kept.length).tolist() == [at] * BATCH and kept.max_length == T, "length"
            assert not bare(kept.overflowed).any(), "overflowed"
            slots_hold_what_they_name(todo, kept)
        found = wrong(np.concatenate(found, axis=1), todo.full())
        assert not found, f"in pieces of {chunks}: {found}"


def slots_hold_what_they_name(todo: Work, kept: Any) -> None:
    """Every slot holds the entry of the position that it names, and the last positions that may be seen are there."""
    want, axes, fields = todo.tape(), todo.config.cache_axes(), fields_of(kept)
    room = fields["positions"].shape[1] - 1
    assert room == min(todo.config.cache_slots() or room, kept.max_length), f"{room} slots"
    for row, places in enumerate(fields["positions"][:, :room].tolist()):
        length = int(fields["length"][row])
        there = {p: slot for slot, p in enumerate(places) if p >= 0}
        assert sorted(there) == list(range(length))[-room:], f"positions {places}"
        for name in kept.arrays:
            shape = want[name].shape if name in want else ()
            if "s" in axes[name].split() and shape[1:2] >= (length,) and shape[2:] == fields[name].shape[2:]:
                at, slots = list(there), list(there.values())
                found = wrong(fields[name][row, slots], want[name][row, at])
                assert not found, f"{name} of sequence {row}: {found}"


def without_room_a_step_is_refused(todo: Work, made: Decoder) -> None:
    """Before it writes; what has room goes on."""
    kept = made.empty(todo, 4)
    _, kept = made.step(**todo.part(0, 3), cache=kept, valid=np.array([[True] * 3, [True, False, False]]))
    before = fields_of(kept)
    words = f"{todo.config.variant}: expected at most 4 positions in the cache, got 5; call init_cache with a larger"
    refuses(partial(made.step, **todo.part(3, 5), cache=kept), ValueError, words)
    assert all(same(x, before[name]) for name, x in fields_of(kept).items()), "a refused step wrote"
    y, kept = made.step(**todo.part(3, 4), cache=kept)
    assert np.isfinite(y).all() and not bare(kept.overflowed).any(), "a step with room"


def an_overrun_is_nan_and_says_so(todo: Work, made: Decoder) -> None:
    """Where lengths are unknown: nothing that is kept changes, rows without room come out NaN, the others go on."""
    kept, real = made.empty(todo, 4), np.array([[True] * 3, [True, False, False]])
    _, kept = made.step(**todo.part(0, 3), cache=kept, valid=real)
    y, after = made.step(**todo.part(3, 6), cache=kept, valid=np.ones((BATCH, 3), bool))
    for nan in (np.isnan(y).all(-1), np.isnan(y).any(-1)):
        assert nan.tolist() == [[False, True, True], [False] * 3], "NaN where there was no room"
    fields = fields_of(after)
    assert fields["overflowed"].tolist() == [True, False] and fields["length"].tolist() == [4, 4], "the cache says so"
    found = wrong(y[:1, :1], todo.full(0, stop=4)[:, 3:])
    assert not found, f"the last position with room: {found}"
    places = fields["positions"]
    assert sorted(places[0, :-1].tolist()) == list(range(4))[1 - places.shape[1] :], "positions"
    assert places[0, -1] == -1, "the spare slot holds something"
    y, last = made.step(**todo.part(0, 3), cache=after, valid=np.zeros((BATCH, 3), bool))
    assert np.isfinite(y).all(), "padding needs no room"
    again = fields_of(last)
    assert again["overflowed"].tolist() == [True, False] and again["length"].tolist() == [4, 4], "an overrun stays one"
    held = {name: (slice(None), slice(-1))[: x.ndim] for name, x in fields.items()}  # all slots but the spare one
    assert all(same(again[name][held[name]], fields[name][held[name]]) for name in last.arrays), "padding is kept"
    for place in range(3):  # wherever among padding the position without room stands
        _, kept = made.step(**todo.part(0, 3), cache=made.empty(todo, 4), valid=np.ones((BATCH, 3), bool))
        _, kept = made.step(**todo.part(3, 6), cache=kept, valid=np.array([[True] + [False] * 2] * BATCH))
        _, kept = made.step(**todo.part(3, 6), cache=kept, valid=np.array([np.arange(3) == place, [False] * 3]))
        assert bare(kept.overflowed).tolist() == [True, False], f"no room for position {place}"


def dtypes_of(kept: Any) -> dict[str, str]:
    """Of what a cache holds, without tokens, which stay integers."""
    kinds = {name: str(x.dtype).rpartition(".")[2] for name, x in kept.arrays.items()}
    return {name: kind for name, kind in kinds.items() if "float" in kind}


def a_cache_keeps_its_dtypes(config: Config, decoder_of: Callable[[Work], Decoder]) -> None:
    """What is kept has the dtype asked for; by default the layer's, and states float32: nothing is lost."""
    names, entries = ways(config)[0], {name for name, axes in config.cache_axes().items() if "s" in axes.split()}
    for dtype in ("bfloat16", "float16"):
        todo, found = work(config, names, dtype), {}
        made = decoder_of(todo)
        for kind in (*([None] if config.params() else []), "float32", dtype):
            kept = made.empty(todo, dtype=kind)
            kinds = {name: kind or (dtype if name in entries else "float32") for name in dtypes_of(kept)}
            assert dtypes_of(kept) == kinds, "dtypes of an empty cache"
            assert not any(np.asarray(x != 0).any() for x in kept.arrays.values()), "an empty cache"
            shapes = {name: tuple(x.shape) for name, x in kept.arrays.items()}
            y, whole = made.step(**todo.inputs, cache=kept)
            _, begun = made.step(**todo.part(0, 1), cache=made.empty(todo, dtype=kind))
            _, padded = made.step(**todo.part(0, 2), cache=begun, valid=np.array([[False, True], [True, True]]))
            assert y.dtype.name == dtype, f"y is {y.dtype.name}"
            for kept in (whole, padded):
                assert dtypes_of(kept) == kinds, "dtypes of a cache"
                assert {name: tuple(x.shape) for name, x in kept.arrays.items()} == shapes, "shapes of a cache"
            found[kind] = y
        assert same(found.get(None, found[dtype]), found[dtype]), "the layer's dtype by default"
        drawn = replace(todo.drawn, inputs=todo.inputs)
        want = reference(todo.case, drawn, {}, precision_of(dtype), backward=False)[0]["y"]
        ratio = compare(widened(found["float32"]), want, dtype)["ratio"]
        assert ratio <= 1, f"entries kept in float32: error/bound {ratio:.3g}"
    todo, rounded = work(config, names), {}
    made = decoder_of(todo)
    for kind in ("float64", "float32"):
        _, kept = made.step(**todo.part(0, 3), cache=made.empty(todo, dtype=kind))
        rounded[kind], kept = made.step(**todo.part(3, T), cache=kept)
        assert set(dtypes_of(kept).values()) == {kind}, "dtype of a narrower cache"
        assert rounded[kind].dtype.name == "float64", "dtype of y"
    assert not same(*rounded.values()), "what is kept is not rounded"


def steps_that_cannot_be_right_are_refused(todo: Work, layer: Any, to: Callable[[np.ndarray], Any]) -> None:
    """Sizes, shapes, dtypes and other layers' caches, in the contract's words; a right step is taken, once."""
    who, sizes, x, rest = f"{todo.config.variant}: expected ", todo.sizes(), todo.x[:, :2], todo.part(0, 2)
    rest = {name: to(a) for name, a in rest.items() if name != "query"}
    real, name = np.ones(x.shape[:2], bool), next(iter(todo.config.cache_axes()))

    def stepped(query: np.ndarray, batch: int = BATCH, cache: Any = None, **more: np.ndarray) -> Callable[[], Any]:
        beside = {n: a[:, : query.shape[1]] for n, a in rest.items()}
        cache = layer.init_cache(batch, 3, **sizes) if cache is None else cache
        return partial(layer.step, to(query), cache, **beside, **{n: to(a) for n, a in more.items()})

    refuses(
        partial(layer.init_cache, 0, 3, **sizes), ValueError, f"{who}batch_size to be an integer of at least 1, got 0"
    )
    words = f"{who}max_length to be an integer of at least 1, got "
    refuses(partial(layer.init_cache, 2, 0, **sizes), ValueError, f"{words}0")
    refuses(partial(layer.init_cache, 2, 3.5, **sizes), ValueError, f"{words}3.5")
    refuses(partial(layer.init_cache, 2, 3, dtype="int8", **sizes), ValueError, f"{who}dtype to be one of")
    if sizes:
        refuses(partial(layer.init_cache, 2, 3), ValueError, f"{who}sizes of {', '.join(sizes)}, got none")
    refuses(stepped(x, batch=3), ValueError, f"{who}the cache's ")
    refuses(stepped(x[:, :0]), ValueError, f"{who}a query of at least one new position")
    refuses(stepped(x[:, :0, 0]), ValueError, f"{who}query of shape (b, t, ")
    refuses(stepped(x, valid=real.astype(int)), TypeError, f"{who}a boolean valid")
    refuses(stepped(x, valid=real[:1]), ValueError, f"{who}valid of shape (2, 2), got (1, 2)")
    kept = layer.init_cache(BATCH, 3, **sizes)
    refuses(stepped(x, cache=replace(kept, arrays={})), ValueError, f"{who}a cache of ")
    refuses(stepped(x, cache=dict(kept.arrays)), TypeError, f"{who}a cache of ")
    listed = replace(kept, arrays={n: [1] for n in kept.arrays})
    refuses(stepped(x, cache=listed), TypeError, f"{who}the cache's {name} as a ")
    y, after = stepped(x, cache=kept)()
    assert tuple(y.shape[:2]) == x.shape[:2], "what is right is taken"
