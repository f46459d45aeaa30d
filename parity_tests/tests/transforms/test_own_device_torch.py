"""Every layer runs on a device of its own, forward and backward: no operation mixes devices."""

import subprocess
import sys
from pathlib import Path

import pytest

from attn_np import contract

ROOT = Path(__file__).resolve().parents[3]
# Asked by default: a cache of nothing, terms, states, a search, a scan, rotations.
ASKED = ("alibi", "decoder", "entmax_attention", "gated_delta", "gru", "mha")


def said(*variants: str, before: str = "") -> str:
    code = f"import runpy, sys, torch; {before}\nsys.argv = {['', *variants]}\n"
    code += "runpy.run_module('parity_tests.tests.transforms.own_device', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_some_layers_run_on_a_device_of_their_own() -> None:
    assert said(*ASKED) == ""


@pytest.mark.left_out
@pytest.mark.parametrize("third", range(3))
def test_every_layer_runs_on_a_device_of_its_own(third: int) -> None:
    assert said(*contract.variants()[third::3]) == ""


def test_what_makes_an_array_on_the_cpu_is_seen() -> None:
    before = (
        "import attn_torch.mha as m; real = m.linear; m.linear = lambda *x: real(*x) + torch.ones(3, 1, 1)[:, :1, 0]"
    )
    assert "mha/" in said("mha", before=before)
