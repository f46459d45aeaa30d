"""The graded exercises of a lesson as its page has them."""

import ast
import textwrap
from collections.abc import Callable

from parity_tests.exercises import exercises

INTRODUCTION = """\
Write a function, and let it be judged: `print(check(your_function, "{first}"))` says whether it agrees with ours on
every number and, where it does not, which mistake it has. Your arguments may have other names, and your function may
want a batch axis in front or return its weights as well. `attn-parity exercises` does the same with a file and keeps
your score. Numbers go on from the exercises above, and one that is graded keeps its own.{helpers}
"""
IMPORT = """
```py
from parity_tests.exercises import check
```
"""
# What answers call beside NumPy and answers of the same lesson.
HELPERS = {
    "einsum": "`einsum` is `np.einsum`",
    "sin": "`sin` is `np.sin`",
    "cos": "`cos` is `np.cos`",
    "softmax": "`softmax` is that of lessons 2 and 3, over the last axis",
    "softmax_vjp": "`softmax_vjp(p, dp)` is its backward",
    "sigmoid": "`sigmoid(x)` is $1/(1+e^{-x})$",
    "features": "`features(x)` is $\\mathrm{elu}(x)+1$",
    "mean": "`mean(x)` is `x.mean(-1, keepdims=True)`",
    "variance": "`variance(x)` is `x.var(-1, keepdims=True)`",
    "norm": "`norm` is that of this lesson",
}


def called(source: str) -> set[str]:
    """The names of the functions that a source calls."""
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return {function.id for function in calls if isinstance(function, ast.Name)}


def graded(lesson: int) -> Callable[[], str]:
    """The graded exercises of a lesson in Markdown, each with its answer folded below."""

    def section() -> str:
        chosen = [one for one in exercises().values() if one.name.partition(".")[0] == str(lesson)]
        names = {name for one in chosen for name in called(one.source)}
        helpers = ", ".join(says for name, says in HELPERS.items() if name in names)
        helpers = f" In the answers {helpers}." if helpers else ""
        parts = [filled(INTRODUCTION.format(first=chosen[0].name, helpers=helpers)) + IMPORT]
        for one in chosen:
            parts.append(filled(f"**{one.name}** `{one.call}`. {one.task}"))
            if one.given:
                parts.append(f"```py\n{one.given}\n```\n")
            parts.append(f"<details><summary>Answer</summary>\n\n```py\n{one.source}\n```\n\n</details>\n")
        return "\n".join(parts).rstrip("\n")

    return section


def filled(words: str) -> str:
    return textwrap.fill(" ".join(words.split()), 120, break_long_words=False, break_on_hyphens=False) + "\n"
