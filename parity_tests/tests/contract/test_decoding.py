"""Decoding is the full pass in pieces: any chunking, padding on either side, sequences at different positions.

The reference is the full pass of the NumPy layer on error-carrying arrays: what comes out of the steps must lie within
the bound of the same numbers computed at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
import pytest

from attn_np import contract
from attn_np.contract import Arg
from attn_np.ops import DTYPES
from parity_tests.mistakes import SHARED, Mutant, planted
from parity_tests.tests import decoding as laws
from parity_tests.tests.decoding import (
    BATCH,
    CHUNKS,
    TREES,
    Decoder,
    T,
    Work,
    array_of,
    bare,
    decoder,
    fields_of,
    integers,
    ways,
    wrong,
)
from parity_tests.tests.inputs import TREES as INPUTS
from parity_tests.tests.witness import bounded, cotangent, layer_of, ratio, weights_of


def decodes() -> list[tuple[str, str]]:
    """Every example that keeps something between steps."""
    return [
        (variant, example)
        for variant in contract.variants()
        for example, config in contract.examples(variant).items()
        if config.cache_axes()
    ]


def work(variant: str, example: str, dtype: str = "float64") -> Work:
    return laws.work(contract.examples(variant)[example], dtype=dtype)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize(("variant", "example"), decodes())
def test_steps_are_the_full_pass(variant: str, example: str, tree: str) -> None:
    todo = work(variant, example)
    made = decoder(todo, tree)
    laws.steps_are_the_full_pass(todo, made, CHUNKS[-1:] if tree == "attn_jax" else CHUNKS)
    if tree == "attn_jax":  # one program for each size of a chunk: steps compile nothing new
        assert made.compiled() == len(set(CHUNKS[-1]))


@pytest.mark.parametrize("tree", ["attn_np", "attn_torch"])
@pytest.mark.parametrize(("variant", "example"), [(v, e) for v, e in decodes() if integers(contract.examples(v)[e])])
def test_steps_count_positions_that_are_left_out(variant: str, example: str, tree: str) -> None:
    config = contract.examples(variant)[example]
    todo = laws.work(config, ways(config)[0])
    laws.steps_are_the_full_pass(todo, decoder(todo, tree))


@pytest.mark.parametrize("tree", TREES)
def test_queries_see_each_position_of_their_window_once(tree: str) -> None:
    """In a ring of slots, by chunks with padding anywhere, in sequences of unlike lengths, until one is full."""
    module, array = import_module(f"{tree}.attention.decode"), INPUTS[tree.removeprefix("attn_").replace("np", "numpy")]
    for seed in range(3 if tree == "attn_jax" else 30):
        rng = np.random.default_rng(seed)
        left, room = int(rng.integers(1, 6)), 13
        config = contract.config("mha", d_model=2, num_heads=1, causal=True, window=(left, None))
        like = array.array(np.zeros((), np.float32))
        cache, lengths = module.empty_cache(config, 3, room, {}, like, like), np.zeros(3, int)
        while True:
            t = 3 if tree == "attn_jax" else int(rng.integers(1, 6))  # of which JAX compiles each
            real = rng.random((3, t)) < rng.random((3, 1))
            if (lengths + real.sum(1)).max() > room:
                break
            step = module.begin_step(config, cache, array.array(np.zeros((3, t, 2), np.float32)), array.array(real))
            new = array.array(np.zeros((3, t, 1, 2), np.float32))
            module.append(step, k=new, v=new)
            sees, keys = (np.asarray(array.numpy(x)) for x in (step.window_mask(left, 0), step.key_positions))
            at = lengths[:, None] + np.cumsum(real, 1) - 1
            for b, i in np.argwhere(real):
                seen = sorted(keys[b][sees[b, 0, i]])
                assert seen == list(range(max(0, at[b, i] - left), at[b, i] + 1)), (seed, t, real, b, i)
            assert not sees[:, 0][~real].any()
            cache, lengths = module.end_step(step, array.array(np.zeros((3, t, 2), np.float32)))[1], at[:, -1] + 1


@pytest.mark.parametrize(("variant", "example"), decodes())
def test_what_a_step_does_not_depend_on_may_be_nan(variant: str, example: str) -> None:
    """The first position, which a window, a chunk or a pattern hides from later ones though a cache may still hold it.

    A step does not depend on it where its outputs are the same, to the bit, for other numbers there. Nothing is said of
    documents: a state is emptied by a factor of 0, and 0 times NaN is NaN.
    """
    todo, chunks = work(variant, example), (3, 1, 1, 2)
    todo = replace(todo, inputs={name: x for name, x in todo.inputs.items() if name != "documents"})
    step_of = np.repeat(np.arange(len(chunks)), chunks)

    def with_first(tree: str, factor: float) -> np.ndarray:
        def changed(x: np.ndarray) -> np.ndarray:
            factors = np.where(np.arange(T) == 0, factor, 1.0).reshape(-1, *(1,) * (x.ndim - 2))
            return x * factors if x.dtype.kind == "f" else x

        with np.errstate(invalid="ignore"):
            other = replace(todo, inputs={name: changed(x) for name, x in todo.inputs.items()})
            return decoder(todo, tree).run(other, chunks)

    want = with_first("attn_np", 1.0)
    same = (want == with_first("attn_np", -3.0)).all((0, 2))
    assert not same[0]
    free = ~np.isin(step_of, step_of[~same])
    for tree in ("attn_np", "attn_torch") if free.any() else ():
        assert not wrong(with_first(tree, np.nan)[:, free], todo.full()[:, free]), tree


@dataclass(frozen=True)
class Schedule:
    """How a batch is decoded: at each step, which of its positions are real, `b t`; None is a uniform step.

    Attributes:
        steps: the positions that are real, or how many new ones every sequence gets.
        lengths: how many positions each sequence has in the end, the longest of them all that there is room for.
    """

    steps: list[np.ndarray | int]
    lengths: list[int]


def scheduled(seed: int, ragged: bool = True) -> Schedule:
    """Chunks of any size with padding anywhere, none in some steps, and steps in which one sequence gets nothing."""
    rng, steps = np.random.default_rng(seed), []
    want = rng.integers(1, T + 1, BATCH) if ragged else np.full(BATCH, T)
    want[rng.integers(BATCH)] = T
    have = np.zeros(BATCH, int)
    while (have < want).any():
        left = want - have
        if left.min() > 0 and rng.random() < 0.3:
            steps.append(int(rng.integers(1, left.min() + 1)))
            have += steps[-1]
            continue
        real = rng.random((BATCH, rng.integers(1, 6))) < rng.choice([0.5, 0.9])
        real &= np.cumsum(real, 1) <= left[:, None]
        steps.append(real)
        have += real.sum(1)
    return Schedule(steps, want.tolist())


def padded(x: np.ndarray, have: np.ndarray, real: np.ndarray) -> np.ndarray:
    """The next positions of each sequence at the real places, and anything elsewhere."""
    out = np.full((*real.shape, *x.shape[2:]), np.nan) if x.dtype.kind == "f" else np.zeros(real.shape, x.dtype)
    for row, at in enumerate(real):
        out[row, at] = x[row, have[row] : have[row] + at.sum()]
    return out


def by_schedule(todo: Work, made: Decoder, schedule: Schedule, rng: np.random.Generator) -> list[list[Any]]:
    """The outputs at the real positions of each sequence. In between other sequences go on from a copy of the cache,
    before a step or after it: neither notices.
    """
    cache, have = made.empty(todo), np.zeros(BATCH, int)
    found: list[list[Any]] = [[] for _ in range(BATCH)]
    for step in schedule.steps:
        real = np.ones((BATCH, step), bool) if isinstance(step, int) else step
        given = {} if isinstance(step, int) else {"valid": real}
        others = {name: padded(x, have, real) for name, x in todo.more.items()}
        first, then = rng.random(2) < 0.4
        twin = cache.copy() if first or then else cache
        if first:
            made.step(padded(-todo.x, have, real), twin, **given, **others)
        y, cache = made.step(padded(todo.x, have, real), cache, **given, **others)
        if then and not first:
            made.step(padded(-todo.x, have, real), twin, **given, **others)
        for row, at in enumerate(real):
            found[row] += [y[row, i] for i in np.flatnonzero(at)]
        assert np.isfinite(np.asarray(y)).all()
        have = have + real.sum(1)
    assert np.asarray(cache.length).tolist() == have.tolist() == schedule.lengths
    return found


@pytest.mark.parametrize("tree", ["attn_np", "attn_torch"])
@pytest.mark.parametrize(("variant", "example"), decodes())
def test_padding_takes_no_place(variant: str, example: str, tree: str) -> None:
    """Chunks with padding anywhere, whatever stands in it, until one sequence has taken all the room."""
    todo = work(variant, example)
    made = decoder(todo, tree)
    for seed in range(2):
        rng = np.random.default_rng([seed, *f"{variant} {example} {tree}".encode()])
        schedule = scheduled(int(rng.integers(2**31)))
        found = by_schedule(todo, made, schedule, rng)
        for row, length in enumerate(schedule.lengths):
            want = todo.full(row, stop=length)
            assert not wrong(np.stack(found[row])[None], want), (schedule, row)


@pytest.mark.parametrize(("variant", "example"), decodes())
def test_gradients_of_steps_are_those_of_the_full_pass(variant: str, example: str) -> None:
    """In PyTorch, of the inputs and of every parameter, through chunks with padding anywhere."""
    import torch

    todo = work(variant, example)
    layer = layer_of(INPUTS["torch"], todo.config, todo.drawn.params)
    x, more = torch.from_numpy(todo.x).requires_grad_(), {n: torch.from_numpy(a) for n, a in todo.more.items()}
    more = {name: a.requires_grad_() if a.is_floating_point() else a for name, a in more.items()}
    leaves = {"query": x} | {n: a for n, a in more.items() if a.is_floating_point()} | dict(layer.named_parameters())
    schedule = scheduled(len(variant) + 7 * len(example), ragged=False)
    cache, have, rows = layer.init_cache(BATCH, T, dtype="float64", **todo.sizes()), np.zeros(BATCH, int), []
    for step in schedule.steps:
        real = np.ones((BATCH, step), bool) if isinstance(step, int) else step
        at = torch.from_numpy(np.clip(have[:, None] + np.cumsum(real, 1) - 1, 0, T - 1))
        take = lambda a, at=at: a[torch.arange(BATCH)[:, None], at]  # noqa: E731
        given = {} if isinstance(step, int) else {"valid": torch.from_numpy(real)}
        y, cache = layer.step(take(x), cache, **given, **{name: take(a) for name, a in more.items()})
        rows.append((y, real))
        have = have + real.sum(1)
    y = torch.stack([torch.cat([y[row, torch.from_numpy(real[row])] for y, real in rows]) for row in range(BATCH)])
    want = bounded(todo.config, {"query": todo.x} | todo.more, todo.drawn.params)
    dy = torch.from_numpy(cotangent(tuple(y.shape)))
    grads = torch.autograd.grad(y, list(leaves.values()), dy, allow_unused=True, materialize_grads=True)
    worst = {name: ratio(g, want[f"d{name}"]) for name, g in zip(leaves, grads, strict=True)}
    assert max(worst.values()) <= 1, (worst, schedule)


@pytest.mark.parametrize("variant", ["mha", "fused_qkv"])
def test_padding_reaches_no_gradient(variant: str) -> None:
    """What stands in padding does not enter the gradients of the parameters, not as NaN times 0 either."""
    import torch

    layer = import_module("attn_torch").build(variant, d_model=6, num_heads=2, causal=True)
    x, real = torch.ones(1, 3, 6), torch.tensor([[False, True, True]])
    x[0, 0] = torch.nan
    y, _ = layer.step(x, layer.init_cache(1, 3), valid=real)
    y[0, 1:].sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


@pytest.mark.parametrize("tree", TREES)
def test_no_room_is_an_error_and_writes_nothing(tree: str) -> None:
    todo = work("mha", "wide")
    laws.without_room_a_step_is_refused(todo, decoder(todo, tree, jit=False))


def test_no_room_under_jit_gives_nan_and_says_so() -> None:
    todo = work("mha", "wide")
    made = decoder(todo, "attn_jax")
    laws.an_overrun_is_nan_and_says_so(todo, made)
    assert made.compiled() == 1


@pytest.mark.compile
def test_no_room_under_compile_gives_nan_and_says_so() -> None:
    todo = work("mha", "wide")
    laws.an_overrun_is_nan_and_says_so(todo, decoder(todo, "attn_torch", jit=True))


def first_examples() -> list[tuple[str, str]]:
    return list({variant: (variant, example) for variant, example in reversed(decodes())}.values())


@pytest.mark.compile
@pytest.mark.parametrize(("variant", "example"), first_examples())
def test_compiled_steps_compile_once(variant: str, example: str) -> None:
    """Under torch.compile one program serves every step, whole: no break, no recompilation, the same numbers."""
    import torch
    from torch._dynamo.testing import CompileCounter

    from attn_torch.ops import from_numpy as tensor
    from attn_torch.ops import to_numpy as array

    torch._dynamo.reset()
    todo, counter = work(variant, example), CompileCounter()
    layer = import_module("attn_torch").build(variant, dtype="float64", **todo.config.as_dict())
    layer.set_params({name: tensor(x) for name, x in todo.drawn.params.items()})
    step = torch.compile(layer.step, backend=counter, fullgraph=True, dynamic=False)
    cache, found = layer.init_cache(BATCH, T, dtype="float64", **todo.sizes()), []
    with torch.no_grad():
        for i in range(T):
            more = {name: tensor(x[:, i : i + 1]) for name, x in todo.more.items()}
            y, cache = step(tensor(todo.x[:, i : i + 1]), cache, **more)
            found.append(array(y))
    assert not wrong(np.concatenate(found, axis=1), todo.full())
    assert counter.frame_count == 1


@pytest.mark.parametrize("tree", TREES)
def test_states_are_kept_wider_than_16_bits(tree: str) -> None:
    """A sum of ones goes on beyond 256, where bfloat16 would stop; a type that is asked for is kept."""
    to, build = array_of(tree), import_module(tree).build
    layer = build("linear", dtype="bfloat16", d_model=2, num_heads=1, causal=True, use_bias=False)
    layer.set_params({name: 0 * x for name, x in layer.params().items()})
    x = to(np.zeros((BATCH, 300, 2)).astype(DTYPES["bfloat16"]))
    cache = layer.init_cache(BATCH, 320)
    for step in (x, *[x[:, :1]] * 9):
        _, cache = layer.step(step, cache)
    assert bare(cache.arrays["key_sum"]).ravel().tolist() == [309.0] * 2 * BATCH
    narrow = layer.init_cache(BATCH, 1, dtype="bfloat16").arrays
    for arrays, kind in ((cache.arrays, "float32"), (narrow, "bfloat16")):
        assert {str(x.dtype).rpartition(".")[2] for name, x in arrays.items() if name != "documents"} == {kind}


# In JAX, where each shape is compiled, of one variant.
ONCE = [(*first, tree) for first in first_examples() for tree in TREES if tree != "attn_jax" or first[0] == "mha"]


@pytest.mark.parametrize(("variant", "example", "tree"), ONCE)
def test_a_cache_keeps_its_dtypes(variant: str, example: str, tree: str) -> None:
    laws.a_cache_keeps_its_dtypes(contract.examples(variant)[example], lambda todo: decoder(todo, tree, jit=False))


class Numbered:
    """A contract that keeps tokens of each position beside its keys."""

    variant = "numbered"

    def cache_axes(self) -> dict[str, str]:
        return {"k": "b s", "numbers": "b s"}

    def arguments(self) -> dict[str, Arg]:
        return {"query": Arg("b t"), "numbers": Arg("b t", "integers")}

    def sizes(self) -> dict[str, int]:
        return {}

    def cache_slots(self) -> None:
        return None

    def why_no_cache(self) -> str:
        return ""


@pytest.mark.parametrize("tree", TREES)
def test_tokens_are_kept_as_integers(tree: str) -> None:
    """Every one of them, in a cache of 16 bits, too, and in the type they come in."""
    module, to, config = import_module(f"{tree}.attention.decode"), array_of(tree), Numbered()
    kind = to(np.zeros(1, DTYPES["bfloat16"])) if tree != "attn_torch" else to(np.zeros(1, np.float16))
    cache, found = module.empty_cache(config, BATCH, 5, {}, kind, kind), None
    numbers = np.array([[2049, 70001, 2**30 + 1, 3], [5, 257, 0, 2**31 - 1]], np.int32)
    for part in np.split(numbers, 2, axis=1):
        k = to(np.ones((BATCH, 2)).astype(np.float16))
        step = module.begin_step(config, cache, k, None)
        _, found = module.append(step, k=k, numbers=to(np.ascontiguousarray(part)))
        cache = module.end_step(step, k[:, :, None])[1]
    assert found is not None
    assert str(found.dtype).rpartition(".")[2] == "int32"
    assert bare(found)[:, :4].tolist() == numbers.tolist()


def ring_of(layer: Any) -> Any:
    """The same layer with a window of two keys."""
    tree, words = import_module(type(layer).__module__.partition(".")[0]), layer.config.as_dict()
    return tree.build("mha", dtype="float64", **words | {"window": (1, None)})


BAD: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "width": (lambda layer, x: layer.step(x[..., 1:], layer.init_cache(2, 1)), "query of shape (b, t, d=WIDTH), got"),
    "old keys": (
        lambda layer, x: layer.step(x[:, :1], layer.init_cache(2, 3), key=x, value=x),
        "keys of the new positions, s=t=1, got s=2; the cache holds the earlier ones, "
        "and keys of another sequence go to a layer with causal=False",
    ),
    "no cache": (lambda layer, x: layer.step(x, None), "a cache of TREE, got NoneType; call the layer's init_cache"),
    "another ring, of as many slots as a cache that was right": (
        lambda layer, x: (layer.step(x, layer.init_cache(2, 2)), layer.step(x, ring_of(layer).init_cache(2, 3))),
        "the cache's k of shape (2, 4, 3, 7), got (2, 3, 3, 7); call init_cache for this layer and batch",
    ),
    "weights": (
        lambda layer, x: layer.step(x, layer.init_cache(2, 3), return_weights=True),
        "no return_weights in a step, got return_weights=True; pass tape={} and read tape['probs']",
    ),
}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("mistake", BAD)
def test_a_step_that_cannot_be_right_is_refused(mistake: str, tree: str) -> None:
    todo = work("mha", "wide")
    layer = import_module(tree).build("mha", dtype="float64", **todo.config.as_dict())
    call, words = BAD[mistake]
    with pytest.raises((ValueError, TypeError)) as error:
        call(layer, array_of(tree)(todo.x[:, :2]))
    words = words.replace("WIDTH", str(todo.x.shape[-1])).replace("TREE", tree)
    assert str(error.value).startswith(f"mha: expected {words}")


@pytest.mark.parametrize(("variant", "example", "tree"), ONCE)
def test_steps_that_cannot_be_right_are_refused(variant: str, example: str, tree: str) -> None:
    todo = work(variant, example)
    layer = import_module(tree).build(variant, dtype="float64", **todo.config.as_dict())
    laws.steps_that_cannot_be_right_are_refused(todo, layer, array_of(tree))


def whole_arguments() -> list[tuple[str, str]]:
    """Every argument of a layer that decodes, by the first of its examples, that a step cannot take."""
    return [
        (variant, name)
        for variant, example in first_examples()
        for name, arg in contract.examples(variant)[example].arguments().items()
        if arg.kind in ("mask", "bias", "keep", "marks")
    ]


@pytest.mark.parametrize(("variant", "name"), whole_arguments())
def test_a_step_takes_nothing_with_an_axis_of_keys(variant: str, name: str) -> None:
    """Refused in all trees by the same words, with nothing written."""
    todo = work(variant, dict(first_examples())[variant])
    arg = todo.config.arguments()[name]
    for tree in TREES:
        layer, to = import_module(tree).build(variant, dtype="float64", **todo.config.as_dict()), array_of(tree)
        kept, x = layer.init_cache(BATCH, T, dtype="float64", **todo.sizes()), to(todo.x[:, :1])
        more = {n: to(a[:, :1]) for n, a in todo.more.items()}
        words = "mark padding by valid=" if arg.kind == "mask" else "call the layer on whole sequences"
        with pytest.raises(ValueError, match=f"^{variant}: expected step without {name}, got one; {words}"):
            layer.step(x, kept, **more, **{name: to(np.ones((1, 1), bool))})
        assert not any(bare(a).any() for a in kept.arrays.values())


@pytest.mark.parametrize("tree", TREES)
def test_none_is_left_out(tree: str) -> None:
    layer = import_module(tree).build("mha", d_model=6, num_heads=2, causal=True)
    x = array_of(tree)(np.ones((1, 1, 6), np.float32))
    y, _ = layer.step(x, layer.init_cache(1, 2), mask=None, bias=None, keep=None, return_weights=False)
    assert y.shape == x.shape


def test_a_cache_of_another_package_is_refused() -> None:
    layers = {tree: import_module(tree).build("mha", d_model=6, num_heads=2, causal=True) for tree in TREES}
    x = np.ones((1, 1, 6), np.float32)
    for tree in TREES:
        for other in set(TREES) - {tree}:
            with pytest.raises(
                TypeError, match=f"mha: expected a cache of {tree}, got {other}.attention.decode.Cache; call the"
            ):
                layers[tree].step(array_of(tree)(x), layers[other].init_cache(1, 2))


NO_CACHE: dict[str, tuple[str, dict[str, Any], str]] = {
    "mha": (
        "mha",
        {"d_model": 6, "num_heads": 2},
        "causal=False; build it with causal=True, or for cross-attention, which needs no cache, call layer(x, memory) "
        "at each step",
    ),
    "decoder": ("decoder", {"d_model": 6, "num_heads": 3, "causal": False}, "causal=False; build it with causal=True"),
    "queries": (
        "mha",
        {"d_model": 6, "num_heads": 2, "causal": True, "normalize_over": "queries"},
        "normalize_over='queries'; build it with normalize_over='keys'",
    ),
    "blocks of queries": (
        "block_sparse",
        {"d_model": 6, "num_heads": 2, "causal": True, "block_size": 2, "chosen_blocks": 1, "query_block": 2},
        "query_block=2; build it with query_block=1",
    ),
    "gru": ("gru", {"input_dim": 6, "hidden_dim": 6}, "one without a cache; call it on whole sequences"),
    "swin": (
        "swin",
        {"d_model": 6, "num_heads": 2, "window_size": 2, "height": 4, "width": 4},
        "a grid that is seen as a whole; call it on whole sequences",
    ),
    "bigbird": (
        "bigbird",
        {"d_model": 6, "num_heads": 2, "block_size": 2},
        "blocks that look ahead; call it on whole sequences",
    ),
}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("case", NO_CACHE)
def test_what_does_not_decode_refuses_caches_and_steps_in_the_same_words(case: str, tree: str) -> None:
    """Before anything else of the call is looked at."""
    variant, fields, words = NO_CACHE[case]
    build, x = import_module(tree).build, array_of(tree)(np.ones((1, 1, 6), np.float32))
    layer = build(variant, **fields)
    other = build("mha", d_model=6, num_heads=2, causal=True).init_cache(1, 2)
    empty = import_module(f"{tree}.attention.decode").Cache({}, other.positions, other.length, other.overflowed, 2)
    for call in (
        partial(layer.init_cache, 1, 2),
        partial(layer.init_cache, 0, 2),
        *(partial(layer.step, x, before) for before in (other, empty, None)),
    ):
        with pytest.raises(ValueError) as error:
            call()
        assert str(error.value) == f"{variant}: expected a layer that decodes, got {words}"


@pytest.mark.parametrize("tree", TREES)
def test_what_does_not_decode_says_why(tree: str) -> None:
    build = import_module(tree).build
    with pytest.raises(
        ValueError, match="mha: expected a layer that decodes, got causal=False; build it with causal=True"
    ):
        build("mha", d_model=6, num_heads=2).init_cache(2, 3)
    with pytest.raises(ValueError, match="additive: expected a layer that decodes"):
        build("additive", query_dim=6, hidden_dim=5).init_cache(2, 3)
    widths = {"mha": {"d_model": 6, "num_heads": 2}, "additive": {"query_dim": 6, "hidden_dim": 5}, "dot_product": {}}
    for (variant, fields), causal in product(widths.items(), (False, True)):
        words = "got normalize_over='queries'; build it with normalize_over='keys'"
        with pytest.raises(ValueError, match=f"{variant}: expected a layer that decodes, {words}"):
            build(variant, **fields, causal=causal, normalize_over="queries").init_cache(2, 3)
    with pytest.raises(ValueError, match="dot_product: expected sizes of k, v, got none; pass k=, v="):
        build("dot_product", causal=True).init_cache(2, 3)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("learning", list(product([False, True], repeat=3))[1:], ids=str)
def test_gradients_reach_every_step_before(learning: tuple[bool, ...], ragged: bool) -> None:
    """In torch the entries of earlier positions carry theirs, whichever steps have a gradient: those of the full pass,
    with parameters that have none.
    """
    import torch

    config = contract.config("mha", d_model=6, num_heads=2, causal=True)
    params = weights_of(config)
    layer = layer_of(INPUTS["torch"], config, params).requires_grad_(False)
    x = np.random.default_rng(0).normal(size=(BATCH, 5, 6))
    pieces = [torch.from_numpy(x[:, part]) for part in (slice(0, 2), slice(2, 3), slice(3, 5))]
    leaves = [piece.requires_grad_() for piece, learns in zip(pieces, learning, strict=True) if learns]
    cache, found = layer.init_cache(BATCH, 7, dtype="float64"), []
    for piece in pieces:
        valid = torch.ones(piece.shape[:2], dtype=torch.bool) if ragged else None
        y, cache = layer.step(piece, cache, valid=valid)
        found.append(y)
    y = torch.cat(found, 1)
    got = torch.autograd.grad(y, leaves, torch.from_numpy(cotangent(tuple(y.shape))))
    want, at = bounded(config, {"query": x}, params)["dquery"], np.repeat(learning, (2, 1, 2))
    assert ratio(np.concatenate(got, axis=1), want[:, at]) <= 1


@pytest.mark.parametrize("tree", ["attn_np", "attn_torch"])
def test_a_row_that_has_no_room_is_refused(tree: str) -> None:
    """Whichever row it is, and wherever among padding its positions stand; while every row has room, none is."""
    layer, to = import_module(tree).build("mha", d_model=2, num_heads=1, causal=True), array_of(tree)
    x, rows = to(np.ones((BATCH, 2, 2), np.float32)), np.array(list(product([False, True], repeat=2)))
    for four in product(rows, repeat=4):
        before, after = np.array(four[:2]), np.array(four[2:])
        _, cache = layer.step(x, layer.init_cache(BATCH, 3), valid=to(before))
        longest = (before.sum(1) + after.sum(1)).max()
        if longest <= 3:
            _, cache = layer.step(x, cache, valid=to(after))
            assert bare(cache.length).max() == longest
        else:
            with pytest.raises(ValueError, match="expected at most 3 positions in the cache, got 4"):
                layer.step(x, cache, valid=to(after))


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize(("variant", "example"), [("mha", "wide"), ("linear", "chunked")])
def test_a_copy_goes_on_by_itself(variant: str, example: str, tree: str) -> None:
    """Two ways from one place, each as without the other; where steps write into a cache, one used up is refused."""
    todo, to = work(variant, example), array_of(tree)
    layer = import_module(tree).build(variant, dtype="float64", **todo.config.as_dict())
    x = to(todo.x)
    _, start = layer.step(x[:, :3], layer.init_cache(BATCH, T))
    copied = start.copy()
    before = fields_of(copied)
    layer.step(x[:, 5:7], start)
    assert all(np.array_equal(field, before[name]) for name, field in fields_of(copied).items())
    y, _ = layer.step(x[:, 3:5], copied)
    whole, _ = layer.step(x[:, 3:5], layer.step(x[:, :3], layer.init_cache(BATCH, T))[1])
    assert bool((y == whole).all())
    if tree == "attn_jax":
        again, _ = layer.step(x[:, 3:5], start)
        assert bool((again == whole).all())
        return
    with pytest.raises(
        ValueError, match=f"{variant}: expected a cache that no step has used, got one used up; use the cache"
    ):
        layer.step(x[:, 3:5], start)
    with pytest.raises(
        ValueError, match="cache: expected a cache that no step has used, got one used up; use the cache"
    ):
        start.copy()


def test_dropout_is_for_training_only() -> None:
    layer = import_module("attn_np").build("mha", d_model=6, num_heads=2, causal=True, dropout=0.5).train()
    with pytest.raises(ValueError, match=r"mha: expected a layer in evaluation mode to decode with.*call eval\(\)"):
        layer.step(np.zeros((1, 1, 6), np.float32), layer.init_cache(1, 3))


PLANTED = (
    ("cumsum(is_real, 1) - 1", "cumsum(is_real, 1)"),
    ("- num_slots)\n", "- num_slots + 1)\n"),
    ("(self.key_positions[:, None, :] >= 0) & ", ""),
    ("where(stored, query_positions % num_slots, num_slots)", "where(stored, query_positions % num_slots, 0)"),
    ("self.key_positions, left, right)", "self.key_positions, left and left - 1, right)"),
    ("self.key_positions, left, right)", "self.key_positions, left, 1)"),
    ("step.concatenated else None", "False else None"),
    ("valid is None and start", "start"),
    ("start == longest and ", ""),
    ("start + t <= num_slots", "start + t <= cache.max_length"),
    ("DecodeStep(cache, start, start + t,", "DecodeStep(cache, start, start + t + 1,"),
    ("else write_slice(old, step.start, entry)", "else write_slice(old, 0, entry)"),
    ("old_cache.positions, step.start,", "old_cache.positions, step.start + 1,"),
    ("max_filled = min(longest + t, num_slots)", "max_filled = longest"),
)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("old", "new"), PLANTED)
def test_a_planted_bug_is_seen(old: str, new: str) -> None:
    """One mistake in the bookkeeping, and a chunking or a padded batch of one of two layers comes out wrong."""
    mutant = Mutant("decoding", SHARED, old, new, "mha", "wide", beside="class DecodeStep")
    with planted(mutant, "attn_np") as copy:
        seen = []
        for window in (None, (2, None)):
            todo = work("mha", "wide")
            config = replace(todo.config, window=window)
            todo = replace(todo, case=replace(todo.case, given=config))
            made, want = decoder(todo, "attn_np", copy), todo.full()
            real = np.array([[False, True, True, True, False, False, False], [True] * 7])
            try:
                seen += [wrong(made.run(todo, chunks), want) for chunks in CHUNKS]
                cache = made.init(BATCH, T)
                x = np.where(real[..., None], todo.x, np.nan)
                y, cache = made.step(x, cache, valid=real)
                seen += ["not finite"] * (not np.isfinite(y).all())
                seen += [wrong(y[:1, 1:4], todo.full(0, 1, 4))]
                seen += [wrong(y[1:], todo.full(1))]
                cache = made.init(BATCH, T)
                _, cache = made.step(x[:, :2], cache, valid=real[:, :2])
                for i in (2, 3):
                    y, cache = made.step(todo.x[:, i : i + 1], cache)
                    for row in (0, 1):
                        whole = todo.full(row, 1 - row, i + 1)
                        seen += [wrong(y[row : row + 1], whole[:, -1:])]
            except (ValueError, IndexError) as e:
                seen.append(str(e))
    assert any(seen)
