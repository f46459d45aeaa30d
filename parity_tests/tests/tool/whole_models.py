"""Small whole models of four kinds in PyTorch, of methods that a mistake can replace.

Each is laid out as the family it is named after. What a planted mistake changes is a method of one submodule; the
rest, names and weights included, stays the same.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, HEADS, GROUPS, HEAD, INNER, WORDS, LENGTH = 12, 4, 2, 6, 10, 11, 16
LAYERS = 2


class Norm(nn.Module):
    """RMSNorm, or LayerNorm where it has a bias."""

    def __init__(self, bias: bool, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(WIDTH)), eps
        self.bias = nn.Parameter(torch.zeros(WIDTH)) if bias else None

    def centred(self, x: Tensor) -> Tensor:
        return x if self.bias is None else x - x.mean(-1, keepdim=True)

    def length(self, x: Tensor) -> Tensor:
        return torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.weight if self.bias is None else x * self.weight + self.bias

    def forward(self, x: Tensor) -> Tensor:
        x = self.centred(x)
        return self.scaled(x / self.length(x))


class Attention(nn.Module):
    """Attention with grouped heads, with positions or a bias by distance, over itself or a source."""

    def __init__(
        self, bias: bool, *, groups: int = HEADS, fused: bool = False, rotary: bool = False, scaled: bool = True
    ) -> None:  # fmt: skip
        super().__init__()
        self.groups, self.rotary, self.fused, self.scaled = groups, rotary, fused, scaled
        if fused:
            self.qkv = nn.Linear(WIDTH, 3 * HEADS * HEAD, bias)
        else:
            self.q = nn.Linear(WIDTH, HEADS * HEAD, bias)
            self.k, self.v = (nn.Linear(WIDTH, groups * HEAD, bias) for _ in range(2))
        self.o = nn.Linear(HEADS * HEAD, WIDTH, bias)

    def split(self, x: Tensor, groups: int) -> Tensor:
        return x.unflatten(-1, (groups, HEAD)).transpose(1, 2)

    def projected(self, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.fused:
            q, k, v = (self.split(y, HEADS) for y in self.parts(self.qkv(x)))
            return q, k, v
        return (
            self.split(self.q(x), HEADS),
            self.split(self.k(source), self.groups),
            self.split(self.v(source), self.groups),
        )

    def parts(self, x: Tensor) -> Any:
        return x.chunk(3, -1)

    def turned(self, x: Tensor, positions: Tensor) -> Tensor:
        rates = self.base() ** (-torch.arange(0, HEAD, 2).to(x.dtype) / HEAD)
        angles = positions[:, None, :, None].to(x.dtype) * rates
        return self.rotated(x, angles.cos(), angles.sin())

    def base(self) -> float:
        return 100.0

    def rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        one, other = x.chunk(2, -1)
        return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)

    def grouped(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(HEADS // self.groups, 1)

    def scale(self) -> float:
        return 1 / math.sqrt(HEAD) if self.scaled else 1.0

    def allowed(self, mask: Tensor) -> Tensor:
        return mask

    def weighed(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def merged(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(2)

    def forward(
        self, x: Tensor, mask: Tensor, positions: Tensor | None = None, source: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        q, k, v = self.projected(x, x if source is None else source)
        if self.rotary and positions is not None:
            q, k = self.turned(q, positions), self.turned(k, positions)
        k, v = self.grouped(k), self.grouped(v)
        scores = q @ k.mT * self.scale()
        scores = scores if bias is None else scores + bias
        hidden = torch.finfo(scores.dtype).min
        return self.o(self.merged(self.weighed(scores.masked_fill(~self.allowed(mask), hidden)) @ v))


class MLP(nn.Module):
    """A feed-forward network, gated or plain."""

    def __init__(self, activation: Any, *, gated: bool, bias: bool = False) -> None:
        super().__init__()
        self.activation, self.gated = activation, gated
        self.up, self.down = nn.Linear(WIDTH, INNER, bias), nn.Linear(INNER, WIDTH, bias)
        if gated:
            self.gate = nn.Linear(WIDTH, INNER, bias)

    def inner(self, x: Tensor) -> Tensor:
        return self.activation(self.gate(x)) * self.up(x) if self.gated else self.activation(self.up(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.inner(x))


class Block(nn.Module):
    """Norm, attention, perhaps attention to a source, norm, feed-forward network; each beside a residual."""

    def __init__(self, attention: Attention, mlp: MLP, bias: bool, cross: Attention | None = None) -> None:
        super().__init__()
        self.norm1, self.attn, self.norm2, self.mlp = Norm(bias), attention, Norm(bias), mlp
        if cross is not None:
            self.norm_cross, self.cross = Norm(bias), cross

    def attended(self, x: Tensor, mask: Tensor, positions: Tensor | None, bias: Tensor | None) -> Tensor:
        return x + self.attn(self.norm1(x), mask, positions, bias=bias)

    def crossed(self, x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
        return x + self.cross(self.norm_cross(x), mask, source=source)

    def fed(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm2(x))

    def forward(
        self, x: Tensor, mask: Tensor, positions: Tensor | None = None, bias: Tensor | None = None,
        source: Tensor | None = None, source_mask: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        x = self.attended(x, mask, positions, bias)
        if source is not None and source_mask is not None:
            x = self.crossed(x, source_mask, source)
        return self.fed(x)


class PostBlock(Block):
    """The norm after the sum with the residual, as in BERT."""

    def attended(self, x: Tensor, mask: Tensor, positions: Tensor | None, bias: Tensor | None) -> Tensor:
        return self.norm1(x + self.attn(x, mask, positions, bias=bias))

    def fed(self, x: Tensor) -> Tensor:
        return self.norm2(x + self.mlp(x))


def causal(t: int) -> Tensor:
    return torch.ones(t, t, dtype=torch.bool).tril()


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            Block(Attention(False, groups=GROUPS, rotary=True), MLP(F.silu, gated=True), False) for _ in range(LAYERS)
        )
        self.norm, self.head = Norm(False), nn.Linear(WIDTH, WORDS, False)

    def embedded(self, ids: Tensor) -> Tensor:
        return self.embed(ids)

    def positions(self, mask: Tensor) -> Tensor:
        return (mask.cumsum(-1) - 1).clamp(0)

    def final(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        return self.head(x)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        x, positions = self.embedded(ids), self.positions(attention_mask)
        mask = causal(ids.shape[1]) & (attention_mask[:, None, None] == 1)
        for layer in self.layers:
            x = layer(x, mask, positions)
        return self.logits(self.final(x))


class GPT2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        gelu = partial(F.gelu, approximate="tanh")
        self.h = nn.ModuleList(
            Block(Attention(True, fused=True), MLP(gelu, gated=False, bias=True), True) for _ in range(LAYERS)
        )
        self.ln_f, self.head = Norm(True), nn.Linear(WIDTH, WORDS, False)
        self.head.weight = self.wte.weight

    def embedded(self, ids: Tensor, positions: Tensor) -> Tensor:
        return self.wte(ids) + self.wpe(positions)

    def positions(self, mask: Tensor) -> Tensor:
        return (mask.cumsum(-1) - 1).clamp(0)

    def logits(self, x: Tensor) -> Tensor:
        return self.head(self.ln_f(x))

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embedded(ids, self.positions(attention_mask))
        mask = causal(ids.shape[1]) & (attention_mask[:, None, None] == 1)
        for block in self.h:
            x = block(x, mask)
        return self.logits(x)


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word, self.place, self.kind = (nn.Embedding(n, WIDTH) for n in (WORDS, LENGTH, 2))
        self.norm = Norm(True)

    def summed(self, ids: Tensor, kinds: Tensor) -> Tensor:
        return self.word(ids) + self.place(torch.arange(ids.shape[1])) + self.kind(kinds)

    def forward(self, ids: Tensor, kinds: Tensor) -> Tensor:
        return self.norm(self.summed(ids, kinds))


class Pooler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(WIDTH, WIDTH)

    def taken(self, x: Tensor) -> Tensor:
        return x[:, 0]

    def squashed(self, x: Tensor) -> Tensor:
        return torch.tanh(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.squashed(self.dense(self.taken(x)))


class BERT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = Embeddings()
        self.layer = nn.ModuleList(
            PostBlock(Attention(True), MLP(F.gelu, gated=False, bias=True), True) for _ in range(LAYERS)
        )
        self.pooler = Pooler()

    def forward(self, ids: Tensor, kinds: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        x, mask = self.embeddings(ids, kinds), attention_mask[:, None, None] == 1
        for layer in self.layer:
            x = layer(x, mask)
        return torch.cat([x, self.pooler(x)[:, None]], 1), x


def distant() -> Attention:
    """Attention as T5 has it, whose scores are not scaled."""
    return Attention(False, scaled=False)


class Stack(nn.Module):
    """T5's encoder or decoder: its table of distances serves all of its blocks."""

    def __init__(self, decoder: bool) -> None:
        super().__init__()
        self.decoder, self.table = decoder, nn.Embedding(8, HEADS)
        self.block = nn.ModuleList(
            Block(distant(), MLP(F.relu, gated=False), False, distant() if decoder else None) for _ in range(LAYERS)
        )
        self.norm = Norm(False)

    def buckets(self, t: int) -> Tensor:
        distance = torch.arange(t) - torch.arange(t)[:, None]
        return (-distance).clamp(0, 7) if self.decoder else (distance > 0) * 4 + distance.abs().clamp(0, 3)

    def bias(self, t: int) -> Tensor:
        return self.table(self.buckets(t)).permute(2, 0, 1)[None]

    def bias_of(self, n: int, bias: Tensor) -> Tensor | None:
        return bias

    def final(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def forward(
        self, x: Tensor, mask: Tensor, source: Tensor | None = None, source_mask: Tensor | None = None
    ) -> Tensor:
        bias = self.bias(x.shape[1])
        for n, block in enumerate(self.block):
            x = block(x, mask, bias=self.bias_of(n, bias), source=source, source_mask=source_mask)
        return self.final(x)


class T5(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(WORDS, WIDTH)
        self.encoder, self.decoder, self.head = Stack(False), Stack(True), nn.Linear(WIDTH, WORDS, False)

    def encoded(self, x: Tensor) -> Tensor:
        return x

    def logits(self, x: Tensor) -> Tensor:
        return self.head(x * WIDTH**-0.5)

    def forward(self, ids: Tensor, attention_mask: Tensor, decoder_ids: Tensor) -> Tensor:
        source_mask = attention_mask[:, None, None] == 1
        source = self.encoded(self.encoder(self.shared(ids), source_mask))
        x = self.decoder(self.shared(decoder_ids), causal(decoder_ids.shape[1]), source, source_mask)
        return self.logits(x)


MODELS: dict[str, type[nn.Module]] = {"llama": Llama, "gpt2": GPT2, "bert": BERT, "t5": T5}


def model(kind: str, seed: int = 0) -> Any:
    """A model with weights drawn: none is 0 or 1, so that each can be seen."""
    torch.manual_seed(seed)
    made = MODELS[kind]()
    with torch.no_grad():
        for name, x in made.named_parameters():
            x.normal_(1.0 if name.endswith("weight") and x.ndim == 1 else 0.0, 0.4)
    return made.eval()
