"""Right kernels of recurrences in NumPy, in steps and in chunks, forward and backward, in every class of arithmetic.

They are what the bounds are proven with, and what mistakes are planted in, as edits of this file. A program runs one
sequence, packed or a row of the batch, with all heads at once; letters are those of `attn_np.recur` and of the WY form.
"""

from dataclasses import dataclass

import numpy as np

from parity_tests.kernels.canonical import Array, Recurrent, Results
from parity_tests.kernels.machine import Machine


def turned(x: Array) -> Array:
    """A matrix with rows and columns exchanged."""
    return x.swapaxes(-1, -2)


@dataclass
class Program:
    """What a kernel's program gets: one sequence by heads.

    Attributes:
        m: the arithmetic.
        q: `g r t k`.
        k, v, log_decay: `g t .`.
        beta: `g t`.
        state, dlast: `g k v`.
        scale, delta: as of the case, and whether the rule erases.
        size: positions in a chunk; 0 for steps.
    """

    m: Machine
    q: Array
    k: Array
    v: Array
    beta: Array
    log_decay: Array
    state: Array
    dlast: Array
    scale: float
    delta: bool
    size: int

    def step_forward(self) -> tuple[Array, Array, list[Array]]:
        """Outputs, the last state, and the states before and after every position."""
        m, state = self.m, self.state
        y = np.zeros((*self.q.shape[:3], self.v.shape[2]), m.work)
        states = [state]
        for i in range(self.k.shape[1]):
            k, beta = self.k[:, i, :, None], self.beta[:, i, None, None]
            state = state * m.exp(self.log_decay[:, i])[:, :, None]
            v_new = self.v[:, i, None]
            if self.delta:
                v_new = v_new - m.dot(turned(k), state)
            state = m.partial(state + m.factor(k) * m.factor(m.narrow(v_new * beta)))
            y[:, :, i] = m.dot(self.q[:, :, i] * m.work.type(self.scale), m.narrow(state))
            states.append(state)
        return y, state, states

    def step_backward(self, states: list[Array], dys: Array) -> dict[str, Array]:
        """Gradients by name, of every position from the last to the first."""
        m, scale = self.m, self.m.work.type(self.scale)
        dq, dk, dv = np.zeros_like(self.q), np.zeros_like(self.k), np.zeros_like(self.v)
        dbeta, dlog_decay, dstate = np.zeros_like(self.beta), np.zeros_like(self.k), self.dlast
        for i in reversed(range(self.k.shape[1])):
            q, dy = self.q[:, :, i], dys[:, :, i]
            k, beta = self.k[:, i, None], self.beta[:, i, None, None]
            decay = m.exp(self.log_decay[:, i])[:, :, None]
            decayed = states[i] * decay
            dq[:, :, i] = m.dot(dy, turned(states[i + 1])) * scale
            dstate = dstate + m.dot(turned(q), dy) * scale
            erased = m.dot(k, decayed) if self.delta else np.zeros_like(self.v[:, i, None])
            v_new = (self.v[:, i, None] - erased) * beta
            dv_new = m.dot(k, dstate)
            dv[:, i] = (dv_new * beta)[:, 0]
            dbeta[:, i] = np.sum(dv_new * (self.v[:, i, None] - erased), axis=(1, 2))
            dk[:, i] = m.dot(v_new, turned(dstate))[:, 0]
            if self.delta:
                dk[:, i] -= m.dot(dv_new * beta, turned(decayed))[:, 0]
                dstate = dstate - m.dot(turned(k), dv_new * beta)
            if self.delta:
                dlog_decay[:, i] = np.sum(dstate * decayed, axis=2)
            dstate = m.partial(dstate * decay)
        if not self.delta:
            # A key's product with its gradient is what its decays have let through, a query's what they let in.
            through = np.sum(self.q * dq, axis=1) - self.k * dk
            through[:, -1:] += np.sum(self.dlast * states[-1], axis=2)[:, None]
            dlog_decay = np.cumsum(through[:, ::-1], axis=1)[:, ::-1]
        return {"dq": dq, "dk": dk, "dv": dv, "dbeta": dbeta, "dlog_decay": dlog_decay, "dstate": dstate}

    def chunks(self) -> list[slice]:
        return [slice(i, min(i + self.size, self.k.shape[1])) for i in range(0, self.k.shape[1], self.size)]

    def inverse(self, lower: Array) -> Array:
        """(I + A)^-1, row by row."""
        found = np.eye(lower.shape[1], dtype=self.m.work) + np.zeros_like(lower)
        for i in range(1, lower.shape[1]):
            found[:, i, :i] = -(lower[:, i, None, :i] @ found[:, :i, :i])[:, 0]
        return found

    def chunk(self, at: slice) -> dict[str, Array]:
        """What a chunk needs in both directions: decays, products of queries and keys, and the WY form."""
        m, q, k, beta = self.m, self.q[:, :, at], self.k[:, at], self.beta[:, at, None]
        total = np.cumsum(self.log_decay[:, at], axis=1)
        count = total.shape[1]
        earlier = np.tril(np.ones((count, count), bool))
        between = m.exp(np.where(earlier[:, :, None], total[:, :, None] - total[:, None], -np.inf))
        keys = m.factor(m.narrow(between * m.factor(k)[:, None]))  # g i j k: of the key j, decayed until i
        scores = np.einsum("grik,gijk->grij", m.factor(q), keys) * m.work.type(self.scale)
        products = np.einsum("gik,gijk->gij", m.factor(k), keys) * np.tril(np.ones((count, count), m.work), -1)
        decay_in, decay_out = m.exp(total), m.exp(total[:, -1:] - total)
        found = {
            "q": q, "k": k, "beta": beta, "between": between, "scores": scores, "products": products,
            "decay_in": decay_in, "decay_out": decay_out, "decay": m.exp(total[:, -1])[:, :, None],
            "u": beta * self.v[:, at],
        }  # fmt: skip
        if self.delta:
            inverse = self.inverse(products * beta)
            found["inverse"] = m.narrow(inverse)
            found["u"] = m.dot(found["inverse"], m.narrow(beta * self.v[:, at]))
            found["w"] = m.narrow(m.dot(found["inverse"], m.narrow(beta * k * decay_in)))
        return found

    def written(self, c: dict[str, Array], state: Array) -> Array:
        """The values that a chunk writes."""
        return c["u"] - self.m.dot(c["w"], self.m.narrow(state)) if self.delta else c["u"]

    def chunk_forward(self) -> tuple[Array, Array, list[Array]]:
        """Outputs, the last state, and the states before every chunk."""
        m, state = self.m, self.state
        y = np.zeros((*self.q.shape[:3], self.v.shape[2]), m.work)
        states = []
        for at in self.chunks():
            states.append(state)
            c = self.chunk(at)
            v_new = m.narrow(self.written(c, state))
            read = m.narrow(c["q"] * c["decay_in"][:, None]) * m.work.type(self.scale)
            y[:, :, at] = m.dot(read, m.narrow(state)[:, None]) + m.dot(m.narrow(c["scores"]), v_new[:, None])
            state = m.partial(state * c["decay"] + m.dot(turned(m.narrow(c["k"] * c["decay_out"])), v_new))
        return y, state, states

    def chunk_backward(self, states: list[Array], dys: Array) -> dict[str, Array]:
        """Gradients by name, of every chunk from the last to the first."""
        m, scale, dstate = self.m, self.m.work.type(self.scale), self.dlast
        dq, dk, dv = np.zeros_like(self.q), np.zeros_like(self.k), np.zeros_like(self.v)
        dbeta, dlog_decay = np.zeros_like(self.beta), np.zeros_like(self.k)
        for at, state in zip(self.chunks()[::-1], states[::-1], strict=True):
            c, dy = self.chunk(at), dys[:, :, at]
            q, k, beta, between = c["q"], c["k"], c["beta"], c["between"]
            v_new = self.written(c, state)
            last = state * c["decay"] + m.dot(turned(m.narrow(k * c["decay_out"])), m.narrow(v_new))
            dv_new = np.sum(m.dot(turned(m.narrow(c["scores"])), dy), axis=1)
            dv_new = dv_new + m.dot(m.narrow(k * c["decay_out"]), m.narrow(dstate))
            if self.delta:
                dv_new = m.dot(turned(c["inverse"]), m.narrow(dv_new))
            dscores = m.narrow(m.dot(dy, turned(v_new)[:, None]) * scale)
            dscores = dscores * np.tril(np.ones(dscores.shape[2:], m.work))
            dq_in = c["decay_in"][:, None] * m.dot(dy, turned(m.narrow(state))[:, None]) * scale
            dq[:, :, at] = dq_in + np.einsum("grij,gijk->grik", dscores, between * k[:, None])
            written = c["decay_out"] * m.dot(v_new, turned(m.narrow(dstate)))
            written = written + np.einsum("grij,grik,gijk->gjk", dscores, q, between)
            erased = np.zeros_like(written)
            if self.delta:
                dproducts = -m.narrow(m.dot(dv_new, turned(v_new))) * np.tril(np.ones_like(c["products"]), -1) * beta
                erased = -beta * c["decay_in"] * m.dot(dv_new, turned(m.narrow(state)))
                erased = erased + np.einsum("gij,gijk->gik", dproducts, between * k[:, None])
                written = written + np.einsum("gij,gik,gijk->gjk", dproducts, k, between)
            dk[:, at] = written + erased
            dv[:, at] = beta * dv_new
            held = m.dot(k * c["decay_in"], state) + m.dot(c["products"], v_new) if self.delta else 0.0
            dbeta[:, at] = np.sum(dv_new * (self.v[:, at] - held), axis=2)
            dtotal = np.sum(q * dq[:, :, at], axis=1) + k * (erased - written)
            dtotal[:, -1] += np.sum(dstate * last, axis=2)
            dlog_decay[:, at] = np.cumsum(dtotal[:, ::-1], axis=1)[:, ::-1]
            dstate = dstate * c["decay"] + np.sum(
                m.dot(turned(m.narrow(q * c["decay_in"][:, None])), dy) * scale, axis=1
            )
            if self.delta:
                dstate = dstate - m.dot(turned(beta * k * c["decay_in"]), dv_new)
            dstate = m.partial(dstate)
        return {"dq": dq, "dk": dk, "dv": dv, "dbeta": dbeta, "dlog_decay": dlog_decay, "dstate": dstate}


def by_query_head(m: Machine, x: Array, g: int, row: int, at: slice) -> Array:
    """A sequence's rows of an array `b t h .` as `g r t .`."""
    t, h, width = x[row, at].shape
    return m.load(x[row, at]).reshape(t, g, h // g, width).transpose(1, 2, 0, 3)


def program(case: Recurrent, m: Machine, n: int, row: int, at: slice, size: int) -> Program:
    """The program of one sequence."""
    (_, _, g, width), depth, t = case.k.shape, case.v.shape[3], at.stop - at.start

    log_decay = np.zeros((g, t, width), m.work)
    if case.log_decay is not None:
        by_channel = case.log_decay if case.log_decay.ndim == 4 else case.log_decay[..., None]
        log_decay = log_decay + m.load(by_channel[row, at]).swapaxes(0, 1)
    none = np.zeros((g, width, depth), m.work)
    return Program(
        m=m,
        q=by_query_head(m, case.q, g, row, at),
        k=m.load(case.k[row, at]).swapaxes(0, 1),
        v=m.load(case.v[row, at]).swapaxes(0, 1),
        beta=np.ones((g, t), m.work) if case.beta is None else m.load(case.beta[row, at]).T,
        log_decay=log_decay,
        state=none if case.state is None else m.load(case.state[n]),
        dlast=none if case.dlast is None else m.load(case.dlast[n]),
        scale=case.scale,
        delta="delta" in case.rule,
        size=size,
    )


def run(case: Recurrent, m: Machine, chunked: bool = True) -> Results:
    """What a right kernel returns, by name, in float64."""
    (b, t, h, width), (_, _, g, depth), spans = case.q.shape, case.v.shape, case.spans()
    found: Results = {"y": np.zeros((b, t, h, depth)), "last": np.zeros((len(spans), g, width, depth))}
    if case.dy is not None:
        found |= {"dq": np.zeros(case.q.shape), "dk": np.zeros(case.k.shape), "dv": np.zeros(case.v.shape)}
        found |= {"dbeta": np.zeros((b, t, g)), "dlog_decay": np.zeros((b, t, g, width))}
        found["dstate"] = np.zeros(found["last"].shape)
    for n, (row, at) in enumerate(spans):
        p = program(case, m, n, row, at, case.block if chunked else 0)
        y, last, states = p.chunk_forward() if chunked else p.step_forward()
        found["y"][row, at] = m.store(y).transpose(2, 0, 1, 3).reshape(at.stop - at.start, h, depth)
        found["last"][n] = last
        if case.dy is None:
            continue
        dys = by_query_head(m, case.dy, g, row, at)
        grads = p.chunk_backward(states, dys) if chunked else p.step_backward(states, dys)
        found["dq"][row, at] = m.store(grads["dq"]).transpose(2, 0, 1, 3).reshape(at.stop - at.start, h, width)
        for name in ("dk", "dv", "dbeta", "dlog_decay"):
            rounded = grads[name] if name == "dlog_decay" else m.store(grads[name])
            found[name][row, at] = rounded.swapaxes(0, 1)
        found["dstate"][n] = grads["dstate"]
    if "dlog_decay" in found:
        by_head = case.log_decay is not None and case.log_decay.ndim == 3
        log_decay = m.load(found["dlog_decay"])
        found["dlog_decay"] = m.store(np.sum(log_decay, axis=3) if by_head else log_decay)
    absent = [f"d{name}" for name in ("beta", "log_decay", "state") if getattr(case, name) is None]
    return {name: x for name, x in found.items() if name not in absent}
