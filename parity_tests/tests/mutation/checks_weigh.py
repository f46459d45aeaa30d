"""What weights that are no softmax must be: block by block those of all rows at once, whatever the rows hold."""

from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from attn_np import contract, ops
from attn_np.contract import Config
from attn_np.contract._tape import BackwardTape
from attn_np.contract._weighing import Weighing
from attn_np.normalizers import sparse
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import fast_precision_of, precision, precision_of
from parity_tests.judge.candidates import numpy_layer
from parity_tests.judge.cases import Case, Drawn
from parity_tests.judge.judging import compare, reference
from parity_tests.tests.inputs import random_inputs
from parity_tests.tests.mutation.calls import claim
from parity_tests.tests.mutation.checks_rows import small_blocks
from parity_tests.tests.witness import cotangent, weights_of

WIDTH = 50  # of the rows: groups of 16 and a rest
GROUP, KEYS = 3, 4
VARIANTS = ("sigmoid_attention", "entmax_attention", "talking_heads", "differential")


def rows() -> dict[str, np.ndarray]:
    """Scores that a threshold is found in by one step, by many, or not at all."""
    rng = np.random.default_rng(0)
    alone = np.full(WIDTH, -1e9)
    alone[-1] = 3.0
    found = {f"normal times {n:g}": rng.normal(size=WIDTH) * n for n in (1e-9, 0.1, 1.0, 30.0, 1e6)}
    found |= {"equal": np.full(WIDTH, -7.25), "one alone": alone, "a slope": np.linspace(0, -3, WIDTH)}
    found |= {"two of all": np.where(np.arange(WIDTH) % 20 == 3, 0.0, -0.999)}
    found |= {"all -inf": np.full(WIDTH, -np.inf), "some -inf": np.where(np.arange(WIDTH) % 3, -np.inf, 1.0)}
    for x in (np.nan, np.inf):
        found[f"a {x}"] = np.where(np.arange(WIDTH) == 20, x, rng.normal(size=WIDTH))
    return found


def masks() -> tuple[np.ndarray | None, ...]:
    """No mask, one that hides some keys, one that hides all."""
    shape = (len(rows()), WIDTH)
    return None, np.broadcast_to(np.arange(WIDTH) % 4 == 1, shape), np.zeros(shape, np.bool_)


def wanted(name: str, scores: np.ndarray, allowed: np.ndarray | None) -> Any:
    """The textbook's weights with their bounds."""
    with precision(precision_of("float64")), np.errstate(all="ignore"):
        if name != "sigmoid":
            return getattr(sparse, name)(ErrArray(scores, 0.0), allowed)
        weights = ops.sigmoid(ErrArray(scores, 0.0) + 0.5)
        return weights if allowed is None else ops.where(allowed, weights, 0.0)


@cache
def expected(name: str) -> tuple[Any, ...]:
    """Those of `rows`, with each of the masks."""
    return tuple(wanted(name, np.stack(list(rows().values())), allowed) for allowed in masks())


def weighed_rows(alias: str) -> None:
    """Rows of every kind get the textbook's weights."""
    room = import_module(f"{alias}.kernels.weigh")
    for name in ("sigmoid", "sparsemax", "entmax15"):
        for allowed, want in zip(masks(), expected(name), strict=True):
            scores = np.stack(list(rows().values()))
            with np.errstate(all="ignore"):
                room.weigh_(Weighing(name, 1.0, None, 0.5), scores, allowed)
            found = compare(scores, want)
            claim(found["ratio"] <= 1, f"{name}: {list(rows())[found['index'][0]]}")


@cache
def calls() -> tuple[tuple[str, Config, dict[str, Any], dict[str, Any], dict[str, Any]], ...]:
    """Layers with all arguments but dropout: name, config, inputs, parameters, and the results with their bounds."""
    found = []
    for variant in VARIANTS:
        for name, example in contract.examples(variant).items():
            config: Any = replace(example, dropout=0.0)
            for t, s, left_out in ((11, 13, ("keep",)), (13, 7, ("keep",)), (6, 5, ("keep", "mask", "bias"))):
                inputs: Any = random_inputs(config, "full", t=t, s=s)
                inputs = {n: x for n, x in inputs.items() if n not in left_out}
                params, exact = weights_of(config), fast_precision_of("numpy", "float64")
                case = Case(variant, "", "", "float64", given=config)
                outputs, grads = reference(case, Drawn(inputs, params, 0), {}, exact)
                found.append((f"{variant}/{name}", config, inputs, params, outputs | grads))
    return tuple(found)


def weighed_blocks(alias: str) -> None:
    """In small blocks, forward and backward."""
    room: Any = import_module(f"{alias}.kernels.weigh")
    before = room.SCORES_PER_MAXIMUM, room.BLOCK_KEYS
    room.SCORES_PER_MAXIMUM, room.BLOCK_KEYS = GROUP, KEYS
    try:
        with small_blocks(import_module(f"{alias}.attention.row_blocks")):
            for name, config, inputs, params, want in calls():
                layer = numpy_layer(Case(config.variant, "", "", "float64", given=config), params, alias)
                tape: Any = BackwardTape()
                y = layer(**inputs, tape=tape)
                back = layer.vjp(tape, cotangent(y.shape))
                found = {"y": y} | {f"d{n}": x for n, x in (back.inputs | back.params).items()}
                for n, x in found.items():
                    claim(compare(x, want[n], "float64" if n == "y" else None)["ratio"] <= 1, f"{name}: {n}")
    finally:
        room.SCORES_PER_MAXIMUM, room.BLOCK_KEYS = before
