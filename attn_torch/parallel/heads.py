"""Tensor parallelism: the heads of layers over the processes of a mesh, by PyTorch's `parallelize_module`."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle

from attn_torch.frame.layer import Layer
from attn_torch.ops.modules import linear_arrays

HEADS = "h", "g"  # query heads, and heads of keys and values


class Heads(ParallelStyle):
    """Every process has some of the heads of a layer of ours, and of its parameters what belongs to them.

        parallelize_module(model, mesh, {"blocks.*.attention": Heads()})

    The layer takes plain tensors that all processes have, the batch and the positions whole, and gives such a tensor:
    the sum over heads in the output projection is the one all-reduce of a call. A parameter without an axis of heads,
    or with fewer heads than would divide, as few heads of keys, is whole in every process. A tape holds DTensors.

    Raises, as it is applied:
        TypeError: a module that is no layer of attn_torch.
        ValueError: a layer that is sharded already, one without heads, or none of whose heads the processes divide; in
            a call, dropout in training without a keep-mask, or `parallel.apply`.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not isinstance(module, Layer):
            raise TypeError(
                f"Heads: expected a layer of attn_torch, got {type(module).__name__}; name the layer in the plan of "
                "parallelize_module"
            )
        if any(isinstance(param, DTensor) for param in module.parameters()):
            raise ValueError(
                f"Heads: expected a layer with plain tensors, got {module.config.variant} with DTensors; name each "
                "layer once in the plan, and call fully_shard after parallelize_module"
            )
        size, where = device_mesh.size(), {}

        def split(letters: Sequence[str], sizes: Sequence[int]) -> list[int]:
            return [i for i, x in enumerate(letters) if x in HEADS and sizes[i] % size == 0]

        for layer in (part for part in module.modules() if isinstance(part, Layer)):
            in_modules = {name for projection in layer.projections for name in projection.names()}
            for name, given in layer.config.own_params().items():
                if name not in in_modules:
                    at = split(given.axes.split(), getattr(layer, name).shape)
                    where[layer, name] = Shard(at[0]) if at else Replicate()
            for projection in layer.projections:
                linear = getattr(layer, projection.name)
                linear_arrays(projection, linear)  # which refuses what is no weight and bias alone
                # The heads of (h k) features can be split where they are the outer axis.
                rows = 0 in split(projection.output_letters, projection.outputs)
                columns = 0 in split(projection.input_letters, projection.inputs)
                where[linear, "weight"] = Shard(0) if rows else Shard(1) if columns else Replicate()
                if projection.bias is not None:
                    where[linear, "bias"] = Shard(0) if rows else Replicate()
        if not any(placement.is_shard() for placement in where.values()):
            heads = getattr(module.config, "num_heads", "no heads")
            inner = any(len({*x.output_letters[1:]} & {*HEADS}) for x in module.projections)
            fix = "build the layer with arrays" if inner else "choose another mesh or another num_heads="
            raise ValueError(
                f"Heads: expected heads of {module.config.variant} that the processes of the mesh divide, got {heads} "
                f"{'inside of a module, ' if inner else ''}over {size} processes; {fix}"
            )
        for (owner, name), placement in where.items():
            param = getattr(owner, name)
            part = distribute_tensor(param.detach(), device_mesh, [placement], src_data_rank=self.src_data_rank)
            owner.register_parameter(name, nn.Parameter(part, requires_grad=param.requires_grad))

        def take(layer: Any, given: Any, options: Any) -> Any:
            states = [name for name, axes in layer.config.cache_axes().items() if "s" not in axes.split()]
            step = options.get("step")
            if step is not None and step.gather is not None:
                raise ValueError(
                    f"apply: {layer.config.variant}: expected a layer that each process has whole, got one with Heads; "
                    "call parallel.ring_attend with each process's heads, or leave the heads whole"
                )
            if step is not None and states:
                raise ValueError(
                    f"Heads: expected a step of a layer that caches keys, got one of {layer.config.variant} with a "
                    "state; decode with a whole layer that got x.full_tensor() of each parameter x by set_params"
                )
            dropout = getattr(layer.config, "dropout", 0)
            if layer.training and dropout and options.get("keep") is None:
                raise ValueError(
                    f"Heads: expected a layer without dropout in training, got dropout={dropout}; set it to 0, call "
                    "eval(), or pass keep="
                )
            return mapped(given, whole), {n: x if n == "tape" else mapped(x, whole) for n, x in options.items()}

        def whole(x: Tensor) -> Tensor:
            return x if isinstance(x, DTensor) else DTensor.from_local(x, device_mesh, [Replicate()], run_check=False)

        def give(layer: nn.Module, given: Any, outputs: Any) -> Any:
            return mapped(outputs, lambda x: x.redistribute(placements=[Replicate()]).to_local())

        module.register_forward_pre_hook(take, with_kwargs=True)
        module.register_forward_hook(give)
        return module


def mapped(tree: Any, function: Any) -> Any:
    """Tensors in tuples and dictionaries changed by a function, the rest as it is."""
    if isinstance(tree, dict):
        return {name: mapped(x, function) for name, x in tree.items()}
    if isinstance(tree, tuple):
        return tuple(mapped(x, function) for x in tree)
    return function(tree) if isinstance(tree, Tensor) else tree
