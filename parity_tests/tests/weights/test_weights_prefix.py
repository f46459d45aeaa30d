"""Our own names in a whole model's file: one layer by its prefix, with the config from the caller or the metadata."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.flax
import safetensors.numpy
import safetensors.torch
import torch
from flax import nnx

import attn_jax
import attn_torch
from attn_np import contract, weights
from attn_np.weights import _safetensors, _shards
from parity_tests.tests.inputs import EXAMPLES, TREES, Arrays, config_of
from parity_tests.tests.weights.test_weights import WORDS, bits, values_of

FIELDS: dict[str, Any] = {"d_model": 12, "num_heads": 3, "num_kv_heads": 1, "rope_base": 500.0, "causal": True}
CONFIG = contract.config("decoder", **FIELDS)
WHERE: dict[str, Any] = {"prefix": "blocks.0.attn.", "variant": "decoder"}
PREFIXES = ("blocks.0.attn.", "blocks.1.attn.")


def model(dtype: str = "float32") -> Arrays:
    """Two layers of decoder and everything else that a small model has."""
    kind = weights.draw(CONFIG, 0, dtype)["w_q"].dtype
    tensors = {
        "embed.weight": np.ones((7, 12)),
        "norm.weight": np.ones(12),
        "blocks.10.mlp.up.weight": np.ones((5, 12)),
    }
    tensors = {name: x.astype(kind) for name, x in tensors.items()}
    for n, prefix in enumerate(PREFIXES):
        tensors |= {prefix + name: x for name, x in weights.draw(CONFIG, n, dtype).items()}
        tensors |= {f"blocks.{n}.mlp.up.weight": np.full((5, 12), n, kind)}
    return tensors


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(model(), path)
    return path


def refused(file: Path, error: type[Exception], *words: str, **options: Any) -> None:
    """The three trees refuse in the same words."""
    texts = set()
    for tree in TREES.values():
        with pytest.raises(error) as caught:
            tree.package.load(file, **options)
        assert caught.type is error
        texts.add(str(caught.value))
    text = texts.pop()
    assert not texts and WORDS.fullmatch(text)
    assert all(word in text for word in words), text


# What models are saved as ---------------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    """One block of a user's model."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(12)
        self.attn = attn_torch.build("decoder", seed=seed, **FIELDS)
        self.mlp = torch.nn.Linear(12, 12)


class FlaxModel(nnx.Module):
    """The same in Flax."""

    def __init__(self) -> None:
        self.blocks = nnx.List([attn_jax.build("decoder", seed=n, **FIELDS) for n in range(2)])
        self.head = nnx.Linear(12, 5, rngs=nnx.Rngs(0))


def test_a_torch_users_model_in_every_tree(tmp_path: Path) -> None:
    """`save_file(model.state_dict())`, as safetensors' own page tells it."""
    whole, path = torch.nn.ModuleDict({"blocks": torch.nn.ModuleList([Block(0), Block(1)])}), tmp_path / "model"
    safetensors.torch.save_file(whole.state_dict(), path)
    for n in range(2):
        for tree in TREES.values():
            layer = tree.package.load(path, variant="decoder", prefix=f"blocks.{n}.attn.", **FIELDS)
            assert layer.config == CONFIG and not tree.is_training(layer)
            assert bits(values_of(tree, layer)) == bits(weights.draw(CONFIG, n, "float32"))


def test_a_flax_users_model_in_every_tree(tmp_path: Path) -> None:
    state, path = nnx.to_flat_state(nnx.state(FlaxModel(), nnx.Param)), tmp_path / "model"
    safetensors.flax.save_file({".".join(map(str, keys)): x[...] for keys, x in state}, path)
    for tree in TREES.values():
        layer = tree.package.load(path, variant="decoder", prefix="blocks.1.", **FIELDS)
        assert bits(values_of(tree, layer)) == bits(weights.draw(CONFIG, 1, "float32"))


@pytest.mark.parametrize(("variant", "example"), EXAMPLES)
def test_every_variant_by_its_prefix(variant: str, example: str, tmp_path: Path) -> None:
    config, path = config_of(variant, example), tmp_path / "model"
    values = weights.draw(config, 3, "float32")
    safetensors.numpy.save_file(
        {f"a.b.{name}": x for name, x in values.items()} | {"a.c": np.ones(2), "a.bc": np.ones(3)}, path
    )
    found = weights.read(path, prefix="a.b.", variant=variant, **config.as_dict())
    assert found.config == config and bits(found.values) == bits(values)
    assert bits(weights.read(path, prefix="a.b.", config=config).values) == bits(values)


# The caller's config --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TREES)
def test_into_a_layer(name: str, file: Path) -> None:
    """Its config is the file's; the caller's fields must agree with it."""
    tree = TREES[name]
    layer = tree.training(tree.build(CONFIG, seed=9, dtype="float32"))
    assert tree.package.load(file, into=layer, prefix="blocks.1.attn.", num_heads=3) is layer
    assert bits(values_of(tree, layer)) == bits(weights.draw(CONFIG, 1, "float32"))
    assert not tree.is_training(layer)
    with pytest.raises(weights.ConfigMismatchError, match=r"num_heads=2.*num_heads=3"):
        tree.package.load(file, into=layer, prefix="blocks.0.attn.", num_heads=2)
    with pytest.raises(ValueError, match="expected variant 'decoder' for this layer, got 'mha'"):
        tree.package.load(file, into=layer, prefix="blocks.0.attn.", variant="mha")
    assert bits(values_of(tree, layer)) == bits(weights.draw(CONFIG, 1, "float32"))


def test_dtype_cast_and_finite_as_for_our_files(tmp_path: Path) -> None:
    path, tensors = tmp_path / "model", model("float64")
    tensors["blocks.1.attn.w_o"][0, 0, 0] = np.nan
    tensors["embed.weight"][0, 0] = np.inf  # of another layer
    safetensors.numpy.save_file(tensors, path)
    for tree in TREES.values():
        assert tree.package.load(path, dtype="float32", cast=True, **WHERE, **FIELDS).w_q.dtype
    refused(path, weights.DtypeMismatchError, "pass cast=True", dtype="float32", **WHERE, **FIELDS)
    refused(path, weights.NonFiniteWeightError, "'blocks.1.attn.w_o'", **WHERE | {"prefix": PREFIXES[1]}, **FIELDS)
    weights.read(path, finite=False, **WHERE | {"prefix": PREFIXES[1]}, **FIELDS)


def test_a_file_that_is_one_bare_layer(tmp_path: Path) -> None:
    """`save_file(layer.state_dict())`: our names, no metadata, and the caller says that they are ours."""
    path, values = tmp_path / "layer", weights.draw(CONFIG, 4, "float32")
    safetensors.numpy.save_file(values, path)
    refused(path, weights.FormatMismatchError, "pass variant= and the fields of its Config", "layout=")
    refused(path, weights.FormatMismatchError, "pass variant=", **FIELDS)
    for tree in TREES.values():
        assert bits(values_of(tree, tree.package.load(path, variant="decoder", **FIELDS))) == bits(values)
        layer = tree.build(CONFIG, seed=9, dtype="float32")
        assert bits(values_of(tree, tree.package.load(path, variant="decoder", into=layer))) == bits(values)
        with pytest.raises(weights.FormatMismatchError):
            tree.package.load(path, into=layer)


def test_a_preset_and_its_fields(tmp_path: Path) -> None:
    fields = FIELDS | {"rope_layout": "interleaved"}
    path, config = tmp_path / "model", contract.config("decoder", **fields)
    values = weights.draw(config, 0, "float32")
    safetensors.numpy.save_file({f"a.{name}": x for name, x in values.items()}, path)
    for tree in TREES.values():
        assert tree.package.load(path, prefix="a.", variant="decoder", **fields).config == config
    refused(path, TypeError, "'rope_layout'", prefix="a.", variant="mha", rope_layout="half", d_model=12, num_heads=3)
    name, (variant, preset) = next(iter(contract.presets().items()))
    sizes = next(c for c in contract.examples(variant).values()).as_dict() | dict(preset.fields)
    values = weights.draw(contract.config(variant, **sizes), 0, "float32")
    safetensors.numpy.save_file({f"a.{key}": x for key, x in values.items()}, path)
    rest = {key: x for key, x in sizes.items() if key not in preset.fields}
    assert weights.read(path, prefix="a.", variant=name, **rest).config == contract.config(name, **rest)


def test_converted_from_another_variant(tmp_path: Path) -> None:
    path, config = tmp_path / "model", contract.config("fused_qkv", d_model=6, num_heads=2, use_output=True)
    values = weights.draw(config, 0, "float32")
    safetensors.numpy.save_file({f"a.{name}": x for name, x in values.items()}, path)
    want, moved = weights.convert(config, values, "mha")
    options: dict[str, Any] = {"prefix": "a.", "layout": "fused_qkv", "variant": "mha"}
    for tree in TREES.values():
        layer = tree.package.load(path, **options, d_model=6, num_heads=2, use_output=True)
        assert layer.config == want and bits(values_of(tree, layer)) == bits(moved)


# Refusals -------------------------------------------------------------------------------------------------------------


def test_a_prefix_that_is_not_there(file: Path) -> None:
    for prefix, near in (("blocks.0.attn", 0), ("blocks.2.attn.", 1), ("block.0.attn.", 0)):
        hint = f"for prefix= did you mean {PREFIXES[near]!r}"
        options = WHERE | FIELDS | {"prefix": prefix}
        refused(file, weights.MissingKeysError, f"after the prefix {prefix!r}", hint, **options)
    options = WHERE | FIELDS | {"prefix": "blocks.0.mlp."}
    refused(file, weights.MissingKeysError, "'blocks.0.attn.', 'blocks.1.attn.'", **options)
    options = WHERE | FIELDS | {"prefix": ""}
    refused(file, weights.MissingKeysError, "other prefixes 'blocks.0.attn.', 'blocks.1.attn.'", **options)
    gru = {"variant": "gru", "input_dim": 2, "hidden_dim": 3, "prefix": "blocks.0.attn."}
    refused(file, weights.MissingKeysError, "check variant=, or name the layout=", **gru)


def test_keys_that_are_missing_or_too_many(tmp_path: Path) -> None:
    path, tensors = tmp_path / "model", model()
    safetensors.numpy.save_file({key: x for key, x in tensors.items() if key != "blocks.0.attn.w_k"}, path)
    refused(path, weights.MissingKeysError, "expected the key 'blocks.0.attn.w_k'", **WHERE, **FIELDS)
    safetensors.numpy.save_file(tensors | {"blocks.0.attn.w_extra": np.ones(2)}, path)
    refused(path, weights.UnexpectedKeysError, "'blocks.0.attn.w_extra'", **WHERE, **FIELDS)
    refused(path, weights.MissingKeysError, "'blocks.0.attn.b_q'", **WHERE, **FIELDS, qkv_bias=True)


def test_a_layer_without_biases(tmp_path: Path) -> None:
    fields, path = {"d_model": 12, "num_heads": 3}, tmp_path / "model"
    bare = weights.draw(contract.config("mha", **fields, use_bias=False), 0, "float32")
    safetensors.numpy.save_file({f"a.{name}": x for name, x in bare.items()}, path)
    refused(path, weights.MissingKeysError, "; set use_bias=False, or", prefix="a.", variant="mha", **fields)
    safetensors.numpy.save_file({f"a.{name}": x for name, x in bare.items() if name != "w_k"}, path)
    refused(path, weights.MissingKeysError, "'a.w_v'; add them, or", prefix="a.", variant="mha", **fields)


def test_shapes_that_do_not_fit(file: Path) -> None:
    refused(file, weights.ShapeMismatchError, "'blocks.0.attn.w_q'", "(12, 2, 6)", **WHERE, **FIELDS | {"num_heads": 2})
    refused(file, weights.ShapeMismatchError, "'blocks.0.attn.", **WHERE, **FIELDS | {"d_model": 24})


def test_fields_that_are_missing_or_unknown(file: Path) -> None:
    refused(file, TypeError, "decoder: expected a value for d_model, num_heads, got none", **WHERE)
    refused(file, TypeError, "expected one of its fields, got 'num_head'", **WHERE, **FIELDS, num_head=3)
    refused(file, ValueError, "num_heads divisible by num_kv_heads", **WHERE, **FIELDS | {"num_kv_heads": 2})
    refused(file, weights.FormatMismatchError, "pass variant= and the fields", prefix="blocks.0.attn.")
    for options in ({"layer": 0}, {"part": "cross"}):
        refused(file, ValueError, "or pass prefix= for our own names", **WHERE, **FIELDS, **options)


def test_arguments_of_load_that_are_nearly_right(file: Path) -> None:
    """A field that is near an argument is still a field."""
    words = "load: expected its own arguments or fields of the Config, got"
    refused(file, TypeError, f"{words} varient=; did you mean variant=?", varient="decoder")
    refused(file, TypeError, f"{words} layr=; did you mean layer=?", **WHERE, **FIELDS, layr=0)
    refused(file, TypeError, "got 'causl'; did you mean 'causal'", **WHERE, **FIELDS, causl=True)
    refused(file, weights.ShapeMismatchError, "'blocks.0.attn.", **WHERE, **FIELDS | {"num_kv_heads": 3}, scale=2.0)


@pytest.mark.parametrize("mixed", [False, True])
def test_adapters_that_are_not_merged_are_told_to_be(tmp_path: Path, mixed: bool) -> None:
    """As peft names them: beside the layer's own weight, which is `base_layer`, or with nothing else."""
    path, before = tmp_path / "model", weights.draw(CONFIG, 0, "float32")
    adapters = {f"a.w_q.lora_{x}.default.weight": np.ones((2, 12), "float32") for x in "AB"}
    base = {f"a.{name}": x for name, x in before.items() if name != "w_q"}
    base |= {"a.w_q.base_layer.weight": before["w_q"].reshape(12, -1).T.copy()}
    safetensors.numpy.save_file(adapters | (base if mixed else {}), path)
    words = "got keys of adapters; merge the adapters into the model first, model.merge_and_unload() of peft"
    refused(path, weights.MissingKeysError, "'a.w_q'", words, prefix="a.", variant="decoder", **FIELDS)
    refused(path, weights.MissingKeysError, words.partition("; ")[2], layout="llama", prefix="a.", rope_base=500.0)
    safetensors.numpy.save_file(base | {"a.w_q": before["w_q"]} | (adapters if mixed else {}), path)
    refused(path, weights.UnexpectedKeysError, words.partition("; ")[2], prefix="a.", variant="decoder", **FIELDS)


def test_a_file_from_the_future_is_not_taken_for_a_model(tmp_path: Path) -> None:
    path = tmp_path / "model"
    safetensors.numpy.save_file(model(), path, metadata={"format": "attn-parity/2"})
    refused(path, weights.FormatMismatchError, "newer version", **WHERE, **FIELDS)
    safetensors.numpy.save_file(model(), path, metadata={"format": "pt"})
    assert weights.read(path, **WHERE, **FIELDS).config == CONFIG


# Shards ---------------------------------------------------------------------------------------------------------------


def sharded(folder: Path) -> Path:
    """A model in a shard for each layer and one for the rest, with metadata of their own."""
    shard_of = {}
    for key in model():
        numbers = [n for n in range(2) if key.startswith(f"blocks.{n}.")]
        shard_of[key] = f"{numbers[0]}.safetensors" if numbers else "rest.safetensors"
    for shard in set(shard_of.values()):
        own = {key: x for key, x in model().items() if shard_of[key] == shard}
        safetensors.numpy.save_file(own, folder / shard, metadata={"format": "pt", "shard": shard})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": shard_of}))
    return index


def test_a_layer_of_a_sharded_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its own shard is opened: the others may be absent, and may say other things about themselves."""
    index, opened = sharded(tmp_path), []

    class Watched(_safetensors.TensorFile):
        def __init__(self, path: str) -> None:
            opened.append(Path(path).name)
            super().__init__(path)

    monkeypatch.setattr(_shards, "TensorFile", Watched)
    (tmp_path / "rest.safetensors").unlink()
    for tree in TREES.values():
        layer = tree.package.load(index, **WHERE | {"prefix": PREFIXES[1]}, **FIELDS)
        assert bits(values_of(tree, layer)) == bits(weights.draw(CONFIG, 1, "float32"))
    assert opened == ["1.safetensors"] * len(TREES)
    options = WHERE | FIELDS | {"prefix": "blocks.7.attn."}
    refused(index, weights.MissingKeysError, "did you mean 'blocks.1.attn.'", **options)


# Our own files with a prefix ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TREES)
def test_save_writes_the_prefix_and_the_config(name: str, tmp_path: Path) -> None:
    tree, path = TREES[name], tmp_path / "layer.safetensors"
    layer = tree.build(CONFIG, seed=5, dtype="float32")
    tree.package.save(layer, path, prefix="blocks.0.attn.")
    values = weights.draw(CONFIG, 5, "float32")
    assert weights.tensors(path).keys() == {f"blocks.0.attn.{key}" for key in values}
    for other in TREES.values():
        for options in ({}, {"prefix": "blocks.0.attn."}, {"variant": "decoder"} | FIELDS):
            found = other.package.load(path, **options)
            assert found.config == CONFIG and bits(values_of(other, found)) == bits(values)
    refused(path, weights.MissingKeysError, "pass prefix='blocks.0.attn.'", prefix="blocks.1.attn.")
    refused(path, weights.ConfigMismatchError, "num_heads=2", prefix="blocks.0.attn.", num_heads=2)
    tree.package.save(layer, path)
    refused(path, weights.MissingKeysError, "leave prefix= out", prefix="blocks.1.attn.")
    with pytest.raises(weights.KeyNameError):
        tree.package.save(layer, path, prefix="../")
    assert tree.package.load(path).config == CONFIG


def test_damage_to_a_file_with_a_prefix_is_noticed(tmp_path: Path) -> None:
    path, rng = tmp_path / "layer.safetensors", np.random.default_rng(0)
    values = weights.draw(CONFIG, 5, "float32")
    weights.write(path, CONFIG, values, prefix="blocks.0.attn.")
    content, refusals = path.read_bytes(), 0
    for _ in range(100):
        damaged = bytearray(content)
        damaged[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            found = weights.read(path, prefix="blocks.0.attn.")
        except weights.WeightFileError:
            refusals += 1
        else:
            assert bits(found.values) == bits(values) and found.config == CONFIG
    assert refusals > 90


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("prefix", [1, None, b"blocks."])
def test_a_prefix_that_is_no_string(prefix: Any, file: Path, tmp_path: Path) -> None:
    words = f"weights: expected prefix= to be a string, got {type(prefix).__name__}; "
    refused(file, TypeError, words, prefix=prefix, variant="decoder")
    target = tmp_path / "saved.safetensors"
    for tree in TREES.values():
        with pytest.raises(TypeError) as saving:
            tree.package.save(tree.build(CONFIG), target, prefix=prefix)
        with pytest.raises(TypeError) as pretrained:
            tree.package.load_pretrained(tmp_path, 0, prefix=prefix)
        assert str(saving.value).startswith(words) and str(pretrained.value).startswith(words)
        assert not target.exists()
