"""What was found, as JSON, tables, pages and annotations; and commands that are cut short."""

import ast
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from parity_tests import assert_parity, compare_modules, to_html, to_table
from parity_tests.bounds.error_array import ErrArray
from parity_tests.commands import _shared, modules
from parity_tests.commands.app import app
from parity_tests.judge import checkpoint, runner
from parity_tests.judge.cases import Case
from parity_tests.judge.judging import Row, compare
from parity_tests.judge.result import Result
from parity_tests.ports.modules.comparison import ModuleComparison
from parity_tests.ports.parity import ParityError, Verdict
from parity_tests.report import annotations, cells, html, plain, summary

torch = pytest.importorskip("torch")
ROOT = Path(plain.__file__).parents[1]
FIELDS: dict[str, Any] = {"d_model": 12, "num_heads": 3}
PORT = """
import attn_np

def port(params, query, scale=0.5):
    layer = attn_np.build("mha", dtype=str(query.dtype), d_model=12, num_heads=3, scale=scale)
    layer.set_params(params)
    return layer(query)

def wrong(params, query):
    return port(params, query, 0.3)

def broken(params, query):
    raise RuntimeError("no answer")
"""
space: dict[str, Any] = {}
exec(PORT, space)


class Half(torch.nn.Module):
    """Two linear maps; the second may be wrong."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.up, self.down, self.factor = torch.nn.Linear(6, 9), torch.nn.Linear(9, 6), factor

    def forward(self, x: Any) -> Any:
        return self.down(torch.tanh(self.up(x)) * self.factor)


def failure() -> ParityError:
    with pytest.raises(ParityError) as raised:
        assert_parity(space["wrong"], "mha", **FIELDS)
    return raised.value


@pytest.fixture(scope="module")
def results() -> dict[str, Verdict | ParityError | ModuleComparison]:
    return {
        "agrees": assert_parity(space["port"], "mha", **FIELDS),
        "differs": failure(),
        "modules": compare_modules(Half(1.0), Half(1.5), (np.ones((2, 5, 6), np.float32),)),
    }


def strict(text: str) -> Any:
    """JSON, and nothing that its standard does not have."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("kind", ["agrees", "differs", "modules"])
def test_what_was_found_in_every_form(kind: str, results: dict[str, Any], tmp_path: Path) -> None:
    """JSON, a table and a page say the same verdict and name the first difference; the page fetches nothing."""
    found, agrees = results[kind], kind == "agrees"
    text = found.to_json(tmp_path / "found.json")
    assert (tmp_path / "found.json").read_text("utf-8") == text
    content = strict(text)
    assert content["agree"] is agrees and content["words"] == str(found) and content["versions"]["numpy"]
    to_html(found, tmp_path / "found.html", "a port")
    page = (tmp_path / "found.html").read_text("utf-8")
    assert ("They agree" in page, "They differ" in page) == (agrees, not agrees)
    assert not re.search(r"(?:src|href)=\"(?!#)", page) and "default-src 'none'" in page
    out = Console(file=io.StringIO(), width=160)
    out.print(to_table(found))
    table = out.file.getvalue()  # type: ignore[attr-defined]
    assert ("▶" in table) is not agrees
    if kind == "modules":
        assert content["first"]["verdict"] == "differs" and 'id="first"' in page
    elif kind == "differs":
        assert content["finding"]["first"]["name"] == "y"
        assert content["finding"]["causes"][0]["name"] in page and "▶ output y" in table
    else:
        assert sum(case["elements"] for case in content["cases"]) == content["summary"]["elements"] > 0


# Numbers that are not finite ------------------------------------------------------------------------------------------

STRANGE = (0.0, 0.5, 2.0, float("inf"), float("nan"))
CASE = Case("mha", "plain", "full", "float32", 0)


def rows_of(ratios: tuple[float, ...]) -> list[Row]:
    return [Row("torch eager", CASE, "tape", f"a{i}", x, elements=1, rms=x) for i, x in enumerate(ratios)]


def worth(ratio: float) -> float:
    return float("inf") if np.isnan(ratio) else ratio


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_the_worst_is_shown_wherever_it_stands(size: int) -> None:
    """Whatever comes first: what is not a number is worse than any."""
    for ratios in permutations(STRANGE, size):
        rows, result = rows_of(ratios), Result(rows=rows_of(ratios))
        want = max(map(worth, ratios))
        fails = want > 1
        assert worth(Verdict(rows).worst.ratio) == want
        assert worth(result.summary()["worst_ratio"]) == want
        assert worth(summary.largest(rows) or 0.0) == want
        groups = cells.grouped(result)
        (((_, _, cell),),) = (line for _, line in cells.heat_map(groups, ("float32",))["rows"])
        assert cell["shade"].startswith("f") is fails
        assert worth(html.failure_view(groups[0])["figure"] == "✗ fail") == float(want == float("inf"))
        told = Console(file=io.StringIO(), width=200)
        told.print(summary.table(result, ("float32",)))
        line = next(x for x in told.file.getvalue().splitlines() if "torch eager" in x)  # type: ignore[attr-defined]
        assert ("fail" in line) is (want == float("inf"))
        for ratio in ratios:
            assert summary.shade(ratio).startswith("[green]") is (ratio <= 1)
        strict(str(cells.block(groups, 10_000)))


def test_files_of_json_are_json(tmp_path: Path) -> None:
    """Whatever the numbers are: as values, in lists, as NumPy's."""
    summary.write_json(tmp_path / "run.json", Result(rows=rows_of(STRANGE)))
    cases = strict((tmp_path / "run.json").read_text("utf-8"))["cases"]
    assert [case["ratio"] for case in cases] == [0.0, 0.5, 2.0, None, None]
    values = {"a": [np.float32("nan"), np.array([1.5, np.inf])], "b": (float("-inf"), np.int64(3), True, None, "inf")}
    assert strict(plain.dumps(values)) == {"a": [None, [1.5, None]], "b": [None, 3, True, None, "inf"]}


def test_one_function_writes_json_of_verdicts() -> None:
    """It leaves no number that is not JSON; another one would."""
    for path in [*(ROOT / "report").glob("*.py"), *(ROOT / "commands").glob("*.py")]:
        calls = [node.func for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call)]
        own = [f for f in calls if isinstance(f, ast.Attribute) and f.attr in ("dump", "dumps")]
        if path.name not in ("plain.py", "peers.py"):  # peers writes figures that agree, which are finite
            assert not own, path


@pytest.mark.parametrize("bound", [float("nan"), float("inf"), 2.0, 1.0, 0.5, 0.0])
def test_a_bound_that_says_little_is_counted(bound: float) -> None:
    """One that is not a number, too, in whatever place; one of 0 says all that can be said."""
    value = np.ones(5)
    for place in range(5):
        bounds = np.full(5, 2.0**-40)
        bounds[place] = bound
        found = compare(value.copy(), ErrArray(value, bounds))
        assert found["vacuous"] == (0 if bound <= 1 else 1)
        assert found["ratio"] <= 1  # the numbers are equal


# Annotations ----------------------------------------------------------------------------------------------------------


@pytest.mark.left_out
def test_a_failing_test_shows_what_was_found(tmp_path: Path) -> None:
    """Its own line and the message, without the library's; on GitHub also as an annotation at that line, only there."""
    test = f"{PORT}\n\ndef test_port(attn_parity):\n    attn_parity(wrong, 'mha', d_model=12, num_heads=3)\n"
    (tmp_path / "test_port.py").write_text(f"{test}\n\ndef test_sum():\n    assert 1 + 1 == 3\n", "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "parity_tests.plugin", "-p", "no:cacheprovider", "-n", "0"]
    line = next(i for i, text in enumerate(test.splitlines(), 1) if "attn_parity(wrong" in text)
    where = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(tmp_path), "PYTHONPATH": str(ROOT.parent)}
    told = subprocess.run(
        [*command, "test_port.py"], cwd=tmp_path, env=os.environ | where, capture_output=True, text=True
    )
    assert told.returncode == 1 and "cause: scale of the scores 0.3 in place of 0.5" in told.stdout
    assert "parity_tests/ports" not in told.stdout
    (mark,) = (x for x in told.stdout.splitlines() if x.startswith("::error"))
    assert mark.startswith(f"::error file=test_port.py,line={line},title=test_port.py%3A%3Atest_port::your")
    assert "%0A" in mark


def test_annotations_are_for_github(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, wanted in (("true", True), ("", False), ("false", False)):
        monkeypatch.setenv("GITHUB_ACTIONS", value)
        assert annotations.wanted() is wanted
    monkeypatch.delenv("GITHUB_ACTIONS")
    assert not annotations.wanted()


def test_an_annotation_is_one_line() -> None:
    mark = annotations.annotation(Path("a,b.py"), 3, "x: 50%", "one\r\ntwo: 100%")
    assert mark.endswith("a%2Cb.py,line=3,title=x%3A 50%25::one%0D%0Atwo: 100%25") and "\n" not in mark


# The command judge ----------------------------------------------------------------------------------------------------


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module of implementations, in which the command runs."""
    (tmp_path / "own_ports.py").write_text(PORT, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_ports", raising=False)
    return tmp_path


def judged(*words: str, variant: str = "mha") -> tuple[int, str]:
    found = CliRunner().invoke(app, ["judge", *words, "--variant", variant])
    return found.exit_code, " ".join(found.output.split())


def test_judge_says_what_assert_parity_says(in_folder: Path) -> None:
    fields = ("d_model=12", "num_heads=3")
    code, told = judged("own_ports:port", *fields, "--json", "a.json", "--html", "a.html")
    assert code == 0 and "AGREES" in told and "written: a.json" in told and (in_folder / "a.html").exists()
    assert strict((in_folder / "a.json").read_text("utf-8"))["agree"] is True
    code, told = judged("own_ports:wrong", *fields, "--json", "b.json")
    assert code == 1 and "cause: scale of the scores 0.3 in place of 0.5" in told
    assert strict((in_folder / "b.json").read_text("utf-8"))["agree"] is False


def test_judge_takes_a_length_and_is_strict(in_folder: Path) -> None:
    (in_folder / "own_ports.py").write_text(
        "import attn_np\n\ndef port(query, key, value):\n"
        "    return attn_np.build('dot_product', dtype=str(query.dtype), window=(40, None))(query, key, value)\n",
        "utf-8",
    )
    words = ("own_ports:port", "window=(4095, null)", "--calls", "plain", "--json", "a.json")
    code, told = judged(*words, "--length", "7", variant="dot_product")
    rows = strict((in_folder / "a.json").read_text("utf-8"))["cases"]
    assert code == 0 and "from None" in told
    assert {row["elements"] % 7 for row in rows} == {0}
    code, told = judged(*words, "--overwrite", "--length", "7", "--strict", variant="dot_product")
    assert code == 1 and "LEFT OPEN" in told and "DIFFERS" not in told and "worst error / bound" in told
    written = strict((in_folder / "a.json").read_text("utf-8"))
    assert written["agree"] is False and written["untested"] and len(written["cases"]) == len(rows)
    assert judged(*words, "--overwrite", "--length", "45", "--strict", variant="dot_product")[0] == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("own_ports:broken", "d_model=12", "num_heads=3"), "got RuntimeError: no answer"),
        (("own_ports:prot", "d_model=12"), "expected a name in own_ports, got 'prot'"),
        (("own_ports", "d_model=12"), "write pkg.mod:Attention"),
        (("no_such_ports:x", "d_model=12"), "expected a module that can be imported, got no_such_ports"),
        (("own_ports:port(x)", "d_model=12"), "expected literals as arguments"),
        (("own_ports:port", "d_model"), "expected fields as name=value, got 'd_model'"),
        (("own_ports:port", "d_model=12", "d_model=13"), "expected each field once"),
        (("own_ports:port", "d_model=12", "num_heads=5"), "expected d_model divisible by num_heads"),
        (("own_ports:port", "d_model=12", "num_heads=3", "--dtype", "float17"), "expected --dtype"),
        (("own_ports:port", "d_model=12", "num_heads=3", "--json", "no/such/file"), "make no/such first"),
    ],
)
def test_judge_refuses_what_it_cannot_judge(words: tuple[str, ...], told: str, in_folder: Path) -> None:
    code, output = judged(*words)
    assert code == 2 and told in re.sub(r" ?│ ?", " ", output).replace("  ", " "), output


def test_judge_makes_a_module_of_its_class(in_folder: Path) -> None:
    """With the fields that it has parameters for or with the arguments that are written; out of training."""
    (in_folder / "own_ports.py").write_text(
        "import attn_torch\n\nclass Own(attn_torch.SelfAttention):\n"
        "    def __init__(self, d_model, extra=1):\n"
        "        super().__init__(attn_torch.SelfAttention.Config(d_model=d_model, dropout=0.5))\n"
        "        self.train()\n",
        "utf-8",
    )
    fields = ("d_model=7", "dropout=0.5")
    for name in ("own_ports:Own", "own_ports:Own(7)", "own_ports:Own(d_model=7)"):
        code, told = judged(name, *fields, "--calls", "plain", variant="self_attention")
        assert code == 0, told
    assert judged("own_ports:Own", variant="self_attention")[0] == 2


def test_judge_says_where_names_go_and_what_a_candidate_raises(in_folder: Path) -> None:
    """Also where that is an error of a kind that our own refusals are of."""
    (in_folder / "own_ports.py").write_text(
        "import torch\n\nclass Own(torch.nn.Module):\n"
        "    def __init__(self, d_model, window):\n"
        "        super().__init__()\n"
        "        self.odd, self.window = torch.nn.Linear(d_model, 2), window\n"
        "    def forward(self, query):\n        return self.odd(query)\n\n"
        "def port(query, key, value):\n    return query < (3, None)\n",
        "utf-8",
    )
    code, told = judged("own_ports:Own", "d_model=7", "window=(3, null)", variant="self_attention")
    assert code == 2 and "or weights in the JSON of --names" in told, told
    code, told = judged("own_ports:port", "window=(3, null)", variant="dot_product")
    assert code == 2 and "own_ports:port: expected a call without an error, got" in told, told


def test_judge_reads_values() -> None:
    from parity_tests.ports.named import config_fields

    texts = ["a=12", "b=true", "c=(4, null)", "d=sigmoid", "e=0.5", "f=None", "g='x y'", "h=[1, 2]", "i=a-b", "j=-1"]
    values = (12, True, (4, None), "sigmoid", 0.5, None, "x y", [1, 2], "a-b", -1)
    assert tuple(config_fields(texts).values()) == values


# Commands that are cut short ------------------------------------------------------------------------------------------


class Closed(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_closed_pipe_loses_no_file_and_no_verdict(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, code in (("port", 0), ("wrong", 1)):
        monkeypatch.setattr(_shared.console, "quiet", False)
        monkeypatch.setattr(_shared.console, "_file", Closed())
        words = [
            "judge",
            f"own_ports:{name}",
            "d_model=12",
            "num_heads=3",
            "--variant",
            "mha",
            "--json",
            f"{name}.json",
        ]
        assert CliRunner().invoke(app, words).exit_code == code
        assert strict((in_folder / f"{name}.json").read_text("utf-8"))["agree"] is (code == 0)


def test_files_are_written_before_words() -> None:
    """In every command: nothing that is printed may keep a file from being written."""
    for path in Path(modules.__file__).parent.glob("[a-z]*.py"):
        text = path.read_text("utf-8").partition("\ndef main(")[2]
        told = [text.find(word) for word in ("show_comparison(", "summary.show(", "show_modules(") if word in text]
        wrote = [text.rfind(word) for word in ("write_json(", "write_html(", "to_json(", "to_html(") if word in text]
        assert not told or not wrote or max(wrote) < min(told), path


# The command, which says when it has begun to judge. A shell that runs the tests in the background ignores Ctrl-C, as
# would every process that it starts.
BEGUN = """
import signal
import sys
from parity_tests.commands.app import main
from parity_tests.judge import runner

tasks = runner.tasks

def told(plan):
    print("begun", flush=True)
    return tasks(plan)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    runner.tasks = told
    main()
"""


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_an_interrupted_run_says_what_it_was_doing(jobs: str, tmp_path: Path) -> None:
    """It ends with 130, whatever its threads and processes are doing, and says no verdict."""
    (tmp_path / "begun.py").write_text(BEGUN, "utf-8")
    words = ["run", "--variants", "mha,gqa,gru", "--frameworks", "numpy", "--all", "--repeat", "20", "--jobs", jobs]
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "begun.py"), *words], env=os.environ | {"PYTHONPATH": str(ROOT.parent)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None and process.stdout.readline() == "begun\n"
            time.sleep(0.5)
            os.killpg(process.pid, signal.SIGINT)
            told = process.communicate(timeout=60)[0]
        finally:
            process.kill()
    assert process.returncode == 130, told
    assert "interrupted attn-parity run" in told and "no verdict" in told and "THEY AGREE" not in told
    assert "Traceback" not in told, told


def test_a_run_of_other_variants_leaves_the_real_layer_out() -> None:
    assert (
        checkpoint.load(checkpoint.EXAMPLE / "model.safetensors", layout="bert").variant == checkpoint.EXAMPLE_VARIANT
    )
    for variants in (("luong",), ("mha", "gqa"), ("gqa",)):
        pieces = runner.tasks(runner.Plan(variants=variants, real=True))
        assert (runner.REAL in [piece[1] for piece in pieces]) is ("mha" in variants)
    plan = replace(runner.Plan(variants=("mha",)), real=False)
    assert runner.REAL not in [piece[1] for piece in runner.tasks(plan)]
