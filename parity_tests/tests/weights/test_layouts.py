"""Layouts of others: every table in both directions, bit by bit, and the same numbers as the libraries they name."""

import dataclasses
import json
import runpy
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from attn_np import contract, weights
from attn_np.contract import Config
from attn_np.weights import layouts
from attn_np.weights.layouts import _base
from attn_np.weights.layouts._rearrange import concatenation, parse, rearrange, reverse, solve
from parity_tests.bounds.error_array import ErrArray, delivered, widened
from parity_tests.bounds.precision import precision, precision_of
from parity_tests.judge.candidates import numpy_layer
from parity_tests.judge.cases import Case
from parity_tests.judge.judging import compare
from parity_tests.tests.inputs import EXAMPLES, TREES, Arrays, config_of, random_inputs, same

ROOT = Path(__file__).resolve().parents[3]
FOREIGN = [name for name in layouts.names() if layouts.get(name).own_variant is None]
TABLES = [(name, variant) for name in layouts.names() for variant in layouts.get(name).tables]
PAIRS = [
    pair
    for name in layouts.names()
    if (origin := layouts.get(name).own_variant)
    for variant in layouts.get(name).tables
    for pair in ((origin, variant), (variant, origin))
]


def bits(values: Arrays) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (x.dtype.name, x.shape, x.tobytes()) for name, x in values.items()}


def reference(config: Config, values: Arrays, dtype: str, *inputs: Any, **options: Any) -> Any:
    """The NumPy layer's output in float64 with the bound for anybody who computes in `dtype`."""
    layer = numpy_layer(
        Case(config.variant, "given", "plain", "float64", given=config), {n: widened(x) for n, x in values.items()}
    )
    layer.set_params({name: ErrArray(x, 0.0) for name, x in layer.params().items()})
    lifted = [x if x is None or x.dtype == bool else ErrArray(widened(x), 0.0) for x in inputs]
    with precision(precision_of(dtype)), np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        return layer(*lifted, **options)


def agrees(got: np.ndarray, want: Any, dtype: str) -> bool:
    result = compare(widened(got), delivered(want, dtype))
    assert result["vacuous"] == 0
    return result["ratio"] <= 1


# The language ---------------------------------------------------------------------------------------------------------


def test_a_pattern_is_read_by_its_letters() -> None:
    x = np.arange(2 * 3 * 5).reshape(6, 5)
    y = rearrange(x, "(h k) d -> d h k", {"h": 2, "k": 3, "d": 5})
    for d, h, k in np.ndindex(y.shape):
        assert y[d, h, k] == x[h * 3 + k, d]
    assert np.array_equal(rearrange(y, reverse("(h k) d -> d h k"), {"h": 2, "k": 3, "d": 5}), x)
    assert rearrange(y, "d h k -> h (k d)", {"h": 2, "k": 3, "d": 5}).shape == (2, 15)
    assert solve(parse("(h k) d -> d h k")[0], (6, 5), {"h": 2}) == {"k": 3, "d": 5}
    assert solve(parse("(h k) d -> d h k")[0], (6, 5), {}) == {"d": 5}
    with pytest.raises(ValueError, match="expected an array"):
        rearrange(x, "(h k) d -> d h k", {"h": 2, "k": 3, "d": 6})


@pytest.mark.parametrize(
    "pattern",
    [
        "a b",
        "a b -> a",
        "a -> a b",
        "a a -> a",
        "a -> a a",
        "a a -> a a",
        "(a b -> a b",
        "a) b -> a b",
        "((a) b) -> a b",
        "a 2 -> a",
    ],
)
def test_a_pattern_that_loses_something_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse(pattern)


def test_bars_join_arrays_of_several_sizes() -> None:
    sizes = {"g": 2, "r": 3, "h": 6, "k": 5, "v": 7, "d": 11}
    held: Any = concatenation("(g (r k | k | v)) d -> d (g r) k, d g k, d g v")
    x = np.arange(54 * 11).reshape(54, 11)
    q, k, v = held.split(x, sizes)
    for d, g in np.ndindex(11, 2):
        assert all(q[d, 3 * g + r, n] == x[27 * g + 5 * r + n, d] for r, n in np.ndindex(3, 5))
        assert all(k[d, g, n] == x[27 * g + 15 + n, d] for n in range(5))
        assert all(v[d, g, n] == x[27 * g + 20 + n, d] for n in range(7))
    assert np.array_equal(held.join([q, k, v], sizes), x)
    apart: Any = concatenation("d (h k | g v) -> d h k, g v d")
    x = np.arange(11 * 44).reshape(11, 44)
    q, v = apart.split(x, sizes)
    assert q[3, 4, 2] == x[3, 22] and v[1, 4, 3] == x[3, 41]
    assert np.array_equal(apart.join([q, v], sizes), x)
    assert apart.solve((11, 44), {}) == {"d": 11} and concatenation("a b -> b a") is None
    with pytest.raises(ValueError, match="expected an array"):
        apart.split(x[:, 1:], sizes)


@pytest.mark.parametrize(
    "pattern", ["(a | b) d -> a d", "(a | b) (c | d) -> a, b", "a | b -> a, b", "((a | b) c) -> a c, b c"]
)
def test_bars_that_are_unclear_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        concatenation(pattern)


# The tables -----------------------------------------------------------------------------------------------------------


def test_an_axis_in_another_order_by_its_indices() -> None:
    """An order that is not its own inverse, of an axis that is split off and of one beside several parameters."""
    theirs, order = np.arange(2 * 12.0).reshape(2, 12), (2, 0, 1)
    one = _base.AppliedRule(("w",), ("x",), "d (f e) -> f d e", {"d": 2, "f": 3, "e": 4}, {"f": order})
    two = _base.AppliedRule(("a", "b"), ("x",), "p (f e) -> p f e", {"p": 2, "f": 3, "e": 4}, {"f": order})
    ours = one.to_params({"x": theirs}) | two.to_params({"x": theirs})
    for d, f, e in np.ndindex(2, 3, 4):
        assert ours["w"][f, d, e] == ours["ab"[d]][f, e] == theirs[d, 4 * order[f] + e]
    for rule in (one, two):
        assert np.array_equal(rule.to_layout(ours)["x"], theirs)


def test_layouts_are_found_by_name() -> None:
    assert {"bert", "torch_gru", "torch_linear", "fused_qkv"} <= set(layouts.names())
    with pytest.raises(ValueError, match="did you mean 'bert'"):
        layouts.get("bret")


def test_the_recorded_figures_are_of_layouts_that_agree() -> None:
    """What the documentation's table shows; `attn-parity peers --record` writes it."""
    held = json.loads((ROOT / "parity_tests" / "peers" / "results.json").read_text("utf-8"))
    assert {"torch_mha", "llama"} <= set(held) <= set(layouts.names())
    for found in held.values():
        assert found["libraries"] and found["layers"] and 0 <= max(found["library"], found["ours"]) <= 1


@pytest.mark.parametrize(("name", "variant"), TABLES)
def test_a_table_speaks_of_parameters_and_fields_that_exist(name: str, variant: str) -> None:
    layout = layouts.get(name)
    table, variant = layout.tables[variant], layout.variant_of(variant)
    make = contract.get(variant).Config
    assert set(table.fields()) | set(table.fixed) <= set(make.fields()) | set(_base.TRAINING_FIELDS)
    assert not layouts.get(name).other_sidecar_names or set(layouts.get(name).other_sidecar_names.values()) <= set(
        table.fields()
    )
    if layouts.get(name).own_variant is None:
        assert set(make.required()) <= set(table.fields()) | set(table.fixed)
    configs = contract.examples(variant).values()
    if layout.own_variant is None:
        configs = [held for config in configs if (held := reduced(table, config))]
    configs = [config for config in configs if all(getattr(config, name) == x for name, x in table.fixed.items())]
    params = {n: p.axes for config in configs for n, p in config.params().items()}
    covered: set[str] = set()
    for ours, keys, pattern in _base.expand_rules(table, params):
        covered |= set(ours)
        assert concatenation(pattern) is None or len(keys) == 1
        if concatenation(pattern) is None and len(ours) == 1 and layout.own_variant is None:
            # Where one array becomes one parameter, the letters are the contract's own, but for an axis out of several
            # and for gates of each number, which are as wide as the values.
            pairs = zip(parse(pattern)[1], params[ours[0]].split(), strict=True)
            assert all(axis == (letter,) or (*axis, letter) == ("v", "f") for axis, letter in pairs if len(axis) == 1)
    assert covered >= set(params)
    assert {key for keys, _ in table.rules.values() for key in _base.as_tuple(keys)} >= {
        *table.first_layer_keys,
        *table.keys_beside_layers,
    }


def drawn(config: Config, dtype: str = "float32") -> Arrays:
    values = weights.draw(config, 13, dtype)
    for x in values.values():
        x.reshape(-1)[0] = -0.0
    return values


def zeroed(table: layouts.Table, config: Config, values: Arrays) -> Arrays:
    """The parameters with zeros where the origin has no key."""
    values = dict(values)
    for rule in _base.applied_rules(table, config):
        if set(rule.keys) & set(table.absent):
            arrays = rule.to_layout(values)
            arrays |= {key: np.zeros_like(arrays[key]) for key in rule.keys if key in table.absent}
            values |= rule.to_params(arrays)
    return values


def reduced(table: layouts.Table, config: Config) -> Any:
    """A config with its usual values where the table has no place for others; None where that cannot be.

    Where heads cannot have a width of their own, the whole is made as wide as needed; where they are in groups, the
    heads are made as many as are in a multiple of it.
    """
    kept = (*table.fields(), *config.required())
    usual: Any = {field.name: field.default for field in dataclasses.fields(config) if field.name not in kept}
    usual |= table.fixed
    given = config.as_dict()
    wider: Any = {"d_model": given["d_model"] * given["num_heads"]} if {"d_model", "num_heads"} <= set(given) else {}
    groups = prod(table.constants.values())
    more_heads: Any = {name: size * groups for name, size in wider.items()}
    if wider:
        more_heads["num_heads"] = given["num_heads"] * groups
    for more in ({}, wider, more_heads):
        try:
            held = dataclasses.replace(config, **usual | more)
            _base.rules_for_all_params(table, held)
        except ValueError:
            continue
        return held
    return None


def cases() -> Iterator[tuple[str, str, str]]:
    for name in FOREIGN:
        for table in layouts.get(name).tables:
            for variant, example in EXAMPLES:
                if variant == layouts.get(name).variant_of(table):
                    yield name, table, example


def asked(table: layouts.Table, config: Config) -> dict[str, Any]:
    """What a caller must say, as the arrays do not: heads, and fields that leave the arrays as they are."""
    names = [
        name for name in ("num_heads", *table.not_in_weights) if name in config.fields() and name in table.fields()
    ]
    if any(concatenation(pattern) or "(g r)" in pattern for _, pattern in table.rules.values()):
        sizes = config.sizes()
        return {name: getattr(config, name) for name in names} | {n: sizes[x] for n, x in table.letters.items()}
    return {name: getattr(config, name) for name in names}


def typed_cases() -> Iterator[tuple[str, str, str, str]]:
    """A wide and a narrow type of each; the two others of the next."""
    types = ("float64", "float32", "bfloat16", "float16")
    return ((*case, dtype) for n, case in enumerate(cases()) for dtype in types[n % 2 :: 2])


@pytest.mark.parametrize(("name", "kept", "example", "dtype"), list(typed_cases()))
def test_both_directions_are_bit_identical(name: str, kept: str, example: str, dtype: str, tmp_path: Path) -> None:
    layout, file = layouts.get(name), tmp_path / "theirs.safetensors"
    table, config = layout.tables[kept], config_of(layout.variant_of(kept), example)
    part = layout.parts()[-1]
    layer: dict[str, Any] = {"layer": 3} if "{layer}" in layout.prefixes_of(part)[0] else {}
    layer |= {"part": part} if part else {}
    tables = [layout.tables[known] for known in layout.tables_of(config.variant)]
    if not any(_base.unsupported_fields(one, config) == [] for one in tables):
        with pytest.raises(weights.ConfigMismatchError, match=f"a config that {name} can hold"):
            weights.write(file, config, drawn(config, dtype), layout=name, **layer)
    config = reduced(table, config)
    if config is None or layout.table_name_for(config) != kept:
        return
    values = zeroed(table, config, drawn(config, dtype))
    weights.write(file, config, values, layout=name, prefix="model.", **layer)
    found = weights.read(file, layout=name, variant=config.variant, prefix="model.", **layer, **asked(table, config))
    assert bits(found.values) == bits(values)
    assert _base.differences(found.config, config) == []
    again = weights.read(
        file, config=config, layout=name, prefix="model.", **{n: x for n, x in layer.items() if n == "part"}
    )
    assert bits(again.values) == bits(values)
    total = sum(x.nbytes for x in weights.tensors(file).values())
    absent = [rule for rule in _base.applied_rules(table, config) for key in rule.keys if key in table.absent]
    missing = sum(values[rule.params[0]].itemsize * prod(rule.key_shape()) for rule in absent)
    assert total == sum(x.nbytes for x in values.values()) - missing
    with pytest.raises(weights.FormatMismatchError, match="layout="):
        weights.read(file)


def changed_sizes(config: Config) -> Iterator[Config]:
    """The config with other sizes, one optional field at a time: what a file's reader may find or be told."""
    optional = [field.name for field in dataclasses.fields(config) if field.default is None]
    widths = [{}, {"head_dim": 4}, {"head_dim": 6}] if "head_dim" in config.fields() else [{}]
    values = {1, 2, 4, 6} | {value for value in config.as_dict().values() if type(value) is int}
    for width, name, value in product(widths, optional, sorted(values)):
        with suppress(ValueError, TypeError):  # not possible with the other fields
            yield dataclasses.replace(config, **width | {name: value})


@pytest.mark.parametrize("variant", contract.variants())
def test_a_size_that_is_left_out_is_the_default(variant: str) -> None:
    """`canonical` leaves out sizes that repeat their default, and so never changes what a layer computes."""
    for example in contract.examples(variant).values():
        for config in changed_sizes(example):
            short = _base.canonical(config)
            if short == config:
                continue
            values, inputs = drawn(config), random_inputs(config, "plain")
            both = [
                numpy_layer(Case(variant, "given", "plain", "float64", given=c), values)(**inputs)
                for c in (config, short)
            ]
            assert same(*(np.asarray(x[0] if isinstance(x, tuple) else x) for x in both)), config


@pytest.mark.parametrize(
    ("name", "variant", "fields"), [("kimi_linear", "kda", {}), ("qwen3_next", "gated_delta", {"num_key_heads": 2})]
)
def test_what_every_file_has_a_layer_must_have(name: str, variant: str, fields: Any, tmp_path: Path) -> None:
    """Convolutions, without which a file could not be read again."""
    where: dict[str, Any] = {"layout": name, "layer": 0}
    whole, plain = (contract.config(variant, d_model=8, num_heads=4, conv_size=size, **fields) for size in (2, None))
    weights.write(tmp_path / "whole", whole, drawn(whole) | zero_biases(whole), **where)
    words = f"a config that {name} can hold, got .* every layer of this layout has, got no w_k_conv, w_q_conv, w_v_conv"
    with pytest.raises(weights.ConfigMismatchError, match=words):
        weights.write(tmp_path / "plain", plain, drawn(plain) | zero_biases(plain), **where)
    assert not (tmp_path / "plain").exists()


def zero_biases(config: Config) -> Arrays:
    """The bias of the output gates, which Kimi's files do not have."""
    return {name: np.zeros(shape, np.float32) for name, shape in config.shapes().items() if name == "b_gate"}


# Tables of files alone: their layers are written as the table before them has it.
ONLY_READ = {("beit", "shared grid_bias"): "grid_bias"}


@pytest.mark.parametrize("name", FOREIGN)
def test_each_table_holds_some_example(name: str) -> None:
    """A table that is only read holds what the one that is written holds."""
    layout = layouts.get(name)
    for chosen, table in layout.tables.items():
        chosen = ONLY_READ.get((name, chosen), chosen)
        held = [reduced(table, config) for config in contract.examples(layout.variant_of(chosen)).values()]
        assert any(config is not None and layout.table_name_for(config) == chosen for config in held)


# BERT -----------------------------------------------------------------------------------------------------------------

BERT = contract.config("mha", d_model=6, num_heads=2)


def bert(layers: tuple[int, ...] = (0, 1), prefix: str = "") -> Arrays:
    """A small BERT: every kind of key that such a checkpoint has."""
    rng, found = np.random.default_rng(0), {}

    def add(name: str, *shape: int) -> None:
        found[prefix + name] = rng.normal(size=shape).astype(np.float32)

    add("embeddings.word_embeddings.weight", 11, 6)
    found[prefix + "embeddings.position_ids"] = np.arange(5)[None]
    add("embeddings.LayerNorm.weight", 6)
    for n in layers:
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            add(f"encoder.layer.{n}.attention.{part}.weight", 6, 6)
            add(f"encoder.layer.{n}.attention.{part}.bias", 6)
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            add(f"encoder.layer.{n}.{part}.weight", 6)
            add(f"encoder.layer.{n}.{part}.bias", 6)
        add(f"encoder.layer.{n}.intermediate.dense.weight", 24, 6)
        add(f"encoder.layer.{n}.output.dense.weight", 6, 24)
    add("pooler.dense.weight", 6, 6)
    if prefix:
        found["cls.predictions.bias"] = np.zeros(11, np.float32)
    return found


@pytest.mark.parametrize("prefix", ["", "bert."])
def test_bert_by_its_indices(prefix: str, tmp_path: Path) -> None:
    file, held = tmp_path / "model.safetensors", bert(prefix=prefix)
    safetensors.numpy.save_file(held, file)
    for tree in TREES.values():
        layer = tree.package.load(file, layout="bert", layer=1, num_heads=2)
        p = {name: np.asarray(tree.numpy(x)) for name, x in layer.params().items()}
        start = f"{prefix}encoder.layer.1.attention."
        for d, h, k in np.ndindex(6, 2, 3):
            for ours, theirs in (("w_q", "self.query"), ("w_k", "self.key"), ("w_v", "self.value")):
                assert p[ours][d, h, k] == held[f"{start}{theirs}.weight"][3 * h + k, d]
            assert p["w_o"][h, k, d] == held[f"{start}output.dense.weight"][d, 3 * h + k]
            assert p["b_v"][h, k] == held[f"{start}self.value.bias"][3 * h + k]
            assert p["b_o"][d] == held[f"{start}output.dense.bias"][d]
        assert layer.config == BERT


def test_bert_says_which_layers_there_are(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(bert((0, 1, 4)), file)
    for tree in TREES.values():
        with pytest.raises(ValueError, match="pass layer=, one of 0, 1, 4"):
            tree.package.load(file, layout="bert", num_heads=2)
        with pytest.raises(weights.MissingKeysError, match="layers 0, 1, 4"):
            tree.package.load(file, layout="bert", layer=2, num_heads=2)
        with pytest.raises(TypeError, match="pass num_heads="):
            tree.package.load(file, layout="bert", layer=1)
        with pytest.raises(weights.ShapeMismatchError):
            tree.package.load(file, layout="bert", layer=1, num_heads=2, d_model=8)
        with pytest.raises(weights.ConfigMismatchError, match=r"softcap=2\.0; leave it out"):
            tree.package.load(file, layout="bert", layer=1, num_heads=2, softcap=2.0)
        with pytest.raises(TypeError, match="'num_heads'"):
            tree.package.load(file, layout="bert", layer=1, num_head=2)
        with pytest.raises(ValueError, match="layout bert has"):
            tree.package.load(file, layout="bert", layer=1, num_heads=2, variant="gru")
        with pytest.raises(ValueError, match="integer from 0"):
            tree.package.load(file, layout="bert", layer=-1, num_heads=2)
    safetensors.numpy.save_file(bert((4,)), file)
    assert weights.read(file, layout="bert", num_heads=2).config == BERT


def test_bert_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    file, held = tmp_path / "model.safetensors", bert()
    start = "encoder.layer.1.attention."
    layer = TREES["numpy"].build(BERT, dtype="float32")
    before = bits(layer.params())

    def refused(change: dict[str, np.ndarray | None], error: type[Exception], words: str) -> None:
        safetensors.numpy.save_file({n: x for n, x in (held | change).items() if x is not None}, file)
        for options in ({"into": layer}, {"num_heads": 2}):
            with pytest.raises(error, match=words) as caught:
                TREES["numpy"].package.load(file, layout="bert", layer=1, **options)
            assert caught.type is error
        assert bits(layer.params()) == before

    ones = np.ones((6, 6), np.float32)
    refused({start + "self.distance_embedding.weight": ones}, weights.UnexpectedKeysError, "distance_embedding")
    refused({"decoder.weight": ones}, weights.UnexpectedKeysError, "decoder")
    refused({start + "self.key.bias": None}, weights.MissingKeysError, "self.key.bias")
    refused({start + "self.query.weight": None}, weights.MissingKeysError, "self.query.weight")
    refused(
        {start + "self.key.weight": ones[:, :5].copy()}, weights.ShapeMismatchError, r"\(6, 6\) with axes '\(h k\) i'"
    )
    refused({start + "self.key.weight": ones * np.nan}, weights.NonFiniteWeightError, "self.key.weight")
    refused({start + "self.key.weight": ones.astype(np.float16)}, weights.DtypeMismatchError, "self.key.weight")


def test_bert_takes_the_heads_from_its_config(tmp_path: Path) -> None:
    file, beside = tmp_path / "model.safetensors", tmp_path / "config.json"
    safetensors.numpy.save_file(bert(), file)
    beside.write_text(json.dumps({"hidden_size": 6, "num_attention_heads": 3, "vocab_size": 11}))
    assert weights.read(file, layout="bert", layer=0).config == contract.config("mha", d_model=6, num_heads=3)
    with pytest.raises(weights.ConfigMismatchError, match=r"'num_heads'.*expected 3 as in its config\.json, got 2"):
        weights.read(file, layout="bert", layer=0, num_heads=2)
    with pytest.raises(weights.ConfigMismatchError, match="num_heads=2, got num_heads=3"):
        weights.read(file, layout="bert", layer=0, config=BERT)
    for text in ("[]", "{", "[" * 100_000):
        beside.write_text(text)
        with pytest.raises(weights.ConfigMismatchError, match="JSON object"):
            weights.read(file, layout="bert", layer=0)


@pytest.mark.parametrize("tree", TREES)
def test_the_real_layer_against_its_recording(tree: str) -> None:
    """What transformers' BertModel computed for six sentences, with its weights."""
    folder, package = ROOT / "examples" / "minilm", TREES[tree].package
    recorded = weights.tensors(folder / "activations.safetensors")
    layer = package.load(folder / "model.safetensors", layout="bert", layer=5, num_heads=12)
    x, mask = recorded["hidden_states"], recorded["attention_mask"][:, None, None, :] == 1
    assert layer.config == contract.config("mha", d_model=384, num_heads=12)
    values = {name: np.asarray(TREES[tree].numpy(p)) for name, p in layer.params().items()}
    want, probs = reference(layer.config, values, "float32", x, mask=mask, return_weights=True)
    got, got_probs = TREES[tree](layer, {"query": x, "mask": mask}, return_weights=True)
    for y, p in ((got, got_probs), (recorded["attention_output"], recorded["attention_weights"])):
        assert agrees(y, want, "float32")
        assert agrees(p, probs, "float32")
    # The judge can tell: the same layer with its heads read in the other order.
    wrong = values | {"w_q": rearrange(rearrange(values["w_q"], "d h k -> (h k) d", SIZES), "(k h) d -> d h k", SIZES)}
    assert not agrees(got, reference(layer.config, wrong, "float32", x, mask=mask), "float32")


SIZES = {"d": 384, "h": 12, "k": 32}


# torch ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("example", ["single", "plain", "stacked"])
def test_a_torch_gru_gives_the_same_numbers(example: str, dtype: str, tmp_path: Path) -> None:
    config: Any = config_of("gru", example)
    file = tmp_path / "gru.safetensors"
    torch.manual_seed(4)
    kind = getattr(torch, dtype)
    theirs = torch.nn.GRU(
        config.input_dim, config.hidden_dim, config.num_layers, bias=config.use_bias, batch_first=True, dtype=kind
    )
    safetensors.torch.save_file(theirs.state_dict(), file)
    x = torch.rand(3, 5, config.input_dim, dtype=kind) * 2 - 1
    state = torch.rand(config.num_layers, 3, config.hidden_dim, dtype=kind) * 2 - 1
    expected = [y.detach().numpy() for y in theirs(x, state)]
    for tree in TREES.values():
        layer = tree.package.load(file, layout="torch_gru")
        assert _base.differences(layer.config, config) == []
        values = {name: np.asarray(tree.numpy(p)) for name, p in layer.params().items()}
        want = reference(layer.config, values, dtype, x.numpy(), state.numpy())
        got = tree(layer, {"x": x.numpy(), "state": state.numpy()})
        for y in (expected, got):
            assert all(agrees(a, b, dtype) for a, b in zip(y, want, strict=True))
        # And back: torch's own module takes what we write.
        tree.package.save(layer, tmp_path / "back", layout="torch_gru")
        found = safetensors.torch.load_file(tmp_path / "back")
        assert list(found) and all(torch.equal(found[name], p) for name, p in theirs.state_dict().items())
        theirs.load_state_dict(found)


def test_a_torch_module_keeps_its_projections_in_one_array_or_apart(tmp_path: Path) -> None:
    """Both are found by the variant's name, and each is written as torch keeps a module of these widths."""
    file, packed = tmp_path / "mha.safetensors", torch.nn.MultiheadAttention(6, 2, batch_first=True)
    for theirs, config in (
        (packed, contract.config("mha", d_model=6, num_heads=2)),
        (
            torch.nn.MultiheadAttention(6, 2, kdim=5, vdim=7, bias=False),
            contract.config("mha", d_model=6, num_heads=2, key_dim=5, value_dim=7, use_bias=False),
        ),
        (torch.nn.MultiheadAttention(6, 2, vdim=7), contract.config("mha", d_model=6, num_heads=2, value_dim=7)),
        (
            torch.nn.MultiheadAttention(6, 2, add_bias_kv=True),
            contract.config("mha", d_model=6, num_heads=2, memory_keys=1),
        ),
        (
            torch.nn.MultiheadAttention(6, 2, kdim=5, bias=False, add_bias_kv=True),
            contract.config("mha", d_model=6, num_heads=2, key_dim=5, value_dim=6, use_bias=False, memory_keys=1),
        ),
    ):
        safetensors.torch.save_file(theirs.state_dict(), file)
        for variant in (None, "mha"):
            layer = TREES["numpy"].package.load(file, layout="torch_mha", num_heads=2, variant=variant)
            assert _base.differences(layer.config, config) == []
        TREES["numpy"].package.save(layer, tmp_path / "back", layout="torch_mha")
        back = safetensors.torch.load_file(tmp_path / "back")
        theirs.load_state_dict(back)
        assert all(torch.equal(back[name], p) for name, p in safetensors.torch.load_file(file).items())
    three: Any = contract.config("mha", d_model=6, num_heads=2, memory_keys=3)
    both = torch.nn.MultiheadAttention(6, 2, add_bias_kv=True, add_zero_attn=True)
    safetensors.torch.save_file(both.state_dict(), file)
    with pytest.raises(
        weights.UnexpectedKeysError, match="'sinks' without bias_k, got this tensor; pass variant='mha'"
    ):
        weights.read(file, layout="torch_mha", num_heads=2, variant="sinks")
    with pytest.raises(weights.ConfigMismatchError, match="memory_keys=3"):
        weights.write(file, three, drawn(three), layout="torch_mha")
    held = packed.state_dict()
    del held["in_proj_weight"]
    safetensors.torch.save_file(held, file)
    with pytest.raises(weights.MissingKeysError, match="in_proj_weight"):
        weights.read(file, layout="torch_mha", num_heads=2)


def refused_by(layout: str, path: Path, config: Config, change: Arrays, error: type[Exception], words: str) -> None:
    """A file of a config with other arrays among it is refused."""
    weights.write(path, config, drawn(config), layout=layout)
    safetensors.numpy.save_file(weights.tensors(path) | change, path)
    with pytest.raises(error, match=words):
        weights.read(path, layout=layout, variant=config.variant, num_heads=config.sizes()["h"])


def test_what_modules_of_others_have_and_ours_do_not(tmp_path: Path) -> None:
    """Norms of queries, a gate, a bias of another width than its weight's, a bias on one projection alone."""
    path, ones = tmp_path / "module.safetensors", np.ones(5, np.float32)
    wide: Any = contract.config("mha", d_model=7, num_heads=3, head_dim=5)
    unknown = weights.UnexpectedKeysError
    grouped: Any = contract.config("gqa", d_model=7, num_heads=6, num_kv_heads=3, head_dim=5)
    for config in (wide, grouped):
        refused_by(
            "flax_mha", path, config, {"query_ln.scale": ones}, unknown, "'query_ln.scale': .* without norms of q"
        )
        refused_by("keras_mha", path, config, {"gate.kernel": ones}, unknown, "'gate.kernel': .* without gates")
    other = {"out.kernel": np.ones((3, 5, 11), np.float32)}
    refused_by("flax_mha", path, wide, other, weights.ShapeMismatchError, r"'out\.kernel'|'out\.bias'")
    bare: Any = contract.config("mha", d_model=7, num_heads=3, head_dim=5, use_bias=False)
    one = {"query_proj.bias": np.ones(15, np.float32)}
    refused_by("equinox_mha", path, bare, one, weights.MissingKeysError, r"key_proj\.bias")
    capped: Any = contract.config("mha", d_model=6, num_heads=2, softcap=1.5)
    for layout in ("torch_mha", "flax_mha", "keras_mha", "equinox_mha"):
        with pytest.raises(weights.ConfigMismatchError, match=r"softcap=1\.5"):
            weights.write(path, capped, drawn(capped), layout=layout)
    narrow: Any = contract.config("mha", d_model=7, num_heads=3, head_dim=5, value_head_dim=2)
    for layout, what in (("torch_mha", "head_dim=5"), ("flax_mha", "value_head_dim=2")):
        with pytest.raises(weights.ConfigMismatchError, match=what):
            weights.write(path, narrow, drawn(narrow), layout=layout)


def test_outputs_of_another_width(tmp_path: Path) -> None:
    """The width is read from the file where the module may have one; another layout refuses to write it."""
    path = tmp_path / "module.safetensors"
    config: Any = contract.config("mha", d_model=12, num_heads=3, output_dim=5)
    for layout in ("keras_mha", "flax_mha", "equinox_mha", "torch_linear"):
        weights.write(path, config, drawn(config), layout=layout)
        assert weights.read(path, layout=layout, variant="mha", num_heads=3).config == config
    with pytest.raises(weights.ConfigMismatchError, match="output_dim=5"):
        weights.write(path, config, drawn(config), layout="torch_mha")


@pytest.mark.parametrize("separator", [".", "/"])
@pytest.mark.parametrize(
    ("layout", "variant", "fields"),
    [
        ("flax_mha", "mha", {}),
        ("flax_mha", "gqa", {"num_kv_heads": 3}),
        ("flax_mha", "qk_norm", {"norm": "layer"}),
        ("flax_mha", "qk_norm", {"norm": "layer", "num_kv_heads": 3}),
        ("keras_mha", "mha", {"value_head_dim": 2}),
        ("keras_mha", "gqa", {"num_kv_heads": 3}),
        ("keras_mha", "gated", {}),
    ],
)
def test_the_file_decides_which_variant_a_module_is(
    layout: str, variant: str, fields: dict[str, Any], separator: str, tmp_path: Path
) -> None:
    """Keys, and the sizes of axes of one meaning; dots and slashes."""
    path, config = (
        tmp_path / "module.safetensors",
        contract.config(variant, d_model=7, num_heads=6, head_dim=5, **fields),
    )
    weights.write(path, config, drawn(config), layout=layout, prefix="part.")
    held = {key.replace(".", separator): x for key, x in weights.tensors(path).items()}
    safetensors.numpy.save_file(held, path)
    for prefix in ("part.", f"part{separator}"):
        found = weights.read(path, layout=layout, prefix=prefix)
        assert found.config.variant == variant and _base.differences(found.config, config) == []
        assert bits(found.values) == bits(drawn(config))
    both = held | {"part.query.kernel": held[f"part{separator}query{separator}kernel"]}
    if separator == "/":
        safetensors.numpy.save_file(both, path)
        with pytest.raises(weights.UnexpectedKeysError, match="one name for each tensor"):
            weights.read(path, layout=layout, prefix="part.")


@pytest.mark.parametrize("fields", [{}, {"reset_after": False}, {"use_bias": False}])
def test_the_inner_layer_of_keras_bidirectional_may_have_any_name(fields: dict[str, Any], tmp_path: Path) -> None:
    """Two of them in one model; the prefix tells them apart, not the name."""
    file, found = tmp_path / "gru.safetensors", {}
    config: Any = contract.config("gru", input_dim=3, hidden_dim=5, bidirectional=True, **fields)
    for seed, (prefix, inner) in enumerate({"both/": "gru_7", "forward_a/": "reader"}.items()):
        values = weights.draw(config, seed, "float32")
        weights.write(file, config, values, layout="keras_bidirectional_gru")
        held = weights.tensors(file)
        assert set(held) >= {f"{way}_gru.gru_cell.recurrent_kernel" for way in ("forward", "backward")}
        found |= {prefix + key.replace("_gru.", f"_{inner}.").replace(".", "/"): x for key, x in held.items()}
    safetensors.numpy.save_file(found, file)
    for seed, prefix in enumerate(("both/", "forward_a/")):
        again = weights.read(file, layout="keras_bidirectional_gru", prefix=prefix)
        assert _base.differences(again.config, config) == []
        assert bits(again.values) == bits(weights.draw(config, seed, "float32"))


def test_a_gate_without_a_bias_has_zeros_here(tmp_path: Path) -> None:
    """Linen's cell has a bias of one gate beside the state's products; others can't be written."""
    file, config = tmp_path / "cell.safetensors", contract.config("gru", input_dim=3, hidden_dim=5)
    values = weights.draw(config, 1, "float32")
    with pytest.raises(
        weights.ConfigMismatchError, match=r"'layers.0.b_h': expected zeros where linen_gru_cell has no hr"
    ):
        weights.write(file, config, values, layout="linen_gru_cell")
    values["layers.0.b_h"][:2] = 0
    weights.write(file, config, values, layout="linen_gru_cell")
    theirs = weights.tensors(file)
    assert np.array_equal(theirs["hn.bias"], values["layers.0.b_h"][2]) and not {"hr.bias", "hz.bias"} & set(theirs)
    for n, gate in enumerate("rzn"):
        assert np.array_equal(theirs[f"i{gate}.kernel"], values["layers.0.w_x"][n])
        assert np.array_equal(theirs[f"h{gate}.kernel"], values["layers.0.w_h"][n])
    assert bits(weights.read(file, layout="linen_gru_cell").values) == bits(values)
    shapes = {key: x.shape for key, x in theirs.items()}
    table = layouts.get("linen_gru_cell").tables["gru"]
    assert _base.letter_sizes_agree(table, shapes)  # the axis that stacks the gates is none of a file's array
    assert not _base.letter_sizes_agree(table, shapes | {"hz.kernel": (5, 4)})


def test_a_gru_in_two_directions_loads_and_writes_back(tmp_path: Path) -> None:
    file, back = tmp_path / "gru.safetensors", tmp_path / "back.safetensors"
    theirs = torch.nn.GRU(3, 5, num_layers=2, bidirectional=True).state_dict()
    safetensors.torch.save_file(theirs, file)
    found = weights.read(file, layout="torch_gru")
    config: Any = found.config
    assert config.bidirectional and config.num_layers == 2
    weights.write(back, config, found.values, layout="torch_gru")
    written = safetensors.torch.load_file(back)
    assert written.keys() == theirs.keys() and all(torch.equal(written[name], p) for name, p in theirs.items())


def test_a_gru_without_a_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "gru.safetensors"
    safetensors.torch.save_file({"weight_ih_l0": torch.ones(15, 3)}, file)
    with pytest.raises(weights.MissingKeysError, match="weight_hh_l0"):
        weights.read(file, layout="torch_gru")


@pytest.mark.parametrize("example", ["split", "cross"])
def test_the_module_of_linears_gives_the_same_numbers(example: str, tmp_path: Path) -> None:
    module = runpy.run_path(str(ROOT / "examples" / "torch_linear_module.py"))["LinearAttentionModule"]
    config: Any = config_of("mha", example)
    file = tmp_path / "module.safetensors"
    values = weights.draw(config, 6, "float64")
    weights.write(file, config, values, layout="torch_linear")
    theirs = module(config, torch.float64)
    theirs.load_state_dict(safetensors.torch.load_file(file))
    n, rng = config.sizes(), np.random.default_rng(2)
    inputs = [rng.normal(size=shape) for shape in ((2, 5, n["d"]), (2, 3, n["i"]), (2, 3, n["j"]))]
    mask = rng.random((2, 1, 5, 3)) < 0.7
    mask[..., 1] = True
    want = reference(config, values, "float64", *inputs, mask=mask)
    got = theirs(*map(torch.from_numpy, inputs), mask=torch.from_numpy(mask))
    assert agrees(got.detach().numpy(), want, "float64")
    for tree in TREES.values():
        layer = tree.package.load(file, layout="torch_linear", variant="mha", num_heads=config.num_heads)
        arrays = dict(zip(("query", "key", "value"), inputs, strict=True))
        assert agrees(tree(layer, arrays | {"mask": mask})[0], want, "float64")


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "torch_linear_module.py"), run_name="__main__")
    assert "the same bits: True" in capsys.readouterr().out


# One variant as another -----------------------------------------------------------------------------------------------


def convertible(source: str, target: str) -> Iterator[str]:
    for example, config in contract.examples(source).items():
        try:
            weights.convert(config, weights.draw(config, 0, "float32"), target)
        except weights.ConfigMismatchError:
            continue
        yield example


FREE = {"d_model": 7, "head_dim": 3, "dropout": 0.25, "softcap": 1.5}
CONVERTED = {
    "fused_qkv": [
        FREE | {"num_heads": n, "use_output": o, "use_bias": b}
        for n in (1, 2)
        for o in (True, False)
        for b in (True, False)
    ]
    + [FREE | {"num_heads": 1, "use_output": True} | more for more in ({"output_dim": 5}, {"memory_keys": 3})],
    "mha": [FREE | {"num_heads": n, "use_bias": b} for n in (1, 2) for b in (True, False)],
    "self_attention": [FREE | {"use_output": o, "use_bias": b} for o in (True, False) for b in (True, False)],
}


def test_what_can_be_converted() -> None:
    """Exactly the configs that mean the same."""
    possible = {
        ("fused_qkv", "mha"): lambda c: c.use_output,
        ("fused_qkv", "self_attention"): lambda c: c.num_heads == 1 and c.memory_keys is None,
        ("mha", "fused_qkv"): lambda c: True,
        ("self_attention", "fused_qkv"): lambda c: True,
    }
    assert set(possible) == set(PAIRS)
    for (source, target), fits in possible.items():
        for fields in CONVERTED[source]:
            config = contract.config(source, **fields)
            values = drawn(config)
            if not fits(config):
                with pytest.raises(weights.ConfigMismatchError, match=f"a config that {target} can express"):
                    weights.convert(config, values, target)
                continue
            other, moved = weights.convert(config, values, target)
            assert other.variant == target
            assert sum(x.size for x in moved.values()) == sum(x.size for x in values.values())
            back, again = weights.convert(other, moved, source)
            assert bits(again) == bits(values)
            assert _base.differences(back, config) == []
            x = np.random.default_rng(1).normal(size=(2, 5, 7))
            want = reference(config, values, "float64", x)
            tree = TREES["numpy"]
            layer = numpy_layer(
                Case(target, "given", "plain", "float64", given=other), {n: widened(v) for n, v in moved.items()}
            )
            assert agrees(tree(layer, {"query": x})[0].reshape(want.shape), want, "float64")


def test_stacked_by_its_indices() -> None:
    config = contract.config("mha", d_model=5, num_heads=2, head_dim=3)
    values = drawn(config)
    _, fused = weights.convert(config, values, "fused_qkv")
    for p, name in enumerate(("w_q", "w_k", "w_v")):
        for d, h, k in np.ndindex(5, 2, 3):
            assert fused["w_qkv"][d, p, h, k] == values[name][d, h, k]
            assert fused["b_qkv"][p, h, k] == values[name.replace("w", "b")][h, k]
    config = contract.config("self_attention", d_model=5, head_dim=3, use_output=True)
    values = drawn(config)
    _, fused = weights.convert(config, values, "fused_qkv")
    for p, name in enumerate(("w_q", "w_k", "w_v")):
        for d, k in np.ndindex(5, 3):
            assert fused["w_qkv"][d, p, 0, k] == values[name][d, k]


def test_conversions_that_would_lose_something() -> None:
    for fields in ({"key_dim": 5}, {"value_dim": 5}, {"value_head_dim": 2}, {"normalize_over": "queries"}):
        config = contract.config("mha", d_model=6, num_heads=2, **fields)
        with pytest.raises(weights.ConfigMismatchError, match=f"{next(iter(fields))}="):
            weights.convert(config, drawn(config), "fused_qkv")
    with pytest.raises(ValueError, match="it has no equal"):
        weights.convert(config_of("gru", "single"), drawn(config_of("gru", "single")), "mha")
    with pytest.raises(ValueError, match="did you mean 'fused_qkv'"):
        weights.convert(BERT, drawn(BERT), "fused_qvk")


def test_a_file_of_one_variant_loads_as_another(tmp_path: Path) -> None:
    file, config = tmp_path / "fused.safetensors", contract.config("fused_qkv", d_model=6, num_heads=2, use_output=True)
    values = drawn(config)
    weights.write(file, config, values)
    _, expected = weights.convert(config, values, "mha")
    for tree in TREES.values():
        layer = tree.package.load(file, layout="fused_qkv", variant="mha")
        assert layer.config == BERT
        assert bits({n: np.asarray(tree.numpy(x)) for n, x in layer.params().items()}) == bits(expected)
        other = tree.build(BERT, dtype="float32")
        tree.package.load(file, into=other, layout="fused_qkv")
        assert bits({n: np.asarray(tree.numpy(x)) for n, x in other.params().items()}) == bits(expected)
        with pytest.raises(weights.ConfigMismatchError, match="layout='fused_qkv'"):
            tree.package.load(file, into=other)
        tree.package.save(other, tmp_path / "mha")
        fused = tree.package.load(tmp_path / "mha", layout="mha", variant="fused_qkv")
        assert bits({n: np.asarray(tree.numpy(x)) for n, x in fused.params().items()}) == bits(values)
        with pytest.raises(ValueError, match=r"weights\.convert"):
            tree.package.save(other, tmp_path / "x", layout="fused_qkv")


def test_every_layout_moves_whole_arrays() -> None:
    """A rule that dropped or repeated a number would change the count."""
    for name, variant in TABLES:
        table = layouts.get(name).tables[variant]
        for example in contract.examples(layouts.get(name).variant_of(variant)).values():
            config = reduced(table, example) if layouts.get(name).own_variant is None else None
            if config is not None:
                for applied in _base.applied_rules(table, config):
                    ours = sum(prod(config.shapes()[param]) for param in applied.params)
                    assert ours == prod(applied.key_shape()) * len(applied.keys)


# What only some families need -----------------------------------------------------------------------------------------

SELF, CROSS = "encoder.block.{layer}.layer.0.", "decoder.block.{layer}.layer.1."
INVENTED = layouts.Layout(
    origin="nobody",
    prefixes={"encoder": (SELF, f"model.{SELF}"), "cross": (CROSS,)},
    tables={
        "t5_bias": layouts.Table(
            rules={
                ("w_q", "w_k", "w_v"): ("qkv.weight", "(h (k | k | v)) d -> d h k, d h k, d h v"),
                "w_o": ("o.weight", "d (h v) -> h v d"),
                ("b_q", "b_v"): ("qv.bias", "(h k | h v) -> h k, h v"),
                "b_k": ("k.bias", "(h k) -> h k"),
                "b_o": ("o.bias", "d -> d"),
                "w_bias": ("relative.weight", "x h -> x h"),
            },
            letters={"d_model": "d", "num_heads": "h", "head_dim": "k", "value_head_dim": "v", "num_buckets": "x"},
            flags={"use_bias": ("b_o",)},
            absent=("k.bias",),
            first_layer_keys=("relative.weight",),
            keys_beside_layers=("o.bias",),
        ),
        "without biases": layouts.Table(
            rules={
                "w_q": ("q.weight", "(h k) d -> d h k"),
                "w_k": ("k.weight", "(h k) i -> i h k"),
                "w_v": ("v.weight", "(h v) j -> j h v"),
                "w_o": ("o.weight", "d (h v) -> h v d"),
            },
            letters={"d_model": "d", "num_heads": "h"},
            fixed={"use_bias": False},
            variant="mha",
        ),
    },
    elsewhere=("encoder.block.*", "encoder.o.bias"),
)


def test_blocks_shared_keys_and_biases_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table as T5's or Whisper's: blocks in a layer, keys in layer 0 or beside all, a bias on two of three."""
    monkeypatch.setattr(layouts, "get", lambda name: INVENTED)
    file = tmp_path / "model.safetensors"
    sizes: dict[str, Any] = {"num_heads": 2, "head_dim": 3, "value_head_dim": 5}
    config: Any = contract.config("t5_bias", d_model=7, num_buckets=4, max_distance=6, use_bias=True, **sizes)
    values = drawn(config)
    where: dict[str, Any] = {"layout": "nobody", "layer": 3, "part": "encoder"}
    with pytest.raises(weights.ConfigMismatchError, match="max_distance=6"):
        weights.write(file, config, values, **where)
    config = dataclasses.replace(config, max_distance=128)
    with pytest.raises(weights.ConfigMismatchError, match=r"'b_k': expected zeros where nobody has no k\.bias"):
        weights.write(file, config, values, **where)
    values["b_k"] = np.zeros_like(values["b_k"])
    weights.write(file, config, values, **where)
    held = weights.tensors(file)
    start = "encoder.block.3.layer.0."
    assert set(held) == {f"{start}{n}" for n in ("qkv.weight", "o.weight", "qv.bias")} | {
        "encoder.block.0.layer.0.relative.weight",
        "encoder.o.bias",
    }
    assert held[f"{start}qkv.weight"][11 + 3 + 2, 6] == values["w_k"][6, 1, 2]
    assert held[f"{start}qv.bias"][6 + 5 + 4] == values["b_v"][1, 4]
    found = weights.read(file, variant="t5_bias", **where, **sizes)
    assert bits(found.values) == bits(values) and found.config == _base.canonical(config)
    with pytest.raises(ValueError, match=r"expected part= to be one of encoder, cross, got None"):
        weights.read(file, variant="t5_bias", layout="nobody", layer=3, **sizes)
    with pytest.raises(weights.MissingKeysError, match=r"decoder\.block\.3"):
        weights.read(file, variant="t5_bias", layout="nobody", layer=3, part="cross", **sizes)
    cross: Any = contract.config("mha", d_model=6, num_heads=2, use_bias=False)
    weights.write(file, cross, drawn(cross), layout="nobody", layer=0, part="cross")
    found = weights.read(file, layout="nobody", variant="mha", layer=0, part="cross", num_heads=2)
    assert bits(found.values) == bits(drawn(cross)) and found.config == cross
    both: Any = contract.config("mha", d_model=6, num_heads=2)
    with pytest.raises(weights.ConfigMismatchError, match="use_bias=True"):
        weights.write(file, both, drawn(both), layout="nobody", layer=0, part="cross")
    with pytest.raises(ValueError, match="expected a variant that layout nobody has, got None"):
        weights.read(file, layout="nobody", layer=0, part="cross")
