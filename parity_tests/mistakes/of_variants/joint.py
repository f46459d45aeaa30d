"""Mistakes that stand in joint's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

WHOLE = 'concatenate([k, normalize(self, norm, "added_k", added_k)], 1)'
ADDED_K = 'normalize(self, norm, "added_k", added_k)'
both, normed, last = (at("joint.py", "joint", example) for example in ("both", "normed", "last"))
MUTANTS = (
    both(
        "keys of the streams joined in another order than their values",
        "join queries, keys and values of both streams in one order",
        WHOLE,
        f"concatenate([{ADDED_K}, k], 1)",
    ),
    normed(
        "queries of the streams joined in another order than their outputs are taken",
        "take the outputs of both streams in the order in which their queries were joined",
        'concatenate([q, normalize(self, norm, "added_q", added_q)], 1)',
        'concatenate([normalize(self, norm, "added_q", added_q), q], 1)',
    ),
    both(
        "key projection of the first stream for both",
        "give each stream projections of its own",
        "added_key, self.w_added_k, self.b_added_k))\n",
        "added_key, self.w_k, self.b_k))\n",
    ),
    both(
        "mask of the added stream forgotten",
        "hide the padding of both streams",
        "broadcast_mask(added_mask, (b, s), added)",
        "broadcast_mask(None, (b, s), added)",
    ),
    both(
        "masks of the streams joined in another order than their keys",
        "join the masks as the keys are joined",
        "masks = broadcast_mask(mask, (b, t), query), broadcast_mask(added_mask, (b, s), added)",
        "masks = broadcast_mask(added_mask, (b, s), added), broadcast_mask(mask, (b, t), query)",
    ),
    normed(
        "queries of a stream not normalised",
        "normalise the queries as well as the keys, in both streams",
        'q, k = normalize(self, norm, "q", q), ',
        "k = ",
    ),
    normed(
        "norm weight of the first stream's keys for those of the other",
        "queries and keys of each stream have norm weights of their own",
        ADDED_K,
        'normalize(self, norm, "k", added_k)',
    ),
    last(
        "streams that attend to their own keys alone",
        "let one softmax see the keys of both streams",
        "k, concatenate([v, added_v], 1))",
        "k[:, :t], v)",
        call="plain",
        raises=NUMPY,
    ),
    both(
        "gradient of the added stream's output dropped",
        "add the gradients of both outputs",
        "dadded_y = zeros(added.shape, added) if dadded_y is None else upcast(dadded_y)",
        "dadded_y = zeros(added.shape, added)",
        trees=NUMPY,
    ),
    both(
        "gradient of a stream through its values missing",
        "keys and values come from the same words: add both gradients",
        "sum_grads(dkey, dvalue)",
        "dkey",
        trees=NUMPY,
    ),
)
