"""Constants of the code that no field holds, as factors: `{value}` stands where the reference has 1."""

from parity_tests.mistakes.plant import SHARED, Mutant, at

ONE_EPS = "take norm_eps in every norm: one of them has another"


def eps_of_one_norm(file: str, example: str, whose: str, old: str, new: str) -> Mutant:
    """An eps that one of a variant's norms has and the others have not."""
    return at(file, file.removesuffix(".py"), example)(f"factor on the eps of the {whose} norm", ONE_EPS, old, new)


def with_eps(config: str) -> str:
    return f'__import__("dataclasses").replace({config}, norm_eps={{value}} * {config}.norm_eps)'


FACTORS = (
    *(
        eps_of_one_norm("decoder.py", "sinks", whose, f"normalize(c, {x}, w_{x}", f"normalize({with_eps('c')}, {x}, w_{x}")
        for x, whose in (("q", "queries'"), ("k", "keys'"))
    ),
    *(
        eps_of_one_norm("qk_norm.py", "head", whose, f"normalised(c, {x}, self", f"normalised({with_eps('c')}, {x}, self")
        for x, whose in (("q", "queries'"), ("k", "keys'"))
    ),
    *(
        eps_of_one_norm("mla.py", "expanded", whose, f"self.w_{x}_norm, c.norm_eps", f"self.w_{x}_norm, {{value}} * c.norm_eps")
        for x, whose in (("q", "queries'"), ("kv", "latents'"))
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
        "count positions one by one; a model with scaled positions has scaling= and scaling_factor= in its config",
        "angles = xp.arange(count, dtype=xp.float64)[:, None] * ",
        "angles = {value} * xp.arange(count, dtype=xp.float64)[:, None] * ",
    ),
    at(SHARED, "rotary", "interleaved")(
        "factor on the rotated dimensions",
        "multiply cosines and sines by the attention factor of yarn and longrope, and by nothing else",
        " * config.amplitude()",
        " * config.amplitude() * {value}",
    ),
)
