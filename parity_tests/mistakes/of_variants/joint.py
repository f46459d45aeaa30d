"""Mistakes that stand in joint's own file, or that its examples alone can show."""

from parity_tests.mistakes.plant import NUMPY, SHARED, at
from parity_tests.mistakes.rotary import FREQUENCIES

ADDED_K = 'self.placed(tape, "added_k", added_k, added_cos_sin)'
ADDED_Q = 'self.placed(tape, "added_q", added_q, added_cos_sin)'
WHOLE = f"concatenate([k, {ADDED_K}], 1)"
ROTATED = "rotate(normed, cos, sin, c.rope_layout)"
EXAMPLES = ("both", "normed", "last", "rotated", "half")
both, normed, last, rotated, half = (at("joint.py", "joint", example) for example in EXAMPLES)
MUTANTS = (
    both(
        "keys of the streams joined in another order than their values",
        "join queries, keys and values of both streams in one order",
        WHOLE,
        f"concatenate([{ADDED_K}, k], 1)",
    ),
    normed(
        "queries of the streams joined in another order than their outputs are taken",
        "take the outputs of both streams in the order in which their queries were joined",
        f"concatenate([q, {ADDED_Q}], 1)",
        f"concatenate([{ADDED_Q}, q], 1)",
    ),
    both(
        "key projection of the first stream for both",
        "give each stream projections of its own",
        "added_key, self.w_added_k, self.b_added_k))\n",
        "added_key, self.w_k, self.b_k))\n",
    ),
    both(
        "mask of the added stream forgotten",
        "hide the padding of both streams",
        "broadcast_mask(added_mask, (b, s), added)",
        "broadcast_mask(None, (b, s), added)",
    ),
    both(
        "masks of the streams joined in another order than their keys",
        "join the masks as the keys are joined",
        "masks = broadcast_mask(mask, (b, t), query), broadcast_mask(added_mask, (b, s), added)",
        "masks = broadcast_mask(added_mask, (b, s), added), broadcast_mask(mask, (b, t), query)",
    ),
    normed(
        "queries of a stream not normalised",
        "normalise the queries as well as the keys, in both streams",
        'q, k = self.placed(tape, "q", q, cos_sin), ',
        "k = ",
    ),
    normed(
        "norm weight of the first stream's keys for those of the other",
        "queries and keys of each stream have norm weights of their own",
        ADDED_K,
        'self.placed(tape, "k", added_k, added_cos_sin)',
    ),
    last(
        "streams that attend to their own keys alone",
        "let one softmax see the keys of both streams",
        "k, concatenate([v, added_v], 1))",
        "k[:, :t], v)",
        call="plain",
        raises=NUMPY,
    ),
    both(
        "gradient of the added stream's output dropped",
        "add the gradients of both outputs",
        "if self.w_added_o is not None and dadded_y is None:",
        "if self.w_added_o is not None:",
        trees=NUMPY,
    ),
    both(
        "gradient of a stream through its values missing",
        "keys and values come from the same words: add both gradients",
        "sum_grads(dkey, dvalue)",
        "dkey",
        trees=NUMPY,
    ),
    rotated(
        "text rotated by the picture's positions",
        "give each stream positions of its own: those of the text are 0 in FLUX and behind the picture in Qwen-Image",
        "cos_sin_for(c, added_positions, s, like=like)",
        "cos_sin_for(c, concatenate([positions] * 5, -1)[..., :s], s, like=like)",
    ),
    half(
        "text counted from 0 beside a picture that is counted from 0",
        "count the second stream on from the end of the first, or pass positions of both",
        "(cos[:, t:], sin[:, t:])",
        "(cos[:, :s], sin[:, :s])",
    ),
    rotated(
        "keys of the text not rotated where they have positions",
        "rotate queries and keys of both streams; position 0 alone turns nothing",
        ADDED_K,
        'self.placed(tape, "added_k", added_k, (None, None))',
    ),
    rotated(
        "queries and keys of both streams normalised after the rotation",
        "normalise before the rotation: the norm's weights belong to numbers that are not yet turned",
        ROTATED,
        "normalize(self, c.qk_norm(), what, rotate(x, cos, sin, c.rope_layout))",
    ),
    rotated(
        "numbers paired by halves where both streams pair neighbours",
        "pair neighbours: FLUX and Qwen-Image view a head as (pairs, 2)",
        ROTATED,
        'rotate(normed, cos, sin, "half")',
    ),
    rotated(
        "frequencies of one head shared among axes that have their own",
        "give each axis of n dimensions the frequencies base^(-2i/n), from i = 0 on; M-RoPE alone deals out one head's",
        FREQUENCIES,
        f"({FREQUENCIES} if config.rope_axes is None else "
        "config.rope_base ** (-2.0 * xp.arange(config.rotary_width() // 2, dtype=xp.float64) / config.rotary_width()))",
        file=SHARED,
    ),
    rotated(
        "gradients of both streams rotated forwards once more",
        "the gradient of a rotation is the rotation by the negative angle",
        "rotate(dx, cos, sin, c.rope_layout, inverse=True)",
        "rotate(dx, cos, sin, c.rope_layout)",
        trees=NUMPY,
    ),
)
