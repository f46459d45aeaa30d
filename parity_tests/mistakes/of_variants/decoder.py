"""Mistakes that stand in decoder's own file, or that its examples alone can show."""

from attn_np.contract.decoder import EXAMPLES
from parity_tests.mistakes.plant import NUMPY, SHARED, at

sinks, gated, plain, forgetting, normed = (at("decoder.py", "decoder", example) for example in EXAMPLES)
GATE = "gate=ACTIVATIONS[c.gate_activation](gate_scores)"
MUTANTS = (
    sinks(
        "queries normed once more after they turn",
        "norm queries and keys once, before they turn",
        "q_rot=rotate(q, cos, sin, c.rope_layout))",
        "q_rot=normalize(self, c.norms()[0], 'q', rotate(q, cos, sin, c.rope_layout)))",
    ),
    sinks(
        "bias of the norm of keys left out",
        "Phi's and Persimmon's norms of queries and keys have a bias each",
        "normalize(self, norm, what, x)",
        "normalize(self, norm if what == 'q' else __import__('dataclasses').replace(norm, bias=False), what, x)",
    ),
    plain(
        "chunks of a decoder forgotten",
        "a query sees the keys of its own chunk only: Llama 4's layers with rotation",
        "pattern=None if c.chunk_size is None else Chunks(c.chunk_size)",
        "pattern=None",
    ),
    gated(
        "gate without its sigmoid",
        "the gate is a sigmoid of its projection",
        GATE,
        "gate=gate_scores",
    ),
    plain(
        "values of the decoder not clipped",
        "OLMo clips values as it clips queries and keys",
        "v_clip=clip_magnitude(v, c.clip_qkv)",
        "v_clip=v",
    ),
    plain(
        "values from normalised keys",
        "Gemma 4 takes values from the projected keys, before their norm and rotation",
        "v = k if c.keys_as_values else",
        "v = self.normed(tape, 'k', c.norm_position, k) if c.keys_as_values else",
    ),
    normed(
        "values not normalised",
        "Gemma 3n and Gemma 4 divide values by the root of their mean square",
        'v_norm=normalize(self, c.norm_of_values(), "v", v)',
        "v_norm=v",
    ),
    at("frame/call.py", "decoder", "gated")(
        "values of a shared layer taken from its keys",
        "a layer with shared keys gets values beside them",
        "k, v = record(self.tape, shared_k=upcast(k), shared_v=upcast(v))",
        "k, v = record(self.tape, shared_k=upcast(k), shared_v=0.0 * upcast(v) + upcast(k)[..., : v.shape[-1]])",
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
        GATE,
        "gate=silu(gate_scores)",
    ),
    forgetting(
        "gate by a sigmoid",
        "the gate is a softplus of its projection, which may be larger than 1",
        GATE,
        "gate=sigmoid(gate_scores)",
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
