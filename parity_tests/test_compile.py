"""Compiled, exported and transformed: the same numbers as eager, for one example of every variant.

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
from attn_np.contract import Config
from parity_tests._inputs import TREES, Arrays, config_of, flat, inputs_for, random_inputs, same
from parity_tests.candidates import extras
from parity_tests.cases import Case, Drawn, draw
from parity_tests.error_arrays import precision_of
from parity_tests.judge import compare, reference
from parity_tests.test_kernels_torch import close_to

VARIANTS = contract.variants()
TORCH, JAX = TREES["torch"], TREES["jax"]


def last(variant: str) -> str:
    """The example with the most to compile."""
    return list(contract.examples(variant))[-1]


def small(variant: str) -> Arrays:
    """Inputs of few steps: torch unrolls a scan."""
    return random_inputs(config_of(variant, last(variant)), "full", t=2, s=3)


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
def test_torch_compile(variant: str) -> None:
    """One graph without breaks, forward and backward; the same bits, but for the order of sums of gradients."""
    layer, inputs = TORCH.build(config_of(variant, last(variant))), small(variant)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    want = TORCH(layer, inputs)
    for got in (TORCH(compiled, inputs), TORCH(compiled, inputs)):
        assert all(same(a, b) for a, b in zip(got, want, strict=True))
    dy = np.random.default_rng(19).normal(size=want[0].shape)
    wanted = TORCH.gradients(layer, inputs, dy)
    found = gradients(compiled, layer, inputs, dy)
    assert list(found) == list(wanted)
    for name, x in found.items():
        close_to(x, wanted[name])  # compiled, the parts of a sum may be added in another order


def gradients(compiled: Any, layer: Any, inputs: Arrays, dy: np.ndarray) -> Arrays:
    given = TORCH.arrays(inputs)
    leaves = {name: x.requires_grad_() for name, x in given.items() if x.is_floating_point()}
    leaves |= dict(layer.named_parameters())
    found = torch.autograd.grad(flat(compiled(**given))[0], list(leaves.values()), TORCH.array(dy), allow_unused=True)
    grads = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves.values(), found, strict=True)]
    return {f"d{name}": TORCH.numpy(g) for name, g in zip(leaves, grads, strict=True)}


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
    # For a tape a causal layer forms who sees whom, of which it otherwise knows two numbers.
    assert on.steps == plain.steps or getattr(layer.config, "causal", False)


@pytest.mark.compile
@pytest.mark.parametrize("variant", VARIANTS)
def test_torch_export(variant: str) -> None:
    layer, inputs = TORCH.build(config_of(variant, last(variant))), small(variant)
    exported = torch.export.export(layer, (), kwargs=TORCH.arrays(inputs), strict=True).module()
    assert all(same(a, b) for a, b in zip(TORCH(exported, inputs), TORCH(layer, inputs), strict=True))


def bounded(variant: str, example: str, layer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs and gradients of the "full" call with the bounds of a float64 candidate."""
    case = Case(variant, example, "full", "float64")
    params = {name: np.asarray(x) for name, x in layer.params().items()}
    return reference(case, Drawn(draw(case).inputs, params, case.seed), {}, precision_of("float64"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_nnx_jit(variant: str) -> None:
    """Eager and compiled, within the bound; and the compiled layer with a tape made inside."""
    example = last(variant)
    layer, inputs = JAX.layer(variant, example), JAX.arrays(inputs_for(variant, example, "full"))
    more = extras(variant, config_of(variant, example).layer)
    want = list(bounded(variant, example, layer)[0].values())

    @nnx.jit
    def traced(layer: Any, given: Any) -> Any:
        return JAX.package.trace(layer, **given, **more)

    y, tape = traced(layer, inputs)
    for got in (layer(**inputs, **more), nnx.jit(lambda layer, given: layer(**given, **more))(layer, inputs), y):
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
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((grads, tape)))
    assert "y" in tape
    _, tapes = jax.jit(jax.vmap(derive, in_axes=(None, 0)))(params, jnp.stack([first, first[::-1], first]))
    assert {key: x.shape for key, x in tapes.items()} == {key: (3, *x.shape) for key, x in tape.items()}
    assert not same(JAX.numpy(tapes["y"][0]), JAX.numpy(tapes["y"][1]))


def sizes_of(config: Config) -> int:
    return sum(int(np.prod(shape)) for shape in config.shapes().values())


@pytest.mark.parametrize("variant", VARIANTS)
def test_construction_without_drawing(variant: str) -> None:
    """`device="meta"` and `nnx.eval_shape` give a layer of shapes."""
    config = config_of(variant, last(variant))
    meta = getattr(TORCH.package, config.layer)(config, device="meta")
    assert {name: tuple(x.shape) for name, x in meta.named_parameters()} == config.shapes()
    assert all(x.is_meta for x in meta.parameters())
    abstract = nnx.eval_shape(lambda: getattr(JAX.package, config.layer)(config, rngs=nnx.Rngs(0)))
    flat_state = nnx.to_flat_state(nnx.state(abstract, nnx.Param))
    found = {".".join(map(str, path)): x.get_value() for path, x in flat_state}
    assert {name: x.shape for name, x in found.items()} == config.shapes()
    assert all(isinstance(x, jax.ShapeDtypeStruct) for x in found.values())
    assert sum(x.size for x in found.values()) == sizes_of(config)
