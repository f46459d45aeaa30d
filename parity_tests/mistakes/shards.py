"""Mistakes of a sequence that is spread over devices: each of them has a part of the queries and of the keys."""

from math import log

from parity_tests.mistakes.plant import SHARED, at

VISIBLE = "    visible = hide_neg_inf(allowed, bias)\n    if softmax_fn is not None:"
ALLOWED = "like=q, step=step, head_axis=has_heads, **masking)\n        masking = {"
PROBS = "probs=softmax(scores, visible, attend_contract.SOFTMAX_AXIS[normalize_over]))"
PART = "softmax(scores[..., {cut}], None if visible is None else broadcast_to(visible, scores.shape)[..., {cut}])"


def own(parts: int) -> str:
    """Whether a key is in the part of a query."""
    query, key = (
        f"arange({x}.shape[1], q){axis} // -(-{x}.shape[1] // {parts})" for x, axis in (("q", "[:, None]"), ("k", ""))
    )
    return f"({query} == {key})"


def alone(parts: int) -> str:
    return (
        f"    own = {own(parts)}\n"
        f"    visible = hide_neg_inf(own if allowed is None else allowed & own, bias)\n    if softmax_fn is not None:"
    )


def from_first(parts: int) -> str:
    """Causality with a query's place in its part, and keys counted in the whole sequence."""
    size = f"-(-q.shape[1] // {parts})"
    seen = f"arange(k.shape[1], q) <= arange(q.shape[1], q)[:, None] % {size}"
    return ALLOWED.replace("**masking)\n", f"**masking)\n        mask = mask & ({seen}) if causal else mask\n")


def averaged(parts: int) -> str:
    """Weights by parts, each adding up to 1, divided by the number of parts that have a key."""
    size = f"-(-k.shape[1] // {parts})"
    joint = f"concatenate([{PART} for i in range(0, k.shape[1], {size})], -1)".replace("{cut}", f"i : i + {size}")
    return f"probs=(lambda p: p / maximum(p.sum(-1)[..., None], 1.0))({joint}))"


def alone_with_states(parts: int) -> str:
    """A query sees earlier keys of its own part alone, as where each part starts from an empty state."""
    part = f"// -(-t // {parts})"
    own = f"(arange(chunk_size, q)[:, None] {part} == arange(chunk_size, q) {part})"
    return f"where(causal_mask(chunk_size, q) & {own}, scores, 0.0))"


SINKS = "column = broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1))"
STATES = "where(causal_mask(chunk_size, q), scores, 0.0))"
parted = at(SHARED, "mha", "split", call="plain")
causal = at(SHARED, "rotary", "longrope", call="plain")
with_sinks = at(SHARED, "sinks", "learned")
linear = at("linear.py", "linear", "chunked", fields=(("chunk_size", 64),))
MUTANTS = tuple(
    mutant
    for parts, word in ((2, "two"), (4, "four"))
    for mutant in (
        parted(
            f"each of {word} shards of the sequence sees itself alone",
            "let a device's queries see the keys of the others: gather keys and values, or pass them round",
            VISIBLE,
            alone(parts),
            needs=("arange",),
        ),
        causal(
            f"causality counted from the first query of each of {word} shards",
            "count a query's position in the whole sequence: add the number of positions before its shard",
            ALLOWED,
            from_first(parts),
            needs=("arange",),
        ),
        parted(
            f"contexts of {word} shards averaged without their sums",
            "weigh each part by its sum of exponentials: merge contexts by their log-sum-exp",
            PROBS,
            averaged(parts),
            needs=("maximum",),
        ),
        with_sinks(
            f"sinks counted once for each of {word} shards",
            "count a sink once: merge it with the result of all shards, not with that of each",
            SINKS,
            SINKS.replace("sinks[", f"({log(parts)!r} + sinks)["),
        ),
        linear(
            f"each of {word} shards starts from an empty state",
            "hand the state after a shard on to the next one",
            STATES,
            alone_with_states(parts),
            needs=("arange",),
        ),
    )
)
