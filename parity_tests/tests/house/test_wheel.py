"""What ships: the tool and the three packages, no test and nothing that only a checkout can use."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import HeaderParser
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder
from typer.testing import CliRunner

from parity_tests.commands import _shared
from parity_tests.commands.app import app

ROOT = Path(__file__).resolve().parents[3]


# What examines the project itself, for commands that need a clone.
EXAMINES = ("relations", "corrupt.py", "fuzz.py", "kernels.py")


def test_the_wheel_holds_the_tool_alone() -> None:
    builder: Any = WheelBuilder(str(ROOT))
    held = {file.distribution_path for file in builder.recurse_included_files()}
    packages = {path.partition("/")[0] for path in held}
    assert packages == {"attn_np", "attn_jax", "attn_torch", "parity_tests"}
    rooms = {path.split("/")[1] for path in held if path.count("/") > 1 and path.startswith("parity_tests/")}
    here = {path.name for path in (ROOT / "parity_tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == here - {"tests", "sync", "peers"}
    assert not [path for path in held if "/test_" in path or path.endswith("conftest.py")]
    assert not [path for path in held if path.startswith("parity_tests/judge/") and path.split("/")[2] in EXAMINES]
    assert {"parity_tests/commands/app.py", "attn_np/py.typed"} <= held
    assert {"parity_tests/report/templates/report.html.j2", "attn_np/weights/layouts/bert.py"} <= held


def test_the_citation_and_the_changelog_name_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    cited = dict(re.findall(r"^(\w+): (.*)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE))
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
    newest = re.findall(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)[0]
    assert newest == project["version"]


@pytest.mark.parametrize("command", ["fast", "fuzz", "soak", "peers"])
def test_a_command_that_examines_the_project_asks_for_a_clone(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_shared, "find_spec", lambda name: None)
    done = CliRunner().invoke(app, [command])
    assert done.exit_code == 2
    assert "expected a clone of the project, got an installed package" in " ".join(done.output.split())


def test_what_ships_imports_nothing_that_does_not() -> None:
    """But for commands that ask for a clone first."""
    left_out = re.compile(r"parity_tests\.(tests|sync|peers|judge\.(relations|corrupt|fuzz|kernels))\b")
    builder: Any = WheelBuilder(str(ROOT))
    for file in builder.recurse_included_files():
        source = Path(file.path).read_text("utf-8") if file.path.endswith(".py") else ""
        for line in source.splitlines():
            if re.match(r"\s*(from|import) ", line) and left_out.search(line.replace(" import ", ".")):
                assert "needs_clone()" in source, f"{file.distribution_path}: {line}"


# A browser's Python, which has no threads and neither PyTorch nor JAX, but these.
IN_A_BROWSER = {"numpy", "ml_dtypes", "safetensors"}
LAYERS_IN_A_BROWSER = """
import sys, threading

def refused(*args, **kwargs):
    raise RuntimeError("can't start new thread")

threading.Thread.start = refused
sys.path[:0] = [sys.argv[1]]
for name in ("torch", "jax", "flax", "attn_jax", "attn_torch"):
    sys.modules[name] = None
import numpy as np
import attn_np
from attn_np.textbook import mha

assert attn_np.__file__.startswith(sys.argv[1])
x = np.random.default_rng(0).normal(size=(2, 300, 12))
layer = attn_np.build("mha", dtype="float64", d_model=12, num_heads=3, use_bias=False)
y, pull = attn_np.value_and_vjp(layer, x)
ours, saved = mha.forward(x, **layer.params())
print(y.shape, pull(y).inputs["query"].shape, mha.backward(y, saved)["x"].shape)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built as a release is."""
    builder: Any = WheelBuilder(str(ROOT))
    (made,) = builder.build(directory=str(tmp_path_factory.mktemp("wheel")))
    return zipfile.ZipFile(made)


def test_the_wheel_is_pure_and_needs_what_a_browser_has(wheel: zipfile.ZipFile) -> None:
    """No compiled file, and no dependency that is neither pure Python nor among those of Pyodide."""
    about = {Path(name).name: name for name in wheel.namelist() if ".dist-info/" in name}
    tags = HeaderParser().parsestr(wheel.read(about["WHEEL"]).decode())
    assert (tags["Root-Is-Purelib"], tags["Tag"]) == ("true", "py3-none-any")
    assert not [name for name in wheel.namelist() if Path(name).suffix in {".so", ".pyd", ".dll", ".dylib", ".c"}]
    needs = HeaderParser().parsestr(wheel.read(about["METADATA"]).decode()).get_all("Requires-Dist") or []
    names = {re.split(r"[^\w-]", need)[0].replace("-", "_") for need in needs if "extra ==" not in need}
    assert "numpy" in names
    for name in names - IN_A_BROWSER:
        installed = HeaderParser().parsestr(distribution(name).read_text("WHEEL") or "")
        assert installed["Root-Is-Purelib"] == "true", f"{name} is not pure Python, and Pyodide does not have it"


def test_attn_np_runs_from_the_wheel_as_in_a_browser(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    """Without PyTorch and JAX, with a BLAS of one thread, and where no other can be started."""
    wheel.extractall(tmp_path)
    command = [sys.executable, "-c", LAYERS_IN_A_BROWSER, str(tmp_path)]
    alone = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False, env=alone)
    assert done.stdout == "(2, 300, 12) (2, 300, 12) (2, 300, 12)\n", done.stderr
