"""One form for what every kernel is asked: arrays in float64 that hold the kernel's numbers, and the options in words.

A signature's layout, alignment and packing are translated to this form, and everything that judges reads it: the
reference, the bounds, the simulated kernels and the search for a cause.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Softmax:
    """A call of softmax attention.

    Attributes:
        q, k, v: `b t h d`, `b s g d`, `b s g v`; query head i reads key head i // (h / g). Paged keys are gathered.
        dtype: the kernel's: "float64", "float32", "float16" or "bfloat16".
        scale: of the products.
        causal: "" for none, or where the diagonal of t queries and s keys ends: "top-left" or "bottom-right".
        window: how many keys to the left and to the right of its position a query sees, itself besides; None for all.
        mask: True where a query may see a key, broadcast to `b h t s`.
        bias: added to scaled and capped scores, broadcast to `b h t s`.
        slopes: `h`, ALiBi: minus slope times distance is added.
        softcap: c of c tanh(score / c).
        sinks: `h`, one more score in the denominator.
        keep, rate: dropout: which weights stay, `b h t s`, divided by 1 - rate.
        starts: of packed sequences, where those of the queries and those of the keys begin, with the ends; b is 1.
        lengths: `b`, how many keys each row of the batch has; those behind are padding.
        page_size, table: `b n`, pages of the cache in the order of their keys.
        dy, dlse: gradients of the outputs, `b t h v` and `b h t`.
        block: how many queries and keys the kernel takes at once, where one knows.
    """

    q: Array
    k: Array
    v: Array
    dtype: str
    scale: float
    causal: str = ""
    window: tuple[int | None, int | None] | None = None
    mask: Array | None = None
    bias: Array | None = None
    slopes: Array | None = None
    softcap: float | None = None
    sinks: Array | None = None
    keep: Array | None = None
    rate: float = 0.0
    starts: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    lengths: tuple[int, ...] | None = None
    page_size: int = 0
    table: Array | None = None
    dy: Array | None = None
    dlse: Array | None = None
    block: int = 16

    @property
    def kind(self) -> str:
        """Which kernels take it: "dense", "packed" or "paged"."""
        return "packed" if self.starts else "paged" if self.table is not None else "dense"

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        """b, t, s, h, g."""
        (b, t, h, _), (_, s, g, _) = self.q.shape, self.k.shape
        return b, t, s, h, g

    def spans(self) -> list[tuple[int, slice, slice]]:
        """For each sequence its row of the batch, its queries and its keys."""
        b, t, s, _, _ = self.sizes
        if self.starts is None:
            ends = self.lengths or (s,) * b
            return [(n, slice(0, t), slice(0, ends[n])) for n in range(b)]
        of_q, of_k = self.starts
        return [(0, slice(*of_q[n : n + 2]), slice(*of_k[n : n + 2])) for n in range(len(of_q) - 1)]

    def ahead(self) -> tuple[Array, Array]:
        """How far a key lies ahead of a query's position, `b t s`, and where both are of one sequence."""
        b, t, s, _, _ = self.sizes
        ahead, same = np.zeros((b, t, s), int), np.zeros((b, t, s), bool)
        for row, queries, keys in self.spans():
            count, length = queries.stop - queries.start, keys.stop - keys.start
            shift = 0 if self.causal == "top-left" else length - count
            ahead[row, queries, keys] = np.arange(length) - np.arange(count)[:, None] - shift
            same[row, queries, keys] = True
        return ahead, same

    def allowed(self) -> Array:
        """Who sees whom, `b h t s`."""
        b, t, s, h, _ = self.sizes
        ahead, seen = self.ahead()
        left, right = self.window or (None, None)
        if self.causal:
            seen &= ahead <= 0
        if left is not None:
            seen &= ahead >= -left
        if right is not None:
            seen &= ahead <= right
        seen = np.broadcast_to(seen[:, None], (b, h, t, s))
        seen = seen if self.mask is None else seen & self.mask
        return seen if self.bias is None else seen & ~np.isneginf(self.bias)

    def added(self) -> Array | None:
        """What is added to the scores, `b h t s`."""
        b, t, s, h, _ = self.sizes
        found = None if self.bias is None else np.where(np.isneginf(self.bias), 0.0, self.bias)
        if self.slopes is not None:
            found = (0.0 if found is None else found) - self.slopes[:, None, None] * np.abs(self.ahead()[0])[:, None]
        return None if found is None else np.broadcast_to(found, (b, h, t, s))


RULES = ("linear", "gated", "delta", "gated_delta")


@dataclass(frozen=True, eq=False)
class Recurrent:
    """A call of a recurrence, as `attn_np.recur` defines it.

    Attributes:
        q, k, v: `b t h k`, `b t g k`, `b t g v`.
        dtype, scale: as of `Softmax`.
        rule: of `RULES`.
        beta: `b t g`, None for 1.
        log_decay: `b t g` or `b t g k`, logarithms of the factors of the state, None for 0.
        state: `n g k v`, the one before each sequence; None for 0.
        starts: where packed sequences begin, with the end; b is 1.
        dy, dlast: gradients of the outputs and of the last states.
        block: positions in a chunk, where one knows.
    """

    q: Array
    k: Array
    v: Array
    dtype: str
    scale: float
    rule: str
    beta: Array | None = None
    log_decay: Array | None = None
    state: Array | None = None
    starts: tuple[int, ...] | None = None
    dy: Array | None = None
    dlast: Array | None = None
    block: int = 16

    kind = "recurrent"

    def spans(self) -> list[tuple[int, slice]]:
        """For each sequence its row of the batch and its positions."""
        b, t = self.q.shape[:2]
        if self.starts is None:
            return [(n, slice(0, t)) for n in range(b)]
        return [(0, slice(*self.starts[n : n + 2])) for n in range(len(self.starts) - 1)]


Case = Softmax | Recurrent
Results = dict[str, Any]
__all__ = ["RULES", "Array", "Case", "Recurrent", "Results", "Softmax"]
