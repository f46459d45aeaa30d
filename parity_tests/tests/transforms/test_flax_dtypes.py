"""`dtype` and `param_dtype` mean in attn_jax what they mean in Flax."""

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
nnx = pytest.importorskip("flax.nnx")

import attn_jax  # noqa: E402
import attn_np  # noqa: E402
from parity_tests.bounds.error_array import ErrArray  # noqa: E402
from parity_tests.bounds.precision import precision, precision_of  # noqa: E402
from parity_tests.judge.judging import compare  # noqa: E402

CONFIG: dict[str, Any] = {"d_model": 6, "num_heads": 2}


def layers(dtype: Any, param_dtype: str) -> tuple[Any, Any]:
    """Ours, and Flax's own, made with the same words."""
    ours = attn_jax.MultiHeadAttention(
        attn_jax.MultiHeadAttention.Config(**CONFIG), rngs=nnx.Rngs(0), dtype=dtype, param_dtype=param_dtype
    )
    theirs = nnx.MultiHeadAttention(
        num_heads=2, in_features=6, rngs=nnx.Rngs(0), dtype=dtype, param_dtype=param_dtype, decode=False
    )
    return ours, theirs


@pytest.mark.parametrize("given", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize(("dtype", "param_dtype"), [("bfloat16", "float32"), ("float32", "float32")])
def test_inputs_are_cast_to_the_dtype_asked_for(dtype: str, param_dtype: str, given: str) -> None:
    x = jax.numpy.asarray(np.random.default_rng(0).normal(size=(2, 3, 6)), given)
    for layer in layers(dtype, param_dtype):
        assert layer(x).dtype == dtype
        kept = {leaf.get_value().dtype.name for _, leaf in nnx.to_flat_state(nnx.state(layer, nnx.Param))}
        assert kept == {param_dtype}


def test_what_is_cast_is_computed_as_the_reference_does() -> None:
    """Of the inputs rounded once to bfloat16: the judge's bound for that type, with parameters as they are kept."""
    ours, _ = layers("bfloat16", "float32")
    x = np.random.default_rng(0).normal(size=(2, 3, 6)).astype(np.float32)
    layer: Any = attn_np.build("mha", dtype="float64", **CONFIG)
    layer.set_params({name: ErrArray(np.asarray(p, np.float64), 0.0) for name, p in ours.params().items()})
    rounded = np.asarray(jax.numpy.asarray(x, "bfloat16").astype("float32"), np.float64)
    with precision(precision_of("bfloat16")):
        want = layer(ErrArray(rounded, 0.0), implementation="textbook")
    got = np.asarray(ours(x).astype("float32"), np.float64)
    assert compare(got, want, "bfloat16")["ratio"] <= 1


def test_without_a_dtype_others_are_refused_as_in_every_tree() -> None:
    ours, _ = layers(None, "float32")
    with pytest.raises(TypeError, match="mha: expected query of dtype float32"):
        ours(jax.numpy.zeros((2, 3, 6), "bfloat16"))
