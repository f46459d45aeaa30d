"""What names of the field are here: each entry is as it says, and every variant has one."""

from typing import Any

import pytest
from typer.testing import CliRunner

from attn_np import contract
from attn_np.contract._names import NAMES, like
from parity_tests.commands.app import app
from parity_tests.judge.calls import may_have

# Another layout of parameters, and presets of fields that have an entry.
OTHER_SPELLINGS = {"fused_qkv", "softcap", "deberta_v3", "entmax15"}
BUILT = [known for known in NAMES if known.variant]


@pytest.mark.parametrize("known", BUILT, ids=lambda known: known.names[0])
def test_what_an_entry_says_to_build_is_a_config(known: Any) -> None:
    """With the sizes of an example; and its fields say something: they are not the defaults."""
    variant, preset = contract.presets().get(known.variant, (known.variant, None))
    fields = dict(known.fields) if preset is None else {**preset.fields, **known.fields}
    assert any(may_have(example, **fields) for example in contract.examples(variant).values())
    defaults = contract.get(variant).Config.__dataclass_fields__
    assert all(defaults[name].default != value for name, value in known.fields.items())


def test_every_variant_and_preset_is_the_answer_to_a_name() -> None:
    named = {known.variant for known in NAMES} | OTHER_SPELLINGS
    assert {*contract.variants(), *contract.presets()} <= named


def test_no_name_has_two_answers() -> None:
    names = [name.lower() for known in NAMES for name in known.names]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("RWKV", "RWKV-6"),
        ("rwkv4", "in a few lines"),
        ("FOX", 'build("forgetting")'),
        ("bahdanau attention", "additive"),
        ("FLUX joint attention", "rope_axes=(16, 56, 56)"),
        ("Swin Transformer V2", 'build("swin", version=2)'),
        ("Perceiver IO", "called with the latents"),
        ("sLSTM", "not here"),
        ("XCA", "in a few lines"),
        ("Falcon", "load_pretrained(folder): layers of alibi, decoder"),
        ("falcon mamba", "not read: it has a state"),
        ("Zamba2", "not read yet"),
        ("falcon-7b", "load_pretrained(folder): layers of alibi, decoder"),
        ("Nyströmformer", "in a few lines"),
    ],
)
def test_the_command_finds_names_however_they_are_spelled(asked: str, answer: str) -> None:
    shown = CliRunner().invoke(app, ["list", "--like", asked])
    assert shown.exit_code == 0
    assert answer in shown.output


def test_a_name_that_nobody_has_is_refused() -> None:
    shown = CliRunner().invoke(app, ["list", "--like", "zzz"])
    assert shown.exit_code == 2
    assert not like("zzz")
    shown = CliRunner().invoke(app, ["list", "--like", "perfomer"])
    assert "try performer" in shown.output
