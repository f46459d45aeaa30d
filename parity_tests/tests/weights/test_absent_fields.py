"""What a layer of a `config.json` is, by what the model's own library says: where a field is left out, and of every
model that is held against the library.

Both are recorded (`parity_tests/peers/_recorded.py`): `make peers` holds them against the library, and `attn-parity
peers --record` records them again.
"""

import pytest

from attn_np.weights._pretrained import layout_of_model_type
from parity_tests.peers import asked_by_default
from parity_tests.peers._recorded import (
    DEFAULTS,
    LAYERS,
    RECORDED,
    described,
    in_words,
    layer_of,
    less,
    models,
    of_a_model,
    of_the_library,
)


def marks_of(model: str) -> tuple[pytest.MarkDecorator, ...]:
    """As the numbers of these models, which `make peers` asks in parts."""
    return () if asked_by_default(*model.split(", ", 1)) else (pytest.mark.left_out,)


# Of these types the library's own default is no possible layer: sections of positions that do not fill its heads.
NO_LAYER = {"glm4v_text"}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("model_type", [kind for kind in DEFAULTS if kind not in NO_LAYER])
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


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("model_type", sorted(layout_of_model_type()))
def test_what_is_recorded_is_the_librarys(model_type: str) -> None:
    pytest.importorskip("transformers")
    found, family = of_the_library(model_type), layout_of_model_type()[model_type]
    if found is None:
        pytest.skip(f"this version of transformers has no {model_type}")
    assert model_type in DEFAULTS, f"run attn-parity peers --families {family} --record"
    assert found == DEFAULTS[model_type]


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("model", [pytest.param(name, marks=marks_of(name)) for name in models()])
def test_what_is_recorded_of_a_model_is_what_is_held_against_the_library(model: str) -> None:
    """By `test_peers`, which compares the numbers of these layers."""
    pytest.importorskip("transformers")
    assert model in RECORDED, f"run attn-parity peers --families {model.partition(',')[0]} --record"
    assert of_a_model(models()[model]) == RECORDED[model]
