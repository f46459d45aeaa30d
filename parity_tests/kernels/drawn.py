"""Drawn cases for the simulated kernels: every option, edges of blocks, and numbers that are hard on the arithmetic."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attn_np.ops import DTYPES
from parity_tests.kernels.canonical import RULES, Array, Case, Recurrent, Softmax

KINDS = ("dense", "packed", "paged", "recurrent")
LENGTHS = (1, 2, 3, 7, 8, 9, 15, 16, 17, 23, 33)


def held(x: Array, dtype: str) -> Array:
    """Numbers of a type, in float64."""
    return x.astype(DTYPES[dtype]).astype(np.float64)


def huge(rng: np.random.Generator, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    k[:, rng.integers(k.shape[1])] *= 30.0
    return q, k, v


def cancelling(rng: np.random.Generator, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    n = v.shape[1] // 2
    v[:, n : 2 * n] = -v[:, :n]
    return q, k * 0.1, v


def heavy(rng: np.random.Generator, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    q[..., 0], k[..., 0], v[..., 0] = 5 * q[..., 0], 5 * k[..., 0], 30 * v[..., 0]
    return q, k, v


STYLES: dict[str, Callable[..., tuple[Array, Array, Array]]] = {
    "ordinary": lambda rng, q, k, v: (q, k, v),
    "larger": lambda rng, q, k, v: (3 * q, 3 * k, v),
    "equal": lambda rng, q, k, v: (q, np.broadcast_to(k[:, :1], k.shape).copy(), v),
    "flat": lambda rng, q, k, v: (0.01 * q, k, 1 + 0.1 * v),
    "ones": lambda rng, q, k, v: (q, k, np.ones_like(v)),
    "one huge": huge,
    "cancelling": cancelling,
    "heavy": heavy,
    "far below": lambda rng, q, k, v: (np.full_like(q, 80.0), np.full_like(k, -80.0), v),
    "rising": lambda rng, q, k, v: (np.abs(q), np.abs(k) * np.linspace(0.1, 2, k.shape[1])[:, None, None], v),
}


def cuts(rng: np.random.Generator, n: int) -> tuple[int, ...]:
    """Where n sequences begin, and the end: some are empty, some have one token."""
    return (0, *np.cumsum(rng.choice([0, 1, 2, 5, 8, 9, 17], n)).tolist())


def drawn_softmax(kind: str, seed: int, dtype: str, **given: object) -> Softmax:
    """A drawn case of "dense", "packed" or "paged", whose blocks have 8 rows; with some fields as given."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    t, s = (int(n) for n in rng.choice(LENGTHS, 2))
    t, s = ((t, t), (t, s), (s, t), (1, s))[rng.integers(4)]
    h, g = ((1, 1), (2, 2), (2, 1), (4, 2), (6, 3), (3, 1))[rng.integers(6)]
    width, depth, b = int(rng.choice([3, 8, 12])), int(rng.choice([5, 8])), int(rng.choice([1, 2, 3]))
    fields: dict[str, object] = {}
    if kind == "packed":
        n = int(rng.integers(1, 5))
        of_q, of_k = cuts(rng, n), cuts(rng, n)
        of_k = of_q if rng.random() < 0.5 else of_k
        if not of_q[-1] or not of_k[-1]:
            of_q = of_k = (0, 3, 3, 12)
        b, t, s, fields["starts"] = 1, of_q[-1], of_k[-1], (of_q, of_k)
    if kind == "paged":
        page = int(rng.choice([2, 4, 8]))
        pages = -(-s // page)
        table = rng.permutation(b * pages + 1)[: b * pages].reshape(b, pages)
        lengths = tuple(int(x) for x in np.maximum(1, s - rng.integers(0, s, b)))
        fields |= {"page_size": page, "table": table, "lengths": lengths}
    elif kind == "dense" and rng.random() < 0.2:
        fields["lengths"] = tuple(int(x) for x in rng.integers(0, s + 1, b))
    q, k, v = (rng.normal(size=shape) for shape in ((b, t, h, width), (b, s, g, width), (b, s, g, depth)))
    q, k, v = STYLES[tuple(STYLES)[rng.integers(len(STYLES))]](rng, q, k, v)
    if rng.random() < 0.5:
        fields["causal"] = "bottom-right" if kind != "dense" or rng.random() < 0.5 else "top-left"
    if rng.random() < 0.3:
        left, right = (None if rng.random() < 0.3 else int(rng.choice([0, 1, 3, 8, s, s + 3])) for _ in range(2))
        fields["window"] = (left, right)
    if rng.random() < 0.2 and kind == "dense":
        mask = rng.random((b, 1, t, s) if rng.random() < 0.5 else (b, h, t, s)) < 0.7
        mask[:, :, t // 2] &= rng.random() < 0.5
        fields["mask"] = mask
    if rng.random() < 0.2 and kind == "dense":
        shape = ((1, h, t, s), (b, 1, 1, s), (t, s))[rng.integers(3)]
        fields["bias"] = held(2 * rng.normal(size=shape), dtype)
    if rng.random() < 0.25:
        fields["slopes"] = held(2.0 ** -np.arange(1, h + 1), dtype)
    if rng.random() < 0.25:
        fields["softcap"] = float(rng.choice([1.0, 15.0, 50.0]))
    if rng.random() < 0.25:
        fields["sinks"] = held(rng.normal(size=h), dtype)
    if rng.random() < 0.15 and kind == "dense":
        fields |= {"keep": rng.random((b, h, t, s)) < 0.5, "rate": 0.5}
    if kind != "paged":
        fields["dy"] = held(rng.normal(size=(b, t, h, depth)) * 2.0 ** rng.integers(-3, 4, (b, t, h, 1)), dtype)
        if rng.random() < 0.3:
            fields["dlse"] = rng.normal(size=(b, h, t)).astype(np.float32).astype(np.float64)
    scale = float((width**-0.5, 1.0, 0.3)[rng.integers(3)])
    case = Softmax(held(q, dtype), held(k, dtype), held(v, dtype), dtype, scale, block=8, **fields)  # type: ignore
    return replace(case, **given)


def drawn_recurrent(seed: int, dtype: str, **given: object) -> Recurrent:
    """A drawn recurrence, with chunks of 8."""
    rng = np.random.default_rng([seed, KINDS.index("recurrent")])
    rule = RULES[rng.integers(4)]
    b, t = int(rng.choice([1, 2])), int(rng.choice(LENGTHS))
    h, g = ((1, 1), (2, 2), (2, 1), (4, 2))[rng.integers(4)]
    width, depth = int(rng.choice([3, 8])), int(rng.choice([5, 8]))
    fields: dict[str, object] = {}
    n = b
    if rng.random() < 0.4:
        starts = cuts(rng, int(rng.integers(1, 4)))
        starts = starts if starts[-1] else (0, 3, 3, 12)
        b, t, n, fields["starts"] = 1, starts[-1], len(starts) - 1, starts
    q, k, v = (rng.normal(size=shape) for shape in ((b, t, h, width), (b, t, g, width), (b, t, g, depth)))
    if "delta" in rule:
        k = k / np.linalg.norm(k, axis=3, keepdims=True)
        fields["beta"] = held(rng.random((b, t, g)), dtype)
    if "gated" in rule:
        shape = (b, t, g) if rng.random() < 0.5 else (b, t, g, width)
        strength = float(rng.choice([0.0, 0.1, 1.0, 5.0]))
        fields["log_decay"] = held(-strength * rng.random(shape), dtype)
    if rng.random() < 0.5:
        fields["state"] = rng.normal(size=(n, g, width, depth)).astype(np.float32).astype(np.float64)
    fields["dy"] = held(rng.normal(size=(b, t, h, depth)) * 2.0 ** rng.integers(-2, 3, (b, t, h, 1)), dtype)
    if rng.random() < 0.5:
        fields["dlast"] = rng.normal(size=(n, g, width, depth)).astype(np.float32).astype(np.float64)
    case = Recurrent(held(q, dtype), held(k, dtype), held(v, dtype), dtype, width**-0.5, rule, block=8, **fields)  # type: ignore
    return replace(case, **given)


def drawn(kind: str, seed: int, dtype: str, **given: object) -> Case:
    """A drawn case of a kind."""
    return drawn_recurrent(seed, dtype, **given) if kind == "recurrent" else drawn_softmax(kind, seed, dtype, **given)
