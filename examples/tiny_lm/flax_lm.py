"""The model in Flax NNX, trained with optax."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import attn_jax
from tiny_lm.shared import LETTERS, Config, Weights, encode

# Flax calls the weight of each part otherwise.
NAMES = {"embedding": "weight", "kernel": "weight", "scale": "weight"}


class Block(nnx.Module):
    """Attention and a small network, each normed before and added to what came in."""

    def __init__(self, config: Config, rngs: nnx.Rngs) -> None:
        # The fast variance, mean(x^2) - mean(x)^2, loses digits where the mean is large.
        norm: dict[str, Any] = {"epsilon": config.norm_eps, "use_fast_variance": False, "rngs": rngs}
        self.norm1 = nnx.LayerNorm(config.width, **norm)
        self.attention: Any = attn_jax.build("rotary", **config.attention())
        self.norm2 = nnx.LayerNorm(config.width, **norm)
        self.up = nnx.Linear(config.width, config.hidden, rngs=rngs)
        self.down = nnx.Linear(config.hidden, config.width, rngs=rngs)

    def __call__(self, x: jax.Array, cache: Any = None) -> tuple[jax.Array, Any]:
        normed = self.norm1(x)
        attended, cache = (self.attention(normed), None) if cache is None else self.attention.step(normed, cache)
        x = x + attended
        return x + self.down(nnx.gelu(self.up(self.norm2(x)), approximate=True)), cache


class TinyLM(nnx.Module):
    """Characters in, a score for each next character out."""

    def __init__(self, config: Config, weights: Weights) -> None:
        rngs, self.config = nnx.Rngs(0), config
        self.embedding = nnx.Embed(len(LETTERS), config.width, rngs=rngs)
        self.blocks = nnx.List([Block(config, rngs) for _ in range(config.num_blocks)])
        self.norm = nnx.LayerNorm(config.width, epsilon=config.norm_eps, use_fast_variance=False, rngs=rngs)
        self.out = nnx.Linear(config.width, len(LETTERS), use_bias=False, rngs=rngs)
        for path, weight in nnx.to_flat_state(nnx.state(self, nnx.Param)):
            *parts, last = map(str, path)
            weight.set_value(jnp.asarray(weights[".".join([*parts, NAMES.get(last, last)])]))

    def __call__(self, tokens: jax.Array, caches: list[Any] | None = None) -> tuple[jax.Array, list[Any]]:
        x, after = self.embedding(tokens), []
        for i, block in enumerate(self.blocks):
            x, cache = block(x, None if caches is None else caches[i])
            after.append(cache)
        return self.out(self.norm(x)), after


def loss_of(model: TinyLM, tokens: jax.Array) -> jax.Array:
    scores, _ = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(scores, tokens[:, 1:]).mean()


@nnx.jit
def train_step(model: TinyLM, optimizer: nnx.Optimizer, tokens: jax.Array) -> jax.Array:
    loss, grads = nnx.value_and_grad(loss_of)(model, tokens)
    optimizer.update(model, grads)
    return loss


@nnx.jit
def next_token(model: TinyLM, tokens: jax.Array, caches: list[Any]) -> tuple[jax.Array, list[Any]]:
    scores, caches = model(tokens, caches)
    return scores[:, -1:].argmax(axis=-1), caches


def train(model: TinyLM, batches: np.ndarray) -> Iterator[float]:
    """Train the model; gives back the loss of each batch."""
    optimizer = nnx.Optimizer(model, optax.adam(model.config.rate, eps=model.config.adam_eps), wrt=nnx.Param)
    for tokens in batches:
        yield float(train_step(model, optimizer, jnp.asarray(tokens)))


def write(model: TinyLM, start: str, count: int) -> np.ndarray:
    """The characters that the model finds most likely, one after the other; each is read once, the rest is cached."""
    caches = [block.attention.init_cache(1, len(start) + count) for block in model.blocks]
    tokens, written = jnp.asarray(encode(start))[None], []
    for _ in range(count):
        tokens, caches = next_token(model, tokens, caches)
        written.append(int(tokens[0, 0]))
    return np.array(written)
