"""Mistakes that stand in swin's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, SHARED, at

wide, filled = at("swin.py", "swin", "wide"), at("swin.py", "swin", "filled")
hidden, second = at("swin.py", "swin", "hidden"), at("swin.py", "swin", "second version")
ROLLED = "return concatenate([x[:, :, right:], x[:, :, :right]], 2)"
NUMBER = "position // columns * (2 * columns - 1) + position % columns"
MUTANTS = (
    filled(
        "both ends of the grid in one window",
        "hide from each other what the cyclic shift brings together from opposite ends of the grid",
        "Documents(region, region) if c.has_regions() else None",
        "None",
    ),
    filled(
        "windows that are not rolled back",
        "roll the output back by the shift",
        "cyclic_shift(from_windows(x, c), -down, -right)",
        "from_windows(x, c)",
    ),
    filled(
        "windows rolled the wrong way",
        "roll the grid up and left by the shift, so that windows move down and right",
        "cyclic_shift(x, *c.shifts())",
        "cyclic_shift(x, *(-n for n in c.shifts()))",
    ),
    filled(
        "the regions of the rows alone",
        "compare the regions of rows and of columns",
        "4 * row[:, None] + column",
        "4 * row[:, None] + 0 * column",
    ),
    filled(
        "offsets of the key less the query",
        "count offsets from the key to the query: its row less the key's, and so for columns",
        "number[:, None] - number + number[-1]",
        "number - number[:, None] + number[-1]",
        file=SHARED,
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
        "attend_vjp(tape, dcontext, scale=scale)",
        "attend_vjp(tape, dcontext, scale=1.0)",
        trees=NUMPY,
    ),
    filled(
        "windows rolled along the rows alone",
        "roll rows and columns: shifts of two axes",
        ROLLED,
        "return x",
    ),
    filled(
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
    filled(
        "rows and columns exchanged in the index of the bias",
        "number offsets by (row) (2 window_size - 1) + (column)",
        NUMBER,
        "position % columns * (2 * rows - 1) + position // columns",
        file=SHARED,
    ),
    wide(
        "index of the bias with a stride of the window's size",
        "number offsets by (row) (2 window_size - 1) + (column): a row of offsets has 2 window_size - 1",
        NUMBER,
        "position // columns * columns + position % columns",
        file=SHARED,
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
        file=SHARED,
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
        'k = linear("bsd,dhk->bshk", key, self.w_k, self.b_k)',
        'k = linear("bsd,dhk->bshk", key, self.w_k, self.b_k) * (key * key).sum(-1)[..., None, None].astype(bool)',
        trees=NUMPY,
    ),
    filled(
        "mask of the grid that is not shifted",
        "roll the mask up and left by the shift before it is cut into windows, as the grid is",
        "to_shifted_windows(hidden, c)[:, None, None, :, 0]",
        "to_windows(fill_up(hidden.reshape(b, c.height, c.width, 1), c), c)[:, None, None, :, 0]",
    ),
    filled(
        "mask of the grid that hides its filling",
        "fill the mask up with True: the zeros below and to the right of the grid are seen",
        "[..., None] ^ True\n    return to_shifted_windows(hidden, c)[:, None, None, :, 0] ^ True",
        "[..., None]\n    return to_shifted_windows(hidden, c)[:, None, None, :, 0]",
    ),
    wide(
        "mask of the grid on the queries of a window",
        "the mask is of keys: every query of the window sees those that it shows, hidden ones as well",
        "[:, None, None, :, 0] ^ True",
        "[:, None, :, None, 0] ^ True",
    ),
    wide(
        "hidden positions of the grid that are zeros as queries",
        "set what the mask hides to 0 where keys and values are made: a hidden position is still a query",
        'zero_unseen_inputs(tape, "bhts", windows, **masking)\n',
        'zero_unseen_inputs(tape, "bhts", windows, **masking)\n        query = key\n',
    ),
    wide(
        "windows of the weights as rows of the batch",
        "the weights have an axis of windows behind that of heads: b h n t s",
        "weights.reshape(shape).swapaxes(1, 2)",
        "weights[:, :, None]",
    ),
    second(
        "scale of the cosines without its exponential",
        "take the exponential of the learned number: it is the logarithm of the scale",
        "return exp(where(logarithms <= LARGEST, logarithms, LARGEST))",
        "return where(logarithms <= LARGEST, logarithms, LARGEST)",
    ),
    second(
        "keys that keep their length",
        "compare directions: divide queries and keys by their lengths",
        "k_norm=l2_normalize(k, added)",
        "k_norm=k",
    ),
    second(
        "cosines divided by the root of the width",
        "multiply cosines by the learned scale alone",
        "1.0 if c.scale is None and c.version == 2 else c.scale",
        "c.scale",
        many=True,
    ),
    second(
        "network of the bias without a kink",
        "set what is below 0 between the network's two layers to 0",
        "maximum(hidden, 0.0), upcast(self.w_bias_out)))",
        "hidden, upcast(self.w_bias_out)))",
    ),
    second(
        "bias of the network up to 1",
        "multiply the sigmoid by 16",
        "LARGEST, MOST_BIAS, SMALLEST = log(100), 16.0, 1e-24",
        "LARGEST, MOST_BIAS, SMALLEST = log(100), 1.0, 1e-24",
    ),
    second(
        "offsets of rows and columns exchanged for the network",
        "give the network the offset of rows first, that of columns second",
        "stack([broadcast_to(down[:, None], shape), broadcast_to(right, shape)], -1)",
        "stack([broadcast_to(right, shape), broadcast_to(down[:, None], shape)], -1)",
    ),
    second(
        "bias of the network for offsets from query to key",
        "count offsets from the key to the query, from the most negative on",
        "for offsets in c.log_offsets())",
        "for offsets in (axis[::-1] for axis in c.log_offsets()))",
    ),
    second(
        "gradient of the clamped scale without the scale",
        "the derivative of exp is exp: multiply the gradient of the learned number by the scale",
        "dfactor * factor, 0.0)",
        "dfactor, 0.0)",
        trees=NUMPY,
    ),
    second(
        "gradient of the bias where the network's units are off",
        "units below 0 get no gradient",
        "np.where(hidden > 0, drelu, 0.0)",
        "drelu",
        trees=NUMPY,
    ),
    second(
        "gradient of the bias without its factor",
        "multiply the gradient of the table by 16, too",
        "dbias_share=MOST_BIAS * dtable",
        "dbias_share=dtable",
        trees=NUMPY,
    ),
)
