"""Sixty mistakes in whole models, and the submodule that `compare_modules` names for each.

`python -m parity_tests.tests.tool.whole_mistakes` prints a table. What counts as the right submodule, the innermost one
whose own code is wrong, was written down with each mistake before it was looked for. A mistake of gradients leaves all
outputs as they are.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import sqrt
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from parity_tests import ModuleComparison, compare_modules
from parity_tests.tests.tool import whole_flax
from parity_tests.tests.tool.whole_models import HEAD, HEADS, WIDTH, WORDS, model

BATCH, TIME, TARGET = 2, 7, 5


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Attributes:
        name: what is wrong.
        kind: in a model of which family; "nnx" and "linen" are Llama and GPT-2 in Flax, against PyTorch's.
        at: the submodule whose methods are replaced.
        where: the submodule that should be named.
        methods: what is replaced; in Flax the names of the flags that are set.
        gradient: only gradients are wrong.
        padded: the batch is padded.
    """

    name: str
    kind: str
    at: str
    where: str
    methods: dict[str, Callable[..., Any]]
    gradient: bool = False
    padded: bool = False


MISTAKES: list[Mistake] = []


def wrong(name: str, kind: str, at: str, where: str | None = None, **methods: Any) -> None:
    flags = {key: methods.pop(key) for key in ("gradient", "padded") if key in methods}
    MISTAKES.append(Mistake(name, kind, at, at if where is None else where, methods, **flags))


# What replaces methods, more than once or longer than a line ----------------------------------------------------------


def straight_through(self: Any, x: Any) -> Any:
    up = self.up(x)
    right = self.activation(up)
    return F.relu(up) + (right - F.relu(up)).detach()


def variance_of_x(self: Any, x: Any) -> Any:
    return torch.sqrt(x.var(-1, keepdim=True) + self.eps)


def from_source_of_itself(self: Any, x: Any, mask: Any, source: Any) -> Any:
    return x + self.cross(self.norm_cross(x), mask[..., : x.shape[1]], source=self.norm_cross(x))


def heads_first(self: Any, x: Any) -> Any:
    """The fused projection read as heads of q, k and v each."""
    return [part.flatten(2) for part in x.unflatten(-1, (HEADS, 3, HEAD)).unbind(3)]


# Llama ----------------------------------------------------------------------------------------------------------------

wrong("embedding times sqrt(width)", "llama", "", embedded=lambda self, ids: self.embed(ids) * sqrt(WIDTH))
wrong("no final norm", "llama", "", final=lambda self, x: x)
wrong("final norm is a LayerNorm", "llama", "norm", centred=lambda self, x: x - x.mean(-1, keepdim=True))
wrong(
    "eps 1e-5 for 1e-6",
    "llama",
    "layers.1.norm1",
    length=lambda self, x: torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5),
)
wrong("weight 1 + w", "llama", "layers.0.norm2", scaled=lambda self, x: x * (1 + self.weight))
wrong(
    "weight before the norm",
    "llama",
    "layers.1.norm2",
    centred=lambda self, x: x * self.weight,
    scaled=lambda self, x: x,
)
wrong("gelu for silu", "llama", "layers.1.mlp", inner=lambda self, x: F.gelu(self.gate(x)) * self.up(x))
wrong("gate and up exchanged", "llama", "layers.0.mlp", inner=lambda self, x: F.silu(self.up(x)) * self.gate(x))
wrong(
    "no residual around attention",
    "llama",
    "layers.1",
    attended=lambda self, x, m, p, b: self.attn(self.norm1(x), m, p, bias=b),
)
wrong("residual of what is normed", "llama", "layers.0", fed=lambda self, x: self.norm2(x) + self.mlp(self.norm2(x)))
wrong("network fed without its norm", "llama", "layers.1", fed=lambda self, x: x + self.mlp(x))
wrong("scale of the width", "llama", "layers.1.attn", scale=lambda self: WIDTH**-0.5)
wrong("not causal", "llama", "layers.0.attn", allowed=lambda self, mask: mask | True)
wrong(
    "rotary pairs side by side",
    "llama",
    "layers.1.attn",
    rotated=lambda self, x, cos, sin: torch.stack(
        [x[..., ::2] * cos - x[..., 1::2] * sin, x[..., 1::2] * cos + x[..., ::2] * sin], -1
    ).flatten(-2),
)
wrong("logits capped", "llama", "", logits=lambda self, x: 30 * torch.tanh(self.head(x) / 30))
wrong(
    "padding attended to",
    "llama",
    "layers.1.attn",
    allowed=lambda self, mask: torch.ones(TIME, TIME, dtype=torch.bool).tril() & (mask | True),
    padded=True,
)
wrong(
    "gate stopped",
    "llama",
    "layers.1.mlp",
    inner=lambda self, x: self.activation(self.gate(x)).detach() * self.up(x),
    gradient=True,
)
wrong(
    "residual stopped",
    "llama",
    "layers.0",
    attended=lambda self, x, m, p, b: x.detach() + self.attn(self.norm1(x), m, p, bias=b),
    gradient=True,
)
wrong(
    "weights of attention stopped",
    "llama",
    "layers.1.attn",
    weighed=lambda self, s: s.softmax(-1).detach(),
    gradient=True,
)
wrong(
    "length of the norm stopped",
    "llama",
    "layers.1.norm1",
    length=lambda self, x: type(self).length(self, x).detach(),
    gradient=True,
)
wrong(
    "a tenth of the embedding's gradient",
    "llama",
    "",
    embedded=lambda self, ids: 0.1 * self.embed(ids) + 0.9 * self.embed(ids).detach(),
    gradient=True,
    padded=True,
)
wrong(
    "network's input stopped",
    "llama",
    "layers.1",
    fed=lambda self, x: x + self.mlp(self.norm2(x.detach())),
    gradient=True,
    padded=True,
)
wrong("norm's weight stopped", "llama", "norm", scaled=lambda self, x: x * self.weight.detach(), gradient=True)

# GPT-2 ----------------------------------------------------------------------------------------------------------------

wrong("positions from 2", "gpt2", "", positions=lambda self, mask: (mask.cumsum(-1) + 1).clamp(0))
wrong("no positions", "gpt2", "", embedded=lambda self, ids, positions: self.wte(ids))
wrong(
    "positions that do not know of padding",
    "gpt2",
    "",
    positions=lambda self, mask: torch.arange(TIME).expand(BATCH, TIME),
    padded=True,
)
wrong("erf for tanh", "gpt2", "h.1.mlp", inner=lambda self, x: F.gelu(self.up(x)))
wrong("q and k exchanged", "gpt2", "h.0.attn", parts=lambda self, x: [x.chunk(3, -1)[n] for n in (1, 0, 2)])
wrong("fused projection read heads first", "gpt2", "h.1.attn", parts=heads_first)
wrong(
    "norm after attention", "gpt2", "h.1", attended=lambda self, x, m, p, b: self.norm1(x + self.attn(x, m, p, bias=b))
)
wrong("variance over n - 1", "gpt2", "h.1.norm2", length=variance_of_x)
wrong(
    "heads not moved back",
    "gpt2",
    "h.1.attn",
    merged=lambda self, x: x.flatten(2).reshape(BATCH, TIME, -1),
    padded=True,
)
wrong("head before the last norm", "gpt2", "", logits=lambda self, x: self.head(x))
wrong("derivative of another activation", "gpt2", "h.0.mlp", inner=straight_through, gradient=True)
wrong(
    "tied weight stopped in the head",
    "gpt2",
    "",
    logits=lambda self, x: F.linear(self.ln_f(x), self.head.weight.detach()),
    gradient=True,
)
wrong(
    "positions stopped", "gpt2", "", embedded=lambda self, ids, p: self.wte(ids) + self.wpe(p).detach(), gradient=True
)
wrong(
    "mean of the norm stopped",
    "gpt2",
    "h.1.norm1",
    centred=lambda self, x: x - x.mean(-1, keepdim=True).detach(),
    gradient=True,
    padded=True,
)

# BERT -----------------------------------------------------------------------------------------------------------------

wrong(
    "no kinds of tokens",
    "bert",
    "embeddings",
    summed=lambda self, ids, kinds: self.word(ids) + self.place(torch.arange(TIME)),
)
wrong("pooler takes the last token", "bert", "pooler", taken=lambda self, x: x[:, -1])
wrong("pooler without tanh", "bert", "pooler", squashed=lambda self, x: x, padded=True)
wrong(
    "norm before attention",
    "bert",
    "layer.1",
    attended=lambda self, x, m, p, b: x + self.attn(self.norm1(x), m, p, bias=b),
    padded=True,
)
wrong("padding is not hidden", "bert", "layer.0.attn", allowed=lambda self, mask: mask | True, padded=True)
wrong(
    "causal",
    "bert",
    "layer.1.attn",
    allowed=lambda self, mask: mask & torch.ones(TIME, TIME, dtype=torch.bool).tril(),
    padded=True,
)
wrong("relu for gelu", "bert", "layer.1.mlp", inner=lambda self, x: F.relu(self.up(x)), padded=True)
wrong(
    "keys stopped",
    "bert",
    "layer.0.attn",
    projected=lambda self, x, source: (lambda q, k, v: (q, k.detach(), v))(*type(self).projected(self, x, source)),
    gradient=True,
    padded=True,
)

# T5 -------------------------------------------------------------------------------------------------------------------

wrong(
    "decoder with an encoder's buckets",
    "t5",
    "decoder",
    buckets=lambda self, t: (lambda d: (d > 0) * 4 + d.abs().clamp(0, 3))(torch.arange(t) - torch.arange(t)[:, None]),
)
wrong(
    "bias in the first block alone",
    "t5",
    "encoder",
    bias_of=lambda self, n, bias: bias if n == 0 else None,
    padded=True,
)
wrong("cross-attention to itself", "t5", "decoder.block.1", crossed=from_source_of_itself)
wrong(
    "padding of the source is not hidden",
    "t5",
    "decoder.block.1.cross",
    allowed=lambda self, mask: mask | True,
    padded=True,
)
wrong("logits not scaled", "t5", "", logits=lambda self, x: self.head(x))
wrong("source stopped", "t5", "", encoded=lambda self, x: x.detach(), gradient=True, padded=True)

# Flax -----------------------------------------------------------------------------------------------------------------

for flag, at, gradient in (
    ("plus_one", "norm", False), ("gelu", "layers.1.mlp", False), ("no_residual", "layers.0", False),
    ("interleaved", "layers.1.attn", False), ("stopped_up", "layers.0.mlp", True),
):  # fmt: skip
    wrong(flag, "nnx", at, None, gradient=gradient, **{flag: True})
for flag, at, gradient in (
    ("from_one", "", False), ("erf", "h.1.mlp", False), ("tiled", "h.0.attn", False),
    ("stopped_probs", "h.1.attn", True),
):  # fmt: skip
    wrong(flag, "linen", at, None, gradient=gradient, **{flag: True})


def inputs_of(mistake: Mistake) -> tuple[Any, ...]:
    """Ids and masks; left padding but in BERT and T5, whose positions are counted from the start."""
    rng = np.random.default_rng(5)
    ids, mask = rng.integers(0, WORDS, (BATCH, TIME)), np.ones((BATCH, TIME), int)
    if mistake.padded:
        mask[0, slice(0, 3) if mistake.kind in ("llama", "gpt2") else slice(4, None)] = 0
    if mistake.kind == "bert":
        return ids, rng.integers(0, 2, (BATCH, TIME)), mask
    return (ids, mask, rng.integers(0, WORDS, (BATCH, TARGET))) if mistake.kind == "t5" else (ids, mask)


def compared(mistake: Mistake | None, kind: str, padded: bool = False) -> ModuleComparison:
    """A model and its copy with a mistake, compared; without one, where it is None."""
    like = mistake or Mistake("", kind, "", "", {}, padded=padded)
    a = model({"nnx": "llama", "linen": "gpt2"}.get(kind, kind))
    names: dict[str, Any] | None = None
    if kind == "nnx":
        b: Any = whole_flax.Llama(**dict.fromkeys(like.methods, True))
    elif kind == "linen":
        options: dict[str, Any] = dict.fromkeys(like.methods, True)
        b, names = whole_flax.GPT2(**options), whole_flax.NAMES
    else:
        b = model(kind)
        sub = b.get_submodule(like.at)
        for name, method in like.methods.items():
            setattr(sub, name, MethodType(method, sub))
    given = inputs_of(like)
    mask = given[{"bert": 2}.get(kind, 1)]
    return compare_modules(a, b, given, names=names, tokens=mask if like.padded and kind != "bert" else None)


def said(mistake: Mistake) -> tuple[str, str]:
    """The submodule that is named for a mistake, "nothing" if none is, and the cause or the advice beside it."""
    result = compared(mistake, mistake.kind)
    first = result.first
    if first is None or bool(first.gradients) != mistake.gradient:
        return "nothing" if first is None else f"{first.a}, by {'outputs' if mistake.gradient else 'gradients'}", ""
    cause = result.finding.causes[0].name if result.finding and result.finding.causes else result.cause
    return first.a, cause or result.advice


def main(numbers: Iterable[int]) -> int:
    from rich.console import Console
    from rich.table import Table

    console, right = Console(width=200), 0
    table = Table("", "mistake", "in", "where", "named", "what is said")
    for number in numbers:
        mistake = MISTAKES[number]
        where, told = said(mistake)
        right += where == mistake.where
        of = f"{mistake.kind}{', gradient' if mistake.gradient else ''}{', padded' if mistake.padded else ''}"
        mark = "" if where == mistake.where else "[bold red]"
        table.add_row(
            str(number), mistake.name, of, mistake.where or "the model", f"{mark}{where or 'the model'}", told[:90]
        )
    console.print(table)
    console.print(f"{table.row_count} mistakes: {right} at the right submodule")
    return 0 if right == table.row_count else 1


if __name__ == "__main__":
    sys.exit(main([int(x) for x in sys.argv[1:]] or range(len(MISTAKES))))
