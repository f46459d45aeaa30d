"""A field that a `config.json` leaves out has the value that the model's own library gives it."""

from typing import Any

import pytest

from attn_np.weights import WeightFileError, layouts
from attn_np.weights._caller_config import layer_config
from attn_np.weights._key_prefix import find_part
from attn_np.weights._pretrained import families
from attn_np.weights.layouts._hf_config import HFConfig

# Fields without which the library's default model has an attention that is none of ours.
NEEDED = {"deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "share_att_key": True}}
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("default")]


def described(model_type: str, fields: dict[str, Any], layer: int) -> Any:
    """Our config of a layer, and the fields that were read for it; or the words of the refusal."""
    family, hf = layouts.get(families()[model_type]), HFConfig("config.json", fields)
    part = None if isinstance(family.prefixes, tuple) else next(iter(family.prefixes))
    try:
        return layer_config(hf, family, layer, find_part(family, part)), set(fields) - hf.unread()
    except WeightFileError as error:
        return str(error), set()


@pytest.mark.parametrize("layer", [0, 5])
@pytest.mark.parametrize("model_type", sorted(families()))
def test_absent_fields_have_the_defaults_of_the_library(model_type: str, layer: int) -> None:
    """Field by field: without it, and with the value that the library's own config has, a layer is the same."""
    transformers = pytest.importorskip("transformers")
    if model_type not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this version of transformers has no {model_type}")
    fields = transformers.CONFIG_MAPPING[model_type]().to_dict() | NEEDED.get(model_type, {})
    counts = [fields[name] for name in ("n_layer", "encoder_layers", "num_hidden_layers") if fields.get(name)]
    layer = min([layer, *(count - 1 for count in counts)])
    whole, read = described(model_type, fields, layer)
    assert read, whole
    wrong = {}
    for name in sorted(read):
        found, _ = described(model_type, {key: value for key, value in fields.items() if key != name}, layer)
        if found != whole and not isinstance(found, str):
            wrong[name] = fields[name], found
    assert not wrong
