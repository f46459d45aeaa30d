"""Rotary positions against scalar loops of complex numbers, PyTorch's complex products, and published formulas."""

from dataclasses import replace
from importlib import import_module
from math import cos, exp, log, pi, sin, sqrt, tanh
from typing import Any

import jax
import numpy as np
import pytest
import torch

from attn_np.contract import mha
from attn_np.contract._rotary import SCALINGS
from attn_np.contract.rotary import Config
from attn_np.weights import rotary_layout
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import UNIT
from parity_tests.mistakes import SHARED, Mutant, planted
from parity_tests.mistakes import TREES as PACKAGES
from parity_tests.tests.inputs import TREES, Arrays, Tree, normal, same
from parity_tests.tests.witness import (
    bounded,
    cotangent,
    each_row,
    layer_of,
    ratio,
    stacked,
    torch_gradients,
    weights_of,
)

# Scalar loops, from section 3.2 of the paper --------------------------------------------------------------------------


def crossing(c: Any, width: int, turns: float) -> float:
    """The pair, as a real number, that makes so many turns in the original length: found by halving."""
    low, high = -100.0, 100.0
    for _ in range(200):
        middle = (low + high) / 2
        often = (c.original_max_positions or 1) * exp(-2 * middle / width * log(c.rope_base)) / (2 * pi) > turns
        low, high = (middle, high) if often else (low, middle)
    return low


def published(c: Any, width: int, length: int) -> list[float]:
    """theta of every pair."""
    axes = getattr(c, "rope_axes", None)
    if axes is not None:  # each has those of its own width
        return [exp(-2 * i / n * log(c.rope_base)) for n in axes for i in range(n // 2)]
    base, s, original = c.rope_base, c.rope_scaling_factor or 1.0, c.original_max_positions or 1
    if c.rope_scaling == "dynamic":
        base *= (s * max(length, original) / original - (s - 1)) ** (width / (width - 2))
    first, last = 0.0, 0.0
    if c.rope_scaling == "yarn":
        first, last = crossing(c, width, c.beta_fast or 32), crossing(c, width, c.beta_slow or 1)
        if c.yarn_truncate:
            first, last = float(int(first // 1)), -float(int(-last // 1))
        first, last = max(first, 0.0), min(last, width - 1.0)
    found = []
    for i in range(width // 2):
        theta = exp(-2 * i / width * log(base))
        if c.rope_scaling == "linear":
            theta /= s
        elif c.rope_scaling == "yarn":
            stays = 1 - min(max((i - first) / (last - first or 0.001), 0.0), 1.0)
            theta = theta * stays + theta / s * (1 - stays)
        elif c.rope_scaling == "llama3":
            wavelength, low, high = 2 * pi / theta, c.low_freq_factor or 1, c.high_freq_factor or 4
            smooth = (original / wavelength - low) / (high - low)
            if wavelength > original / low:
                theta /= s
            elif wavelength >= original / high:
                theta = (1 - smooth) * theta / s + smooth * theta
        elif c.rope_scaling == "longrope":
            theta /= ((c.long_factor if length > original else c.short_factor) or ())[i]
        elif c.rope_scaling == "proportional":
            theta = theta / s if i < c.rotary_dim / 2 else 0.0
        found.append(theta)
    return found


def stretch(c: Any) -> float:
    """The attention factor."""
    if c.attention_factor is not None:
        return c.attention_factor
    s = c.rope_scaling_factor or 1.0
    if s <= 1 or c.rope_scaling not in ("yarn", "longrope"):
        return 1.0
    return 0.1 * log(s) + 1 if c.rope_scaling == "yarn" else sqrt(1 + log(s) / log(c.original_max_positions or 2))


def turned(c: Any, x: list[float], places: Any, thetas: list[float]) -> list[float]:
    """Each pair as a complex number, times e^(i m theta); m is the position on the axis of the pair's section."""
    out, n = list(x), len(thetas)
    on_axis, counts = [places] * n, c.rope_sections or [m // 2 for m in c.rope_axes or ()]
    if isinstance(places, list):
        on_axis = [place for place, count in zip(places, counts, strict=True) for _ in range(count)]
    if isinstance(places, list) and c.rope_sections_interleaved:
        left = list(counts)
        for i in range(n):
            axis = i % len(left) if left[i % len(left)] else 0
            on_axis[i], left[axis] = places[axis], left[axis] - 1
    for i, (place, theta) in enumerate(zip(on_axis, thetas, strict=True)):
        first, second = (i, i + n) if c.rope_layout == "half" else (2 * i, 2 * i + 1)
        z = complex(x[first], x[second]) * complex(cos(place * theta), sin(place * theta)) * stretch(c)
        out[first], out[second] = z.real, z.imag
    return out


def loops(c: Config, w: Any, x: Any, places: Any, thetas: Any, mask: Any, bias: Any, keep: Any) -> tuple[Any, Any]:
    """Output and weights of one batch row, one number at a time."""
    left, right = c.window or (None, None)
    d, heads, t = c.d_model, c.num_heads, len(x)
    y, weights = [list(w.get("b_o", [0.0] * len(w["w_o"][0][0]))) for _ in x], []

    def part(name: str, h: int, i: int) -> list[float]:
        offset = w[f"b_{name}"][h] if f"b_{name}" in w else [0.0] * len(w[f"w_{name}"][0][h])
        return [o + sum(x[i][n] * w[f"w_{name}"][n][h][e] for n in range(d)) for e, o in enumerate(offset)]

    for h in range(heads):
        q, k = ([turned(c, part(name, h, i), places[i], thetas) for i in range(t)] for name in "qk")
        v = [part("v", h, i) for i in range(t)]
        alphas = []
        for i in range(t):
            raised = []
            for j in range(t):
                hidden = not mask[h][i][j] or (c.causal and j > i)
                hidden = hidden or (left is not None and j < i - left) or (right is not None and j > i + right)
                score = (1 / sqrt(len(q[i])) if c.scale is None else c.scale) * sum(map(lambda a, b: a * b, q[i], k[j]))
                score = score if c.softcap is None else c.softcap * tanh(score / c.softcap)
                raised.append(0.0 if hidden else exp(score + bias[h][i][j]))
            alphas.append([e / sum(raised) if e else 0.0 for e in raised])
            used = [a / (1 - c.dropout) * kept for a, kept in zip(alphas[i], keep[h][i], strict=True)]
            for e in range(len(v[0])):
                found = sum(a * word[e] for a, word in zip(used, v, strict=True))
                y[i] = [total + found * row for total, row in zip(y[i], w["w_o"][h][e], strict=True)]
        weights.append(alphas)
    return y, weights


def witness(config: Config, inputs: Arrays, params: Arrays) -> Arrays:
    """Outputs and the weights of every head."""
    x = inputs["query"]
    b, t, _ = x.shape
    places = inputs.get("positions", np.broadcast_to(np.arange(t), (b, t)))
    length = int(places.max()) + 1 if "positions" in inputs else t
    thetas = published(config, config.rotary_dim or params["w_q"].shape[-1], length or 0)
    config, rows = each_row(config, inputs, (x,), (b, config.num_heads, t, t))
    w = {name: p.tolist() for name, p in params.items()}
    places = places if places.ndim == 2 else np.moveaxis(places, 0, -1)
    found = [loops(config, w, row[0], at.tolist(), thetas, *row[1:]) for row, at in zip(rows, places, strict=True)]
    return stacked(found, "y", "out1")


# Tables ---------------------------------------------------------------------------------------------------------------

MANY = 131072
WIDE: dict[str, Any] = {"d_model": 16, "num_heads": 1}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "large base": {"rope_base": 5e6},
    "linear": {"rope_scaling": "linear", "rope_scaling_factor": 4.0},
    "dynamic": {"rope_scaling": "dynamic", "rope_scaling_factor": 2.0, "original_max_positions": 4096},
    "dynamic, within": {"rope_scaling": "dynamic", "rope_scaling_factor": 2.0, "original_max_positions": MANY},
    "yarn": {
        "rope_scaling": "yarn",
        "rope_scaling_factor": 32.0,
        "original_max_positions": 4096,
        "rope_base": 150000.0,
    },
    "yarn, real ramp": {
        "rope_scaling": "yarn",
        "rope_scaling_factor": 40.0,
        "original_max_positions": 4096,
        "yarn_truncate": False,
        "beta_fast": 100.0,
        "beta_slow": 2.0,
        "attention_factor": 1.125,
    },
    "yarn, ramp by default": {
        "rope_scaling": "yarn",
        "rope_scaling_factor": 4.0,
        "original_max_positions": 4096,
        "yarn_truncate": False,
    },
    "yarn, ramp beyond the last pair": {
        "rope_scaling": "yarn",
        "rope_scaling_factor": 4.0,
        "original_max_positions": MANY,
        "rope_base": 100.0,
        "beta_fast": 5000.0,
    },
    "yarn, step in place of a ramp": {
        "rope_scaling": "yarn",
        "rope_scaling_factor": 4.0,
        "original_max_positions": 4096,
        "yarn_truncate": False,
        "beta_fast": 8.0,
        "beta_slow": 8.0,
    },
    "llama3": {
        "rope_scaling": "llama3",
        "rope_scaling_factor": 8.0,
        "original_max_positions": 8192,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "rope_base": 500000.0,
    },
    "longrope": {
        "rope_scaling": "longrope",
        "rope_scaling_factor": 32.0,
        "original_max_positions": 4096,
        "short_factor": tuple(1.0 + 0.03 * i for i in range(8)),
        "long_factor": tuple(1.0 + 4.7 * i for i in range(8)),
    },
    "longrope, within": {
        "rope_scaling": "longrope",
        "original_max_positions": MANY,
        "short_factor": tuple(1.0 + 0.03 * i for i in range(8)),
        "long_factor": (2.0,) * 8,
    },
    "proportional": {"rope_scaling": "proportional", "rotary_dim": 6, "rope_scaling_factor": 3.0, "rope_base": 1e6},
}
SAMPLED = np.unique(np.concatenate([np.geomspace(1, MANY, 200).astype(int) - 1, [MANY - 1]]))


def expected(config: Config, length: int, dtype: str) -> ErrArray:
    """Cosines and sines of the sampled positions by scalar functions, and what roundings may change.

    A frequency is a few dozen operations away from the fields; its error moves the angle in proportion. An error of a
    ramp between two frequencies counts as often as one of them is larger. Then come cosine, factor, and the one
    rounding to the type.
    """
    thetas, grown, u = published(config, 16, length), stretch(config), UNIT["float64"]
    found = np.array([[[grown * f(int(m) * theta) for theta in thetas] for m in SAMPLED] for f in (cos, sin)])
    angles = np.array([[int(m) * theta for theta in thetas] for m in SAMPLED])
    moved = grown * (64 * u * angles * (config.rope_scaling_factor or 1.0) + 8 * u)
    return ErrArray(found, moved + (UNIT[dtype] if dtype != "float64" else 0.0) * np.abs(found))


def made(package: str, config: Config, length: int, dtype: str) -> np.ndarray:
    """The tables of a tree."""
    like = TREES[package.removeprefix("attn_").replace("np", "numpy")].array(np.zeros(1, dtype))
    found = import_module(f"{package}.positions.rotary").cos_sin_table(config, length, length, dtype, like=like)
    return found.numpy() if package == "attn_torch" else np.asarray(found)


@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_the_published_formulas_rounded_once(kind: str) -> None:
    """Up to position 131071, and the same bits in every tree."""
    config = Config(**WIDE, **KINDS[kind])
    exact = made("attn_np", config, MANY, "float64")
    assert ratio(exact[:, SAMPLED], expected(config, MANY, "float64")) <= 1
    rounded = made("attn_np", config, MANY, "float32")
    assert same(rounded, exact.astype(np.float32))
    assert ratio(rounded[:, SAMPLED], expected(config, MANY, "float32")) <= 1
    for package in PACKAGES:
        assert same(made(package, config, MANY, "float32"), rounded), package
        assert same(made(package, config, 64, "float64"), made("attn_np", config, 64, "float64")), package


def drawn_fields(rng: np.random.Generator, kind: str | None) -> dict[str, Any]:
    """Fields of a kind of scaling anywhere in their range; those that may be left out are, by chance."""
    required, allowed = SCALINGS[kind]
    factors = (0.25, 0.5, 0.999, 1.0, 1.001, 4.0, 40.0)
    values: dict[str, Any] = {
        "rope_scaling_factor": float(rng.choice(factors)),
        "original_max_positions": int(rng.choice([2, 3, 6, 7, 100, 4096, MANY])),
        "low_freq_factor": float(rng.choice([0.5, 1.0, 2.0])),
        "high_freq_factor": float(rng.choice([2.5, 4.0, 8.0])),
        "beta_fast": float(rng.choice([0.5, 1.0, 32.0, 5000.0])),
        "beta_slow": float(rng.choice([0.01, 0.5, 1.0, 32.0])),
        "yarn_truncate": bool(rng.random() < 0.5),
        "attention_factor": float(rng.choice([0.5, 1.0, 1.25])),
        "short_factor": tuple(rng.uniform(0.5, 3.0, 8)),
        "long_factor": tuple(rng.uniform(0.5, 30.0, 8)),
    }
    names = [name for name in (*required, *allowed) if name in required or rng.random() < 0.5]
    if kind == "proportional":
        values["rotary_dim"], names = int(rng.choice([2, 6, 16])), [*names, "rotary_dim"]
    if kind == "dynamic":  # below 1 the base would shrink, and below 0 in the end
        values["rope_scaling_factor"] = max(1.0, values["rope_scaling_factor"])
    return {"rope_scaling": kind, "rope_base": float(rng.choice([2.0, 100.0, 1e4, 5e6]))} | {
        n: values[n] for n in names
    }


@pytest.mark.parametrize("kind", SCALINGS)
def test_angles_are_the_published_ones_over_the_whole_range_of_the_fields(kind: str | None) -> None:
    """A few dozen operations, as in `expected`; eight for each end of a ramp, whose error counts by the ramp's slope,
    as often as one frequency is larger than the other.

    An end that is a whole number may be rounded to either side: such draws say nothing.
    """
    rng, compared = np.random.default_rng(0), 0
    for _ in range(100):
        config = Config(**WIDE, **drawn_fields(rng, kind))
        assert config.cos_sin_factor() == stretch(config), config
        ends = [config.low_freq_factor or 0.0, config.high_freq_factor or 1.0]
        if kind == "yarn":
            ends = [crossing(config, 16, n) for n in (config.beta_fast or 32, config.beta_slow or 1)]
            near = 2.0**-30  # so near to an integer that roundings decide which one is meant
            if config.yarn_truncate and any(abs(end - round(end)) < near for end in ends):
                continue
        size, (first, last) = max(map(abs, ends)), (max(ends[0], 0.0), min(ends[1], 15.0))
        factor = config.rope_scaling_factor or 1.0
        operations = 64 + 16 * size / (abs(last - first) or 0.001)
        for length in (1, 6, 7, 5000):
            want = np.array(published(config, 16, length))
            error = np.abs(np.array(config.frequencies(length)) - want)
            assert np.all(error <= operations * UNIT["float64"] * max(factor, 1 / factor) * want), (config, length)
        compared += 1
    assert compared > 50


def test_angles_in_float32_would_be_seen() -> None:
    config = Config(**WIDE)
    angles = SAMPLED.astype(np.float32)[:, None] * np.array(config.frequencies(MANY), np.float32)
    assert ratio(np.stack([np.cos(angles), np.sin(angles)]), expected(config, MANY, "float32")) > 1000


def test_what_is_known_of_the_kinds() -> None:
    """Numbers that need no formula: which pairs stay, which are slowed down by the whole factor."""
    plain = np.array(Config(**WIDE, rope_base=500000.0).frequencies(1))
    llama = np.array(Config(**WIDE, **KINDS["llama3"]).frequencies(1))
    assert plain[0] == llama[0] == 1.0
    assert same(llama[-2:] * 8.0, plain[-2:])
    yarn = Config(**WIDE, **KINDS["yarn"])
    plain = np.array(Config(**WIDE, rope_base=150000.0).frequencies(1))
    assert same(np.array(yarn.frequencies(1))[:2], plain[:2])
    assert same(np.array(yarn.frequencies(1))[-1:] * 32.0, plain[-1:])
    assert yarn.cos_sin_factor() == 0.1 * log(32.0) + 1
    assert Config(**WIDE, **KINDS["longrope"]).cos_sin_factor() == sqrt(1 + log(32.0) / log(4096))


# Positions ------------------------------------------------------------------------------------------------------------


def placed(**fields: Any) -> tuple[Config, Arrays, Arrays]:
    """A layer that takes positions, its weights, and an input whose positions have gaps."""
    config = Config(d_model=7, num_heads=3, head_dim=8, max_positions=101, **fields)
    places = np.array([[0, 1, 2, 5, 6], [3, 4, 9, 10, 20]])
    return config, weights_of(config), {"query": normal(2, 5, 7), "positions": places}


LENGTHS: dict[str, dict[str, Any]] = {
    "dynamic": {"rope_scaling": "dynamic", "rope_scaling_factor": 2.0, "original_max_positions": 16},
    "longrope": {
        "rope_scaling": "longrope", "original_max_positions": 16, "short_factor": (1.0, 1.5, 2.0, 2.5),
        "long_factor": (1.25, 3.0, 4.5, 6.0),
    },
}  # fmt: skip


@pytest.mark.parametrize("last", [15, 16, 20])
@pytest.mark.parametrize("kind", LENGTHS)
def test_the_largest_position_says_how_long_a_pass_is(tree: Tree, kind: str, last: int) -> None:
    """Not `max_positions`: positions 0 .. n - 1 give what a pass over n without positions gives, to the bit."""
    config, w, inputs = placed(**LENGTHS[kind])
    layer = layer_of(tree, config, w)
    x = normal(1, last + 1, 7)
    given = {"query": x, "positions": np.arange(last + 1)[None]}
    assert same(tree.numpy(layer(**tree.arrays(given))), tree.numpy(layer(tree.array(x))))
    inputs["positions"][1, -1] = last
    assert ratio(tree.numpy(layer(**tree.arrays(inputs))), bounded(config, inputs, w)["y"]) <= 1


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("kind", LENGTHS)
def test_steps_are_as_long_as_their_cache(kind: str, name: str) -> None:
    """The positions that a step counts by itself may be given: the length is not the largest of them, but that up to
    which all keys of the cache agree.
    """
    tree, (config, w, _) = TREES[name], placed(causal=True, **LENGTHS[kind])
    layer, x = layer_of(tree, config, w), tree.array(normal(1, 3, 7))
    caches = [layer.init_cache(1, 20) for _ in range(2)]
    for part in (slice(0, 2), slice(2, 3)):
        places = tree.array(np.arange(3)[None, part])
        counted, caches[0] = layer.step(x[:, part], caches[0])
        given, caches[1] = layer.step(x[:, part], caches[1], positions=places)
        assert same(tree.numpy(given), tree.numpy(counted))


@pytest.mark.parametrize("last", [15, 16])
def test_compiled_programs_choose_by_the_largest_position_or_refuse(last: int) -> None:
    tree = TREES["jax"]
    config, w, inputs = placed(**LENGTHS["longrope"])
    inputs["positions"][1, -1] = last
    layer, arrays = layer_of(tree, config, w), tree.arrays(inputs)
    compiled = jax.jit(lambda x, positions: layer(x, positions=positions))
    found = tree.numpy(compiled(arrays["query"], arrays["positions"]))
    assert ratio(found, bounded(config, inputs, w)["y"]) <= 1
    layer = layer_of(tree, *placed(**LENGTHS["dynamic"])[:2])
    compiled = jax.jit(lambda x, positions: layer(x, positions=positions))
    with pytest.raises(
        ValueError, match="rotary: expected positions whose values are known for rope_scaling='dynamic'"
    ):
        compiled(arrays["query"], arrays["positions"])


@pytest.mark.parametrize("package", PACKAGES)
def test_a_length_of_max_positions_is_seen(package: str) -> None:
    """The planted bug: tables chosen as if the largest possible position were there."""
    config, _, inputs = placed(**LENGTHS["longrope"])
    inputs["positions"][1, -1] = 15
    tree = next(tree for tree in TREES.values() if tree.package.__name__ == package)
    bug = Mutant("length", SHARED, "length = int((known or (0, 0))[1]) + 1", "length = count", "", "")

    def cosines(package: str) -> np.ndarray:
        cos_sin_for = import_module(f"{package}.positions.rotary").cos_sin_for
        return tree.numpy(cos_sin_for(config, tree.array(inputs["positions"]), 5, like=tree.array(np.ones(1)))[0])

    with planted(bug, package) as alias:
        assert not same(cosines(alias), cosines(package))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_scores_see_differences_only(tree: Tree, layout: str) -> None:
    """All positions moved by one number change nothing; one of them moved alone does."""
    config, w, inputs = placed(rope_layout=layout, rotary_dim=6)
    layer, want = layer_of(tree, config, w), bounded(config, inputs, w)
    moved = inputs | {"positions": inputs["positions"] + 77}
    limit = bounded(config, moved, w)
    for name, x in zip(("y", "out1"), tree(layer, moved, return_weights=True), strict=True):
        assert ratio(x, ErrArray(want[name].v, want[name].b + limit[name].b)) <= 1, name
    moved["positions"] = moved["positions"] + np.array([0, 0, 1, 0, 0])
    assert ratio(tree(layer, moved)[0], want["y"]) > 1


def test_one_place_for_all_is_attention_without_positions(tree: Tree) -> None:
    """Outputs and gradients of mha, at position 0 and, but for rounding, at any other."""
    config, w, inputs = placed()
    plain = mha.Config(d_model=7, num_heads=3, head_dim=8)
    want = bounded(plain, {"query": inputs["query"]}, w)
    layer = layer_of(tree, config, w)
    got = inputs | {"positions": np.zeros((2, 5), int)}
    found = {"y": tree(layer, got)[0]} | tree.gradients(layer, got, cotangent((2, 5, 7)))
    for name in set(found) - {"db_k"}:  # scores do not feel the bias of the keys: its gradient is rounding alone
        assert ratio(found[name], want[name]) <= 1, name
    got = inputs | {"positions": np.full((2, 5), 100)}
    limit = bounded(config, got, w)["y"]
    assert ratio(tree(layer, got)[0], ErrArray(want["y"].v, want["y"].b + limit.b)) <= 1


@pytest.mark.parametrize("fields", [{}, {"rotary_dim": 6}, {"use_bias": False, "rotary_dim": 2}])
def test_layouts_are_columns_in_another_order(tree: Tree, fields: dict[str, Any]) -> None:
    config, w, inputs = placed(**fields)
    other = replace(config, rope_layout="interleaved")
    moved = dict(w)
    for name in ("w_q", "w_k", "b_q", "b_k"):
        if name in w:
            moved[name] = rotary_layout(w[name], "half", "interleaved", config.rotary_dim)
            assert same(rotary_layout(moved[name], "interleaved", "half", config.rotary_dim), w[name])
            assert not same(moved[name], w[name]) or config.rotary_dim == 2
    want, limit = bounded(config, inputs, w), bounded(other, inputs, moved)
    found = tree(layer_of(tree, other, moved), inputs, return_weights=True)
    for name, x in zip(("y", "out1"), found, strict=True):
        assert ratio(x, ErrArray(want[name].v, want[name].b + limit[name].b)) <= 1, name


def test_columns_of_a_layout() -> None:
    w = np.arange(7.0)[None]
    assert rotary_layout(w, "half", "interleaved", 6).tolist() == [[0, 3, 1, 4, 2, 5, 6]]
    assert rotary_layout(w, "interleaved", "half", 6).tolist() == [[0, 2, 4, 1, 3, 5, 6]]
    assert rotary_layout(w, "half", "half", 6).tolist() == w.tolist()
    with pytest.raises(ValueError, match="rotary_layout: expected target to be one of half, interleaved, got 'neox'"):
        rotary_layout(w, "half", "neox", 6)
    with pytest.raises(ValueError, match="rotary_layout: expected rotary_dim to be even, from 2 to 7, got 7"):
        rotary_layout(w, "half", "interleaved")


@pytest.mark.parametrize("scaling", ["dynamic", "longrope"])
@pytest.mark.parametrize("package", PACKAGES)
def test_a_cache_plans_for_its_room(package: str, scaling: str) -> None:
    """Steps into a cache for 11 positions are the first of a full pass over 11."""
    kinds: dict[str, dict[str, Any]] = {
        "dynamic": {"rope_scaling_factor": 3.0},
        "longrope": {"short_factor": (1.0, 1.5, 2.0), "long_factor": (1.5, 3.0, 9.0), "rope_scaling_factor": 3.0},
    }
    config = Config(
        d_model=7,
        num_heads=3,
        head_dim=6,
        causal=True,
        rope_scaling=scaling,
        original_max_positions=5,
        **kinds[scaling],
    )
    x, w, found = normal(2, 11, 7), weights_of(config), []
    tree = TREES[package.removeprefix("attn_").replace("np", "numpy")]
    layer = layer_of(tree, config, w)
    cache = layer.init_cache(2, 11, dtype="float64")
    for piece in (slice(0, 3), slice(3, 4)):
        y, cache = layer.step(tree.array(x[:, piece]), cache)
        found.append(tree.numpy(y))
    want = bounded(config, {"query": x}, w)["y"]
    assert ratio(np.concatenate(found, axis=1), want[:, :4]) <= 1
    assert ratio(want[:, :4].v, bounded(config, {"query": x[:, :4]}, w)["y"]) > 1


def test_positions_beyond_the_table() -> None:
    """An error where they are known; under jit NaN, never another position's angles."""
    config, w, inputs = placed()
    inputs["positions"] = inputs["positions"] + np.array([[0], [81]])
    for tree in TREES.values():
        layer = layer_of(tree, config, w)
        with pytest.raises(ValueError) as caught:
            layer(**tree.arrays(inputs))
        fix = "count from 0, and set max_positions= above the largest"
        assert str(caught.value) == f"rotary: expected positions from 0 to 100, got 0 to 101; {fix}"
        with pytest.raises(ValueError, match="rotary: expected positions from 0 to 100, got -1 to 100; count from 0"):
            layer(**tree.arrays(inputs | {"positions": inputs["positions"] - 1}))
    layer = layer_of(TREES["jax"], config, w)
    y = np.asarray(jax.jit(lambda x, places: layer(x, positions=places))(inputs["query"], inputs["positions"]))
    assert np.isfinite(y[0]).all()
    assert np.isnan(y[1]).all()


# PyTorch's complex numbers --------------------------------------------------------------------------------------------


def test_torch_complex_products() -> None:
    """As Llama's reference code turns pairs: outputs and gradients."""
    config, w, inputs = placed(rope_layout="interleaved")
    leaves = {name: torch.from_numpy(p).requires_grad_() for name, p in w.items()}
    x = torch.from_numpy(inputs["query"]).requires_grad_()
    angles = torch.from_numpy(inputs["positions"])[..., None] * 10000.0 ** (-torch.arange(0, 8, 2).double() / 8)
    turn = torch.polar(torch.ones_like(angles), angles)[:, None]
    q, k, v = (torch.einsum("btd,dhk->bhtk", x, leaves[f"w_{n}"]) + leaves[f"b_{n}"][:, None] for n in "qkv")
    q, k = (
        torch.view_as_real(torch.view_as_complex(part.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)
        for part in (q, k)
    )
    found = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    y = torch.einsum("bhtv,hvd->btd", found, leaves["w_o"]) + leaves["b_o"]
    want = bounded(config, inputs, w)
    assert ratio(y.detach(), want["y"]) <= 1
    for name, grad in torch_gradients(y, query=x, **leaves).items():
        assert ratio(grad, want[name]) <= 1, name


# Fields ---------------------------------------------------------------------------------------------------------------

YARN: dict[str, Any] = {"rope_scaling": "yarn", "rope_scaling_factor": 2.0, "original_max_positions": 8}
LONG: dict[str, Any] = {"rope_scaling": "longrope", "short_factor": (1.0,) * 4, "long_factor": (2.0,) * 4}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "odd": ({"rotary_dim": 5}, "an even number of rotated dimensions, got 5"),
    "wide": ({"rotary_dim": 10}, "rotary_dim of at most the head's width 8, got 10"),
    "base": ({"rope_base": 1.0}, "rope_base to be a finite int or float above 1.0, got 1.0"),
    "layout": ({"rope_layout": "neox"}, "rope_layout to be one of half, interleaved, got 'neox'"),
    "kind": (
        {"rope_scaling": "ntk"},
        "rope_scaling to be one of None, 'linear', 'dynamic', 'yarn', 'llama3', 'longrope'",
    ),
    "needed": (
        {"rope_scaling": "linear"},
        "rope_scaling_factor for rope_scaling='linear', got none; set rope_scaling_factor=",
    ),
    "unused": (
        {"rope_scaling_factor": 2.0},
        "no rope_scaling_factor for rope_scaling=None, got 2.0; leave rope_scaling_factor out",
    ),
    "flag": ({"yarn_truncate": False}, "no yarn_truncate for rope_scaling=None, got False; leave yarn_truncate out"),
    "foreign": (YARN | {"low_freq_factor": 1.0}, "no low_freq_factor for rope_scaling='yarn', got 1.0"),
    "ramp": (
        YARN | {"rope_scaling": "llama3", "low_freq_factor": 4.0, "high_freq_factor": 1.0},
        "low_freq_factor below high_freq_factor, got 4.0 and 1.0",
    ),
    "few": (
        LONG | {"original_max_positions": 8, "long_factor": (2.0,) * 3},
        "long_factor to be 4 finite numbers above 0, got (2.0, 2.0, 2.0)",
    ),
    "one": (
        LONG | {"original_max_positions": 1, "rope_scaling_factor": 2.0},
        "original_max_positions of at least 2, got 1",
    ),
    "pair": (
        YARN | {"rope_scaling": "dynamic", "rotary_dim": 2},
        "more than one rotated pair for rope_scaling='dynamic', got 1",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_fields_that_do_not_go_together(why: str) -> None:
    fields, words = REFUSED[why]
    with pytest.raises(ValueError) as caught:
        Config(**WIDE | {"num_heads": 2}, **fields)
    assert str(caught.value).startswith(f"rotary: expected {words}")


def test_positions_need_a_limit(tree: Tree) -> None:
    config = Config(d_model=6, num_heads=1)
    with pytest.raises(ValueError) as caught:
        tree(layer_of(tree, config, weights_of(config)), {"query": normal(1, 2, 6), "positions": np.array([[3, 4]])})
    assert str(caught.value) == (
        "rotary: expected no positions without max_positions, got some; set max_positions= above the largest position"
    )
