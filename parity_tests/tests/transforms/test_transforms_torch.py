"""What PyTorch's layers are put through besides being called, for every variant.

A variant goes through a transform or stands in `EXEMPT` with the reason. torch.compile can't trace through the hook
that checks annotations, so what compiles runs in a call of its own.
"""

import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo import lookup_backend
from torch.export import Dim
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from attn_np import contract
from attn_np.contract import Config
from attn_torch.ops import DTYPES
from parity_tests.bounds.precision import UNIT, Precision, fast_precision_of
from parity_tests.judge.cases import Case, Drawn
from parity_tests.judge.judging import compare, reference
from parity_tests.tests.inputs import TREES, Arrays, axis, first_difference, flat, random_inputs
from parity_tests.tests.transforms.tables import Elsewhere, Exemptions, cells
from parity_tests.tests.transforms.test_distributed_torch import HEADS, ROWS
from parity_tests.tests.witness import cotangent, layer_of, weights_of

TRANSFORMS: dict[str, str] = {
    "compile": "`torch.compile(fullgraph=True)` of two layers in a row, training and inference: the bits of eager",
    "dynamic": "`torch.compile(fullgraph=True, dynamic=True)`, forward and backward at six lengths: at most two graphs",
    "export": "`torch.export.export` of one length: the numbers of the program",
    "export dynamic": "`torch.export.export` with lengths of `Dim.AUTO`, called with others",
    "vmap": "`torch.func.vmap` over batch rows",
    "functional_call": "`torch.func.functional_call` with other parameters than the layer's",
    "per-sample gradients": "`vmap(grad(...))`: the gradient of each batch row by itself",
    "autocast": "`torch.autocast` to bfloat16 from float32: the types of PyTorch's own modules, within its rounding",
    "checkpoint": "`torch.utils.checkpoint` with `use_reentrant=False`, in training with dropout: the same bits",
    "FSDP2": "`fully_shard` over two processes: outputs and gradients",
    "DDP": "`DistributedDataParallel` over two processes: outputs and gradients",
    "DTensor": (
        "parameters as DTensors with the heads over two processes: the only communication is one all-reduce after the "
        "output projection (in `talking_heads`, which mixes heads, `delta`, `gated_delta`, `kda`, `mamba2` and "
        "`retention` there is more)"
    ),
    "meta": '`device="meta"`, `to_empty`, `reset_parameters`: the layer that the constructor draws',
    "deepcopy": "a copy with the same bits and nothing in common",
    "pickle": "a layer through pickle: the same bits",
    "state_dict": "`state_dict` and `load_state_dict` inside a model, with their hooks, and `assign=True`",
    "parametrize": "`torch.nn.utils.parametrize` of every parameter",
}
# Those that loop over positions or blocks, whatever their form.
LOOPS = ("blockwise", "delta", "gated_delta", "gla", "gru", "kda", "mamba2", "seq2seq")
UNROLLED = (
    "loops over positions or blocks of them; `torch.compile` and `torch.export` write down every turn of a loop, and "
    "PyTorch 2.13 has no public `scan`, so each length is a program of its own (nor does it compile `torch.nn.GRU`)"
)
EXEMPT: Exemptions = {(t, v): UNROLLED for t in ("dynamic", "export dynamic") for v in LOOPS}
EXEMPT["export dynamic", "ring"] = (
    "pads the last shard, so a program serves lengths that fill the shards or lengths that do not"
)
EXEMPT |= {
    (t, v): "has a grid of one size" for t in ("dynamic", "export dynamic") for v in ("axial", "grid_bias", "swin")
}
EXEMPT |= {(t, "bigbird"): "draws blocks for a known number of them" for t in ("dynamic", "export dynamic")}
EXEMPT |= {
    (t, v): "has no parameters to share out" for t in ("FSDP2", "DDP") for v in contract.variants() if v not in ROWS
}
EXEMPT |= {("DTensor", v): "has no heads to share out" for v in contract.variants() if v not in HEADS}
DISTRIBUTED = "parity_tests/tests/transforms/test_distributed_torch.py"
ELSEWHERE: Elsewhere = {
    "FSDP2": (DISTRIBUTED, ROWS),
    "DDP": (DISTRIBUTED, ROWS),
    "DTensor": (DISTRIBUTED, HEADS),
}

TORCH = TREES["torch"]
SUMMED_OVER_STEPS = ("gla", "kda", "seq2seq")
# What each of the calls is that a program with varying lengths is asked for. None is a size of an example.
LENGTHS = (18, 20, 21, 22, 24, 25)
# What PyTorch's own GRU returns under autocast on a CPU is float32.
FLOAT32 = ("gru", "seq2seq")


# What is asked --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """A call of a layer with every argument and few positions: as loops are unrolled, a step costs a compiler much."""

    config: Config
    inputs: Arrays
    params: Arrays

    def layer(self) -> Any:
        return layer_of(TORCH, self.config, self.params)

    def bounded(self, inputs: Arrays | None = None) -> dict[str, Any]:
        """The reference's outputs and gradients, each with the bound of the fast path."""
        return bounded(self.config, inputs or self.inputs, self.params, fast_precision_of("torch", "float64"))


def bounded(config: Config, inputs: Arrays, params: Arrays, precision: Precision) -> dict[str, Any]:
    case = Case(config.variant, "", "", "float64", given=config)
    outputs, grads = reference(case, Drawn(inputs, params, 0), {}, precision)
    return outputs | grads


def config_of_table(variant: str, causal: bool) -> Config:
    """That of the first example, or of the first causal one where there is one; in its default form."""
    configs = list(contract.examples(variant).values())
    configs = [c for c in configs if getattr(c, "form", "auto") == "auto"]
    return next((c for c in configs if causal and getattr(c, "causal", False)), configs[0])


@cache
def work(variant: str, causal: bool = False, t: int = 3) -> Work:
    config = config_of_table(variant, causal)
    return Work(config, random_inputs(config, "full", t=t, s=t + 1), weights_of(config))


def named(outputs: Any) -> Arrays:
    return {"y" if i == 0 else f"out{i}": TORCH.numpy(x) for i, x in enumerate(flat(outputs))}


def results(layer: Any, inputs: Arrays, call: Callable[..., Any] | None = None) -> Arrays:
    """Every output of a call, and the gradients of all of them against every float input and parameter."""
    given = TORCH.arrays(inputs)
    leaves = {name: x.requires_grad_() for name, x in given.items() if x.is_floating_point()}
    leaves |= dict(layer.named_parameters())
    outputs = flat((layer if call is None else call)(**given))
    sources = [x for x in outputs if x.requires_grad]
    dys = [TORCH.array(cotangent(tuple(x.shape))).to(x.dtype) for x in sources]
    grads = torch.autograd.grad(sources, list(leaves.values()), dys, allow_unused=True)
    grads = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves.values(), grads, strict=True)]
    return named(outputs) | {f"d{name}": TORCH.numpy(g) for name, g in zip(leaves, grads, strict=True)}


def agree(got: Arrays, want: Arrays, todo: Work, inputs: Arrays | None = None) -> bool:
    """The same bits, or within the bounds: a constant may be another number's neighbour in a compiled program."""
    return first_difference(got, want) is None or not beyond(got, todo.bounded(inputs))


def beyond(got: Arrays, want: dict[str, Any], dtype: str = "float64") -> dict[str, float]:
    """Error/bound of what leaves its bound; `dtype` is that of the outputs."""
    dtypes = {name: None if name.startswith("d") else dtype for name in got}
    ratios = {name: compare(x, want[name], dtypes[name])["ratio"] for name, x in got.items()}
    return {name: ratio for name, ratio in ratios.items() if not ratio <= 1}


def same_parts(got: Arrays, want: Arrays, variant: str) -> bool:
    """The same bits; but in SUMMED_OVER_STEPS a gradient's parts, some dozens, may be added up in another order."""
    order = 64 * np.finfo(np.float64).eps if variant in SUMMED_OVER_STEPS else 0.0
    orders = {name: order * np.abs(x).max(initial=0.0) if name.startswith("d") else 0.0 for name, x in want.items()}
    return got.keys() == want.keys() and all(np.all(np.abs(got[name] - want[name]) <= orders[name]) for name in want)


# Programs -------------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def fresh(request: pytest.FixtureRequest) -> None:
    """What torch.compile learned from one test is nothing to the next."""
    if request.node.get_closest_marker("compile"):
        torch.compiler.reset()


class Pair(torch.nn.Module):
    """Two layers in a row: the second is called with what the first returns, where that may be its first input."""

    def __init__(self, todo: Work) -> None:
        super().__init__()
        self.first, self.second = todo.layer(), layer_of(TORCH, todo.config, weights_of(todo.config, seed=1))
        self.name, x = next(iter(TORCH.arrays(todo.inputs).items()))
        y = flat(self.first(**TORCH.arrays(todo.inputs)))[0]
        self.joined = y.shape == x.shape and y.dtype == x.dtype

    def forward(self, **inputs: Any) -> Any:
        first = self.first(**inputs)
        return first, self.second(**inputs | ({self.name: flat(first)[0]} if self.joined else {}))


@pytest.mark.compile
@cells(EXEMPT, "compile")
def test_compile(transform: str, variant: str) -> None:
    todo = work(variant, causal=True)
    pair = Pair(todo)
    compiled = torch.compile(pair, backend="aot_eager", fullgraph=True)
    assert same_parts(results(pair, todo.inputs, compiled), results(pair, todo.inputs), variant)
    with torch.no_grad():
        found, want = (named(call(**TORCH.arrays(todo.inputs))) for call in (compiled, pair))
    assert first_difference(found, want) is None


FORMS = [
    (variant, name)
    for variant in ("linear", "retention", "delta", "gated_delta", "gla", "kda", "mamba2")
    for name, config in contract.examples(variant).items()
    if getattr(config, "form", "auto") != "auto"
]


@pytest.mark.compile
@pytest.mark.parametrize(("variant", "example"), FORMS)
def test_every_form_is_one_graph(variant: str, example: str) -> None:
    """Those besides the default, which is the table's."""
    one_graph(contract.examples(variant)[example])


def one_graph(config: Config) -> None:
    layer, inputs = layer_of(TORCH, config, weights_of(config)), random_inputs(config, "full", t=3, s=4)
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    assert same_parts(results(layer, inputs, compiled), results(layer, inputs), config.variant)


OTHERS = [
    (variant, name)
    for variant in contract.variants()
    for name, config in contract.examples(variant).items()
    if config != config_of_table(variant, causal=True) and (variant, name) not in FORMS
]


@pytest.mark.compile
@pytest.mark.parametrize(("variant", "example"), OTHERS)
def test_every_other_example_is_one_graph(variant: str, example: str) -> None:
    """In one of a variant's examples each of its fields has another value than by default."""
    one_graph(contract.examples(variant)[example])


class Counted:
    """A backend for torch.compile that counts its graphs."""

    def __init__(self, backend: Callable[..., Any]) -> None:
        self.graphs, self.backend = 0, backend

    def __call__(self, module: Any, inputs: Any) -> Any:
        self.graphs += 1
        return self.backend(module, inputs)


@pytest.mark.compile
@cells(EXEMPT, "dynamic")
def test_dynamic(transform: str, variant: str) -> None:
    # That a program with symbols for lengths can be differentiated before it runs takes four times as long to see.
    counted = Counted(lookup_backend("aot_eager" if variant == "decoder" else "eager"))
    todo = work(variant, causal=True)
    layer = todo.layer()
    compiled = torch.compile(layer, backend=counted, fullgraph=True, dynamic=True)
    for t in LENGTHS:
        inputs = work(variant, causal=True, t=t).inputs
        assert agree(results(layer, inputs, compiled), results(layer, inputs), todo, inputs)
    assert counted.graphs <= 2


@pytest.mark.compile
@cells(EXEMPT, "export")
def test_export(transform: str, variant: str) -> None:
    todo = work(variant, causal=True)
    layer = todo.layer()
    exported = torch.export.export(layer, (), kwargs=TORCH.arrays(todo.inputs), strict=True).module()
    found, want = (named(call(**TORCH.arrays(todo.inputs))) for call in (exported, layer))
    assert agree(found, want, todo)


@pytest.mark.compile
@cells(EXEMPT, "export dynamic")
def test_export_dynamic(transform: str, variant: str) -> None:
    todo = work(variant, causal=True, t=LENGTHS[0])
    layer, arguments = todo.layer(), todo.config.arguments()
    letters = {name: arguments[name].axes.split() for name in todo.inputs}
    dims = {name: {i: Dim.AUTO for i, x in enumerate(axes) if x in "ts"} for name, axes in letters.items()}
    program = torch.export.export(layer, (), kwargs=TORCH.arrays(todo.inputs), dynamic_shapes=dims).module()
    for t in LENGTHS[1:3]:
        inputs = work(variant, causal=True, t=t).inputs
        found, want = (named(call(**TORCH.arrays(inputs))) for call in (program, layer))
        assert agree(found, want, todo, inputs)


# Functions of functions -----------------------------------------------------------------------------------------------


def differentiated(config: Config, outputs: list[Any]) -> list[Any]:
    """The outputs whose gradients the reference gives: the first, and a state that is returned."""
    return outputs[: 2 if config.second_output() else 1]


def rows_of(todo: Work) -> tuple[dict[str, int], Callable[..., dict[str, Any]]]:
    """Where each input has its batch axis, and a function that gives one row of inputs that axis again."""
    axes = {name: axis(todo.config, name, "b") or 0 for name in todo.inputs}
    return axes, lambda row: {name: x.unsqueeze(axes[name]) for name, x in row.items()}


def split(todo: Work) -> Iterator[Arrays]:
    axes, _ = rows_of(todo)
    for i in range(len(next(iter(todo.inputs.values())))):
        yield {name: np.take(x, [i], axes[name]) for name, x in todo.inputs.items()}


@cells(EXEMPT, "vmap")
def test_vmap(transform: str, variant: str) -> None:
    todo = work(variant)
    layer, (axes, grown) = todo.layer(), rows_of(todo)
    one = vmap(lambda row: tuple(flat(layer(**grown(row)))), in_dims=(axes,))
    found = [TORCH.numpy(x) for x in one(TORCH.arrays(todo.inputs))]
    want = [todo.bounded(row) for row in split(todo)]
    for i, row in enumerate(want):
        got = {"y" if n == 0 else f"out{n}": x[i] for n, x in enumerate(found)}
        assert not beyond(got, row)


@cells(EXEMPT, "functional_call")
def test_functional_call(transform: str, variant: str) -> None:
    todo = work(variant)
    layer, other = layer_of(TORCH, todo.config, weights_of(todo.config, seed=1)), todo.layer()
    params = dict(other.named_parameters())
    got = results(other, todo.inputs, lambda **given: functional_call(layer, params, (), given))
    assert first_difference(got, results(other, todo.inputs)) is None


@cells(EXEMPT, "per-sample gradients")
def test_per_sample_gradients(transform: str, variant: str) -> None:
    todo = work(variant)
    layer, (axes, grown) = todo.layer(), rows_of(todo)
    params = {name: x.detach() for name, x in layer.named_parameters()}

    def loss(params: dict[str, Any], row: dict[str, Any]) -> Any:
        outputs = differentiated(todo.config, flat(functional_call(layer, params, (), grown(row))))
        return sum((x * TORCH.array(cotangent(tuple(x.shape)))).sum() for x in outputs)

    found = vmap(grad(loss), in_dims=(None, axes))(params, TORCH.arrays(todo.inputs))
    for i, row in enumerate(split(todo)):
        assert not beyond({f"d{name}": TORCH.numpy(x[i]) for name, x in found.items()}, todo.bounded(row))


# Less memory, fewer bits ----------------------------------------------------------------------------------------------


@cells(EXEMPT, "checkpoint")
def test_checkpoint(transform: str, variant: str) -> None:
    """What is computed again in the backward pass drops the same weights."""
    todo = work(variant)
    layer = todo.layer().train()
    inputs = {name: x for name, x in todo.inputs.items() if todo.config.arguments()[name].kind != "keep"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        want = results(layer, inputs)
        torch.manual_seed(0)
        got = results(layer, inputs, lambda **given: checkpoint(layer, use_reentrant=False, **given))
    assert first_difference(got, want) is None


class Autocast(Precision):
    """Products round both factors and their sum to bfloat16; the rest is float32."""

    def gamma(self, n: int) -> float:
        return super().gamma(n) + UNIT["bfloat16"]


@cells(EXEMPT, "autocast")
def test_autocast(transform: str, variant: str) -> None:
    todo = work(variant)
    drawn = {name: x.astype(np.float32) if x.dtype.kind == "f" else x for name, x in todo.inputs.items()}
    params = {name: x.astype(np.float32) for name, x in todo.params.items()}
    cls = getattr(TORCH.package, todo.config.class_name)
    layer = cls(todo.config, dtype="float32", _values=TORCH.arrays(params)).eval()
    outside, dtype = results(layer, drawn), "float32" if variant in FLOAT32 else "bfloat16"
    found: list[Any] = []

    def call(**given: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(**given)
            with torch.autocast("cpu", enabled=False):
                found.extend(flat(layer(**given)))
        assert {x.dtype for x in flat(y)} == {DTYPES[dtype]}
        return [x.float() for x in flat(y)]

    got = results(layer, drawn, call)
    assert all(x.dtype == np.float32 for x in got.values() if x.dtype.kind == "f")
    assert all(np.array_equal(TORCH.numpy(x), y) for x, y in zip(found, outside.values(), strict=False))
    assert first_difference(got, outside) is not None
    precision = Autocast("float32", dtype, product="bfloat16", recomputed=True)
    assert not beyond(got, bounded(todo.config, drawn, params, precision), dtype)


# Modules --------------------------------------------------------------------------------------------------------------


@cells(EXEMPT, "meta")
def test_meta(transform: str, variant: str) -> None:
    config, cls = work(variant).config, getattr(TORCH.package, work(variant).config.class_name)
    meta = cls(config, device="meta", dtype="float64")
    shapes = {name: tuple(x.shape) for name, x in meta.named_parameters()}
    assert shapes == config.shapes() and all(x.is_meta for x in meta.parameters())
    inputs = {name: x.to("meta") for name, x in TORCH.arrays(work(variant).inputs).items()}
    want = results(work(variant).layer(), work(variant).inputs)
    assert all(tuple(x.shape) == y.shape for x, y in zip(flat(meta.eval()(**inputs)), want.values(), strict=False))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        drawn = cls(config, dtype="float64").params()
        torch.manual_seed(5)
        layer = meta.to_empty(device="cpu")
        for x in layer.parameters():
            x.data.fill_(torch.nan)
        layer.reset_parameters()
    assert list(drawn) == list(layer.params())
    assert all(torch.equal(x, drawn[name]) and x.requires_grad for name, x in layer.params().items())


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),  # noqa: S301 - its own bytes
}


@cells(EXEMPT, *COPIES)
def test_copies(transform: str, variant: str) -> None:
    todo = work(variant)
    layer = todo.layer()
    twin = COPIES[transform](layer)
    want = results(layer, todo.inputs)
    assert type(twin) is type(layer) and twin.config == layer.config and twin.training == layer.training
    assert first_difference(results(twin, todo.inputs), want) is None
    for x in twin.parameters():
        x.data.zero_()
    assert first_difference(results(layer, todo.inputs), want) is None


@cells(EXEMPT, "state_dict")
def test_state_dict(transform: str, variant: str) -> None:
    """Under the names of the contract, behind the name that a model gives the layer."""
    todo = work(variant)
    layers = todo.layer(), layer_of(TORCH, todo.config, weights_of(todo.config, seed=1))
    source, target = (torch.nn.Sequential(OrderedDict(attn=layer)) for layer in layers)
    said: list[str] = []
    layers[0].register_state_dict_pre_hook(lambda module, prefix, keep_vars: said.append(f"save {prefix}"))
    layers[0].register_state_dict_post_hook(lambda module, values, prefix, meta: said.append(f"saved {prefix}"))
    layers[1].register_load_state_dict_pre_hook(lambda module, values, prefix, *_: said.append(f"load {prefix}"))
    layers[1].register_load_state_dict_post_hook(lambda module, keys: said.append("loaded"))
    state = source.state_dict()
    assert list(state) == [f"attn.{name}" for name in todo.config.shapes()]
    want = results(layers[0], todo.inputs)
    for assign in (False, True):
        target.load_state_dict(state, assign=assign)
        assert first_difference(results(layers[1], todo.inputs), want) is None
        pairs = zip(target.parameters(), state.values(), strict=True)
        assert all((x.data_ptr() == y.data_ptr()) == assign for x, y in pairs)
        for x in target.parameters():
            x.data = torch.zeros_like(x)
    assert said == ["save attn.", "saved attn.", "load attn.", "loaded", "load attn.", "loaded"]


class Half(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x / 2


@cells(EXEMPT, "parametrize")
def test_parametrize(transform: str, variant: str) -> None:
    """Every parameter twice its value, halved: exactly what it was, and twice the gradient."""
    todo = work(variant)
    layer, want = todo.layer(), results(todo.layer(), todo.inputs)
    for module in list(layer.modules()):
        for name, x in list(module.named_parameters(recurse=False)):
            x.data *= 2
            parametrize.register_parametrization(module, name, Half())
    got = results(layer, todo.inputs)
    where = {".".join(p for p in n.split(".") if p not in ("parametrizations", "original")): n for n in layer.params()}
    for name, key in where.items():
        got[f"d{name}"] = 2 * got.pop(f"d{key}")
    assert first_difference({name: got[name] for name in want}, want) is None
