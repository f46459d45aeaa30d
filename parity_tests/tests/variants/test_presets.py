"""Presets: names of their own for a variant with some fields set, wherever the name of a variant may stand."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from attn_np import contract
from attn_np.weights import WeightFileError
from parity_tests.commands.app import app
from parity_tests.judge.calls import may_have
from parity_tests.sync import tables
from parity_tests.tests.inputs import TREES, Tree

ROOT = Path(__file__).resolve().parents[3]
PRESETS = contract.presets()
NAMED_DEFAULTS = ("entmax15",)  # a name that files have, of what a variant is by default


def others(name: str) -> dict[str, Any]:
    """Values of the fields that the preset leaves open, from the variant's first example that goes with the others."""
    variant, preset = PRESETS[name]
    example = next(c for c in contract.examples(variant).values() if may_have(c, **preset.fields))
    return {field: getattr(example, field) for field in example.fields() if field not in preset.fields}


# What papers and the authors' code have where nothing is said: a change of these is a change of the variant.
DEFAULTS: dict[str, dict[str, Any]] = {
    "decoder": {"causal": True, "qkv_bias": False, "output_bias": False, "rope_base": 10000.0, "rope_layout": "half"},
    "delta": {"use_norm": True},
    "differential": {"depth": 1, "lambda_init": None},
    "disentangled": {"max_distance": 512, "score_terms": ("c2p", "p2c"), "p2c_view": "key"},
    "linear": {"eps": 1e-6, "normalize": True},
    "mla": {"norm_eps": 1e-6, "rope_base": 10000.0, "rope_layout": "interleaved"},
    "retention": {"exponent": 5.0, "use_bias": False},
    "rotary": {"rope_base": 10000.0, "rope_layout": "half"},
    "shaw": {"max_distance": 16, "use_values": True},
    "t5_bias": {"scale": 1.0, "use_bias": False, "num_buckets": 32, "max_distance": 128},
    "talking_heads": {"mix_scores": True, "mix_weights": True},
    "transformer_xl": {"use_bias": False, "base": 10000.0},
}


@pytest.mark.parametrize("variant", DEFAULTS)
def test_defaults_are_the_published_ones(variant: str) -> None:
    known = contract.get(variant).Config.__dataclass_fields__
    assert {name: known[name].default for name in DEFAULTS[variant]} == DEFAULTS[variant]


def test_names_are_unique() -> None:
    """No preset hides a variant or another preset."""
    names = [name for variant in contract.variants() for name in getattr(contract.get(variant), "PRESETS", {})]
    assert sorted(names) == list(PRESETS)
    assert not set(names) & set(contract.variants())


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_what_it_is(name: str) -> None:
    variant, preset = PRESETS[name]
    for text in (preset.title, preset.idea, preset.paper):
        assert text.strip() == text != ""
    config = contract.config(name, **others(name))
    assert type(config) is contract.get(variant).Config
    assert {field: getattr(config, field) for field in preset.fields} == preset.fields
    plain = type(config).__dataclass_fields__
    named = name in NAMED_DEFAULTS
    assert named or any(plain[field].default != value for field, value in preset.fields.items())


@pytest.mark.parametrize("name", PRESETS)
def test_build_takes_the_name(tree: Tree, name: str) -> None:
    """The same layer as the variant's with these fields: the same config, and the same bits in every weight."""
    variant, preset = PRESETS[name]
    layer = tree.package.build(name, seed=3, **others(name))
    plain = tree.package.build(variant, seed=3, **others(name), **preset.fields)
    assert layer.config == plain.config
    assert type(layer) is type(plain)
    for key, x in plain.params().items():
        assert np.array_equal(tree.numpy(layer.params()[key]), tree.numpy(x)), key


@pytest.mark.parametrize("name", PRESETS)
def test_what_the_caller_gives_goes_before(tree: Tree, name: str) -> None:
    variant, preset = PRESETS[name]
    examples = contract.examples(variant).values()
    example = next(e for e in examples if all(getattr(e, field) != value for field, value in preset.fields.items()))
    fields = {field: getattr(example, field) for field in example.fields()}
    assert tree.package.build(name, **fields).config == example


def test_an_unknown_field_and_a_missing_one(tree: Tree) -> None:
    with pytest.raises(TypeError) as caught:
        tree.package.build("sliding_window", d_model=6, num_heads=2, windows=(3, 0))
    assert str(caught.value) == "sliding_window: expected one of its fields, got 'windows'; did you mean 'window'?"
    with pytest.raises(TypeError) as caught:
        tree.package.build("mqa", d_model=6)
    assert str(caught.value) == "mqa: expected a value for num_heads, got none; pass num_heads="


def test_a_name_that_is_nearly_one(tree: Tree) -> None:
    with pytest.raises(ValueError, match="got 'sliding_windows'; did you mean 'sliding_window'"):
        tree.package.build("sliding_windows", d_model=6, num_heads=2)


# Weight files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_a_weight_file_saved_from_a_preset_loads(tree: Tree, name: str, tmp_path: Path) -> None:
    """With or without the name, and in every tree: the file holds the variant behind it."""
    layer, path = TREES["numpy"].package.build(name, seed=5, **others(name)), tmp_path / "weights.safetensors"
    TREES["numpy"].package.save(layer, path)
    for given in ({}, {"variant": name}, {"variant": PRESETS[name][0]}):
        found = tree.package.load(path, **given)
        assert found.config == layer.config
        for key, x in layer.params().items():
            assert np.array_equal(tree.numpy(found.params()[key]), x), key


def test_a_weight_file_of_another_config_is_refused_under_the_name(tree: Tree, tmp_path: Path) -> None:
    path, package = tmp_path / "weights.safetensors", TREES["numpy"].package
    package.save(package.build("gqa", d_model=6, num_heads=6, num_kv_heads=3), path)
    assert tree.package.load(path, variant="gqa").config.num_kv_heads == 3
    with pytest.raises(WeightFileError, match="num_kv_heads"):
        tree.package.load(path, variant="mqa")


# Pages and the command ------------------------------------------------------------------------------------------------


def pages() -> ModuleType:
    folder = str(ROOT / "docs" / "_ext")
    sys.path.insert(0, folder)
    try:
        return importlib.import_module("variants")
    finally:
        sys.path.remove(folder)


def family_of(variant: str) -> str:
    return contract.get(variant).Config.family


@pytest.mark.parametrize("name", PRESETS)
def test_the_catalogues_show_it(name: str) -> None:
    """The command, the README, the documentation's catalogue and the page of the variant behind it."""
    variant, preset = PRESETS[name]
    shown = CliRunner().invoke(app, ["list"]).output
    assert any(line.split()[:1] == [name] for line in shown.splitlines())
    row = next(line for line in tables.catalogue().splitlines() if line.startswith(f"| {family_of(variant)} |"))
    assert f"[`{name}`](https://arxiv.org/abs/" in row and f"[`{variant}`]" in row
    assert f"- `{name}`, {preset.title}: [`{variant}`]({variant}.md) with " in pages().catalogue()
    assert f"| `{name}` | {preset.title} | " in pages().page(variant, None)


# What they mean -------------------------------------------------------------------------------------------------------


def test_a_sliding_window_counts_its_own_position(tree: Tree) -> None:
    """W = 4096 in the paper: a query sees at most as many keys, itself included, and the cache holds as many."""
    layer = tree.package.build("sliding_window", d_model=2, num_heads=1)
    assert layer.config.cache_slots() == 4096
    small = tree.package.build("sliding_window", d_model=2, num_heads=1, window=(2, 0), dtype="float64")
    x = np.random.default_rng(0).normal(size=(1, 7, 2))
    _, weights = tree(small, {"query": x}, return_weights=True)
    assert [int(n) for n in (weights[0, 0] > 0).sum(-1)] == [1, 2, 3, 3, 3, 3, 3]


def test_a_softcap_bounds_the_scores(tree: Tree) -> None:
    """Scores of 0 and far beyond the cap: the weights stand in the ratio 1 to e^50, not 0 to 1."""
    layer = tree.package.build("softcap", d_model=1, num_heads=1, use_bias=False, dtype="float64")
    w = {name: tree.array(np.ones(x.shape)) for name, x in layer.params().items()}
    layer.set_params(w)
    x = np.array([[[1000.0], [0.0]]])
    _, weights = tree(layer, {"query": x}, return_weights=True)
    low = np.exp(-50.0)
    assert 0.0 < weights[0, 0, 0, 1] < 2 * low
    assert weights[0, 0, 0, 1] > low / 2
