"""Ports of a Llama decoder by hand, in PyTorch, Flax NNX and Flax Linen, with mistakes to plant.

Each takes hidden states, `b t d`, and computes its rotary positions itself.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import linen, nnx
from torch.nn import functional as F

WIDTH, HEADS, GROUPS, HEAD, HIDDEN, BASE = 12, 4, 2, 6, 10, 100.0
EPS = 1e-6
MISTAKES = ("mlp", "norm", "attention")
# The original's names to those of the ports.
BLOCK = {
    "input_layernorm": "norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn": "attn",
    "self_attn.{x}_proj": "attn.{x}",
    "mlp": "ffn",
    "mlp.{x}_proj": "ffn.{x}",
}
BLOCKS = {"layers.{i}": "blocks.{i}"} | {f"layers.{{i}}.{a}": f"blocks.{{i}}.{b}" for a, b in BLOCK.items()}
LINEN_BLOCKS = {a: b.replace("blocks.", "blocks_") for a, b in BLOCKS.items()}


@dataclass(frozen=True)
class How:
    """What a port does; the defaults are right."""

    activation: Any
    eps: float = EPS
    scale: int = HEAD
    dtype: Any = None


def how(framework: Any, mistake: str | None) -> How:
    """A port of a framework with one mistake."""
    silu, gelu = (F.silu, F.gelu) if framework is torch else (jax.nn.silu, jax.nn.gelu)
    return How(
        gelu if mistake == "mlp" else silu,
        1e-5 if mistake == "norm" else EPS,
        WIDTH if mistake == "attention" else HEAD,
    )


def turned(np_: Any, x: Any, rates: Any, positions: Any) -> Any:
    """Rotary positions of `b h t k`, pairs across the halves of a head."""
    angles = positions[:, None] * rates
    cos, sin = np_.cos(angles), np_.sin(angles)
    one, other = x[..., : HEAD // 2], x[..., HEAD // 2 :]
    join = torch.cat if np_ is torch else jnp.concatenate
    return join([one * cos - other * sin, other * cos + one * sin], -1)


# The original, written as in transformers -----------------------------------------------------------------------------


class RMSNorm(torch.nn.Module):
    def __init__(self, width: int, eps: float = EPS) -> None:
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.rand(width) + 0.5), eps

    def forward(self, hidden_states: Any) -> Any:
        dtype = hidden_states.dtype
        x = hidden_states.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x.to(dtype)


class Attention(torch.nn.Module):
    def __init__(self, names: tuple[str, ...], how: How) -> None:
        super().__init__()
        sizes = ((WIDTH, HEADS * HEAD), (WIDTH, GROUPS * HEAD), (WIDTH, GROUPS * HEAD), (HEADS * HEAD, WIDTH))
        for name, (a, b) in zip(names, sizes, strict=True):
            setattr(self, name, torch.nn.Linear(a, b, bias=False))
        self.names, self.how = names, how
        rates = 1.0 / (BASE ** (torch.arange(0, HEAD, 2).float() / HEAD))
        self.register_buffer("inv_freq", rates, persistent=False)

    def forward(self, hidden_states: Any, attention_mask: Any = None, **_: Any) -> Any:
        b, t, _ = hidden_states.shape
        q, k, v = (getattr(self, n)(hidden_states).view(b, t, -1, HEAD).transpose(1, 2) for n in self.names[:3])
        positions = torch.arange(t).float()
        q, k = (turned(torch, x, self.inv_freq.float(), positions).to(v.dtype) for x in (q, k))
        k, v = (x.repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.how.scale)
        causal = torch.ones(t, t, dtype=torch.bool).tril()
        scores = scores.masked_fill(~causal, torch.finfo(scores.dtype).min)
        probs = F.softmax(scores, -1, dtype=torch.float32).to(v.dtype)
        return getattr(self, self.names[3])((probs @ v).transpose(1, 2).reshape(b, t, -1)), probs


class MLP(torch.nn.Module):
    def __init__(self, names: tuple[str, ...], how: How) -> None:
        super().__init__()
        for name, (a, b) in zip(names, ((WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH)), strict=True):
            setattr(self, name, torch.nn.Linear(a, b, bias=False))
        self.names, self.how = names, how

    def forward(self, x: Any) -> Any:
        gate, up, down = (getattr(self, name) for name in self.names)
        return down(self.how.activation(gate(x)) * up(x))


class Layer(torch.nn.Module):
    """A decoder block under the original's names."""

    def __init__(self) -> None:
        super().__init__()
        right = how(torch, None)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.self_attn = Attention(("q_proj", "k_proj", "v_proj", "o_proj"), right)
        self.mlp = MLP(("gate_proj", "up_proj", "down_proj"), right)

    def forward(self, hidden_states: Any, attention_mask: Any = None) -> Any:
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), attention_mask=attention_mask)
        hidden_states = hidden_states + attended
        return (hidden_states + self.mlp(self.post_attention_layernorm(hidden_states)),)


class Model(torch.nn.Module):
    """Two decoder blocks and a norm; it returns a dictionary, as models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(2))
        self.norm = RMSNorm(WIDTH)

    def forward(self, hidden_states: Any) -> Any:
        for layer in self.layers:
            (hidden_states,) = layer(hidden_states)
        return {"last_hidden_state": self.norm(hidden_states), "past_key_values": None}


# Ports ----------------------------------------------------------------------------------------------------------------


class TorchBlock(torch.nn.Module):
    def __init__(self, mistake: str | None = None) -> None:
        super().__init__()
        chosen = how(torch, mistake)
        self.norm, self.ffn_norm = RMSNorm(WIDTH), RMSNorm(WIDTH, chosen.eps)
        self.attn = Attention(("q", "k", "v", "o"), chosen)
        self.ffn = MLP(("gate", "up", "down"), chosen)

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.norm(x))[0]
        return x + self.ffn(self.ffn_norm(x))


class TorchModel(torch.nn.Module):
    def __init__(self, mistake: str | None = None) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([TorchBlock(), TorchBlock(mistake)])
        self.norm = RMSNorm(WIDTH)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def rms(x: Any, scale: Any, eps: float) -> Any:
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + eps)
    return scale * wide.astype(x.dtype)


def attend(x: Any, q: Any, k: Any, v: Any, width: int) -> Any:
    b, t, _ = x.shape
    q, k, v = (y(x).reshape(b, t, -1, HEAD).swapaxes(1, 2) for y in (q, k, v))
    rates = 1.0 / (BASE ** (jnp.arange(0, HEAD, 2, dtype=jnp.float32) / HEAD))
    q, k = (turned(jnp, y, rates, jnp.arange(t, dtype=jnp.float32)).astype(v.dtype) for y in (q, k))
    k, v = (jnp.repeat(y, HEADS // GROUPS, 1) for y in (k, v))
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), q @ k.swapaxes(-1, -2) / math.sqrt(width), -jnp.inf)
    probs = jax.nn.softmax(scores.astype(jnp.float32), -1).astype(v.dtype)
    return (probs @ v).swapaxes(1, 2).reshape(b, t, -1)


class NnxNorm(nnx.Module):
    def __init__(self, dtype: Any, eps: float = EPS) -> None:
        self.scale, self.eps = nnx.Param(jnp.zeros(WIDTH, dtype)), eps

    def __call__(self, x: Any) -> Any:
        return rms(x, self.scale[...], self.eps)


def linear(a: int, b: int, dtype: Any) -> nnx.Linear:
    return nnx.Linear(a, b, use_bias=False, dtype=dtype, param_dtype=dtype, rngs=nnx.Rngs(0))


class NnxAttention(nnx.Module):
    def __init__(self, how: How, dtype: Any) -> None:
        self.q, self.o = linear(WIDTH, HEADS * HEAD, dtype), linear(HEADS * HEAD, WIDTH, dtype)
        self.k, self.v = (linear(WIDTH, GROUPS * HEAD, dtype) for _ in range(2))
        self.scale = how.scale

    def __call__(self, x: Any) -> Any:
        return self.o(attend(x, self.q, self.k, self.v, self.scale))


class NnxMLP(nnx.Module):
    def __init__(self, how: How, dtype: Any) -> None:
        self.gate, self.up, self.down = (
            linear(a, b, dtype) for a, b in ((WIDTH, HIDDEN), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
        )
        self.activation = how.activation

    def __call__(self, x: Any) -> Any:
        return self.down(self.activation(self.gate(x)) * self.up(x))


class NnxBlock(nnx.Module):
    def __init__(self, mistake: str | None = None, dtype: Any = jnp.float32) -> None:
        chosen = how(jax, mistake)
        self.norm, self.ffn_norm = NnxNorm(dtype), NnxNorm(dtype, chosen.eps)
        self.attn, self.ffn = NnxAttention(chosen, dtype), NnxMLP(chosen, dtype)

    def __call__(self, x: Any) -> Any:
        x = x + self.attn(self.norm(x))
        return x + self.ffn(self.ffn_norm(x))


class NnxModel(nnx.Module):
    def __init__(self, mistake: str | None = None, dtype: Any = jnp.float32) -> None:
        self.blocks = nnx.List([NnxBlock(None, dtype), NnxBlock(mistake, dtype)])
        self.norm = NnxNorm(dtype)

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class LinenNorm(linen.Module):
    dtype: Any
    eps: float = EPS

    @linen.compact
    def __call__(self, x: Any) -> Any:
        return rms(x, self.param("scale", linen.initializers.ones, (WIDTH,), self.dtype), self.eps)


class LinenAttention(linen.Module):
    dtype: Any
    scale: int

    @linen.compact
    def __call__(self, x: Any) -> Any:
        sizes = {"q": HEADS * HEAD, "k": GROUPS * HEAD, "v": GROUPS * HEAD, "o": WIDTH}
        q, k, v, o = (
            linen.Dense(n, use_bias=False, dtype=self.dtype, param_dtype=self.dtype, name=name)
            for name, n in sizes.items()
        )
        return o(attend(x, q, k, v, self.scale))


class LinenMLP(linen.Module):
    dtype: Any
    activation: Any

    @linen.compact
    def __call__(self, x: Any) -> Any:
        gate, up, down = (
            linen.Dense(n, use_bias=False, dtype=self.dtype, param_dtype=self.dtype, name=name)
            for name, n in (("gate", HIDDEN), ("up", HIDDEN), ("down", WIDTH))
        )
        return down(self.activation(gate(x)) * up(x))


class LinenBlock(linen.Module):
    mistake: str | None = None
    dtype: Any = jnp.float32

    @linen.compact
    def __call__(self, x: Any) -> Any:
        chosen = how(jax, self.mistake)
        attended = LinenAttention(self.dtype, chosen.scale, name="attn")(LinenNorm(self.dtype, name="norm")(x))
        x = x + attended
        normed = LinenNorm(self.dtype, chosen.eps, name="ffn_norm")(x)
        return x + LinenMLP(self.dtype, chosen.activation, name="ffn")(normed)


class LinenModel(linen.Module):
    mistake: str | None = None
    dtype: Any = jnp.float32

    @linen.compact
    def __call__(self, x: Any) -> Any:
        for i, mistake in enumerate((None, self.mistake)):
            x = LinenBlock(mistake, self.dtype, name=f"blocks_{i}")(x)
        return LinenNorm(self.dtype, name="norm")(x)


def original(kind: Callable[[], Any], dtype: str, seed: int) -> Any:
    """A module of ours with random weights of size 1, in a type."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = kind()
        with torch.no_grad():
            for x in module.parameters():
                x.copy_(torch.rand(x.shape) + 0.5 if x.ndim == 1 else torch.randn(x.shape) * 0.5)
    return module.to(getattr(torch, dtype)).eval()


def hidden(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2, 7, WIDTH)).astype(np.float32)


PORTS = {
    "torch": SimpleNamespace(
        block=lambda mistake, dtype: TorchBlock(mistake).to(getattr(torch, dtype)),
        model=lambda mistake, dtype: TorchModel(mistake).to(getattr(torch, dtype)),
        names=BLOCKS,
    ),
    "nnx": SimpleNamespace(
        block=lambda mistake, dtype: NnxBlock(mistake, jnp.dtype(dtype)),
        model=lambda mistake, dtype: NnxModel(mistake, jnp.dtype(dtype)),
        names=BLOCKS,
    ),
    "linen": SimpleNamespace(
        block=lambda mistake, dtype: LinenBlock(mistake, jnp.dtype(dtype)),
        model=lambda mistake, dtype: LinenModel(mistake, jnp.dtype(dtype)),
        names=LINEN_BLOCKS,
    ),
}
