"""The command: what it prints, writes and returns."""

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import save_file
from typer.testing import CliRunner

import attn_np
from attn_np import contract, weights
from parity_tests.commands.app import app
from parity_tests.judge import checkpoint, runner
from parity_tests.judge.cases import Case
from parity_tests.judge.checkpoint import EXAMPLE
from parity_tests.judge.judging import Row
from parity_tests.judge.result import Result
from parity_tests.ports import trace
from parity_tests.report import summary
from parity_tests.tests.weights.test_pretrained import LLAMA, WANT, llama, model

RUN = CliRunner()
SMALL = [
    "run",
    "--variants",
    "mha",
    "--dtypes",
    "float64",
    "--frameworks",
    "numpy,torch",
    "--calls",
    "full",
    "--jobs",
    "1",
]


def test_list_shows_every_variant() -> None:
    result = RUN.invoke(app, ["list"])
    assert result.exit_code == 0
    for name in contract.variants():
        assert name in result.output
        assert contract.get(name).Config.class_name in result.output


def test_list_names_the_stages_of_a_variant() -> None:
    result = RUN.invoke(app, ["list", "decoder"])
    assert result.exit_code == 0
    rows = [line.split() for line in result.output.splitlines()]
    assert ["q_rot", "b", "t", "h", "k", "all"] in rows and ["v", "b", "s", "h", "v", "all"] in rows
    assert not {"x", "query", "allowed", "zeroed_query", "bias"} & {row[0] for row in rows}
    assert RUN.invoke(app, ["list", "nothing"]).exit_code == 2


def test_run_agrees_and_writes_what_it_judged(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.json"
    result = RUN.invoke(app, [*SMALL, "--no-real", "--json", str(path)])
    assert result.exit_code == 0, result.output
    assert "THEY AGREE" in result.output
    content = json.loads(path.read_text())
    assert set(content["summary"]) >= {"cases", "failed", "skipped", "worst_ratio"}
    assert content["summary"]["failed"] == 0
    assert 0 < content["summary"]["worst_ratio"] <= 1
    assert {row["variant"] for row in content["cases"]} == {"mha"}
    assert {row["stage"] for row in content["cases"]} >= {"tape", "cotangent", "output", "gradient"}
    assert content["versions"]["numpy"] == np.__version__


def test_run_takes_each_variant_once_and_says_so(tmp_path: Path) -> None:
    """The first example with all of its arguments in two types; `--all` takes every example, call and type."""
    path = tmp_path / "verdicts.json"
    wanted = ["run", "--variants", "gqa,self_attention", "--frameworks", "numpy,torch", "--no-real", "--jobs", "1"]
    judged = {}
    for options in ([], ["--all"]):
        result = RUN.invoke(app, [*wanted, *options, "--json", str(path), "--overwrite"])
        assert result.exit_code == 0, result.output
        said = "one example of each variant in float64 and float32: --all judges the rest" in result.output
        assert said is not bool(options)
        rows = json.loads(path.read_text())["cases"]
        judged[bool(options)] = {(row["variant"], row["example"], row["call"], row["dtype"]) for row in rows}
        assert {row["candidate"] for row in rows} == {
            "numpy by hand", "numpy untaped", "torch eager", "torch untaped",
        }  # fmt: skip
    first = {variant: next(iter(contract.examples(variant))) for variant in ("gqa", "self_attention")}
    assert judged[False] == {(*pair, "full", dtype) for pair in first.items() for dtype in ("float64", "float32")}
    assert judged[False] < judged[True]
    assert {pair[:2] for pair in judged[True]} == {(v, example) for v in first for example in contract.examples(v)}
    assert {pair[2] for pair in judged[True]} == {"plain", "full", "shared"}
    assert {pair[3] for pair in judged[True]} == set(runner.DTYPES)


def test_run_fails_when_they_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate whose output is off by one part in a thousand ends in a failure that names the stage."""
    real_judge = runner.judge

    def off(case, candidate, p):
        def run(case, drawn, taped):
            outcome = candidate.run(case, drawn, taped)
            if taped:
                outcome.tape["probs"] = outcome.tape["probs"] * (1 + 2.0**-10)
            return outcome

        return real_judge(case, type(candidate)(candidate.framework, candidate.mode, candidate.device, run), p=p)

    monkeypatch.setattr(runner, "judge", off)
    result = RUN.invoke(app, [*SMALL, "--no-real"])
    assert result.exit_code == 1
    assert "THEY DIFFER" in result.output
    assert "tape probs" in result.output


def test_run_reports_what_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(case, candidate, p):
        raise RuntimeError("no such operation")

    monkeypatch.setattr(runner, "judge", broken)
    result = RUN.invoke(app, [*SMALL, "--no-real"])
    assert result.exit_code == 1
    assert "no such operation" in result.output


def test_absent_accelerators_are_skipped_visibly_and_never_passed() -> None:
    from parity_tests.judge.candidates import accelerators

    if accelerators("torch") or accelerators("jax"):
        pytest.skip("this machine has an accelerator")
    result = RUN.invoke(app, ["run", "--variants", "mha", "--device", "accelerator"])
    assert "skipped torch" in result.output
    assert "skipped jax" in result.output
    assert "NOTHING JUDGED" in result.output
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--variants", "mah", "did you mean"),
        ("--variants", "gqa,mqa", "got 'mqa'; that is gqa with num_kv_heads=1: pass gqa"),
        ("--dtypes", "float8", "expected a float dtype"),
        ("--frameworks", "tensorflow", "expected a framework"),
        ("--device", "gpu", "expected cpu or accelerator"),
    ],
)
def test_options_that_cannot_be_right(option: str, value: str, words: str) -> None:
    result = RUN.invoke(app, ["run", option, value])
    assert result.exit_code == 2
    assert words in " ".join(result.output.replace("│", " ").split())


needs_example = pytest.mark.skipif(not EXAMPLE.exists(), reason="the example's files are not at hand")


@needs_example
@pytest.mark.left_out  # `attn-parity run` judges this layer, too
def test_real_layer_agrees_with_the_recording(tmp_path: Path) -> None:
    """The project's real weights in three frameworks, against each other and against what the original model gave."""
    args = ["check", str(EXAMPLE / "model.safetensors"), "--layout", "bert", "--layer", "5"]
    args += ["--inputs", str(EXAMPLE / "activations.safetensors")]
    args += ["--json", str(tmp_path / "out.json"), "--picture", str(tmp_path / "head.png")]
    result = RUN.invoke(app, [*args, "--sequence", "1", "--head", "11"])
    assert result.exit_code == 0, result.output
    assert "THEY AGREE" in result.output
    rows = json.loads((tmp_path / "out.json").read_text())["cases"]
    recorded = {row["name"]: row for row in rows if row["candidate"] == "the recording"}
    assert recorded["y"]["elements"] == 6 * 20 * 384
    assert recorded["out1"]["elements"] == 6 * 12 * 20 * 20
    assert {row["candidate"].split()[0] for row in rows} == {"numpy", "torch", "jax", "the"}
    assert (tmp_path / "head.png").read_bytes().startswith(b"\x89PNG")


@needs_example
@pytest.mark.parametrize("bug", ["heads", "transposed", "bias"])
def test_real_layer_read_wrongly_differs_from_the_recording(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the layout: a wrong split into heads, a weight not transposed, one bias for another."""
    from attn_np.weights.layouts import bert

    rules = bert.LAYOUT.tables["mha"].rules
    wrong = {
        "heads": {"w_q": (rules["w_q"][0], "(k h) d -> d h k"), "w_k": (rules["w_k"][0], "(h k) i -> i h k")},
        "transposed": {"w_o": (rules["w_o"][0], "(h v) d -> h v d")},
        "bias": {"b_q": rules["b_k"], "b_k": rules["b_q"]},
    }[bug]
    for name, rule in wrong.items():
        monkeypatch.setitem(rules, name, rule)
    result = Result()
    layer = checkpoint.load(
        EXAMPLE / "model.safetensors", layout="bert", layer=5, inputs=EXAMPLE / "activations.safetensors"
    )
    checkpoint.judge_layer(layer, result, ("numpy",))
    assert {row.candidate for row in result.failed} == {"the recording"}


def recorded(tmp_path: Path, layer: Any, **arrays: np.ndarray) -> checkpoint.RealLayer:
    """A layer of a file, with activations of these names."""
    attn_np.save(layer, tmp_path / "layer.safetensors")
    save_file({n: np.ascontiguousarray(x) for n, x in arrays.items()}, tmp_path / "activations.safetensors")
    return checkpoint.load(tmp_path / "layer.safetensors", inputs=tmp_path / "activations.safetensors")


def test_a_recording_of_float32_is_named(tmp_path: Path) -> None:
    """Models in float64 compute norms or the softmax in float32: the note says so, and is silent of other errors."""
    layer, x = attn_np.build("mha", dtype="float64", d_model=8, num_heads=2), np.linspace(-1, 1, 48).reshape(2, 3, 8)
    y = layer(x)
    for output, words in (
        (y.astype("float32").astype("float64"), "within the bound of float32"),
        (y + 1e-3, ""),
        (y, ""),
    ):
        result = Result()
        found = recorded(tmp_path, layer, hidden_states=x, attention_output=output)
        checkpoint.judge_layer(found, result, ("numpy",))
        assert words in found.note and bool(words) == bool(found.note)
        assert bool(result.failed) == (output is not y)


@pytest.mark.parametrize("variant", ["gla", "mha", "luong"])
def test_a_mask_of_padding_is_of_the_layer_s_axes(tmp_path: Path, variant: str) -> None:
    """`attention_mask`, `b s`: of scores with heads, of scores without, of the positions of a layer with a state."""
    fields: dict[str, Any] = {
        "gla": {"d_model": 8, "num_heads": 2},
        "mha": {"d_model": 8, "num_heads": 2},
        "luong": {"query_dim": 8, "key_dim": 8},
    }
    make: Any = attn_np.build
    layer = make(variant, dtype="float64", **fields[variant])
    x, real = np.linspace(-1, 1, 48).reshape(2, 3, 8), np.array([[1, 1, 1], [1, 1, 0]])
    mask = {"gla": real == 1, "mha": real[:, None, None] == 1, "luong": real[:, None] == 1}[variant]
    given = {"key": x} if variant == "luong" else {}
    y = layer(x, **given, mask=mask)
    found, result = recorded(tmp_path, layer, query=x, attention_mask=real, output=y, **given), Result()
    checkpoint.judge_layer(found, result, ("numpy",))
    assert not result.errors and not result.failed
    assert not np.array_equal(y, layer(x, **given))


def test_check_of_our_own_file(tmp_path: Path) -> None:
    path = tmp_path / "layer.safetensors"
    attn_np.save(attn_np.build("self_attention", d_model=7, head_dim=5), path)
    result = RUN.invoke(app, ["check", str(path)])
    assert result.exit_code == 0, result.output
    assert "self_attention" in result.output


def test_check_of_a_folder(tmp_path: Path) -> None:
    """A layer of a model in three frameworks: what was read, what was ignored, and that they agree."""
    folder = model(tmp_path, LLAMA, llama())
    result = RUN.invoke(app, ["check", str(folder), "--layer", "1"])
    assert result.exit_code == 0, result.output
    assert "llama, decoder(" in result.output and "THEY AGREE" in result.output
    assert "ignored: model.layers.1." in result.output
    for more, words in (
        ([], "got none; pass --layer"),
        (["--layer", "7"], "num_hidden_layers"),
        (["--layer", "0", "--num-heads", "3"], "num_heads=3; leave it out"),
        (["--layer", "0", "--part", "cross"], "expected no --part"),
    ):
        result = RUN.invoke(app, ["check", str(folder), *more])
        assert result.exit_code == 2 and words in " ".join(result.output.split())


def converted(source: Path, target: Path, *options: str) -> str:
    result = RUN.invoke(app, ["convert", str(source), str(target), *options])
    assert result.exit_code == 0, result.output
    assert "the same bits when read back" in result.output
    return result.output


def test_convert_goes_round(tmp_path: Path) -> None:
    """From ours through the names of four libraries and back: every file but the first is made of the one before."""
    layer = attn_np.build("mha", seed=3, d_model=6, num_heads=2)
    before = tmp_path / "ours.safetensors"
    attn_np.save(layer, before)
    heads: list[str] = []
    for layout in ("torch_mha", "flax_mha", "keras_mha", "equinox_mha", "bert"):
        after = tmp_path / f"{layout}.safetensors"
        converted(before, after, *heads, "--to", layout)
        before, heads = after, ["--from", layout, "--num-heads", "2", "--variant", "mha"]
    converted(before, tmp_path / "back.safetensors", *heads, "--layer", "0")
    again = attn_np.load(tmp_path / "back.safetensors")
    assert again.config == layer.config
    assert all(x.tobytes() == again.params()[name].tobytes() for name, x in layer.params().items())


def test_convert_a_layer_of_a_model(tmp_path: Path) -> None:
    folder = model(tmp_path / "model", LLAMA, llama())
    said = converted(folder, tmp_path / "ours.safetensors", "--layer", "1")
    assert "ignored: model.layers.1." in said
    converted(tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors", "--to", "llama", "--to-layer", "1")
    held = weights.tensors(tmp_path / "theirs.safetensors")
    whole = llama()
    assert held and all(x.tobytes() == whole[name].tobytes() for name, x in held.items())


def test_one_file_of_a_model_is_taken_as_its_config_says(tmp_path: Path) -> None:
    file = model(tmp_path / "model", LLAMA, llama()) / "model.safetensors"
    out = tmp_path / "trace.safetensors"
    options = ["--weights", str(file), "--layout", "llama", "--layer", "0", "--out", str(out)]
    result = CliRunner().invoke(app, ["trace", *options])
    assert result.exit_code == 0, result.output
    assert trace.load(out).case.config == WANT


def test_convert_refuses(tmp_path: Path) -> None:
    """What the target cannot hold, a file that exists, and words that are no fields; and nothing is written."""
    path, target = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    attn_np.save(attn_np.build("mha", d_model=6, num_heads=2, softcap=1.5), path)
    for options, words in (
        (["--to", "torch_mha"], "softcap=1.5"),
        (["--to", "torch_gru"], "expected a variant that layout torch_gru has"),
        (["--to", "torch_nha"], "did you mean 'torch_mha'"),
        (["--to-layer", "1"], "expected a foreign --to with --to-layer or --to-part"),
        (["--fields", "softcap"], "expected a JSON object"),
    ):
        result = RUN.invoke(app, ["convert", str(path), str(target), *options])
        assert result.exit_code == 2 and words in " ".join(result.output.split()), result.output
        assert not target.exists()
    for layer, words in (
        (attn_np.build("gqa", d_model=6, num_heads=2, num_kv_heads=1), "got 'gqa'; choose another layout: flax_mha"),
        (attn_np.build("fused_qkv", d_model=6, num_heads=2), "make it mha first, by attn_np.weights.convert"),
        (attn_np.build("sparsemax", d_model=6, num_heads=2), "no other layout has it; write it in our names"),
    ):
        attn_np.save(layer, path)
        result = RUN.invoke(app, ["convert", str(path), str(target), "--to", "torch_mha"])
        assert result.exit_code == 2 and words in " ".join(result.output.split()), result.output
    result = RUN.invoke(app, ["convert", str(path), str(path)])
    assert result.exit_code == 2 and "is read; name another" in " ".join(result.output.split())


def test_convert_names_the_flag_of_the_source(tmp_path: Path) -> None:
    """A file without our metadata needs --from, which other commands call --layout."""
    path = tmp_path / "model.safetensors"
    save_file(dict(attn_np.build("mha", d_model=6, num_heads=2).params()), path)
    result = RUN.invoke(app, ["convert", str(path), str(tmp_path / "out.safetensors"), "--to", "torch_mha"])
    assert result.exit_code == 2
    assert "else name its --from, such as 'llama' or " in result.output and "--layout" not in result.output


def test_the_example_of_training_helps() -> None:
    """And trains nothing, writes nothing: it takes minutes otherwise."""
    script = Path(__file__).parents[3] / "examples" / "tiny_lm"
    done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, timeout=60, check=True)
    assert "tiny_lm.png" in done.stdout and "loss 0" not in done.stdout


def test_a_preset_is_listed_as_its_variant() -> None:
    preset, variant = (RUN.invoke(app, ["list", name]) for name in ("mqa", "gqa"))
    assert preset.exit_code == variant.exit_code == 0
    assert preset.output == f"mqa is gqa with num_kv_heads=1; the stages of gqa:\n{variant.output}"


def test_check_refuses_a_bad_file(tmp_path: Path) -> None:
    path = tmp_path / "layer.safetensors"
    attn_np.save(attn_np.build("self_attention", d_model=7, head_dim=5), path)
    path.write_bytes(path.read_bytes()[:-4])
    result = RUN.invoke(app, ["check", str(path)])
    assert result.exit_code == 2
    assert "refused" in result.output
    assert str(path.name) in result.output.replace("\n", "")


@needs_example
def test_check_refuses_activations_without_an_input(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "model.safetensors", tmp_path / "model.safetensors")
    held = weights.tensors(EXAMPLE / "activations.safetensors")
    save_file({"attention_output": held["attention_output"]}, tmp_path / "empty.safetensors")
    args = [
        "check",
        str(EXAMPLE / "model.safetensors"),
        "--layout",
        "bert",
        "--inputs",
        str(tmp_path / "empty.safetensors"),
    ]
    result = RUN.invoke(app, args)
    assert result.exit_code == 2
    assert "hidden_states" in result.output


@needs_example
@pytest.mark.parametrize("key", ["attn_output", "padding_mask"])
def test_check_refuses_activations_it_does_not_know(key: str, tmp_path: Path) -> None:
    """A misnamed recording would be compared with nothing, and a misnamed mask would hide nothing."""
    held = weights.tensors(EXAMPLE / "activations.safetensors")
    held[key] = held.pop("attention_output" if key == "attn_output" else "attention_mask")
    save_file(held, tmp_path / "misnamed.safetensors")
    args = [
        "check",
        str(EXAMPLE / "model.safetensors"),
        "--layout",
        "bert",
        "--inputs",
        str(tmp_path / "misnamed.safetensors"),
    ]
    result = RUN.invoke(app, args)
    assert result.exit_code == 2
    assert key in result.output


@needs_example
@pytest.mark.parametrize("option", [["--head", "12"], ["--sequence", "9"]])
def test_check_refuses_a_picture_of_what_is_not_there(option: list[str], tmp_path: Path) -> None:
    args = ["check", str(EXAMPLE / "model.safetensors"), "--layout", "bert", "--picture", str(tmp_path / "p.png")]
    result = RUN.invoke(app, [*args, "--inputs", str(EXAMPLE / "activations.safetensors"), *option])
    assert result.exit_code == 2
    assert "count from 0" in result.output


def test_check_draws_a_layer_without_a_head_axis(tmp_path: Path) -> None:
    path = tmp_path / "layer.safetensors"
    attn_np.save(attn_np.build("self_attention", d_model=7, head_dim=5), path)
    result = RUN.invoke(app, ["check", str(path), "--picture", str(tmp_path / "p.png")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "p.png").exists()


@pytest.mark.parametrize(("variants", "lines"), [(2, 4), (summary.LONG + 1, summary.LONG + 1)])
def test_many_variants_get_a_line_each(variants: int, lines: int) -> None:
    """Two candidates of few variants are listed one by one; of many, each variant shows the worst of both."""
    rows = [
        Row(candidate, Case(f"variant{i:02}", "some", "full", "float32"), "output", "y", ratio=i + share, elements=5)
        for i in range(variants)
        for candidate, share in (("numpy by hand", 0.25), ("torch eager", 0.5))
    ]
    console = Console(width=160, record=True, file=io.StringIO())
    summary.show(console, runner.Result(rows=rows), ("float32",))
    shown = [line for line in console.export_text().splitlines() if "│" in line]
    assert len(shown) == lines
    last = shown[-1].replace("│", " ").split()
    assert last[-1] == ("10" if variants > summary.LONG else "5")
    assert str(variants - 0.5) in last


def test_fast_judges_our_own_kernels(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    asked = ["--cases", "12", "--frameworks", "numpy", "--dtypes", "float64", "--only", "MIN_BLOCKS"]
    result = RUN.invoke(app, ["fast", *asked, "--json", str(path)])
    assert result.exit_code == 0, result.output
    assert "PATTERN_KEYS 3) as attend without heads: agrees" in result.output
    assert "NO ALARM: 0 of 2 kernels differ; 24 cases" in result.output
    content = json.loads(path.read_text())
    assert content["alarms"] == []
    assert [x["classes"] for x in content["figures"]] == 2 * [{"float64": "float64"}]
    assert RUN.invoke(app, ["fast", "--frameworks", "tensorflow"]).exit_code == 2


def test_a_package_that_a_command_needs_is_named_with_the_advice() -> None:
    code = (
        "import sys; sys.modules['jinja2'] = None; sys.argv = ['attn-parity', 'show', 'mha']\n"
        "from parity_tests.commands.app import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    want = "attn-parity: expected the package jinja2, got none; run pip install '.[parity]' in a clone of attn-parity\n"
    assert (done.returncode, done.stderr) == (1, want)
