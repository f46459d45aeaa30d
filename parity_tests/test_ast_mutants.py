"""Generic mutants of attn_np: the checks pass on the original, operators do what they say, a sample of mutants dies."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from attn_np import contract
from parity_tests.ast_mutants import equivalent, runner, show, sources
from parity_tests.ast_mutants.battery import Check, battery
from parity_tests.ast_mutants.calls import claim
from parity_tests.ast_mutants.operators import OPERATORS, replacements
from parity_tests.ast_mutants.sources import ALIAS, VARIANTS, Key, copied, files, mutants

pytestmark = pytest.mark.xdist_group("ast_mutants")  # what the checks reach is found once


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


def test_mutants_are_named_once_and_change_their_text() -> None:
    keys = [mutant.key for file in files() for mutant in mutants(file)]
    assert len(set(keys)) == len(keys)
    assert all(key.before != key.after for key in keys)


@pytest.mark.parametrize("file", ["_vjp.py", "gru.py"])
def test_an_edit_is_undone(file: str) -> None:
    """The syntax trees are shared: compiling a mutant leaves them as they were."""
    before = ast.dump(sources.syntax(file))
    for mutant in mutants(file):
        mutant.code()
    assert ast.dump(sources.syntax(file)) == before


def test_a_copy_leaves_no_trace() -> None:
    with copied() as alias:
        __import__(f"{alias}.mha")
        assert f"{alias}.mha" in sys.modules
    assert not [name for name in sys.modules if name.startswith(ALIAS)]


def test_the_original_passes_every_check_and_a_sample_of_mutants_dies() -> None:
    """`run` begins with the original, and raises where it fails a check."""
    results = runner.run(short=True, jobs=1)
    assert {result.file for result in results} == set(files())
    assert show.well(results), "\n".join(str(r.key) for r in results if r.verdict in ("survived", "refuted"))


def test_every_line_is_reached() -> None:
    """A line that no check runs hides its mutants: a new function of a shared file needs a check in `ast_mutants`."""
    reached = runner.reach(VARIANTS)
    unseen = {
        (mutant.key.file, mutant.line)
        for file in files()
        for mutant in mutants(file)
        if not any(mutant.touched(lines) for lines in reached)
    }
    assert not unseen


def test_reasons_name_mutants_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runner.stale() == []
    assert all(reason.strip() and reason.endswith(".") for reason in equivalent.EQUIVALENT.values())
    count = sum(len(keys) for _, keys in equivalent.REVIEWED)
    assert len(equivalent.EQUIVALENT) == count, "a mutant is reviewed twice"
    gone = Key("gru.py", "cell", "a line that is gone", "another")
    monkeypatch.setitem(runner.EQUIVALENT, gone, "It is gone.")
    with pytest.raises(ValueError, match="a line that is gone"):
        runner.run(short=True, jobs=1, only=["gru.py"])


def test_a_survivor_without_a_reason_and_a_refuted_reason_fail() -> None:
    key = Key("gru.py", "cell", "a", "b")
    killed = runner.Result(key, 1, "another constant", "a check: saw it", None)
    assert killed.verdict == "killed"
    assert show.well([killed])
    assert show.well([killed, replace(killed, killed_by=None, reason="No difference.")])
    assert not show.well([killed, replace(killed, killed_by=None)])
    assert not show.well([killed, replace(killed, reason="No difference.")])
    assert not show.well([])
    assert show.score([killed, replace(killed, killed_by=None)]) == 1 / 2


def test_a_mutant_that_no_check_may_see_survives() -> None:
    """The other half of a kill: with the checks that reach its line taken away, a mutant lives."""
    mutant = next(m for m in mutants("gru.py") if m.key.before == "r * h_gates[:, 2]")
    reached = runner.reach(VARIANTS)
    assert runner.killer(mutant, reached) is not None
    assert runner.killer(mutant, [frozenset() for _ in reached]) is None


def test_the_file_of_any_variant_can_be_named() -> None:
    """Its checks are its own."""
    assert sources.needed(["gqa.py"]) == ("gqa",)
    assert sources.needed(["mha.py", "gqa.py"]) == (*VARIANTS, "gqa")
    assert sources.needed(["_core.py"]) == sources.needed(files()) == VARIANTS
    results = runner.run(short=True, jobs=1, only=["gqa.py"])
    assert {result.file for result in results} == {"gqa.py"}
    assert show.well(results)
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
