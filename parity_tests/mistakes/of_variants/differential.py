"""Mistakes that stand in differential's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

PROBS, NORMED = (
    "probs=maps[:, :, 0] - lambda_full[:, None, None] * maps[:, :, 1]",
    "rms_norm(context, self.w_norm, c.norm_eps) * (1.0 - c.lambda_init_value())",
)
TURNED = "return rotate(x, cos[:, :, None], sin[:, :, None], layout, inverse=inverse)"
FACTOR = "lambda_full=lambda_exps[:1] - lambda_exps[1:] + c.lambda_init_value()"
first, causal, numbers = (at("differential.py", "differential", x) for x in ("cross", "causal", "numbers"))
MUTANTS = (
    first(
        "maps added", "subtract the second map from the first", PROBS, PROBS.replace(" - lambda_full", " + lambda_full")
    ),
    first(
        "maps exchanged",
        "the factor stands at the second map: a1 - lambda a2",
        PROBS,
        "probs=lambda_full[:, None, None] * maps[:, :, 1] - maps[:, :, 0]",
    ),
    causal(
        "factor's constant part left out",
        "add lambda_init to the difference of the exponentials",
        FACTOR,
        FACTOR.replace(" + c.lambda_init_value()", ""),
    ),
    first(
        "learned factor in place of its start behind the norm",
        "multiply by 1 - lambda_init, a constant, behind the norm",
        NORMED,
        NORMED.replace("1.0 - c.lambda_init_value()", "1.0 - lambda_full"),
    ),
    causal(
        "constant behind the norm left out",
        "multiply what comes out of the norm by 1 - lambda_init",
        NORMED,
        NORMED.replace(" * (1.0 - c.lambda_init_value())", ""),
    ),
    causal(
        "norm of the heads left out",
        "normalise what each head found by the root of its mean square",
        NORMED,
        "context * (1.0 - c.lambda_init_value())",
    ),
    causal(
        "positions of the first map alone",
        "turn the queries and keys of both maps by their positions",
        TURNED,
        f"{TURNED.replace('(x,', '(x[..., :1, :],').replace('return ', 'return concatenate([')}, x[..., 1:, :]], 3)",
        needs=("concatenate",),
    ),
    causal(
        "shared heads repeated as a block",
        "query head h uses key and value head h // r: copies of one stand beside each other",
        "k, v = repeat_heads(k, q), repeat_heads(v, q)",
        "k, v = repeat_heads(k, q), concatenate([v, v], 2)",
        needs=("concatenate",),
    ),
    causal(
        "another number under the root",
        "the norm adds norm_eps to the mean square",
        NORMED,
        NORMED.replace("c.norm_eps", "1e-6"),
    ),
    first(
        "gradient of the factor with one sign",
        "the second exponential is subtracted: its gradient has a minus",
        "concatenate([dlambda_full, -dlambda_full], 0)",
        "concatenate([dlambda_full, dlambda_full], 0)",
        trees=NUMPY,
    ),
    numbers(
        "number of the first head for all heads",
        "each head has a factor of its own for its second map",
        "lambda_full=upcast(number)",
        "lambda_full=upcast(number)[:1]",
    ),
    at("differential.py", "differential", "number")(
        "constant part added to the learned number",
        "a learned number is the whole factor; lambda_init is where it starts",
        "lambda_full=upcast(number)",
        "lambda_full=upcast(number) + c.lambda_init_value()",
    ),
    numbers(
        "gradient of the numbers summed over the heads",
        "the gradient of a head's number is the sum over its own map",
        'return {"q": dq, "k": dk, "v": dv, "bias": dbias, "lambda_full": dlambda_full}',
        'return {"q": dq, "k": dk, "v": dv, "bias": dbias, "lambda_full": 0 * dlambda_full + np.sum(dlambda_full)}',
        trees=NUMPY,
    ),
    first(
        "exponential of the difference of both products",
        "take the exponential of each product, then the difference: exp(q1 k1) - exp(q2 k2)",
        "lambda_full=lambda_exps[:1] - lambda_exps[1:]",
        "lambda_full=lambda_exps[:1] / lambda_exps[1:]",
    ),
)
