"""Swin attention: windows of a grid, shifted in every second layer, with a learned bias for each offset."""

from math import log
from typing import Any

from jaxtyping import Bool, Float

from attn_jax.attention.attend import attend_checked
from attn_jax.attention.masks import zero_unseen_inputs
from attn_jax.frame.call import LayerCall
from attn_jax.frame.layer import Layer, Output
from attn_jax.ops import (
    Array,
    Tape,
    arange,
    broadcast_to,
    concatenate,
    constants,
    einsum,
    exp,
    l2_normalize,
    linear,
    maximum,
    record,
    reorder,
    sigmoid,
    stack,
    take,
    upcast,
    where,
    zeros,
)
from attn_jax.positions.relative import grid_offsets
from attn_np.contract._patterns import Documents
from attn_np.contract.swin import Config

# Of Swin V2: the largest logarithm of a scale, the largest bias, and the square of the smallest length.
LARGEST, MOST_BIAS, SMALLEST = log(100), 16.0, 1e-24


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


def shown_keys(mask: Array | None, b: int, c: Config) -> Array | None:
    """The mask of keys for each window, `(b n) 1 1 s`; what fills the grid up is not hidden by it. None for all."""
    if mask is None:
        return None
    hidden = broadcast_to(mask, (b, c.height * c.width))[..., None] ^ True
    return to_shifted_windows(hidden, c)[:, None, None, :, 0] ^ True


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


def cosine_scale(logarithms: Array) -> Array:
    """The factor of each head's cosines, at most 100: `h`."""
    logarithms = upcast(logarithms)
    return exp(where(logarithms <= LARGEST, logarithms, LARGEST))


def added_to_squares(b: int, c: Config, like: Array) -> Array:
    """What is added to the squared lengths of keys: `(b n) s 1 1`; 1 for those that fill the grid up.

    Keys have no bias in Swin V2, so those of zeros have no direction: they stay 0, with gradients of usual size.
    """
    marks = to_shifted_windows(zeros((b, c.height * c.width, 1), like) + 1.0, c)
    return (1.0 - marks + SMALLEST)[..., None]


def log_offsets(c: Config, like: Array) -> Array:
    """The offsets of rows and columns that the rows of the bias table stand for, spaced logarithmically: `x a`."""
    down, right = (constants(offsets, like) for offsets in c.log_offsets())
    shape = (*down.shape, *right.shape)
    return stack([broadcast_to(down[:, None], shape), broadcast_to(right, shape)], -1).reshape(-1, 2)


class SwinAttention(Layer[Config]):
    """Windows of a grid, shifted in every second layer, with a learned bias for each offset."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_o: Float[Array, "h v o"]
    w_bias: Float[Array, "x h"] | None
    b_q: Float[Array, "h k"] | None
    b_k: Float[Array, "h k"] | None
    b_v: Float[Array, "h v"] | None
    b_o: Float[Array, "o"] | None
    w_log_scale: Float[Array, "h"] | None
    w_bias_in: Float[Array, "a e"] | None
    b_bias_in: Float[Array, "e"] | None
    w_bias_out: Float[Array, "e h"] | None

    def __call__(
        self,
        query: Float[Array, "b t d"],
        *,
        mask: Bool[Array, "..."] | None = None,
        tape: Tape = None,
        implementation: str = "auto",
        return_weights: bool = False,
    ) -> Output:
        """The grid after its windows; with `return_weights` the weights within each window, too: `b h n t s`.

        Args:
            query: the positions of the grid, row by row.
            mask: broadcastable to `b t`; False = a position of the grid that nothing sees, such as padding.
            tape: a dictionary that gets every named intermediate.
            implementation: "auto", "textbook" or "fused"; see `attend`.
            return_weights: return (y, weights). The n windows follow each other row by row, as the positions in each
                do, after the shift, and what fills the grid up is among them.
        """
        c, call = self.config, LayerCall(self, tape=tape, return_weights=return_weights, query=query, mask=mask)
        region = regions(call.sizes["b"], c, query)
        masking: Any = {"mask": shown_keys(mask, call.sizes["b"], c)}
        masking["pattern"] = Documents(region, region) if c.has_regions() else None
        windows = to_shifted_windows(upcast(query), c)
        query, key, value = zero_unseen_inputs(tape, "bhts", windows, **masking)
        q = linear("btd,dhk->bthk", query, self.w_q, self.b_q)
        k = linear("bsd,dhk->bshk", key, self.w_k, self.b_k)
        v = linear("bsd,dhv->bshv", value, self.w_v, self.b_v)
        if self.w_log_scale is not None:
            q, k = record(tape, q_proj=q, k_proj=k)
            added = added_to_squares(call.sizes["b"], c, windows)
            q, k = record(tape, q_norm=l2_normalize(q, SMALLEST), k_norm=l2_normalize(k, added))
            q = q * cosine_scale(self.w_log_scale)[:, None]
        table = self.bias_table(tape, log_offsets(c, windows)) if self.w_bias is None else self.w_bias
        index = record(tape, relative_index=grid_offsets(*c.window_sides(), 0, query))
        position_bias = record(tape, position_bias=reorder(take(table, index, fits=True), (2, 0, 1)))
        context, weights = attend_checked(
            q, k, v, **masking, bias=position_bias, scale=1.0 if c.scale is None and c.version == 2 else c.scale,
            tape=tape, implementation=implementation, return_weights=return_weights,
        )  # fmt: skip
        if weights is not None:  # (b n) h t s -> b h n t s
            (high, wide), (rows, columns) = c.filled_sides(), c.window_sides()
            shape = (call.sizes["b"], high * wide // (rows * columns), *weights.shape[1:])
            call.weights = weights.reshape(shape).swapaxes(1, 2)
        return call.end(from_shifted_windows(linear("bthv,hvo->bto", context, self.w_o, self.b_o), c))

    def bias_table(self, tape: Tape, offsets: Array) -> Array:
        """A number for each offset and head by the network of Swin V2: `x a` -> `x h`."""
        hidden = einsum("xa,ae->xe", offsets, upcast(self.w_bias_in)) + upcast(self.b_bias_in)
        offsets, hidden = record(tape, log_offsets=offsets, bias_hidden=hidden)
        share = sigmoid(einsum("xe,eh->xh", maximum(hidden, 0.0), upcast(self.w_bias_out)))
        return MOST_BIAS * record(tape, bias_share=share)
