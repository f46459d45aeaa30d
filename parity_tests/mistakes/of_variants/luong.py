"""Mistakes that stand in luong's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

monotone, predicted = at("luong.py", "luong", "dot"), at("luong.py", "luong", "predicted")
causal = at("luong.py", "luong", "causal")
MUTANTS = (
    monotone(
        "monotone window aligned at the last key",
        "p_t = t: count queries and keys from the first, whatever their lengths",
        'query_number = (arange(sizes["t"], query) + 1)',
        'query_number = (arange(sizes["t"], query) + 1 + sizes["s"] - sizes["t"])',
    ),
    monotone(
        "monotone window to the left alone",
        "a window reaches half_window keys to both sides",
        "visible = visible & (offset <= c.half_window)",
        "visible = visible & (offset <= 0)",
    ),
    causal(
        "later keys seen by Luong's score",
        "hide the keys after a query's own position before the softmax",
        "query, k, value, **more",
        "query, k, value, causal=False, **more",
    ),
    causal(
        "causal window counted from the first query",
        "a causal query is at the last key that it sees, whatever the lengths",
        'if c.local == "m" and not c.causal else',
        'if c.local == "m" else',
    ),
    predicted(
        "padding counted as words of the source",
        "S is the length of the sentence: count the keys that may be seen",
        "visible.sum(2)",
        "visible.sum(2) * 0 + shape[2]",
    ),
    predicted(
        "Gaussian with a sigma of the whole half window",
        "sigma is half of half_window: the exponent is -2 (s - p_t)^2 / half_window^2",
        "-2.0 / c.half_window**2",
        "-0.5 / c.half_window**2",
    ),
    predicted(
        "Gaussian inside of the softmax",
        "multiply the weights by the Gaussian behind the softmax: they add up to less than 1",
        "probs = record(tape, align=probs) * gaussian",
        "probs = record(tape, align=softmax(scores - 2.0 * offset * offset, visible))",
    ),
    predicted(
        "window of a predicted center left out",
        "hide what stands more than half_window from the center: the Gaussian alone only makes it faint",
        "visible = visible & (offset <= c.half_window) & (offset >= -c.half_window)",
        "visible",
    ),
    predicted(
        "no gradient of the predicted center to the query",
        "a query is used twice, for its scores and for its center: add both gradients",
        "sum_grads(dquery, dquery_center)",
        "sum_grads(dquery, 0.0 * dquery_center)",
        trees=NUMPY,
    ),
    predicted(
        "predicted center without its sigmoid",
        "squash the predicted place into the sentence: S sigmoid(v tanh(W q))",
        'center_share=sigmoid(einsum("btm,m->bt", center_features, self.w_center)))',
        'center_share=einsum("btm,m->bt", center_features, self.w_center))',
    ),
    predicted(
        "predicted center without its tanh",
        "put tanh around the projected query: S sigmoid(v tanh(W q))",
        'center_features=tanh(einsum("btd,dm->btm", query, self.w_position)))',
        'center_features=einsum("btd,dm->btm", query, self.w_position))',
    ),
)
