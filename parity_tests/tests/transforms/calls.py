"""Calls of functions, and of layers with fields that their first examples lack, that transforms are put around.

Here each function is called, with each of its arguments that changes how it computes, and the drop-ins; in
`calls_of_layers` the fields. `test_transforms_functions.py` asks, and the table in docs/transforms.md has a row for
each call.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from attn_np import patterns
from parity_tests.tests.inputs import TREES

# By name: of an array `b t h k` and an integer of each sequence, what a call returns.
CALLS: dict[str, Callable[["Bench", Any, Any], Any]] = {}
# Calls that return what another one does. In steps there is no gradient.
SAME: dict[str, str] = {}
# Those that one tree has.
ONLY: dict[str, str] = {"drop_in.attention_fn": "jax", "drop_in.transformers_attention": "torch"}
# By name of what they show: layers, each a variant and its fields.
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {}


def call(name: str, same: str | None = None) -> Any:
    """A decorator that adds a call under the name that the table shows."""

    def add(function: Callable[["Bench", Any, Any], Any]) -> Callable[["Bench", Any, Any], Any]:
        CALLS[name] = function
        if same is not None:
            SAME[name] = same
        return function

    return add


@dataclass(frozen=True)
class Bench:
    """A tree's package with what is made before a transform begins: numbers and layers.

    Attributes:
        at: 0 .. 7.
        shares: a float for each of two heads, below 1.
        layers: by the name of what they show; their weights are the same bits in every tree.
    """

    package: Any
    at: Any
    shares: Any
    layers: dict[str, Any]


@cache
def bench(name: str) -> Bench:
    """The bench of a tree: "numpy", "torch" or "jax"."""
    tree = TREES[name]
    layers = {
        part: tree.package.build(variant, dtype="float64", **fields) for part, (variant, fields) in LAYERS.items()
    }
    return Bench(tree.package, tree.array(np.arange(8)), tree.array(np.array([0.5, 0.25])), layers)


class Causal:
    """What an attention function of `transformers` looks at of a module."""

    is_causal = True


CAUSAL = Causal()


# Attention ------------------------------------------------------------------------------------------------------------


def scores(x: Any) -> Any:
    """An array `b h t s` made of `b t h k`, of as many keys as queries."""
    return x.swapaxes(1, 2)[..., : x.shape[1]]


@call("attend")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.package.attend(x, x + 1, x, causal=True)[0]


@call("attend, offset=")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.package.attend(x[:, :2], x, x, causal=True, offset=1, softcap=2)[0]


@call("attend, offset= of an array without axes")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.package.attend(x[:, :2], x, x, window=1, offset=o.at[1])[0]


@call("attend, offset= and lengths= of each sequence")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.package.attend(x[:, :2], x, x, causal=True, offset=n, lengths=n + 1)[0]


@call("attend, return_lse=, and merge")
def _(o: Bench, x: Any, n: Any) -> Any:
    parts = [o.package.attend(x, x[:, part], x[:, part], return_lse=True) for part in (slice(0, 1), slice(1, 4))]
    return o.package.merge([(context, lse) for context, _, lse in parts])


@call("attend, return_lse= with offset=, lengths= and sinks=")
def _(o: Bench, x: Any, n: Any) -> Any:
    options: dict[str, Any] = {"causal": True, "offset": n, "lengths": n + 1, "sinks": o.shares}
    context, _, lse = o.package.attend(x[:, :2], x, x, return_lse=True, **options)
    return context, lse


def in_pages(o: Bench, x: Any, n: Any) -> tuple[Any, Any]:
    """A pool in which each sequence has four pages of two positions, the last one first, and its table."""
    pool = x[:, :4].reshape(4 * x.shape[0], *x.shape[2:])[:, :, None]  # JAX merges sharded axes one by one
    return pool, 4 * (0 * n + 1 + o.at[: x.shape[0]])[:, None] - o.at[1:5]


@call("attend_paged")
def _(o: Bench, x: Any, n: Any) -> Any:
    pool, table = in_pages(o, x, n)
    near: dict[str, Any] = {"window": 1, "softcap": 2.0, "terms": o.package.terms.Slopes(o.shares)}
    every = o.package.attend_paged(x[:, :2], pool, pool, table, n + 1, offset=n - 1, scale=0.5, return_lse=True)
    return *every, o.package.attend_paged(x[:, :1], pool, pool, table, n + 1, causal=True, sinks=o.shares, **near)


@call("write_pages")
def _(o: Bench, x: Any, n: Any) -> Any:
    pool, table = in_pages(o, x, n)
    pool = o.package.write_pages(pool + 0, x[:, :2, :1] * 2, table, places(o, n - 1, 2))
    return pool[:, :, 0].reshape(x[:, :4].shape)


@call("attend, mask= and bias=")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.package.attend(x, x, x, mask=scores(x) > -1, bias=scores(x) / 2, scale=0.5)[0]


@call("attend, terms=")
def _(o: Bench, x: Any, n: Any) -> Any:
    return with_terms(o, x)


@call("attend, terms= and offset= of each sequence")
def _(o: Bench, x: Any, n: Any) -> Any:
    return with_terms(o, x, offset=n)


def with_terms(o: Bench, x: Any, **options: Any) -> Any:
    """Attention with slopes and a table of buckets."""
    table = o.at[:4, None] * o.shares
    bucket_of = partial(o.package.relative_buckets, num_buckets=4, max_distance=8)
    terms = [o.package.terms.Slopes(o.shares), o.package.terms.Table(table, bucket_of)]
    return o.package.attend(x[:, :3], x, x, causal=True, terms=terms, **options)[0]


@call("attend, pattern= and window=")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.package.attend(x, x, x, pattern=patterns.Chunks(2) | patterns.Dilated(2), window=3)[0]


@call("attend, pattern= with arrays, and offset=")
def _(o: Bench, x: Any, n: Any) -> Any:
    documents = places(o, n, x.shape[1]) // 2
    pattern = patterns.Documents(documents[:, :3], documents) | patterns.Prefix(n)
    return o.package.attend(x[:, :3], x, x, pattern=pattern & patterns.Causal(), offset=n)[0]


@call("attend, return_weights= and sinks=")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.package.attend(x, x, x, sinks=o.shares, return_weights=True)


@call("attend, keep= and rate=")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.package.attend(x, x, x, keep=scores(x) > -1, rate=0.25)[0]


@call("attend, normalize_over=queries")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.package.attend(x, x, x, causal=True, normalize_over="queries")[0]


@call("attend, softmax_fn=entmax")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.package.attend(x, x, x, causal=True, softmax_fn=partial(o.package.entmax, alpha=1.5))[0]


@call("attend, without heads, and trace")
def _(o: Bench, x: Any, n: Any) -> Any:
    one = x[:, :, 0]
    (context, _), tape = o.package.trace(o.package.attend, one, one, one, causal=True, softcap=2)
    return context, tape["scores"], tape["capped"], tape["probs"]


@call("attend, implementation=textbook")
def _(o: Bench, x: Any, n: Any) -> Any:
    lengths = {"offset": n, "lengths": n + 1}
    return o.package.attend(x, x[:, :, :1], x[:, :, :1], causal=True, implementation="textbook", **lengths)[0]


@call("softmax and entmax")
def _(o: Bench, x: Any, n: Any) -> Any:
    package, mask = o.package, x > -1
    smooth = package.softmax(x, mask), package.softmax(x, axis=1)
    return *smooth, package.entmax(x, alpha=2, axis=1), package.entmax(x, mask, alpha=1.75), package.entmax(x, alpha=3)


# Recurrences ----------------------------------------------------------------------------------------------------------


@call("recur, in chunks")
def _(o: Bench, x: Any, n: Any) -> Any:
    decay = 1 / (1 + x * x)
    return o.package.recur(
        x, x / 4, x, rule="gated_delta", decay=decay, beta=decay[..., 0], form="chunked", chunk_size=2
    )


@call("recur, position by position", same="recur, in chunks")
def _(o: Bench, x: Any, n: Any) -> Any:
    decay = 1 / (1 + x * x)
    return o.package.recur(x, x / 4, x, rule="gated_delta", decay=decay, beta=decay[..., 0], form="recurrent")


@call("recur, documents= and erase_key=")
def _(o: Bench, x: Any, n: Any) -> Any:
    documents, options = places(o, n, x.shape[1]) // 2, {"form": "chunked", "chunk_size": 3}
    return o.package.recur(x, x / 4, x, rule="delta", documents=documents, erase_key=x / 8, **options)


@call("recur, state=, decay= of heads, and fewer heads of keys")
def _(o: Bench, x: Any, n: Any) -> Any:
    one = x[:, :, :1]
    state = one[:, 0, :, :, None] * one[:, 1, :, None]
    gated = o.package.recur(x, one, one, rule="gated", decay=o.shares[:1], state=state, scale=0.5)
    return *gated, *o.package.recur(x, one / 4, one, rule="delta", state=state, form="parallel")


# Positions ------------------------------------------------------------------------------------------------------------


def places(o: Bench, n: Any, t: int) -> Any:
    """Positions `b t`, of which each sequence has its own first."""
    return n[:, None] + o.at[:t]


def on_two_axes(o: Bench, n: Any, t: int) -> Any:
    """Positions on two axes, `a b t`."""
    return o.at[:2, None, None] + places(o, n, t)


# What `rotary_angles` needs of each scaling but "dynamic", which it refuses in a compiled program.
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_scaling_factor": 2.0},
    "yarn": {
        "rope_scaling_factor": 2.0,
        "original_max_positions": 4,
        "beta_fast": 1.0,
        "beta_slow": 0.25,
        "yarn_truncate": False,
        "attention_factor": 1.25,
    },
    "llama3": {
        "rope_scaling_factor": 2.0,
        "original_max_positions": 4,
        "low_freq_factor": 0.25,
        "high_freq_factor": 0.5,
    },
    "longrope": {"original_max_positions": 4, "short_factor": (1.0,) * 4, "long_factor": (2.0,) * 4},
}


@call("rotate by rotary_angles")
def _(o: Bench, x: Any, n: Any) -> Any:
    angles = o.package.rotary_angles(
        places(o, n, x.shape[1]), 8, max_positions=16, dtype="float64", rope_scaling="longrope", **SCALINGS["longrope"]
    )
    return o.package.rotate(x, *angles)


@call("rotate by rotary_angles of each scaling, on two axes")
def _(o: Bench, x: Any, n: Any) -> Any:
    for kind, options in SCALINGS.items():
        angles = o.package.rotary_angles(
            on_two_axes(o, n, x.shape[1]), 8, max_positions=16, dtype="float64", sections=(2, 2), rope_base=50.0,
            sections_interleaved=kind == "yarn", xpos=64.0, rope_scaling=kind, **options,
        )  # fmt: skip
        x = o.package.rotate(x, *angles, layout="interleaved", inverse=kind == "linear")
    return x


@call("rotate by positions")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.package.rotate(x, places(o, n, x.shape[1]), max_positions=16, rope_base=50.0, xpos=64.0)


@call("relative_buckets")
def _(o: Bench, x: Any, n: Any) -> Any:
    both, before = (
        o.package.relative_buckets(places(o, n, x.shape[1]) - 3, num_buckets=4, max_distance=8, bidirectional=both)
        for both in (True, False)
    )
    return x * both[..., None, None] + before[..., None, None]


# Drop-ins -------------------------------------------------------------------------------------------------------------


@call("drop_in.scaled_dot_product_attention")
def _(o: Bench, x: Any, n: Any) -> Any:
    q, k = x.swapaxes(1, 2), x[:, :, :1].swapaxes(1, 2)
    function = o.package.drop_in.scaled_dot_product_attention
    masked = function(q, k, k, q[..., : q.shape[2]] > -1, enable_gqa=True, scale=0.5)
    return masked, function(q[:, :, :3], q, q, is_causal=True), function(q, q, q, q[..., : q.shape[2]])


@call("drop_in.dot_product_attention")
def _(o: Bench, x: Any, n: Any) -> Any:
    function, lengths = o.package.drop_in.dot_product_attention, {"key_value_seq_lengths": n}
    padded = function(x, x[:, :, :1], x[:, :, :1], query_seq_lengths=n + 1, local_window_size=(1, 0), **lengths)
    biased = function(x, x, x, scores(x), scale=0.5)
    return padded, function(x[:, :3], x, x, is_causal=True), function(x, x, x, mask=scores(x)[:, :1] > 0), biased


@call("drop_in.attention_fn", same="attend")
def _(o: Bench, x: Any, n: Any) -> Any:
    return o.package.drop_in.attention_fn(x, x + 1, x, is_causal=True)


@call("drop_in.transformers_attention", same="attend")
def _(o: Bench, x: Any, n: Any) -> Any:
    q, k, v = (a.swapaxes(1, 2) for a in (x, x + 1, x))
    return o.package.drop_in.transformers_attention(CAUSAL, q, k, v, None)[0]
