"""Mistakes that stand in swin's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

shifted, wide = at("swin.py", "swin", "shifted"), at("swin.py", "swin", "wide")
filled, hidden = at("swin.py", "swin", "filled"), at("swin.py", "swin", "hidden")
ROLLED = "return concatenate([x[:, :, right:], x[:, :, :right]], 2)"
NUMBER = "position // columns * (2 * columns - 1) + position % columns"
MUTANTS = (
    shifted(
        "both ends of the grid in one window",
        "hide from each other what the cyclic shift brings together from opposite ends of the grid",
        "Documents(region, region) if c.has_regions() else None",
        "None",
    ),
    shifted(
        "windows that are not rolled back",
        "roll the output back by the shift",
        "cyclic_shift(from_windows(x, c), -down, -right)",
        "from_windows(x, c)",
    ),
    shifted(
        "windows rolled the wrong way",
        "roll the grid up and left by the shift, so that windows move down and right",
        "cyclic_shift(x, *c.shifts())",
        "cyclic_shift(x, *(-n for n in c.shifts()))",
    ),
    shifted(
        "the regions of the rows alone",
        "compare the regions of rows and of columns",
        "4 * row[:, None] + column",
        "4 * row[:, None] + 0 * column",
    ),
    shifted(
        "offsets of the key less the query",
        "count offsets from the key to the query: its row less the key's, and so for columns",
        "number[:, None] - number + number[-1]",
        "number - number[:, None] + number[-1]",
    ),
    wide(
        "windows cut as one row of positions",
        "a window holds window_size rows of window_size columns: move the axis of window columns before that of rows",
        "// columns, columns, d).swapaxes(2, 3)",
        "// columns, columns, d)",
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
    shifted(
        "windows rolled along the columns alone",
        "roll rows and columns: shifts of two axes",
        "x = concatenate([x[:, down:], x[:, :down]], 1)\n",
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
        "return x.swapaxes(2, 3).reshape(b, height,",
        "return x.reshape(b, height,",
    ),
    shifted(
        "rows and columns exchanged in the index of the bias",
        "number offsets by (row) (2 window_size - 1) + (column)",
        NUMBER,
        "position % columns * (2 * columns - 1) + position // columns",
    ),
    wide(
        "index of the bias with a stride of the window's size",
        "number offsets by (row) (2 window_size - 1) + (column): a row of offsets has 2 window_size - 1",
        NUMBER,
        "position // columns * columns + position % columns",
    ),
    filled(
        "grid filled up above and to the left",
        "add the zeros below the grid and to its right",
        "concatenate([x, zeros((b, rows - height, width, d), x)], 1)",
        "concatenate([zeros((b, rows - height, width, d), x), x], 1)",
    ),
    filled(
        "filling hidden from the windows",
        "let every position of a window see the zeros that fill the grid up, as published code does",
        'if c.filling == "hidden" else (rows, columns)',
        "",
    ),
    filled(
        "shifts along rows and columns exchanged",
        "shift rows by the first number and columns by the second",
        "cyclic_shift(x, *c.shifts())",
        "cyclic_shift(x, *c.shifts()[::-1])",
    ),
    filled(
        "index of the bias with a stride of the window's rows",
        "number offsets by (row) (2 columns - 1) + (column), for windows that are no squares",
        NUMBER,
        "position // columns * (2 * rows - 1) + position % columns",
    ),
    hidden(
        "filling that windows see",
        "hide the zeros that fill the grid up: their keys are the biases",
        "2 * (row >= height) + (row < down)",
        "1 * (row < down)",
    ),
    hidden(
        "the last columns left out instead of the filling",
        "roll the windows back before the filling is left out",
        "cyclic_shift(from_windows(x, c), -down, -right)[:, : c.height, : c.width]",
        "cyclic_shift(from_windows(x, c)[:, : c.height, : c.width], -down, -right)",
    ),
    filled(
        "keys of the filling that are zeros",
        "fill the grid up before the projections: the keys of the zeros are the bias, b_k",
        'k = linear("bsd,dhk->bshk", x, self.w_k, self.b_k)',
        'k = linear("bsd,dhk->bshk", x, self.w_k, self.b_k) * (x * x).sum(-1)[..., None, None].astype(bool)',
        trees=NUMPY,
    ),
)
