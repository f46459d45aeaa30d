"""The fast paths of `attend`: a share of all combinations before the judge, and planted bugs that it must see."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, permutations
from typing import Any

import jax
import numpy as np
import pytest

from attn_jax.kernels import flash as in_jax
from attn_np.contract._intervals import TruthBounds
from attn_np.kernels import flash as in_numpy
from attn_torch.kernels import blocks as torch_blocks
from attn_torch.kernels import flash as in_torch
from parity_tests.judge import kernels
from parity_tests.judge.frameworks import DTYPES

# Of the combinations in which every three switches meet, how many in small blocks and in the path's own.
MOST = {"numpy": (None, 19), "torch": (None, 19), "jax": (6, 4)}
# Blocks and types, by name. In small blocks some types are asked by default; in the path's own all are.
TYPES = {"numpy": ("float64",), "torch": ("float64", "bfloat16"), "jax": ("float64",)}
ROWS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    **{f"{name} in small blocks": (name, 0, types) for name, types in TYPES.items()},
    **{f"{n} in small blocks, more types": (n, 0, tuple(x for x in DTYPES if x not in TYPES[n])) for n in TYPES},
    **{f"{name} in its own blocks": (name, 1, DTYPES) for name in TYPES},
}


@pytest.mark.parametrize("row", ROWS)
def test_fast_paths_keep_the_bounds_of_the_textbook(row: str) -> None:
    """In small blocks, and in the path's own."""
    framework, seed, dtypes = ROWS[row]
    numbers = kernels.spread()[: MOST[framework][seed]]
    found = kernels.work(((framework,), dtypes, seed, numbers))
    assert not found.alarms, "\n".join(found.alarms)
    if framework != "jax":
        assert {dtype for _, dtype in found.figures} == set(dtypes)
        assert sum(figures.calls for figures in found.figures.values()) == len(numbers) * len(dtypes) * len(
            (kernels.OWN if seed else kernels.SMALL)[framework]
        )


@pytest.mark.parametrize("ratios", [*permutations((0.5, float("nan"), 0.25))])
def test_what_is_not_a_number_is_the_worst(ratios: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever array it is the ratio of, in the figures as among the alarms."""
    verdicts = {str(i): {"ratio": x} for i, x in enumerate(ratios)}
    monkeypatch.setattr(kernels, "judge", lambda *_: verdicts)
    found = kernels.work((("numpy",), ("float64",), 0, (0,)))
    assert found.figures["numpy", "float64"].worst == float("inf")
    assert len(found.alarms) == len(kernels.SMALL["numpy"])


# Seeds, the even ones in small blocks, and which half of the combinations.
HALVES = {f"seed {seed}, half {half}": (seed, half) for seed in range(2, 6) for half in (0, 1)}


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("row", HALVES)
def test_plain_calls_keep_them_too(framework: str, row: str) -> None:
    """Every combination of heads, padding and windows alone: those that go the shortest ways.

    By default one half in small blocks, the other in the path's own; of all rows each twice in both.
    """
    seed, half = HALVES[row]
    every = enumerate(kernels.combinations())
    numbers = [n for n, asked in every if not (asked.bias or asked.softcap or asked.sinks) and len(asked.mask) < 5]
    dtype = "float32" if seed in (2, 4, 5) else "float64"
    found = kernels.work(((framework,), (dtype,), seed, tuple(numbers[half::2])))
    assert not found.alarms, "\n".join(found.alarms)


def test_every_three_switches_meet() -> None:
    """Of all combinations; in the first 19 every two do, and in the first 6 all of their values stand."""
    every = [vars(asked) for asked in kernels.combinations()]
    assert len(set(kernels.combinations())) == len(every) == 4 * 3 * 2 * 3 * 2 * (2 * 3 + 1)
    for count, most in ((3, None), (2, 19), (1, 6)):
        met = [
            {some for n in numbers for some in combinations(every[n].items(), count)}
            for numbers in (range(len(every)), kernels.spread()[:most])
        ]
        assert met[0] == met[1], count


def test_what_is_drawn_is_what_is_asked() -> None:
    for number, asked in enumerate(kernels.combinations()):
        call = kernels.drawn(number, 3, "float64")
        given = {"mask": asked.mask, "bias": asked.bias, "sinks": asked.sinks}
        assert {name for name, x in given.items() if x} == set(call.inputs) - set("qkv")
        assert call.options["causal"] == asked.causal
        assert (call.options["softcap"] is not None) == asked.softcap
        assert (call.options["window"] is not None) == bool(asked.window)
        assert (call.inputs["q"].ndim == 3) == (asked.heads == "none")
        again = kernels.drawn(number, 3, "float64")
        assert all(np.array_equal(x, again.inputs[name], equal_nan=True) for name, x in call.inputs.items())


def one_key_ahead(patch: pytest.MonkeyPatch) -> None:
    outside = in_numpy.outside_window
    patch.setattr(in_numpy, "outside_window", lambda t, s, first, left, right: outside(t, s, first - 1, left, right))


def the_top_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """In the backward pass the weights are relative to 0."""
    backward: Any = in_numpy.backward
    forgotten = lambda result, *rest: backward(replace(result, row_shift=0 * result.row_shift), *rest)  # noqa: E731
    patch.setattr(in_numpy, "backward", forgotten)


def a_key_too_far(patch: pytest.MonkeyPatch) -> None:
    limits_of = in_torch.limits_of
    wider: Callable[..., Any] = lambda *given: tuple(n if n is None else n + 1 for n in limits_of(*given))  # noqa: E731
    patch.setattr(in_torch, "limits_of", wider)


def an_overlap_is_counted_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(in_jax.Plan, "ragged", (False, False))


def skipping(table: Callable[..., TruthBounds]) -> Callable[..., TruthBounds]:
    """`block_table`, but the first block of keys that the pattern may show is taken for hidden."""

    def changed(*args: Any, **options: Any) -> TruthBounds:
        known = table(*args, **options)
        return TruthBounds(possible=known.possible & (known.possible.cumsum(-1) > 1), certain=known.certain)

    return changed


def unmasked(table: Callable[..., TruthBounds]) -> Callable[..., TruthBounds]:
    """`block_table`, but a block that the pattern may show in part is taken for one that it surely shows whole."""

    def changed(*args: Any, **options: Any) -> TruthBounds:
        known = table(*args, **options)
        return TruthBounds(possible=known.possible, certain=known.possible)

    return changed


def a_block_too_few_in_numpy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(in_numpy, "block_table", skipping(in_numpy.block_table))


def a_block_too_few_in_torch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch_blocks, "block_table", skipping(torch_blocks.block_table))


def a_block_too_few_in_jax(patch: pytest.MonkeyPatch) -> None:
    key_loop = in_jax._key_loop

    def shorter(plan: Any, *given: Any) -> Callable[[Any], Any]:
        loop = key_loop(plan, *given)
        return loop if plan.pattern is None else lambda i: (loop(i)[0], loop(i)[1] - 1, loop(i)[2])

    patch.setattr(in_jax, "_key_loop", shorter)


def an_edge_without_its_mask(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(in_numpy, "block_table", unmasked(in_numpy.block_table))


def positions_from_the_block_on(patch: pytest.MonkeyPatch) -> None:
    pairs = torch_blocks.visible_pairs
    patch.setattr(torch_blocks, "visible_pairs", lambda pattern, at, keys: pairs(pattern, at - at[:, :1], keys))


PLANTED = {
    one_key_ahead: ("numpy", "causal", True),
    the_top_is_forgotten: ("numpy", "bias", "scores"),
    a_key_too_far: ("torch", "window", "before"),
    an_overlap_is_counted_twice: ("jax", "causal", True),
    a_block_too_few_in_numpy: ("numpy", "heads", "own"),
    a_block_too_few_in_torch: ("torch", "heads", "own"),
    a_block_too_few_in_jax: ("jax", "heads", "own"),
    an_edge_without_its_mask: ("numpy", "heads", "own"),
    positions_from_the_block_on: ("torch", "heads", "own"),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a planted bug may overflow
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_raises_an_alarm(plant: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    framework, name, value = PLANTED[plant]
    # Half of the calls have a pattern.
    asking = [n for n, asked in enumerate(kernels.combinations()) if getattr(asked, name) == value][5::31]
    plant(monkeypatch)
    jax.clear_caches()  # what was compiled before has no bug, and what is now must not stay
    found = kernels.work(((framework,), ("float64",), 0, tuple(asking[: 2 if framework == "jax" else None])))
    jax.clear_caches()
    assert any(f"({name}" in line or f", {name}" in line for line in found.alarms), found
