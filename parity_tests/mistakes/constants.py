"""Constants of the code that no field holds, as factors: `{value}` stands where the reference has 1."""

from parity_tests.mistakes.plant import SHARED, at

# The eps of one of several norms, in place of the config's.
EPS = tuple(
    at(file, file.removesuffix(".py"), example)(
        f"eps of the {whose} norm",
        "take the config's norm_eps in every norm",
        f"{function}(c, {x}, ",
        f"{function}(__import__('dataclasses').replace(c, norm_eps={{value}}), {x}, ",
    )
    for file, example, function in (("decoder.py", "sinks", "normalize"), ("qk_norm.py", "head", "normalize"))
    for x, whose in (("q", "queries'"), ("k", "keys'"))
) + tuple(
    at("mla.py", "mla", "expanded")(
        f"eps of the {whose} norm",
        "take the config's norm_eps in every norm",
        f"self.w_{x}_norm, c.norm_eps",
        f"self.w_{x}_norm, {{value}}",
    )
    for x, whose in (("q", "queries'"), ("kv", "latents'"))
)
FACTORS = (
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
