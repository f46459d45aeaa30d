"""Swin attention: windows of a grid, shifted in every second layer, with a learned bias for each offset."""

from dataclasses import dataclass

from attn_np.contract import _heads
from attn_np.contract._base import Arg, Param, field_error, is_integer


@dataclass(frozen=True, kw_only=True)
class Config(_heads.Heads):
    """Fields of Swin attention.

    Attributes:
        height: rows of the grid; they follow each other in the sequence.
        width: columns of the grid.
        window_size: rows and columns of a window.
        shift: how many positions the windows are moved down and right; half a window in every second layer.
    """

    class_name = "SwinAttention"
    family = "sparse"
    projects = {"w_bias": False}
    title = "Swin attention"
    idea = (
        "An image has too many patches for each to see all. Each sees those of its own window, and in the next layer "
        "the windows are moved by half their size, so that what a border kept apart meets. Within a window, every "
        "offset of rows and columns has a learned number that is added to the score."
    )
    formula = (
        r"y_t = b_o + \sum_h \sum_{s \in W(t)} \mathrm{softmax}_s\!\left(\tfrac{1}{\sqrt{K}}\, q_{h,t} \cdot k_{h,s} "
        r"+ w_{bias}[\Delta(t, s), h]\right) v_{h,s}\, w_{o,h}"
    )
    notation = {
        "M (window size)": "window_size; axis x has (2 M - 1)^2 offsets",
        "relative position bias B, table B^": "position_bias, w_bias",
        "W-MSA, SW-MSA": "shift=0, shift=window_size // 2",
        "cyclic shift": "the grid is rolled up and left, and its parts from opposite ends don't see each other",
    }
    cost = "time b t m h (k + v) for windows of m = window_size^2 positions; memory b t h (k + v)"
    paper = "Liu et al. 2021, Swin Transformer, arXiv:2103.14030, section 3.2 and equation 4"
    equals = ("a window as large as a square grid, without a shift, w_bias = 0: mha",)
    traps = (
        "after the cyclic shift a window holds rows from the top beside rows from the bottom: they must not see each "
        "other",
        "the output is rolled back: otherwise every layer moves the image",
        "a query y rows below and x columns right of a key takes row (y + M - 1)(2 M - 1) + x + M - 1 of the table",
        "a grid that windows don't fill is filled up with zeros by some libraries, and those zeros are seen: here "
        "windows must fill it",
        "where the grid is no larger than a window nothing is shifted",
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
    window_size: int
    shift: int = 0

    def __post_init__(self) -> None:
        self.check_positive(
            "d_model", "num_heads", "head_dim", "value_head_dim", "output_dim", "height", "width", "window_size"
        )
        self.check_number("scale")
        self.check_flag("use_bias")
        self.check_divisible("d_model", "num_heads", unless="head_dim")
        size, shift = self.window_size, self.shift
        if not is_integer(shift) or not 0 <= shift < size:
            raise field_error(self.variant, f"shift to be an integer from 0 to {size - 1}", repr(shift), "set shift=")
        got, fix = f"{self.height} x {self.width}", "fill the grid up before the layer, or change the window"
        fills = self.height % size == 0 and self.width % size == 0
        self.require(fills, f"height and width that windows of {size} fill", got, fix)

    def sizes(self) -> dict[str, int]:
        return super().sizes() | {
            "n": self.height,
            "c": self.width,
            "t": self.height * self.width,
            "x": (2 * self.window_size - 1) ** 2,
        }

    def own_params(self) -> dict[str, Param]:
        return super().own_params() | {"w_bias": Param("x h", "x")}

    def arguments(self) -> dict[str, Arg]:
        return {"query": Arg("b t d")}

    def why_no_cache(self) -> str:
        return "a grid that is seen as a whole"

    def relative_index(self) -> tuple[tuple[int, ...], ...]:
        """The row of the bias table for each query and key of a window."""
        size = self.window_size
        window = [(y, x) for y in range(size) for x in range(size)]
        return tuple(
            tuple((y - key_y + size - 1) * (2 * size - 1) + x - key_x + size - 1 for key_y, key_x in window)
            for y, x in window
        )


EXAMPLES = {
    "windows": Config(d_model=6, num_heads=2, output_dim=5, height=2, width=6, window_size=2),
    "shifted": Config(d_model=6, num_heads=2, height=6, width=6, window_size=2, shift=1),
    "wide": Config(
        d_model=5, num_heads=3, head_dim=5, value_head_dim=7, scale=0.75, use_bias=False, height=3, width=15,
        window_size=3, shift=2,
    ),
}  # fmt: skip
