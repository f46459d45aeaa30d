"""What eight devices compute for `test_layers_jax`, in a process of their own that XLA_FLAGS gives so many.

python -m parity_tests.tests.parallel.layers_jax results.npz decoder/sinks/zigzag
"""

import sys
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import attn_jax
from attn_jax.parallel.layouts import device_order
from attn_np import contract
from parity_tests.tests.parallel.cases import Arrays, position_axis
from parity_tests.tests.parallel.layer_cases import held_layer, packed

KINDS = (AxisType.Auto, AxisType.Explicit)


def reordered(x: Any, axis: int | None, layout: str, back: bool = False) -> np.ndarray:
    """An array in the order of the devices, or of the sequence again."""
    x = np.asarray(x)
    if axis is None:
        return x
    order = device_order("layers", x.swapaxes(1, axis), jax.device_count(), layout)
    return x.take(np.argsort(order) if back else order, axis)


def on_devices(name: str, kind: AxisType) -> Arrays:
    """The output of a layer whose sequence lies on all devices, whole, and its gradients."""
    variant, example, layout, *_ = name.split("/")
    config, arrays = contract.examples(variant)[example], held_layer(name)[0]
    mesh = jax.make_mesh((jax.device_count(),), ("seq",), axis_types=(kind,))
    axes = {n: position_axis(config, n) for n in config.arguments() if n in arrays} | {"dy": 1, "y": 1}
    axes |= {"numbers": 1} if "numbers" in arrays else {}
    specs = {n: P(*(None,) * axis, "seq") if axis is not None else P() for n, axis in axes.items()}
    build: Any = attn_jax.build
    layer = build(variant, dtype="float64", **{n: getattr(config, n) for n in config.fields()})
    layer.set_params({n: arrays[n] for n in config.shapes()})
    graph, params, rest = nnx.split(layer, nnx.Param, ...)
    params = jax.device_put(params, NamedSharding(mesh, P()))
    cut = {n: reordered(x, axes[n], layout) for n, x in arrays.items() if n in axes}
    placed = {n: jax.device_put(x, NamedSharding(mesh, specs[n])) for n, x in cut.items()}
    dy = placed.pop("dy")
    floats = {n: x for n, x in placed.items() if x.dtype == np.float64}
    others = {n: x for n, x in placed.items() if n not in floats}

    def call(params: Any, floats: Any, others: Any) -> Any:
        part = nnx.merge(graph, params, rest)
        given = floats | {n: x for n, x in others.items() if n != "numbers"} | packed(others.get("numbers"))
        y = attn_jax.parallel.apply(part, **given, axis_name="seq", layout=layout)
        return y[0] if isinstance(y, tuple) else y

    in_specs = P(), {n: specs[n] for n in floats}, {n: specs[n] for n in others}
    over_devices = jax.shard_map(call, mesh=mesh, in_specs=in_specs, out_specs=P(None, "seq"))

    @jax.jit
    def everything(params: Any, floats: Any, others: Any, dy: Any) -> Any:
        y, pull = jax.vjp(lambda params, floats: over_devices(params, floats, others), params, floats)
        return y, *pull(dy)

    with jax.set_mesh(mesh):
        y, dparams, dfloats = everything(params, floats, others, dy)
    found = {"y": reordered(y, 1, layout, back=True)}
    found |= {f"d{n}": reordered(x, axes[n], layout, back=True) for n, x in dfloats.items()}
    return found | {f"d{'.'.join(map(str, path))}": np.asarray(x) for path, x in nnx.to_flat_state(dparams)}


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    results = {name: on_devices(name, KINDS[i % 2]) for i, name in enumerate(sys.argv[2:])}
    arrays: Any = {f"{name}|{n}": x for name, found in results.items() for n, x in found.items()}
    np.savez(sys.argv[1], **arrays)
