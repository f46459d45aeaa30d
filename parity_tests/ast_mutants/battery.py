"""What a copy of attn_np must do: one small function for each promise, called with the copy's name.

A check raises `Caught` where the promise is broken. Numbers are judged by the derived bounds of the whole reference,
everything else exactly: by relations that the copy must meet itself, so that they would also catch a mistake that all
trees share. Warnings count as errors: nothing in the library warns.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from attn_np import contract
from attn_np._core import DTYPES
from attn_np.contract import Config
from parity_tests.ast_mutants.calls import (
    SMALL,
    Arrays,
    Labelled,
    Scene,
    alone,
    alone_in_itself,
    axis,
    case_of,
    chief,
    claim,
    claim_same,
    drawn_for,
    gradients,
    keyed,
    kinds,
    layers,
    made,
    masked,
    refuses,
    results,
    same,
    scenes,
    shown,
    sized,
)
from parity_tests.candidates import extras, leaves, numpy_layer, run_numpy, takes_last
from parity_tests.cases import given, tokens_below
from parity_tests.error_arrays import ErrArray, precision, precision_of
from parity_tests.judge import compare, judge_ends, judge_tape


@dataclass(frozen=True)
class Check:
    """A named check; called with the name of a copy."""

    name: str
    run: Callable[[str], None]

    def __call__(self, alias: str) -> None:
        self.run(alias)


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


@cache
def shapes_at(layer: Labelled, call: str, letter: str, size: int) -> list[tuple[int, ...]]:
    """Shapes that the whole reference returns with one axis of another size."""
    whole = numpy_layer(case_of(layer, call), dict(drawn_for(layer, call).params))
    return [x.shape for x in results(whole, sized(layer[1], given(layer[1], call), **{letter: size})).values()]


def empty(layer: Labelled, call: str, letter: str, alias: str) -> None:
    """An axis of length 0 is an axis like any other: its length shows where a length of 31 would."""
    module, _ = made(alias, layer, call)
    inputs = sized(layer[1], given(layer[1], call), **{letter: 0})
    want = [tuple(0 if n == 31 else n for n in shape) for shape in shapes_at(layer, call, letter, 31)]
    got = results(module, inputs)
    claim([x.shape for x in got.values()] == want, f"shapes with {letter}=0")
    claim(all(np.isfinite(x).all() for x in got.values()), f"not finite with {letter}=0")
    for name, x in gradients(module, inputs).items():
        source = inputs[name[1:]] if name[1:] in inputs else module.params()[name[1:]]
        claim(x.shape == source.shape and np.isfinite(x).all(), f"{name} with {letter}=0")


def strided(layer: Labelled, alias: str) -> None:
    """Transposed, backward and spread-out arrays are the arrays that their indices say."""
    case, drawn = case_of(layer, "full"), drawn_for(layer, "full")
    scene = next(s for s in scenes() if s.case == case)
    for layout in (
        lambda x: np.ascontiguousarray(x.T).T,
        lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
        lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
    ):
        inputs = {name: layout(x) for name, x in drawn.inputs.items()}
        outcome = run_numpy(case, replace(drawn, inputs=inputs), True, tree=alias)
        for row in judge_ends(case, alias, outcome, *scene.expected()):
            claim(row.ok, str(row))


# What a call leaves alone ---------------------------------------------------------------------------------------------


def nothing_written(layer: Labelled, alias: str) -> None:
    """Inputs and parameters stay as they are, and no result is one of them; a tape changes no bit."""
    module, inputs = made(alias, layer)
    own = inputs | module.params()
    before = {name: x.tobytes() for name, x in own.items()}
    plain, tape = results(module, inputs), {}
    claim_same(results(module, inputs, tape=tape), plain, "with a tape")
    gradients(module, inputs)
    claim({name: x.tobytes() for name, x in own.items()} == before, "an input or a parameter was written")
    claim(not any(np.shares_memory(y, x) for y in plain.values() for x in own.values()), "a result is an input")
    claim(same(tape["y"], plain["y"]), "the tape holds the output")
    if "implementation" in signature(type(module).__call__).parameters:
        claim_same(results(module, inputs, implementation="textbook"), plain, "the textbook's way")
        refuses(partial(module, **inputs, implementation="fast"), ValueError, "implementation to be one of")
    more = extras(layer[1].variant, layer[1].layer)
    if more:
        count = len(results(module, inputs, return_weights=False))
        claim(len(plain) == count and len(results(module, inputs, **more)) == count + 1, "weights where asked for")


def taped_dtypes(layer: Labelled, alias: str) -> None:
    """A 16-bit layer computes in float32, and its tape holds what was computed; y comes back in 16 bits."""
    for dtype in ("bfloat16", "float16"):
        module, inputs = made(alias, layer, "full", dtype)
        tape: dict[str, Any] = {}
        y, *others = leaves(module(**inputs, tape=tape)).values()
        module.vjp(tape, y, *others[: takes_last(layer[1].variant, layer[1].layer)])
        wrong = [name for name, x in tape.items() if x.dtype.kind not in "biu" and x.dtype != np.float32]
        claim(not wrong and y.dtype == DTYPES[dtype], f"not in float32: {wrong}")


# Who sees whom --------------------------------------------------------------------------------------------------------


def poisoned(config: Config, inputs: Arrays, place: int, value: float, names: tuple[str, ...]) -> Arrays:
    """The inputs with one position of the second batch row overwritten, in the arrays named."""
    out = dict(inputs)
    for name in names:
        x = out[name] = inputs[name].copy()
        where = axis(config, name, "s")
        where = axis(config, name, "t") if where is None else where
        index: list[Any] = [slice(None)] * x.ndim
        index[axis(config, name, "b") or 0], index[where or 0] = 1, place
        x[tuple(index)] = value if x.dtype.kind == "f" else (x[tuple(index)] + 1) % tokens_below(config, name)
    return out


def claim_clean(module: Any, clean: Arrays, dirty: Arrays, dy: np.ndarray | None = None) -> None:
    claim_same(results(module, dirty), results(module, clean), "poisoned")
    got = gradients(module, dirty, dy)
    claim(all(np.isfinite(x).all() for x in got.values()), "a gradient is not finite")
    claim_same(got, gradients(module, clean, dy), "poisoned")


def hidden_keys(layer: Labelled, value: float, alias: str) -> None:
    """A key that no query sees influences nothing, whatever it holds; the mask hides what the config still shows."""
    (module, clean), config = made(alias, layer), layer[1]
    mask = clean["mask"] = clean["mask"].copy()
    place = mask.shape[-1] - 2
    mask[1, ..., place] = ~shown(config, *mask.shape[-2:])[:, place]
    names = tuple(n for n, x in clean.items() if axis(config, n, "s") is not None and x.dtype != bool)
    claim_clean(module, clean, poisoned(config, clean, place, value, names))


def hiding_bias(layer: Labelled, alias: str) -> None:
    """A bias of -inf hides as the mask does: a single key, a key from every query, and all keys from one query."""
    module, inputs = made(alias, layer)
    bias, mask = inputs["bias"].copy(), inputs["mask"].copy()
    for place in (np.s_[0, ..., 1, 1], np.s_[1, ..., 3], np.s_[1, ..., 2, :]):
        bias[place], mask[place] = -np.inf, False
    by_mask, by_bias = inputs | {"mask": mask}, inputs | {"bias": bias}
    more = extras(layer[1].variant, layer[1].layer)
    claim_same(results(module, by_bias, **more), results(module, by_mask, **more), "hidden by the bias")
    claim_same(gradients(module, by_bias), gradients(module, by_mask), "hidden by the bias")
    alone = {name: x for name, x in by_bias.items() if name != "mask"}
    *_, weights = results(module, alone, **more).values()
    claim(not weights[1, ..., 2, :].any() and not weights[1, ..., 3].any(), "weights under a bias alone")


def padding(layer: Labelled, value: float, alias: str) -> None:
    """A position that sees nothing and that nobody sees influences nothing."""
    (module, clean), config = made(alias, layer, "plain"), layer[1]
    clean["mask"] = alone(config, clean["query"].shape[1])
    claim_clean(module, clean, poisoned(config, clean, 2, value, ("query",)))


def beyond_the_window(layer: Labelled, value: float, alias: str) -> None:
    """Three queries stand at the last three keys; what lies further back than the window reaches is hidden."""
    module, config = made(alias, layer)[0], layer[1]
    inputs = sized(config, {*given(config, "plain"), "key", "value"}, t=3, s=11)
    names = tuple(name for name in inputs if axis(config, name, "s") is not None)
    first = 11 - 3 - config.window[0]  # type: ignore[attr-defined]
    claim_clean(module, inputs, poisoned(config, inputs, first - 1, value, names))
    shown = results(module, poisoned(config, inputs, first, 1e3, names))
    claim(not same(shown["y"], results(module, inputs)["y"]), "the key beside it is seen")


def query_without_keys(layer: Labelled, alias: str) -> None:
    """Its weights and its average are 0, its output is what the last projection adds; gradients stay finite."""
    (module, inputs), config = made(alias, layer), layer[1]
    inputs["mask"] = inputs["mask"].copy()
    inputs["mask"][0, ..., 2, :] = False
    tape: dict[str, Any] = {}
    *_, weights = results(module, inputs, return_weights=True, tape=tape).values()
    claim(not weights[0, ..., 2, :].any(), "weights of a query without keys")
    grads = gradients(module, inputs)
    claim(all(np.isfinite(x).all() for x in grads.values()), "a gradient is not finite")
    if config.layer in contract.layers() and config.family != "recurrent":
        left = module.params().get("b_o", np.zeros(tape["y"].shape[2:]))
        claim(not tape["context"][0, 2].any() and same(tape["y"][0, 2], left), "context of a query without keys")


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


def built(alias: str, layer: Labelled, **options: Any) -> Any:
    """A layer by its constructor, as users call it."""
    config = layer[1]
    return getattr(import_module(f"{alias}.{config.variant}"), config.layer)(config, **options)


def constructor(layer: Labelled, alias: str) -> None:
    """Parameters are drawn in the order of the contract within one over the root of their fan; training is on."""
    config = layer[1]
    for dtype in ("float64", "float32", "float16"):
        module, rng = built(alias, layer, rng=7, dtype=dtype), np.random.default_rng(7)
        claim((module.dtype, module.config, module.training) == (dtype, config, True), "what a layer is made of")
        params, fans = module.params(), config.fans()
        claim(list(params) == list(config.params()), "names of the parameters")
        for name, shape in config.shapes().items():
            limit = fans[name] ** -0.5
            claim(same(params[name], rng.uniform(-limit, limit, shape).astype(DTYPES[dtype])), name)
    claim(built(alias, layer).dtype == "float32", "float32 by default")
    claim(built(alias, layer, rng=np.random.default_rng(7), dtype="float64").params().keys() == config.params().keys(),
          "a generator")  # fmt: skip
    one, other = (built(alias, layer).params() for _ in range(2))
    claim(not any(np.array_equal(x, other[name]) for name, x in one.items()), "drawn anew without a generator")
    text = repr(built(alias, layer, dtype="float16"))
    claim(text == f"{config.layer}({config}, dtype='float16')", text)


def parameters(layer: Labelled, alias: str) -> None:
    """Names of sub-layers, their modes together, and parameters put in by dotted name."""
    (module, _), config = made(alias, layer), layer[1]
    inside = dict(module.walk())
    order = ["", *dict.fromkeys(prefix for name in config.params() for prefix in prefixes(name))]
    claim(list(inside) == order, f"walk gives {list(inside)}, not {order}")
    claim(inside[""] is module and all(type(x).__name__ == x.config.layer for x in inside.values()), "layers inside")
    for mode, training in ((module.train, True), (module.eval, False), (module.train, True)):
        claim(mode() is module, "a mode returns the layer")
        claim([x.training for x in inside.values()] == [training] * len(inside), "one mode for all layers")
    values = {name: x + 1 for name, x in module.params().items()}
    claim(module.set_params(dict(values)) is None, "set_params returns nothing")
    claim_same(module.params(), values, "set_params")
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
    params, inputs = drawn_for(layer, "full").params, sized(config, config.arguments(), b=3, **SMALL)
    keeps = kinds(config, "keep")
    plain = {name: x for name, x in inputs.items() if name not in keeps}
    cls = getattr(import_module(f"{alias}.{config.variant}"), config.layer)
    module = cls(config, rng=11, dtype="float64", _values=params)
    rng = np.random.default_rng(11)
    rate = config.dropout  # type: ignore[attr-defined]
    drawn = {name: rng.random(inputs[name].shape) >= rate for name in keeps} if rate else {}
    calm = numpy_layer(case_of(layer, "full"), params, alias)
    more = extras(config.variant, config.layer)
    claim_same(results(module, plain, **more), results(calm, plain | drawn, **more), "keep-masks of training")
    claim_same(results(module, inputs, **more), results(calm, inputs, **more), "keep-masks that are given")
    claim(same(module.rng.random(3), rng.random(3)), "numbers that the generator gave")
    if rate:
        module.rng = _Constant(rate)
        claim(module.draw_keep(None, (2, 3), calm).all(), "numbers below the rate are dropped, the rate itself is kept")
    claim_same(results(module.eval(), plain), results(calm, plain), "evaluation")


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
    claim({"x", "state", "x_gates", "r", "z", "n", "h"} <= set(tape), f"the tape holds {list(tape)}")
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

    def step(self, names: list[str], i: int, carry: Any, ys: Any) -> Any:
        self.kinds.add((type(carry), type(ys)))
        return carry, ys


def unchecked_run(layer: Labelled, alias: str) -> None:
    """What a decoder's `run` may be called without is what its call may be called without."""
    module, inputs = made(alias, layer, "plain")
    y, last, probs = module.run(*inputs.values(), None)
    claim_same({"y": y, "out1": last, "out2": probs}, results(module, inputs, return_weights=True), "by run")
    tape = _Stepping()
    module.vjp(tape, results(module, inputs, tape=tape)["y"])
    claim(tape.kinds == {(tuple, tuple)}, f"what a step carries and gives: {tape.kinds}")


# The package's functions ----------------------------------------------------------------------------------------------


def api(alias: str) -> Any:
    return import_module(alias)


def fields_of(config: Config) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.fields()}


def building(layer: Labelled, alias: str) -> None:
    """The same bits as everywhere, in evaluation mode; what cannot be right is refused."""
    whole, config = import_module("attn_np"), layer[1]
    for seed, dtype in ((0, "float32"), (5, "bfloat16")):
        module = api(alias).build(config.variant, seed=seed, dtype=dtype, **fields_of(config))
        want = whole.build(config.variant, seed=seed, dtype=dtype, **fields_of(config))
        claim(not module.training and module.config == config and module.dtype == dtype, "what is built")
        claim_same(module.params(), want.params(), "weights")
        claim(same(module.rng.random(3), want.rng.random(3)), "generator")
    module = api(alias).build(config.variant, **fields_of(config))
    claim(module.dtype == "float32", "float32 by default")
    claim_same(module.params(), api(alias).build(config.variant, seed=0, **fields_of(config)).params(), "seed 0")
    name = f"{config.variant}: expected dtype"
    refuses(lambda: api(alias).build(config.variant, dtype="int8", **fields_of(config)), ValueError, name)


def files(layer: Labelled, alias: str) -> None:
    """A weight file gives back config, dtype and bits, to a new layer or into one."""
    config, package = layer[1], api(alias)
    for dtype in ("float64", "bfloat16"):
        module = package.build(config.variant, seed=3, dtype=dtype, **fields_of(config))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "weights.safetensors"
            claim(package.save(module, path) is None and path.is_file(), "a file is written")
            found = package.load(path)
            claim(found.config == config and not found.training, "what is loaded")
            claim_same(found.params(), module.params(), "loaded")
            other = package.build(config.variant, seed=4, dtype=dtype, **fields_of(config)).train()
            claim(package.load(path, into=other) is other and not other.training, "loaded in place")
            claim_same(other.params(), module.params(), "loaded in place")


def foreign_files(alias: str) -> None:
    """Layout, number of the layer, prefix and fields of the config are those that are asked for."""
    package, fields = api(alias), {"d_model": 6, "num_heads": 2}
    module = package.build("mha", seed=3, dtype="float64", **fields)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        package.save(module, path, layout="bert", layer=1, prefix="model.")
        asked = {"layout": "bert", "layer": 1, "prefix": "model.", "num_heads": 2}
        found = package.load(path, **asked)
        claim(found.config == module.config, "the config")
        claim_same(found.params(), module.params(), "loaded")
        for wrong in ({"layer": 0}, {"prefix": ""}, {"num_heads": 5}, {"variant": "gru"}, {"layout": "torch_linear"}):
            refuses(partial(package.load, path, **asked | wrong), ValueError, "expected ")
        refuses(partial(package.load, path), ValueError, "expected ")
        package.save(module, path, layout="torch_linear")
        found = package.load(path, layout="torch_linear", variant="mha", num_heads=2)
        claim_same(found.params(), module.params(), "loaded by another layout")


def doubtful_files(alias: str) -> None:
    """Another dtype only with `cast`, no number that is not finite without leave, no other config than the layer's."""
    package, fields = api(alias), {"d_model": 6, "num_heads": 2}
    module = package.build("mha", seed=3, dtype="float64", **fields)
    small = package.build("mha", seed=4, dtype="float32", **fields)
    before = small.params()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        package.save(module, path)
        refuses(partial(package.load, path, dtype="float32"), ValueError, "expected ")
        refuses(partial(package.load, path, into=small), ValueError, "expected ")
        refuses(partial(package.load, path, into=module, dtype="float32"), ValueError, "mha: expected dtype 'float64'")
        other = package.build("mha", dtype="float64", **fields, softcap=2.0)
        refuses(partial(package.load, path, into=other), ValueError, "softcap")
        claim_same(small.params(), before, "a layer after a refusal")
        rounded = {name: x.astype(np.float32) for name, x in module.params().items()}
        claim_same(package.load(path, dtype="float32", cast=True).params(), rounded, "cast")
        claim_same(package.load(path, into=small, cast=True).params(), rounded, "cast in place")
        draws = [package.load(path).rng.random(3) for _ in range(2)]
        claim(same(*draws), "two loaded layers draw the same")
        module.set_params({name: x + np.nan for name, x in module.params().items()})
        refuses(partial(package.save, module, path), ValueError, "finite")
        package.save(module, path, finite=False)
        refuses(partial(package.load, path), ValueError, "finite")
        claim(all(np.isnan(x).all() for x in package.load(path, finite=False).params().values()), "NaN by leave")
        package.save(package.build("dot_product"), path)
        claim(package.load(path, dtype="float64").dtype == "float64", "a layer without parameters in another dtype")
        claim(package.load(path).dtype == "float32", "a layer without parameters")


def pulled_back(layer: Labelled, alias: str) -> None:
    """`value_and_vjp` gives what the layer and its vjp give, in training with the same dropout, at the same weights."""
    package, config = api(alias), layer[1]
    (module, inputs) = made(alias, layer)
    names = kinds(config, "keep")
    plain = {name: x for name, x in inputs.items() if name not in names}
    module.train()
    before = module.rng.bit_generator.state
    first, *rest = plain
    found, pull = package.value_and_vjp(module, plain[first], **{name: plain[name] for name in rest})
    module.rng.random(5)
    after = module.rng.bit_generator.state
    y = leaves(found)
    dys = [np.cos(np.arange(x.size)).reshape(x.shape) for x in y.values()]
    dys = dys[: 2 if takes_last(config.variant, config.layer) else 1]
    now, old = {name: x + 1 for name, x in module.params().items()}, module.params()
    module.set_params(now)
    grads = [pull(*dys), pull(*dys)]
    claim_same(module.params(), now, "parameters that were replaced meanwhile")
    claim(module.rng.bit_generator.state == after, "the generator moved")
    module.set_params(old)
    module.rng.bit_generator.state = before
    out, tape = package.trace(module, **plain)
    claim_same(leaves(out), y, "value and trace")
    want = module.vjp(tape, *dys)
    floats = {name for name, x in plain.items() if x.dtype.kind == "f"}
    claim(set(want.inputs) == floats and set(want.params) == set(old), "names of gradients")
    for got in grads:
        claim_same(got.inputs, want.inputs, "pulled back")
        claim_same(got.params, want.params, "pulled back")


# What is refused ------------------------------------------------------------------------------------------------------


def longer(x: np.ndarray, where: int) -> np.ndarray:
    return np.concatenate([x, np.take(x, [0], axis=where)], axis=where)


def wrong_arguments(layer: Labelled, alias: str) -> None:
    """Wrong shapes, dtypes and objects are refused in the contract's words, each argument by its name."""
    (module, inputs), config = made(alias, layer), layer[1]
    who = config.variant
    if not config.params():  # nothing to agree with: any one float type will do
        claim_same(results(built(alias, layer).eval(), inputs), results(module, inputs), "inputs of another dtype")
    for name, arg in config.arguments().items():
        x = inputs[name]
        words = "expected a boolean " if arg.kind in ("mask", "keep") else "expected "

        def call(value: Any, name: str = name) -> Callable[[], Any]:
            return lambda: module(**inputs | {name: value})

        refuses(call(x.tolist()), TypeError, f"{who}: expected {name} as a NumPy array, got list; convert it")
        refuses(call(x[None]), ValueError, f"{who}: expected {name} ")
        other = x.astype(np.int64) if arg.kind in ("mask", "keep") else x > 0
        refuses(call(other), TypeError, f"{who}: {words}{name} ")
        if arg.kind in ("array", "bias") and config.params():
            refuses(call(x.astype(np.float32)), TypeError, f"{who}: expected {name} of dtype float64")
        last = arg.axes.split()[-1]
        if last in config.sizes() or arg.kind not in ("array", "tokens"):
            refuses(call(longer(x, x.ndim - 1)), ValueError, f"{who}: expected {name} ")
        if not arg.optional and arg.default is None:
            refuses(call(None), TypeError, f"{who}: expected {name} ")


def wrong_cotangents(layer: Labelled, alias: str) -> None:
    """The gradient of the output must fit the output, in shape and, 16-bit types widened, in dtype."""
    for dtype, other in (("float64", "float32"), ("bfloat16", "float64"), ("float32", "float64")):
        module, inputs = made(alias, layer, "full", dtype)
        tape: dict[str, Any] = {}
        y = leaves(module(**inputs, tape=tape))["y"]
        pull, words = partial(module.vjp, tape), f"vjp: expected dy of shape {y.shape}"
        refuses(partial(pull, y[:, :-1]), ValueError, words)
        refuses(partial(pull, y[..., :1]), ValueError, words)
        refuses(partial(pull, y.astype(other)), TypeError, "vjp: expected dy of the output's dtype")


def wrong_configs(layer: Labelled, alias: str) -> None:
    """A layer takes its own Config and one of the four float types."""
    config = layer[1]
    cls = getattr(import_module(f"{alias}.{config.variant}"), config.layer)
    claim(cls.Config is type(config), "the layer's Config")
    refuses(lambda: cls(fields_of(config)), TypeError, f"{config.variant}: expected config to be a {config.layer}")
    refuses(lambda: cls(config, dtype="int8"), ValueError, f"{config.variant}: expected dtype to be one of")


# attend ---------------------------------------------------------------------------------------------------------------

ATTENDS: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({}, ""),
    "scaled": ({"scale": 0.375}, "mask"),
    "near": ({"causal": True, "window": (3, None)}, "mask"),
    "causal window": ({"causal": True, "window": (2, 3)}, ""),
    "all": ({"window": (None, 1), "softcap": 1.5, "rate": 0.25}, "mask bias keep"),
    "kept": ({}, "keep"),
    "queries": ({"normalize_over": "queries", "softcap": 0.75, "implementation": "textbook"}, "mask bias"),
}


@cache
def attended(groups: int, names: str, dtype: str = "float64", queries: int = 6) -> Arrays:
    """Arrays for `attend`; one query sees nothing, one key is seen by nobody, one by half of the heads only."""
    rng, b, t, s, h = np.random.default_rng(groups), 2, 5, 7, queries
    shapes = {"q": (b, t, h, 3), "k": (b, s, groups, 3), "v": (b, s, groups, 11)}
    found: Arrays = {name: rng.normal(size=shape).astype(DTYPES[dtype]) for name, shape in shapes.items()}
    mask = rng.random((b, h, t, s)) < 0.6
    mask[0, -1, 2] = mask[1, ..., 4] = mask[0, : h // 2, :, 3] = False
    others = {
        "mask": mask,
        "bias": rng.normal(size=mask.shape).astype(DTYPES[dtype]),
        "keep": rng.random(mask.shape) > 0.25,
    }
    return found | {name: others[name] for name in names.split()}


def run_attend(package: str, inputs: Mapping[str, Any], dy: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Context, weights and the gradients of q, k, v and the bias."""
    module, tape = import_module(f"{package}._attend"), {}
    context, weights = module.attend(**inputs, **options, tape=tape)
    backward = {name: x for name, x in options.items() if name in ("scale", "softcap", "rate", "normalize_over")}
    heads = inputs["k"].shape[2] if len(inputs["k"].shape) == 4 else None
    found = module.attend_vjp(tape, dy, **backward, kv_heads=heads)
    claim(len(found) == 4, "four gradients")
    names = ("context", "weights", "dq", "dk", "dv", "dbias")
    return {name: x for name, x in zip(names, (context, weights, *found), strict=True) if x is not None}


def flattened(inputs: Arrays) -> Arrays:
    """The inputs of one head without its axis."""
    return {name: x[:, :, 0] if name in "qkv" else x[:, 0] for name, x in inputs.items()}


@cache
def attend_expected(groups: int, call: str, dtype: str, heads: int) -> tuple[Arrays, np.ndarray, dict[str, Any]]:
    """Inputs, a cotangent in the dtype it is computed in, and what the whole reference gives for them."""
    options, names = ATTENDS[call]
    inputs = attended(groups, names, dtype, heads) if heads else flattened(attended(1, names, dtype, 1))
    dy = np.random.default_rng(5).normal(size=(*inputs["q"].shape[:-1], 11))
    dy = dy.astype("float64" if dtype == "float64" else "float32")
    carried = {n: ErrArray(x.astype(np.float64), 0.0) if x.dtype != bool else x for n, x in inputs.items()}
    with precision(precision_of(dtype)), np.errstate(invalid="ignore", over="ignore"):
        return inputs, dy, run_attend("attn_np", carried, ErrArray(dy.astype(np.float64), 0.0), options)


def attending(groups: int, call: str, dtype: str, heads: int, alias: str) -> None:
    """`attend` and its backward pass are within their bounds; what is returned has the dtype of the queries."""
    inputs, dy, want = attend_expected(groups, call, dtype, heads)
    found = run_attend(alias, inputs, dy, ATTENDS[call][0])
    claim(list(found) == list(want), f"{list(found)}, not {list(want)}")
    for name, x in found.items():
        out = dtype if name in ("context", "weights") else dy.dtype.name
        claim(x.dtype.name == out, f"{name} is {x.dtype.name}")
        verdict = compare(x.astype(np.float64), want[name], out)
        claim(verdict["ratio"] <= 1, f"{name}: error/bound {verdict['ratio']:.3g}")


def head_by_head(value: float, alias: str) -> None:
    """A key that the query heads of one key/value head may not see stays out, though other heads see theirs."""
    options, names = ATTENDS["all"]
    clean = attended(2, names)
    dirty = clean | {name: clean[name].copy() for name in "kv"}
    for name in "kv":
        dirty[name][0, 3, 0] = value
    dy = np.cos(np.arange(2 * 5 * 6 * 11)).reshape(2, 5, 6, 11)
    got, want = (run_attend(alias, x, dy, options) for x in (dirty, clean))
    claim_same(got, want, "poisoned")
    claim(not got["dk"][0, 3, 0].any() and not got["dv"][0, 3, 0].any() and got["dv"][0, 3, 1].all(), "its gradients")


def hidden_from_attend(alias: str) -> None:
    """Gradients of a query without keys and of a hidden key are 0, though a key beside holds NaN; no tape is needed."""
    inputs = {name: x.copy() for name, x in attended(6, "mask").items()}
    plain = import_module(f"{alias}._attend").attend(**inputs)
    dy = np.cos(np.arange(plain[0].size)).reshape(plain[0].shape)
    found = run_attend(alias, inputs, dy, {})
    claim(same(plain[0], found["context"]) and same(plain[1], found["weights"]), "without a tape")
    inputs["mask"][..., 0, 0] = True
    inputs["k"][:, 0] = inputs["v"][:, 0] = np.nan
    found = run_attend(alias, inputs, dy, {})
    claim(not found["dq"][0, 2, -1].any(), "gradient of a query without keys")
    claim(not (found["dk"][1, 4].any() or found["dv"][1, 4].any()), "gradient of a hidden key")


def wrong_attends(alias: str) -> None:
    """Unknown words, numbers and arrays that do not fit are refused."""
    attend, inputs = import_module(alias).attend, attended(2, "mask bias keep")
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"implementation": "fast"}, ValueError, "implementation to be one of"),
        ({"normalize_over": "values"}, ValueError, "normalize_over to be one of"),
        ({"causal": 1}, ValueError, "expected causal"),
        ({"window": (-1, 0)}, ValueError, "expected window"),
        ({"scale": "x"}, ValueError, "expected scale"),
        ({"softcap": 0.0}, ValueError, "expected softcap"),
        ({"rate": 1.0}, ValueError, "expected rate"),
        *(({name: inputs[name].tolist()}, TypeError, f"expected {name} as a NumPy array") for name in inputs),
        *(({name: inputs[name][None]}, ValueError, f"expected {name} ") for name in inputs if name != "q"),
    ]
    for options, error, words in wrong:
        refuses(
            lambda options=options: attend(**inputs | options),
            error,
            f"attend: expected {words.partition('expected ')[2] or words}",
        )


# Functions of the dialect ---------------------------------------------------------------------------------------------


class _Foreign:
    """An array type with rules of its own: it names the functions that hand themselves over to it."""

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return function, types, args, kwargs


class _Other(_Foreign):
    """Another one."""


PRIMITIVES = {
    "_core": {"einsum": 3, "sigmoid": 1, "lerp": 3, "softmax": 2, "shown": 2},
    "_vjp": {"softmax_vjp": 2, "tanh_vjp": 2, "sigmoid_vjp": 2, "rest_of": 2, "total": 3},
}


def handed_over(alias: str) -> None:
    """An array type with an error rule for a function takes the function over, in whichever place it stands."""
    for module, functions in PRIMITIVES.items():
        for name, count in functions.items():
            function, foreign = getattr(import_module(f"{alias}.{module}"), name), _Foreign()
            for place in range(count):
                args = tuple(foreign if i == place else np.ones(1) for i in range(count))
                found = function(*args, key=1)
                claim(found == (function, (_Foreign,), args, {"key": 1}), f"{name} handed over as {found}")
            both = function(*[_Foreign(), _Other(), _Other()][:count], key=1)
            claim(both[1] == (_Foreign,), f"{name} asks the first of two types")
            claim(function.__name__ == name and function.__wrapped__ is not function, f"the name of {name}")


def functions(alias: str) -> None:
    """Elementary functions at the ends of their range, and places that hold no number."""
    core, vjp = import_module(f"{alias}._core"), import_module(f"{alias}._vjp")
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        claim(core.sigmoid(np.array([-800.0, 0.0, 800.0])).tolist() == [0.0, 0.5, 1.0], "sigmoid")
        ends = np.array([0.0, 1.0])
        claim(np.array_equal(core.lerp(np.array([3e300, 3.0]), np.array([3e300, 5.0]), ends), [3e300, 5.0]), "lerp")
        scores, allowed = np.array([[1e300, -1e300], [3.0, 4.0]]), np.array([[True, True], [False, False]])
        claim(core.softmax(scores, allowed).tolist() == [[1.0, 0.0], [0.0, 0.0]], "softmax")
        lost = core.softmax(np.array([[-np.inf, -np.inf], [-np.inf, 3.0]]))
        claim(np.isnan(lost[0]).all() and lost[1].tolist() == [0.0, 1.0], "scores that overflowed")
        lost = core.softmax(np.array([[-np.inf, 3.0], [4.0, 3.0]]), np.array([True, False]))
        claim(np.isnan(lost[0]).all() and lost[1].tolist() == [1.0, 0.0], "allowed scores that overflowed")
        sums = core.softmax(np.zeros((2, 3)), np.array([True, False, True]), 0)
        claim(np.array_equal(sums, [[0.5, 0, 0.5]] * 2), "a mask of lower rank than the axis that adds up to 1")
        claim(core.softmax(np.zeros((2, 0))).shape == (2, 0), "softmax over nothing")
    claim(np.array_equal(core.softmax(np.zeros((2, 4)), axis=0), np.full((2, 4), 0.5)), "softmax over another axis")
    table = np.arange(6.0).reshape(3, 2)
    for tokens in ([-1], [3], [0, 3]):
        refuses(
            lambda tokens=tokens: core.take(table, np.array(tokens)), ValueError, "tokens: expected numbers from 0 to 2"
        )
    claim(same(core.take(table, np.array([[2, 0]])), table[[2, 0]][None]), "rows of a table")
    for dtype in ("bfloat16", "float16"):
        x = np.ones((2, 2), DTYPES[dtype])
        claim(same(core.einsum("ab,bc->ac", x, x), np.full((2, 2), np.float32(2))), f"a product of {dtype}")
        claim(same(core.linear("ab,bc->ac", x, x, x[0]), np.full((2, 2), np.float32(3))), f"a projection in {dtype}")
    claim(core.take(table.astype("float16"), np.array([1])).dtype == np.float32, "rows of a table in 16 bits")
    claim(core.narrow(None, "float16") is None and core.widen(None) is None, "None stays None")
    claim(core.narrow(table, "float64") is table and core.widen(table) is table, "what fits stays as it is")
    claim(same(core.arange(3, table), np.arange(3)) and same(core.zeros((2,), table), np.zeros(2)), "new arrays")
    claim(core.zeros((2,), table.astype("float32")).dtype == np.float32, "dtype of zeros")
    claim(core.dtype_name(table) == "float64" and core.Layer.__name__ == "Layer", "names")
    mask = np.ones((1, 3), bool)
    claim(core.shown(None, None) is None and core.shown(mask, None) is mask, "no bias")
    claim(core.visible(None, 2, 3, like=table) is None and core.visible(mask, 2, 3, like=table) is mask, "no limits")
    names = {"exp", "tanh", "sqrt", "where", "maximum", "broadcast_to", "concatenate", "stack", "argmax"}
    claim(all(getattr(core, name) is getattr(np, name) for name in names), "NumPy's own functions")
    claim(same(vjp.sum_to(np.ones((2, 3, 4)), (3, 1)), np.full((3, 1), 8.0)), "sum over copies")
    claim(same(vjp.sum_to(np.ones((1, 3, 4)), (1, 4)), np.full((1, 4), 3.0)), "sum over copies in one batch row")
    claim(same(vjp.sum_to(np.ones((3, 1, 4)), (1, 1, 1)), np.full((1, 1, 1), 12.0)), "sum over copies, one apart")
    claim(vjp.sum_to(table, (3, 2)) is table, "nothing was copied")


class _Halving(dict[str, Any]):
    """A judge's tape: every step of a scan goes on from half of what it carried, and its first result is replaced."""

    def step(self, names: list[str], i: int, carry: Any, ys: tuple[Any, ...]) -> Any:
        self.setdefault("asked", []).append((names, i))
        return carry / 2, (ys[0] + 100, *ys[1:])


def watched_scan(alias: str) -> None:
    """A tape with `step` sees every step of a scan, in the order in which they run, and may replace what it gives."""
    core, x = import_module(f"{alias}._core"), np.arange(6.0).reshape(2, 3)
    for reverse in (False, True):
        tape, carried, given = _Halving(), np.zeros(2), []
        times = (2, 1, 0) if reverse else (0, 1, 2)
        last, ys = core.scan(
            lambda carry, xs: (carry + xs[0], (carry, xs[0])), carried, (x, None), names=("a", "b"), tape=tape,
            reverse=reverse,
        )  # fmt: skip
        for i in times:
            given.append(carried + 100)
            carried = (carried + x[:, i]) / 2
        claim(tape["asked"] == [(["a", "b"], i) for i in times], f"asked {tape['asked']}")
        claim(same(last, carried), "the carry")
        claim(same(ys[0], np.stack(given[::-1] if reverse else given, axis=1)) and same(ys[1], x), "the results")
        claim(same(tape["a"], ys[0]) and same(tape["b"], x), "the tape")


# Decoding -------------------------------------------------------------------------------------------------------------


def decodings(config: Any, dtype: str) -> dict[str, dict[str, Any]]:
    """Calls of `generate` or `greedy`: without and with a state to begin with and a mask that shows padding."""
    rng, b, s, kind = np.random.default_rng(9), 3, 5, DTYPES[dtype]
    if config.vocab_size is None:
        fixed: dict[str, Any] = {"source": rng.normal(size=(b, s, config.inputs_dim)).astype(kind)}
        fixed |= {"target": rng.normal(size=(b, 1, config.inputs_dim)).astype(kind), "steps": 4}
    else:
        fixed = {"source": rng.integers(0, config.vocab_size, size=(b, s)), "target": np.array([[1], [2], [0]])}
        fixed |= {"steps": 6, "stop": 0}
    mask = np.ones((b, 1, s), bool)
    mask[0, :, 3:] = mask[1, :, 1] = False
    state = rng.normal(size=(config.num_layers, b, config.hidden_dim)).astype(kind)
    return {
        "plain": fixed,
        "masked": fixed | {"mask": mask},
        "with a state": fixed | {"mask": mask[:1], "state": state},
        "one mask for all": fixed | {"mask": mask[0, 0]},
        "no steps": fixed | {"steps": 0, "mask": mask},
    }


def generating(layer: Labelled, dtype: str, what: str, alias: str) -> None:
    """Running freely, every vector and the last state are within their bounds, in the dtype of the target."""
    module = made(alias, layer, "plain", dtype)[0]
    found = module.generate(**decodings(layer[1], dtype)[what])
    for x, want in zip(found, generated(layer, dtype, what), strict=True):
        claim(x.dtype.name == dtype, f"dtype {x.dtype.name}")
        verdict = compare(x.astype(np.float64), want, dtype)
        claim(verdict["ratio"] <= 1, f"error/bound {verdict['ratio']:.3g} {verdict.get('note', '')}")


@cache
def generated(layer: Labelled, dtype: str, what: str) -> tuple[Any, ...]:
    """What the whole reference generates, each number with its bound."""
    module = made("attn_np", layer, "plain")[0]
    params = drawn_for(layer, "plain", dtype).params
    module.set_params({name: ErrArray(x.astype(np.float64), 0.0) for name, x in params.items()})
    arguments = decodings(layer[1], dtype)[what]
    floats = {n: x for n, x in arguments.items() if n in ("source", "target", "state")}
    carried = {n: ErrArray(x.astype(np.float64), 0.0) for n, x in floats.items()}
    with precision(precision_of(dtype)):
        return module.generate(**arguments | carried)


def speaking(layer: Labelled, what: str, alias: str) -> None:
    """The likeliest tokens are those that calls of the layer find step by step; counted up to the first stop.

    With one token for the stop and then another, some rows stop at once, some in between, some never.
    """
    given, config = decodings(layer[1], "float64")[what], layer[1]
    module, count = made(alias, layer, "plain")[0], config.vocab_size  # type: ignore[attr-defined]
    # Without a bias and with weights this large one token leads to another.
    module.set_params({name: 0 * x if name == "decoder.b_o" else 4 * x for name, x in module.params().items()})
    for stop in range(0, count, 3):
        arguments = given | {"stop": stop, "target": (given["target"] + stop) % count}
        tokens, counts = module.greedy(**arguments)
        want = stepwise(module, arguments)
        claim(same(tokens, want), f"{tokens}, step by step {want}")
        stops = [row.index(stop) if stop in row else arguments["steps"] for row in want.tolist()]
        claim(same(counts, np.array(stops)), f"counted {counts}, not {stops}")


def stepwise(module: Any, arguments: dict[str, Any]) -> np.ndarray:
    """Greedy decoding by calls of the layer itself, one target at a time."""
    rest = {n: arguments[n] for n in ("source", "mask") if n in arguments}
    token, state = arguments["target"], arguments.get("state")
    done, found = np.zeros(len(token), bool), []
    for _ in range(arguments["steps"]):
        y, state = module(**rest, target=token, state=state)
        best = np.where(done, arguments["stop"], y[:, 0].argmax(axis=-1))
        done = done | (best == arguments["stop"])
        token = best[:, None]
        found.append(best)
    return np.stack(found, axis=1) if found else np.zeros((len(done), 0), np.int64)


def wrong_decodings(layer: Labelled, alias: str) -> None:
    """What cannot be decoded is refused: wrong numbers of steps, longer targets, the other way to decode."""
    config: Any = layer[1]
    ways = ("generate", "greedy") if config.vocab_size is None else ("greedy", "generate")
    module, arguments = made(alias, layer, "plain")[0], decodings(config, "float64")["plain"]
    own, other = (getattr(module, name) for name in ways)
    for steps in (-1, 1.0, True):
        refuses(partial(own, **arguments | {"steps": steps}), ValueError, "steps to be an integer from 0")
    two = np.concatenate([arguments["target"]] * 2, axis=1)
    refuses(partial(own, **arguments | {"target": two}), ValueError, "one first input (t=1), got t=2")
    refuses(partial(own, **arguments | {"source": two.tolist()}), TypeError, "expected source as a NumPy array")
    refuses(
        partial(own, **arguments | {"state": two[0]}), ValueError if config.vocab_size is None else TypeError, "state"
    )
    refuses(partial(own, **arguments | {"mask": np.ones((3, 1, 5), int)}), TypeError, "expected a boolean mask")
    arguments = {n: x for n, x in arguments.items() if n != "stop"} | ({"stop": 0} if ways[1] == "greedy" else {})
    refuses(partial(other, **arguments), ValueError, f"{config.variant}: expected ")


# All of them ----------------------------------------------------------------------------------------------------------


@cache
def battery() -> tuple[Check, ...]:
    """Every check, cheap ones and those that see most first."""
    found: list[Check] = []

    def add(function: Callable[..., None], *args: Any, name: str = "") -> None:
        said = [a.name if isinstance(a, Scene) else a[0] if isinstance(a, tuple) else str(a) for a in args]
        found.append(Check(name or " ".join([function.__name__.replace("_", " "), *said]), partial(function, *args)))

    add(handed_over)
    add(functions)
    add(watched_scan)
    add(wrong_attends)
    add(hidden_from_attend)
    add(foreign_files)
    add(doubtful_files)
    for call in ATTENDS:
        add(attending, 2, call, "float64", 6)
        add(attending, 3, call, "bfloat16", 6)
        add(attending, 1, call, "float32", 0)
        add(attending, 1, call, "float64", 6)
        add(attending, 6, call, "float64", 6)
        # As many key/value heads as keys, as queries; as many query heads as keys, as a key is wide.
        for groups, heads in ((7, 14), (5, 10), (1, 7), (1, 3)):
            add(attending, groups, call, "float64", heads)
    for value in (1e3, np.nan):
        add(head_by_head, value)
    for layer in (*chief(), *(x for x in layers() if x not in chief())):
        for scene in scenes():
            if scene.basic and scene.case.example == layer[0]:
                add(ends, scene)
        for check in relations(layer):
            add(*check)
    for scene in scenes():
        if not scene.basic:
            add(ends, scene)
    for scene in scenes():
        case = scene.case
        slow = getattr(case.config, "family", "recurrent") == "recurrent"
        if scene.basic and case.dtype == "float64" and (case.call == "full" or not slow):
            add(stages, scene)
    return tuple(found)


def relations(layer: Labelled) -> Iterator[tuple[Any, ...]]:
    """The checks that a layer's config calls for, with their arguments; the chief layers get all of them."""
    (name, config), first = layer, layer in chief()
    yield wrong_cotangents, layer
    yield huge_scores, layer
    yield taped_dtypes, layer
    yield constructor, layer
    yield parameters, layer
    if kinds(config, "keep"):
        yield dropping, layer
    yield pulled_back, layer
    if masked(config):
        yield query_without_keys, layer
        if keyed(config):
            yield hidden_gradients, layer
        if kinds(config, "bias"):
            yield hiding_bias, layer
    for value in (np.nan, np.inf, 1e3) if first else (np.nan,):
        if keyed(config):
            yield hidden_keys, layer, value
        if alone_in_itself(config):
            yield padding, layer, value
        if keyed(config) and getattr(config, "window", None):
            yield beyond_the_window, layer, value
    if config.layer == "Seq2Seq" and not name.endswith("/plain"):  # its outputs are no inputs
        yield wrong_decodings, layer
        vectors = config.vocab_size is None  # type: ignore[attr-defined]
        for what in decodings(config, "float64"):
            yield (generating, layer, "float64", what) if vectors else (speaking, layer, what)
        if vectors:
            yield generating, layer, "float32", "with a state"
            yield generating, layer, "bfloat16", "masked"
    if config.layer == "GatedRecurrentUnit":
        yield one_of_a_stack, layer
    if config.layer == "AttentionDecoder":
        yield unchecked_run, layer
    if first:
        yield wrong_arguments, layer
        yield wrong_configs, layer
        yield nothing_written, layer
        yield strided, layer
        for call in ("plain", "full"):
            letters = {x for n in given(config, call) for x in config.arguments()[n].axes.split()}
            for letter in sorted(letters & set("bts") - set(config.sizes())):
                yield empty, layer, call, letter
        if "." not in name:
            yield building, layer
            yield files, layer
