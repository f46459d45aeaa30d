"""`recur` as users call it: linear recurrences by four rules, in chunks or position by position."""

from math import sqrt

from attn_jax.attention.functions import to_python_scalar
from attn_jax.ops import (
    Array,
    Tape,
    broadcast_to,
    concatenate,
    dtype_name,
    known_range,
    to_dtype,
    upcast,
    where,
    zeros,
)
from attn_jax.ops.specs import checked_specs
from attn_jax.recurrence.rules import chunk_size_for, recurrence
from attn_np.contract import _recur as recur_contract


def recur(
    q: Array,
    k: Array,
    v: Array,
    *,
    rule: str = "linear",
    beta: Array | None = None,
    decay: Array | None = None,
    state: Array | None = None,
    documents: Array | None = None,
    erase_key: Array | None = None,
    form: str = "auto",
    chunk_size: int = 64,
    scale: float | None = None,
    tape: Tape = None,
) -> tuple[Array, Array]:
    """The outputs of a state that sums up keys times values, `b t h v`, and the last state, `b g k v`.

    Each position decays the state, removes what it holds for the position's key where the rule says so, writes, and its
    query reads:

        S_t = decay_t S_{t-1} + beta_t k_t (v_t - erased_t)^T,  y_t = scale S_t^T q_t

    with erased_t = (decay_t S_{t-1})^T e_t by a delta rule, where e_t is `erase_key` or k_t, and 0 by the others. Keys
    and values may have fewer heads than the queries, g for h: query head i then reads state i // r, where r query heads
    share one.

    In chunks a decay is never the quotient of two products, which overflow and underflow. A chunk is halved, and what a
    key of the earlier half weighs for a query of the later one is the product of its decays to the middle and of the
    query's from there: both are at most 1, and a decay may be 0.

    Args:
        q, k, v: queries `b t h k`, keys `b t g k`, values `b t g v`; 16 bits are computed in float32, rounded once.
        rule: "linear": the state adds up; "gated": it decays (retention, GLA, Lightning Attention, Mamba 2); "delta":
            the old value of a key is erased before the new one is written; "gated_delta": both (Gated DeltaNet, Kimi
            delta attention), and the state decays first.
        beta: `b t g`, what share of a value is written; 1 by default. By a delta rule keys should have norm 1 and
            beta be at most 2: else the state grows.
        decay: factors of the state at each position, from 0 to 1, of the gated rules: `g` for each head,
            `g k` for each channel of the keys, `b t g` or `b t g k` by position too. A position that is padding has
            decay 1 and a key of 0.
        state: `b g k v`, the one before the first position; 0 by default. In float32 for 16-bit arrays, as the returned
            one is, with which the next call goes on.
        documents: integers, `b t`: the number of each position's document, of sequences that are packed into one row.
            The state is empty again where the number changes; the first position goes on with `state`.
        erase_key: `b t g k`, by a delta rule the key whose value is removed, if it is not k: the removal key of RWKV-7,
            that of Comba. The state grows unless beta e_t^T k_t is from 0 to 2.
        form: how it is computed, with the same result: "recurrent" passes the state from position to position,
            "chunked" from chunk to chunk with matrix products inside, and "parallel" takes the sequence as one chunk.
            "auto" is "recurrent" for one position, "chunked" for more than `chunk_size`, and else "parallel"; a
            `torch.export` program for any length is "parallel", too.
        chunk_size: how many positions a chunk has; the last one may have fewer.
        scale: 1/sqrt(K) by default.
        tape: gets scores, key_products, inverse, w, u and v_new of the chunks, the states after each and the
            states_before before each; or v_new of the positions and the states after each. By the letters of the WY
            form of Yang et al. 2024 (arXiv:2406.06484), U - W S, u is what a chunk would write into an empty state, w
            what it removes from the state, and v_new = u - w @ state what it writes.

    Raises:
        ValueError: shapes that do not fit, an unknown rule or form, or a decay that the rule has no use for or that is
            outside 0 to 1, where its values are known.
        TypeError: dtypes that do not fit.
    """
    array_specs = checked_specs(
        "recur", q=q, k=k, v=v, beta=beta, decay=decay, state=state, documents=documents, erase_key=erase_key
    )
    recur_contract.check_qkv_present(array_specs)
    scale, chunk_size = to_python_scalar(scale), to_python_scalar(chunk_size)
    recur_contract.check_recur(array_specs, rule, form, chunk_size, scale, dtype_name(upcast(q)))
    recur_contract.check_decay(None if decay is None else known_range(decay))
    arguments = recurrence_inputs(q, k, v, beta, decay, state, documents, scale)
    positions_per_chunk = chunk_size_for(form, chunk_size, q.shape[1])
    delta_rule, erase_key = recur_contract.has_delta_rule(rule), upcast(erase_key)
    y, final_state = recurrence(*arguments, positions_per_chunk, delta_rule, tape, erase_key)
    return to_dtype(y, dtype_name(q)), final_state


def recurrence_inputs(
    q: Array,
    k: Array,
    v: Array,
    beta: Array | None,
    decay: Array | None,
    state: Array | None,
    documents: Array | None,
    scale: float | None,
) -> tuple[Array, Array, Array, Array | None, Array | None, Array]:
    """The arguments of `recurrence`: scaled queries, decays by position with an axis of channels, a first state."""
    (b, t, g, width), dtype = k.shape, dtype_name(upcast(q))
    q, k, v = upcast(q) * (1 / sqrt(width) if scale is None else scale), upcast(k), upcast(v)
    beta, decay = (x if x is None else to_dtype(x, dtype) for x in (beta, decay))
    if decay is not None:
        decay = decay if decay.ndim % 2 == 0 else decay[..., None]
        decay = decay if decay.ndim == 4 else broadcast_to(decay, (b, t, *decay.shape))
    if documents is not None:
        decay = where(begins_document(documents), 0.0, 1.0 + zeros((b, t, g, 1), k) if decay is None else decay)
    return q, k, v, beta, decay, zeros((b, g, width, v.shape[3]), q) if state is None else state


def begins_document(documents: Array) -> Array:
    """The positions whose document is another than that of the position before, `b t 1 1`; never the first."""
    changes = documents[:, 1:] != documents[:, :-1]
    return concatenate([documents[:, :1] != documents[:, :1], changes], 1)[:, :, None, None]
