"""Axial attention: along the rows of a grid, then along its columns."""

from jaxtyping import Float

from attn_jax.attention.attend import attend_checked
from attn_jax.frame.call import LayerCall
from attn_jax.frame.layer import Layer
from attn_jax.ops import Array, Tape, linear, record, scope, upcast
from attn_np.contract.axial import Config

PARAMS = ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o")


def transpose_grid(x: Array, height: int, width: int) -> Array:
    """A grid whose rows are the sequences of a batch, transposed: then its columns are: `(b i) j d` -> `(b j) i d`."""
    b, d = x.shape[0] // height, x.shape[-1]
    return x.reshape(b, height, width, d).swapaxes(1, 2).reshape(b * width, height, d)


class AxialAttention(Layer[Config]):
    """Along the rows of a grid, then along its columns."""

    w_q_rows: Float[Array, "d h k"]
    w_k_rows: Float[Array, "d h k"]
    w_v_rows: Float[Array, "d h v"]
    w_o_rows: Float[Array, "h v d"]
    b_q_rows: Float[Array, "h k"] | None
    b_k_rows: Float[Array, "h k"] | None
    b_v_rows: Float[Array, "h v"] | None
    b_o_rows: Float[Array, "d"] | None
    w_q_columns: Float[Array, "d h k"]
    w_k_columns: Float[Array, "d h k"]
    w_v_columns: Float[Array, "d h v"]
    w_o_columns: Float[Array, "h v o"]
    b_q_columns: Float[Array, "h k"] | None
    b_k_columns: Float[Array, "h k"] | None
    b_v_columns: Float[Array, "h v"] | None
    b_o_columns: Float[Array, "o"] | None

    def attend_along(self, axis: str, x: Array, implementation: str, tape: Tape) -> Array:
        """Multi-head attention within each sequence, by the parameters of an axis, "rows" or "columns"."""
        w = {name: getattr(self, f"{name}_{axis}") for name in PARAMS}
        x = record(tape, x=x)
        q = linear("btd,dhk->bthk", x, w["w_q"], w["b_q"])
        k = linear("bsd,dhk->bshk", x, w["w_k"], w["b_k"])
        v = linear("bsd,dhv->bshv", x, w["w_v"], w["b_v"])
        context, _ = attend_checked(q, k, v, scale=self.config.scale, tape=tape, implementation=implementation)
        return record(tape, y=linear("bthv,hvo->bto", context, w["w_o"], w["b_o"]))

    def __call__(self, query: Float[Array, "b t d"], *, tape: Tape = None, implementation: str = "auto") -> Array:
        call = LayerCall(self, tape=tape, query=query)
        c, sizes = self.config, call.sizes
        # Two reshapes, each of one axis, so that a sharded batch stays sharded.
        x = upcast(query).reshape(sizes["b"], c.height, c.width, sizes["d"])
        x = x.reshape(sizes["b"] * c.height, c.width, sizes["d"])
        rows = self.attend_along("rows", x, implementation, scope(tape, "rows"))
        columns = transpose_grid(rows, c.height, c.width)
        columns = self.attend_along("columns", columns, implementation, scope(tape, "columns"))
        y = transpose_grid(columns, c.width, c.height).reshape(sizes["b"], c.height, c.width, sizes["o"])
        return call.end(y.reshape(sizes["b"], sizes["t"], sizes["o"]))
