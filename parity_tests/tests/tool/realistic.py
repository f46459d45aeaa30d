"""Sixty realistic mistakes in ports by hand, and what the judge says of each.

`python -m parity_tests.tests.tool.realistic` prints a table. Every mistake replaces a method of a port in
`ports_by_hand`. None of them is an edit of the library's source, as those of the catalogue are, and what counts as the
right cause was written down before the judge was asked.
"""

import re
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from math import sqrt
from typing import Any

import numpy as np

from attn_np import contract
from parity_tests.judge.frameworks import prepare
from parity_tests.ports.parity import ParityError, assert_parity
from parity_tests.tests.tool.ports_by_hand import Port, build

# Fields of the config by variant: each number a different one, so that mixing them up can be seen.
FIELDS: dict[str, dict[str, Any]] = {
    "decoder": {
        "d_model": 12, "num_heads": 6, "num_kv_heads": 3, "head_dim": 8, "window": (3, None), "softcap": 5.0,
        "norm": "rms", "sinks": True,
    },
    "gqa": {"d_model": 12, "num_heads": 6, "num_kv_heads": 3, "head_dim": 5},
    "mha": {"d_model": 12, "num_heads": 3},
    "rotary": {"d_model": 12, "num_heads": 2, "causal": True},
    "mla": {"d_model": 12, "num_heads": 3, "kv_rank": 7, "nope_dim": 5, "rope_dim": 4, "value_head_dim": 3},
    "t5_bias": {"d_model": 12, "num_heads": 3, "num_buckets": 8, "max_distance": 16, "scale": 1.0},
    "alibi": {"d_model": 12, "num_heads": 4, "causal": True},
    "qk_norm": {"d_model": 12, "num_heads": 3, "norm": "l2", "norm_eps": 1e-6},
    "sinks": {"d_model": 12, "num_heads": 3, "softcap": 2.0, "sink": "learned"},
    "gated": {"d_model": 12, "num_heads": 3},
    "sigmoid_attention": {"d_model": 12, "num_heads": 3, "score_offset": -2.0},
    "fused_qkv": {"d_model": 12, "num_heads": 3},
    "linear": {"d_model": 12, "num_heads": 3},
}  # fmt: skip

# Framework, dtype and whether intermediates are shown, in turn.
SETTINGS = (
    ("torch", "float64", True),
    ("jax", "float32", False),
    ("torch", "float32", True),
    ("jax", "float64", False),
    ("jax", "float32", True),
    ("torch", "float32", False),
    ("jax", "float64", True),
    ("torch", "float64", False),
)


@dataclass(frozen=True)
class Mistake:
    """One mistake in one port.

    Attributes:
        name, variant: what is wrong, and in a port of what.
        stage: the first intermediate that it reaches of those that the port shows.
        cause: a pattern of the words of a right cause.
        methods: what it replaces.
        gradient: it changes gradients only; the first of these.
        dtype: the type that it is judged in, where its effect is too small for any.
        fields: other fields than those in FIELDS.
    """

    name: str
    variant: str
    stage: str
    cause: str
    methods: dict[str, Callable[..., Any]]
    gradient: str = ""
    dtype: str = ""
    fields: dict[str, Any] | None = None


MISTAKES: list[Mistake] = []


def wrong(name: str, variant: str, stage: str, cause: str, **methods: Any) -> None:
    own = {key: methods.pop(key) for key in ("gradient", "dtype", "fields") if key in methods}
    MISTAKES.append(Mistake(name, variant, stage, cause, methods, **own))


def old(method: str) -> Callable[..., Any]:
    """The right method, for a mistake that adds to it."""
    return getattr(Port, method)


def scrambled(flat: Any, heads: int, width: int) -> Any:
    """Viewed as `b h t k` where it is `b t (h k)`."""
    return flat.reshape(flat.shape[0], heads, flat.shape[1], width).swapaxes(1, 2)


def only(which: str, change: Callable[..., Any]) -> Callable[..., Any]:
    """A change of how the projections of these names are split into heads."""
    return lambda self, flat, h, k, name: (change if name in which else old("split").__get__(self))(flat, h, k, *(
        () if name in which else (name,)
    ))  # fmt: skip


def mean_square(self: Any, x: Any) -> Any:
    return self.lib.sum(x * x, -1)[..., None] / x.shape[-1]


def layer_norm(self: Any, x: Any) -> Any:
    x = x - self.lib.sum(x, -1)[..., None] / x.shape[-1]
    return old("unit")(self, x)


def norm_after_turn(self: Any, q: Any, k: Any) -> Any:
    self.show(q_proj=q, k_proj=k)
    q, k = (self.turn(x, np.arange(x.shape[1])) for x in (q, k))
    q, k = self.norm(q, "w_q_norm"), self.norm(k, "w_k_norm")
    self.show(q_rot=q, k_rot=k)
    return q, k


def turned_along_heads(self: Any, x: Any, positions: np.ndarray) -> Any:
    return old("turn")(self, x.swapaxes(1, 2), np.arange(x.shape[2])).swapaxes(1, 2)


def sinks_outside(self: Any, e: Any) -> Any:
    s = e.shape[-1] - 1
    return e / self.lib.sum(e[..., :s], -1)[..., None]


def softmax_over(axis: int) -> Callable[..., Any]:
    def softmax(self: Any, scores: Any, mask: Any) -> Any:
        e = self.lib.exp(scores) * self.lib.where(mask, 1.0, 0.0)
        return e / self.lib.broadcast_to(self.lib.sum(e, axis)[(slice(None),) * axis + (None,)], e.shape)

    return softmax


def turned_as(turn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, x, cos, sin: turn(self, x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :], cos, sin)


def lowered(dtype: str) -> Callable[..., Any]:
    def scores(self: Any, q: Any, k: Any) -> Any:
        low = getattr(self.lib, dtype)
        to = (lambda x, kind: x.to(kind)) if self.lib.__name__ == "torch" else (lambda x, kind: x.astype(kind))
        return to(to(self.lib.einsum("bthk,bshk->bhts", to(to(q, low), q.dtype), to(to(k, low), q.dtype)), q.dtype)
                  * self.scale(q), q.dtype)  # fmt: skip

    return scores


# Decoder
wrong("eps of 1e-3 in the norm", "decoder", "q_norm", r"eps .*\b0\.001 ", eps=lambda self: 1e-3)
wrong("eps of 1e-5 in the norm", "decoder", "q_norm", r"eps .*\b1e-05 ", eps=lambda self: 1e-5, dtype="float64")
wrong(
    "eps added to the root", "decoder", "q_norm", "root", fields={"norm_eps": 0.01},
    unit=lambda self, x: x / (self.lib.sqrt(mean_square(self, x)) + self.eps()),
)  # fmt: skip
wrong("rotary base of 10500", "decoder", "q_rot", r"base 10500 ", base=lambda self: 10500.0)
wrong(
    "softcap on the sinks too", "decoder", "probs", "sink",
    sinks=lambda self: self.c.softcap * self.lib.tanh(self.w["sinks"] / self.c.softcap),
)  # fmt: skip
wrong("sinks left out of the sum", "decoder", "probs", "sink", divided=sinks_outside)
wrong("normed after the rotation", "decoder", "q_rot", "norm", position=norm_after_turn)
wrong(
    "queries at positions from 1", "decoder", "q_rot", "position|off by one",
    query_positions=lambda self, t: np.arange(1, t + 1),
)  # fmt: skip
wrong("turned along the heads", "decoder", "q_rot", "head", turn=turned_along_heads)
wrong("window counts the query extra", "decoder", "probs", "window", left=lambda self, left: left - 1)
wrong(
    "query heads dealt out in turn",
    "decoder",
    "scores",
    "modulo|tiled|consecutive",
    kv_head=lambda self, i, h, g: i % g,
)
wrong("softcap of 6", "decoder", "probs", "softcap", cap=lambda self, x: 6.0 * self.lib.tanh(x / 6.0))
wrong("layer norm for rms norm", "decoder", "q_norm", "mean|layer", unit=layer_norm)
wrong(
    "norm offset forgotten", "decoder", "q_norm", "offset", fields={"norm_offset": 1.0},
    norm=lambda self, x, name: self.unit(x) * self.w[name],
)  # fmt: skip
wrong(
    "values without gradient", "decoder", "", "gradient|cut", gradient="dw_v",
    share=lambda self, x: old("share")(self, self.stopped(x) if x is not self.tape.get("k_rot") else x),
)  # fmt: skip
wrong(
    "eps of 1e-2 and scale of the model's width", "decoder", "q_norm", r"eps .*\b0\.01 |model's width",
    eps=lambda self: 1e-2, scale=lambda self, q: 1 / sqrt(self.c.d_model),
)  # fmt: skip
# Grouped heads
wrong("keys viewed without moving the head axis", "gqa", "scores", "split|reshape|order", split=only("k", scrambled))
wrong(
    "heads merged without moving their axis", "gqa", "y", "merge",
    flat=lambda self, x: x.swapaxes(1, 2).reshape(*x.shape[:2], -1),
)  # fmt: skip
wrong("mask the wrong way round", "gqa", "probs", "mask", hidden=lambda self, x, mask: self.lib.where(mask, -np.inf, x))
wrong("scale by the number of groups", "gqa", "scores", "scale", scale=lambda self, q: 1 / sqrt(self.c.num_kv_heads))
wrong("bias not added", "gqa", "probs", "bias", add=lambda self, scores, bias: scores)
# Multi-head attention
wrong("softmax over the heads", "mha", "probs", "softmax|head", softmax=softmax_over(1))
wrong("softmax over the queries", "mha", "probs", "softmax", softmax=softmax_over(2))
wrong("mask added as 0 and 1", "mha", "probs", "mask", hidden=lambda self, x, mask: x + self.lib.where(mask, 1.0, 0.0))
wrong(
    "heads merged without moving their axis", "mha", "y", "merge",
    flat=lambda self, x: x.swapaxes(1, 2).reshape(*x.shape[:2], -1),
)  # fmt: skip
wrong(
    "values' bias left out", "mha", "context", "bias",
    project=lambda self, x, n: old("project")(self, x, n) - (self.w["b_v"] if n == "v" else 0),
)  # fmt: skip
wrong("scaled twice", "mha", "scores", "scale", scale=lambda self, q: 1 / q.shape[-1])
wrong("bias subtracted", "mha", "probs", "bias", add=lambda self, scores, bias: scores - bias)
wrong("scores from bfloat16", "mha", "scores", "bfloat16", scores=lowered("bfloat16"))
wrong(
    "output weights transposed", "mha", "y", "transposed",
    merge=lambda self, x: self.flat(x) @ self.w["w_o"].reshape(12, 12).swapaxes(0, 1) + self.w["b_o"],
)  # fmt: skip
# Rotary positions
wrong("rotary base of 9000", "rotary", "scores", r"base 9000 ", base=lambda self: 9000.0)
wrong("keys turned the other way", "rotary", "scores", "rot|turn|angle",
      turn=lambda self, x, at: old("turn")(self, x, at if x is self.first(x) else -at),
      first=lambda self, x: (self.tape.setdefault("_first", x), self.tape["_first"])[1])  # fmt: skip
wrong(
    "queries at positions from 1",
    "rotary",
    "scores",
    "position|off by one",
    query_positions=lambda self, t: np.arange(1, t + 1),
)
wrong(
    "neighbours paired, not halves", "rotary", "scores", "layout|pair",
    turned=lambda self, x, cos, sin: self.lib.stack(
        [x[..., ::2] * cos - x[..., 1::2] * sin, x[..., 1::2] * cos + x[..., ::2] * sin], -1).reshape(x.shape),
)  # fmt: skip
wrong(
    "halves turned as (a cos - b sin, a cos + b sin)", "rotary", "scores", "rot|turn|angle",
    turned=turned_as(lambda self, a, b, cos, sin: self.lib.concatenate([a * cos - b * sin, a * cos + b * sin], -1)),
)  # fmt: skip
wrong(
    "angles of i / width", "rotary", "scores", "rope_base|rotary base|frequenc|angle",
    frequencies=lambda self, n: self.base() ** (-1.0 * np.arange(n // 2) / n),
)  # fmt: skip
wrong("turned along the heads", "rotary", "scores", "head", turn=turned_along_heads)
# Multi-head latent attention
wrong("eps of 1e-2 in the latent's norm", "mla", "latent", r"eps .*\b0\.01 ", eps=lambda self: 1e-2)
wrong("scale of the unrotated part", "mla", "scores", "scale", scale=lambda self, q: 1 / sqrt(self.c.nope_dim))
wrong("halves paired, not neighbours", "mla", "q_rot", "layout|pair",
      turned=turned_as(
          lambda self, a, b, cos, sin: self.lib.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
      ))  # fmt: skip
wrong("latent not normed", "mla", "latent", "norm", latent=lambda self, x: x @ self.w["w_dkv"])
wrong("rotary base of 1e5", "mla", "q_rot", r"base 100000 ", base=lambda self: 1e5)
# T5's buckets
wrong(
    "scores scaled", "t5_bias", "scores", "scaled?\\b|divided by the root", scale=lambda self, q: 1 / sqrt(q.shape[-1])
)
wrong("offsets of the other sign", "t5_bias", "probs", "sign|offset|bucket|direction|query minus",
      buckets=lambda self, q, k: old("buckets")(self, k, q))  # fmt: skip
wrong("farthest bucket at 32", "t5_bias", "probs", "largest distance|max_distance",
      fields={"max_distance": 4},
      buckets=lambda self, q, k: self.bucket(q - k, self.c.num_buckets, 16, True))  # fmt: skip
wrong("buckets of a decoder", "t5_bias", "probs", "bidirectional|side|direction|bucket",
      buckets=lambda self, q, k: self.bucket(q - k, self.c.num_buckets, self.c.max_distance, False))  # fmt: skip
# Linear biases
wrong("slopes from 2^0", "alibi", "probs", "slope", slopes=lambda self: 2.0 ** (-8 * np.arange(4) / 4))
wrong("slopes of twice the steepness", "alibi", "probs", "slope", slopes=lambda self: 2 * old("slopes")(self))
wrong("later keys preferred", "alibi", "probs", "sign|slope|distance", distance=lambda self, q, k: -np.abs(q - k))
wrong("bias scaled with the scores", "alibi", "probs", "scale|slope",
      position_bias=lambda self, x: old("position_bias")(self, x) / sqrt(3))  # fmt: skip
# Norms of queries and keys
wrong("eps of 1e-2 in the norm", "qk_norm", "scores", r"eps .*\b0\.01 ", eps=lambda self: 1e-2)
wrong("normed scores scaled", "qk_norm", "scores", "scale", scale=lambda self, q: 1 / sqrt(q.shape[-1]))
# Sinks
wrong("softcap on the sinks too", "sinks", "probs", "sink",
      sinks=lambda self: 2 * self.lib.tanh(self.w["sinks"] / 2))  # fmt: skip
wrong("sinks left out", "sinks", "probs", "sink", sinks=lambda self: None)
# Gates
wrong("gate without its sigmoid", "gated", "y", "sigmoid", gate=lambda self, x: x)
wrong("gate of tanh", "gated", "y", "gate|tanh|sigmoid", gate=lambda self, x: self.lib.tanh(x))
# Sigmoid attention
wrong("offset of -3", "sigmoid_attention", "probs", "offset", softmax=lambda self, x, mask: self.lib.where(
      mask, self.sigmoid(x - 3.0), 0.0))  # fmt: skip
# Joint projections
wrong("joint projection read head by head", "fused_qkv", "scores", "joint|head by head|heads, 3",
      parts=lambda self, x: tuple((x @ self.w["w_qkv"].reshape(12, -1) + self.w["b_qkv"].reshape(-1)).reshape(
          *x.shape[:2], 3, 3, 4)[:, :, :, i] for i in range(3)))  # fmt: skip
# Linear attention
wrong("elu without its 1", "linear", "q_features", "feature|elu",
      features=lambda self, x: self.lib.where(x > 0, x, self.lib.exp(self.lib.where(x > 0, 0.0, x)) - 1))  # fmt: skip
wrong("not divided by the weights", "linear", "context", "normal|divid", divided_by=lambda self, read, total: read)


@dataclass(frozen=True)
class Said:
    """What the judge said of one mistake.

    Attributes:
        mistake, setting: which, and framework, dtype, and whether intermediates were shown.
        first: the first array that differs; "" where none did.
        stage_right: it is where the mistake stands.
        causes: the cause that is named first, then that of what differs with the first one mended.
        cause: "right", "wrong" where one of them is, or "absent" where none is named.
    """

    mistake: Mistake
    setting: tuple[str, str, bool]
    first: str
    stage_right: bool
    causes: list[str]

    @property
    def cause(self) -> str:
        if not self.causes:
            return "absent"
        return "right" if all(re.search(self.mistake.cause, cause) for cause in self.causes) else "wrong"


def setting_of(number: int) -> tuple[str, str, bool]:
    framework, dtype, taps = SETTINGS[number % len(SETTINGS)]
    return framework, MISTAKES[number].dtype or dtype, taps


def judged(
    variant: str,
    methods: dict[str, Any],
    setting: tuple[str, str, bool],
    fields: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Judge a port with these methods replaced.

    Raises:
        ParityError: it differs.
    """
    framework, dtype, taps = setting
    lib = import_module({"torch": "torch", "jax": "jax.numpy"}[framework])
    config = contract.config(variant, **FIELDS[variant] | (fields or {}))
    function = build(lib, config, methods, taps)
    assert_parity(function, variant, config, framework=framework, dtype=dtype, empty_rows=False, **options)


def said(number: int) -> Said:
    """Make a mistake and ask the judge."""
    mistake, setting = MISTAKES[number], setting_of(number)
    try:
        judged(mistake.variant, mistake.methods, setting, mistake.fields)
    except ParityError as error:
        finding = error.finding
        ends = mistake.gradient or (mistake.stage if setting[2] else "y")
        parts = [finding] if finding.after is None else [finding, finding.after]
        causes = [cause.name for part in parts for cause in part.causes[:1]]
        return Said(mistake, setting, finding.first.name, finding.first.name == ends, causes)
    return Said(mistake, setting, "", False, [])


def main(numbers: Iterable[int]) -> int:
    from rich.console import Console
    from rich.table import Table

    prepare(("torch", "jax"))
    warnings.simplefilter("ignore", RuntimeWarning)
    console = Console(width=200)
    for variant in FIELDS:  # the ports themselves are right
        for setting in SETTINGS[:1] + SETTINGS[4:5]:
            judged(variant, {}, setting)
    found = []
    for number in numbers:
        found.append(said(number))
        print(
            number,
            found[-1].mistake.name,
            "|",
            found[-1].first,
            "|",
            found[-1].cause,
            "|",
            found[-1].causes[:2],
            flush=True,
        )
    table = Table("", "mistake", "in", "seen", "first", "stage", "cause", "named")
    for number, one in zip(numbers, found, strict=True):
        framework, dtype, taps = one.setting
        where = f"{one.mistake.variant}, {framework} {dtype}{', shown' if taps else ''}"
        stage = "right" if one.stage_right else "wrong"
        named = "; ".join(one.causes[:2])
        table.add_row(
            str(number), one.mistake.name, where, "yes" if one.first else "no", one.first, stage, one.cause, named
        )
    console.print(table)
    counts = {word: sum(one.cause == word for one in found) for word in ("right", "wrong", "absent")}
    console.print(
        f"{len(found)} mistakes: seen {sum(bool(one.first) for one in found)}, "
        f"stage right {sum(one.stage_right for one in found)}, cause "
        + ", ".join(f"{word} {count}" for word, count in counts.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main([int(x) for x in sys.argv[1:]] or range(len(MISTAKES))))
