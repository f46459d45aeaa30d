"""Mistakes that stand in grid_bias's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, SHARED, at

token, patches = at("grid_bias.py", "grid_bias", "class token"), at("grid_bias.py", "grid_bias", "patches")
INDEX = "grid_offsets(c.height, c.width, c.prefix_tokens, query)"
BEHIND = "to_prefix * (1 + 1 * from_prefix)"
MUTANTS = (
    token(
        "index of the table transposed",
        "the first axis of the index is that of queries: a class token as query reads the first of its three rows",
        f"relative_index={INDEX}",
        f"relative_index={INDEX}.swapaxes(0, 1)",
    ),
    token(
        "rows of the class token as query and as key exchanged",
        "read the first row behind the offsets where the query is the class token, the second where the key is",
        BEHIND,
        "from_prefix * (1 + 1 * to_prefix)",
        file=SHARED,
    ),
    token(
        "class token that looks at itself as at a patch",
        "the class token's score with itself has a row of its own, the last of the table",
        BEHIND,
        "(to_prefix & (from_prefix < True))",
        file=SHARED,
    ),
    token(
        "table that begins with the class token's rows",
        "the three rows of the class token are the last of the table, behind all offsets",
        f"relative_index={INDEX}",
        f"relative_index=({INDEX} + 3) % len(self.w_bias)",
    ),
    token(
        "no bias where the class token is",
        "add a number of the table to the class token's scores, too: the last three rows",
        "reorder(take(self.w_bias, index, fits=True), (2, 0, 1)))",
        "reorder(take(self.w_bias, index, fits=True), (2, 0, 1)) * (index < len(self.w_bias) - 3))",
    ),
    patches(
        "grid read column by column",
        "positions run along the rows of the grid: number offsets by (row) (2 width - 1) + (column)",
        INDEX,
        "grid_offsets(c.width, c.height, c.prefix_tokens, query)",
    ),
    patches(
        "grid's biases scaled with the scores",
        "add the table's numbers after the scores were scaled",
        "layer_bias=position_bias",
        "layer_bias=position_bias * c.scale_or_default(q.shape[-1])",
    ),
    token(
        "table's gradient from one sequence",
        "every sequence of the batch reads the table: add up all their gradients",
        'sum_to(tape["dbiased"], tape["position_bias"].shape)',
        'tape["dbiased"][0]',
        trees=NUMPY,
    ),
    token(
        "a layer's bias instead of the caller's",
        "add the bias of the call to that of the layer",
        "bias = layer_bias if bias is None else layer_bias + to_dtype(bias, dtype_name(layer_bias))",
        "bias = layer_bias",
        file=SHARED,
    ),
)
