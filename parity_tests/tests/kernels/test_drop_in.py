"""Functions that stand in for PyTorch's, JAX's and Flax's: the originals' numbers and gradients for their arguments."""

from functools import cache
from importlib import import_module
from itertools import product
from math import sqrt
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import linen, nnx
from torch.nn import functional

import attn_jax
import attn_np
import attn_torch
from attn_np.attention.attend import attend, attend_vjp
from parity_tests import peers
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.tests.inputs import TREES, Arrays
from parity_tests.tests.witness import ratio

B, H, T, K, V = 2, 4, 5, 3, 7


@cache
def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def visible(seed: int, *shape: int) -> np.ndarray:
    """A mask that hides every key from one query."""
    mask = np.random.default_rng(seed).random(shape) < 0.6
    mask[0, ..., 2, :] = False
    return mask


def held(
    q: Any,
    k: Any,
    v: Any,
    dy: Any,
    mask: Any,
    bias: Any,
    scale: Any,
    dtype: str,
    softcap: float | None = None,
    sinks: Any = None,
    **dropout: Any,
) -> dict[str, ErrArray]:
    """Output and gradients, `b t h k`, each number with the bound for a computation in a dtype."""
    tape: dict[str, Any] = {}
    q, k, v, dy = (ErrArray(x, 0.0) for x in (q, k, v, dy))
    bias, sinks = (None if x is None else ErrArray(x, 0.0) for x in (bias, sinks))
    with precision(precision_of(dtype)), np.errstate(invalid="ignore"):
        masks = {"mask": mask, "bias": bias, "sinks": sinks}
        y, _ = attend(q, k, v, **masks, scale=scale, softcap=softcap, tape=tape, **dropout)
        rate = dropout.get("rate", 0.0)
        dq, dk, dv, dbias = attend_vjp(tape, dy, scale=scale, softcap=softcap, rate=rate, kv_heads=k.shape[2])
    named = {"y": y, "dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "dsinks": tape.get("dsinks")}
    return {name: x for name, x in named.items() if x is not None}


def of_torch(function: Any, arrays: list[np.ndarray], dy: np.ndarray, **options: Any) -> list[np.ndarray]:
    """The output and the gradients of the float arrays."""
    given = [torch.from_numpy(x) for x in arrays]
    leaves = [x.requires_grad_() for x in given if x.dtype.is_floating_point]
    options = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    y = function(*given, **options)
    return [y.detach().numpy(), *(g.numpy() for g in torch.autograd.grad(y, leaves, torch.from_numpy(dy)))]


def of_numpy(function: Any, arrays: list[np.ndarray], dy: np.ndarray, **options: Any) -> list[np.ndarray]:
    y, pull = attn_np.value_and_vjp(function, *arrays, **options)
    return [y, *(g for g in pull(dy).inputs.values() if g is not None)]


def of_jax(function: Any, arrays: list[np.ndarray], dy: np.ndarray, **options: Any) -> list[np.ndarray]:
    options = {name: jnp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    leaves = [jnp.asarray(x) for x in arrays if x.dtype.kind == "f"]
    rest = [jnp.asarray(x) for x in arrays if x.dtype.kind != "f"]
    y, pull = jax.vjp(lambda *given: function(*given, *rest, **options), *leaves)
    return [np.asarray(y), *map(np.asarray, pull(jnp.asarray(dy)))]


# PyTorch's ------------------------------------------------------------------------------------------------------------

BATCHES, LENGTHS, MASKS = ((), (B,), (B, 3)), (T, 7, 3), (None, "bool", "float", "causal")
TORCH = [
    (batch, groups, s, mask, (None, 0.375)[n % 2])
    for n, (batch, groups, s, mask) in enumerate(product(BATCHES, (4, 2, 1), LENGTHS, MASKS))
]


def swapped(x: np.ndarray) -> np.ndarray:
    """`... h t k` as `b t h k`, and back."""
    return x.reshape((-1, *x.shape[-3:])).swapaxes(1, 2)


@pytest.mark.parametrize("batch", BATCHES)
def test_scaled_dot_product_attention(batch: tuple[int, ...]) -> None:
    """Shared heads, other lengths of keys, masks and causality: 108 calls, PyTorch's own function among those held."""
    hold_to_torch(
        [call for call in TORCH if call[0] == batch],
        {
            "PyTorch's": (of_torch, functional.scaled_dot_product_attention),
            "PyTorch": (of_torch, attn_torch.drop_in.scaled_dot_product_attention),
            "NumPy": (of_numpy, attn_np.drop_in.scaled_dot_product_attention),
        },
    )


IN_JAX = {"JAX": (of_jax, attn_jax.drop_in.scaled_dot_product_attention)}


@pytest.mark.left_out
def test_scaled_dot_product_attention_in_jax() -> None:
    """JAX compiles each operation that it meets, so it runs a part of the calls."""
    hold_to_torch(TORCH[5::13], IN_JAX)


@pytest.mark.peers
@pytest.mark.left_out
def test_scaled_dot_product_attention_in_jax_in_every_call() -> None:
    hold_to_torch(TORCH, IN_JAX)


def hold_to_torch(calls: list[Any], ways: dict[str, tuple[Any, Any]]) -> None:
    """Output and gradients of functions with PyTorch's arguments, in some calls."""
    for batch, groups, s, mask, scale in calls:
        q, k, v = drawn(1, *batch, H, T, K), drawn(2, *batch, groups, s, K), drawn(3, *batch, groups, s, V)
        dy, arrays = drawn(4, *batch, H, T, V), [q, k, v]
        options: dict[str, Any] = {"scale": scale, "enable_gqa": groups != H, "is_causal": mask == "causal"}
        allowed = np.tri(T, s, dtype=bool) if mask == "causal" else None
        if mask == "bool":
            arrays.append(visible(5, *batch, 1, T, s))
            allowed = arrays[-1].reshape((-1, 1, T, s))
        elif mask == "float":
            arrays.append(drawn(6, H, T, s))
        bias = arrays[3] if mask == "float" else None
        want = held(swapped(q), swapped(k), swapped(v), swapped(dy), allowed, bias, scale, "float64")
        for way, (run, function) in ways.items():
            y, *grads = run(function, arrays, dy, **options)
            assert y.shape == dy.shape and [g.shape for g in grads] == [x.shape for x in arrays[: len(grads)]]
            got = [
                swapped(x) if x.ndim > 2 and name != "dbias" else x for name, x in zip(want, (y, *grads), strict=True)
            ]
            worst = {name: ratio(x, want[name]) for name, x in zip(want, got, strict=True)}
            assert max(worst.values()) <= 1, (way, groups, s, mask, scale, worst)


def test_axes_that_are_broadcast_and_left_out() -> None:
    """One head or one batch for all, and calls without heads: as PyTorch's, in all three trees."""
    for q_shape, k_shape in (
        ((2, 4, 5, 3), (2, 1, 6, 3)),
        ((2, 1, 5, 3), (1, 4, 6, 3)),
        ((5, 3), (6, 3)),
        ((4, 5, 3), (6, 3)),
    ):
        q, k, v = drawn(1, *q_shape), drawn(2, *k_shape), drawn(3, *k_shape[:-1], 7)
        dy = drawn(4, *np.broadcast_shapes((*q_shape[:-2], 1, 7), (*k_shape[:-2], q_shape[-2], 7)))
        expected = of_torch(functional.scaled_dot_product_attention, [q, k, v], dy)
        for run, package in ((of_torch, attn_torch), (of_numpy, attn_np), (of_jax, attn_jax)):
            got = run(package.drop_in.scaled_dot_product_attention, [q, k, v], dy)
            for a, b in zip(got, expected, strict=True):
                # Sums of at most 30 products of numbers below 4, in another order.
                assert a.shape == b.shape and np.abs(a - b).max() <= 30 * 16 * 30 * np.finfo(np.float64).eps


@pytest.mark.parametrize("lead", range(4), ids=lambda n: f"{n} axes left out")
def test_a_float_mask_of_any_axes_has_its_gradient(lead: int) -> None:
    """Each axis of two batch axes, heads, queries and keys as long as that of the scores, or 1, or left out."""
    batch, s = (2, 3), 6
    q, k, v, dy = (drawn(i, *batch, H, n, w) for i, (n, w) in enumerate(((T, K), (s, K), (s, V), (T, V))))
    scores = (*batch, H, T, s)
    for lengths in product(*((1, n) for n in scores[lead:])):
        mask = drawn(lead, *lengths)
        every = np.broadcast_to(mask, scores).reshape(-1, *scores[2:]).copy()
        bounds = held(swapped(q), swapped(k), swapped(v), swapped(dy), None, every, None, "float64")
        want: Any = bounds["dbias"].reshape(scores)
        axes = tuple(i for i in range(5) if i < lead or lengths[i - lead] == 1)
        _, *got = of_numpy(attn_np.drop_in.scaled_dot_product_attention, [q, k, v, mask], dy)
        assert got[3].shape == mask.shape and ratio(got[3], np.sum(want, axis=axes).reshape(mask.shape)) <= 1, lengths


def test_dropout_is_drawn_in_torch_and_given_elsewhere() -> None:
    q = torch.from_numpy(drawn(1, 2, 4, 50, 3))
    ones = torch.ones(2, 4, 50, 1, dtype=torch.float64)
    torch.manual_seed(0)
    y = attn_torch.drop_in.scaled_dot_product_attention(q, q, ones, dropout_p=0.25)
    assert 0.9 < float(y.mean()) < 1.1 and float(y.std()) > 0
    keep = np.random.default_rng(0).random((2, 4, 50, 50)) >= 0.25
    for tree in TREES.values():
        function = tree.package.drop_in.scaled_dot_product_attention
        x = [tree.array(a) for a in (q.numpy(), q.numpy(), ones.numpy())]
        if tree.name != "torch":
            got = tree.numpy(function(*x, dropout_p=0.25, keep=tree.array(keep)))
            weights = np.exp(q.numpy() @ q.numpy().swapaxes(2, 3) / sqrt(3))
            share = (weights * keep).sum(-1, keepdims=True) / weights.sum(-1, keepdims=True) / 0.75
            assert np.abs(got - share).max() <= 1000 * np.finfo(np.float64).eps
            with pytest.raises(ValueError, match="expected keep=, True where a weight is not dropped"):
                function(*x, dropout_p=0.25)


# JAX's ----------------------------------------------------------------------------------------------------------------

JAX = list(product(LENGTHS, (None, 2, (1, 0)), (False, True), (False, True), (False, True)))


def jax_case(s: int, window: Any, causal: bool, masked: bool, lengths: bool) -> tuple[list[np.ndarray], dict[str, Any]]:
    """The arrays and options of a call; two heads of queries share one of keys."""
    arrays = [drawn(1, B, T, H, K), drawn(2, B, s, 2, K), drawn(3, B, s, 2, K)]
    options: dict[str, Any] = {"is_causal": causal, "local_window_size": window}
    if masked:
        arrays += [drawn(6, 1, H, T, s), visible(5, B, 1, T, s)]
        options["scale"] = 0.375
    if lengths:
        options["query_seq_lengths"] = np.array([4, 5], np.int32)
        options["key_value_seq_lengths"] = np.array([s, 1], np.int32)
    return arrays, options


def expected_of_jax(arrays: list[np.ndarray], options: dict[str, Any], dy: np.ndarray, dtype: str) -> Any:
    """What JAX's function means, by `attend`: a query that sees nothing weighs all keys alike, as if by scores of 0."""
    (q, k, v), t, s = arrays[:3], T, arrays[1].shape[1]
    bias, mask = arrays[3:] if len(arrays) > 3 else (None, np.ones((1, 1, t, s), bool))
    i, j = np.arange(t)[:, None], np.arange(s)
    window = options["local_window_size"]
    left, right = (window, window) if isinstance(window, int) else window or (s + t, s + t)
    allowed = mask & (j >= i - left) & (j <= i + right) & ((j <= i) | (not options["is_causal"]))
    rows = np.ones((B, t, 1, 1), bool)
    if "query_seq_lengths" in options:
        rows = (i < options["query_seq_lengths"][:, None, None])[..., None]
        allowed = allowed & rows.swapaxes(1, 2) & (j < options["key_value_seq_lengths"][:, None, None, None])
    seen = allowed.any(-1).swapaxes(1, 2)[..., None]
    q, bias = np.where(seen, q, 0.0), None if bias is None else np.where(seen.swapaxes(1, 2), bias, 0.0)
    want = held(q, k, v, np.where(rows, dy, 0.0), allowed | ~seen.swapaxes(1, 2), bias, options.get("scale"), dtype)
    return want, np.broadcast_to(rows, q.shape), np.broadcast_to(seen, q.shape)


def judged(got: list[np.ndarray], want: dict[str, ErrArray], rows: np.ndarray, seen: np.ndarray) -> dict[str, float]:
    """Errors in bounds; rows without a length are zeros, and queries that see nothing have no gradient."""
    y, dq, dk, dv, *dbias = got
    assert not y[~rows].any() and not dq[~seen].any()
    found = {"y": np.where(rows, y, want["y"].v), "dq": np.where(seen, dq, want["dq"].v), "dk": dk, "dv": dv}
    return {name: ratio(x, want[name]) for name, x in found.items()}


@pytest.mark.parametrize("run", [of_jax, of_numpy, of_torch])
def test_dot_product_attention(run: Any) -> None:
    """Shared heads, lengths, windows, causality, masks and biases: 72 calls; JAX, which compiles, runs a part."""
    package = {of_jax: attn_jax, of_numpy: attn_np, of_torch: attn_torch}[run]
    for case in JAX[::7] if run is of_jax else JAX:
        arrays, options = jax_case(*case)
        dy = drawn(4, B, T, H, K)
        want, rows, seen = expected_of_jax(arrays, options, dy, "float64")
        worst = judged(run(package.drop_in.dot_product_attention, arrays, dy, **options), want, rows, seen)
        assert max(worst.values()) <= 1, (case, worst)


@pytest.mark.peers
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_original_of_dot_product_attention(dtype: str) -> None:
    """All 72 calls: ours in float64, and JAX's own within the bound of float32, in which it takes the softmax."""
    function = attn_jax.drop_in.dot_product_attention if dtype == "float64" else jax.nn.dot_product_attention
    for case in JAX:
        arrays, options = jax_case(*case)
        dy = drawn(4, B, T, H, K)
        want, rows, seen = expected_of_jax(arrays, options, dy, dtype)
        worst = judged(of_jax(function, arrays, dy, **options), want, rows, seen)
        assert max(worst.values()) <= 1, (case, worst)


# Flax's ---------------------------------------------------------------------------------------------------------------

FLAX = list(
    product(((B,), (B, 3)), (4, 2), (False, True), (False, True), (False, True), (None, "all rows alike", "each row"))
)


def hold_to_flax(calls: list[Any], function: Any, dtype: str) -> None:
    """Output and gradients of an `attention_fn`, with masks, biases, causality and dropout, in some calls."""
    for batch, groups, masked, biased, causal, dropping in calls:
        s, rate = 7, 0.25
        arrays = [drawn(1, *batch, T, H, K), drawn(2, *batch, s, groups, K), drawn(3, *batch, s, groups, K)]
        dy, options = drawn(4, *batch, T, H, K), {"is_causal": causal}
        allowed = np.broadcast_to(np.tri(T, s, dtype=bool) | (not causal), (*batch, 1, T, s))
        bias, dropout = None, {}
        if biased:
            bias = drawn(6, *batch, H, T, s)
            arrays.append(bias)
        if masked:
            options["mask"] = visible(5, *batch, 1, T, s)
            allowed = allowed & options["mask"]
        if dropping is not None:
            shape = (T, s) if dropping == "all rows alike" else (*batch, H, T, s)
            options |= {"dropout_rng": jax.random.key(7), "dropout_rate": rate}
            options["broadcast_dropout"] = dropping == "all rows alike"
            keep = np.asarray(jax.random.bernoulli(options["dropout_rng"], 1 - rate, shape))
            dropout = {"keep": np.broadcast_to(keep, (*batch, H, T, s)).reshape(-1, H, T, s), "rate": rate}
        allowed = allowed.reshape(-1, 1, T, s)
        seen: Any = np.any(allowed, -1).swapaxes(1, 2)[..., None]
        q, k, v = (x.reshape(-1, *x.shape[-3:]) for x in arrays[:3])
        bias = None if bias is None else np.where(seen.swapaxes(1, 2), bias.reshape(-1, H, T, s), 0.0)
        rows = (allowed | ~seen.swapaxes(1, 2), bias)
        want = held(np.where(seen, q, 0.0), k, v, dy.reshape(q.shape), *rows, None, dtype, **dropout)
        got = [x.reshape(-1, *x.shape[-3:]) for x in of_jax(function, arrays, dy, **options)]
        everywhere = np.ones(q.shape, bool)
        worst = judged(got[:4], want, everywhere, np.broadcast_to(seen, q.shape))
        if bias is not None:
            worst["dbias"] = ratio(np.where(seen.swapaxes(1, 2), got[4], want["dbias"].v), want["dbias"])
        assert max(worst.values()) <= 1, (batch, groups, masked, biased, causal, dropping, worst)


def test_attention_fn() -> None:
    """A part of 96 calls, as JAX compiles each operation that it meets."""
    hold_to_flax(FLAX[7::13], attn_jax.drop_in.attention_fn, "float64")


@pytest.mark.peers
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_original_of_attention_fn(dtype: str) -> None:
    """All 96 calls: ours in float64, and Flax's own within the bound of float32, in which it takes the softmax."""
    hold_to_flax(FLAX, attn_jax.drop_in.attention_fn if dtype == "float64" else nnx.dot_product_attention, dtype)


def test_modules_of_flax_give_the_same_with_our_function() -> None:
    """NNX and linen, masked and causal, and with the same dropout from the same key."""
    x = jnp.asarray(drawn(1, 2, 5, 12), jnp.float32)
    mask = jnp.asarray(visible(2, 2, 1, 5, 5))
    ours, bound = attn_jax.drop_in.attention_fn, 400 * np.finfo(np.float32).eps
    kinds: tuple[dict[str, Any], ...] = ({}, {"attention_fn": ours})
    calls: Any = ((0.0, {"mask": mask}), (0.0, {"is_causal": True}), (0.25, {"mask": mask}))
    for rate, options in calls:
        two: list[Any] = [
            nnx.MultiHeadAttention(
                3, 12, decode=False, dropout_rate=rate, deterministic=rate == 0, rngs=nnx.Rngs(0), **more
            )
            for more in kinds
        ]
        a, b = (module(x, **options, rngs=nnx.Rngs(dropout=7)) for module in two)
        assert np.abs(np.asarray(a - b)).max() <= bound
    module: Any = linen.MultiHeadDotProductAttention(num_heads=3)
    params: Any = module.init(jax.random.key(0), x)
    other: Any = linen.MultiHeadDotProductAttention(num_heads=3, attention_fn=ours)
    assert np.abs(np.asarray(module.apply(params, x, mask=mask) - other.apply(params, x, mask=mask))).max() <= bound
    with pytest.raises(ValueError, match="attention_fn: expected module=None"):
        other.apply(params, x, sow_weights=True)
    with pytest.raises(ValueError, match="attention_fn: expected dropout_rng, a key, with dropout_rate, got none"):
        ours(x[:, :, None], x[:, :, None], x[:, :, None], dropout_rate=0.5)


# transformers' --------------------------------------------------------------------------------------------------------

HUGGING_FACE = list(product((T, 1), (T, 7), (4, 2, 1), (None, "bool", "float", "causal"), (None, "softcap", "sinks")))


def hold_to_transformers(calls: list[Any], function: Any, dtype: str = "float64", room: int = 0) -> None:
    """Output and gradients of an attention function of `transformers`, in some calls.

    With `room` masks are for a cache of so many keys more, which count for nothing, whatever stands there.
    """
    for t, s, groups, mask, more in calls:
        q, k, v = drawn(1, B, H, t, K), drawn(2, B, groups, s, K), drawn(3, B, groups, s, V)
        dy, arrays = drawn(4, B, t, H, V), [q, k, v]
        causal = mask == "causal" and t > 1
        allowed = np.tri(t, s, dtype=bool) if causal else None
        if mask == "bool":
            allowed = visible(5, B, 1, T, s)[:, :, :t]
            arrays.append(allowed)
        elif mask == "float":
            arrays.append(drawn(6, B, 1, t, s))
        softcap, sinks = 0.75 if more == "softcap" else None, drawn(7, H) if more == "sinks" else None

        def call(q: Any, k: Any, v: Any, *rest: Any, causal: bool = causal, **scores: Any) -> Any:
            mask = next((x for x in rest if x.ndim == 4), None)
            if mask is not None and room > 0:
                beyond = ~mask if mask.dtype == torch.bool else 3.0 - mask.detach()
                mask = torch.cat([mask, beyond[..., :room]], -1)
            sinks = next((x for x in rest if x.ndim == 1), None)
            module = SimpleNamespace(
                num_key_value_groups=H // k.shape[1], is_causal=causal, training=False, sinks=sinks
            )
            return function(module, q, k, v, mask, scaling=0.375, dropout=0.0, s_aux=sinks, **scores)[0]

        bias = arrays[3] if mask == "float" else None
        want = held(swapped(q), swapped(k), swapped(v), dy, allowed, bias, 0.375, dtype, softcap=softcap, sinks=sinks)
        arrays += [] if sinks is None else [sinks]
        y, dq, dk, dv, *others = of_torch(call, arrays, dy, **({} if softcap is None else {"softcap": softcap}))
        got = [y, swapped(dq), swapped(dk), swapped(dv), *others]
        worst = {name: ratio(x, want[name]) for name, x in zip(want, got, strict=True)}
        assert max(worst.values()) <= 1, (t, s, groups, mask, more, worst)


def test_transformers_attention() -> None:
    """One query or several, shared heads, masks, causality, caps and sinks: 144 calls; 15 with longer masks."""
    hold_to_transformers(HUGGING_FACE, attn_torch.drop_in.transformers_attention)
    masked = [call for call in HUGGING_FACE if call[3] in ("bool", "float")]
    hold_to_transformers(masked[::5], attn_torch.drop_in.transformers_attention, room=3)


LEFT_OUT = object()
SAID = (LEFT_OUT, None, True, False)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("t", [1, T])
def test_whether_transformers_attends_causally(t: int, masked: bool) -> None:
    """By the argument; where it says nothing by the module; and where that says nothing, too, it does. Never beside a
    mask, nor with one query. The scale is that of `attend` where none is given.
    """
    q, k, v = (torch.from_numpy(drawn(i, B, H, n, K)) for i, n in ((1, t), (2, T), (3, T)))
    mask = torch.from_numpy(drawn(6, B, 1, t, T)) if masked else None
    for argument, of_module in product(SAID, (LEFT_OUT, True, False)):
        module = SimpleNamespace() if of_module is LEFT_OUT else SimpleNamespace(is_causal=of_module)
        options: dict[str, Any] = {} if argument is LEFT_OUT else {"is_causal": argument}
        said = next((x for x in (argument, of_module, True) if isinstance(x, bool)), True)
        found, weights = attn_torch.drop_in.transformers_attention(module, q, k, v, mask, **options)
        arrays = (x.transpose(1, 2) for x in (q, k, v))
        want, _ = attn_torch.attend(*arrays, bias=mask, causal=said and t > 1 and not masked)
        assert torch.equal(found, want) and weights is None, (argument, of_module)


def test_transformers_gets_weights_and_dropout() -> None:
    """The weights before dropout, if they are asked for; of the others a share is dropped and the rest divided."""
    q, module, rate = torch.from_numpy(drawn(1, 2, 4, 50, 3)), SimpleNamespace(is_causal=False), 0.25
    ones = torch.eye(50, dtype=torch.float64).expand(2, 4, 50, 50)  # the output is the weights as they are used
    call: Any = attn_torch.drop_in.transformers_attention
    want, weights = call(module, q, q, ones, None, output_attentions=True)
    assert torch.equal(want.transpose(1, 2), weights)
    torch.manual_seed(0)
    used, weights = call(module, q, q, ones, None, dropout=rate, output_attentions=True)
    used = used.transpose(1, 2)
    assert torch.equal(want.transpose(1, 2), weights)
    assert torch.equal(used, torch.where(used != 0, weights / (1 - rate), 0.0))
    share, count = float((used == 0).double().mean()), used.numel()
    assert abs(share - rate) <= 5 * sqrt(rate * (1 - rate) / count)  # more is met once in a million draws


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
def test_the_originals_of_transformers_attention() -> None:
    """Those of Llama and BERT ("sdpa"), and those of Gemma 2 and gpt-oss, which add their masks: 96 calls."""
    pytest.importorskip("transformers")
    integrations = import_module("transformers.integrations.sdpa_attention")
    gemma2, gpt_oss = (import_module(f"transformers.models.{x}.modeling_{x}") for x in ("gemma2", "gpt_oss"))
    hold_to_transformers([c for c in HUGGING_FACE if c[4] is None], integrations.sdpa_attention_forward)
    added = [call for call in HUGGING_FACE if call[3] in (None, "float")]
    hold_to_transformers([c for c in added if c[4] == "softcap"], gemma2.eager_attention_forward, "float32")
    hold_to_transformers([c for c in added if c[4] == "sinks"], gpt_oss.eager_attention_forward)


SMALL = {"vocab_size": 11, "hidden_size": 12, "intermediate_size": 5, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"max_position_embeddings": 16}
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": SMALL | {"num_key_value_heads": 2, "head_dim": 6},
    "BertForMaskedLM": SMALL,
    "Gemma2ForCausalLM": SMALL | {"num_key_value_heads": 2, "head_dim": 6, "sliding_window": 3},
    "GptOssForCausalLM": SMALL
    | {"num_key_value_heads": 2, "head_dim": 6, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 3}
    | {"experts_implementation": "eager"},
}


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers_give_the_same_logits(name: str) -> None:
    """Random weights, texts that are filled up, in float64: as with its own code, and so with its cache."""
    transformers = pytest.importorskip("transformers")
    attn_torch.drop_in.register()
    ids = torch.from_numpy(np.random.default_rng(0).integers(1, 11, (2, 7)))
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, 5:] = 0
    logits, models = [], []
    for implementation in ("eager", "attn_parity"):
        kind = getattr(transformers, name)
        torch.manual_seed(0)
        with peers.InFloat64(), torch.no_grad():
            model = kind._from_config(kind.config_class(**MODELS[name]), attn_implementation=implementation).eval()
            logits.append(model(input_ids=ids, attention_mask=mask).logits[mask == 1])
        models.append(model)
    # About a thousand products follow each other in a model of this size, each of numbers of the size of 1.
    bound = 1000 * np.finfo(np.float64).eps
    assert (logits[0] - logits[1]).abs().max() <= bound * logits[0].abs().max()
    if name == "BertForMaskedLM":
        return
    with peers.InFloat64(), torch.no_grad():
        first = models[1](input_ids=ids[:1, :4], use_cache=True)
        second = models[1](input_ids=ids[:1, 4:], past_key_values=first.past_key_values).logits[0]
    assert (second - logits[0][4:7]).abs().max() <= bound * logits[0].abs().max()


# What is refused ------------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "both": ("scaled_dot_product_attention", {"attn_mask": "mask", "is_causal": True}, "attn_mask or is_causal=True"),
    "a word": ("scaled_dot_product_attention", {"is_causal": "yes"}, "is_causal to be True or False, got 'yes'"),
    "all dropped": ("scaled_dot_product_attention", {"dropout_p": 1.0}, r"dropout_p in \[0, 1\), got 1.0"),
    "heads": ("scaled_dot_product_attention", {"key": (2, 2, 5, 3), "value": (2, 2, 5, 3)}, "enable_gqa=True"),
    "batches": ("scaled_dot_product_attention", {"key": (3, 4, 5, 3)}, "one size for the axis of the batch"),
    "cuDNN": ("dot_product_attention", {"implementation": "cudnn"}, "implementation=None or 'xla', got 'cudnn'"),
    "the residual": ("dot_product_attention", {"return_residual": True}, "return_residual=False, got True"),
    "a window": ("dot_product_attention", {"local_window_size": -1}, "local_window_size to be an int from 0"),
    "lengths": ("dot_product_attention", {"query_seq_lengths": "lengths"}, r"query_seq_lengths of shape \(2,\)"),
    "axes": ("dot_product_attention", {"key": (5, 4, 3)}, r"key of shape \(b, t, h, k\) or \(t, h, k\), as query"),
    "widths": (
        "scaled_dot_product_attention",
        {"key": (2, 4, 5, 2)},
        r"key of the width of query, .* got \(2, 4, 5, 2\)",
    ),
    "values": (
        "scaled_dot_product_attention",
        {"value": (2, 4, 6, 3)},
        "value of the length of key on the axis before",
    ),
    "a mask": (
        "scaled_dot_product_attention",
        {"attn_mask": "mask of 4"},
        r"attn_mask broadcastable to the scores' shape",
    ),
    "kept": (
        "scaled_dot_product_attention",
        {"keep": "mask of 4", "dropout_p": 0.5},
        "keep broadcastable to the scores'",
    ),
    "a scale": ("scaled_dot_product_attention", {"scale": "1"}, "scale to be a finite int or float, got '1'"),
    "JAX's scale": ("dot_product_attention", {"scale": float("nan")}, "scale to be a finite int or float, got nan"),
    "JAX's widths": (
        "dot_product_attention",
        {"key": (2, 4, 5, 2)},
        r"key of shape \(b=2, s, g, k=3\), got \(2, 4, 5, 2\)",
    ),
    "JAX's values": ("dot_product_attention", {"value": (2, 6, 5, 3)}, r"value of shape \(b=2, s=4, g=5, v\), got"),
    "JAX's heads": (
        "dot_product_attention",
        {"key": (2, 4, 2, 3), "value": (2, 4, 2, 3)},
        "heads of query as a multiple of those of key and value, got 5 and 2",
    ),
    "JAX's mask": (
        "dot_product_attention",
        {"mask": "mask of 4"},
        r"mask broadcastable to \(b=2, h=5, t=4, s=4\), got",
    ),
    "JAX's bias": (
        "dot_product_attention",
        {"bias": (3, 1, 4, 4)},
        r"bias broadcastable to \(b=2, h=5, t=4, s=4\), got",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_they_refuse(case: str) -> None:
    """In the same words in all trees."""
    name, change, words = WRONG[case]
    arrays: Arrays = {part: drawn(1, 2, 4, 5, 3) for part in ("query", "key", "value")}
    others = {"mask": np.ones((5, 5), bool), "mask of 4": np.ones((4, 3), bool), "lengths": np.array([1, 2, 3])}
    given: dict[str, Any] = arrays | {
        n: drawn(2, *x) if isinstance(x, tuple) else others.get(x, x) if isinstance(x, str) else x
        for n, x in change.items()
    }
    for tree in TREES.values():
        if "keep" in change and tree.name == "torch":
            continue  # it draws what is kept
        call = {n: tree.array(x) if isinstance(x, np.ndarray) else x for n, x in given.items()}
        with pytest.raises(ValueError, match=f"{name}: expected .*{words}"):
            getattr(tree.package.drop_in, name)(**call)


@pytest.mark.parametrize("name", ["scaled_dot_product_attention", "dot_product_attention"])
def test_wrong_dtypes_are_told_by_their_names(name: str) -> None:
    for tree in TREES.values():
        call = getattr(tree.package.drop_in, name)
        x, narrow = tree.array(drawn(1, 2, 4, 5, 3)), tree.array(drawn(1, 2, 4, 5, 3).astype(np.float32))
        with pytest.raises(TypeError, match=f"{name}: expected key of dtype float64, as .*, got float32"):
            call(x, narrow, x)
        with pytest.raises(TypeError, match=f"{name}: expected .*mask.*, got int64"):
            call(
                x, x, x, **{"attn_mask" if name.startswith("scaled") else "mask": tree.array(np.ones((1, 1), np.int64))}
            )


@pytest.mark.parametrize("left_out", ["query", "key", "value"])
def test_a_missing_array_is_named(left_out: str) -> None:
    """As a `TypeError`, by every function."""
    words = f"expected an array for {left_out}, got None; pass {left_out}=$"
    for tree in TREES.values():
        x = tree.array(drawn(1, 2, 4, 5, 3))
        some = {name: None if name == left_out else x for name in ("query", "key", "value")}
        with pytest.raises(TypeError, match=f"^scaled_dot_product_attention: {words}"):
            tree.package.drop_in.scaled_dot_product_attention(**some)
        with pytest.raises(TypeError, match=f"^dot_product_attention: {words}"):
            tree.package.drop_in.dot_product_attention(**some)
        names = {"query": "q", "key": "k", "value": "v"}
        with pytest.raises(
            TypeError, match=f"attend: expected .*{names[left_out]}.*, got None; pass {names[left_out]}="
        ):
            tree.package.attend(**{names[name]: array for name, array in some.items()}, offset=1)
    given: dict[str, Any] = {name: jnp.ones((2, 4, 5, 3)) for name in ("query", "key", "value")} | {left_out: None}
    with pytest.raises(TypeError, match=f"attention_fn: expected an array for {left_out}, got None; pass {left_out}="):
        attn_jax.drop_in.attention_fn(**given)
    given = {name: torch.ones(2, 4, 5, 3) for name in ("query", "key", "value")} | {left_out: None}
    with pytest.raises(TypeError, match=f"transformers_attention: expected an array for {left_out}, got None; pass"):
        attn_torch.drop_in.transformers_attention(SimpleNamespace(is_causal=False), **given, attention_mask=None)


def test_what_attention_functions_of_other_libraries_refuse() -> None:
    """Flax's and Hugging Face's, by the names of their callers."""
    q, k = jnp.asarray(drawn(1, 2, 5, 4, 3)), jnp.asarray(drawn(2, 2, 7, 3, 3))
    with pytest.raises(ValueError, match="attention_fn: expected heads of query as a multiple of those of key and"):
        attn_jax.drop_in.attention_fn(q, k, k)
    with pytest.raises(ValueError, match=r"attention_fn: expected key of shape \(2,\), as query, and \(t, h, k\)"):
        attn_jax.drop_in.attention_fn(q, k[:1], k[:1])
    with pytest.raises(
        ValueError, match=r"attention_fn: expected mask broadcastable to the scores' shape \(2, 4, 5, 5\)"
    ):
        attn_jax.drop_in.attention_fn(q, q, q, mask=jnp.ones((2, 3, 5, 5)))
    x, y = torch.from_numpy(drawn(1, 2, 4, 5, 3)), torch.from_numpy(drawn(2, 2, 3, 5, 3))
    call, module = attn_torch.drop_in.transformers_attention, SimpleNamespace(is_causal=False)
    with pytest.raises(
        ValueError, match="transformers_attention: expected heads of query as a multiple of those of key"
    ):
        call(module, x, y, y, None)
    with pytest.raises(
        ValueError, match="transformers_attention: expected attention_mask broadcastable to the scores'"
    ):
        call(module, x, x, x, torch.zeros(2, 1, 4, 5))
    with pytest.raises(
        ValueError, match=r"transformers_attention: expected s_aux of shape \(4,\), one sink for each head"
    ):
        call(module, x, x, x, None, s_aux=torch.zeros(3))
    with pytest.raises(
        ValueError, match=r"transformers_attention: expected query of shape \(b, h, t, k\), got \(4, 5, 3\)"
    ):
        call(module, x[0], x, x, None)


def test_axes_of_pytorch_get_a_hint_from_attend() -> None:
    """Where heads do not fit, or a mask has its axes as the scores of such a call; and nowhere else."""
    hint = r"Axis 1 is 4 in all three: if that counts heads, swap axes 1 and 2, or call drop_in\.scaled_dot"
    for tree in TREES.values():
        q, k = tree.array(drawn(1, 2, 4, 5, 3)), tree.array(drawn(2, 2, 4, 7, 3))
        with pytest.raises(ValueError, match=hint):
            tree.package.attend(q, k, k)
        with pytest.raises(ValueError, match=hint):
            tree.package.attend(q, q, q, mask=tree.array(np.ones((2, 1, 5, 5), bool)))
        shared = tree.array(drawn(3, 2, 2, 7, 3))
        with pytest.raises(
            ValueError, match=r"Axis 1 is 4 in q and 2 in k and v: if these count heads, swap axes 1 and 2"
        ):
            tree.package.attend(q, shared, shared)
        with pytest.raises(ValueError, match=r"equally many query heads$"):
            tree.package.attend(q, *[tree.array(drawn(4, 2, 3, 7, 3))] * 2)
        with pytest.raises(ValueError, match=r"add axes of size 1 where it does not vary$"):
            tree.package.attend(q, q, q, mask=tree.array(np.ones((3, 4, 4), bool)))


@pytest.mark.parametrize("name", ["scaled_dot_product_attention", "dot_product_attention"])
def test_a_scale_is_any_number(name: str) -> None:
    """NumPy's, and an array without axes, as the originals and `attend` take them."""
    x = drawn(1, 2, 4, 5, 3)
    for tree in TREES.values():
        call, array = getattr(tree.package.drop_in, name), tree.array(x)
        want = tree.numpy(call(array, array, array, scale=0.25))
        for scale in (np.float32(0.25), tree.array(np.array(0.25))):
            assert np.array_equal(tree.numpy(call(array, array, array, scale=scale)), want)


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_keys_and_values_may_have_unlike_numbers_of_heads_if_one_is_1(tree: Any) -> None:
    """As if the one were repeated, to the bit."""
    function = tree.package.drop_in.scaled_dot_product_attention
    q, k, v = drawn(1, B, H, T, K), drawn(2, B, 1, T, K), drawn(3, B, H, T, V)
    for some, whole in (((k, v), (np.repeat(k, H, 1), v)), ((v[..., :K], k), (v[..., :K], np.repeat(k, H, 1)))):
        found = (tree.numpy(function(*map(tree.array, (q, *pair)))) for pair in (some, whole))
        np.testing.assert_array_equal(*found)
