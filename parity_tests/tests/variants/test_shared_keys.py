"""Layers that share the keys and values of an earlier one: with one input they are that layer, to the last bit."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from flax import nnx

from attn_np.contract.decoder import Config
from parity_tests.tests.inputs import TREES, Arrays, Tree, normal, same
from parity_tests.tests.witness import bounded, layer_of, ratio, weights_of

OWN = Config(
    d_model=6, num_heads=4, num_kv_heads=2, head_dim=4, value_head_dim=3, norm="rms", qkv_bias=True, gate=True,
    rotary_dim=2, rope_scaling="proportional", rope_base=100.0, max_positions=32,
)  # fmt: skip
WINDOW = replace(OWN, window=(2, None))
PAIRS = {"all keys": OWN, "window": WINDOW, "no norm": replace(OWN, norm=None, value_norm=True)}


def twins(tree: Tree, config: Config) -> tuple[Any, Any]:
    """A layer, and one with the same weights that shares its keys and values."""
    params = weights_of(config)
    shares = replace(config, shared_kv=True, value_norm=False)
    kept = {name: x for name, x in params.items() if name in shares.params()}
    assert set(params) - set(kept) == {"w_k", "w_v", "b_k", "b_v", *(["w_k_norm"] if config.norm else [])}
    return layer_of(tree, config, params), layer_of(tree, shares, kept)


def call_inputs(config: Config, t: int = 7) -> Arrays:
    mask = np.ones((2, 1, 1, t), bool)
    mask[1, ..., :2] = False
    return {"query": normal(2, t, config.d_model), "mask": mask, "positions": np.arange(t) + np.array([[0], [5]])}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("pair", PAIRS)
def test_with_the_same_input_it_is_the_layer(tree: Tree, pair: str) -> None:
    """With padding that is NaN, too, on either side of the sharing."""
    own, shares = twins(tree, PAIRS[pair])
    inputs = call_inputs(PAIRS[pair])
    inputs["query"][1, :2] = np.nan
    given = tree.arrays(inputs)
    want = tree.numpy(own(**given))
    k, v = own.keys_and_values(**given)
    assert same(tree.numpy(shares(**given, shared_k=k, shared_v=v)), want)
    hidden = np.broadcast_to(inputs["mask"][:, 0, 0, :, None, None], (2, 7, 1, 1))
    k, v = (tree.array(np.where(hidden, tree.numpy(x), np.nan)) for x in (k, v))
    assert same(tree.numpy(shares(**given, shared_k=k, shared_v=v)), want)


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("pieces", [(3, 1, 2), (1,) * 6], ids=["pieces", "ones"])
@pytest.mark.parametrize("pair", PAIRS)
def test_steps_read_the_cache_of_the_layer(tree: Tree, pair: str, pieces: tuple[int, ...]) -> None:
    """Sequences of one length, and of several, where some new positions are not real."""
    config = replace(PAIRS[pair], max_positions=None)
    if pair == "window" and pieces[0] > 1:
        pytest.skip("a cache of the last positions alone is read one at a time")
    own, shares = twins(tree, config)
    x = normal(2, 6, config.d_model)
    real = np.ones((2, 6), bool)
    real[0, [1, 2]] = real[1, 0] = False
    for valid in (None, real):
        cache, start = own.init_cache(2, 8), 0
        for n in pieces:
            piece = tree.array(np.where(real[..., None] | (valid is None), x, np.nan)[:, start : start + n])
            marks: Any = {} if valid is None else {"valid": tree.array(valid[:, start : start + n])}
            y, cache = own.step(piece, cache, **marks)
            held = [tree.numpy(array).copy() for array in (*cache.arrays.values(), cache.positions)]
            z, after = shares.step(piece, cache, **marks)
            asked = np.ones((2, n), bool) if valid is None else valid[:, start : start + n]
            assert same(tree.numpy(z)[asked], tree.numpy(y)[asked])
            assert all(map(same, held, (tree.numpy(array) for array in (*after.arrays.values(), after.positions))))
            cache, start = after, start + n


def test_gradients_go_back_to_the_layer() -> None:
    """NumPy's, by hand: of one layer whose keys two read, in its parts; the whole is the sum, and exact at first."""
    own, shares = twins(TREES["numpy"], OWN)
    numpy = TREES["numpy"].package
    inputs = call_inputs(OWN)
    y, tape = numpy.trace(own, **inputs)
    dy = normal(*y.shape)
    want = own.vjp(tape, dy)
    k, v = own.keys_and_values(**inputs)
    _, shared_tape = numpy.trace(shares, **inputs, shared_k=k, shared_v=v)
    later = shares.vjp(shared_tape, dy)
    _, tape = numpy.trace(own, **inputs)
    first = own.vjp(tape, 0.0 * dy, later.inputs["shared_k"], later.inputs["shared_v"])
    for name, x in want.params.items():
        assert np.array_equal(first.params[name] + later.params.get(name, 0.0), x), name
    assert np.array_equal(first.inputs["query"] != 0, later.inputs["query"] != 0)


def torch_gradients(call: Any, layers: Any, dy: np.ndarray) -> list[Arrays]:
    named = [dict(layer.named_parameters()) for layer in layers]
    wanted = [p for params in named for p in params.values()]
    options: Any = {"materialize_grads": True, "allow_unused": True}
    grads = iter(torch.autograd.grad(call(*layers), wanted, torch.from_numpy(dy), **options))
    return [{name: next(grads).numpy() for name in params} for params in named]


def jax_gradients(call: Any, layers: Any, dy: np.ndarray) -> list[Arrays]:
    run = nnx.grad(lambda *layers: (call(*layers) * dy).sum(), argnums=tuple(range(len(layers))))
    return [{name: np.asarray(x) for name, x in nnx.to_pure_dict(grads).items()} for grads in run(*layers)]


@pytest.mark.parametrize("tree", ["torch", "jax"])
def test_frameworks_differentiate_through_the_sharing(tree: str) -> None:
    """The parameters' gradients are those of the layer itself, as no sum is in another order."""
    own, shares = twins(TREES[tree], OWN)
    inputs = call_inputs(OWN)
    given, dy = TREES[tree].arrays(inputs), normal(2, 7, OWN.d_model)
    gradients = torch_gradients if tree == "torch" else jax_gradients

    def call(own: Any, shares: Any) -> Any:
        k, v = own.keys_and_values(**given)
        return shares(**given, shared_k=k, shared_v=v)

    (want,), (first, later) = gradients(lambda own: own(**given), (own,), dy), gradients(call, (own, shares), dy)
    assert want.keys() == first.keys()
    for name, x in want.items():
        assert np.any(x != 0) and np.array_equal(first[name] + later.get(name, 0.0), x), name


SHARED = replace(OWN, shared_kv=True)
REFUSED: dict[str, tuple[Any, str]] = {
    "no keys": (
        lambda tree, own, shares, x: shares(x),
        "expected shared_k (b=2, t=7, g=2, k=4), got None; pass shared_k=",
    ),
    "keys of its own": (
        lambda tree, own, shares, x: own(x, shared_k=x, shared_v=x),
        "expected no shared_k in a layer with keys of its own, got some; build it with shared_kv=True",
    ),
    "its own keys asked": (
        lambda tree, own, shares, x: shares.keys_and_values(x),
        "expected a layer with keys of its own for keys_and_values, got shared_kv=True; ask the layer whose",
    ),
    "a cache of its own": (
        lambda tree, own, shares, x: shares.init_cache(2, 8),
        "expected a layer with keys of its own for init_cache, got shared_kv=True; pass step the cache that the",
    ),
    "a step before the layer's": (
        lambda tree, own, shares, x: shares.step(x, own.init_cache(2, 8)),
        "expected a cache that holds the 7 new positions, got 0 positions; let the layer whose keys it shares",
    ),
    "keys in a step": (
        lambda tree, own, shares, x: shares.step(x, own.step(x, own.init_cache(2, 8))[1], shared_k=x),
        "expected step without shared_k, got one; pass the cache that the other layer's step returned",
    ),
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("why", REFUSED)
def test_refused(tree: Tree, why: str) -> None:
    own, shares = twins(tree, OWN)
    do, words = REFUSED[why]
    if why == "a step before the layer's" and tree.name == "jax":
        return  # whose lengths are not read
    with pytest.raises((ValueError, TypeError)) as caught:
        do(tree, own, shares, tree.array(normal(2, 7, OWN.d_model)))
    assert str(caught.value).startswith(f"decoder: {words}")


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_several_positions_in_a_ring_are_refused(tree: Tree) -> None:
    """The last of them overwrite keys that the first see."""
    own, shares = twins(tree, replace(WINDOW, max_positions=None))
    x = tree.array(normal(2, 4, OWN.d_model))
    _, cache = own.step(x, own.init_cache(2, 8))
    with pytest.raises(ValueError, match="one new position at a time in a cache of the last 3 of 8 positions, got 4"):
        shares.step(x, cache)


def test_keys_are_shared_over_devices() -> None:
    """Each device has its part of them; without them the call is refused in words."""
    numpy = TREES["numpy"].package
    own, shares = twins(TREES["numpy"], replace(OWN, max_positions=None))
    x = normal(2, 8, OWN.d_model)
    cut = partial(numpy.parallel.to_devices, devices=4, layout="zigzag")
    k, v = map(cut, own.keys_and_values(x))
    y = numpy.parallel.apply(shares, cut(x), layout="zigzag", shared_k=k, shared_v=v)
    want = bounded(shares.config, {"query": x, "shared_k": own.keys_and_values(x)[0],
                                   "shared_v": own.keys_and_values(x)[1]}, shares.params())["y"]  # fmt: skip
    assert ratio(numpy.parallel.from_devices(y, layout="zigzag"), want) <= 1
    with pytest.raises(TypeError, match=r"decoder: expected shared_k \(.*, got None; pass shared_k="):
        numpy.parallel.apply(shares, cut(x), layout="zigzag")
