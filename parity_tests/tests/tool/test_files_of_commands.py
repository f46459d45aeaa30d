"""What commands read and write: no file is lost, no input is misread, no process outlives its command."""

import os
import signal
import subprocess
import sys
import time
from io import StringIO
from multiprocessing import active_children
from pathlib import Path
from select import select
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import save_file
from typer.testing import CliRunner

import attn_np
import parity_tests
from attn_np import contract
from parity_tests.commands import _shared
from parity_tests.commands._shared import in_flags
from parity_tests.commands.app import app
from parity_tests.judge import checkpoint
from parity_tests.judge.workers import workers

MHA = contract.config("mha", d_model=6, num_heads=2)


def refused(*arguments: object) -> str:
    """What a command says that refuses its arguments."""
    found = CliRunner().invoke(app, [str(x) for x in arguments])
    assert found.exit_code == 2, found.output
    return " ".join(found.output.replace("│", " ").split())


@pytest.fixture
def layer(tmp_path: Path) -> Path:
    path = tmp_path / "layer.safetensors"
    attn_np.save(attn_np.build("mha", d_model=6, num_heads=2), path)
    return path


def test_a_trace_replaces_no_file_unless_told_to(layer: Path, tmp_path: Path) -> None:
    before, out = layer.read_bytes(), tmp_path / "trace.safetensors"
    out.write_bytes(b"another trace")
    assert "which is read; name another" in refused("trace", "--weights", layer, "--out", layer, "--overwrite")
    assert "pass --overwrite" in refused("trace", "--weights", layer, "--out", out)
    assert (layer.read_bytes(), out.read_bytes()) == (before, b"another trace")
    told = CliRunner().invoke(app, ["trace", "--weights", str(layer), "--out", str(out), "--overwrite"])
    assert told.exit_code == 0, told.output
    assert "which is read; name another" in refused("trace", "--like", out, "--out", out, "--overwrite")


@pytest.mark.parametrize("option", ["--json", "--html", "--picture"])
def test_a_report_replaces_no_file_unless_told_to(option: str, layer: Path, tmp_path: Path) -> None:
    before, notes = layer.read_bytes(), tmp_path / "notes.json"
    notes.write_text("mine")
    assert "which is read" in refused("check", layer, option, layer, "--overwrite")
    assert "which exists; name another or pass --overwrite" in refused("check", layer, option, notes)
    assert (layer.read_bytes(), notes.read_text()) == (before, "mine")
    assert "which is read" in refused("compare", layer, layer, "--json", layer, "--overwrite")


def test_a_file_that_cannot_be_converted_leaves_the_one_to_replace(layer: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.safetensors"
    target.write_bytes(b"before")
    assert "pass --overwrite" in refused("convert", layer, target)
    refused("convert", layer, target, "--to", "llama", "--overwrite")
    assert target.read_bytes() == b"before"
    told = CliRunner().invoke(app, ["convert", str(layer), str(target), "--to", "flax_mha", "--overwrite"])
    assert told.exit_code == 0, told.output


def test_long_work_says_how_far_it_is_where_no_terminal_shows_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for terminal, said in ((False, "judging: 2 of 1,000\njudging: 3 of 1,000\n"), (True, "")):
        clock = iter((0.0, 59.0, 61.0, 61.0, 122.0, 122.0))
        monkeypatch.setattr(_shared, "monotonic", lambda clock=clock: next(clock))
        shown = StringIO()  # on a terminal, what is written to stderr beside a bar stands here
        monkeypatch.setattr(_shared, "console", Console(force_terminal=terminal, file=shown))
        with _shared.progress() as bar:
            task = bar.add_task("judging", total=1000)
            bar.advance(task)
            bar.advance(task)
            bar.update(task, completed=3)
        assert capsys.readouterr().err == said and " of 1,000" not in shown.getvalue()


def test_a_command_names_its_flags(layer: Path) -> None:
    assert "expected a foreign --layout with --layer or --part" in refused("check", layer, "--layer", 3)
    assert "pass --variant 'mha'" in refused("check", layer, "--variant", "gqa")
    names = {"layer": "--layer", "layout": "--from"}
    assert in_flags("expected layer=1, got layer=2; pass layer=1 or layout=", names) == (
        "expected layer=1, got layer=2; pass --layer 1 or --from"
    )


def test_a_report_may_not_replace_the_config_beside_the_weights(layer: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "which is read" in refused("check", layer, "--json", tmp_path / "config.json")


X = np.ones((2, 3, 6), np.float32)


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (
            {"query": X, "attention_mask": np.full((2, 3), 0.5)},
            "expected 0 and 1 in attention_mask, got 0.5",
        ),
        ({"query": X, "mask": np.full((2, 1, 3, 3), 2)}, "expected 0 and 1 in mask, got 2"),
        ({"x": X, "hidden_states": X}, "expected one of hidden_states, x, got 2"),
        ({"query": X, "x": X}, "expected one of query, x, got 2"),
        ({"query": X, "output": X, "y": X}, "expected one of output, y, got 2"),
        ({"query": X[:0]}, r"expected numbers in query, got the shape \(0, 3, 6\)"),
        ({"query": X, "key": X * np.nan, "value": X}, "expected numbers in key, got NaN"),
    ],
)
def test_activations_that_say_nothing_certain_are_refused(held: dict[str, Any], words: str, tmp_path: Path) -> None:
    save_file(held, tmp_path / "inputs.safetensors")
    with pytest.raises(ValueError, match=words):
        checkpoint.activations(tmp_path / "inputs.safetensors", MHA, "float32")


def test_a_mask_of_zeros_and_ones_is_taken_in_every_type(tmp_path: Path) -> None:
    for kind in (np.bool_, np.int64, np.float16):
        save_file({"x": X, "attention_mask": np.ones((2, 3), kind)}, tmp_path / "inputs.safetensors")
        given, _, mask = checkpoint.activations(tmp_path / "inputs.safetensors", MHA, "float32")
        assert mask is not None and mask.all() and given["mask"].shape == (2, 1, 1, 3)


def test_workers_end_with_a_command_that_is_stopped() -> None:
    """Neither what they compute nor what waits for them is finished first."""
    before, began = active_children(), time.monotonic()
    with pytest.raises(KeyboardInterrupt), workers(2) as pool:
        for _ in range(8):
            pool.submit(time.sleep, 15)
        raise KeyboardInterrupt
    assert time.monotonic() - began < 15
    assert active_children() == before


COMMAND = """
import os, time
from parity_tests.judge.workers import workers

if __name__ == "__main__":
    with workers(1) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        pool.submit(time.sleep, 60).result()
"""


@pytest.mark.skipif(os.name != "posix", reason="waits for a pipe as POSIX does")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
def test_workers_end_with_a_command_that_is_killed(name: str, tmp_path: Path) -> None:
    """No code of the command itself runs then."""
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    env = os.environ | {"PYTHONPATH": str(Path(parity_tests.__file__).parents[1])}
    command = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=env)
    assert command.stdout is not None
    with command.stdout as pipe:
        worker = int(pipe.readline())
        command.send_signal(getattr(signal, name))
        command.wait()
        closed = select([pipe], [], [], 20)[0]  # it is open for as long as the worker lives
        if not closed:
            os.kill(worker, signal.SIGKILL)
    assert closed
