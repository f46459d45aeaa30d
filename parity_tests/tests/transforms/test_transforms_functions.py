"""What the functions and the arguments of layers are put through besides being called, in PyTorch and JAX.

The tables of `test_transforms_*.py` ask every variant for its call with every argument. Here each function is asked,
each argument of `attend` that changes how it computes, the drop-ins, and fields that the first examples do not have.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, PartitionSpec

from attn_np import patterns
from parity_tests.tests.inputs import TREES, flat

# By tree. CALLS below are the rows; EXEMPT gives a (tree, transform, call) that is left out its reason.
TRANSFORMS: dict[str, tuple[str, ...]] = {
    "torch": ("compile", "vmap"),
    "jax": ("jit", "grad", "vmap", "shard_map", "mesh"),
}
# By name: of an array `b t h k` and an integer of each sequence, what a call returns.
EXEMPT: dict[tuple[str, str, str], str] = {}
CALLS: dict[str, Callable[["Bench", Any, Any], Any]] = {}
# Calls that return what another one does. In steps there is no gradient.
SAME: dict[str, str] = {}
# Those that one tree has.
ONLY: dict[str, str] = {"drop_in.attention_fn": "jax", "drop_in.transformers_attention": "torch"}


def call(name: str, same: str | None = None) -> Any:
    """A decorator that adds a call under the name that the table shows."""

    def add(function: Callable[["Bench", Any, Any], Any]) -> Callable[["Bench", Any, Any], Any]:
        CALLS[name] = function
        if same is not None:
            SAME[name] = same
        return function

    return add


@dataclass(frozen=True)
class Bench:
    """A tree's package with what is made before a transform begins: integers and layers.

    Attributes:
        at: 0 .. 3.
        layers: by the name of what they show; their weights are the same bits in every tree.
    """

    package: Any
    at: Any
    layers: dict[str, Any]


FIELDS: dict[str, dict[str, Any]] = {
    "memory": {"variant": "mha", "memory_keys": 3, "output_dim": 5},
    "sections": {"variant": "rotary", "rope_sections": (1, 1), "max_positions": 8},
    "angles": {"variant": "rotary"},
}


@cache
def bench(name: str) -> Bench:
    tree = TREES[name]
    layers = {
        part: tree.package.build(fields["variant"], dtype="float64", d_model=16, num_heads=2, head_dim=4, causal=True,
                                 **{field: x for field, x in fields.items() if field != "variant"})
        for part, fields in FIELDS.items()
    }  # fmt: skip
    return Bench(tree.package, tree.array(np.arange(4)), layers)


class Causal:
    """What an attention function of `transformers` looks at of a module."""

    is_causal = True


CAUSAL = Causal()


def steps(name: str) -> bool:
    return name.endswith("in steps")


def words(x: Any) -> Any:
    """An array `b t h k` as the input of a layer."""
    return x.reshape((*x.shape[:2], 16))


def in_steps(one: Any, x: Any, **by_position: Any) -> Any:
    """The first three positions and then the last one, into a cache."""
    cache, outputs = one.init_cache(x.shape[0], 4), []
    for part in (slice(0, 3), slice(3, 4)):
        y, cache = one.step(x[:, part], cache, **{name: a[..., part] for name, a in by_position.items()})
        outputs.append(y)
    return outputs


@call("attend")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.package.attend(x, x + 1, x, causal=True)[0]


@call("attend, offset=")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.package.attend(x[:, :2], x, x, causal=True, offset=1, softcap=2)[0]


@call("attend, offset= and lengths= of each sequence")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.package.attend(x[:, :2], x, x, causal=True, offset=n, lengths=n + 1)[0]


@call("attend, return_lse=, and merge")
def _(o: Bench, x: Any, n: Any) -> Any:
    parts = [o.package.attend(x, x[:, part], x[:, part], return_lse=True) for part in (slice(0, 1), slice(1, 4))]
    return o.package.merge([(context, lse) for context, _, lse in parts])


@call("attend, pattern= and window=")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.package.attend(x, x, x, pattern=patterns.Chunks(2) | patterns.Dilated(2), window=3)[0]


@call("attend, terms=")
def _(o: Bench, x: Any, n: Any) -> Any:
    terms = o.package.terms
    both = terms.Slopes((1 + o.at[:2]) / 4), terms.Table(o.at[:, None] / 2, lambda relative: relative.clip(-2, 1) + 2)
    return o.package.attend(x, x + 1, x, causal=True, terms=both)[0]


@call("attend, return_weights= and sinks=")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.package.attend(x, x, x, sinks=x[0, 0, :, 0] * 0 + 0.5, return_weights=True)


@call("attend, softmax_fn=entmax")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.package.attend(x, x, x, causal=True, softmax_fn=partial(o.package.entmax, alpha=1.5))[0]


@call("softmax and entmax")
def _(o: Bench, x: Any, n: Any) -> Any:
    package, mask = o.package, x > -1
    return package.softmax(x, mask), package.entmax(x, alpha=2, axis=1), package.entmax(x, mask, alpha=1.75)


@call("recur, in chunks")
def _(o: Bench, x: Any, n: Any) -> Any:
    decay = 1 / (1 + x * x)
    return o.package.recur(
        x, x / 4, x, rule="gated_delta", decay=decay, beta=decay[..., 0], form="chunked", chunk_size=2
    )


@call("recur, position by position", same="recur, in chunks")
def _(o: Bench, x: Any, n: Any) -> Any:
    decay = 1 / (1 + x * x)
    return o.package.recur(x, x / 4, x, rule="gated_delta", decay=decay, beta=decay[..., 0], form="recurrent")


def places(o: Bench, n: Any) -> Any:
    return n[:, None] + o.at


@call("rotate by rotary_angles")
def _(o: Bench, x: Any, n: Any) -> Any:
    longrope = {"original_max_positions": 4, "short_factor": (1.0,) * 4, "long_factor": (2.0,) * 4}
    angles = o.package.rotary_angles(
        places(o, n), 8, max_positions=8, dtype="float64", rope_scaling="longrope", **longrope
    )
    return o.package.rotate(x, *angles)


@call("relative_buckets")
def _(o: Bench, x: Any, n: Any) -> Any:
    return x * o.package.relative_buckets(places(o, n) - 3, num_buckets=4, max_distance=8)[..., None, None]


@call("drop_in.scaled_dot_product_attention")
def _(o: Bench, x: Any, n: Any) -> Any:
    q, k = x.swapaxes(1, 2), x[:, :, :1].swapaxes(1, 2)
    function = o.package.drop_in.scaled_dot_product_attention
    masked = function(q, k, k, q[..., :4] > -1, enable_gqa=True, scale=0.5)
    return masked, function(q[:, :, :3], q, q, is_causal=True), function(q, q, q, q[..., :4])


@call("drop_in.dot_product_attention")
def _(o: Bench, x: Any, n: Any) -> Any:
    function, lengths = o.package.drop_in.dot_product_attention, {"key_value_seq_lengths": n}
    padded = function(x, x[:, :, :1], x[:, :, :1], query_seq_lengths=n + 1, local_window_size=(1, 0), **lengths)
    return padded, function(x[:, :3], x, x, is_causal=True), function(x, x, x, mask=x[:, None, :, 0, :4] > 0)


@call("drop_in.attention_fn", same="attend")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.package.drop_in.attention_fn(x, x + 1, x, is_causal=True)


@call("drop_in.transformers_attention", same="attend")
def _(o: Bench, x: Any, n: Any) -> Any:
    q, k, v = (a.swapaxes(1, 2) for a in (x, x + 1, x))
    return o.package.drop_in.transformers_attention(CAUSAL, q, k, v, None)[0]


def on_two_axes(o: Bench, n: Any) -> Any:
    return o.at[:2, None, None] + places(o, n)


@call("mha, memory_keys= and output_dim=")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.layers["memory"](words(x))


@call("mha, memory_keys= and output_dim=, in steps", same="mha, memory_keys= and output_dim=")
def _(o: Bench, x: Any, n: Any) -> Any:
    return in_steps(o.layers["memory"], words(x))


@call("rotary, rope_sections=")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.layers["sections"](words(x), positions=on_two_axes(o, n))


@call("rotary, rope_sections=, in steps", same="rotary, rope_sections=")
def _(o: Bench, x: Any, n: Any) -> Any:
    return in_steps(o.layers["sections"], words(x), positions=on_two_axes(o, n))


@call("rotary, positions=(cos, sin)", same="rotary, rope_sections=")
def _(o: Bench, x: Any, n: Any) -> Any:
    options: dict[str, Any] = {"sections": (1, 1), "max_positions": 8, "dtype": "float64"}
    return o.layers["angles"](words(x), positions=o.package.rotary_angles(on_two_axes(o, n), 4, **options))


STEPS = [name for name in CALLS if steps(name)]
EXEMPT |= {
    ("torch", "vmap", name): "a cache has an axis of batch rows itself, and PyTorch writes into it" for name in STEPS
}
EXEMPT |= {("jax", "grad", name): "steps are asked for their outputs" for name in STEPS}

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
@pytest.mark.parametrize("name", asked("torch"))
def test_functions_compile_into_one_graph(name: str) -> None:
    """Forward and backward: the bits of eager, but in steps, which there read the filled part of a cache alone.

    In chunks the parts of a gradient are added up in an order of its own.
    """
    torch.compiler.reset()
    x, n = torch.from_numpy(X), torch.from_numpy(N)
    compiled = torch.compile(partial(CALLS[name], bench("torch")), fullgraph=True, backend="aot_eager")
    with torch.no_grad() if steps(name) else torch.enable_grad():
        want, found = (derived(name, x, n, function) for function in (None, compiled))
    assert steps(name) or all(np.array_equal(a, b) for a, b in zip(found[0], want[0], strict=True))
    order = 4 * np.finfo(np.float64).eps * np.abs(reference(name)[1]).max() if "in chunks" in name else 0.0
    assert steps(name) or np.abs(found[1] - want[1]).max() <= order
    assert near(found[0], reference(name)[0], name)


@pytest.mark.parametrize("name", [name for name in asked("torch") if ("torch", "vmap", name) not in EXEMPT])
def test_functions_over_rows(name: str) -> None:
    """Over batch rows."""
    function = partial(CALLS[name], bench("torch"))
    with torch.no_grad():
        rows = torch.func.vmap(lambda x, n: [y[0] for y in joined(function(x[None], n[None]))])
        found = rows(torch.from_numpy(X), torch.from_numpy(N))
    assert near([y.numpy() for y in found], reference(name)[0], name)


def programs(name: str, x: Any, n: Any) -> dict[str, Any]:
    """The outputs of a call under each of JAX's transforms, and its gradient."""
    function = partial(CALLS[name], bench("jax"))
    mesh, rows = jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Auto,)), PartitionSpec("rows")

    def outputs(x: Any, n: Any) -> list[Any]:
        return joined(function(x, n))

    found = {
        "jit": outputs(x, n),
        "vmap": jax.vmap(lambda x, n: [y[0] for y in outputs(x[None], n[None])])(x, n),
        "shard_map": jax.shard_map(outputs, mesh=mesh, in_specs=(rows, rows), out_specs=rows)(x, n),
    }
    if not steps(name):
        found["grad"] = jax.grad(lambda x: sum((y * y).sum() for y in outputs(x, n)))(x)
    return found


@pytest.mark.parametrize("name", asked("jax"))
def test_functions_in_jax(name: str) -> None:
    """Compiled, differentiated, over batch rows, and with the rows on a mesh."""
    bench("jax")
    found = jax.jit(partial(programs, name))(TREES["jax"].array(X), TREES["jax"].array(N))
    want, gradient = reference(name)
    for transform in ("jit", "vmap", "shard_map"):
        assert near([np.asarray(y) for y in found[transform]], want, name), transform
    if not steps(name):
        assert np.abs(np.asarray(found["grad"]) - gradient).max() <= ROUNDINGS * np.abs(gradient).max()
