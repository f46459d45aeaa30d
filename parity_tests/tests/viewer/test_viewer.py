"""The viewer: its formulas are judged as an implementation is, what it writes adds up, and a keyboard is enough."""

import base64
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import attn_np
import attn_torch
from attn_np import contract
from parity_tests import show
from parity_tests.commands.app import app
from parity_tests.explain.verdicts import verdicts
from parity_tests.judge.cases import Case, Drawn, draw
from parity_tests.judge.judging import compare
from parity_tests.tests.viewer.browser import Browser
from parity_tests.viewer import data
from parity_tests.viewer.data import forward, one_row
from parity_tests.viewer.formulas import Traced
from parity_tests.viewer.page import page_of

# One example of each family; where there are states, positions are taken one by one.
EXAMPLES = {
    "alignment": ("additive", "equal"),
    "dense": ("mha", "wide"),
    "heads": ("differential", "causal"),
    "linear": ("gated_delta", "recurrent"),
    "positions": ("t5_bias", "decoder"),
    "recurrent": ("gru", "plain"),
    "scores": ("sinks", "learned"),
    "sparse": ("longformer", "split"),
}
WORDS = ("the", "animal", "was", "too", "tired")
# Every entry of every array, computed by the page from the arrays before it.
COMPUTED = """Object.fromEntries(viewer.data.stages.filter((stage) => stage.formula).map((stage) =>
    [stage.name, [...stage.values.keys()].map((at) => {
        const [id, index] = viewer.formulaOf(stage, viewer.place(at, stage.shape));
        return String(viewer.value(id, index));
    })]))"""
# Some entries of every array as the page writes them: terms, their factors, and the sum.
WRITTEN = """viewer.data.stages.filter((stage) => stage.formula).flatMap((stage) => [0.2, 0.5, 0.9].flatMap((part) => {
    const at = Math.floor(part * stage.values.length), index = viewer.place(at, stage.shape);
    const steps = viewer.explain(stage, index);
    return steps.map((step, n) => ({ name: stage.name, rows: (step.rows || []).map((row) => row.written),
        factors: (step.rows || []).map((row) => row.parts.map((part) => viewer.text(part.value, 6))),
        sum: step.written, largest: Boolean(step.largest),
        value: n === steps.length - 1 ? String(stage.values[at]) : null }));
}))"""


# The arrays as they are now; null where one can no longer be computed.
STAGES = """Object.fromEntries(viewer.data.stages.filter((stage) => !stage.mask)
    .map((stage) => [stage.name, stage.lost ? null : [...stage.values].map(String)]))"""


def opened(tab: Browser, folder: Path, case: Case, **options: Any) -> None:
    """A page of a case in the browser."""
    page_of(case, draw(case), words={}, frameworks=("numpy",)).save(folder / "page.html")
    tab.open(folder / "page.html", **options)


def test_every_family_is_shown() -> None:
    families = {contract.get(variant).Config.family: variant for variant in contract.variants()}
    assert set(families) == set(EXAMPLES)
    assert all(contract.get(variant).Config.family == family for family, (variant, _) in EXAMPLES.items())


def computed(tab: Browser, case: Case) -> dict[str, float]:
    """Error/bound of what the page computes, by name: the judge takes it as it takes an implementation."""
    drawn = one_row(case, draw(case), 0, {})
    wanted = verdicts(forward("numpy", case, drawn), backward=False)[1].wanted
    found = {}
    for name, texts in tab.run(COMPUTED).items():
        got = np.array([float(x.replace("Infinity", "inf")) for x in texts]).reshape(wanted[name].shape)
        found[name] = compare(got, wanted[name])["ratio"]
    return found


@pytest.mark.parametrize("family", EXAMPLES)
def test_numbers_of_the_page_are_those_of_the_layer(tab: Browser, family: str, tmp_path: Path) -> None:
    """Every number of every array is within the judge's bounds in float64, and what is written adds up."""
    case = Case(*EXAMPLES[family], "full", "float64")
    opened(tab, tmp_path, case)
    adds_up(tab)
    ratios = computed(tab, case)
    assert len(ratios) > 3
    assert {name: ratio for name, ratio in ratios.items() if not ratio <= 1} == {}
    assert tab.errors == []


def test_a_wrong_formula_is_seen(tab: Browser, tmp_path: Path) -> None:
    case = Case(*EXAMPLES["dense"], "full", "float64")
    opened(tab, tmp_path, case)
    tab.run("viewer.data.nodes[viewer.data.nodes.find((node) => node.op === 'multiply').args[1]].values[0] *= 1 + 1e-9")
    assert [name for name, ratio in computed(tab, case).items() if not ratio <= 1] == ["scores"]


def decimal(text: str) -> Decimal:
    return Decimal(text.replace("−", "-"))


def test_what_is_written_adds_up_in_float32(tab: Browser, tmp_path: Path) -> None:
    opened(tab, tmp_path, Case(*EXAMPLES["scores"], "full", "float32"))
    adds_up(tab)


def adds_up(tab: Browser) -> None:
    """Terms add up to their sum exactly, as decimals; the last sum is the number itself, to its last digit."""
    steps = tab.run(WRITTEN)
    sums = [step for step in steps if step["rows"] and not step["largest"] and "∞" not in step["sum"]]
    assert sums
    for step in sums:
        assert sum(map(decimal, step["rows"])) == decimal(step["sum"]), step
        unit = Decimal(1).scaleb(decimal(step["sum"]).as_tuple().exponent)  # type: ignore[arg-type]
        for row, factors in zip(step["rows"], step["factors"], strict=True):
            if len(factors) == 2 and "∞" not in "".join(factors):
                a, b = map(decimal, factors)
                # A term is moved by two units at most; a factor has six digits, so it is off by half of the sixth.
                assert abs(decimal(row) - a * b) <= 2 * unit + abs(a * b) * Decimal(1).scaleb(-5) * 2, step
        if step["value"] is not None:
            assert abs(Decimal(step["value"]) - decimal(step["sum"])) <= unit / 2, step


def test_a_page_opens_where_it_is_told(tab: Browser, tmp_path: Path) -> None:
    """Else on the weights of the last position."""
    case = Case("mha", "wide", "plain", "float32")
    entry = "document.getElementById('entry').textContent"
    for opens, shown in (({"stage": "k", "h": 1, "s": 2, "k": 3}, "k[2, 1, 3]"), ({}, "probs[")):
        page_of(case, draw(case), words={}, frameworks=("numpy",), opens=opens).save(tmp_path / "page.html")
        tab.open(tmp_path / "page.html")
        assert tab.run(entry).startswith(shown)


EDITED = """(() => {
    const stage = viewer.data.stages.find((stage) => stage.name === NAME);
    viewer.edit(stage, INDEX, VALUE);
    return Object.fromEntries(viewer.data.stages.map((stage) => [stage.name, [...stage.values].map(String)]));
})()"""


def test_what_is_changed_is_computed_again(tab: Browser, tmp_path: Path) -> None:
    """Of q, k and the mask: every array after it is the textbook's on the changed ones; and all goes back."""
    layer = attn_np.build("mha", d_model=6, num_heads=2, causal=True, dtype="float64")
    show(layer, np.random.default_rng(0).normal(size=(1, 5, 6)), frameworks=("numpy",)).save(tmp_path / "page.html")
    tab.open(tmp_path / "page.html")
    arrays = "Object.fromEntries(viewer.data.stages.map((s) => [s.name, [s.shape, [...s.values]]]))"
    first = tab.run(arrays)
    stages = {name: np.array(values).reshape(shape) for name, (shape, values) in first.items()}
    print({name: x.shape for name, x in stages.items()})
    for name, index, x in (("q", (0, 2, 1, 0), 1.5), ("k", (0, 1, 0, 2), -2.0), ("allowed", (0, 3, 1), 0.0)):
        index = index[-stages[name].ndim :]
        stages[name][index] = x
        which = f"viewer.data.stages.find((s) => s.name === '{name}')"
        tab.run(f"viewer.edit({which}, {list(index)}, {x})")
        found = {name: np.array(values).reshape(shape) for name, (shape, values) in tab.run(arrays).items()}
        mask = np.broadcast_to(stages["allowed"] == 1, (5, 5))
        y, probs = attn_np.attend(*(stages[n] for n in "qkv"), mask=mask[None, None], return_weights=True)
        wanted = {"q": stages["q"], "k": stages["k"], "v": stages["v"], "probs": probs, "context": y}
        for each, x in wanted.items():
            # Scores, their sums and the average: some dozens of roundings on numbers of this size.
            assert np.abs(found[each] - x).max() <= 64 * np.finfo(float).eps * max(1, np.abs(x).max()), (name, each)
    tab.run("document.getElementById('undo').click()")
    assert tab.run(arrays) == first
    assert tab.errors == []


@pytest.mark.parametrize("family", EXAMPLES)
def test_a_changed_input_gives_the_numbers_of_the_layer(tab: Browser, family: str, tmp_path: Path) -> None:
    """Each array is that of the layer on the changed input, but for rounding, or says that it is not there."""
    case = Case(*EXAMPLES[family], "full", "float64")
    opened(tab, tmp_path, case)
    drawn = one_row(case, draw(case), 0, {})
    name, x = next((name, x) for name, x in drawn.inputs.items() if x.dtype.kind == "f" and x.ndim > 2)
    index = (0, 1, *[0] * (x.ndim - 2))
    changed = x.copy()
    changed[index] += 0.75
    tab.run(f"viewer.edit(viewer.arrays.{name}, {list(index)}, {float(changed[index])!r})")
    new = Drawn(drawn.inputs | {name: changed}, drawn.params, drawn.seed)
    wanted = forward("numpy", case, new).outcome.tape
    found = {each: x for each, x in tab.run(STAGES).items() if each in wanted and x is not None}
    assert len(found) > 3
    for each, values in found.items():
        got = np.array([float(v.replace("Infinity", "inf")) for v in values]).reshape(wanted[each].shape)
        # The roundings of both ways: some dozens for each array up to here.
        rounds = 64 * len(found) * np.finfo(float).eps
        both = np.isfinite(wanted[each])
        assert np.array_equal(got[~both], wanted[each][~both])
        assert np.abs(got - wanted[each])[both].max() <= rounds * max(1, np.abs(wanted[each][both]).max()), each


def test_a_number_is_changed_by_keyboard(tab: Browser, tmp_path: Path) -> None:
    case = Case("mha", "wide", "plain", "float32")
    page_of(case, draw(case), words={}, frameworks=("numpy",), opens={"stage": "q"}).save(tmp_path / "page.html")
    tab.open(tmp_path / "page.html")
    before = tab.run("[...viewer.arrays.probs.values]")
    tab.run("document.getElementById('number').focus(); document.getElementById('number').select()")
    tab.ask("Input.insertText", text="3.5")
    tab.press("Enter", 13)
    tab.run("document.getElementById('number').blur()")
    assert tab.run("document.getElementById('entry-value').textContent") == "3.5"
    assert tab.run("[...viewer.arrays.probs.values]") != before
    assert tab.run("document.getElementById('runs-section').hidden")


def test_states_are_a_film(tab: Browser, tmp_path: Path) -> None:
    """One picture for each position, and the stage before is not."""
    opened(tab, tmp_path, Case("linear", "recurrent", "full", "float32"))
    assert tab.run("document.getElementById('stage-name').textContent") == "states"
    assert not tab.run("document.getElementById('film').hidden")
    before = tab.run("document.getElementById('map').toDataURL()")
    tab.run("document.getElementById('frame').focus()")
    tab.press("Home", 36)
    assert tab.run("document.getElementById('map').toDataURL()") != before
    tab.run("document.getElementById('stages').querySelector('button').click()")
    assert tab.run("document.getElementById('film').hidden")


@pytest.fixture(scope="module")
def sentence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with words, a mask by position, several heads, and two frameworks."""
    layer = attn_np.build("mha", d_model=6, num_heads=2, causal=True)
    x = np.random.default_rng(0).normal(size=(2, 7, 6)).astype("float32")
    path = tmp_path_factory.mktemp("page") / "page.html"
    show(layer, x, tokens=WORDS, row=1, frameworks=("numpy", "torch")).save(path)
    return path


def test_a_keyboard_is_enough(tab: Browser, sentence: Path) -> None:
    tab.open(sentence)
    reached = []
    for _ in range(40):
        tab.press("Tab", 9)
        reached.append(tab.run("document.activeElement.id || document.activeElement.textContent"))
    assert {"slider", "before", "after", "map", "tired"} <= set(reached), reached
    assert len({"head 0", "head 1"} & set(reached)) == 2
    tab.run("document.getElementById('map').focus()")
    tab.press("Home", 36)
    live = "document.getElementById('live').textContent"
    assert tab.run(live).startswith("probs, head 0, query tired, key the: ")
    for key, code in (("ArrowUp", 38), ("ArrowRight", 39), ("ArrowRight", 39)):
        tab.press(key, code)
    assert tab.run(live).startswith("probs, head 0, query too, key was: ")
    tab.run("document.getElementById('slider').focus()")
    tab.press("ArrowLeft", 37)
    assert tab.run(live).startswith("scores, head 0, query too, key was: ")


def test_a_screen_reader_hears_every_control(tab: Browser, sentence: Path) -> None:
    tab.open(sentence)
    nodes = tab.ask("Accessibility.getFullAXTree")["nodes"]
    controls = {"button", "slider", "combobox", "application", "region"}
    named = [(node["role"]["value"], node["name"]["value"]) for node in nodes if node["role"]["value"] in controls]
    assert {role for role, _ in named} == controls
    assert all(name.strip() for _, name in named), named
    assert ("slider", "Stage") in named
    assert [node["role"]["value"] for node in nodes].count("status") == 1


def test_the_chosen_word_shows_whom_it_looks_at(tab: Browser, sentence: Path) -> None:
    tab.open(sentence)
    tab.run("document.getElementById('words').children[1].click()")
    rows = "[...document.querySelectorAll('#looks-body tr')]"
    rows = tab.run(f"{rows}.map((row) => [...row.cells].map((cell) => cell.textContent))")
    assert [row[0] for row in rows] == ["head 0", "head 1"]
    weights = np.array([[float(x or "nan") for x in row[1:]] for row in rows])
    assert np.isnan(weights[:, 2:]).all(), "later words are hidden"
    assert (np.abs(weights[:, :2].sum(1) - 1) <= 2 * 0.01 / 2).all(), "two numbers with two decimals"
    assert tab.run("document.querySelectorAll('#runs tr').length") == 2


@pytest.mark.parametrize("dark", (False, True))
@pytest.mark.parametrize("width", (390, 1280))
def test_it_fits_and_fetches_nothing(tab: Browser, sentence: Path, width: int, dark: bool) -> None:
    tab.open(sentence, width=width, dark=dark)
    assert tab.errors == []
    assert tab.fetched == [sentence.resolve().as_uri()]
    assert tab.run("document.documentElement.scrollWidth") <= width
    background = tab.run("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", background))) < 128) == dark
    drawn = tab.run("new Set(document.getElementById('map').getContext('2d').getImageData(0, 0, 200, 200).data).size")
    assert drawn > 10


def test_large_weights_are_left_out(tab: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "MOST_WEIGHTS", 10)
    opened(tab, tmp_path, Case("mha", "wide", "plain", "float32"))
    tab.run("[...document.querySelectorAll('#stages button')].find((b) => b.textContent === 'q').click()")
    assert "too many for this page" in tab.run("document.getElementById('steps').textContent")
    assert tab.errors == []


# Without a browser ----------------------------------------------------------------------------------------------------


def content(html: str) -> dict[str, Any]:
    return json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[0])


@pytest.mark.parametrize("variant", contract.variants())
def test_every_variant_has_a_page(variant: str) -> None:
    """Every array has a formula that the page can compute, or is given; nothing is left unexplained."""
    case = Case(variant, next(iter(contract.examples(variant))), "full", "float32")
    page = page_of(case, draw(case), words={}, frameworks=("numpy",)).html
    held = content(page)
    script = page.rpartition("<script>")[2]
    functions = re.findall(r"^    (\w+): (?:\(|Math)", script, re.MULTILINE)
    known = {*functions, *re.findall(r'op === "(\w+)"', script)}
    assert {node["op"] for node in held["nodes"]} <= known
    assert {stage["name"] for stage in held["stages"] if stage.get("runs")} >= {"y"} & {
        s["name"] for s in held["stages"]
    }
    for stage in held["stages"]:
        for run in stage.get("runs", ()):
            shares = np.frombuffer(base64.b64decode(run["shares"]), np.uint8)
            assert shares.max() <= 100, f"{stage['name']} is beyond its bound"


def test_three_frameworks_stand_side_by_side() -> None:
    case = Case("dot_product", "scaled", "plain", "float32")
    held = content(page_of(case, draw(case), words={}).html)
    assert held["who"] == ["NumPy", "PyTorch", "JAX"]
    for stage in held["stages"]:
        for run in stage.get("runs", ()):
            assert np.frombuffer(base64.b64decode(run["shares"]), np.uint8).max() <= 100, stage["name"]
    counts = {stage["name"]: len(stage.get("runs", ())) for stage in held["stages"]}
    assert (counts["scores"], counts["probs"], counts["context"]) == (3, 3, 3)


def test_a_move_passes_over_moves() -> None:
    """Entries that were moved twice come from where they were at first."""
    x: Any = Traced(np.arange(6.0).reshape(2, 3), "named", axes="ts", name="x")
    found: Any = np.where(np.array([[True], [False], [True]]), x.transpose((1, 0))[::-1], 0.0)
    assert [source.op for source in found.args] == ["named", "constant"]
    assert np.array_equal(np.concatenate([x.v.ravel(), [0.0]])[found.options["at"]], found.v)
    assert np.array_equal(found.v, [[2, 5], [0, 0], [0, 3]])
    y: Any = Traced(np.full((3, 2), 7.0), "named", name="y")
    both: Any = np.stack([y, x.transpose((1, 0))])
    assert [source.options["name"] for source in both.args] == ["y", "x"]
    assert np.array_equal(np.concatenate([source.v.ravel() for source in both.args])[both.options["at"]], both.v)
    assert x.reshape((3, 2)).op == "copy"
    assert x.reshape((3, 2)).reshape((2, 3)) is x
    assert np.where(np.array(True), x, 0.0) is x


def test_show_refuses_what_it_cannot_show() -> None:
    layer = attn_np.build("mha", d_model=6, num_heads=2)
    x, options = np.zeros((2, 3, 6), "float32"), dict[str, Any](implementation="fused")
    with pytest.raises(TypeError, match="expected a layer of attn_np, got MultiHeadAttention"):
        show(attn_torch.build("mha", d_model=6, num_heads=2), x)
    with pytest.raises(ValueError, match="expected at most 3 words for the axis t, got 4"):
        show(layer, x, tokens=["a"] * 4, frameworks=("numpy",))
    with pytest.raises(ValueError, match="expected a row of the 2 of the batch, got 2"):
        show(layer, x, row=2, frameworks=("numpy",))
    with pytest.raises(ValueError, match="mha: expected query"):
        show(layer, x[..., :5])
    with pytest.raises(TypeError, match=r"expected arrays by name, query, .*, got implementation"):
        show(layer, x, **options)

    wrong_rows: tuple[Any, ...] = (-1, 7, 1.5)
    for row in wrong_rows:
        with pytest.raises(ValueError, match="expected a row of the 1 of the batch, got"):
            show(layer, x[:1], row=row, frameworks=("numpy",))
    for frameworks in ("numpy", ("tf",)):
        with pytest.raises(ValueError, match="expected frameworks of numpy, torch, jax, got"):
            show(layer, x, frameworks=frameworks)


@pytest.mark.parametrize("axes", ["t s", "s", "h 1 s"])
def test_a_mask_of_fewer_axes_is_that_of_the_call(axes: str) -> None:
    """Cut to fewer words, too; keys that are a sequence of their own keep their length."""
    layer = attn_np.build("mha", d_model=6, num_heads=2)
    rng, sizes = np.random.default_rng(0), {"t": 4, "s": 4, "h": 2, "1": 1}
    x = rng.normal(size=(2, 4, 6)).astype("float32")
    mask = rng.random([sizes[letter] for letter in axes.split()]) < 0.6
    case = Case("mha", "given", "given", layer.dtype, given=layer.config)
    own = one_row(case, Drawn({"query": x, "mask": mask}, layer.params(), 0), 1, {"t": 3, "s": None}).inputs
    want = np.broadcast_to(mask, (1, 2, 4, 4))[..., :3, :3]
    assert np.array_equal(np.broadcast_to(own["mask"], (1, 2, 3, 3)), want)
    cross = Drawn(
        {"query": x[:, :3], "key": x, "mask": np.broadcast_to(mask, (2, 2, 4, 4))[:, :, :3]}, layer.params(), 0
    )
    assert one_row(case, cross, 1, {"t": 2, "s": None}).inputs["mask"].shape == (1, 2, 2, 4)


def test_a_hostile_word_stays_a_word() -> None:
    layer = attn_np.build("mha", d_model=6, num_heads=2)
    page = show(layer, np.zeros((1, 1, 6), "float32"), tokens=["</script><b>"], frameworks=("numpy",))
    assert content(page.html)["tokens"]["t"] == ["</script><b>"]
    assert "srcdoc" in page._repr_html_() and "</iframe>" in page._repr_html_()


def test_the_command_shows_variants_and_traces(tmp_path: Path) -> None:
    out, trace = str(tmp_path / "page.html"), str(tmp_path / "trace.safetensors")
    run = CliRunner().invoke
    numpy = ["--frameworks", "numpy", "--out", out]
    done = run(app, ["show", "mha", "--tokens", " ".join(WORDS), *numpy])
    assert done.exit_code == 0, done.output
    assert content(Path(out).read_text())["tokens"]["t"][:2] == ["the", "animal"]
    assert run(app, ["show", "mha", *numpy]).exit_code == 2, "the file exists"
    assert run(app, ["trace", "sinks", "--framework", "torch", "--out", trace]).exit_code == 0
    done = run(app, ["show", "--trace", trace, "--overwrite", *numpy])
    assert done.exit_code == 0, done.output
    held = content(Path(out).read_text())
    assert held["who"] == ["torch eager", "NumPy"]
    assert held["stages"][0]["shape"][0] == 2, "a trace keeps its batch"
    for wrong in (["mha", "--example", "none"], ["mha", "--trace", trace], [], ["nothing"], ["mha", "--call", "none"]):
        assert run(app, ["show", *wrong, "--overwrite", *numpy]).exit_code == 2, wrong
