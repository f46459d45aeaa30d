"""What keys chosen by scores must be: those of the largest scores, and all that a query reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np

from attn_np.contract import mla
from parity_tests.judge.candidates import numpy_layer
from parity_tests.tests.inputs import Arrays, normal
from parity_tests.tests.mutation.calls import Parts, case_of, claim, same
from parity_tests.tests.witness import bounded, cotangent, ratio, weights_of

# 19 positions are more than six for each of three chosen ones: such a call reads these alone.
T = 19
INDEXED = mla.Config(
    d_model=7, num_heads=3, kv_rank=5, nope_dim=3, rope_dim=2, value_head_dim=4, causal=True,
    index_keys=3, index_heads=5, index_dim=6,
)  # fmt: skip
CONFIGS = tuple(
    replace(INDEXED, causal=causal, absorbed=absorbed) for causal, absorbed in product((True, False), (False, True))
)
# Numbers that a block has at most: all at once, some queries, one.
BLOCKS = 2**20, 900, 1


@contextmanager
def in_blocks(chosen: Any, numbers: int) -> Iterator[None]:
    before = chosen.BLOCK_NUMBERS
    chosen.BLOCK_NUMBERS = numbers
    try:
        yield
    finally:
        chosen.BLOCK_NUMBERS = before


@cache
def expected(config: mla.Config) -> tuple[Arrays, Arrays, dict[str, Any]]:
    """Inputs, weights, and what the reference gives, with its bounds: it hides keys by a mask."""
    inputs, weights = {"query": normal(2, T, config.d_model)}, weights_of(config)
    return inputs, weights, bounded(config, inputs, weights)


def chosen_alone(alias: str) -> None:
    """A call that reads its chosen keys alone gives what a mask gives, gradients too, in one block or in many."""
    package, chosen = import_module(alias), import_module(f"{alias}.attention.chosen")
    for config, numbers in product(CONFIGS, BLOCKS):
        inputs, weights, want = expected(config)
        layer, words = numpy_layer(case_of(("mla", config), "plain"), weights, alias), f"{config}, {numbers}"
        with in_blocks(chosen, numbers):
            y, pull = package.value_and_vjp(layer, inputs["query"])
            grads = pull(cotangent(y.shape))
            claim(ratio(layer(**inputs), want["y"]) <= 1, f"without gradients: {words}")
        tape: dict[str, Any] = {}
        by_mask = layer(**inputs, tape=tape)
        claim(tape["chosen"].shape == (2, T, 3), "the choice is on the tape")
        for way, x, g in (("alone", y, grads), ("by a mask", by_mask, layer.vjp(tape, cotangent(y.shape)))):
            found = {"y": x} | {f"d{name}": grad for name, grad in (g.inputs | g.params).items()}
            for name, x in found.items():
                claim(ratio(x, want[name]) <= 1, f"{name}, {way}: {words}")
        ways = {
            "weights": layer(**inputs, return_weights=True)[0],
            "textbook": layer(**inputs, implementation="textbook"),
        }
        for name, y in ways.items():
            claim(ratio(y, want["y"]) <= 1, f"{name}: {words}")


def chosen_at_once(alias: str) -> None:
    """A block has as many queries as its numbers allow: scores and their sum, then keys, values and weights."""
    package: Any = import_module(alias)
    chosen: Any = import_module(f"{alias}.attention.chosen")
    b, n, h = 2, 3, 3
    asked, queries_at_once = [], chosen.queries_at_once
    claim([queries_at_once(x) for x in (0, 2**19, 2**20 + 1)] == [2**20, 2, 1], "queries of a block")
    chosen.queries_at_once = lambda numbers: asked.append(numbers) or queries_at_once(numbers)
    try:
        for config, (g, width, v) in zip(CONFIGS, ((3, 5, 4), (1, 7, 5)) * 2, strict=True):
            inputs, weights, want = expected(config)
            layer = numpy_layer(case_of(("mla", config), "plain"), weights, alias)
            y, pull = package.value_and_vjp(layer, inputs["query"])
            pull(cotangent(y.shape))
            scores = b * T * (5 + 2)
            read, back = b * g * n * (width + v + h // g), b * g * (n * (width + v) + h // g * T)
            numbers = [scores] * (2 if config.causal else 1) + [read, back]
            claim(asked == numbers, f"{config}: {asked}, not {numbers}")
            asked.clear()
    finally:
        chosen.queries_at_once = queries_at_once


def chosen_in_steps(alias: str) -> None:
    """Steps choose among the keys so far; a mask, of all heads or of each, and a bias are seen by the choice."""
    config = CONFIGS[1]
    inputs, weights, want = expected(config)
    layer = numpy_layer(case_of(("mla", config), "plain"), weights, alias)
    cache, parts = layer.init_cache(2, T), []
    for start, stop in ((0, 16), (16, 18), (18, T)):
        y, cache = layer.step(inputs["query"][:, start:stop], cache)
        parts.append(y)
    claim(ratio(np.concatenate(parts, 1), want["y"]) <= 1, "steps")
    hidden = np.random.default_rng(3).uniform(size=(2, config.num_heads, T, T)) > 0.3
    for mask in (hidden[:, :1], hidden):
        masked = {"mask": mask} | inputs
        biased = {"bias": np.where(mask, 0.0, -np.inf)} | inputs
        want = bounded(config, masked, weights)
        claim(ratio(layer(**masked), want["y"]) <= 1, "a mask")
        claim(ratio(layer(**biased), bounded(config, biased, weights)["y"]) <= 1, "a bias that hides")


def chosen_places(alias: str) -> None:
    """The largest entries in order, of equals the first; NaN is the largest; more are asked for than there are."""
    parts = Parts(alias)
    x = np.array([[0.5, 2.0, 2.0], [-4.0, np.nan, -5.0]])
    for count, want in (
        (1, [[1], [1]]),
        (2, [[1, 2], [1, 0]]),
        (3, [[1, 2, 0], [1, 0, 2]]),
        (0, np.zeros((2, 0), int)),
    ):
        claim(same(parts.largest_indices(x, count), np.array(want, int)), f"the {count} largest")
    places = parts.top_k_indices(np.array([[1.0, 3.0]]), np.array([[True, True]]), 4)
    claim(same(places, np.array([[1, 0, 2, 2]])), "more than there are")
    marks = parts.mark_indices(np.array([[2, 0], [3, 3], [3, 1]]), 3)
    claim(same(marks, np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0]], bool)), "marks of indices, and of none")
    claim(parts.largest_indices(np.zeros((0, 5)), 2).shape == (0, 2), "of no rows")
