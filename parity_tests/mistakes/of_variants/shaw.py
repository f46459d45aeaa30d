"""Mistakes that stand in shaw's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import SHARED, at

both, causal, keys, cross = (at("shaw.py", "shaw", example) for example in ("both", "causal", "keys", "cross"))
MUTANTS = (
    both(
        "row of query minus key",
        "look up the vector of the key's position minus the query's",
        "clip(relative_position, -self",
        "clip(-relative_position, -self",
    ),
    both(
        "position part of the scores not scaled",
        "divide the position part of the scores by sqrt(head_dim) too",
        "scores=(content + position) * scale)",
        "scores=content * scale + position)",
    ),
    both(
        "values moved by the vectors of the keys' table in reverse",
        "use one and the same relative position for the vectors of keys and of values",
        "kept, self.w_rel_v, relative_index)\n            context",
        "kept, self.w_rel_v, 2 * c.max_distance - relative_index)\n            context",
    ),
    both(
        "vectors of the values averaged before dropout",
        "average the vectors of the values by the weights after dropout",
        "kept, self.w_rel_v, relative_index)\n            context",
        "probs, self.w_rel_v, relative_index)\n            context",
    ),
    keys(
        "keys moved by the vector in place of the queries' product with it",
        "multiply the vector of the distance with the query, not with the key",
        'relative_scores_shared(tape, "rel_k", q, ',
        'relative_scores_shared(tape, "rel_k", k, ',
        call="plain",  # as many queries as keys
    ),
    causal(
        "gradient of the queries from the contents alone",
        "the queries meet keys and vectors: add both gradients",
        "dq=sum_grads(dq, dq_rel)",
        "dq=dq",
        trees=("attn_np",),
    ),
    cross(
        "distances counted from the first key",
        "the last query stands at the last key: query i at position i + s - t",
        "return key_positions[:, None, :] - query_positions[:, :, None]",
        "return key_positions[:, None, :] - query_positions[:, :, None] + (s - t)",
        file=SHARED,
    ),
)
