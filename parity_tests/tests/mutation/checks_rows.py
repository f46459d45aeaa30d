"""What the engine for rows of queries must do: blocks of rows give what all rows at once give, forward and backward.

The middle that it calls here sums products of whole numbers, so that no order of sums rounds and all is compared bit
for bit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from attn_np.contract._tape import BackwardTape, save_residuals
from parity_tests.judge.kernels import visible
from parity_tests.tests.mutation.calls import Arrays, Parts, claim, claim_same, same

SMALL = {"MIN_ROWS": 3, "BLOCK_SCORES": 24, "ONE_BLOCK_SCORES": 0}
B, H, T = 2, 3, 9


class Middle:
    """Weighs by q k + distance + bias where it is allowed; notes each call's queries, keys and distances."""

    def __init__(self) -> None:
        self.calls: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def __call__(
        self, tape: Any, q: Any, k: Any, v: Any, allowed: Any, relative_position: Any, bias: Any, keep: Any
    ) -> tuple[Any, Any]:
        distance = distances(relative_position, q.shape[1], k.shape[1])
        self.calls.append((q, k, distance))
        scores = np.einsum("bthk,bshk->bhts", q, k) + distance + (0.0 if bias is None else bias)
        passes = np.broadcast_to(True if allowed is None else allowed, scores.shape) & (True if keep is None else keep)
        weights = np.where(passes, scores, 0.0)
        if tape is not None:
            shape = None if bias is None else bias.shape
            tape.update(q=q, k=k, v=v, weights=weights, passes=passes, distance=distance, shape=shape)
        return np.einsum("bhts,bshv->bthv", weights, v), weights


def distances(relative_position: np.ndarray, t: int, s: int) -> np.ndarray:
    """Key minus query for each pair, `b 1 t s`, from these numbers, `b t s`, or from one for each diagonal, `1 1 n`."""
    if relative_position.shape[1:] == (t, s):
        return relative_position[:, None]
    claim(relative_position.shape == (1, 1, t + s - 1), f"a number for each diagonal, not {relative_position.shape}")
    query, key = np.indices((t, s))
    return relative_position[0, 0, key - query + t - 1][None, None]


def place(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Which positions of the whole array these are."""
    n = part.shape[1]
    first = next(i for i in range(whole.shape[1] - n + 1) if np.array_equal(whole[:, i : i + n], part))
    return np.arange(first, first + n)


def backward(tape: Any, dcontext: Any) -> dict[str, Any]:
    """The gradients of `Middle`'s arrays, that of a factor on the distances, and one that is not asked for."""
    dscores = np.where(tape["passes"], np.einsum("bthv,bshv->bhts", dcontext, tape["v"]), 0.0)
    shape, dbias = tape["shape"], None
    if shape is not None:
        axes = tuple(axis for axis in range(4) if ((1,) * (4 - len(shape)) + shape)[axis] == 1)
        dbias = dscores.sum(axes, keepdims=True).reshape(shape)
    return {
        "q": np.einsum("bhts,bshk->bthk", dscores, tape["k"]),
        "k": np.einsum("bhts,bthk->bshk", dscores, tape["q"]),
        "v": np.einsum("bhts,bthv->bshv", tape["weights"], dcontext),
        "bias": dbias,
        "factor": (dscores * tape["distance"]).sum(),
        "keep": None,
    }


@contextmanager
def small_blocks(rows: Any) -> Iterator[None]:
    before = {name: vars(rows)[name] for name in SMALL}
    vars(rows).update(SMALL)
    try:
        yield
    finally:
        vars(rows).update(before)


def whole(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Whole numbers, as floats."""
    return rng.integers(-4, 5, shape).astype(np.float64)


def drawn(s: int, form: str) -> Arrays:
    """The arrays of a call with so many keys, and mask, bias and keep-mask of some form; "" for none."""
    rng, t = np.random.default_rng(s), T
    shapes: dict[str, tuple[int, ...]] = {
        "keys": (s,), "padding": (B, 1, 1, s), "pairs": (t, s), "queries": (t, 1), "one": (1,), "all": (B, H, t, s),
        "heads": (H, 1, s),
    }  # fmt: skip
    found = {"q": whole(rng, B, t, H, 4), "k": whole(rng, B, s, H, 4), "v": whole(rng, B, s, H, 5)}
    if form:
        found |= {"mask": rng.random(shapes[form]) < 0.7, "bias": whole(rng, *shapes[form])}
    if form in ("all", "pairs"):
        found["keep"] = rng.random(shapes[form]) < 0.7
    return found


FORMS = ("", "keys", "padding", "pairs", "queries", "one", "all", "heads")
LIMITS: tuple[tuple[bool, Any], ...] = (
    (False, None), (True, None), (False, (1, None)), (False, (0, 2)), (True, (2, None)), (False, (None, 1)),
)  # fmt: skip


def blocks_of_rows(alias: str) -> None:
    """By blocks and at once, for every form of mask and bias, and for windows and lengths of all kinds."""
    rows = import_module(f"{alias}.attention.row_blocks")
    for s in (4, 9, 13):
        for form in FORMS:
            for causal, window in LIMITS:
                arrays, middle = drawn(s, form), Middle()
                more: Any = {name: arrays.get(name) for name in ("mask", "bias", "keep")}
                options: Any = {"causal": causal, "window": window} if causal or window else {}
                given = (arrays["q"], arrays["k"], arrays["v"])
                seen = visible(arrays.get("mask"), (B, H, T, s), causal, window)
                relative_position = np.arange(s)[None, None] - np.arange(T)[None, :, None] - (s - T)
                tape: Any = {}
                want, weights = middle(tape, *given, seen, relative_position, more["bias"], more["keep"])
                dy = whole(np.random.default_rng(7), *want.shape)
                grads = backward(tape, dy)
                words = f"{s} keys, {form or 'no'} mask, causal={causal}, window={window}"
                near = visible(None, (1, 1, T, s), causal, window)[0, 0]
                for taken in ("blocks", "all"):
                    middle, tape = Middle(), BackwardTape()
                    with small_blocks(rows) if taken == "blocks" else nothing():
                        got, none = rows.attend_in_row_blocks(middle, tape, *given, **options, **more)
                        claim_same({"context": got}, {"context": want}, f"{words}, {taken}")
                        claim(same(np.asarray(tape.get("context", want)), want), f"{words}: the taped context")
                        _, right = window or (None, None)
                        grows = causal or right is not None
                        called(middle, arrays, near, taken == "blocks", words, grows)
                        claim((none is None) == (taken == "blocks"), "weights of all rows or none")
                        back = rows.attend_in_row_blocks_vjp(backward, tape, dy)
                    claim(list(back) == list(grads), f"{words}: gradients of {list(back)}")
                    for name, x in grads.items():
                        claim((back[name] is None) == (x is None), f"{words}, {taken}: no gradient of {name}")
                        claim(x is None or same(np.asarray(back[name]), np.asarray(x)), f"{words}, {taken}: d{name}")


@contextmanager
def nothing() -> Iterator[None]:
    yield


def called(middle: Middle, arrays: Arrays, near: np.ndarray, by_blocks: bool, words: str, grows: bool) -> None:
    """In order, every row once; the keys are those from the first to the last that a row of the block is near to, and
    rows are as many as a block may hold: where each further row sees further keys (`grows`), these count too.
    """
    t, s = near.shape
    if not by_blocks:
        claim([q.shape[1] for q, _, _ in middle.calls] == [t], f"{words}: all rows at once")
        return
    first = 0
    for q, k, distance in middle.calls:
        at, keys = place(q, arrays["q"]), place(k, arrays["k"])
        claim(same(distance[0, 0], keys - at[:, None] - (s - t)), f"{words}: distances of rows {at}")
        claim(np.array_equal(at, np.arange(first, first + len(at))), f"{words}: rows {at}")
        reached = np.flatnonzero(near[at].any(0))
        wanted = np.arange(reached[0], reached[-1] + 1) if len(reached) else keys[:1]
        claim(np.array_equal(keys, wanted) and len(keys) > 0, f"{words}: keys {keys} of rows {at}")
        pairs = SMALL["BLOCK_SCORES"] // (B * H)
        seen = [int(near[first : first + n].any(0).sum()) for n in range(t - first + 1)]
        start = seen[min(SMALL["MIN_ROWS"], t - first)]
        most = max(n for n in range(t - first + 1) if n * seen[n] <= pairs) if grows else pairs // max(1, start)
        most = max(SMALL["MIN_ROWS"], most)
        claim(len(at) == min(most, t - first), f"{words}: {len(at)} rows, not {most}")
        first += len(at)
    claim(first == t, f"{words}: {first} rows")


class Step:
    """A step of decoding: a uniform one, or one that says itself who sees whom."""

    def __init__(self, start: int | None) -> None:
        self.start, self.like_full_pass = start, start is not None
        self.query_positions, self.key_positions = np.arange(T)[None] + 7, np.arange(13)[None]

    def window_mask(self, left: int | None, right: int | None) -> np.ndarray:
        return visible(None, (1, 1, T, 13), False, (1, right))


class Own(np.ndarray):
    """An array type of somebody's own."""


def when_rows_go_at_once(alias: str) -> None:
    """All rows at once where weights or intermediates are shown, and for arrays of types of their own."""
    rows = import_module(f"{alias}.attention.row_blocks")
    arrays = drawn(13, "pairs")
    given, more = (arrays["q"], arrays["k"], arrays["v"]), {name: arrays[name] for name in ("mask", "bias", "keep")}
    arranged, usual = Step(None), np.arange(13)[None, None] - np.arange(T)[None, :, None] - 4
    for at_once, tape, changed, options in (
        (False, None, given, {}),
        (False, BackwardTape(), given, {}),
        (False, None, given, {"step": Step(4)}),
        (False, None, (arrays["q"], *(x.view(np.memmap) for x in given[1:])), {}),
        (True, None, given, {"step": arranged}),
        (True, None, given, {"return_weights": True}),
        (True, {}, given, {}),
        (True, None, given, {"implementation": "textbook"}),
        (True, None, (arrays["q"].view(Own), *given[1:]), {}),
    ):
        own = options.get("step") is arranged
        relative_position = arranged.key_positions[:, None] - arranged.query_positions[:, :, None] if own else usual
        seen = arranged.window_mask(None, 0) if own else visible(None, (1, 1, T, 13), True, None)
        want, _ = Middle()(None, *given, seen & more["mask"], relative_position, more["bias"], more["keep"])
        middle = Middle()
        with small_blocks(rows):
            context, weights = rows.attend_in_row_blocks(middle, tape, *changed, causal=True, **more, **options)
        claim((len(middle.calls) == 1) == at_once, f"{options}: {len(middle.calls)} calls")
        claim((weights is None) != at_once, f"{options}: weights")
        claim(same(np.asarray(context), want), f"{options}: another context")
    for keep, blocks in ((None, 0), (more["keep"], 1)):  # dropped weights need blocks
        middle, called_with = Middle(), list[Any]()

        def all_rows(*call: Any) -> tuple[Any, Any]:
            called_with.append(call)  # noqa: B023
            return call[1], None

        with small_blocks(rows):
            rows.attend_in_row_blocks(
                middle, None, *given, causal=True, **more | {"keep": keep}, attend_without_blocks=all_rows
            )
        claim((len(middle.calls) > 0) == blocks and len(called_with) == 1 - blocks, "what takes all rows by itself")
        claim(not called_with or called_with[0][4:] == (more["mask"], more["bias"]), "its mask and bias")
    taken = BackwardTape()
    save_residuals(taken, "what it left")
    found = rows.attend_in_row_blocks_vjp(lambda *_: {}, taken, given[0], lambda tape, dy: {"q": (tape, dy)})
    claim(found["q"][0] is taken and found["q"][1] is given[0], "the backward pass of what takes all rows by itself")
    scores = B * H * T * 13
    for few, at_once in ((scores, True), (scores - 1, False)):
        middle = Middle()
        with small_blocks(rows):
            vars(rows)["ONE_BLOCK_SCORES"] = few
            rows.attend_in_row_blocks(middle, None, *given, causal=True, **more)
        claim((len(middle.calls) == 1) == at_once, f"{few} scores are few: {len(middle.calls)} calls")


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
        claim(parts.diagonals_to_pairs(dy, t, s) is dy, "what stands by pair stays")
        for rows in (by_diagonal, by_pair):
            tape: dict[str, Any] = {}
            claim(same(parts.relative_scores_per_head(tape, "scores", q, table, rows, s), want), "scores")
            claim(("scores" in tape) == (rows is by_pair), "all scores are taped where all are made")
            back = parts.relative_scores_per_head_vjp(tape, "scores", q, table, rows, dy)
            claim(same(back[0], dq) and same(back[1], dtable), "gradients")
        k = rng.integers(-3, 4, size=(B, s, H, 2)).astype(np.float64)
        want, dk, dtable = np.zeros(dy.shape), np.zeros(k.shape), np.zeros(table.shape)
        for b, h, i, j in np.ndindex(*dy.shape):
            x = by_pair[0, i, j]
            want[b, h, i, j] = k[b, j, h] @ table[x, h]
            dk[b, j, h] += dy[b, h, i, j] * table[x, h]
            dtable[x, h] += dy[b, h, i, j] * k[b, j, h]
        claim(same(parts.relative_scores_of_keys(k, table, by_diagonal, t), want), "scores of keys")
        back = parts.relative_scores_of_keys_vjp(k, table, by_diagonal, dy)
        claim(same(back[0], dk) and same(back[1], dtable), "gradients of keys and of their rows")


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


def vectors_by_distance(alias: str) -> None:
    """Scores and averages of a table's rows, by pair and by diagonal, and their gradients, are those of a loop."""
    parts, rng = Parts(alias), np.random.default_rng(8)
    for t, s in ((4, 6), (6, 4), (3, 3)):
        shapes = (B, t, H, 2), (5, 2), (B, H, t, s)
        (q, table, weights), (dout, _, dscores) = (
            [rng.integers(-3, 4, size=shape).astype(np.float64) for shape in shapes] for _ in "xy"
        )
        by_diagonal = np.clip(np.arange(t + s - 1) - t, -2, 2)[None, None] + 2
        by_pair = by_diagonal[0][:, np.arange(s) - np.arange(t)[:, None] + t - 1]
        rows = table[by_pair[0]]
        marks = (by_pair[0][..., None] == np.arange(5)).astype(np.float64)
        scores = np.einsum("bthk,tsk->bhts", q, rows), np.einsum("bhts,tsk->bthk", dscores, rows)
        scores += (np.einsum("bhts,bthk,tsx->xk", dscores, q, marks),)
        sums = np.einsum("bhts,tsk->bthk", weights, rows), np.einsum("bthk,tsk->bhts", dout, rows)
        sums += (np.einsum("bhts,bthk,tsx->xk", weights, dout, marks),)
        for index in (by_diagonal, np.broadcast_to(by_pair, (B, t, s))):
            tape: dict[str, Any] = {}
            found = (parts.relative_scores_shared(tape, "k", q, table, index, s),)
            found += tuple(parts.relative_scores_shared_vjp(tape, "k", q, table, index, dscores))
            found += (parts.relative_values(tape, "v", weights, table, index),)
            found += tuple(parts.relative_values_vjp(tape, "v", weights, table, index, dout))
            claim(all(same(x, want) for x, want in zip(found, scores + sums, strict=True)), f"sums over {index.shape}")
            taped = set() if index is by_diagonal else {"k", "v", "dk", "dv"}
            claim(set(tape) == taped, f"the rows of pairs are taped, got {set(tape)}")
