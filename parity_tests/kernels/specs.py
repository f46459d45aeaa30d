"""A case before its numbers: sizes, options and a seed, and the lines of NumPy that draw the numbers.

The same lines make the case that is judged and stand in the snippet that is printed, so neither can say something else.
"""

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from attn_np.ops import DTYPES
from parity_tests.kernels.canonical import Array, Case, Recurrent, Softmax
from parity_tests.kernels.limits import Limits

# Lines that make the numbers hard on the arithmetic, or a probe of them; first those of queries, keys and values.
STYLES = {
    "ordinary": "",
    "larger": "q, k = 3 * q, 3 * k",
    "values all ones": "v[:] = 1",
    "one-hot values": "v[:] = np.arange(v.shape[1])[:, None, None] % v.shape[3] == np.arange(v.shape[3])",
    "one huge key": "k[:, -1:] *= 30",
    "equal scores": "k[:] = k[:, :1]",
    "heavy tails": "q[..., 0] *= 5; k[..., 0] *= 5; v[..., 0] *= 30",
    "scores far below 0": "q[:], k[:] = 12, -12",
    "scores further below 0": "q[:], k[:] = 80, -80",
    "rising scores": "q, k = abs(q), abs(k) * np.linspace(0.1, 2, k.shape[1])[:, None, None]",
    "a large part shared": "k += 30 * rng.normal(size=k.shape[3])",
    "products that cancel": (
        "n = q.shape[3] // 2; q[..., n : 2 * n] = -q[..., :n]; k[..., n : 2 * n] = 1.002 * k[..., :n]"
    ),
    "sums that cancel": "n = v.shape[1] // 2; k[:, n : 2 * n] = k[:, :n]; v[:, n : 2 * n] = -v[:, :n] * 1.002",
    "zeros of both signs": "q, k, v = 0 * q, 0 * k, 0 * v",
    "mixed magnitudes": "q, k, v = (x * 2.0 ** rng.uniform(-12, 4, x.shape) for x in (q, k, v))",
    "another last row": "k[-1, :, -1] *= 300; v[-1, :, -1] *= 1000",
}
# What a bias may hold besides, in words, and how much larger it is then in the last query's row.
BIAS_HOLDS = ("-inf", "large")
LARGE_BIAS = {"float16": 200, "float64": 2000}


@dataclass(frozen=True)
class Spec:
    """What a case is drawn from.

    Attributes:
        kind: "dense", "packed", "paged" or "recurrent".
        dtype, seed: of the numbers.
        b, t, s, h, g, d, dv: sizes, by the letters b t h d, b s g d, b s g v.
        scale: None for the signature's own.
        causal, slopes, sinks: whether the call has them.
        window: how many keys before and behind a query's own are seen, None for all.
        mask, bias: "" for none, or the axes, such as "ts", "bhts" or "b11s".
        bias_holds: of `BIAS_HOLDS`, what the bias holds besides; "" for nothing.
        pattern: which of `patterns.drawn_pattern` hides keys besides; None for none.
        softcap, rate: None and 0 for none.
        of_q, of_k: where packed sequences begin, with the end.
        lengths: how many keys each row has.
        page: keys in a page.
        rule, beta, gate, state: of a recurrence; the gate "" for none, "head" or "channel".
        style: of `STYLES`.
        grads, dlse, dlast: whether gradients are asked for, and one of the log-sum-exp or of the last state is given.
        strided: whether inputs are views with strides.
        poison: of `Limits.unread`, where NaN stands.
    """

    kind: str = "dense"
    dtype: str = "float32"
    seed: int = 0
    b: int = 1
    t: int = 4
    s: int = 4
    h: int = 1
    g: int = 1
    d: int = 8
    dv: int = 8
    scale: float | None = None
    causal: bool = False
    slopes: bool = False
    sinks: bool = False
    window: tuple[int | None, int | None] | None = None
    mask: str = ""
    bias: str = ""
    bias_holds: str = ""
    pattern: int | None = None
    softcap: float | None = None
    rate: float = 0.0
    of_q: tuple[int, ...] | None = None
    of_k: tuple[int, ...] | None = None
    lengths: tuple[int, ...] | None = None
    page: int = 0
    rule: str = ""
    beta: bool = False
    gate: str = ""
    state: bool = False
    style: str = "ordinary"
    grads: bool = False
    dlse: bool = False
    dlast: bool = False
    strided: bool = False
    poison: tuple[str, ...] = ()

    @property
    def options(self) -> frozenset[str]:
        """Which options of `limits.OPTIONS` the call has."""
        has = {
            "causal": self.causal, "window": self.window is not None, "mask": bool(self.mask),
            "bias": bool(self.bias), "pattern": self.pattern is not None,
            "slopes": self.slopes, "softcap": self.softcap is not None, "sinks": self.sinks, "dropout": self.rate > 0,
            "scale": self.scale is not None, "grouped": self.h != self.g, "lengths": self.lengths is not None,
            "state": self.state, "beta": self.beta, "gate": self.gate == "head", "channel gate": self.gate == "channel",
            "value width": self.d != self.dv, "unequal lengths": self.kind == "dense" and self.t != self.s,
        }  # fmt: skip
        return frozenset(name for name, yes in has.items() if yes)

    def __str__(self) -> str:
        sizes = (
            f"b {self.b}, queries {self.t}, keys {self.s}, heads {self.h} over {self.g}, widths {self.d} and {self.dv}"
        )
        said = {f.name: getattr(self, f.name) for f in fields(self)}
        ours = ("kind", "dtype", "seed", "b", "t", "s", "h", "g", "d", "dv")
        given = [
            f"{n} {x}" if x is not True else n
            for n, x in said.items()
            if n not in ours and x not in (None, "", False, 0.0, ())
        ]
        return f"{self.kind}, {self.dtype}, {sizes}, {', '.join(given)}, seed {self.seed}"


def lines(spec: Spec, limits: Limits) -> list[str]:
    """The lines of NumPy that draw the arrays of a case; they know `np` alone."""
    b, t, s, h, g, d, dv = spec.b, spec.t, spec.s, spec.h, spec.g, spec.d, spec.dv
    recurrent = spec.kind == "recurrent"
    shapes = [(b, t, h, d), (b, s, g, d), (b, s, g, dv)]
    found = [
        f"rng = np.random.default_rng({spec.seed})",
        f"q, k, v = (rng.normal(size=n) for n in {shapes})",
    ]
    if STYLES[spec.style]:
        found.append(STYLES[spec.style])
    if recurrent:
        if "delta" in spec.rule:
            found.append("k /= np.linalg.norm(k, axis=3, keepdims=True)")
        if spec.beta:
            found.append(f"beta = rng.random({(b, t, g)})")
        if spec.gate:
            shape = (b, t, g) if spec.gate == "head" else (b, t, g, d)
            found.append(f"log_decay = -{(0.1, 1.0, 5.0)[spec.seed % 3]} * rng.random({shape})")
        if spec.state:
            n = b if spec.of_q is None else len(spec.of_q) - 1
            found.append(f"state = rng.normal(size={(n, g, d, dv)})")
    if spec.mask:
        found.append(f"mask = rng.random({shape_of(spec, spec.mask)}) < 0.7")
        if t > 1 and spec.mask[-2] == "t":
            found.append(f"mask[..., {t // 2}, :] = False")
    if spec.pattern is not None:  # of this package's `attend` alone
        found.append("from parity_tests.kernels.patterns import drawn_pattern")
        found.append(f"pattern, pairs = drawn_pattern(rng, {b}, {t}, {s}, {spec.pattern})")
    if spec.bias:
        found.append(f"bias = 2 * rng.normal(size={shape_of(spec, spec.bias)})")
        if spec.bias_holds == "-inf":
            found.append(f"bias[..., {t // 2 if spec.bias[-2] == 't' else 0}, : {-(-s // 2)}] = -np.inf")
        elif spec.bias_holds:
            found.append(f"bias[..., -1, :] += {LARGE_BIAS.get(spec.dtype, 500)}")
    if spec.slopes:
        found.append(f"slopes = 2.0 ** -np.arange(1, {h + 1})")
    if spec.sinks:
        found.append(f"sinks = rng.normal(size={h})")
    if spec.rate:
        found.append(f"keep = rng.random({(b, h, t, s)}) >= {spec.rate}")
    if spec.grads:
        found.append(f"dy = rng.normal(size={(b, t, h, dv)}) * 2.0 ** rng.integers(-3, 4, {(b, t, h, 1)})")
    if spec.dlse:
        found.append(f"dlse = rng.normal(size={(b, h, t)})")
    if spec.dlast:
        found.append(f"dlast = rng.normal(size={(b if spec.of_q is None else len(spec.of_q) - 1, g, d, dv)})")
    if "padding" in spec.poison and spec.lengths is not None:
        found.append(f"for row, n in enumerate({spec.lengths}): k[row, n:] = v[row, n:] = np.nan")
    if "hidden" in spec.poison and spec.kind == "dense":
        queries, keys = hidden(spec, limits)
        if len(queries[0]):
            found.append(f"q[{', '.join(str(x.tolist()) for x in queries)}] = np.nan")
        if len(keys[0]):
            found.append(f"k[{', '.join(str(x.tolist()) for x in keys)}] = np.nan")
            found.append(f"v[{', '.join(str(x.tolist()) for x in keys)}] = np.inf")
    if spec.page:
        n = s // spec.page
        found.append(f"table = 1 + rng.permutation({b * n}).reshape({b}, {n})")
        for pages, x, width in (("k_pages", "k", d), ("v_pages", "v", dv)):
            fill = "np.nan" if "pages" in spec.poison else "0.0"
            found.append(f"{pages} = np.full({(b * n + 2, spec.page, g, width)}, {fill})")
            found.append(f"{pages}[table] = {x}.reshape({(b, n, spec.page, g, width)})")
    return found


def shape_of(spec: Spec, axes: str) -> tuple[int, ...]:
    """The shape of an array of scores with these axes; "1" is one for all."""
    return tuple(1 if axis == "1" else getattr(spec, axis) for axis in axes)


def hidden(spec: Spec, limits: Limits) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Where queries that see no key are, `b t h`, and keys that no query sees, `b s g`, whatever the bias."""
    case: Any = case_of(replace(spec, poison=(), bias=""), limits)
    seen = case.allowed().reshape(spec.b, spec.g, spec.h // spec.g, spec.t, spec.s)
    blind = ~np.any(seen.reshape(spec.b, spec.h, spec.t, spec.s), axis=3)
    return np.nonzero(blind.swapaxes(1, 2)), np.nonzero(~np.any(seen, axis=(2, 3)).swapaxes(1, 2))


@lru_cache(maxsize=64)
def arrays(spec: Spec, limits: Limits) -> dict[str, Any]:
    """What the lines make."""
    room: dict[str, Any] = {"np": np}
    exec("\n".join(lines(spec, limits)), room)
    return {name: x for name, x in room.items() if isinstance(x, np.ndarray) or name == "pattern"}


def held(x: Array, dtype: str) -> Array:
    """Numbers of a type, in float64."""
    with np.errstate(over="ignore"):
        return x.astype(DTYPES[dtype]).astype(np.float64)


def scale_of(spec: Spec, limits: Limits) -> float:
    """The scale that the call has."""
    if spec.scale is not None:
        return spec.scale
    return spec.d**-0.5 if limits.default_scale is None else limits.default_scale


def log_decay_of(x: Array, dtype: str, gate: str) -> Array:
    """Logarithms of decays that the kernel gets in a type, as such or as the factors themselves."""
    return x if gate == "log" else np.log(held(np.exp(x), dtype))


@lru_cache(maxsize=64)
def case_of(spec: Spec, limits: Limits) -> Case:
    """The case in the form that the referee computes with."""
    x = arrays(spec, limits)
    q, k, v = (held(x[name], spec.dtype) for name in ("q", "k", "v"))
    # What has no type of the kernel is in float32: slopes, sinks, states and the log-sum-exp's gradient.
    wide = "float64" if spec.dtype == "float64" else "float32"
    dy = held(x["dy"], spec.dtype) if "dy" in x else None
    if spec.kind == "recurrent":
        return Recurrent(
            q, k, v, spec.dtype, scale_of(spec, limits), spec.rule,
            beta=held(x["beta"], spec.dtype) if spec.beta else None,
            log_decay=log_decay_of(held(x["log_decay"], wide), wide, limits.gate) if spec.gate else None,
            state=held(x["state"], wide) if spec.state else None,
            starts=spec.of_q, dy=dy, dlast=held(x["dlast"], wide) if spec.dlast else None, block=limits.block,
        )  # fmt: skip
    mask, window = x.get("mask"), spec.window
    if "pairs" in x:
        mask = x["pairs"] if mask is None else x["pairs"] & mask
    if window is not None and not spec.causal and limits.corner == "top-left" and spec.kind == "dense":
        # The case's window has the corner of its causality, at the bottom right without.
        left, right = window
        ahead = np.arange(spec.s) - np.arange(spec.t)[:, None]
        seen = (ahead >= (-spec.t if left is None else -left)) & (ahead <= (spec.s if right is None else right))
        mask, window = seen if mask is None else seen & mask, None
    return Softmax(
        q, k, v, spec.dtype, scale_of(spec, limits),
        causal=limits.corner if spec.causal else "",
        window=window, mask=mask,
        bias=held(x["bias"], spec.dtype) if spec.bias else None,
        slopes=held(x["slopes"], wide) if spec.slopes else None,
        softcap=spec.softcap,
        sinks=held(x["sinks"], wide) if spec.sinks else None,
        keep=x.get("keep"), rate=spec.rate,
        starts=None if spec.of_q is None else (spec.of_q, spec.of_k or spec.of_q),
        lengths=spec.lengths, page_size=spec.page, table=x.get("table"), dy=dy,
        dlse=held(x["dlse"], wide) if "dlse" in x else None, block=limits.block,
    )  # fmt: skip


@lru_cache(maxsize=64)
def empty_rows(spec: Spec, limits: Limits) -> Array | None:
    """Which queries see no key, `b t h`; None for a recurrence."""
    case = case_of(spec, limits)
    return None if isinstance(case, Recurrent) else ~np.any(case.allowed(), axis=3).swapaxes(1, 2)
