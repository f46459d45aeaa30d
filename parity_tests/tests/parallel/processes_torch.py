"""What four processes of PyTorch do together for `test_parallel_torch`; no other framework, to start fast."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed
from torch.distributed import checkpoint
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module

import attn_torch
from attn_np import contract, patterns
from parity_tests.tests.parallel import cases
from parity_tests.tests.parallel.cases import Arrays
from parity_tests.tests.parallel.refused import ARRAYS, REFUSED, REFUSED_LAYERS, UNCUT, arguments, layer_arguments

WORLD = 4


def run(rank: int, folder: str, rows: dict[str, Arrays]) -> None:
    """Every row with its arrays, all processes together; the first writes the results, as "row|array"."""
    torch.set_num_threads(1)
    place = f"file://{folder}/rendezvous"
    distributed.init_process_group(
        "gloo", init_method=place, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60)
    )
    mesh = init_device_mesh("cpu", (2, WORLD // 2), mesh_dim_names=("data", "seq"))
    try:
        found: Any = {}
        for row, arrays in rows.items():
            match row.split("/"):
                case ["layer", variant, example, layout, *_]:
                    results = whole_layer(variant, example, layout, arrays)
                case ["heads and rows"]:
                    results = heads_and_rows(rank, mesh, Path(folder, "checkpoint"), arrays)
                case ["refused", case]:
                    results = refusals(rank, mesh, case)
                case [of, function, layout, call]:
                    results = whole({"all": None, "mesh": mesh["seq"]}[of], function, layout, call, arrays)
                case _:
                    raise ValueError(f"expected the name of a row, got {row!r}")
            found |= {f"{row}|{name}": x for name, x in results.items()}
        if rank == 0:
            np.savez(Path(folder, "results.npz"), **found)
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def whole(group: Any, function: str, layout: str, call: str, arrays: Arrays) -> Arrays:
    """Outputs and gradients of a call, whole in every process; of `recur` the layout is a form."""
    recurs = function == "recur"
    axes = {n: cases.recurrence_axis(call, n) if recurs else cases.cut_axis(n) for n in arrays}
    cut = {"group": group, "layout": "contiguous" if recurs else layout}
    parts = {name: moved(attn_torch.parallel.to_devices, x, axes[name], **cut) for name, x in tensors(arrays).items()}
    outputs = ("y", "last") if recurs else ("y", "lse")
    dys = [parts.pop(f"d{name}") for name in outputs]
    leaves = {name: x.clone().requires_grad_() for name, x in parts.items() if x.is_floating_point()}
    run = getattr(attn_torch.parallel, function)
    if recurs:
        rule = cases.RECURRENCES[call][0]
        y = run(**parts | leaves, group=group, rule=rule, form=layout, chunk_size=5)
        # Every process has the last state, and the loss is the sum of theirs.
        dys[1] = dys[1] / distributed.get_world_size(group and group.get_group())
    else:
        asked, given = cases.CALLS[call], parts | leaves
        options: dict[str, Any] = asked.options | {name: given[name] for name in asked.arrays.split()}
        options |= {"pattern": asked.pattern and asked.pattern(parts), "layout": layout, "return_lse": True}
        y = run(given["q"], given["k"], given["v"], group=group, **options)
    torch.autograd.backward([torch.where(x.isfinite(), x, 0.0) for x in y], dys)
    found = dict(zip(outputs, y, strict=True)) | {f"d{name}": x.grad for name, x in leaves.items()}
    return {name: joined(name, x, axes, recurs, **cut) for name, x in found.items()}


def whole_layer(variant: Any, example: str, layout: str, arrays: Arrays) -> Arrays:
    """The output of a layer whose sequence lies on all processes, whole, and its gradients."""
    config = contract.examples(variant)[example]
    layer: Any = attn_torch.build(variant, dtype="float64", **{name: getattr(config, name) for name in config.fields()})
    layer.set_params({name: torch.from_numpy(x) for name, x in arrays.items() if name in config.shapes()})
    cut = partial(attn_torch.parallel.to_devices, layout=layout)
    axes = {name: cases.position_axis(config, name) for name in config.arguments() if name in arrays}
    given = {name: moved(cut, torch.from_numpy(arrays[name]), axis) for name, axis in axes.items()}
    leaves = {name: x.clone().requires_grad_() for name, x in given.items() if x.is_floating_point()}
    if "numbers" in arrays:
        numbers = cut(torch.from_numpy(arrays["numbers"]))
        given["pattern"] = patterns.Documents(numbers, numbers)
    y = attn_torch.parallel.apply(layer, **given | leaves, layout=layout)
    y = y[0] if isinstance(y, tuple) else y
    y.backward(cut(torch.from_numpy(arrays["dy"])))
    found = {"y": attn_torch.parallel.from_devices(y, layout=layout)}
    for name, x in leaves.items():
        found[f"d{name}"] = moved(partial(attn_torch.parallel.from_devices, layout=layout), x.grad, axes[name])
    for name, param in layer.named_parameters():
        found[f"d{name}"] = torch.zeros_like(param) if param.grad is None else param.grad
        distributed.all_reduce(found[f"d{name}"])
    return {name: x.detach().numpy() for name, x in found.items()}


def heads_and_rows(rank: int, mesh: DeviceMesh, folder: Path, arrays: Arrays) -> Arrays:
    """A layer whose heads lie on one axis of a mesh and whose batch, by FSDP2, on the other: the output, gradients, and
    its parameters as they are read from a distributed checkpoint into a layer with heads in all processes.
    """
    fields: dict[str, Any] = {"d_model": 16, "num_heads": 8, "num_kv_heads": 4, "dtype": "float64"}
    layer: Any = parallelize_module(attn_torch.build("gqa", **fields), mesh["seq"], attn_torch.parallel.Heads())
    fully_shard(layer, mesh=mesh["data"])
    x = torch.from_numpy(arrays["x"]).chunk(mesh["data"].size())[mesh["data"].get_local_rank()]
    y = layer(x)
    y.backward(torch.from_numpy(arrays["dy"]).chunk(mesh["data"].size())[mesh["data"].get_local_rank()])
    parts: list[Any] = [None] * WORLD
    distributed.all_gather_object(parts, y.detach())
    found = {"y": torch.cat(parts[:: mesh["seq"].size()])}
    found |= {f"d{n}": mesh["data"].size() * p.grad.full_tensor() for n, p in layer.named_parameters()}  # FSDP's mean
    checkpoint.save(layer.state_dict(), checkpoint_id=folder)
    other: Any = parallelize_module(
        attn_torch.build("gqa", **fields, seed=1), init_device_mesh("cpu", (WORLD,)), attn_torch.parallel.Heads()
    )
    read = other.state_dict()
    checkpoint.load(read, checkpoint_id=folder)
    other.load_state_dict(read)
    found |= {name: p.full_tensor() for name, p in other.named_parameters()}
    return {name: x.detach().numpy() for name, x in found.items()}


def tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(x) for name, x in arrays.items()}


def moved(change: Any, x: Any, axis: int | None, **options: Any) -> Any:
    """A tensor cut or joined along an axis; one that all processes have as it is."""
    return x if axis is None else change(x.movedim(axis, 1), **options).movedim(1, axis)


def joined(name: str, x: Any, axes: dict[str, int | None], recurs: bool, **cut: Any) -> np.ndarray:
    """A result of all processes: parts joined, gradients of what all have summed, and a last state as it is."""
    axis = axes.get(name, axes.get(name.removeprefix("d"))) if name not in ("y", "lse") else {"y": 1, "lse": 2}[name]
    x = x.detach().clone()
    if axis is None and name != "last":
        group = cut["group"]
        distributed.all_reduce(x, group=group and group.get_group())
    return moved(attn_torch.parallel.from_devices, x, axis, **cut).numpy()


# What is refused ------------------------------------------------------------------------------------------------------


def refusals(rank: int, mesh: Any, case: str) -> Arrays:
    """What every process is told, in the order of their ranks; "nothing" of one whose call goes through."""
    try:
        call_of(case, rank, mesh)()
        words = "nothing"
    except (ValueError, TypeError) as error:
        words = f"{type(error).__name__}: {error}"
    told: list[Any] = [None] * WORLD
    distributed.all_gather_object(told, words)
    return {"told": np.array(told)}


def call_of(case: str, rank: int, mesh: Any) -> Callable[[], Any]:
    """A call that cannot be right: one that no tree takes, one that processes make differently, or another group."""
    parallel, arrays = attn_torch.parallel, tensors(ARRAYS)
    if case in REFUSED:
        function, given, options = arguments(case)
        options = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
        given = {name: None if x is None else torch.from_numpy(x) for name, x in given.items()}
        return lambda: getattr(parallel, function)(**given, **options)
    if case in REFUSED_LAYERS:
        variant, fields, options = layer_arguments(case, torch.from_numpy)
        build: Any = attn_torch.build
        return lambda: parallel.apply(build(variant, **fields), torch.zeros(2, 6, 12), **options)
    if case.startswith("uncut, "):
        shape, options, _ = UNCUT[case.removeprefix("uncut, ")]
        return lambda: parallel.to_devices(torch.zeros(shape), **options)
    second = rank == 1
    match case:
        case "layouts":
            return lambda: parallel.ring_attend(**arrays, layout="striped" if second else "zigzag")
        case "functions":
            return lambda: (parallel.gather_attend if second else parallel.ring_attend)(**arrays)
        case "other lengths":
            shorter = {name: x[:, :4] if second else x for name, x in arrays.items()}
            return lambda: parallel.ulysses_attend(**shorter)
        case "one of them":
            return lambda: parallel.ring_attend(**arrays, layout="spiral" if second else "zigzag")
        case "gradients":
            arrays["k"] = arrays["k"].clone().requires_grad_(second)
            return lambda: parallel.ring_attend(**arrays)
        case "rules":
            arrays["q"] = arrays["q"][:, :, :2]
            return lambda: parallel.recur(**arrays, rule="delta" if second else "linear")
        case "a tape" | "an unknown argument":
            layer: Any = attn_torch.build("mha", d_model=4, num_heads=2, causal=True)
            options: dict[str, Any] = {"tape": {}} if case == "a tape" else {"spiral": True}
            return lambda: parallel.apply(layer, torch.zeros(1, 2, 4), **(options if second else {}))
        case "configs":
            fields: dict[str, Any] = {"d_model": 4, "num_heads": 2, "causal": True, "rope_base": 7.0 if second else 9.0}
            layer = attn_torch.build("decoder", **fields)
            return lambda: parallel.apply(layer, torch.zeros(1, 2, 4))
        case "layouts of parts":
            return lambda: parallel.from_devices(arrays["q"], layout="striped" if second else "zigzag")
        case "other lengths of parts":
            return lambda: parallel.from_devices(arrays["q"][:, : 4 if second else 6])
        case "one part":
            return lambda: parallel.from_devices(arrays["q"][:, :5], layout="zigzag" if second else "striped")
        case "two axes":
            return lambda: parallel.ring_attend(**arrays, group=mesh)
        case "no group":
            return lambda: parallel.recur(**arrays, group="seq")
        case "another's group":
            group = distributed.new_group([0, 2])
            return lambda: parallel.ring_attend(**arrays, group=group)
        case "a DTensor":
            whole_q = distribute_tensor(arrays["q"], mesh, [Replicate(), Replicate()])
            return lambda: parallel.ring_attend(whole_q, arrays["k"], arrays["v"])
    raise ValueError(f"expected a case that is refused, got {case!r}")
