"""Keras' layer on the backend that this process has; KERAS_BACKEND must say which before Keras is imported."""

from functools import partial
from typing import Any

import keras

from benchmarks import inputs
from benchmarks.plan import Work
from benchmarks.turns import Runner


def made(work: Work, backend: str) -> Any:
    if keras.backend.backend() != backend:
        raise ValueError(f"Keras has the backend {keras.backend.backend()} in this process, not {backend}")
    if work.what == "rotary":
        raise ValueError("Keras' layer has no rotary positions")
    p = inputs.parameters(work)
    layer: Any = keras.layers.MultiHeadAttention(work.heads, work.width, dtype=work.dtype)
    shape = work.batch, work.length, work.heads * work.width
    layer.build(shape, shape)
    layer.set_weights([p[name] for letter in "qkvo" for name in (f"w_{letter}", f"b_{letter}")])
    return layer


def on_torch(work: Work) -> Runner:
    from benchmarks.entrants import with_torch

    layer = made(work, "torch")
    x, dy = (with_torch.tensor(a) for a in inputs.tokens(work))
    weights = [variable.value for variable in layer.trainable_variables]
    call = partial(layer, x, x, use_causal_mask=work.mask == "causal", training=False)
    return with_torch.passes(work, call, (x, *weights), dy)


def on_jax(work: Work) -> Runner:
    import jax.numpy as jnp

    from benchmarks.entrants import with_jax

    layer = made(work, "jax")
    x, dy = (jnp.asarray(a) for a in inputs.tokens(work))
    state = [variable.value for variable in layer.trainable_variables]
    fixed = [variable.value for variable in layer.non_trainable_variables]

    def call(state: Any, x: Any) -> Any:
        causal = work.mask == "causal"
        return layer.stateless_call(state, fixed, x, x, use_causal_mask=causal, training=False)[0]

    return with_jax.passes(work, call, (state, x), dy)


MAKERS = {"Keras on torch": on_torch, "Keras on JAX": on_jax}
