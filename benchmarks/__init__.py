"""How fast the three trees are, and how much memory they take, beside the functions and layers of others.

`python -m benchmarks` or `make bench`. NOTES.md says what is measured and how to read it.
"""
