"""Relative position biases on a grid: a learned number for each offset of rows and columns, and for class tokens."""

from dataclasses import dataclass

from attn_np.contract import _heads
from attn_np.contract._base import Param, field_error, is_integer


@dataclass(frozen=True, kw_only=True)
class Config(_heads.BidirectionalConfig):
    """Fields of attention with relative position biases on a grid.

    Attributes:
        use_bias: biases on the projections of queries, values and outputs; one of keys would change no output.
        height: rows of the grid; they follow each other in the sequence.
        width: columns of the grid.
        prefix_tokens: how many tokens stand before the grid, 1 for a class token; the table does not tell them apart.
    """

    class_name = "GridBiasAttention"
    family = "positions"
    projects = {"w_bias": False}
    title = "Relative position biases on a grid"
    idea = (
        "In an image the distance of two patches is an offset of rows and one of columns. Every such pair of offsets "
        "has a learned number for each head that is added to the score, wherever in the image the patches are. A class "
        "token has no place there: what it adds as a query, as a key, and to itself are three numbers more."
    )
    formula = (
        r"y_t = b_o + \sum_h \sum_s \mathrm{softmax}_s\!\left(\tfrac{1}{\sqrt{K}}\, q_{h,t} \cdot k_{h,s} "
        r"+ w_{bias}[\mathrm{index}(t, s), h]\right) v_{h,s}\, w_{o,h}, \qquad "
        r"\mathrm{index}(t, s) = (r_t - r_s + H - 1)(2 W - 1) + c_t - c_s + W - 1"
    )
    notation = {
        "H, W": "height, width; axis x has (2 H - 1)(2 W - 1) offsets and three rows for the class token",
        "r, c": "row and column of a patch: position t - prefix_tokens is r W + c",
        "relative_position_bias_table": "w_bias",
        "relative_position_bias": "position_bias, h t t",
        "cls to token, token to cls, cls to cls": "the last three rows, in this order: of query to key",
        "[CLS]": "the first position: prefix_tokens=1",
    }
    cost = (
        "time b t t h (k + v); memory h t t for the biases, b h t t on the textbook path and, in NumPy, for their "
        "gradients; x h parameters"
    )
    paper = (
        "Bao et al. 2021, BEiT: BERT Pre-Training of Image Transformers, arXiv:2106.08254, whose authors' code has the "
        "table; offsets as in Liu et al. 2021, Swin Transformer, arXiv:2103.14030, equation 4"
    )
    equals = (
        "mha with the table's numbers passed as bias=",
        "prefix_tokens=0: swin with one window as large as the grid, if b_k is 0 there",
    )
    traps = (
        "a query r rows below and c columns right of a key takes row (r + height - 1)(2 width - 1) + c + width - 1 of "
        "the table: query less key, and the columns' offsets run fastest",
        "the class token's rows are of the query first: class to patch, then patch to class",
        "a bias of keys adds one number to all scores of a query, which the softmax does not see: BEiT has none",
        "the table is for one grid: another size of image needs another table, which published code interpolates",
        "several tokens before the grid share the three rows here; timm's RelPosBias has at most one",
        "some models have one table for all layers: a table in each layer, all with the same numbers",
    )

    height: int
    width: int
    prefix_tokens: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_positive("height", "width")
        if not is_integer(self.prefix_tokens) or self.prefix_tokens < 0:
            expected = "prefix_tokens to be an integer from 0"
            raise field_error(self.variant, expected, repr(self.prefix_tokens), "set prefix_tokens=")

    def sizes(self) -> dict[str, int]:
        grid = {"n": self.height, "c": self.width, "t": self.prefix_tokens + self.height * self.width}
        offsets = (2 * self.height - 1) * (2 * self.width - 1)
        return super().sizes() | grid | {"x": offsets + (3 if self.prefix_tokens else 0)}

    def own_params(self) -> dict[str, Param]:
        params = super().own_params()
        params.pop("b_k", None)
        return params | {"w_bias": Param("x h", "x")}

    def why_no_cache(self) -> str:
        return "a grid that is seen as a whole"

    def broken_relations(self) -> dict[str, str]:
        added = "a part of the scores does not depend on the queries"
        return {
            "keys_have_no_order": "scores depend on places in the grid",
            "twice_the_scores_square_the_weights": added,
            "indifferent_scores_share_evenly": added,
        }


EXAMPLES = {
    "class token": Config(d_model=6, num_heads=2, output_dim=5, height=2, width=5, dropout=0.25),
    "patches": Config(
        d_model=5, num_heads=3, head_dim=2, value_head_dim=7, scale=0.75, use_bias=False, height=3, width=5,
        prefix_tokens=0,
    ),
    "registers": Config(d_model=6, num_heads=3, value_head_dim=5, height=2, width=4, prefix_tokens=3),
}  # fmt: skip
