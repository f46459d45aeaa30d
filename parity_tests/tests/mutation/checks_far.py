"""What near and far keys together must do: what all pairs do at once, forward and backward, with bounds."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np

from attn_np.contract._tape import BackwardTape
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import fast_precision_of, precision
from parity_tests.judge.kernels import visible
from parity_tests.tests.mutation.calls import Arrays, claim, same
from parity_tests.tests.mutation.checks_rows import small_blocks
from parity_tests.tests.witness import cotangent, ratio

B, H, WIDTH, SCALE = 2, 3, 2, 0.75
# By name: queries, keys, the distance from which on all keys have the same position, causality, mask and bias.
CASES: dict[str, tuple[int, int, int, bool, str]] = {
    "all keys": (11, 13, 3, False, ""),
    "causal": (13, 13, 2, True, ""),
    "more queries than keys": (13, 7, 2, False, "all"),
    "more keys than queries, causal": (5, 13, 4, True, "keys"),
    "every other key is far": (7, 7, 1, False, "queries"),
    "no key is far": (5, 6, 9, False, "padding"),
    "none is near to the first": (9, 2, 3, False, ""),
    "one mask": (7, 7, 2, False, "one"),
    "a number for all": (7, 9, 2, False, "number"),
    "one row for all": (7, 9, 2, False, "row"),
}
# As many positions as the distance, which leaves none far, and one more, which leaves one pair.
CASES |= {
    f"{t} queries, {s} keys, {'causal, ' if causal else ''}far from 3 on": (t, s, 3, causal, "all")
    for t, s, causal in product((3, 4), (3, 4), (False, True))
}


def drawn(case: str) -> Arrays:
    """Arrays of a call; tables of positions for the keys of each head, `x h k`, and for the values of all, `x v`."""
    t, s, limit, _, form = CASES[case]
    rng = np.random.default_rng(len(case))
    shapes: dict[str, tuple[int, ...]] = {"q": (B, t, H, WIDTH), "k": (B, s, H, WIDTH), "v": (B, s, H, WIDTH)}
    shapes |= {"of_keys": (2 * limit + 1, H, WIDTH), "of_values": (2 * limit + 1, WIDTH)}
    found: Arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    by_score = {"all": (B, H, t, s), "keys": (H, 1, s), "queries": (t, 1), "padding": (B, 1, 1, s)}
    by_score |= {"row": (s,), "one": (1,), "number": ()}
    if form:
        mask = rng.random(by_score[form]) < (0.7 if len(by_score[form]) > 1 else 1)
        found |= {"mask": np.asarray(mask), "bias": np.asarray(rng.normal(size=by_score[form]))}
    return found


def functions(package: str) -> Any:
    """What a tree's variants call, and the two functions that are tested."""
    rooms = ("ops", "positions.relative", "attention.masks", "attention.far_keys", "ops.vjp")[
        : 5 if "np" in package else 4
    ]
    found: dict[str, Any] = {}
    for room in rooms:
        found |= vars(import_module(f"{package}.{room}"))
    return SimpleNamespace(**found)


def parts_of(f: Any, case: str, of_keys: Any, of_values: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`attend_rows` and `add_far_position` of a call, in a tree's own functions."""
    limit = CASES[case][2]

    def attend_rows(
        tape: Any,
        q: Any,
        k: Any,
        v: Any,
        allowed: Any,
        relative_position: Any,
        bias: Any,
        keep: Any,
        return_lse: bool = False,
    ) -> Any:
        rows = f.clip(relative_position, -limit, limit) + limit
        rows = rows if rows.shape[-1] != k.shape[1] else f.broadcast_to(rows, (B, q.shape[1], k.shape[1]))
        scores = f.relative_scores_per_head(tape, "scores", q, of_keys, rows, k.shape[1])
        scores = (scores + f.einsum("bthk,bshk->bhts", q, k)) * SCALE
        scores = scores if bias is None else scores + bias
        probs, lse = f.softmax_and_lse(scores, allowed) if return_lse else (f.softmax(scores, allowed), None)
        context = f.einsum("bhts,bshv->bthv", probs, v) + f.relative_values(tape, "values", probs, of_values, rows)
        f.record(tape, q=q, k=k, v=v, rows=rows, probs=probs, bias=bias)
        return f.with_lse(context, lse) if return_lse else context, probs

    def add_far_position(q: Any, k: Any, v: Any, relative_position: Any) -> Any:
        rows = f.clip(relative_position, -limit, limit) + limit
        return q, k + f.take(of_keys, rows), v + f.take(of_values, rows)

    return attend_rows, add_far_position


def backward_of(f: Any, case: str, of_keys: Any, of_values: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Their gradients."""
    limit = CASES[case][2]

    def attend_rows_vjp(tape: Any, dcontext: Any) -> dict[str, Any]:
        q, k, v, rows, probs = (tape[name] for name in ("q", "k", "v", "rows", "probs"))
        dcontext, dlse = f.with_lse_vjp(dcontext, WIDTH)
        dprobs, dv = f.einsum_vjp("bhts,bshv->bthv", probs, v, dcontext)
        dmore, dof_values = f.relative_values_vjp(tape, "values", probs, of_values, rows, dcontext)
        dbiased = f.softmax_vjp(probs, dprobs + dmore)
        dbiased = dbiased if dlse is None else dbiased + probs * dlse
        dbias = f.sum_to(dbiased, tape["bias"].shape) if "bias" in tape else None
        dscores = dbiased * SCALE
        dq, dof_keys = f.relative_scores_per_head_vjp(tape, "scores", q, of_keys, rows, dscores)
        dmore, dk = f.einsum_vjp("bthk,bshk->bhts", q, k, dscores)
        return {"q": dq + dmore, "k": dk, "v": dv, "bias": dbias, "of_keys": dof_keys, "of_values": dof_values}

    def add_far_position_vjp(
        q: Any, k: Any, v: Any, relative_position: Any, dq: Any, dk: Any, dv: Any
    ) -> dict[str, Any]:
        rows = f.clip(relative_position, -limit, limit) + limit
        sums = f.sum_to(dk, (1, *dk.shape[2:])), f.sum_to(dv, (1, WIDTH))
        more = {"of_keys": f.take_vjp(of_keys, rows, sums[0]), "of_values": f.take_vjp(of_values, rows, sums[1])}
        return {"q": dq, "k": dk, "v": dv} | more

    return attend_rows_vjp, add_far_position_vjp


@cache
def expected(tree: str, case: str) -> dict[str, ErrArray]:
    """All pairs at once, each with its own row of the tables."""
    t, s, _, causal, _ = CASES[case]
    arrays, f = drawn(case), functions("attn_np")
    exact: dict[str, Any] = {name: ErrArray(x, 0.0) if x.dtype == float else x for name, x in arrays.items()}
    tables, tape = (exact.pop("of_keys"), exact.pop("of_values")), dict[str, Any]()
    mask, bias = exact.pop("mask", None), exact.pop("bias", None)
    seen = visible(mask, (B, H, t, s), causal, None)
    if bias is not None:
        bias = f.broadcast_to(bias, (B, H, t, s))
    relative_position = np.broadcast_to(np.arange(s) - np.arange(t)[:, None] - (s - t), (B, t, s))
    with precision(fast_precision_of(tree, "float64")), np.errstate(all="ignore"):
        context, _ = parts_of(f, case, *tables)[0](tape, *exact.values(), seen, relative_position, bias, None)
        dy = ErrArray(cotangent(context.shape), 0.0)
        grads = backward_of(f, case, *tables)[0](tape, dy)
        if bias is None:
            grads.pop("bias")
        else:
            grads["bias"] = f.sum_to(grads["bias"], arrays["bias"].shape)
    return {"context": context} | {f"d{name}": x for name, x in grads.items()}


def by_numpy(package: str, case: str) -> Arrays:
    """What NumPy gives, forward and backward."""
    arrays, tape, f = drawn(case), BackwardTape(), functions(package)
    _, _, limit, causal, _ = CASES[case]
    tables = arrays.pop("of_keys"), arrays.pop("of_values")
    options: Any = {"limit": limit, "causal": causal}
    masks: Any = {"mask": None, "bias": None} | {n: arrays.pop(n) for n in ("mask", "bias") if n in arrays}
    attend_rows, add_far_position = parts_of(f, case, *tables)
    attend_rows_vjp, add_far_position_vjp = backward_of(f, case, *tables)
    calls: list[tuple[Any, ...]] = []

    def shift_of(*call: Any) -> Any:
        calls.append(call)
        return add_far_position(*call)

    def shift_vjp_of(q: Any, k: Any, v: Any, relative_position: Any, *grads: Any) -> Any:
        claim(
            all(same(x, y) for x, y in zip((q, k, v, relative_position), calls.pop(0), strict=True)), "what was shifted"
        )
        return add_far_position_vjp(q, k, v, relative_position, *grads)

    with small_blocks(import_module(f"{package}.attention.row_blocks")):
        context = f.attend_near_and_far(attend_rows, shift_of, tape, *arrays.values(), **masks, **options, scale=SCALE)
        dy = cotangent(context.shape)
        grads = f.attend_near_and_far_vjp(attend_rows_vjp, shift_vjp_of, tape, dy, **options)
    found = {"context": context} | {f"d{name}": x for name, x in grads.items() if x is not None}
    return {name: np.asarray(x) for name, x in found.items()}


def near_and_far(alias: str) -> None:
    """Within the bounds of all pairs at once; what has no lse gives no gradient of one."""
    dcontext, dlse = functions(alias).with_lse_vjp(np.ones((B, 3, H, WIDTH)), WIDTH)
    claim(dcontext.shape == (B, 3, H, WIDTH) and dlse is None, "a gradient without that of an lse")
    for case in CASES:
        want, got = expected("numpy", case), by_numpy(alias, case)
        claim(set(got) == set(want), f"{case}: {sorted(got)}")
        for name, x in got.items():
            claim(ratio(x, want[name]) <= 1, f"{case}: {name}")
