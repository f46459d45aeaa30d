"""What the three programs share: sizes, text, batches and the first weights."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import attn_np

Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Config:
    """Sizes of the model and of its training.

    Attributes:
        width: numbers per character, between the parts of the model.
        num_heads: attention heads.
        num_blocks: blocks, each of attention and a small network.
        hidden: width of the small network in a block.
        length: characters that a text in training has.
        batch: texts per step.
        steps: steps of training.
        rate: how far Adam moves a weight.
        adam_eps: what Adam adds to the root of the squares. It is larger than usual: with 1e-8 a gradient that is
            nothing but rounding would move its weight as far as any other, in a direction of each framework's own.
        norm_eps: what the norms add to the variance.
    """

    width: int = 48
    num_heads: int = 4
    num_blocks: int = 2
    hidden: int = 192
    length: int = 48
    batch: int = 16
    steps: int = 200
    rate: float = 3e-3
    adam_eps: float = 1e-5
    norm_eps: float = 1e-5

    def attention(self) -> dict[str, Any]:
        """Fields of the attention layers, the library's `rotary`."""
        return {"d_model": self.width, "num_heads": self.num_heads, "causal": True, "use_bias": False}


# The text -------------------------------------------------------------------------------------------------------------

LETTERS = " .abcdefghijklmnopqrstuvwxyz"


def text(rng: np.random.Generator, sentences: int) -> str:
    """Sentences of a small grammar. The verb agrees with the first noun, and what is eaten is food."""
    one, many = ("a cat", "the dog", "an old man"), ("two cats", "the dogs", "some men")
    verbs = {
        "eat": ("bread", "an apple", "soup"),
        "see": ("a bird", "the moon", "a house"),
        "make": ("noise", "a garden", "soup"),
    }
    made = []
    for plural, subject, chosen, thing in rng.integers((0, 0, 0, 0), (2, 3, 3, 3), size=(sentences, 4)):
        verb, things = list(verbs.items())[chosen]
        made.append(
            f"{many[subject]} {verb} {things[thing]}. " if plural else f"{one[subject]} {verb}s {things[thing]}. "
        )
    return "".join(made)


def encode(characters: str) -> np.ndarray:
    """The number of each character."""
    return np.array([LETTERS.index(c) for c in characters])


def decode(tokens: np.ndarray) -> str:
    """The characters of numbers."""
    return "".join(LETTERS[i] for i in tokens)


def batches(config: Config) -> np.ndarray:
    """All batches of a training, `step batch length + 1`: a text and, one further on, what comes next."""
    rng = np.random.default_rng(1)
    corpus = encode(text(rng, 2000))
    starts = rng.integers(len(corpus) - config.length, size=(config.steps, config.batch))
    return corpus[starts[..., None] + np.arange(config.length + 1)]


# The weights ----------------------------------------------------------------------------------------------------------


def first_weights(config: Config) -> Weights:
    """Weights to begin with, by names that the three programs know. A matrix is [in, out]."""
    rng, width = np.random.default_rng(0), config.width

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.normal(size=(rows, columns)) / np.sqrt(rows)).astype("float32")

    weights = {"embedding.weight": matrix(len(LETTERS), width), "out.weight": matrix(width, len(LETTERS))}
    for i in range(config.num_blocks):
        attention = attn_np.build("rotary", seed=i, **config.attention()).params()
        weights |= {f"blocks.{i}.attention.{name}": w for name, w in attention.items()}
        weights |= {f"blocks.{i}.up.weight": matrix(width, config.hidden), f"blocks.{i}.up.bias": zeros(config.hidden)}
        weights |= {f"blocks.{i}.down.weight": matrix(config.hidden, width), f"blocks.{i}.down.bias": zeros(width)}
    for norm in ["norm", *(f"blocks.{i}.norm{n}" for i in range(config.num_blocks) for n in (1, 2))]:
        weights |= {f"{norm}.weight": zeros(width) + 1, f"{norm}.bias": zeros(width)}
    return weights


def zeros(width: int) -> np.ndarray:
    return np.zeros(width, "float32")
