"""Mistakes in kernels of recurrences: states, gates, delta rules, chunks and their gradients."""

from parity_tests.kernels.planted import RECURRENT, mistake

recurrent, step, chunk = mistake(RECURRENT), mistake(RECURRENT, form="step"), mistake(RECURRENT, form="chunk")

STATE_WRITTEN = "state = m.partial(state + m.factor(k) * m.factor(m.narrow(v_new * beta)))"
STATE_DECAYED = "            state = state * m.exp(self.log_decay[:, i])[:, :, None]\n"
PROGRAM = "p = program(case, m, n, row, at, case.block if chunked else 0)"
STATE_RULE = "each sequence begins with its own state, or with 0"
GATE_RULE = "the state decays before the new value is written, by the factor of its own position"
WY_RULE = "the inverse of I + A, where A_ij = beta_i k_i . k_j decayed from j to i, j before i"

MISTAKES = (
    recurrent(
        "state not reset between sequences", STATE_RULE, PROGRAM, PROGRAM + "\n        p.state = last if n else p.state"
    ),
    recurrent(
        "first state ignored", STATE_RULE, "state=none if case.state is None else m.load(case.state[n])", "state=none"
    ),
    recurrent(
        "first state of the first sequence for all", STATE_RULE, "m.load(case.state[n])", "m.load(case.state[0])"
    ),
    recurrent(
        "gradient of the last state ignored",
        "the backward pass begins with the gradient of the last state",
        "dlast=none if case.dlast is None else m.load(case.dlast[n])",
        "dlast=none",
    ),
    recurrent(
        "gate ignored",
        "multiply the state by exp(g)",
        "        log_decay=log_decay,",
        "        log_decay=np.zeros_like(log_decay),",
    ),
    recurrent(
        "decay in base 2",
        "exp(g) = 2^(g log2(e))",
        "        log_decay=log_decay,",
        "        log_decay=log_decay * m.work.type(0.6931471805599453),",
    ),
    step(
        "gate taken as the factor itself",
        "the gate is a logarithm: multiply by exp(g)",
        "m.exp(self.log_decay[:, i])",
        "self.log_decay[:, i]",
        times=2,
    ),
    recurrent(
        "gate of the first head for all heads",
        "add the stride of the heads to the gate's pointer",
        "        log_decay=log_decay,",
        "        log_decay=np.broadcast_to(log_decay[:1], log_decay.shape),",
    ),
    recurrent(
        "gate of the position before",
        GATE_RULE,
        "        log_decay=log_decay,",
        "        log_decay=np.roll(log_decay, 1, axis=1),",
    ),
    recurrent(
        "beta ignored",
        "multiply what is written by beta",
        "np.ones((g, t), m.work) if case.beta is None else m.load(case.beta[row, at]).T",
        "np.ones((g, t), m.work)",
    ),
    recurrent(
        "delta rule without its erasure",
        "subtract what the state holds for the key before writing",
        '"delta" in case.rule',
        "False",
    ),
    recurrent("queries not scaled", "multiply the queries by the scale", "scale=case.scale,", "scale=1.0,"),
    recurrent(
        "queries scaled twice", "multiply the queries by the scale once", "scale=case.scale,", "scale=case.scale**2,"
    ),
    recurrent(
        "first state transposed",
        "the state is keys by values; some kernels keep it values by keys",
        "m.load(case.state[n])",
        "m.load(case.state[n]).reshape(g, depth, width).swapaxes(1, 2)",
    ),
    step(
        "gate applied after the write",
        GATE_RULE,
        STATE_DECAYED,
        "",
        STATE_WRITTEN,
        STATE_WRITTEN + " * m.exp(self.log_decay[:, i])[:, :, None]",
    ),
    step(
        "erasure reads the state before it decays",
        GATE_RULE,
        STATE_DECAYED,
        "            whole = state\n" + STATE_DECAYED,
        "m.dot(turned(k), state)",
        "m.dot(turned(k), whole)",
    ),
    step(
        "erasure added",
        "subtract what the state holds for the key",
        "v_new = v_new - m.dot(turned(k), state)",
        "v_new = v_new + m.dot(turned(k), state)",
    ),
    step(
        "erasure not multiplied by beta",
        "beta multiplies the value less what is erased",
        "m.factor(m.narrow(v_new * beta))",
        "m.factor(m.narrow(v_new * beta if not self.delta else v_new + (beta - 1) * self.v[:, i, None]))",
    ),
    step(
        "outputs read the state before the write",
        "a query sees its own position's write",
        "y[:, :, i] = m.dot(self.q[:, :, i] * m.work.type(self.scale), m.narrow(state))",
        "y[:, :, i] = m.dot(self.q[:, :, i] * m.work.type(self.scale), m.narrow(states[-1]))",
    ),
    step(
        "gradient of the state does not decay",
        "dS before the position is exp(g) dS after it",
        "dstate = m.partial(dstate * decay)",
        "dstate = m.partial(dstate)",
    ),
    step(
        "gradient of beta without the erased value",
        "dbeta = dv_new . (v - erased)",
        "(self.v[:, i, None] - erased), axis=(1, 2)",
        "self.v[:, i, None], axis=(1, 2)",
    ),
    step(
        "gradient of the key without the erasure",
        "a key erases and writes: its gradient has two parts",
        "dk[:, i] -= m.dot(dv_new * beta, turned(decayed))[:, 0]",
        "dk[:, i] -= 0",
    ),
    step(
        "gradient of the state without the erasure",
        "dS loses beta k (k . dS)",
        "dstate = dstate - m.dot(turned(k), dv_new * beta)",
        "dstate = dstate - 0",
    ),
    step(
        "dq from the state before the write",
        "dq reads the state that the query read",
        "m.dot(dy, turned(states[i + 1]))",
        "m.dot(dy, turned(states[i]))",
    ),
    chunk(
        "state does not decay from chunk to chunk",
        "multiply the state by the decay of the whole chunk",
        'm.partial(state * c["decay"]',
        "m.partial(state",
    ),
    chunk(
        "keys not decayed to the end of their chunk",
        "a key's write decays until the chunk ends",
        'state = m.partial(state * c["decay"] + m.dot(turned(m.narrow(c["k"] * c["decay_out"]))',
        'state = m.partial(state * c["decay"] + m.dot(turned(m.narrow(c["k"]))',
    ),
    chunk(
        "state before a chunk read without decay",
        "what was before decays until the query",
        'm.narrow(c["q"] * c["decay_in"][:, None])',
        'm.narrow(c["q"])',
    ),
    chunk(
        "decay to the end of a chunk one position short",
        "the last key of a chunk does not decay further",
        "m.exp(total[:, -1:] - total)",
        "m.exp(total[:, -1:] - total + self.log_decay[:, at])",
    ),
    chunk(
        "scale only within a chunk",
        "the scale belongs to the queries, in both parts",
        'm.narrow(c["q"] * c["decay_in"][:, None]) * m.work.type(self.scale)',
        'm.narrow(c["q"] * c["decay_in"][:, None])',
    ),
    chunk(
        "own position hidden within a chunk",
        "a query sees its own position's write",
        'm.dot(m.narrow(c["scores"]), v_new[:, None])',
        'm.dot(m.narrow(c["scores"] * np.tril(np.ones(c["scores"].shape[2:], m.work), -1)), v_new[:, None])',
    ),
    chunk(
        "triangular system cut after its first power",
        WY_RULE,
        "inverse = self.inverse(products * beta)",
        "inverse = np.eye(count, dtype=m.work) - products * beta",
    ),
    chunk(
        "triangular system without beta",
        WY_RULE,
        "inverse = self.inverse(products * beta)",
        "inverse = self.inverse(products)",
    ),
    chunk(
        "triangular system with beta of the columns",
        WY_RULE,
        "inverse = self.inverse(products * beta)",
        "inverse = self.inverse(products * turned(beta))",
    ),
    chunk(
        "erasure of the state before a chunk without decay",
        GATE_RULE,
        "m.narrow(beta * k * decay_in)",
        "m.narrow(beta * k)",
    ),
    chunk(
        "values of a chunk without what the state erases",
        "v_new = u - w S",
        'return c["u"] - self.m.dot(c["w"], self.m.narrow(state)) if self.delta else c["u"]',
        'return c["u"]',
    ),
    chunk(
        "last partial chunk dropped",
        "round the number of chunks up",
        "for i in range(0, self.k.shape[1], self.size)]",
        "for i in range(0, self.k.shape[1] // self.size * self.size, self.size)]",
    ),
    chunk(
        "last state lacks the last chunk",
        "return the state after the last chunk",
        "v_new))\n        return y, state, states",
        "v_new))\n        return y, (states or [state])[-1], states",
    ),
    chunk(
        "gradient of the gate summed from the start",
        "a gate acts on all later positions: sum from the end",
        "dlog_decay[:, at] = np.cumsum(dtotal[:, ::-1], axis=1)[:, ::-1]",
        "dlog_decay[:, at] = np.cumsum(dtotal, axis=1)",
    ),
    chunk(
        "gradient of the gate without the chunks behind",
        "add dS . S at the end of the chunk",
        "dtotal[:, -1] += np.sum(dstate * last, axis=2)",
        "dtotal[:, -1] += 0",
    ),
    chunk(
        "gradient of the state does not decay from chunk to chunk",
        "dS before the chunk is its decay times dS after it",
        'dstate = dstate * c["decay"] + np.sum(',
        "dstate = dstate + np.sum(",
    ),
    chunk(
        "gradient of the values without the chunks behind",
        "add k dS of the state after the chunk",
        'dv_new = dv_new + m.dot(m.narrow(k * c["decay_out"]), m.narrow(dstate))',
        "dv_new = dv_new + 0",
    ),
    chunk(
        "gradient of the state without the erasure of a chunk",
        "dS loses w^T dv",
        'dstate = dstate - m.dot(turned(beta * k * c["decay_in"]), dv_new)',
        "dstate = dstate - 0",
    ),
)
