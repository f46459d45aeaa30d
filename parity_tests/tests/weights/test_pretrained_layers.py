"""All layers out of a model's folder: which is which, hybrids, what is read, how much memory it takes."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attn_np import weights
from attn_np.weights._safetensors import TensorFile
from parity_tests.tests.inputs import TREES
from parity_tests.tests.weights.test_pretrained import LLAMA, ROOT, WANT, hollow, llama, model

MANY = LLAMA | {"num_hidden_layers": 12}
JAMBA: dict[str, Any] = {
    "model_type": "jamba",
    "hidden_size": 12,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "num_hidden_layers": 6,
    "attn_layer_period": 3,
    "attn_layer_offset": 1,
}


def same(a: Any, b: Any) -> bool:
    """Whether two layers have one config and the same numbers."""
    x, y = a.params(), b.params()
    return a.config == b.config and x.keys() == y.keys() and all(np.array_equal(x[name], y[name]) for name in x)


@pytest.mark.parametrize("shards", [1, 4])
def test_each_layer_stands_at_its_number(shards: int, tmp_path: Path) -> None:
    """Of twelve: by their names, the tenth would come before the second."""
    held = llama(12)
    folder = model(tmp_path, MANY, dict(sorted(held.items())), shards)
    for tree in TREES.values():
        layers = tree.package.load_pretrained(folder)
        assert len(layers) == 12 and all(layer.config == WANT for layer in layers)
        for number, layer in enumerate(layers):
            w_q = np.asarray(tree.numpy(layer.params()["w_q"]))
            assert np.array_equal(w_q.reshape(12, 12), held[f"model.layers.{number}.self_attn.q_proj.weight"].T)
    numpy = TREES["numpy"].package
    assert all(same(layer, numpy.load_pretrained(folder, n)) for n, layer in enumerate(numpy.load_pretrained(folder)))


def test_options_are_those_of_one_layer(tmp_path: Path) -> None:
    folder = model(tmp_path, LLAMA | {"colour": "brown"}, {name: x.astype(np.float16) for name, x in llama().items()})
    with pytest.raises(weights.ConfigMismatchError, match="'colour'"):
        TREES["numpy"].package.load_pretrained(folder)
    for tree in TREES.values():
        said: list[str] = []
        options: dict[str, Any] = {"allow": ["colour"], "dtype": "float32", "cast": True, "report": said.append}
        layers = tree.package.load_pretrained(folder, **options, dropout=0.5, max_positions=9)
        assert [(x.dtype, x.config.dropout, x.config.max_positions) for x in layers] == [("float32", 0.5, 9)] * 3
        assert all(f"model.layers.{n}." in text for n, text in enumerate(said)) and len(said) == 3
    with pytest.raises(ValueError, match="expected no part="):
        TREES["numpy"].package.load_pretrained(folder, part="cross", allow=["colour"])


def test_windows_and_rotation_are_each_layers_own(tmp_path: Path) -> None:
    load = TREES["numpy"].package.load_pretrained
    stated = MANY | {"model_type": "smollm3", "num_hidden_layers": 4, "sliding_window": 3, "use_sliding_window": True}
    configs = [layer.config for layer in load(model(tmp_path, stated, llama(12)))]
    assert [config.rope_base for config in configs] == [500000.0] * 3 + [None]
    assert [config.window for config in configs] == [None] * 3 + [(2, None)]
    stated |= {"layer_types": ["sliding_attention", "full_attention"] * 2, "no_rope_layers": [0, 1, 1, 0]}
    configs = [layer.config for layer in load(model(tmp_path, stated, llama(12)))]
    assert [config.rope_base for config in configs] == [None, 500000.0, 500000.0, None]
    assert [config.window for config in configs] == [(2, None), None] * 2


def test_a_layer_that_does_not_attend_is_none(tmp_path: Path) -> None:
    folder = model(tmp_path, JAMBA, llama(6))
    with pytest.raises(
        weights.NoAttentionError,
        match=r"'attn_layer_offset': expected a layer that attends.* as others are not read from this type",
    ):
        TREES["numpy"].package.load_pretrained(folder, 2)
    for tree in TREES.values():
        layers = tree.package.load_pretrained(folder)
        assert [layer is not None for layer in layers] == [False, True, False, False, True, False]
        assert all(layer is None or layer.config.rope_base is None for layer in layers)
    with pytest.raises(weights.NoAttentionError, match="a layer that attends"):
        TREES["numpy"].package.load_pretrained(model(tmp_path, JAMBA | {"num_hidden_layers": 1}, llama(1)))
    silent = {name: x for name, x in JAMBA.items() if name != "num_hidden_layers"}
    with pytest.raises(weights.ConfigMismatchError, match="'num_hidden_layers': expected this field, as layer 0 does"):
        TREES["numpy"].package.load_pretrained(model(tmp_path, silent, llama(6)))


HYBRIDS: dict[str, dict[str, Any]] = {
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "nemotron_h": {"hybrid_override_pattern": "M*-"},
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layers_block_type": ["mamba", "attention", "mamba"]},
    "olmo_hybrid": {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
}


@pytest.mark.parametrize("model_type", HYBRIDS)
def test_hybrids_say_which_layers_attend(model_type: str, tmp_path: Path) -> None:
    """A kind of layer that is not known is refused, not passed over."""
    stated = LLAMA | {"model_type": model_type} | HYBRIDS[model_type]
    stated["rope_parameters"] = None
    (tmp_path / "config.json").write_text(json.dumps(stated))
    with pytest.raises(weights.NoAttentionError):
        weights.read_pretrained(tmp_path, 0)
    with pytest.raises(FileNotFoundError, match="safetensors or its index"):
        weights.read_pretrained(tmp_path, 1)
    key, value = next(iter(HYBRIDS[model_type].items()))
    other = value.replace("M", "?") if isinstance(value, str) else ["pondering", *value[1:]]
    (tmp_path / "config.json").write_text(json.dumps(stated | {key: "none" if model_type == "bamba" else other}))
    with pytest.raises(weights.ConfigMismatchError) as error:
        list(weights.read_pretrained_layers(tmp_path))
    assert type(error.value) is weights.ConfigMismatchError


def test_the_number_of_layers(tmp_path: Path) -> None:
    """As the file says, or all that are stored: one that predicts more tokens comes after them."""
    load = TREES["numpy"].package.load_pretrained
    assert len(load(model(tmp_path, LLAMA | {"num_hidden_layers": 11}, llama(12)))) == 11
    unsaid = {key: value for key, value in LLAMA.items() if key != "num_hidden_layers"}
    assert len(load(model(tmp_path, unsaid, llama(12)))) == 12
    with pytest.raises(weights.MissingKeysError, match="got layers 0, 1, 2"):
        load(model(tmp_path, MANY, llama(3)))


def test_everything_is_described_before_anything_is_read(tmp_path: Path) -> None:
    types = {"model_type": "smollm3", "layer_types": ["full_attention", "full_attention", "pondering"]}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | types))
    with pytest.raises(weights.ConfigMismatchError, match="for layer 2, got 'pondering'"):
        TREES["numpy"].package.load_pretrained(tmp_path)


@pytest.mark.parametrize("shards", [1, 4])
def test_each_tensor_is_read_once_and_each_file_opened_once(
    shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, opened = Counter[str](), Counter[str]()
    read, init = TensorFile.read, TensorFile.__init__

    def counted_read(self: TensorFile, name: str) -> np.ndarray:
        names[name] += 1
        return read(self, name)

    def counted_init(self: TensorFile, path: Any) -> None:
        opened[str(path)] += 1
        init(self, path)

    monkeypatch.setattr(TensorFile, "read", counted_read)
    monkeypatch.setattr(TensorFile, "__init__", counted_init)
    held = llama(12)
    TREES["numpy"].package.load_pretrained(model(tmp_path, MANY, held, shards))
    assert names == dict.fromkeys((key for key in held if ".self_attn." in key), 1)
    assert len(opened) == shards and set(opened.values()) == {1}


def test_a_terminal_shows_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = model(tmp_path, LLAMA, llama())
    for terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        clock = iter((0.0, 0.5, 2.0, 3.0))
        monkeypatch.setattr("attn_np.weights._progress.monotonic", lambda clock=clock: next(clock))
        TREES["numpy"].package.load_pretrained(folder)
        shown = [f"\rload_pretrained: layer {number} of 3\x1b[K" for number in (1, 2)]
        assert capsys.readouterr().err == (f"{''.join(shown)}\r\x1b[K" if terminal else "")


# Memory ---------------------------------------------------------------------------------------------------------------

MEASURE = """
import importlib, sys
def resident(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
package = importlib.import_module(sys.argv[1])
warm = package.load_pretrained(sys.argv[2])
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew: a process inherits that of its parent
before = resident("VmRSS")
layers = package.load_pretrained(sys.argv[3])
print(resident("VmHWM") - before, sum(x.nbytes for layer in layers for x in layer.params().values()))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux for a process's peak")
@pytest.mark.parametrize(
    "package", ["attn_np", *(pytest.param(name, marks=pytest.mark.left_out) for name in ("attn_torch", "attn_jax"))]
)
def test_peak_memory(package: str, tmp_path: Path) -> None:
    """All layers and one more, out of a checkpoint of which half is attention."""
    width, count = 2048, 8
    stated = LLAMA | {"hidden_size": width, "num_attention_heads": 16, "num_key_value_heads": None}
    folder = tmp_path / "large"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(stated | {"num_hidden_layers": count}))
    shapes: dict[str, tuple[int, ...]] = {}
    for n in range(count):
        shapes |= {f"model.layers.{n}.self_attn.{x}_proj.weight": (width, width) for x in "qkvo"}
        shapes[f"model.layers.{n}.mlp.up_proj.weight"] = (4 * width, width)
    hollow(folder / "model.safetensors", shapes)
    small = model(tmp_path / "small", LLAMA, llama())
    command = [sys.executable, "-c", MEASURE, package, str(small), str(folder)]
    # Arrays that are freed go back to the system: in heaps of its own, JAX's leave holes.
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, env=env)
    assert done.returncode == 0, done.stderr
    peak, size = map(int, done.stdout.split())
    one = 4 * 4 * width**2
    assert size == count * one
    assert size <= peak < size + one + 2 * one // 4
