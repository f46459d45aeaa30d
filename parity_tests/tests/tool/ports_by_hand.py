"""Attention as people port it: one class for PyTorch and JAX, each step a method of its own that a mistake replaces.

Nothing here comes from the library but the config, so that a mistake in a port is no edit of the library's source.
"""

from collections.abc import Callable
from functools import partial
from math import log, sqrt
from typing import Any, cast

import numpy as np

from attn_np.contract import Config


class Port:
    """Multi-head attention with what the config asks for: shared heads, norms, rotary positions, sinks, a cap, a gate.

    Attributes:
        lib: `torch` or `jax.numpy`.
        c: the config.
        w: the weights by name.
        tape: the intermediates under the library's names.
    """

    def __init__(self, lib: Any, config: Config) -> None:
        self.lib, self.c = lib, cast(Any, config)
        self.w: dict[str, Any] = {}
        self.tape: dict[str, Any] = {}

    def relative_to_the_largest(self, scores: Any) -> Any:
        """What a softmax adds up: the exponentials, each as a share of the largest."""
        return self.lib.exp(scores - self.lib.amax(scores, -1)[..., None])

    def __call__(
        self, weights: Any, query: Any, key: Any = None, value: Any = None, mask: Any = None, bias: Any = None
    ) -> dict[str, Any]:
        self.w, self.tape = weights, {}
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = self.project(query, "q"), self.project(key, "k"), self.project(value, "v")
        q, k = self.position(q, k)
        context = self.attend(q, self.share(k), self.share(v), self.everything(mask, q, k), bias)
        return {**self.tape, "y": self.merge(self.gated(context, query))}

    def show(self, **values: Any) -> None:
        """Intermediates that the library has under these names in some variants only."""
        self.tape |= values if self.c.variant == "decoder" else {}

    def field(self, name: str) -> Any:
        return getattr(self.c, name, None)

    def constant(self, x: Any, like: Any) -> Any:
        """A NumPy array as an array of this framework, with the dtype of another."""
        x = np.asarray(x)
        if self.lib.__name__ == "torch":
            return self.lib.from_numpy(np.ascontiguousarray(x)).to(like.dtype)
        return self.lib.asarray(x).astype(like.dtype)

    def stopped(self, x: Any) -> Any:
        """x without a gradient."""
        if self.lib.__name__ == "torch":
            return x.detach()
        if self.lib is np:
            return x
        import jax

        return jax.lax.stop_gradient(x)

    def sigmoid(self, x: Any) -> Any:
        if self.lib.__name__ == "torch":
            return self.lib.sigmoid(x)
        if self.lib is np:
            return 1 / (1 + np.exp(-x))
        import jax

        return jax.nn.sigmoid(x)

    # Projections

    def project(self, x: Any, name: str) -> Any:
        """`b t heads width`."""
        weight = self.w[f"w_{name}"]
        flat = x @ weight.reshape(weight.shape[0], -1)
        bias = self.w.get(f"b_{name}")
        flat = flat if bias is None else flat + bias.reshape(-1)
        heads, width = weight.shape[1:]
        return self.split(flat, heads, width, name)

    def split(self, flat: Any, heads: int, width: int, name: str) -> Any:
        return flat.reshape(*flat.shape[:2], heads, width)

    def share(self, x: Any) -> Any:
        """Keys or values for every query head, `b s h k`."""
        h = self.c.num_heads
        return self.lib.stack([x[:, :, self.kv_head(i, h, x.shape[2])] for i in range(h)], 2)

    def kv_head(self, head: int, heads: int, kv_heads: int) -> int:
        return head // (heads // kv_heads)

    def gated(self, context: Any, query: Any) -> Any:
        if "w_gate" not in self.w:
            return context
        return context * self.gate(self.project(query, "gate"))

    def gate(self, x: Any) -> Any:
        return self.sigmoid(x)

    def merge(self, context: Any) -> Any:
        y = self.flat(context) @ self.w["w_o"].reshape(-1, self.w["w_o"].shape[-1])
        return y + self.w["b_o"] if "b_o" in self.w else y

    def flat(self, context: Any) -> Any:
        """`b t (h v)` of `b t h v`."""
        return context.reshape(*context.shape[:2], -1)

    # Norms and positions

    def position(self, q: Any, k: Any) -> tuple[Any, Any]:
        """Queries and keys, normalised and turned."""
        if self.field("norm") is not None:
            self.show(q_proj=q, k_proj=k)
            q, k = self.norm(q, "w_q_norm"), self.norm(k, "w_k_norm")
            self.show(q_norm=q, k_norm=k)
        if "w_scale" in self.w:
            q = q * self.w["w_scale"][:, None]
        if self.field("rope_base") is not None:
            q, k = self.turn(q, self.query_positions(q.shape[1])), self.turn(k, np.arange(k.shape[1]))
            self.show(q_rot=q, k_rot=k)
        return q, k

    def norm(self, x: Any, name: str) -> Any:
        x = self.unit(x)
        return x * (self.w[name] + (self.field("norm_offset") or 0.0)) if name in self.w else x

    def eps(self) -> float:
        return self.field("norm_eps")

    def unit(self, x: Any) -> Any:
        squares = self.lib.sum(x * x, -1)[..., None]
        mean = squares if self.field("norm") == "l2" else squares / x.shape[-1]
        return x / self.lib.sqrt(mean + self.eps())

    def query_positions(self, t: int) -> np.ndarray:
        return np.arange(t)

    def frequencies(self, width: int) -> np.ndarray:
        return self.base() ** (-2.0 * np.arange(width // 2) / width)

    def base(self) -> float:
        return self.c.rope_base

    def turn(self, x: Any, positions: np.ndarray) -> Any:
        """`b t h k` with pairs of its last axis turned."""
        n = x.shape[-1] // 2
        angles = positions[:, None] * self.frequencies(2 * n)
        cos, sin = (self.constant(f(angles)[:, None], x) for f in (np.cos, np.sin))
        return self.turned(x, cos, sin)

    def turned(self, x: Any, cos: Any, sin: Any) -> Any:
        n = x.shape[-1] // 2
        if self.c.rope_layout == "interleaved":
            a, b = x[..., ::2], x[..., 1::2]
            return self.lib.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)
        a, b = x[..., :n], x[..., n:]
        return self.lib.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    # Attention

    def everything(self, mask: Any, q: Any, k: Any) -> Any:
        """The mask with the causal edge and the window, `b h t s` or broadcastable to it."""
        t, s = q.shape[1], k.shape[1]
        near = self.near(np.arange(t)[:, None] + s - t, np.arange(s))
        own = self.constant(near, q) > 0
        return own if mask is None else mask & own

    def near(self, query: np.ndarray, key: np.ndarray) -> np.ndarray:
        near = (key <= query) if self.field("causal") else (key <= query) | True
        if self.field("window") is not None:
            left, right = self.c.window
            near = near if left is None else near & (key >= query - self.left(left))
            near = near if right is None else near & (key <= query + right)
        return near

    def left(self, left: int) -> int:
        return left

    def attend(self, q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Any:
        scores = self.scores(q, k)
        self.tape["scores"] = scores
        scores = self.cap(scores)
        for extra in (self.position_bias(scores), bias):
            scores = scores if extra is None else self.add(scores, extra)
        probs = self.softmax(scores, mask)
        self.tape["probs"] = probs
        context = self.lib.einsum("bhts,bshv->bthv", probs, v)
        self.tape["context"] = context
        return context

    def scores(self, q: Any, k: Any) -> Any:
        return self.lib.einsum("bthk,bshk->bhts", q, k) * self.scale(q)

    def scale(self, q: Any) -> float:
        if self.field("scale") is not None:
            return self.c.scale
        return 1.0 if self.field("norm") == "l2" else 1 / sqrt(q.shape[-1])

    def cap(self, scores: Any) -> Any:
        cap = self.field("softcap")
        return scores if cap is None else cap * self.lib.tanh(scores / cap)

    def add(self, scores: Any, bias: Any) -> Any:
        return scores + bias

    def position_bias(self, scores: Any) -> Any:
        """What ALiBi and T5 add to the scores."""
        t, s = scores.shape[-2:]
        query, key = np.arange(s - t, s)[:, None], np.arange(s)
        if self.c.variant == "alibi":
            return self.constant(-self.slopes()[:, None, None] * self.distance(query, key), scores)
        if self.c.variant == "t5_bias":
            return self.lib.stack([row[self.buckets(query, key)] for row in self.w["w_bias"].swapaxes(0, 1)])
        return None

    def slopes(self) -> np.ndarray:
        h = self.c.num_heads  # a power of two
        return 2.0 ** (-8 * np.arange(1, h + 1) / h)

    def distance(self, query: np.ndarray, key: np.ndarray) -> np.ndarray:
        return np.abs(query - key)

    def buckets(self, query: np.ndarray, key: np.ndarray) -> np.ndarray:
        return self.bucket(query - key, self.c.num_buckets, self.c.max_distance, not self.c.causal)

    def bucket(self, back: np.ndarray, count: int, most: int, both: bool) -> np.ndarray:
        """T5's: exact for near positions, logarithmic for far ones; the later positions in the second half."""
        start = np.zeros_like(back)
        if both:
            count //= 2
            start = np.where(back < 0, count, 0)
            back = np.abs(back)
        back = np.maximum(back, 0)
        exact = count // 2
        far = exact + np.floor(np.log(np.maximum(back, 1) / exact) / log(most / exact) * (count - exact) + 1e-9)
        return start + np.where(back < exact, back, np.minimum(far, count - 1).astype(int))

    def softmax(self, scores: Any, mask: Any) -> Any:
        lib = self.lib
        if self.c.variant == "sigmoid_attention":
            return lib.where(mask, self.sigmoid(scores + self.c.score_offset), 0.0)
        b, h, t, s = scores.shape
        sinks = self.sinks()
        if sinks is not None:
            column = lib.broadcast_to(sinks[None, :, None, None], (b, h, t, 1))
            scores = lib.concatenate([scores, column], -1)
            mask = lib.concatenate([lib.broadcast_to(mask, (b, h, t, s)), column == column], -1)
        scores = self.hidden(scores, mask)
        top = lib.amax(scores, -1)[..., None]
        e = lib.exp(scores - top)
        return self.divided(e)[..., :s]

    def sinks(self) -> Any:
        return self.w.get("sinks")

    def hidden(self, scores: Any, mask: Any) -> Any:
        return self.lib.where(mask, scores, -np.inf)

    def divided(self, e: Any) -> Any:
        return e / self.lib.sum(e, -1)[..., None]


class FusedPort(Port):
    """Queries, keys and values from one projection; the heads side by side in the output."""

    def __call__(self, weights: Any, query: Any, mask: Any = None, bias: Any = None) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.w, self.tape = weights, {}
        q, k, v = self.parts(query)
        context = self.attend(q, k, v, self.everything(mask, q, k), bias)
        return {**self.tape, "y": self.flat(context)}

    def parts(self, x: Any) -> tuple[Any, Any, Any]:
        _, _, h, k = self.w["w_qkv"].shape
        flat = x @ self.w["w_qkv"].reshape(x.shape[-1], -1) + self.w["b_qkv"].reshape(-1)
        qkv = flat.reshape(*x.shape[:2], 3, h, k)
        return qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]


class LatentPort(Port):
    """Multi-head latent attention in the expanded form."""

    def __call__(self, weights: Any, query: Any, mask: Any = None, bias: Any = None) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.w, self.tape, lib = weights, {}, self.lib
        t, n = query.shape[1], self.c.nope_dim
        q = lib.einsum("btd,dhk->bthk", query, self.w["w_q"])
        q_rot = self.turn(q[..., n:], self.query_positions(t))
        latent = self.latent(query)
        k_rot = self.turn(self.rotary_key(query)[:, :, None], np.arange(t))[:, :, 0]
        self.tape |= {"latent": latent, "q_rot": q_rot, "k_rot": k_rot}
        k = lib.einsum("bsz,zhq->bshq", latent, self.w["w_uk"])
        k = lib.concatenate([k, lib.broadcast_to(k_rot[:, :, None], (*k.shape[:3], k_rot.shape[-1]))], -1)
        v = lib.einsum("bsz,zhv->bshv", latent, self.w["w_uv"])
        q = lib.concatenate([q[..., :n], q_rot], -1)
        context = self.attend(q, k, v, self.everything(mask, q, k), bias)
        return {**self.tape, "y": lib.einsum("bthv,hvd->btd", context, self.w["w_o"])}

    def latent(self, x: Any) -> Any:
        return self.norm(x @ self.w["w_dkv"], "w_kv_norm")

    def rotary_key(self, x: Any) -> Any:
        return x @ self.w["w_k_rot"]


class LinearPort(Port):
    """Linear attention without causality: the keys are summed up once."""

    def __call__(self, weights: Any, query: Any) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.w, self.tape = weights, {}
        q, k, v = (self.project(query, name) for name in "qkv")
        q, k = self.features(q), self.features(k)
        self.tape |= {"q_features": q, "k_features": k}
        state = self.lib.einsum("bshk,bshv->bhkv", k, v)
        total = self.lib.einsum("bthk,bhk->bth", q, self.lib.sum(k, 1))
        context = self.divided_by(self.lib.einsum("bthk,bhkv->bthv", q, state), total[..., None])
        self.tape["context"] = context
        return {**self.tape, "y": self.merge(context)}

    def features(self, x: Any) -> Any:
        return self.lib.where(x > 0, x + 1, self.lib.exp(self.lib.where(x > 0, 0.0, x)))

    def divided_by(self, read: Any, total: Any) -> Any:
        return read / (total + self.c.eps)


PORTS = {"fused_qkv": FusedPort, "mla": LatentPort, "linear": LinearPort}


def build(lib: Any, config: Config, methods: dict[str, Callable[..., Any]], taps: bool) -> Callable[..., Any]:
    """A port whose methods of these names are replaced, as a function of weights and arguments."""
    kind = PORTS.get(config.variant, Port)
    made = type("Wrong", (kind,), methods)(lib, config)
    call = made.__call__ if taps else partial(only_y, made)
    return with_arguments(call, config)


def only_y(port: Any, *args: Any, **kwargs: Any) -> Any:
    return port(*args, **kwargs)["y"]


def with_arguments(call: Callable[..., Any], config: Config) -> Callable[..., Any]:
    """The same function with a signature of the variant's own arguments but the dropout mask and positions."""
    from inspect import Parameter, Signature

    def function(weights: Any, *args: Any, **kwargs: Any) -> Any:
        return call(weights, *args, **kwargs)

    arguments = [n for n in config.arguments() if n in ("query", "key", "value", "mask", "bias")]
    if config.variant == "linear":
        arguments = ["query"]
    kind = Parameter.POSITIONAL_OR_KEYWORD
    optional = {n: (Parameter.empty if n == "query" else None) for n in arguments}
    function.__signature__ = Signature(
        [Parameter("weights", kind), *(Parameter(n, kind, default=x) for n, x in optional.items())]
    )
    return function
