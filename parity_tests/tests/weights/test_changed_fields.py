"""What a layer of a `config.json` becomes when one field is changed, left null or out, or stands beside the others.

Of every model whose layers are held against the library, each field that its reader asks for is given other values: a
flag the other way, a number halved, doubled, 0 and 1, a list reversed. `changed_fields.json` holds what each makes of
the layer. A change of it is to be looked at, and `python -m parity_tests.tests.weights.test_changed_fields` records it
again.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from attn_np.weights import WeightFileError, layouts
from attn_np.weights._foreign_config import table_name_and_config
from attn_np.weights._layer_prefixes import find_part
from attn_np.weights._pretrained import layout_of_model_type
from attn_np.weights.layouts._hf_config import HFConfig
from parity_tests.peers._recorded import PART
from parity_tests.tests.weights.test_absent_fields import RECORDED, in_words, less

FILE = Path(__file__).with_name("changed_fields.json")
CHANGED: dict[str, dict[str, dict[str, Any]]] = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
Fields = dict[str, Any]


def read(fields: Fields, layer: int, part: str | None) -> tuple[Fields | None, set[str]]:
    """Our config of a layer, None where it is refused; and every field that was asked for."""
    part = part or PART.get(fields["model_type"])
    family, hf = layouts.get(layout_of_model_type()[fields["model_type"]]), HFConfig("config.json", fields)
    part = part or (None if isinstance(family.prefixes, tuple) else next(iter(family.prefixes)))
    try:
        _, config = table_name_and_config(hf, family, layer, find_part(family, part))
    except WeightFileError:
        config = None
    inner = {f"{name}.{key}" for name, x in hf._nested.items() for key in x._read}
    return None if config is None else in_words(config), hf._read | inner


def others(value: Any, layer: int) -> list[Any]:
    """Other values in place of one; for none, those that a field may have. A list that ends before the layer is one."""
    if value is None:
        return [None, 0.5, 2, True, False]
    if isinstance(value, bool):
        return [not value, None]
    if isinstance(value, int | float):
        return [x for x in (value / 2, value * 2, value // 2, 0, 1, 0.5, None) if x != value]
    if isinstance(value, list):
        words = ["|".join(value).upper()] if all(isinstance(x, str) for x in value) else []
        return [value[::-1], value + value, value[:1], value[:layer], None, *words]
    return [None]


def with_field(fields: Fields, name: str, value: Any) -> Fields:
    first, _, rest = name.partition(".")
    return fields | {first: with_field(fields.get(first) or {}, rest, value) if rest else value}


def value_of(fields: Fields, name: str) -> Any:
    first, _, rest = name.partition(".")
    return value_of(fields.get(first) or {}, rest) if rest else fields.get(name)


def variations(model: str) -> dict[str, dict[str, Any]]:
    """By field and value, what it changes in the layer; None where it is refused. Without what changes nothing.

    A field that is left out stands there as "absent" where that is not the same as null: it may have a default.
    """
    recorded = RECORDED[model]
    fields, layer = recorded["fields"], max(map(int, recorded["layers"]))
    base, names = read(fields, layer, recorded["part"])
    found: dict[str, dict[str, Any]] = {}
    for name in sorted(names - {"model_type"}):
        value = value_of(fields, name)
        if isinstance(value, dict):
            continue
        variants = {json.dumps(other): with_field(fields, name, other) for other in others(value, layer)}
        if value is not None:
            variants["absent"] = less(fields, name)
        for words, variant in variants.items():
            config, _ = read(variant, layer, recorded["part"])
            changes = config and {key: x for key, x in config.items() if (base or {}).get(key, ...) != x}
            if changes != (found.get(name, {}).get("null", {}) if words == "absent" else {}):
                found.setdefault(name, {})[words] = changes
    return found


def test_every_recorded_model_is_asked() -> None:
    """One that is missing here would have no test below, and nothing would fail."""
    missing = sorted(set(RECORDED) - set(CHANGED))
    assert not missing, f"{missing}: run python -m parity_tests.tests.weights.test_changed_fields"
    assert set(CHANGED) == set(RECORDED)


@pytest.mark.parametrize("model", CHANGED)
def test_a_field_changes_what_it_did(model: str) -> None:
    assert variations(model) == CHANGED[model]


if __name__ == "__main__":
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(variations(name))}" for name in RECORDED)
    FILE.write_text("{\n" + lines + "\n}\n", "utf-8")
