"""Traces, their comparison, the catalogue of causes, and the commands that show them."""

import json
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

import attn_np
import attn_torch
from attn_np import contract
from attn_np.weights import tensors
from attn_np.weights._errors import WeightFileError
from attn_np.weights._safetensors import TensorFile, write_tensors
from parity_tests import Trace, compare, load, record, replay
from parity_tests.bounds.error_array import ErrArray
from parity_tests.bounds.precision import EXACT, precision_of
from parity_tests.commands.app import app
from parity_tests.explain.calls import CALLS as CALL_MISTAKES
from parity_tests.explain.catalogue import catalogue
from parity_tests.explain.causes import described, explain
from parity_tests.explain.measure import measured, planted_cases, stages_of
from parity_tests.explain.patterns import axes_of, patterns
from parity_tests.explain.search import Search
from parity_tests.explain.verdicts import verdicts
from parity_tests.judge.candidates import Outcome, run_numpy
from parity_tests.judge.cases import CALLS, Case, draw
from parity_tests.judge.judging import Anchor, reference
from parity_tests.mistakes import MUTANTS, outcome_of, planted
from parity_tests.mistakes.evidence import louder
from parity_tests.ports.compare import distance
from parity_tests.ports.trace import KINDS, candidate, cast
from parity_tests.report.differences import number

NAMED = {mutant.name: mutant for mutant in MUTANTS}


def made(variant: str = "mha", example: str = "cross", dtype: str = "float64", framework: str = "numpy") -> Trace:
    return record(candidate(framework), Case(variant, example, "full", dtype))


def with_mistake(name: str, tree: str = "attn_torch", dtype: str = "float64") -> Trace:
    mutant = NAMED[name]
    case = mutant.case.at(dtype)
    good = record(candidate("numpy"), case, louder(draw(case), mutant.gain))
    with planted(mutant, tree) as alias:
        outcome = outcome_of(tree, alias, case, True, good.drawn)
    return replace(good, outcome=outcome, who=tree)


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "dtype"),
    list(zip(contract.variants(), cycle(("float64", "float32", "bfloat16", "float16")), strict=False)),
)
def test_a_trace_survives_its_file(variant: str, dtype: str, tmp_path: Path) -> None:
    before = made(variant, next(iter(contract.examples(variant))), dtype)
    before.save(tmp_path / "trace.safetensors")
    after = load(tmp_path / "trace.safetensors")
    assert (after.case, after.who, after.fused, after.partial) == (
        replace(before.case, given=before.case.config),
        before.who,
        before.fused,
        before.partial,
    )
    for (kind, x), (_, y) in zip(before.parts(), after.parts(), strict=True):
        assert list(x) == list(y), kind
        assert all(
            a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(x.values(), y.values(), strict=True)
        )
    assert after.outcome.dtypes == before.outcome.dtypes
    assert compare(before, after).agree


def test_the_file_is_as_small_as_it_can_be(tmp_path: Path) -> None:
    """Taped values of a 16-bit layer are float32: neither more nor less is stored."""
    made(dtype="bfloat16").save(tmp_path / "b.safetensors")
    from attn_np.weights import tensors

    held = tensors(tmp_path / "b.safetensors")
    assert held["inputs.query"].dtype.name == "bfloat16"
    assert held["tape.probs"].dtype.name == "float32"
    assert held["outputs.y"].dtype.name == "bfloat16"
    assert {name.partition(".")[0] for name in held} == set(KINDS)


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"probs": np.zeros(3)}, {})
    with pytest.raises(ValueError, match="expected a trace, got other arrays"):
        load(path)
    path.write_bytes(b"no tensors")
    with pytest.raises(WeightFileError):
        load(path)


def test_arrays_of_somebody_else(tmp_path: Path) -> None:
    ours, path = made(), tmp_path / "theirs.safetensors"
    held = {"attention.softmax": ours.outcome.tape["probs"], "y": ours.outcome.outputs["y"]}
    write_tensors(path, held, {})
    theirs = load(path, like=ours, names={"attention.softmax": "tape.probs"})
    assert theirs.partial and list(theirs.outcome.tape) == ["probs"] and list(theirs.outcome.outputs) == ["y"]
    assert compare(ours, theirs).agree
    with pytest.raises(ValueError, match="expected names of the trace, got 'attention"):
        load(path, like=ours)
    write_tensors(path, held | {"y": held["y"] * (1 + 2.0**-20)}, {})
    found = compare(ours, load(path, like=ours, names={"attention.softmax": "tape.probs"}))
    assert found.first is not None and (found.first.kind, found.first.name) == ("output", "y")


def test_names_of_somebody_else(tmp_path: Path) -> None:
    ours, path = made(), tmp_path / "theirs.safetensors"
    probs = ours.outcome.tape["probs"]
    write_tensors(path, {"a.probs": probs, "b.probs": 0 * probs}, {})
    theirs = load(path, like=ours, names={"a.probs": "tape.probs", "b.probs": None})
    assert compare(ours, theirs).agree and compare(ours, theirs).shared == 1
    for names, words in (
        ({"a.probs": "tape.probs"}, "got 'b.probs'; map it with --names, to null"),
        ({"a.probs": "tape.probs", "b.probs": "tape.probs"}, "expected one array for tape.probs, got two"),
        ({"a.prob": "tape.probs"}, "expected names of its arrays to be mapped, got 'a.prob'"),
        (["a.probs"], "expected names as a map"),
        ({"a.probs": 3}, "expected names as a map"),
    ):
        with pytest.raises(ValueError, match=words):
            load(path, like=ours, names=names)  # pyright: ignore[reportArgumentType]: some are no names


def spoilt(path: Path, drop: str = "", **about: str) -> Path:
    """A trace's file without one array, or with other metadata; "" leaves an entry out."""
    made().save(path)
    with TensorFile(path) as file:
        told = {name: x for name, x in {**file.metadata, **about}.items() if x}
    write_tensors(path, {name: x for name, x in tensors(path).items() if name != drop}, told)
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"drop": "tape.probs"}, "expected a whole trace, got one with 'tape.probs' absent"),
        ({"config": ""}, "expected a whole trace, got one with 'config' absent"),
        ({"dtypes": "{}"}, "expected a whole trace, got one with 'y' absent"),
        ({"dtype": "float8"}, "expected a whole trace, got one with 'float8' absent"),
        ({"order": "{"}, "expected a whole trace"),
        ({"format": "attn-trace/2"}, "expected a trace of the format attn-trace/1, got attn-trace/2"),
    ],
)
def test_a_spoilt_trace_is_refused(change: dict[str, str], words: str, tmp_path: Path) -> None:
    path = spoilt(tmp_path / "x.safetensors", **change)
    with pytest.raises(ValueError, match=words):
        load(path, like=made())


# Comparison -----------------------------------------------------------------------------------------------------------


def test_nothing_in_common_is_no_agreement(tmp_path: Path) -> None:
    ours = made()
    kinds = Outcome(tape=ours.outcome.tape), Outcome(outputs=ours.outcome.outputs, dtypes=ours.outcome.dtypes)
    one, other = (replace(ours, partial=True, outcome=outcome) for outcome in kinds)
    found = compare(one, other)
    assert not found.agree and found.first is None
    one.save(tmp_path / "a.safetensors")
    other.save(tmp_path / "b.safetensors")
    said = call("compare", str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors"))
    assert said.exit_code == 1 and "no array was recorded by both" in said.output


@pytest.mark.left_out
def test_the_wrong_side_is_told_where_both_have_one_name(tmp_path: Path) -> None:
    good, bad = made(), made()
    bad.outcome.tape["probs"] = 1.01 * bad.outcome.tape["probs"]
    assert compare(good, bad).wrong == (False, True)
    for name, trace in (("good", good), ("bad", bad)):
        trace.save(tmp_path / name)
    said = call("compare", str(tmp_path / "good"), str(tmp_path / "bad"))
    assert "first at tape probs; B departs from the reference" in said.output
    said = call("compare", str(tmp_path / "bad"), str(tmp_path / "bad"))
    assert "A and B depart from the reference" in said.output


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_inputs_that_are_no_numbers(odd: float) -> None:
    case = Case("mha", "cross", "full", "float64")
    drawn = draw(case)
    drawn.inputs["query"][0, 0, 0] = odd
    trace = record(candidate("numpy"), case, drawn)
    assert compare(trace, trace).agree
    finite = {name: x if x.dtype == bool else np.nan_to_num(x) for name, x in trace.outcome.tape.items()}
    found = compare(trace, replace(trace, outcome=replace(trace.outcome, tape=finite)))
    assert not found.agree and found.wrong == (False, True)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("example", [("mha", "cross"), ("gru", "stacked"), ("additive", "cross")])
def test_frameworks_agree(example: tuple[str, str], dtype: str) -> None:
    one, other = (made(*example, dtype, framework) for framework in ("numpy", "torch"))
    found = compare(one, other)
    assert found.agree, (found.given, found.first, found.findings)
    assert sum(line.apart is not None for line in found.lines) > len(one.outcome.tape)


@pytest.mark.parametrize("coarse", ["float32", "bfloat16", "float16"])
def test_types_may_differ(coarse: str) -> None:
    """Inputs rounded to the coarser type account for the difference, and no more than that."""
    one = made()
    other = record(candidate("torch"), one.case.at(coarse), cast(one.drawn, coarse))
    assert compare(one, other).agree
    other.drawn.inputs["key"] = other.drawn.inputs["key"] * other.drawn.inputs["key"].dtype.type(1.0625)
    assert any("input key" in line for line in compare(one, other).given)


def test_different_inputs_are_told_first() -> None:
    one, other = made(), made()
    other.drawn.params["w_q"] = np.ascontiguousarray(other.drawn.params["w_q"][::-1])
    found = compare(one, other)
    assert not found.agree and found.given == [
        "weight w_q: reversed along d; only channels 0, 1, 2, 4, 5, 6 of 7; 90 of 105 numbers differ"
    ]
    found = compare(one, replace(one, case=replace(one.case, given=replace(one.case.config, causal=True))))
    assert found.given == ["config: causal=False and causal=True"]
    found = compare(one, made("additive", "cross"))
    assert found.given == ["variant: mha and additive"] and not found.lines


def test_only_results_of_a_run_are_compared(tmp_path: Path) -> None:
    """Not weights, whose names are those of a trace, and not what another command writes."""
    ours, path = made(), tmp_path / "other.safetensors"
    params = {name: x.astype(np.float32) for name, x in ours.drawn.params.items()}
    save_file(params, path)
    with pytest.raises(ValueError, match="expected results of a run, got params alone; record a trace"):
        load(path, like=ours)
    save_file(params | {"w_q": np.ones((3, 3)), "y": np.ones(3)}, path)
    with pytest.raises(ValueError, match=r"expected params.w_q of the shape \(.*, as in the trace, got \(3, 3\)"):
        load(path, like=ours)
    attn_np.save(attn_np.build("mha", d_model=6, num_heads=2), path)
    with pytest.raises(ValueError, match="expected a trace, got a file of the format attn-parity/1; record a trace"):
        load(path, like=ours)
    assert distance(np.ones(2), np.ones(3), None, None)[1] == np.inf and number(np.nan) == "other shapes"


def test_the_first_difference_is_whose_and_where() -> None:
    bad = with_mistake("softmax over the queries")
    found = compare(made(), bad)
    assert found.first is not None and found.first.name == "probs"
    assert found.first.one is not None and found.first.one <= 1 < (found.first.other or 0)
    assert [finding.candidate for finding in found.findings] == ["attn_torch"]
    later = next(line for line in found.lines if line.name == "context")
    assert (later.ratio or 0) > 1 >= (later.other or 0), "wrong by what came before, right on its own inputs"
    assert next(line for line in compare(bad, made()).lines if not line.ok).one == found.first.other


def test_what_is_hidden_may_hold_anything_in_a_port() -> None:
    """Our own trees select hidden scores to 0; a port need not, and a mistake in a visible one is still seen."""
    ours = made()
    port = replace(ours, outcome=replace(ours.outcome, tape=dict(ours.outcome.tape)), partial=True)
    hidden = ~ours.outcome.tape["allowed"]
    port.outcome.tape["scores"] = np.where(hidden, 7.0, ours.outcome.tape["scores"])
    assert compare(ours, port).agree
    assert not compare(ours, replace(port, partial=False)).agree
    port.outcome.tape["scores"] = np.where(hidden, 7.0, ours.outcome.tape["scores"] * (1 + 2.0**-20))
    assert not compare(ours, port).agree


def test_replay_takes_the_call_of_a_trace() -> None:
    def attention(query: Any, key: Any, value: Any, mask: Any, bias: Any, keep: Any) -> Any:
        return original.outcome.outputs["y"]

    original = made("dot_product", next(iter(contract.examples("dot_product"))))
    assert compare(original, replay(original, attention)).agree
    with pytest.raises(ValueError, match="takes every input of the trace"):
        replay(original, lambda query: query)


def test_replay_refuses_what_it_could_not_judge() -> None:
    def replayed(function: Any, **options: Any) -> None:
        replay(original, function, **options)

    original = made("gru", "stacked", "float32")
    layer = attn_torch.build("gru", **original.case.config.as_dict())
    assert replay(original, layer, outputs=("y", "out1")).outcome.grads
    with pytest.raises(ValueError, match="expected the outputs that get a gradient in the trace, y, out1, got none"):
        replayed(layer)
    with pytest.raises(ValueError, match="expected a module in float32, as the trace, got float64"):
        replayed(layer.double(), outputs=("y", "out1"))
    original = record(candidate("numpy"), Case("mha", "cross", "plain", "float64"))
    with pytest.raises(ValueError, match="that the candidate cannot do without, got one without mask"):
        replayed(lambda params, query, key, value, mask: query)


# Causes ---------------------------------------------------------------------------------------------------------------

SHOWN = [
    "scale missing",
    "mask ignored",
    "row without a key is NaN",
    "softmax over the queries",
    "dropout without its rescale",
    "update gate the other way round",
    "softmax backward without its sum",
]


@pytest.mark.parametrize("name", SHOWN)
def test_a_mistake_is_named(name: str) -> None:
    mutant = NAMED[name]
    tree = "attn_torch" if "attn_torch" in mutant.trees else "attn_np"
    found = measured(mutant, tree, "float64")
    assert found.seen and found.stage_right and found.named, found


def test_a_right_run_has_no_finding() -> None:
    assert explain(made().judged()) is None


def test_a_result_too_many_has_no_cause() -> None:
    trace = made()
    trace.outcome.grads["dmore"] = np.ones(3)
    trace.outcome.dtypes["dmore"] = "float64"
    finding = explain(trace.judged())
    assert finding is not None and (finding.first.stage, finding.causes) == ("gradient", [])


def test_no_cause_is_made_up() -> None:
    """A difference that is no known mistake: noise on one array of a right run."""
    trace = made()
    trace.outcome.tape["probs"] = trace.outcome.tape["probs"] * (1 + 2.0**-12 * np.sin(np.arange(1938.0))).reshape(
        trace.outcome.tape["probs"].shape
    )
    finding = explain(trace.judged())
    assert finding is not None and finding.first.name == "probs"
    assert not [cause for cause in finding.causes if "rounded" not in cause.name and "computed" not in cause.name]


def test_the_catalogue_gives_advice() -> None:
    everything = [mistake for variant in contract.variants() for mistake in catalogue(variant)]
    assert all(mistake.name and mistake.fix for mistake in everything)
    assert not [m.name for m in everything if "toleran" in m.fix or "looser" in m.fix]
    assert len({m.name for m in everything}) > 150
    assert len(CALL_MISTAKES) == len({name for name, *_ in CALL_MISTAKES})


def test_stages_of_a_scan_are_told_by_time() -> None:
    """r stands before n on the tape, but a mistake in n reaches r one step later."""
    mutant = NAMED["reset left out"]
    assert stages_of(mutant, "attn_torch", mutant.case) == {"layers.0.n"}


def test_every_traced_mistake_is_measured() -> None:
    pieces = planted_cases(("numpy", "torch", "jax"))
    assert {tree for _, tree in pieces} == {"attn_np", "attn_torch", "attn_jax"}
    assert all(mutant.call in CALLS and mutant.fix for mutant, _ in pieces)


# Patterns -------------------------------------------------------------------------------------------------------------

RANDOM = np.random.default_rng(0).normal(size=(2, 3, 5, 5))
MASK = np.random.default_rng(1).random((2, 1, 5, 5)) < 0.6


@pytest.mark.parametrize(
    ("got", "says"),
    [
        (RANDOM.swapaxes(2, 3), "axes in the order b h s t"),
        (RANDOM[:, ::-1], "reversed along h"),
        (RANDOM[:, [1, 0, 2]], "the slices along h are those of 1, 0, 2"),
        (np.roll(RANDOM, 1, 2), "shifted by 1 along t"),
        (np.sqrt(5) * RANDOM, "multiplied by 2.23607, which is sqrt(the size of t, 5)"),
        (-RANDOM, "multiplied by -1, the opposite sign"),
        (RANDOM + 3.0, "too large by 3 everywhere"),
        (RANDOM + np.arange(5.0)[:, None], "an offset for each row"),
        (0 * RANDOM, "all 0"),
        (RANDOM.astype(np.float16).astype(np.float64), "as if rounded to float16"),
        (np.where(np.arange(3)[:, None, None] == 1, 0.0, RANDOM), "only head 1"),
        (np.where(np.arange(5)[:, None] >= 3, 0.0, RANDOM), "only query positions 3 to 4 of 5"),
        (np.where(MASK, RANDOM, 9.0), "only hidden keys differ"),
        (np.where(MASK, 9.0, RANDOM), "hidden keys agree, visible ones differ"),
        (np.where(RANDOM > 2, np.nan, RANDOM), "NaN in"),
    ],
)
def test_patterns(got: np.ndarray, says: str) -> None:
    found = patterns(got, ErrArray(RANDOM, 2.0**-40), "b h t s", MASK)
    assert any(says in line for line in found), found


def test_patterns_of_other_shapes() -> None:
    want = ErrArray(RANDOM[..., :4], 2.0**-40)
    assert "with the axes in the order" in patterns(RANDOM[..., :4].swapaxes(2, 3), want)[0]
    assert patterns(RANDOM[..., :4].reshape(2, 15, 4), want) == ["the same numbers in another shape"]
    assert patterns(RANDOM[..., :3], want) == ["shape (2, 3, 5, 3) where (2, 3, 5, 4) is expected"]
    assert patterns(RANDOM[..., :4].copy(), want) == []


def test_axes_have_letters() -> None:
    case = Case("mha", "cross", "full", "float64")
    assert axes_of(case, "probs", 4) == "b h t s"
    assert axes_of(case, "dw_o", 3) == "h v o"
    assert axes_of(case, "dkey", 3) == "b s i"
    assert (
        axes_of(Case("dot_product", next(iter(contract.examples("dot_product"))), "full", "float64"), "probs", 3)
        == "b t s"
    )
    assert axes_of(case, "unheard of", 2) == ""


def test_letters_of_heads_are_those_that_there_are() -> None:
    """With shared heads: of whatever is taped, an axis of h has as many entries as query heads, one of g as shared."""
    for variant in contract.variants():
        for example, config in contract.examples(variant).items():
            if getattr(config, "num_kv_heads", None) is None:
                continue
            case = Case(variant, example, "full", "float64")
            for name, x in run_numpy(case, draw(case), True).tape.items():
                letters = axes_of(case, name, x.ndim).split()
                heads = {letter: n for letter, n in zip(letters, x.shape, strict=False) if letter in "hg" and n > 1}
                assert heads.items() <= config.sizes().items(), (variant, example, name)


# The judge's own parts ------------------------------------------------------------------------------------------------


def test_the_reference_itself_passes_every_mistake_by() -> None:
    """A right candidate is explained by no mistake that shows itself in this call."""
    trace = made()
    run = trace.judged()
    silent = {"softmax without subtracting the maximum", "maximum added before exp"}  # they need larger scores
    rows, anchor = verdicts(run)
    search = Search(run, run.setup, described(run, next(r for r in rows if r.name == "y"), rows, anchor), anchor)
    fits = {m.name for m in catalogue("mha") if not m.backward and search.tried(m)}
    wider = {m.name for m in catalogue("mha") if m.name.startswith(("computed in", "matrix products in"))}
    shown = {m.name for m in MUTANTS if (m.variant, m.example, m.call) == ("mha", "cross", "full")}
    assert not (fits - silent - wider) & shown - rounding(shown), fits


def rounding(names: set[str]) -> set[str]:
    """Mistakes of precision: their bounds hold what is more precise as well."""
    return {name for name in names if "rounded" in name or "float32" in name or "widened" in name}


def test_a_strict_anchor_stops_at_once() -> None:
    from parity_tests.judge.judging import Departure

    trace = made()
    trace.outcome.tape["scores"] = 2 * trace.outcome.tape["scores"]
    anchor = Anchor(trace.outcome.tape, precision_of("float64"), False, strict=True)
    with pytest.raises(Departure, match="scores"):
        reference(trace.case, trace.drawn, anchor, EXACT)
    assert "probs" not in anchor.values


# The commands ---------------------------------------------------------------------------------------------------------


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, [str(x) for x in arguments])


def test_trace_and_compare(tmp_path: Path) -> None:
    a, b, report = (str(tmp_path / name) for name in ("a.safetensors", "b.safetensors", "r.html"))
    assert call("trace", "additive", "--framework", "numpy", "--out", a).exit_code == 0
    assert call("trace", "--like", a, "--framework", "torch", "--out", b).exit_code == 0
    found = call("compare", a, b, "--json", str(tmp_path / "r.json"), "--html", report)
    assert found.exit_code == 0 and "THEY AGREE" in found.output, found.output
    with_mistake("scale missing", dtype="float32").save(b)
    made(dtype="float32").save(a)
    assert call("compare", a, b, "--html", report).exit_code == 2, "a report replaces no file unless told to"
    found = call("compare", a, b, "--json", str(tmp_path / "r.json"), "--html", report, "--overwrite")
    assert found.exit_code == 1 and "first at tape scores; B departs" in found.output, found.output
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["first"] == {"kind": "tape", "name": "scores"}
    assert content["findings"][0]["causes"][0]["name"] == "scale missing"
    assert "scale missing" in Path(report).read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trace", "mha", "--framework", "tensorflow"], "expected one of numpy, torch, jax"),
        (["trace", "mha", "--example", "nothing"], "expected an example of mha"),
        (["trace", "mha", "--dtype", "float8"], "expected one of float64"),
        (["trace"], "expected one of VARIANT, --weights and --like"),
        (["trace", "nothing"], "expected the name of a variant"),
        (["trace", "mha", "--device", "cuda", "--framework", "torch"], "expected a device of torch"),
        (["compare", "nowhere.safetensors", "nowhere.safetensors"], "nowhere"),
        (["compare", "nowhere.safetensors", "nowhere.safetensors", "--json", "."], "expected a file, got the folder"),
        (["trace", "mha", "--out", "."], "expected a file, got the folder"),
        (["trace", "mha", "--out", "nowhere/x"], "expected a file in a folder that exists"),
        (["trace", "mha", "--config", "[1]"], "expected the config's fields as a JSON object"),
        (["trace", "mha", "--config", "{"], "expected the config's fields as a JSON object"),
        (["trace", "mha", "--device", "cuda"], "expected the device cpu for numpy"),
        (["trace", "mha", "--framework", "torch", "--jit"], "expected jax where --jit is set"),
        (["trace", "mha", "--like", "nowhere"], "expected one of VARIANT, --weights and --like"),
        (["causes", "nothing"], "expected the name of a variant"),
        (["causes", "nothing", "--measure"], "expected the name of a variant"),
    ],
)
def test_refusals(arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = call(*arguments)
    assert found.exit_code == 2
    assert words in " ".join(found.output.replace("│", " ").split()), found.output
    assert not list(tmp_path.iterdir())


def test_the_catalogue_is_listed() -> None:
    found = call("causes", "mha")
    assert found.exit_code == 0 and "softmax over the queries" in found.output
