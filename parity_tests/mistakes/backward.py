"""Mistakes in gradients: the hand-written backward, which exists in NumPy only, and graphs that were cut."""

from parity_tests.mistakes.plant import NUMPY, SHARED, at

rules, attend = at(SHARED, "mha", "cross", trees=NUMPY), at(SHARED, "mha", "cross", trees=NUMPY)
mha, gru = at("mha.py", "mha", "split", trees=NUMPY), at("gru.py", "gru", "stacked", trees=NUMPY)
seq2seq = at("seq2seq.py", "seq2seq", "free", call="shared", trees=NUMPY)

SOFTMAX = "probs * (dprobs - np.sum(probs * dprobs, axis=axis, keepdims=True))"
SOFTMAX_RULE = "softmax backward: p (dp - sum p dp), summed over the keys"
DROPOUT_RULE = "dropout backward: where(keep, g / (1 - rate), 0)"
TANH_RULE = "tanh backward: g (1 - tanh^2)"
SIGMOID_RULE = "sigmoid backward: g s (1 - s)"
SCALE_RULE = "multiply the gradient of the scores by the scale, once, before it reaches queries and keys"
PATHS = "an input that is used more than once gets the sum of the gradients of all its uses"
CELL = "read the step upwards: the gradient of every gate is that of what it multiplies"

MUTANTS = (
    # Rules
    rules("softmax backward without its sum", SOFTMAX_RULE, SOFTMAX, "probs * dprobs"),
    rules("softmax backward over the wrong axis", SOFTMAX_RULE, "probs * dprobs, axis=axis", "probs * dprobs, axis=-2"),
    rules("softmax backward with its sum added", SOFTMAX_RULE, "(dprobs - np.sum(", "(dprobs + np.sum("),
    rules("softmax backward without the weights in front", SOFTMAX_RULE, "return probs * (dprobs", "return (dprobs"),
    rules("dropout backward without its rescale", DROPOUT_RULE, "dkept / (1.0 - rate)", "dkept"),
    rules(
        "dropout backward ignored",
        DROPOUT_RULE,
        "return dkept if keep is None else where(keep, dkept / (1.0 - rate), 0.0)",
        "return dkept",
    ),
    rules("tanh backward without the square", TANH_RULE, "dy * (1.0 - y * y)", "dy * (1.0 - y)", example="capped"),
    rules(
        "sigmoid backward with a wrong sign",
        SIGMOID_RULE,
        "dy * y * (1.0 - y)",
        "dy * y * (1.0 + y)",
        variant="gru",
        example="stacked",
    ),
    rules(
        "gradients of new and old state exchanged",
        "h = (1 - z) n + z h: the new state gets (1 - z) g, the old one z g",
        "return one_minus_z_times(z, dy), z * dy,",
        "return z * dy, one_minus_z_times(z, dy),",
        variant="gru",
        example="stacked",
    ),
    rules(
        "update gate's gradient with a wrong sign",
        "h = n + z (h - n): the update gate gets g (h - n)",
        "dy * (b - a)",
        "dy * (a - b)",
        variant="gru",
        example="stacked",
    ),
    rules(
        "bias gradient not summed over its copies",
        "a bias was copied along batch and positions: sum its gradient over them",
        "np.sum(dy, axis=axes).reshape(shape) if axes else dy",
        "dy[(0,) * len(range(dy.ndim - len(shape)))] if axes else dy",
        example="split",
    ),
    rules(
        "bias gradient averaged over the batch",
        "sum the gradient of a bias; divide in the loss, where the mean is taken",
        "dw, None if bias is None else sum_to(dy, bias.shape)",
        "dw, None if bias is None else sum_to(dy, bias.shape) / dy.shape[0]",
        example="split",
    ),
    rules(
        "gradients of shared heads summed in turn",
        "query heads h r .. h r + r - 1 share a head: sum over the r neighbours",
        "b, s, heads, h // heads, k), axis=3",
        "b, s, h // heads, heads, k), axis=2",
        variant="attend",
        example="",
    ),
    rules(
        "gradients of shared heads not summed",
        "every query head sends its gradient to the head it shares: sum them",
        "np.sum(dx.reshape(b, s, heads, h // heads, k), axis=3)",
        "dx.reshape(b, s, heads, h // heads, k)[:, :, :, 0]",
        variant="attend",
        example="",
    ),
    rules(
        "one path of a shared input lost",
        PATHS,
        '{"query": sum_grads(dquery, dkey, dvalue)}',
        '{"query": sum_grads(dquery, dkey)}',
        example="split",
        call="plain",
    ),
    rules(
        "value path of a shared key lost",
        PATHS,
        '"key": sum_grads(dkey, dvalue)',
        '"key": dkey',
        example="split",
        call="shared",
    ),
    rules(
        "embedding's gradient given to the next row",
        "the row of the token that occurred gets the gradient: begin to count at the same number in both passes",
        "index, dy = index.reshape(-1),",
        "index, dy = (index.reshape(-1) + 1) % table.shape[0],",
        variant="seq2seq",
        example="words",
    ),
    # Attention
    attend(
        "value gradient from the weights before dropout",
        "the values met the weights after dropout: dv = kept^T g",
        ", q), kept, v, dcontext)",
        ", q), probs, v, dcontext)",
    ),
    attend("scale missing in the backward", SCALE_RULE, "q, k, dscores * scale)", "q, k, dscores)"),
    attend(
        "scale twice in the backward",
        SCALE_RULE,
        "q, k, dscores * scale)",
        "q, k, dscores * scale * scale)",
    ),
    attend(
        "softcap missing in the backward",
        "softcap backward: g (1 - tanh^2)",
        'dscores = tanh_vjp(tape["capped"] / softcap, dscores)',
        "dscores = dscores",
        example="capped",
    ),
    attend(
        "softcap backward from the capped scores",
        "softcap backward: g (1 - (capped / softcap)^2)",
        'tanh_vjp(tape["capped"] / softcap, dscores)',
        'tanh_vjp(tape["capped"], dscores)',
        example="capped",
    ),
    attend(
        "softmax backward with the weights after dropout",
        "softmax backward uses the weights before dropout",
        "softmax_vjp(probs, dprobs,",
        "softmax_vjp(kept, dprobs,",
    ),
    attend(
        "gradient of the scores' bias scaled",
        "the bias was added after the scale: its gradient is that of the scores",
        "dbias = sum_to(dscores, bias.shape)",
        "dbias = sum_to(dscores * scale, bias.shape)",
    ),
    at("luong.py", "luong", "concat", trees=NUMPY)(
        "tanh forgotten in the backward",
        TANH_RULE,
        'tanh_vjp(tape["features"], dfeatures)',
        "dfeatures",
    ),
    mha(
        "gradient of the value weights from the keys",
        "the gradient of a weight is its own input times the gradient of its product",
        'linear_vjp("bsj,jhv->bshv", value,',
        'linear_vjp("bsj,jhv->bshv", key,',
    ),
    # Recurrence
    gru(
        "reset gate forgotten in the recurrent gradient",
        "the recurrent product of n was reset: its gradient is r times that of the sum",
        "dx_gate_inputs[..., 2:, :] * r[..., None, :]",
        "dx_gate_inputs[..., 2:, :]",
    ),
    gru(
        "gradient around the gates lost",
        "the old state also went around the gates: add z g",
        'return dh_around + einsum("bfa',
        'return einsum("bfa',
    ),
    gru(
        "reset gate's gradient without the recurrent product",
        CELL,
        "sigmoid_vjp(r, dn * n_from_h)",
        "sigmoid_vjp(r, dn)",
    ),
    gru(
        "recurrent gradient with the states after the steps",
        "the recurrent product used the state before each step",
        "h_before = concatenate([initial_state[:, None], h], 1)[:, :-1]",
        "h_before = concatenate([initial_state[:, None], h], 1)[:, 1:]",
    ),
    gru(
        "gradient of the initial state in reverse order of the layers",
        "stack the gradients from the first layer to the last",
        "stack(dstates[::-1])",
        "stack(dstates)",
    ),
    gru(
        "gradient of the returned state lost",
        "add the gradient of the returned state to that of the last output",
        'back.dy_of("last", dlast)',
        '0.0 * back.dy_of("last", dlast)',
    ),
    seq2seq(
        "gradient of the look back lost",
        "the decoder's state also asked the memory: add the gradient of its query",
        'dstate[-1] + einsum("be,de->bd", dq, w["q"])',
        "dstate[-1]",
    ),
    seq2seq(
        "gradient of the encoder's last state lost",
        "the decoder began with the encoder's last state: send its gradient there",
        "dencoder_state)",
        "None)",
    ),
    at("seq2seq.py", "seq2seq", "words", trees=NUMPY)(
        "embedding's gradient from the targets lost",
        PATHS,
        "sum_grads(from_source, from_target)",
        "from_source",
    ),
    # Graphs that were cut
    at("gru.py", "gru", "stacked", trees=("attn_torch",))(
        "returned state cut from the graph",
        "let the gradient through: no detach(), no_grad(), stop_gradient or numpy() on the way",
        "x, stack(final_states)",
        "x, stack(final_states).detach()",
    ),
    at(SHARED, "mha", "cross", trees=("attn_torch",))(
        "weights cut from the graph",
        "let the gradient through: no detach(), no_grad(), stop_gradient or numpy() on the way",
        "kept=dropout(probs, keep, rate)",
        "kept=dropout(probs.detach(), keep, rate)",
    ),
    at(SHARED, "mha", "cross", trees=("attn_jax",))(
        "scores cut from the graph",
        "let the gradient through: no detach(), no_grad(), stop_gradient or numpy() on the way",
        "change = weights * tangents[0]",
        "change = weights * (0.0 * tangents[0])",
    ),
    # Gradients
    *(
        at(SHARED, "mha", "split", trees=NUMPY)(
            f"gradient stopped at the {name}",
            f"let the gradient through the {name}: no detach() or stop_gradient on them",
            "dq, dk, dv = record(tape, dq=dq, dk=dk, dv=dv)",
            f"dq, dk, dv = record(tape, dq=dq, dk=dk, dv=dv)\n    {letter} = 0.0 * {letter}",
        )
        for name, letter in (("queries", "dq"), ("keys", "dk"), ("values", "dv"))
    ),
)
