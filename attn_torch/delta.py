"""Delta rule: a key's old value is taken out of the state before the new one is written."""

from jaxtyping import Bool, Float

from attn_np.contract.delta import Config
from attn_torch._decode import DecodeStep, read_state, real_positions, write_state
from attn_torch._layer import Layer, output
from attn_torch._masks import zero_unseen
from attn_torch._ops import (
    Array,
    Tape,
    arange,
    concatenate,
    dtype_name,
    einsum,
    l2_norm,
    linear,
    record,
    rms_norm,
    scan,
    sigmoid,
    silu,
    upcast,
    where,
    zeros,
)
from attn_torch.linear import earlier, folded, unfolded


def units(b: int, t: int, like: Array) -> Array:
    """Rows of the identity: `b t s`."""
    same = arange(t, like)[:, None] == arange(t, like)[None, :]
    return where(same, 1.0 + zeros((b, t, t), like), 0.0)


def inverse(pairs: Array, tape: Tape) -> Array:
    """(I + A)^-1 of what stands below the diagonal, row by row: a row is its unit less A times the rows before it."""
    b, t, h, _ = pairs.shape

    def step(rows, xs):
        pair, unit = xs
        row = unit[:, None] - einsum("bhs,bhsj->bhj", pair, rows)
        return rows + unit[:, None, :, None] * row[:, :, None], (row,)

    xs = pairs, units(b, t, pairs)
    _, (found,) = scan(step, zeros((b, h, t, t), pairs), xs, names=("inverse",), tape=tape)
    return found


def chunked(q: Array, k: Array, v: Array, beta: Array, start: Array, size: int, tape: Tape) -> tuple[Array, Array]:
    """States walk from chunk to chunk; within one, what each key writes follows from a triangular system.

    Its solution is linear in the state before the chunk: corrected = writing - erasing state.
    """
    b, t = q.shape[0], q.shape[1]
    q, k, v, beta = folded(q, size), folded(k, size), folded(v, size), folded(beta, size)[..., None]
    lower = arange(size, q)[:, None] > arange(size, q)[None, :]
    # t 1 s: below the diagonal, for all heads
    pairs = where(lower[:, None], einsum("bthk,bshk->bths", k * beta, k), 0.0)
    solved = inverse(record(tape, pairs=pairs), tape)
    erasing, writing = einsum("bths,bshk->bthk", solved, k * beta), einsum("bths,bshv->bthv", solved, v * beta)
    erasing, writing = record(tape, erasing=erasing, writing=writing)

    def step(state, xs):
        k, erasing, writing = xs
        corrected = writing - einsum("bchk,bhkv->bchv", erasing, state)
        state = state + einsum("bchk,bchv->bhkv", k, corrected)
        return state, (corrected, state)

    # (b n) c ... -> b n c ...
    xs = tuple(x.reshape(b, -(-t // size), *x.shape[1:]) for x in (k, erasing, writing))
    end, (corrected, states) = scan(step, start, xs, names=("corrected", "states"), tape=tape)
    before = concatenate([start[:, None], states], 1)[:, :-1].reshape(q.shape[0], *start.shape[1:])
    before = record(tape, before=before)
    scores = record(tape, scores=einsum("bthk,bshk->bhts", q, k))
    kept = record(tape, kept=where(earlier(size, q), scores, 0.0))
    read = einsum("bhts,bshv->bthv", kept, corrected.reshape(v.shape)) + einsum("bthk,bhkv->bthv", q, before)
    return unfolded(read, b, t), end


def recurrent(q: Array, k: Array, v: Array, beta: Array, start: Array, tape: Tape) -> tuple[Array, Array]:
    """At every position the key's value is looked up, and a share of the difference to the new one is written."""

    def step(state, xs):
        k, v, beta = xs
        corrected = beta[..., None] * (v - einsum("bhk,bhkv->bhv", k, state))
        state = state + einsum("bhk,bhv->bhkv", k, corrected)
        return state, (corrected, state)

    end, (_, states) = scan(step, start, (k, v, beta), names=("corrected", "states"), tape=tape)
    return einsum("bthk,bthkv->bthv", q, states), end


class DeltaRule(Layer[Config]):
    """A key's old value is taken out of the state before the new one is written."""

    w_q: Float[Array, "d h k"]
    w_k: Float[Array, "d h k"]
    w_v: Float[Array, "d h v"]
    w_beta: Float[Array, "d h"]
    w_o: Float[Array, "h v d"]
    w_norm: Float[Array, "v"] | None

    def forward(
        self,
        query: Float[Array, "b t d"],
        *,
        mask: Bool[Array, "..."] | None = None,
        tape: Tape = None,
        step: DecodeStep | None = None,
    ) -> Array:
        """Where the padding mask is False a position is not there: it changes no state, and its context is 0."""
        n = self.check(query=query, mask=mask)
        c, dtype = self.config, dtype_name(query)
        x, real = record(tape, x=upcast(query), real=real_positions(mask, step))
        x = record(tape, seen_query=zero_unseen("bt->btd", real, x))
        q = linear("btd,dhk->bthk", x, self.w_q, None)
        k = linear("btd,dhk->bthk", x, self.w_k, None)
        v = linear("btd,dhv->bthv", x, self.w_v, None)
        q, k, v = record(tape, q=q, k=k, v=v)
        beta = record(tape, beta=sigmoid(linear("btd,dh->bth", x, self.w_beta, None)))
        q_unit = zero_unseen("bt->bthk", real, l2_norm(silu(q), c.eps))
        k_unit = zero_unseen("bt->bthk", real, l2_norm(silu(k), c.eps))
        q_unit, k_unit = record(tape, q_unit=q_unit, k_unit=k_unit)
        start = read_state(step, "state", zeros((n["b"], n["h"], n["k"], n["v"]), q))
        if c.form == "recurrent":
            context, end = recurrent(q_unit, k_unit, v, beta, start, tape)
        else:
            size = c.chunk_size if c.form == "chunked" else max(n["t"], 1)
            context, end = chunked(q_unit, k_unit, v, beta, start, size, tape)
        write_state(step, state=end)
        context = record(tape, context=context)
        normed = record(tape, normed=rms_norm(context, self.w_norm, c.eps) if c.use_norm else context)
        y = record(tape, y=linear("bthv,hvd->btd", normed, self.w_o, None))
        return output(dtype, y)
