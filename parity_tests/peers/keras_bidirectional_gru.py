"""Keras' `Bidirectional` around a `GRU` with a name of its own, from states of its own."""

from typing import Any

import numpy as np

from parity_tests.peers._module import Draw, Made, Module
from parity_tests.ports.modules.in_float64 import InFloat64


def both_ways(draw: Draw, **fields: Any) -> Made:
    import keras
    from keras import ops

    inner = keras.layers.GRU(7, return_sequences=True, name="reader", dtype="float64", **fields)
    layer = keras.layers.Bidirectional(inner, name="both", dtype="float64")
    layer.build((2, 4, 5))
    held = {weight.path: draw(*weight.shape) for weight in layer.weights}
    layer.set_weights(list(held.values()))
    x, first = draw(2, 4, 5), draw(2, 2, 7)
    with InFloat64():
        states = [ops.convert_to_tensor(state, "float64") for state in first]
        y = layer(ops.convert_to_tensor(x, "float64"), initial_state=states)
    return Made(held, {"x": x, "state": first}, np.asarray(ops.convert_to_numpy(y)))


def module(fields: dict[str, Any], **more: Any) -> Module:
    make = lambda draw: both_ways(draw, **fields)  # noqa: E731
    return Module("keras", "keras_bidirectional_gru", make, {"prefix": "both/"} | more)


PEERS = {
    "two biases": module({}),
    "one bias": module({"reset_after": False}),
    "no biases": module({"use_bias": False}),
}
