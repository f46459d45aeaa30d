"""A single module of a library, called with arrays: what it is made of and gives, and its file."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch

from parity_tests.peers import Arrays, Found

Draw = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Made:
    """What a module holds, by the keys of its file; the arguments of our layer that mean its own; and its output."""

    state: Arrays
    inputs: Arrays
    output: np.ndarray


@dataclass(frozen=True)
class Module:
    """A module with drawn weights in float64.

    Attributes:
        library: its name on the package index.
        layout: whose names its file has.
        make: runs it. It gets a function from a shape to numbers.
        fields: what `load` is told, as the file does not say it.
    """

    library: str
    layout: str
    make: Callable[[Draw], Made]
    fields: Mapping[str, Any] = field(default_factory=dict)

    def found(self, folder: Path) -> Iterator[Found]:
        """The one layer."""
        rng, file = np.random.default_rng(5), folder / "module.safetensors"
        made = self.make(lambda *shape: 0.4 * rng.normal(size=shape))
        safetensors.numpy.save_file({key: np.ascontiguousarray(x) for key, x in made.state.items()}, file)
        yield Found(file, self.loader(file), {}, made.inputs, made.output)

    def loader(self, file: Path) -> Callable[[Any], Any]:
        return lambda package: package.load(file, layout=self.layout, **self.fields)


def drawn(module: torch.nn.Module, draw: Draw) -> Arrays:
    """Draw every parameter of a module in place, and give them by their keys."""
    with torch.no_grad():
        for param in module.parameters():
            param.copy_(torch.from_numpy(draw(*param.shape)))
    return {key: x.numpy() for key, x in module.state_dict().items()}


def three(draw: Draw, query: int, key: int | None = None, value: int | None = None) -> Arrays:
    """Queries of 5 positions and keys and values of 7, for two sequences."""
    return {"query": draw(2, 5, query), "key": draw(2, 7, key or query), "value": draw(2, 7, value or key or query)}


def seen(heads: bool = False) -> np.ndarray:
    """A mask, True where a query may attend, with a key for each query: `b t s`, or with three heads `b h t s`."""
    mask = np.random.default_rng(7).random((2, 3, 5, 7) if heads else (2, 5, 7)) < 0.6
    mask[..., 2] = True
    return mask
