"""Llama in Flax NNX and GPT-2 in Flax Linen, as `whole_models` has them, with flags that make them wrong."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

from parity_tests.tests.tool.whole_models import GROUPS, HEAD, HEADS, INNER, LAYERS, LENGTH, WIDTH, WORDS

NAMES = {"h.{i}": "h_{i}"}


def seen(mask: Any, t: int) -> Any:
    return jnp.tril(jnp.ones((t, t), bool)) & (mask[:, None, None] == 1)


def attended(q: Any, k: Any, v: Any, mask: Any, stop: bool = False) -> Any:
    """Attention of `b h t k`, as `b t (h k)`."""
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(HEAD)
    probs = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min), -1)
    y = (jax.lax.stop_gradient(probs) if stop else probs) @ v
    return y.swapaxes(1, 2).reshape(*y.shape[::2], -1)


def split(x: Any, groups: int) -> Any:
    return x.reshape(*x.shape[:2], groups, HEAD).swapaxes(1, 2)


class Norm(nnx.Module):
    def __init__(self, plus_one: bool = False) -> None:
        self.weight, self.plus_one = nnx.Param(jnp.ones(WIDTH)), plus_one

    def __call__(self, x: Any) -> Any:
        x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
        return x * (self.weight[...] + 1 if self.plus_one else self.weight[...])


class Attention(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, interleaved: bool) -> None:
        sizes = {"q": HEADS, "k": GROUPS, "v": GROUPS}
        for name, n in sizes.items():
            setattr(self, name, nnx.Linear(WIDTH, n * HEAD, use_bias=False, rngs=rngs))
        self.o, self.interleaved = nnx.Linear(HEADS * HEAD, WIDTH, use_bias=False, rngs=rngs), interleaved

    def turned(self, x: Any, positions: Any) -> Any:
        angles = positions[:, None, :, None] * 100.0 ** (-jnp.arange(0, HEAD, 2) / HEAD)
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        one, other = (x[..., ::2], x[..., 1::2]) if self.interleaved else jnp.split(x, 2, -1)
        pairs = [one * cos - other * sin, other * cos + one * sin]
        return jnp.stack(pairs, -1).reshape(x.shape) if self.interleaved else jnp.concatenate(pairs, -1)

    def __call__(self, x: Any, mask: Any, positions: Any) -> Any:
        q, k, v = (split(getattr(self, n)(x), HEADS if n == "q" else GROUPS) for n in "qkv")
        q, k = self.turned(q, positions), self.turned(k, positions)
        k, v = (x.repeat(HEADS // GROUPS, 1) for x in (k, v))
        return self.o(attended(q, k, v, mask))


class MLP(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, gelu: bool, stopped_up: bool) -> None:
        self.gate, self.up = (nnx.Linear(WIDTH, INNER, use_bias=False, rngs=rngs) for _ in range(2))
        self.down, self.gelu, self.stopped_up = nnx.Linear(INNER, WIDTH, use_bias=False, rngs=rngs), gelu, stopped_up

    def __call__(self, x: Any) -> Any:
        up = self.up(x)
        up = jax.lax.stop_gradient(up) if self.stopped_up else up
        return self.down((jax.nn.gelu if self.gelu else jax.nn.silu)(self.gate(x)) * up)


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, gelu: bool, no_residual: bool, interleaved: bool, stopped_up: bool) -> None:
        self.norm1, self.norm2 = Norm(), Norm()
        self.attn, self.mlp = Attention(rngs, interleaved), MLP(rngs, gelu, stopped_up)
        self.no_residual = no_residual

    def __call__(self, x: Any, mask: Any, positions: Any) -> Any:
        y = self.attn(self.norm1(x), mask, positions)
        x = y if self.no_residual else x + y
        return x + self.mlp(self.norm2(x))


class Llama(nnx.Module):
    """Mistakes in a layer stand in the one that `whole_mistakes` names."""

    def __init__(self, **wrong: bool) -> None:
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(WORDS, WIDTH, rngs=rngs)
        layer = {"gelu": 1, "no_residual": 0, "interleaved": 1, "stopped_up": 0}
        self.layers = nnx.List([
            Block(rngs, **{flag: wrong.get(flag, False) and i == at for flag, at in layer.items()})
            for i in range(LAYERS)
        ])  # fmt: skip
        self.norm = Norm(wrong.get("plus_one", False))
        self.head = nnx.Linear(WIDTH, WORDS, use_bias=False, rngs=rngs)

    def __call__(self, ids: Any, attention_mask: Any) -> Any:
        positions = jnp.maximum(attention_mask.cumsum(-1) - 1, 0)
        x, mask = self.embed(ids), seen(attention_mask, ids.shape[1])
        for layer in self.layers:
            x = layer(x, mask, positions)
        return self.head(self.norm(x))


class LayerNorm(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        weight = self.param("weight", linen.initializers.ones, (WIDTH,))
        bias = self.param("bias", linen.initializers.zeros, (WIDTH,))
        x = x - x.mean(-1, keepdims=True)
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * weight + bias


class FusedAttention(linen.Module):
    tiled: bool
    stop: bool

    @linen.compact
    def __call__(self, x: Any, mask: Any) -> Any:
        q, k, v = jnp.split(linen.Dense(3 * HEADS * HEAD, name="qkv")(x), 3, -1)
        q, k, v = (split(y, HEADS) for y in (q, k, v))
        y = attended(q, k[:, ::-1] if self.tiled else k, v, mask, self.stop)
        return linen.Dense(WIDTH, name="o")(y)


class Feed(linen.Module):
    erf: bool

    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(WIDTH, name="down")(jax.nn.gelu(linen.Dense(INNER, name="up")(x), approximate=not self.erf))


class LinenBlock(linen.Module):
    erf: bool
    tiled: bool
    stop: bool

    @linen.compact
    def __call__(self, x: Any, mask: Any) -> Any:
        x = x + FusedAttention(self.tiled, self.stop, name="attn")(LayerNorm(name="norm1")(x), mask)
        return x + Feed(self.erf, name="mlp")(LayerNorm(name="norm2")(x))


class GPT2(linen.Module):
    from_one: bool = False
    erf: bool = False
    tiled: bool = False
    stopped_probs: bool = False

    @linen.compact
    def __call__(self, ids: Any, attention_mask: Any) -> Any:
        wte = linen.Embed(WORDS, WIDTH, name="wte")
        positions = jnp.maximum(attention_mask.cumsum(-1) - 1, 0) + self.from_one
        x = wte(ids) + linen.Embed(LENGTH, WIDTH, name="wpe")(positions)
        for i in range(LAYERS):
            wrong = (self.erf and i == 1, self.tiled and i == 0, self.stopped_probs and i == 1)
            x = LinenBlock(*wrong, name=f"h_{i}")(x, seen(attention_mask, ids.shape[1]))
        return wte.attend(LayerNorm(name="ln_f")(x))
