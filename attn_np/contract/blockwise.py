"""Blockwise attention: the softmax as a running sum over blocks of keys; the weights are never stored."""

from dataclasses import dataclass

from attn_np.contract._unlearned import Unlearned


@dataclass(frozen=True, kw_only=True)
class Config(Unlearned):
    """Fields of blockwise attention, which has nothing to learn; its widths come with the call.

    Attributes:
        block_size: how many keys a block has; the last one may have fewer.
    """

    class_name = "BlockwiseAttention"
    family = "dense"
    title = "Blockwise attention"
    idea = (
        "A softmax needs the sum over all keys, but not all keys at once. Walk over them block by block and keep "
        "three things for each query: the largest score so far, the sum of the exponentials, and the values weighted "
        "by them. When a larger score turns up, the earlier sums are scaled down. The weights themselves are never "
        "stored: this is what flash attention computes, written as a loop."
    )
    formula = (
        r"m' = \max(m, \max_c s_{tc}), \quad \ell' = e^{m - m'} \ell + \sum_c e^{s_{tc} - m'}, \quad "
        r"a' = e^{m - m'} a + \sum_c e^{s_{tc} - m'} v_c, \qquad y_t = a / \ell"
    )
    notation = {
        "m": "running_top, after the last block top",
        "l": "running_total, after the last block total",
        "O (not yet divided)": "running_sums",
        "B_c": "block_size, axis c; n counts the blocks",
        "D_i = rowsum(dO * O)": "mean_dprobs, in the backward",
    }
    cost = (
        "time b t s (k + v), in the backward again; memory b t (v + block_size), b t s booleans of the mask, and up to "
        "b t v for each block of keys"
    )
    paper = (
        "Milakov and Gimelshein 2018, Online normalizer calculation for softmax, arXiv:1805.02867, algorithm 3; Rabe "
        "and Staats 2021, Self-attention Does Not Need O(n^2) Memory, arXiv:2112.05682, section 2; Dao et al. 2022, "
        "FlashAttention, arXiv:2205.14135, algorithms 1 and 4"
    )
    equals = ("every block_size: dot_product, which stores the weights",)
    traps = (
        "when the largest score rises, the sum and the weighted values must both be scaled down: forgetting one of "
        "them goes unnoticed as long as the first block holds the largest score",
        "a query without a visible key so far has -inf as its largest score, and exp(-inf - -inf) is NaN: causal "
        "attention over an early block meets it in its first rows",
        "the padding of the last block must be hidden: a key of zeros has a score of 0, not of -inf",
        "averaging the softmaxes of the blocks is not the softmax over all of them",
        "the largest score cancels, so it gets no gradient: differentiating through only one of its two uses is wrong",
    )

    not_in_results = ("block_size",)

    block_size: int
    scale: float | None = None
    causal: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("block_size")


EXAMPLES = {
    "plain": Config(block_size=3),
    "causal": Config(block_size=2, scale=0.375, causal=True),
}
