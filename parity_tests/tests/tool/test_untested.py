"""A green verdict names what it does not tell apart: ports with a field off, at its default, halved, doubled, one more.

The ports are our own layers with another value in one field.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, replace
from inspect import Parameter, Signature
from typing import Any

import numpy as np
import pytest

from attn_np import contract
from attn_np.contract import Config
from parity_tests import ParityError, Verdict, assert_parity
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import precision_of
from parity_tests.judge.candidates import numpy_layer
from parity_tests.judge.cases import Case, draw
from parity_tests.judge.consequences import results_of
from parity_tests.judge.judging import reference
from parity_tests.ports import parity, plan
from parity_tests.ports.alternatives import changed, words
from parity_tests.ports.untested import held_by

D = {"d_model": 12, "num_heads": 3}
# By default one in so many ports is judged; with --everything each.
STRIDE = 23


def configs() -> Iterator[tuple[str, str, Config]]:
    """Every example, every variant with its defaults alone, and every preset."""
    for variant in contract.variants():
        for name, config in contract.examples(variant).items():
            yield variant, name, config
    for name in (*contract.variants(), *contract.presets()):
        variant = contract.presets()[name][0] if name in contract.presets() else name
        example = next(iter(contract.examples(variant).values()))
        needed = {n: D.get(n, getattr(example, n)) for n in example.required()}
        yield variant, f"{name} with defaults", contract.config(name, **needed)


def other_configs(config: Config) -> Iterator[tuple[str, Any, Config]]:
    """One field off, at its default, halved, doubled, one more; another word or flag; another entry of a tuple."""
    for entry in fields(config):
        value = getattr(config, entry.name)
        tried = [None, False, True, 0, *words(config).get(entry.name, ())]
        tried += [] if entry.default is MISSING else [entry.default]
        tried += around(value)
        if isinstance(value, tuple):
            tried += [(*value[:i], x, *value[i + 1 :]) for i in range(len(value)) for x in (None, *around(value[i]))]
        seen: list[Any] = [value]
        for other in tried:
            if any(other == x and type(other) is type(x) for x in seen):
                continue
            seen.append(other)
            made = changed(config, {entry.name: other})
            if made is not None and made.shapes().items() <= config.shapes().items():
                yield entry.name, other, made


def around(value: Any) -> list[Any]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return []
    return [value // 2 if isinstance(value, int) else value / 2, 2 * value, value + 1]


def layer_as_port(true: Config, other: Config, whole: bool) -> Callable[..., Any]:
    """Our layer with another config as a function; with the query alone, or all arguments."""

    takes = {n: x for n, x in true.arguments().items() if whole or not (x.optional or x.falls_back_to)}
    params = [Parameter("params", Parameter.POSITIONAL_OR_KEYWORD)] if true.shapes() else []
    for name, arg in takes.items():
        default = None if arg.optional or arg.falls_back_to else Parameter.empty
        params.append(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default))
    signature = Signature(sorted(params, key=lambda x: x.default is not Parameter.empty))

    def port(*args: Any, **named: Any) -> Any:
        given = {name: x for name, x in signature.bind(*args, **named).arguments.items() if x is not None}
        weights = given.pop("params", {})
        case = Case(
            other.variant, "", "", next(x.dtype.name for x in given.values() if x.dtype.kind == "f"), given=other
        )
        result = numpy_layer(case, {name: weights[name] for name in other.shapes()})(**given)
        return result[0] if isinstance(result, tuple) else result

    port.__signature__ = signature  # type: ignore[attr-defined]
    return port


@pytest.fixture
def without_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mistake is searched: only whether a port is refused counts."""
    for module in (parity, plan):
        explain = module.explain
        monkeypatch.setattr(module, "explain", lambda run, *_, explain=explain, **__: explain(run, causes=False))


def verdict_on(true: Config, other: Config, whole: bool) -> Verdict | None:
    """The verdict; None for a port that is refused, or that refuses the call."""
    try:
        return assert_parity(layer_as_port(true, other, whole), true.variant, true)
    except (ParityError, ValueError, TypeError):
        return None


CONFIGS = [pytest.param(config, id=f"{variant}-{name}") for variant, name, config in configs()]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.usefixtures("without_causes")
def test_a_port_with_another_field_fails_or_is_named(config: Config, request: pytest.FixtureRequest) -> None:
    everything = request.config.getoption("--everything")
    for name, value, other in other_configs(config):
        for whole in (False, True):
            if not everything and zlib.crc32(f"{config}{name}{value}{whole}".encode()) % STRIDE:
                continue
            if other.meaning() == config.meaning():
                continue
            verdict = verdict_on(config, other, whole)
            if verdict is None:
                continue
            named = {field.name: field.alike for field in verdict.untested}
            same = any(changed(config, {name: x}).meaning() == other.meaning() for x in named.get(name, ()))
            unplayed = name == "dropout" and not any("keep" in t.drawn.inputs for t in verdict.traces.values())
            assert same or unplayed, f"{name}={value!r}, query alone: {not whole}: {verdict}"
            assert unplayed or f"{name}={getattr(config, name)!r} from" in str(verdict)


@pytest.mark.parametrize("config", CONFIGS)
def test_configs_of_one_meaning_are_one_function(config: Config) -> None:
    """What a contract says means the same gives the same numbers, within bounds, or refuses a call."""
    others = [*(other for _, _, other in other_configs(config)), *written_out(config)]
    same = [other for other in dict.fromkeys(others) if other.meaning() == config.meaning()]
    for call, lengths in (("full", {}), ("plain", {"b": 1, "t": 37, "s": 37})) if same else ():
        case = Case(config.variant, "", call, "float64", given=config)
        drawn = draw(case, lengths=lengths)
        outputs, grads = reference(case, drawn, {}, precision_of("float64"))
        for other in same:
            try:
                moved = results_of(replace(case, given=other), held_by(other, drawn))
            except ValueError:  # a limit on positions
                continue
            for name, want in (outputs | grads).items():
                if isinstance(want, ErrArray):
                    assert not (np.abs(moved[name] - want.v) > 2 * want.b).any(), (name, call, other)


def written_out(config: Config) -> Iterator[Config]:
    """The config with one default, that its meaning knows, set by hand."""
    for name, value in {**config.meaning(), **config.sizes()}.items():
        if name in config.fields() and getattr(config, name) is None and value is not None:
            other = changed(config, {name: value})
            if other is not None and other != config:
                yield other
