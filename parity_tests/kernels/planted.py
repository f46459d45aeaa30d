"""A mistake in a simulated kernel: one edit of its source or a few, and how the kernel with it is run."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np

from parity_tests.kernels import simulated, simulated_states
from parity_tests.kernels.arithmetic import Arithmetic
from parity_tests.kernels.canonical import Case, Recurrent, Results
from parity_tests.kernels.machine import Machine

FILES = {"softmax": simulated, "recurrent": simulated_states}
DENSE, PACKED, PAGED = ("dense",), ("packed",), ("paged",)
SOFTMAX = ("dense", "packed", "paged")
WITH_GRADIENTS = ("dense", "packed")
RECURRENT = ("recurrent",)
Edit = tuple[str, str]


@dataclass(frozen=True)
class Mistake:
    """One planted mistake.

    Attributes:
        name: the cause in words, as one would say it of somebody's kernel.
        fix: one line of advice.
        kinds: of kernels that may have it: "dense", "packed", "paged", "recurrent".
        edits: old and new text; an old text stands once in the file, or as often as `times` says.
        form: "step" or "chunk", where only one form of a recurrence has it.
        times: how often each old text stands there.
        precise: seen only where the kernel promises a narrower arithmetic than it then has, by a type of 16 bits.
    """

    name: str
    fix: str
    kinds: tuple[str, ...]
    edits: tuple[Edit, ...]
    form: str = ""
    times: int = 1
    precise: bool = False

    def __str__(self) -> str:
        return self.name.replace(" ", "-")

    @property
    def file(self) -> ModuleType:
        return FILES["recurrent" if self.kinds == RECURRENT else "softmax"]


def mistake(kinds: tuple[str, ...], **common: object) -> Callable[..., Mistake]:
    """For tables: mistakes of some kinds of kernels; each has a name, a fix and edits, old and new in turn."""

    def made(name: str, fix: str, *texts: str, **own: object) -> Mistake:
        edits = tuple(zip(texts[::2], texts[1::2], strict=True))
        return Mistake(name, fix, kinds, edits, **{**common, **own})  # type: ignore[arg-type]

    return made


@cache
def source(module: ModuleType) -> str:
    """The text of a simulated kernel's file."""
    spec = find_spec(module.__name__)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"planted: expected the source of {module.__name__}, got none; install it")
    return Path(spec.origin).read_text(encoding="utf-8")


def edited(planted: Mistake) -> str:
    """The source with the mistake in it.

    Raises:
        ValueError: a text does not stand there as often as the mistake says.
    """
    text = source(planted.file)
    for old, new in planted.edits:
        count = text.count(old)
        if count != planted.times:
            got = f"{count} in {planted.file.__name__}"
            raise ValueError(f"planted: expected {old!r} {planted.times} times, got {got}; mend the mistake")
        text = text.replace(old, new)
    return text


@cache
def kernel(planted: Mistake) -> ModuleType:
    """The module with the mistake in it, in memory."""
    module = ModuleType(f"{planted.file.__name__}_with_{len(planted.name)}")
    # Dataclasses look for their module by its name; that of the right kernel has all that they need.
    module.__name__ = planted.file.__name__
    exec(compile(edited(planted), f"<{planted.file.__name__}: {planted.name}>", "exec"), module.__dict__)
    return module


def run(case: Case, arithmetic: Arithmetic, planted: Mistake | None = None, chunked: bool | None = None) -> Results:
    """What a simulated kernel returns, right or with a mistake; a recurrence in chunks unless it is one of steps."""
    machine = Machine(arithmetic, case.dtype)
    with np.errstate(all="ignore"):
        if isinstance(case, Recurrent):
            form = planted.form if planted else ""
            chunked = form != "step" if chunked is None else chunked
            return (kernel(planted) if planted else simulated_states).run(case, machine, chunked)
        return (kernel(planted) if planted else simulated).run(case, machine)
