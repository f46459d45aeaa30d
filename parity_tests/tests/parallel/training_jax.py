"""Models trained on eight devices, batch x sequence x heads over 2 x 2 x 2, for `test_training`.

python -m parity_tests.tests.parallel.training_jax results.npz Explicit
"""

import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import attn_jax
from parity_tests.tests.parallel.training import EPS, MODELS, RATE, STEPS, first_params, shapes, tokens

HEADS = ("h", "g")


def heads_over(name: str, config: Any) -> P:
    """Where a layer's parameter lies: its heads over the axis of heads, if they can be divided."""
    axes = config.own_params()[name].axes.split()
    return P(*("heads" if axis in HEADS else None for axis in axes))


def norm(x: Any, weight: Any) -> Any:
    return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + EPS) * weight


def logits_of(layers: Any, params: Any, given: Any, layout: str) -> Any:
    """The logits of this device's positions; the layers are their configs and graphs, by number."""
    x = params["embed"][given]
    for i, (config, graph, rest) in enumerate(layers):
        state = {n: params[f"{i}.attn.{n}"] for n in config.shapes()}
        layer = nnx.merge(graph, nnx.from_flat_state([((n,), nnx.Param(p)) for n, p in state.items()]), rest)
        x = x + attn_jax.parallel.apply(layer, norm(x, params[f"{i}.norm"]), axis_name="seq", layout=layout)
        normed = norm(x, params[f"{i}.mlp_norm"])
        x = x + (jax.nn.silu(normed @ params[f"{i}.gate"]) * (normed @ params[f"{i}.up"])) @ params[f"{i}.down"]
    return norm(x, params["norm"]) @ params["head"]


def trained(model: str, kind: AxisType) -> dict[str, np.ndarray]:
    """The parameters before every step and after the last, by name and step."""
    configs, layout = MODELS[model]
    mesh = jax.make_mesh((2, 2, 2), ("data", "seq", "heads"), axis_types=(kind,) * 3)
    build: Any = attn_jax.build
    split = [
        (c, *nnx.split(build(c.variant, dtype="float64", **{n: getattr(c, n) for n in c.fields()}), nnx.Param, ...))
        for c in configs
    ]
    layers = [(config, graph, rest) for config, graph, _, rest in split]
    given, following = (
        jax.device_put(
            attn_jax.parallel.to_devices(jnp.asarray(x), devices=2, layout=layout),
            NamedSharding(mesh, P("data", "seq")),
        )
        for x in tokens()
    )
    places = {name: P() for name in shapes(model)}
    places |= {f"{i}.attn.{n}": heads_over(n, c) for i, c in enumerate(configs) for n in c.shapes()}
    params = {n: jax.device_put(x, NamedSharding(mesh, places[n])) for n, x in first_params(model).items()}
    rows = P("data", "seq")
    call: Any = partial(logits_of, layers, layout=layout)
    logits = jax.shard_map(
        call, mesh=mesh, in_specs=(P(), rows), out_specs=rows, axis_names={"data", "seq"}, check_vma=False
    )

    def loss(params: Any) -> Any:
        every = jax.nn.log_softmax(logits(params, given))
        return -jnp.mean(jnp.take_along_axis(every, following[..., None], -1))

    @jax.jit
    def step(params: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - RATE * g, params, grads), value

    found = {}
    with jax.set_mesh(mesh):
        for i in range(STEPS):
            found |= {f"{i}|{n}": np.asarray(p) for n, p in params.items()}
            params, value = step(params)
            found[f"{i}|loss"] = np.asarray(value)
    w_o = params["1.attn.w_o"]
    assert w_o.addressable_shards[0].data.shape[0] == w_o.shape[0] // 2, "half of the heads on a device"
    return found | {f"{STEPS}|{n}": np.asarray(p) for n, p in params.items()}


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    kind = AxisType[sys.argv[2]]
    arrays: Any = {f"{model}|{key}": x for model in MODELS for key, x in trained(model, kind).items()}
    np.savez(sys.argv[1], **arrays)
