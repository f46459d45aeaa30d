"""What ships: the tool and the three packages, no test and nothing that only a checkout can use."""

import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parents[3]


def test_the_wheel_holds_the_tool_alone() -> None:
    builder: Any = WheelBuilder(str(ROOT))
    held = {file.distribution_path for file in builder.recurse_included_files()}
    packages = {path.partition("/")[0] for path in held}
    assert packages == {"attn_np", "attn_jax", "attn_torch", "parity_tests"}
    rooms = {path.split("/")[1] for path in held if path.count("/") > 1 and path.startswith("parity_tests/")}
    here = {path.name for path in (ROOT / "parity_tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == here - {"tests", "sync", "peers"}
    assert not [path for path in held if "/test_" in path or path.endswith("conftest.py")]
    assert {"parity_tests/commands/app.py", "attn_np/py.typed"} <= held
    assert {"parity_tests/report/templates/report.html.j2", "attn_np/weights/layouts/bert.py"} <= held


def test_the_citation_and_the_changelog_name_the_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    cited = dict(re.findall(r"^(\w+): (.*)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE))
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
    newest = re.findall(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)[0]
    assert newest == project["version"]
