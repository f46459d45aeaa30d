"""What the linter must refuse, asked of the linter: a rule that is switched off for one reason hides others."""

import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from attn_np.contract._letters import LETTERS

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("attn_np", "attn_np/contract", "attn_jax", "attn_torch", "parity_tests", "parity_tests/tests", "benchmarks")
# Of an annotated layer, a call of a name that nothing imports.
CODE = '''"""A layer."""

from jaxtyping import Float

from {tree}.ops import Array


class Layer:
    """A layer."""

    w: Float[Array, "d k"]
    b: Float[Array, "k"]

    def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t k"]:
        return linear("btd,dk->btk", x, self.w, self.b)
'''


def refused(code: str, folder: str) -> list[str]:
    """The rules that a file breaks in a folder."""
    if find_spec("ruff") is None:
        pytest.skip("ruff is not installed")
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise"]
    command += ["--stdin-filename", f"{folder}/planted.py", "-"]
    done = subprocess.run(command, input=code, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode < 2, done.stderr
    return [line.split()[1] for line in done.stdout.splitlines() if line.startswith(f"{folder}/planted.py")]


@pytest.mark.parametrize("folder", [*FOLDERS, "docs/_ext", "examples"])
def test_a_lost_import_is_refused(folder: str) -> None:
    """And axes in annotations are no names."""
    tree = folder.partition("/")[0] if folder.startswith("attn_") else "attn_np"
    lost = CODE.format(tree=tree)
    assert refused(lost.replace("import Array", "import Array, linear"), folder) == []
    assert refused(lost, folder) == ["F821"]


def test_only_letters_of_axes_are_taken_for_names() -> None:
    """Names of more letters are what an import binds."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["ruff"]
    assert set(LETTERS) == set(settings["builtins"])
