"""More ports by hand: recurrences, windows of a grid, two softmax maps, small networks that score; each step a method.

Nothing here comes from the library but the config, so that a mistake in a port is no edit of the library's source.
"""

import inspect
from collections.abc import Callable
from itertools import pairwise
from math import exp, log, sqrt
from typing import Any

import numpy as np

from attn_np.contract import Config
from parity_tests.tests.tool.ports_by_hand import PORTS as EARLIER
from parity_tests.tests.tool.ports_by_hand import LatentPort, Port


class GatedDeltaPort(Port):
    """The gated delta rule, position by position."""

    def __call__(self, weights: Any, query: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.w, lib = weights, self.lib
        q, k, v = (lib.einsum("btd,dhk->bthk", query, self.w[f"w_{name}"]) for name in "qkv")
        if "w_q_conv" in self.w:
            q, k, v = (self.convolve(x, self.w[f"w_{n}_conv"]) for n, x in (("q", q), ("k", k), ("v", v)))
        q, k, v = self.unit(self.silu(q), "q"), self.unit(self.silu(k), "k"), self.silu(v)
        q, k = (self.repeated(x) for x in (q, k))
        beta = self.strength(lib.einsum("btd,dh->bth", query, self.w["w_beta"]))
        decay = self.decay(lib.einsum("btd,dh->bth", query, self.w["w_a"]))
        context = self.recur(q * self.query_scale(), k, v, beta, decay)
        return lib.einsum("bthv,hvo->bto", self.output(context, query), self.w["w_o"])

    def silu(self, x: Any) -> Any:
        return x * self.sigmoid(x)

    def softplus(self, x: Any) -> Any:
        return self.lib.log(1 + self.lib.exp(x))

    def convolve(self, x: Any, weight: Any) -> Any:
        """The last weight is that of a position itself."""
        n = weight.shape[0]
        before = self.lib.concatenate([0 * x[:, :1]] * (n - 1) + [x], 1)
        return sum(before[:, i : i + x.shape[1]] * weight[i] for i in range(n))

    def unit(self, x: Any, name: str = "") -> Any:
        return x / self.lib.sqrt(self.lib.sum(x * x, -1)[..., None] + self.unit_eps())

    def unit_eps(self) -> float:
        return self.c.norm_eps if self.c.qk_norm_eps is None else self.c.qk_norm_eps

    def repeated(self, x: Any) -> Any:
        h = self.c.num_heads
        return self.lib.stack([x[:, :, i // (h // x.shape[2])] for i in range(h)], 2)

    def strength(self, scores: Any) -> Any:
        return self.sigmoid(scores)

    def decay(self, scores: Any) -> Any:
        return self.lib.exp(-self.lib.exp(self.w["a_log"]) * self.softplus(scores + self.w["dt_bias"]))

    def query_scale(self) -> float:
        return 1 / sqrt(self.w["w_q"].shape[-1])

    def recur(self, q: Any, k: Any, v: Any, beta: Any, decay: Any) -> Any:
        state, read = 0 * self.lib.einsum("bhk,bhv->bhkv", k[:, 0], v[:, 0]), []
        for i in range(q.shape[1]):
            state, out = self.advance(state, q[:, i], k[:, i], v[:, i], beta[:, i, :, None], decay[:, i, :, None, None])
            read.append(out)
        return self.lib.stack(read, 1)

    def advance(self, state: Any, q: Any, k: Any, v: Any, beta: Any, decay: Any) -> tuple[Any, Any]:
        """The state after a position, and what its query reads."""
        state = self.kept(state) * decay
        new = beta * (v - self.look_up(k, state))
        state = state + self.lib.einsum("bhk,bhv->bhkv", k, new)
        return state, self.look_up(q, state)

    def kept(self, state: Any) -> Any:
        return state

    def look_up(self, key: Any, state: Any) -> Any:
        return self.lib.einsum("bhk,bhkv->bhv", key, state)

    def output(self, context: Any, query: Any) -> Any:
        gate = self.lib.einsum("btd,dhv->bthv", query, self.w["w_gate"])
        return self.rms(context) * self.activation(gate)

    def rms(self, x: Any) -> Any:
        squares = self.lib.sum(x * x, -1)[..., None] / x.shape[-1]
        return x / self.lib.sqrt(squares + self.c.norm_eps) * self.w["w_norm"]

    def activation(self, x: Any) -> Any:
        return self.silu(x)


class DeltaPort(GatedDeltaPort):
    """The delta rule, position by position."""

    def __call__(self, weights: Any, query: Any) -> Any:
        self.w, lib = weights, self.lib
        q, k, v = (lib.einsum("btd,dhk->bthk", query, self.w[f"w_{name}"]) for name in "qkv")
        q, k = self.unit(self.silu(q), "q"), self.unit(self.silu(k), "k")
        beta = self.strength(lib.einsum("btd,dh->bth", query, self.w["w_beta"]))
        context = self.recur(q, k, v, beta, 1.0 + 0 * beta)
        return lib.einsum("bthv,hvo->bto", self.rms(context), self.w["w_o"])

    def unit_eps(self) -> float:
        return self.c.norm_eps


class GatedLinearPort(GatedDeltaPort):
    """Gated linear attention, position by position: a decay for every number of a key."""

    def __call__(self, weights: Any, query: Any) -> Any:
        self.w, lib = weights, self.lib
        q, k, v = (lib.einsum("btd,dhk->bthk", query, self.w[f"w_{name}"]) for name in "qkv")
        low = lib.einsum("btd,dz->btz", query, self.w["w_a_down"])
        decay = self.decay(lib.einsum("btz,zhk->bthk", low, self.w["w_a_up"]) + self.w["b_a"])
        state, read = 0 * lib.einsum("bhk,bhv->bhkv", k[:, 0], v[:, 0]), []
        for i in range(q.shape[1]):
            state = state * decay[:, i, ..., None] + lib.einsum("bhk,bhv->bhkv", k[:, i], v[:, i])
            read.append(self.look_up(q[:, i] * self.query_scale(), state))
        return lib.einsum("bthv,hvo->bto", self.output(lib.stack(read, 1), query), self.w["w_o"])

    def decay(self, scores: Any) -> Any:
        return self.lib.exp(-self.softplus(-scores) / self.temperature())

    def temperature(self) -> float:
        return self.c.temperature


class RetentionPort(GatedDeltaPort):
    """Retention in its parallel form: scores that fade with the distance."""

    def __call__(self, weights: Any, query: Any) -> Any:
        self.w, lib = weights, self.lib
        q, k, v = (lib.einsum("btd,dhk->bthk", query, self.w[f"w_{name}"]) for name in "qkv")
        scores = lib.einsum("bthk,bshk->bhts", q, k) * self.query_scale()
        context = lib.einsum("bhts,bshv->bthv", scores * self.constant(self.fading(q.shape[1]), scores), v)
        return lib.einsum("bthv,hvo->bto", self.output(context, query), self.w["w_o"])

    def rates(self) -> np.ndarray:
        return 1 - 2.0 ** (-self.c.exponent - np.arange(self.c.num_heads))

    def fading(self, t: int) -> np.ndarray:
        distance = np.arange(t)[:, None] - np.arange(t)
        return np.where(distance >= 0, self.rates()[:, None, None] ** np.maximum(distance, 0), 0.0)

    def rms(self, x: Any) -> Any:
        """The norm of each head is a layer norm without a weight."""
        x = x - self.lib.sum(x, -1)[..., None] / x.shape[-1]
        return x / self.lib.sqrt(self.lib.sum(x * x, -1)[..., None] / x.shape[-1] + self.c.norm_eps)


class SwinPort(Port):
    """Windows of a grid, moved by a shift."""

    def __call__(self, weights: Any, query: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.w, c, lib = weights, self.c, self.lib
        b, size, d = query.shape[0], c.window_size, query.shape[-1]
        x = self.rolled(query.reshape(b, c.height, c.width, d), -self.shift())
        x = x.reshape(b, c.height // size, size, c.width // size, size, d)
        x = self.permuted(x, (0, 1, 3, 2, 4, 5)).reshape(-1, size * size, d)
        q, k, v = (self.project(x, name) for name in "qkv")
        scores = lib.einsum("bthk,bshk->bhts", q, k) / sqrt(q.shape[-1])
        scores = scores + self.permuted(self.w["w_bias"][self.index(size)], (2, 0, 1))
        mask = self.constant(self.repeated_mask(self.own_region(), b)[:, None], scores) > 0
        e = self.relative_to_the_largest(lib.where(mask, scores, -np.inf)) * self.constant(np.ones(1), scores)
        context = lib.einsum("bhts,bshv->bthv", e / lib.sum(e, -1)[..., None], v)
        x = self.reversed(self.merge(context), b, size)
        return self.rolled(x, self.shift()).reshape(b, c.height * c.width, x.shape[-1])

    def permuted(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.permute(axes) if self.lib.__name__ == "torch" else x.transpose(axes)

    def shift(self) -> int:
        return self.c.shift

    def rolled(self, x: Any, by: int) -> Any:
        return self.lib.roll(x, (by, by), (1, 2))

    def index(self, size: int) -> np.ndarray:
        y, x = np.divmod(np.arange(size * size), size)
        return self.row_of(y[:, None] - y + size - 1, x[:, None] - x + size - 1, size)

    def row_of(self, y: np.ndarray, x: np.ndarray, size: int) -> np.ndarray:
        return y * (2 * size - 1) + x

    def own_region(self) -> np.ndarray:
        """Whether two places of a window were neighbours before the shift: `n t s`."""
        c, size = self.c, self.c.window_size
        number = np.zeros((c.height, c.width), int)
        for i, rows in enumerate((slice(0, c.height - c.shift), slice(c.height - c.shift, None))):
            for j, columns in enumerate((slice(0, c.width - c.shift), slice(c.width - c.shift, None))):
                number[rows, columns] = 2 * i + j
        flat = number.reshape(c.height // size, size, c.width // size, size).swapaxes(1, 2).reshape(-1, size * size)
        return flat[:, :, None] == flat[:, None]

    def repeated_mask(self, mask: np.ndarray, b: int) -> np.ndarray:
        return np.tile(mask, (b, 1, 1))

    def reversed(self, x: Any, b: int, size: int) -> Any:
        c = self.c
        x = x.reshape(b, c.height // size, c.width // size, size, size, x.shape[-1])
        return self.permuted(x, (0, 1, 3, 2, 4, 5)).reshape(b, c.height, c.width, x.shape[-1])


class DifferentialPort(Port):
    """The difference of two softmax maps."""

    def __call__(self, weights: Any, query: Any, mask: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.w, lib = weights, self.lib
        q = lib.einsum("btd,dhrk->bthrk", query, self.w["w_q"]) + self.w["b_q"]
        k = lib.einsum("btd,dhrk->bthrk", query, self.w["w_k"]) + self.w["b_k"]
        v = lib.einsum("btd,dhv->bthv", query, self.w["w_v"]) + self.w["b_v"]
        maps = [self.weights(q[..., r, :], k[..., r, :], mask) for r in range(2)]
        context = lib.einsum("bhts,bshv->bthv", maps[0] - self.factor() * maps[1], v)
        return self.merge(self.normed(context) * (1 - self.start()))

    def weights(self, q: Any, k: Any, mask: Any) -> Any:
        scores = self.lib.einsum("bthk,bshk->bhts", q, k) / sqrt(q.shape[-1])
        scores = scores if mask is None else self.hidden(scores, mask)
        e = self.relative_to_the_largest(scores)
        return e / self.lib.sum(e, -1)[..., None]

    def start(self) -> float:
        return 0.8 - 0.6 * exp(-0.3 * (self.c.depth - 1))

    def start_in_factor(self) -> float:
        return self.start()

    def factor(self) -> Any:
        one, two = (self.lib.sum(self.w["lambda_q"][r] * self.w["lambda_k"][r], -1) for r in range(2))
        return self.combined(one, two) + self.start_in_factor()

    def combined(self, one: Any, two: Any) -> Any:
        return self.lib.exp(one) - self.lib.exp(two)

    def normed(self, x: Any) -> Any:
        squares = self.lib.sum(x * x, -1)[..., None] / x.shape[-1]
        return x / self.lib.sqrt(squares + self.c.norm_eps) * self.w["w_norm"]


class BahdanauPort(Port):
    """A small network with one hidden layer scores each pair."""

    def __call__(self, weights: Any, query: Any, key: Any = None, value: Any = None, mask: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.w = weights
        key = query if key is None else key
        value = key if value is None else value
        q = self.lib.einsum("btd,de->bte", query, self.w["w_q"])
        k = self.lib.einsum("bsi,ie->bse", key, self.w["w_k"])
        scores = self.lib.einsum("btse,e->bts", self.features(q[:, :, None], k[:, None]), self.w["w_score"])
        return self.lib.einsum("bts,bsv->btv", self.weights(scores, mask), value)

    def features(self, q: Any, k: Any) -> Any:
        return self.lib.tanh(q + k)

    def weights(self, scores: Any, mask: Any) -> Any:
        scores = scores if mask is None else self.hidden(scores, mask)
        e = self.relative_to_the_largest(scores)
        return e / self.lib.sum(e, -1)[..., None]


class LuongPort(Port):
    """A predicted place in the sequence, and a bell around it."""

    def __call__(self, weights: Any, query: Any, key: Any, value: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.w, lib, s = weights, self.lib, key.shape[1]
        value = key if value is None else value
        scores = lib.einsum("btd,di,bsi->bts", query, self.w["w"], key)
        center = self.center(lib.einsum("btm,m->bt", self.hidden_layer(query), self.w["w_center"]), s)
        offset = self.constant(np.arange(1, s + 1), scores) - center[..., None]
        scores = lib.where(self.inside(offset), scores, -np.inf)
        e = self.relative_to_the_largest(scores)
        weights = e / lib.sum(e, -1)[..., None] * self.bell(offset)
        return lib.einsum("bts,bsv->btv", weights, value)

    def hidden_layer(self, query: Any) -> Any:
        return self.lib.tanh(self.lib.einsum("btd,dm->btm", query, self.w["w_position"]))

    def center(self, scores: Any, s: int) -> Any:
        return s * self.sigmoid(scores)

    def inside(self, offset: Any) -> Any:
        return (offset <= self.c.half_window) & (offset >= -self.c.half_window)

    def bell(self, offset: Any) -> Any:
        return self.lib.exp(-2 * offset * offset / self.c.half_window**2)


class QueryLatentPort(LatentPort):
    """Multi-head latent attention whose queries have a latent, too, with YaRN where the config asks for it."""

    def __call__(self, weights: Any, query: Any, mask: Any = None, bias: Any = None) -> Any:
        self.w, self.tape, lib = weights, {}, self.lib
        t, n = query.shape[1], self.c.nope_dim
        q = lib.einsum("bte,ehk->bthk", self.query_latent(query), self.w["w_q"])
        plain, turned = self.parts_of_query(q, n)
        q_rot = self.turn(turned, np.arange(t))
        latent, k_rot = self.latent(query), self.turn(self.rotary_key(query)[:, :, None], np.arange(t))
        k, v = self.unpacked(latent)
        k = lib.concatenate([k, lib.broadcast_to(k_rot, (*k.shape[:3], k_rot.shape[-1]))], -1)
        q = lib.concatenate([plain, q_rot], -1)
        context = self.attend(q, k, v, self.everything(mask, q, k), bias)
        return {**self.tape, "y": lib.einsum("bthv,hvd->btd", context, self.w["w_o"])}

    def query_latent(self, x: Any) -> Any:
        return self.norm(x @ self.w["w_dq"], "w_q_norm")

    def parts_of_query(self, q: Any, n: int) -> tuple[Any, Any]:
        return q[..., :n], q[..., n:]

    def unpacked(self, latent: Any) -> tuple[Any, Any]:
        """Keys and values of one projection, as `kv_b_proj` makes them."""
        z, h = latent.shape[-1], self.c.num_heads
        joint = self.lib.concatenate([self.w["w_uk"], self.w["w_uv"]], -1)
        flat = latent @ joint.reshape(z, -1)
        return self.split_joint(flat.reshape(*flat.shape[:2], h, -1))

    def split_joint(self, x: Any) -> tuple[Any, Any]:
        return x[..., : self.c.nope_dim], x[..., self.c.nope_dim :]

    def frequencies(self, width: int) -> np.ndarray:
        c, plain = self.c, self.c.rope_base ** (-2.0 * np.arange(width // 2) / width)
        if c.rope_scaling != "yarn":
            return plain
        # Of many turns the frequency stays, of few it is divided; in between, by the index of the pair.
        low, high = (width * log(c.original_max_positions / (n * 2 * np.pi)) / (2 * log(c.rope_base)) for n in (32, 1))
        low, high = max(np.floor(low), 0), min(np.ceil(high), width - 1)
        ramp = np.clip((np.arange(width // 2) - low) / max(high - low, 1e-3), 0, 1)
        return plain / c.rope_scaling_factor * ramp + plain * (1 - ramp)


class JointPort(Port):
    """Queries, keys and values from one weight, read in some order."""

    def __call__(self, weights: Any, query: Any, mask: Any = None, bias: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.w, self.tape = weights, {}
        q, k, v = self.parts(query)
        q, k = self.position(q, k)
        context = self.attend(q, self.share(k), self.share(v), self.everything(mask, q, k), bias)
        return {**self.tape, "y": self.merge(context)}

    def parts(self, x: Any) -> tuple[Any, Any, Any]:
        shapes = [self.w[f"w_{name}"].shape[1:] for name in "qkv"]
        flat = x @ self.lib.concatenate([self.w[f"w_{name}"].reshape(x.shape[-1], -1) for name in "qkv"], -1)
        if "b_q" in self.w:
            flat = flat + self.lib.concatenate([self.w[f"b_{name}"].reshape(-1) for name in "qkv"], -1)
        return self.taken(flat, shapes)

    def taken(self, flat: Any, shapes: list[tuple[int, int]]) -> tuple[Any, Any, Any]:
        ends = np.cumsum([0, *(h * k for h, k in shapes)])
        cut = [flat[..., a:b] for a, b in pairwise(ends)]
        q, k, v = (x.reshape(*x.shape[:2], *shape) for x, shape in zip(cut, shapes, strict=True))
        return q, k, v


KINDS: dict[str, type[Port]] = {
    "gated_delta": GatedDeltaPort, "delta": DeltaPort, "gla": GatedLinearPort, "retention": RetentionPort,
    "swin": SwinPort, "differential": DifferentialPort, "additive": BahdanauPort, "luong": LuongPort,
    "mla": QueryLatentPort, "joint": JointPort,
}  # fmt: skip


def function(lib: Any, config: Config, methods: dict[str, Callable[..., Any]], kind: str = "") -> Callable[..., Any]:
    """A port whose methods of these names are replaced, as a function of weights and arguments that returns y."""
    base = KINDS.get(kind or config.variant) or EARLIER.get(config.variant, Port)
    made = type("Wrong", (base,), methods)(lib, config)

    def call(weights: Any, *args: Any, **kwargs: Any) -> Any:
        found = made(weights, *args, **kwargs)
        return found["y"] if isinstance(found, dict) else found

    parameters = inspect.signature(made.__call__).parameters.values()
    own = [p for p in parameters if p.name == "weights" or p.name in config.arguments()]
    call.__signature__ = inspect.Signature(own)
    return call


def nnx_module(call: Callable[..., Any], config: Config, seed: int = 0) -> Any:
    """An NNX module with weights under our names."""
    from flax import nnx

    rng = np.random.default_rng(seed)

    class Module(nnx.Module):
        def __init__(self) -> None:
            for name, shape in config.shapes().items():
                setattr(self, name, nnx.Param(rng.normal(size=shape).astype("float32") * config.fans()[name] ** -0.5))

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return call({name: getattr(self, name)[...] for name in config.shapes()}, *args, **kwargs)

    Module.__call__.__signature__ = with_self(call)
    return Module()


def with_self(call: Callable[..., Any]) -> inspect.Signature:
    parameters = [*inspect.signature(call).parameters.values()][1:]
    return inspect.Signature([inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), *parameters])


def linen_module(call: Callable[..., Any], config: Config) -> Callable[..., Any]:
    """A function that applies a Linen module whose parameters have our names."""
    from flax import linen

    class Module(linen.Module):
        @linen.compact
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            zeros = linen.initializers.zeros_init()
            return call({n: self.param(n, zeros, shape) for n, shape in config.shapes().items()}, *args, **kwargs)

    def apply(params: Any, *args: Any, **kwargs: Any) -> Any:
        return Module().apply({"params": params}, *args, **kwargs)

    apply.__signature__ = inspect.signature(call)
    return apply


def equinox_module(call: Callable[..., Any], config: Config) -> Callable[..., Any]:
    """A function that puts weights into an Equinox module and calls it."""
    import equinox

    class Module(equinox.Module):
        weights: dict[str, Any]

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return call(self.weights, *args, **kwargs)

    def apply(params: Any, *args: Any, **kwargs: Any) -> Any:
        return Module({name: params[name] for name in config.shapes()})(*args, **kwargs)

    apply.__signature__ = inspect.signature(call)
    return apply
