"""The fast paths of `attend` before the referee for kernels, and what other tests of them share.

A fast path has no intermediates to show, so it is judged end to end, as kernels of others are: by the meaning of
`attend` and within the narrowest class of arithmetic of each type. Each tree's kernels run in their own blocks, and in
blocks so small that short sequences fill several, the last in part.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

import attn_np
from attn_np.contract._tape import BackwardTape
from parity_tests.bounds.softmax import recompute
from parity_tests.kernels.likes import ATTEND, Like, inputs
from parity_tests.kernels.limits import Limits, Sizes
from parity_tests.kernels.patterns import PATTERN_KINDS, drawn_pattern
from parity_tests.kernels.referee import NARROWEST, Verdict, judge_kernel

__all__ = ["PATTERN_KINDS", "drawn_pattern"]

# Constants of each tree's kernels, by room and name: blocks that these sizes fill several times, one setting after the
# other. NumPy's hold one head or several, and the weights are powers of 2 or of e, by the processor: all are judged.
POWERS = [{"exp2_is_fast": lambda dtype, fast=fast: fast} for fast in (True, False)]
SMALL: dict[str, list[dict[str, Any]]] = {
    "numpy": [
        *(
            {"BLOCK_QUERIES": 4, "BLOCK_KEYS": 3, "EDGE_QUERIES": 2, "FEW_QUERIES": 0, "PATTERN_KEYS": 2} | powers
            for powers in POWERS
        ),
        {"BLOCK_QUERIES": 4, "BLOCK_KEYS": 50, "EDGE_QUERIES": 2, "MIN_BLOCKS": 1, "PATTERN_KEYS": 3},
    ],
    "torch": [{"SMALL_MAX_SCORES": 0, "blocks.CPU_QUERIES": 3, "blocks.CPU_SCORES": 70, "blocks.PATTERN_KEYS": 2}],
    "jax": [
        {
            "ONE_BLOCK_SCORES": 0,
            "ONE_BLOCK_HEAD_SCORES": 0,
            "SHORT_QUERIES": 0,
            "MAX_ROWS": 6,
            "WINDOW_BLOCK_QUERIES": 2,
            "MIN_KEYS": 3,
            "MIN_PRODUCT_MULTIPLICATIONS": 0,
            "PATTERN_BLOCK": 3,
            "QUERY_PATTERN_BLOCK": 3,
            "QUERY_MULTIPLE": 1,
        },
        {"SHORT_KEY_BLOCK": 3, "SHORT_UNCUT_BLOCKS": 1},
    ],
}
OWN: dict[str, list[dict[str, Any]]] = {"numpy": POWERS, "torch": [{}], "jax": [{}]}


TREES = {"numpy": "attn_np", "torch": "attn_torch", "jax": "attn_jax"}


def visible(
    mask: np.ndarray | None, shape: tuple[int, ...], causal: bool, window: tuple[int | None, int | None] | None
) -> np.ndarray:
    """Which keys every query sees, `b h t s`, from the words of the contract: no code of the trees."""
    t, s = shape[2:]
    left, right = window or (None, None)
    right = 0 if causal else right
    ahead = np.arange(s) - (np.arange(t)[:, None] + s - t)
    found = np.broadcast_to(True if mask is None else mask, shape)
    found = found if left is None else found & (ahead >= -left)
    return found if right is None else found & (ahead <= right)


def by_numpy(
    inputs: Mapping[str, Any], dy: Any, options: Mapping[str, Any], implementation: str, tree: str = "attn_np"
) -> dict[str, Any]:
    module, tape = import_module(f"{tree}.attention.attend"), BackwardTape()
    context, _ = module.attend(**inputs, **options, implementation=implementation, tape=tape)
    recompute(tape)
    backward = {name: options[name] for name in ("scale", "softcap")}
    heads = inputs["k"].shape[2] if len(inputs["k"].shape) == 4 else None
    dq, dk, dv, dbias = module.attend_vjp(tape, dy, **backward, kv_heads=heads)
    found = {"context": context, "dq": dq, "dk": dk, "dv": dv, "dbias": dbias, "dsinks": tape.get("dsinks")}
    return {name: x for name, x in found.items() if x is not None}


def put(tree: str, setting: Mapping[str, Any]) -> dict[str, Any]:
    """Set constants of a tree's kernels; what they were."""
    before = {}
    for place, value in setting.items():
        room, _, name = place.rpartition(".")
        module = import_module(f"{tree}.kernels.{room or 'flash'}")
        before[place] = vars(module)[name]
        setattr(module, name, value)
    return before


@contextmanager
def blocks(tree: str, setting: Mapping[str, Any]) -> Iterator[None]:
    """A tree's kernels with other constants."""
    before = put(tree, setting)
    try:
        yield
    finally:
        put(tree, before)


# Before the referee ---------------------------------------------------------------------------------------------------

ALL = ("float64", "float32", "bfloat16", "float16")
# Queries, keys and values without an axis for heads.
HEADLESS = replace(
    ATTEND,
    name="attend without heads",
    inputs=inputs("btd", "q", "k", "v"),
    options={name: x for name, x in ATTEND.options.items() if name not in ("grouped", "sinks")}
    | {
        "mask": {"mask": "mask if mask.ndim == 2 else mask[:, 0]"},
        "bias": {"bias": ("bias", "bts")},
        "dropout": {"keep": "keep[:, 0]", "rate": "rate"},
    },
    returns={"y": ("out[0]", "btd")},
    limits=ATTEND.limits.but(heads=1, lse_layout="bt"),
)


@dataclass(frozen=True, eq=False)
class Fast:
    """`attend` of a tree by its fast path; a kernel for a process of its own.

    Attributes:
        tree: "numpy", "torch" or "jax".
        setting: constants of its kernels, as of `blocks`.
    """

    tree: str
    setting: Mapping[str, Any] = field(default_factory=dict)

    @property
    def __name__(self) -> str:
        given = ", ".join(f"{name} {x(None) if callable(x) else x}" for name, x in self.setting.items())
        return f"{TREES[self.tree]}.attend" + (f" ({given})" if given else "")

    def __call__(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        installed(self)
        return import_module(TREES[self.tree]).attend(q, k, v, **options, implementation="fused")

    def backward(self, dy: Any, q: Any, k: Any, v: Any, dlse: Any = None, **options: Any) -> dict[str, Any]:
        """NumPy's gradients, by parameter."""
        installed(self)
        _, pull = attn_np.value_and_vjp(attn_np.attend, q=q, k=k, v=v, **options, implementation="fused")
        return dict(pull(dy, *(() if dlse is None else (None, dlse))).inputs)


@cache
def installed(kernel: Fast) -> None:
    """Put a kernel's constants in their places, for as long as the process lasts."""
    put(TREES[kernel.tree], kernel.setting)


def settings(tree: str) -> list[Mapping[str, Any]]:
    """The constants that a tree's kernels are judged with."""
    return [*SMALL[tree], *OWN[tree]]


def limits_of(kernel: Fast, like: Like, dtypes: tuple[str, ...] = ALL) -> Limits:
    """What a fast path takes: all but dropout, which needs the weights."""
    options = tuple(name for name in like.takes if name != "dropout")
    # The path for few queries, which takes none of them too, is switched off for the smallest blocks.
    least = (0 if kernel.setting in OWN[kernel.tree] else 1, Sizes().most)
    return like.limits.but(dtypes=dtypes, options=options, queries=least, keys=least, unread=("hidden",))


def judged(kernel: Fast, like: Like = ATTEND, dtypes: tuple[str, ...] = ALL, **options: Any) -> Verdict:
    """The verdict on a fast path."""
    limits, back = limits_of(kernel, like, dtypes), kernel.backward if kernel.tree == "numpy" else None
    return judge_kernel(kernel, like, limits, NARROWEST, backward=back, framework=kernel.tree, **options)
