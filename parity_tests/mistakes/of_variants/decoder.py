"""Mistakes that stand in decoder's own file, or that its examples alone can show."""

from attn_np.contract.decoder import EXAMPLES
from parity_tests.mistakes.plant import NUMPY, SHARED, at

sinks, gated, plain, forgetting = (at("decoder.py", "decoder", example) for example in EXAMPLES)
MUTANTS = (
    sinks(
        "queries normed once more after they turn",
        "norm queries and keys once, before they turn",
        "q_rot=rotate(q, cos, sin, c.rope_layout), ",
        "q_rot=normalize(c, rotate(q, cos, sin, c.rope_layout), q_weight, self.b_q_norm), ",
    ),
    sinks(
        "offset of the norm's weight forgotten",
        "Gemma 3 and Qwen3-Next keep norm weights less 1: add 1 to them",
        "c.norm_offset == 0.0 else",
        "c.norm_offset != 0.0 else",
    ),
    gated(
        "norm over all heads made over each",
        "OLMo 2 norms all heads of a position as one vector; Qwen 3 each head by itself",
        'c.norm_over == "all"',
        'c.norm_over == "none"',
        many=True,
    ),
    gated(
        "mean kept in the layer norm of queries and keys",
        "a layer norm subtracts the mean; an rms norm does not",
        'if c.norm == "rms" else layer_norm(x, weight, upcast(bias), c.norm_eps)',
        'if c.norm != "none" else layer_norm(x, weight, upcast(bias), c.norm_eps)',
    ),
    sinks(
        "bias of the norm of keys left out",
        "Phi's and Persimmon's norms of queries and keys have a bias each",
        "k_norm=normalize(c, k, k_weight, self.b_k_norm)",
        "k_norm=normalize(c, k, k_weight, None)",
    ),
    plain(
        "chunks of a decoder forgotten",
        "a query sees the keys of its own chunk only: Llama 4's layers with rotation",
        "pattern = None if c.chunk_size is None else Chunks(c.chunk_size)",
        "pattern = None",
    ),
    gated(
        "gate without its sigmoid",
        "the gate is a sigmoid of its projection",
        "gate=sigmoid(linear(",
        "gate=(linear(",
    ),
    gated(
        "values of the decoder not clipped",
        "OLMo clips values as it clips queries and keys",
        "v_clip=clip_magnitude(v, c.clip_qkv)",
        "v_clip=v",
    ),
    at(SHARED, "decoder", "sinks")(
        "temperature that does not count the query's own position",
        "Llama 4's temperature is by floor((position + 1) / interval)",
        "xp.arange(1, count + 1, dtype=xp.float64)",
        "xp.arange(0, count, dtype=xp.float64)",
    ),
    sinks(
        "temperature on the gradient left out",
        "queries were multiplied by their temperature: so is their gradient",
        "record(tape, dq_tempered=dq) * q_scale",
        "record(tape, dq_tempered=dq)",
        trees=NUMPY,
    ),
    sinks(
        "learned sinks of the decoder taken as zero",
        "hand the learned sinks on to the softmax; a sink of 0 is softmax off by one",
        "sinks=upcast(self.sinks))",
        "sinks=None if self.sinks is None else 0.0 * upcast(self.sinks))",
    ),
    sinks(
        "window of the decoder left out",
        "a layer with a window attends to the last positions only",
        "call.attend(q, k, v,",
        "call.attend(q, k, v, window=None,",
    ),
    gated(
        "gate by silu",
        "the gate is a sigmoid of its projection, not silu",
        "gate=sigmoid(linear(",
        "gate=silu(linear(",
        needs=("silu",),
    ),
    forgetting(
        "forget gate that touches its own key",
        "only the gates between a key and its query count: the running sum of the key's own position is subtracted",
        "-cumsum(log_forget, 1).swapaxes",
        "(log_forget - cumsum(log_forget, 1)).swapaxes",
    ),
    forgetting(
        "forget gates added up without a logarithm",
        "a product of gates is a sum of their logarithms: log sigmoid, not the score itself",
        '"bhts->bsh", -softplus(-forget_scores)',
        '"bhts->bsh", forget_scores',
    ),
    at("decoder.py", "decoder", "forgetting", call="full")(
        "padding that forgets",
        "at padding a forget gate is 1: nothing fades there",
        'call.zero_unseen_keys("bhts->bsh", -softplus(-forget_scores))',
        "-softplus(-forget_scores)",
    ),
    forgetting(
        "gradient of a forget gate from the earlier keys",
        "a gate is in the running sums of its own position and of those after it",
        "dlog_forget=-reverse_cumsum(dkey_bias)",
        "dlog_forget=-cumsum(dkey_bias, 3)",
        trees=NUMPY,
    ),
)
