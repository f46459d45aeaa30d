"""T5's relative position biases: a learned number for each head and each bucket of distances is added to the scores."""

from dataclasses import dataclass

from attn_np.contract import _heads
from attn_np.contract._base import Param


@dataclass(frozen=True, kw_only=True)
class Config(_heads.RelativePositionConfig):
    """Fields of attention with T5's relative position biases.

    Attributes:
        scale: factor on the products of queries and keys; 1.0 by default: T5 has none.
        use_bias: biases on the four projections; T5 has none, so they are off by default.
        num_buckets: rows of the table; bidirectional buckets are half for earlier and half for later keys.
        max_distance: distances from this one on share the last bucket of their side.
        bidirectional: buckets for both sides; by default if the layer is not causal.
    """

    class_name = "T5Attention"
    family = "positions"
    projects = {"w_bias": False}
    title = "T5's relative position biases"
    idea = (
        "The distance of two words has a learned number that is added to their score. Small distances have a number "
        "each; larger ones share it in buckets that grow with the distance, so that a short table covers any length."
    )
    formula = (
        r"y = b_o + \sum_h \mathrm{softmax}_s\!\left(q_{h,t} \cdot k_{h,s} + w_{bias}[\mathrm{bucket}(t - s), h]\right)"
        r" v_h\, w_{o,h}, \qquad \mathrm{bucket}(n) = n \text{ for } n < e, \text{ else } "
        r"e + \left\lfloor (B - e)\, \tfrac{\log(n / e)}{\log(D / e)} \right\rfloor, \; e = B / 2"
    )
    notation = {
        "relative attention bias": "w_bias, x h; the row of a bucket: position_bias, b h t s",
        "B (buckets of one side)": "num_buckets, half of it where bidirectional; axis x",
        "D": "max_distance",
        "n": "t - s of an earlier key; of a later one, where bidirectional, s - t, with B added to the bucket",
    }
    cost = "time b t s h (k + v); memory b h t s on the textbook path; num_buckets h parameters"
    paper = (
        "Raffel et al. 2020, Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer, "
        "arXiv:1910.10683, section 2.1; the buckets as in the authors' code (mesh-tensorflow)"
    )
    equals = ("mha with scale=1.0 and the table's numbers passed as bias=",)
    traps = (
        "dividing by sqrt(head_dim): T5's scores are unscaled, its initial weights make up for it",
        "the sign: the relative position is key minus query, and later keys take the upper half of the buckets",
        "a decoder has buckets for one side only: all of them for earlier keys",
        "a bucket computed with a logarithm in float32 can fall one short where the exact value is an integer",
        "one table serves all layers of a T5 stack: a table in each layer, all with the same numbers",
        "clipping the distance to max_distance before the logarithm gives one bucket too many: clip the bucket",
    )

    scale: float | None = 1.0
    use_bias: bool = False
    num_buckets: int = 32
    max_distance: int = 128
    bidirectional: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("num_buckets", "max_distance")
        if self.bidirectional is None:
            object.__setattr__(self, "bidirectional", not self.causal)
        self.check_flag("bidirectional")
        sides = 2 if self.bidirectional else 1
        self.require(
            self.num_buckets % (2 * sides) == 0,
            f"num_buckets to be a multiple of {2 * sides}, for {'both sides' if sides == 2 else 'one side'}",
            self.num_buckets,
            "half of a side's buckets hold one distance each",
        )
        self.require(
            self.max_distance > self.num_buckets // (2 * sides),
            f"max_distance above {self.num_buckets // (2 * sides)}, the distances with a bucket of their own",
            self.max_distance,
            "set max_distance=",
        )

    def sizes(self) -> dict[str, int]:
        return super().sizes() | {"x": self.num_buckets}

    def own_params(self) -> dict[str, Param]:
        return super().own_params() | {"w_bias": Param("x h", "x")}

    def broken_relations(self) -> dict[str, str]:
        added = "a part of the scores does not depend on the queries"
        return super().broken_relations() | {
            "twice_the_scores_square_the_weights": added,
            "indifferent_scores_share_evenly": added,
        }

    def buckets(self) -> tuple[int, ...]:
        """The bucket of every relative position, key minus query, from -max_distance to max_distance."""
        side = self.num_buckets // 2 if self.bidirectional else self.num_buckets
        before = buckets_by_distance(side, self.max_distance)
        after = tuple(side + x for x in before[1:]) if self.bidirectional else (0,) * self.max_distance
        return before[::-1] + after


def buckets_by_distance(num_buckets: int, max_distance: int) -> tuple[int, ...]:
    """The bucket, on one side, of every distance from 0 to max_distance D.

    Bucket e + n, e = num_buckets / 2, begins where (d / e)^(num_buckets - e) >= (D / e)^n: the paper's formula without
    logarithms, in integers.
    """
    exact, bucket_of = num_buckets // 2, list(range(num_buckets // 2))
    wide = num_buckets - exact
    for distance in range(exact, max_distance + 1):
        n = bucket_of[-1] - exact if bucket_of[-1] >= exact else 0
        while n + 1 < wide and distance**wide * exact ** (n + 1) >= max_distance ** (n + 1) * exact**wide:
            n += 1
        bucket_of.append(exact + n)
    return tuple(bucket_of)


EXAMPLES = {
    "encoder": Config(
        d_model=6, num_heads=3, output_dim=7, num_buckets=12, max_distance=5, dropout=0.25, use_bias=True,
    ),
    "decoder": Config(
        d_model=5, num_heads=2, head_dim=3, value_head_dim=7, scale=0.5, causal=True, num_buckets=6,
        max_distance=4,
    ),
    "cross": Config(
        d_model=6, num_heads=3, value_head_dim=7, key_dim=13, value_dim=11, num_buckets=12, max_distance=5,
    ),
}  # fmt: skip
