"""What NumPy's layers are put through besides being called: threads, layouts of memory, processes, copies.

Every variant goes through every transform, or stands in `EXEMPT` with the reason.
"""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import cache
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest

import attn_np
from attn_np import contract
from attn_np.kernels import flash
from attn_np.ops.vjp import RecordingGenerator
from parity_tests.bounds.precision import precision_of
from parity_tests.judge.candidates import leaves, numpy_layer, pulled
from parity_tests.judge.cases import Case, Drawn
from parity_tests.judge.judging import reference
from parity_tests.tests.contract.test_decoding import work
from parity_tests.tests.decoding import BATCH, T
from parity_tests.tests.inputs import Arrays, same
from parity_tests.tests.transforms.fork import case_of, results
from parity_tests.tests.witness import ratio

TRANSFORMS = [
    ("threads", "eight threads call and differentiate one layer at once: the bits of one thread"),
    ("dropout in threads", "in training, each call's gradients are those of its own dropout, kept or recomputed"),
    ("memmap", "inputs and parameters mapped from a file that cannot be written to"),
    ("read-only", "inputs and parameters that cannot be written to"),
    ("strided", "inputs that are every second element of larger arrays"),
    ("negative strides", "inputs stored backwards along every axis"),
    ("Fortran order", "inputs stored with the first axis fastest"),
    ("broadcast", "inputs that are one row repeated with a stride of 0"),
    ("fork", "a child process forked while other threads compute: the bits of its parent, and it ends"),
    ("pickle", "a layer, and a cache between two steps of decoding, through pickle: the same bits"),
    ("deepcopy", "copies of both: the same bits, and nothing in common with the original"),
]
VARIANTS = tuple(contract.variants())


def example_with(variant: str, thing: Callable[[Any], Any]) -> str | None:
    """The first example that has a thing."""
    return next((name for name, config in contract.examples(variant).items() if thing(config)), None)


DROPS = {variant: example_with(variant, lambda config: getattr(config, "dropout", 0)) for variant in VARIANTS}
DECODES = {variant: example_with(variant, lambda config: config.cache_axes()) for variant in VARIANTS}
EXEMPT = {("dropout in threads", variant): "has no dropout" for variant, example in DROPS.items() if example is None}
EXEMPT["dropout in threads", "seq2seq"] = "draws several times a call, and other threads draw in between"

Make = Callable[[np.ndarray], np.ndarray]
LAYOUTS: dict[str, Make] = {
    "strided": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "negative strides": lambda x: np.flip(np.ascontiguousarray(np.flip(x))),
    "Fortran order": np.asfortranarray,
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
}


def cells(*transforms: str) -> Any:
    """One test of each transform and variant that has the thing."""
    pairs = [(t, v) for t, _ in TRANSFORMS if t in transforms for v in VARIANTS if (t, v) not in EXEMPT]
    return pytest.mark.parametrize(("transform", "variant"), pairs, ids=[f"{t}-{v}" for t, v in pairs])


def difference(got: Arrays, want: Arrays) -> str:
    """The names under which the bits differ."""
    assert list(got) == list(want)
    return ", ".join(name for name, x in got.items() if not same(np.asarray(x), want[name]))


def judged(got: Arrays, want: Arrays, case: Case, drawn: Drawn) -> None:
    """The same bits, or numbers within the bound: BLAS may round by strides."""
    if not difference(got, want):
        return
    outputs, grads = reference(case, drawn, {}, precision_of("float64"))
    bounds = outputs | grads
    worst = {name: ratio(x, bounds[name]) for name, x in got.items()}
    assert max(worst.values()) <= 1, worst


def small_blocks(patch: pytest.MonkeyPatch) -> None:
    """Blocks so small that these sizes are computed by several threads."""
    for name, n in {"BLOCK_QUERIES": 4, "BLOCK_KEYS": 3, "EDGE_QUERIES": 2, "MIN_BLOCKS": 1}.items():
        patch.setattr(flash, name, n)


@cells("threads")
def test_many_threads_at_once(transform: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, drawn = case_of(variant)
    layer = numpy_layer(case, drawn.params)
    for patch in (lambda patch: None, small_blocks):
        patch(monkeypatch)
        want, barrier = results(layer, case, drawn.inputs), Barrier(8)

        def call(number: int, barrier: Barrier = barrier) -> Arrays:
            barrier.wait()
            return results(layer, case, drawn.inputs, recompute=number % 2 == 1)

        with ThreadPoolExecutor(8) as pool:
            for got in pool.map(call, range(8)):
                assert not difference(got, want)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_backward_pass_in_the_midst_of_another(variant: str) -> None:
    """Whatever line of it a thread has come to when another pulls with other gradients: each gives its own."""
    case, drawn = case_of(variant)
    inputs: dict[str, Any] = drawn.inputs
    y, pull = attn_np.value_and_vjp(numpy_layer(case, drawn.params), **inputs)
    dys = list(pulled(case, drawn, {name: x.shape for name, x in leaves(y).items()}).values())
    others = [np.ones_like(dy) for dy in dys]
    want, before, lines = pull(*dys), sys.gettrace(), []

    def trace(frame: Any, event: str, _: Any) -> Any:
        if event == "call":
            return trace if frame.f_code.co_name == "vjp" else None
        if event == "line" and (place := (frame.f_code, frame.f_lineno)) not in lines:
            lines.append(place)
            sys.settrace(before)
            pull(*others)
            sys.settrace(trace)
        return trace

    sys.settrace(trace)
    try:
        got = pull(*dys)
    finally:
        sys.settrace(before)
    assert lines
    assert not difference(got.inputs | got.params, want.inputs | want.params)


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_set_in_a_layer_later_changes_no_gradient(variant: str) -> None:
    """In the layer or in one inside it: the backward pass has the parameters of its call."""
    case, drawn = case_of(variant)
    layer, inputs = numpy_layer(case, drawn.params), dict[str, Any](drawn.inputs)
    params = layer.params()
    for recompute in (False, True):
        y, pull = attn_np.value_and_vjp(layer, **inputs, recompute=recompute)
        dys = pulled(case, drawn, {name: x.shape for name, x in leaves(y).items()}).values()
        want = pull(*dys)
        layer.set_params({name: 2 * x for name, x in params.items()})
        got = pull(*dys)
        layer.set_params(params)
        assert not difference(got.inputs | got.params, want.inputs | want.params)


@cells("dropout in threads")
def test_dropout_in_many_threads(transform: str, variant: str) -> None:
    """The calls share one stream of random numbers: they are, in some order, what one thread gets after another."""
    case, drawn = case_of(variant, DROPS[variant])
    inputs = {name: x for name, x in drawn.inputs.items() if case.config.arguments()[name].kind != "keep"}
    layer = numpy_layer(case, drawn.params).train()
    start = layer.rng.bit_generator.state
    for recompute in (False, True):
        layer.rng.bit_generator.state = start
        want = [results(layer, case, inputs) for _ in range(8)]
        after, layer.rng.bit_generator.state = layer.rng.bit_generator.state, start
        with ThreadPoolExecutor(8) as pool:
            got = list(pool.map(lambda _, again=recompute: results(layer, case, inputs, recompute=again), range(8)))
        assert layer.rng.bit_generator.state == after
        order: list[int] = []  # each is another call of one thread's; two draws may happen to be the same
        for found in got:
            order += [i for i, one in enumerate(want) if i not in order and same(one["y"], found["y"])][:1]
        assert sorted(order) == list(range(8))
        for i, found in zip(order, got, strict=True):
            assert not difference(found, want[i])


def test_a_replayed_generator_draws_the_same_again() -> None:
    """From every thread its own numbers, which together are the stream of the generator."""
    source = np.random.default_rng(0)
    replayed = [RecordingGenerator(source) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        drawn = list(pool.map(lambda one: [one.random((3,)) for _ in range(50)], replayed))
    stream = np.random.default_rng(0)
    want = sorted(float(stream.random(3)[0]) for _ in range(400))
    assert sorted(float(x[0]) for numbers in drawn for x in numbers) == want
    assert source.bit_generator.state == stream.bit_generator.state
    for one, numbers in zip(replayed, drawn, strict=True):
        again = one.replay()
        assert all(same(again.random((3,)), x) for x in numbers)
    assert source.bit_generator.state == stream.bit_generator.state


@cells(*LAYOUTS)
def test_layouts_of_memory(transform: str, variant: str) -> None:
    case, drawn = case_of(variant)
    inputs = {name: LAYOUTS[transform](x) for name, x in drawn.inputs.items()}
    copies = {name: np.ascontiguousarray(x) for name, x in inputs.items()}
    bits = {name: x.tobytes() for name, x in inputs.items()}
    layer = numpy_layer(case, drawn.params)
    judged(results(layer, case, inputs), results(layer, case, copies), case, Drawn(copies, drawn.params, drawn.seed))
    assert {name: x.tobytes() for name, x in inputs.items()} == bits


@cells("memmap", "read-only")
def test_arrays_that_cannot_be_written_to(transform: str, variant: str, tmp_path: Path) -> None:
    case, drawn = case_of(variant)

    def locked(name: str, x: np.ndarray) -> np.ndarray:
        if transform == "read-only":
            x = x.copy()
            x.setflags(write=False)
            return x
        np.save(tmp_path / f"{name}.npy", x)
        return np.load(tmp_path / f"{name}.npy", mmap_mode="r")

    layer, want = numpy_layer(case, drawn.params), results(numpy_layer(case, drawn.params), case, drawn.inputs)
    layer.set_params({name: locked(name, x) for name, x in layer.params().items()})
    inputs = {f"{name}": locked(f"input {name}", x) for name, x in drawn.inputs.items()}
    got = results(layer, case, inputs)
    assert not difference(got, want)
    assert all(type(x) is np.ndarray for x in got.values())


@cache
def forked() -> dict[str, bool]:
    """In a process of its own: one that holds other frameworks must not fork."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "parity_tests.tests.transforms.fork"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
@cells("fork")
def test_after_a_fork(transform: str, variant: str) -> None:
    assert forked()[variant]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_after_a_fork_blas_has_its_threads_again() -> None:
    """Although the parent was in the midst of calls that hold it at one."""
    assert forked()["BLAS"]


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),  # noqa: S301 - its own bytes
    "deepcopy": deepcopy,
}


@cells(*COPIES)
def test_copies(transform: str, variant: str) -> None:
    copied, (case, drawn) = COPIES[transform], case_of(variant)
    layer = numpy_layer(case, drawn.params)
    twin = copied(layer)
    want = results(layer, case, drawn.inputs)
    assert twin.config == layer.config and twin.training == layer.training
    assert not difference(results(twin, case, drawn.inputs), want)
    for x in twin.params().values():
        x += 1
    assert not difference(results(layer, case, drawn.inputs), want)
    state = layer.rng.bit_generator.state
    assert twin.rng.bit_generator.state == state
    twin.rng.random()
    assert layer.rng.bit_generator.state == state
    assert all(part.rng is twin.rng for _, part in twin.walk())


@pytest.mark.parametrize("transform", COPIES)
@pytest.mark.parametrize("variant", [variant for variant, example in DECODES.items() if example is not None])
def test_copies_of_caches(transform: str, variant: str) -> None:
    todo = work(variant, str(DECODES[variant]))
    layer = numpy_layer(todo.case, todo.drawn.params)

    def step(cache: Any, at: slice) -> tuple[Arrays, Any]:
        y, cache = layer.step(todo.x[:, at], cache, **{name: x[:, at] for name, x in todo.more.items()})
        return leaves(y), cache

    _, cache = step(layer.init_cache(BATCH, T, dtype="float64", **todo.sizes()), slice(0, 4))
    twin = COPIES[transform](cache)
    want, spent = step(cache, slice(4, T))
    got, after = step(twin, slice(4, T))
    assert not difference(got, want)
    assert not difference(after.arrays, spent.arrays)
    assert COPIES[transform](cache).spent


def test_every_exemption_names_a_cell() -> None:
    transforms = {name for name, _ in TRANSFORMS}
    assert all(transform in transforms and variant in VARIANTS for transform, variant in EXEMPT)
