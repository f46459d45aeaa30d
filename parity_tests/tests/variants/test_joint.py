"""Joint attention against scalar loops, PyTorch's function on both streams in one, and identities."""

from math import cos, exp, sin, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import attn_np
from attn_np.contract import mha, rotary
from attn_np.contract.joint import Config
from parity_tests.bounds.error_array import ErrArray
from parity_tests.tests.inputs import Arrays, Tree
from parity_tests.tests.witness import bounded, cotangent, layer_of, ratio, weights_of

STREAMS = {"query": "", "added": "added_"}  # what stands in the names of a stream's parameters

# Scalar loops ---------------------------------------------------------------------------------------------------------


def turned(config: Config, head: list[float], place: Any) -> list[float]:
    """Each pair as a complex number, turned by its angle; an axis of n numbers has its own, base^(-2 i / n)."""
    axes, out = config.rope_axes or (len(head),), list(head)
    places = place if isinstance(place, list) else [place] * len(axes)
    base = config.rope_base or 1.0
    angles = [m * base ** (-2 * i / n) for m, n in zip(places, axes, strict=True) for i in range(n // 2)]
    for i, angle in enumerate(angles):
        first, second = (i, i + len(angles)) if config.rope_layout == "half" else (2 * i, 2 * i + 1)
        z = complex(head[first], head[second]) * complex(cos(angle), sin(angle))
        out[first], out[second] = z.real, z.imag
    return out


def projected(config: Config, w: Any, stream: str, what: str, word: list[float], place: Any) -> list[list[float]]:
    """What each head has of one word of a stream."""
    name, found = f"{STREAMS[stream]}{what}", []
    weight, shift, norm = w[f"w_{name}"], w.get(f"b_{name}"), w.get(f"w_{name}_norm")
    for h in range(config.num_heads):
        head = []
        for c in range(len(weight[0][h])):
            total = 0.0 if shift is None else shift[h][c]
            for x, row in zip(word, weight, strict=True):
                total += x * row[h][c]
            head.append(total)
        if norm is not None:
            root = sqrt(sum(x * x for x in head) / len(head) + config.norm_eps)
            head = [x / root * gain for x, gain in zip(head, norm, strict=True)]
        if what != "v" and config.rope_base is not None:
            head = turned(config, head, place)
        found.append(head)
    return found


def of_row(
    config: Config, w: Any, words: dict[str, Any], shown: dict[str, Any], places: dict[str, Any]
) -> tuple[list[Any], list[Any]]:
    """The outputs of every stream that has any, and the weights of every head."""
    asking = list(STREAMS) if config.added_output else ["query"]
    queries = [
        (stream, projected(config, w, stream, "q", word, place))
        for stream in asking
        for word, place in zip(words[stream], places[stream], strict=True)
    ]
    keys, values, seen = [], [], []
    for stream in STREAMS:
        for word, is_shown, place in zip(words[stream], shown[stream], places[stream], strict=True):
            keys.append(projected(config, w, stream, "k", word, place))
            values.append(projected(config, w, stream, "v", word, place))
            seen.append(is_shown)
    outputs, weights = {stream: [] for stream in asking}, [[] for _ in range(config.num_heads)]
    for stream, query in queries:
        w_o = w[f"w_{STREAMS[stream]}o"]
        y = list(w.get(f"b_{STREAMS[stream]}o", [0.0] * len(w_o[0][0])))
        for h, q in enumerate(query):
            scale = 1 / sqrt(len(q)) if config.scale is None else config.scale
            raised = [
                exp(scale * sum(a * b for a, b in zip(q, key[h], strict=True))) if is_seen else 0.0
                for key, is_seen in zip(keys, seen, strict=True)
            ]
            own = [e / sum(raised) if e else 0.0 for e in raised]
            weights[h].append(own)
            for c in range(len(w_o[h])):
                context = sum(a * value[h][c] for a, value in zip(own, values, strict=True))
                y = [total + context * x for total, x in zip(y, w_o[h][c], strict=True)]
        outputs[stream].append(y)
    return list(outputs.values()), weights


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs of both streams, and the weights of every head."""
    w = {name: p.tolist() for name, p in params.items()}
    streams = {name: inputs[name] for name in STREAMS}
    masks = {"query": inputs.get("mask", True), "added": inputs.get("added_mask", True)}
    shown = {name: np.broadcast_to(masks[name], x.shape[:2]) for name, x in streams.items()}
    batch, t, s = (*inputs["query"].shape[:2], inputs["added"].shape[1])
    followed = np.tile(np.arange(t + s), (batch, 1))
    places = {
        "query": inputs.get("positions", followed[:, :t]),
        "added": inputs.get("added_positions", followed[:, t:]),
    }
    # Of a word one number, or one for each axis.
    places = {name: np.moveaxis(x, 0, -1) if x.ndim == 3 else x for name, x in places.items()}
    rows = []
    for i in range(batch):
        words, seen, at = ({name: x[i].tolist() for name, x in arrays.items()} for arrays in (streams, shown, places))
        outputs, weights = of_row(config, w, words, seen, at)
        rows.append((*outputs, weights))
    names = ("y", "out1", "out2")
    return {name: np.array(found, np.float64) for name, found in zip(names, zip(*rows, strict=True), strict=False)}


# Functions of others --------------------------------------------------------------------------------------------------


def test_pytorch_function_on_both_streams_in_one(tree: Tree) -> None:
    """Outputs, and the gradients of both streams from both outputs; some words of the added stream are padding."""
    config = Config(d_model=6, num_heads=2, added_dim=5, norm="rms")
    w, rng = weights_of(config), np.random.default_rng(1)
    inputs: Arrays = {"query": rng.normal(size=(2, 4, 6)), "added": rng.normal(size=(2, 3, 5))}
    inputs["added_mask"] = np.array([[True, True, False], [True, False, False]])
    p = {name: torch.from_numpy(x) for name, x in w.items()}
    leaves = {name: torch.from_numpy(inputs[name]).requires_grad_() for name in ("query", "added")}

    def heads(what: str, norm: bool) -> torch.Tensor:
        parts = []
        for name, x in zip(STREAMS.values(), leaves.values(), strict=True):
            part = torch.einsum("btd,dhk->bhtk", x, p[f"w_{name}{what}"]) + p[f"b_{name}{what}"][:, None]
            if norm:
                part = functional.rms_norm(part, part.shape[-1:], p[f"w_{name}{what}_norm"], config.norm_eps)
            parts.append(part)
        return torch.cat(parts, 2)

    seen = torch.cat([torch.ones(2, 4, dtype=torch.bool), torch.from_numpy(inputs["added_mask"])], 1)
    context = functional.scaled_dot_product_attention(
        heads("q", True), heads("k", True), heads("v", False), seen[:, None, None]
    )
    y, added_y = (
        torch.einsum("bhtv,hvo->bto", part, p[f"w_{name}o"]) + p[f"b_{name}o"]
        for name, part in zip(STREAMS.values(), context.split((4, 3), 2), strict=True)
    )
    dys = [torch.from_numpy(cotangent(tuple(x.shape))) for x in (y, added_y)]
    grads = torch.autograd.grad([y, added_y], list(leaves.values()), dys)
    want = {"y": y, "out1": added_y} | {f"d{name}": x for name, x in zip(leaves, grads, strict=True)}
    limits = bounded(config, inputs, w)
    assert all(ratio(x.detach().numpy(), limits[name]) <= 1 for name, x in want.items())
    layer = layer_of(tree, config, w)
    found = dict(zip(("y", "out1"), tree(layer, inputs), strict=True))
    assert all(ratio(x, ErrArray(want[n].detach().numpy(), 2 * limits[n].b)) <= 1 for n, x in found.items())


def flux_rope(positions: np.ndarray, dims: tuple[int, ...], theta: float = 10000.0) -> np.ndarray:
    """FLUX's matrices of 2 x 2 numbers for positions `t a`: `t n 2 2` for n pairs, those of one axis behind another."""
    parts = []
    for axis, dim in enumerate(dims):
        angles = np.outer(positions[:, axis], 1.0 / theta ** (np.arange(0, dim, 2) / dim))
        parts.append(np.stack([np.cos(angles), -np.sin(angles), np.sin(angles), np.cos(angles)], -1))
    return np.concatenate(parts, 1).reshape(len(positions), -1, 2, 2)


def grids(model: str, rows: int, columns: int, words: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of patches and words as a model counts them, `t a` and `s a`: frame, row and column."""
    row, column = np.divmod(np.arange(rows * columns), columns)
    picture, text = np.stack([0 * row, row, column], -1), np.zeros((words, 3), int)
    if model == "Qwen-Image":  # from the middle, and the text behind the picture on every axis
        picture = picture - [0, rows - rows // 2, columns - columns // 2]
        text = text + max(rows // 2, columns // 2) + np.arange(words)[:, None]
    return picture, text


@pytest.mark.parametrize("model", ["FLUX", "Qwen-Image"])
def test_flux_and_qwen_image(tree: Tree, model: str) -> None:
    """Text before the picture, heads of 128 with axes of 16, 56 and 56, as the authors' code computes them."""
    dims = (16, 56, 56)
    rotation: dict[str, Any] = {"rope_base": 10000.0, "rope_axes": dims, "max_positions": 64}
    config = Config(d_model=6, num_heads=2, head_dim=128, value_head_dim=3, norm="rms", **rotation)
    w, rng = weights_of(config), np.random.default_rng(7)
    inputs: Arrays = {"query": rng.normal(size=(1, 15, 6)), "added": rng.normal(size=(1, 4, 6))}
    picture, text = grids(model, 3, 5, 4)
    up = -picture.min(0)  # positions of ours count from 0
    places = {"positions": (picture + up).T[:, None], "added_positions": (text + up).T[:, None]}

    def heads(what: str) -> np.ndarray:
        parts = []
        for stream, name in (("added", "added_"), ("query", "")):
            x = np.einsum("btd,dhk->bhtk", inputs[stream], w[f"w_{name}{what}"]) + w[f"b_{name}{what}"][:, None]
            if what != "v":
                x = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + config.norm_eps) * w[f"w_{name}{what}_norm"]
            parts.append(x)
        return np.concatenate(parts, 2)

    matrices = flux_rope(np.concatenate([text, picture]), dims)
    q, k = ((matrices * x.reshape(*x.shape[:-1], -1, 1, 2)).sum(-1).reshape(x.shape) for x in (heads("q"), heads("k")))
    scores = np.einsum("bhtk,bhsk->bhts", q, k) / np.sqrt(128)
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    context = np.einsum("bhts,bhsv->bhtv", raised / raised.sum(-1, keepdims=True), heads("v"))
    want: Arrays = {"y": np.einsum("bhtv,hvo->bto", context[:, :, 4:], w["w_o"]) + w["b_o"]}
    want["out1"] = np.einsum("bhtv,hvo->bto", context[:, :, :4], w["w_added_o"]) + w["b_added_o"]
    limits = bounded(config, inputs | places, w)
    layer = layer_of(tree, config, w)
    found: Arrays = dict(zip(want, tree(layer, inputs | places), strict=True))
    assert all(ratio(found[name], limits[name]) <= 1 and ratio(x, limits[name]) <= 1 for name, x in want.items())
    # The places that are the default are others.
    assert all(ratio(x, limits[name]) > 1 for name, x in zip(want, tree(layer, inputs), strict=True))


# Identities -----------------------------------------------------------------------------------------------------------


def test_the_same_weights_for_both_streams_are_mha_of_one_behind_the_other(tree: Tree) -> None:
    config, whole = Config(d_model=6, num_heads=2), mha.Config(d_model=6, num_heads=2)
    w, rng = weights_of(whole), np.random.default_rng(2)
    both = w | {f"{name[:2]}added_{name[2:]}": x for name, x in w.items()}
    x = rng.normal(size=(2, 7, 6))
    mask = rng.random((2, 7)) < 0.6
    inputs = {"query": x[:, :4], "added": x[:, 4:], "mask": mask[:, :4], "added_mask": mask[:, 4:]}
    got = np.concatenate(tree(layer_of(tree, config, both), inputs), 1)
    one = {"query": x, "mask": mask[:, None, None]}
    limits = bounded(whole, one, w)["y"]
    (want,) = tree(layer_of(tree, whole, w), one)
    assert ratio(got, ErrArray(want, 2 * limits.b)) <= 1


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_the_same_weights_for_both_rotated_streams_are_rotary_of_one_behind_the_other(tree: Tree, layout: str) -> None:
    """With positions that are passed, and without."""
    fields: dict[str, Any] = {"d_model": 6, "num_heads": 2, "head_dim": 4, "rope_base": 50.0, "rope_layout": layout}
    fields |= {"max_positions": 13}
    config, whole = Config(**fields), rotary.Config(**fields)
    w, rng = weights_of(whole), np.random.default_rng(8)
    both = w | {f"{name[:2]}added_{name[2:]}": x for name, x in w.items()}
    x, places = rng.normal(size=(2, 7, 6)), rng.integers(0, 13, (2, 7))
    for one in ({"query": x}, {"query": x, "positions": places}):
        inputs = {"query": x[:, :4], "added": x[:, 4:]}
        if "positions" in one:
            inputs |= {"positions": places[:, :4], "added_positions": places[:, 4:]}
        got = np.concatenate(tree(layer_of(tree, config, both), inputs), 1)
        limits = bounded(whole, one, w)["y"]
        (want,) = tree(layer_of(tree, whole, w), one)
        assert ratio(got, ErrArray(want, 2 * limits.b)) <= 1


AXES: dict[str, Any] = {"d_model": 6, "num_heads": 2, "head_dim": 12, "rope_base": 50.0, "rope_axes": (2, 4, 6)}


def places_on_axes(rng: np.random.Generator) -> Arrays:
    return {name: rng.integers(0, 9, (3, 2, n)) for name, n in (("positions", 4), ("added_positions", 3))}


def test_an_axis_of_both_streams_may_be_counted_from_anywhere(tree: Tree) -> None:
    config, rng = Config(**AXES, norm="rms", max_positions=16), np.random.default_rng(9)
    inputs = {"query": rng.normal(size=(2, 4, 6)), "added": rng.normal(size=(2, 3, 6))} | places_on_axes(rng)
    moved = {name: inputs[name] + np.array([7, 0, 2])[:, None, None] for name in ("positions", "added_positions")}
    w = weights_of(config)
    limits, layer = bounded(config, inputs, w), layer_of(tree, config, w)
    assert all(ratio(x, limits[n]) <= 1 for n, x in zip(("y", "out1"), tree(layer, inputs | moved), strict=True))
    one = inputs | {"positions": moved["positions"]}
    assert all(ratio(x, limits[n]) > 1 for n, x in zip(("y", "out1"), tree(layer, one), strict=True))


@pytest.mark.parametrize("name", ["positions", "added_positions"])
def test_positions_of_one_stream_leave_the_other_where_it_is(tree: Tree, name: str) -> None:
    """The query at 0 to t - 1 and the added stream at t to t + s - 1, on every axis."""
    config, rng = Config(**AXES, max_positions=9), np.random.default_rng(11)
    inputs = {"query": rng.normal(size=(2, 4, 6)), "added": rng.normal(size=(2, 3, 6))}
    by_default = {"positions": np.tile(np.arange(4), (3, 2, 1)), "added_positions": np.tile(np.arange(4, 7), (3, 2, 1))}
    layer, given = layer_of(tree, config, weights_of(config)), {name: places_on_axes(rng)[name]}
    for x, y in zip(tree(layer, inputs | given), tree(layer, inputs | by_default | given), strict=True):
        np.testing.assert_array_equal(x, y)


def test_angles_for_the_positions_of_both_streams(tree: Tree) -> None:
    """Each once, or each twice as neighbours, in FLUX's order: the bits of integers, and of their gradients."""
    config, rng = Config(**AXES, norm="rms", max_positions=9), np.random.default_rng(10)
    inputs = {"query": rng.normal(size=(2, 4, 6)), "added": rng.normal(size=(2, 3, 6))}
    places, layer = places_on_axes(rng), layer_of(tree, config, weights_of(config))
    pairs: dict[str, Any] = {}
    for name, x in places.items():
        of_axes = [
            attn_np.rotary_angles(x[i], n, rope_base=50.0, dtype="float64") for i, n in enumerate(AXES["rope_axes"])
        ]
        pairs[name] = tuple(np.concatenate(parts, -1) for parts in zip(*of_axes, strict=True))
    twice = {name: tuple(x.repeat(2, -1) for x in pair) for name, pair in pairs.items()}
    arrays = {name: tree.array(x) for name, x in inputs.items()}
    want = layer(**arrays, **{name: tree.array(x) for name, x in places.items()})
    for given in (pairs, twice):
        angles = {name: tuple(map(tree.array, pair)) for name, pair in given.items()}
        for x, y in zip(layer(**arrays, **angles), want, strict=True):
            np.testing.assert_array_equal(tree.numpy(x), tree.numpy(y))
    if tree.name == "numpy":
        calls: list[dict[str, Any]] = [inputs | places, inputs | pairs]
        one, other = (attn_np.value_and_vjp(layer, **x)[1](np.cos(inputs["query"])).inputs for x in calls)
        for name in inputs:
            np.testing.assert_array_equal(one[name], other[name])


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "odd axes": ({"rope_axes": (3, 9)}, {}, "rope_axes to be even numbers that add up to 12, got (3, 9); say how many"),
    "axes of another head": ({"rope_axes": (2, 4)}, {}, "rope_axes to be even numbers that add up to 12, got (2, 4)"),
    "a number": ({"rope_axes": 12}, {}, "rope_axes to be even numbers that add up to 12, got 12"),
    "no base": ({"rope_base": None}, {}, "rope_base for rope_axes=, got none; set rope_base="),
    "no limit": ({"max_positions": None}, {}, "max_positions for rope_axes, got none; set it above"),
    "a limit alone": ({"rope_base": None, "rope_axes": None}, {}, "no max_positions without rope_base, got 9"),
    "no limit on one axis": (
        {"rope_axes": None, "max_positions": None},
        {"positions": np.zeros((2, 4), int), "added_positions": np.zeros((2, 3), int)},
        "no positions without max_positions, got some; set max_positions= above",
    ),
    "no limit of the added stream": (
        {"rope_axes": None, "max_positions": None},
        {"added_positions": np.zeros((2, 3), int)},
        "no added_positions without max_positions, got some; set max_positions= above",
    ),
    "angles of the other stream": (
        {},
        {"added_positions": (np.zeros((4, 6)),) * 2},
        "added_cos of shape (s, r) or (b, s, r), with b=2, s=3 and r=6 rotated pairs, got (4, 6)",
    ),
    "one axis": (
        {},
        {"positions": np.zeros((2, 4), int)},
        "positions of shape (a=3, b=2, t=4), got (2, 4)",
    ),
    "one array": (
        {},
        {"added_positions": (np.zeros((3, 6)),)},
        "added_positions as integers, or as a pair (cos, sin), got 1 arrays",
    ),
    "too large": (
        {},
        {"added_positions": np.full((3, 2, 3), 9)},
        "positions from 0 to 8, got 9 to 9",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_positions_that_are_refused(tree: Tree, case: str) -> None:
    fields, given, words = REFUSED[case]
    with pytest.raises(ValueError) as caught:
        layer = tree.package.build("joint", dtype="float64", **{**AXES, "max_positions": 9, **fields})
        angles = {n: tuple(map(tree.array, x)) if isinstance(x, tuple) else tree.array(x) for n, x in given.items()}
        layer(tree.array(np.zeros((2, 4, 6))), tree.array(np.zeros((2, 3, 6))), **angles)
    assert str(caught.value).startswith(f"joint: expected {words}")


@pytest.mark.parametrize("norm", [None, "rms"])
def test_streams_that_change_places_change_their_outputs(tree: Tree, norm: str | None) -> None:
    config, rng = Config(d_model=6, num_heads=2, norm=norm), np.random.default_rng(3)
    w, inputs = weights_of(config), {"query": rng.normal(size=(2, 4, 6)), "added": rng.normal(size=(2, 3, 6))}
    names = {name: name.replace("added_", "") if "added" in name else f"{name[:2]}added_{name[2:]}" for name in w}
    other = {names[name]: x for name, x in w.items()}
    limits = bounded(config, inputs, w)
    y, added_y = tree(layer_of(tree, config, w), inputs)
    got = tree(layer_of(tree, config, other), {"query": inputs["added"], "added": inputs["query"]})
    assert ratio(got[1], ErrArray(y, 2 * limits["y"].b)) <= 1
    assert ratio(got[0], ErrArray(added_y, 2 * limits["out1"].b)) <= 1


def test_without_an_output_the_added_stream_has_keys_and_values_alone(tree: Tree) -> None:
    """The first output of the same layer with both."""
    config, rng = Config(d_model=6, num_heads=2, norm="rms", added_output=False), np.random.default_rng(4)
    both = Config(d_model=6, num_heads=2, norm="rms")
    w, inputs = weights_of(both), {"query": rng.normal(size=(2, 4, 6)), "added": rng.normal(size=(2, 3, 6))}
    assert set(both.shapes()) - set(config.shapes()) == {
        "w_added_q", "w_added_o", "b_added_q", "b_added_o", "w_added_q_norm",
    }  # fmt: skip
    (y,) = tree(layer_of(tree, config, {name: w[name] for name in config.shapes()}), inputs)
    want = bounded(both, inputs, w)["y"]
    assert ratio(y, want) <= 1
    assert config.second_output() is None


@pytest.mark.parametrize("hidden", ["mask", "added_mask"])
def test_padding_of_a_stream_may_hold_anything(tree: Tree, hidden: str) -> None:
    """NaN there reaches neither the other stream's output nor the outputs of other positions."""
    config, rng = Config(d_model=6, num_heads=2, norm="rms"), np.random.default_rng(5)
    layer = layer_of(tree, config, weights_of(config))
    inputs: Arrays = {"query": rng.normal(size=(2, 4, 6)), "added": rng.normal(size=(2, 4, 6))}
    inputs[hidden] = np.broadcast_to(np.arange(4) < 2, (2, 4))
    name, at = ("query", 0) if hidden == "mask" else ("added", 1)
    spoilt = inputs | {name: np.where(inputs[hidden][..., None], inputs[name], np.nan)}
    clean, dirty = tree(layer, inputs), tree(layer, spoilt)
    np.testing.assert_array_equal(dirty[1 - at], clean[1 - at])
    np.testing.assert_array_equal(dirty[at][:, :2], clean[at][:, :2])


def test_where_every_key_is_padding_outputs_are_biases(tree: Tree) -> None:
    config, rng = Config(d_model=6, num_heads=2), np.random.default_rng(6)
    w = weights_of(config)
    inputs: Arrays = {"query": np.full((1, 2, 6), np.nan), "added": rng.normal(size=(1, 3, 6))}
    inputs |= {"mask": np.zeros((1, 2), bool), "added_mask": np.zeros((1, 3), bool)}
    for name, y in zip(STREAMS.values(), tree(layer_of(tree, config, w), inputs), strict=True):
        np.testing.assert_array_equal(y, np.broadcast_to(w[f"b_{name}o"], y.shape))
    grads = tree.gradients(layer_of(tree, config, w), inputs, np.ones((1, 2, 6)))
    assert all(np.isfinite(x).all() for x in grads.values())
