"""Mistakes in the norms of queries, keys and latents: eps, the mean, and the order with the rotation."""

from parity_tests.mistakes.plant import SHARED, at

decoder, shared_norm = at("decoder.py", "decoder", "sinks"), at(SHARED, "decoder", "plain")

SQUARES = "{np}.sum(x * x, {axis}=-1, {keepdims}=True)"
UNDER_THE_ROOT = "add eps under the root: x / sqrt(mean(x^2) + eps)"
NORMED = """\
        q = record(tape, q_norm=normalize(c, q, q_weight, self.b_q_norm))
        k = record(tape, k_norm=normalize(c, k, k_weight, self.b_k_norm))
"""
TURNED = """\
        cos, sin = cos_sin_for(c, positions, sizes["t"], like=query, step=step)
        q, k = record(tape, q_rot=rotate(q, cos, sin, c.rope_layout), k_rot=rotate(k, cos, sin, c.rope_layout))
"""
CLIPPED = """\
        if c.clip_qkv is not None:
            v = record(tape, v_proj=v)
            q, k = record(tape, q_clip=clip_magnitude(q, c.clip_qkv), k_clip=clip_magnitude(k, c.clip_qkv))
            v = record(tape, v_clip=clip_magnitude(v, c.clip_qkv))
"""
TURNED_FIRST = """\
        cos, sin = cos_sin_for(c, positions, sizes["t"], like=query, step=step)
        q, k = rotate(q, cos, sin, c.rope_layout), rotate(k, cos, sin, c.rope_layout)
        q, k = normalize(c, q, q_weight, self.b_q_norm), normalize(c, k, k_weight, self.b_k_norm)
        q, k = record(tape, q_rot=q, k_rot=k)
"""

MUTANTS = (
    decoder(
        "norm after the rotation",
        "norm queries and keys before they are rotated",
        NORMED + CLIPPED + TURNED,
        TURNED_FIRST,
    ),
    shared_norm(
        "eps of the norm added to the root",
        UNDER_THE_ROOT,
        f"unit = x / sqrt({SQUARES} / x.shape[-1] + eps)",
        f"unit = x / (sqrt({SQUARES} / x.shape[-1]) + eps)",
    ),
    shared_norm(
        "sum of the squares where the norm has their mean",
        "divide the sum of the squares by their number: the mean, not the sum",
        f"unit = x / sqrt({SQUARES} / x.shape[-1] + eps)",
        f"unit = x / sqrt({SQUARES} + eps)",
    ),
    shared_norm(
        "not normalised",
        "divide by the root mean square before the weight is multiplied",
        f"unit = x / sqrt({SQUARES} / x.shape[-1] + eps)",
        "unit = x",
    ),
    at(SHARED, "decoder", "sinks")(
        "variance of the layer norm divided by n - 1",
        "divide the squares by their number, as LayerNorm does; std() of torch divides by one less",
        "/ x.shape[-1], weight, eps)",
        "/ x.shape[-1], weight, eps * (x.shape[-1] - 1) / x.shape[-1]) * ((x.shape[-1] - 1) / x.shape[-1]) ** 0.5",
    ),
    at(SHARED, "qk_norm", "l2")(
        "eps of the l2 norm added to the root",
        UNDER_THE_ROOT,
        f"return x / sqrt({SQUARES} + eps)",
        f"return x / (sqrt({SQUARES}) + eps)",
    ),
)
