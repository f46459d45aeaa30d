"""Swin attention: windows of a grid, shifted in every second layer, with a learned bias for each offset."""

from jaxtyping import Float

from attn_np.contract._patterns import Documents
from attn_np.contract.swin import Config
from attn_torch._attend import attend
from attn_torch._layer import Layer, cast_output
from attn_torch._ops import (
    Array,
    Tape,
    arange,
    broadcast_to,
    concatenate,
    constants,
    dtype_name,
    linear,
    record,
    reorder,
    take,
    upcast,
)


def roll(x: Array, by: int) -> Array:
    """A grid `b y x d` moved up and left; what leaves it comes in at the other side."""
    x = concatenate([x[:, by:], x[:, :by]], 1)
    return concatenate([x[:, :, by:], x[:, :, :by]], 2)


def to_windows(x: Array, c: Config) -> Array:
    """The windows of a grid as batch rows: `b y x d` -> `(b n) t d`."""
    size, (b, height, width, d) = c.window_size, x.shape
    # b (n y) (m x) d -> b n m y x d
    x = x.reshape(b, height // size, size, width // size, size, d).swapaxes(2, 3)
    return x.reshape(b * (height // size) * (width // size), size * size, d)


def from_windows(x: Array, c: Config) -> Array:
    """The inverse of `to_windows`."""
    size, d = c.window_size, x.shape[-1]
    x = x.reshape(x.shape[0] * size * size // (c.height * c.width), c.height // size, c.width // size, size, size, d)
    # b n m y x d -> b (n y) (m x) d
    return x.swapaxes(2, 3).reshape(x.shape[0], c.height, c.width, d)


def shifted_windows(x: Array, c: Config) -> Array:
    """The windows of a sequence, `b t d` -> `(b n) t d`, moved by the shift."""
    return to_windows(roll(x.reshape(x.shape[0], c.height, c.width, x.shape[-1]), c.shift), c)


def sequence(x: Array, c: Config) -> Array:
    """The inverse of `shifted_windows`."""
    x = roll(from_windows(x, c), -c.shift)
    return x.reshape(x.shape[0], c.height * c.width, x.shape[-1])


def sides(b: int, c: Config, like: Array) -> Array:
    """From which side of the grid each position of a window comes, as a number: `(b n) t`. Positions that the shift
    brought in at the other side lie in one window with those that were there.
    """
    row, column = arange(c.height, like) >= c.height - c.shift, arange(c.width, like) >= c.width - c.shift
    number = (2 * row[:, None] + column)[None, :, :, None]
    return to_windows(broadcast_to(number, (b, c.height, c.width, 1)), c)[:, :, 0]


class SwinAttention(Layer[Config]):
    """Windows of a grid, shifted in every second layer, with a learned bias for each offset."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_o: Float[Array, "h v d"]
    w_bias: Float[Array, "x h"]
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "d"] | None

    def forward(self, query: Float[Array, "b t d"], *, tape: Tape = None, implementation: str = "auto") -> Array:
        sizes = self.check(query=query)
        c, dtype = self.config, dtype_name(query)
        x = record(tape, x=shifted_windows(upcast(query), c))
        q = linear("btd,dhk->bthk", x, self.w_q, self.b_q)
        k = linear("bsd,dhk->bshk", x, self.w_k, self.b_k)
        v = linear("bsd,dhv->bshv", x, self.w_v, self.b_v)
        offset = record(tape, offset=constants(c.offsets(), arange(1, query)))
        position_bias = record(tape, position_bias=reorder(take(self.w_bias, offset), (2, 0, 1)))
        side = sides(sizes["b"], c, query)
        context, _ = attend(
            q, k, v, bias=position_bias, pattern=Documents(side, side) if c.shift else None, scale=c.scale, tape=tape,
            implementation=implementation,
        )  # fmt: skip
        y = record(tape, y=sequence(linear("bthv,hvd->btd", context, self.w_o, self.b_o), c))
        return cast_output(dtype, y)
