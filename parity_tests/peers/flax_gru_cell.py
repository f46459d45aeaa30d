"""Flax's `nnx.GRUCell`, called at one position after the other, from a state of its own."""

import numpy as np

from parity_tests.peers._module import Draw, Made, Module


def cell(draw: Draw) -> Made:
    import jax.numpy as jnp
    from flax import nnx

    module = nnx.GRUCell(5, 7, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    state, held = nnx.state(module, nnx.Param), {}
    for path, leaf in nnx.to_flat_state(state):
        name = ".".join(map(str, path))
        held[name] = draw(*leaf.get_value().shape)
        leaf.set_value(jnp.asarray(held[name]))
    nnx.update(module, state)
    x, first = draw(2, 4, 5), draw(1, 2, 7)
    carry, states = jnp.asarray(first[0]), []
    for t in range(x.shape[1]):
        carry, y = module(carry, jnp.asarray(x[:, t]))
        states.append(np.asarray(y))
    return Made(held, {"x": x, "state": first}, np.stack(states, 1))


PEERS = {"biases beside the input": Module("flax", "flax_gru_cell", cell)}
