"""Axial attention: along the rows of a grid, then along its columns."""

from dataclasses import dataclass

from attn_np.contract import _heads
from attn_np.contract._base import Arg, Param

GRID_AXES = ("rows", "columns")


@dataclass(frozen=True, kw_only=True)
class Config(_heads.Heads):
    """Fields of axial attention.

    Attributes:
        num_heads: how many heads attend along each axis.
        use_bias: biases on all projections.
        height: rows of the grid; they follow each other in the sequence.
        width: columns of the grid.
    """

    class_name = "AxialAttention"
    family = "sparse"
    title = "Axial attention"
    idea = (
        "On a grid of n x n positions full attention scores n^4 pairs. Attention within each row, followed by "
        "attention within each column, scores 2 n^3, and still every position hears of every other: what the row "
        "gathered, the column carries on."
    )
    formula = (
        r"r_{ij} = \mathrm{mha}_{rows}(x_{i\,\cdot})_j, \qquad y_{ij} = \mathrm{mha}_{columns}(r_{\cdot\, j})_i, "
        r"\qquad t = i\, W + j"
    )
    notation = {
        "S x S (shape of the tensor)": "height x width; W = width",
        "attention over axis k, row and column attention": "parameters that end in _rows and _columns",
    }
    cost = "time b t (height + width) h (k + v); memory b t h (k + v)"
    paper = (
        "Ho et al. 2019, Axial Attention in Multidimensional Transformers, arXiv:1912.12180, section 3.1; its "
        "transformer has a norm and a residual around each axis, which here belong to the block around the layer"
    )
    equals = (
        "height=1: mha, then w_v_columns and w_o_columns with their biases",
        "two layers of mha, on reshaped arrays",
    )
    traps = (
        "rows follow each other in the sequence: position i * width + j is row i, column j",
        "the columns attend to what the rows gave: two attentions beside each other, added up, are another layer",
        "positions of another row and column are two steps away: one axis alone never reaches them",
        "nothing here knows the order within a row: add an embedding for each axis before the layer",
    )

    d_model: int
    num_heads: int
    head_dim: int | None = None
    value_head_dim: int | None = None
    output_dim: int | None = None
    scale: float | None = None
    use_bias: bool = True
    height: int
    width: int

    def __post_init__(self) -> None:
        self.check_positive("d_model", "num_heads", "head_dim", "value_head_dim", "output_dim", "height", "width")
        self.check_number("scale")
        self.check_flag("use_bias")
        self.check_divisible("d_model", "num_heads", unless="head_dim")

    def sizes(self) -> dict[str, int]:
        return super().sizes() | {"n": self.height, "c": self.width, "t": self.height * self.width}

    def own_params(self) -> dict[str, Param]:
        own = super().own_params()
        # What the rows make is the input of the columns.
        between = {"w_o": Param("h v d", "h v"), "b_o": Param("d", "h v")}
        parts = {"rows": {name: between.get(name, param) for name, param in own.items()}, "columns": own}
        return {f"{name}_{axis}": param for axis in GRID_AXES for name, param in parts[axis].items()}

    def arguments(self) -> dict[str, Arg]:
        return {"query": Arg("b t d")}

    def broken_relations(self) -> dict[str, str]:
        return {"heads_stand_alone": "the heads of the columns read what all heads of the rows made"}

    def why_no_cache(self) -> str:
        return "a grid that is seen as a whole"


EXAMPLES = {
    "split": Config(d_model=6, num_heads=2, output_dim=11, height=5, width=7),
    "wide": Config(
        d_model=5, num_heads=3, head_dim=2, value_head_dim=7, scale=0.75, use_bias=False, height=11, width=2
    ),
}
