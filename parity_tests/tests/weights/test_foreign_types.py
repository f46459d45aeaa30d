"""Files of families that no layout is for, read by the layout of another: what the file leaves out is asked for, and
models that are known to differ are refused by name.
"""

import json
import re
from collections.abc import Mapping
from math import log, sqrt
from pathlib import Path
from typing import Any

import pytest

from attn_np import weights
from attn_np.contract import Config
from attn_np.weights import ConfigMismatchError, WeightFileError, layouts
from attn_np.weights._foreign_config import OVERRIDABLE_FIELDS, table_name_and_config
from attn_np.weights._known_types import KNOWN_TYPES, NO_LAYOUT_YET
from attn_np.weights._layer_prefixes import find_part
from attn_np.weights._pretrained import find_layout, layout_of_model_type
from attn_np.weights._text_models import TEXT_MODELS
from attn_np.weights.layouts._base import differences
from attn_np.weights.layouts._hf_config import NULL_SAYS, HFConfig
from attn_np.weights.layouts._kin import KIN
from parity_tests.peers._recorded import PART, less, names_of
from parity_tests.tests.weights.test_absent_fields import RECORDED
from parity_tests.tests.weights.test_pretrained import LLAMA, llama, model

Fields = dict[str, Any]
YARN: Fields = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "rope_theta": 100.0}
FACTORS: Fields = {"short_factor": [1.0, 2.0, 3.0], "long_factor": [2.0, 2.0, 4.0]}
LONGROPE: Fields = YARN | FACTORS | {"rope_type": "longrope"}
LLAMA4: Fields = {
    "model_type": "llama4_text",
    "hidden_size": 12,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "num_hidden_layers": 2,
    "no_rope_layers": [1, 0],
    "rms_norm_eps": 0.125,
    "max_position_embeddings": 32,
}


def of_layer(fields: Fields, layer: int, part: str | None = None, **options: Any) -> tuple[str, Config]:
    """The name of the table and the config of a layer of a known family."""
    family = layouts.get(layout_of_model_type()[fields["model_type"]])
    part = part or PART.get(fields["model_type"])
    part = part or (None if isinstance(family.prefixes, tuple) else next(iter(family.prefixes)))
    return table_name_and_config(HFConfig("config.json", fields), family, layer, find_part(family, part), **options)


# What a file leaves out -----------------------------------------------------------------------------------------------


def is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


# A field, and one from which it would follow.
TOGETHER = {"no_rope_layers": ("no_rope_layer_interval",)}


@pytest.mark.parametrize("name", [n for n, x in RECORDED.items() if x["fields"]["model_type"] in KIN])
def test_a_null_is_a_field_that_is_left_out(name: str) -> None:
    """Of those that have a default of the type's own; but for the few where null has a meaning of its own."""
    recorded = RECORDED[name]
    fields, part, layer = recorded["fields"], recorded["part"], max(map(int, recorded["layers"]))

    def read(fields: Fields) -> Any:
        try:
            return of_layer(fields, layer, part)
        except WeightFileError as error:
            return type(error)

    for key in sorted(KIN[fields["model_type"]].defaults.keys() - {*NULL_SAYS}):
        assert read(fields | {key: None}) == read(less(fields, key)), key


@pytest.mark.parametrize("name", RECORDED)
def test_no_default_of_a_family_is_taken_silently(name: str) -> None:
    """Each field of a file left out: the layer is the same in what weights do not show, plain, or refused.

    Plain is no number: no scale, window or base of positions. What the file states elsewhere is no default.
    """
    recorded, wrong = RECORDED[name], {}
    fields, part, layer = recorded["fields"], recorded["part"], max(map(int, recorded["layers"]))
    rope = fields.get("rope_parameters") or {}
    stated = {"rope_base": [rope.get("rope_theta")], "rope_scaling": [rope.get("rope_type")]}
    stated["rope_scaling_factor"] = [rope.get("factor")]
    stated["original_max_positions"] = [fields.get("max_position_embeddings")]
    table, whole = of_layer(fields, layer, part)
    unseen = {*layouts.get(layout_of_model_type()[fields["model_type"]]).tables[table].not_in_weights}
    for key in names_of(fields):
        if key == "model_type":
            continue
        others = {name: x for name, x in fields.items() if name not in TOGETHER.get(key, ())}
        try:
            _, config = of_layer(less(others, key), layer, part, foreign=True)
        except WeightFileError:
            continue
        if config.variant != whole.variant:
            continue
        unused = {"norm_eps"} if getattr(config, "norm", None) is None else set()
        for ours in (unseen - {*OVERRIDABLE_FIELDS} - unused).intersection(differences(whole, config)):
            plain = getattr(type(config), ours)
            if key.endswith("attention_factor"):  # follows from other fields of the file
                continue
            found = getattr(config, ours)
            if (is_number(plain) or found != plain) and found not in stated.get(ours, ()):
                wrong[key, ours] = found
    assert not wrong


ASKED = {  # what a file states beside the sizes, the layout, the layer, and what the caller must say
    "Gemma 1": ({"rope_theta": 1e4, "head_dim": 4}, "gemma2", 1, {"scale": 0.5, "softcap": None, "window": None}),
    "no base": ({}, "llama", 0, {"rope_base": 7.0}),
    "no epsilon": ({"rope_theta": 1e4, "head_dim": 4}, "qwen3", 0, {"norm_eps": 0.25}),
    "no share": ({"rope_theta": 1e4, "hidden_size": 24}, "stablelm", 0, {"rotary_dim": 4}),
    "no window": ({"rope_theta": 1e4}, "mistral", 0, {"window": (3, None)}),
    "no length": (
        {"rope_parameters": less(YARN, "original_max_position_embeddings")},
        "llama",
        0,
        {"original_max_positions": 16},
    ),
    "no scale": ({"rope_theta": 1e4}, "granite", 0, {"scale": 0.5}),
}


@pytest.mark.parametrize("case", ASKED)
def test_what_a_file_leaves_out_is_asked_for_and_taken(case: str, tmp_path: Path) -> None:
    stated, layout, layer, asked = ASKED[case]
    file = less(LLAMA, "rope_parameters") | stated | {"model_type": "fairly-new"}
    folder = model(tmp_path, file, llama())
    names = ", ".join(f"{name}=" for name in sorted(asked))
    with pytest.raises(ConfigMismatchError, match=re.escape(f"got none; pass {names} with the values")):
        weights.read_pretrained(folder, layer, layout=layout)
    for name in asked:
        rest = {other: value for other, value in asked.items() if other != name}
        with pytest.raises(ConfigMismatchError, match=re.escape(f"got none; pass {name}= with")):
            weights.read_pretrained(folder, layer, layout=layout, **rest)
    family = layouts.get(layout)
    _, config = table_name_and_config(HFConfig("config.json", file), family, layer, "", asked, foreign=True)
    assert {name: getattr(config, name) for name in asked} == asked
    _, config = table_name_and_config(HFConfig("config.json", file), family, layer, "", {})  # of its own family
    assert all(getattr(config, name) != value or value is None for name, value in asked.items())


def test_a_whole_file_of_another_name_is_taken(tmp_path: Path) -> None:
    file = model(tmp_path, LLAMA | {"model_type": "fairly-new"}, llama())
    assert weights.read_pretrained(file, 1, layout="llama").config.as_dict()["rope_base"] == 500000.0


# Models that are known to differ --------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", KNOWN_TYPES)
def test_a_model_that_is_known_to_differ_is_refused_by_name(model_type: str) -> None:
    hf, known = HFConfig("config.json", {"model_type": model_type}), KNOWN_TYPES[model_type]
    assert model_type not in layout_of_model_type()
    for layout in (None, *sorted(set(layout_of_model_type().values()))):
        if layout in known.layouts:
            assert find_layout(hf, layout)[0] == layout
            continue
        with pytest.raises(ConfigMismatchError, match=re.escape(f"got '{model_type}': {known.differs}; ")) as error:
            find_layout(hf, layout)
        assert all(repr(right) in str(error.value) for right in known.layouts)


def test_a_config_alone_says_that_a_family_is_unknown(tmp_path: Path) -> None:
    """Before weights are asked for, which may be large."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "fairly-new"}))
    with pytest.raises(ConfigMismatchError, match="expected the name of a known family, got 'fairly-new'"):
        weights.read_pretrained(tmp_path, 0)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"colour": "brown"}))
    with pytest.raises(ConfigMismatchError, match="got 'colour', unknown here"):
        weights.read_pretrained(tmp_path, 0)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(FileNotFoundError, match="safetensors or its index in this folder, got none"):
        weights.read_pretrained(tmp_path, 0)


# Families whose positions are their own -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rope", [YARN, LONGROPE, YARN | {"attention_factor": 1.75}], ids=["yarn", "longrope", "stated"]
)
def test_a_norm_after_the_rotation_takes_its_factor_away(rope: Fields) -> None:
    factor = {"yarn": 0.1 * log(4) + 1, "longrope": sqrt(1 + log(4) / log(8))}[rope["rope_type"]]
    factor = rope.get("attention_factor", factor)
    found = of_layer(LLAMA4 | {"rope_parameters": rope}, 0)[1].as_dict()
    assert (found["attention_factor"], found["norm_eps"]) == (1.0, 0.125 / factor**2)
    plain = of_layer(LLAMA4 | {"rope_parameters": rope, "use_qk_norm": False}, 0)[1].as_dict()
    assert (plain["attention_factor"], plain["norm"]) == (rope.get("attention_factor"), None)


def test_a_family_that_rotates_whole_heads_refuses_a_part() -> None:
    fields = RECORDED["falcon, groups"]["fields"]
    with pytest.raises(ConfigMismatchError, match="'partial_rotary_factor': expected 1, as this family rotates whole"):
        of_layer(fields | {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, 0)


# Fields that are no number --------------------------------------------------------------------------------------------

VALUES = (0, -1, None, "8", 2.5, [])
# A message of ours: what was expected, what was there, what to do.
HOUSE = re.compile(r": expected .+, got .+; .+", re.DOTALL)


def changed(fields: Mapping[str, Any], name: str, value: Any) -> Fields:
    first, _, rest = name.partition(".")
    return {**fields, first: changed(fields[first], rest, value) if rest else value}


def value_of(fields: Mapping[str, Any], name: str) -> Any:
    first, _, rest = name.partition(".")
    return value_of(fields[first], rest) if rest else fields[first]


@pytest.mark.parametrize("name", RECORDED)
def test_a_number_that_cannot_be_is_refused_in_words(name: str) -> None:
    """Every number of every family, made 0, negative, none, and of other types: a layer, or our own words."""
    recorded, raw = RECORDED[name], {}
    fields, layer = recorded["fields"], max(map(int, recorded["layers"]))
    for key in (key for key in names_of(fields) if is_number(value_of(fields, key))):
        for value in VALUES:
            try:
                of_layer(changed(fields, key, value), layer, recorded["part"])
            except WeightFileError as error:
                if error.key is None and not HOUSE.search(error.got):
                    raw[key, str(value)] = str(error)
    assert not raw


# Fields that leave attention as it is ---------------------------------------------------------------------------------

OFF: dict[str, tuple[Fields, Fields]] = {  # harmless, and the same names with a value that is not
    "Qwen 2.5": ({"use_mrope": False}, {"use_mrope": True}),
    "SmolLM 2": (
        {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"kv_cache_dtype": {}}},
        {"rope_interleaved": True},
    ),
    "SmolLM 3": ({"use_sliding_window": False, "max_window_layers": 28}, {"use_sliding_window": True}),
    "SmolLM 3 without the switch": ({"max_window_layers": 28}, {"use_sliding_window": True, "max_window_layers": 28}),
    "Command R": ({"model_max_length": 131072}, {"model_max_len": 131072}),
    "long Qwen 2.5": ({}, {"dual_chunk_attention_config": {"chunk_size": 262144}}),
}


def test_fields_of_published_files_that_leave_attention_as_it_is() -> None:
    for harmless, other in OFF.values():
        config, unread = of_llama(harmless)
        assert (config, unread) == (of_llama({})[0], set())
        assert of_llama(other)[1] == set(other)
    family = next(x for x in RECORDED.values() if x["fields"]["model_type"] == "minimax")
    hf = HFConfig("config.json", family["fields"] | {"rotary_dim": 64})
    table_name_and_config(hf, layouts.get("minimax"), 0, "")
    assert "rotary_dim" not in hf.unread()


def of_llama(more: Fields) -> tuple[Config, set[str]]:
    """The layer of a Llama with more fields, and those of which nobody knows what they mean."""
    hf = HFConfig("config.json", LLAMA | more)
    return table_name_and_config(hf, layouts.get("llama"), 0, "")[1], hf.unread()


@pytest.mark.parametrize("layout", sorted(set(layout_of_model_type().values())))
def test_switches_that_are_off_change_no_family(layout: str) -> None:
    """Nor do they hide one that is on."""
    of_layout = [name for name, x in RECORDED.items() if layout_of_model_type()[x["fields"]["model_type"]] == layout]
    assert of_layout, f"not recorded: run attn-parity peers --families {layout} --record"
    name = of_layout[0]
    recorded, off = RECORDED[name], {"use_mrope": False, "use_sliding_window": False, "rope_interleaved": False}
    fields = recorded["fields"]
    added = {key: value for key, value in off.items() if key not in fields}
    layer, part = int(next(iter(recorded["layers"]))), recorded["part"]
    family = layouts.get(layout)
    part = find_part(family, part or (None if isinstance(family.prefixes, tuple) else next(iter(family.prefixes))))
    want, on = of_layer(fields, layer, part), {"rope_interleaved": True, "use_mrope": True}
    for extra, unknown in (
        (added, set()),
        (on, set(on)),
    ):
        hf = HFConfig("config.json", fields | extra)
        assert table_name_and_config(hf, family, layer, part) == want
        assert hf.unread() - HFConfig("config.json", fields).unread() >= unknown - set(fields)


# Held against the library ---------------------------------------------------------------------------------------------

SMALL: Fields = {
    "vocab_size": 11,
    "hidden_size": 12,
    "intermediate_size": 5,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
AT = "model.layers.{layer}.self_attn"
ROPE4 = {"num_local_experts": 2, "moe_layers": [], "no_rope_layers": [1, 1], "rms_norm_eps": 0.125}
RIGHT = {
    "Gemma 1": ("GemmaForCausalLM", SMALL, {"layout": "llama"}),
    "Helium": ("HeliumForCausalLM", SMALL | {"hidden_size": 24}, {"layout": "cohere"}),
    "Ernie 4.5": ("Ernie4_5ForCausalLM", SMALL, {"layout": "cohere"}),
    "Llama 4 with yarn": ("Llama4ForCausalLM", SMALL | ROPE4 | {"rope_parameters": YARN}, {}),
    "Llama 4 with longrope": ("Llama4ForCausalLM", SMALL | ROPE4 | {"rope_parameters": LONGROPE}, {}),
}
WRONG = {
    "Gemma 1": ("GemmaForCausalLM", {}, {"layout": "gemma2"}, "got 'gemma'; leave layout= out"),
    "Helium": ("HeliumForCausalLM", {}, {"layout": "llama"}, "got 'helium'; leave layout= out"),
    "Ernie 4.5": ("Ernie4_5ForCausalLM", {}, {"layout": "llama"}, "got 'ernie4_5'; leave layout= out"),
    "Nanochat": (
        "NanoChatForCausalLM",
        {},
        {"layout": "llama", "allow": ["final_logit_softcapping"]},
        "got 'nanochat'; leave layout= out",
    ),
    "Hunyuan": ("HunYuanDenseV1ForCausalLM", {}, {"layout": "qwen3"}, "got 'hunyuan_v1_dense'; leave layout= out"),
    "Falcon": (
        "FalconForCausalLM",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        {},
        "'partial_rotary_factor': expected 1",
    ),
}


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("case", RIGHT)
def test_the_right_layout_gives_the_numbers_of_the_library(case: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from parity_tests.peers import Model
    from parity_tests.peers._measure import THEIRS, measured

    name, config, options = RIGHT[case]
    peer = Model(name, config, AT, layers=(0,) if "Llama 4" in case else (0, 1), fields=options)
    for _, ratios in measured(peer, tmp_path):
        assert len(ratios) == 4 and THEIRS in ratios and all(worst <= 1 for worst in ratios.values()), ratios


@pytest.mark.peers
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("case", WRONG)
def test_the_wrong_layout_is_refused(case: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from parity_tests.peers import Model

    name, config, options, words = WRONG[case]
    sizes = less(less(SMALL, "num_key_value_heads"), "head_dim") if case == "Falcon" else SMALL
    stated = Model(name, sizes | config, AT).stated()
    (tmp_path / "config.json").write_text(json.dumps(stated))
    with pytest.raises(ConfigMismatchError, match=words):
        weights.read_pretrained(tmp_path, 1, **options)


def test_the_page_of_types_names_layouts_and_the_types_that_they_read() -> None:
    """Every row is what `load_pretrained` does with the type; types without a layout are those known by name."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "model_types.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (`.*`) \| [\d.e-]+ \|$", page, re.MULTILINE)
    layout_of = layout_of_model_type()
    for layout, kinds in rows:
        for kind in re.findall("`([^`]+)`", kinds):
            assert layout in (layout_of.get(kind), layout_of.get(TEXT_MODELS.get(kind, ""))), kind
    assert len(rows) > 90
    section = page.partition("## Causal language models without a layout")[2].partition("\n## ")[0]
    assert {*re.findall("`([^`]+)`", section.partition(" is read, but")[0].rpartition("\n\n")[0])} == NO_LAYOUT_YET
