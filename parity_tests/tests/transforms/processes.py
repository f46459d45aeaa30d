"""What two processes of PyTorch do together for `test_distributed_torch`; no other framework, to start fast."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import attn_torch
from attn_torch.parallel import Heads
from attn_torch.parallel.heads import HEADS

WORLD = 2


def run(rank: int, folder: str, cases: dict[str, dict[str, Any]]) -> None:
    """Every case, all processes together; the first writes the results into a folder, as "case/array"."""
    place = f"file://{folder}/rendezvous"
    distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=WORLD)
    try:
        found = {name: globals()[case.pop("how")](rank=rank, **case) for name, case in cases.items()}
        if rank == 0:
            flat = {f"{name}/{key}": x for name, arrays in found.items() for key, x in arrays.items()}
            np.savez(Path(folder, "results.npz"), **flat)
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def build(variant: Any, config: dict[str, Any], weights: dict[str, Any], projections: Any = "arrays") -> Any:
    layer = attn_torch.build(variant, dtype="float64", projections=projections, **config)
    layer.set_params({name: torch.from_numpy(x) for name, x in weights.items()})
    return layer


def results(layer: Any, y: Any, dy: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """The outputs, and the gradients of parameters and inputs, as whole NumPy arrays; `dy` has those of the outputs."""
    outputs = dict(zip(("y", "out1"), y if isinstance(y, tuple) else (y,), strict=False))
    torch.autograd.backward(list(outputs.values()), [torch.from_numpy(x) for x in dy])
    leaves = dict(layer.named_parameters()) | inputs
    found: dict[str, Any] = outputs | {f"d{name}": x.grad for name, x in leaves.items()}
    return by_our_names(layer, {name: whole(x) for name, x in found.items()})


def by_our_names(layer: Any, found: dict[str, Any]) -> dict[str, Any]:
    """Gradients of the weights and biases of modules as those of the parameters that they hold."""
    for projection in layer.projections:
        weight = found.pop(f"d{projection.name}.weight")
        found[f"d{projection.name}"] = weight.T.reshape(*projection.inputs, *projection.outputs)
        if projection.bias is not None:
            found[f"d{projection.bias}"] = found.pop(f"d{projection.name}.bias").reshape(projection.outputs)
    return found


def whole(x: Any) -> Any:
    """A tensor or DTensor as a NumPy array."""
    return getattr(x, "full_tensor", lambda: x)().detach().numpy()


def heads_sharded(
    rank: int,
    variant: str,
    config: dict[str, Any],
    weights: dict[str, Any],
    inputs: dict[str, Any],
    dy: Any,
    projections: str = "arrays",
) -> dict[str, Any]:
    """Parameters split where they have an axis of heads; inputs and outputs the same plain tensors in every process."""
    layer: Any = build(variant, config, weights, projections)
    layer = parallelize_module(layer, init_device_mesh("cpu", (WORLD,)), Heads())
    given = {name: torch.from_numpy(x) for name, x in inputs.items()}
    given = {name: x.requires_grad_(x.is_floating_point()) for name, x in given.items()}
    with CommDebugMode() as forward:
        y = layer(**given)
    outputs = y if isinstance(y, tuple) else (y,)
    assert not any(isinstance(x, DTensor) for x in outputs) and any(isinstance(p, DTensor) for p in layer.parameters())
    counts = forward.get_comm_counts()
    sums = sum(n for kind, n in counts.items() if "all_reduce" in str(kind))
    floats = {name: x for name, x in given.items() if x.is_floating_point()}
    return results(layer, y, dy, floats) | {"counts": [sum(counts.values()) - sums, sums]}


def stock_styles(
    rank: int, variant: str, config: dict[str, Any], weights: dict[str, Any], inputs: dict[str, Any], dy: Any
) -> dict[str, Any]:
    """Projections split by PyTorch's own styles: those of heads by columns, the one of the output by rows.

    Where positions meet heads, the inputs are DTensors, too: by a style as well.
    """
    layer: Any = build(variant, config, weights, "modules")
    names = [projection.name for projection in layer.projections if projection.name != "w_o"]
    styles: dict[str, Any] = {name: ColwiseParallel(use_local_output=False) for name in names}
    styles["w_o"] = RowwiseParallel()
    mesh = init_device_mesh("cpu", (WORLD,))
    layer = parallelize_module(layer, mesh, styles)
    if variant in ("decoder", "retention"):
        whole = (Replicate(),)
        parallelize_module(layer, mesh, PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole))
    query = torch.from_numpy(inputs["query"]).requires_grad_()
    y = layer(query)
    assert not isinstance(y, DTensor) and layer.w_q.weight.to_local().shape[0] * WORLD == layer.w_q.out_features
    return results(layer, y, dy, {"query": query})


def local_outputs_refused(rank: int) -> dict[str, Any]:
    """What is said of a style that gives each process its own part of the features, and of a file of parts."""
    layer: Any = attn_torch.build("mha", projections="modules", d_model=12, num_heads=4)
    parallelize_module(layer, init_device_mesh("cpu", (WORLD,)), {"w_q": ColwiseParallel()})
    told = {}
    calls = {"told": lambda: layer(torch.ones(1, 3, 12)), "saved": lambda: attn_torch.save(layer, f"never_{rank}")}
    for name, call in calls.items():
        try:
            call()
            told[name] = "nothing"
        except ValueError as error:
            told[name] = str(error)
    delta: Any = parallelize_module(
        attn_torch.build("delta", d_model=6, num_heads=2, head_dim=3), init_device_mesh("cpu", (WORLD,)), Heads()
    )
    try:
        delta.step(torch.ones(1, 1, 6), delta.init_cache(1, 2))
        told["a state"] = "nothing"
    except ValueError as error:
        told["a state"] = str(error)
    return told


def heads_refused(rank: int) -> dict[str, Any]:
    """What is said of a module that is none of ours, of a layer without heads, and of heads that do not divide."""
    mesh, told = init_device_mesh("cpu", (WORLD,)), dict[str, Any]()
    mha = attn_torch.build("mha", d_model=9, num_heads=3)
    modules = {"none": torch.nn.Linear(3, 3), "no heads": attn_torch.build("self_attention", d_model=4), "three": mha}
    modules["inside"] = attn_torch.build("fused_qkv", projections="modules", d_model=12, num_heads=4)
    for name, module in modules.items():
        try:
            parallelize_module(module, mesh, Heads())
            told[name] = np.array("nothing")
        except (TypeError, ValueError) as error:
            told[name] = np.array(f"{type(error).__name__}: {error}")
    split = torch.nn.Sequential(attn_torch.build("gqa", d_model=12, num_heads=4, num_kv_heads=2, causal=True))
    parallelize_module(split, mesh, {"0": Heads()})
    calls = {
        "twice": lambda: parallelize_module(split, mesh, {"0": Heads()}),
        "apply": lambda: attn_torch.parallel.apply(split[0], torch.ones(1, 2, 12)),
    }
    for name, call in calls.items():
        try:
            call()
            told[name] = np.array("nothing")
        except ValueError as error:
            told[name] = np.array(str(error))
    return told | {"whole": np.array(not any(isinstance(p, DTensor) for p in mha.parameters()))}


def steps_with_heads_sharded(rank: int, weights: dict[str, Any], config: dict[str, Any], x: Any) -> dict[str, Any]:
    """Steps of a decoder whose heads are split, with a cache that is split as its keys are, and with a plain one."""
    mesh = init_device_mesh("cpu", (WORLD,))
    layer = build("decoder", config, weights)
    own, cached = layer.config.own_params(), layer.config.cache_axes()
    for name, param in list(layer.named_parameters()):
        split = [i for i, letter in enumerate(own[name].axes.split()) if letter in HEADS]
        placement = Shard(split[0]) if split else Replicate()
        layer.register_parameter(name, torch.nn.Parameter(distribute_tensor(param.detach(), mesh, [placement])))
    query = distribute_tensor(torch.from_numpy(x), mesh, [Replicate()])
    cache, told = layer.init_cache(len(x), 8), "nothing"
    with torch.no_grad():
        try:
            layer.step(query, cache)
        except ValueError as error:
            told = str(error)
        cache, outputs = layer.init_cache(len(x), 8), []
        heads = {name: Shard(axes.split().index("g")) for name, axes in cached.items()}
        arrays = {name: distribute_tensor(kept, mesh, [heads[name]]) for name, kept in cache.arrays.items()}
        cache = replace(cache, arrays=arrays)
        for part in (slice(0, 3), slice(3, None)):
            y, cache = layer.step(query[:, part], cache)
            outputs.append(whole(y))
    return {"told": np.array(told), "y": np.concatenate(outputs, 1)}


def in_context_parallel(rank: int) -> dict[str, Any]:
    """What our calls say where each process holds a part of a sequence, and whether a layer gives the same after."""
    mesh = init_device_mesh("cpu", (WORLD,))
    layers: Any = (attn_torch.build("mha", d_model=6, num_heads=2), attn_torch.build("gru", input_dim=6, hidden_dim=6))
    calls = {layer.config.variant: layer for layer in layers}
    calls["attend"] = lambda x: attn_torch.attend(x, x, x)[0]
    calls["drop_in"] = lambda x: attn_torch.drop_in.scaled_dot_product_attention(x, x, x)
    calls["recur"] = lambda x: attn_torch.recur(*(x[:, :, None],) * 3)
    x = torch.ones(1, 4 * WORLD, 6)
    before, told = layers[0](x), dict[str, Any]()
    with context_parallel(mesh, buffers=[part := x.clone()], buffer_seq_dims=[1]), torch.no_grad():
        for name, call in calls.items():
            try:
                call(part)
                told[name] = np.array("nothing")
            except ValueError as error:
                told[name] = np.array(str(error))
    return told | {"same after": np.array(torch.equal(layers[0](x), before))}


def by_rows(
    rank: int,
    wrap: str,
    variant: str,
    config: dict[str, Any],
    weights: dict[str, Any],
    inputs: dict[str, Any],
    axes: dict[str, int],
    dys: dict[str, Any],
) -> dict[str, Any]:
    """FSDP2 or DDP: every process has its own rows of the batch; gradients of the parameters, the mean over them.

    `axes` says which axis of inputs and outputs is the batch, `dys` has the gradients of the outputs by name. "fsdp of
    modules" is FSDP2 around each projection and the layer.
    """
    layer = build(variant, config, weights, "modules" if wrap == "fsdp of modules" else "arrays").eval()
    for projection in layer.projections:
        fully_shard(getattr(layer, projection.name))
    model: Any = DistributedDataParallel(layer) if wrap == "ddp" else fully_shard(layer)
    found = model(**{name: torch.from_numpy(x).chunk(WORLD, axes[name])[rank] for name, x in inputs.items()})
    outputs = dict(zip(dys, found if isinstance(found, tuple) else (found,), strict=False))
    own = [torch.from_numpy(dy).chunk(WORLD, axes[name])[rank] for name, dy in dys.items()]
    torch.autograd.backward(list(outputs.values()), own)
    grads = {f"d{name}": WORLD * whole(x.grad) for name, x in layer.named_parameters() if x.grad is not None}
    for name, y in outputs.items():
        parts = [torch.empty_like(y).contiguous() for _ in range(WORLD)]
        distributed.all_gather(parts, y.detach().contiguous())
        grads[name] = torch.cat(parts, axes[name]).numpy()
    return by_our_names(layer, grads)
