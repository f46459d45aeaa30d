"""Tapes in compiled and transformed calls, for one example of every variant; `test_transforms_*` ask without a tape.

torch.compile can't trace through the hook that checks annotations, so what compiles in torch runs in a call of its own.
"""

from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx

from attn_np import contract
from parity_tests.bounds.precision import precision_of
from parity_tests.judge.candidates import extras
from parity_tests.judge.cases import Case, Drawn, draw
from parity_tests.judge.judging import compare, reference
from parity_tests.tests.inputs import TREES, config_of, flat, inputs_for, random_inputs, same

VARIANTS = contract.variants()
TORCH, JAX = TREES["torch"], TREES["jax"]


def last(variant: str) -> str:
    """The example with the most to compile."""
    return list(contract.examples(variant))[-1]


class Graphs:
    """A backend for torch.compile that runs what it is given and keeps what it does, apart from names."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def __call__(self, module: Any, _: Any) -> Any:
        numbers: dict[Any, int] = {}
        for node in module.graph.nodes:
            if node.op not in ("placeholder", "output"):
                args = torch.fx.map_arg((node.args, node.kwargs), lambda x: f"#{numbers.setdefault(x, len(numbers))}")
                self.steps.append(f"#{numbers.setdefault(node, len(numbers))} = {node.op} {node.target} {args}")
        return module.forward


class Traced(torch.nn.Module):
    """A layer called with a tape that is thrown away."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, **given: Any) -> Any:
        return TORCH.package.trace(self.layer, **given)[0]


@pytest.fixture(autouse=True)
def fresh(request: pytest.FixtureRequest) -> None:
    """What torch.compile learned from one test is nothing to the next."""
    if request.node.get_closest_marker("compile"):
        torch.compiler.reset()


@pytest.mark.compile
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_tape_adds_nothing_to_the_graph(variant: str) -> None:
    example = next(iter(contract.examples(variant)))
    layer = TORCH.build(config_of(variant, example))
    inputs = TORCH.arrays(random_inputs(layer.config, "plain", t=2, s=3))
    plain, off, on = Graphs(), Graphs(), Graphs()
    # The textbook path is the one that is taped.
    path = {"implementation": "textbook"} if "implementation" in signature(layer.forward).parameters else {}
    torch.compile(layer, backend=plain, fullgraph=True)(**inputs, **path)
    torch.compile(layer, backend=off, fullgraph=True)(**inputs, **path, tape=None)
    torch.compile(Traced(layer), backend=on, fullgraph=True)(**inputs)
    assert len(plain.steps) > 3
    assert off.steps in ([], plain.steps)  # empty: compiled already, for the same call
    # For a tape a causal layer forms who sees whom, of which it otherwise knows two numbers; a decoder in steps stacks
    # the weights of its steps.
    assert on.steps == plain.steps or getattr(layer.config, "causal", False) or variant == "seq2seq"


def bounded(variant: str, example: str, layer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs and gradients of the "full" call with the bounds of a float64 candidate."""
    case = Case(variant, example, "full", "float64")
    params = {name: np.asarray(x) for name, x in layer.params().items()}
    return reference(case, Drawn(draw(case).inputs, params, case.seed), {}, precision_of("float64"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_nnx_jit(variant: str) -> None:
    """Eager, and compiled with a tape that is made inside, within the bound."""
    example = last(variant)
    layer, inputs = JAX.layer(variant, example), JAX.arrays(inputs_for(variant, example, "full"))
    more = extras(variant, config_of(variant, example).class_name)
    want = list(bounded(variant, example, layer)[0].values())

    @nnx.jit
    def traced(layer: Any, given: Any) -> Any:
        return JAX.package.trace(layer, **given, **more)

    y, tape = traced(layer, inputs)
    for got in (layer(**inputs, **more), y):
        for x, expected in zip(flat(got), want, strict=True):
            assert compare(JAX.numpy(x), expected, "float64")["ratio"] <= 1
    _, eager = jax.eval_shape(lambda given: JAX.package.trace(layer, **given), inputs)
    assert {name: x.shape for name, x in tape.items()} == {name: x.shape for name, x in eager.items()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_traces_inside_transformations(variant: str) -> None:
    """The tape is made inside, so `jit`, `grad` and `vmap` neither lose it nor leak their tracers."""
    example = next(iter(contract.examples(variant)))
    layer, inputs = JAX.layer(variant, example), JAX.arrays(inputs_for(variant, example))
    name, first = next(iter(inputs.items()))
    graph, params, rest = nnx.split(layer, nnx.Param, ...)

    def energy(params: Any, x: Any) -> Any:
        y, tape = JAX.package.trace(nnx.merge(graph, params, rest), **inputs | {name: x})
        return jnp.sum(flat(y)[0] ** 2), tape

    derive = jax.grad(energy, has_aux=True)
    grads, tape = jax.jit(derive)(params, first)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(grads))
    assert not any(np.isnan(x).any() for x in jax.tree.leaves(tape))  # a largest score of none so far is -inf
    assert "y" in tape
    _, tapes = jax.jit(jax.vmap(derive, in_axes=(None, 0)))(params, jnp.stack([first, first[::-1], first]))
    assert {key: x.shape for key, x in tapes.items()} == {key: (3, *x.shape) for key, x in tape.items()}
    assert not same(JAX.numpy(tapes["y"][0]), JAX.numpy(tapes["y"][1]))
