"""What a bias by diagonal must do: on every path it is the same bias by pairs, and so is its gradient."""

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from attn_np.contract import _patterns as patterns
from attn_np.contract._tape import BackwardTape
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import fast_precision_of, precision
from parity_tests.bounds.softmax import recompute
from parity_tests.judge import kernels
from parity_tests.tests.mutation.calls import Arrays, claim
from parity_tests.tests.witness import cotangent, ratio

H, WIDTH = 6, 3
# By name: options, arrays beside q, k and v, key/value heads, queries, keys, the heads of the bias.
CASES: dict[str, tuple[dict[str, Any], str, int, int, int, int]] = {
    "all keys": ({}, "", 6, 11, 13, 6),
    "one bias for all heads": ({"causal": True}, "", 3, 13, 13, 1),
    "window": ({"window": (4, 2)}, "", 2, 13, 11, 6),
    "more queries than keys": ({"causal": True, "scale": -0.5}, "", 2, 13, 7, 6),
    "mask and bias": ({}, "mask bias", 1, 11, 13, 6),
    "mask and bias by query": ({}, "mask bias", 2, 11, 13, 6),
    "sinks and cap": ({"causal": True, "softcap": 1.5}, "sinks", 2, 11, 17, 6),
    "pattern": ({"pattern": patterns.Chunks(4, 1)}, "", 3, 13, 13, 6),
    "steep": ({}, "", 6, 13, 13, 6),
    "steep, more queries than keys": ({}, "", 6, 13, 7, 6),
    "steep for one of the heads that share keys": ({}, "", 2, 13, 13, 6),
    "steep, near keys hidden": ({}, "near", 6, 13, 13, 6),
    "diagonals that hide": ({}, "", 2, 11, 13, 6),
    "diagonals that hide all of a row": ({}, "", 2, 13, 7, 6),
    "far keys that some rows weigh": ({}, "", 6, 13, 13, 6),
    "one sequence of large products": ({"causal": True}, "", 6, 13, 13, 6),
    "one head of large products": ({"causal": True}, "", 2, 13, 13, 6),
    "one far above the others": ({"causal": True}, "", 6, 13, 13, 6),
}


def drawn(case: str) -> tuple[Arrays, Arrays, dict[str, Any]]:
    """The arrays of a call, the bias as `1 h 1 n` by diagonal, and the options."""
    options, names, g, t, s, heads = CASES[case]
    rng = np.random.default_rng(len(case))
    shapes = {"q": (2, t, H, WIDTH), "k": (2, s, g, WIDTH), "v": (2, s, g, WIDTH)}
    arrays: Arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    by_diagonal = rng.normal(size=(1, heads, 1, t + s - 1))
    distance = np.abs(np.arange(t + s - 1) - (s - 1))
    if case.startswith("steep"):  # the weights of all but the nearest keys are below the smallest number
        steep = np.arange(H) % 3 == 0 if "one of the heads" in case else np.ones(H, bool)
        by_diagonal = by_diagonal - 300.0 * distance * steep[:, None, None]
    if case.startswith("one far"):  # the pair of the last query and the first key
        by_diagonal[..., 0] = 1e9
    if case.startswith("far keys"):  # products of 25, up to -25 near every second query, whose weights are larger then
        by_diagonal[:] = np.where(distance < 6, 0.0, -708.0)
        arrays["q"][:] = arrays["k"][:] = np.sqrt(25 / np.sqrt(WIDTH))
        arrays["q"][:, 1::2] *= -1
        arrays["k"][:, :3] *= -1
    if case.startswith("one sequence"):
        arrays["q"][1] *= 1e3
    if case.startswith("one head"):  # the second of three that share keys: its keys' size is that of the first group
        arrays["q"][:, :, [0, 2, 4]] *= 1e-6
        arrays["k"][:, :, 0] *= 1e3
    if case == "diagonals that hide all of a row":  # of the queries before the first key
        by_diagonal[..., s:] = -np.inf
    if case == "diagonals that hide":
        by_diagonal[..., distance > 3] = -np.inf
    if "mask" in names:
        arrays["mask"] = rng.random((2, H, t, s)) < 0.7
        arrays["mask"][0, :, 2] = arrays["mask"][1, :, :, 4] = False
    if "near" in names:
        arrays["mask"] = np.abs(np.arange(t)[:, None] - np.arange(s)) >= 4
    if "bias" in names:
        arrays["bias"] = rng.normal(size=(H, t if case.endswith("by query") else 1, s))
    if "sinks" in names:
        arrays["sinks"] = rng.normal(size=H)
    return arrays, {"distances": by_diagonal}, options


def picked(table: Any, places: Any) -> Any:
    """The numbers of a table `1 h 1 n`, in every tree: of places `1 t s` as `1 h t s`, of `1 1 n` as `1 h 1 n`."""
    return table[0, :, 0][:, places[0]][None]


@cache
def expected(tree: str, case: str) -> dict[str, ErrArray]:
    """What the textbook gives of that bias by pairs, with bounds; the gradient of a diagonal is that of its pairs."""
    arrays, given, options = drawn(case)
    t, s = arrays["q"].shape[1], arrays["k"].shape[1]
    index = np.arange(s) - np.arange(t)[:, None] + t - 1
    by_pair = given["distances"][:, :, 0][..., index]
    by_pair = by_pair + arrays.get("bias", 0.0)
    dy = ErrArray(cotangent(arrays["q"].shape), 0.0)
    exact: dict[str, Any] = {n: ErrArray(x, 0.0) if x.dtype == float else x for n, x in arrays.items()}
    with precision(fast_precision_of(tree, "float64")), np.errstate(all="ignore"):
        exact["bias"] = ErrArray(np.broadcast_to(by_pair, (2, H, t, s)).copy(), 0.0)
        want = kernels.by_numpy(exact, dy, {"scale": None, "softcap": None} | options, "textbook")
        dpairs = want.pop("dbias")
        hot = (index[..., None] == np.arange(t + s - 1)).astype(float)
        axes = (0, 2, 3) if given["distances"].shape[1] > 1 else (0, 1, 2, 3)
        shape = given["distances"].shape
        want["ddistances"] = np.sum(dpairs.reshape(2, H, t, s, 1) * hot, axis=axes).reshape(shape)
        if "bias" in arrays:
            axes = (0, 2) if arrays["bias"].shape[1] == 1 else (0,)
            want["dbias"] = np.sum(dpairs, axis=axes).reshape(arrays["bias"].shape)
    return want


def by_numpy(alias: str, case: str, implementation: str = "fused", tape: Any = None, step: Any = None) -> Arrays:
    """What NumPy gives, forward and backward."""
    arrays, given, options = drawn(case)
    low, tape = 1 - arrays["k"].shape[1], BackwardTape() if tape is None else tape
    module = import_module(f"{alias}.attention.attend")
    context, _ = module.attend(
        **arrays, **options, relative_bias_fn=lambda position: picked(given["distances"], position - low), tape=tape,
        implementation=implementation, step=step,
    )  # fmt: skip
    recompute(tape)
    backward = {name: x for name, x in options.items() if name in ("scale", "softcap")}
    heads, dy = arrays["k"].shape[2], cotangent(arrays["q"].shape)
    dq, dk, dv, dbias = module.attend_vjp(tape, dy, **backward, kv_heads=heads, needs_diagonal_grad=True)
    ddistances = module.relative_bias_vjp(tape, given["distances"].shape)
    found = {"context": context, "dq": dq, "dk": dk, "dv": dv, "dsinks": tape.get("dsinks"), "ddistances": ddistances}
    if "bias" in arrays:  # that of the textbook is the gradient of both
        found["dbias"] = dbias if dbias.shape == arrays["bias"].shape else dbias.sum(axis=(0, 2))[:, None]
    return {name: x for name, x in found.items() if x is not None}


class Step:
    """A step of decoding that says itself where queries and keys stand and who sees whom: here, as without a step."""

    def __init__(self, start: int | None, t: int, s: int) -> None:
        self.start, self.like_full_pass, self.shape = start, start is not None, (t, s)
        self.query_positions, self.key_positions = np.arange(s - t, s)[None], np.arange(s)[None]

    def window_mask(self, left: int | None, right: int | None) -> np.ndarray:
        return np.ones((1, 1, *self.shape), bool)


def distances_added(alias: str) -> None:
    """On the fast path by diagonal, and by pairs where intermediates are shown or a step says where everything is."""
    for case in ("mask and bias", "sinks and cap", "diagonals that hide"):
        arrays, _, options = drawn(case)
        t, s = arrays["q"].shape[1], arrays["k"].shape[1]
        ways: list[tuple[str, Any, Any]] = [("fused", None, None), ("textbook", None, None), ("textbook", {}, None)]
        ways += [("auto", {}, None), ("auto", None, Step(s - t, t, s))]
        ways += [] if options else [("auto", None, Step(None, t, s))]
        for implementation, tape, step in ways:
            want, got = expected("numpy", case), by_numpy(alias, case, implementation, tape, step)
            claim(set(got) == set(want), f"{case}: {sorted(got)}")
            for name, x in got.items():
                claim(ratio(x, want[name]) <= 1, f"{case}, {implementation}, {step}: {name}")


def offsets_of_grids(alias: str) -> None:
    """The rows of a table, in the order of its offsets; three more for tokens before the grid."""
    offsets_of = import_module(f"{alias}.positions.relative").grid_offsets
    for rows, columns, before in ((2, 3, 0), (3, 2, 1), (1, 4, 3), (1, 1, 1)):
        found, places = offsets_of(rows, columns, before, np.zeros(1)), [(-1, -1)] * before
        places += [(y, x) for y in range(rows) for x in range(columns)]
        table = [(down, right) for down in range(1 - rows, rows) for right in range(1 - columns, columns)]
        for t, (y, x) in enumerate(places):
            for s, (key_y, key_x) in enumerate(places):
                of_tokens = len(table) + (2 if max(y, key_y) < 0 else int(key_y < 0))
                want = of_tokens if min(y, key_y) < 0 else table.index((y - key_y, x - key_x))
                claim(found[t, s] == want, f"row for query {t} and key {s} of {rows} x {columns} behind {before}")
        claim(found.shape == (len(places), len(places)) and found.dtype.kind == "i", "rows for all pairs")
