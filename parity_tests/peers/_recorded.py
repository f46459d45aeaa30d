"""What the libraries say of their models' attention, as `attn-parity peers --record` writes it for the tests.

`library_defaults.json` holds the values of the library's own fields; `library_configs.json` the layers whose numbers
are the library's, and what they become without each of their fields.
"""

import json
from collections.abc import Collection
from dataclasses import MISSING
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

from attn_np import contract
from attn_np.contract import Config
from attn_np.weights import WeightFileError, layouts
from attn_np.weights._foreign_config import table_name_and_config
from attn_np.weights._layer_prefixes import find_part
from attn_np.weights._pretrained import layout_of_model_type
from attn_np.weights._text_models import TEXT_MODELS
from attn_np.weights.layouts._hf_config import HFConfig
from parity_tests import peers

FOLDER = Path(__file__).parents[1] / "tests" / "weights"
FILE = FOLDER / "library_defaults.json"
DEFAULTS: dict[str, dict[str, Any]] = json.loads(FILE.read_text("utf-8"))
CONFIGS = FOLDER / "library_configs.json"
AS_WRITTEN: dict[str, dict[str, Any]] = json.loads(CONFIGS.read_text("utf-8"))
LAYERS = (0, 5)
COUNTS = ("n_layer", "encoder_layers", "num_hidden_layers")
# Fields without which the library's default model has an attention that is none of ours.
NEEDED: dict[str, dict[str, Any]] = {
    "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "glm4_moe": {"head_dim": 128},
    "bamba": {"attn_layer_indices": [0, 5]},
    "big_bird": {"attention_type": "original_full"},
    "granitemoehybrid": {"layer_types": ["full_attention"] * 32},
}


def with_later_fields(layer: dict[str, Any]) -> dict[str, Any]:
    """A recorded layer with the defaults of fields that its variant has got since."""
    made = fields_of(contract.get(layer["variant"]).Config)
    return {field.name: field.default for field in made if field.default is not MISSING} | layer


def with_later_fields_of_all(model: dict[str, Any]) -> dict[str, Any]:
    """What is recorded of a model, with later fields in each of its layers."""
    layers = {number: with_later_fields(layer) for number, layer in model["layers"].items()}
    changes = model["without"].items()
    without = {name: with_later_fields(x) if x and "variant" in x else x for name, x in changes}
    return model | {"layers": layers, "without": without}


RECORDED = {name: with_later_fields_of_all(model) for name, model in AS_WRITTEN.items()}


def described(model_type: str, fields: dict[str, Any], layer: int, part: str | None = None) -> Any:
    """Our config of a layer, and the fields that were read for it; or the words of the refusal."""
    family = layouts.get(layout_of_model_type()[model_type])
    hf = HFConfig("config.json", {"model_type": model_type} | fields)
    part = part or PART.get(model_type) or (None if isinstance(family.prefixes, tuple) else next(iter(family.prefixes)))
    try:
        return table_name_and_config(hf, family, layer, find_part(family, part)), hf._read & set(fields)
    except WeightFileError as error:
        return str(error), set()


# Layers that are ours, where others are recurrences.
OURS = {
    "minimax": {5: 4},
    "recurrent_gemma": {0: 2},
    "jamba": {0: 4, 5: 12},
    "nemotron_h": {0: 2, 5: 2},
    "olmo_hybrid": {0: 3, 5: 7},
    "albert": {5: 0},
}
# The part of a type's layers that is described, where it lacks the family's first.
TOWERS = ("chinese_clip_vision_model", "clip_vision_model", "siglip2_vision_model", "siglip_vision_model")
PART = {"trocr": "decoder", **dict.fromkeys(TOWERS, "vision")}


def layer_of(model_type: str, fields: dict[str, Any], layer: int) -> int:
    """The layer, or the last one, or the next that is ours; of a model in stages, of the first."""
    layer = OURS.get(model_type, {}).get(layer, layer)
    counts = [fields[name] for name in COUNTS if fields.get(name)] + fields.get("depths", [])[:1]
    return min([layer, *(count - 1 for count in counts)])


def less(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """The fields without one, which may be within an object: `rope_parameters.factor`."""
    first, _, rest = name.partition(".")
    if rest:
        return fields | {first: less(fields[first], rest)}
    return {key: value for key, value in fields.items() if key != first}


def in_words(config: Config) -> dict[str, Any]:
    """A config as it stands in a file of JSON."""
    return json.loads(json.dumps({"variant": config.variant} | config.as_dict()))


def of_the_library(model_type: str) -> dict[str, Any] | None:
    """The fields of the library's own config that we read, and the numbers of layers; None of a model that it lacks."""
    import transformers

    if model_type not in transformers.CONFIG_MAPPING:
        return None
    fields = transformers.CONFIG_MAPPING[model_type]().to_dict() | NEEDED.get(model_type, {})
    read = set().union(*(described(model_type, fields, layer_of(model_type, fields, layer))[1] for layer in LAYERS))
    read |= {*COUNTS, "max_position_embeddings"}
    if model_type in layouts.get(layout_of_model_type()[model_type]).kin:
        read |= {"model_type"}
    return json.loads(json.dumps({name: x for name, x in sorted(fields.items()) if name in read}))


def models() -> dict[str, peers.Model]:
    """Every model that is held against the library."""
    found = {f"{family}, {name}": x for (family, name), x in peers.peers().items() if isinstance(x, peers.Model)}
    return {name: x for name, x in found.items() if x.name not in TEXT_MODELS}


def of_a_model(model: peers.Model) -> dict[str, Any]:
    """The fields of a model that we read, and its layers here."""
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
    """The fields of a file as the library reads it; None where it cannot, or the file is not the library's own."""
    if model.stated()["model_type"] != model.settings().model_type:
        return None
    try:
        return type(model.settings()).from_dict(json.loads(json.dumps(fields))).to_dict()
    except Exception:
        return None


def record(families: Collection[str]) -> None:
    """Write what the libraries of some families say; what is recorded of others stays."""
    known = layout_of_model_type()
    defaults = {name: x for name, x in DEFAULTS.items() if name in known}
    found = {name: of_the_library(name) for name, family in known.items() if family in families}
    defaults |= {name: fields for name, fields in found.items() if fields is not None}
    FILE.write_text(json.dumps(dict(sorted(defaults.items())), indent=1) + "\n", "utf-8")
    kept = {name: x for name, x in AS_WRITTEN.items() if name in models()}
    held = {name: of_a_model(x) for name, x in models().items() if name.partition(", ")[0] in families}
    held = dict(sorted((kept | held).items()))
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(x)}" for name, x in held.items())  # a line for each model
    CONFIGS.write_text("{\n" + lines + "\n}\n", "utf-8")
