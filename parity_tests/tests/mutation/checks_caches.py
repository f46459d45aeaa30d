"""What `reset`, `select` and `crop` of a cache must do, and what they refuse."""

from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from parity_tests.tests.mutation.calls import Parts, claim, refuses, same


def rows_of_a_cache(alias: str) -> None:
    """Rows begin anew, go on as often as they are named, and end earlier; the others are what they were."""
    package, rng = import_module(alias), np.random.default_rng(3)
    keys: Any = package.build("mha", d_model=6, num_heads=2, dtype="float64", causal=True)
    states: Any = package.build("linear", d_model=6, num_heads=2, dtype="float64", causal=True)
    x = rng.normal(size=(3, 4, 6))
    for layer in (keys, states):
        begun = layer.step(x, layer.init_cache(3, 8))[1]
        for rows in ([1, 2], np.array([1, 2], np.int32)):
            before, after = begun.copy(), begun.copy().reset(rows)
            claim(after.length.tolist() == [4, 0, 0] and not after.overflowed.any(), "lengths after a reset")
            claim((after.positions[1:] == -1).all() and same(after.positions[0], before.positions[0]), "positions")
            for name, kept in before.arrays.items():
                now = after.arrays[name]
                claim(same(now[0], kept[0]) and now.dtype == kept.dtype, f"{name} of the others")
                claim(name not in before.states.split() or not now[1:].any(), f"{name} of those that begin")
        full = begun.copy()
        chosen = begun.select([2, 0, 2, 1])
        for name, now in chosen.arrays.items():
            claim(same(now, full.arrays[name][[2, 0, 2, 1]]) and not np.shares_memory(now, begun.arrays[name]), name)
        claim(same(chosen.positions, full.positions[[2, 0, 2, 1]]) and chosen.length.tolist() == [4] * 4, "positions")
        claim(chosen.overflowed.shape == (4,) and not begun.spent, "overflowed")
        for wrong, error, words in (
            ([3], ValueError, "rows from 0 to 2, got 3"),
            ([-1, 0], ValueError, "rows from 0 to 2, got -1"),
            ([True], TypeError, "rows of integers, got True"),
            (np.array([1.0]), TypeError, "rows of an integer dtype, got float64"),
            (np.array([[1]]), ValueError, "rows of one axis, got (1, 1)"),
            (1, TypeError, "rows as a NumPy array, got int"),
        ):
            refuses(partial(begun.reset, wrong), error, f"cache: expected {words}")
            refuses(partial(begun.select, wrong), error, f"cache: expected {words}")
        refuses(partial(begun.select, []), ValueError, "cache: expected at least one row, got none")
    begun = keys.step(x, keys.init_cache(3, 8))[1]
    for length, want in ((3, [3, 3, 3]), (5, [4, 4, 4]), (0, [0, 0, 0]), (np.array([0, 2, 9]), [0, 2, 4])):
        after = begun.copy().crop(length)
        claim(after.length.tolist() == want, f"cropped to {length}")
        slots = [[i if i < n else -1 for i in range(4)] + [-1] * 5 for n in want]
        claim(after.positions.tolist() == slots and same(after.arrays["k"], begun.arrays["k"]), "positions")
    for length, want in ((4, [False] * 3), (5, [True, False, True]), (np.array([3, 9, 9]), [False, False, True])):
        overflowed = replace(begun.copy(), overflowed=np.array([True, False, True])).crop(length).overflowed
        claim(overflowed.tolist() == want, f"overflowed, cropped to {length}")
    for length, error, words in (
        (-1, ValueError, "length of at least 0, got -1"),
        (np.array([1, -2, 1]), ValueError, "length of at least 0, got -2"),
        (True, TypeError, "length to be an integer or an array, got True"),
        (1.0, TypeError, "length to be an integer or an array, got 1.0"),
        (np.ones(3), TypeError, "length of an integer dtype, got float64"),
        (np.ones(2, int), ValueError, "length of shape (3,), got (2,)"),
    ):
        refuses(partial(begun.crop, length), error, f"cache: expected {words}")
    crop = states.init_cache(2, 8).crop
    refuses(
        partial(crop, 1), ValueError, "cache: expected keys and values of all positions to crop, got states (state, "
    )
    ring = package.build("mha", d_model=6, num_heads=2, causal=True, window=(2, None)).init_cache(2, 8)
    refuses(partial(ring.crop, 1), ValueError, "got the last 3 of up to 8 positions; copy() the cache before")
    begun.copy().crop(2)
    spent = begun.crop(2)
    spent.reset([0])
    for used in (begun, spent):
        for call in (used.copy, partial(used.reset, [0]), partial(used.select, [0]), partial(used.crop, 1)):
            refuses(call, ValueError, "cache: expected a cache that no step has used")


def given_numbers(alias: str) -> None:
    """`lookup` gives integers by an index in its dtype; `take` checks an index unless it is said to fit."""
    parts, table = Parts(alias), np.arange(6.0).reshape(3, 2)
    for dtype in (np.int64, np.int32):
        index = np.array([[2, 0]], dtype)
        claim(same(parts.lookup((5, 7, 9), index), np.array([[9, 5]], dtype)), "integers by an index")
    claim(same(parts.take(table, np.array([-1]), fits=True), table[[-1]]), "not checked")
    refuses(partial(parts.take, table, np.array([3])), ValueError, "expected indices from 0 to 2, got 3")
