"""Swin attention against scalar loops, windows drawn by hand, and multi-head attention with a bias."""

import re
from dataclasses import replace
from math import exp, inf, log, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import attn_torch
from attn_np.contract import mha
from attn_np.contract.swin import Config
from parity_tests.tests.inputs import Arrays, Tree
from parity_tests.tests.witness import (
    bounded,
    cotangent,
    each_row,
    heads_by_hand,
    layer_of,
    ratio,
    stacked,
    weights_of,
)

# Scalar loops, from equation 4 and figure 4 of the paper --------------------------------------------------------------


def two(value: Any) -> tuple[int, int]:
    """A number for rows and columns as two."""
    return value if isinstance(value, tuple) else (value, value)


def filled(config: Config) -> tuple[int, int]:
    """Rows and columns of the grid, counted up until windows fill it."""
    (rows, columns), height, width = two(config.window_size), config.height, config.width
    while height % rows:
        height += 1
    while width % columns:
        width += 1
    return height, width


def window(config: Config, t: int, width: int | None = None) -> tuple[int, int]:
    """The window of a position: those at the edges of the grid are smaller where the windows are shifted."""
    sides = zip(divmod(t, width or config.width), two(config.window_size), two(config.shift), strict=True)
    row, column = ((n + size - shift) // size for n, size, shift in sides)
    return row, column


def of_network(config: Config, w: dict[str, Any], query: tuple[int, int], key: tuple[int, int], h: int) -> float:
    """The bias of Swin V2 for one query and key: section 3.3 and, for 8 and 16, the code that its authors published."""
    sides = two(config.pretrained_window_size or config.window_size)
    spaced = []
    for n, m, side in zip(query, key, sides, strict=True):
        share = 8 * (n - m) / (side - 1) if side > 1 else 0.0
        spaced.append((1 if share > 0 else -1) * log(1 + abs(share), 8))
    raised = 0.0
    for e, start in enumerate(w["b_bias_in"]):
        unit = start + sum(x * line[e] for x, line in zip(spaced, w["w_bias_in"], strict=True))
        raised += max(unit, 0.0) * w["w_bias_out"][e][h]
    return 16 / (1 + exp(-raised))


def cut(config: Config) -> list[list[int]]:
    """The positions of each window, row by row: those of the filled grid after it is rolled up and left."""
    (rows, columns), (height, width), (down, right) = two(config.window_size), filled(config), two(config.shift)
    windows = []
    for top in range(0, height, rows):
        for left in range(0, width, columns):
            rolled = [(top + y, left + x) for y in range(rows) for x in range(columns)]
            windows.append([(y + down) % height * width + (x + right) % width for y, x in rolled])
    return windows


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs, and the weights of every window. The grid is filled up with zeros, one position at a time, and they are
    left out of the outputs.
    """
    w, (rows, columns) = {name: p.tolist() for name, p in params.items()}, filled(config)
    places = [(y, x) for y in range(rows) for x in range(columns)]
    real = [y < config.height and x < config.width for y, x in places]
    b, _, d = inputs["query"].shape
    mask = np.broadcast_to(inputs.get("mask", True), inputs["query"].shape[:2])
    grid, shown = np.zeros((b, len(places), d)), np.ones((b, 1, 1, len(places)), bool)
    for i, (y, x) in enumerate(places):
        if real[i]:
            grid[:, i] = inputs["query"][:, y * config.width + x]
            shown[..., i] = mask[:, y * config.width + x, None, None]
    options, size = SimpleNamespace(causal=False, dropout=0.0), two(config.window_size)
    shape = (b, config.num_heads, len(places), len(places))
    _, batch = each_row(SimpleNamespace(), {"keep": np.array(True), "mask": shown}, (grid,), shape)

    def score(h: int, i: int, j: int, q: list[float], k: list[float]) -> float:
        # Hidden filling below and that to the right see their own kind.
        of_query, of_key = ((y >= config.height, x >= config.width) for y, x in (places[i], places[j]))
        hidden = config.filling == "hidden" and of_query != of_key
        if hidden or window(config, i, columns) != window(config, j, columns):
            return -inf
        down, right = (n - m + side - 1 for n, m, side in zip(places[i], places[j], size, strict=True))
        product = sum(a * b for a, b in zip(q, k, strict=True))
        if config.version == 2:
            lengths = [max(sqrt(sum(a * a for a in x)), 1e-12) for x in (q, k)]
            factor = (config.scale or 1.0) * min(exp(w["w_log_scale"][h]), 100.0)
            return factor * product / (lengths[0] * lengths[1]) + of_network(config, w, places[i], places[j], h)
        scale = 1 / sqrt(len(q)) if config.scale is None else config.scale
        row = down * (2 * size[1] - 1) + right
        return scale * product + w["w_bias"][row][h]

    found = stacked([heads_by_hand(options, w, row, score) for row in batch], "y", "weights")
    windows = [found["weights"][:, :, one][..., one] for one in cut(config)]
    return {"y": found["y"][:, real], "out1": np.stack(windows, 2)}


# Who sees whom --------------------------------------------------------------------------------------------------------

WINDOWS: dict[str, tuple[dict[str, Any], str]] = {
    "windows": ({"height": 4, "width": 4, "window_size": 2}, "aabb aabb ccdd ccdd"),
    "shifted": ({"height": 4, "width": 4, "window_size": 2, "shift": 1}, "abbc deef deef ghhi"),
    "one row": ({"height": 2, "width": 6, "window_size": 2, "shift": 1}, "abbccd effggh"),
    "oblong": ({"height": 4, "width": 6, "window_size": (2, 3), "shift": (1, 2)}, "aabbbc ddeeef ddeeef gghhhi"),
    "rows alone": ({"height": 4, "width": 4, "window_size": (2, 4), "shift": (1, 0)}, "aaaa bbbb bbbb cccc"),
    "filled": ({"height": 3, "width": 5, "window_size": 2}, "aabbc aabbc ddeef"),
    "filled and shifted": ({"height": 3, "width": 5, "window_size": (2, 3), "shift": (1, 2)}, "aabbb ccddd ccddd"),
    "smaller than a window": ({"height": 2, "width": 3, "window_size": 4}, "aaa aaa"),
    "smaller than a window, shifted": ({"height": 2, "width": 3, "window_size": 4, "shift": (1, 2)}, "aab ccd"),
    "by two": ({"height": 3, "width": 6, "window_size": 3, "shift": 2}, "aabbbc aabbbc ddeeef"),
}


@pytest.mark.parametrize("filling", ["seen", "hidden"])
@pytest.mark.parametrize("name", WINDOWS)
def test_a_position_reaches_those_of_its_window(tree: Tree, name: str, filling: str) -> None:
    """The output at a place depends on the inputs of its own letter, and on no others."""
    fields, drawn = WINDOWS[name]
    letters = np.array(list(drawn.replace(" ", "")))
    config = Config(d_model=6, num_heads=2, filling=filling, **fields)
    layer, x = layer_of(tree, config, weights_of(config)), np.random.default_rng(0).normal(size=(2, len(letters), 6))
    before = tree(layer, {"query": x})[0]
    for place in range(len(letters)):
        other = x.copy()
        other[:, place] += 1.0
        changed = (tree(layer, {"query": other})[0] != before).any(-1)
        assert np.array_equal(changed, np.broadcast_to(letters == letters[place], changed.shape)), place


FILLINGS: dict[str, dict[str, Any]] = {
    "both sides": {"height": 3, "width": 5, "window_size": (2, 3), "shift": (1, 1)},
    "a window larger than the grid": {"height": 2, "width": 3, "window_size": 4},
    "a shift longer than a side": {"height": 1, "width": 4, "window_size": (4, 3), "shift": (3, 2)},
}


@pytest.mark.parametrize("filling", ["seen", "hidden"])
@pytest.mark.parametrize("name", FILLINGS)
def test_a_filled_grid_is_that_of_the_loops(tree: Tree, name: str, filling: str) -> None:
    config = Config(d_model=4, num_heads=2, filling=filling, **FILLINGS[name])
    w, x = weights_of(config), np.random.default_rng(4).normal(size=(2, config.height * config.width, 4))
    want = bounded(config, {"query": x}, w)["y"]
    assert ratio(witness(config, {"query": x}, w)["y"], want) <= 1
    assert ratio(tree(layer_of(tree, config, w), {"query": x})[0], want) <= 1


def on_wide_grid(x: np.ndarray) -> np.ndarray:
    """[2, 3, 5, d] on a grid of 4 x 6: zeros in the last row and the last column."""
    wide = np.zeros((2, 4, 6, x.shape[-1]))
    wide[:, :3, :5] = x
    return wide


@pytest.mark.parametrize("filling", ["seen", "hidden"])
def test_a_filled_grid_is_the_layer_on_the_grid_with_zeros(tree: Tree, filling: str) -> None:
    """Outputs and gradients, where the filling is seen. Where it is hidden, all are other numbers but those of b_v and
    b_o: a query's weights add up to 1 in either case.
    """
    small = Config(d_model=4, num_heads=2, height=3, width=5, window_size=(2, 3), shift=(0, 1), filling=filling)
    whole = replace(small, height=4, width=6)
    w, rng = weights_of(small), np.random.default_rng(5)
    x, dy = rng.normal(size=(2, 3, 5, 4)), cotangent((2, 15, 4))
    zeros = on_wide_grid(x).reshape(2, 24, 4)
    wide_dy = on_wide_grid(dy.reshape(x.shape)).reshape(zeros.shape)
    want = bounded(whole, {"query": zeros}, w, pulled={"y": wide_dy})
    layer, inputs = layer_of(tree, small, w), {"query": x.reshape(2, 15, 4)}
    got = {"y": tree(layer, inputs)[0]} | tree.gradients(layer, inputs, dy)
    for name in ("y", "dquery"):
        got[name] = on_wide_grid(got[name].reshape(x.shape))
        wide = want[name].v.reshape(2, 4, 6, 4).copy()
        wide[:, 3:], wide[:, :, 5:] = 0, 0
        close = np.abs(got[name] - wide) <= want[name].b.reshape(wide.shape)
        assert np.all(close) == (filling == "seen"), name
    for name in ("dw_v", "db_v", "dw_bias", "db_q", "db_o"):
        close = np.abs(got[name] - want[name].v) <= want[name].b
        assert np.all(close) == (filling == "seen" or name in ("db_v", "db_o")), name


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("filling", ["seen", "hidden"])
def test_hidden_positions_are_those_of_the_grid(tree: Tree, filling: str, version: int) -> None:
    """Of a grid that is filled up and shifted: the outputs of others, and all gradients, are as if they held anything,
    NaN as well; the filling is seen where it was. A window of which nothing is seen gives the output's bias.
    """
    more: dict[str, Any] = {"version": 2, "hidden_dim": 3} if version == 2 else {}
    config = Config(d_model=4, num_heads=2, height=3, width=5, window_size=2, shift=(0, 1), filling=filling, **more)
    w, x = weights_of(config), np.random.default_rng(10).normal(size=(2, 15, 4))
    letters = np.array(list("abbccabbccdeeff"))
    mask = np.stack([letters != "b", np.arange(15) % 4 > 0])
    inputs, layer = {"query": x, "mask": mask}, layer_of(tree, config, w)
    want = bounded(config, inputs, w)
    y, weights = tree(layer, inputs, return_weights=True)
    hand = witness(config, inputs, w)
    for name, got in (("y", y), ("out1", weights)):
        assert ratio(hand[name], want[name]) <= 1, name
        assert ratio(got, want[name]) <= 1, name
    y = tree(layer, inputs)[0]
    assert np.array_equal(y[0, letters == "b"], np.broadcast_to(w["b_o"], (4, 4)))
    lost = {"query": np.where(((letters == "b") & (np.arange(2) == 0)[:, None])[..., None], np.nan, x), "mask": mask}
    assert np.array_equal(tree(layer, lost)[0], y)
    dy = cotangent((2, 15, 4))
    for name, got in tree.gradients(layer, lost, dy).items():
        assert ratio(got, want[name]) <= 1, name


def test_a_mask_may_be_of_all_grids_alike(tree: Tree) -> None:
    """One row for the batch, or one number for all."""
    config = Config(d_model=4, num_heads=2, height=2, width=4, window_size=2)
    layer, x = layer_of(tree, config, weights_of(config)), np.random.default_rng(11).normal(size=(2, 8, 4))
    row = np.arange(8) != 3
    want = tree(layer, {"query": x, "mask": np.broadcast_to(row, (2, 8)).copy()})[0]
    assert np.array_equal(tree(layer, {"query": x, "mask": row})[0], want)
    assert np.array_equal(tree(layer, {"query": x, "mask": np.array(True)})[0], tree(layer, {"query": x})[0])


def test_a_number_is_both_sides(tree: Tree) -> None:
    """Of a window and of a shift: the same numbers, and the same meaning, as the filling has none in a full grid."""
    sizes: dict[str, Any] = {"d_model": 6, "num_heads": 2, "height": 4, "width": 6}
    one = Config(**sizes, window_size=2, shift=1)
    two_numbers = Config(**sizes, window_size=(2, 2), shift=(1, 1), filling="hidden")
    w, x = weights_of(one), np.random.default_rng(6).normal(size=(2, 24, 6))
    first, second = (tree(layer_of(tree, c, w), {"query": x})[0] for c in (one, two_numbers))
    assert np.array_equal(first, second)
    assert one.meaning() == two_numbers.meaning()
    assert one.meaning() != replace(one, shift=(1, 0)).meaning()
    filled_up = replace(one, width=5)
    assert filled_up.meaning() != replace(filled_up, filling="hidden").meaning()


def test_a_scale_is_at_most_a_hundred(tree: Tree) -> None:
    """What is learned beyond it changes nothing, and gets no gradient."""
    config = Config(d_model=6, num_heads=3, height=2, width=4, window_size=2, version=2, hidden_dim=3)
    w, x = weights_of(config), {"query": np.random.default_rng(7).normal(size=(2, 8, 6))}
    dy, found = cotangent((2, 8, 6)), []
    for beyond in (0.0, 1.0):
        w["w_log_scale"] = np.array([log(100) - 1, log(100) + 2**-20 + beyond, 2.0])
        want = bounded(config, x, w)
        layer = layer_of(tree, config, w)
        found.append(tree(layer, x)[0])
        gradient = tree.gradients(layer, x, dy)["dw_log_scale"]
        assert ratio(witness(config, x, w)["y"], want["y"]) <= 1
        assert ratio(found[-1], want["y"]) <= 1
        assert list(gradient != 0) == [True, False, True]
    assert np.array_equal(*found)


def test_the_length_of_a_query_changes_nothing_in_version_2(tree: Tree) -> None:
    """Nor that of a key: cosines of 2 q and 4 k are those of q and k."""
    config = Config(d_model=4, num_heads=2, height=3, width=3, window_size=2, version=2, hidden_dim=3)
    w, x = weights_of(config), {"query": np.random.default_rng(8).normal(size=(2, 9, 4))}
    longer = w | {"w_q": 2 * w["w_q"], "b_q": 2 * w["b_q"], "w_k": 4 * w["w_k"]}
    want = bounded(config, x, w)["y"]
    assert ratio(tree(layer_of(tree, config, longer), x)[0], want) <= 1


def test_keys_of_zeros_get_gradients_that_half_precision_holds() -> None:
    """Where zeros fill the grid up, keys without a bias have no length to be divided by."""
    layer = attn_torch.build("swin", d_model=4, num_heads=2, height=3, width=3, window_size=2, version=2, hidden_dim=3)
    query = torch.from_numpy(np.random.default_rng(9).normal(size=(2, 9, 4)).astype("float32"))
    mask = torch.arange(9) % 3 > 0
    with torch.autocast("cpu", dtype=torch.float16):
        y = layer(query) + layer(query, mask=mask)
    y.float().sum().backward()
    for name, parameter in layer.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, name
        assert gradient.isfinite().all(), name


@pytest.mark.parametrize("shift", [0, 1])
def test_it_is_multi_head_attention_with_a_mask_and_a_bias(tree: Tree, shift: int) -> None:
    """Outputs and gradients of a grid of 4 x 2 in windows of 2 x 2; the table's gradient sums that of the bias."""
    config = Config(d_model=6, num_heads=2, height=4, width=2, window_size=2, shift=shift)
    whole = mha.Config(d_model=6, num_heads=2)
    w, x = weights_of(config), np.random.default_rng(1).normal(size=(2, 8, 6))
    places = np.array([window(config, i) for i in range(8)])
    rows, columns = (n[:, None] - n + 1 for n in np.divmod(np.arange(8), 2))
    index = np.where((abs(rows - 1) < 2), rows * 3 + columns, 0)
    inputs = {"query": x, "mask": (places[:, None] == places).all(-1), "bias": w["w_bias"][index].transpose(2, 0, 1)}
    want = bounded(whole, inputs, {name: p for name, p in w.items() if name != "w_bias"})
    layer = layer_of(tree, config, w)
    got = {"y": tree(layer, {"query": x})[0]} | tree.gradients(layer, {"query": x}, cotangent((2, 8, 6)))
    table = np.zeros_like(w["w_bias"])
    np.add.at(table, index, np.where(inputs["mask"], want["dbias"].v, 0.0).transpose(1, 2, 0))
    loose = np.zeros_like(table)
    np.add.at(loose, index, want["dbias"].b.transpose(1, 2, 0))
    assert np.all(np.abs(got.pop("dw_bias") - table) <= loose)
    for name, value in got.items():
        # The gradient of the keys' bias is 0 but for rounding: the bound itself is asked, as no bound is small to it.
        limit = want[name]
        assert np.all(np.abs(value - limit.v) <= limit.b) if name == "db_k" else ratio(value, limit) <= 1, name


def test_fields_that_cannot_be(tree: Tree) -> None:
    sizes = {"d_model": 6, "num_heads": 2, "height": 4, "width": 6, "window_size": 2}
    for name, value, words in (
        ("shift", 2, "shift to be an integer from 0 to 1, or a pair (down, right) up to (1, 1), got 2"),
        ("shift", (1, 2), "shift to be an integer from 0 to 1, or a pair (down, right) up to (1, 1), got (1, 2)"),
        ("shift", (1,), "shift to be an integer from 0 to 1, or a pair (down, right) up to (1, 1), got (1,)"),
        ("window_size", 0, "window_size to be an integer of at least 1, or a pair (rows, columns), got 0"),
        ("window_size", (2, 0), "window_size to be an integer of at least 1, or a pair (rows, columns), got (2, 0)"),
        ("window_size", 2.0, "window_size to be an integer of at least 1, or a pair (rows, columns), got 2.0"),
        ("version", 3, "version to be 1 or 2, got 3"),
        ("version", True, "version to be 1 or 2, got True"),
        ("pretrained_window_size", 2, "pretrained_window_size to be None in version 1, got a size"),
        ("pretrained_window_size", 1, "pretrained_window_size to be an integer of at least 2, or a pair"),
        ("filling", "zeros", "filling to be one of seen, hidden, got 'zeros'"),
    ):
        with pytest.raises(ValueError, match=re.escape(f"swin: expected {words}")):
            tree.package.build("swin", **sizes | {name: value})
    with pytest.raises(ValueError, match=r"swin: expected query of shape \(b, t=24, d=6\), got \(1, 23, 6\)"):
        tree(tree.package.build("swin", **sizes, dtype="float64"), {"query": np.zeros((1, 23, 6))})


@pytest.mark.parametrize("version", [1, 2])
def test_an_empty_batch_has_weights_of_every_window(tree: Tree, version: int) -> None:
    config = Config(d_model=4, num_heads=2, height=3, width=3, window_size=2, version=version)
    layer, empty = layer_of(tree, config, weights_of(config)), {"query": np.zeros((0, 9, 4))}
    y, weights = tree(layer, empty, return_weights=True)[:2]
    assert (y.shape, weights.shape) == ((0, 9, 4), (0, 2, 4, 4, 4))
