"""`attn_np.parallel` against one device: every function, layout and option, forward and backward, and planted bugs."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest

import attn_np
import attn_np.kernels.flash as kernels
from attn_np import contract, patterns
from attn_np.attention.masks import block_table
from attn_np.contract._band import Span
from attn_np.parallel import from_devices, positions, to_devices
from parity_tests.mistakes import Mutant, planted
from parity_tests.tests.parallel import cases, layer_cases
from parity_tests.tests.parallel.cases import CALLS, FUNCTIONS, LAYOUTS, RECURRENCES, Arrays, cut, cut_axis, joined
from parity_tests.tests.witness import ratio

DEVICES = 4


def attention(function: str, layout: str, call: str, package: Any = attn_np) -> Arrays:
    """The results of all devices, joined, and the gradients of every float."""
    asked, (arrays, _) = CALLS[call], cases.held(call)
    parts = {name: cut(x, cut_axis(name), DEVICES, layout) for name, x in arrays.items()}
    options: dict[str, Any] = asked.options | {name: parts[name] for name in asked.arrays.split()}
    options |= {"pattern": asked.pattern and asked.pattern(parts), "layout": layout, "return_lse": True}
    inputs = (parts[name] for name in "qkv")
    (y, lse), pull = package.value_and_vjp(getattr(package.parallel, function), *inputs, **options)
    grads = pull(parts["dy"], parts["dlse"]).inputs
    found = {"y": y, "lse": lse} | {f"d{name}": x for name, x in grads.items()}
    return {name: joined(x, cut_axis(name), layout) for name, x in found.items()}


def recurrence(call: str, package: Any = attn_np, **options: Any) -> Arrays:
    arrays, _ = cases.held_recurrence(call)
    parts = {n: cut(x, cases.recurrence_axis(call, n), DEVICES, "contiguous") for n, x in arrays.items()}
    dy, dlast = parts.pop("dy"), parts.pop("dlast")
    (y, last), pull = package.value_and_vjp(package.parallel.recur, **parts, rule=RECURRENCES[call][0], **options)
    found = {"y": y, "last": last} | {f"d{name}": x for name, x in pull(dy, dlast).inputs.items()}
    return {name: joined(x, cases.recurrence_axis(call, name), "contiguous") for name, x in found.items()}


def worst(found: Arrays, want: dict[str, Any]) -> dict[str, float]:
    """The largest error/bound of each result."""
    assert set(found) == set(want)
    return {name: ratio(x, want[name]) for name, x in found.items()}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_attention_agrees_with_one_device(function: str, layout: str, call: str) -> None:
    ratios = worst(attention(function, layout, call), cases.held(call)[1])
    assert max(ratios.values()) <= 1, ratios


@pytest.mark.parametrize("form", ["recurrent", "chunked"])
@pytest.mark.parametrize("call", RECURRENCES)
def test_recurrences_agree_with_one_device(call: str, form: str) -> None:
    ratios = worst(recurrence(call, form=form, chunk_size=5), cases.held_recurrence(call)[1])
    assert max(ratios.values()) <= 1, ratios


@pytest.mark.parametrize("layer", layer_cases.layers())
def test_a_layer_over_devices_is_that_of_one(layer: str) -> None:
    """Forward; each device is a row of the batch."""
    variant, example, layout, *_ = layer.split("/")
    config = contract.examples(variant)[example]
    arrays, want = layer_cases.held_layer(layer)
    build: Any = attn_np.build
    one = build(variant, dtype="float64", **{name: getattr(config, name) for name in config.fields()})
    one.set_params({name: arrays[name] for name in config.shapes()})
    axes = {name: cases.position_axis(config, name) for name in config.arguments() if name in arrays}
    assert all(axis in (None, 1) for axis in axes.values())
    given: dict[str, Any] = {
        n: arrays[n] if axis is None else to_devices(arrays[n], devices=4, layout=layout) for n, axis in axes.items()
    }
    numbers = arrays.get("numbers")
    given |= layer_cases.packed(None if numbers is None else to_devices(numbers, devices=4, layout=layout))
    if "out1" in want and numbers is None:
        y, weights = attn_np.parallel.apply(one, **given, layout=layout, return_weights=True)
        assert weights.shape[:3] == y.shape[:2] + weights.shape[2:3]
    y = attn_np.parallel.apply(one, **given, layout=layout)
    assert ratio(from_devices(y, layout=layout), want["y"]) <= 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str) -> None:
    """What each of three devices has of twelve positions, by hand; arrays of any kind are cut and joined by it."""
    by_hand = {
        "contiguous": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]],
        "zigzag": [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]],
        "striped": [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]],
    }[layout]
    assert positions(4, devices=3, layout=layout).tolist() == by_hand
    for x in (np.arange(24).reshape(2, 12), np.arange(24 * 7).reshape(2, 12, 7) > 50):
        parts = to_devices(x, devices=3, layout=layout)
        assert all(np.array_equal(parts[i], x[:, by_hand[i]]) for i in range(3))
        assert np.array_equal(from_devices(parts, layout=layout), x)


@pytest.mark.parametrize(
    ("pattern", "layout", "least", "most"),
    [
        (patterns.Causal(), "contiguous", 0.5625, 7.5625),
        (patterns.Causal(), "zigzag", 4.0625, 4.0625),
        (patterns.Causal(), "striped", 4.5, 4.5),
        (patterns.Window(1000, 0), "zigzag", 0.71875, 1.125),
    ],
)
def test_hidden_blocks_are_skipped_on_every_device(
    pattern: patterns.Pattern, layout: str, least: float, most: float
) -> None:
    """How many of 8 shards each device computes in all turns of a ring, by blocks of 128 queries and 64 keys."""
    n, t = 8, 1024
    place, work = positions(t, devices=n, layout=layout), np.zeros((n, n))
    for device, source in np.ndindex(n, n):
        at = patterns.At(pattern, place[device][None], place[source][None])
        work[device, source] = block_table(at, t, t, 128, 64, np.zeros(1)).possible.mean()
    assert (work.sum(1).min(), work.sum(1).max()) == (least, most)


def test_a_kernel_computes_the_blocks_of_a_shard_that_are_in_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted where the kernel asks for keys: what the first of four devices does in a causal zigzag."""
    counted, real, n, t = list[int](), kernels.keys_of_pattern, 4, 2048

    def counting(args: Any, block: Any, max_keys: int) -> Iterator[Any]:
        for keys in real(args, block, max_keys):
            size = keys.length if isinstance(keys, Span) else len(keys)
            counted.append(size * block.queries.length)
            yield keys

    monkeypatch.setattr(kernels, "keys_of_pattern", counting)
    place, x = positions(t, devices=n, layout="zigzag"), np.random.default_rng(0).normal(size=(1, t, 1, 4))
    for source in range(n):
        attn_np.attend(x, x, x, pattern=patterns.At(patterns.Causal(), place[:1], place[source : source + 1]))
    # Half of what there is, and the other half of the blocks of 64 queries and 64 keys along the diagonal.
    assert sum(counted) == n * t**2 / 2 + t * 64 / 2


def test_positions_of_their_own_are_those_of_the_whole() -> None:
    """`At`, with queries and keys in any order, combined with others, in blocks and at once."""
    rng = np.random.default_rng(1)
    x: Any = {name: rng.normal(size=(2, 300, 2, 4)) for name in "qkv"}
    whole = attn_np.attend(**x, causal=True, window=40)[0]
    order, keys = (np.stack([rng.permutation(300) for _ in range(2)]) for _ in range(2))
    put: Any = {
        name: np.take_along_axis(x[name], (order if name == "q" else keys)[..., None, None], 1) for name in "qkv"
    }
    at = patterns.At(patterns.Window(40, 0), order, keys)
    want = np.take_along_axis(whole, order[..., None, None], 1)
    for pattern in (at, at & patterns.Chunks(1000), patterns.At(patterns.Causal(), order, keys) & at):
        for path in ("fused", "textbook"):
            y = attn_np.attend(**put, pattern=pattern, implementation=path)[0]
            assert np.abs(y - want).max() <= 300 * np.finfo(float).eps


@dataclass(frozen=True)
class Planted:
    """A mistake: where it shows, the file of `attn_np/parallel` that has it, and the edit."""

    function: str
    call: str
    result: str
    file: str
    old: str
    new: str


MERGED = "parts = [merge([*parts, part])]"
MISTAKES = {
    "sinks counted once for each part": Planted(
        "ring_attend", "sinks", "y", "attention.py", MERGED,
        "parts = [merge([*parts, part, *([] if sinks is None else [sink_part(part, sinks)])])]",
    ),
    "causality counted from the first query of a shard": Planted(
        "ring_attend", "causal", "y", "visibility.py", "as_rows(query_positions + start)",
        "as_rows(query_positions - query_positions.min(2)[..., None] + start)",
    ),
    "each shard sees itself alone": Planted(
        "ring_attend", "plain", "y", "messages.py", "return np.roll(x, 1, 0)", "return x",
    ),
    "parts averaged without their lse": Planted(
        "ring_attend", "plain", "y", "attention.py", MERGED,
        "parts = [part if not parts else ((parts[0][0] + part[0]) / 2, merge([*parts, part])[1])]",
    ),
    "states not passed on": Planted(
        "recur", "linear", "y", "recurrence.py", "after = A_i @ after + B_i", "after = B_i",
    ),
    "a last state without the first": Planted(
        "recur", "linear, a state", "last", "recurrence.py", " if state is None else upcast(state)", "",
    ),
    "gradients that stay where they arose": Planted(
        "ring_attend", "causal", "dk", "attention.py", "to_next(dk + dk_part), to_next(dv + dv_part)",
        "dk + dk_part, dv + dv_part",
    ),
    "the weight of a part left out of its gradient": Planted(
        "ring_attend", "causal", "dv", "attention.py", "[..., None] * dy, np", "[..., None] ** 0 * dy, np",
    ),
    "the gradient of a part's lse left out": Planted(
        "ring_attend", "causal", "dq", "attention.py", "0.0, weight * gain)", "0.0, 0 * gain)",
    ),
    "the gradient of the lse left out": Planted(
        "ring_attend", "causal", "dq", "attention.py", "else gain + dlse", "else gain",
    ),
    "gradients of copies not summed": Planted(
        "gather_attend", "plain", "dk", "messages.py", "np.sum(dx, 0)", "dx[0]",
    ),
    "gradients of states not passed back": Planted(
        "recur", "linear", "dk", "recurrence.py", "@ dafter + dbefore[i]", "@ dafter",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_seen(mistake: str) -> None:
    planned = MISTAKES[mistake]
    mutant = Mutant(mistake, f"parallel/{planned.file}", planned.old, planned.new, "", "")
    with planted(mutant, "attn_np") as alias:
        package = __import__(alias)
        if planned.function == "recur":
            found, want = recurrence(planned.call, package), cases.held_recurrence(planned.call)[1]
        else:
            found, want = attention(planned.function, "contiguous", planned.call, package), cases.held(planned.call)[1]
    assert not ratio(found[planned.result], want[planned.result]) <= 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_narrow_types_are_returned_and_computed_in_float32(dtype: str) -> None:
    """A part's context is rounded before it is merged, and the whole once: twice half a unit in the last place."""
    arrays, want = cases.held("causal")
    parts: Any = {n: cut(arrays[n].astype(dtype), 1, DEVICES, "zigzag") for n in "qkv"}
    wide = [arrays[n].astype(dtype).astype(np.float64) for n in "qkv"]
    exact = attn_np.attend(*wide, causal=True)[0]
    y = attn_np.parallel.ring_attend(**parts, causal=True, layout="zigzag")
    assert y.dtype == dtype
    largest, unit = np.abs(arrays["v"]).max(), np.finfo(dtype).eps
    assert np.abs(joined(y, 1, "zigzag") - exact).max() <= (2 if dtype == "float16" else 50) * unit * largest
    assert want


def test_hidden_keys_influence_nothing() -> None:
    """Even NaN, beyond the lengths, on a device of their own and beside others."""
    x = np.random.default_rng(0).normal(size=(2, 16, 2, 3))
    k, lengths = x.copy(), np.array([3, 9])
    k[0, 3:] = k[1, 9:] = np.nan
    for function, layout in product(FUNCTIONS[:2], LAYOUTS):
        call = getattr(attn_np.parallel, function)
        q, dirty, clean = (to_devices(z, devices=4, layout=layout) for z in (x, k, np.nan_to_num(k)))
        y, pull = attn_np.value_and_vjp(call, q, dirty, dirty, lengths=lengths, layout=layout, causal=True)
        want, pull_clean = attn_np.value_and_vjp(call, q, clean, clean, lengths=lengths, layout=layout, causal=True)
        assert np.array_equal(y, want)
        for name, grad in pull(y).inputs.items():
            assert np.array_equal(grad, pull_clean(y).inputs[name]), (function, layout, name)
