"""Mistakes that stand in cope's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import at

clipped, own_keys, values = (at("cope.py", "cope", example) for example in ("clipped", "own_keys", "values"))
MUTANTS = (
    clipped(
        "gates summed from the first key on",
        "sum the gates from the key to the query: those of the keys in between and at both ends",
        "gate_sums=reverse_cumsum(gates)",
        "gate_sums=gates.sum(-1)[..., None] - reverse_cumsum(gates) + gates",
    ),
    own_keys(
        "position without the key's own gate",
        "a key's own gate is part of its position, which is 0 for no key",
        "gate_sums=reverse_cumsum(gates)",
        "gate_sums=reverse_cumsum(gates) - gates",
    ),
    own_keys(
        "hidden keys counted by the gates",
        "the gate of a key that is hidden, or comes after the query, is 0: select it before the sum",
        "gates=gates if visible is None else where(visible, gates, 0.0))",
        "gates=gates)",
    ),
    clipped(
        "gates of scores that are not scaled",
        "take the gates of the products of queries and keys divided by sqrt(head_dim)",
        "gates = sigmoid(gate_scores)",
        "gates = sigmoid(gate_scores / scale)",
    ),
    values(
        "position part of the scores scaled, which CoPE does not",
        "divide the products of queries and keys alone by sqrt(head_dim), or set scale_positions",
        "products * scale if c.scale_positions else products)\n            position_scores = ",
        "products * scale)\n            position_scores = ",
    ),
    own_keys(
        "position part of the scores not scaled, where the scale is asked for",
        "with scale_positions the position part is multiplied by the scale too",
        "products * scale if c.scale_positions else products)\n            position_scores = ",
        "products)\n            position_scores = ",
    ),
    clipped(
        "positions clipped a row too early",
        "clip at num_positions - 1, the last row of the table",
        "last_position = c.num_positions - 1\n",
        "last_position = c.num_positions - 2\n",
    ),
    own_keys(
        "embeddings of positions multiplied with the keys",
        "multiply the embedding of a position with the query: it is added to the key",
        'products = einsum("bthk,xk->bhtx", q, self.w_pos)',
        'products = einsum("bthk,xk->bhtx", k, self.w_pos)',
    ),
    own_keys(
        "gates by the keys of the scores",
        "with gates of their own keys, multiply the query with the projection for the gates",
        "q, gate_operand) * scale)",
        "q, k) * scale)",
    ),
    own_keys(
        "keys of the gates without their bias",
        "the projection of the gates' keys has a bias of its own",
        'gate_k = linear("bsd,dhk->bshk", key, self.w_gate_k, self.b_gate_k)',
        'gate_k = linear("bsd,dhk->bshk", key, self.w_gate_k, None)',
    ),
    values(
        "positions without a gradient",
        "leave the positions in the graph: only their whole parts, which are indices, have no gradient",
        "interpolate_last(products, positions))",
        "interpolate_last(products, detach(positions)))",
        trees=("attn_jax", "attn_torch"),
        needs=("detach",),
    ),
    own_keys(
        "gradients of the gates summed from the last key on",
        "a gate is in the sums of its own key and of those before it: sum their gradients from the first key on",
        "dgates=cumsum(dgate_sums, -1)",
        "dgates=reverse_cumsum(dgate_sums)",
        trees=("attn_np",),
    ),
    clipped(
        "gradient of the queries without that of the positions",
        "the queries meet keys and table: add both gradients",
        "dq = sum_grads(dq, dq_pos)\n",
        "dq = dq\n",
        trees=("attn_np",),
    ),
    values(
        "gradient of the values from the context alone",
        "values that decide the gates get a gradient from these too: add both",
        "(sum_grads(dv, dgate_operand), None) if",
        "(dv, None) if",
        trees=("attn_np",),
    ),
)
