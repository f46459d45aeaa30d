"""Mistakes that stand in qk_norm's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import at

head, joint, l2 = (at("qk_norm.py", "qk_norm", example) for example in ("head", "all", "l2"))
QUERY, KEY = (f'{x}_norm=normalize(self, norm, "{x}", {x})' for x in "qk")
MUTANTS = (
    head(
        "weight of the queries' norm used for the keys",
        "queries and keys have norms of their own: q_norm and k_norm",
        KEY,
        KEY.replace('"k"', '"q"'),
    ),
    joint(
        "another eps in the norm",
        "take the eps that the layer was trained with",
        QUERY,
        QUERY.replace("norm,", "__import__('dataclasses').replace(norm, eps=1e-6),"),
    ),
    joint(
        "bias of the queries' norm left out",
        "a layer norm with a bias adds it to queries and keys",
        QUERY,
        QUERY.replace("norm,", "__import__('dataclasses').replace(norm, bias=False),"),
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
