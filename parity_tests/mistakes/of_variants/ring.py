"""Mistakes that stand in ring's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, at

plain, causal = at("ring.py", "ring", "plain"), at("ring.py", "ring", "causal")
MUTANTS = (
    plain(
        "values not handed on with their keys",
        "rotate keys and values together",
        "return ((to_next_device(k), to_next_device(v)), has_key,",
        "return ((to_next_device(k), v), has_key,",
    ),
    plain(
        "keys handed on the other way round than the mask",
        "the mask of a turn belongs to the keys held then: place r holds those of shard (r - i) mod n",
        "(device - turn) % num_shards",
        "(device + turn) % num_shards",
    ),
    causal(
        "mask of the own shard used in every turn",
        "take the mask of the pair that meets, from the positions of queries and keys",
        "(device - turn) % num_shards",
        "(device - 0 * turn) % num_shards",
    ),
    plain(
        "sums of a step not brought to the new largest score",
        "when a larger score turns up, scale what was summed at earlier steps by exp(old - new)",
        "sums = sums * rescale[..., None] + ",
        "sums = sums + ",
    ),
    plain(
        "gradients left at the place where they arose",
        "let the gradients of keys and values travel with them, so that they come home",
        "map(to_next_device, (k, v, dk + dk_shard, dv + dv_shard))",
        "map(to_next_device, (k, v)), dk + dk_shard, dv + dv_shard",
        trees=NUMPY,
    ),
)
