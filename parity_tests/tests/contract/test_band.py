"""What a band says of queries and keys, of every few of them under every window: as the pairs themselves say it."""

from collections.abc import Iterator
from itertools import product

import numpy as np

from attn_np.contract._band import Band, Span

MOST = 4  # queries, and keys
LIMITS = (None, *range(2 * MOST), 1 << 40)


def bands() -> Iterator[tuple[Band, np.ndarray]]:
    """Every small band, and who sees whom by it, `t s`, from the words of the contract."""
    for t, s, left, right, causal in product(range(MOST + 1), range(MOST + 1), LIMITS, LIMITS, (False, True)):
        if causal and right not in (None, 2):
            continue
        ahead = np.arange(s) - (np.arange(t)[:, None] + s - t)
        seen = (ahead >= -(1 << 40 if left is None else left)) & (ahead <= (1 << 40 if right is None else right))
        window = None if left is right is None else (left, right)
        yield Band.of(t, s, causal, window), seen & (ahead <= 0) if causal else seen


def spans(n: int) -> list[Span]:
    """Every part of n positions that has some."""
    return [Span(i, j) for i in range(n) for j in range(i + 1, n + 1)]


def test_a_band_says_what_its_pairs_say() -> None:
    """Which are all there are, where the first ones are, and which keys and queries meet any of the others."""
    for band, seen in bands():
        first_query, first_key = (int(np.append(seen.any(axis), True).argmax()) for axis in (1, 0))
        assert band.full == seen.all() or not seen.size, band
        assert (band.first_query(), band.first_key()) == (first_query, first_key), band
        for queries in spans(band.t):
            of_keys = np.flatnonzero(seen[slice(*queries)].any(0))
            assert list(range(*band.keys(queries))) == of_keys.tolist(), (band, queries)
        for keys in spans(band.s):
            of_queries = np.flatnonzero(seen[:, slice(*keys)].any(1))
            assert list(range(*band.queries(keys))) == of_queries.tolist(), (band, keys)


def test_a_band_covers_what_is_seen_whole() -> None:
    for band, seen in bands():
        for queries, keys in product(spans(band.t), spans(band.s)):
            assert band.covers(queries, keys) == seen[slice(*queries), slice(*keys)].all(), (band, queries, keys)


def test_blocks_of_rows_hold_each_query_once_with_all_its_keys() -> None:
    """And no keys that none of its queries sees, but for one where they see none."""
    for (band, seen), (scores, rows) in product(bands(), ((1, 1), (5, 1), (1, 2), (100, 3))):
        if not band.s:
            continue
        blocks, start = list(band.row_blocks(scores, rows)), 0
        for queries, keys in blocks:
            assert queries.start == start < queries.stop, (band, blocks)
            start, of_keys = queries.stop, np.flatnonzero(seen[slice(*queries)].any(0))
            assert list(range(*keys)) == of_keys.tolist() or (keys.length == 1 and not len(of_keys)), (band, blocks)
            assert queries.length <= rows or queries.length * len(of_keys) <= scores, (band, blocks)
            assert queries.length >= min(rows, band.t - queries.start), (band, blocks)
            assert keys.start >= 0 and keys.stop <= band.s, (band, blocks)
        assert start == band.t, (band, blocks)
