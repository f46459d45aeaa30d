"""What cannot be right is refused, in the same words in the three trees; PyTorch's processes are in another file."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_jax
import attn_np
from attn_np import patterns
from parity_tests.tests.parallel.refused import (
    ARRAYS,
    DEVICES,
    REFUSED,
    REFUSED_LAYERS,
    UNCUT,
    X,
    arguments,
    layer_arguments,
)


def on_devices(x: Any) -> Any:
    """The same array on each of the devices, which are the first axis."""
    return None if x is None else np.stack([x] * DEVICES)


def in_numpy(case: str) -> Any:
    function, arrays, options = arguments(case)
    return getattr(attn_np.parallel, function)(**{name: on_devices(x) for name, x in arrays.items()}, **options)


def in_jax(case: str) -> Any:
    """With devices that `jax.vmap` simulates, which have a named axis, too."""
    function, arrays, options = arguments(case)
    options = {name: jnp.asarray(x) if isinstance(x, np.ndarray) else x for name, x in options.items()}
    given = {name: x for name, x in arrays.items() if x is not None}
    absent = dict.fromkeys(arrays.keys() - given)

    def call(x: Any) -> Any:
        return getattr(attn_jax.parallel, function)(**x, **absent, axis_name="devices", **options)

    return jax.vmap(call, axis_name="devices")({name: jnp.asarray(on_devices(x)) for name, x in given.items()})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("tree", [in_numpy, in_jax])
@pytest.mark.parametrize("case", REFUSED)
def test_a_call_that_cannot_be_right_is_refused(case: str, tree: Any) -> None:
    *_, error, words = REFUSED[case]
    with pytest.raises(error) as caught:
        tree(case)
    assert str(caught.value).startswith(words)


def layer_in_numpy(case: str) -> Any:
    variant, fields, options = layer_arguments(case, on_devices)
    layer: Any = attn_np.build(variant, **fields)  # type: ignore[call-overload]
    return attn_np.parallel.apply(layer, np.zeros((DEVICES, 2, 6, 12), "float32"), **options)


def layer_in_jax(case: str) -> Any:
    variant, fields, options = layer_arguments(case, jnp.asarray)
    layer: Any = attn_jax.build(variant, **fields)  # type: ignore[call-overload]
    call = partial(attn_jax.parallel.apply, layer, axis_name="devices", **options)
    return jax.vmap(call, axis_name="devices")(jnp.zeros((DEVICES, 2, 6, 12), "float32"))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("tree", [layer_in_numpy, layer_in_jax])
@pytest.mark.parametrize("case", REFUSED_LAYERS)
def test_a_layer_that_cannot_be_called_so_is_refused(case: str, tree: Any) -> None:
    *_, error, words = REFUSED_LAYERS[case]
    with pytest.raises(error) as caught:
        tree(case)
    assert str(caught.value).startswith(words)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("package", [attn_np, attn_jax])
@pytest.mark.parametrize("case", UNCUT)
def test_what_cannot_be_cut_is_refused(case: str, package: Any) -> None:
    shape, options, words = UNCUT[case]
    with pytest.raises(ValueError, match="to_devices: expected ") as caught:
        package.parallel.to_devices(np.zeros(shape), devices=DEVICES, **options)
    assert str(caught.value).startswith(words)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("devices", [0, -1, 2.5, "4", None])
@pytest.mark.parametrize("package", [attn_np, attn_jax])
def test_no_number_of_devices_is_refused(devices: Any, package: Any) -> None:
    with pytest.raises(ValueError, match="to_devices: expected devices to be an integer of at least 1, got "):
        package.parallel.to_devices(np.zeros((2, 8)), devices=devices)


@pytest.mark.parametrize("axis_name", ["sequence", None, 3])
@pytest.mark.parametrize("function", ["ring_attend", "gather_attend", "ulysses_attend", "recur"])
def test_an_unknown_axis_is_refused(function: str, axis_name: Any) -> None:
    x = {name: jnp.asarray(on_devices(array)) for name, array in ARRAYS.items()}
    call = partial(getattr(attn_jax.parallel, function), axis_name=axis_name)
    words = f"{function}: expected axis_name to be an axis of the mesh, inside jax.shard_map, got {axis_name!r}; call"
    for wrapped in (call, jax.vmap(lambda q, k, v: call(q=q, k=k, v=v), axis_name="devices")):
        arrays = [x[name] if wrapped is not call else x[name][0] for name in "qkv"]
        with pytest.raises(ValueError, match="expected axis_name") as caught:
            wrapped(*arrays)
        assert str(caught.value).startswith(words)


NUMPY: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "other devices": (
        {"k": np.zeros((3, 2, 6, 2, 3))},
        {},
        "k of 4 devices, as q, got (3, 2, 6, 2, 3); put the devices",
    ),
    "no devices": ({"q": np.zeros((0, 2, 6, 4, 3))}, {}, "q with the devices as its first axis, got (0, 2, 6, 4, 3)"),
    "queries not cut": (
        {"q": np.zeros((4, 6, 4, 3))},
        {},
        "q with four axes on each device, got (6, 4, 3); batch, pos",
    ),
    "a pattern not cut": (
        {},
        {"pattern": patterns.Documents(*(np.zeros((2, 24), int),) * 2)},
        "an array of the pattern of shape n b t = (4, 2, 6), got (2, 24); cut it by to_devices",
    ),
}


@pytest.mark.parametrize("case", NUMPY)
def test_devices_as_an_axis_are_checked(case: str) -> None:
    changes, options, words = NUMPY[case]
    arrays = {name: on_devices(x) for name, x in ARRAYS.items()} | changes
    with pytest.raises(ValueError, match="ring_attend: expected ") as caught:
        attn_np.parallel.ring_attend(**arrays, **options)
    assert str(caught.value).startswith(f"ring_attend: expected {words}")


def test_cosines_and_sines_are_cut_as_the_sequence_is() -> None:
    """As a pair for each device, whether or not the layer has a limit of positions; here they are its own."""
    x = np.random.default_rng(0).normal(size=(2, 8, 12))
    pair = attn_np.rotary_angles(np.tile(np.arange(8), (2, 1)), 4, dtype="float64")
    for max_positions in (None, 8):
        layer = attn_np.build(
            "rotary", d_model=12, num_heads=3, head_dim=4, causal=True, dtype="float64", max_positions=max_positions
        )
        cut, *pair_cut = (attn_np.parallel.to_devices(a, devices=4) for a in (x, *pair))
        y = attn_np.parallel.apply(layer, cut, positions=tuple(pair_cut))
        assert np.array_equal(y, attn_np.parallel.apply(layer, cut))
        assert not np.array_equal(
            y, attn_np.parallel.apply(layer, cut, positions=tuple(a[:, :, ::-1] for a in pair_cut))
        )


def test_a_device_without_positions_is_refused() -> None:
    layer = attn_np.build("mha", d_model=12, num_heads=3, causal=True)
    with pytest.raises(ValueError, match="apply: mha: expected at least one position on each device, got "):
        attn_np.parallel.apply(layer, np.zeros((4, 2, 0, 12), "float32"))


def test_a_pattern_of_another_length_is_refused_in_jax() -> None:
    pattern = patterns.Documents(jnp.zeros((2, 6), int), jnp.zeros((2, 5), int))
    call = partial(attn_jax.parallel.ring_attend, axis_name="devices", pattern=pattern)
    with pytest.raises(ValueError, match="ring_attend: expected an array of the pattern of shape b s = "):
        jax.vmap(lambda x: call(x, x, x), axis_name="devices")(jnp.asarray(on_devices(X)))


def test_parts_that_no_cut_gives_are_refused() -> None:
    with pytest.raises(ValueError, match=r"from_devices: expected x with the axes n b t \.\.\., got"):
        attn_np.parallel.from_devices(np.zeros((4, 2)))
    with pytest.raises(ValueError, match="from_devices: expected x with an even number of positions on each device"):
        attn_np.parallel.from_devices(np.zeros((4, 2, 3)), layout="zigzag")
