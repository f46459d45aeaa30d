"""Mistakes that stand in qk_norm's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import at

head, joint, l2 = (at("qk_norm.py", "qk_norm", example) for example in ("head", "all", "l2"))
KEY = 'k = record(tape, k_norm=normalize(c, k, self.w_k_norm if c.norm_over == "head" else self.w_k_norm_heads))'
MUTANTS = (
    head(
        "weight of the queries' norm used for the keys",
        "queries and keys have norms of their own: q_norm and k_norm",
        KEY,
        KEY.replace("self.w_k", "self.w_q"),
    ),
    head(
        "norm over all heads in place of each",
        "normalise each head by itself: over the last axis of (b, t, h, k)",
        "normed = rms_norm(flat, weight, c.norm_eps)",
        "normed = rms_norm(flat.reshape(*x.shape[:2], width), None, c.norm_eps).reshape(x.shape) * upcast(weight)",
    ),
    joint(
        "norm of each head in place of all",
        "normalise all heads of a word together, before they are split",
        "normed = layer_norm(flat, weight, None, c.norm_eps)",
        "normed = layer_norm(x, None, None, c.norm_eps).reshape(flat.shape) * weight",
    ),
    joint(
        "mean left in before the norm",
        "a layer norm subtracts the mean first; without it it is an rms norm",
        "normed = layer_norm(flat, weight, None, c.norm_eps)",
        "normed = rms_norm(flat, weight, c.norm_eps)",
    ),
    joint(
        "another eps in the norm",
        "take the eps that the layer was trained with",
        "normed = layer_norm(flat, weight, None, c.norm_eps)",
        "normed = layer_norm(flat, weight, None, 1e-6)",
    ),
    l2(
        "scale of the head's width on queries of length 1",
        "the learned scale stands in place of 1/sqrt(K)",
        'scale = 1.0 if c.scale is None and c.norm == "l2" else c.scale\n        if self',
        "scale = c.scale\n        if self",
    ),
    l2(
        "learned scale left out",
        "multiply the normalised queries with the learned scale of their head",
        "q = q * upcast(self.w_scale)[:, None]",
        "q = q * (0.0 * upcast(self.w_scale)[:, None] + 1.0)",
    ),
)
