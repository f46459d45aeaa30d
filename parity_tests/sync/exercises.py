"""The graded exercises of a lesson as its page has them."""

import textwrap
from collections.abc import Callable

from parity_tests.exercises import exercises

INTRODUCTION = """\
Write a function, and let it be judged: `check(your_function, "{first}")` says whether it agrees with ours on every
number and, where it does not, which mistake it has. Your arguments may have other names, and your function may want a
batch axis in front or return its weights as well. `attn-parity exercises` does the same with a file and keeps your
score. In the answers `einsum` is `np.einsum`, and `softmax` the one of lessons 2 and 3, over the last axis.

```py
from parity_tests.exercises import check
```
"""


def graded(lesson: int) -> Callable[[], str]:
    """The graded exercises of a lesson in Markdown, each with its answer folded below."""

    def section() -> str:
        chosen = [one for one in exercises().values() if one.name.partition(".")[0] == str(lesson)]
        parts = [INTRODUCTION.format(first=chosen[0].name)]
        for one in chosen:
            task = f"**{one.name}** `{one.call}`. {one.task}"
            parts.append(textwrap.fill(task, 120, break_long_words=False, break_on_hyphens=False) + "\n")
            if one.given:
                parts.append(f"```py\n{one.given}\n```\n")
            parts.append(f"<details><summary>Answer</summary>\n\n```py\n{one.source}\n```\n\n</details>\n")
        return "\n".join(parts).rstrip("\n")

    return section
