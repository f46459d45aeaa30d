"""Swin attention: windows of a grid, shifted in every second layer, with a learned bias for each offset."""

from jaxtyping import Float

from attn_jax.attention.attend import attend_checked
from attn_jax.frame.call import LayerCall
from attn_jax.frame.layer import Layer
from attn_jax.ops import (
    Array,
    Tape,
    arange,
    broadcast_to,
    concatenate,
    linear,
    record,
    reorder,
    take,
    upcast,
    zeros,
)
from attn_np.contract._patterns import Documents
from attn_np.contract.swin import Config


def fill_up(x: Array, c: Config) -> Array:
    """A grid `b y x d` with zeros below and to the right, so that windows fill it."""
    (b, height, width, d), (rows, columns) = x.shape, c.filled_sides()
    if rows > height:
        x = concatenate([x, zeros((b, rows - height, width, d), x)], 1)
    return concatenate([x, zeros((b, rows, columns - width, d), x)], 2) if columns > width else x


def cyclic_shift(x: Array, down: int, right: int) -> Array:
    """A grid `b y x d` moved up and left; what leaves it comes in at the other side."""
    x = concatenate([x[:, down:], x[:, :down]], 1)
    return concatenate([x[:, :, right:], x[:, :, :right]], 2)


def to_windows(x: Array, c: Config) -> Array:
    """The windows of a grid as batch rows: `b y x d` -> `(b n) t d`; one axis at a time, so that a sharded batch stays
    sharded.
    """
    (rows, columns), (b, height, width, d) = c.window_sides(), x.shape
    # b (n y) (m x) d -> b n m y x d
    x = x.reshape(b, height // rows, rows, width, d)
    x = x.reshape(b, height // rows, rows, width // columns, columns, d).swapaxes(2, 3)
    return x.reshape(b * (height // rows) * (width // columns), rows, columns, d).reshape(-1, rows * columns, d)


def from_windows(x: Array, c: Config) -> Array:
    """The inverse of `to_windows`."""
    (rows, columns), (height, width), d = c.window_sides(), c.filled_sides(), x.shape[-1]
    b = x.shape[0] * rows * columns // (height * width)
    x = x.reshape(x.shape[0], rows, columns, d).reshape(b, height // rows, width // columns, rows, columns, d)
    # b n m y x d -> b (n y) (m x) d
    return x.swapaxes(2, 3).reshape(b, height, width // columns, columns, d).reshape(b, height, width, d)


def to_shifted_windows(x: Array, c: Config) -> Array:
    """The windows of a sequence, filled up and moved by the shift: `b t d` -> `(b n) t d`."""
    x = fill_up(x.reshape(x.shape[0], c.height, c.width, x.shape[-1]), c)
    return to_windows(cyclic_shift(x, *c.shifts()), c)


def from_shifted_windows(x: Array, c: Config) -> Array:
    """The inverse of `to_shifted_windows`: what fills the grid up is left out."""
    down, right = c.shifts()
    x = cyclic_shift(from_windows(x, c), -down, -right)[:, : c.height, : c.width]
    return x.reshape(x.shape[0], c.height * c.width, x.shape[-1])


def regions(b: int, c: Config, like: Array) -> Array:
    """The region of the grid that each position of a shifted window comes from, by number: `(b n) t`.

    The shift puts opposite ends of the grid into one window. Positions of one region were neighbours before it. Hidden
    filling is of other regions than the grid.
    """
    (rows, columns), (down, right) = c.filled_sides(), c.shifts()
    height, width = (c.height, c.width) if c.filling == "hidden" else (rows, columns)
    row, column = arange(rows, like), arange(columns, like)
    row, column = 2 * (row >= height) + (row < down), 2 * (column >= width) + (column < right)
    number = cyclic_shift((4 * row[:, None] + column)[None, :, :, None], down, right)
    return to_windows(broadcast_to(number, (b, rows, columns, 1)), c)[:, :, 0]


def relative_index(c: Config, like: Array) -> Array:
    """The row of the bias table for each query and key of a window: `t s`."""
    rows, columns = c.window_sides()
    position = arange(rows * columns, like)
    # Of two positions with these numbers, the difference says the offset of rows and that of columns.
    number = position // columns * (2 * columns - 1) + position % columns
    return number[:, None] - number + number[-1]


class SwinAttention(Layer[Config]):
    """Windows of a grid, shifted in every second layer, with a learned bias for each offset."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_o: Float[Array, "h v o"]
    w_bias: Float[Array, "x h"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None

    def __call__(self, query: Float[Array, "b t d"], *, tape: Tape = None, implementation: str = "auto") -> Array:
        c, call = self.config, LayerCall(self, tape=tape, query=query)
        x = record(tape, x=to_shifted_windows(upcast(query), c))
        q = linear("btd,dhk->bthk", x, self.w_q, self.b_q)
        k = linear("bsd,dhk->bshk", x, self.w_k, self.b_k)
        v = linear("bsd,dhv->bshv", x, self.w_v, self.b_v)
        index = record(tape, relative_index=relative_index(c, query))
        position_bias = record(tape, position_bias=reorder(take(self.w_bias, index, fits=True), (2, 0, 1)))
        region = regions(call.sizes["b"], c, query)
        context, _ = attend_checked(
            q, k, v, bias=position_bias, pattern=Documents(region, region) if c.has_regions() else None, scale=c.scale,
            tape=tape, implementation=implementation,
        )  # fmt: skip
        return call.end(from_shifted_windows(linear("bthv,hvo->bto", context, self.w_o, self.b_o), c))
