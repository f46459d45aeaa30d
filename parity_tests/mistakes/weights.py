"""Mistakes from the scores to the output: the softmax, dropout, the returned weights, and rounding on the way."""

from parity_tests.mistakes.plant import SHARED, at

cross = at(SHARED, "mha", "cross")

PROBS = "probs=softmax(scores, visible, attend_contract.SOFTMAX_AXIS[normalize_over]))"
KEPT = "kept=dropout(probs, keep, rate)"
RETURNED = "to_dtype(probs, dtype) if return_weights"
EXP = "e = {exp}(scores - {where}(top == -{np}.inf, 0.0, top))"
TOTAL = "e / {where}(total == 0, 1.0, total)"
SELECTED = "where(keep, weights / (1.0 - rate), 0.0)"
WITH_SINKS = """\
    else:
        probs_and_sink = record(tape, probs_and_sink=softmax_with_sinks(scores, visible, record(tape, sinks=sinks)))
        probs = record(tape, probs=probs_and_sink[..., :-1])
"""
BEFORE = f"""\
        probs = record(tape, {PROBS}
{WITH_SINKS}    kept = record(tape, {KEPT})"""
DROPPED_SCORES = f"""\
        dropped = dropout(scores, keep, rate)
        probs = record(tape, probs=softmax(dropped, visible, attend_contract.SOFTMAX_AXIS[normalize_over]))
{WITH_SINKS}    kept = record(tape, kept=probs)"""

OVER_KEYS = "normalise over the keys: softmax over the last axis of (b, h, t, s), dim=-1"
WIDE = "compute 16-bit inputs in float32 and float64 inputs in float64, and round once, at the end"


def rounded(text: str, like: str, to: str = "bfloat16") -> str:
    """The same expression, rounded to another type on the way."""
    return f'to_dtype(to_dtype({text}, "{to}"), dtype_name({like}))'


SINKS = "softmax_with_sinks(scores, visible, record(tape, sinks=sinks))"

MUTANTS = (
    # The softmax
    cross("softmax over the queries", OVER_KEYS, PROBS, "probs=softmax(scores, visible, -2))"),
    cross("softmax over the heads", OVER_KEYS, PROBS, "probs=softmax(scores, visible, 1))"),
    cross("softmax over the batch", OVER_KEYS, PROBS, "probs=softmax(scores, visible, 0))"),
    at("additive.py", "additive", "cross")(
        "additive softmax over the wrong axis",
        OVER_KEYS,
        "softmax(scores, hide_neg_inf(allowed, bias), SOFTMAX_AXIS[c.normalize_over])",
        "softmax(scores, hide_neg_inf(allowed, bias), "
        'SOFTMAX_AXIS["queries" if c.normalize_over == "keys" else "keys"])',
    ),
    cross(
        "scale after the softmax",
        "scale the scores before the softmax, not the weights after it",
        PROBS,
        "probs=softmax(scores / scale, visible, attend_contract.SOFTMAX_AXIS[normalize_over]) * scale)",
    ),
    cross(
        "no softmax",
        "turn the scores into weights by a softmax over the keys",
        PROBS,
        "probs=scores)",
    ),
    cross(
        "softmax without subtracting the maximum",
        "subtract the largest score before exp, or it overflows",
        EXP,
        "e = {exp}(scores)",
        gain=64.0,
    ),
    cross(
        "maximum added before exp",
        "subtract the largest score before exp",
        EXP,
        "e = {exp}(scores + {where}(top == -{np}.inf, 0.0, top))",
        gain=64.0,
    ),
    cross(
        "exponentials not normalised",
        "divide the exponentials by their sum",
        f"return {TOTAL}",
        "return e",
    ),
    cross(
        "one more in the softmax's sum",
        "divide by the sum of the exponentials alone, unless an attention sink is meant",
        f"return {TOTAL}",
        "return e / (1.0 + total)",
    ),
    cross(
        "1e-3 added to the softmax's sum",
        "add nothing to the sum of the exponentials: it is at least 1",
        f"return {TOTAL}",
        "return e / (total + 1e-3)",
    ),
    cross(
        "1e-6 added to the softmax's sum",
        "add nothing to the sum of the exponentials: it is at least 1",
        f"return {TOTAL}",
        "return e / (total + 1e-6)",
    ),
    cross(
        "powers of 2 in place of e",
        "use exp, or multiply the scores by log2(e) before exp2",
        EXP,
        "e = {exp}((scores - {where}(top == -{np}.inf, 0.0, top)) * 0.6931471805599453)",
    ),
    cross(
        "sum of the exponentials over the queries",
        "sum the exponentials over the same axis as the maximum: the keys",
        "total = {np}.sum(e, {axis}=axis, {keepdims}=True)",
        "total = {np}.sum(e, {axis}=-2, {keepdims}=True)",
    ),
    # Dropout
    cross(
        "dropout without its rescale",
        "divide the kept weights by 1 - rate",
        SELECTED,
        "where(keep, weights, 0.0)",
    ),
    cross(
        "kept weights divided by the rate",
        "divide the kept weights by 1 - rate, the share kept",
        "weights / (1.0 - rate)",
        "weights / rate",
    ),
    cross(
        "kept weights multiplied by the share kept",
        "divide the kept weights by 1 - rate in training and leave evaluation alone",
        "weights / (1.0 - rate)",
        "weights * (1.0 - rate)",
    ),
    cross(
        "dropout mask inverted",
        "a keep-mask is True where a weight stays",
        SELECTED,
        "where(keep, 0.0, weights / (1.0 - rate))",
    ),
    cross(
        "weights normalised again after dropout",
        "leave the weights as dropout made them: divided by 1 - rate, not by their sum",
        SELECTED,
        "where(keep, weights, 0.0) / {np}.sum(where(keep, weights, 0.0), {axis}=-1, {keepdims}=True)",
    ),
    cross(
        "dropout left out",
        "drop weights between the softmax and the product with the values",
        KEPT,
        "kept=probs",
    ),
    cross(
        "dropout applied twice",
        "drop the weights once",
        KEPT,
        "kept=dropout(dropout(probs, keep, rate), keep, rate)",
    ),
    cross(
        "dropout before the softmax",
        "drop weights, not scores: after the softmax",
        BEFORE,
        DROPPED_SCORES,
    ),
    cross(
        "one dropout mask for all batch rows",
        "draw a dropout mask for every batch row (Flax: broadcast_dropout=False)",
        KEPT,
        "kept=dropout(probs, keep if keep is None else keep[:1], rate)",
    ),
    cross(
        "one dropout mask for all heads",
        "draw a dropout mask for every head (Flax: broadcast_dropout=False)",
        KEPT,
        "kept=dropout(probs, keep if keep is None else keep[:, :1], rate)",
    ),
    cross(
        "dropout of whole queries",
        "draw dropout for every weight, not for the output of a query",
        KEPT,
        "kept=dropout(probs, keep if keep is None else keep[..., :1], rate)",
    ),
    cross(
        "dropout in evaluation",
        "drop nothing in evaluation: call eval()",
        " or rate == 0:",
        " and False or rate == 0:",
        call="plain",
        raises=("attn_jax",),
    ),
    # The returned weights
    cross(
        "weights returned after dropout",
        "return the weights as they were before dropout",
        "return context, probs, scores, visible",
        "return context, kept, scores, visible",
    ),
    cross(
        "scores returned for weights",
        "return what comes out of the softmax",
        RETURNED,
        "to_dtype(scores, dtype) if return_weights",
    ),
    cross(
        "returned weights averaged over the heads",
        "return the weights of every head (PyTorch: average_attn_weights=False)",
        RETURNED,
        "to_dtype(sum(probs[:, h] for h in range(probs.shape[1])) / probs.shape[1], dtype) if return_weights",
    ),
    # Rounding on the way
    cross(
        "16-bit inputs not widened",
        WIDE,
        "in SIXTEEN_BITS else x",
        "in () else x",
        beside="def einsum(",
        dtype="bfloat16",
        raises=("attn_np",),
    ),
    cross("exponentials rounded to bfloat16", WIDE, EXP, f"e = {rounded(EXP[4:], 'scores')}"),
    cross("exponentials rounded to float16", WIDE, EXP, f"e = {rounded(EXP[4:], 'scores', 'float16')}"),
    cross(
        "projections rounded to bfloat16",
        WIDE,
        "    return y if bias is None else y + upcast(bias)\n",
        f"    y = {rounded('y', 'weight')}\n    return y if bias is None else y + upcast(bias)\n",
    ),
    cross(
        "scores rounded to float16",
        WIDE,
        "q, k) * scale)",
        'q, k) * scale)\n    scores = to_dtype(to_dtype(scores, "float16"), dtype_name(q))',
    ),
    cross(
        "softmax in float32 for float64 inputs",
        WIDE,
        PROBS,
        'probs=to_dtype(softmax(to_dtype(scores, "float32"), visible, attend_contract.SOFTMAX_AXIS[normalize_over]), '
        "dtype_name(v)))",
    ),
    cross("weights rounded to bfloat16", WIDE, KEPT, f"kept={rounded('dropout(probs, keep, rate)', 'v')}"),
    cross(
        "context rounded to bfloat16 before the output projection",
        WIDE,
        "results = to_dtype(context, dtype), ",
        f"results = {rounded('context', 'v')}, ",
    ),
    cross(
        "output rounded to float16 first",
        "round once, to the type asked for",
        "cast_output(self.dtype, outputs, ",
        'cast_output(self.dtype, to_dtype(outputs, "float16"), ',
        file="frame/call.py",
        needs=("to_dtype",),
    ),
    # Sinks
    at(SHARED, "sinks", "learned")(
        "sink left out of the sum",
        "add exp(sink) to the sum that the exponentials are divided by",
        "probs=probs_and_sink[..., :-1])",
        "probs=softmax(scores, visible))",
    ),
    at(SHARED, "sinks", "learned", fields=(("softcap", 1.5),))(
        "softcap applied to the sinks",
        "cap the scores of the keys alone; the sink's score joins them afterwards, as it is",
        SINKS,
        SINKS.replace("=sinks", "=sinks if softcap is None else softcap * tanh(sinks / softcap)"),
    ),
)
