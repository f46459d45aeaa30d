"""Other libraries' attention beside ours: their modules with random weights, their inputs and outputs, their files.

One module here for each family, named as its layout, with `PEERS`: what to build, by a short name; and, where the
library can do what no layer here can, with `REFUSED`: one of those models, the fields of its `config.json` that say so,
and words of the refusal. `test_peers.py` finds them. Nothing is downloaded.
"""

import importlib
import os
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from attn_np.contract._decode import reads_cache
from parity_tests.ports.modules.in_float64 import InFloat64

# Read when the libraries are imported: a test that asked the network for a file would fail, and Keras is one of three.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("KERAS_BACKEND", "torch")

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Way:
    """Another call of the same layer.

    Attributes:
        name: what is done otherwise.
        inputs: the arguments of our layer's call.
        output: what the library computed.
        pieces: lengths of the pieces in which the layer gets the sequence, with a cache; none for one call.
        rows: positions that are compared, `b t`; all without it.
        fields: fields of the Config that the call needs.
    """

    name: str
    inputs: Arrays
    output: np.ndarray
    pieces: tuple[int, ...] = ()
    rows: np.ndarray | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """What a library computed with weights of its own, and how those are read here.

    Attributes:
        file: its weights, or the index of them.
        load: `load_pretrained` or `load` with all arguments but the package, and so a layer of that package.
        save: arguments of `save` that write the layer as it was read; None if its fields are the caller's.
        inputs: the arguments of our layer's call, by name, that mean what the library was given.
        output: what it computed.
        ways: other calls, of which NumPy and PyTorch are asked.
    """

    file: Path
    load: Callable[..., Any]
    save: Mapping[str, Any] | None
    inputs: Arrays
    output: np.ndarray
    ways: tuple[Way, ...] = ()


class Peer(Protocol):
    """Attention of a library: its name on the package index, and what it computes."""

    @property
    def library(self) -> str: ...

    def found(self, folder: Path) -> Iterator[Found]: ...


def tokens(rng: np.random.Generator) -> dict[str, torch.Tensor]:
    """Token numbers of two sentences, the second of which is shorter and filled up."""
    mask = torch.ones(2, 7, dtype=torch.int64)
    mask[1, 5:] = 0
    return {"input_ids": torch.from_numpy(rng.integers(1, 11, (2, 7))), "attention_mask": mask}


def hidden_keys(given: Mapping[str, torch.Tensor], call: Mapping[str, Any]) -> Arrays:
    """Our `mask` for self-attention: all that the filling hides. Causality and windows are our layer's own."""
    mask = given.get("attention_mask")
    return {} if mask is None else {"mask": mask.numpy()[:, None, None, :] == 1}


@dataclass(frozen=True)
class Model:
    """A model of `transformers`, run as a whole: a layer gets the inputs, masks and positions that the model makes.

    Attributes:
        name: its class.
        config: fields of the class's config: small, with sizes that differ.
        takes: the module that gets the layer's inputs; `{layer}` is the number.
        gives: the module whose output is the attention's; the same by default.
        layers: which layers are compared: one of each kind.
        part: which block of attention.
        given: what the model is called with.
        meaning: from what the model was called with and the keywords of the module's call: our `mask`, or what else our
            layer is called with beside the query.
        key: the keyword with which a module gets what its keys are made of, where that is not the query.
        shards: the size of a file, to have several.
        prepare: sets what must not be drawn, once all parameters are.
        attention: which of the library's implementations computes it.
    """

    name: str
    config: Mapping[str, Any]
    takes: str
    gives: str | None = None
    layers: tuple[int, ...] = (0, 1)
    part: str | None = None
    given: Callable[[np.random.Generator], dict[str, torch.Tensor]] = tokens
    meaning: Callable[[Mapping[str, torch.Tensor], Mapping[str, Any]], Arrays] = hidden_keys
    key: str | None = None
    shards: str = "1GB"
    prepare: Callable[[Any], None] = lambda model: None
    attention: str = "eager"
    fields: Mapping[str, Any] = field(default_factory=dict)
    library = "transformers"

    def found(self, folder: Path) -> Iterator[Found]:
        """Each layer that is compared."""
        model, given = self.model(), self.given(np.random.default_rng(5))
        model.save_pretrained(folder, max_shard_size=self.shards)
        calls = self.calls(model, given)
        for layer in self.layers:
            positional, keywords, output = calls[layer]
            query = keywords["hidden_states"] if "hidden_states" in keywords else positional[0]
            inputs = {"query": query.numpy()} | self.meaning(given, keywords)
            if self.key is not None:
                inputs["key"] = keywords[self.key].numpy()
            yield Found(
                weight_file(folder), self.loader(folder, layer), {"layer": layer, "part": self.part}, inputs, output
            )

    def loader(self, folder: Path, layer: int) -> Callable[..., Any]:
        return lambda package, **more: package.load_pretrained(folder, layer, part=self.part, **self.fields, **more)

    def kind(self) -> Any:
        """The class of the model."""
        return getattr(importlib.import_module("transformers"), self.name)

    def type_name(self) -> str:
        """The name of the model's type."""
        return str(self.kind().config_class.model_type)

    def settings(self) -> Any:
        """The library's config."""
        return self.kind().config_class(**self.config)

    def model(self) -> Any:
        """The model, every number of it drawn: norms and biases as well, which would start at 1 and 0."""
        transformers = importlib.import_module("transformers")
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        with InFloat64(), torch.no_grad():
            model = self.kind()._from_config(self.settings(), attn_implementation=self.attention)
            draw = torch.Generator().manual_seed(3)
            for param in model.parameters():
                param.copy_(torch.randn(param.shape, generator=draw) * 0.4)
            self.prepare(model)
        return model.eval()

    def stated(self) -> dict[str, Any]:
        """What the model's `config.json` states."""
        return self.settings().to_dict()

    def calls(self, model: Any, given: Mapping[str, torch.Tensor]) -> dict[int, tuple[Any, Any, np.ndarray]]:
        """What each layer's attention got and gave while the model ran."""
        got: dict[int, tuple[Any, Any]] = {}
        gave: dict[int, np.ndarray] = {}
        for layer in self.layers:
            taker = model.get_submodule(self.takes.format(layer=layer))
            giver = model.get_submodule((self.gives or self.takes).format(layer=layer))

            def before(_: Any, args: Any, kwargs: Any, layer: int = layer) -> None:
                got[layer] = (args, kwargs)

            def after(_: Any, args: Any, output: Any, layer: int = layer) -> None:
                gave[layer] = (output[0] if isinstance(output, tuple) else output).numpy()

            taker.register_forward_pre_hook(before, with_kwargs=True)
            giver.register_forward_hook(after)
        with InFloat64(), torch.no_grad():
            model(**given)
        return {layer: (*got[layer], gave[layer]) for layer in self.layers}


def weight_file(folder: Path) -> Path:
    """The index of a folder, or its one file."""
    return next(
        path for name in ("model.safetensors.index.json", "model.safetensors") if (path := folder / name).exists()
    )


@cache
def modules() -> tuple[str, ...]:
    """The families that have a module here."""
    found = (m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    return tuple(sorted(name for name in found if name not in ("foreign", "sweep")))


@cache
def names() -> tuple[str, ...]:
    """The families that are compared."""
    return tuple(sorted({family for family, _ in peers()}))


def peers() -> dict[tuple[str, str], Peer]:
    """Everything that is compared, by family and name."""
    found = {name: importlib.import_module(f"{__name__}.{name}").PEERS for name in modules()}
    own = {(family, name): peer for family, those in found.items() for name, peer in those.items()}
    return own | importlib.import_module(f"{__name__}._derived").derived()


def asked_by_default(family: str, name: str) -> bool:
    """Whether a model is compared each time: every one of a module here, and each third of those of a type alone."""
    alone = list(importlib.import_module(f"{__name__}._derived").derived())
    return (family, name) not in alone or alone.index((family, name)) % 3 == 0


def refused() -> dict[tuple[str, str], tuple[Model, dict[str, Any], str]]:
    """Every model that no layer here can be, by family and reason."""
    found = {name: getattr(importlib.import_module(f"{__name__}.{name}"), "REFUSED", {}) for name in modules()}
    return {(family, why): case for family, those in found.items() for why, case in those.items()}


def shared_keys(config: Any, keywords: Mapping[str, Any]) -> Arrays:
    """The keys and values that a layer shares with an earlier one of its type, if it does."""
    if not reads_cache(config):
        return {}
    kind = "full_attention" if getattr(config, "window", None) is None else "sliding_attention"
    return {
        f"shared_{n}": x.numpy().swapaxes(1, 2) for n, x in zip("kv", keywords["shared_kv_states"][kind], strict=True)
    }
