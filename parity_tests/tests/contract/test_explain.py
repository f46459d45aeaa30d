"""`explain` says which path a call took and why, in the three trees."""

import sys
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
import pytest

from attn_np.contract._attend import IMPLEMENTATIONS, takes_fast_path, why_textbook
from attn_np.contract._explain import CONDITIONS, PATHS
from parity_tests.tests.inputs import Tree

FAST, TEXTBOOK = "contract._attend.takes_fast_path is ", "attention.attend.textbook_attend"
KERNEL = ["attention.attend.run_fast_path", "kernels.flash.attend"]
AT_ONCE = {
    "numpy": [*KERNEL, "kernels.flash.fits_one_block is True"],
    "jax": [*KERNEL, "kernels.cudnn.cudnn_supports is False", "kernels.flash._plan.has_one_block is True"],
    "torch": [
        *KERNEL,
        "kernels.flash.few_scores is True",
        "kernels.sdpa.under_transform is False",
        "kernels.sdpa.supports is True",
        "kernels.sdpa.attend",
    ],
}
IN_BLOCKS = {
    "numpy": [*KERNEL, "kernels.flash.fits_one_block is False"],
    "jax": [*KERNEL, "kernels.flash._plan.has_one_block is False"],
    "torch": [
        *KERNEL,
        "kernels.flash.few_scores is False",
        "kernels.small.has_tangent is False",
        "kernels.blocks.blocks_forward",
    ],
}


def told(tree: Tree, positions: int = 5, **options: Any) -> list[str]:
    """The lines of a call of `attend`, without the words about paths."""
    x = tree.array(np.ones((2, positions, 3, 4), np.float32))
    options = {name: tree.array(value) if isinstance(value, np.ndarray) else value for name, value in options.items()}
    return [
        line.partition(":")[0] if " is " not in line else line
        for line in explain(tree)(tree.package.attend, x, x, x, **options)
    ]


def explain(tree: Tree) -> Any:
    return tree.package.explain


def test_a_plain_call(tree: Tree) -> None:
    """Also when what it runs is compiled already."""
    for _ in range(2):
        assert told(tree) == [f"{FAST}True", *AT_ONCE[tree.name]]


def test_a_long_call(tree: Tree) -> None:
    assert told(tree, 1536, softcap=2.0) == [f"{FAST}True", *IN_BLOCKS[tree.name]]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"return_weights": True}, "return_weights"),
        ({"normalize_over": "queries"}, "normalize_over='queries'"),
        ({"softmax_fn": lambda scores, mask: scores}, "softmax_fn"),
        ({"keep": np.ones((5, 5), bool)}, "keep"),
        ({"tape": {}}, "a tape"),
        ({"implementation": "textbook", "return_weights": True}, "return_weights and implementation='textbook'"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_the_textbook_is_taken_for(tree: Tree, options: dict[str, Any], why: str) -> None:
    assert told(tree, **options) == [f"{FAST}False: {why}", TEXTBOOK]


def test_a_layer(tree: Tree) -> None:
    """Of which each part goes its way; one with a single way says nothing."""
    x = tree.array(np.ones((2, 5, 12), np.float32))
    layer = tree.package.build("gla", d_model=12, num_heads=3)
    assert explain(tree)(layer, x) == ["recurrence.rules.chunked_form: a recurrence chunk by chunk"]
    assert explain(tree)(tree.package.build("gru", input_dim=12, hidden_dim=3), x) == []


def test_there_is_a_reason_where_the_fast_path_is_not_taken() -> None:
    """And none where it is, for every call that is not refused."""
    count = 0
    for implementation, tape, supported, weights, over, function, keep in product(
        IMPLEMENTATIONS, (None, {}), (True, False), (True, False), ("keys", "queries"), (None, len), (None, 1)
    ):
        call: Any = {"return_weights": weights, "normalize_over": over, "softmax_fn": function, "keep": keep}
        call |= {"implementation": implementation, "tape": tape, "supported": supported}
        try:
            fast = takes_fast_path(**call)
        except ValueError:
            continue
        assert fast == (not why_textbook(**call)), call
        count += 1
    assert count == 2 * 64 + 2  # "fused" refuses all but two


def test_what_it_looks_for_exists() -> None:
    """Each path and condition is a function of a package."""
    for name in (*PATHS, *CONDITIONS):
        room, _, function = name.partition(".<locals>.")[0].rpartition(".")
        room, _, owner = room.rpartition(".") if room.rpartition(".")[2][0].isupper() else (room, "", "")
        found = []
        for package in ("attn_np", "attn_jax", "attn_torch"):
            try:
                module = import_module(f"{package}.{room}")
            except ModuleNotFoundError:
                continue
            found.append(hasattr(getattr(module, owner, None) if owner else module, function))
        assert any(found), name


def test_a_profiler_goes_on(tree: Tree) -> None:
    """Also where the call raises."""
    seen: list[str] = []
    before = sys.getprofile()

    def profiler(frame: Any, event: str, answer: Any) -> None:
        seen.append(event)

    sys.setprofile(profiler)
    try:
        with pytest.raises(TypeError):
            explain(tree)(len, 1)
        kept = sys.getprofile()
    finally:
        sys.setprofile(before)
    assert kept is profiler
