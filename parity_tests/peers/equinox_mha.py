"""Equinox: one sequence at a time, widths of their own for everything."""

from typing import Any

import numpy as np

from parity_tests.peers._module import Draw, Made, Module, seen, three

BIASES = ("use_query_bias", "use_key_bias", "use_value_bias", "use_output_bias")


def mha(draw: Draw, *, biases: bool = False, **fields: Any) -> Made:
    """A mask for each sequence and head."""
    import equinox
    import jax

    x = three(draw, 11, fields.get("key_size"), fields.get("value_size"))
    biased, fields = dict.fromkeys(BIASES, biases), {"output_size": 11} | fields
    module = equinox.nn.MultiheadAttention(3, 11, dtype=np.float64, key=jax.random.key(0), **biased, **fields)
    arrays, rest = equinox.partition(module, equinox.is_array)
    held, tree = jax.tree_util.tree_flatten_with_path(arrays)
    state = {jax.tree_util.keystr(path).removeprefix("."): draw(*leaf.shape) for path, leaf in held}
    module = equinox.combine(jax.tree_util.tree_unflatten(tree, list(state.values())), rest)
    mask = seen(heads=True)
    y = np.stack([np.asarray(module(*(part[b] for part in x.values()), mask=mask[b])) for b in range(2)])
    return Made(state, x | {"mask": mask}, y)


HEADS = {"num_heads": 3}
WIDE: dict[str, Any] = {"key_size": 7, "value_size": 13, "qk_size": 5, "vo_size": 2, "output_size": 17}
PEERS = {
    "biases": Module("equinox", "equinox_mha", lambda draw: mha(draw, biases=True, **WIDE), HEADS),
    "no biases": Module("equinox", "equinox_mha", lambda draw: mha(draw, **WIDE), HEADS),
    "one width": Module("equinox", "equinox_mha", lambda draw: mha(draw, biases=True, qk_size=5, vo_size=5), HEADS),
}
