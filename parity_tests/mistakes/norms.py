"""Mistakes in the norms of queries, keys and latents: eps, the mean, and the order with the rotation."""

from parity_tests.mistakes.plant import NUMPY, SHARED, at

decoder, normed = at("decoder.py", "decoder", "sinks"), at(SHARED, "decoder", "normed")
shared_norm = at(SHARED, "decoder", "forgetting")

SQUARES = "{np}.sum(x * x, {axis}=-1, {keepdims}=True)"
UNDER_THE_ROOT = "add eps under the root: x / sqrt(mean(x^2) + eps)"
LEFT_OUT = "norm queries and keys and multiply by the norm's weight, as the config asks"
NORMED = "normalize(self, norm, what, x)"
WITHOUT = "norm and __import__('dataclasses').replace(norm, weight=None)"
POSITION = "c.norm_position == "
GROUPED = """\
    if norm.over == "head":
        return x
    return join_heads(x, norm.groups(x.shape[2]))
"""
CONTEXT = 'normed=normalize(self, context_norm, "context", context)'
GATED = """\
        if self.w_gate is not None:
            gate_scores = record(tape, gate_scores=linear("btd,dhf->bthf", query, self.w_gate, self.b_gate))
            gate = record(tape, gate=ACTIVATIONS[c.gate_activation](gate_scores))
            context = record(tape, gated=gate * context)
"""
CONTEXT_NORMED = """\
        if context_norm is not None:
            context = record(tape, normed=normalize(self, context_norm, "context", context))
"""
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
        NORMED,
        "x",
    ),
    decoder("norm of the queries left out with its weight", LEFT_OUT, NORMED, f"{NORMED} if what == 'k' else x"),
    decoder("norm of the keys left out with its weight", LEFT_OUT, NORMED, f"{NORMED} if what == 'q' else x"),
    *(
        decoder(
            f"weight of the {whose} norm left out",
            "multiply by the norm's weight after the division",
            NORMED,
            NORMED.replace("norm,", f"norm if what != '{x}' else {WITHOUT},"),
        )
        for whose, x in (("queries'", "q"), ("keys'", "k"))
    ),
    at(SHARED, "decoder", "plain")(
        "norm over all heads of a position, with one weight for all",
        "norm each head by itself: over head_dim, after the heads are split",
        GROUPED,
        '    return join_heads(x, 1 if norm.over == "head" else norm.groups(x.shape[2]))\n',
    ),
    at(SHARED, "decoder", "gated")(
        "norm over all heads made over each",
        "OLMo 2 norms all heads of a position as one vector; Qwen 3 each head by itself",
        GROUPED,
        GROUPED.replace('norm.over == "head"', 'norm.over in ("head", "all")'),
    ),
    normed(
        "norm over all heads in place of groups of them",
        "norm so many neighbouring heads together as the config says",
        GROUPED,
        GROUPED.replace("norm.groups(x.shape[2])", "1"),
    ),
    normed(
        "groups of heads that do not stand beside each other",
        "heads of a group are neighbours: the first of them, then the next",
        GROUPED,
        f"""\
    b, t, h, k = x.shape
    x = x.reshape((b, t, -1, norm.groups(h), k)).swapaxes(2, 3).reshape(x.shape)
{GROUPED}""",
    ),
    normed(
        "mean kept in the layer norm of queries and keys",
        "a layer norm subtracts the mean; an rms norm does not",
        "else layer_norm(x, None, None, norm.eps)",
        "else rms_norm(x, None, norm.eps)",
    ),
    at(SHARED, "decoder", "sinks")(
        "offset of the norm's weight forgotten",
        "Gemma 3 and Qwen3-Next keep norm weights less 1: add 1 to them",
        "weight if norm.offset == 0.0 else",
        "weight if norm.offset != 0.0 else",
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
        POSITION,
        '"after_rotation" == ',
        many=True,
    ),
    at("decoder.py", "decoder", "normed")(
        "norm before the rotation",
        "norm queries and keys after they are rotated, as Hunyuan does",
        POSITION,
        '"before_rotation" == ',
        many=True,
    ),
    at("decoder.py", "decoder", "normed")(
        "norm of the contexts left out with its weight",
        "norm what the heads give, and multiply by the norm's weight, before the output projection",
        CONTEXT,
        "normed=context",
    ),
    at("decoder.py", "decoder", "normed")(
        "bias of the contexts' norm left out",
        "a layer norm of the contexts adds its bias",
        CONTEXT,
        CONTEXT.replace("context_norm,", "__import__('dataclasses').replace(context_norm, bias=False),"),
    ),
    at("decoder.py", "decoder", "forgetting")(
        "gate before the norm of the contexts",
        "norm what the heads give, then multiply by the gate",
        CONTEXT_NORMED + GATED,
        GATED + CONTEXT_NORMED,
    ),
    at("decoder.py", "decoder", "plain")(
        "scale of the head's width on queries and keys of length 1",
        "products of vectors of length 1 are at most 1: multiply them by sqrt(K), not by 1/sqrt(K)",
        '{"scale": c.scale_or_default(sizes["k"])}',
        '{"scale": None}',
    ),
    at(SHARED, "decoder", "plain")(
        "mean of the squares in place of their sum",
        "divide by the length, the root of the sum of the squares",
        "return l2_normalize(x, norm.eps) if",
        "return rms_norm(x, None, norm.eps) if",
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
