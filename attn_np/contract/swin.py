"""Swin attention: windows of a grid, shifted in every second layer, with a learned bias for each offset."""

from dataclasses import dataclass
from math import copysign, log, log2
from reprlib import repr as short
from typing import Any

from attn_np.contract import _heads
from attn_np.contract._base import Arg, Param, field_error, is_integer


def pair(value: Any) -> Any:
    """A number for both sides as two, and two as they are."""
    return value if isinstance(value, tuple) else (value, value)


@dataclass(frozen=True, kw_only=True)
class Config(_heads.Heads):
    """Fields of Swin attention.

    Attributes:
        height: rows of the grid; they follow each other in the sequence.
        width: columns of the grid.
        window_size: rows and columns of a window: a number, or a pair (rows, columns).
        shift: how many positions the windows are moved down and right: a number, or a pair (down, right); half a window
            in every second layer.
        version: 1: Swin; 2: Swin V2: the score is the cosine of query and key times a learned number for each head, at
            most 100, keys have no bias, and a network of two layers gives the numbers for the offsets.
        hidden_dim: hidden units of that network.
        pretrained_window_size: offsets count as shares of a window of this size, that of earlier training; window_size
            by default. With version=2.
        scale: factor on the scores; 1/sqrt(head_dim) by default, in version 2 1.0.
        use_bias: biases on the four projections, in version 2 on all but that of keys.
        filling: rows of zeros below the grid and columns to its right, until windows fill it: "seen": their keys and
            values are the biases, and every position of their window sees them; "hidden": no position sees them.
    """

    class_name = "SwinAttention"
    family = "sparse"
    projects = {"w_bias": False, "w_bias_in": False, "w_bias_out": False}
    title = "Swin attention"
    idea = (
        "An image has too many patches for each to see all. Each sees those of its own window, and in the next layer "
        "the windows are moved by half their size, so that what a border kept apart meets. Within a window, every "
        "offset of rows and columns has a learned number that is added to the score."
    )
    formula = (
        r"y_t = b_o + \sum_h \sum_{s \in W(t)} \mathrm{softmax}_s\!\left(\tfrac{1}{\sqrt{K}}\, q_{h,t} \cdot k_{h,s} "
        r"+ w_{bias}[\Delta(t, s), h]\right) v_{h,s}\, w_{o,h}, \qquad"
        r"\text{version 2: } \mathrm{softmax}_s\!\left(\min(e^{w_{log\_scale,h}}, 100) \cos(q_{h,t}, k_{h,s}) "
        r"+ 16\, \sigma(\mathrm{relu}(\Delta(t, s)\, w_{in} + b_{in})\, w_{out,h})\right)"
    )
    notation = {
        "M (window size)": "window_size; axis x has (2 M - 1)^2 offsets, or (2 rows - 1)(2 columns - 1)",
        "relative position bias B, table B^": "position_bias, w_bias",
        "cos(q, k) / tau (Swin V2)": "version=2; 1 / tau = exp(w_log_scale), at most 100",
        "logit_scale, cpb_mlp (code of Swin V2)": "w_log_scale; w_bias_in, b_bias_in, w_bias_out",
        "log-spaced continuous position bias": "bias_table = 16 sigmoid(...), of offsets sign(x) log2(1 + 8 |x|) / 3",
        "W-MSA, SW-MSA": "shift=0, shift=window_size // 2",
        "padding (torchvision, timm, transformers)": 'filling="seen"',
        "attentions (transformers)": "return_weights=True, b h n t s: n windows, there rows of the batch",
        "cyclic shift": "the grid is rolled up and left, and its parts from opposite ends don't see each other",
    }
    cost = "time b t m h (k + v) for windows of m = window_size^2 positions; memory b t h (k + v)"
    paper = (
        "Liu et al. 2021, Swin Transformer, arXiv:2103.14030, section 3.2 and equation 4; Liu et al. 2021, Swin "
        "Transformer V2, arXiv:2111.09883, sections 3.2 and 3.3 (version=2), whose code has the hidden width 512, the "
        "offsets' factor 8 and 16 sigmoid"
    )
    equals = ("a window as large as a square grid, without a shift, w_bias = 0: mha",)
    traps = (
        "after the cyclic shift a window holds rows from the top beside rows from the bottom: they must not see each "
        "other",
        "the output is rolled back: otherwise every layer moves the image",
        "a query y rows below and x columns right of a key takes row (y + M - 1)(2 M - 1) + x + M - 1 of the table, "
        "where the second 2 M - 1 counts columns",
        "zeros that fill the grid up are no zeros as keys: after the projections they are the biases, and published "
        "code, which adds them after the norm, lets every position of their window see them",
        "a mask is of the grid's positions: fill it up and shift it as the grid is, before it is cut into windows",
        "Swin V2 norms after attention: the layer's input is the block's",
        "the learned number of a head in version 2 is the logarithm of its scale, and is clamped before exp",
        "published code doesn't shift along a side that is no larger than the window, some of it along neither side "
        "then: here shift says it, as in shift=(0, 3)",
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
    window_size: int | tuple[int, int]
    shift: int | tuple[int, int] = 0
    filling: str = "seen"
    version: int = 1
    hidden_dim: int = 512
    pretrained_window_size: int | tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.check_positive("d_model", "num_heads", "head_dim", "value_head_dim", "output_dim", "height", "width")
        self.check_number("scale")
        self.check_flag("use_bias")
        self.check_divisible("d_model", "num_heads", unless="head_dim")
        self.check_sides("window_size", "of at least 1, or a pair (rows, columns)", 1)
        low, most = min(self.window_sides()) - 1, tuple(n - 1 for n in self.window_sides())
        self.check_sides("shift", f"from 0 to {low}, or a pair (down, right) up to {most}", 0, most)
        self.check_one_of("filling", ("seen", "hidden"))
        is_version = is_integer(self.version) and self.version in (1, 2)
        self.require(is_version, "version to be 1 or 2", short(self.version), "set version=")
        self.check_positive("hidden_dim")
        if self.pretrained_window_size is not None:
            self.check_sides("pretrained_window_size", "of at least 2, or a pair (rows, columns), or None", 2)
            fix = "leave pretrained_window_size= out, or set version=2"
            self.require(self.version == 2, "pretrained_window_size to be None in version 1", "a size", fix)

    def check_sides(self, name: str, expected: str, least: int, most: tuple[int, ...] = ()) -> None:
        """The named field is an integer or two, from `least` to `most`."""
        value = getattr(self, name)
        sides = pair(value)
        fits = isinstance(sides, tuple) and len(sides) == 2 and all(is_integer(n) and n >= least for n in sides)
        if not fits or any(n > m for n, m in zip(sides, most, strict=False)):
            raise field_error(self.variant, f"{name} to be an integer {expected}", short(value), f"set {name}=")

    def window_sides(self) -> tuple[int, int]:
        """Rows and columns of a window."""
        return pair(self.window_size)

    def shifts(self) -> tuple[int, int]:
        """How many positions the windows are moved down and right."""
        return pair(self.shift)

    def pretrained_sides(self) -> tuple[int, int]:
        """Rows and columns of the window whose shares the offsets count."""
        return pair(self.pretrained_window_size or self.window_size)

    def scale_or_default(self, width: int) -> float:
        return 1.0 if self.scale is None and self.version == 2 else super().scale_or_default(width)

    def log_offsets(self) -> tuple[tuple[float, ...], ...]:
        """Every offset of rows, and every offset of columns, as the network of version 2 reads them."""
        sides = zip(self.window_sides(), self.pretrained_sides(), strict=True)
        shares = ([8 * n / max(whole - 1, 1) for n in range(1 - side, side)] for side, whole in sides)
        return tuple(tuple(copysign(log2(1 + abs(x)) / log2(8), x) for x in axis) for axis in shares)

    def filled_sides(self) -> tuple[int, int]:
        """Rows and columns of the grid that windows fill."""
        rows, columns = self.window_sides()
        return -(-self.height // rows) * rows, -(-self.width // columns) * columns

    def has_regions(self) -> bool:
        """Whether a window may hold positions that don't see each other."""
        hidden = self.filling == "hidden" and self.filled_sides() != (self.height, self.width)
        return hidden or self.shifts() != (0, 0)

    def broken_relations(self) -> dict[str, str]:
        if self.version == 1:
            return {}
        return {
            "the_default_scale_is_that_of_the_head": "of cosines it is 1: w_log_scale is learned",
            "the_scale_belongs_to_the_queries": "larger queries have the same cosines",
        }

    def meaning(self) -> dict[str, Any]:
        values = super().meaning() | {"window_size": self.window_sides(), "shift": self.shifts()}
        values["pretrained_window_size"] = self.pretrained_sides()
        if self.filled_sides() == (self.height, self.width):
            values.pop("filling")
        return values

    def sizes(self) -> dict[str, int]:
        rows, columns = self.window_sides()
        grid = {"n": self.height, "c": self.width, "t": self.height * self.width}
        network = {"a": 2, "e": self.hidden_dim} if self.version == 2 else {}
        return super().sizes() | grid | {"x": (2 * rows - 1) * (2 * columns - 1)} | network

    def own_params(self) -> dict[str, Param]:
        params = super().own_params()
        if self.version == 1:
            return params | {"w_bias": Param("x h", "x")}
        params.pop("b_k", None)
        return params | {
            "w_log_scale": Param("h", "h", init=log(10)),
            "w_bias_in": Param("a e", "a"),
            "b_bias_in": Param("e", "a"),
            "w_bias_out": Param("e h", "e"),
        }

    def arguments(self) -> dict[str, Arg]:
        return {"query": Arg("b t d"), "mask": Arg("b t", "mask", optional=True)}

    def why_no_cache(self) -> str:
        return "a grid that is seen as a whole"


EXAMPLES = {
    "windows": Config(d_model=6, num_heads=2, output_dim=5, height=2, width=6, window_size=2),
    "wide": Config(
        d_model=5, num_heads=3, head_dim=5, value_head_dim=7, scale=0.75, use_bias=False, height=3, width=15,
        window_size=3, shift=2,
    ),
    "filled": Config(d_model=6, num_heads=2, value_head_dim=5, height=3, width=7, window_size=(2, 3), shift=(1, 2)),
    "hidden": Config(
        d_model=7, num_heads=3, head_dim=5, height=5, width=3, window_size=(3, 2), shift=(1, 0), filling="hidden"
    ),
    "second version": Config(
        d_model=5, num_heads=2, head_dim=3, value_head_dim=11, height=3, width=5, window_size=(3, 2), shift=(0, 1),
        version=2, hidden_dim=7, pretrained_window_size=(4, 5),
    ),
}  # fmt: skip
