"""Right kernels of softmax attention in NumPy, block by block, forward and backward, in every class of arithmetic.

They are what the bounds are proven with, and what mistakes are planted in, as edits of this file. A program runs one
sequence: all heads at once, a block of queries after the other, and for each the blocks of keys. Dense, packed and
paged kernels differ in where a sequence's rows lie.
"""

from dataclasses import dataclass

import numpy as np

from parity_tests.kernels.canonical import Array, Results, Softmax
from parity_tests.kernels.machine import LN2, LOG2E, Machine


@dataclass
class Program:
    """What a kernel's program gets: arrays as they lie in memory, and where one sequence lies in them.

    Attributes:
        m: the arithmetic.
        q, k, v: `row head width`, of all sequences.
        t, s: how many queries and keys the sequence has.
        first_query, first_key: their first rows.
        table, page: of a paged cache, the page of each `page` keys; page is 0 without.
        shift: how many keys precede the first query's position.
        left, right: of the window, and of causality.
        added, mask, keep: of the scores, `h t s`.
        slopes, sinks, scale, cap, rate: as of the case.
        size: of a block.
    """

    m: Machine
    q: Array
    k: Array
    v: Array
    t: int
    s: int
    first_query: int
    first_key: int
    table: Array | None
    page: int
    shift: int
    left: int | None
    right: int | None
    added: Array | None
    mask: Array | None
    keep: Array | None
    slopes: Array | None
    sinks: Array | None
    scale: float
    cap: float | None
    rate: float
    size: int

    def query_rows(self, rows: Array) -> Array:
        """Where queries lie in memory."""
        return self.first_query + rows

    def key_rows(self, columns: Array) -> Array:
        """Where keys lie in memory."""
        if self.table is None:
            return self.first_key + columns
        return self.table[columns // self.page] * self.page + columns % self.page

    def queries(self, x: Array, rows: Array) -> Array:
        """A block of queries, or of what has their rows, `h row width`; 0 beyond the last."""
        inside = rows < self.t
        block = x[self.query_rows(np.where(inside, rows, 0))]
        return np.where(inside[:, None, None], block, 0).swapaxes(0, 1)

    def keys(self, x: Array, columns: Array) -> Array:
        """A block of keys or values for every query head, `h column width`; 0 beyond the last."""
        inside = columns < self.s
        block = x[self.key_rows(np.where(inside, columns, 0))]
        h, g = self.q.shape[1], x.shape[1]
        heads = np.arange(h) // (h // g)
        return np.where(inside[:, None, None], block, 0)[:, heads].swapaxes(0, 1)

    def part(self, x: Array, rows: Array, columns: Array) -> Array:
        """A block of an array `h t s`."""
        return x[:, np.minimum(rows, self.t - 1)[:, None], np.minimum(columns, self.s - 1)]

    def key_blocks(self, rows: Array) -> list[Array]:
        """The blocks of keys that some query of a block sees."""
        low, high = 0, self.s
        if self.left is not None:
            low = max(0, int(rows[0]) + self.shift - self.left)
        if self.right is not None:
            high = min(self.s, int(rows[-1]) + self.shift + self.right + 1)
        return self.blocks(high, low // self.size * self.size)

    def blocks(self, high: int, low: int = 0) -> list[Array]:
        """Positions by blocks, of which the last may go beyond."""
        return [np.arange(i, i + self.size) for i in range(low, high, self.size)]

    def scores(self, q: Array, k: Array, rows: Array, columns: Array) -> tuple[Array, Array]:
        """Scores of a block in powers of 2, -inf where they are hidden, and the derivative of the cap."""
        x = self.m.dot(q, k.swapaxes(1, 2)) * self.m.work.type(self.scale)
        x, slope = self.m.partial(x), np.ones_like(x)
        if self.cap is not None:
            cap = self.m.work.type(self.cap)
            tanh = np.tanh(x / cap)
            x, slope = cap * tanh, 1 - tanh * tanh
        distance = columns - (rows[:, None] + self.shift)
        if self.added is not None:
            x = x + self.part(self.added, rows, columns)
        if self.slopes is not None:
            x = x - self.slopes[:, None, None] * np.abs(distance).astype(self.m.work)
        x = self.m.partial(x)
        seen = (columns < self.s) & (rows < self.t)[:, None]
        if self.left is not None:
            seen = seen & (distance >= -self.left)
        if self.right is not None:
            seen = seen & (distance <= self.right)
        if self.mask is not None:
            seen = seen & self.part(self.mask, rows, columns)
        return np.where(seen, x * self.m.work.type(LOG2E), -np.inf), slope

    def dropped(self, p: Array, rows: Array, columns: Array) -> Array:
        """Weights, or their gradients, after dropout."""
        if self.keep is None:
            return p
        return np.where(self.part(self.keep, rows, columns), p / self.m.work.type(1 - self.rate), 0)

    def forward(self) -> tuple[Array, Array]:
        """The outputs `h t v` and the log-sum-exp `h t`."""
        h, depth = self.q.shape[1], self.v.shape[2]
        y, lse = np.zeros((h, self.t, depth), self.m.work), np.full((h, self.t), -np.inf, self.m.work)
        for rows in self.blocks(self.t):
            q = self.queries(self.q, rows)
            top = np.full((h, self.size, 1), -np.inf, self.m.work)
            total = np.zeros((h, self.size, 1), self.m.work)
            acc = np.zeros((h, self.size, depth), self.m.work)
            if self.sinks is not None:
                top = np.broadcast_to(self.sinks[:, None, None] * self.m.work.type(LOG2E), top.shape)
                total = total + 1
            for columns in self.key_blocks(rows):
                x, _ = self.scores(q, self.keys(self.k, columns), rows, columns)
                larger = np.maximum(top, np.max(x, axis=2, keepdims=True))
                base = np.where(np.isneginf(larger), 0, larger)
                shrink, p = self.m.exp2(top - base), self.m.exp2(x - base)
                total = total * shrink + np.sum(p, axis=2, keepdims=True)
                p = self.m.narrow(self.dropped(p, rows, columns))
                acc = self.m.partial(acc * shrink + self.m.dot(p, self.keys(self.v, columns)))
                top = larger
            inside = slice(int(rows[0]), min(int(rows[-1]) + 1, self.t))
            count = inside.stop - inside.start
            found = np.where(total > 0, acc / np.where(total > 0, total, 1), 0)
            y[:, inside] = found[:, :count]
            sums = np.where(total > 0, np.log2(np.where(total > 0, total, 1)), -np.inf)
            lse[:, inside] = ((np.where(total > 0, top, 0) + sums) * self.m.work.type(LN2))[:, :count, 0]
        return y, lse

    def backward(self, y: Array, lse: Array, dy: Array, dlse: Array) -> dict[str, Array]:
        """Gradients: those of queries, keys and values by query head, `h row width`, of scores and of sinks."""
        h, m = self.q.shape[1], self.m
        scale, log2e = m.work.type(self.scale), m.work.type(LOG2E)
        dq = np.zeros((h, self.t, self.q.shape[2]), m.work)
        dk, dv = (np.zeros((h, self.s, x.shape[2]), m.work) for x in (self.k, self.v))
        dscores = np.zeros((h, self.t, self.s), m.work)
        delta = np.sum(dy * y, axis=2) - dlse
        for columns in self.blocks(self.s):
            k, v = self.keys(self.k, columns), self.keys(self.v, columns)
            keys = slice(int(columns[0]), min(int(columns[-1]) + 1, self.s))
            for rows in self.blocks(self.t):
                inside = slice(int(rows[0]), min(int(rows[-1]) + 1, self.t))
                count, width = inside.stop - inside.start, keys.stop - keys.start
                rows = rows[:count]
                q, dout = self.queries(self.q, rows), dy[:, inside]
                x, slope = self.scores(q, k, rows, columns)
                base = np.where(np.isneginf(lse), 0, lse)[:, inside, None] * log2e
                p = m.exp2(x - base)
                dropped = m.narrow(self.dropped(p, rows, columns))
                dv[:, keys] = m.partial(dv[:, keys] + m.dot(dropped.swapaxes(1, 2), dout)[:, :width])
                dp = self.dropped(m.dot(dout, v.swapaxes(1, 2)), rows, columns)
                dp = m.partial(dp)
                ds = p * (dp - delta[:, inside, None])
                dscores[:, inside, keys] = ds[:, :, :width]
                dx = m.narrow(ds * slope)
                dq[:, inside] = m.partial(dq[:, inside] + m.dot(dx, k) * scale)
                dk[:, keys] = m.partial(dk[:, keys] + m.dot(dx.swapaxes(1, 2), q)[:, :width] * scale)
        found = {"dq": dq, "dk": dk, "dv": dv, "dscores": dscores}
        if self.sinks is not None:
            sink = self.sinks[:, None] * log2e
            found["dsinks"] = -np.sum(m.exp2(sink - np.where(np.isneginf(lse), 0, lse) * log2e) * delta, axis=1)
        return found


def programs(case: Softmax, m: Machine) -> list[tuple[int, slice, slice, Program]]:
    """The programs of a call: one for each row of the batch, or for each packed sequence."""
    b, t, s, h, _ = case.sizes
    cache_k, cache_v = case.k, case.v
    if case.table is not None:
        cache_k, cache_v = (paged(x, case.table, case.page_size) for x in (case.k, case.v))
    left, right = case.window or (None, None)
    right = 0 if case.causal else right

    def of_scores(x: Array | None, row: int, queries: slice, keys: slice) -> Array | None:
        return None if x is None else np.broadcast_to(x, (b, h, t, s))[row, :, queries, keys]

    found = []
    for row, queries, keys in case.spans():
        count, length = queries.stop - queries.start, keys.stop - keys.start
        bias = of_scores(case.bias, row, queries, keys)
        program = Program(
            m=m,
            q=m.load(case.q[row]),
            k=m.load(cache_k if case.table is not None else cache_k[row]),
            v=m.load(cache_v if case.table is not None else cache_v[row]),
            t=count,
            s=length,
            first_query=queries.start,
            first_key=keys.start,
            table=None if case.table is None else case.table[row],
            page=case.page_size,
            shift=0 if case.causal == "top-left" else length - count,
            left=left,
            right=right,
            added=None if bias is None else m.load(bias),
            mask=of_scores(case.mask, row, queries, keys),
            keep=of_scores(case.keep, row, queries, keys),
            slopes=None if case.slopes is None else m.load(case.slopes),
            sinks=None if case.sinks is None else m.load(case.sinks),
            scale=case.scale,
            cap=case.softcap,
            rate=case.rate,
            size=case.block,
        )
        found.append((row, queries, keys, program))
    return found


def paged(x: Array, table: Array, page: int) -> Array:
    """Keys or values `b s g d` as rows of a cache: each where the table has its page, NaN elsewhere."""
    places = table[:, :, None] * page + np.arange(page)
    cache = np.full(((int(table.max()) + 2) * page, *x.shape[2:]), np.nan)
    for row, of_row in zip(x, places, strict=True):
        cache[of_row.reshape(-1)[: len(row)]] = row
    return cache


def run(case: Softmax, m: Machine) -> Results:
    """What a right kernel returns, by name, in float64."""
    b, t, s, h, g = case.sizes
    y, lse = np.zeros((b, t, h, case.v.shape[3])), np.full((b, h, t), -np.inf)
    if case.sinks is not None:
        lse = np.broadcast_to(m.load(case.sinks)[:, None], lse.shape).astype(np.float64)
    dq, dscores, dsinks = np.zeros(case.q.shape), np.zeros((b, h, t, s)), np.zeros(h)
    dk, dv = np.zeros(case.k.shape), np.zeros(case.v.shape)
    for row, queries, keys, program in programs(case, m):
        out, sums = program.forward()
        y[row, queries], lse[row, :, queries] = m.store(out).swapaxes(0, 1), sums
        if case.dy is None:
            continue
        out = m.rounded(out) if m.arithmetic.narrow else out
        dlse = np.zeros_like(sums) if case.dlse is None else m.load(case.dlse[row, :, queries])
        grads = program.backward(out, sums, m.load(case.dy[row, queries]).swapaxes(0, 1), dlse)
        dq[row, queries] = m.store(grads["dq"]).swapaxes(0, 1)
        for name, all_rows in (("dk", dk), ("dv", dv)):
            by_group = m.partial(grads[name]).reshape(g, h // g, *grads[name].shape[1:])
            all_rows[row, keys] = m.store(np.sum(by_group, axis=1)).swapaxes(0, 1)
        dscores[row, :, queries, keys] = grads["dscores"]
        dsinks += grads.get("dsinks", 0.0)
    found = {"y": y, "lse": lse}
    if case.dy is not None:
        found |= {"dq": dq, "dk": dk, "dv": dv}
        if case.bias is not None:
            found["dbias"] = m.store(summed_to(m.load(dscores), case.bias.shape))
        if case.sinks is not None:
            found["dsinks"] = m.store(m.load(dsinks))
    return found


def summed_to(x: Array, shape: tuple[int, ...]) -> Array:
    """The sum over the axes along which the bias was broadcast."""
    full = (1,) * (x.ndim - len(shape)) + tuple(shape)
    axes = tuple(i for i, n in enumerate(full) if n == 1 and x.shape[i] != 1)
    return np.sum(x, axis=axes, keepdims=True).reshape(shape)
