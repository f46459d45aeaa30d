"""Mistakes that stand in swin's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

shifted, wide = at("swin.py", "swin", "shifted"), at("swin.py", "swin", "wide")
ROLLED = "return concatenate([x[:, :, by:], x[:, :, :by]], 2)"
INDEX = "constants(c.relative_index(), arange(1, query))"
OTHER_INDEX = (
    "constants((lambda n: tuple(tuple({} for i in row) for row in c.relative_index()))(2 * c.window_size - 1), "
    "arange(1, query))"
)
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
    shifted(
        "windows rolled along the rows alone",
        "roll rows and columns: shifts of two axes",
        ROLLED,
        "return x",
    ),
    wide(
        "windows rolled along the columns alone",
        "roll rows and columns: shifts of two axes",
        "x = concatenate([x[:, by:], x[:, :by]], 1)\n",
        "x = x[:]\n",
    ),
    wide(
        "mask of the windows repeated window by window",
        "repeat the masks of all windows for each batch row: the windows run fastest, tile() and not repeat_interleave",
        'region = regions(call.sizes["b"], c, query)',
        "region = regions(1, c, query)[:, None]\n        region = broadcast_to(region, (region.shape[0], "
        'call.sizes["b"], region.shape[2])).reshape(-1, region.shape[2])',
    ),
    wide(
        "windows put back without moving their axes",
        "move the axis of window columns behind that of rows before the grid is put together",
        "return x.swapaxes(2, 3).reshape(b, c.height,",
        "return x.reshape(b, c.height,",
    ),
    shifted(
        "rows and columns exchanged in the index of the bias",
        "number offsets by (row) (2 window_size - 1) + (column)",
        INDEX,
        OTHER_INDEX.format("(i % n) * n + i // n"),
    ),
    wide(
        "index of the bias with a stride of the window's size",
        "number offsets by (row) (2 window_size - 1) + (column): a row of offsets has 2 window_size - 1",
        INDEX,
        OTHER_INDEX.format("i // n * c.window_size + i % n"),
    ),
)
