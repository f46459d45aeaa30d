"""Keras: attention with heads of its own widths, and with shared ones, on PyTorch or whichever backend is set."""

from typing import Any

import numpy as np

from parity_tests.peers import Arrays
from parity_tests.peers._module import Draw, Made, Module, seen, three
from parity_tests.ports.modules.in_float64 import InFloat64

LAYER = "attention"


def called(layer: Any, draw: Draw, x: Arrays, mask: np.ndarray | None, **options: Any) -> Made:
    """A layer that takes query, value and key, in this order, and whose mask has no axis for heads."""
    from keras import ops

    layer.build(*(x[name].shape for name in ("query", "value", "key")))
    state = {weight.path: draw(*weight.shape) for weight in layer.weights}
    layer.set_weights(list(state.values()))
    query, value, key = (ops.convert_to_tensor(x[name], "float64") for name in ("query", "value", "key"))
    with InFloat64():  # Keras takes its products to float32, whatever a layer's dtype is
        y = layer(query, value, key, attention_mask=mask, **options)
    return Made(state, x if mask is None else x | {"mask": mask[:, None]}, np.asarray(ops.convert_to_numpy(y)))


def mha(draw: Draw, **fields: Any) -> Made:
    import keras

    layer = keras.layers.MultiHeadAttention(
        3, 5, value_dim=2, name=LAYER, dtype="float64", flash_attention=False, **fields
    )
    return called(layer, draw, three(draw, 11, 7, 13), seen())


def gqa(draw: Draw, **fields: Any) -> Made:
    import keras

    layer = keras.layers.GroupQueryAttention(5, 6, 3, name=LAYER, dtype="float64", flash_attention=False, **fields)
    return called(layer, draw, three(draw, 11, 7, 13), seen())


def causal(draw: Draw) -> Made:
    """Each position sees itself and those before: an argument of the call there, a field here."""
    import keras

    layer = keras.layers.GroupQueryAttention(5, 6, 2, name=LAYER, dtype="float64", flash_attention=False)
    x: Arrays = dict.fromkeys(("query", "key", "value"), draw(2, 5, 11))
    return called(layer, draw, x, None, use_causal_mask=True)


def module(make: Any, **fields: Any) -> Module:
    return Module("keras", "keras_mha", make, {"prefix": f"{LAYER}/"} | fields)


PEERS = {
    "mha": module(mha),
    "mha, its own output": module(lambda draw: mha(draw, output_shape=(2,))),
    "mha, no biases": module(lambda draw: mha(draw, use_bias=False)),
    "mha, gates": module(lambda draw: mha(draw, use_gate=True)),
    "mha, gates, no biases": module(lambda draw: mha(draw, use_gate=True, use_bias=False)),
    "gqa": module(gqa),
    "gqa, no biases": module(lambda draw: gqa(draw, use_bias=False)),
    "gqa, causal": module(causal, causal=True),
}
