"""What a layer of a `config.json` is, by what the model's own library says: where a field is left out, and of every
model that is held against the library.

Both are recorded: `library_defaults.json` holds the values of the library's own fields; `library_configs.json` the
layers whose numbers are the library's, and what they become without each of their fields. `make peers` holds them
against the library, and `attn-parity peers --record` records them again.
"""

import json
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from attn_np.contract import Config
from attn_np.weights import WeightFileError, layouts
from attn_np.weights._foreign_config import table_name_and_config
from attn_np.weights._layer_prefixes import find_part
from attn_np.weights._pretrained import layout_of_model_type
from attn_np.weights.layouts._hf_config import HFConfig
from parity_tests import peers

FILE = Path(__file__).with_name("library_defaults.json")
DEFAULTS: dict[str, dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
CONFIGS = Path(__file__).with_name("library_configs.json")
RECORDED: dict[str, dict[str, Any]] = json.loads(CONFIGS.read_text("utf-8"))
LAYERS = (0, 5)
COUNTS = ("n_layer", "encoder_layers", "num_hidden_layers")
# Fields without which the library's default model has an attention that is none of ours.
NEEDED = {"deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}}


def described(model_type: str, fields: dict[str, Any], layer: int, part: str | None = None) -> Any:
    """Our config of a layer, and the fields that were read for it; or the words of the refusal."""
    family, hf = layouts.get(layout_of_model_type()[model_type]), HFConfig("config.json", fields)
    part = part or (None if isinstance(family.prefixes, tuple) else next(iter(family.prefixes)))
    try:
        return table_name_and_config(hf, family, layer, find_part(family, part)), hf._read & set(fields)
    except WeightFileError as error:
        return str(error), set()


# Layers that are ours, where others are recurrences.
OURS = {"minimax": {5: 4}, "recurrent_gemma": {0: 2}}


def layer_of(model_type: str, fields: dict[str, Any], layer: int) -> int:
    """The layer, or the last one, or the next that is ours; of a model in stages, of the first."""
    layer = OURS.get(model_type, {}).get(layer, layer)
    counts = [fields[name] for name in COUNTS if fields.get(name)] + fields.get("depths", [])[:1]
    return min([layer, *(count - 1 for count in counts)])


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("model_type", DEFAULTS)
def test_absent_fields_have_the_defaults_of_the_library(model_type: str, layer: int) -> None:
    """Field by field: without it, and with the value that the library's own config has, a layer is the same."""
    fields = DEFAULTS[model_type]
    layer = layer_of(model_type, fields, layer)
    whole, read = described(model_type, fields, layer)
    assert read, whole
    wrong = {}
    for name in sorted(read):
        found, _ = described(model_type, {key: value for key, value in fields.items() if key != name}, layer)
        if found != whole and not isinstance(found, str):
            wrong[name] = fields[name], found
    assert not wrong


def less(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """The fields without one, which may be within an object: `rope_parameters.factor`."""
    first, _, rest = name.partition(".")
    if rest:
        return fields | {first: less(fields[first], rest)}
    return {key: value for key, value in fields.items() if key != first}


def in_words(config: Config) -> dict[str, Any]:
    """A config as it stands in a file of JSON."""
    return json.loads(json.dumps({"variant": config.variant} | config.as_dict()))


@pytest.mark.parametrize("model", RECORDED)
def test_a_model_that_is_held_against_the_library_has_these_layers(model: str) -> None:
    """Those whose numbers were the library's."""
    recorded = RECORDED[model]
    for layer, want in recorded["layers"].items():
        found, _ = described(recorded["fields"]["model_type"], recorded["fields"], int(layer), recorded["part"])
        assert in_words(found[1]) == want


@pytest.mark.parametrize("model", RECORDED)
def test_such_a_model_without_a_field_is_what_the_library_makes_of_it(model: str) -> None:
    """The library's default may depend on the other fields. What we need is refused; None stands where that must be."""
    recorded, wrong = RECORDED[model], {}
    layer, whole = max(recorded["layers"].items(), key=lambda item: int(item[0]))
    for name, changes in recorded["without"].items():
        fields = less(recorded["fields"], name)
        found, _ = described(recorded["fields"]["model_type"], fields, int(layer), recorded["part"])
        if not isinstance(found, str) and (
            changes is None or in_words(found[1]) != ({} if "variant" in changes else whole) | changes
        ):
            wrong[name] = found
    assert not wrong


def of_the_library(model_type: str) -> dict[str, Any]:
    """The fields of the library's own config that we read, and the numbers of layers."""
    transformers = pytest.importorskip("transformers")
    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {model_type}")
    fields = transformers.CONFIG_MAPPING[model_type]().to_dict() | NEEDED.get(model_type, {})
    read = set().union(*(described(model_type, fields, layer_of(model_type, fields, layer))[1] for layer in LAYERS))
    read |= {*COUNTS, "max_position_embeddings"}
    return json.loads(json.dumps({name: x for name, x in sorted(fields.items()) if name in read}))


def models() -> dict[str, peers.Model]:
    """Every model that is held against the library."""
    return {f"{family}, {name}": x for (family, name), x in peers.peers().items() if isinstance(x, peers.Model)}


def of_a_model(model: peers.Model) -> dict[str, Any]:
    """The fields of a model that we read, and its layers here."""
    pytest.importorskip("transformers")
    stated, layers, every = model.stated(), {}, {"model_type"}
    for layer in model.layers:
        found, read = described(stated["model_type"], stated, layer, model.part)
        layers[str(layer)], every = in_words(found[1]), every | read
    last, without = max(model.layers), {}
    for name in [name for name in names_of(stated) if name.partition(".")[0] in every - {"model_type"}]:
        completed = completed_by_the_library(model, less(stated, name))
        if completed is None:
            continue
        found, _ = described(stated["model_type"], completed, last, model.part)
        ours, read = described(stated["model_type"], less(stated, name), last, model.part)
        if not isinstance(found, str):
            words, whole = in_words(found[1]), layers[str(last)]
            whole = whole if words["variant"] == whole["variant"] else {}
            without[name] = {k: x for k, x in words.items() if whole.get(k, ...) != x}
            every |= read
        elif isinstance(ours, str):
            without[name] = None
    fields = json.loads(json.dumps({name: x for name, x in sorted(stated.items()) if name in every}))
    return {"part": model.part, "layers": layers, "fields": fields, "without": without}


def names_of(fields: dict[str, Any]) -> list[str]:
    """The names of fields, those of objects among them too."""
    inner = [f"{name}.{key}" for name, x in fields.items() if isinstance(x, dict) for key in names_of(x)]
    return [*fields, *inner]


def completed_by_the_library(model: peers.Model, fields: dict[str, Any]) -> dict[str, Any] | None:
    """The fields of a file as the library reads it; None where it cannot."""
    import transformers

    kind = getattr(transformers, model.name).config_class
    try:
        return kind.from_dict(json.loads(json.dumps(fields))).to_dict()
    except Exception:
        return None


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("model_type", sorted(layout_of_model_type()))
def test_what_is_recorded_is_the_librarys(model_type: str) -> None:
    found, family = of_the_library(model_type), layout_of_model_type()[model_type]
    assert model_type in DEFAULTS, f"run attn-parity peers --families {family} --record"
    assert found == DEFAULTS[model_type]


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("model", models())
def test_what_is_recorded_of_a_model_is_what_is_held_against_the_library(model: str) -> None:
    """By `test_peers`, which compares the numbers of these layers."""
    assert model in RECORDED, f"run attn-parity peers --families {model.partition(',')[0]} --record"
    assert of_a_model(models()[model]) == RECORDED[model]


def record(families: Collection[str]) -> None:
    """Write what the libraries of some families say; what is recorded of others stays."""
    known = layout_of_model_type()
    defaults = {name: x for name, x in DEFAULTS.items() if name in known}
    for name in [name for name, family in known.items() if family in families]:
        with suppress(pytest.skip.Exception):  # a model that the installed version lacks
            defaults[name] = of_the_library(name)
    FILE.write_text(json.dumps(dict(sorted(defaults.items())), indent=1) + "\n", "utf-8")
    kept = {name: x for name, x in RECORDED.items() if name in models()}
    held = {name: of_a_model(x) for name, x in models().items() if name.partition(", ")[0] in families}
    held = dict(sorted((kept | held).items()))
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(x)}" for name, x in held.items())  # a line for each model
    CONFIGS.write_text("{\n" + lines + "\n}\n", "utf-8")
