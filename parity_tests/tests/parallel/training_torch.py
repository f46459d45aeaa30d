"""Models trained in four processes, batch x sequence over 2 x 2, for `test_training`."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy, silu

import attn_torch
from parity_tests.tests.parallel.training import EPS, MODELS, RATE, STEPS, B, T, first_params, tokens

WORLD = 4


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + EPS) * weight


def trained(model: str, mesh: Any) -> dict[str, np.ndarray]:
    """The parameters before every step and after the last, by name and step; and the losses."""
    configs, layout = MODELS[model]
    build: Any = attn_torch.build
    layers = [build(c.variant, dtype="float64", **{n: getattr(c, n) for n in c.fields()}) for c in configs]
    params = {n: torch.from_numpy(x).requires_grad_() for n, x in first_params(model).items()}
    cut = {"group": mesh["seq"], "layout": layout}
    given, following = (
        attn_torch.parallel.to_devices(torch.from_numpy(x).chunk(2)[mesh["data"].get_local_rank()], **cut)
        for x in tokens()
    )
    found: dict[str, np.ndarray] = {}
    for step in range(STEPS):
        found |= {f"{step}|{n}": p.detach().numpy().copy() for n, p in params.items()}
        x = params["embed"][given]
        for i, layer in enumerate(layers):
            for name in configs[i].shapes():
                layer.get_parameter(name).data = params[f"{i}.attn.{name}"].data
            attended = attn_torch.parallel.apply(layer, norm(x, params[f"{i}.norm"]), **cut)
            x = x + attended
            normed = norm(x, params[f"{i}.mlp_norm"])
            x = x + (silu(normed @ params[f"{i}.gate"]) * (normed @ params[f"{i}.up"])) @ params[f"{i}.down"]
        logits = norm(x, params["norm"]) @ params["head"]
        loss = cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="sum") / (B * T)
        loss.backward()
        for i, layer in enumerate(layers):
            for name in configs[i].shapes():
                params[f"{i}.attn.{name}"].grad = layer.get_parameter(name).grad
        with torch.no_grad():
            for param in params.values():
                grad: Any = param.grad
                distributed.all_reduce(grad)
                param -= RATE * grad
                param.grad = None
        for layer in layers:
            layer.zero_grad()
        distributed.all_reduce(loss := loss.detach())
        found[f"{step}|loss"] = loss.numpy()
    return found | {f"{STEPS}|{n}": p.detach().numpy() for n, p in params.items()}


def run(rank: int, folder: str) -> None:
    """What one of the processes does; the first one writes what all have."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "seq"))
    arrays: Any = {f"{model}|{key}": x for model in MODELS for key, x in trained(model, mesh).items()}
    if rank == 0:
        np.savez(Path(folder) / "results.npz", **arrays)
    distributed.destroy_process_group()
