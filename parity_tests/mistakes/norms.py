"""Mistakes in the norms of queries, keys and latents: eps, the mean, and the order with the rotation."""

from parity_tests.mistakes.plant import NUMPY, SHARED, at

decoder, shared_norm = at("decoder.py", "decoder", "sinks"), at(SHARED, "decoder", "plain")

SQUARES = "{np}.sum(x * x, {axis}=-1, {keepdims}=True)"
UNDER_THE_ROOT = "add eps under the root: x / sqrt(mean(x^2) + eps)"
NORMED = """\
        q = record(tape, q_norm=normalize(c, q, q_weight, self.b_q_norm))
        k = record(tape, k_norm=normalize(c, k, k_weight, self.b_k_norm))
"""
TURNED = """\
        cos, sin = cos_sin_for(c, positions, sizes["t"], like=query, step=call.step)
        q, k = record(tape, q_rot=rotate(q, cos, sin, c.rope_layout), k_rot=rotate(k, cos, sin, c.rope_layout))
"""
CLIPPED = """\
        if c.clip_qkv is not None:
            v = record(tape, v_proj=v)
            q, k = record(tape, q_clip=clip_magnitude(q, c.clip_qkv), k_clip=clip_magnitude(k, c.clip_qkv))
            v = record(tape, v_clip=clip_magnitude(v, c.clip_qkv))
"""
TURNED_FIRST = """\
        cos, sin = cos_sin_for(c, positions, sizes["t"], like=query, step=call.step)
        q, k = rotate(q, cos, sin, c.rope_layout), rotate(k, cos, sin, c.rope_layout)
        q, k = normalize(c, q, q_weight, self.b_q_norm), normalize(c, k, k_weight, self.b_k_norm)
        q, k = record(tape, q_rot=q, k_rot=k)
"""

UNNORMED = "    if c.norm is None:\n        return x\n    shape, weight = x.shape, offset_weight(c, weight)\n"
LEFT_OUT = "norm queries and keys and multiply by the norm's weight, as the config asks"
QUERIES, KEYS = (f"{x}_norm=normalize(c, {x}, {x}_weight, self.b_{x}_norm)" for x in "qk")
ROTARY_KEY = """\
        latent = record(tape, latent=rms_norm(kv_down, self.w_kv_norm, c.norm_eps))
        k_rot = linear("bsd,dy->bsy", key, self.w_k_rot, self.b_k_rot)
"""
TOGETHER = """\
        both = concatenate([kv_down, linear("bsd,dy->bsy", key, self.w_k_rot, self.b_k_rot)], -1)
        both = rms_norm(both, None, c.norm_eps)
        latent, k_rot = record(tape, latent=both[..., : sizes["z"]] * self.w_kv_norm), both[..., sizes["z"] :]
"""

MUTANTS = (
    decoder(
        "norms of queries and keys left out with their weights",
        LEFT_OUT,
        UNNORMED,
        UNNORMED.replace("c.norm is None", "c.norm is None or x.shape is not None"),
    ),
    decoder("norm of the queries left out with its weight", LEFT_OUT, QUERIES, "q_norm=q"),
    decoder("norm of the keys left out with its weight", LEFT_OUT, KEYS, "k_norm=k"),
    *(
        decoder(
            f"weight of the {whose} norm left out",
            "multiply by the norm's weight after the division",
            text,
            text.replace(f", {x}_weight", ", None"),
        )
        for whose, x, text in (("queries'", "q", QUERIES), ("keys'", "k", KEYS))
    ),
    at("decoder.py", "decoder", "plain")(
        "norm over all heads of a position, with one weight for all",
        "norm each head by itself: over head_dim, after the heads are split",
        "x = rms_norm(x, weight, c.norm_eps) if c.norm ==",
        "x = rms_norm(x.reshape((*shape[:2], -1)), None, c.norm_eps).reshape(shape) * "
        '(1.0 if weight is None else weight) if c.norm == "rms" and c.norm_over == "head" else '
        "rms_norm(x, weight, c.norm_eps) if c.norm ==",
    ),
    at("mla.py", "mla", "both-ways")(
        "norm of the queries' latent left out with its weight",
        "norm the latent and multiply by the norm's weight before it is projected up",
        "q_latent=rms_norm(q_down, self.w_q_norm, c.norm_eps)",
        "q_latent=q_down",
    ),
    at("mla.py", "mla", "expanded")(
        "latent and rotary key normed together",
        "norm the latent alone: the rotary key, split off the same projection, has no norm",
        ROTARY_KEY,
        TOGETHER,
    ),
    at(SHARED, "decoder", "plain")(
        "no gradient through the root of the norm",
        "let the gradient through the norm's root, too: it is a function of x; no detach() of rsqrt",
        "return dy / norm - x * (np.sum(dy * x, axis=-1, keepdims=True) * factor / (norm * norm * norm))",
        "return dy / norm",
        trees=NUMPY,
    ),
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
