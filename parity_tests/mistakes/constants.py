"""Constants of the code that no field holds, as factors: `{value}` stands where the reference has 1."""

from parity_tests.mistakes.plant import SHARED, at

# The eps of one of several norms, in place of the config's.
EPS = (
    tuple(
        at("qk_norm.py", "qk_norm", "head")(
            f"eps of the {whose} norm",
            "take the config's norm_eps in every norm",
            f'normalize(self, norm, "{x}", ',
            f"normalize(self, norm and __import__('dataclasses').replace(norm, eps={{value}}), '{x}', ",
        )
        for x, whose in (("q", "queries'"), ("k", "keys'"))
    )
    + tuple(
        at("decoder.py", "decoder", "sinks")(
            f"eps of the {whose} norm",
            "take the config's norm_eps in every norm",
            "normalize(self, norm, what, x)",
            f"normalize(self, norm and __import__('dataclasses').replace(norm, eps={{value}} if what == '{x}' else "
            "norm.eps), what, x)",
        )
        for x, whose in (("q", "queries'"), ("k", "keys'"))
    )
    + tuple(
        at("mla.py", "mla", "expanded")(
            f"eps of the {whose} norm",
            "take the config's norm_eps in every norm",
            f"self.w_{x}_norm, c.norm_eps",
            f"self.w_{x}_norm, {{value}}",
        )
        for x, whose in (("q", "queries'"), ("kv", "latents'"))
    )
)
# Numbers that a method of the config gives, in one of the places that use them.
PLACES = tuple(
    (
        method,
        at("differential.py", "differential", "causal")(
            name, "take the same lambda_init in the factor and behind the norm, that of the layer's depth", old, new
        ),
    )
    for method, name, old, new in (
        (
            "lambda_init_value", "lambda_init in the factor of the second map",
            "- lambda_exps[1:] + c.lambda_init_value()", "- lambda_exps[1:] + {value}",
        ),
        (
            "lambda_init_value", "lambda_init behind the norm",
            "rms_norm(context, self.w_norm, c.norm_eps) * (1.0 - c.lambda_init_value())",
            "rms_norm(context, self.w_norm, c.norm_eps) * (1.0 - {value})",
        ),
    )
)  # fmt: skip
# What is added to hidden scores, in place of minus infinity.
LOWERED = (
    at(SHARED, "mha", "cross")(
        "number added to hidden scores",
        "hide by minus infinity or by selection: a small number leaves hidden keys some weight",
        "probs=softmax(scores, visible, attend_contract.SOFTMAX_AXIS[normalize_over]))",
        "probs=softmax(scores if visible is None else where(visible, scores, scores + {value}), None, "
        "attend_contract.SOFTMAX_AXIS[normalize_over]))",
        needs=("where",),
    ),
    at("additive.py", "additive", "equal")(
        "number added to hidden scores",
        "hide by minus infinity or by selection: a small number leaves hidden keys some weight",
        "probs=softmax(scores, hide_neg_inf(allowed, bias), SOFTMAX_AXIS[c.normalize_over]))",
        "probs=softmax(scores if allowed is None else where(allowed, scores, scores + {value}), None, "
        "SOFTMAX_AXIS[c.normalize_over]))",
        needs=("where",),
    ),
)
FACTORS = (
    at(SHARED, "sinks", "learned")(
        "factor on the sinks",
        "leave the sink's score unscaled",
        "column = broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1))",
        "column = broadcast_to({value} * sinks[:, None, None], (*scores.shape[:3], 1))",
    ),
    *(
        at(f"{variant}.py", variant, "recurrent")(
            "factor on the writing strength beta",
            "write by beta = sigmoid(x w_beta), between 0 and 1; some models allow negative eigenvalues by 2 sigmoid",
            "beta=sigmoid(linear(",
            "beta={value} * sigmoid(linear(",
        )
        for variant in ("delta", "gated_delta")
    ),
    at("alibi.py", "alibi", "causal")(
        "factor on the slopes",
        "take the slopes of ALiBi as they are: 2^(-8 (h + 1) / H) for a number of heads that is a power of two",
        "-constants(c.slopes(), q)",
        "-{value} * constants(c.slopes(), q)",
    ),
    at(SHARED, "mha", "cross")(
        "factor on the bias",
        "add the bias to the scaled scores as it is",
        "biased=scores + bias)",
        "biased=scores + {value} * bias)",
    ),
    at(SHARED, "rotary", "interleaved")(
        "factor on the rotary positions",
        "count positions one by one; a model with scaled positions has rope_scaling= and its factor in its config",
        "angles = xp.arange(count, dtype=xp.float64)[:, None] * ",
        "angles = {value} * xp.arange(count, dtype=xp.float64)[:, None] * ",
    ),
    at(SHARED, "rotary", "interleaved")(
        "factor on the rotated dimensions",
        "multiply cosines and sines by the attention factor of yarn and longrope, and by nothing else",
        " * config.cos_sin_factor()",
        " * config.cos_sin_factor() * {value}",
    ),
)
