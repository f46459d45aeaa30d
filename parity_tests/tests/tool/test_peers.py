"""Installed libraries with random weights: what they compute is what our layers compute with their files."""

import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import attn_np
from attn_np import contract, weights
from attn_np.contract import Config
from attn_np.weights import layouts
from parity_tests import peers
from parity_tests.commands.app import app
from parity_tests.peers._measure import RESULTS, THEIRS, measured
from parity_tests.peers._measure import TREES as PACKAGES
from parity_tests.tests.inputs import TREES, Arrays
from parity_tests.tests.weights.test_layouts import bits

# Their warnings are theirs.
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("default")]
PEERS, REFUSED = peers.peers(), peers.refused()
ROOT = Path(__file__).parents[3]


def marks_of(family: str, name: str) -> tuple[pytest.MarkDecorator, ...]:
    """Of the models that are made of a type alone, two thirds stand back: `make peers` asks a part of them."""
    return () if peers.asked_by_default(family, name) else (pytest.mark.left_out,)


@pytest.mark.parametrize(("family", "name"), [pytest.param(*key, marks=marks_of(*key)) for key in PEERS])
def test_the_same_numbers(family: str, name: str, tmp_path: Path) -> None:
    """From their file through each of our trees: both outputs within the bound; and their tensors back, bit by bit."""
    peer = PEERS[family, name]
    pytest.importorskip(peer.library)
    count = 0
    for found, ratios in measured(peer, tmp_path):
        assert set(ratios) == {THEIRS, *PACKAGES} and all(worst <= 1 for worst in ratios.values()), ratios
        count += 1
        if found.save is None:
            continue
        back, held = tmp_path / "back", found.load(attn_np)
        weights.write(back, held.config, held.params(), layout=family, **found.save)
        again = weights.tensors(back)
        theirs = {layouts.get(family).key_as_in_tables(name): x for name, x in weights.tensors(found.file).items()}
        ends = {key: [name for name in theirs if name.endswith(key) or key.endswith(name)] for key in again}
        # Kin of a family may have another word before their layers than the family.
        ends = {key: names or [x for x in theirs if layer_on(x) == layer_on(key)] for key, names in ends.items()}
        same = {key: theirs[max(names, key=len)] for key, names in ends.items()}
        assert bits(same) == bits(again)
    assert count


def layer_on(key: str) -> str:
    """A key from its layer's number on."""
    return re.split(r"\blayers?\.", key, maxsplit=1)[-1]


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


def test_the_keras_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("keras")
    runpy.run_path(str(ROOT / "examples" / "keras_attention.py"), run_name="__main__")
    assert "the same bits: True" in capsys.readouterr().out


def test_every_family_has_a_peer() -> None:
    """A table that nobody held against its library is a guess."""
    families = {name for name in layouts.names() if layouts.get(name).model_types}
    assert families <= {family for family, _ in PEERS}


def test_the_command_measures_the_same() -> None:
    """Figures as they stand in the documentation's table; nothing is written unless asked for."""
    before = RESULTS.read_text("utf-8")
    result = CliRunner().invoke(app, ["peers", "--families", "torch_gru"])
    assert result.exit_code == 0, result.output
    assert "torch_gru" in result.output and "recorded" not in result.output
    assert RESULTS.read_text("utf-8") == before
