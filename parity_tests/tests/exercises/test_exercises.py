"""The graded exercises: right answers in any style pass, typical wrong ones get the word of their mistake."""

import builtins
import inspect
import json
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from parity_tests.commands.app import app
from parity_tests.exercises import check, exercise, exercises
from parity_tests.exercises._check import SEEDS, bounded, meets
from parity_tests.sync import exercises as page
from parity_tests.sync.tables import LESSONS
from parity_tests.tests.exercises.answers import RIGHT, WRONG


@pytest.mark.parametrize(("name", "answer"), RIGHT)
def test_a_right_answer_passes(name: str, answer: Callable) -> None:
    verdict = check(answer, name)
    assert verdict, verdict
    assert verdict.mistake == ""


@pytest.mark.parametrize(("name", "answer", "word"), WRONG)
def test_a_wrong_answer_gets_the_word_of_its_mistake(name: str, answer: Callable, word: str) -> None:
    verdict = check(answer, name)
    assert not verdict
    assert verdict.mistake == word, verdict


@pytest.mark.parametrize("name", exercises())
def test_an_exercise_tells_its_mistakes_apart(name: str) -> None:
    """Each typical wrong answer gets its own word and no other, and none passes; the answer itself does."""
    one = exercise(name)
    assert check(one.answer, name)
    words = {word: check(wrong, name) for word, wrong in one.wrong.items()}
    assert {word: verdict.mistake for word, verdict in words.items()} == {word: word for word in words}
    assert not any(words.values())


@pytest.mark.parametrize("name", exercises())
def test_an_exercise_is_whole(name: str) -> None:
    """Its arguments are drawn in their order, its bounds are finite, and two calls draw other numbers."""
    one = exercise(name)
    calls = [one.draw(np.random.default_rng(seed)) for seed in SEEDS]
    assert tuple(calls[0]) == one.arguments
    assert all(np.isfinite(bound).all() for call in calls for _, bound in bounded(one.answer, call))
    assert len(one.wrong) >= (2 if name == "1.2" else 4)
    assert one.task.endswith((".", "?"))
    assert inspect.isfunction(one.answer)


@pytest.mark.parametrize("name", exercises())
def test_an_answer_calls_what_its_page_explains(name: str) -> None:
    """NumPy, an answer of the same lesson, or a function that the words before the exercises name."""
    of_lesson = {one.function for one in exercises().values() if one.name.split(".")[0] == name.split(".")[0]}
    assert page.called(exercise(name).source) <= of_lesson | set(page.HELPERS) | set(dir(builtins))


def test_every_lesson_has_three() -> None:
    counts = Counter(name.partition(".")[0] for name in exercises())
    assert set(counts) >= {str(int(path.name[:2])) for path in LESSONS}
    assert min(counts.values()) >= 3
    names = [one.function for one in exercises().values()]
    assert len(set(names)) == len(names)  # a file of answers tells them apart by their names


def test_what_no_mistake_explains_is_described() -> None:
    assert check(lambda p, dp: -p * (dp - (p * dp).sum(-1, keepdims=True)), "2.4").mistake == "the opposite sign"
    assert check(lambda p, dp: 2 * p * (dp - (p * dp).sum(-1, keepdims=True)), "2.4").mistake == "a constant factor"
    assert check(lambda p, dp: (p * (dp - (p * dp).sum(-1, keepdims=True))).T, "2.4").mistake == "transposed"
    assert check(lambda p, dp: p[:, :2], "2.4").mistake == "another shape"
    assert check(lambda p, dp: p * np.nan, "2.4").mistake == "NaN"
    assert check(lambda q, k, v, dy: q, "1.6").mistake == "too few results"
    unknown = check(lambda p, dp: p + dp, "2.4")
    assert not unknown
    assert unknown.mistake == ""
    assert "35 of 35 numbers differ, first at (0, 0): expected" in unknown.says
    uncalled = check(lambda p: p.no_such_method(), "2.4")
    assert "could not be called" in uncalled.says
    assert "Expected softmax_vjp(p, dp), with p (5, 7), dp (5, 7)" in uncalled.says
    calls = iter(range(100))
    assert not check(lambda p, dp: p * (dp - (p * dp).sum(-1, keepdims=True)) * (next(calls) == 0), "2.4")


def test_a_bound_without_an_end_lets_nothing_pass() -> None:
    assert meets([3.0], np.array([1.0]), np.array([2.0]))
    assert not meets([3.0], np.array([1.0]), np.array([np.inf]))
    assert meets([np.inf], np.array([np.inf]), np.array([np.inf]))


@pytest.mark.parametrize(("name", "says"), [("1.3", "lesson 1 these are graded: 1.2, 1.4"), ("atention", "attention")])
def test_an_unknown_exercise_is_refused(name: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check(lambda: None, name)


def test_numpy_is_enough() -> None:
    """The teacher loads neither PyTorch nor JAX for a reader of NumPy."""
    code = (
        "import sys; from parity_tests.exercises import check, exercises; "
        "check(lambda p, dp: p * dp, '2.4'); check(exercises()['2.4'].answer, '2.4'); "
        "sys.exit(bool({'jax', 'flax'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# The command ----------------------------------------------------------------------------------------------------------


def called(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["exercises", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


def test_a_file_of_answers_is_judged_and_the_score_kept(tmp_path: Path) -> None:
    answers, score = tmp_path / "mine.py", tmp_path / "mine.score.json"
    answers.write_text("def softmax_vjp(p, dp):\n    return p * dp\n\n\ndef chunk_mask(n, size):\n    return None\n")
    code, said = called("--check", answers)
    assert code == 1
    assert "2.4 not yet It has this mistake: softmax backward without its sum" in said
    assert json.loads(score.read_text()) == {"right": []}
    answers.write_text("def softmax_vjp(p, dp):\n    return p * (dp - (p * dp).sum(-1, keepdims=True))\n")
    code, said = called("--check", answers)
    assert code == 0
    assert f"1 of {len(exercises())} right; kept in" in said
    assert json.loads(score.read_text()) == {"right": ["2.4"]}
    answers.write_text("def causal(t, s):\n    return 0\n\n\ndef softmax_vjp(p, dp):\n    return p\n")
    assert called("3.1", "--check", answers)[0] == 1
    assert json.loads(score.read_text()) == {"right": ["2.4"]}  # 2.4 was not asked for
    code, said = called("2", "--score", score)
    assert code == 0
    assert "right 2.4 softmax_vjp(p, dp)" in said
    other = tmp_path / "other.json"
    assert called("--check", answers, "--score", other)[0] == 1
    assert json.loads(other.read_text()) == {"right": []}


def test_an_exercise_is_shown_and_its_answer_on_demand() -> None:
    code, said = called("13.4")
    assert code == 0
    assert "Find the mistake in this port" in said
    assert "reshape(b, h, t, -1)" in said
    assert exercise("13.4").source.splitlines()[-1].strip() not in said
    assert exercise("13.4").source.splitlines()[-1].strip() in called("13.4", "--answer")[1]


def test_what_can_not_be_judged_is_refused(tmp_path: Path) -> None:
    broken, other, scores = tmp_path / "broken.py", tmp_path / "other.py", tmp_path / "scores.json"
    broken.write_text("1 / 0\n")
    other.write_text("x = 1\n")
    scores.write_text("[]")
    for arguments, says in (
        (("--check", tmp_path / "none.py"), "expected a Python file of answers"),
        (("--check", broken), "expected a file that runs, got ZeroDivisionError"),
        (("--check", other), "expected functions named as exercises, got none"),
        (("99.1",), "expected the number of a graded exercise"),
        (("--score", scores), "expected a file that keeps a score"),
    ):
        code, said = called(*arguments)
        assert code == 2, said
        assert says in said


def test_a_trial_does_not_warn_the_reader() -> None:
    """The judge tries tensors and a batch axis by itself, of which PyTorch warns where an answer transposes by `.T`."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert not check(lambda p, dp: (p * (dp - (p * dp).sum(-1, keepdims=True))).T, "2.4")
    assert heard == []
