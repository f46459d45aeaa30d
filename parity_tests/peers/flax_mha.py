"""Flax: linen's module and NNX's, in which shared heads of keys and values are a field."""

from typing import Any

import numpy as np

from parity_tests.peers import Arrays
from parity_tests.peers._module import Draw, Made, Module, seen, three


def linen(draw: Draw, **fields: Any) -> Made:
    """Widths of its own for keys and values, and for the heads."""
    import jax
    from flax import linen
    from flax.traverse_util import flatten_dict, unflatten_dict

    x = three(draw, 11, 7, 13)
    module = linen.MultiHeadDotProductAttention(
        num_heads=3, qkv_features=15, dtype="float64", param_dtype="float64", **fields
    )
    shapes: dict[str, Any] = flatten_dict(jax.eval_shape(module.init, jax.random.key(0), *x.values()), sep=".")
    state = {key: draw(*held.shape) for key, held in shapes.items()}
    y = module.apply(unflatten_dict(state, sep="."), *x.values(), mask=seen(heads=True), deterministic=True)
    return Made(state, x | {"mask": seen(heads=True)}, np.asarray(y))


def nnx(draw: Draw, **fields: Any) -> Made:
    """Keys and values of one width."""
    import jax.numpy as jnp
    from flax import nnx

    x = three(draw, 11, 7)
    module: Any = nnx.MultiHeadAttention(
        fields.pop("num_heads", 3),
        11,
        fields.pop("qkv_features", 15),
        in_kv_features=7,
        decode=False,
        deterministic=True,
        dtype="float64",
        param_dtype="float64",
        rngs=nnx.Rngs(0),
        **fields,
    )
    state: Arrays = {}
    flat = nnx.to_flat_state(nnx.state(module, nnx.Param))
    for path, param in flat:
        key = ".".join(map(str, path))
        state[key] = draw(*param.get_value().shape)
        param.set_value(jnp.asarray(state[key]))
    nnx.update(module, nnx.from_flat_state(flat))
    mask = seen()[:, None]
    return Made(state, x | {"mask": mask}, np.asarray(module(*x.values(), mask=mask, sow_weights=True)))


PEERS = {
    "linen": Module("flax", "flax_mha", linen),
    "linen, its own output": Module("flax", "flax_mha", lambda draw: linen(draw, out_features=2)),
    "linen, no biases": Module("flax", "flax_mha", lambda draw: linen(draw, use_bias=False)),
    "linen, normed": Module("flax", "flax_mha", lambda draw: linen(draw, normalize_qk=True)),
    "nnx": Module("flax", "flax_mha", nnx),
    "nnx, no biases": Module("flax", "flax_mha", lambda draw: nnx(draw, use_bias=False)),
    "nnx, normed": Module("flax", "flax_mha", lambda draw: nnx(draw, normalize_qk=True)),
    "nnx, normed, shared heads": Module(
        "flax", "flax_mha", lambda draw: nnx(draw, num_heads=6, qkv_features=30, num_kv_heads=3, normalize_qk=True)
    ),
    "nnx, shared heads": Module(
        "flax", "flax_mha", lambda draw: nnx(draw, num_heads=6, qkv_features=30, num_kv_heads=3)
    ),
}
