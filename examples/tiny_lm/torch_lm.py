"""The model in PyTorch."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

import attn_torch
from tiny_lm.shared import LETTERS, Config, Weights, encode


class Block(nn.Module):
    """Attention and a small network, each normed before and added to what came in."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attention: Any = attn_torch.build("rotary", **config.attention())
        self.norm2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.up = nn.Linear(config.width, config.hidden)
        self.down = nn.Linear(config.hidden, config.width)

    def forward(self, x: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        normed = self.norm1(x)
        attended, cache = (self.attention(normed), None) if cache is None else self.attention.step(normed, cache)
        x = x + attended
        return x + self.down(gelu(self.up(self.norm2(x)), approximate="tanh")), cache


class TinyLM(nn.Module):
    """Characters in, a score for each next character out."""

    def __init__(self, config: Config, weights: Weights) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(len(LETTERS), config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.num_blocks))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.out = nn.Linear(config.width, len(LETTERS), bias=False)
        # torch.nn.Linear keeps its matrix as [out, in].
        turned = {f"{name}.weight" for name, part in self.named_modules() if isinstance(part, nn.Linear)}
        self.load_state_dict({k: torch.tensor(w.T if k in turned else w) for k, w in weights.items()})

    def forward(self, tokens: Tensor, caches: list[Any] | None = None) -> tuple[Tensor, list[Any]]:
        x, after = self.embedding(tokens), []
        for i, block in enumerate(self.blocks):
            x, cache = block(x, None if caches is None else caches[i])
            after.append(cache)
        return self.out(self.norm(x)), after


def train(model: TinyLM, batches: np.ndarray) -> Iterator[float]:
    """Train the model; gives back the loss of each batch."""
    adam = torch.optim.Adam(model.parameters(), lr=model.config.rate, eps=model.config.adam_eps)
    for tokens in torch.from_numpy(batches):
        adam.zero_grad()
        scores, _ = model(tokens[:, :-1])
        loss = cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        adam.step()
        yield loss.item()


@torch.no_grad()
def write(model: TinyLM, start: str, count: int) -> np.ndarray:
    """The characters that the model finds most likely, one after the other; each is read once, the rest is cached."""
    caches: list[Any] = [block.attention.init_cache(1, len(start) + count) for block in model.blocks]  # type: ignore[union-attr]
    tokens, written = torch.from_numpy(encode(start))[None], []
    for _ in range(count):
        scores, caches = model(tokens, caches)
        tokens = scores[:, -1:].argmax(dim=-1)
        written.append(tokens.item())
    return np.array(written)
