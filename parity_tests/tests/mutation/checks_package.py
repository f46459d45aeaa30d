"""What the functions of a copied package must do, and what its layers must refuse."""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from attn_np.contract import Config
from attn_np.contract._tape import BackwardTape
from parity_tests.judge.candidates import leaves
from parity_tests.tests.mutation.calls import (
    Labelled,
    built,
    claim,
    claim_same,
    kinds,
    made,
    refuses,
    results,
    same,
)

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
    drawn, again = (api(alias).build(config.variant, seed=None, rng=3, **fields_of(config)) for _ in range(2))
    claim(not drawn.training and again.config == config, "what is drawn")
    claim_same(drawn.params(), type(drawn)(config, rng=3).params(), "weights of a generator")
    name = f"{config.variant}: expected dtype"
    refuses(lambda: api(alias).build(config.variant, dtype="int8", **fields_of(config)), ValueError, name)


def files(layer: Labelled, alias: str) -> None:
    """A weight file gives back config, dtype and bits, to a new layer or into one."""
    config, package = layer[1], api(alias)
    for dtype in ("float64", "bfloat16"):
        module = package.build(config.variant, seed=3, dtype=dtype, **fields_of(config))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "weights.safetensors"
            words = f"{alias}.save: expected a layer of {alias} first, "
            refuses(partial(package.save, path, module), TypeError, words)
            claim(package.save(module, path) is None and path.is_file(), "a file is written")
            found = package.load(path)
            claim(found.config == config and not found.training, "what is loaded")
            claim_same(found.params(), module.params(), "loaded")
            other = package.build(config.variant, seed=4, dtype=dtype, **fields_of(config)).train()
            refuses(partial(package.load, path, into=other, device="cpu"), ValueError, "expected no device= with into=")
            claim(package.load(path, into=other) is other and not other.training, "loaded in place")
            words = "expected device= to be one that is here, cpu"
            refuses(partial(package.load, path, device="tpu"), ValueError, words)
            claim(package.load(path, device="cpu").config == config, "loaded on a device")
            claim_same(other.params(), module.params(), "loaded in place")


def traced(alias: str) -> None:
    """`trace` shows every intermediate; on the fast path what that has, and both tapes can be read backward."""
    package = api(alias)
    module = package.build("mha", dtype="float64", d_model=6, num_heads=2)
    x = np.cos(np.arange(60.0)).reshape(2, 5, 6)
    (y, whole), (fused, brief) = package.trace(module, x), package.trace(module, x, implementation="fused")
    claim("probs" in whole and "probs" not in brief and {"q", "k", "v", "context", "y"} <= set(brief), "what is taped")
    claim(same(y, module(x, implementation="textbook")) and same(fused, module(x)), "the outputs")
    grads = [module.vjp(tape, np.sin(y)) for tape in (whole, brief)]
    claim(same(grads[1].inputs["query"], package.value_and_vjp(module, x)[1](np.sin(y)).inputs["query"]), "gradients")
    claim(set(grads[0].params) == set(grads[1].params), "gradients of the parameters")
    for tape, kind, words in ((None, TypeError, "got NoneType"), ({}, ValueError, "got one without 'y'")):
        refuses(partial(module.vjp, tape, y), kind, f"mha: expected the tape of a call in vjp, {words}")
    other = package.build("mha", dtype="float64", d_model=6, num_heads=3)
    words = "mha: expected the tape of this layer's call in vjp, got one whose arrays do not fit"
    refuses(partial(other.vjp, whole, y), ValueError, words)
    refuses(partial(module.vjp, whole, y[:1]), ValueError, "vjp: expected dy of shape (2, 5, 6), as the output")
    refuses(partial(module.vjp, whole, y.tolist()), TypeError, "mha: expected gradient 0 as a NumPy array")


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
        refuses(partial(package.load, path, **asked, part="cross"), ValueError, "expected no part=")
        refuses(partial(package.save, module, path, layout="bert", part="cross"), ValueError, "expected no part=")
        refuses(partial(package.load, path), ValueError, "expected ")
        package.save(module, path, layout="torch_linear")
        found = package.load(path, layout="torch_linear", variant="mha", num_heads=2)
        claim_same(found.params(), module.params(), "loaded by another layout")


def pretrained_files(alias: str) -> None:
    """Every argument counts, what is read is said, and two layers of one model draw the same."""
    package, fields = api(alias), {"d_model": 6, "num_heads": 2}
    module = package.build("mha", seed=3, dtype="float64", **fields)
    stated = {"hidden_size": 6, "num_attention_heads": 2}
    with tempfile.TemporaryDirectory() as folder:
        path, beside, said = Path(folder) / "model.safetensors", Path(folder) / "config.json", []
        package.save(module, path, layout="bert", layer=1, prefix="model.")
        beside.write_text(json.dumps(stated | {"colour": "brown"}))
        asked: dict[str, Any] = {"layout": "bert", "prefix": "model.", "allow": ["colour"]}
        load = partial(package.load_pretrained, folder, 1)
        found = load(**asked, dropout=0.5, report=said.append)
        claim(not found.training and found.config == replace(module.config, dropout=0.5), "the config")
        claim(found.dtype == "float64", "the dtype")
        claim_same(found.params(), module.params(), "loaded")
        claim(len(said) == 1 and "model.encoder.layer.1." in said[0], "the report")
        claim(same(*[load(**asked).rng.random(3) for _ in range(2)]), "two loaded layers draw the same")
        for wrong in ({"layout": None}, {"prefix": ""}, {"allow": ()}, {"part": "cross"}, {"dtype": "float32"}):
            refuses(partial(load, **asked | wrong), ValueError, "expected ")
        refuses(partial(load, **asked, dtype="int8"), ValueError, "load_pretrained: expected dtype")
        refuses(partial(package.load_pretrained, folder, 0, **asked), ValueError, "expected ")
        rounded = {name: x.astype(np.float32) for name, x in module.params().items()}
        claim_same(load(**asked, dtype="float32", cast=True).params(), rounded, "cast")
        package.save(module, path, layout="bert", layer=1)
        beside.write_text(json.dumps(stated | {"model_type": "bert"}))
        claim_same(load().params(), module.params(), "loaded as it stands")
        coded = {"num_hidden_layers": 1, "quantization_config": {"quant_method": "fp8"}}
        package.save(module, path, layout="bert", layer=0)
        beside.write_text(json.dumps(stated | {"model_type": "bert"} | coded))
        refuses(partial(package.load_pretrained, folder), ValueError, "pass dequantize=True")
        (found,) = package.load_pretrained(folder, dequantize=True, dtype="float64", report=said.append)
        claim_same(found.params(), module.params(), "all layers")
        claim(len(said) == 2 and "encoder.layer.0." in said[1], "the report of each")
        beside.write_text(json.dumps(stated | {"colour": "brown"}))
        module.set_params({name: x + np.nan for name, x in module.params().items()})
        package.save(module, path, layout="bert", layer=1, prefix="model.", finite=False)
        refuses(partial(load, **asked), ValueError, "finite")
        claim(all(np.isnan(x).all() for x in load(**asked, finite=False).params().values()), "NaN by leave")


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


@contextmanager
def calls_of(module: Any) -> Iterator[list[Any]]:
    """The calls of a layer and of others of its class, as they come."""
    cls, calls = type(module), []
    before = cls.__call__

    def call(self: Any, *args: Any, **options: Any) -> Any:
        calls.append(self)
        return before(self, *args, **options)

    cls.__call__ = call
    try:
        yield calls
    finally:
        cls.__call__ = before


def pulled_back(layer: Labelled, alias: str) -> None:
    """`value_and_vjp` gives what the layer and its vjp give, in training with the same dropout, at the same weights."""
    package, config = api(alias), layer[1]
    (module, inputs) = made(alias, layer)
    names = kinds(config, "keep")
    plain = {name: x for name, x in inputs.items() if name not in names}
    module.train()
    before = module.rng.bit_generator.state
    first, *rest = plain
    others, pulls, values = {name: plain[name] for name in rest}, [], []
    for options in ({"recompute": True}, {}):  # the forward pass computed once more in every pull, or kept
        module.rng.bit_generator.state = before
        found, pull = package.value_and_vjp(module, plain[first], **options, **others)
        pulls.append(pull)
        values.append(leaves(found))
    claim_same(values[0], values[1], "values of both ways")
    module.rng.random(5)
    after = module.rng.bit_generator.state
    y = leaves(found)
    dys = [np.cos(np.arange(x.size)).reshape(x.shape) for x in y.values()]
    dys = dys[: 2 if config.second_output() else 1]
    now, old = {name: x + 1 for name, x in module.params().items()}, module.params()
    module.set_params(now)
    with calls_of(module) as calls:
        grads = [pulls[1](*dys), pulls[1](*dys)]
        claim(not calls, "the forward pass is kept")
        grads += [pulls[0](*dys), pulls[0](*dys)]
        claim(len(calls) == 2, "the forward pass is computed in every pull")
    claim_same(module.params(), now, "parameters that were replaced meanwhile")
    claim(module.rng.bit_generator.state == after, "the generator moved")
    module.set_params(old)
    module.rng.bit_generator.state = before
    out, tape = package.trace(module, **plain)
    module.rng.bit_generator.state = before
    claim_same(leaves(module(**plain, tape={})), leaves(out), "a layer and trace")
    claim(tape.keys() >= {"y"} and type(tape) is dict, "the tape of trace")
    module.rng.bit_generator.state = before
    short = BackwardTape()
    claim_same(leaves(module(**plain, tape=short)), y, "value with what the backward needs")
    want = module.vjp(short, *dys)
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
    if "documents" in config.arguments():  # which calls leave out by default
        inputs = inputs | {"documents": np.zeros(inputs["query"].shape[:2], np.int64)}
    who = config.variant
    refuses(lambda: module(**inputs, no_argument=1), TypeError, f"{who}: expected the arguments ")
    for name in config.own_params():
        refuses(partial(setattr, module, name, len), TypeError, f"{who}: expected an array for {name}, got ")
    if not config.params():  # nothing to agree with: any one float type will do
        claim_same(results(built(alias, layer).eval(), inputs), results(module, inputs), "inputs of another dtype")
    for name, arg in config.arguments().items():
        x = inputs[name]
        words = "expected a boolean " if arg.kind in ("mask", "keep", "marks") else "expected "

        def call(value: Any, name: str = name) -> Callable[[], Any]:
            return lambda: module(**inputs | {name: value})

        refuses(call(x.tolist()), TypeError, f"{who}: expected {name} as a NumPy array, got list; convert it")
        masked = f"{who}: expected {name} as a NumPy array, got MaskedArray; give its data, and say by mask= what may"
        refuses(call(np.ma.masked_array(x)), TypeError, masked)
        refuses(call(x[None]), ValueError, f"{who}: expected {name} ")
        other = x.astype(np.int64) if arg.kind in ("mask", "keep", "marks") else x > 0
        refuses(call(other), TypeError, f"{who}: {words}{name} ")
        if arg.kind in ("array", "bias") and config.params():
            refuses(call(x.astype(np.float32)), TypeError, f"{who}: expected {name} of dtype float64")
        last = arg.axes.split()[-1]
        if last in config.sizes() or arg.kind not in ("array", "integers"):
            refuses(call(longer(x, x.ndim - 1)), ValueError, f"{who}: expected {name} ")
        if not arg.optional and arg.falls_back_to is None:
            refuses(call(None), TypeError, f"{who}: expected {name} ")


def wrong_cotangents(layer: Labelled, alias: str) -> None:
    """The gradient of the output must fit the output, in shape and, 16-bit types widened, in dtype."""
    for dtype, other in (("float64", "float32"), ("bfloat16", "float64"), ("float32", "float64")):
        module, inputs = made(alias, layer, "full", dtype)
        tape: dict[str, Any] = {}
        outputs = list(leaves(module(**inputs, tape=tape)).values())
        outputs, pull = outputs[: 2 if layer[1].second_output() else 1], partial(module.vjp, tape)
        for i, y in enumerate(outputs):
            words, first = f"vjp: expected dy of shape {y.shape}", outputs[:i]
            refuses(partial(pull, *first, y[:, :-1]), ValueError, words)
            refuses(partial(pull, *first, y[..., :1]), ValueError, words)
            refuses(partial(pull, *first, y.astype(other)), TypeError, "vjp: expected dy of the output's dtype")


def wrong_configs(layer: Labelled, alias: str) -> None:
    """A layer takes its own Config and one of the four float types."""
    config = layer[1]
    cls = getattr(import_module(f"{alias}.{config.variant}"), config.class_name)
    claim(cls.Config is type(config), "the layer's Config")
    refuses(lambda: cls(fields_of(config)), TypeError, f"{config.variant}: expected config to be a {config.class_name}")
    refuses(lambda: cls(config, dtype="int8"), ValueError, f"{config.variant}: expected dtype to be one of")
