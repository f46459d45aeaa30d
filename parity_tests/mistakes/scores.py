"""Mistakes in the scores: the scale, the softcap, the bias, and the networks that score a pair."""

from parity_tests.mistakes.plant import SHARED, at

cross, wide, capped = (at(SHARED, "mha", example) for example in ("cross", "wide", "capped"))
additive, concat = at("additive.py", "additive", "cross"), at("luong.py", "luong", "concat")

SCORES = 'scores=einsum(head_subscripts("bthk,bshk->bhts", q), q, k) * scale'
CAPPED = "capped=softcap * tanh(scores / softcap)"
IN_ORDER = """\
    if softcap is not None:
        scores = record(tape, capped=softcap * tanh(scores / softcap))
    if bias is not None:
        scores = record(tape, biased=scores + bias)
"""
BIAS_FIRST = """\
    if bias is not None:
        scores = record(tape, biased=scores + bias)
    if softcap is not None:
        scores = record(tape, capped=softcap * tanh(scores / softcap))
"""
FEATURES = "tanh(q[:, :, None, :] + k[:, None, :, :])"

MUTANTS = (
    # The scale
    cross(
        "scale missing",
        "divide the scores by sqrt(head_dim) before the softmax",
        ", q), q, k) * scale)",
        ", q), q, k))",
    ),
    cross(
        "scale without the root",
        "divide by sqrt(head_dim), not by head_dim",
        "1 / sqrt(q.shape[-1])",
        "1 / q.shape[-1]",
        many=True,
    ),
    cross(
        "scale from the value width",
        "take the scale from the width of queries and keys, not of the values",
        "sqrt(q.shape[-1])",
        "sqrt(v.shape[-1])",
        many=True,
    ),
    cross(
        "scale from the width of the model",
        "take the scale from the width of one head, head_dim, not from d_model",
        "memory_v=self.memory_v)",
        "memory_v=self.memory_v, scale=self.config.scale_or_default(self.config.d_model))",
        file="mha.py",
    ),
    cross(
        "scale from the number of keys",
        "take the scale from the last axis of the queries, not from the length of the keys",
        "sqrt(q.shape[-1])",
        "sqrt(k.shape[1])",
        many=True,
    ),
    cross(
        "scale from the width plus one",
        "divide by sqrt(head_dim) exactly",
        "sqrt(q.shape[-1])",
        "sqrt(q.shape[-1] + 1)",
        many=True,
    ),
    cross(
        "scale rounded to float16",
        "compute 1/sqrt(head_dim) as a Python float; do not keep it in a 16-bit array",
        "1 / sqrt(q.shape[-1])",
        "round(4096 / sqrt(q.shape[-1])) / 4096",
        many=True,
    ),
    cross(
        "scale the wrong way up",
        "multiply by 1/sqrt(head_dim), or divide by sqrt(head_dim); not the other way round",
        "q, k) * scale)",
        "q, k) / scale)",
    ),
    at(SHARED, "dot_product", "capped")(
        "scale applied twice",
        "scale once: either the queries or the scores, not both",
        "q, k) * scale)",
        "q, k) * scale * scale)",
    ),
    wide(
        "configured scale ignored",
        "pass the configured scale on; 1/sqrt(head_dim) is only the default",
        "memory_v=self.memory_v)",
        "memory_v=self.memory_v, scale=None)",
        file="mha.py",
    ),
    # The softcap
    capped(
        "softcap without its rescale",
        "multiply by the cap again after tanh: softcap * tanh(scores / softcap)",
        "capped=softcap * tanh(",
        "capped=tanh(",
    ),
    capped(
        "softcap ignored",
        "cap the scores: softcap * tanh(scores / softcap)",
        CAPPED,
        "capped=scores",
    ),
    capped(
        "softcap before the scale",
        "scale first, then cap: softcap * tanh(scale * q k / softcap)",
        CAPPED,
        "capped=scale * (softcap * tanh(scores / scale / softcap))",
    ),
    capped(
        "softcap after the bias",
        "cap the scaled scores first and add the bias afterwards",
        IN_ORDER,
        BIAS_FIRST,
    ),
    capped(
        "softcap after the mask",
        "cap first, then hide: tanh turns a hidden score of -inf into an ordinary -softcap",
        "softmax(scores, visible,",
        "softmax(scores if softcap is None else where(visible, scores, -softcap), "
        "visible if softcap is None else None,",
        needs=("where",),
    ),
    # The bias
    at(SHARED, "mha", "split")(
        "bias subtracted",
        "add the bias to the scores; check its sign",
        "scores + bias",
        "scores - bias",
    ),
    cross(
        "bias of the scores dropped",
        "add the bias to the scores before the softmax",
        "biased=scores + bias)",
        "biased=scores)",
    ),
    cross(
        "bias added twice",
        "add the bias once",
        "biased=scores + bias)",
        "biased=scores + bias + bias)",
    ),
    cross(
        "bias before the scale",
        "scale the product of queries and keys alone; the bias is added unscaled",
        "biased=scores + bias)",
        "biased=scores + bias * scale)",
    ),
    cross(
        "bias multiplied with the scores",
        "add the bias to the scores, do not multiply by it",
        "biased=scores + bias)",
        "biased=scores * bias)",
    ),
    at(SHARED, "fused_qkv", "heads")(
        "bias transposed",
        "give the bias its axes in the order queries, keys",
        "biased=scores + bias)",
        "biased=scores + bias.swapaxes(-1, -2))",
    ),
    # Networks that score
    additive(
        "additive score without tanh",
        "put tanh around the sum of projected query and key",
        f"features={FEATURES}",
        "features=(q[:, :, None, :] + k[:, None, :, :])",
    ),
    additive(
        "relu in place of tanh",
        "use tanh in the additive score, not relu",
        f"features={FEATURES}",
        "features=maximum(q[:, :, None, :] + k[:, None, :, :], 0.0)",
        needs=("maximum",),
    ),
    additive(
        "difference in place of the sum in the additive score",
        "add the projected query and key: tanh(q + k)",
        "q[:, :, None, :] + k[",
        "q[:, :, None, :] - k[",
    ),
    additive(
        "product in place of the sum in the additive score",
        "add the projected query and key: tanh(q + k)",
        "q[:, :, None, :] + k[",
        "q[:, :, None, :] * k[",
    ),
    additive(
        "features summed without the score's weights",
        "weigh the features with the learned vector: v . tanh(q + k)",
        "features, self.w_score))",
        "features, 0.0 * self.w_score + 1.0))",
    ),
    additive(
        "additive score with a scale",
        "leave the additive score unscaled",
        'einsum("btse,e->bts", features, self.w_score))',
        'einsum("btse,e->bts", features, self.w_score) * features.shape[-1] ** -0.5)',
    ),
    concat(
        "concatenated score without tanh",
        "put tanh around W [q; k]",
        "features=tanh(q[",
        "features=(q[",
    ),
    concat(
        "key's half of the concatenated score subtracted",
        "add both halves: W [q; k] = W_q q + W_k k",
        "q[:, :, None, :] + k[",
        "q[:, :, None, :] - k[",
    ),
    at("luong.py", "luong", "general")(
        "general score halved",
        "score with q w k alone, without a further factor",
        "q = query if self.w is None else record(tape, q=einsum(",
        "q = query if self.w is None else record(tape, q=0.5 * einsum(",
    ),
    at("luong.py", "luong", "dot")(
        "a scale where there is none",
        "leave Luong's scores unscaled: the dot product itself",
        'scores=einsum("bti,bsi->bts", q, key))',
        'scores=einsum("bti,bsi->bts", q, key) * key.shape[-1] ** -0.5)',
    ),
)
