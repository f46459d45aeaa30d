"""What nobody sees reaches no gradient, whatever is seen; who sees anything, by causality, window and masks of any
axes; documents of each sequence's own, and sinks of -inf.

Who sees whom is computed from the words of the contract alone.
"""

from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
import pytest

import attn_np
from attn_np import patterns
from parity_tests.judge import kernels
from parity_tests.judge.cases import given
from parity_tests.tests.inputs import EXAMPLES, TREES, Arrays, Tree, config_of, random_inputs, without
from parity_tests.tests.kernels.test_dependence import drawn
from parity_tests.tests.kernels.test_kernels import V, fused, held, judged
from parity_tests.tests.witness import layer_of, weights_of

H, K = 6, 5


@pytest.mark.parametrize("tree", [TREES["numpy"], TREES["torch"]], ids=["numpy", "torch"])
def test_who_sees_anything_and_what_anybody_sees(tree: Tree) -> None:
    """By causality, window, a pattern and a mask of any axes, mostly without a matrix of `t s`: as that matrix says."""
    masks = import_module(f"{tree.package.__name__}.attention.masks")
    for seed in range(300):
        call = drawn(seed)
        if set(call.options) & {"offset", "lengths"}:
            continue
        (_, _, t, s), like = call.shown.shape, tree.array(call.inputs["q"])
        mask = tree.array(call.inputs["mask"]) if "mask" in call.inputs else None
        options = {name: x for name, x in call.options.items() if name in ("causal", "window")}
        pattern = call.options.get("pattern")
        options["pattern"] = pattern and pattern.map(lambda axes, x: tree.array(x))
        for found, spec, want in zip(
            masks.query_and_key_masks(mask, t, s, like=like, **options),
            ("bhts->bht", "bhts->bhs"),
            (call.shown.any(3), call.shown.any(2)),
            strict=True,
        ):
            got = True if found is None else tree.numpy(masks.any_visible(spec, found))
            assert (np.broadcast_to(got, want.shape) == want).all(), (seed, spec)


@pytest.mark.parametrize("tree", [TREES["numpy"], TREES["torch"]], ids=["numpy", "torch"])
def test_who_sees_anything_by_a_pattern_alone(tree: Tree) -> None:
    """Where queries and keys have the same positions, too, which some patterns need no matrix for."""
    query_and_key_masks = import_module(f"{tree.package.__name__}.attention.masks").query_and_key_masks
    for seed, t, kind in product(range(3), (6, 9), range(kernels.PATTERN_KINDS)):
        pattern, pairs = kernels.drawn_pattern(np.random.default_rng([seed, t, kind]), 2, t, 9, kind)
        pattern = pattern.map(lambda axes, x: tree.array(x))
        found = query_and_key_masks(None, t, 9, like=tree.array(np.zeros(())), pattern=pattern)
        for allowed, axis in zip(found, (3, 2), strict=True):
            got = True if allowed is None else tree.numpy(allowed).any(axis)
            assert np.all(got == pairs.any(axis)), (pattern, t, axis)


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


def by_heads() -> list[tuple[str, str]]:
    """Examples whose mask may differ from head to head, but for those that mix their heads' scores or weights."""
    return [
        (variant, example)
        for variant, example in EXAMPLES
        if "mask" in config_of(variant, example).arguments()
        and "h" in config_of(variant, example).arguments()["mask"].axes.split()
        and variant != "talking_heads"
        and config_of(variant, example).sizes().get("g", 2) > 1
    ]


@pytest.mark.parametrize(("variant", "example"), by_heads())
def test_what_one_head_sees_reaches_no_other(variant: str, example: str) -> None:
    """NaN at a key that the queries of one key/value head see alone: the contexts of the others have none."""
    config = without(config_of(variant, example), dropout=0.0)
    sizes, at = config.sizes(), 1
    h, r = sizes["h"], sizes["h"] // sizes.get("g", sizes["h"])
    inputs = random_inputs(config, [*given(config, "plain"), "mask"], t=5, s=5)
    mask = np.ones((1, h, *inputs["mask"].shape[2:]), bool)
    mask[:, r:, :, at] = False
    if "key" not in inputs:
        mask[:, r:, at] = False
    inputs["mask"] = mask
    for name in ("key", "value") if "key" in inputs else ("query",):
        if name in inputs:
            inputs[name][:, at] = np.nan
    with np.errstate(all="ignore"):
        _, tape = attn_np.trace(layer_of(TREES["numpy"], config, weights_of(config)), **inputs)
    assert np.isfinite(np.delete(tape["context"][:, :, r:], [] if "key" in inputs else [at], axis=1)).all()


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
