"""Generic mutants of attn_np: the checks pass on the original, operators do what they say, a sample of mutants dies."""

import ast
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attn_np import contract
from parity_tests.tests import mutation
from parity_tests.tests.mutation import ratchet, runner, sources
from parity_tests.tests.mutation.__main__ import app
from parity_tests.tests.mutation.battery import Check, battery
from parity_tests.tests.mutation.calls import claim
from parity_tests.tests.mutation.operators import OPERATORS, replacements
from parity_tests.tests.mutation.ratchet import Count
from parity_tests.tests.mutation.sources import ALIAS, VARIANTS, Key, copied, files, mutants


def edits(source: str) -> Iterator[tuple[str, str]]:
    """Operator and text for everything that may stand in the place of the first node that the source is about."""
    node: ast.AST = ast.parse(source).body[0]
    if isinstance(node, ast.Expr) and not (isinstance(node.value, ast.Call) and source.startswith("append")):
        node = node.value
    for operator, new in replacements(node):
        yield operator, ast.unparse(ast.fix_missing_locations(new))


@pytest.mark.parametrize(
    ("source", "operator", "after"),
    [
        ("a + b", "another operation", ["a - b"]),
        ("a * b", "another operation", ["a / b", "a + b"]),
        ("a // b", "another operation", ["a % b", "a * b"]),
        ("a @ b", "another operation", ["a * b"]),
        ("a | b", "another operation", ["a & b"]),
        ("a - b", "one side left out", ["a", "b"]),
        ("a - b", "sides exchanged", ["b - a"]),
        ("a + b", "sides exchanged", []),
        ("-a", "sign or negation left out", ["a"]),
        ("not a", "sign or negation left out", ["a"]),
        ("~a", "sign or negation left out", ["a"]),
        ("a |= b", "updated in another way", ["a = b", "pass"]),
        ("a < b", "another comparison", ["a <= b", "a >= b"]),
        ("0 <= a < b", "another comparison", ["0 < a < b", "0 > a < b", "0 <= a <= b", "0 <= a >= b"]),
        ("a == b", "another comparison", ["a != b"]),
        ("a is None", "another comparison", ["a is not None"]),
        ("a in b", "another comparison", ["a not in b"]),
        ("a and b", "and for or", ["a or b"]),
        ("a or b or c", "part of a condition left out", ["b or c", "a or c", "a or b"]),
        ("a if b else c", "condition negated or fixed", ["a if not b else c", "a if True else c", "a if False else c"]),
        ("a if b == 1 else c", "condition negated or fixed", ["a if True else c", "a if False else c"]),
        ("0", "another constant", ["1", "-1"]),
        ("1", "another constant", ["2", "0"]),
        ("3", "another constant", ["4", "2"]),
        ("1.0", "another constant", ["2.0", "0.0", "-1.0"]),
        ("True", "another constant", ["False"]),
        ("-1", "sign of a constant", ["-2", "0"]),
        ("-0.5", "sign of a constant", ["-1.5"]),
        ("'bts->bs'", "letters of an einsum exchanged", ["'tbs->bs'", "'bst->bs'", "'bts->sb'"]),
        ("'bts->bs'", "another word", []),
        ("'keys'", "another word", ["'keys_'"]),
        ("tanh(a)", "call replaced by its argument", ["a"]),
        ("a.reshape(b)", "call replaced by its argument", ["a"]),
        ("np.where(a, b, c)", "call replaced by its argument", ["b", "c"]),
        ("f(a, b, c)", "arguments exchanged", ["f(b, a, c)", "f(a, c, b)"]),
        ("f('bt', a, b)", "arguments exchanged", ["f('bt', b, a)"]),
        ("f(a, b=b, c=c)", "argument left out", ["f(a, c=c)", "f(a, b=b)"]),
        ("(a, b, c)", "neighbours exchanged", ["(b, a, c)", "(a, c, b)"]),
        ("[a, b]", "item left out", ["[b]", "[a]"]),
        ("{a: b, c: d}", "entry left out", ["{c: d}", "{a: b}"]),
        ("{a: b, c: d}", "values exchanged", ["{a: d, c: b}"]),
        ("a[b]", "another place", ["a[b - 1]"]),
        ("for a in b: c", "run through backwards", ["for a in reversed(list(b)):\n    c"]),
        ("for a in b: c", "body left out", ["for a in b:\n    pass"]),
        ("a = f(a)", "assignment left out", ["pass"]),
        ("a = f(b)", "assignment left out", ["a = None"]),
        ("append(a)", "statement left out", ["pass"]),
        ("raise a", "statement left out", ["pass"]),
    ],
)
def test_operators_do_what_they_say(source: str, operator: str, after: list[str]) -> None:
    assert [text for name, text in edits(source) if name == operator] == after


def test_every_operator_finds_something() -> None:
    """An operator that never applies tests nothing."""
    used = {mutant.operator for file in files() for mutant in mutants(file)}
    assert used == set(OPERATORS)


def test_what_carries_no_behaviour_is_left_alone() -> None:
    texts = [mutant.key.before for file in files() for mutant in mutants(file)]
    for word in ("TYPE_CHECKING", "__all__", "Float[", "TypeVar", '"""', "convert it", "import "):
        assert not any(word in text for text in texts if not text.startswith("raise ")), word


def test_mutants_change_their_text() -> None:
    assert all(mutant.key.before != mutant.key.after for file in files() for mutant in mutants(file))


@pytest.mark.parametrize("file", ["ops/vjp.py", "gru.py"])
def test_an_edit_is_undone(file: str) -> None:
    """The syntax trees are shared: compiling a mutant leaves them as they were."""
    before = ast.dump(sources.syntax(file))
    for mutant in mutants(file)[::5]:
        mutant.code()
    assert ast.dump(sources.syntax(file)) == before


def test_a_copy_leaves_no_trace() -> None:
    with copied() as alias:
        __import__(f"{alias}.mha")
        assert f"{alias}.mha" in sys.modules
    assert not [name for name in sys.modules if name.startswith(ALIAS)]


def test_every_line_is_reached() -> None:
    """A line that no check runs hides its mutants: a new function of a shared file needs a check in `checks_*`."""
    reached = runner.reach(VARIANTS)
    unseen = {
        (mutant.key.file, mutant.line)
        for file in files()
        for mutant in mutants(file)
        if not any(mutant.touched(lines) for lines in reached)
    }
    assert not unseen


def results_of(file: str, mutants: int, survivors: int) -> list[runner.Result]:
    """As a run gives them."""
    seen = ["a check: saw it"] * (mutants - survivors) + [None] * survivors
    return [runner.Result(Key(file, "cell", "a", f"b{i}"), 1, "another constant", x) for i, x in enumerate(seen)]


def test_a_fall_fails() -> None:
    """One survivor more than the recorded share gives may come with new lines; two are a fall."""
    kept = {"gru.py": Count(200, 190), "mha.py": Count(100, 90)}
    assert ratchet.fallen(results_of("gru.py", 200, 11), kept) == []
    assert ratchet.fallen(results_of("gru.py", 200, 12), kept) == [
        "gru.py: expected 95.0% of its careless edits to be seen (recorded), got 188 of 200; add the check that sees "
        "them to parity_tests/tests/mutation"
    ]
    assert ratchet.fallen(results_of("gru.py", 400, 21), kept) == []
    assert len(ratchet.fallen(results_of("gru.py", 400, 22), kept)) == 1


def test_a_file_without_a_record_is_held_to_the_lowest() -> None:
    kept = {"gru.py": Count(200, 190), "mha.py": Count(100, 90)}
    assert ratchet.fallen(results_of("_new.py", 50, 6), kept) == []
    (said,) = ratchet.fallen(results_of("_new.py", 50, 7), kept)
    assert "_new.py: expected 90.0% of its careless edits to be seen (the lowest recorded, as it has no record)" in said


def test_a_sample_fails_where_chance_would_hardly_let_so_many_survive() -> None:
    """In 20 mutants of which one in 20 lives, 5 survivors come about once in 389 samples, 6 once in 3037."""
    kept = {"gru.py": Count(200, 190)}
    assert 1 / 390 < ratchet.tail(5, 20, Fraction(1, 20)) < 1 / 388
    assert ratchet.tail(0, 20, Fraction(1, 20)) == 1
    assert ratchet.fallen(results_of("gru.py", 20, 5), kept, sample=True) == []
    assert len(ratchet.fallen(results_of("gru.py", 20, 6), kept, sample=True)) == 1
    whole = {"gru.py": Count(200, 200)}  # the weight of one mutant counts here, too
    assert ratchet.fallen(results_of("gru.py", 20, 1), whole, sample=True) == []
    assert len(ratchet.fallen(results_of("gru.py", 20, 2), whole, sample=True)) == 1


def test_an_improvement_is_recorded_and_a_fall_is_not(tmp_path: Path) -> None:
    path = tmp_path / "ratchet.json"
    assert ratchet.update([*results_of("gru.py", 200, 10), *results_of("mha.py", 100, 5)], path) == ["gru.py", "mha.py"]
    assert ratchet.update([*results_of("gru.py", 200, 9), *results_of("mha.py", 100, 6)], path) == ["gru.py"]
    assert ratchet.read(path) == {"gru.py": Count(200, 191), "mha.py": Count(100, 95)}
    path.write_text(path.read_text().replace("mha.py", "gone.py"))
    assert ratchet.update(results_of("gru.py", 200, 9), path) == []
    assert ratchet.read(path) == {"gru.py": Count(200, 191)}, "a file that is gone is forgotten"


@pytest.mark.parametrize(("survivors", "code"), [(10, 0), (11, 0), (12, 1)])
def test_the_command_fails_where_a_share_has_fallen(
    survivors: int, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And names the survivors; with its option it records what has risen."""
    path = tmp_path / "ratchet.json"
    ratchet.update(results_of("gru.py", 200, 10), path)
    monkeypatch.setattr(runner, "run", lambda *_: results_of("gru.py", 200, survivors))
    monkeypatch.setattr(mutation, "run", runner.run)
    monkeypatch.setattr(ratchet.read, "__defaults__", (path,))
    monkeypatch.setattr(ratchet.update, "__defaults__", (path,))
    found = CliRunner().invoke(app, ["--no-planted"])
    assert found.exit_code == code, found.output
    assert ("fallen gru.py: expected 95.0%" in found.output) is bool(code)
    assert ("survived line 1, another constant: gru.py, cell: a  ->  b199" in found.output) is bool(code)
    again = CliRunner().invoke(app, ["--no-planted", "--ratchet-update"])
    assert "recorded: nothing is better" in again.output
    path.write_text("{}")
    CliRunner().invoke(app, ["--no-planted", "--ratchet-update"])
    assert ratchet.read(path) == {"gru.py": Count(200, 200 - survivors)}
    refused = CliRunner().invoke(app, ["--short", "--ratchet-update"])
    assert refused.exit_code == 2


def test_a_mutant_that_no_check_may_see_survives() -> None:
    """The other half of a kill: with the checks that reach its line taken away, a mutant lives."""
    mutant = next(m for m in mutants("gru.py") if m.key.before == "r * h_gate_inputs[:, 2]")
    reached = runner.reach(VARIANTS)
    assert runner.killer(mutant, reached) is not None
    assert runner.killer(mutant, [frozenset() for _ in reached]) is None


def test_the_file_of_any_variant_can_be_named() -> None:
    """Its checks are its own."""
    assert sources.needed(["gqa.py"]) == ("gqa",)
    assert sources.needed(["mha.py", "gqa.py"]) == (*VARIANTS, "gqa")
    assert sources.needed(["ops/vjp.py"]) == sources.needed(files()) == VARIANTS
    results = runner.run(short=True, jobs=1, only=["gqa.py"])
    assert {result.file for result in results} == {"gqa.py"}
    assert not ratchet.fallen(results, ratchet.read(), sample=True)
    with pytest.raises(ValueError, match=r"expected files of attn_np, got nix\.py"):
        runner.run(only=["nix.py"])


@pytest.mark.parametrize("variant", sorted({*contract.variants()} - {*VARIANTS}))
def test_every_original_passes_the_checks_of_its_file(variant: str) -> None:
    """A check that fails on the original sees no mutant, so it is an error."""
    assert len(runner.reach((variant,))) == len(battery((variant,)))


def test_a_check_that_the_original_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(alias: str) -> None:
        claim(False, "it is not kept")

    monkeypatch.setattr(runner, "battery", lambda variants: (Check("a check", broken),))
    with pytest.raises(ValueError, match="to pass every check, got a check: it is not kept; mend it first"):
        runner.reach.__wrapped__(("gqa",))


@pytest.mark.skipif(not hasattr(runner.signal, "SIGPROF"), reason="this system has no alarms for processor time")
def test_what_loops_is_stopped() -> None:
    with pytest.raises(runner.TooLong), runner.limited(0.25):
        while True:
            pass
