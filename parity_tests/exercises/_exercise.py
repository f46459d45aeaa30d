"""What a graded exercise is: a task, its answer, and the answers that readers typically give instead."""

import inspect
import pkgutil
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from attn_np import contract

Function = Callable[..., Any]

# Every axis has a length of its own, so that no exchange of two of them fits.
SIZES = {"b": 2, "t": 5, "s": 7, "k": 3, "v": 4, "d": 11, "h": 2, "z": 6, "e": 13, "g": 2}


@dataclass(frozen=True)
class Exercise:
    """A graded exercise.

    Attributes:
        name: its lesson and number, "2.4".
        task: what to write, as Markdown; the answer's name and arguments come before it.
        answer: the right function. It runs on error-carrying arrays, which is where its bounds come from.
        draw: the arguments of a call, by name.
        wrong: typical wrong answers by the word of their mistake, functions of the same arguments.
        given: source that is shown with the task, such as a port with a planted mistake.
    """

    name: str
    task: str
    answer: Function
    draw: Callable[[np.random.Generator], dict[str, Any]]
    wrong: Mapping[str, Function] = field(default_factory=dict)
    given: str = ""

    @property
    def function(self) -> str:
        """The name of the function that the reader writes."""
        return self.answer.__name__

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.answer).parameters)

    @property
    def call(self) -> str:
        return f"{self.function}({', '.join(self.arguments)})"

    @property
    def source(self) -> str:
        """The answer as it is written."""
        return textwrap.dedent(inspect.getsource(self.answer)).strip()


def arrays(**axes: str) -> Callable[[np.random.Generator], dict[str, Any]]:
    """Draws normal arrays with these axes, a letter each; numbers that 32 bits hold exactly."""

    def draw(rng: np.random.Generator) -> dict[str, Any]:
        return {name: normal(rng, *(SIZES[axis] for axis in letters)) for name, letters in axes.items()}

    return draw


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Normal numbers that 32 bits hold exactly."""
    return rng.normal(size=shape).astype(np.float32).astype(np.float64)


@cache
def exercises() -> dict[str, Exercise]:
    """All graded exercises by name, in the order of the course."""
    package = __package__ or ""
    folder = import_module(package).__path__
    lessons = sorted(module.name for module in pkgutil.iter_modules(folder) if module.name.startswith("lesson_"))
    return {one.name: one for lesson in lessons for one in import_module(f"{package}.{lesson}").EXERCISES}


def exercise(name: str) -> Exercise:
    """The exercise of this name, or of the function of this name.

    Raises:
        ValueError: there is none.
    """
    known = exercises() | {one.function: one for one in exercises().values()}
    if str(name) not in known:
        lesson = str(name).partition(".")[0]
        of_lesson = tuple(known for known in exercises() if known.partition(".")[0] == lesson)
        fix = f"of lesson {lesson} these are graded: {', '.join(of_lesson)}" if of_lesson else ""
        fix = fix or contract.did_you_mean(str(name), tuple(known))
        raise ValueError(f"exercises: expected the number of a graded exercise, got {name!r}; {fix}")
    return known[str(name)]
