"""The configs that a wrong implementation may have: one field off, at its default, halved, doubled, one more."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from functools import lru_cache
from re import split
from typing import Any

from attn_np.contract import Config
from attn_np.contract._base import is_integer, is_number
from attn_np.contract._rotary import SCALING_FIELDS

UNKNOWN = "?"  # is no word of any field


@dataclass(frozen=True)
class Alternative:
    """A config that differs in one field.

    Attributes:
        name, value: the field and its other value.
        config: with this value; its parameters are those of the true config, or some of them.
    """

    name: str
    value: Any
    config: Config


@lru_cache(maxsize=64)
def alternatives(config: Config) -> tuple[Alternative, ...]:
    """Every config with one other value of a field that has another meaning, and whose parameters the weights fill.

    A config with parameters that the true one does not have, or of other shapes, is told apart by its weights.
    """
    shapes, meaning, known = config.shapes(), config.meaning(), words(config)
    found: dict[str, Alternative] = {}
    for entry in fields(config):
        for value in other_values(getattr(config, entry.name), default_of(entry), known.get(entry.name, ())):
            other = changed(config, {entry.name: value})
            if other is None or not other.shapes().items() <= shapes.items():
                continue
            # A scaling may turn the few pairs of a narrow head alike, and those of the model's own heads not.
            scales = entry.name in SCALING_FIELDS and getattr(config, entry.name) is not None
            if other.meaning() != meaning or (scales and "frequencies" in meaning):
                found.setdefault(
                    f"{entry.name} {value if scales else other.meaning()}", Alternative(entry.name, value, other)
                )
    return tuple(found.values())


def default_of(entry: Field[Any]) -> Any:
    """The default of a field; None where it has none."""
    return None if entry.default is MISSING else entry.default


def other_values(value: Any, default: Any, choices: tuple[Any, ...]) -> Iterator[Any]:
    """Off, the default, half, double and one more; of words and flags every other one, of a tuple in each entry."""
    if isinstance(value, bool) or isinstance(default, bool):
        yield from (x for x in (False, True, None) if x is not value)
        return
    yield from (x for x in dict.fromkeys((None, default, *choices)) if x != value)
    if isinstance(value, tuple):
        for i, entry in enumerate(value):
            before, after = value[:i], value[i + 1 :]
            yield from ((*before, other, *after) for other in other_values(entry, None, ()))
            yield (*before, *after)
    elif is_integer(value):
        yield from (x for x in dict.fromkeys((0, value // 2, 2 * value, value + 1)) if x not in (value, default))
    elif is_number(value):
        yield from (x for x in dict.fromkeys((0.0, value / 2, 2 * value, value + 1)) if x not in (value, default))


def changed(config: Config, values: Mapping[str, Any]) -> Config | None:
    """The config with other values; None where it cannot have them.

    Fields that the error names are left out in turn: those that only belong to the old value, such as the factor of a
    scaling that is off.
    """
    values = dict(values)
    for _ in fields(config):
        try:
            return replace(config, **values)
        except (ValueError, TypeError) as error:
            named = split(r"\W+", str(error))
        belonging = [
            entry
            for entry in fields(config)
            if entry.name in named
            and entry.name not in values
            and entry.default not in (MISSING, getattr(config, entry.name))
        ]
        if not belonging:
            return None
        values[belonging[0].name] = belonging[0].default
    return None


@lru_cache(maxsize=64)
def words(config: Config) -> dict[str, tuple[Any, ...]]:
    """The words that each field may be, as the config's own checks name them."""
    asked: dict[str, tuple[Any, ...]] = {}

    def ask(self: Config, name: str, choices: tuple[Any, ...], also: str = "") -> None:
        asked[name] = choices

    kind = type(config)
    asking = type(kind.__name__, (kind,), {"check_one_of": ask, "__module__": kind.__module__})
    values = {entry.name: getattr(config, entry.name) for entry in fields(config)}
    for entry in fields(config):
        if "str" in str(entry.type) and isinstance(values[entry.name], str | None):
            try:
                asking(**values | {entry.name: UNKNOWN})
            except (ValueError, TypeError, KeyError):  # what comes after the check need not bear an unknown word
                continue
    return asked
