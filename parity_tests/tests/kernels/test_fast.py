"""The fast paths of `attend` before the referee for kernels, and planted bugs that it must see."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations, islice
from typing import Any

import jax
import pytest

from attn_jax.kernels import flash as in_jax
from attn_np.contract._intervals import TruthBounds
from attn_np.kernels import flash as in_numpy
from attn_torch.kernels import blocks as torch_blocks
from attn_torch.kernels import flash as in_torch
from parity_tests.judge import kernels
from parity_tests.judge.kernels import ALL, ATTEND, HEADLESS, Fast
from parity_tests.kernels.arrays import FRAMEWORKS
from parity_tests.kernels.calling import Kernel, call
from parity_tests.kernels.drawing import specs
from parity_tests.kernels.likes import Like
from parity_tests.kernels.referee import NARROWEST, Referee, Verdict

# Settings of each tree by their number in `kernels.settings`, and how many cases by default and with `--everything`.
more = partial(pytest.param, marks=pytest.mark.left_out)
CASES = {"numpy": (96, 600), "torch": (64, 600), "jax": (6, 60)}
ROWS = [(tree, n) for tree in CASES for n in range(len(kernels.settings(tree)))]


def verdict(
    tree: str, n: int, cases: int, like: Like = ATTEND, dtypes: tuple[str, ...] = ALL, only: str = ""
) -> Verdict:
    """What the referee says of a fast path, asked in this process; asking ends at the first failure.

    With `only` short cases are asked that have this option.
    """
    fast = Fast(tree, kernels.settings(tree)[n])
    limits = kernels.limits_of(fast, like, dtypes)
    limits = limits.but(options=(only, "unequal lengths"), block=16) if only else limits
    # Without the setting, which would stay in this process.
    plain = Fast(tree)
    kernel = Kernel(plain, like, limits, tree, plain.backward if tree == "numpy" else None)
    referee, names = Referee(kernel, NARROWEST), FRAMEWORKS[tree].prepare(limits)
    asked = (spec for spec in specs(like, limits) if not only or (only in spec.options and spec.t > 2))
    with kernels.blocks(kernels.TREES[tree], fast.setting):
        for spec in islice(asked, cases):
            if referee.judge(spec, call(kernel, spec, names)) is not None:
                break
    return referee.verdict


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")  # of gradients in float16
@pytest.mark.parametrize("like", [ATTEND, HEADLESS], ids=lambda like: like.name)
@pytest.mark.parametrize("tree, n", [(tree, n) if n == 0 else more(tree, n) for tree, n in ROWS])
def test_fast_paths_are_right_kernels(tree: str, n: int, like: Like, request: pytest.FixtureRequest) -> None:
    """In small blocks, and in the path's own."""
    cases = CASES[tree][bool(request.config.getoption("--everything"))]
    found = verdict(tree, n, cases // (1 if like is ATTEND else 2), like)
    assert found.agrees, found.failures[0].words
    assert sum(found.cases.values()) == cases // (1 if like is ATTEND else 2)


def test_every_two_options_meet() -> None:
    """That a call may combine."""
    asked = [spec.options for spec in islice(specs(ATTEND, ATTEND.limits.but(dtypes=("float64",))), 400)]
    met = {two for options in asked for two in combinations(sorted(options), 2)}
    apart = {tuple(sorted(two)) for two in ATTEND.limits.apart}
    assert met >= {*combinations(sorted(ATTEND.takes), 2)} - apart


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


PLANTED: dict[Callable[[pytest.MonkeyPatch], None], tuple[str, str]] = {
    one_key_ahead: ("numpy", "causal"),
    the_top_is_forgotten: ("numpy", "bias"),
    a_key_too_far: ("torch", "window"),
    an_overlap_is_counted_twice: ("jax", "causal"),
    a_block_too_few_in_numpy: ("numpy", "pattern"),
    a_block_too_few_in_torch: ("torch", "pattern"),
    a_block_too_few_in_jax: ("jax", "pattern"),
    an_edge_without_its_mask: ("numpy", "pattern"),
    positions_from_the_block_on: ("torch", "pattern"),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a planted bug may overflow
@pytest.mark.parametrize(
    "plant", [plant if n % 3 == 0 else more(plant) for n, plant in enumerate(PLANTED)], ids=lambda x: x.__name__
)
def test_a_planted_bug_is_seen(plant: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    tree, option = PLANTED[plant]
    asked = partial(verdict, tree, 0, 6 if tree == "jax" else 40, dtypes=("float64",), only=option)
    plant(monkeypatch)
    jax.clear_caches()  # what was compiled before has no bug, and what is now must not stay
    found = asked()
    jax.clear_caches()
    assert found.failures
    assert found.failures[0].kind == "numbers", found.failures[0].words
    monkeypatch.undo()
    assert asked().agrees
