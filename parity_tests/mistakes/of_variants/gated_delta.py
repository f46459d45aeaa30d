"""Mistakes that stand in gated_delta's own file, or that its examples alone can show."""

from typing import Any

from parity_tests.mistakes.plant import Mutant


def planted(name: str, fix: str, old: str, new: str, example: str, **own: Any) -> Mutant:
    return Mutant(name, "gated_delta.py", old, new, "gated_delta", example, fix=fix, **own)


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
        "repeat_heads(k_unit, v_silu)\n        initial",
        "repeat_heads(k_unit[:, :, :1], v_silu)\n        initial",
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
        "gate of the output before the norm",
        "norm the heads first, gate then",
        "gated=silu(gate_scores) * normed",
        "gated=silu(gate_scores) * context",
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
    planted(
        "padding in the windows of the convolution",
        "let padding leave the last positions as they are: the convolution is over real ones",
        "return where(real[:, None, None, None], window, window_before), (window,)",
        "return window, (window,)",
        "chunked",
    ),
    planted(
        "own position under the convolution's first weight",
        "put the own position last: the first weight is for the one furthest back",
        "window = concatenate([window_before[:, 1:], new[:, None]], 1)",
        "window = concatenate([new[:, None], window_before[:, :-1]], 1)",
        "recurrent",
    ),
    planted(
        "gradient of the own window alone",
        "a position is in the windows of those after it: add what they send back",
        "dwindow = dwindow + where(real, dlater, 0.0)",
        "dwindow = dwindow + 0.0 * dlater",
        "chunked",
        trees=("attn_np",),
    ),
)
