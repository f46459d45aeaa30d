"""What blocks of rows must do: what all rows at once do, in blocks of any size."""

from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from attn_np.contract._tape import Residuals
from parity_tests.tests.mutation.calls import Parts, claim, same

B, H = 2, 3
# Queries, keys, causality and window, which of mask, bias and the array for every pair are passed.
CALLS: tuple[tuple[int, int, dict[str, Any], str], ...] = (
    (7, 9, {}, ""),
    (9, 7, {"causal": True}, "bias"),
    (11, 11, {"causal": True}, "mask pairs"),
    (11, 13, {"window": (3, 1)}, "mask bias"),
    (13, 5, {"window": (2, 0)}, "pairs bias"),
    (3, 20, {"window": (1, 1)}, ""),
)


def given_arrays(t: int, s: int) -> dict[str, Any]:
    """Whole numbers, so that no order of summing rounds."""
    rng = np.random.default_rng((t, s))
    shapes = {"q": (B, t, H, 2), "k": (B, s, H, 2), "v": (B, s, H, 2), "bias": (H, 1, s), "pairs": (B, H, t, s)}
    found: dict[str, Any] = {n: rng.integers(-3, 4, size=shape).astype(np.float64) for n, shape in shapes.items()}
    return found | {"mask": rng.random((B, 1, 1, s)) < 0.7}


def middle(
    parts: Parts, tape: Any, q: Any, k: Any, v: Any, allowed: Any, offset: Any, **by_score: Any
) -> tuple[Any, Any]:
    """Products of queries and keys as weights, distances and the other arrays added; what is hidden weighs nothing."""
    weights: Any = np.einsum("bthk,bshk->bhts", q, k) + parts.per_pair(offset[:, None], q.shape[1], k.shape[1])
    weights = sum((x for x in by_score.values() if x is not None), start=weights)
    seen = np.broadcast_to(True if allowed is None else allowed, weights.shape)
    weights = np.where(seen, weights, 0.0)
    if tape is not None:
        tape.update(q=q, k=k, v=v, weights=weights, seen=seen, by_score=by_score, offset=offset)
    return np.einsum("bhts,bshv->bthv", weights, v), weights


def middle_vjp(parts: Parts, tape: Any, dcontext: Any) -> dict[str, Any]:
    """The gradients of `middle`, and as that of a parameter the sum over all scores with an offset that is even."""
    dweights = np.where(tape["seen"], np.einsum("bthv,bshv->bhts", dcontext, tape["v"]), 0.0)
    found: dict[str, Any] = {
        "q": np.einsum("bhts,bshk->bthk", dweights, tape["k"]),
        "k": np.einsum("bhts,bthk->bshk", dweights, tape["q"]),
        "v": np.einsum("bhts,bthv->bshv", tape["weights"], dcontext),
        "factor": (parts.per_pair_vjp((1, 1, *tape["offset"].shape[1:]), dweights) * (tape["offset"] % 2)).sum(),
    }
    for name, x in tape["by_score"].items():
        short = tuple(i for i in range(-3, 0) if x is not None and x.shape[i] < dweights.shape[i])
        d = dweights if x is None or x.ndim == 4 else dweights.sum(0)
        found[name] = None if x is None else d.sum(short, keepdims=True)
    return found


def in_rows(alias: str) -> None:
    """Context and gradients in blocks are those of all rows at once; those who ask for weights get them."""
    rows, parts = import_module(f"{alias}._rows"), Parts(alias)
    forward, backward = partial(middle, parts), partial(middle_vjp, parts)
    sizes = {name: getattr(rows, name) for name in ("ROWS", "BLOCK", "FEW")}
    for t, s, limits, names in CALLS:
        arrays = given_arrays(t, s)
        arrays = {n: x for n, x in arrays.items() if n in "qkv"} | {
            n: arrays[n] if n in names else None for n in ("mask", "bias", "pairs")
        }
        dy, found = np.random.default_rng(1).integers(-3, 4, size=(B, t, H, 2)).astype(np.float64), []
        for small in ({}, {"FEW": 0, "ROWS": 2, "BLOCK": 1}, {"FEW": 0, "ROWS": 1, "BLOCK": 200}):
            vars(rows).update(sizes | small)
            try:
                tape = Residuals()
                context, weights = rows.by_rows(forward, tape, **arrays, **limits)
                shown = rows.by_rows(forward, None, **arrays, **limits, return_weights=True)[1]
                textbook = rows.by_rows(forward, None, **arrays, **limits, implementation="textbook")[1]
                found.append({"context": context} | rows.by_rows_vjp(backward, tape, dy))
            finally:
                vars(rows).update(sizes)
            claim((weights is None) == bool(small), "blocks have no weights")
            claim("context" in tape or not small, "the context is recorded")
            claim(shown is not None and np.array_equal(shown, textbook), "weights that are asked for")
        for other in found[1:]:
            for name, x in found[0].items():
                claim((x is None) == (other[name] is None), f"{name} is there")
                claim(x is None or np.array_equal(x, other[name]), f"{name} in blocks of {t} x {s}")


def distances_scored(alias: str) -> None:
    """Products with the rows of a table, by pair and by diagonal, and their gradients, are those of a loop."""
    parts, rng = Parts(alias), np.random.default_rng(4)
    for t, s in ((4, 6), (6, 4), (3, 3)):
        q, table, dy = (
            rng.integers(-3, 4, size=shape).astype(np.float64) for shape in ((B, t, H, 2), (5, H, 2), (B, H, t, s))
        )
        by_diagonal = np.clip(np.arange(t + s - 1) - t, -2, 2)[None, None] + 2
        by_pair = by_diagonal[0][:, np.arange(s) - np.arange(t)[:, None] + t - 1]
        want, dq, dtable = np.zeros(dy.shape), np.zeros(q.shape), np.zeros(table.shape)
        for b, h, i, j in np.ndindex(*dy.shape):
            x = by_pair[0, i, j]
            want[b, h, i, j] = q[b, i, h] @ table[x, h]
            dq[b, i, h] += dy[b, h, i, j] * table[x, h]
            dtable[x, h] += dy[b, h, i, j] * q[b, i, h]
        for rows in (by_diagonal, by_pair):
            tape: dict[str, Any] = {}
            claim(same(parts.score_distances(tape, "scores", q, table, rows, s), want), "scores")
            claim(("scores" in tape) == (rows is by_pair), "all scores are taped where all are made")
            back = parts.score_distances_vjp(tape, "scores", q, table, rows, dy)
            claim(same(back[0], dq) and same(back[1], dtable), "gradients")


class Special(np.ndarray):
    """An array that is not plain, as those are that carry errors."""


def picked_from_special_arrays(alias: str) -> None:
    """Arrays that are not plain are picked from, and get gradients, as plain ones do."""
    parts, rng = Parts(alias), np.random.default_rng(6)
    x, dy = (rng.integers(-9, 9, size=(2, 3, 4, n)).astype(np.float64) for n in (5, 7))
    table, rows = rng.integers(-9, 9, size=(5, 3, 2)).astype(np.float64), rng.integers(0, 5, size=7)
    index, drows = rng.integers(0, 5, size=(1, 4, 7)), rng.integers(-9, 9, size=(7, 3, 2)).astype(np.float64)
    for call, arrays in (
        (lambda x, dy: parts.gather_last(x, index), (x, dy)),
        (lambda x, dy: parts.gather_last_vjp(x, index, dy), (x, dy)),
        (lambda table, drows: parts.take_vjp(table, rows, drows), (table, drows)),
    ):
        claim(same(np.asarray(call(*(x.view(Special) for x in arrays))), call(*arrays)), "the same numbers")
