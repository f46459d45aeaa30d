"""Layers in two processes: the heads sharded by `parallel.Heads`, FSDP2 and DDP, within the reference's bounds."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch.multiprocessing as mp

from attn_np import contract
from parity_tests.tests.inputs import axis, random_inputs
from parity_tests.tests.transforms import processes
from parity_tests.tests.witness import bounded, cotangent, ratio, weights_of

GROUPED = {"d_model": 12, "num_heads": 4, "num_kv_heads": 2}
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "mha": ("mha", {"d_model": 12, "num_heads": 4, "use_bias": True}, "full"),
    "gqa": ("gqa", GROUPED, "full"),
    "one head of keys": ("gqa", GROUPED | {"num_kv_heads": 1}, "plain"),
    "decoder": ("decoder", GROUPED | {"head_dim": 6, "causal": True}, "plain"),
    "window": ("mha", {"d_model": 12, "num_heads": 4, "causal": True, "window": (2, None)}, "plain"),
    "sinks": ("sinks", {"d_model": 12, "num_heads": 4}, "plain"),
}
# Those with heads; and of these, those that send something before the sum: talking heads are mixed, by definition; of
# `block_sparse` heads and batch become one axis; and
# in the delta rules and the chunks of retention DTensor gathers what it need not; the norm of `mamba2` is over heads.
HEADS = tuple(v for v in contract.variants() if "num_heads" in contract.get(v).Config.fields())
TALK = ("talking_heads", "block_sparse", "delta", "gated_delta", "kda", "mamba2", "retention")
# How often a layer sums over its heads: axial projects its rows before it attends along its columns, joint each stream.
SUMS = {"axial": 2, "joint": 2}
# Those with parameters, whose batch is split by FSDP2 and DDP.
ROWS = tuple(v for v in contract.variants() if next(iter(contract.examples(v).values())).shapes())


def four_heads(variant: str) -> dict[str, Any]:
    """The fields of the first example, with four heads, of which two share keys where they may."""
    config = next(iter(contract.examples(variant).values()))
    fields = {name: getattr(config, name) for name in config.fields()} | {"d_model": 12, "num_heads": 4}
    return fields | ({"num_kv_heads": 2} if fields.get("num_kv_heads") else {})


# With modules: by `Heads`, and by PyTorch's own styles, which take no mask that is no DTensor.
IN_MODULES = ("mha", "gqa", "differential", "decoder", "retention")
STYLED: dict[str, tuple[str, dict[str, Any], str]] = {
    "mha": ("mha", {"d_model": 12, "num_heads": 4, "use_bias": True, "causal": True}, "plain"),
    "gqa": ("gqa", GROUPED | {"use_bias": True}, "plain"),
    "decoder": ("decoder", GROUPED | {"head_dim": 6, "causal": True}, "plain"),
    "retention": ("retention", {"d_model": 12, "num_heads": 4}, "plain"),
}


@cache
def asked(name: str, styled: bool = False) -> tuple[Any, dict[str, Any]]:
    """The config of a case, and what the processes are told."""
    cases = STYLED if styled else CASES
    variant, fields, call = cases[name] if name in cases else (name, four_heads(name), "full")
    config: Any = contract.config(variant, **fields)
    inputs = random_inputs(config, call, b=4, t=7, s=7)
    inputs = {n: x for n, x in inputs.items() if config.arguments()[n].kind != "keep"}
    told = {"variant": variant, "config": fields, "weights": weights_of(config), "inputs": inputs}
    sizes = {"b": 4, "t": 7, "s": 7, "o": config.d_model} | config.sizes()
    outputs = [axes.split() for axes in ("b t o", config.second_output()) if axes]
    return config, told | {"dy": [cotangent(tuple(sizes[letter] for letter in axes)) for axes in outputs]}


@cache
def split(variant: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The config of a variant's first example, what the processes are told, and the reference's results."""
    config = next(iter(contract.examples(variant).values()))
    inputs, weights = random_inputs(config, "full", b=4, t=3, s=4), weights_of(config)
    want = bounded(config, inputs, weights)
    names = ("y", "out1") if config.second_output() else ("y",)
    axes = {name: axis(config, name, "b") or 0 for name in inputs} | {"y": 0}
    axes |= {"out1": second.split().index("b")} if (second := config.second_output()) else {}
    told = {"variant": variant, "config": {name: getattr(config, name) for name in config.fields()}}
    told |= {"weights": weights, "inputs": inputs, "axes": axes, "dys": {n: cotangent(want[n].shape) for n in names}}
    return config, told, want


@cache
def decoding() -> tuple[Any, dict[str, Any]]:
    """The config of a decoder with two heads of keys, and what the processes are told to decode."""
    config: Any = contract.config("decoder", **GROUPED, head_dim=6, causal=True)
    fields = {name: getattr(config, name) for name in config.fields()}
    x = np.random.default_rng(0).normal(size=(2, 4, 12))
    return config, {"weights": weights_of(config), "config": fields, "x": x}


@pytest.fixture(scope="module")
def found(selected: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The results of every case that a selected test asks for, from one run of the processes."""
    folder = tmp_path_factory.mktemp("processes")
    cases: dict[str, Any] = {"context_parallel": {"how": "in_context_parallel"}, "refused": {"how": "heads_refused"}}
    cases["local"] = {"how": "local_outputs_refused"}
    cases["steps"] = {"how": "steps_with_heads_sharded", **decoding()[1]}
    for params in selected:
        match params:
            case {"variant": variant, "wrap": wrap}:
                cases[f"{variant}, {wrap}"] = {"how": "by_rows", "wrap": wrap, **split(variant)[1]}
            case {"modules": name}:
                cases[f"{name}, modules"] = {"how": "heads_sharded", "projections": "modules", **asked(name)[1]}
            case {"styled": name}:
                cases[f"{name}, styled"] = {"how": "stock_styles", **asked(name, styled=True)[1]}
            case {"case": name} | {"variant": name}:
                cases[name] = {"how": "heads_sharded", **asked(name)[1]}
            case _:
                assert not params, params
    mp.spawn(processes.run, (str(folder), cases), nprocs=processes.WORLD)
    with np.load(folder / "results.npz") as arrays:
        return {
            name: {key.split("/")[-1]: x for key, x in arrays.items() if key.startswith(f"{name}/")} for name in cases
        }


def judged(got: dict[str, np.ndarray], want: dict[str, Any]) -> None:
    worst = {key: ratio(x, want[key]) for key, x in got.items()}
    assert max(worst.values()) <= 1, worst


@pytest.mark.parametrize("case", CASES)
def test_sharded_cases_agree_and_are_summed_once(case: str, found: dict[str, Any]) -> None:
    agrees_and_is_summed_once(case, found)


@pytest.mark.parametrize("variant", [v for v in HEADS if v not in CASES])
def test_sharded_heads_agree_and_are_summed_once(variant: str, found: dict[str, Any]) -> None:
    agrees_and_is_summed_once(variant, found)


def agrees_and_is_summed_once(name: str, found: dict[str, Any]) -> None:
    """Forward and backward; no communication but the sum after an output projection."""
    got = dict(found[name])
    others, sums = got.pop("counts")
    config, told = asked(name)
    assert set(got) >= {"y", "dquery", *(f"d{name}" for name in config.shapes())}
    judged(got, bounded(config, told["inputs"], told["weights"]))
    if name in TALK:
        assert sums >= 1
    else:
        assert (others, sums) == ((1, 0) if name == "fused_qkv" else (0, SUMS.get(name, 1)))  # it has no projection


@pytest.mark.parametrize(
    "modules", [x if x == "mha" else pytest.param(x, marks=pytest.mark.left_out) for x in IN_MODULES]
)
def test_heads_of_modules_agree(modules: str, found: dict[str, Any]) -> None:
    got, (config, told) = dict(found[f"{modules}, modules"]), asked(modules)
    others, sums = got.pop("counts")
    assert set(got) >= {"y", "dquery", *(f"d{name}" for name in config.shapes())} and sums + others
    judged(got, bounded(config, told["inputs"], told["weights"]))


@pytest.mark.parametrize(
    "styled", [x if x in ("mha", "decoder") else pytest.param(x, marks=pytest.mark.left_out) for x in STYLED]
)
def test_the_styles_of_torch_split_modules(styled: str, found: dict[str, Any]) -> None:
    got, (config, told) = found[f"{styled}, styled"], asked(styled, styled=True)
    assert set(got) >= {"y", "dquery", *(f"d{name}" for name in config.shapes())}
    judged(got, bounded(config, told["inputs"], told["weights"]))


def test_a_part_of_the_features_is_refused(found: dict[str, Any]) -> None:
    assert str(found["local"]["a state"]).startswith(
        "Heads: expected a step of a layer that caches keys, got one of delta"
    )
    assert str(found["local"]["saved"]).startswith(
        "expected whole tensors, got a DTensor of shape (12, 4, 3); call x.full"
    )
    words = str(found["local"]["told"])
    assert words.startswith("mha: expected w_q to return (1, 3, 12), got (1, 3, 6);"), words
    assert "use_local_output=False" in words


def test_heads_that_cannot_be_split_are_refused(found: dict[str, Any]) -> None:
    """Before any parameter is changed."""
    told = dict(found["refused"])
    assert told.pop("whole")
    words = {
        "none": "TypeError: Heads: expected a layer of attn_torch, got Linear; name the layer",
        "no heads": "self_attention that the processes of the mesh divide, got no heads over 2",
        "three": "ValueError: Heads: expected heads of mha that the processes of the mesh divide, got 3 over 2",
        "inside": "got 4 inside of a module, over 2 processes; build the layer with arrays",
        "twice": "Heads: expected a layer with plain tensors, got gqa with DTensors; name each layer once in the plan,",
        "apply": "apply: gqa: expected a layer that each process has whole, got one with Heads; call parallel.ring_att",
    }
    for name, part in words.items():
        assert part in str(told[name])


@pytest.mark.parametrize(
    ("variant", "wrap"),
    [(v, wrap) for v in ROWS for wrap in ("fsdp", "ddp")]
    + [(v, "fsdp of modules") for v in ("mha", "mla", "gated_delta")],
)
def test_split_batches_agree(variant: str, wrap: str, found: dict[str, Any]) -> None:
    config, _, want = split(variant)
    got = found[f"{variant}, {wrap}"]
    assert set(got) >= {"y", *(f"d{name}" for name in config.shapes())}
    judged(got, want)


def test_steps_with_heads_sharded(found: dict[str, Any]) -> None:
    """With a cache that is sharded as its keys they are the full pass; a plain one is refused."""
    (config, told), got = decoding(), found["steps"]
    words = str(got["told"])
    assert words.startswith("cache: expected DTensors, as the new keys are, got plain tensors; pass dataclasses.")
    assert "distribute_tensor(x, mesh, [Shard(dim=2)])" in words
    judged({"y": got["y"]}, bounded(config, {"query": told["x"]}, told["weights"]))


def test_context_parallel_is_refused(found: dict[str, Any]) -> None:
    """In every call: each process would attend to its own part of a sequence."""
    told = dict(found["context_parallel"])
    assert told.pop("same after")
    assert len(told) == 5
    for name, words in told.items():
        assert "got a call within context_parallel, which splits them between processes; call it outside" in str(
            words
        ), name
