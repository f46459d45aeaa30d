"""Terms: what is added to the scores as a function of the relative position, instead of an array of `t s`.

    y, _ = attend(q, k, v, causal=True, terms=terms.Slopes(slopes))

The t queries and s keys of a call, at consecutive positions, have t + s - 1 different relative positions. A term is
asked once in a forward pass, for the number that it adds at each of them, and the fast paths read these where a block
of scores needs them: memory grows linearly with the length, unless `offset` differs between sequences or PyTorch
compiles the call.

A term of your own has a method `bias(relative_position)`; JAX and PyTorch differentiate it. In NumPy a method
`bias_vjp` returns the gradients of its arrays.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attn_np.contract import _functions as functions_contract
from attn_torch.ops import Array, arange, dtype_name, signed, take, to_dtype, upcast
from attn_torch.ops.specs import checked_specs


class Term:
    """Something that is added to every score, after scale and softcap, by the relative position of its key."""

    def bias(self, relative_position: Array) -> Array:
        """What is added at each relative position, the key's minus the query's: integers `n` -> `h n`.

        That of an earlier key is below 0. The result may have the axes `1 n`, for all heads.
        """
        raise NotImplementedError(
            f"{type(self).__name__}: expected a method bias(relative_position), got none; write it"
        )


@dataclass(frozen=True, eq=False)
class Slopes(Term):
    """A score falls by its head's slope for each position of distance: ALiBi (Press et al. 2022, arXiv:2108.12409).

    Attributes:
        slopes: `h`, such as `alibi_slopes` returns, as an array.
    """

    slopes: Array

    def bias(self, relative_position: Array) -> Array:
        functions_contract.check_floats_by_axes(
            "Slopes", "slopes", "h", checked_specs("Slopes", slopes=self.slopes)["slopes"]
        )
        slopes = upcast(self.slopes)
        return -slopes[:, None] * to_dtype(abs(relative_position), dtype_name(slopes))


@dataclass(frozen=True, eq=False)
class Table(Term):
    """Numbers for each head and each bucket of relative positions: T5's bias, with `relative_buckets` as `bucket_of`.

    Attributes:
        table: `x h`, the numbers of bucket x.
        bucket_of: a function from relative positions, integers `n`, to their buckets, also `n`, from 0.
    """

    table: Array
    bucket_of: Callable[[Array], Array]

    def bias(self, relative_position: Array) -> Array:
        functions_contract.check_floats_by_axes(
            "Table", "table", "x h", checked_specs("Table", table=self.table)["table"]
        )
        return take(self.table, self.bucket_of(relative_position)).swapaxes(0, 1)


@dataclass(frozen=True)
class RelativeBias:
    """What the terms of a call add; its method `by_diagonal_or_pair` is a `relative_bias_fn` of `attention.attend`.

    Attributes:
        terms: one or several.
        offset: the first query's position, an integer, or one for each sequence, `b`; None: the last query is at the
            last key.
        q, k: those of the call.
    """

    terms: Any
    offset: Any
    q: Array
    k: Array

    @property
    def varies_by_sequence(self) -> bool:
        """Whether the same query and key may be at other relative positions in another sequence."""
        return len(getattr(self.offset, "shape", ())) > 0

    def each(self) -> Sequence[Term]:
        """The terms as a sequence."""
        return self.terms if isinstance(self.terms, list | tuple) else (self.terms,)

    def relative_positions(self) -> Array:
        """The key's position minus the query's on each diagonal of the scores, `1 n` or `b n`."""
        t, s = self.q.shape[1], self.k.shape[1]
        aligned = arange(max(1, t + s - 1), self.q) + (1 - s)
        if self.offset is None:
            return aligned[None]
        if not hasattr(self.offset, "shape"):
            return aligned[None] - (self.offset - (s - t))
        offset = signed(self.offset).reshape(-1, 1)
        return aligned[None] - (offset - (s - t))

    def diagonal_values(self) -> Array:
        """What is added on each diagonal, `1 h n`, `b h n`, or with an axis of 1 for all heads."""
        positions = self.relative_positions()
        heads, dtype = self.q.shape[2] if self.q.ndim == 4 else 1, dtype_name(upcast(self.q))
        parts = [to_dtype(checked_bias(term, positions.reshape(-1), heads), dtype) for term in self.each()]
        added = parts[0]
        for part in parts[1:]:
            added = added + part
        return added.reshape(added.shape[0], *positions.shape).swapaxes(0, 1)

    def by_diagonal_or_pair(self, relative_position: Array) -> Array:
        """What is added by diagonal, `1 1 n` -> `b h 1 n`, or by pair, `1 t s` -> `b h t s`.

        The argument only selects diagonals, counted as if the last query were at the last key; the positions
        themselves come from `relative_positions`.
        """
        added = self.diagonal_values()
        if relative_position.shape[1] == 1:  # of one query the diagonals are its pairs
            return added[:, :, None]
        return added[:, :, relative_position[0] + (relative_position.shape[2] - 1)]

    def diagonal_shape(self) -> tuple[int, ...]:
        """The shape of `diagonal_values` with an axis for queries, `b h 1 n`."""
        b, h, n = self.diagonal_values().shape
        return b, h, 1, n


def checked_bias(term: Term, positions: Array, heads: int) -> Array:
    """What a term adds at each relative position, `h n` or `1 n`.

    Raises:
        ValueError: it returns another shape.
        TypeError: it returns no array of floats.
    """
    added = term.bias(positions)
    name = type(term).__name__
    functions_contract.check_term_bias(
        name, checked_specs(name, **{"the result of bias": added})["the result of bias"], heads, positions
    )
    return added


def relative_bias_of(terms: Any, offset: Any, q: Array, k: Array) -> RelativeBias | None:
    """What the terms of a call add; None for no terms.

    Raises:
        TypeError: what is not a term.
    """
    functions_contract.check_terms(terms, Term)
    return None if terms is None or terms in ((), []) else RelativeBias(terms, offset, q, k)
