"""Flax linen's `GRUCell` in an `RNN`, from a state of its own."""

import numpy as np

from parity_tests.peers._module import Draw, Made, Module


def unit(draw: Draw) -> Made:
    import jax.numpy as jnp
    from flax import linen
    from flax.traverse_util import unflatten_dict

    shapes = {f"{gate}.kernel": (5 if gate[0] == "i" else 7, 7) for gate in ("ir", "iz", "in", "hr", "hz", "hn")}
    shapes |= {f"{gate}.bias": (7,) for gate in ("ir", "iz", "in", "hn")}
    held = {f"cell.{name}": draw(*shape) for name, shape in shapes.items()}
    x, first = draw(2, 4, 5), draw(1, 2, 7)
    params = {"params": unflatten_dict({tuple(key.split(".")): jnp.asarray(a) for key, a in held.items()})}
    module = linen.RNN(linen.GRUCell(7, dtype=jnp.float64, param_dtype=jnp.float64))
    y = module.apply(params, jnp.asarray(x), initial_carry=jnp.asarray(first[0]))
    state = {key.replace(".", "/"): a for key, a in held.items()}
    return Made(state, {"x": x, "state": first}, np.asarray(y))


PEERS = {"in an RNN": Module("flax", "linen_gru_cell", unit, {"prefix": "cell/"})}
