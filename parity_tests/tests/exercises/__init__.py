"""Tests of the graded exercises."""
