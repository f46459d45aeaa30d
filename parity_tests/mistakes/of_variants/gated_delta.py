"""Mistakes that stand in gated_delta's own file, or that its examples alone can show."""

from typing import Any

from parity_tests.mistakes.plant import SHARED, Mutant
from parity_tests.mistakes.weights import WIDE, rounded


def planted(name: str, fix: str, old: str, new: str, example: str, **own: Any) -> Mutant:
    return Mutant(name, "gated_delta.py", old, new, "gated_delta", example, fix=fix, **own)


def convolved(name: str, fix: str, old: str, new: str, example: str, **own: Any) -> Mutant:
    return Mutant(name, SHARED, old, new, "gated_delta", example, fix=fix, **own)


BODY = """\
        state = decay[:, :, None, None] * state
        v_new = beta[..., None] * (v - einsum("bhk,bhkv->bhv", k, state))
        state = state + einsum("bhk,bhv->bhkv", k, v_new)
        return state, (v_new, state)
"""
FADED_AFTER = """\
        v_new = beta[..., None] * (v - einsum("bhk,bhkv->bhv", k, state))
        state = decay[:, :, None, None] * (state + einsum("bhk,bhv->bhkv", k, v_new))
        return state, (v_new, state)
"""
READ = 'return einsum("bthk,bthkv->bthv", q, states_after), final_state'
BEFORE = "concatenate([initial_state[:, None], states_after[:, :-1]], 1)"
READ_BEFORE = READ.replace("states_after", BEFORE)
# The entries of positions that are some steps later; behind the last there are zeros.
LATER = "concatenate([entries[:, {0} :], 0.0 * entries[:, : {0}]], 1)[:, : x.shape[1]]"
MUTANTS = (
    planted(
        "old value looked up before the state fades",
        "let the state fade first, then look the key's value up in it",
        'v - einsum("bhk,bhkv->bhv", k, state)',
        'v - einsum("bhk,bhkv->bhv", k, state) / decay[..., None]',
        "recurrent",
    ),
    planted(
        "padding lets the state fade by its gate",
        "where there is no position the state must not fade: the logarithm is 0",
        'zero_unseen("bt->bth", real, -(exp(upcast(self.a_log)) * softplus(a)))',
        "-(exp(upcast(self.a_log)) * softplus(a))",
        "recurrent",
    ),
    planted(
        "pairs of a chunk do not fade in the system",
        "the system's pairs fade by what lies between both positions",
        " * chunk_factors.matrix.swapaxes(1, 2)\n    key_products",
        "\n    key_products",
        "chunked",
    ),
    planted(
        "state before a chunk erased without fading",
        "what a chunk erases of the state before it has faded by the place in the chunk",
        "inverse, beta_k * chunk_factors.from_start[..., None])",
        "inverse, beta_k)",
        "chunked",
    ),
    planted(
        "first head of keys for all heads of values",
        "as many heads of values in a row use the same head of keys",
        "repeat_heads(k_unit, v_silu)\n        q_scaled",
        "repeat_heads(k_unit[:, :, :1], v_silu)\n        q_scaled",
        "chunked",
    ),
    planted(
        "epsilon of the contexts under the roots of queries and keys",
        "norms of queries and keys have an epsilon of their own: qk_norm_eps",
        "l2_normalize(silu(k), c.qk_eps()))\n        q_unit, k_unit, v_silu",
        "l2_normalize(silu(k), c.norm_eps))\n        q_unit, k_unit, v_silu",
        "chunked",
    ),
    planted(
        "values without silu",
        "silu is on queries, keys and values alike",
        "v_silu=silu(v)",
        "v_silu=v",
        "whole",
    ),
    planted(
        "norm of the contexts left out",
        "norm each head before it is gated",
        "gated=silu(gate_scores) * normed",
        "gated=silu(gate_scores) * context",
        "whole",
    ),
    planted(
        "gate of the output before the norm",
        "norm the heads first, gate then",
        "gated=silu(gate_scores) * normed",
        "gated=rms_norm(silu(gate_scores) * context, self.w_norm, c.norm_eps)",
        "whole",
    ),
    planted(
        "gradient of the rate without its exponential",
        "a_log is a logarithm: its gradient is the rate's times the rate",
        "-sum_to(dlog_decay * softplus(a), self.a_log.shape) * rate",
        "-sum_to(dlog_decay * softplus(a), self.a_log.shape)",
        "recurrent",
        trees=("attn_np",),
    ),
    convolved(
        "padding in the windows of the convolution",
        "let padding leave the last positions as they are: the convolution is over real ones",
        "    size = weight.shape[0]\n    before =",
        "    size, real = weight.shape[0], None\n    before =",
        "chunked",
    ),
    convolved(
        "own position under the convolution's first weight",
        "put the own position last: the first weight is for the one furthest back",
        "y = y + upcast(weight)[place] *",
        "y = y + upcast(weight)[(place + 1) % size] *",
        "recurrent",
    ),
    convolved(
        "gradient of the own window alone",
        "a position is in the windows of those after it: add what they send back",
        "to_places(sum_grads(*dx), real)",
        "to_places(dx[-1], real)",
        "chunked",
        trees=("attn_np",),
    ),
    planted(
        "old value not taken out",
        "write the difference to what the state holds for the key, not the value",
        BODY,
        BODY.replace('v - einsum("bhk,bhkv->bhv", k, state)', "v"),
        "recurrent",
    ),
    planted(
        "state read before it is written",
        "write a position's value first, then let its query read",
        READ,
        READ_BEFORE,
        "recurrent",
    ),
    planted(
        "state fades after a position is written",
        "let the state fade first, then write: a position's own value does not fade",
        BODY,
        FADED_AFTER,
        "recurrent",
    ),
    planted(
        "bias of the decay outside of softplus",
        "add dt_bias before softplus: softplus(a + dt_bias)",
        "-(exp(upcast(self.a_log)) * softplus(a))))",
        "-(exp(upcast(self.a_log)) * (softplus(a - upcast(self.dt_bias)) + upcast(self.dt_bias)))))",
        "recurrent",
    ),
    planted(
        "output gated by a sigmoid",
        "gate by silu: the sigmoid times its argument",
        "gated=silu(gate_scores) * normed",
        "gated=sigmoid(gate_scores) * normed",
        "whole",
    ),
    *(
        planted(
            f"{whose} not divided by their length",
            "divide queries and keys by their lengths",
            f"l2_normalize(silu({x}), c.qk_eps()))\n        {following}",
            f"silu({x}))\n        {following}",
            "whole",
        )
        for whose, x, following in (("queries", "q", "k_unit ="), ("keys", "k", "q_unit, k_unit, v_silu"))
    ),
    planted(
        "queries of the delta rule not scaled",
        "multiply the queries by 1/sqrt(head_dim)",
        'q_scaled = q_unit * (1 / sqrt(sizes["k"]))',
        "q_scaled = q_unit",
        "whole",
    ),
    *(
        convolved(
            f"convolution that {word}",
            "pad before the first position alone, and cut what stands behind the last: the convolution is causal",
            "shifted = entries[:, place + 1 : place + 1 + x.shape[1]]",
            f"shifted = {LATER.format(steps)}",
            "chunked",
        )
        for word, steps in (("is centred", "(place + 1 + size // 2)"), ("looks ahead", "(place + size)"))
    ),
    planted(
        "no gradient from a state to the one before it",
        "let the gradient through the states: no detach() of the state between positions or chunks",
        "return decay[:, :, None, None] * dstate, (dv_new, dk, ddecay)",
        "return 0.0 * dstate, (dv_new, dk, ddecay)",
        "recurrent",
        trees=("attn_np",),
    ),
    planted(
        "state rounded to bfloat16",
        WIDE,
        "        state = decay[:, :, None, None] * state\n        v_new = beta",
        f"        state = decay[:, :, None, None] * {rounded('state', 'k')}\n        v_new = beta",
        "recurrent",
        needs=("to_dtype", "dtype_name"),
        survives="bounds follow the type that the source rounds to",
    ),
    planted(
        "rate of the decay without its exponential",
        "a_log is a logarithm: the rate is exp(a_log)",
        "-(exp(upcast(self.a_log)) * softplus(a))))",
        "-(where(upcast(self.a_log) < 0.0, -upcast(self.a_log), upcast(self.a_log)) * softplus(a))))",
        "recurrent",
    ),
)
