"""The model in NumPy: its forward, its backward by hand, and Adam."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import attn_np
from tiny_lm.shared import Config, Weights, encode

Array = np.ndarray
NormVJP = Callable[[Array], tuple[Array, Array, Array]]


# The parts, each with its backward ------------------------------------------------------------------------------------


def norm(x: Array, weight: Array, bias: Array, eps: float) -> tuple[Array, NormVJP]:
    """Every vector with mean 0 and variance 1, times a weight, plus a bias; and the backward."""
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + np.float32(eps))
    normed = centred * scale

    def vjp(dy: Array) -> tuple[Array, Array, Array]:
        d = dy * weight
        along = (d * normed).mean(axis=-1, keepdims=True)
        dx = scale * (d - d.mean(axis=-1, keepdims=True) - normed * along)
        return dx, (dy * normed).sum(axis=(0, 1)), dy.sum(axis=(0, 1))

    return normed * weight + bias, vjp


ROOT = np.float32(np.sqrt(2 / np.pi))
CUBE = np.float32(0.044715)


def gelu(x: Array) -> tuple[Array, Callable[[Array], Array]]:
    """A soft switch, x where x is large and 0 where it is very negative, in the form with a tanh; and the backward."""
    t = np.tanh(ROOT * (x + CUBE * x**3))

    def vjp(dy: Array) -> Array:
        return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * ROOT * (1 + 3 * CUBE * x**2))

    return 0.5 * x * (1 + t), vjp


def linear_vjp(x: Array, weight: Array, dy: Array) -> tuple[Array, Array]:
    """The gradients of x and the weight of `x @ weight`."""
    return dy @ weight.T, np.tensordot(x, dy, axes=((0, 1), (0, 1)))


def cross_entropy(scores: Array, targets: Array) -> tuple[float, Array]:
    """Minus the logarithm of the weight of the right character, on average; and the gradient of the scores."""
    z = scores - scores.max(axis=-1, keepdims=True)
    log_p = z - np.log(np.exp(z).sum(axis=-1, keepdims=True))
    right = np.eye(scores.shape[-1], dtype=scores.dtype)[targets]
    return -(log_p * right).sum(axis=-1).mean(), (np.exp(log_p) - right) / np.float32(targets.size)


# The model ------------------------------------------------------------------------------------------------------------


class TinyLM:
    """Characters in, a score for each next character out."""

    def __init__(self, config: Config, weights: Weights) -> None:
        self.config, self.weights = config, {name: w.copy() for name, w in weights.items()}
        self.attention = [attn_np.build("rotary", **config.attention()) for _ in range(config.num_blocks)]
        self.set_attention()

    def set_attention(self) -> None:
        """Give the attention layers their weights."""
        for i, layer in enumerate(self.attention):
            layer.set_params({name: self.weights[f"blocks.{i}.attention.{name}"] for name in layer.params()})

    def norm(self, name: str, x: Array) -> tuple[Array, NormVJP]:
        return norm(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], self.config.norm_eps)

    def block(self, i: int, x: Array) -> tuple[Array, Callable[[Array], tuple[Array, Weights]]]:
        """Attention and a small network, each normed before and added to what came in; and the backward."""
        w = {name: self.weights[f"blocks.{i}.{name}"] for name in ("up.weight", "up.bias", "down.weight", "down.bias")}
        normed1, norm1_vjp = self.norm(f"blocks.{i}.norm1", x)
        attended, attention_vjp = attn_np.value_and_vjp(self.attention[i], normed1)
        middle = x + attended
        normed2, norm2_vjp = self.norm(f"blocks.{i}.norm2", middle)
        hidden, gelu_vjp = gelu(normed2 @ w["up.weight"] + w["up.bias"])

        def vjp(dy: Array) -> tuple[Array, Weights]:
            g = {"down.bias": dy.sum(axis=(0, 1))}
            dhidden, g["down.weight"] = linear_vjp(hidden, w["down.weight"], dy)
            dhidden = gelu_vjp(dhidden)
            g["up.bias"] = dhidden.sum(axis=(0, 1))
            dnormed2, g["up.weight"] = linear_vjp(normed2, w["up.weight"], dhidden)
            dmiddle, g["norm2.weight"], g["norm2.bias"] = norm2_vjp(dnormed2)
            dmiddle = dmiddle + dy
            of_attention = attention_vjp(dmiddle)
            g |= {f"attention.{name}": dw for name, dw in of_attention.params.items()}
            dx, g["norm1.weight"], g["norm1.bias"] = norm1_vjp(of_attention.inputs["query"])
            return dx + dmiddle, {f"blocks.{i}.{name}": dw for name, dw in g.items()}

        return middle + hidden @ w["down.weight"] + w["down.bias"], vjp

    def loss(self, tokens: Array) -> tuple[float, Weights]:
        """The loss of a batch `batch length + 1`, and the gradients of all weights."""
        given, targets = tokens[:, :-1], tokens[:, 1:]
        x, vjps, grads = self.weights["embedding.weight"][given], [], {}
        for i in range(self.config.num_blocks):
            x, vjp = self.block(i, x)
            vjps.append(vjp)
        last, norm_vjp = self.norm("norm", x)
        loss, dscores = cross_entropy(last @ self.weights["out.weight"], targets)
        dlast, grads["out.weight"] = linear_vjp(last, self.weights["out.weight"], dscores)
        dx, grads["norm.weight"], grads["norm.bias"] = norm_vjp(dlast)
        for vjp in reversed(vjps):
            dx, of_block = vjp(dx)
            grads |= of_block
        grads["embedding.weight"] = np.zeros_like(self.weights["embedding.weight"])
        np.add.at(grads["embedding.weight"], given, dx)
        return loss, grads

    def step(self, tokens: Array, caches: list[Any]) -> tuple[Array, list[Any]]:
        """The scores after new characters `batch t`, and the caches with these characters in them."""
        x, after = self.weights["embedding.weight"][tokens], []
        for i, layer in enumerate(self.attention):
            attended, cache = layer.step(self.norm(f"blocks.{i}.norm1", x)[0], caches[i])
            after.append(cache)
            x = x + attended
            hidden = self.norm(f"blocks.{i}.norm2", x)[0] @ self.weights[f"blocks.{i}.up.weight"]
            hidden = gelu(hidden + self.weights[f"blocks.{i}.up.bias"])[0]
            x = x + hidden @ self.weights[f"blocks.{i}.down.weight"] + self.weights[f"blocks.{i}.down.bias"]
        return self.norm("norm", x)[0] @ self.weights["out.weight"], after


# Training and writing -------------------------------------------------------------------------------------------------


def adam(model: TinyLM, grads: Weights, moments: dict[str, tuple[Array, Array]], step: int) -> None:
    """Move every weight against its gradient, at a speed that adapts to the gradients so far."""
    for name, g in grads.items():
        mean, square = moments.get(name, (np.zeros_like(g), np.zeros_like(g)))
        mean = np.float32(0.9) * mean + np.float32(0.1) * g
        square = np.float32(0.999) * square + np.float32(0.001) * g * g
        moments[name] = mean, square
        root = np.sqrt(square / np.float32(1 - 0.999**step)) + np.float32(model.config.adam_eps)
        model.weights[name] -= np.float32(model.config.rate) * mean / np.float32(1 - 0.9**step) / root
    model.set_attention()


def train(model: TinyLM, batches: Array) -> Iterator[float]:
    """Train the model; gives back the loss of each batch."""
    moments: dict[str, tuple[Array, Array]] = {}
    for step, tokens in enumerate(batches, 1):
        loss, grads = model.loss(tokens)
        adam(model, grads, moments, step)
        yield float(loss)


def write(model: TinyLM, start: str, count: int) -> Array:
    """The characters that the model finds most likely, one after the other; each is read once, the rest is cached."""
    caches = [layer.init_cache(1, len(start) + count) for layer in model.attention]
    tokens, written = encode(start)[None], []
    for _ in range(count):
        scores, caches = model.step(tokens, caches)
        tokens = scores[:, -1:].argmax(axis=-1)
        written.append(tokens[0, 0])
    return np.array(written)
