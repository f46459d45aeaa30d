"""Mistakes that stand in axial's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

split, wide = at("axial.py", "axial", "split"), at("axial.py", "axial", "wide")
MUTANTS = (
    split(
        "columns cut as rows of another length",
        "swap rows and columns before the grid is cut again",
        "x.reshape(b, height, width, d).swapaxes(1, 2)",
        "x.reshape(b, height, width, d)",
    ),
    split(
        "columns of the input instead of the rows' output",
        "attend along the columns to what the rows gave",
        "columns = transpose_grid(rows, c.height, c.width)",
        "columns = transpose_grid(x, c.height, c.width)",
    ),
    wide(
        "projections of the rows for the columns",
        "each axis has projections of its own",
        'self.attend_along("columns", columns',
        'self.attend_along("rows", columns',
    ),
    split(
        "outputs left in the order of the columns",
        "put the rows together again, one after the other",
        "y = transpose_grid(columns, c.width, c.height).reshape",
        "y = columns.reshape",
    ),
    wide(
        "scale of an axis left out of the backward",
        "multiply the gradient of the scores by the scale, too",
        "attend_vjp(tape, dcontext, scale=self.config.scale)",
        "attend_vjp(tape, dcontext, scale=1.0)",
        trees=NUMPY,
    ),
)
