"""What the public functions below the layers must do, and how they are differentiated."""

from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

import attn_np
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.judge.judging import compare
from parity_tests.tests.mutation.calls import claim, claim_same, refuses, same
from parity_tests.tests.mutation.checks_functions import ATTENDS, attend_expected, run_attend


def attend_pulled_back(call: str, alias: str) -> None:
    """`value_and_vjp` of `attend` gives the gradients of its rule, each in the dtype of its argument."""
    package, (options, _) = import_module(alias), ATTENDS[call]
    for dtype in ("float64", "bfloat16"):
        inputs, dy, _ = attend_expected(2, call, dtype, 6)
        want = {name: x for name, x in run_attend(alias, inputs, dy, options).items() if name[0] == "d"}
        for recompute in (False, True):
            (_, weights), pull = package.value_and_vjp(
                package.attend, **options | {"implementation": "textbook"}, **inputs, recompute=recompute
            )
            found = pull(dy)
            claim(weights is None and found.params == {}, "an output alone")
            claim({f"d{name}" for name in found.inputs} == set(want), "names of gradients")
            for name, x in found.inputs.items():
                claim(same(x, want[f"d{name}"].astype(inputs[name].dtype)), f"d{name}")
            claim_same(pull(dy).inputs, found.inputs, "pulled twice")
    if call == "queries":
        return
    inputs, dy, want = attend_expected(2, call, "float64", 6)
    found = package.value_and_vjp(package.attend, **options, **inputs)[1](dy)
    for name, x in found.inputs.items():
        claim(compare(x, want[f"d{name}"])["ratio"] <= 1, f"d{name} by the path that the call takes")


def doubled(scores: Any, allowed: Any = None, factor: float = 2.0) -> Any:
    """Weights that are a multiple of the scores."""
    return scores * factor if allowed is None else np.where(allowed, scores * factor, 0.0)


def doubled_vjp(tape: Any, dy: Any, *, scores: Any, allowed: Any = None, factor: float = 2.0) -> Any:
    claim(same(tape["y"], doubled(scores, allowed, factor)), "what a rule is given")
    return {"scores": dy * factor if allowed is None else np.where(allowed, dy * factor, 0.0), "factor": None}


def pulled_back(alias: str) -> None:
    """Functions of the caller's, weights with gradients of their own, and what is refused."""
    package, (inputs, dy, _) = import_module(alias), attend_expected(2, "all", "float64", 6)
    pull_of = partial(package.value_and_vjp, package.attend)
    vars(doubled)["vjp"] = doubled_vjp
    x = np.arange(6.0).reshape(2, 3)
    y, pull = package.value_and_vjp(doubled, x)
    claim(same(y, 2 * x) and list(pull(x).inputs) == ["scores"] and same(pull(x).inputs["scores"], 2 * x), "a rule")
    y, pull = package.value_and_vjp(partial(doubled, factor=3.0), x)
    claim(same(y, 3 * x) and same(pull(x).inputs["scores"], 3 * x), "a rule with an argument that is fixed")
    options: dict[str, Any] = {"softcap": 1.5, "rate": 0.25, "return_weights": True}
    plain = {name: array for name, array in inputs.items() if name != "sinks"}
    for some, settings in ((plain, options), ({n: plain[n] for n in "qkv"}, {"return_weights": True})):
        (context, weights), pull = pull_of(**some, **settings, softmax_fn=partial(doubled, factor=3.0))
        whole = pull(dy, weights).inputs
        zero = pull(np.zeros_like(dy), weights).inputs
        claim_same(pull(None, weights).inputs, zero, "an output that the loss does not use")
        for name, found in whole.items():
            step = np.zeros_like(some[name])
            step.flat[5] = 2.0**-20
            loss = [
                float(np.sum(c * dy) + np.sum(w * weights))
                for c, w in (
                    package.attend(**some | {name: some[name] + s}, **settings, softmax_fn=partial(doubled, factor=3.0))
                    for s in (step, -step)
                )
            ]
            slope = (loss[0] - loss[1]) / 2.0**-19
            claim(abs(slope - found.flat[5]) <= 2.0**-20 * (1 + np.abs(found).max()), f"the slope along {name}")
    claim(not np.any(context[0, 2, -1]) or "mask" not in some, "a query without keys")
    refuses(lambda: package.value_and_vjp(len, x), TypeError, "value_and_vjp: expected a layer or a function with a")
    (y, _), pull = pull_of(**plain)
    refuses(lambda: pull(y, y), ValueError, "vjp: expected None for what the call did not return")
    refuses(lambda: pull(y[0]), ValueError, "vjp: expected dy of shape")
    refuses(lambda: pull(y.astype("float32")), TypeError, "vjp: expected dy of the output's dtype")


def weights_of_scores(alpha: float, alias: str) -> None:
    """`softmax` and `entmax` are within their bounds along any axis, with a mask or none, and so are gradients."""
    package, rng = import_module(alias), np.random.default_rng(4)
    scores, mask, dy = rng.normal(size=(3, 5, 7)), rng.random((3, 5, 7)) < 0.7, rng.normal(size=(3, 5, 7))
    mask[1, 2], mask[0, 1] = False, np.arange(7) == 4
    call: Any = partial(package.entmax, alpha=alpha)
    whole: Any = partial(attn_np.entmax, alpha=alpha)
    for axis in (-1, 0):
        for some in (mask, mask[0], None):
            with precision(precision_of("float64")):
                want: Any = whole(ErrArray(scores, 0.0), some, axis=axis)
                found = ErrArray(want.v, 0.0) if alpha == 2 else want
                rule = vars(attn_np.entmax)["vjp"]
                slopes = rule({"y": found}, ErrArray(dy, 0.0), alpha=alpha, axis=axis)["scores"]
            got, pull = package.value_and_vjp(call, scores, some, axis=axis)
            claim(compare(got, want)["ratio"] <= 1, f"weights along {axis}")
            claim(compare(pull(dy).inputs["scores"], slopes)["ratio"] <= 1, f"gradients along {axis}")
            if alpha == 1:
                y, back = package.value_and_vjp(package.softmax, scores, some, axis=axis)
                claim(same(y, got) and same(back(dy).inputs["scores"], pull(dy).inputs["scores"]), "softmax")
    narrow = scores.astype("float32")
    claim(
        same(call(narrow.astype("float16")), call(narrow.astype("float16").astype("float32")).astype("float16")), "16"
    )
    claim(compare(call(narrow).astype("float64"), whole32(narrow, alpha))["ratio"] <= 1, "32 bits")
    claim(call(scores[:, :0], axis=1).shape == (3, 0, 7) and call(scores[:0]).shape == (0, 5, 7), "nothing")
    with np.errstate(invalid="ignore"):
        for value in (np.nan, np.inf):
            spoiled = np.where(np.arange(7) == 3, value, scores)
            claim(same(call(spoiled, np.arange(7) != 3), call(scores, np.arange(7) != 3)), "hidden")
            spoiled[1:] = scores[1:]
            got = call(spoiled)
            claim(np.isnan(got[0]).all() and same(got[1:], call(scores)[1:]), "in sight")
    lost = call(np.full((2, 3), -np.inf), np.array([[True], [False]]))
    claim(np.isnan(lost[0]).all() and not lost[1].any(), "scores that overflowed")


def whole32(scores: np.ndarray, alpha: float) -> Any:
    """What the whole reference gives, with bounds for float32."""
    with precision(precision_of("float32")):
        carried: Any = ErrArray(scores.astype("float64"), 0.0)
        return attn_np.entmax(carried, alpha=alpha)


def wrong_scores(alias: str) -> None:
    """What has no weights is refused."""
    package, scores = import_module(alias), np.zeros((3, 5, 7))
    for name in ("softmax", "entmax"):
        call = getattr(package, name)
        refuses(lambda call=call: call(scores > 0), TypeError, f"{name}: expected scores of a float dtype, got bool")
        refuses(lambda call=call: call(scores.tolist()), TypeError, f"{name}: expected scores as a NumPy array")
        refuses(lambda call=call: call(scores, scores), TypeError, f"{name}: expected a boolean mask")
        refuses(lambda call=call: call(scores, scores[:2] > 0), ValueError, f"{name}: expected mask broadcastable")
        refuses(lambda call=call: call(scores, axis=3), ValueError, f"{name}: expected axis to be one of the scores' 3")
    refuses(
        lambda: package.entmax(scores, alpha=0.5), ValueError, "entmax: expected alpha to be a finite number from 1"
    )
