"""Projections as modules: the numbers, the names, the files, and what is said of modules that do not fit."""

import ast
import copy
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from jax.sharding import PartitionSpec
from safetensors.numpy import save_file as numpy_file
from safetensors.torch import save_file as torch_file

import attn_jax
import attn_np
import attn_torch
from attn_np import contract
from attn_np.contract import Config
from attn_np.contract._projections import Projection, has_projections, projections
from attn_np.weights import WeightFileError
from parity_tests.tests.inputs import TREES as ALL
from parity_tests.tests.inputs import Arrays, Tree, flat, random_inputs
from parity_tests.tests.witness import bounded, cotangent, ratio, weights_of

ROOT = Path(__file__).resolve().parents[3]
TREES = {name: ALL[name] for name in ("torch", "jax")}
IN_MODULES = [v for v in contract.variants() if any(map(has_projections, contract.examples(v).values()))]
EXAMPLES = [(v, e) for v in IN_MODULES for e, c in contract.examples(v).items() if has_projections(c)]
# One of each kind of projection, and those that JAX compiles; the others read the same lines.
KINDS = (
    "mha", "fused_qkv", "mla", "swin", "axial", "decoder", "differential", "disentangled", "gated_delta", "gla", "kda",
    "longformer", "seq2seq",
)  # fmt: skip
COMPILED = ("mha", "mla", "swin")


def few(variants: tuple[str, ...]) -> list[Any]:
    """All that have modules, of which the default run asks these."""
    return [v if v in variants else pytest.param(v, marks=pytest.mark.left_out) for v in IN_MODULES]


MHA: dict[str, Any] = {"d_model": 12, "num_heads": 3, "use_bias": True}


def with_modules(tree: Tree, config: Config, dtype: str = "float64", **options: Any) -> Any:
    return tree.package.build(config.variant, dtype=dtype, projections="modules", **config.as_dict(), **options)


def fill(tree: Tree, layer: Any, weights: Arrays) -> Any:
    layer.set_params({name: tree.array(x) for name, x in weights.items()})
    return layer


def owners(tree: Tree, layer: Any) -> list[tuple[Any, Projection]]:
    """Every projection that is a module, with the layer that it is of."""
    parts = layer.modules() if tree.name == "torch" else [part for _, part in nnx.iter_modules(layer)]
    return [(part, projection) for part in parts for projection in getattr(part, "projections", ())]


def output(tree: Tree, layer: Any, inputs: Arrays) -> np.ndarray:
    """The output, or both where a second is differentiated, one behind the other; in JAX compiled."""
    n = 2 if layer.config.second_output() else 1
    call = nnx.jit(lambda layer, given: flat(layer(**given))[:n]) if tree.name == "jax" else None
    given = {name: tree.array(x) for name, x in inputs.items()}
    outputs = call(layer, given) if call else flat(layer(**given))[:n]
    y, *second = map(tree.numpy, outputs)
    return np.concatenate([y.ravel(), *(x.ravel() for x in second)]) if second else y


def results(tree: Tree, layer: Any, inputs: Arrays) -> Arrays:
    """The first output, and the gradients that `bounded` has, by the names of inputs and parameters."""
    given = {name: tree.array(x) for name, x in inputs.items()}
    n = 2 if layer.config.second_output() else 1
    holder = copy.deepcopy(layer)  # of gradients, under the names of parameters
    if tree.name == "torch":
        floats = {name: x.requires_grad_() for name, x in given.items() if x.is_floating_point()}
        ys, params = flat(layer(**given))[:n], [*layer.parameters()]
        dys = [torch.from_numpy(cotangent(tuple(y.shape))) for y in ys]
        grads: Any = torch.autograd.grad(ys, [*floats.values(), *params], dys, materialize_grads=True)
        for held, grad in zip(holder.parameters(), grads[len(floats) :], strict=True):
            held.data = grad
        dinputs = dict(zip(floats, grads, strict=False))
    else:
        floats = {name: x for name, x in given.items() if jnp.issubdtype(x.dtype, jnp.floating)}
        graph, state, rest = nnx.split(layer, nnx.Param, ...)

        @jax.jit
        def run(floats: Any, state: Any) -> Any:
            ys, pull = jax.vjp(lambda x, state: flat(nnx.merge(graph, state, rest)(**given | x))[:n], floats, state)
            return ys, *pull([jnp.asarray(cotangent(y.shape)) for y in ys])

        ys, dinputs, dparams = run(floats, state)
        nnx.update(holder, dparams)
    grads = dinputs | dict(holder.params())
    return {"y": tree.numpy(ys[0])} | {f"d{name}": tree.numpy(x) for name, x in grads.items()}


# Numbers --------------------------------------------------------------------------------------------------------------


def agrees(tree: Tree, variant: str, example: str) -> None:
    config = contract.examples(variant)[example]
    inputs, weights = random_inputs(config, "full"), weights_of(config)
    layer = fill(tree, with_modules(tree, config), weights)
    got, want = results(tree, layer, inputs), bounded(config, inputs, weights)
    assert set(got) >= {"y", *(f"d{name}" for name in config.shapes())}
    worst = {name: ratio(x, want[name]) for name, x in got.items()}
    assert max(worst.values()) <= 1, worst


@pytest.mark.parametrize("variant", few(KINDS))
def test_outputs_and_gradients_agree_in_torch(variant: str) -> None:
    agrees(TREES["torch"], variant, next(e for v, e in EXAMPLES if v == variant))


@pytest.mark.parametrize("variant", few(COMPILED))
def test_outputs_and_gradients_agree_in_jax(variant: str) -> None:
    agrees(TREES["jax"], variant, next(e for v, e in EXAMPLES if v == variant))


class Turned(torch.nn.Module):
    """Minus twice what another module returns."""

    def __init__(self, base: torch.nn.Module) -> None:
        super().__init__()
        self.base = base

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -2 * self.base(x)


class TurnedInFlax(nnx.Module):
    """Minus twice what another module returns."""

    def __init__(self, base: Any) -> None:
        self.base = base

    def __call__(self, x: jax.Array) -> jax.Array:
        return -2 * self.base(x)


def is_called(tree: Tree, config: Config, inputs: Arrays) -> set[str]:
    """The projections that a call uses; each, replaced, gives what its parameters give times -2, to the bit."""
    used, plain, wrap = set(), with_modules(tree, config), Turned if tree.name == "torch" else TurnedInFlax
    before = output(tree, plain, inputs)
    for n, (_, projection) in enumerate(owners(tree, plain)):
        turned, replaced = with_modules(tree, config), with_modules(tree, config)
        owner, _ = owners(tree, turned)[n]
        own = owner.params()
        fill(tree, owner, {k: tree.numpy(x) * (-2 if k in projection.names() else 1) for k, x in own.items()})
        owner, _ = owners(tree, replaced)[n]
        setattr(owner, projection.name, wrap(getattr(owner, projection.name)))
        want = output(tree, turned, inputs)
        assert np.array_equal(output(tree, replaced, inputs), want, equal_nan=True), projection
        used |= {projection.name} if not np.array_equal(want, before) else set()
    return used


@pytest.mark.parametrize("variant", IN_MODULES)
def test_a_module_that_replaces_one_is_called(variant: str) -> None:
    """Nothing reads the weight instead; and every projection has an effect in some example."""
    used, there = set(), set()
    for example in [e for v, e in EXAMPLES if v == variant]:
        config = contract.examples(variant)[example]
        used |= is_called(TREES["torch"], config, random_inputs(config, "full"))
        there |= {projection.name for _, projection in owners(TREES["torch"], with_modules(TREES["torch"], config))}
    assert used == there


def test_a_module_that_replaces_one_is_called_in_jax() -> None:
    config = contract.config("mha", **MHA)
    assert is_called(TREES["jax"], config, random_inputs(config, "full")) == {"w_q", "w_k", "w_v", "w_o"}


def given_to(function: str, variant: str) -> list[list[str]]:
    """The parameters that a NumPy file gives to each call of a function in its forward."""
    tree = ast.parse((ROOT / "attn_np" / f"{variant}.py").read_text("utf-8"))
    forwards = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and not n.name.endswith("vjp")]
    calls = [n for part in forwards for n in ast.walk(part) if isinstance(n, ast.Call)]
    calls = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == function]
    own = [[x for x in call.args if isinstance(x, ast.Attribute) and ast.unparse(x.value) == "self"] for call in calls]
    return [[x.attr for x in params] for params in own if params]


# A recurrence's weights of three gates are one array, used by the next step, too.
GATES = {"w_x", "w_h"}


@pytest.mark.parametrize("variant", contract.variants())
def test_what_linear_takes_is_a_projection(variant: str) -> None:
    """With its bias; and what `einsum` takes is none."""
    configs = [*contract.examples(variant).values()]
    for config in configs:
        configs += [c for x in config.children().values() for c in (x if isinstance(x, list) else [x])]
    known: dict[str, set[str]] = {}
    for projection in (x for config in configs for x in projections(config)):
        known.setdefault(projection.name, set()).update([projection.bias] if projection.bias else [])
    for weight, *bias in given_to("linear", variant):
        assert weight in GATES or known[weight] == {*bias}, weight
    assert not {name for params in given_to("einsum", variant) for name in params} & known.keys()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_one_precision(tree: Tree, dtype: str) -> None:
    """16-bit inputs and weights are widened, in modules as in arrays: one rounding, at the end."""
    config = contract.config("mha", **MHA)
    inputs, arrays = random_inputs(config, "full"), tree.build(config, dtype=dtype)
    kind = tree.numpy(arrays.params()["w_q"]).dtype
    inputs = {name: x.astype(kind) if x.dtype.kind == "f" else x for name, x in inputs.items()}
    weights = {name: tree.numpy(x).astype("float64") for name, x in arrays.params().items()}
    given = {name: tree.array(x) for name, x in inputs.items()}
    y, tape = tree.package.trace(with_modules(tree, config, dtype), **given)
    wide = {name: x.astype("float64") if x.dtype == kind else x for name, x in inputs.items()}
    taped = tree.numpy(tape["y"])
    assert taped.dtype == "float32" and ratio(taped, bounded(config, wide, weights, dtype)["y"]) <= 1
    assert np.array_equal(tree.numpy(y), taped.astype(kind))


def test_autocast_rounds_as_for_arrays() -> None:
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(0))
    layers = [attn_torch.build("mha", projections=form, **MHA) for form in ("arrays", "modules")]
    with torch.autocast("cpu"):
        ys = [layer(x) for layer in layers]
    assert all(y.dtype == torch.bfloat16 for y in ys) and torch.equal(*ys)


def test_a_plain_linear_in_16_bits_rounds_by_itself() -> None:
    """PyTorch's own takes one dtype: what it returns has been rounded to it."""
    layer: Any = attn_torch.build("mha", projections="modules", dtype="bfloat16", **MHA)
    plain = torch.nn.Linear(12, 12, dtype=torch.bfloat16)
    layer.w_q = plain
    x = torch.randn(2, 5, 12).bfloat16()
    y, tape = attn_torch.trace(layer, x)
    assert y.dtype == torch.bfloat16 and torch.equal(tape["q"].flatten(2), plain(x).float())


@pytest.mark.parametrize("variant", ["decoder", "mla", "gated_delta"])
def test_steps_of_decoding_are_the_full_pass(variant: str) -> None:
    """Each from a cache, `absorbed` or with a state."""
    config: Any = next(c for c in contract.examples(variant).values() if getattr(c, "causal", True))
    x, weights = np.random.default_rng(0).normal(size=(2, 4, config.d_model)), weights_of(config)
    layer = fill(TREES["torch"], with_modules(TREES["torch"], config), weights)
    cache, ys = layer.init_cache(2, 4), []
    for i in range(4):
        y, cache = layer.step(torch.from_numpy(x[:, i : i + 1]), cache)
        ys.append(y.detach().numpy())
    assert ratio(np.concatenate(ys, 1), bounded(config, {"query": x}, weights)["y"]) <= 1


@pytest.mark.compile
@pytest.mark.parametrize("variant", ["mha", "mla"])
def test_modules_compile_in_one_graph(variant: str) -> None:
    config = next(iter(contract.examples(variant).values()))
    layer, inputs = with_modules(TREES["torch"], config), random_inputs(config, "full")
    given = {name: torch.from_numpy(x) for name, x in inputs.items()}
    compiled: Any = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(flat(compiled(**given))[0], flat(layer(**given))[0])


# Names, files and draws -----------------------------------------------------------------------------------------------


def test_names_are_those_of_the_frameworks() -> None:
    torch_layer: Any = attn_torch.build("mha", projections="modules", **MHA)
    assert {name: tuple(x.shape) for name, x in torch_layer.state_dict().items()} == {
        f"w_{name}.{part}": (12, 12) if part == "weight" else (12,) for name in "qkvo" for part in ("weight", "bias")
    }
    assert all(isinstance(getattr(torch_layer, f"w_{name}"), torch.nn.Linear) for name in "qkvo")
    jax_layer: Any = attn_jax.build("mha", projections="modules", **MHA)
    flat_state = nnx.to_flat_state(nnx.state(jax_layer, nnx.Param))
    assert {".".join(map(str, path)): x.get_value().shape for path, x in flat_state} == {
        f"w_{name}.{part}": (12, 12) if part == "kernel" else (12,) for name in "qkvo" for part in ("kernel", "bias")
    }
    assert all(isinstance(getattr(jax_layer, f"w_{name}"), nnx.Linear) for name in "qkvo")


def test_heads_are_the_outer_axis_of_features() -> None:
    """Row h k + i of the weight is entry i of head h; the output projection reads them in the same order."""
    weights = weights_of(contract.config("mha", d_model=12, num_heads=3, head_dim=5, value_head_dim=7))
    layer: Any = attn_torch.build(
        "mha", projections="modules", dtype="float64", d_model=12, num_heads=3, head_dim=5, value_head_dim=7
    )
    fill(TREES["torch"], layer, weights)
    assert np.array_equal(layer.w_q.weight[2 * 5 + 3].detach().numpy(), weights["w_q"][:, 2, 3])
    assert np.array_equal(layer.w_o.weight[:, 2 * 7 + 4].detach().numpy(), weights["w_o"][2, 4])


@pytest.mark.parametrize("variant", ["mha", "gated_delta", "disentangled", "seq2seq"])
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_both_forms_write_one_file_and_read_each_other(tree: Tree, variant: str, tmp_path: Path) -> None:
    """To the bit, and as NumPy does."""
    config = next(e for e in contract.examples(variant).values() if has_projections(e))
    layers = [tree.build(config, seed=3), with_modules(tree, config, seed=3)]
    files = [tmp_path / "arrays", tmp_path / "modules"]
    for layer, file in zip(layers, files, strict=True):
        tree.package.save(layer, file)
    assert files[0].read_bytes() == files[1].read_bytes()
    want = attn_np.load(files[1]).params()
    for form in ("arrays", "modules"):
        new = tree.package.load(files[1], projections=form)
        into = tree.package.load(files[1], into=tree.build(config) if form == "arrays" else with_modules(tree, config))
        for layer in (new, into):
            assert [*layer.params()] == [*want]
            assert all(np.array_equal(tree.numpy(x), want[name]) for name, x in layer.params().items())
        assert bool(owners(tree, new)) == (form == "modules")


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_checkpoint_loads_into_modules(tree: Tree) -> None:
    arrays = tree.package.load_pretrained(ROOT / "examples" / "minilm", layer=5)
    modules = tree.package.load_pretrained(ROOT / "examples" / "minilm", layer=5, projections="modules")
    assert modules.w_q.out_features == 384
    assert all(np.array_equal(tree.numpy(x), tree.numpy(arrays.params()[n])) for n, x in modules.params().items())


@pytest.mark.parametrize("variant", ["mha", "kda", "swin"])
def test_draws_are_the_same(variant: str) -> None:
    """By a seed of ours, by the framework's generator, and anew after `to_empty`."""
    config = next(iter(contract.examples(variant).values()))
    fields = config.as_dict()
    for name, tree in TREES.items():
        found = []
        for form in ("arrays", "modules"):
            torch.manual_seed(7)
            options = {"rngs": nnx.Rngs(7)} if name == "jax" else {}
            layer = tree.package.build(variant, seed=None, projections=form, **options, **fields)
            found.append({key: tree.numpy(x) for key, x in layer.params().items()})
        assert all(np.array_equal(x, found[1][key]) for key, x in found[0].items())
    again = getattr(attn_torch, config.class_name)(config, device="meta", projections="modules").to_empty(device="cpu")
    torch.manual_seed(7)
    again.reset_parameters()
    torch.manual_seed(7)
    want = TREES["torch"].package.build(variant, seed=None, **fields).params()
    assert all(torch.equal(x, want[key]) for key, x in again.params().items())


def test_copies_and_splits_go_on_as_layers() -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, 12))
    layer: Any = attn_torch.build("mha", projections="modules", dtype="float64", **MHA)
    other = copy.deepcopy(layer)
    assert torch.equal(other(torch.from_numpy(x)), layer(torch.from_numpy(x)))
    flax_layer: Any = attn_jax.build("mha", projections="modules", dtype="float64", **MHA)
    merged: Any = nnx.merge(*nnx.split(flax_layer))
    assert np.array_equal(merged(jnp.asarray(x)), flax_layer(jnp.asarray(x)))
    merged.w_q = TurnedInFlax(merged.w_q)
    assert not np.array_equal(merged(jnp.asarray(x)), flax_layer(jnp.asarray(x)))


def test_layers_that_vmap_stacks_are_read_and_named() -> None:
    config: Any = contract.config("mha", **MHA)

    @nnx.vmap(in_axes=0, out_axes=0)
    def make(seed: Any) -> Any:
        return attn_jax.MultiHeadAttention(config, rngs=nnx.Rngs(seed), projections="modules")

    layers = make(jax.random.split(jax.random.key(0), 3))
    params = layers.params()
    assert params["w_q"].shape == (3, 12, 3, 4) and params["b_q"].shape == (3, 3, 4)
    layers.set_params({name: 2 * x for name, x in params.items()})
    assert np.array_equal(layers.w_q.kernel[1].reshape(12, 3, 4), 2 * params["w_q"][1])
    attn_jax.parallel.name_axes(layers, h="model", d="embed")
    specs: Any = nnx.get_partition_spec(nnx.state(layers, nnx.Param))
    assert specs["w_q"]["kernel"].get_value() == PartitionSpec(None, "embed", "model")
    assert specs["w_o"]["kernel"].get_value() == PartitionSpec(None, "model", None)
    assert specs["w_k"]["bias"].get_value() == PartitionSpec(None, "model")
    with pytest.raises(ValueError, match="expected letters of the axes of parameters, d, h, i, j, o, got 'k'"):
        attn_jax.parallel.name_axes(layers, k="model")


class Block(torch.nn.Module):
    def __init__(self, attn: Any) -> None:
        super().__init__()
        self.attn = attn


IN_MODELS = ["mha", "gated_delta", "disentangled", "swin"]


@pytest.mark.parametrize("form", ["arrays", "modules"])
@pytest.mark.parametrize("variant", IN_MODELS)
def test_a_models_state_dict_loads_into_the_other_form(variant: str, form: str) -> None:
    config = next(e for e in contract.examples(variant).values() if has_projections(e))
    layers = [TREES["torch"].build(config, seed=3), with_modules(TREES["torch"], config, seed=4)]
    source, target = layers if form == "modules" else layers[::-1]
    want = {name: x.clone() for name, x in source.params().items()}
    Block(target).load_state_dict(Block(source).state_dict())
    assert all(torch.equal(x, want[name]) for name, x in target.params().items())
    for name in want:  # a state that lacks one is refused, as ever
        state = {key: x for key, x in source.state_dict().items() if not key.startswith(name)}
        if state.keys() != source.state_dict().keys():
            with pytest.raises(RuntimeError, match="Missing key"):
                target.load_state_dict(state)


@pytest.mark.parametrize("variant", IN_MODELS)
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_a_models_file_with_modules_loads_everywhere(tree: Tree, variant: str, tmp_path: Path) -> None:
    """As the framework's own tools write it: the names of modules after a prefix, no metadata."""
    config = next(e for e in contract.examples(variant).values() if has_projections(e))
    layer = with_modules(tree, config, seed=3)
    if tree.name == "torch":
        state = {f"model.attn.{key}": x.contiguous() for key, x in layer.state_dict().items()}
        torch_file(state, tmp_path / "model.safetensors")
    else:
        leaves = nnx.to_flat_state(nnx.state(layer, nnx.Param))
        arrays = {f"model.attn.{'.'.join(map(str, path))}": np.asarray(x.get_value()) for path, x in leaves}
        numpy_file(arrays, tmp_path / "model.safetensors")
    want, given = {name: tree.numpy(x) for name, x in layer.params().items()}, {"prefix": "model.attn."}
    for other in ALL.values():
        loaded = other.package.load(tmp_path / "model.safetensors", variant=variant, **given, **config.as_dict())
        into = other.package.load(tmp_path / "model.safetensors", into=other.build(config), **given)
        for found in (loaded, into):
            assert all(np.array_equal(other.numpy(x), want[name]) for name, x in found.params().items())
    with pytest.raises(WeightFileError, match=r"for prefix= did you mean 'model\.attn\.'"):
        attn_np.load(tmp_path / "model.safetensors", variant=variant, prefix="attn.", **config.as_dict())


# Refusals -------------------------------------------------------------------------------------------------------------


def said(call: Any) -> str:
    with pytest.raises((ValueError, TypeError)) as error:
        call()
    return f"{error.type.__name__}: {error.value}"


class Returns(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


class ReturnsInFlax(nnx.Module):
    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, x: jax.Array) -> Any:
        return self.function(x)


def as_float64(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) else x.astype(jnp.float64)


BAD = {
    "features": (None, "ValueError: mha: expected w_q from 12 to 12 features, got (13, 12); replace it"),
    "no module": (None, "TypeError: mha: expected a module for w_q, got int; give it one"),
    "width": (lambda x: x[..., :5], "ValueError: mha: expected w_q to return (2, 5, 12), got (2, 5, 5); give it"),
    "order": (lambda x: x.swapaxes(0, 1), "ValueError: mha: expected w_q to return (2, 5, 12), got (5, 2, 12);"),
    "dtype": (as_float64, "ValueError: mha: expected w_q to return float32, got float64; give the module the layer's"),
    "pair": (lambda x: (x, x), "TypeError: mha: expected an array from w_q, got tuple; return the array alone"),
}


@pytest.mark.parametrize("what", BAD)
def test_modules_that_do_not_fit_are_refused_in_one_voice(what: str) -> None:
    function, words = BAD[what]
    found = []
    for name, tree in TREES.items():
        layer = tree.package.build("mha", projections="modules", **MHA)
        if what == "features":
            bad = torch.nn.Linear(13, 12) if name == "torch" else nnx.Linear(13, 12, rngs=nnx.Rngs(0))
        else:
            bad = 3 if function is None else (Returns if name == "torch" else ReturnsInFlax)(function)
        if function is None:
            found.append(said(lambda layer=layer, bad=bad: setattr(layer, "w_q", bad)))
        else:
            layer.w_q = bad
            x = tree.array(np.ones((2, 5, 12), "float32"))
            found.append(said(lambda layer=layer, x=x: layer(x)))
    assert found[0] == found[1] and found[0].startswith(words)


def plain(tree: str, dtype: str = "float32", bias: bool = True) -> Any:
    if tree == "torch":
        return torch.nn.Linear(12, 12, bias=bias, dtype=getattr(torch, dtype))
    return nnx.Linear(12, 12, use_bias=bias, param_dtype=dtype, rngs=nnx.Rngs(0))


# Of a layer with biases or without, in float32: each projection but in another dtype, and whether it has a bias.
UNLIKE = {
    "no bias": (True, {"bias": False}, "with a bias, got one without a bias; replace it by one like it, or build"),
    "a bias": (False, {"bias": True}, "without a bias, got one with a bias; replace it by one like it, or build"),
    "narrow": (True, {"dtype": "bfloat16"}, "in float32, got bfloat16; give the module the layer's dtype"),
    "wide": (True, {"dtype": "float64"}, "in float32, got float64; give the module the layer's dtype"),
}


@pytest.mark.parametrize("what", UNLIKE)
@pytest.mark.parametrize("projection", ["w_q", "w_k", "w_o"])
def test_a_linear_unlike_the_one_it_replaces_is_refused(projection: str, what: str) -> None:
    """Whichever projection it is; and the layer is as it was."""
    use_bias, options, words = UNLIKE[what]
    for name, tree in TREES.items():
        layer = tree.package.build("mha", projections="modules", **MHA | {"use_bias": use_bias})
        before = getattr(layer, projection)
        told = said(lambda layer=layer, name=name: setattr(layer, projection, plain(name, **options)))
        assert told.startswith(f"ValueError: mha: expected {projection} {words}")
        assert getattr(layer, projection) is before
        setattr(layer, projection, plain(name, bias=use_bias))
        layer(tree.array(np.ones((2, 5, 12), "float32")))


def test_a_module_in_a_layer_of_arrays_is_refused() -> None:
    """And where the parameter is no projection in any form."""
    fix = {"numpy": "layers of attn_torch and attn_jax take it"}
    for name, tree in ALL.items():
        module, layer = plain("jax" if name == "jax" else "torch"), tree.package.build("mha", **MHA)
        told = said(lambda layer=layer, module=module: setattr(layer, "w_q", module))
        end = fix.get(name, 'build the layer with projections="modules"')
        assert told == f"TypeError: mha: expected an array for w_q, got Linear; {end}"
        layer = tree.package.build("sinks", d_model=12, num_heads=3)
        told = said(lambda layer=layer, module=module: setattr(layer, "sinks", module))
        assert told == "TypeError: sinks: expected an array for sinks, got Linear; assign an array"


def test_a_module_of_a_layer_with_other_heads_is_refused() -> None:
    """It knows one projection: the first layer would compute with the second's heads."""
    for name, tree in TREES.items():
        first, second = (tree.package.build("mha", projections="modules", **MHA | {"num_heads": n}) for n in (3, 2))
        x = tree.array(np.ones((2, 5, 12), "float32"))
        before = tree.numpy(first(x))
        told = said(lambda first=first, second=second: setattr(second, "w_q", first.w_q))
        assert told == (
            "ValueError: mha: expected w_q from (12,) to (2, 6), got a module from (12,) to (3, 4), w_q of another "
            "layer; give each layer a module of its own"
        )
        assert np.array_equal(tree.numpy(first(x)), before), name
        same = tree.package.build("mha", projections="modules", **MHA)
        same.w_q = first.w_q  # tied


def test_weights_of_integers_do_not_make_the_layers_dtype() -> None:
    layer: Any = attn_torch.build("mha", projections="modules", **MHA)
    base = layer.w_q

    class InEight(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(12, 12, dtype=torch.int8), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return base(x)

    x = torch.ones(2, 5, 12)
    want = layer(x)
    layer.w_q = InEight()
    assert layer.dtype == "float32" and torch.equal(layer(x), want)


def test_the_parameters_of_an_abstract_layer_are_shapes() -> None:
    config: Any = contract.config("mha", **MHA)
    make = lambda: attn_jax.MultiHeadAttention(config, rngs=nnx.Rngs(0), projections="modules")  # noqa: E731
    found: Any = nnx.eval_shape(make).params()
    assert {name: x.shape for name, x in found.items()} == config.shapes()


def test_an_array_in_the_place_of_a_module_is_refused() -> None:
    layer: Any = attn_torch.build("mha", projections="modules", **MHA)
    words = said(lambda: setattr(layer, "w_q", torch.nn.Parameter(torch.ones(12, 3, 4))))
    assert words.startswith("TypeError: mha: expected a module for w_q, got Parameter; give it one, or build the layer")


def test_a_module_put_there_behind_the_layer_is_refused() -> None:
    layer: Any = attn_torch.build("mha", projections="modules", **MHA)
    layer._modules["w_q"] = torch.nn.Linear(12, 12)
    words = said(lambda: layer(torch.ones(1, 2, 12)))
    assert words.startswith("ValueError: linear: expected a module of a layer, got Linear, which no attribute")


class Negated(torch.nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return -super().forward(input)


class NegatedInFlax(nnx.Linear):
    def __call__(self, inputs: jax.Array, out_sharding: Any = None) -> jax.Array:
        return -super().__call__(inputs, out_sharding)


# What a module holds that a file does not, and whether the layer has biases.
KEPT = {"a bias": False, "no bias": True, "adapter": True, "product": True, "formula": True, "state": True}


@pytest.mark.parametrize("name", TREES)
def test_a_file_never_drops_what_a_module_holds(name: str, tmp_path: Path) -> None:
    """A bias that the config has not, a bias that is gone, an adapter, a formula of its own: nothing is written."""
    tree, told = TREES[name], {}
    for what, use_bias in KEPT.items():
        layer = tree.package.build("mha", projections="modules", d_model=12, num_heads=3, use_bias=use_bias)
        if what == "adapter":
            layer.w_v = (Turned if name == "torch" else TurnedInFlax)(layer.w_v)
        elif what == "product" and name == "torch":
            old = layer.w_v.forward
            layer.w_v.forward = lambda x, old=old: 2 * old(x)
        elif what == "product":
            layer.w_v.dot_general = lambda *args, **options: 2 * jax.lax.dot_general(*args, **options)
        elif what == "formula":
            layer.w_v = Negated(12, 12) if name == "torch" else NegatedInFlax(12, 12, rngs=nnx.Rngs(0))
        elif what == "state" and name == "torch":
            layer.w_v.register_buffer("seen", torch.ones(3))
        elif what == "state":
            layer.w_v.seen = nnx.BatchStat(jnp.ones(3))
        elif name == "torch":
            layer.w_v.bias = None if use_bias else torch.nn.Parameter(torch.ones(12))
        else:
            layer.w_v.bias, layer.w_v.use_bias = None if use_bias else nnx.Param(jnp.ones(12, "float32")), not use_bias
        layer(tree.array(np.ones((1, 2, 12), "float32")))
        told[what] = said(lambda layer=layer: tree.package.save(layer, tmp_path / "file"))
        assert said(layer.params) == told[what] and not (tmp_path / "file").exists()
    weight = "weight" if name == "torch" else "kernel"
    assert f"expected w_v to hold {weight} alone for its parameters, got" in told["a bias"]
    assert f"expected w_v to hold {weight} and bias alone for its parameters, got {weight};" in told["no bias"]
    assert "got base.bias, base" in told["adapter"] or "got base.weight, base.bias" in told["adapter"]
    assert "expected w_v to be a plain Linear for its parameters, got Linear" in told.pop("product")
    assert "expected w_v to be a plain Linear for its parameters, got Negated" in told.pop("formula")
    assert "seen; merge" in told["state"]
    assert "load the layer before it was changed, or save the state" in told.pop("no bias")
    assert all("merge what was added to it, or save the state" in words for words in told.values())


def test_what_has_no_modules_says_so() -> None:
    numpy_says = said(lambda: attn_np.build("mha", projections="modules", **MHA))
    assert numpy_says.startswith("ValueError: mha: expected projections='arrays' in NumPy, which has no modules, got")
    assert said(lambda: attn_np.load_pretrained(ROOT / "examples" / "minilm", layer=5, projections="modules")) == (
        numpy_says
    )
    for package in (attn_np, attn_torch, attn_jax):
        words = said(
            lambda package=package: package.build("additive", query_dim=3, hidden_dim=5, projections="modules")
        )
        assert words == (
            "ValueError: additive: expected projections='arrays' for a layer whose weights are in its formula, "
            "got 'modules'; leave it out"
        )
        words = said(lambda package=package: package.build("mha", projections="linear", **MHA))
        assert words.startswith("ValueError: mha: expected projections= to be 'arrays' or 'modules', got 'linear';")


@pytest.mark.parametrize("tree", ALL.values(), ids=ALL)
def test_a_layer_that_takes_a_file_keeps_its_form(tree: Tree, tmp_path: Path) -> None:
    layer = tree.package.build("mha", **MHA)
    tree.package.save(layer, tmp_path / "file")
    words = said(lambda: tree.package.load(tmp_path / "file", into=layer, projections="modules"))
    assert words.startswith("ValueError: mha: expected no projections= with into=, got 'modules'; build the layer")
    with pytest.raises(WeightFileError):
        tree.package.load(tmp_path / "file", into=tree.package.build("mha", d_model=9, num_heads=3))


# Adapters of Flax -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["LoRA", "LoRALinear"])
def test_adapters_of_flax_train(kind: str) -> None:
    """nnx's own, in place of two projections: the loss falls, what was there stays, and merged it is the same layer.

    Weights, adapters and inputs are small multiples of powers of two, so that queries are exact either way.
    """
    rngs, x = nnx.Rngs(0), jnp.asarray(np.round(64 * np.random.default_rng(0).normal(size=(2, 5, 12))) / 64)
    layer = attn_jax.build("mha", projections="modules", dtype="float64", causal=True, **MHA)
    layer.set_params({name: jnp.round(2.0**12 * w) / 2.0**12 for name, w in layer.params().items()})
    before = dict(layer.params())
    for name in ("w_q", "w_v"):
        base = getattr(layer, name)
        if kind == "LoRA":
            adapted: Any = nnx.LoRA(12, 2, 12, base_module=base, param_dtype=jnp.float64, rngs=rngs)
        else:
            adapted = nnx.LoRALinear(
                12, 12, lora_rank=2, param_dtype=jnp.float64, lora_param_dtype=jnp.float64, rngs=rngs
            )
            adapted.kernel, adapted.bias = base.kernel, base.bias
        setattr(layer, name, adapted)
    wanted = nnx.DiffState(0, nnx.LoRAParam)

    @nnx.jit
    def step(layer: Any) -> Any:
        loss, grads = nnx.value_and_grad(lambda layer: (layer(x) ** 2).mean(), argnums=wanted)(layer)
        nnx.update(layer, jax.tree.map(lambda w, g: w - 0.5 * g, nnx.state(layer, nnx.LoRAParam), grads))
        return loss

    losses = [step(layer) for _ in range(8)]
    assert losses[-1] < losses[0]
    rounded = jax.tree.map(lambda w: jnp.round(2.0**10 * w) / 2.0**10, nnx.state(layer, nnx.LoRAParam))
    nnx.update(layer, rounded)
    merged = attn_jax.build("mha", dtype="float64", causal=True, **MHA)
    weights = dict(before)
    for name in ("w_q", "w_v"):
        lora = getattr(layer, name) if kind == "LoRA" else getattr(layer, name).lora
        added = lora.lora_a[...] @ lora.lora_b[...]
        assert jnp.any(added != 0)
        weights[name] = before[name] + added.reshape(12, 3, 4)
    merged.set_params(weights)
    assert np.array_equal(output(TREES["jax"], layer, {"query": np.asarray(x)}), merged(x))
