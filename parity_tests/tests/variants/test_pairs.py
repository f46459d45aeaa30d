"""Every two options of a variant together: the reference against the witness, and its backward against PyTorch's."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import combinations

import numpy as np
import pytest
import torch

from attn_np import contract
from parity_tests.judge import kernels
from parity_tests.judge.candidates import call_numpy, from_torch, to_torch
from parity_tests.judge.cases import Case, Drawn
from parity_tests.tests.inputs import TREES, flat
from parity_tests.tests.variants.pairs import any_call, covering, pairs, values
from parity_tests.tests.witness import bounded, cotangent, layer_of, ratio, weights_of


def test_every_pair_of_values_that_fit_meets() -> None:
    """In `mha`, whose fields hardly depend on each other, nearly all."""
    fields, examples = values("mha"), contract.examples("mha").values()
    met = set().union(*(pairs(config, fields) for config in (*examples, *(c for _, c in covering("mha")))))
    assert len(met) > 0.9 * sum(len(fields[a]) * len(fields[b]) for a, b in combinations(fields, 2))


# Of `row_blocks`, so that every call has many scores, and blocks of few.
SMALL_ROWS = {"ONE_BLOCK_SCORES": 0, "BLOCK_SCORES": 8, "CPU_BLOCK_SCORES": 8, "MIN_ROWS": 2}


@contextmanager
def constants(tree: str, values: dict[str, int]) -> Iterator[None]:
    """A tree's `row_blocks` with other constants, of those that it has."""
    module = import_module(f"{tree}.attention.row_blocks")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            if hasattr(module, name):
                patch.setattr(module, name, value)
        yield


# Of the configs of a variant, every third from one on.
THIRDS = {"first third": 0, "second third": 1, "last third": 2}


@pytest.mark.parametrize("variant", contract.variants())
@pytest.mark.parametrize("row", THIRDS)
def test_options_in_pairs(variant: str, row: str) -> None:
    """Of any call: some of its arguments, of any sizes, on the fast paths, every second time in small blocks.

    By default one config in three is asked.
    """
    witness = import_module(f"parity_tests.tests.variants.test_{variant}").witness
    wrong = {}
    for number, (name, config) in list(enumerate(covering(variant)))[THIRDS[row] :: 3]:
        rng = np.random.default_rng([number, *variant.encode()])
        inputs, params = any_call(config, rng), weights_of(config)
        want = bounded(config, inputs, params)
        found = {n: ratio(x, want[n]) for n, x in witness(config, inputs, params).items()}
        small = {tree: kernels.SMALL[tree][0] if number % 2 else {} for tree in ("numpy", "torch")}
        rows = SMALL_ROWS if number % 2 else {}
        with kernels.blocks("attn_torch", small["torch"]), constants("attn_torch", rows):
            layer = layer_of(TREES["torch"], config, params)
            arrays = {n: to_torch(x, "cpu") for n, x in inputs.items()}
            leaves = {n: x.requires_grad_() for n, x in arrays.items() if x.is_floating_point()} | layer.params()
            outputs = [x for x in flat(layer(**arrays)) if x.requires_grad]
            dys = [to_torch(cotangent(tuple(x.shape)), "cpu") for x in outputs]
            grads = torch.autograd.grad(outputs, list(leaves.values()), dys, materialize_grads=True, allow_unused=True)
        results = {"y": outputs[0]} | {f"d{n}": x for n, x in zip(leaves, grads, strict=True)}
        found |= {f"torch {n}": ratio(from_torch(x), want[n]) for n, x in results.items()}
        with kernels.blocks("attn_np", small["numpy"]), constants("attn_np", rows):
            outcome = call_numpy(Case(variant, "", "", "float64", given=config), Drawn(inputs, params, 0), False)
        found |= {f"numpy {n}": ratio(x, want[n]) for n, x in (outcome.outputs | outcome.grads).items() if n in want}
        wrong |= {f"{name} {n}, {list(inputs)}, {config}": r for n, r in found.items() if not r <= 1}
    assert not wrong, "\n".join(f"{what}: {r:.3g}" for what, r in wrong.items())
