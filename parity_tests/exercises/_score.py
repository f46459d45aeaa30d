"""Files of answers, and the file that keeps which exercises are right."""

import json
import runpy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from parity_tests.exercises._check import Verdict, check
from parity_tests.exercises._exercise import Exercise, exercises

KEY = "right"


def answers_of(path: Path) -> dict[str, Callable]:
    """The functions of a file of answers by name.

    Raises:
        ValueError: there is no such file, or it does not run.
    """
    if not path.is_file():
        raise ValueError(f"exercises: expected a Python file of answers, got {path}; write one")
    try:
        names = runpy.run_path(str(path))
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        raise ValueError(f"exercises: expected a file that runs, got {said} from {path}; mend it") from error
    return {name: x for name, x in names.items() if callable(x)}


def verdicts(answers: Mapping[str, Callable], chosen: Sequence[Exercise]) -> list[Verdict]:
    """What the teacher says of the answers to the exercises that were chosen, in the order of the course."""
    return [check(answers[one.function], one.name) for one in chosen if one.function in answers]


def kept(file: Path) -> set[str]:
    """The exercises that a file says are right; none where it does not exist yet.

    Raises:
        ValueError: the file is not one of scores.
    """
    if not file.exists():
        return set()
    try:
        names = json.loads(file.read_text(encoding="utf-8"))[KEY]
        return {str(name) for name in names if str(name) in exercises()}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"exercises: expected a file that keeps a score, got {file}; name another") from error


def merged(file: Path, said: Sequence[Verdict]) -> set[str]:
    """Write what is right into the file of the score; an answer that is judged again counts as it is judged last."""
    right = (kept(file) - {one.exercise for one in said}) | {one.exercise for one in said if one}
    in_order = [name for name in exercises() if name in right]
    file.write_text(json.dumps({KEY: in_order}, indent=1) + "\n", encoding="utf-8")
    return right
