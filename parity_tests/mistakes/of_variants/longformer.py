"""Mistakes that stand in longformer's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

split, wide = at("longformer.py", "longformer", "split"), at("longformer.py", "longformer", "wide")
OWN = "ask the queries of global positions, and them alone, by the global projections of queries, keys and values"
MUTANTS = (
    split(
        "global positions that are not seen by the others",
        "global attention goes both ways: every position sees the global ones",
        "local = (window | GlobalKeys(is_global)) & Not(from_global)",
        "local = window & Not(from_global)",
    ),
    split(
        "keys of the window for the queries of global positions",
        OWN,
        "q_global, k_global, v_global, part=",
        "q_global, k, v_global, part=",
    ),
    split(
        "values of the window for the queries of global positions",
        OWN,
        "q_global, k_global, v_global, part=",
        "q_global, k_global, v, part=",
    ),
    split(
        "window of neighbours to the left alone",
        "without causality the window reaches as far to the right",
        "Window(c.half_window, c.half_window)",
        "Window(c.half_window, 0)",
    ),
    wide(
        "scale left out of the backward of global queries",
        "multiply the gradient of the scores by the scale, too",
        'back.attend(dcontext, part="global"',
        'back.attend(dcontext, scale=1.0, part="global"',
        trees=NUMPY,
    ),
)
