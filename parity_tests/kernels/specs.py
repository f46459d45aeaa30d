"""A case before its numbers: sizes, options and a seed, and the lines of NumPy that draw the numbers.

The same lines make the case that is judged and stand in the snippet that is printed, so neither can say something else.
"""

from dataclasses import dataclass, fields
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
    "scores far below 0": "q[:], k[:] = 80, -80",
    "rising scores": "q, k = abs(q), abs(k) * np.linspace(0.1, 2, k.shape[1])[:, None, None]",
}


@dataclass(frozen=True)
class Spec:
    """What a case is drawn from.

    Attributes:
        kind: "dense", "packed", "paged" or "recurrent".
        dtype, seed: of the numbers.
        b, t, s, h, g, d, dv: sizes, by the letters b t h d, b s g d, b s g v.
        scale: None for the signature's own.
        causal, bias, slopes, sinks: whether the call has them.
        window: how many keys before and behind a query's own are seen, None for all.
        mask: "" for none, "pairs" `t s`, or "scores" `b h t s`.
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
    bias: bool = False
    slopes: bool = False
    sinks: bool = False
    window: tuple[int | None, int | None] | None = None
    mask: str = ""
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
            "causal": self.causal, "window": self.window is not None, "mask": bool(self.mask), "bias": self.bias,
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


def lines(spec: Spec) -> list[str]:
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
        found.append(f"mask = rng.random({(t, s) if spec.mask == 'pairs' else (b, h, t, s)}) < 0.7")
        if t > 1:
            found.append(f"mask[..., {t // 2}, :] = False")
    if spec.bias:
        found.append(f"bias = 2 * rng.normal(size={(b, h, t, s)})")
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
    if spec.page:
        n = s // spec.page
        found.append(f"table = 1 + rng.permutation({b * n}).reshape({b}, {n})")
        for pages, x, width in (("k_pages", "k", d), ("v_pages", "v", dv)):
            fill = "np.nan" if "pages" in spec.poison else "0.0"
            found.append(f"{pages} = np.full({(b * n + 2, spec.page, g, width)}, {fill})")
            found.append(f"{pages}[table] = {x}.reshape({(b, n, spec.page, g, width)})")
    return found


@lru_cache(maxsize=64)
def arrays(spec: Spec) -> dict[str, Any]:
    """What the lines make."""
    room: dict[str, Any] = {"np": np}
    exec("\n".join(lines(spec)), room)
    return {name: x for name, x in room.items() if isinstance(x, np.ndarray)}


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
    x = arrays(spec)
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
