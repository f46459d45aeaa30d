"""Weight files: all ways between the trees bit by bit; every wrong file refused by name, with the layer as it was."""

import hashlib
import io
import itertools
import json
import os
import pickle
import re
import stat
import tracemalloc
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from flax import nnx

import attn_np
from attn_np import contract, weights
from attn_np.contract import Config
from attn_np.weights import _cast, _native, _safetensors, _shards
from attn_np.weights._check import checked_cast
from attn_np.weights.layouts._base import differences
from parity_tests.tests.inputs import EXAMPLES, TREES, Arrays, Tree, config_of

DTYPES = ("float64", "float32", "bfloat16", "float16")
WORDS = re.compile(r".+: expected .+, got .+; .+", re.DOTALL)


def values_of(tree: Tree, layer: Any) -> Arrays:
    return {name: np.asarray(tree.numpy(x)) for name, x in layer.params().items()}


def bits(values: Arrays) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Names, dtypes, shapes and bytes: what "unchanged" means."""
    return {name: (x.dtype.name, x.shape, x.tobytes()) for name, x in values.items()}


def special(config: Config, dtype: str) -> Arrays:
    """Weights that begin with the numbers most easily lost: signed zeros, subnormals, the ends of the range."""
    info, values = ml_dtypes.finfo(dtype), weights.draw(config, 5, dtype)
    ends = [-0.0, 0.0, info.smallest_subnormal, -info.smallest_subnormal, info.smallest_normal, info.max, info.min]
    hard = np.array([*ends, info.smallest_normal - info.smallest_subnormal], dtype=_cast.DTYPES[dtype])
    for i, x in enumerate(values.values()):
        flat = x.reshape(-1)
        flat[: len(hard)] = np.roll(hard, i)[: len(flat)]
    return values


# Between the trees ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("source", "target"), list(itertools.product(TREES, TREES)))
def test_all_directions_are_bit_identical(source: str, target: str, dtype: str, tmp_path: Path) -> None:
    for variant, example in (("mha", "cross"), ("gru", "stacked")):
        config, first, second, third = config_of(variant, example), *(tmp_path / f"{i}.safetensors" for i in range(3))
        values = special(config, dtype)
        assert any(np.signbit(x).any() and (x == 0).any() for x in values.values())
        weights.write(first, config, values)
        a = TREES[source].package.load(first)
        TREES[source].package.save(a, second)
        b = TREES[target].package.load(second)
        TREES[target].package.save(b, third)
        for tree, layer in ((source, a), (target, b)):
            assert bits(values_of(TREES[tree], layer)) == bits(values)
            assert layer.config == config
            assert not TREES[tree].is_training(layer)
        assert first.read_bytes() == second.read_bytes() == third.read_bytes()


@pytest.mark.parametrize(("variant", "example"), EXAMPLES)
def test_every_example_goes_through_a_file(variant: str, example: str, tmp_path: Path) -> None:
    config, file = config_of(variant, example), tmp_path / "layer.safetensors"
    written, values = set(), weights.draw(config, 7, "float32")
    for tree in TREES.values():
        tree.package.save(tree.build(config, seed=7, dtype="float32"), file)
        written.add(file.read_bytes())
    assert len(written) == 1
    for tree in TREES.values():
        other = tree.build(config, seed=8, dtype="float32")
        for layer in (tree.package.load(file), tree.package.load(file, into=other)):
            assert layer.config == config
            assert bits(values_of(tree, layer)) == bits(values)
        assert layer is other


@pytest.mark.parametrize("name", TREES)
def test_nan_payloads_survive_where_they_are_let_through(name: str, tmp_path: Path) -> None:
    config, file, tree = config_of("mha", "split"), tmp_path / "nan.safetensors", TREES[name]
    for dtype, payload in (("float32", 0x7FC12345), ("bfloat16", 0x7FC1), ("float16", 0x7E01)):
        values = weights.draw(config, 0, dtype)
        values["w_q"].reshape(-1).view(f"u{values['w_q'].itemsize}")[3] = payload
        weights.write(file, config, values, finite=False)
        layer = tree.package.load(file, finite=False)
        assert bits(values_of(tree, layer)) == bits(values)
        with pytest.raises(weights.NonFiniteWeightError):
            tree.package.save(layer, tmp_path / "other")
        tree.package.save(layer, tmp_path / "again", finite=False)
        assert (tmp_path / "again").read_bytes() == file.read_bytes()


def test_loading_in_place_keeps_the_frameworks_objects(tmp_path: Path) -> None:
    """Optimizers hold the parameters' objects."""
    config, file = config_of("gru", "stacked"), tmp_path / "layer.safetensors"
    weights.write(file, config, weights.draw(config, 3, "float64"))
    module = TREES["torch"].training(TREES["torch"].build(config))
    before = dict(module.named_parameters())
    memory = {name: x.data_ptr() for name, x in before.items()}
    TREES["torch"].package.load(file, into=module)
    assert all(x is before[name] and x.requires_grad for name, x in module.named_parameters())
    assert memory == {name: x.data_ptr() for name, x in module.named_parameters()}
    module = TREES["jax"].training(TREES["jax"].build(config))
    held = module.layers[1].w_h
    TREES["jax"].package.load(file, into=module)
    assert module.layers[1].w_h is held


@pytest.mark.parametrize("name", TREES)
def test_a_loaded_layer_is_in_evaluation_mode(name: str, tmp_path: Path) -> None:
    tree, file = TREES[name], tmp_path / "layer.safetensors"
    weights.write(file, CONFIG, VALUES)
    layer = tree.training(tree.build(CONFIG, dtype="float32"))
    assert tree.is_training(layer)
    assert not tree.is_training(tree.package.load(file))
    assert not tree.is_training(tree.package.load(file, into=layer))


@pytest.mark.usefixtures("unchecked")  # an abstract array is none of the arrays that annotations name
def test_layers_made_without_drawing(tmp_path: Path) -> None:
    config, file = config_of("mha", "split"), tmp_path / "layer.safetensors"
    values = weights.draw(config, 3, "float32")
    weights.write(file, config, values)
    cls = TREES["torch"].package.MultiHeadAttention
    empty = cls(config, device="meta")
    with pytest.raises(ValueError, match="to_empty"):
        TREES["torch"].package.load(file, into=empty)
    loaded = TREES["torch"].package.load(file, into=empty.to_empty(device="cpu"))
    assert bits(values_of(TREES["torch"], loaded)) == bits(values)
    abstract = nnx.eval_shape(lambda: TREES["jax"].package.MultiHeadAttention(config, rngs=nnx.Rngs(0)))
    loaded = TREES["jax"].package.load(file, into=abstract)
    assert bits(values_of(TREES["jax"], loaded)) == bits(values)


def test_the_package_safetensors_reads_our_files(tmp_path: Path) -> None:
    config, file = config_of("mha", "cross"), tmp_path / "layer.safetensors"
    values: Arrays = {}
    for dtype in DTYPES:
        values = special(config, dtype)
        weights.write(file, config, values)
        found = {name: TREES["torch"].numpy(x) for name, x in safetensors.torch.load_file(file).items()}
        assert bits(found) == bits(values)
    with safetensors.safe_open(file, "np") as opened:
        metadata = opened.metadata()
    assert metadata["format"] == "attn-parity/1"
    assert metadata["variant"] == "mha"
    assert contract.config("mha", **json.loads(metadata["config"])) == config
    assert json.loads(metadata["axes"])["w_k"] == "i h k"
    assert json.loads(metadata["sha256"])["b_o"] == hashlib.sha256(values["b_o"].tobytes()).hexdigest()
    assert metadata["version"]


# Drawing --------------------------------------------------------------------------------------------------------------

# SHA-256 over names, shapes and bytes of what a seed draws. These never change: a seed in a paper or a bug report must
# give the same weights for ever.
GOLDEN = {
    ("mha", 0, "float64"): "953510d6e3bf9bff4ee6b0309e30ef951e77098c5147538cae23c391203b0a16",
    ("mha", 0, "float32"): "43fefaaca26beaec29528d08c4981cfe445f08333b4ef1050db1be7938edde93",
    ("mha", 0, "bfloat16"): "5e282471f56335b37c4ea1eb014a0867c4ed8315757f2356544b1a0bd68f1052",
    ("mha", 0, "float16"): "f3a5b2c21384c87df29c504b9521e21154399af1a985f29b9392dbc4d72f7db3",
    ("gru", 20, "float32"): "933050618ee07536458cf9132dcc1a3844dc99633903c37f8c9a0b86fe1b06bd",
    ("gru", 20, "bfloat16"): "8bb26a4ac7232f152c39e1ee6e047fdb8848eba843054aef3781c9e1cf0d424d",
}


DRAWN: dict[str, dict[str, Any]] = {
    "mha": {"d_model": 7, "num_heads": 3, "head_dim": 5, "value_head_dim": 11, "key_dim": 13, "value_dim": 2},
    "gru": {"input_dim": 5, "hidden_dim": 11, "num_layers": 3},
}


@pytest.mark.parametrize(("variant", "seed", "dtype"), list(GOLDEN))
def test_a_seed_draws_the_same_for_ever(variant: str, seed: int, dtype: str) -> None:
    total = hashlib.sha256()
    for name, x in weights.draw(contract.config(variant, **DRAWN[variant]), seed, dtype).items():
        total.update(f"{name} {x.shape} {x.dtype.name}\n".encode() + x.tobytes())
    assert total.hexdigest() == GOLDEN[variant, seed, dtype]


@pytest.mark.parametrize(("variant", "example"), EXAMPLES)
def test_build_is_bit_identical_in_every_tree(variant: str, example: str) -> None:
    config = config_of(variant, example)
    for dtype in DTYPES:
        drawn = bits(weights.draw(config, 11, dtype))
        for tree in TREES.values():
            assert bits(values_of(tree, tree.build(config, seed=11, dtype=dtype))) == drawn


def test_drawn_weights_stay_inside_their_range() -> None:
    config = config_of("mha", "cross")
    for name, x in weights.draw(config, 1, "float64").items():
        assert np.max(np.abs(x)) < config.fans()[name] ** -0.5
        assert len(np.unique(x)) == x.size


def neighbours(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values of the same type just below and just above."""
    kind = np.dtype(f"i{y.itemsize}")
    order = y.view(kind).astype(np.int64)
    order = np.where(order < 0, np.iinfo(kind).min - order, order)  # as the numbers are ordered, -0 at 0
    return tuple(back(order + step, kind).view(y.dtype) for step in (-1, 1))  # type: ignore[return-value]


def back(order: np.ndarray, kind: np.dtype[Any]) -> np.ndarray:
    return np.where(order < 0, np.iinfo(kind).min - order, order).astype(kind)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_rounding_is_to_the_nearest_once(dtype: str) -> None:
    rng, digits = np.random.default_rng(0), ml_dtypes.finfo(dtype).nmant
    ulp = 2.0**-digits
    # Ties, and values beside a tie by less than float32 can hold: where rounding twice goes wrong.
    near = [1 + (k + 0.5) * ulp + s * 2.0**-45 for k in range(6) for s in (-1, 0, 1)]
    smallest = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    low = [smallest * f for f in (0.25, 0.5, 0.5 + 2.0**-30, 1.5, 1.5 - 2.0**-40, 2.5, 7.3)]
    x = np.array([*near, *low, *rng.normal(size=200), *(rng.normal(size=50) * smallest * 8)])
    x = np.concatenate([x, -x])
    y = _cast.round_to(x, dtype)
    below, above = neighbours(y)
    even = (y.view(f"u{y.itemsize}") & 1) == 0
    for value, got, down, up, tie_ok in zip(x, y, below, above, even, strict=True):
        error = abs(Fraction(float(value)) - Fraction(float(got)))
        for other in (down, up):
            distance = abs(Fraction(float(value)) - Fraction(float(other)))
            assert error < distance or (error == distance and tie_ok), (value, got, other)
    assert np.array_equal(np.signbit(x), np.signbit(y))
    assert np.isinf(_cast.round_to(np.array([1e300, -1e300]), dtype)).all()
    assert np.isnan(_cast.round_to(np.array([np.nan]), dtype)).all()


# Wrong files ----------------------------------------------------------------------------------------------------------

CONFIG = contract.config("mha", d_model=6, num_heads=2)
VALUES = weights.draw(CONFIG, 2, "float32")


def good(path: Path, values: Arrays = VALUES, config: Config = CONFIG) -> tuple[dict[str, Any], bytes]:
    """The header and the data of a file that is right."""
    weights.write(path, config, values, finite=False)
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def assemble(header: Any, data: bytes) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw + data


def sealed(header: dict[str, Any], data: bytes) -> bytes:
    """The same with the digests made right again: a file that somebody made wrong on purpose."""
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    metadata = header["__metadata__"]
    digests = {}
    for name, entry in entries.items():
        begin, end = entry["data_offsets"]
        digests[name] = hashlib.sha256(data[begin:end]).hexdigest()
    metadata["sha256"] = json.dumps(digests)
    stated = {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in entries.items()}
    metadata["header_sha256"] = _native.header_digest(metadata, stated)
    return assemble(header, data)


@pytest.mark.parametrize("name", ["entmax15", "sparsemax"])
def test_a_file_of_what_is_a_preset_today_loads(tree: Tree, name: str, tmp_path: Path) -> None:
    """As these were variants their files said nothing of alpha."""
    build: Any = attn_np.build
    layer = build(name, d_model=6, num_heads=2, seed=3)
    attn_np.save(layer, tmp_path / "new")
    content = (tmp_path / "new").read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    fields = {field: x for field, x in layer.config.as_dict().items() if field != "alpha"}
    header["__metadata__"] |= {"variant": name, "config": json.dumps(fields)}
    (tmp_path / "old").write_bytes(sealed(header, content[end:]))
    for selection in (
        {},
        {"variant": name},
        {"variant": "entmax_attention"},
        {"into": tree.package.build(name, **fields)},
    ):
        loaded = tree.package.load(tmp_path / "old", **selection)
        assert loaded.config == layer.config
        assert np.array_equal(tree.numpy(loaded.w_q), layer.w_q)
    with pytest.raises(weights.ConfigMismatchError, match="expected 'mha', got 'entmax_attention'"):
        tree.package.load(tmp_path / "old", variant="mha")


Edit = Callable[[dict[str, Any], bytes], bytes]


def edit(change: Callable[[dict[str, Any]], Any], *, seal: bool = False) -> Edit:
    def apply(header: dict[str, Any], data: bytes) -> bytes:
        change(header)
        return (sealed if seal else assemble)(header, data)

    return apply


def text(change: Callable[[str], str]) -> Edit:
    return lambda header, data: assemble(change(json.dumps(header)).encode(), data)


def raw(content: bytes) -> Edit:
    return lambda header, data: content


def meta(**fields: str) -> Edit:
    return edit(lambda header: header["__metadata__"].update(fields), seal=True)


def config_with(**fields: Any) -> str:
    return json.dumps(CONFIG.as_dict() | fields)


def tensor(name: str, begin: int, end: int, shape: list[Any], dtype: str = "F32", **more: Any) -> dict[str, Any]:
    return {name: {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]} | more}


def only(*entries: dict[str, Any], data: int = 0, **metadata: str) -> Edit:
    """A file of its own with these tensors."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    for entry in entries:
        header |= entry
    return raw(assemble(header, bytes(data)))


def add(name: str) -> Edit:
    """One more tensor at the end."""

    def apply(header: dict[str, Any], data: bytes) -> bytes:
        return sealed(header | tensor(name, len(data), len(data) + 4, [1]), data + bytes(4))

    return apply


def pop(name: str) -> Edit:
    """A tensor left out, and the others moved up."""

    def apply(header: dict[str, Any], data: bytes) -> bytes:
        begin, end = header.pop(name)["data_offsets"]
        for entry in header.values():
            if "data_offsets" in entry and entry["data_offsets"][0] >= end:
                entry["data_offsets"] = [x - (end - begin) for x in entry["data_offsets"]]
        return sealed(header, data[:begin] + data[end:])

    return apply


def replaced(name: str, x: np.ndarray) -> Edit:
    """Another array under a name."""

    def apply(header: dict[str, Any], data: bytes) -> bytes:
        arrays = {}
        for key, entry in header.items():
            if key != "__metadata__":
                begin, end = entry["data_offsets"]
                arrays[key] = np.frombuffer(data[begin:end], np.float32).reshape(entry["shape"])
        arrays[name] = x
        entries, blob = {}, b""
        for key in sorted(arrays, key=lambda key: -arrays[key].itemsize):
            begin, blob = len(blob), blob + arrays[key].tobytes()
            code = _safetensors.CODES[arrays[key].dtype.name]
            entries |= tensor(key, begin, len(blob), list(arrays[key].shape), code)
        return sealed({"__metadata__": header["__metadata__"]} | entries, blob)

    return apply


class Payload:
    """A pickle that would leave a mark if it were opened."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("opened",)


def npz() -> bytes:
    stream = io.BytesIO()
    np.savez(stream, w_q=VALUES["w_q"], w_k=VALUES["w_k"])
    return stream.getvalue()


def npy() -> bytes:
    stream = io.BytesIO()
    np.save(stream, VALUES["w_q"])
    return stream.getvalue()


def torch_file() -> bytes:
    stream = io.BytesIO()
    torch.save({name: torch.from_numpy(x) for name, x in VALUES.items()}, stream)
    return stream.getvalue()


def flip(place: str) -> Edit:
    """One bit of the first tensor's bytes turned over."""

    def apply(header: dict[str, Any], data: bytes) -> bytes:
        begin = header[place]["data_offsets"][0]
        return assemble(header, data[:begin] + bytes([data[begin] ^ 1]) + data[begin + 1 :])

    return apply


def nan_in(name: str, value: float) -> Edit:
    x = VALUES[name].copy()
    x.reshape(-1)[4] = value
    return replaced(name, x)


def swap(header: dict[str, Any]) -> None:
    """Two tensors of the same shape in each other's place."""
    header["w_q"], header["w_k"] = header["w_k"], header["w_q"]


W = weights
F32 = VALUES["w_q"].nbytes
CORPUS: dict[str, tuple[Edit, type[W.WeightFileError], str]] = {
    # The file's ends
    "empty": (raw(b""), W.TruncatedFileError, "at least 8 bytes"),
    "seven bytes": (raw(b"\x10\0\0\0\0\0\0"), W.TruncatedFileError, "at least 8 bytes"),
    "cut in the header": (lambda h, d: assemble(h, d)[:50], W.TruncatedFileError, "header"),
    "cut in the data": (lambda h, d: assemble(h, d)[:-1], W.TruncatedFileError, "bytes of tensors"),
    "no data": (lambda h, d: assemble(h, b""), W.TruncatedFileError, "bytes of tensors"),
    "a Git LFS pointer": (raw(b"version https://git-lfs.github.com/spec/v1\n"), W.TruncatedFileError, "git lfs pull"),
    "one byte more": (lambda h, d: assemble(h, d + b"\0"), W.TrailingDataError, "appended"),
    "an archive appended": (lambda h, d: assemble(h, d + npz()), W.TrailingDataError, "appended"),
    # Limits
    "header of 2^63 bytes": (raw(b"\0\0\0\0\0\0\0\x80" + b"{}" * 50), W.HeaderLimitError, str(2**63)),
    "header above the limit": (raw((2**24 + 1).to_bytes(8, "little") + b"{}"), W.HeaderLimitError, str(2**24)),
    "too many tensors": (
        only(*(tensor(f"x{i}", 0, 0, [0]) for i in range(16385))),
        W.HeaderLimitError,
        "16384 tensors",
    ),
    "too many values": (raw(assemble(b'{"a":[' + b"[]," * 300_000 + b"[]]}", b"")), W.HeaderLimitError, "values"),
    # Names
    "a name twice": (text(lambda s: s.replace('"w_k": {', '"w_q": {', 1)), W.DuplicateKeyError, "'w_q'"),
    "a name twice, the same tensor": (
        raw(assemble(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},' * 2 + b'"b":1}', b"")),
        W.HeaderSyntaxError,
        "JSON",
    ),
    "an equal name twice": (
        raw(assemble(b"{" + b'"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},' * 2 + b'"b":1}', b"")),
        W.DuplicateKeyError,
        "'a'",
    ),
    "a field twice": (text(lambda s: s.replace('"dtype"', '"shape": [], "dtype"', 1)), W.DuplicateKeyError, "'shape'"),
    "metadata twice": (text(lambda s: s.replace('"format"', '"variant"', 1)), W.DuplicateKeyError, "'variant'"),
    "upwards": (add("../../etc/x"), W.KeyNameError, "'../../etc/x'"),
    "upwards inside": (add("a/../b"), W.KeyNameError, "'a/../b'"),
    "upwards on Windows": (add("..\\x"), W.KeyNameError, "path"),
    "absolute": (add("/etc/x"), W.KeyNameError, "'/etc/x'"),
    "no name": (add(""), W.KeyNameError, "0 characters"),
    "a NUL": (add("w_q\0"), W.KeyNameError, "printable"),
    "a newline": (add("w\nq"), W.KeyNameError, "printable"),
    "a surrogate": (add("\ud800"), W.KeyNameError, "printable"),
    "513 characters": (add("w" * 513), W.KeyNameError, "513 characters"),
    # Places
    "overlap": (only(tensor("a", 0, 8, [2]), tensor("b", 4, 12, [2]), data=12), W.OffsetError, "overlap"),
    "alias": (only(tensor("a", 0, 8, [2]), tensor("b", 0, 8, [2]), data=8), W.OffsetError, "overlap"),
    "inside another": (only(tensor("a", 0, 8, [2]), tensor("b", 4, 4, [0]), data=8), W.OffsetError, "overlap"),
    "hole": (only(tensor("a", 0, 8, [2]), tensor("b", 12, 20, [2]), data=20), W.OffsetError, "hole"),
    "hole at the start": (only(tensor("a", 4, 12, [2]), data=12), W.OffsetError, "hole"),
    "reversed": (only(tensor("a", 8, 0, [2]), data=8), W.OffsetError, "8 bytes"),
    "not as many bytes": (only(tensor("a", 0, 8, [3]), data=8), W.OffsetError, "12 bytes"),
    "a product that overflows": (only(tensor("a", 0, 0, [2**40, 2**40])), W.OffsetError, "fewer than"),
    "half a byte": (only(tensor("a", 0, 1, [3], "F4"), data=1), W.OffsetError, "1 bytes"),
    # The JSON
    "bad UTF-8": (raw(assemble(b'{"\xff":1}', b"")), W.HeaderSyntaxError, "utf-8"),
    "UTF-16": (raw(assemble('{"a":1}'.encode("utf-16"), b"")), W.HeaderSyntaxError, "UTF-8"),
    "a space first": (text(lambda s: " " + s), W.HeaderSyntaxError, "starts with"),
    "garbage after": (text(lambda s: s + "x"), W.HeaderSyntaxError, "Extra data"),
    "an array": (raw(assemble(b"[]", b"")), W.HeaderSyntaxError, "starts with"),
    "no header": (raw(assemble(b"", b"")), W.HeaderSyntaxError, "starts with"),
    "NaN": (raw(assemble(b'{"a":NaN}', b"")), W.HeaderSyntaxError, "NaN"),
    "nested deep": (raw(assemble(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"")), W.HeaderSyntaxError, "JSON"),
    "a number of 5000 digits": (raw(assemble(b'{"a":' + b"9" * 5000 + b"}", b"")), W.HeaderSyntaxError, "JSON"),
    "metadata of numbers": (edit(lambda h: h["__metadata__"].update(a=1)), W.HeaderSyntaxError, "string"),
    "metadata of a list": (edit(lambda h: h.update(__metadata__=[])), W.HeaderSyntaxError, "string"),
    "a field more": (edit(lambda h: h["w_q"].update(stride=1)), W.HeaderSyntaxError, "data_offsets"),
    "a field less": (edit(lambda h: h["w_q"].pop("dtype")), W.HeaderSyntaxError, "data_offsets"),
    "a tensor that is none": (edit(lambda h: h.update(w_q=3)), W.HeaderSyntaxError, "data_offsets"),
    "an empty entry": (edit(lambda h: h.update(w_q={})), W.HeaderSyntaxError, "got none"),
    "a name that fills a screen": (edit(lambda h: h["w_q"].update({"x" * 70_000: 1})), W.HeaderSyntaxError, "xxx ..."),
    "a float size": (edit(lambda h: h["w_q"].update(shape=[6.0, 2, 3])), W.HeaderSyntaxError, "integers"),
    "a negative size": (edit(lambda h: h["w_q"].update(shape=[-6, -2, 3])), W.HeaderSyntaxError, "integers"),
    "a boolean size": (edit(lambda h: h["b_o"].update(shape=[True, 6])), W.HeaderSyntaxError, "integers"),
    "three offsets": (edit(lambda h: h["w_q"].update(data_offsets=[0, 1, 2])), W.HeaderSyntaxError, "integers"),
    "an offset of 80 bits": (edit(lambda h: h["w_q"].update(data_offsets=[0, 2**80])), W.HeaderSyntaxError, "integers"),
    # Encodings and formats
    "an unknown dtype": (edit(lambda h: h["w_q"].update(dtype="F128")), W.UnsupportedEncodingError, "'F128'"),
    "a structured dtype": (edit(lambda h: h["w_q"].update(dtype=["F32"])), W.UnsupportedEncodingError, "dtype"),
    "big-endian": (edit(lambda h: h["w_q"].update(dtype=">f4")), W.UnsupportedEncodingError, "little-endian"),
    "unaligned": (
        only(tensor("a", 0, 1, [1], "U8"), tensor("b", 1, 5, [1]), data=5),
        W.UnsupportedEncodingError,
        "divisible by 4",
    ),
    "JSON alone": (raw(b'{"metadata": {}, "weight_map": {}}'), W.HeaderSyntaxError, "index of shards"),
    "a field with a name twice": (
        meta(config='{"d_model":6,"num_heads":3,"num_heads":2}'),
        W.DuplicateKeyError,
        "config",
    ),
    "a field of NaN": (meta(config='{"scale":NaN}'), W.HeaderSyntaxError, "NaN is not JSON"),
    "a field of bad Unicode": (meta(config='{"\ud800":1}'), W.HeaderSyntaxError, "Unicode"),
    "a field of control characters": (meta(axes='{"\x7f":1}'), W.FormatMismatchError, r"\x7f"),
    "a pickle": (raw(pickle.dumps(Payload())), W.UnsafeFormatError, "pickle"),
    "an old pickle": (raw(pickle.dumps(Payload(), protocol=2)), W.UnsafeFormatError, "pickle"),
    "a .pt file": (raw(torch_file()), W.UnsafeFormatError, "zip"),
    "a .npz file": (raw(npz()), W.UnsafeFormatError, "zip"),
    "a .npy file": (raw(npy()), W.UnsafeFormatError, ".npy"),
    "an HDF5 file": (raw(b"\x89HDF\r\n\x1a\n" + bytes(64)), W.UnsafeFormatError, "HDF5"),
    # Against the layer
    "a key missing": (pop("w_k"), W.MissingKeysError, "expected the key 'w_k', got only 'b_k', 'b_o'"),
    "a key too many": (add("w_qq"), W.UnexpectedKeysError, "got also the key 'w_qq'; delete it"),
    "a key renamed": (
        edit(lambda h: h.update(w_query=h.pop("w_q")), seal=True),
        W.MissingKeysError,
        "got the unknown key 'w_query'; rename 'w_query' to 'w_q'",
    ),
    "no keys": (only(format="attn-parity/1"), W.HeaderSyntaxError, "'variant'"),
    "another shape": (edit(lambda h: h["w_q"].update(shape=[6, 3, 2]), seal=True), W.ShapeMismatchError, "(6, 2, 3)"),
    "flat": (edit(lambda h: h["w_q"].update(shape=[36]), seal=True), W.ShapeMismatchError, "(36,)"),
    "transposed": (
        edit(lambda h: h["w_q"].update(shape=[3, 2, 6]), seal=True),
        W.ShapeMismatchError,
        "the transpose of",
    ),
    "all float64": (
        replaced("w_q", VALUES["w_q"].astype(np.float64)),
        W.DtypeMismatchError,
        "float64",
    ),
    "integers": (replaced("w_q", np.ones((6, 2, 3), np.int64)), W.DtypeMismatchError, "int64"),
    "NaN weights": (nan_in("w_v", np.nan), W.NonFiniteWeightError, "(0, 1, 1)"),
    "infinite weights": (nan_in("w_o", -np.inf), W.NonFiniteWeightError, "'w_o'"),
    "a flipped bit": (flip("w_o"), W.DigestMismatchError, "'w_o'"),
    "two tensors swapped": (edit(swap), W.DigestMismatchError, "'w_q'"),
    "another type of the same size": (edit(lambda h: h["w_q"].update(dtype="I32")), W.DtypeMismatchError, "int32"),
    "a changed config": (
        edit(lambda h: h["__metadata__"].update(config=config_with(dropout=0.5))),
        W.DigestMismatchError,
        "__metadata__",
    ),
    "no digest of a tensor": (
        edit(lambda h: h["__metadata__"].update(sha256="{}")),
        W.DigestMismatchError,
        "header",
    ),
    # What the file says it is
    "no tag": (edit(lambda h: h["__metadata__"].pop("format")), W.FormatMismatchError, "layout="),
    "no metadata": (edit(lambda h: h.pop("__metadata__")), W.FormatMismatchError, "layout="),
    "from the future": (meta(format="attn-parity/2"), W.FormatMismatchError, "newer"),
    "other axes": (
        meta(axes=json.dumps({name: p.axes for name, p in CONFIG.params().items()} | {"w_q": "k h d"})),
        W.FormatMismatchError,
        "k h d",
    ),
    "axes that are no JSON": (meta(axes="{"), W.HeaderSyntaxError, "axes"),
    "an unknown variant": (meta(variant="mhaa"), W.ConfigMismatchError, "did you mean 'mha'"),
    "another variant": (meta(variant="self_attention"), W.ConfigMismatchError, "'self_attention'"),
    "a config that cannot be": (meta(config=config_with(num_heads=4)), W.ConfigMismatchError, "divisible"),
    "a field that is none": (meta(config=config_with(num_head=2)), W.ConfigMismatchError, "'num_heads'"),
    "another config": (meta(config=config_with(causal=True)), W.ConfigMismatchError, "causal=True"),
    "a config that is no object": (meta(config="[]"), W.HeaderSyntaxError, "config"),
}


@pytest.mark.parametrize("variant", ["shaw", "t5_bias", "transformer_xl", "disentangled", "mha"])
def test_a_file_may_name_the_width_of_keys_as_that_of_queries(variant: str, tmp_path: Path) -> None:
    """Where they are equal: so do files of variants that took queries alone, with configs that lack the two fields."""
    config, file = config_of(variant, next(iter(contract.examples(variant)))), tmp_path / "layer.safetensors"
    values = weights.draw(config, 3, "float32")
    axes = {name: param.axes for name, param in config.params().items()}
    fields = {name: value for name, value in config.as_dict().items() if name not in ("key_dim", "value_dim")}
    older = axes | {"w_k": "d h k", "w_v": "d h v"}
    for other, fits in ((older, True), (axes | {"w_k": "d h k"}, False), (older | {"w_q": "h d k"}, False)):
        header, data = good(file, values, config)
        header["__metadata__"] |= {"axes": json.dumps(other), "config": json.dumps(fields)}
        file.write_bytes(sealed(header, data))
        if fits:
            found = weights.read(file)
            assert found.config == config
            assert bits(found.values) == bits(values)
        else:
            with pytest.raises(W.FormatMismatchError, match="axes"):
                weights.read(file)


def test_a_file_names_other_widths_by_their_letters(tmp_path: Path) -> None:
    config, file = config_of("shaw", "cross"), tmp_path / "layer.safetensors"
    header, data = good(file, weights.draw(config, 3, "float32"), config)
    axes = {name: param.axes for name, param in config.params().items()} | {"w_k": "d h k", "w_v": "d h v"}
    header["__metadata__"]["axes"] = json.dumps(axes)
    file.write_bytes(sealed(header, data))
    with pytest.raises(W.FormatMismatchError, match="d h v"):
        weights.read(file)


@pytest.fixture(scope="module")
def layers() -> dict[str, Any]:
    """A layer of each tree, in training mode, that every refused file must leave as it is."""
    return {name: tree.training(tree.build(CONFIG, seed=3, dtype="float32")) for name, tree in TREES.items()}


@pytest.mark.parametrize("case", CORPUS)
def test_a_wrong_file_is_refused_and_the_layer_stays(
    case: str, layers: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, error, words = CORPUS[case]
    file = tmp_path / "wrong.safetensors"
    file.write_bytes(change(*good(file)))
    monkeypatch.chdir(tmp_path)
    message = refusal(file, error, layers)
    assert message.startswith(str(file))
    assert words in message
    assert not (tmp_path / "opened").exists()


def refusal(file: Path, error: type[W.WeightFileError], layers: dict[str, Any]) -> str:
    """The message of a refusal that is the same in the three trees and leaves their layers as they are."""
    texts, copies = set(), set()
    before = bits(weights.draw(CONFIG, 3, "float32"))
    for name, tree in TREES.items():
        with pytest.raises(weights.WeightFileError) as caught:
            tree.package.load(file, into=layers[name])
        assert caught.type is error, caught.value
        assert bits(values_of(tree, layers[name])) == before
        assert tree.is_training(layers[name])
        texts.add(str(caught.value))
        copies.add(str(pickle.loads(pickle.dumps(caught.value))))  # noqa: S301 - our own, as between test processes
    assert len(texts) == 1
    message = texts.pop()
    assert WORDS.fullmatch(message)
    assert message.isprintable()
    assert len(message) < 2000
    assert copies == {message}
    return message


# Shards ---------------------------------------------------------------------------------------------------------------

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
# Every other tensor, so that the shards' tensors alternate in the layer's order.
HALVES = {FIRST: tuple(VALUES)[::2], SECOND: tuple(VALUES)[1::2]}


def metadata_of(path: Path) -> dict[str, str]:
    return good(path)[0]["__metadata__"]


def sharded(folder: Path, metadata: dict[str, str], values: Arrays = VALUES) -> Path:
    """A file of ours in two shards and their index."""
    for shard, keys in HALVES.items():
        _safetensors.write_tensors(folder / shard, {key: values[key] for key in keys}, metadata)
    shard_of = {key: shard for key in values for shard in HALVES if key in HALVES[shard]}
    index = folder / "model.safetensors.index.json"
    total = sum(x.nbytes for x in values.values())
    index.write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": shard_of}, indent=2))
    return index


Spoil = Callable[[Path], object]


def index_with(change: Callable[[dict[str, Any]], Any]) -> Spoil:
    def apply(index: Path) -> None:
        content = json.loads(index.read_text())
        change(content)
        index.write_text(json.dumps(content))

    return apply


def mapped(key: str, shard: Any) -> Spoil:
    return index_with(lambda index: index["weight_map"].update({key: shard}))


def named(shard: str) -> Spoil:
    """The first shard under another name in the index: the name alone must be refused."""
    return index_with(lambda i: i["weight_map"].update({k: shard for k, s in i["weight_map"].items() if s == FIRST}))


def index_text(change: Callable[[bytes], bytes]) -> Spoil:
    return lambda index: index.write_bytes(change(index.read_bytes()))


def shard_bytes(change: Callable[[bytes], bytes]) -> Spoil:
    return lambda index: (index.parent / SECOND).write_bytes(change((index.parent / SECOND).read_bytes()))


def linked(target: str) -> Spoil:
    """The second shard moved to another place, and a link to it where it was."""

    def apply(index: Path) -> None:
        moved = index.parent / target
        moved.parent.mkdir(parents=True, exist_ok=True)
        (index.parent / SECOND).rename(moved)
        (index.parent / SECOND).symlink_to(moved)

    return apply


def other_metadata(index: Path) -> None:
    shard = index.parent / SECOND
    _safetensors.write_tensors(shard, weights.tensors(shard), metadata_of(index.parent / "whole") | {"version": "0"})


def as_folder(index: Path) -> None:
    (index.parent / SECOND).unlink()
    (index.parent / SECOND).mkdir()


SHARDED: dict[str, tuple[Spoil, type[W.WeightFileError], str]] = {
    # Names of shards
    "upwards": (named(f"../{FIRST}"), W.UnsafePathError, "plain name"),
    "upwards and back": (named(f"../there/{FIRST}"), W.UnsafePathError, "plain name"),
    "only upwards": (named(".."), W.UnsafePathError, "plain name"),
    "the folder itself": (named("."), W.UnsafePathError, "plain name"),
    "a folder below": (named(f"x/{FIRST}"), W.UnsafePathError, "plain name"),
    "absolute": (named(f"/etc/{FIRST}"), W.UnsafePathError, "plain name"),
    "backslashes": (named(f"..\\{FIRST}"), W.UnsafePathError, "plain name"),
    "a drive": (named(f"C:{FIRST}"), W.UnsafePathError, "plain name"),
    "no name": (named(""), W.UnsafePathError, "0 characters"),
    "a NUL": (named(f"{FIRST}\0.txt"), W.UnsafePathError, "control"),
    "a newline": (named(f"{FIRST}\n"), W.UnsafePathError, "control"),
    "a surrogate": (named(f"\ud800{FIRST}"), W.UnsafePathError, "control"),
    "a link out": (linked("../elsewhere/x"), W.UnsafePathError, "a link out of it"),
    "a link to a folder whose name begins the same": (
        lambda index: linked(f"../{index.parent.name} too/x")(index),
        W.UnsafePathError,
        "a link out of it",
    ),
    "a link to nowhere outside": (
        lambda index: (linked("../elsewhere/x")(index), (index.parent.parent / "elsewhere" / "x").unlink()),
        W.UnsafePathError,
        "a link out of it",
    ),
    # Shards against the index
    "a shard missing": (lambda index: (index.parent / SECOND).unlink(), W.ShardIndexError, "no file"),
    "a shard that is a folder": (as_folder, W.ShardIndexError, "no regular file"),
    "a name too long": (named("x" * 5000), W.ShardIndexError, "no file"),
    "a key in the other shard": (mapped("w_k", FIRST), W.ShardIndexError, "'w_k'"),
    "a key in no shard": (mapped("w_qq", FIRST), W.ShardIndexError, "'w_qq'"),
    "a key not mapped": (index_with(lambda i: i["weight_map"].pop("w_k")), W.ShardIndexError, "none for 'w_k'"),
    "both names for one shard": (
        lambda index: (index.parent / SECOND).write_bytes((index.parent / FIRST).read_bytes()),
        W.ShardIndexError,
        SECOND,
    ),
    "no weight_map": (index_with(lambda i: i.pop("weight_map")), W.ShardIndexError, "NoneType"),
    "a weight_map of pairs": (index_with(lambda i: i.update(weight_map=[["w_q", FIRST]])), W.ShardIndexError, "list"),
    "a shard by number": (mapped("w_k", 1), W.ShardIndexError, "none for 'w_k'"),
    "metadata of a list": (index_with(lambda i: i.update(metadata=[])), W.ShardIndexError, "list"),
    "a total too small": (index_with(lambda i: i["metadata"].update(total_size=4)), W.ShardIndexError, "4 bytes"),
    "a total too large": (index_with(lambda i: i["metadata"].update(total_size=2**40)), W.ShardIndexError, "all"),
    "a total below 0": (index_with(lambda i: i["metadata"].update(total_size=-1)), W.ShardIndexError, "-1"),
    "a total of 80 bits": (
        index_with(lambda i: i["metadata"].update(total_size=2**80)),
        W.ShardIndexError,
        "below 2**63",
    ),
    # The index itself
    "a tensor mapped twice": (
        index_text(lambda raw: raw.replace(b'"w_k"', b'"w_q"')),
        W.DuplicateKeyError,
        "'w_q'",
    ),
    "weight_map twice": (
        index_text(lambda raw: raw.replace(b'"metadata"', b'"weight_map"')),
        W.DuplicateKeyError,
        "'weight_map'",
    ),
    "an index of nothing": (index_text(lambda raw: b""), W.HeaderSyntaxError, "an index of JSON"),
    "an index cut": (index_text(lambda raw: raw[:-2]), W.HeaderSyntaxError, "an index of JSON"),
    "an index of a list": (index_text(lambda raw: b"[]"), W.HeaderSyntaxError, "starts with"),
    "an index in UTF-16": (index_text(lambda raw: raw.decode().encode("utf-16")), W.HeaderSyntaxError, "UTF-8"),
    "an index of bad UTF-8": (index_text(lambda raw: raw.replace(b"w_k", b"w\xff")), W.HeaderSyntaxError, "utf-8"),
    "an index nested deep": (index_text(lambda raw: b'{"a":' + b"[" * 100_000), W.HeaderSyntaxError, "index"),
    "an index above the limit": (index_text(lambda raw: raw + b" " * 2**24), W.HeaderLimitError, str(2**24)),
    "an index of too many values": (
        index_text(lambda raw: b'{"a":[' + b"[]," * 300_000 + b"[]]}"),
        W.HeaderLimitError,
        "values",
    ),
    "too many shards": (
        index_with(lambda i: i["weight_map"].update({f"x{n}": f"x{n}.safetensors" for n in range(512)})),
        W.HeaderLimitError,
        "512 shards",
    ),
    "a key upwards": (mapped("../w", FIRST), W.KeyNameError, "'../w'"),
    "a key without a name": (mapped("", FIRST), W.KeyNameError, "0 characters"),
    # Single shards, and all together
    "a shard cut": (shard_bytes(lambda raw: raw[:-1]), W.TruncatedFileError, SECOND),
    "a shard with more": (shard_bytes(lambda raw: raw + b"\0"), W.TrailingDataError, SECOND),
    "a shard that is a pickle": (shard_bytes(lambda raw: pickle.dumps(Payload())), W.UnsafeFormatError, SECOND),
    "a shard that is an index": (
        lambda index: (index.parent / SECOND).write_bytes(index.read_bytes()),
        W.HeaderSyntaxError,
        "index of shards",
    ),
    "a flipped bit": (shard_bytes(lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])), W.DigestMismatchError, "SHA-256"),
    "shards of two files": (other_metadata, W.ConfigMismatchError, "'version'"),
}


@pytest.mark.parametrize("case", SHARDED)
def test_wrong_shards_are_refused_and_the_layer_stays(
    case: str, layers: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil, error, words = SHARDED[case]
    folder = tmp_path / "there"
    folder.mkdir()
    index = sharded(folder, metadata_of(folder / "whole"))
    spoil(index)
    monkeypatch.chdir(tmp_path)
    message = refusal(index, error, layers)
    assert message.startswith(str(folder))
    assert words in message
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("name", TREES)
def test_shards_load_as_the_whole_file_does(name: str, tmp_path: Path) -> None:
    tree, index = TREES[name], sharded(tmp_path, metadata_of(tmp_path / "whole"))
    for layer in (tree.package.load(index), tree.package.load(index, into=tree.build(CONFIG, seed=8, dtype="float32"))):
        assert bits(values_of(tree, layer)) == bits(VALUES)
        assert layer.config == CONFIG
        tree.package.save(layer, tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == (tmp_path / "whole").read_bytes()
    assert bits(weights.tensors(index)) == bits(VALUES)
    assert list(weights.tensors(index, "w_o", "w_q")) == ["w_o", "w_q"]
    with pytest.raises(weights.MissingKeysError, match="'w_q'"):
        weights.tensors(index, "w_x")


def test_harmless_differences_of_an_index(tmp_path: Path) -> None:
    """No total, the fractions of old writers, other fields, and links that stay inside the folder."""
    harmless: list[Spoil] = [
        index_with(lambda i: i.pop("metadata")),
        index_with(lambda i: i["metadata"].pop("total_size")),
        index_with(lambda i: i["metadata"].update(total_size=4.5)),
        index_with(lambda i: i.update(more=[1])),
        linked("blobs/x"),
    ]
    for number, change in enumerate(harmless):
        folder = tmp_path / str(number)
        folder.mkdir()
        index = sharded(folder, metadata_of(tmp_path / "whole"))
        change(index)
        assert bits(weights.read(index).values) == bits(VALUES)


def test_only_the_shards_asked_for_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, opened = sharded(tmp_path, {}), []

    class Watched(_safetensors.TensorFile):
        def __init__(self, path: str) -> None:
            opened.append(os.path.basename(path))
            super().__init__(path)

    monkeypatch.setattr(_shards, "TensorFile", Watched)
    with _shards.open_tensors(index) as file:
        assert list(file.entries) == list(VALUES)
        assert "w_k" in file.entries
        assert len(file.entries) == len(VALUES)
        assert opened == []
        file.read(HALVES[SECOND][0])
        file.read(HALVES[SECOND][1])
        assert opened == [SECOND]
    (tmp_path / FIRST).unlink()
    asked = HALVES[SECOND]
    index_with(lambda i: i["metadata"].update(total_size=4))(index)
    with pytest.raises(weights.ShardIndexError, match="in some of them"):
        weights.tensors(index, *asked)
    index_with(lambda i: i["metadata"].update(total_size=2**40))(index)
    assert bits(weights.tensors(index, *asked)) == bits({key: VALUES[key] for key in asked})


@pytest.mark.parametrize("name", TREES)
def test_one_layer_of_a_foreign_index(name: str, tmp_path: Path) -> None:
    """Two layers in a shard each: the one that is asked for is read, and the other's shard need not be there."""
    tree, shard_of = TREES[name], {}
    for number, shard in enumerate((FIRST, SECOND)):
        values = weights.draw(CONFIG, number, "float32")
        weights.write(tmp_path / shard, CONFIG, values, layout="bert", layer=number)
        shard_of |= dict.fromkeys(weights.tensors(tmp_path / shard), shard)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": shard_of}))
    (tmp_path / FIRST).unlink()
    layer = tree.package.load(index, layout="bert", layer=1, num_heads=2)
    assert bits(values_of(tree, layer)) == bits(weights.draw(CONFIG, 1, "float32"))
    with pytest.raises(weights.ShardIndexError, match=FIRST):
        tree.package.load(index, layout="bert", layer=0, num_heads=2)


def test_a_file_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    def words(path: Path, error: type[OSError]) -> str:
        texts = set()
        for tree in TREES.values():
            with pytest.raises(error) as caught:
                tree.package.load(path)
            texts.add(str(caught.value))
        assert len(texts) == 1
        message = texts.pop()
        assert message.startswith(f"{path}: expected a weight file, got ")
        assert WORDS.fullmatch(message)
        return message

    assert "has none" in words(tmp_path / "layer.safetensors", FileNotFoundError)
    assert "there is no folder" in words(tmp_path / "x" / "layer.safetensors", FileNotFoundError)
    index = sharded(tmp_path, {})
    assert f"did you mean {index.name!r}" in words(tmp_path / "mode.safetensors.index.json", FileNotFoundError)
    assert FIRST in words(tmp_path, IsADirectoryError)


def test_a_layer_has_any_number(tmp_path: Path) -> None:
    """Among others of as many digits, fewer and more; of seven digits no layer is."""
    numbers, tensors = [0, 7, 42, 99, 100, 101, 1000, 12345, 999999, 1000000], {}
    for number in numbers:
        weights.write(tmp_path / "one", CONFIG, weights.draw(CONFIG, number, "float32"), layout="bert", layer=number)
        tensors |= weights.tensors(tmp_path / "one")
    file = tmp_path / "bert.safetensors"
    _safetensors.write_tensors(file, tensors, {})
    for number in numbers[:-1]:
        values = weights.read(file, layout="bert", layer=number, num_heads=2).values
        assert bits(values) == bits(weights.draw(CONFIG, number, "float32"))
    with pytest.raises(weights.MissingKeysError, match="layers 0, 7, 42, 99, 100, 101, 1000, 12345, 999999;"):
        weights.read(file, layout="bert", layer=numbers[-1], num_heads=2)


def test_two_layers_of_one_number_are_the_files_fault(tmp_path: Path) -> None:
    file = tmp_path / "bert.safetensors"
    weights.write(file, CONFIG, VALUES, layout="bert", layer=0)
    arrays = weights.tensors(file)
    for other in ("encoder.layer.00.", "bert.encoder.layer.0."):
        twice = arrays | {key.replace("encoder.layer.0.", other): x for key, x in arrays.items()}
        _safetensors.write_tensors(file, twice, {})
        with pytest.raises(weights.UnexpectedKeysError, match="one layer of each number"):
            weights.read(file, layout="bert", layer=0, num_heads=2)


def test_a_signalling_nan_is_refused_without_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "layer.safetensors"
    for dtype, signal in (("bfloat16", 0x7F81), ("float16", 0x7C01), ("float32", 0x7F800001)):
        values = weights.draw(CONFIG, 0, dtype)
        values["w_q"].reshape(-1).view(f"u{values['w_q'].itemsize}")[3] = signal
        weights.write(file, CONFIG, values, finite=False)
        with pytest.raises(weights.NonFiniteWeightError):
            weights.read(file)
        assert bits(weights.read(file, finite=False).values) == bits(values)


@pytest.mark.parametrize("variant", ["gru", "seq2seq"])
def test_a_file_gets_no_billion_of_layers(variant: str, tmp_path: Path) -> None:
    file, config = tmp_path / "layer.safetensors", next(iter(contract.examples(variant).values()))
    values = weights.draw(config, 0, "float32")
    header, data = good(file, values, config)
    assert contract.config(variant, **config.as_dict() | {"num_layers": 1024})
    for many in (1025, 10**12, 10**400):
        header["__metadata__"]["config"] = json.dumps(config.as_dict() | {"num_layers": many})
        file.write_bytes(sealed(header, data))
        with pytest.raises(weights.ConfigMismatchError, match="num_layers to be at most 1024"):
            weights.read(file)
    header["__metadata__"]["config"] = json.dumps(config.as_dict() | {"num_layers": None})
    file.write_bytes(sealed(header, data))
    with pytest.raises(weights.ConfigMismatchError, match="num_layers to be an integer"):
        weights.read(file)


def test_a_wrong_file_asks_for_little_memory(tmp_path: Path) -> None:
    """What a header claims is checked before memory is asked for: no more than a small multiple of the file."""
    file = tmp_path / "wrong.safetensors"
    huge = 2**40
    claims = [
        only(tensor("a", 0, 4 * huge, [huge])),
        only(tensor("a", 0, 4 * huge, [2**20, 2**20])),
        CORPUS["header of 2^63 bytes"][0],
        CORPUS["header above the limit"][0],
        CORPUS["too many values"][0],
        CORPUS["nested deep"][0],
    ]
    for change in claims:
        content = change(*good(file))
        file.write_bytes(content)
        assert peak_of_refusal(file) < 2**20 + 8 * len(content)
    for case in ("an index of too many values", "an index nested deep", "an index of nothing", "a shard cut"):
        index = sharded(tmp_path, metadata_of(file))
        SHARDED[case][0](index)
        assert peak_of_refusal(index) < 2**20 + 8 * index.stat().st_size


def peak_of_refusal(file: Path) -> int:
    tracemalloc.start()
    with pytest.raises(weights.WeightFileError):
        weights.read(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_the_corpus_covers_every_error() -> None:
    tested = {error for _, error, _ in (*CORPUS.values(), *SHARDED.values())}
    tested |= {weights.NoAttentionError}  # of a hybrid's config.json: see test_pretrained_layers
    assert tested == set(subclasses(weights.WeightFileError))
    assert all(issubclass(error, ValueError) for error in tested)


def subclasses(cls: type) -> Iterator[type]:
    for sub in cls.__subclasses__():
        yield sub
        yield from subclasses(sub)


@pytest.mark.parametrize(
    "change", [edit(lambda h: None), edit(lambda h: None, seal=True), replaced("w_q", VALUES["w_q"])]
)
def test_each_case_of_the_corpus_is_wrong_by_its_edit_alone(change: Edit, tmp_path: Path) -> None:
    file = tmp_path / "right.safetensors"
    file.write_bytes(change(*good(file)))
    assert bits(weights.read(file).values) == bits(VALUES)


@pytest.mark.parametrize("name", ["unaligned", "overlap", "empty", "a pickle", "a NUL"])
def test_any_safetensors_file_is_read_as_strictly(name: str, tmp_path: Path) -> None:
    change, error, _ = CORPUS[name]
    file = tmp_path / "wrong.safetensors"
    file.write_bytes(change(*good(file)))
    with pytest.raises(error):
        weights.tensors(file)


def test_tensors_of_any_file(tmp_path: Path) -> None:
    file = tmp_path / "recorded.safetensors"
    arrays = {"x": np.arange(6.0).reshape(2, 3), "mask": np.array([True, False]), "n": np.array([3], np.uint8)}
    safetensors.numpy.save_file(arrays, file)
    found = weights.tensors(file)
    assert bits(found) == bits({name: arrays[name] for name in found})
    assert list(weights.tensors(file, "mask")) == ["mask"]
    with pytest.raises(weights.MissingKeysError, match="'x'"):
        weights.tensors(file, "y")
    header = tensor("mask", 0, 3, [3], "BOOL")
    file.write_bytes(assemble(header, b"\0\1\2"))
    with pytest.raises(weights.UnsupportedEncodingError, match="booleans"):
        weights.tensors(file)
    file.write_bytes(assemble(tensor("x", 0, 2, [2], "F8_E4M3"), b"\0\1"))
    with pytest.raises(weights.UnsupportedEncodingError, match="F8_E4M3"):
        weights.tensors(file)
    file.write_bytes(assemble(tensor("x", 0, 0, [0, 2**62, 2**62]), b""))
    with pytest.raises(weights.UnsupportedEncodingError, match="shape"):
        weights.tensors(file)


def test_tensors_lie_in_any_order_and_some_are_empty(tmp_path: Path) -> None:
    """However the header names them: each begins where the one before in the data ends."""
    file = tmp_path / "any.safetensors"
    sizes = {"a": 2, "b": 0, "c": 1, "d": 0}
    for order in itertools.permutations(sizes):
        ends = np.cumsum([0, *(4 * sizes[name] for name in order)]).tolist()
        placed = {name: (ends[i], ends[i + 1]) for i, name in enumerate(order)}
        data = np.arange(3, dtype="<f4")
        for named in itertools.permutations(sizes):
            entries = [tensor(name, *placed[name], [sizes[name]]) for name in named]
            file.write_bytes(assemble({k: v for entry in entries for k, v in entry.items()}, data.tobytes()))
            found = weights.tensors(file)
            want = {name: data[begin // 4 : end // 4] for name, (begin, end) in placed.items()}
            assert bits(found) == bits({name: want[name] for name in found}) and set(found) == set(want)


@pytest.mark.parametrize("dtype", _safetensors.READABLE)
def test_tensors_are_aligned_in_the_file(dtype: str, tmp_path: Path) -> None:
    """At every length of the header and every offset behind it: read where both together are whole elements, else
    refused.
    """
    file, size = tmp_path / "any.safetensors", _safetensors.BITS[dtype] // 8
    for before, spaces in itertools.product((0, 1, 2, 4, 8, 12), range(8)):
        header = json.dumps(tensor("a", 0, before, [before], "U8") | tensor("b", before, before + size, [1], dtype))
        raw = header.encode() + b" " * (-len(header) % 8 + spaces)
        file.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(before + size))
        if (before + spaces) % size == 0:
            assert list(weights.tensors(file)) == ["a", "b"]
        else:
            with pytest.raises(weights.UnsupportedEncodingError, match=f"divisible by {size}"):
                weights.tensors(file)


def test_a_file_cut_while_it_is_read(tmp_path: Path) -> None:
    file, config = tmp_path / "layer.safetensors", contract.config("mha", d_model=80, num_heads=2)
    weights.write(file, config, weights.draw(config, 0, "float32"))  # larger than what was read ahead
    with _safetensors.TensorFile(file) as opened:
        os.truncate(file, file.stat().st_size - 8)
        last = max(opened.entries, key=lambda name: opened.entries[name].end)
        with pytest.raises(weights.TruncatedFileError, match="changed"):
            opened.read(last)


def test_damage_anywhere_is_noticed(tmp_path: Path) -> None:
    """Random bytes changed anywhere in a file: it is refused, or what is read is what was written."""
    file, rng = tmp_path / "layer.safetensors", np.random.default_rng(1)
    weights.write(file, CONFIG, VALUES)
    content, refused = bytearray(file.read_bytes()), 0
    for _ in range(200):
        damaged, place = bytearray(content), int(rng.integers(len(content)))
        damaged[place] = int(rng.integers(256)) if rng.random() < 0.5 else damaged[place] ^ (1 << int(rng.integers(8)))
        file.write_bytes(damaged)
        try:
            found = weights.read(file)
        except weights.WeightFileError:
            refused += 1
        else:
            assert bits(found.values) == bits(VALUES)
            assert found.config == CONFIG
    assert refused > 180


# Casts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("device", ["nonsense", "cuda:7", "", 3.5])
def test_a_device_that_is_not_here_is_refused_in_the_same_words(name: str, device: Any, tmp_path: Path) -> None:
    package, file = TREES[name].package, tmp_path / "layer.safetensors"
    words = rf"^{package.__name__}: expected device= to be one that is here, cpu.*, got {device!r}; choose"
    weights.write(file, CONFIG, weights.draw(CONFIG, 4, "float32"))
    for make in (lambda: package.build("dot_product", device=device), lambda: package.load(file, device=device)):
        with pytest.raises(ValueError, match=words):
            make()
    assert package.build("dot_product", device="cpu").config.variant == "dot_product"


@pytest.mark.parametrize("name", TREES)
def test_a_file_of_another_variant_is_refused_with_what_can_be_done(name: str, tmp_path: Path) -> None:
    package, file = TREES[name].package, tmp_path / "layer.safetensors"
    package.save(package.build("mha", d_model=6, num_heads=2), file)
    for variant, fields, todo in (
        ("gqa", {"num_kv_heads": 2}, "load it into a layer of mha$"),
        ("fused_qkv", {"use_output": True}, "load it into a layer of mha, or pass layout='mha' to have it converted$"),
    ):
        layer = package.build(variant, d_model=6, num_heads=2, **fields)
        with pytest.raises(weights.ConfigMismatchError, match=todo):
            package.load(file, into=layer)
    with pytest.raises(weights.ConfigMismatchError, match=r"pass variant='mha'$"):
        package.load(file, variant="gqa")
    assert package.load(file, into=layer, layout="mha") is layer


@pytest.mark.parametrize("name", TREES)
def test_a_cast_is_asked_for(name: str, tmp_path: Path) -> None:
    tree, file = TREES[name], tmp_path / "layer.safetensors"
    values = weights.draw(CONFIG, 4, "float64")
    weights.write(file, CONFIG, values)
    for dtype in DTYPES[1:]:
        layer = tree.build(CONFIG, dtype=dtype)
        before = bits(values_of(tree, layer))
        advice: dict[str, dict[str, Any]] = {
            "load into a layer of dtype float64": {"into": layer},
            "leave dtype= out": {"dtype": dtype},
        }
        for other, options in advice.items():
            with pytest.raises(weights.DtypeMismatchError, match=f"cast=True to have it rounded once, or {other}$"):
                tree.package.load(file, **options)
        assert bits(values_of(tree, layer)) == before
        expected = bits({n: _cast.round_to(x, dtype) for n, x in values.items()})
        assert bits(values_of(tree, tree.package.load(file, dtype=dtype, cast=True))) == expected
        assert bits(values_of(tree, tree.package.load(file, into=layer, cast=True))) == expected
    weights.write(file, CONFIG, {name: _cast.round_to(x, "float16") for name, x in values.items()})
    for dtype, words in (("float32", "have it widened, which is exact"), ("bfloat16", "have it rounded once")):
        with pytest.raises(weights.DtypeMismatchError, match=f"pass cast=True to {words}"):
            tree.package.load(file, dtype=dtype)
    with pytest.raises(ValueError, match="expected dtype= with cast=True"):
        tree.package.load(file, cast=True)
    with pytest.raises(ValueError, match="expected dtype to be one of"):
        tree.package.load(file, dtype="float8")
    with pytest.raises(ValueError, match="expected dtype 'float16'"):
        tree.package.load(file, into=tree.build(CONFIG, dtype="float16"), dtype="float32")


@pytest.mark.parametrize("name", TREES)
def test_a_layer_of_two_dtypes_is_not_loaded_into(name: str, tmp_path: Path) -> None:
    """Whichever parameter has another: the file has one dtype, and a layer that was half converted is a mistake."""
    tree, file = TREES[name], tmp_path / "layer.safetensors"
    weights.write(file, CONFIG, VALUES)
    for other in VALUES:
        layer = tree.build(CONFIG, dtype="float32")
        values = tree.arrays({n: x.astype("float64" if n == other else "float32") for n, x in VALUES.items()})
        if name == "numpy":
            setattr(layer, other, values[other])
        elif name == "torch":
            getattr(layer, other).data = values[other]
        else:
            setattr(layer, other, nnx.Param(values[other]))
        before = bits(values_of(tree, layer))
        for options in ({}, {"cast": True}):
            with pytest.raises(ValueError, match="one dtype over the layer, got float32, float64"):
                tree.package.load(file, into=layer, **options)
        assert bits(values_of(tree, layer)) == before


@pytest.mark.parametrize(
    ("value", "dtype", "words"),
    [
        (1e39, "float32", "beyond its range"),
        (3.4e38, "float16", "beyond its range"),
        (65520.0, "float16", "beyond its range"),
        (-3.4e38, "bfloat16", "beyond its range"),
    ],
)
def test_a_cast_beyond_the_range_is_refused(value: float, dtype: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "layer.safetensors"
    values = weights.draw(CONFIG, 4, "float64")
    values["w_o"][1, 1, 1] = value
    weights.write(file, CONFIG, values)
    for tree in TREES.values():
        layer = tree.build(CONFIG, dtype=dtype)
        before = bits(values_of(tree, layer))
        with pytest.raises(weights.DtypeMismatchError, match=words):
            tree.package.load(file, into=layer, cast=True)
        assert bits(values_of(tree, layer)) == before


def test_a_cast_is_a_rounding_or_a_refusal() -> None:
    """Of every value between every two types, with NaN and infinities taken as they are and refused."""
    values = (0.0, -0.0, 1.0, 1e-45, 65519.0, 65520.0, -3.4e38, 1e39, np.inf, -np.inf, np.nan)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        for source, target, value, finite in itertools.product(_cast.DTYPES, _cast.DTYPES, values, (False, True)):
            x = np.array([1.0, value]).astype(_cast.DTYPES[source])
            number, rounded = float(x[1]), float(_cast.round_to(x, target)[1])
            refused = (finite and not np.isfinite(number)) or (np.isinf(rounded) and np.isfinite(number))
            case = source, target, value, finite
            try:
                y = checked_cast("file", "w", x, target, finite)
            except weights.WeightFileError:
                assert refused, case
            else:
                assert not refused and np.array_equal(float(y[1]), rounded, equal_nan=True), case
                assert y.dtype.name == target, case


def test_a_cast_may_not_lose_integers(tmp_path: Path) -> None:
    file = tmp_path / "layer.safetensors"
    for value, fits in ((2**24, True), (2**24 + 1, False), (2**53 + 1, False), (2**63 - 1, False)):
        whole = np.full((6, 2, 3), value, np.int64)
        file.write_bytes(replaced("w_q", whole)(*good(file)))
        with pytest.raises(weights.DtypeMismatchError, match="int64"):
            weights.read(file, dtype="float32")
        if fits:
            assert weights.read(file, dtype="float32", cast=True).values["w_q"].max() == value
        else:
            with pytest.raises(weights.DtypeMismatchError, match="does not have"):
                weights.read(file, dtype="float32", cast=True)


def test_float64_in_jax_needs_x64(tmp_path: Path) -> None:
    file, package = tmp_path / "layer.safetensors", TREES["jax"].package
    weights.write(file, CONFIG, weights.draw(CONFIG, 0, "float64"))
    layer = TREES["jax"].build(CONFIG, dtype="float64")
    jax.config.update("jax_enable_x64", False)
    try:
        for options in ({}, {"dtype": "float64"}, {"into": layer}):
            with pytest.raises(ValueError, match="jax_enable_x64"):
                package.load(file, **options)
        assert values_of(TREES["jax"], package.load(file, dtype="float32", cast=True))["w_q"].dtype == np.float32
    finally:
        jax.config.update("jax_enable_x64", True)


# Arguments of load ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TREES)
def test_fields_must_agree_with_the_file(name: str, tmp_path: Path) -> None:
    package, file = TREES[name].package, tmp_path / "layer.safetensors"
    weights.write(file, CONFIG, VALUES)
    assert package.load(file, num_heads=2, head_dim=3, variant="mha").config == CONFIG  # 3 is head_dim's default
    assert package.load(file, dropout=0.5).config.dropout == 0.5
    with pytest.raises(weights.ConfigMismatchError, match=r"num_heads=3.*num_heads=2"):
        package.load(file, num_heads=3)
    with pytest.raises(weights.ConfigMismatchError, match=r"scale=1.0.*scale=None"):
        package.load(file, scale=1.0)
    with pytest.raises(weights.ConfigMismatchError, match=r"'gru'.*'mha'"):
        package.load(file, variant="gru")
    with pytest.raises(TypeError, match="did you mean 'num_heads'"):
        package.load(file, num_head=2)
    with pytest.raises(ValueError, match="did you mean 'mha'"):
        package.load(file, variant="mhaa")
    with pytest.raises(ValueError, match="did you mean 'bert'"):
        package.load(file, layout="bertt")
    with pytest.raises(ValueError, match="name the file's layout"):
        package.load(file, layer=3)
    with pytest.raises(FileNotFoundError):
        package.load(tmp_path / "nowhere")


@pytest.mark.usefixtures("unchecked")  # an integer scale
def test_settled_configs_compare_by_what_they_mean() -> None:
    def different(**fields: Any) -> list[str]:
        make = contract.get("mha").Config
        return differences(make(d_model=6, num_heads=2), make(**({"d_model": 6, "num_heads": 2} | fields)))

    assert different(head_dim=3, value_dim=6) == []
    assert different(dropout=0.5) == []
    assert different(head_dim=2) == ["head_dim"]
    assert different(scale=1) == ["scale"]
    assert different(key_dim=5, value_dim=6) == ["key_dim", "value_dim"]
    assert different(num_heads=3) == ["num_heads"]


# Writing --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "layer.safetensors"
    weights.write(file, CONFIG, VALUES)
    before = file.read_bytes()

    def fail(*args: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="no space"):
        weights.write(file, CONFIG, weights.draw(CONFIG, 9, "float32"))
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_file_is_on_the_disk_before_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, calls = tmp_path / "layer.safetensors", []
    fsync, replace = os.fsync, os.replace

    def watch_fsync(handle: int) -> None:
        calls.append("fsync folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else f"fsync {os.fstat(handle).st_size}")
        fsync(handle)

    def watch_replace(source: str, target: str) -> None:
        calls.append(f"replace {os.path.getsize(source)}")
        assert os.path.dirname(source) == os.path.dirname(target)
        assert not os.path.exists(target)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(os, "replace", watch_replace)
    weights.write(file, CONFIG, VALUES)
    size = file.stat().st_size
    assert calls == [f"fsync {size}", f"replace {size}", "fsync folder"]


def test_a_file_written_through_a_link_and_with_usual_rights(tmp_path: Path) -> None:
    target, link = tmp_path / "there" / "layer.safetensors", tmp_path / "link.safetensors"
    target.parent.mkdir()
    link.symlink_to(target)
    weights.write(link, CONFIG, VALUES)
    assert link.is_symlink()
    assert bits(weights.read(target).values) == bits(VALUES)
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_what_cannot_be_a_layer_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "layer.safetensors"
    nan = VALUES | {"b_o": np.full(6, np.nan, np.float32)}
    wrong: list[tuple[Arrays, type[weights.WeightFileError]]] = [
        (nan, weights.NonFiniteWeightError),
        ({name: x for name, x in VALUES.items() if name != "w_q"}, weights.MissingKeysError),
        (VALUES | {"w_x": VALUES["w_q"]}, weights.UnexpectedKeysError),
        (VALUES | {"w_q": VALUES["w_q"].T}, weights.ShapeMismatchError),
        (VALUES | {"w_q": VALUES["w_q"].astype(np.float64)}, weights.DtypeMismatchError),
        ({name: x.astype(np.int32) for name, x in VALUES.items()}, weights.DtypeMismatchError),
    ]
    for values, error in wrong:
        with pytest.raises(error) as caught:
            weights.write(file, CONFIG, values)
        assert caught.type is error
        assert not list(tmp_path.iterdir())
        with pytest.raises(error):
            weights.check(CONFIG, values, "here")
    assert weights.check(CONFIG, VALUES) == "float32"
    for tree in TREES.values():
        layer = tree.package.load(_written(tmp_path / "nan", nan), finite=False)
        with pytest.raises(weights.NonFiniteWeightError, match="b_o"):
            tree.package.save(layer, file)
        assert not file.exists()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {name: x for name, x in VALUES.items() if name[:2] != "b_"},
            "expected the keys 'b_k', 'b_o', 'b_q', 'b_v', got only 'w_k', 'w_o', 'w_q', 'w_v'; "
            "set use_bias=False, or add them",
        ),
        ({name: x for name, x in VALUES.items() if name != "b_q"}, "'w_v'; add it, or"),
        (
            {name.replace("w_", "weight_"): x for name, x in VALUES.items()},
            "got the unknown keys 'weight_k', 'weight_o', 'weight_q', 'weight_v'; "
            "rename 'weight_k' to 'w_k' if it is this tensor, and the others likewise",
        ),
        ({}, "got no tensor; add them"),
        (VALUES | {"a": VALUES["w_q"], "b": VALUES["w_q"]}, "got also the keys 'a', 'b'; delete them, or"),
        (
            VALUES | {"w_q": VALUES["w_q"].astype(np.float64)},
            "'w_q': expected float32, as 7 of the 8 tensors have, got float64",
        ),
        (VALUES | {"b_o": VALUES["b_o"].astype(np.float64)}, "'b_o': expected float32"),
        (VALUES | {"b_o": VALUES["b_o"].astype(np.int32)}, "'b_o': expected one of float64"),
    ],
)
def test_an_error_names_the_wrong_key_and_what_to_do(values: Arrays, words: str) -> None:
    """No key that is right is named for one that is not."""
    with pytest.raises(weights.WeightFileError, match=re.escape(words)) as caught:
        weights.check(CONFIG, values)
    assert "did you mean" not in str(caught.value)


def _written(path: Path, values: Arrays) -> Path:
    weights.write(path, CONFIG, values, finite=False)
    return path


@pytest.mark.parametrize(("variant", "example"), EXAMPLES)
def test_weights_of_norms_start_at_one(variant: str, example: str) -> None:
    """A norm that starts with small weights of either sign would hardly let anything through."""
    config = config_of(variant, example)
    for name, start in config.initial_values().items():
        norm = "norm" in name and not name.startswith("b_")
        if "norm" in name and not norm:
            assert start == 0.0, name
            continue
        assert (start == 1.0 - getattr(config, "norm_offset", 0.0)) == norm or (start is not None and not norm), name


@pytest.mark.parametrize(("variant", "example"), EXAMPLES)
def test_biases_are_drawn_as_their_weights(variant: str, example: str) -> None:
    """As in `torch.nn.Linear`: both within one over the root of how many numbers the weight sums."""
    fans = config_of(variant, example).fans()
    for name, fan in fans.items():
        weight = name.replace("b_", "w_", 1)
        assert fan == fans.get(weight, fan), name


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize(("variant", "name"), [("mla", "w_kv_norm"), ("gated_delta", "a_log"), ("qk_norm", "w_scale")])
def test_what_is_not_drawn_starts_as_the_contract_says(tree: str, variant: str, name: str) -> None:
    """From `build` and from the constructor, where everything else is drawn."""
    config = next(c for c in contract.examples(variant).values() if name in c.params())
    built = TREES[tree].package.build(variant, **config.as_dict())
    given = {"numpy": {"rng": 0}, "torch": {}, "jax": {"rngs": nnx.Rngs(0)}}[tree]
    for layer in (built, type(built)(config, **given)):
        values = {name: TREES[tree].numpy(x) for name, x in layer.params().items()}
        want = np.full(values[name].shape, config.initial_values()[name]).astype(np.float32)
        assert (values[name] == want).all()
        assert len(np.unique(values["w_o"])) == values["w_o"].size
