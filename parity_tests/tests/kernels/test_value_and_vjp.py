"""`value_and_vjp` of functions: gradients by the names of the arguments, from a gradient for each output."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import attn_np
import attn_torch
from attn_np.contract._package import FUNCTIONS
from attn_np.ops import DTYPES
from attn_np.ops.vjp import defvjp
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.mistakes import SHARED, Mutant, planted
from parity_tests.tests.inputs import same
from parity_tests.tests.kernels.test_attend import CALLS, given, held, numpy_results
from parity_tests.tests.witness import cotangent, ratio, torch_gradients


def pulled(inputs: dict[str, Any], options: dict[str, Any], package: Any = attn_np) -> dict[str, Any]:
    """The gradients of every array of `attend`, for random gradients of the context and of the weights if returned."""
    (context, weights), pull = package.value_and_vjp(package.attend, **inputs, **options)
    dys = (context,) if weights is None else (context, weights)
    dys = tuple(type(y)(cotangent(y.shape), 0.0) if isinstance(y, ErrArray) else cotangent(y.shape) for y in dys)
    grads = pull(*dys)
    assert not grads.params
    return {f"d{name}": x for name, x in grads.inputs.items()}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_gradients_are_those_of_the_rule(call: str, recompute: bool) -> None:
    """Bit for bit on the textbook path, within the bounds on the path that a call takes by itself."""
    options, names = CALLS[call]
    inputs: Any = given(2, names)
    (y, _), pull = attn_np.value_and_vjp(
        attn_np.attend, **inputs, **options, recompute=recompute, implementation="textbook"
    )
    dy = cotangent(y.shape)
    want = numpy_results(inputs, dy, options, 2)
    grads = [pull(dy), pull(dy)]
    assert all(same(grads[0].inputs[name], grads[1].inputs[name]) for name in grads[0].inputs)
    assert {f"d{name}" for name in grads[0].inputs} == {name for name in want if name.startswith("d")}
    assert all(same(x, want[f"d{name}"]) for name, x in grads[0].inputs.items())
    bounds = held(inputs, options)
    for name, x in attn_np.value_and_vjp(attn_np.attend, **inputs, **options)[1](dy).inputs.items():
        assert ratio(x, bounds[f"d{name}"]) <= 1, name


@pytest.mark.parametrize("call", ["plain", "all", "all-sinks", "queries"])
def test_weights_have_gradients_too(call: str) -> None:
    """PyTorch's own derivatives of a loss that reads the context and the weights."""
    options, names = CALLS[call]
    inputs: Any = given(2, names)
    arrays: Any = {n: ErrArray(x, 0.0) if x.dtype.kind == "f" else x for n, x in inputs.items()}
    with precision(precision_of("float64")), np.errstate(invalid="ignore"):
        want = pulled(arrays, options | {"return_weights": True})
    leaves: Any = {n: torch.from_numpy(x) for n, x in inputs.items()}
    leaves = {n: x.requires_grad_() if x.is_floating_point() else x for n, x in leaves.items()}
    outputs: Any = attn_torch.attend(**leaves, **options, return_weights=True)
    loss: Any = sum((y * torch.from_numpy(cotangent(tuple(y.shape)))).sum() for y in outputs)
    loss.backward()
    for name, x in want.items():
        assert ratio(leaves[name[1:]].grad, x) <= 1, name


def test_an_output_that_the_loss_does_not_use_is_none() -> None:
    inputs: Any = given(2)
    (y, w), pull = attn_np.value_and_vjp(attn_np.attend, **inputs, return_weights=True)
    both = pull(np.zeros_like(y), cotangent(w.shape)).inputs
    assert all(same(x, both[name]) for name, x in pull(None, cotangent(w.shape)).inputs.items())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_have_the_dtypes_of_the_arguments(dtype: str) -> None:
    inputs: Any = {name: x.astype(DTYPES[dtype]) for name, x in given(2, "sinks").items()}
    bias = np.zeros((1, 1, 5, 7))
    (y, _), pull = attn_np.value_and_vjp(attn_np.attend, **inputs, bias=bias)
    found = pull(y).inputs
    assert {name: x.dtype.name for name, x in found.items()} == dict.fromkeys(inputs, dtype) | {"bias": "float64"}
    assert all(x.shape == (inputs | {"bias": bias})[name].shape for name, x in found.items())


def squares(scores: Any, allowed: Any = None, factor: float = 2.0) -> Any:
    """Squares of the scores, not normalised."""
    return np.where(True if allowed is None else allowed, scores * scores * factor, 0.0)


@defvjp(squares)
def squares_vjp(tape: Any, dy: Any, *, scores: Any, allowed: Any = None, factor: float = 2.0, **_: Any) -> Any:
    return {"scores": np.where(True if allowed is None else allowed, dy * scores * (2 * factor), 0.0)}


@pytest.mark.parametrize("names", ["", "mask bias"])
def test_a_function_of_the_callers_brings_its_own_rule(names: str) -> None:
    """As `softmax_fn`, where its arguments may be fixed by `partial`, and by itself."""
    inputs: Any = given(2, names)
    options: dict[str, Any] = {"softcap": 2.0, "softmax_fn": partial(squares, factor=0.5)}
    arrays: Any = {n: ErrArray(x, 0.0) if x.dtype.kind == "f" else x for n, x in inputs.items()}
    with precision(precision_of("float64")), np.errstate(invalid="ignore"):
        want = pulled(arrays, options)
    leaves: Any = {n: torch.from_numpy(x) for n, x in inputs.items()}
    leaves = {n: x.requires_grad_() if x.is_floating_point() else x for n, x in leaves.items()}

    def weigh(scores: Any, allowed: Any) -> Any:
        return scores * scores * 0.5 if allowed is None else torch.where(allowed, scores * scores * 0.5, 0.0)

    y, _ = attn_torch.attend(**leaves, softcap=2.0, softmax_fn=weigh)
    found = torch_gradients(y, **{name: x for name, x in leaves.items() if name != "mask"})
    assert set(found) == set(want)
    for name, x in found.items():
        assert ratio(x, want[name]) <= 1, name
    x = cotangent((3, 4))
    assert same(attn_np.value_and_vjp(squares, x, factor=0.5)[1](x).inputs["scores"], x * x)


def scaled_squares(factor: float, scores: Any, allowed: Any = None) -> Any:
    return squares(scores, allowed, factor)


@defvjp(scaled_squares)
def scaled_squares_vjp(tape: Any, dy: Any, *, factor: float, scores: Any, allowed: Any = None) -> Any:
    return squares_vjp(tape, dy, scores=scores, allowed=allowed, factor=factor)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_partial_fixes_arguments_by_position_too(recompute: bool) -> None:
    """The gradients are those of the whole call, also of what is fixed, by position or by name."""
    q, k, v = given(2).values()
    (y, _), pull = attn_np.value_and_vjp(attn_np.attend, q, k, v, causal=True, recompute=recompute)
    want = pull(cotangent(y.shape)).inputs
    labelled: Any = partial(attn_np.attend, q)
    labelled.label = "Python flattens no partial that has attributes"
    for function, inputs in (
        (partial(labelled, k), (v,)),
        (partial(attn_np.attend, q), (k, v)),
        (partial(attn_np.attend, q, k, v=v), ()),
        (partial(partial(attn_np.attend, q), k), (v,)),
        (partial(attn_np.attend, q, causal=False), (k, v)),
    ):
        _, pull = attn_np.value_and_vjp(function, *inputs, causal=True, recompute=recompute)
        found = pull(cotangent(y.shape)).inputs
        assert set(found) == set(want)
        assert all(same(x, want[name]) for name, x in found.items())


def test_a_partial_of_a_softmax_fn_fixes_arguments_by_position_too() -> None:
    inputs: Any = given(2)
    found = pulled(inputs, {"softmax_fn": partial(scaled_squares, 0.5)})
    want = pulled(inputs, {"softmax_fn": partial(squares, factor=0.5)})
    assert set(found) == set(want)
    assert all(same(x, want[name]) for name, x in found.items())


def linear(x: Any, *others: Any, factor: float = 2.0, **options: Any) -> Any:
    return x * factor * options.get("scale", 1.0) + sum(others)


def linear_vjp(tape: Any, dy: Any, *, x: Any, others: Any, factor: float, scale: float = 1.0, **rest: Any) -> Any:
    assert set(rest) <= {"tape", "note"}
    return {"x": dy * factor * scale, "others": tuple(dy for _ in others)}


@pytest.mark.parametrize("recompute", [False, True])
def test_a_function_may_take_any_arguments(recompute: bool) -> None:
    """By position and by name, such as `*others` and `**options`; its rule gets the latter by their names."""
    call: Any = partial(linear, scale=0.5)
    vars(linear)["vjp"] = linear_vjp
    x, other, dy = np.arange(3.0), np.ones(3), np.array([1.0, 2.0, 4.0])
    y, pull = attn_np.value_and_vjp(call, x, other, factor=8.0, note="any", recompute=recompute)
    assert y.tolist() == [1.0, 5.0, 9.0]
    grads = pull(dy)
    assert grads.inputs["x"].tolist() == [4.0, 8.0, 16.0] and grads.inputs["others"][0].tolist() == dy.tolist()


def test_a_function_without_a_gradient_says_so() -> None:
    names = [name for name in FUNCTIONS if not hasattr(getattr(attn_np, name), "vjp")]
    assert {"alibi_slopes", "relative_buckets"} <= set(names)
    for name in names:
        with pytest.raises(TypeError) as error:
            attn_np.value_and_vjp(getattr(attn_np, name), 4)
        fix = "nothing that it returns depends on an array of floats: call it alone"
        assert str(error.value) == f"value_and_vjp: expected a function with a gradient, got {name}; {fix}"


def test_what_cannot_be_differentiated_is_refused() -> None:
    inputs: Any = given(2)
    with pytest.raises(TypeError, match="value_and_vjp: expected a layer or a function with a backward pass, got <la"):
        attn_np.value_and_vjp(lambda x: x, inputs["q"])
    with pytest.raises(TypeError, match="value_and_vjp: expected a layer or a function with a backward pass, got <la"):
        attn_np.value_and_vjp(attn_np.attend, **inputs, softmax_fn=lambda s, _: s)[1](np.ones((2, 5, 6, 11)))
    (y, _), pull = attn_np.value_and_vjp(attn_np.attend, **inputs)
    for nothing in ((), (None,), (None, None)):
        with pytest.raises(TypeError, match="attend: expected the gradient of an output, got none; pass dL/dy"):
            pull(*nothing)
    layer = attn_np.build("mha", d_model=4, num_heads=2)
    for nothing in ((), (None,)):
        with pytest.raises(TypeError, match="mha: expected the gradient of y in vjp, got none; pass dL/dy"):
            attn_np.value_and_vjp(layer, np.ones((1, 2, 4), np.float32))[1](*nothing)
    with pytest.raises(ValueError, match="vjp: expected dy of shape"):
        pull(y[0])
    with pytest.raises(ValueError, match="vjp: expected None for what the call did not return"):
        pull(y, y)
    with pytest.raises(TypeError, match="vjp: expected dy of the output's dtype"):
        pull(y.astype(np.float32))


CALL = "tape, dcontext, **functions_contract.python_numbers(to_python_scalar, scale, softcap, rate)"
BUGS = {
    "the weights' gradient dropped": ("sum_grads(dprobs, dweights)", "dprobs"),
    "scale dropped": (CALL, CALL.replace("scale", "None")),
    "softcap dropped": (CALL, CALL.replace("softcap", "None")),
    "rate dropped": (CALL, CALL.replace("rate", "0.0")),
    "heads not summed": ("kv_heads=k.shape[2] if k.ndim == 4 else None", "kv_heads=None"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_seen(bug: str) -> None:
    options, names = CALLS["all"]
    options = options | {"scale": 0.375, "return_weights": True}
    inputs: Any = given(2, names)
    want = pulled(inputs, options)
    with planted(Mutant(bug, SHARED, *BUGS[bug], "", ""), "attn_np") as alias:
        got = pulled(inputs, options, __import__(alias))
    assert not all(same(got[name], x) for name, x in want.items())


@pytest.mark.parametrize("implementation", ["textbook", "fused"])
@pytest.mark.parametrize("sizes", [(0, 0), (0, 3), (3, 0), (1, 0)], ids=str)
@pytest.mark.parametrize("heads", [(), (2,)], ids=["without heads", "with heads"])
def test_gradients_of_empty_calls_have_the_shapes_of_their_inputs(
    heads: tuple[int, ...], sizes: tuple[int, int], implementation: str
) -> None:
    """A bias with an axis of 1 for the queries, one for each, and none."""
    t, s = sizes
    rng = np.random.default_rng(0)
    inputs = {name: rng.normal(size=(2, n, *heads, 4)) for name, n in (("q", t), ("k", s), ("v", s))}
    for rows in {1, t}:
        given: Any = inputs | {"bias": rng.normal(size=(2, *heads, rows, s))}
        (y, _), pull = attn_np.value_and_vjp(attn_np.attend, **given, implementation=implementation)
        found = pull(np.ones(y.shape)).inputs
        assert {name: x.shape for name, x in found.items()} == {name: x.shape for name, x in given.items()}
