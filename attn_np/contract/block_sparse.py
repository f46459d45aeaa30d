"""Block-sparse attention: a query sees its own block of keys and others that it chooses by the mean of their keys."""

from dataclasses import dataclass

from attn_np.contract import _heads
from attn_np.contract._base import Arg, field_error, is_integer


@dataclass(frozen=True, kw_only=True)
class Config(_heads.Heads):
    """Fields of block-sparse attention.

    Attributes:
        num_heads: how many heads attend, each to blocks of its own choice.
        causal: query i sees the keys up to its own position, and chooses among the blocks before its own.
        block_size: how many positions a block has; the last one may have fewer.
        chosen_blocks: how many blocks a query chooses; it sees its own besides.
        query_block: size of a block of queries, which share the choice of the first of them; a divisor of block_size.
    """

    class_name = "BlockSparseAttention"
    family = "sparse"
    title = "Block-sparse attention"
    idea = (
        "Most of a long text does not matter to a word, and which part does is known only when it is read. So every "
        "query looks at the mean key of each block first, chooses the few blocks whose means it likes best, and "
        "attends to these and to its own. Nothing is added that must be learned: what chooses is what attends."
    )
    formula = (
        r"p_{ts} > 0 \quad \mathrm{only\ where}\ j = i\ \mathrm{or}\ j \in \mathrm{top}_n\!\left(q_t \cdot "
        r"\tfrac{1}{c} \sum_{s \in j} k_s\right), \quad i = \lfloor t / c \rfloor,\ j = \lfloor s / c \rfloor"
    )
    notation = {
        "B (block size)": "block_size, c in the formula",
        "k (top-k)": "chosen_blocks + 1: its own block is among the k",
        "s_i (affinity of a query and a block)": "affinity",
        "I_i, the blocks of a query": "chosen, by number",
    }
    cost = (
        "time b t c n h (k + v) for n blocks of c positions where query_block is c, and b t^2 / c^2 h k for the choice;"
        " where every query chooses for itself, the blocks that any of 64 neighbours sees; memory b t h (k + v)"
    )
    paper = (
        "Lu et al. 2025, MoBA: Mixture of Block Attention, arXiv:2502.13189, equations 2 to 6; chosen blocks also in "
        "Yuan et al. 2025, Native Sparse Attention, arXiv:2502.11089, section 3.3.2, where learned summaries choose"
    )
    equals = (
        "chosen_blocks=0: chunked",
        "as many chosen blocks as there are others: mha",
    )
    traps = (
        "its own block is always seen by a query, and causally: its mean holds later keys, so it must not be scored",
        "a mean over a block that is not full divides by the positions that it has",
        "the choice has no gradient: keys learn as keys, not as parts of a mean",
        "each head chooses for itself",
        "where two means are equal up to rounding, two frameworks may choose different blocks; of equal ones the "
        "earlier is chosen",
        "queries that share a choice share that of the first: the mean of all of them would look ahead",
    )

    d_model: int
    num_heads: int
    head_dim: int | None = None
    value_head_dim: int | None = None
    output_dim: int | None = None
    scale: float | None = None
    causal: bool = False
    use_bias: bool = True
    block_size: int
    chosen_blocks: int
    query_block: int = 1

    def __post_init__(self) -> None:
        self.check_positive(
            "d_model", "num_heads", "head_dim", "value_head_dim", "output_dim", "block_size", "query_block"
        )
        self.check_number("scale")
        self.check_flag("causal")
        self.check_flag("use_bias")
        self.check_divisible("d_model", "num_heads", unless="head_dim")
        chosen, got = self.chosen_blocks, f"{self.query_block} and {self.block_size}"
        if not is_integer(chosen) or chosen < 0:
            raise field_error(self.variant, "chosen_blocks to be an integer from 0", repr(chosen), "set chosen_blocks=")
        fits = self.block_size % self.query_block == 0
        self.require(fits, "a query_block that divides block_size", got, "change one of them")

    def arguments(self) -> dict[str, Arg]:
        return {"query": Arg("b t d")}

    def cache_axes(self) -> dict[str, str]:
        return {"k": "b s h k", "v": "b s h v"} if self.causal and self.query_block == 1 else {}

    def why_no_cache(self) -> str:
        return f"query_block={self.query_block}" if self.causal else "causal=False"


EXAMPLES = {
    "both": Config(d_model=6, num_heads=2, output_dim=5, block_size=2, chosen_blocks=1),
    "causal": Config(
        d_model=5, num_heads=3, head_dim=2, value_head_dim=7, scale=0.75, causal=True, use_bias=False, block_size=1,
        chosen_blocks=2,
    ),
    "together": Config(d_model=5, num_heads=2, head_dim=3, causal=True, block_size=2, chosen_blocks=1, query_block=2),
}  # fmt: skip
