"""What nobody sees, hidden in every way and drawn at random: it reaches no output and no gradient, whatever it holds.

Who sees whom is computed from the words of the contract alone, and given to the textbook as a mask; the fast paths get
the causality, the window, the pattern and the mask of which it is made.
"""

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import attn_np
from attn_np import patterns
from parity_tests.judge import kernels
from parity_tests.tests.inputs import TREES, Arrays, Tree
from parity_tests.tests.kernels.test_kernels import V, fused, held, judged

H, K = 6, 5
WAYS = ("causal", "before", "after", "pattern", "mask", "padding", "bias")
LENGTHS = ((7, 7), (5, 11), (11, 5), (1, 9), (9, 1))


def edge(rng: np.random.Generator, t: int, s: int) -> int:
    """A limit of a window, mostly at one of the places where windows change their meaning."""
    edges = (0, 1, t - 2, t - 1, s - 2, s - 1, s, s - t - 1, t - s - 1)
    return max(0, int(rng.choice(edges)))


def call(seed: int) -> tuple[Arrays, dict[str, Any], Arrays, np.ndarray]:
    """Arrays and options of a call, those of the same call for the textbook, and who sees whom, `b h t s`."""
    rng = np.random.default_rng(seed)
    t, s = LENGTHS[seed % len(LENGTHS)]
    g = int(rng.choice([1, 2, 3, 6]))
    shapes = {"q": (2, t, H, K), "k": (2, s, g, K), "v": (2, s, g, V)}
    inputs: Arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    options: dict[str, Any] = {}
    sees = np.ones((2, H, t, s), bool)
    at, to = np.arange(t)[:, None] + s - t, np.arange(s)[None]
    ways = rng.choice(WAYS, rng.integers(1, 5), replace=False)
    if "causal" in ways:
        options["causal"], sees = True, sees & (to <= at)
    left, right = (edge(rng, t, s) if way in ways else None for way in ("before", "after"))
    if left is not None or right is not None:
        options["window"] = left, right
        sees = sees & (True if left is None else to >= at - left) & (True if right is None else to <= at + right)
    if "pattern" in ways:
        size, rest = int(rng.integers(2, 5)), int(rng.integers(3))
        numbers = [rng.integers(-1, 3, n) for n in ((2, t), (2, s))]
        options["pattern"], shown = (
            (patterns.Chunks(size), at // size == to // size),
            (patterns.Documents(*numbers), numbers[0][:, None, :, None] == numbers[1][:, None, None]),
            (patterns.ChosenChunk(size, numbers[0]), to // size == numbers[0][:, None, :, None]),
        )[rest]
        sees = sees & shown
    if "mask" in ways:
        axes = rng.random(4) < 0.5
        mask = rng.random([n if own else 1 for own, n in zip(axes, sees.shape, strict=True)]) < 0.7
        inputs["mask"], sees = mask, sees & mask
    elif "padding" in ways:
        first, last = rng.integers(s, size=2), rng.integers(s + 1, size=2)
        mask = ((to >= first[:, None]) & (to < np.maximum(last, first + 1)[:, None]))[:, None, None]
        inputs["mask"], sees = mask, sees & mask
    textbook = dict(inputs)
    if "bias" in ways:
        bias = rng.normal(size=(H, t, s))
        bias[:, :, rng.integers(s)] = bias[:, rng.integers(t)] = bias[0, rng.integers(t), rng.integers(s)] = -np.inf
        inputs["bias"] = textbook["bias"] = bias  # what it alone hides must be finite
    if rng.random() < 0.3:
        options["softcap"] = 1.5
    if rng.random() < 0.3:
        inputs["sinks"] = textbook["sinks"] = rng.normal(size=H)
    return inputs, options, textbook | {"mask": sees}, sees


@pytest.mark.parametrize("tree", [TREES["numpy"], TREES["torch"]], ids=["numpy", "torch"])
def test_who_sees_anything_and_what_anybody_sees(tree: Tree) -> None:
    """Without a matrix of `t s`, by causality, window and a mask of any axes: as that matrix says."""
    masks = import_module(f"{tree.package.__name__}._masks")
    for seed in range(100):
        inputs, options, _, sees = call(seed)
        if "pattern" in options:
            continue
        (_, t, _, _), s, like = inputs["q"].shape, inputs["k"].shape[1], tree.array(inputs["q"])
        mask = tree.array(inputs["mask"]) if "mask" in inputs else None
        for found, spec, want in zip(
            masks.visibility(mask, t, s, like=like, **options_of_places(options)),
            ("bhts->bht", "bhts->bhs"),
            (sees.any(3), sees.any(2)),
            strict=True,
        ):
            got = True if found is None else tree.numpy(masks.any_visible(spec, found))
            assert (np.broadcast_to(got, want.shape) == want).all(), (seed, spec)


def options_of_places(options: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in options.items() if name in ("causal", "window")}


@pytest.mark.parametrize(("name", "at"), [("q", (0, 2)), ("k", (0, 5)), ("v", (0, 5)), ("dy", (0, 2))])
def test_the_gradient_of_what_nobody_sees_is_0_whatever_is_seen(name: str, at: Any) -> None:
    """NaN in what is seen reaches neither a key that no query sees nor a query that sees no key."""
    rng = np.random.default_rng(0)
    arrays = {n: rng.normal(size=(2, length, H, K)) for n, length in (("q", 7), ("k", 9), ("v", 9), ("dy", 7))}
    mask = np.ones((7, 9), bool)
    mask[4], mask[:, 3] = False, False
    arrays[name][at] = np.nan
    q, k, v, dy = arrays.values()
    with np.errstate(invalid="ignore"):
        _, pull = attn_np.value_and_vjp(attn_np.attend, q, k, v, mask=mask, implementation="textbook")
        grads = pull(dy).inputs
    assert not grads["q"][:, 4].any() and not grads["k"][:, 3].any() and not grads["v"][:, 3].any()


@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_sequences_of_a_batch_have_documents_of_their_own(tree: Tree, row: int) -> None:
    """One has a single document, whose queries must see all its keys; the others hide most of theirs."""
    rng = np.random.default_rng(row)
    inputs: Arrays = {name: rng.normal(size=(3, 11, H, K)) for name in "qkv"}
    inputs["v"] = inputs["v"][..., :V]
    numbers = np.arange(11)[None] // np.array([2, 3, 4])[:, None]
    numbers[row] = 0
    want = held(inputs | {"mask": (numbers[:, :, None] == numbers[:, None])[:, None]}, {})
    numbers = tree.array(numbers)
    for setting in (kernels.SMALL[tree.name][0], *([] if tree.name == "jax" else [{}])):
        with kernels.blocks(tree.package.__name__, setting):
            judged(fused(tree, inputs, {"pattern": patterns.Documents(numbers, numbers)}), want)


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_sink_of_minus_infinity_is_none(tree: Tree) -> None:
    """Also of a query that sees no key."""
    rng = np.random.default_rng(0)
    inputs: Arrays = {name: rng.normal(size=(2, 9, H, w)) for name, w in (("q", K), ("k", K), ("v", V))}
    inputs["mask"] = rng.random((2, 1, 9, 9)) < 0.6
    inputs["mask"][0, :, 2] = False
    want = held(inputs, {})
    for setting in (kernels.SMALL[tree.name][0], *([] if tree.name == "jax" else [{}])):
        with kernels.blocks(tree.package.__name__, setting):
            got = fused(tree, inputs | {"sinks": np.full(H, -np.inf)}, {})
        assert not got.pop("dsinks").any()
        judged(got, want)
