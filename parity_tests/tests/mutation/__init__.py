"""Generic mutation testing of attn_np, in process: would the judge and a few relations see any careless edit?

Operators that know nothing of attention edit the syntax trees of attn_np, one place at a time. Each mutant lives in a
copy of the package in memory and meets the checks that run its line, until one sees it. What none sees changes nothing
that is promised, or is a hole in the checks: the share of each file that is seen is recorded, and must not fall.

* `operators`: what may happen to a line.
* `sources`: the mutants of every file, the copy, and which lines a check runs.
* `calls`, `checks_*`, `battery`: what a copy must do.
* `runner`: `run`, which brings them together; `show`: its results as a table.
* `ratchet`: which share of each file was seen when it was last recorded.
"""

from parity_tests.tests.mutation.runner import Result, run
from parity_tests.tests.mutation.sources import every

__all__ = ["Result", "every", "run"]
