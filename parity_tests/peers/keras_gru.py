"""Keras' `GRU`, with the reset gate after the state's product and before, from a state of its own."""

from typing import Any

import numpy as np

from parity_tests.peers._module import Draw, Made, Module
from parity_tests.ports.modules.in_float64 import InFloat64

LAYER = "memory"


def gru(draw: Draw, **fields: Any) -> Made:
    import keras
    from keras import ops

    layer = keras.layers.GRU(7, return_sequences=True, name=LAYER, dtype="float64", **fields)
    layer.build((2, 4, 5))
    held = {weight.path: draw(*weight.shape) for weight in layer.weights}
    layer.set_weights(list(held.values()))
    x, first = draw(2, 4, 5), draw(1, 2, 7)
    with InFloat64():
        y = layer(ops.convert_to_tensor(x, "float64"), initial_state=ops.convert_to_tensor(first[0], "float64"))
    return Made(held, {"x": x, "state": first}, np.asarray(ops.convert_to_numpy(y)))


def module(fields: dict[str, Any], **more: Any) -> Module:
    return Module("keras", "keras_gru", lambda draw: gru(draw, **fields), {"prefix": f"{LAYER}/"} | more)


PEERS = {
    "two biases": module({}),
    "one bias": module({"reset_after": False}),
    "no biases": module({"use_bias": False}),
    "no biases, reset before": module({"use_bias": False, "reset_after": False}, reset_after=False),
}
