"""Gradients of the functions below the layers, of calls whose options are drawn together: PyTorch's own derivatives
and NumPy's fast path, held against the rules by hand on arrays that carry their errors.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import attn_np
from attn_np import patterns
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.tests.inputs import TREES, Arrays, Tree
from parity_tests.tests.witness import cotangent, ratio


@dataclass(frozen=True)
class Call:
    """A call as it was drawn.

    Attributes:
        run: the tree, arrays by name -> the outputs.
        arrays: those of floats have gradients.
    """

    run: Callable[[Tree, Any], Any]
    arrays: Arrays


def some(rng: np.random.Generator, *values: Any) -> Any:
    return values[rng.integers(len(values))]


def narrow(rng: np.random.Generator, *shape: int) -> tuple[int, ...]:
    """A shape that is broadcastable to one: some axes of length 1, the first ones left out."""
    return tuple(n if rng.random() < 0.6 else 1 for n in shape)[rng.integers(len(shape)) if rng.random() < 0.3 else 0 :]


def as_pattern(tree: Tree, kind: str, arrays: Any) -> Any:
    if kind == "documents":
        return patterns.Documents(arrays["of_queries"], arrays["of_keys"])
    return {"none": None, "chunks": patterns.Chunks(2, 1, 0), "dilated": ~patterns.Dilated(2)}[kind]


def attention(rng: np.random.Generator) -> Call:
    """`attend` with options of every kind."""
    b, t, s, (h, g) = some(rng, 1, 2), some(rng, 1, 3, 5), some(rng, 1, 4, 6), some(rng, (1, 1), (2, 2), (4, 2), (3, 1))
    headless = h == 1 and rng.random() < 0.5
    arrays: Arrays = {
        n: rng.normal(size=(b, m, k, w)) for n, m, k, w in (("q", t, h, 3), ("k", s, g, 3), ("v", s, g, 2))
    }
    axes = (b, t, s) if headless else (b, h, t, s)
    arrays = {name: x[:, :, 0] for name, x in arrays.items()} if headless else arrays
    if rng.random() < 0.4:
        arrays["mask"] = rng.random(narrow(rng, *axes)) < 0.7
    if rng.random() < 0.4:
        arrays["bias"] = rng.normal(size=narrow(rng, *axes))
    kind = some(rng, "softmax", "softmax", "weights", "lse", "sinks", "queries", "dropout", "entmax")
    if kind in ("sinks", "lse") and not headless and rng.random() < 0.7:
        arrays["sinks"] = rng.normal(size=h)
    if kind == "dropout":
        arrays["keep"] = rng.random(narrow(rng, *axes)) < 0.7
    options: dict[str, Any] = {"scale": some(rng, None, 0, 0.5, -1.5), "softcap": some(rng, None, 0, 2.0)}
    options |= {"causal": some(rng, False, True), "window": some(rng, None, 1, (0, 2), (None, 1))}
    options |= {"weights": {"return_weights": True}, "lse": {"return_lse": True}, "dropout": {"rate": 0.25}}.get(
        kind, {}
    )
    options |= {"normalize_over": "queries"} if kind == "queries" else {}
    pattern, places = (
        some(rng, "none", "none", "chunks", "dilated", "documents"),
        some(rng, "last", "last", "number", "each"),
    )
    if pattern == "documents":
        arrays |= {"of_queries": rng.integers(2, size=(b, t)), "of_keys": rng.integers(2, size=(b, s))}
    options |= {"offset": int(rng.integers(-1, s + 1))} if places == "number" else {}
    arrays |= {"offset": rng.integers(-1, s + 1, b)} if places == "each" else {}
    arrays |= {"lengths": rng.integers(s + 1, size=b)} if rng.random() < 0.2 else {}

    def run(tree: Tree, arrays: Any) -> Any:
        given = {name: x for name, x in arrays.items() if name not in ("of_queries", "of_keys")}
        if kind == "entmax":
            given["softmax_fn"] = partial(tree.package.entmax, alpha=1.5)
        given["pattern"] = as_pattern(tree, pattern, arrays)
        return tree.package.attend, given | options

    return Call(run, arrays)


def recurrence(rng: np.random.Generator) -> Call:
    """`recur` by every rule and form."""
    b, t, (h, g) = some(rng, 1, 2), some(rng, 1, 3, 6), some(rng, (2, 2), (4, 2))
    arrays: Arrays = {"q": rng.normal(size=(b, t, h, 3)), "k": rng.normal(size=(b, t, g, 3)) / 2}
    arrays["v"] = rng.normal(size=(b, t, g, 2))
    rule = some(rng, "linear", "gated", "delta", "gated_delta")
    if "gated" in rule:
        arrays["decay"] = rng.uniform(0.2, 1.0, some(rng, (g,), (g, 3), (b, t, g), (b, t, g, 3)))
    arrays |= {"beta": rng.uniform(0.1, 1.0, (b, t, g))} if rng.random() < 0.6 else {}
    arrays |= {"state": rng.normal(size=(b, g, 3, 2))} if rng.random() < 0.5 else {}
    options = {
        "rule": rule,
        "form": some(rng, "auto", "parallel", "recurrent", "chunked"),
        "chunk_size": some(rng, 1, 2, 4),
    }
    options["scale"] = some(rng, None, 0, 0.5)
    return Call(lambda tree, arrays: (tree.package.recur, arrays | options), arrays)


def rotation(rng: np.random.Generator) -> Call:
    """`rotate` by angles and by positions."""
    b, t, r = some(rng, 1, 2), some(rng, 1, 4), some(rng, 1, 2)
    x = rng.normal(size=some(rng, (b, t, 2, 4), (b, t, 4)))
    options: dict[str, Any] = {"layout": some(rng, "half", "interleaved"), "inverse": some(rng, False, True)}
    if rng.random() < 0.3:
        options |= {"xpos": some(rng, None, -4.0), "rope_base": some(rng, None, 7.0), "max_positions": 9}
        arrays = {"x": x, "cos": rng.integers(9, size=some(rng, (t,), (b, t)))}
    else:
        shape = some(rng, (t, r), (1, t, r), (b, t, r))
        arrays = {"x": x, "cos": rng.normal(size=shape), "sin": rng.normal(size=shape)}
    return Call(lambda tree, arrays: (tree.package.rotate, arrays | options), arrays)


def weights(rng: np.random.Generator) -> Call:
    """`softmax` and `entmax` over any axis."""
    shape, axis = some(rng, (3,), (2, 4), (2, 3, 4)), 0
    axis = int(rng.integers(-len(shape), len(shape)))
    arrays: Arrays = {"scores": 2 * rng.normal(size=shape)}
    arrays |= {"mask": rng.random(narrow(rng, *shape)) < 0.7} if rng.random() < 0.5 else {}
    alpha = some(rng, None, 1, 1.25, 1.5, 2, 3.0)
    options = {"axis": axis} | ({} if alpha is None else {"alpha": alpha})
    name = "softmax" if alpha is None else "entmax"
    return Call(lambda tree, arrays: (getattr(tree.package, name), arrays | options), arrays)


def joined(rng: np.random.Generator) -> Call:
    """`merge` of some parts, of which one may hold nothing."""
    axes, count = some(rng, (2, 3, 2), (1, 2, 1), (2, 3)), some(rng, 1, 2, 3)
    arrays: Arrays = {}
    for i in range(count):
        rows = rng.normal(size=(axes[0], *axes[2:], axes[1]))
        arrays |= {f"context_{i}": rng.normal(size=(*axes, 2)), f"lse_{i}": rows}

    def run(tree: Tree, arrays: Any) -> Any:
        return tree.package.merge, {"parts": [(arrays[f"context_{i}"], arrays[f"lse_{i}"]) for i in range(count)]}

    return Call(run, arrays)


def like_torch(rng: np.random.Generator) -> Call:
    """PyTorch's function, with axes that are broadcast."""
    h, g = some(rng, (2, 2), (4, 2), (2, 1))
    t, s, lead = some(rng, 1, 3), some(rng, 3, 5), some(rng, (), (2,), (2, 3))
    shapes = {"query": (*lead, h, t, 3), "key": (*lead[1:], g, s, 3), "value": (*lead, g, s, 2)}
    arrays: Arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    kind = some(rng, "none", "mask", "bias", "causal")
    if kind in ("mask", "bias"):
        shape = narrow(rng, *lead, h, t, s)
        arrays["attn_mask"] = rng.normal(size=shape) if kind == "bias" else rng.random(shape) < 0.7
    options = {"is_causal": kind == "causal", "enable_gqa": True, "scale": some(rng, None, 0, 0.5)}
    return Call(lambda tree, arrays: (tree.package.drop_in.scaled_dot_product_attention, arrays | options), arrays)


def like_jax(rng: np.random.Generator) -> Call:
    """JAX's function, with queries that see nothing and lengths."""
    b, t, s, (h, g) = 2, some(rng, 2, 4), some(rng, 2, 5), some(rng, (2, 2), (4, 2))
    shapes = {"query": (b, t, h, 3), "key": (b, s, g, 3), "value": (b, s, g, 2)}
    alone = rng.random() < 0.3
    arrays: Arrays = {name: rng.normal(size=shape[alone:]) for name, shape in shapes.items()}
    axes = 1 if alone else b, h, t, s
    arrays |= {"bias": rng.normal(size=narrow(rng, *axes))} if rng.random() < 0.4 else {}
    arrays |= {"mask": rng.random(narrow(rng, *axes)) < 0.5} if rng.random() < 0.4 else {}
    for name, n in (("query_seq_lengths", t), ("key_value_seq_lengths", s)):
        arrays |= {name: rng.integers(n + 1, size=axes[0])} if rng.random() < 0.4 else {}
    options: dict[str, Any] = {"is_causal": some(rng, False, True), "local_window_size": some(rng, None, 0, (1, 2))}
    options["scale"] = some(rng, None, 0, -0.5)
    return Call(lambda tree, arrays: (tree.package.drop_in.dot_product_attention, arrays | options), arrays)


KINDS = {f.__name__: f for f in (attention, recurrence, rotation, weights, joined, like_torch, like_jax)}
SEEDS = {"attention": 120}


def leaves_of(x: Any) -> Iterator[Any]:
    """The arrays of an output."""
    if isinstance(x, tuple | list):
        for part in x:
            yield from leaves_of(part)
    elif x is not None:
        yield x


def by_rule(call: Call, arrays: Any, dys: tuple[np.ndarray, ...] | None) -> tuple[list[Any], dict[str, Any]]:
    """Outputs and gradients of NumPy's `value_and_vjp`."""
    function, given = call.run(TREES["numpy"], arrays)
    with np.errstate(all="ignore"):
        y, pull = attn_np.value_and_vjp(function, **given)
        outputs = list(leaves_of(y))
        dys = dys or tuple(cotangents(outputs))
        exact = [type(x)(dy, 0.0) if isinstance(x, ErrArray) else dy for x, dy in zip(outputs, dys, strict=True)]
        slots = iter(exact)
        found = pull(*(None if x is None else next(slots) for x in (y if isinstance(y, tuple) else (y,)))).inputs
    found = {name: x for name, x in found.items() if x is not None}
    if "parts" in found:
        for i, pair in enumerate(found.pop("parts")):
            found |= {f"context_{i}": pair[0], f"lse_{i}": pair[1]}
    return outputs, found


def cotangents(outputs: list[Any]) -> Iterator[np.ndarray]:
    """Random gradients of the outputs; 0 where one is infinite, as the lse of a query that sees nothing."""
    for x in outputs:
        value = x.v if isinstance(x, ErrArray) else np.asarray(x)
        yield np.where(np.isfinite(value), cotangent(value.shape), 0.0)


def problems(kind: str, seed: int) -> list[str]:
    """The outputs and gradients of a call that lie beyond their bounds."""
    call = KINDS[kind](np.random.default_rng([seed, len(kind)]))
    floats = {name for name, x in call.arrays.items() if x.dtype.kind == "f"}
    exact: Any = {name: ErrArray(x, 0.0) if name in floats else x for name, x in call.arrays.items()}
    with precision(precision_of("float64")):
        want_outputs, want = by_rule(call, exact, None)
    dys = tuple(cotangents(want_outputs))
    outputs, fast = by_rule(call, call.arrays, dys)
    leaves = {name: torch.from_numpy(x.copy()) for name, x in call.arrays.items()}
    leaves = {name: x.requires_grad_() if name in floats else x for name, x in leaves.items()}
    function, given = call.run(TREES["torch"], leaves)
    of_torch = list(leaves_of(function(**given)))
    finite = [torch.where(torch.isfinite(x), x, 0.0) for x in of_torch]
    loss: Any = sum((x * torch.from_numpy(dy)).sum() for x, dy in zip(finite, dys, strict=True))
    grads = torch.autograd.grad(
        loss, [leaves[name] for name in sorted(floats)], allow_unused=True, materialize_grads=True
    )
    named = dict(zip(sorted(floats), grads, strict=True))
    found = {f"output {i}": ratio(x, w) for i, (x, w) in enumerate(zip(outputs, want_outputs, strict=True))}
    found |= {
        f"torch output {i}": ratio(x.detach(), w) for i, (x, w) in enumerate(zip(of_torch, want_outputs, strict=True))
    }
    assert set(fast) == set(want) == floats, (kind, seed, set(want) ^ floats)
    found |= {f"d{name}": ratio(x, want[name]) for name, x in fast.items()}
    found |= {f"torch d{name}": ratio(x, want[name]) for name, x in named.items()}
    return [f"{kind} {seed}, {name}: {n}, {sorted(call.arrays)}, {given}" for name, n in found.items() if not n <= 1]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_any_options_are_those_of_the_rules(kind: str) -> None:
    found = [words for seed in range(SEEDS.get(kind, 40)) for words in problems(kind, seed)]
    assert not found, "\n".join(found[:9])
