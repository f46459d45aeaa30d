"""Caches as a server keeps them: rows begin anew, rows go on several times, guesses are taken back.

The reference is the full pass of each sequence by itself, with its bounds, as in `test_decoding`.
"""

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import nnx

from attn_np import contract
from parity_tests.tests.contract.test_decoding import work
from parity_tests.tests.decoding import TREES, Decoder, Work, decoder, fields_of
from parity_tests.tests.inputs import TREES as INPUTS
from parity_tests.tests.witness import ratio

# In JAX, which compiles each step, by default one of each kind: keys, a latent, keys in a ring, states and windows.
IN_JAX = ("mha", "mla", "linear", "gated_delta")
DECODERS = [
    pytest.param(
        variant,
        next(name for name, config in contract.examples(variant).items() if config.cache_axes()),
        tree,
        marks=pytest.mark.left_out if tree == "attn_jax" and variant not in IN_JAX else (),
    )
    for variant in contract.variants()
    if any(config.cache_axes() for config in contract.examples(variant).values())
    for tree in TREES
]
NAMES = {"attn_np": "numpy", "attn_torch": "torch", "attn_jax": "jax"}


def step(todo: Work, one: Decoder, cache: Any, *parts: tuple[int, int, int]) -> tuple[np.ndarray, Any]:
    """A step of some positions of some sequences: of each its row and the first and last position."""

    def cut(x: np.ndarray) -> np.ndarray:
        return np.stack([x[row, start:stop] for row, start, stop in parts])

    return one.step(**{name: cut(x) for name, x in todo.inputs.items()}, cache=cache)


def begun(todo: Work, one: Decoder) -> Any:
    """A cache of three positions of each sequence."""
    cache = one.empty(todo)
    return step(todo, one, cache, (0, 0, 3), (1, 0, 3))[1]


def goes_on(todo: Work, y: np.ndarray, row: int, start: int, stop: int, first: int = 0) -> None:
    """Whether outputs are those of positions of a sequence that began with `first`."""
    want = todo.full(row, first, stop)[:, start - first :]
    assert ratio(y[None], want) <= 1


@pytest.mark.parametrize(("variant", "example", "tree"), DECODERS)
def test_a_row_begins_anew(variant: str, example: str, tree: str) -> None:
    """After a reset a row gives what a new cache gives, and the others go on; so it is where every row is reset."""
    todo = work(variant, example)
    one = decoder(todo, tree)
    y, cache = step(todo, one, begun(todo, one).reset([1]), (0, 3, 5), (1, 3, 5))
    goes_on(todo, y[0], 0, 3, 5)
    goes_on(todo, y[1], 1, 3, 5, first=3)
    y, _ = step(todo, one, cache.reset([1, 0]), (0, 1, 3), (1, 2, 4))
    goes_on(todo, y[0], 0, 1, 3, first=1)
    goes_on(todo, y[1], 1, 2, 4, first=2)


@pytest.mark.parametrize(("variant", "example", "tree"), DECODERS)
def test_rows_go_on_several_times(variant: str, example: str, tree: str) -> None:
    """Beams: the selected rows go on, and the cache that they come from as well."""
    todo = work(variant, example)
    one = decoder(todo, tree)
    cache = begun(todo, one)
    before = fields_of(cache)
    y, _ = step(todo, one, cache.select([1, 0, 1]), (1, 3, 5), (0, 3, 5), (1, 3, 5))
    for part, row in zip(y, (1, 0, 1), strict=True):
        goes_on(todo, part, row, 3, 5)
    assert all(np.array_equal(x, before[name]) for name, x in fields_of(cache).items())


@pytest.mark.parametrize(("variant", "example", "tree"), DECODERS)
def test_guesses_are_taken_back(variant: str, example: str, tree: str) -> None:
    """Speculative decoding: of each row some positions stay, and others follow. Where they cannot it is refused."""
    todo = work(variant, example)
    one = decoder(todo, tree)
    _, cache = step(todo, one, begun(todo, one), (0, 5, 7), (1, 4, 6))
    kept = INPUTS[NAMES[tree]].array(np.array([3, 2]))
    if cache.states or todo.config.cache_slots() is not None:
        with pytest.raises(ValueError, match="cache: expected keys and values of all positions to crop, got "):
            cache.crop(kept)
        return
    cache = cache.crop(kept)
    assert (fields_of(cache)["positions"] < np.array([[3], [2]])).all()
    y, cache = step(todo, one, cache, (0, 3, 5), (1, 2, 4))
    goes_on(todo, y[0], 0, 3, 5)
    goes_on(todo, y[1], 1, 2, 4)
    y, _ = step(todo, one, cache.crop(2), (0, 2, 4), (1, 2, 4))
    goes_on(todo, y[0], 0, 2, 4)
    goes_on(todo, y[1], 1, 2, 4)


@pytest.mark.parametrize("tree", TREES)
def test_a_row_without_the_positions_that_had_no_room_is_whole(tree: str) -> None:
    """It goes on where it has all positions that it keeps; where it should keep more it still lacks some."""
    todo = work("mha", "wide")
    one = decoder(todo, tree)
    cache = one.empty(todo, 4)
    _, cache = step(todo, one, cache, (0, 0, 4), (1, 0, 4))
    array = INPUTS[NAMES[tree]].array
    full = replace(cache, overflowed=array(np.array([True, True])))
    assert fields_of(full.copy().crop(4))["overflowed"].tolist() == [False, False]
    assert fields_of(full.copy().crop(5))["overflowed"].tolist() == [True, True]
    cache = full.crop(array(np.array([2, 6])))
    assert fields_of(cache)["overflowed"].tolist() == [False, True]
    y, _ = step(todo, one, cache.select([0, 0]), (0, 2, 4), (0, 2, 4))
    goes_on(todo, y[0], 0, 2, 4)


def test_what_a_program_had_no_room_for_is_taken_back() -> None:
    """In JAX: outputs without room are NaN, and after a crop the row goes on as if it had not got them."""
    todo = work("mha", "wide")
    one = decoder(todo, "attn_jax")
    cache = one.empty(todo, 4)
    y, cache = step(todo, one, cache, (0, 0, 6), (1, 0, 6))
    assert np.isnan(y[:, 4:]).all() and fields_of(cache)["overflowed"].all()
    y, cache = step(todo, one, cache.crop(3), (0, 3, 4), (1, 3, 4))
    assert not fields_of(cache)["overflowed"].any()
    goes_on(todo, y[0], 0, 3, 4)


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "row": (lambda cache, array: cache.reset([0, 2]), "expected rows from 0 to 1, got 2"),
    "row below 0": (lambda cache, array: cache.select(array([-1, 0])), "expected rows from 0 to 1, got -1"),
    "mask": (lambda cache, array: cache.reset(array([True, False])), "expected rows of an integer dtype, got bool"),
    "booleans": (lambda cache, array: cache.reset([True, False]), "expected rows of integers, got True"),
    "axes": (lambda cache, array: cache.select(array([[0]])), r"expected rows of one axis, got \(1, 1\)"),
    "no row": (lambda cache, array: cache.select([]), "expected at least one row, got none"),
    "length": (lambda cache, array: cache.crop(-1), "expected length of at least 0, got -1"),
    "half": (lambda cache, array: cache.crop(0.5), "expected length to be an integer or an array, got 0.5"),
    "floats": (lambda cache, array: cache.crop(array([0.5, 1.0])), "expected length of an integer dtype, got float64"),
    "lengths": (lambda cache, array: cache.crop(array([1, 2, 3])), r"expected length of shape \(2,\), got \(3,\)"),
}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("mistake", REFUSED)
def test_what_cannot_be_is_refused_in_the_same_words(mistake: str, tree: str) -> None:
    call, words = REFUSED[mistake]
    cache = import_module(tree).build("mha", d_model=6, num_heads=2, causal=True).init_cache(2, 4)
    with pytest.raises((TypeError, ValueError), match=f"^cache: {words}; "):
        call(cache, lambda values: INPUTS[NAMES[tree]].array(np.array(values)))


@pytest.mark.parametrize("method", ["reset", "crop"])
@pytest.mark.parametrize("tree", ["attn_np", "attn_torch"])
def test_a_cache_is_used_up(method: str, tree: str) -> None:
    """The next one has its arrays, where steps write into them."""
    cache = import_module(tree).build("mha", d_model=6, num_heads=2, causal=True).init_cache(2, 4)
    getattr(cache, method)({"reset": [0], "crop": 1}[method])
    for call in (lambda: cache.reset([0]), lambda: cache.crop(1), lambda: cache.select([0]), cache.copy):
        with pytest.raises(ValueError, match="cache: expected a cache that no step has used, got one used up"):
            call()


@pytest.mark.parametrize("variant", ["mha", "linear"])
def test_rows_may_be_traced(variant: str) -> None:
    """In a program of JAX the results are those of eager calls."""
    example = {"mha": "wide", "linear": "chunked"}[variant]
    todo = work(variant, example)
    cache = begun(todo, decoder(todo, "attn_jax"))
    rows = jax.numpy.array([1])
    calls: dict[str, Any] = {"reset": lambda cache, rows: cache.reset(rows), "select": lambda c, rows: c.select(rows)}
    calls |= {} if cache.states else {"crop": lambda cache, rows: cache.crop(rows[0])}
    for call in calls.values():
        found, want = fields_of(jax.jit(call)(cache, rows)), fields_of(call(cache, rows))
        assert all(np.array_equal(found[name], want[name]) for name in want)


# What is read back from a device --------------------------------------------------------------------------------------

READS = ("tolist", "item", "__int__", "__float__", "__bool__", "__index__")


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
@pytest.mark.parametrize("variant", ["mha", "rotary", "mla", "shaw", "linear", "retention", "gated_delta", "chunked"])
def test_a_loop_reads_nothing_back(variant: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of PyTorch's arrays, while every position is real: each time a GPU would be waited for."""
    config = next(config for config in contract.examples(variant).values() if config.cache_axes())
    layer = import_module("attn_torch").build(variant, **config.as_dict())
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 4, config.sizes()["d"])).astype(np.float32))
    read: list[str] = []
    for name in READS:
        real = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda x, name=name, real=real: (read.append(name), real(x))[1])
    with getattr(torch, mode)():
        cache = layer.init_cache(2, 8)
        for i in range(4):
            _, cache = layer.step(x[:, i : i + 1], cache)
    assert not read
    assert cache.length.tolist() == [4, 4] and read == ["tolist"]


def test_a_length_that_is_written_to_is_read_again() -> None:
    """What a cache carries of its lengths is what the array was then."""
    layer = import_module("attn_torch").build("mha", d_model=6, num_heads=2, causal=True)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(1, 4, 6)).astype(np.float32))
    with torch.no_grad():
        _, cache = layer.step(x, layer.init_cache(1, 8))
        cache.length.fill_(2)
        cache.positions[:, 2:] = -1
        y, _ = layer.step(x[:, 2:3], cache)
        want, _ = layer.step(x[:, 2:3], layer.step(x[:, :2], layer.init_cache(1, 8))[1])
    assert torch.equal(y, want)


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["decoder", "retention"])
def test_a_step_is_exported_by_pytorch(variant: str) -> None:
    """A cache goes into the program and comes out of it."""
    layer = import_module("attn_torch").build(variant, d_model=8, num_heads=2)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3, 8)).astype(np.float32))

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any, cache: Any) -> Any:
            return self.layer.step(x, cache)

    with torch.no_grad():
        program = torch.export.export(Step(), (x, layer.init_cache(2, 8)))
        y, cache = program.module()(x, layer.init_cache(2, 8))
        want, after = layer.step(x, layer.init_cache(2, 8))
    assert type(cache) is type(after) and cache.max_length == 8 and cache.states == after.states
    np.testing.assert_array_max_ulp(y.numpy(), want.numpy(), 64)


@pytest.mark.skipif(find_spec("flatbuffers") is None, reason="JAX writes files by flatbuffers, which is not here")
@pytest.mark.parametrize("variant", ["decoder", "retention"])
def test_a_step_is_written_to_a_file_by_jax(variant: str) -> None:
    layer = import_module("attn_jax").build(variant, d_model=8, num_heads=2)
    graph, state = nnx.split(layer)
    x = jax.numpy.ones((2, 3, 8), "float32")
    step = jax.jit(lambda x, cache: nnx.merge(graph, state).step(x, cache))
    program = jax.export.deserialize(jax.export.export(step)(x, layer.init_cache(2, 8)).serialize())
    _, cache = program.call(x, layer.init_cache(2, 8))
    after = step(x, layer.init_cache(2, 8))[1]
    assert type(cache) is type(after) and cache.max_length == 8 and cache.states == after.states
    assert (cache.length == 3).all()


# Programs for any number of sequences and positions -------------------------------------------------------------------

# A slot for each position, of a layer that is told the angles too: in JAX a table of any length would be made by the
# program, in float32. A state serves any number of sequences.
ANY: dict[str, tuple[str, dict[str, Any]]] = {
    "keys": ("mha", {"causal": True}),
    "angles": ("decoder", {}),
    "a state": ("retention", {}),
}
# Sums of a few dozen numbers of the size of 1 follow each other some ten times.
ROUNDINGS = 1000 * np.finfo(np.float64).eps
LENGTHS = ((3, 9), (2, 12))  # sequences, and positions of their caches


def angles_at(package: Any, kind: str, batch: int, at: Any, dtype: str) -> dict[str, Any]:
    if kind != "angles":
        return {}
    places = import_module(f"{package.__name__}.ops").broadcast_to(at, (batch, 1))
    return {"positions": package.rotary_angles(places, 4, max_positions=16, dtype=dtype)}


@pytest.mark.parametrize("kind", ANY)
def test_one_program_of_jax_serves_caches_of_any_length(kind: str) -> None:
    package: Any = import_module("attn_jax")
    variant, fields = ANY[kind]
    layer = package.build(variant, d_model=8, num_heads=2, **fields)
    graph, state = nnx.split(layer)
    step = jax.jit(lambda x, cache, more: nnx.merge(graph, state).step(x, cache, **more))
    all_slots = kind != "a state"
    b, s = (*jax.export.symbolic_shape("b, s" if all_slots else "b"), 9)[:2]
    shape = jax.ShapeDtypeStruct
    more = {} if kind != "angles" else {"positions": (shape((b, 1, 2), "float32"),) * 2}
    cache = jax.eval_shape(lambda: layer.init_cache(b, s))
    program = jax.export.export(step)(shape((b, 1, 8), "float32"), cache, more)
    for batch, length in LENGTHS:
        found = wanted = layer.init_cache(batch, length if all_slots else 9)
        x = jax.random.normal(jax.random.key(0), (batch, 5, 8), "float32")
        for i in range(5):
            told = angles_at(package, kind, batch, jax.numpy.arange(i, i + 1), "float32")
            y, found = program.call(x[:, i : i + 1], found, told)
            want, wanted = step(x[:, i : i + 1], wanted, told)
            assert np.array_equal(y, want)
        assert found.max_length == wanted.max_length and (found.length == 5).all()


def test_a_table_of_any_length_is_refused_by_jax() -> None:
    layer = import_module("attn_jax").build("decoder", d_model=8, num_heads=2)
    b, s = jax.export.symbolic_shape("b, s", constraints=["s >= 8"])
    shapes = jax.ShapeDtypeStruct((b, 1, 8), "float32"), jax.eval_shape(lambda: layer.init_cache(b, s))
    with pytest.raises(ValueError, match=r"cos_sin_table: expected a length that is known for a .*, got s; give posit"):
        jax.eval_shape(lambda x, cache: layer.step(x, cache), *shapes)


class Stepping(torch.nn.Module):
    """A layer's step as a module."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any, cache: Any, more: dict[str, Any]) -> Any:
        return self.layer.step(x, cache, **more)


@pytest.mark.parametrize("kind", ANY)
def test_one_program_of_pytorch_serves_caches_of_any_length(kind: str) -> None:
    package: Any = import_module("attn_torch")
    variant, fields = ANY[kind]
    layer = package.build(variant, d_model=8, num_heads=2, dtype="float64", **fields)
    cache, x, all_slots = layer.init_cache(3, 9), torch.zeros(3, 1, 8, dtype=torch.float64), kind != "a state"
    args = (x, cache, angles_at(package, kind, 3, torch.arange(1), "float64"))
    shapes: Any = torch.export.ShapesCollection()
    dynamic = torch.export.Dim.DYNAMIC
    for array in (*cache.arrays.values(), cache.positions):
        shapes[array] = (dynamic, dynamic if all_slots else None, *(None,) * array.ndim)[: array.ndim]
    for array in (x, cache.length, cache.overflowed, *args[2].get("positions", ())):
        shapes[array] = (dynamic, *(None,) * (array.ndim - 1))
    with torch.no_grad():
        program = torch.export.export(Stepping(layer), args, dynamic_shapes=shapes).module()
        for batch, length in LENGTHS:
            found, wanted = (layer.init_cache(batch, length if all_slots else 9) for _ in range(2))
            x = torch.from_numpy(np.random.default_rng(0).normal(size=(batch, 5, 8)))
            for i in range(5):
                told = angles_at(package, kind, batch, torch.arange(i, i + 1), "float64")
                y, found = program(x[:, i : i + 1], found, told)
                want, wanted = layer.step(x[:, i : i + 1], wanted, **told)
                assert np.abs((y - want).numpy()).max() <= ROUNDINGS * np.abs(want.numpy()).max()
            assert found.max_length == wanted.max_length and (found.length == 5).all()
