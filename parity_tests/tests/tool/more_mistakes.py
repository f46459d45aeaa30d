"""Sixty-five mistakes more, of kinds that the first sixty do not have, and what the judge says of each.

`python -m parity_tests.tests.tool.more_mistakes` prints a table. The ports run in PyTorch, NumPy, Flax NNX, Linen and
Equinox, none shows an intermediate, and what counts as the right cause was written down before the judge was asked.
"""

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from math import log, sqrt
from time import perf_counter
from typing import Any

import numpy as np

from attn_np import contract
from parity_tests.bounds.error_array import nearest
from parity_tests.explain.findings import Finding
from parity_tests.judge.frameworks import prepare
from parity_tests.ports.parity import ParityError, assert_parity
from parity_tests.tests.tool import more_ports_by_hand as ports
from parity_tests.tests.tool.ports_by_hand import Port

NORMED = {"d_model": 12, "num_heads": 6, "num_kv_heads": 3, "head_dim": 8, "norm": "rms"}
LATENT = {"d_model": 12, "num_heads": 3, "kv_rank": 7, "nope_dim": 5, "rope_dim": 4, "value_head_dim": 3, "q_rank": 6}
MSCALE = 0.1 * log(4.0) + 1
# Fields of the config by the name of a setup, which begins with the variant's.
FIELDS: dict[str, dict[str, Any]] = {
    "decoder": NORMED,
    "decoder/gate": {"d_model": 12, "num_heads": 3, "gate": True},
    "decoder/sinks": {"d_model": 12, "num_heads": 3, "sinks": True},
    "decoder/softcap": {"d_model": 12, "num_heads": 3, "softcap": 4.0},
    "mha": {"d_model": 12, "num_heads": 3},
    "mha/causal": {"d_model": 12, "num_heads": 3, "causal": True},
    "gqa": {"d_model": 12, "num_heads": 6, "num_kv_heads": 3, "head_dim": 5},
    "rotary": {"d_model": 16, "num_heads": 2, "causal": True},
    "t5_bias": {"d_model": 12, "num_heads": 3, "num_buckets": 8, "max_distance": 20},
    "t5_bias/decoder": {"d_model": 12, "num_heads": 3, "num_buckets": 8, "max_distance": 16, "causal": True},
    "mla": LATENT,
    "mla/yarn": LATENT | {
        "rope_scaling": "yarn", "rope_scaling_factor": 4.0, "original_max_positions": 32, "beta_fast": 32.0,
        "beta_slow": 1.0, "attention_factor": 1.0, "scale": MSCALE**2 / 3,
    },
    "gated_delta": {"d_model": 12, "num_heads": 4, "num_key_heads": 2, "head_dim": 5, "value_head_dim": 3},
    "gated_delta/conv": {"d_model": 12, "num_heads": 2, "head_dim": 5, "value_head_dim": 3, "conv_size": 3},
    "delta": {"d_model": 12, "num_heads": 3, "head_dim": 5},
    "gla": {"d_model": 12, "num_heads": 3, "head_dim": 5, "rank": 7},
    "retention": {"d_model": 12, "num_heads": 3},
    "swin": {"d_model": 6, "num_heads": 2, "height": 6, "width": 9, "window_size": 3, "shift": 1},
    "differential": {"d_model": 12, "num_heads": 3, "depth": 2},
    "additive": {"query_dim": 5, "hidden_dim": 7},
    "luong": {"query_dim": 5, "key_dim": 3, "local": "p", "half_window": 3, "position_dim": 7},
    "qk_norm": {"d_model": 12, "num_heads": 3, "norm": "rms"},
}  # fmt: skip
WAYS = ("torch", "numpy", "torch", "nnx", "torch", "numpy", "linen", "torch", "numpy", "equinox")


@dataclass(frozen=True)
class Mistake:
    """One mistake in one port.

    Attributes:
        name, setup: what is wrong, and in which of FIELDS.
        causes: for each cause that should be told, one behind the other, a pattern of its words.
        methods: what it replaces.
        way: what the port is made of, "torch", "numpy", "nnx", "linen" or "equinox".
        kind: the kind of port, where it is not the variant's own.
        calls: in which calls it is judged.
    """

    name: str
    setup: str
    causes: tuple[str, ...]
    methods: dict[str, Callable[..., Any]]
    way: str
    kind: str = ""
    calls: tuple[str, ...] = ("plain", "full")

    @property
    def variant(self) -> str:
        return self.setup.partition("/")[0]


MISTAKES: list[Mistake] = []


def wrong(
    name: str, setup: str, *causes: str, way: str = "", kind: str = "", calls: tuple[str, ...] = (), **methods: Any
) -> None:
    way = way or WAYS[len(MISTAKES) % len(WAYS)]
    MISTAKES.append(Mistake(name, setup, causes, methods, way, kind, calls or ("plain", "full")))


def of(port: type[Port], method: str) -> Callable[..., Any]:
    """The right method, for a mistake that adds to it."""
    return getattr(port, method)


# Rotary positions -----------------------------------------------------------------------------------------------------


def turned_in_pairs(self: Any, x: Any, cos: Any, sin: Any) -> Any:
    """Cosines and sines for neighbours, numbers paired by halves."""
    n = x.shape[-1] // 2
    cos, sin = (self.lib.stack([c, c], -1).reshape(*c.shape[:-1], 2 * n) for c in (cos, sin))
    return x * cos + self.lib.concatenate([-x[..., n:], x[..., :n]], -1) * sin


def in_float16(self: Any, x: Any, positions: np.ndarray) -> Any:
    n = x.shape[-1] // 2
    angles = positions[:, None] * self.frequencies(2 * n)
    cos, sin = (self.constant(f(angles).astype("float16").astype("float64")[:, None], x) for f in (np.cos, np.sin))
    return self.turned(x, cos, sin)


wrong("cos and sin repeated in pairs, numbers paired by halves", "rotary", "repeat|layout|pair", turned=turned_in_pairs)
wrong(
    "exponent over the width of the model", "rotary", "width of the model|model's width|d_model",
    frequencies=lambda self, n: self.base() ** (-2.0 * np.arange(n // 2) / self.c.d_model),
)  # fmt: skip
wrong("cosines and sines in float16", "rotary", "float16", turn=in_float16)

# Norms ----------------------------------------------------------------------------------------------------------------


def over_all_heads(self: Any, x: Any) -> Any:
    squares = self.lib.sum(self.lib.sum(x * x, -1), -1)[..., None, None] / (x.shape[-1] * x.shape[-2])
    return x / self.lib.sqrt(squares + self.eps())


def detached_root(self: Any, x: Any) -> Any:
    squares = self.lib.sum(x * x, -1)[..., None] / x.shape[-1]
    return x * self.stopped(1 / self.lib.sqrt(squares + self.eps()))


wrong("norms of queries and keys left out with their weights", "decoder", "left out|not normalised|no norm",
      norm=lambda self, x, name: x)  # fmt: skip
wrong("norm of the queries left out with its weight", "decoder", "left out|not normalised|no norm",
      norm=lambda self, x, name: x if name == "w_q_norm" else of(Port, "norm")(self, x, name))  # fmt: skip
wrong("norm over all heads of a position", "decoder", "all heads", unit=over_all_heads)
wrong("no gradient through the root of the norm", "decoder", "gradient|cut|detach", unit=detached_root, way="torch")
wrong("norm over all heads of a position", "qk_norm", "all heads", unit=over_all_heads)
wrong("weight of the keys' norm left out", "decoder", "weight",
      norm=lambda self, x, name: self.unit(x) if name == "w_k_norm" else of(Port, "norm")(self, x, name))  # fmt: skip

# Joint projections, heads ---------------------------------------------------------------------------------------------


def head_by_head(self: Any, flat: Any, shapes: Any) -> Any:
    """q, k and v of one head next to each other."""
    (h, k), _, _ = shapes
    x = flat.reshape(*flat.shape[:2], h, 3 * k)
    return x[..., :k], x[..., k : 2 * k], x[..., 2 * k :]


def group_by_group(self: Any, flat: Any, shapes: Any) -> Any:
    """The queries of a group, its key and its value next to each other."""
    (h, k), (g, _), _ = shapes
    x = flat.reshape(*flat.shape[:2], g, h // g + 2, k)
    return x[:, :, :, :-2].reshape(*flat.shape[:2], h, k), x[:, :, :, -2], x[:, :, :, -1]


def four_heads(self: Any, x: Any, name: str) -> Any:
    flat = x @ self.w[f"w_{name}"].reshape(x.shape[-1], -1) + self.w[f"b_{name}"].reshape(-1)
    return flat.reshape(*flat.shape[:2], 4, 3)


def tiled_keys(self: Any, x: Any) -> Any:
    h = self.c.num_heads
    first = not hasattr(self, "seen") or self.seen
    self.seen = not first
    return self.lib.stack([x[:, :, (i % x.shape[2]) if first else i // (h // x.shape[2])] for i in range(h)], 2)


wrong("joint projection read head by head", "mha", "head by head|joint|heads, 3", kind="joint", taken=head_by_head,
      calls=("plain",))  # fmt: skip
wrong("joint projection read group by group", "gqa", "group|head by head|joint", kind="joint", taken=group_by_group,
      calls=("plain",))  # fmt: skip
wrong("queries split the other way alone", "mha", "split",
      split=lambda self, flat, h, k, name: flat.reshape(*flat.shape[:2], k, h).swapaxes(-1, -2) if name == "q"
      else of(Port, "split")(self, flat, h, k, name))  # fmt: skip
wrong("four heads for three", "mha", "number of heads|num_heads|heads", project=four_heads, share=lambda self, x: x,
      calls=("plain",))  # fmt: skip
wrong("keys tiled, values not", "gqa", "keys .*tiled|tiled", share=tiled_keys)

# Masks and scores -----------------------------------------------------------------------------------------------------
wrong("-10 added where hidden", "mha", "-10|added", calls=("full",),
      hidden=lambda self, x, mask: x + self.lib.where(mask, 0 * x, 0 * x - 10.0))  # fmt: skip
wrong("scores multiplied by the mask", "mha", "multiplied|mask", calls=("full",),
      hidden=lambda self, x, mask: self.lib.where(mask, x, 0 * x))  # fmt: skip
wrong("softcap after the mask", "decoder/softcap", "softcap|cap",
      cap=lambda self, x: x,
      hidden=lambda self, x, mask: 4.0 * self.lib.tanh(self.lib.where(mask, x, -np.inf) / 4.0))  # fmt: skip
wrong("scale by the root of the sequence's length", "mha", "scale|length",
      scale=lambda self, q: 1 / sqrt(q.shape[1]), calls=("plain",))  # fmt: skip
wrong("sinks scaled with the scores", "decoder/sinks", "sink", sinks=lambda self: self.w["sinks"] / 2.0)
wrong("gate by silu", "decoder/gate", "silu|gate", gate=lambda self, x: x * self.sigmoid(x))
wrong("no gradient through the gate", "decoder/gate", "gradient|cut|detach",
      gate=lambda self, x: self.stopped(self.sigmoid(x)), way="torch")  # fmt: skip

# T5 -------------------------------------------------------------------------------------------------------------------


def bias_after_softmax(self: Any, scores: Any, mask: Any) -> Any:
    return of(Port, "softmax")(self, scores, mask) + of(Port, "position_bias")(self, scores)


def rounded_bucket(self: Any, back: np.ndarray, count: int, most: int, both: bool) -> np.ndarray:
    count, start, back = count // 2, np.where(back < 0, count // 2, 0), np.abs(back)
    exact = count // 2
    far = exact + np.round(np.log(np.maximum(back, 1) / exact) / log(most / exact) * (count - exact))
    return start + np.where(back < exact, back, np.minimum(far, count - 1).astype(int))


wrong("bias of positions after the softmax", "t5_bias", "after the softmax", position_bias=lambda self, x: None,
      softmax=bias_after_softmax)  # fmt: skip
wrong("buckets of an encoder", "t5_bias/decoder", "bidirectional|both directions|encoder",
      buckets=lambda self, q, k: self.bucket(q - k, self.c.num_buckets, self.c.max_distance, True))  # fmt: skip
wrong("own position in the half of the later ones", "t5_bias", "own position|distance 0|later|side",
      buckets=lambda self, q, k: (
          of(Port, "buckets")(self, q, k) + np.where(q == k, self.c.num_buckets // 2, 0)))  # fmt: skip
wrong("buckets rounded", "t5_bias", "round|^largest distance|^num_buckets", bucket=rounded_bucket)

# Multi-head latent attention ------------------------------------------------------------------------------------------
MLA = ports.QueryLatentPort


def norm_of_both(self: Any, x: Any) -> Any:
    """The latent and the rotary key are normed as one."""
    latent, k = x @ self.w["w_dkv"], x @ self.w["w_k_rot"]
    both = self.lib.concatenate([latent, k], -1)
    root = self.lib.sqrt(self.lib.sum(both * both, -1)[..., None] / both.shape[-1] + self.eps())
    return latent / root * self.w["w_kv_norm"]


def rotary_key_normed(self: Any, x: Any) -> Any:
    latent, k = x @ self.w["w_dkv"], x @ self.w["w_k_rot"]
    both = self.lib.concatenate([latent, k], -1)
    return k / self.lib.sqrt(self.lib.sum(both * both, -1)[..., None] / both.shape[-1] + self.eps())


def width_by_head(self: Any, latent: Any) -> Any:
    """The joint projection viewed as (width, heads)."""
    joint = self.lib.concatenate([self.w["w_uk"], self.w["w_uv"]], -1)
    flat = latent @ joint.reshape(latent.shape[-1], -1)
    return self.split_joint(flat.reshape(*flat.shape[:2], -1, self.c.num_heads).swapaxes(-1, -2))


wrong("norm of the queries' latent left out", "mla", "left out|not normalised|no norm",
      query_latent=lambda self, x: x @ self.w["w_dq"])  # fmt: skip
wrong("norm over the latent and the rotary key together", "mla", "together|rotary|joint", latent=norm_of_both,
      rotary_key=rotary_key_normed)  # fmt: skip
wrong("joint projection viewed as width by head", "mla", "split|viewed|width", unpacked=width_by_head)
wrong("values before keys in the joint projection", "mla", "values .*keys|keys .*values|order",
      split_joint=lambda self, x: (x[..., self.c.value_head_dim :], x[..., : self.c.value_head_dim]))  # fmt: skip
wrong("rotated part of the queries first", "mla", "part|first|order",
      parts_of_query=lambda self, q, n: (q[..., q.shape[-1] - n :], q[..., : q.shape[-1] - n]))  # fmt: skip
wrong("no mscale squared in the scale", "mla/yarn", "mscale", scale=lambda self, q: 1 / 3)

# Recurrences ----------------------------------------------------------------------------------------------------------
GATED = ports.GatedDeltaPort


def looked_up_before(self: Any, state: Any, q: Any, k: Any, v: Any, beta: Any, decay: Any) -> Any:
    new = beta * (v - self.look_up(k, state))
    state = state * decay + self.lib.einsum("bhk,bhv->bhkv", k, new)
    return state, self.look_up(q, state)


def nothing_taken_out(self: Any, state: Any, q: Any, k: Any, v: Any, beta: Any, decay: Any) -> Any:
    state = state * decay + self.lib.einsum("bhk,bhv->bhkv", k, beta * v)
    return state, self.look_up(q, state)


def read_before(self: Any, state: Any, q: Any, k: Any, v: Any, beta: Any, decay: Any) -> Any:
    return of(GATED, "advance")(self, state, q, k, v, beta, decay)[0], self.look_up(q, state)


def faded_after(self: Any, state: Any, q: Any, k: Any, v: Any, beta: Any, decay: Any) -> Any:
    new = beta * (v - self.look_up(k, state))
    state = (state + self.lib.einsum("bhk,bhv->bhkv", k, new)) * decay
    return state, self.look_up(q, state)


def gated_first(self: Any, context: Any, query: Any) -> Any:
    return self.rms(context * self.activation(self.lib.einsum("btd,dhv->bthv", query, self.w["w_gate"])))


def sees_the_future(self: Any, x: Any, weight: Any) -> Any:
    n, t = weight.shape[0], x.shape[1]
    padded = self.lib.concatenate([0 * x[:, :1]] * (n // 2) + [x] + [0 * x[:, :1]] * (n // 2), 1)
    return sum(padded[:, i : i + t] * weight[i] for i in range(n))


def in_bfloat16(self: Any, state: Any) -> Any:
    return self.constant(nearest(np.asarray(state), "bfloat16"), state)


wrong("old value looked up before the state fades", "gated_delta", "before the state fades", advance=looked_up_before)
wrong("old value not taken out", "gated_delta", "not taken out|delta rule", advance=nothing_taken_out)
wrong("state read before it is written", "gated_delta", "read before|before .*writ", advance=read_before)
wrong("state fades after the writing", "gated_delta", "fade|decay", advance=faded_after)
wrong("strength of twice the sigmoid", "gated_delta", "beta|strength", strength=lambda self, x: 2 * self.sigmoid(x))
wrong("dt_bias outside of softplus", "gated_delta", "dt_bias|bias",
      decay=lambda self, x: self.lib.exp(
          -self.lib.exp(self.w["a_log"]) * (self.softplus(x) + self.w["dt_bias"])))  # fmt: skip
wrong("gate by a sigmoid", "gated_delta", "sigmoid", activation=lambda self, x: self.sigmoid(x))
wrong("gate before the norm", "gated_delta", "gate .*before the norm|norm .*after", output=gated_first)
wrong("queries without their norm", "gated_delta", "quer.* (not|without)|not .*unit|l2",
      unit=lambda self, x, name="": x if name == "q" else of(GATED, "unit")(self, x, name))  # fmt: skip
wrong("queries not scaled", "gated_delta", "scale", query_scale=lambda self: 1.0)
wrong("eps of F.normalize", "gated_delta", "eps", unit_eps=lambda self: 0.0)
wrong("convolution sees the future", "gated_delta/conv", "future|causal|centre|ahead", convolve=sees_the_future)
wrong("states without a gradient", "gated_delta", "state.*gradient|gradient.*state|cut|detach", way="torch",
      kept=lambda self, state: self.stopped(state))  # fmt: skip
wrong("states kept in bfloat16", "gated_delta", "bfloat16", kept=in_bfloat16, way="numpy")
wrong("no strength", "delta", "beta|strength", strength=lambda self, x: 1.0 + 0 * x)
wrong("state read before it is written", "delta", "read before|before .*writ", advance=read_before)
wrong("logarithms of decays not divided by 16", "gla", "temperature|16", temperature=lambda self: 1.0)
wrong("gate before the norm", "retention", "gate .*before the norm|norm .*after", output=gated_first)
wrong("nearest key fades once", "retention", "own position|fade", fading=lambda self, t: np.where(
      of(ports.RetentionPort, "fading")(self, t) > 0,
      of(ports.RetentionPort, "fading")(self, t) * self.rates()[:, None, None], 0.0))  # fmt: skip

# Swin -----------------------------------------------------------------------------------------------------------------
wrong("rows and columns of the bias' index exchanged", "swin", "exchanged|transpos|row.* column",
      row_of=lambda self, y, x, size: x * (2 * size - 1) + y)  # fmt: skip
wrong("index of the bias strides by the size of a window", "swin", "stride|index",
      row_of=lambda self, y, x, size: y * size + x)  # fmt: skip
wrong("rolled along the rows alone", "swin", "one axis|roll|shift|columns",
      rolled=lambda self, x, by: self.lib.roll(x, (by,), (1,)))  # fmt: skip
wrong("mask of the windows repeated row by row", "swin", "mask",
      repeated_mask=lambda self, mask, b: np.repeat(mask, b, 0))  # fmt: skip
wrong("windows put back without moving their axes", "swin", "put back|permut|windows|axes",
      reversed=lambda self, x, b, size: x.reshape(b, self.c.height, self.c.width, x.shape[-1]))  # fmt: skip

# Differential, Bahdanau, Luong ----------------------------------------------------------------------------------------
wrong("exponential of the difference", "differential", "lambda|exponential",
      combined=lambda self, one, two: self.lib.exp(one - two))  # fmt: skip
wrong("factor of the first layer", "differential", "depth|lambda_init", start_in_factor=lambda self: 0.2)
wrong(
    "tanh of queries and keys each", "additive", "tanh", features=lambda self, q, k: self.lib.tanh(q) + self.lib.tanh(k)
)
wrong("mask after the softmax", "additive", "after the softmax|mask", calls=("full",),
      weights=lambda self, scores, mask: of(ports.BahdanauPort, "weights")(self, scores, None) * (
          1.0 if mask is None else self.lib.where(mask, 1.0 + 0 * scores, 0 * scores)))  # fmt: skip
wrong("predicted place without its sigmoid", "luong", "sigmoid", center=lambda self, scores, s: s * scores)
wrong("bell as wide as the window", "luong", "bell|sigma|gauss|wide|half_window",
      bell=lambda self, x: self.lib.exp(-x * x / (2 * self.c.half_window**2)))  # fmt: skip

# Parts of a sequence on many devices, two at once ---------------------------------------------------------------------


def shards(self: Any, t: int) -> Any:
    """Two parts of a sequence of positions."""
    return [range(0, (t + 1) // 2), range((t + 1) // 2, t)]


def alone(self: Any, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    first = (key.size + 1) // 2
    return (key <= query) & ((key < first) == (query < first))


def from_the_shards_first(self: Any, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    first = (key.size + 1) // 2
    return key <= np.where(query >= first, query - first, query)


def averaged(self: Any, scores: Any, mask: Any) -> Any:
    """Each half of the keys by itself; the mean of the halves that have a key, without their sums."""
    s, lib, parts, counts = scores.shape[-1], self.lib, [], 0
    for keys in shards(self, s):
        seen = mask[..., keys[0] : keys[-1] + 1]
        e = lib.exp(scores[..., keys[0] : keys[-1] + 1])
        e = lib.where(seen, e, 0 * e)
        total = lib.sum(e, -1)[..., None]
        some = lib.where(total > 0, 1.0 + 0 * total, 0 * total)
        parts.append(e / (total + 1 - some))
        counts = counts + some
    return lib.concatenate(parts, -1) / counts


PLAIN = ("plain",)
wrong("each shard sees itself alone", "mha/causal", "shard|device|part", near=alone, calls=PLAIN, way="torch")
wrong("causality counted from the shard's first query", "mha/causal", "shard|device|part", calls=PLAIN,
      near=from_the_shards_first, way="torch")  # fmt: skip
wrong("parts averaged without their sums", "mha/causal", "averaged|log-sum-exp|lse|shard", calls=PLAIN,
      softmax=averaged, way="torch")  # fmt: skip
wrong("scaled by the model's width, and values without gradient", "mha", "width", "cut|gradient", way="torch",
      scale=lambda self, q: 1 / sqrt(self.c.d_model),
      project=lambda self, x, n: of(Port, "project")(self, x if n != "v" else self.stopped(x), n))  # fmt: skip


@dataclass
class Said:
    """What the judge said of one mistake.

    Attributes:
        mistake: which.
        refused: it was seen.
        causes: the cause named first, then that of what differs with the first one mended.
        fits_too: others that are told beside the first.
        seconds: from the call to the causes.
        error: an exception that is no verdict.
        finding: what was found.
    """

    mistake: Mistake
    refused: bool = False
    causes: list[str] = field(default_factory=list)
    fits_too: list[str] = field(default_factory=list)
    seconds: float = 0.0
    error: str = ""
    finding: Finding | None = None

    @property
    def cause(self) -> str:
        """Right, partly right where one of several is told, absent, or wrong where another one is."""
        wanted = list(self.mistake.causes)
        if not self.causes:
            return "absent"
        for cause in self.causes:
            match = next((pattern for pattern in wanted if re.search(pattern, cause)), None)
            if match is None:
                return "wrong"
            wanted.remove(match)
        return "partly" if wanted else "right"


def made(mistake: Mistake) -> tuple[Any, contract.Config, str]:
    """The port with a mistake, its config, and the framework of its arrays."""
    config = contract.config(mistake.variant, **FIELDS[mistake.setup])
    framework = mistake.way if mistake.way in ("torch", "numpy") else "jax"
    lib = import_module({"torch": "torch", "numpy": "numpy", "jax": "jax.numpy"}[framework])
    call = ports.function(lib, config, mistake.methods, mistake.kind)
    if mistake.way == "nnx":
        return ports.nnx_module(call, config), config, framework
    wrap = {"linen": ports.linen_module, "equinox": ports.equinox_module}.get(mistake.way)
    return (call if wrap is None else wrap(call, config)), config, framework


def judge(mistake: Mistake) -> Any:
    """The verdict on a port.

    Raises:
        ParityError: it differs.
    """
    port, config, framework = made(mistake)
    own: dict[str, Any] = {} if mistake.way == "nnx" else {"framework": framework}
    with np.errstate(all="ignore"):  # what a port in NumPy warns of is what it does
        return assert_parity(port, mistake.variant, config, empty_rows=False, calls=mistake.calls, **own)


def said(mistake: Mistake) -> Said:
    """Make a mistake and ask the judge."""
    start = perf_counter()
    try:
        judge(mistake)
    except ParityError as error:
        found = Said(mistake, True, seconds=perf_counter() - start, finding=error.finding)
        part: Finding | None = error.finding
        while part is not None:
            found.causes += [cause.name for cause in part.causes[:1]]
            found.fits_too += [cause.name for cause in part.causes[1:]]
            part = part.after
        return found
    except Exception as error:
        return Said(mistake, True, seconds=perf_counter() - start, error=f"{type(error).__name__}: {error}")
    return Said(mistake, seconds=perf_counter() - start)


def main(numbers: Iterable[int]) -> int:
    prepare(("torch", "jax"))
    found = []
    for number in numbers:
        one = said(MISTAKES[number])
        found.append(one)
        words = (one.error or "; then ".join(one.causes))[:160]
        print(
            f"{number} {one.mistake.setup} {one.mistake.way} | {one.mistake.name} | "
            f"{one.cause if one.refused else 'AGREES'} | {one.seconds:.1f} s | {words} | "
            f"{'; '.join(one.fits_too)[:80]}",
            flush=True,
        )
    counts = {word: sum(one.cause == word for one in found) for word in ("right", "partly", "wrong", "absent")}
    print(
        f"{len(found)} mistakes, {sum(one.refused for one in found)} refused, "
        f"{sum(bool(one.error) for one in found)} ended in an exception; causes "
        + ", ".join(f"{word} {count}" for word, count in counts.items())
        + f"; median {np.median([one.seconds for one in found]):.1f} s, longest {max(x.seconds for x in found):.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main([int(x) for x in sys.argv[1:]] or range(len(MISTAKES))))
