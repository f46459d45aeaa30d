"""Mistakes that stand in disentangled's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import at

both, c2p, p2c = (at("disentangled.py", "disentangled", example) for example in ("both", "c2p", "p2c"))
MUTANTS = (
    both(
        "position to content by the query's view of the distance",
        "pick position to content by delta(j, i): the distance as the key sees it",
        '-c2p_offset if c.p2c_view == "key" else c2p_offset',
        "c2p_offset",
    ),
    p2c(
        "bucket looked up by the distance itself",
        "the buckets begin with that of -max_distance: add max_distance to a distance to find its own",
        "clip(c2p_offset, -limit, limit) + limit]",
        "clip(c2p_offset, -limit, limit)]",
    ),
    both(
        "embeddings of distances projected without the biases of the contents",
        "project the table as the contents are projected, biases included",
        "(w_k, b_k) if self.w_rel_k is None",
        "(w_k, None) if self.w_rel_k is None",
        survives="the bias of the keys adds the same to every score of a query, which the softmax takes away",
    ),
    p2c(
        "separate projection of distances without its bias",
        "the projection of distances for position to content has a bias of its own",
        "(self.w_rel_q, self.b_rel_q)\n            rel_q = record",
        "(self.w_rel_q, None)\n            rel_q = record",
    ),
    both(
        "norm of the distances without its bias",
        "the table's layer norm has a weight and a bias",
        "layer_norm(rel, self.w_rel_norm, self.b_rel, c.norm_eps)",
        "layer_norm(rel, self.w_rel_norm, None, c.norm_eps)",
    ),
    both(
        "scale of the content term alone",
        "divide by sqrt(3 head_dim) where three terms are added",
        '1 / sqrt(sizes["k"] * (1 + len(c.score_terms))) if',
        '1 / sqrt(sizes["k"]) if',
    ),
    both(
        "last distance given a row that is not its own",
        "distances of max_distance and beyond share the last row, 2 max_distance - 1",
        "return clip(c2p_offset + span, 0, 2 * span - 1)",
        "return clip(c2p_offset + span, 0, 2 * span - 2)",
    ),
    p2c(
        "position to content not turned back",
        "exchange the axes of position to content: its keys were the rows",
        "p2c_scores = gather_last(relative_scores, p2c_index).swapaxes(2, 3)\n",
        "p2c_scores = gather_last(relative_scores, p2c_index)\n",
        call="plain",  # as many queries as keys
    ),
    c2p(
        "distance of the pair read as key minus query",
        "delta(i, j) is query minus key plus max_distance",
        "return clip(c2p_offset + span",
        "return clip(span - c2p_offset",
    ),
    both(
        "gradient of the distances from one term",
        "both terms read the table of distances: add their gradients",
        'dw["w_rel"] = sum_grads(*dw_rel)',
        'dw["w_rel"] = dw_rel[0]',
        trees=("attn_np",),
    ),
)
