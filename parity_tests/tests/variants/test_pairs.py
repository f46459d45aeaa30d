"""Every two options of a variant together: the reference against the witness, and its backward against PyTorch's."""

from importlib import import_module
from itertools import combinations

import pytest
import torch

from attn_np import contract
from parity_tests.judge.candidates import from_torch, to_torch
from parity_tests.tests.inputs import TREES, flat, random_inputs
from parity_tests.tests.variants.pairs import covering, pairs, values
from parity_tests.tests.witness import bounded, cotangent, layer_of, ratio, weights_of


def test_every_pair_of_values_that_fit_meets() -> None:
    """In `mha`, whose fields hardly depend on each other, nearly all."""
    fields, examples = values("mha"), contract.examples("mha").values()
    met = set().union(*(pairs(config, fields) for config in (*examples, *(c for _, c in covering("mha")))))
    assert len(met) > 0.9 * sum(len(fields[a]) * len(fields[b]) for a, b in combinations(fields, 2))


@pytest.mark.parametrize("variant", contract.variants())
def test_options_in_pairs(variant: str) -> None:
    witness = import_module(f"parity_tests.tests.variants.test_{variant}").witness
    wrong = {}
    for name, config in covering(variant):
        inputs, params = random_inputs(config, "full"), weights_of(config)
        want = bounded(config, inputs, params)
        found = {n: ratio(x, want[n]) for n, x in witness(config, inputs, params).items()}
        layer = layer_of(TREES["torch"], config, params)
        arrays = {n: to_torch(x, "cpu") for n, x in inputs.items()}
        leaves = {n: x.requires_grad_() for n, x in arrays.items() if x.is_floating_point()} | layer.params()
        outputs = [x for x in flat(layer(**arrays)) if x.requires_grad]
        dys = [to_torch(cotangent(tuple(x.shape)), "cpu") for x in outputs]
        grads = torch.autograd.grad(outputs, list(leaves.values()), dys, materialize_grads=True, allow_unused=True)
        results = {"y": outputs[0]} | {f"d{n}": x for n, x in zip(leaves, grads, strict=True)}
        found |= {f"torch {n}": ratio(from_torch(x), want[n]) for n, x in results.items()}
        wrong |= {f"{name} {n}, {config}": r for n, r in found.items() if not r <= 1}
    assert not wrong, "\n".join(f"{what}: {r:.3g}" for what, r in wrong.items())
