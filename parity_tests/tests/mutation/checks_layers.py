"""What every layer of a copy must do: numbers, sizes, who sees whom, training."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from inspect import signature
from typing import Any

import numpy as np

from attn_np.ops import DTYPES
from parity_tests.bounds.precision import precision_of
from parity_tests.judge.candidates import extras, leaves, numpy_layer, run_numpy
from parity_tests.judge.judging import compare, judge_ends, judge_tape
from parity_tests.tests import laws
from parity_tests.tests.inputs import Arrays, axis, random_inputs, same
from parity_tests.tests.mutation.calls import (
    SMALL,
    Labelled,
    Parts,
    Scene,
    asked,
    built,
    case_of,
    claim,
    claim_same,
    drawn_for,
    gradients,
    kinds,
    made,
    refuses,
    results,
)

# Judged calls ---------------------------------------------------------------------------------------------------------


def ends(scene: Scene, alias: str) -> None:
    """Outputs and gradients are within the bounds of the whole computation."""
    outcome = run_numpy(scene.case, scene.drawn, True, tree=alias)
    for row in judge_ends(scene.case, alias, outcome, *scene.expected()):
        claim(row.ok, str(row))


def stages(scene: Scene, alias: str) -> None:
    """Every taped value and cotangent is within the bounds of its own stage."""
    outcome = run_numpy(scene.case, scene.drawn, True, tree=alias)
    for row in judge_tape(scene.case, alias, scene.drawn, outcome, precision_of(scene.case.dtype)):
        claim(row.ok, str(row))


# Sizes and layout -----------------------------------------------------------------------------------------------------


def empty(layer: Labelled, call: str, alias: str) -> None:
    laws.an_empty_axis_is_an_axis(asked(made(alias, layer, call)[0]), call)


@cache
def whole(layer: Labelled) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the whole reference gives for a call with every argument."""
    return Scene("", case_of(layer, "full"), drawn_for(layer, "full"), basic=True).expected()


def strided(layer: Labelled, alias: str) -> None:
    """Transposed, backward and spread-out arrays are the arrays that their indices say."""
    case, drawn = case_of(layer, "full"), drawn_for(layer, "full")
    expected = whole(layer)
    for layout in laws.LAYOUTS.values():
        inputs = {name: layout(x) for name, x in drawn.inputs.items()}
        outcome = run_numpy(case, replace(drawn, inputs=inputs), True, tree=alias)
        for row in judge_ends(case, alias, outcome, *expected):
            claim(row.ok, str(row))


# What a call leaves alone ---------------------------------------------------------------------------------------------


def nothing_written(layer: Labelled, alias: str) -> None:
    """Nothing is written; every `attend` goes the way that is asked for, and weights come where they are."""
    module, inputs = made(alias, layer)
    laws.a_call_writes_nothing(asked(module), inputs)
    plain = results(module, inputs)
    if "implementation" in signature(type(module).__call__).parameters:
        textbook = results(module, inputs, implementation="textbook")
        if "keep" in inputs:
            claim_same(textbook, plain, "the textbook's way")
        for name, x in textbook.items():  # a call without a keep-mask goes the fast path by itself
            claim(compare(x, whole(layer)[0][name])["ratio"] <= 1, f"the textbook's way: {name}")
        claim(set(ways_asked(module, inputs, "textbook")) <= {"textbook"}, "every attend gets the way asked for")
        refuses(partial(module, **inputs, implementation="fast"), ValueError, "implementation to be one of")
    more = extras(layer[1].variant, layer[1].class_name)
    if more:
        count = len(results(module, inputs, return_weights=False))
        claim(len(plain) == count and len(results(module, inputs, **more)) == count + 1, "weights where asked for")


def ways_asked(module: Any, inputs: Arrays, way: str) -> list[str]:
    """Which implementations a call asks `attend` for, where the file of the layer calls it."""
    home, asked = vars(import_module(type(module).__module__)), []
    attend = home.get("attend")
    if attend is not None:
        home["attend"] = lambda *args, **more: asked.append(more.get("implementation")) or attend(*args, **more)
        try:
            module(**inputs, implementation=way)
        finally:
            home["attend"] = attend
    return asked


def taped_dtypes(layer: Labelled, alias: str) -> None:
    """A 16-bit layer computes in float32, and its tape holds what was computed; y comes back in 16 bits."""
    for dtype in ("bfloat16", "float16"):
        module, inputs = made(alias, layer, "full", dtype)
        tape: dict[str, Any] = {}
        y, *others = leaves(module(**inputs, tape=tape)).values()
        # Gradients as large as some outputs would overflow on their way back.
        ended = (y, *others[:1]) if layer[1].second_output() else (y,)
        module.vjp(tape, *(np.cos(np.arange(x.size)).reshape(x.shape).astype(x.dtype) for x in ended))
        wrong = [name for name, x in tape.items() if x.dtype.kind not in "biu" and x.dtype != np.float32]
        claim(not wrong and y.dtype == DTYPES[dtype], f"not in float32: {wrong}")


# Who sees whom --------------------------------------------------------------------------------------------------------


def hidden_keys(layer: Labelled, value: float, alias: str) -> None:
    module, full = made(alias, layer)
    laws.hidden_keys_influence_nothing(asked(module), full, value)


def hiding_bias(layer: Labelled, alias: str) -> None:
    module, inputs = made(alias, layer)
    laws.a_hiding_bias_is_a_mask(asked(module), inputs)


def padding(layer: Labelled, value: float, alias: str) -> None:
    module, plain = made(alias, layer, "plain")
    laws.padding_influences_nothing(asked(module), plain, value)


def beyond_the_window(layer: Labelled, value: float, alias: str) -> None:
    laws.keys_beyond_the_window_influence_nothing(asked(made(alias, layer)[0]), value)


def query_without_keys(layer: Labelled, alias: str) -> None:
    module, inputs = made(alias, layer)
    laws.a_query_without_keys_gives_nothing(asked(module), inputs)


def hidden_gradients(layer: Labelled, alias: str) -> None:
    """A query without keys and a key that nobody sees get a gradient of 0, though a key beside them holds NaN."""
    (module, inputs), config = made(alias, layer), layer[1]
    mask = inputs["mask"] = inputs["mask"].copy()
    mask[0, ..., 2, :] = mask[1, ..., :, 2] = False
    mask[..., 1, 0] = True
    names = [name for name in kinds(config, "array") if axis(config, name, "s") is not None]
    for name in names:
        inputs[name] = inputs[name].copy()
        inputs[name][:, 0] = np.nan
    grads = gradients(module, inputs)
    claim(not any(grads[f"d{name}"][1, 2].any() for name in names), "gradient of a hidden key")
    if "dquery" in grads:
        claim(not grads["dquery"][0, 2].any(), "gradient of a query without keys")


# Numbers at the edge --------------------------------------------------------------------------------------------------


def huge_scores(layer: Labelled, alias: str) -> None:
    """Inputs in the thousands: the softmax and the gates saturate, nothing overflows, nothing warns."""
    module, inputs = made(alias, layer)
    large = {name: 1e4 * x if x.dtype.kind == "f" else x for name, x in inputs.items()}
    found = results(module, large) | gradients(module, large)
    claim(all(np.isfinite(x).all() for x in found.values()), "not finite")


# Training and evaluation ----------------------------------------------------------------------------------------------


def constructor(layer: Labelled, alias: str) -> None:
    """Parameters are drawn in the order of the contract within one over the root of their fan; training is on."""
    config = layer[1]
    for dtype in ("float64", "float32", "float16"):
        module, rng = built(alias, layer, rng=7, dtype=dtype), np.random.default_rng(7)
        claim((module.dtype, module.config, module.training) == (dtype, config, True), "what a layer is made of")
        params, fans = module.params(), config.fans()
        claim(list(params) == list(config.params()), "names of the parameters")
        for name, shape in config.shapes().items():
            limit, param = fans[name] ** -0.5, config.params()[name]
            start = param.initial_value()
            if start is not None:
                want = np.full(shape, start)
            else:
                want = rng.normal(size=shape) if param.normal else rng.uniform(-limit, limit, shape)
            claim(same(params[name], want.astype(DTYPES[dtype])), name)
    claim(built(alias, layer).dtype == "float32", "float32 by default")
    claim(built(alias, layer, rng=np.random.default_rng(7), dtype="float64").params().keys() == config.params().keys(),
          "a generator")  # fmt: skip
    one, other = (built(alias, layer).params() for _ in range(2))
    drawn = [name for name, param in config.params().items() if param.init is None]
    claim(not any(np.array_equal(one[name], other[name]) for name in drawn), "drawn anew without a generator")
    text = repr(built(alias, layer, dtype="float16"))
    claim(text == f"{config.class_name}({config}, dtype='float16')", text)


def parameters(layer: Labelled, alias: str) -> None:
    """Names of sub-layers, their modes together, and parameters put in by dotted name."""
    (module, _), config = made(alias, layer), layer[1]
    inside = dict(module.walk())
    order = ["", *dict.fromkeys(prefix for name in config.params() for prefix in prefixes(name))]
    claim(list(inside) == order, f"walk gives {list(inside)}, not {order}")
    claim(
        inside[""] is module and all(type(x).__name__ == x.config.class_name for x in inside.values()), "layers inside"
    )
    for mode, training in ((module.train, True), (module.eval, False), (module.train, True)):
        claim(mode() is module, "a mode returns the layer")
        claim([x.training for x in inside.values()] == [training] * len(inside), "one mode for all layers")
    values = {name: x + 1 for name, x in module.params().items()}
    claim(module.set_params(dict(values)) is None, "set_params returns nothing")
    claim_same(module.params(), values, "set_params")
    left_out = ({other: x for other, x in values.items() if other != name} for name in values)
    for wrong in (*left_out, values | {"w_z": np.ones(2)}, *(values | {name: x[None]} for name, x in values.items())):
        refuses(partial(module.set_params, {name: 2 * x for name, x in wrong.items()}), ValueError, "expected ")
    claim_same(module.params(), values, "parameters after a refusal")
    for name in type(module).__annotations__:
        absent = name not in config.own_params() and name not in config.children()
        claim((getattr(module, name) is None) == absent, f"{name} where the config has none")


def prefixes(name: str) -> Iterator[str]:
    """Names of the layers that a parameter lies in: "decoder.gru.layers.0.w_x" lies in four."""
    parts = name.split(".")[:-1]
    for i in range(len(parts)):
        if i + 1 == len(parts) or not parts[i + 1].isdigit():
            yield ".".join(parts[: i + 1])


class _Constant:
    """A generator that draws one number only."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, self.value)


def dropping(layer: Labelled, alias: str) -> None:
    """In training the keep-masks come from the layer's generator, entry by entry; one that is given counts instead."""
    config = layer[1]
    params, inputs = drawn_for(layer, "full").params, random_inputs(config, config.arguments(), b=3, **SMALL)
    keeps = kinds(config, "keep")
    plain = {name: x for name, x in inputs.items() if name not in keeps}
    cls = getattr(import_module(f"{alias}.{config.variant}"), config.class_name)
    module = cls(config, rng=11, dtype="float64", _values=params)
    rng = np.random.default_rng(11)
    rate = config.dropout  # type: ignore[attr-defined]
    drawn = {name: rng.random(inputs[name].shape) >= rate for name in keeps} if rate else {}
    calm = numpy_layer(case_of(layer, "full"), params, alias)
    more = extras(config.variant, config.class_name)
    claim_same(results(module, plain, **more), results(calm, plain | drawn, **more), "keep-masks of training")
    claim_same(results(module, inputs, **more), results(calm, inputs, **more), "keep-masks that are given")
    claim(same(module.rng.random(3), rng.random(3)), "numbers that the generator gave")
    if rate:
        module.rng = _Constant(rate)
        claim(
            module.draw_keep(None, "b t", {"b": 2, "t": 3}, calm).all(),
            "numbers below the rate are dropped, the rate itself is kept",
        )
    claim_same(results(module.eval(), plain), results(calm, plain), "evaluation")


def who_is_visible(layer: Labelled, alias: str) -> None:
    """A call as its frame has it: the mask of who sees whom, with what causality and a window leave."""
    module, inputs = made(alias, layer)
    config, parts = module.config, Parts(alias)
    call = parts.AttentionCall(module, **inputs)
    query, key, _ = call.inputs(causal=True, window=(1, None))
    b, h, t, s = query.shape[0], config.num_heads, query.shape[1], key.shape[1]
    distance = np.arange(s) - (np.arange(t)[:, None] + s - t)
    wanted = np.broadcast_to(inputs["mask"] & (distance <= 0) & (distance >= -1), (b, h, t, s))
    claim(same(np.broadcast_to(call.allowed(t, s, query), wanted.shape), wanted), "who sees whom")


def one_of_a_stack(layer: Labelled, alias: str) -> None:
    """The first layer of a recurrent stack does by itself what it does there; padding and tape may be left out."""
    module, inputs = made(alias, layer)
    first, tape = module.layers[0], {}
    start = inputs["state"][0]
    h, last = first(inputs["x"], start)
    again = first(inputs["x"], start, np.ones(h.shape[:2], bool), tape)
    claim(same(h, again[0]) and same(last, again[1]) and same(h[:, -1], last), "states")
    whole: dict[str, Any] = {}
    module(**inputs, tape=whole)
    claim(all(same(x, whole[f"layers.0.{name}"]) for name, x in tape.items() if f"layers.0.{name}" in whole), "tape")
    claim({"x", "state", "x_gate_inputs", "r", "z", "n", "h"} <= set(tape), f"the tape holds {list(tape)}")
    plain, padded = (first.vjp(dict(tape), h, last, *real) for real in ((), (np.ones(h.shape[:2], bool),)))
    claim_same(plain.inputs, padded.inputs, "gradients")
    claim(plain.params.keys() == padded.params.keys(), "gradients")
    y, _ = module.run(inputs["x"], inputs["state"], inputs["keep"])
    claim(same(y, whole["y"]), "without a tape")


class _Stepping(dict[str, Any]):
    """A judge's tape, which takes apart what every step of a scan carries and gives, if these are tuples."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: set[tuple[type, type]] = set()

    def tap_step(self, names: list[str], i: int, carry: Any, ys: Any) -> Any:
        self.kinds.add((type(carry), type(ys)))
        return carry, ys


def unchecked_run(layer: Labelled, alias: str) -> None:
    """What a decoder's `run` may be called without is what its call may be called without."""
    module, inputs = made(alias, layer, "plain")
    y, last, probs = module.run(*inputs.values(), None, with_probs=True)
    claim_same({"y": y, "out1": last, "out2": probs}, results(module, inputs, return_weights=True), "by run")
    tape = _Stepping()
    module.vjp(tape, results(module, inputs, tape=tape)["y"])
    claim(tape.kinds == {(tuple, tuple)}, f"what a step carries and gives: {tape.kinds}")
