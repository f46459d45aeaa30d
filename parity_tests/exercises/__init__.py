"""Graded exercises of the course: `check(your_function, "2.4")` says whether it is right, and names the mistake."""

from parity_tests.exercises._check import Verdict, check
from parity_tests.exercises._exercise import Exercise, exercise, exercises

__all__ = ["Exercise", "Verdict", "check", "exercise", "exercises"]
