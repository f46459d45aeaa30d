"""Keys beyond a distance by plain attention, the others by their own scores: together what all pairs give at once."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import jax
import numpy as np
import pytest
import torch

from parity_tests.judge import kernels
from parity_tests.tests.inputs import TREES, Arrays, Tree
from parity_tests.tests.kernels.test_rows import in_small_blocks
from parity_tests.tests.mutation.checks_far import CASES, SCALE, by_numpy, drawn, expected, functions, parts_of
from parity_tests.tests.witness import cotangent, ratio


def found(tree: Tree, case: str) -> Arrays:
    """What a tree gives, forward and backward."""
    package, arrays = tree.package.__name__, drawn(case)
    if tree.name == "numpy":
        return by_numpy(package, case)
    _, _, limit, causal, _ = CASES[case]
    floats = {name: x for name, x in arrays.items() if x.dtype == float}
    masks = {"mask": None, "bias": None} | tree.arrays({n: x for n, x in arrays.items() if n not in floats})

    def call(floats: dict[str, Any]) -> Any:
        f, others = functions(package), dict(floats)
        parts = parts_of(f, case, others.pop("of_keys"), others.pop("of_values"))
        options: Any = {"limit": limit, "causal": causal, "scale": SCALE} | masks
        q, k, v = (others.pop(name) for name in "qkv")
        return f.attend_near_and_far(*parts, None, q, k, v, **options | others)

    dy = cotangent(arrays["q"].shape)
    if tree.name == "torch":
        leaves = {name: x.requires_grad_() for name, x in tree.arrays(floats).items()}
        context = call(leaves)
        grads = torch.autograd.grad(context, list(leaves.values()), tree.array(dy), allow_unused=True)
        grads = dict(zip(leaves, grads, strict=True))
    else:

        @jax.jit
        def both(floats: Any) -> Any:
            context, pull = jax.vjp(call, floats)
            return context, pull(dy)[0]

        context, grads = both(tree.arrays(floats))
    results = {"context": context} | {f"d{name}": x for name, x in grads.items()}
    return {name: tree.numpy(x) for name, x in results.items()}


def ratios(tree: Tree, case: str) -> dict[str, float]:
    want, got = expected(tree.name, case), found(tree, case)
    assert set(got) == set(want)
    return {name: ratio(x, want[name]) for name, x in got.items()}


# JAX compiles each call.
ASKED = [(name, case) for name in TREES for case in CASES if name != "jax" or case == "more queries than keys"]


@pytest.mark.parametrize(("name", "case"), ASKED)
def test_near_and_far_keys_are_all_keys(name: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = TREES[name]
    in_small_blocks(monkeypatch, name)
    assert max(ratios(tree, case).values()) <= 1
    if name != "jax":
        with kernels.blocks(tree.package.__name__, kernels.SMALL[name][0]):
            worst = ratios(tree, case)
        assert max(worst.values()) <= 1, worst


def a_far_key_twice(far: Any, patch: pytest.MonkeyPatch) -> None:
    real = far.attend_in_row_blocks
    patch.setattr(
        far, "attend_in_row_blocks", lambda *args, window, **options: real(*args, window=(window[0] + 1, 0), **options)
    )


def the_other_side(far: Any, patch: pytest.MonkeyPatch) -> None:
    real = far.far_sides
    patch.setattr(far, "far_sides", lambda *args: ((name, -n, *rest) for name, n, *rest in real(*args)))


def parts_weigh_alike(far: Any, patch: pytest.MonkeyPatch) -> None:
    real = far.merge
    patch.setattr(far, "merge", lambda parts: real([(context, 0 * lse) for context, lse in parts]))


def one_key_late(far: Any, patch: pytest.MonkeyPatch) -> None:
    relative = import_module(far.__name__.replace("attention.far_keys", "positions.relative"))
    real = relative.diagonals_to_pairs
    if far.__name__.startswith("attn_torch"):
        patch.setattr(relative, "diagonals_to_pairs", lambda x, t, s: real(x.roll(1, -1), t, s))
    else:
        patch.setattr(relative, "diagonals_to_pairs", lambda x, t, s: real(np.roll(x, 1, -1), t, s))


def far_keys_give_the_tables_nothing(far: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(far, "sum_grads", lambda near, far: near)


PLANTED = [
    (name, plant)
    for name, plants in {
        "numpy": (a_far_key_twice, the_other_side, parts_weigh_alike, one_key_late, far_keys_give_the_tables_nothing),
        "torch": (a_far_key_twice, parts_weigh_alike, one_key_late),
        "jax": (the_other_side,),
    }.items()
    for plant in plants
]


@pytest.mark.parametrize(("name", "plant"), PLANTED)
def test_a_planted_bug_is_seen(
    name: str, plant: Callable[[Any, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_blocks(monkeypatch, name)
    plant(import_module(f"{TREES[name].package.__name__}.attention.far_keys"), monkeypatch)
    with kernels.blocks(TREES[name].package.__name__, kernels.SMALL[name][0]), np.errstate(all="ignore"):
        assert not max(ratios(TREES[name], "all keys").values()) <= 1


def second_derivatives(both: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """The gradient of a direction's share of the gradient."""
    scores, along = (torch.from_numpy(cotangent((2, 3, 5)) + i) for i in (0, 1))
    probs, lse = both(scores.requires_grad_())
    (grad,) = torch.autograd.grad((probs**2).sum() + (lse**3).sum(), scores, create_graph=True)
    return torch.autograd.grad((grad * along).sum(), scores)[0]


def test_a_softmax_with_its_lse_has_second_derivatives() -> None:
    """Those of PyTorch's own two functions, up to a few roundings."""
    ops = import_module("attn_torch.ops")
    found = second_derivatives(lambda scores: ops.softmax_and_lse(scores, None))
    want = second_derivatives(lambda scores: (torch.softmax(scores, -1), torch.logsumexp(scores, -1)))
    assert abs(found - want).max() <= 256 * np.finfo(float).eps * abs(want).max()
