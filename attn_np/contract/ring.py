"""Ring attention: shards of keys travel around a ring of shards of queries until each has met each."""

from dataclasses import dataclass

from attn_np.contract._unlearned import Unlearned


@dataclass(frozen=True, kw_only=True)
class Config(Unlearned):
    """Fields of ring attention, which has nothing to learn; its widths come with the call.

    Attributes:
        shards: how many shards queries and keys are split into, one for each device on the ring.
    """

    class_name = "RingAttention"
    family = "dense"
    title = "Ring attention"
    idea = (
        "A sequence too long for one device is split over several, which form a ring. Each keeps its queries and "
        "attends to the keys and values that it holds, then sends these to its neighbour and gets those of the other. "
        "After one round every query has met every key, and a running softmax, as in blockwise, has put the parts "
        "together. In the backward pass the gradients of keys and values travel with them and arrive back home. Here "
        "the devices are an axis of the arrays and sending is a rotation of it."
    )
    formula = (
        r"\text{step } i:\ \text{place } r \text{ holds } k, v \text{ of shard } (r - i)\; \mathrm{mod}\; n, \qquad "
        r"y_t = \frac{\sum_i e^{m_i - m} a_i}{\sum_i e^{m_i - m} \ell_i}"
    )
    notation = {
        "N_h (number of hosts)": "shards, axis n",
        "block of a host": "position in a shard, axis c",
        "m": "running_top, after the last step top",
        "l": "running_total, after the last step total",
    }
    cost = "time b t s (k + v) / shards at each place; memory there b t (k + v) / shards; each step sends one shard"
    paper = (
        "Liu et al. 2023, Ring Attention with Blockwise Transformers for Near-Infinite Context, arXiv:2310.01889, "
        "section 3 and algorithm 1"
    )
    equals = ("every number of shards: dot_product", "one shard: blockwise with one block")
    traps = (
        "the mask belongs to the pair of a query shard and the key shard it meets at that step: a causal mask taken "
        "from the device alone hides the wrong keys from the second step on",
        "with a causal mask and shards in order most devices wait: the work is not spread evenly (striped attention "
        "deals the positions out in turn)",
        "keys and values rotate together; rotating one of them raises no error",
        "the gradients of a shard must make the whole round to come home: n rotations, one more than the n - 1 "
        "between its n meetings",
    )

    not_in_results = ("shards",)

    shards: int
    scale: float | None = None
    causal: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("shards")


EXAMPLES = {
    "plain": Config(shards=3),
    "causal": Config(shards=2, scale=0.375, causal=True),
}
