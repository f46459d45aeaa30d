"""Mistakes that stand in swin's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

shifted, wide = at("swin.py", "swin", "shifted"), at("swin.py", "swin", "wide")
MUTANTS = (
    shifted(
        "both ends of the grid in one window",
        "hide from each other what the cyclic shift brings together from opposite ends of the grid",
        "Documents(region, region) if c.shift else None",
        "None",
    ),
    shifted(
        "windows that are not rolled back",
        "roll the output back by the shift",
        "cyclic_shift(from_windows(x, c), -c.shift)",
        "from_windows(x, c)",
    ),
    shifted(
        "windows rolled the wrong way",
        "roll the grid up and left by the shift, so that windows move down and right",
        "x.shape[-1]), c.shift), c)",
        "x.shape[-1]), -c.shift), c)",
    ),
    shifted(
        "the regions of the rows alone",
        "compare the regions of rows and of columns",
        "2 * row[:, None] + column",
        "2 * row[:, None] + 0 * column",
    ),
    shifted(
        "offsets of the key less the query",
        "count offsets from the key to the query: its row less the key's, and so for columns",
        "constants(c.relative_index(), arange(1, query))",
        "constants(tuple(zip(*c.relative_index(), strict=True)), arange(1, query))",
    ),
    wide(
        "windows cut as one row of positions",
        "a window holds window_size rows of window_size columns: move the axis of window columns before that of rows",
        "// size, size, d).swapaxes(2, 3)",
        "// size, size, d)",
    ),
    wide(
        "scale of the windows' scores left out of the backward",
        "multiply the gradient of the scores by the scale, too",
        "attend_vjp(tape, dcontext, scale=c.scale)",
        "attend_vjp(tape, dcontext, scale=1.0)",
        trees=NUMPY,
    ),
)
