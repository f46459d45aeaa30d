"""Mistakes that stand in delta's own file, or that its examples alone can show."""

from typing import Any

from parity_tests.mistakes.plant import SHARED, Mutant


def planted(name: str, fix: str, old: str, new: str, example: str, **own: Any) -> Mutant:
    return Mutant(name, "delta.py", old, new, "delta", example, fix=fix, **own)


READ = 'return einsum("bthk,bthkv->bthv", q, states_after), final_state'
MUTANTS = (
    planted(
        "old value not taken out of the state",
        "write the difference to what the state holds for the key, not the value",
        'v_new = beta[..., None] * (v - einsum("bhk,bhkv->bhv", k, state))',
        "v_new = beta[..., None] * v",
        "recurrent",
    ),
    Mutant(
        "triangular system not solved",
        SHARED,
        'einsum("bths,bshj->bthj", second, einsum("bths,bshj->bthj", lower[:, half:, :, :half], first))',
        "lower[:, half:, :, :half]",
        "delta",
        "whole",
        fix="solve for all corrected values: the later half of a chunk takes those of the earlier half",
    ),
    planted(
        "queries of a chunk read the given values",
        "within a chunk too a query reads what was written: the corrected values",
        "masked_scores, v_new.reshape(v.shape)) + einsum",
        "masked_scores, v * beta) + einsum",
        "chunked",
    ),
    planted(
        "writing strength missing in what a chunk erases",
        "scale the keys by beta on both sides of the system",
        'einsum("bths,bshk->bthk", inverse, beta_k)',
        'einsum("bths,bshk->bthk", inverse, k)',
        "chunked",
    ),
    planted(
        "norm of the keys before silu",
        "apply silu first, then divide by the length",
        "l2_normalize(silu(k), c.norm_eps)",
        "silu(l2_normalize(k, c.norm_eps))",
        "recurrent",
    ),
    planted(
        "gradient of a state not taken out along the key",
        "a state's gradient loses what its key takes out of the state",
        'return dstate - einsum("bhk,bhv->bhkv", k, beta[..., None] * dv_new), (dv_new, dk)',
        "return dstate, (dv_new, dk)",
        "recurrent",
        trees=("attn_np",),
    ),
    planted(
        "state of the delta rule read before it is written",
        "write a position's value first, then let its query read",
        READ,
        READ.replace("states_after", "concatenate([initial_state[:, None], states_after[:, :-1]], 1)"),
        "recurrent",
    ),
    planted(
        "writing strength without its sigmoid",
        "scale what is written by a sigmoid, between 0 and 1",
        "beta=sigmoid(linear(",
        "beta=(linear(",
        "recurrent",
    ),
    planted(
        "values written at full strength",
        "scale what is written by beta, the sigmoid of its projection",
        "beta=sigmoid(linear(",
        "beta=1.0 + 0.0 * sigmoid(linear(",
        "recurrent",
    ),
    planted(
        "no gradient from a state of the delta rule to the one before it",
        "let the gradient through the states: no detach() of the state between positions or chunks",
        'return dstate - einsum("bhk,bhv->bhkv", k, beta[..., None] * dv_new), (dv_new, dk)',
        "return 0.0 * dstate, (dv_new, dk)",
        "recurrent",
        trees=("attn_np",),
    ),
)
