"""BigBird attention: in blocks, a window of neighbours, global blocks at both ends and a few drawn at random."""

from dataclasses import dataclass

from attn_np.contract import _heads
from attn_np.contract._base import field_error, is_integer


@dataclass(frozen=True, kw_only=True)
class Config(_heads.BidirectionalConfig):
    """Fields of BigBird attention.

    Attributes:
        block_size: how many positions a block has; the last one may have fewer.
        near_blocks: how many blocks on each side of its own a query sees.
        global_blocks: how many blocks at each end of the sequence see everything and are seen by everything.
        random_blocks: how many more blocks the queries of a block see, drawn for each block.
        graph_seed: seed of the random blocks, a whole number from 0.
    """

    class_name = "BigBirdAttention"
    family = "sparse"
    title = "BigBird attention"
    idea = (
        "In a random graph with few edges any two nodes are a few steps apart, neighbours in a text belong together, "
        "and a few nodes that are joined to all can gather and spread what they read. Each block of positions sees "
        "its neighbours, the blocks at both ends, and a few blocks drawn at random: together as much as full "
        "attention can express, at a cost that grows with the length."
    )
    formula = (
        r"p_{ts} > 0 \quad \mathrm{only\ where}\ |i - j| \leq \tfrac{w - 1}{2}\ \mathrm{or}\ i \in G\ \mathrm{or}\ "
        r"j \in G\ \mathrm{or}\ j \in R_i, \quad i = \lfloor t / c \rfloor,\ j = \lfloor s / c \rfloor"
    )
    notation = {
        "b (block size)": "block_size, c in the formula",
        "w (window)": "2 near_blocks + 1 blocks, its own block among them",
        "g (global), G": "global_blocks at each end",
        "r (random), R_i": "random_blocks; those of block i: drawn_blocks",
    }
    cost = (
        "time b t (w + 2 g + r) c h (k + v) for blocks of c positions, and 2 b g c t h (k + v) for the global queries;"
        " memory b t h (k + v), and b h t t where weights are returned"
    )
    paper = "Zaheer et al. 2020, Big Bird, arXiv:2007.14062, section 2 and appendix D (BigBird-ITC)"
    equals = (
        "block_size as long as the sequence: mha",
        "block_size=1, global_blocks=0, random_blocks=0: mha with window=(near_blocks, near_blocks)",
        "global_blocks=0, random_blocks=0, near_blocks=0: chunked",
    )
    traps = (
        "w, g and r count blocks: of the base model w = 3 blocks of 64 positions, with one on each side",
        "global blocks see everything as well as being seen: both a row and a column of the matrix",
        "random blocks are drawn once and stay: drawn again for each batch, every layer learns another graph",
        "a random block that is also a neighbour or a global one adds nothing: draw among the others",
        "another generator draws other blocks: a trained model needs those that it was trained with",
    )

    block_size: int
    near_blocks: int = 1
    global_blocks: int = 1
    random_blocks: int = 3
    graph_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("block_size")
        for name in ("near_blocks", "global_blocks", "random_blocks", "graph_seed"):
            value = getattr(self, name)
            if not is_integer(value) or value < 0:
                raise field_error(self.variant, f"{name} to be an integer from 0", repr(value), f"set {name}=")

    def drawn_blocks(self, count: int) -> tuple[tuple[int, ...], ...]:
        """The random blocks of each of `count` blocks, -1 where there are no more: `n r`.

        Blocks are served from the first to the last. A draw picks one of the candidates, in ascending order: those that
        are neither neighbours nor global nor drawn before. Its index is floor(state / 2^33) modulo their number. The
        state starts at graph_seed, and before each draw becomes 6364136223846793005 state + 1442695040888963407
        modulo 2^64 (Knuth, The Art of Computer Programming, 3.3.4): integers, the same in all packages.
        """
        state, rows = self.graph_seed, []
        for i in range(count):
            inner = range(self.global_blocks, count - self.global_blocks)
            candidates, row = [j for j in inner if abs(i - j) > self.near_blocks], []
            while candidates and len(row) < self.random_blocks:
                state = (6364136223846793005 * state + 1442695040888963407) % 2**64
                row.append(candidates.pop((state >> 33) % len(candidates)))
            rows.append(tuple(row) + (-1,) * (self.random_blocks - len(row)))
        return tuple(rows)

    def why_no_cache(self) -> str:
        return "blocks that look ahead"

    def broken_relations(self) -> dict[str, str]:
        why = "keys of other blocks are hidden too"
        reasons = {
            "keys_have_no_order": "the mask depends on positions",
            "weights_add_up_to_one": why,
            "a_large_bias_decides": why,
            "indifferent_scores_share_evenly": why,
        }
        if self.random_blocks > 0:
            reasons["hidden_keys_may_as_well_not_be_there"] = "for another length other blocks are drawn"
        return reasons


EXAMPLES = {
    "drawn": Config(
        d_model=6, num_heads=2, output_dim=5, dropout=0.25, block_size=1, near_blocks=0, global_blocks=0,
        random_blocks=1, graph_seed=3,
    ),
    "wide": Config(
        d_model=5, num_heads=3, head_dim=2, value_head_dim=7, scale=0.75, use_bias=False, block_size=2,
        global_blocks=0, random_blocks=2,
    ),
    "ends": Config(d_model=5, num_heads=2, head_dim=3, block_size=1, near_blocks=0),
}  # fmt: skip
