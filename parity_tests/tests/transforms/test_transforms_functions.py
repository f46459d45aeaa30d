"""What the functions and the arguments of layers are put through besides being called, in PyTorch and JAX.

The tables of `test_transforms_*.py` ask every variant for its call with every argument. Here each call of `calls` and
`calls_of_layers` is asked: each function with its arguments, the drop-ins, and fields that the first examples do not
have.
"""

from collections.abc import Callable
from functools import cache, partial, wraps
from inspect import signature
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, PartitionSpec
from torch._dynamo import lookup_backend

import attn_np
from attn_np.contract._package import FUNCTIONS
from parity_tests.tests.everything import ROWS
from parity_tests.tests.inputs import TREES, flat
from parity_tests.tests.transforms.calls import CALLS, ONLY, SAME, Bench, bench
from parity_tests.tests.transforms.calls_of_layers import STEPS, steps
from parity_tests.tests.transforms.test_transforms_torch import UNROLLED, Counted

# By tree. The calls are the rows; EXEMPT gives a (tree, transform, call) that is left out its reason.
TRANSFORMS: dict[str, tuple[str, ...]] = {
    "torch": ("compile", "dynamic", "vmap"),
    "jax": ("jit", "grad", "vmap", "shard_map", "mesh"),
}
EXEMPT: dict[tuple[str, str, str], str] = {
    ("torch", "vmap", name): "a cache has an axis of batch rows itself, and PyTorch writes into it" for name in STEPS
}
EXEMPT |= {("jax", "grad", name): "steps are asked for their outputs" for name in STEPS}
EXEMPT |= {("torch", "dynamic", name): UNROLLED for name in CALLS if name.startswith(("recur", "gru", "gated_delta"))}
EXEMPT["torch", "dynamic", "retention, documents="] = UNROLLED  # halves of a chunk, and halves of these

# What is asked --------------------------------------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(2, 4, 2, 8))
N = np.array([1, 3])
# Sums of a few dozen numbers of the size of 1 follow each other some ten times.
ROUNDINGS = 1000 * np.finfo(np.float64).eps


def asked(tree: str) -> list[str]:
    return [name for name in CALLS if ONLY.get(name, tree) == tree]


def joined(outputs: Any) -> list[Any]:
    """Every float array of an output; the outputs of steps as one of all positions."""
    return [x for x in flat(outputs) if x is not None]


def near(found: list[Any], want: list[np.ndarray], name: str) -> bool:
    got = [np.concatenate(found, 1)] if steps(name) else found
    return len(got) == len(want) and all(
        a.shape == b.shape and np.abs(a - b).max() <= ROUNDINGS * np.abs(b).max()
        for a, b in zip(got, want, strict=True)
    )


def derived(name: str, x: torch.Tensor, n: torch.Tensor, function: Any = None) -> tuple[list[Any], Any]:
    """PyTorch's outputs and the gradient of the sum of their squares; in steps none."""
    leaf = x.clone().requires_grad_(not steps(name))
    outputs = joined((partial(CALLS[name], bench("torch")) if function is None else function)(leaf, n))
    if steps(name):
        return [y.numpy() for y in outputs], None
    (grad,) = torch.autograd.grad([(y * y).sum() for y in outputs], leaf)
    return [y.detach().numpy() for y in outputs], grad.numpy()


@cache
def reference(name: str) -> tuple[list[np.ndarray], np.ndarray]:
    """The outputs by NumPy, and the gradient by PyTorch, of a plain call."""
    name = SAME.get(name, name)
    gradient = derived(name, torch.from_numpy(X), torch.from_numpy(N))[1]
    return joined(CALLS[name](bench("numpy"), X, N)), gradient


@pytest.mark.compile
@pytest.mark.parametrize("row", asked("torch"))
def test_functions_compile_into_one_graph(row: str) -> None:
    """Forward and backward: the bits of eager, but in steps, which there read the filled part of a cache alone.

    In chunks the parts of a gradient are added up in an order of its own. Tables of cosines are PyTorch's in a compiled
    program and else NumPy's, whose last bit may be another.
    """
    torch.compiler.reset()
    x, n = torch.from_numpy(X), torch.from_numpy(N)
    compiled = torch.compile(partial(CALLS[row], bench("torch")), fullgraph=True, backend="aot_eager")
    with torch.no_grad() if steps(row) else torch.enable_grad():
        want, found = (derived(row, x, n, function) for function in (None, compiled))
    exact = not steps(row) and "rotate" not in row
    assert not exact or all(np.array_equal(a, b) for a, b in zip(found[0], want[0], strict=True))
    size = 0.0 if steps(row) else np.abs(want[1]).max()
    order = 4 * np.finfo(np.float64).eps if "in chunks" in row else 0.0 if exact else ROUNDINGS
    assert steps(row) or np.abs(found[1] - want[1]).max() <= order * size
    assert near(found[0], reference(row)[0], row)


# Sequences and positions of each call of one program. In the first all sizes differ: PyTorch takes equal ones for one.
SIZES = ((3, 5), (5, 7), (4, 6))


@pytest.mark.compile
@pytest.mark.parametrize("row", [row for row in asked("torch") if ("torch", "dynamic", row) not in EXEMPT])
def test_lengths_and_batches_vary(row: str) -> None:
    """Forward and backward in at most two graphs, whatever the number of sequences and of positions."""
    torch.compiler.reset()
    counted, rng = Counted(lookup_backend("aot_eager")), np.random.default_rng(1)
    compiled = torch.compile(partial(CALLS[row], bench("torch")), fullgraph=True, dynamic=True, backend=counted)
    for b, t in SIZES:
        x, n = torch.from_numpy(rng.normal(size=(b, t, 2, 8))), torch.arange(1, b + 1)
        with torch.no_grad() if steps(row) else torch.enable_grad():
            (want, dwant), (found, dfound) = (derived(row, x, n, function) for function in (None, compiled))
        assert len(found) == len(want)
        for a, b in zip([*found, dfound], [*want, dwant], strict=True):
            assert b is None or np.abs(a - b).max() <= ROUNDINGS * np.abs(b).max()
    assert counted.graphs <= 2


@pytest.mark.parametrize("row", [row for row in asked("torch") if ("torch", "vmap", row) not in EXEMPT])
def test_functions_over_rows(row: str) -> None:
    """Over batch rows."""
    function = partial(CALLS[row], bench("torch"))
    with torch.no_grad():
        rows = torch.func.vmap(lambda x, n: [y[0] for y in joined(function(x[None], n[None]))])
        found = rows(torch.from_numpy(X), torch.from_numpy(N))
    assert near([y.numpy() for y in found], reference(row)[0], row)


def programs(row: str, x: Any, n: Any) -> dict[str, Any]:
    """The outputs of a call under each of JAX's transforms, and its gradient."""
    function = partial(CALLS[row], bench("jax"))
    mesh, rows = jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Auto,)), PartitionSpec("rows")

    def outputs(x: Any, n: Any) -> list[Any]:
        return joined(function(x, n))

    found = {
        "jit": outputs(x, n),
        "vmap": jax.vmap(lambda x, n: [y[0] for y in outputs(x[None], n[None])])(x, n),
        "shard_map": jax.shard_map(outputs, mesh=mesh, in_specs=(rows, rows), out_specs=rows)(x, n),
    }
    if not steps(row):
        found["grad"] = jax.grad(lambda x: sum((y * y).sum() for y in outputs(x, n)))(x)
    return found


@pytest.mark.parametrize("row", asked("jax"))
def test_functions_in_jax(row: str) -> None:
    """Compiled, differentiated, over batch rows, and with the rows on a mesh."""
    bench("jax")
    found = jax.jit(partial(programs, row))(TREES["jax"].array(X), TREES["jax"].array(N))
    want, gradient = reference(row)
    for transform in ("jit", "vmap", "shard_map"):
        assert near([np.asarray(y) for y in found[transform]], want, row), transform
    if not steps(row):
        assert np.abs(np.asarray(found["grad"]) - gradient).max() <= ROUNDINGS * np.abs(gradient).max()


# What no call is asked with: `trace` passes the tape.
NOT_ASKED: dict[str, set[str]] = {
    "attend": {"tape"},
    "attend_paged": {"tape"},
    "recur": {"tape"},
    # What is drawn or kept goes to `attend`, which is asked with it; other values of the last two are refused.
    "scaled_dot_product_attention": {"dropout_p", "keep", "tape"},
    "dot_product_attention": {"implementation", "return_residual", "tape"},
}


class Recorded:
    """A module that notes of each call of its functions the names of the arguments."""

    def __init__(self, module: Any, given: dict[str, set[str]]) -> None:
        self.module, self.given = module, given

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.module, name)
        if name == "drop_in":
            return Recorded(found, self.given)
        return self.noting(found) if name in self.given else found

    def noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            self.given[function.__name__] |= signature(function).bind(*args, **options).arguments.keys()
            return function(*args, **options)

        return call


def unasked(calls: dict[str, Any]) -> dict[str, set[str]]:
    """Of each function, the arguments that none of some calls gives it."""
    functions = {name: getattr(attn_np, name) for name in FUNCTIONS if name != "alibi_slopes"}  # which takes no array
    functions |= {name: getattr(attn_np.drop_in, name) for name in attn_np.drop_in.__all__}
    given: dict[str, set[str]] = {name: set() for name in functions}
    o = bench("numpy")
    recorded = Bench(Recorded(attn_np, given), o.at, o.shares, o.layers)
    for name, function in calls.items():
        if ONLY.get(name) is None:
            function(recorded, X, N)
    return {
        name: missing
        for name, function in functions.items()
        if (missing := signature(function).parameters.keys() - given[name] - NOT_ASKED.get(name, set()))
    }


def test_the_rows_that_are_asked_by_default_exist() -> None:
    assert set(ROWS) <= set(CALLS)


def test_every_argument_of_a_function_is_asked() -> None:
    assert not unasked(CALLS)
    without = {name: function for name, function in CALLS.items() if not name.startswith("attend, terms=")}
    assert unasked(without) == {"attend": {"terms"}}
