"""Installed libraries with random weights: what they compute is what our layers compute with their files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attn_np
from attn_np import contract, weights
from attn_np.contract import Config
from attn_np.weights import layouts
from parity_tests import peers
from parity_tests._inputs import TREES, Arrays
from parity_tests.candidates import leaves, numpy_layer
from parity_tests.cases import Case
from parity_tests.error_arrays import ErrArray, delivered, precision, precision_of
from parity_tests.judge import compare
from parity_tests.test_layouts import bits

# Their warnings are theirs.
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("default")]
PEERS, REFUSED = peers.peers(), peers.refused()


def bounded(config: Config, values: Arrays, inputs: Arrays) -> Any:
    """The output in float64, and how far anybody who computes in float64 may be from it."""
    layer = numpy_layer(Case(config.variant, "given", "plain", "float64", given=config), values)
    layer.set_params({name: ErrArray(x, 0.0) for name, x in layer.params().items()})
    lifted = {name: ErrArray(x, 0.0) if x.dtype.kind == "f" else x for name, x in inputs.items()}
    with precision(precision_of("float64")), np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        return delivered(leaves(layer(**lifted))["y"], "float64")


def ratio(got: np.ndarray, want: Any) -> float:
    """The worst error in bounds."""
    found = compare(got, want)
    assert found["vacuous"] == 0
    return found["ratio"]


@pytest.mark.parametrize(("family", "name"), PEERS)
def test_the_same_numbers(family: str, name: str, tmp_path: Path) -> None:
    """From their file through each of our trees: both outputs within the bound; and their tensors back, bit by bit."""
    peer = PEERS[family, name]
    pytest.importorskip(peer.library)
    count = 0
    for found in peer.found(tmp_path):
        for tree in TREES.values():
            layer = found.load(tree.package)
            values = {key: np.asarray(tree.numpy(x)) for key, x in layer.params().items()}
            want = bounded(layer.config, values, found.inputs)
            assert ratio(found.output, want) <= 1, f"{peer.library}'s own output"
            assert ratio(tree(layer, found.inputs)[0], want) <= 1, tree.name
        back, held = tmp_path / "back", found.load(attn_np)
        weights.write(back, held.config, held.params(), layout=family, **found.save)
        again = weights.tensors(back)
        theirs = weights.tensors(found.file)
        same = {key: theirs[name] for key in again for name in theirs if name.endswith(key) or key.endswith(name)}
        assert bits(same) == bits(again)
        count += 1
    assert count


@pytest.mark.parametrize(("family", "why"), REFUSED)
def test_what_changes_numbers_is_refused(family: str, why: str, tmp_path: Path) -> None:
    """Fields of the library with values that no layer of ours has: refused in words, before weights are looked at."""
    model, change, words = REFUSED[family, why]
    pytest.importorskip(model.library)
    (tmp_path / "config.json").write_text(json.dumps(model.stated() | change))
    weights.write(tmp_path / "model.safetensors", *whatever())
    for tree in TREES.values():
        with pytest.raises(weights.ConfigMismatchError, match=words):
            tree.package.load_pretrained(tmp_path, 1, part=model.part)


def whatever() -> tuple[Config, Arrays]:
    """Some layer."""
    config = contract.config("mha", d_model=2, num_heads=1)
    return config, {name: np.zeros(shape) for name, shape in config.shapes().items()}


def test_every_family_has_a_peer() -> None:
    """A table that nobody held against its library is a guess."""
    families = {name for name in layouts.names() if layouts.get(name).model_types}
    assert families <= {family for family, _ in PEERS}
