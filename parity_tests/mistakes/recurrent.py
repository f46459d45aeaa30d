"""Mistakes in the recurrent layers: gates, states, and the decoder that looks back."""

from parity_tests.mistakes.plant import NUMPY, SHARED, at

gru, both = at("gru.py", "gru", "stacked"), at("gru.py", "gru", "both")
seq2seq, words = at("seq2seq.py", "seq2seq", "free"), at("seq2seq.py", "seq2seq", "words")

N = "n = tanh(x_gate_inputs[:, 2] + r * h_gate_inputs[:, 2])"
R_Z = """\
    r = sigmoid(x_gate_inputs[:, 0] + h_gate_inputs[:, 0])
    z = sigmoid(x_gate_inputs[:, 1] + h_gate_inputs[:, 1])"""
Z_R = """\
    z = sigmoid(x_gate_inputs[:, 0] + h_gate_inputs[:, 0])
    r = sigmoid(x_gate_inputs[:, 1] + h_gate_inputs[:, 1])"""
START = "start = last if state is None else state\n"
LOOK = 'einsum("bd,de->be", state[-1], w["q"])'

RESET = "reset the recurrent product with its bias: n = tanh(W x + b + r * (U h + c))"

MUTANTS = (
    # Gates
    gru(
        "reset applied to the input, not to the state",
        RESET,
        N,
        "n = tanh(r * x_gate_inputs[:, 2] + h_gate_inputs[:, 2])",
    ),
    gru(
        "reset before the recurrent product",
        RESET,
        N,
        'n = tanh(x_gate_inputs[:, 2] + linear("be,fea->bfa", r * h_before, w_h, b_h)[:, 2])',
    ),
    gru("reset left out", RESET, N, "n = tanh(x_gate_inputs[:, 2] + h_gate_inputs[:, 2])"),
    gru(
        "recurrent bias of n not reset",
        RESET,
        N,
        "c = 0.0 if b_h is None else b_h[2]\n    n = tanh(x_gate_inputs[:, 2] + r * (h_gate_inputs[:, 2] - c) + c)",
    ),
    gru(
        "recurrent bias of n missing",
        "keep two biases for n: the recurrent one is reset (flax.nnx.GRUCell has none)",
        N,
        "n = tanh(x_gate_inputs[:, 2] + r * (h_gate_inputs[:, 2] - (0.0 if b_h is None else b_h[2])))",
    ),
    gru(
        "reset gate's sums used for the update gate",
        "stack the gates in the order reset, update, new",
        "z = sigmoid(x_gate_inputs[:, 1] + h_gate_inputs[:, 1])",
        "z = sigmoid(x_gate_inputs[:, 0] + h_gate_inputs[:, 0])",
    ),
    gru(
        "reset and update gate exchanged",
        "stack the gates in the order reset, update, new (Keras: update, reset, new)",
        R_Z,
        Z_R,
    ),
    at(SHARED, "gru", "stacked")(
        "update gate the other way round",
        "keep the old state where the update gate is 1: h = (1 - z) n + z h",
        "a + z * (b - a)",
        "b + z * (a - b)",
    ),
    gru("new state without tanh", "put tanh around the new state", N, N.replace("tanh", "")),
    gru(
        "input bias of the gates dropped",
        "add both biases of the gates",
        "x, self.w_x, self.b_x))",
        "x, self.w_x, None))",
    ),
    gru(
        "recurrent bias of the gates dropped",
        "add both biases of the gates",
        'linear("be,fea->bfa", h_before, w_h, b_h)',
        'linear("be,fea->bfa", h_before, w_h, None)',
    ),
    gru(
        "recurrent matrix transposed",
        "transpose the recurrent weights: torch keeps [out, in], here they are [in, out]",
        'linear("be,fea->bfa", h_before,',
        'linear("ba,fea->bfe", h_before,',
    ),
    # States
    gru(
        "initial state ignored",
        "begin with the state that was given",
        "if state is None else state\n",
        "if state is None else 0.0 * state\n",
    ),
    gru(
        "every layer begins with the first layer's state",
        "give every layer its own initial state",
        "x, start[directions * i], real",
        "x, start[0], real",
    ),
    gru(
        "last states in reverse order of the layers",
        "return the states from the first layer to the last",
        "x, stack(final_states)",
        "x, stack(final_states[::-1])",
    ),
    gru(
        "returned state batch first",
        "return the state as it is taken: layers, batch, width",
        "x, stack(final_states)",
        "x, stack(final_states).swapaxes(0, 1)",
        raises=("attn_np", "attn_jax"),
    ),
    gru(
        "sequence read backwards",
        "read the sequence from its first position",
        "names=names, tape=tape, reverse=c.backward, recompute",
        "names=names, tape=tape, reverse=not c.backward, recompute",
    ),
    both(
        "second direction read forwards",
        "let the second direction begin at the last position",
        "tape=tape, reverse=c.backward, recompute",
        "tape=tape, reverse=False, recompute",
    ),
    both(
        "states of both directions exchanged",
        "keep states by layers, and in each the forward one first",
        "x, start[2 * i + 1], real",
        "x, start[2 * i], real",
    ),
    both(
        "reset after the recurrent product",
        "with reset_after=False reset the state before the product: n = tanh(W x + b + U (r * h))",
        'einsum("be,ea->ba", r * h_before, w_h[2])',
        'r * einsum("be,ea->ba", h_before, w_h[2])',
    ),
    both(
        "gradient through the reset state left out",
        "the reset gate passes on a gradient to the state that it resets",
        "dh_before + dreset_state * r",
        "dh_before",
        trees=NUMPY,
    ),
    gru(
        "dropout between layers left out",
        "drop the outputs of every layer but the last",
        "x = dropout(h, layer_keep, c.dropout)",
        "x = h",
    ),
    # Encoder and decoder
    seq2seq(
        "padding read by the encoder",
        "pass over padding: keep the state where a position is not real",
        "h = new if real is None else where(real[:, None], new, h)",
        "h = new",
        file="gru.py",
        call="shared",
    ),
    seq2seq(
        "padding sets the encoder's state to zero",
        "keep the state as it was where a position is not real",
        "where(real[:, None], new, h)",
        "where(real[:, None], new, 0.0)",
        file="gru.py",
        call="shared",
    ),
    seq2seq(
        "encoder's last state not handed on",
        "begin the decoder with the encoder's last state",
        START,
        "start = 0.0 * last if state is None else state\n",
        call="plain",
    ),
    seq2seq(
        "given state ignored by the decoder",
        "begin the decoder with the state that was given",
        START,
        "start = last\n",
    ),
    words(
        "decoder's softmax over its one query",
        "normalise over the keys: with one query per step a softmax over the queries makes every weight 1",
        "probs = softmax(scores, allowed)",
        "probs = softmax(scores[:, None], None, 1)[:, 0]",
    ),
    seq2seq(
        "mask ignored by the decoder",
        "hide padding in the decoder's attention too",
        "probs = softmax(scores, allowed)",
        "probs = softmax(scores)",
    ),
    words(
        "decoder asks with its first layer",
        "ask with the state of the last layer",
        LOOK,
        LOOK.replace("-1", "0"),
    ),
    seq2seq(
        "context left out of the decoder's input",
        "join the context and the target: [context; target]",
        "x, new_state, outputs = context, [],",
        "x, new_state, outputs = 0.0 * context, [],",
    ),
    seq2seq(
        "targets one step late",
        "feed each target at its own step",
        'einsum("btd,fde->btfe", target, w["target"])',
        'einsum("btd,fde->btfe", concatenate([0.0 * target[:, :1], target[:, :-1]], 1), w["target"])',
    ),
    seq2seq(
        "memory compared without its projection",
        "project the memory for the scores: W_k m",
        "recompute_with=(k, memory, w)",
        "recompute_with=(memory, memory, w)",
    ),
    seq2seq(
        "projected keys averaged in place of the memory",
        "average the memory itself; its projection serves the scores only",
        "recompute_with=(k, memory, w)",
        "recompute_with=(k, k, w)",
    ),
    seq2seq(
        "output read from the first layer",
        "read the output from the last layer's state",
        "gates_and_states[-1], self.w_o, self.b_o), stack(last)",
        "gates_and_states[3], self.w_o, self.b_o), stack(last)",
    ),
    seq2seq(
        "bias of the decoder's output dropped",
        "add the bias of the output",
        "gates_and_states[-1], self.w_o, self.b_o), stack(last)",
        "gates_and_states[-1], self.w_o, None), stack(last)",
    ),
    # Running freely
    words(
        "decoding goes on behind the stop token",
        "give nothing but the stop token once it came",
        "token = where(done, stop, argmax(y, axis=-1))",
        "token = argmax(y, axis=-1)",
        call="greedy",
    ),
    words(
        "stop token counted in the length",
        "count the tokens before the stop token",
        "argmax(where(ends, 1, 0), axis=1)",
        "argmax(where(ends, 1, 0), axis=1) + 1",
        call="greedy",
    ),
    words(
        "least likely token taken",
        "take the likeliest token: argmax",
        "where(done, stop, argmax(y, axis=-1))",
        "where(done, stop, argmax(-y, axis=-1))",
        call="greedy",
    ),
    seq2seq(
        "first input fed at every step",
        "feed every output as the next input",
        "return (y, state), (y,)",
        "return (carry[0], state), (y,)",
        call="generate",
    ),
)
