"""Mistakes that stand in retention's own file, or that its examples alone can show."""

from typing import Any

from parity_tests.mistakes.plant import Mutant


def planted(name: str, fix: str, old: str, new: str, example: str, **own: Any) -> Mutant:
    return Mutant(name, "retention.py", old, new, "retention", example, fix=fix, **own)


MUTANTS = (
    planted(
        "padding lets the state fade",
        "count distances in real positions",
        "where(real, 1.0 + zeros((b, t), log_decay_by_head), 0.0)",
        "1.0 + zeros((b, t), log_decay_by_head)",
        "chunked",
    ),
    planted(
        "state read at the start of a chunk without fading",
        "let the state before a chunk fade by the place in the chunk",
        'out_from_state = einsum("bthk,bhkv->bthv", q, states_before) * within.from_start[..., None]',
        'out_from_state = einsum("bthk,bhkv->bthv", q, states_before)',
        "chunked",
    ),
    planted(
        "keys of a chunk added without fading",
        "let a key fade up to the end of its chunk before it joins the state",
        'added = einsum("bshk,bshv->bhkv", k * within.to_end[..., None], v)',
        'added = einsum("bshk,bshv->bhkv", k, v)',
        "chunked",
    ),
    planted(
        "chunks added up without fading",
        "let what a chunk adds to the state fade in the chunks that follow",
        'einsum("bhij,bjhkv->bihkv", between.matrix, added) + old',
        "cumsum(added, 1) + old",
        "chunked",
    ),
    planted(
        "a key fades at its own position",
        "a key's weight at its own position is 1: add it after the state faded",
        "state = decay[:, :, None, None] * state + added\n",
        "state = decay[:, :, None, None] * (state + added)\n",
        "recurrent",
    ),
    planted(
        "norm of retention's heads left out",
        "norm each head before it is gated",
        "gated=gate * normed",
        "gated=gate * context",
        "pairs",
    ),
    planted(
        "gate before the norm",
        "norm the heads first, gate then",
        "gated=gate * normed",
        "gated=self.normalize(gate * context)",
        "pairs",
    ),
    planted(
        "lightning attention gated by silu",
        "MiniMax gates by a sigmoid, not by silu",
        'gate = silu(gate_scores) if c.gate_activation == "silu" else sigmoid(gate_scores)\n            gated',
        "gate = silu(gate_scores)\n            gated",
        "lightning",
    ),
    planted(
        "heads of lightning attention normed one by one",
        "the norm of lightning attention is over all heads of a position at once",
        'self.config.norm_over == "head":\n            return x, weight',
        'self.config.norm_over != "none":\n            return x, weight',
        "lightning",
    ),
    planted(
        "values without their silu",
        "lightning attention takes silu of queries, keys and values",
        "silu(q), silu(k), silu(v)",
        "silu(q), silu(k), v",
        "lightning",
    ),
    planted(
        "gradient of the activation left out",
        "the gradient passes silu on its way to the projections",
        '(silu_vjp(tape[f"{name}_proj"], dz) for name, dz in',
        "(dz for name, dz in",
        "lightning",
        trees=("attn_np",),
    ),
    planted(
        "keys that do not turn",
        "turn queries and keys, each by its own position: the score then knows the distance",
        "k_rot=rotate(k, cos, sin, c.rope_layout)",
        "k_rot=k",
        "recurrent",
    ),
    planted(
        "padding takes a place where positions turn",
        "count positions over the real ones, as the decay does",
        "real=is_real if call.step is None else None",
        "real=is_real | ~is_real if call.step is None else None",
        "chunked",
    ),
    planted(
        "gradient turned further in place of back",
        "turn gradients back, by the negative angles",
        "rotate(dk, cos, sin, c.rope_layout, inverse=True)",
        "rotate(dk, cos, sin, c.rope_layout)",
        "recurrent",
        trees=("attn_np",),
    ),
    planted(
        "gradient of the states does not fade",
        "a state's gradient fades on its way to the state before it",
        "dstate = dstate + next_decay[:, :, None, None] * dnext_state",
        "dstate = dstate + dnext_state",
        "recurrent",
        trees=("attn_np",),
    ),
)
