"""The benchmarks themselves: statistics, turns, the table of races, reports. No time is judged here."""

import ast
import io
import json
import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")
pytest.importorskip("jinja2")

from attn_np import contract
from benchmarks import machine, report, run, statistics, turns, variants
from benchmarks.entrants import WHO
from benchmarks.plan import ASKED, BOTH, FULL, QUICK, USUAL, Entrant, Race, Target, Work, races

ROOT = Path(__file__).parents[3]


# Statistics -----------------------------------------------------------------------------------------------------------


def test_what_slows_a_whole_round_cancels() -> None:
    noise = [1.0, 7.0, 2.0, 30.0, 4.0, 5.0]
    found = statistics.ratio([3 * x for x in noise], noise)
    assert found == statistics.Ratio(3.0, 3.0, 3.0)


def test_the_interval_holds_95_percent() -> None:
    """Of n rounds drawn again the median is the least or lower i-th with a probability that can be counted.

    Three or more of five draws hit the least in 5.8 % of the cases, four or more of seven in 1.0 %, and four or more
    of seven hit the two least in 11 %: 2.5 % lie at the first, beyond the first, and before the third.
    """
    assert statistics.ratio([5.0, 1.0, 4.0, 2.0, 3.0], [1.0] * 5) == statistics.Ratio(3.0, 1.0, 5.0)
    assert statistics.ratio([7.0, 5.0, 1.0, 6.0, 4.0, 2.0, 3.0], [1.0] * 7) == statistics.Ratio(4.0, 2.0, 6.0)


def test_a_ratio_is_of_medians_and_of_pairs() -> None:
    assert statistics.ratio([1.0, 2.0, 100.0], [4.0, 4.0, 1.0]).value == 0.5
    with pytest.raises(ValueError, match="as many rounds on both sides, got 2 and 3"):
        statistics.ratio([1.0, 2.0], [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("low", "value", "high", "said"),
    [
        (0.9, 0.95, 1.0, "met"),
        (0.9, 1.0, 1.1, "met"),
        (1.0, 1.05, 1.1, "met within noise"),
        (1.01, 1.05, 1.1, "missed"),
    ],
)
def test_a_target_is_met_by_the_lower_end(low: float, value: float, high: float, said: str) -> None:
    assert statistics.verdict(statistics.Ratio(value, low, high), 1.0) == said


# Turns ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_everybody_stands_in_every_place_and_behind_every_other_as_often(count: int) -> None:
    stood = Counter((who, place) for n in range(2 * count) for place, who in enumerate(turns.order(n, count)))
    assert stood == {(who, place): 2 for who in range(count) for place in range(count)}
    followed = Counter(pair for n in range(2 * count) for pair in pairwise(turns.order(n, count)))
    assert followed == {(who, other): 2 for who in range(count) for other in range(count) if who != other}
    if count == 2:
        assert [turns.order(n, 2) for n in range(4)] == [[0, 1], [1, 0], [1, 0], [0, 1]]


def test_only_the_work_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that the work itself moves on: not compilation, not what a run uses up, not the pauses."""
    clock, log = [0.0], []

    def runner(name: str, seconds: float, units: int) -> turns.Runner:
        first = [True]

        def work(state: Any) -> None:
            clock[0] += seconds + (50.0 if first[0] else 0.0)
            first[0] = False
            log.append(name)
            assert state == "fresh"

        def fresh() -> str:
            clock[0] += 1000.0
            return "fresh"

        return turns.Runner(work, fresh=fresh, units=units)

    monkeypatch.setattr(turns, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(turns, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    slow, short = runner("slow", 0.25, 2), runner("short", turns.LEAST / 4, 1)
    for one in (slow, short):
        one.run(one.fresh())
    log.clear()
    found = list(turns.rounds([("slow", slow), ("short", short)], 3))
    assert [row[0] for row in found] == pytest.importorskip("numpy").full(3, 0.125).tolist()
    # After one or four tries, four of the short one make a sample, and one more before it is not counted.
    assert Counter(log) == {"slow": 1 + 3, "short": 4 + 3 * (1 + 4)}
    assert {f"{row[1]:.6f}" for row in found} == {f"{turns.LEAST / 4:.6f}"}


# The table ------------------------------------------------------------------------------------------------------------


def test_the_table_is_sound() -> None:
    names = [race.name for race in races()]
    assert len(set(names)) == len(names)
    for race in races():
        entrants = [entrant.name for entrant in race.entrants]
        assert len(set(entrants)) == len(entrants) > 1 or "memory" in race.name, race.name
        assert {entrant.who for entrant in race.entrants} <= set(WHO), race.name
        for target in race.targets:
            assert {target.ours, target.theirs} - {None} <= set(entrants), race.name
            assert (target.theirs is None) == (race.kind == "memory"), race.name
        for entrant in race.entrants:
            backend = {"Keras on torch": "torch", "Keras on JAX": "jax"}.get(entrant.who)
            assert backend in (None, race.process), race.name
    starts = [a.process != b.process for a, b in zip(races(), races()[1:], strict=False)]
    assert sum(starts) <= 3, "races of one process stand together"


def test_every_entrant_is_made_where_the_table_says() -> None:
    made: dict[str, set[str]] = {}
    for name in {who.module for who in WHO.values()}:
        for node in ast.parse((ROOT / "benchmarks/entrants" / f"{name}.py").read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MAKERS":
                assert isinstance(node.value, ast.Dict)
                made[name] = {ast.literal_eval(key) for key in node.value.keys if key is not None}
    assert made == {module: {n for n, who in WHO.items() if who.module == module} for module in made}


@pytest.mark.parametrize(
    ("race", "ours", "theirs", "at_most"),
    [
        ("attend/forward/full/2048", "attn_np", "torch SDPA", 1.15),
        ("attend/forward/full/8192", "attn_np", "two products", 1.25),
        ("attend/forward/numpy masks/2048", "attn_np causal", "attn_np", 0.6),
        ("attend/forward/numpy masks/8192", "attn_np window", "attn_np", 0.1),
        ("attend/forward/full/2048", "attn_jax", "jax.nn", 1 / 3),
        ("attend/forward/full/512", "attn_jax", "jax.nn", 1.0),
        ("attend/forward/full/8192", "attn_jax", "torch SDPA", 1.0),
        (f"attend/{BOTH}/full/2048", "attn_jax", "jax.nn", 1 / 2.3),
        (f"attend/{BOTH}/full/4096", "attn_jax", "torch SDPA", 1.1),
        ("attend/forward/mask/2048", "attn_torch", "torch SDPA", 1.03),
        ("attend/forward/sinks/2048", "attn_torch", "attn_torch textbook", 0.5),
        ("layers/torch/mha/forward/16", "attn_torch", "nn.MultiheadAttention", 1.5),
        (f"layers/torch/mha/{BOTH}/16", "attn_torch", "nn.MultiheadAttention", 1.5),
        ("layers/jax/decoder/forward/2048", "attn_jax", "Keras on JAX", 1.0),
        ("layers/jax/mha/forward/16", "attn_jax", "nnx.MultiHeadAttention", 1.0),
        ("memory/forward/full/16384", "attn_np", None, 100e6),
    ],
)
def test_what_is_hoped_for_is_judged(race: str, ours: str, theirs: str | None, at_most: float) -> None:
    assert Target(ours, theirs, at_most) in {one.name: one for one in races()}[race].targets


def test_a_run_is_chosen_by_level_name_and_entrant() -> None:
    sizes = [len(run.chosen(level, (), ())) for level in (QUICK, USUAL, FULL)]
    assert 0 < sizes[0] < sizes[1] < sizes[2] == len(races())
    quick = {entrant.who for race in run.chosen(QUICK, (), ()) for entrant in race.entrants}
    assert not quick & {"attn_np textbook", "attn_torch textbook", "attn_jax textbook"}
    assert {"attn_np", "attn_torch", "attn_jax", "two products", "torch SDPA", "jax.nn", "torch loop"} <= quick
    assert all(race.name.startswith("decode/") for race in run.chosen(USUAL, ("decode/*",), ()))
    only = run.chosen(QUICK, ("attend/forward/full/16384", "memory/*/window/4096"), ())
    assert [race.name for race in only] == ["attend/forward/full/16384"]
    (some,) = run.chosen(USUAL, ("attend/forward/full/2048",), ("attn_np*", "two products"))
    assert {entrant.who for entrant in some.entrants} == {"attn_np", "attn_np textbook", "two products"}
    assert some.targets == (Target("attn_np", "two products", 1.25),)


# Results and reports --------------------------------------------------------------------------------------------------


def outcome(**changes: Any) -> run.Found:
    """Results of one race as a run would have them: ours takes twice as long, one peer is absent, one has no time."""
    found = run.header("python -m benchmarks", USUAL, 30, 2)
    ours, theirs, absent = (Entrant(who, Work(length=64), who) for who in ("attn_torch", "torch SDPA", "attn_jax"))
    targets = (Target("attn_torch", "torch SDPA", 1.03), Target("attn_jax", "torch SDPA", 1.0))
    race = run.blank(Race("attend/forward/full/64", (ours, theirs, absent), targets))
    race["entrants"][0] |= {"state": "measured", "seconds": [2e-3, 4e-3, 6e-3], "differs": 1e-7}
    race["entrants"][1] |= {"state": "measured", "seconds": [1e-3, 2e-3, 3e-3], "differs": 0.0} | changes
    race["entrants"][2] |= {"state": "absent", "why": "needs jax, flax: No module named 'jax'"}
    return found | {"races": [race], "state": "complete"}


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = outcome()
    run.write(tmp_path / "results.json", found)
    again = run.read(tmp_path / "results.json")
    assert again == found
    assert report.lines(again) == report.lines(found)
    assert {"machine", "versions", "commit", "command", "date"} <= set(again)
    (tmp_path / "results.json").write_text(json.dumps(found | {"format": "other"}))
    with pytest.raises(ValueError, match="expected results of the format"):
        run.read(tmp_path / "results.json")


def test_a_missed_target_and_an_absent_peer_are_shown(tmp_path: Path) -> None:
    from rich.console import Console

    found = outcome()
    missed, unknown = report.lines(found)
    assert (missed.verdict, missed.value, missed.rounds) == ("missed", 2.0, 3)
    assert unknown.verdict == "not measured"
    assert "attn_jax: absent, needs jax" in unknown.why
    console = Console(record=True, width=200, file=io.StringIO())
    report.show(console, found)
    report.write_html(tmp_path / "report.html", found, "<svg></svg>")
    for shown in (console.export_text(), (tmp_path / "report.html").read_text()):
        assert "0 targets met (0 within noise), 1 missed, 1 not measured" in shown
        assert "No module named" in shown
        assert "2 × its time" in shown
    assert "computes something else" not in console.export_text(clear=False)


@pytest.mark.parametrize("size", [0, 300_000_000])
def test_an_entrant_that_was_weighed_but_not_timed_is_told(size: int) -> None:
    """A run may be interrupted between the two."""
    found = run.header("python -m benchmarks", USUAL, 2, 2)
    (race,) = run.chosen(USUAL, ("variants/linear/attn_np/forward",), ())
    found["races"] = [run.blank(race)]
    found["races"][0]["entrants"][0] |= {"state": "measured", "bytes": size}
    growth, memory = report.lines(found)
    assert (growth.verdict, growth.why) == ("not measured", "linear 4096: not run; linear 1024: not run")
    assert memory.value == size
    ((_, rows),) = report.times(found)
    assert next((row["figure"], row["note"]) for row in rows) == ("–", "linear 4096: not run")


def test_an_entrant_that_computes_something_else_is_named() -> None:
    notes = [row["note"] for _, rows in report.times(outcome(differs=0.01)) for row in rows]
    assert notes[1] == "computes something else: differs by 0.01"
    assert notes[0] == ""


def test_a_busy_machine_is_told() -> None:
    before, after = machine.Busy(100.0, 10.0, 5.0), machine.Busy(118.0, 16.0, 15.0)
    assert machine.others(before, after, 2) == (18.0 - 6.0) / 10.0 / 2
    assert machine.others(None, after, 2) is None
    found = outcome()
    found["races"] = [{**found["races"][0], "others": share} for share in (None, 0.05, 0.6)]
    assert "in 1 of the races others used up to 60 % of the cores" in report.headline(found)
    now = machine.busy(os.getpid())
    assert now is None or 0 < now.ours <= now.everybody


def test_a_run_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies costs its race; an interruption costs what comes after."""

    class Worker:
        def __init__(self, process: str, threads: int, lane: int) -> None:
            self.serves = process, threads

        def answers(self, order: dict[str, Any]) -> Any:
            length = order["entrants"][0]["work"]["length"]
            if length == 3:
                raise KeyboardInterrupt
            yield {"event": "ready", "entrants": {one["name"]: {"state": "measured"} for one in order["entrants"]}}
            yield {"event": "round", "seconds": [1.0] * len(order["entrants"])}
            if length == 2:
                raise ChildProcessError("it was killed")
            yield {"event": "done"}

        child = SimpleNamespace(pid=os.getpid())

        def close(self) -> None:
            pass

    monkeypatch.setattr(run, "Worker", Worker)
    wanted = [Race(f"race/{n}", (Entrant("attn_np", Work(length=n), "attn_np"),)) for n in (1, 2, 1, 3, 1)]
    seen: list[tuple[str, int, int]] = []
    path = tmp_path / "results.json"

    def told(race: Race, done: int, of: int) -> None:
        seen.append((race.name, done, len(run.read(path)["races"]) if path.exists() else 0))

    run.run(wanted, run.header("", USUAL, 1, 2), 1, 2, path, told)
    found = run.read(path)
    assert found["state"] == "interrupted"
    outcomes = [
        (one["state"], one.get("seconds"), one.get("why")) for race in found["races"] for one in race["entrants"]
    ]
    whole, died = ("measured", [1.0], None), ("failed", None, "it was killed")
    assert outcomes == [whole, died, whole, ("not run", None, None)]
    assert seen[:4] == [("race/1", 0, 0), ("race/1", 1, 0), ("race/2", 0, 1), ("race/2", 1, 1)]


def test_an_absent_package_and_too_large_work_are_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import worker

    monkeypatch.setitem(sys.modules, "keras", None)
    monkeypatch.delitem(sys.modules, "benchmarks.entrants.with_keras", raising=False)
    none, notes = worker.ready(Entrant("Keras on torch", Work(what="mha", length=4), "Keras on torch"))
    assert none is None
    assert notes["state"] == "absent"
    assert "needs keras, torch" in notes["why"]
    none, notes = worker.ready(Entrant("jax.nn", Work(length=2**20), "jax.nn"))
    assert (none, notes["state"]) == (None, "too large")
    none, notes = worker.ready(Entrant("two products", Work(length=4, passes=BOTH), "two products"))
    assert (none, notes["state"]) == (None, "failed")


@pytest.mark.parametrize(("what", "mask"), [("mha", "full"), ("decoder", "causal"), ("decode", "causal")])
def test_entrants_do_the_same_work(what: str, mask: str) -> None:
    """The same weights in the shapes of a peer: what differs would be named in the report."""
    pytest.importorskip("torch")
    from benchmarks import worker

    work = Work(what=what, length=24, mask=mask, heads=2, kv_heads=2, width=4)
    peer = "torch loop" if what == "decode" else "nn.MultiheadAttention"
    answers: list[dict[str, Any]] = []
    worker.race([Entrant(who, work, who) for who in ("attn_np", "attn_torch", peer)], 1, answers.append)
    (ready,) = [answer["entrants"] for answer in answers if answer["event"] == "ready"]
    assert {notes["state"] for notes in ready.values()} == {"measured"}
    assert max(notes["differs"] for notes in ready.values()) < report.EPSILON["float32"] ** 0.5
    assert worker.difference(*(pytest.importorskip("numpy").array(x) for x in ([1.0, 2.0], [1.0, 4.0]))) == 0.5


# The command ----------------------------------------------------------------------------------------------------------


def command(*words: str, cwd: Path) -> str:
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(cwd)}
    called = [sys.executable, "-W", "error::SyntaxWarning", "-m", "benchmarks", *words]
    done = subprocess.run(called, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def test_the_command_explains_itself(tmp_path: Path) -> None:
    shown = command("--help", cwd=tmp_path)
    for option in ("--quick", "--full", "--only", "--who", "--rounds", "--out", "--json", "--from", "--list"):
        assert option in shown


def test_a_small_run_times_and_weighs(tmp_path: Path) -> None:
    """Real processes: two entrants in turns, then each in a process of its own for its memory."""
    who = "attn_np textbook,two products"
    only = "attend/forward/full/16,memory/forward/full/512"
    out = str(tmp_path / "found")
    words = ("--only", only, "--who", who, "--rounds", "3", "--out", out, "--json", "copy.json")
    shown = command(*words, cwd=tmp_path)
    assert all(name in shown for name in only.split(","))
    found = run.read(tmp_path / "found/results.json")
    assert found["state"] == "complete"
    assert run.read(tmp_path / "copy.json") == found
    command_line = f"--only {only} --who '{who}' --rounds 3 --out found --json copy.json"
    assert found["command"] == f"python -m benchmarks {command_line}"
    timed, weighed = found["races"]
    assert [len(one["seconds"]) for one in timed["entrants"]] == [3, 3]
    assert min(second for one in timed["entrants"] for second in one["seconds"]) > 0
    size = {one["name"]: one["bytes"] for one in weighed["entrants"]}
    # All heads' scores in float32 against one head's, which is there before the call.
    assert size["two products"] < 8 * 512 * 512 * 4 < size["attn_np textbook"]
    assert "attn_np textbook" in (tmp_path / "found/report.html").read_text()


# Variants -------------------------------------------------------------------------------------------------------------


def test_variants_are_chosen_by_name_and_by_no_level() -> None:
    assert not [race for race in run.chosen(FULL, (), ()) if race.level == ASKED]
    everything = run.chosen(USUAL, ("variants",), ())
    assert {race.name for race in everything} == {race.name for race in variants.races()}
    assert all(race.threads == 1 for race in everything)
    some = run.chosen(USUAL, ("variants/delta/*/forward", "variants/mha/attn_jax"), ("attn_np", "attn_jax"))
    assert [race.name for race in some] == [
        "variants/delta/attn_np/forward",
        "variants/delta/attn_jax/forward",
        "variants/mha/attn_jax/forward",
        f"variants/mha/attn_jax/{BOTH}",
    ]
    targets = [(target.theirs, target.at_most) for target in everything[-1].targets]
    assert everything[-1].weighed == "transformer_xl 4096"
    assert targets == [("transformer_xl 1024", 20.0), (None, 200e6), ("mha 4096", 4.0)]


@pytest.mark.parametrize("listed", [True, False])
def test_every_variant_has_its_formula(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer is made and called, as the table says and as one that the table does not have."""
    from benchmarks import worker

    assert set(variants.KNOWN) <= {*contract.variants(), *contract.presets()}
    if not listed:
        monkeypatch.setattr(variants, "KNOWN", {name: variants.KNOWN[name] for name in ("axial", "grid_bias", "swin")})
        monkeypatch.setattr(variants, "FORMULAS", {name: variants.formula_of(name) for name in contract.variants()})
        monkeypatch.setattr(variants, "KNOWN", {})
        with pytest.raises(ValueError, match="swin: expected an entry in KNOWN of"):
            variants.formula_of("swin")
    for name, formula in variants.FORMULAS.items():
        work = Work(what="variant", variant=name, length=12, heads=2, kv_heads=2, width=variants.WIDTH // 2)
        runner, notes = worker.ready(Entrant(formula.trees[0], work, name))
        assert runner is not None, (name, notes)
        shape = runner.output(runner.run(None)).shape
        batch = (variants.SEQUENCES, 1) if "attend" in formula.function else (1, 12)
        assert shape[:2] == batch and (name not in variants.KNOWN or shape[2] == variants.WIDTH), name


def test_a_mechanism_is_raced_beside_the_same_without_it() -> None:
    """In every tree and pass that has it; its growth is judged by its own formula."""
    assert not set(variants.MECHANISMS) & {*contract.variants(), *contract.presets()}
    for name, formula in variants.MECHANISMS.items():
        plain = variants.FORMULAS[formula.beside]
        assert plain.function == formula.function or {plain.function, formula.function} == {"attend", "attend_paged"}
        assert ((formula.of or formula.function) and "+" in name) or name == formula.beside, name
        races = run.chosen(USUAL, (f"variants/{name}",), ())
        assert len(races) == len(formula.trees) * len(formula.passes), name
        for race in races:
            assert Target(f"{name} 4096", f"{name} 1024", variants.SLACK * formula.growth) in race.targets
            assert (f"{formula.beside} 4096" in {entrant.name for entrant in race.entrants}) or name == formula.beside
    pages, keys = (variants.arguments(Work(variant=name, length=100)) for name in ("attend+pages", "attend"))
    found = pages["k_pages"][pages["table"]].reshape(variants.SEQUENCES, -1, *keys["k"].shape[2:])[:, :100]
    assert (found == keys["k"]).all()


@pytest.mark.parametrize(
    "variant", ["segments", "linear", "decoder+shared_kv", "gla+documents", "recur+erase_key", "dsa+heads"]
)
def test_trees_race_the_same_layer(variant: str) -> None:
    from benchmarks import worker

    work = Work(what="variant", variant=variant, length=12, passes=BOTH, heads=4, kv_heads=4, width=32)
    answers: list[dict[str, Any]] = []
    worker.race([Entrant(who, work, who) for who in variants.TREES], 1, answers.append)
    (ready,) = [answer["entrants"] for answer in answers if answer["event"] == "ready"]
    assert {notes["state"] for notes in ready.values()} == {"measured"}
    assert max(notes["differs"] for notes in ready.values()) < report.EPSILON["float32"] ** 0.5


def test_growth_stands_beside_the_formula(tmp_path: Path) -> None:
    """Of a linear variant that takes 3 and 30 ms, where `mha` takes 15: a growth of 10, twice the time."""
    from rich.console import Console

    found = run.header("python -m benchmarks", USUAL, 2, 2)
    (race,) = run.chosen(USUAL, ("variants/linear/attn_np/forward",), ())
    found["races"] = [run.blank(race)]
    seconds = {"linear 4096": [0.03, 0.03], "linear 1024": [0.003, 0.003], "mha 4096": [0.015, 0.015]}
    for one in found["races"][0]["entrants"]:
        one |= {"state": "measured", "seconds": seconds[one["name"]]}
    found["races"][0]["entrants"][0]["bytes"] = 300_000_000
    (row,) = variants.rows(found)
    assert row.seconds == (0.003, 0.03)
    assert row.growth is not None
    assert row.beside is not None
    assert (round(row.growth.value, 9), row.beside.value, row.bytes) == (10.0, 2.0, 300_000_000)
    assert [line.verdict for line in report.lines(found)] == ["missed", "missed"]
    console = Console(record=True, width=200, file=io.StringIO())
    report.show(console, found)
    assert "variants at 1024 and 4096 positions, one thread" in console.export_text()
    assert variants.draw(found, tmp_path / "variants.png")
    assert (tmp_path / "variants.png").stat().st_size > 0
    assert not variants.draw(outcome(), tmp_path / "none.png")
    assert variants.table(outcome()) is None
