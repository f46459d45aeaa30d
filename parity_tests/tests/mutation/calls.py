"""What the checks share: claims, layers of a copy with random inputs, and the calls that are judged."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np

from attn_np import contract
from attn_np.contract import Config
from parity_tests.bounds.precision import precision_of
from parity_tests.judge.candidates import leaves, numpy_layer
from parity_tests.judge.cases import CALLS, Case, Drawn, draw, given
from parity_tests.judge.judging import reference
from parity_tests.tests.inputs import Arrays, random_inputs, same
from parity_tests.tests.laws import Asked, alone, attends_to_itself
from parity_tests.tests.laws import refuses as refuses
from parity_tests.tests.mutation.sources import module_of, plain

Labelled = tuple[str, Config]  # a layer by its name, such as "mha/cross", and its config
PADDED = ", padded"
SMALL = {"t": 4, "s": 6}  # where lengths do not matter, short ones: scans take their time

# Claims ---------------------------------------------------------------------------------------------------------------


class Caught(Exception):
    """A promise is broken; the text says which."""


def claim(holds: Any, words: str) -> None:
    if not holds:
        raise Caught(words)


def claim_same(got: Mapping[str, Any], want: Mapping[str, Any], words: str) -> None:
    claim(list(got) == list(want), f"{words}: {list(got)}, not {list(want)}")
    for name, x in got.items():
        claim(same(x, want[name]), f"{words}: {name}")


# Layers and calls -----------------------------------------------------------------------------------------------------


@cache
def layers(variants: tuple[str, ...]) -> tuple[Labelled, ...]:
    """Every example of some variants, and of the layers inside that are no variant two of each class."""
    found = {f"{v}/{e}": c for v in variants for e, c in contract.examples(v).items()}
    inner: dict[str, Labelled] = {}
    for name, config in found.items():
        for part, child in config.children().items():
            if isinstance(child, Config) and child.class_name not in contract.variant_by_class_name():
                inner[f"{child.class_name}, dropout {getattr(child, 'dropout', 0) > 0}"] = f"{name}.{part}", child
    return *found.items(), *inner.values()


@cache
def chief(variants: tuple[str, ...]) -> tuple[Labelled, ...]:
    """The last layer of each class: examples grow in what they ask for."""
    return tuple({config.class_name: (name, config) for name, config in layers(variants)}.values())


def case_of(layer: Labelled, call: str, dtype: str = "float64") -> Case:
    name, config = layer
    return Case(config.variant, name, call, dtype, given=config)


class Parts:
    """Everything that the shared modules of a copy define, by name, whichever file it stands in; kernels aside."""

    def __init__(self, alias: str) -> None:
        self._modules = [import_module(f"{alias}.{module_of(file)}") for file in plain()]

    def __getattr__(self, name: str) -> Any:
        found = [module for module in self._modules if name in vars(module)]
        if not found:
            raise AttributeError(f"mutants: expected {name!r} in a shared file, got none; mend the check")
        own = [module for module in found if getattr(vars(module)[name], "__module__", "") == module.__name__]
        dialect = [module for module in found if module.__name__.endswith(".ops")]  # of names that NumPy defines
        return getattr((own or dialect or found)[0], name)


def made(alias: str, layer: Labelled, call: str = "full", dtype: str = "float64") -> tuple[Any, Arrays]:
    """The copy's layer in evaluation mode, and random inputs for it."""
    drawn = drawn_for(layer, call, dtype)
    return numpy_layer(case_of(layer, call, dtype), drawn.params, alias), dict(drawn.inputs)


@cache
def drawn_for(layer: Labelled, call: str, dtype: str = "float64") -> Drawn:
    return draw(case_of(layer, call, dtype))


def built(alias: str, layer: Labelled, **options: Any) -> Any:
    """A layer by its constructor, as users call it."""
    config = layer[1]
    return getattr(import_module(f"{alias}.{config.variant}"), config.class_name)(config, **options)


def results(layer: Any, inputs: Arrays, **options: Any) -> Arrays:
    return leaves(layer(**inputs, **options))


def gradients(layer: Any, inputs: Arrays, dy: np.ndarray | None = None) -> Arrays:
    """Of every input and parameter, from a random gradient of y or the one given."""
    tape: dict[str, Any] = {}
    y = leaves(layer(**inputs, tape=tape))["y"]
    grads = layer.vjp(tape, np.cos(np.arange(y.size)).reshape(y.shape).astype(y.dtype) if dy is None else dy)
    return {f"d{name}": g for name, g in (grads.inputs | grads.params).items()}


def asked(layer: Any) -> Asked:
    """A layer of a copy, to ask a law of."""

    def trace(inputs: Arrays, **options: Any) -> tuple[Arrays, Arrays]:
        tape: Arrays = {}
        return results(layer, inputs, tape=tape, **options), tape

    return Asked(layer.config, partial(results, layer), partial(gradients, layer), trace, layer.params)


def kinds(config: Config, *wanted: str) -> list[str]:
    return [name for name, arg in config.arguments().items() if arg.kind in wanted]


# Judged calls ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Scene:
    """One judged call: its case and everything drawn for it; `basic` for the calls of every layer."""

    name: str
    case: Case
    drawn: Drawn
    basic: bool

    @cache  # noqa: B019 - the scenes live as long as the process
    def expected(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return reference(self.case, self.drawn, {}, precision_of(self.case.dtype))


@cache
def scenes(variants: tuple[str, ...]) -> tuple[Scene, ...]:
    """Every call of every layer in float64; arguments left out one by one, broadcast, few positions; 16-bit types."""
    found: dict[tuple[Any, ...], Scene] = {}

    def add(layer: Labelled, call: str, what: str, inputs: Arrays, dtype: str = "float64") -> None:
        drawn = drawn_for(layer, call, dtype)
        key = layer[0], dtype, what == PADDED, *((name, x.shape) for name, x in inputs.items())
        name, basic = f"{layer[0]}, {call}{what}, {dtype}", what in ("", PADDED) and dtype in ("float64", "bfloat16")
        found.setdefault(key, Scene(name, case_of(layer, call, dtype), replace(drawn, inputs=inputs), basic))

    for layer in layers(variants):
        for call in CALLS:
            add(layer, call, "", dict(drawn_for(layer, call).inputs))
        add(layer, "full", "", dict(drawn_for(layer, "full", "bfloat16").inputs), "bfloat16")
        if attends_to_itself(layer[1]):
            plain = dict(drawn_for(layer, "plain").inputs)
            add(layer, "plain", PADDED, plain | {"mask": alone(layer[1], plain["query"].shape[1])})
    for layer in chief(variants):
        for dtype in ("float32", "float16"):
            add(layer, "full", "", dict(drawn_for(layer, "full", dtype).inputs), dtype)
        config = layer[1]
        full, plain = random_inputs(config, config.arguments(), **SMALL), given(config, "plain")
        for name in (n for n in full if n not in plain):
            add(layer, "full", f" without {name}", random_inputs(config, set(full) - {name}, **SMALL))
            add(layer, "full", f" with {name} alone", random_inputs(config, {*plain, name}, **SMALL))
        for what, inputs in broadcast(config, full):
            add(layer, "full", what, inputs)
        for letter in "bts":
            if letter not in config.sizes() and any(letter in a.axes.split() for a in config.arguments().values()):
                add(layer, "full", f", {letter} = 1", random_inputs(config, full, **SMALL | {letter: 1}))
    return tuple(found.values())


def broadcast(config: Config, inputs: Arrays) -> Iterator[tuple[str, Arrays]]:
    """The inputs with masks and biases that do not vary along one axis, and of a lower rank."""
    for name in kinds(config, "mask", "keep", "marks", "bias"):
        x = inputs[name]
        for i in range(x.ndim if x.size else 0):
            one = np.take(x, [0], axis=i)
            yield f", {name} the same along axis {i}", inputs | {name: one}
        if x.size:
            yield f", {name} of rank 1", inputs | {name: x.reshape(-1, x.shape[-1])[0]}
