"""The right results of a recurrence, and how far a kernel's may be, in steps or in chunks of any length.

A recurrence is linear in its state, so what a rounding at one place changes later follows exactly from the products of
the transitions in between: they are multiplied first and their absolute values taken last, which keeps the bound of a
delta rule from growing with every position. The roundings themselves are those of the WY form of a chunk (see
`attn_np.recurrence`); a chunk of one position is the step. Everything is to first order in the unit roundoff.
"""

from typing import Any

import numpy as np

from parity_tests.kernels.canonical import Array, Recurrent
from parity_tests.kernels.units import Units

CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
OF_STATES = ("last", "dstate")


def results_of(case: Recurrent) -> tuple[str, ...]:
    """The names of what a kernel returns for a case."""
    extra = tuple(f"d{name}" for name in ("beta", "log_decay", "state") if getattr(case, name) is not None)
    return ("y", "last", *(("dq", "dk", "dv", *extra) if case.dy is not None else ()))


def sequences(case: Recurrent, wide: Any) -> list[tuple[int, slice, dict[str, Any]]]:
    """Each sequence by heads: q, dy `g r t .`, k v beta log_decay `g t .`, first state and last gradient `g k v`."""
    (_, _, h, width), (_, _, g, depth) = case.q.shape, case.v.shape
    found = []
    for n, (row, at) in enumerate(case.spans()):
        t = at.stop - at.start

        def by_query_head(x: Array, row: int = row, at: slice = at, t: int = t) -> Array:
            return x[row, at].astype(wide).reshape(t, g, h // g, x.shape[3]).transpose(1, 2, 0, 3)

        def by_head(x: Array, row: int = row, at: slice = at) -> Array:
            return x[row, at].astype(wide).swapaxes(0, 1)

        log_decay = np.zeros((g, t, 1), wide)
        if case.log_decay is not None:
            log_decay = by_head(case.log_decay if case.log_decay.ndim == 4 else case.log_decay[..., None])
        none = np.zeros((g, width, depth), wide)
        part = {
            "q": by_query_head(case.q), "k": by_head(case.k), "v": by_head(case.v),
            "beta": np.ones((g, t), wide) if case.beta is None else by_head(case.beta),
            "log_decay": np.broadcast_to(log_decay, (g, t, width)),
            "state": none if case.state is None else case.state[n].astype(wide),
            "dlast": none if case.dlast is None else case.dlast[n].astype(wide),
            "dy": None if case.dy is None else by_query_head(case.dy),
        }  # fmt: skip
        found.append((row, at, part))
    return found


def exact(case: Recurrent, wide: Any) -> dict[str, Any]:
    """Results of the recurrence position by position, in a type, and what each sequence went through."""
    (b, t, h, _), (_, _, g, depth) = case.q.shape, case.v.shape
    every = sequences(case, wide)
    shapes = {"y": (b, t, h, depth), "last": (len(every), *every[0][2]["state"].shape), "dq": case.q.shape}
    shapes |= {"dk": case.k.shape, "dv": case.v.shape, "dbeta": (b, t, g), "dstate": shapes["last"]}
    shapes |= {"dlog_decay": () if case.log_decay is None else case.log_decay.shape}
    found: dict[str, Any] = {name: np.zeros(shape, wide) for name, shape in shapes.items()}
    found["sequences"] = [step_by_step(case, part, wide) for _, _, part in every]
    collect(case, found, found["sequences"])
    return found


def collect(case: Recurrent, into: dict[str, Array], parts: list[dict[str, Array]]) -> None:
    """Put results by sequence and head where the case has them."""
    for n, ((row, at), part) in enumerate(zip(case.spans(), parts, strict=True)):
        into["last"][n] = part["last"]
        into["y"][row, at] = part["y"].transpose(2, 0, 1, 3).reshape(into["y"][row, at].shape)
        if case.dy is None:
            continue
        into["dstate"][n] = part["dstate"]
        into["dq"][row, at] = part["dq"].transpose(2, 0, 1, 3).reshape(into["dq"][row, at].shape)
        for name in ("dk", "dv", "dbeta"):
            into[name][row, at] = part[name].swapaxes(0, 1)
        if case.log_decay is not None:
            by_channel = part["dlog_decay"].swapaxes(0, 1)
            into["dlog_decay"][row, at] = by_channel if case.log_decay.ndim == 4 else np.sum(by_channel, axis=2)


def step_by_step(case: Recurrent, part: dict[str, Any], wide: Any) -> dict[str, Any]:
    """One sequence: results, the states before and after every position, and their gradients."""
    q, k, v, beta, dy = (part[name] for name in ("q", "k", "v", "beta", "dy"))
    delta, scale = "delta" in case.rule, wide(case.scale)
    decay = np.exp(part["log_decay"])
    g, t, _ = k.shape
    states, v_new, erased = [part["state"]], np.zeros_like(v), np.zeros_like(v)
    y = np.zeros((*q.shape[:3], v.shape[2]), wide)
    for i in range(t):
        decayed = decay[:, i, :, None] * states[-1]
        if delta:
            erased[:, i] = np.einsum("gk,gkv->gv", k[:, i], decayed)
        v_new[:, i] = beta[:, i, None] * (v[:, i] - erased[:, i])
        states.append(decayed + k[:, i, :, None] * v_new[:, i, None])
        y[:, :, i] = scale * np.einsum("grk,gkv->grv", q[:, :, i], states[-1])
    found = part | {
        "decay": decay, "v_new": v_new, "erased": erased, "states": np.stack(states, 1), "y": y, "last": states[-1]
    }  # fmt: skip
    if dy is None:
        return found
    later, dv_new = [part["dlast"]], np.zeros_like(v)  # later[0] is the gradient of the state after the last position
    dq, dk, dlog_decay = np.zeros_like(q), np.zeros_like(k), np.zeros_like(k)
    for i in reversed(range(t)):
        after, decayed = states[i + 1], decay[:, i, :, None] * states[i]
        dq[:, :, i] = scale * np.einsum("gkv,grv->grk", after, dy[:, :, i])
        dstate = later[-1] + scale * np.einsum("grk,grv->gkv", q[:, :, i], dy[:, :, i])
        dv_new[:, i] = np.einsum("gkv,gk->gv", dstate, k[:, i])
        dk[:, i] = np.einsum("gkv,gv->gk", dstate, v_new[:, i])
        if delta:
            dk[:, i] -= beta[:, i, None] * np.einsum("gkv,gv->gk", decayed, dv_new[:, i])
            dstate = dstate - (beta[:, i, None] * k[:, i])[:, :, None] * dv_new[:, i, None]
        dlog_decay[:, i] = np.sum(dstate * decayed, axis=2)
        later.append(decay[:, i, :, None] * dstate)
    return found | {
        "dv_new": dv_new, "dq": dq, "dk": dk, "dv": beta[..., None] * dv_new, "dlog_decay": dlog_decay,
        "dbeta": np.sum(dv_new * (v - erased), axis=2), "later": np.stack(later[::-1], 1), "dstate": later[-1],
    }  # fmt: skip


def bounds(case: Recurrent, ex: dict[str, Any], n: Units) -> dict[str, Array]:
    """How far each result of a right kernel may be from `exact`: the most over chunks of every length."""
    found = {name: np.zeros(ex[name].shape) for name in results_of(case)}
    found |= {name: np.zeros(ex[name].shape) for name in ("dbeta", "dlog_decay", "dstate") if name not in found}
    parts = []
    for sequence in ex["sequences"]:
        part: dict[str, Any] = {name: x if x is None else np.asarray(x, np.float64) for name, x in sequence.items()}
        t = part["k"].shape[1]
        lengths = [c for c in CHUNKS if c < 2 * t] or [1]
        each = [in_chunks(case, part, n, c) for c in lengths]
        parts.append({name: np.max([x[name] for x in each], axis=0) for name in each[0]})
    collect(case, found, parts)
    for name in results_of(case):
        value = np.asarray(ex[name], np.float64)
        # States stay in the type that is computed in.
        found[name] = found[name] + n.u * np.abs(value) if name in OF_STATES else n.returned(value, found[name])
    return found


def in_chunks(case: Recurrent, f: dict[str, Any], n: Units, size: int) -> dict[str, Array]:
    """The bounds of one sequence's results where chunks have this many positions."""
    delta, gated, scale = "delta" in case.rule, case.log_decay is not None, abs(case.scale)
    q, k, v, v_new = np.abs(f["q"]), np.abs(f["k"]), np.abs(f["v"]), np.abs(f["v_new"])
    beta, states, u = np.abs(f["beta"]), np.abs(f["states"]), n.u
    (g, r, t, width), depth = q.shape, v.shape[2]
    borders = list(range(0, t, size))
    pair = 2 * n.narrow + n.product + 4 * u  # a product of two matrices of which both may be rounded first

    def chunk(a: int) -> dict[str, Any]:
        """Decays, products and the inverse of a chunk, absolute values but for the inverse's matrix."""
        at = slice(a, min(a + size, t))
        cum = np.cumsum(f["log_decay"][:, at], axis=1)
        count = cum.shape[1]
        lower = np.tril(np.ones((count, count), bool))
        between = np.where(lower[:, :, None], np.exp(np.minimum(cum[:, :, None] - cum[:, None], 0.0)), 0.0)  # g i j k
        # Sums of logarithms, an exponential for each factor; or products of as many decays.
        rho = np.zeros((g, 1, 1))
        if gated:
            rho = 3 * n.function + (count + 2) * u + 2 * n.gamma(count + 2) * np.max(np.abs(cum), (1, 2), keepdims=True)
        signed = np.einsum("gik,gijk,gjk->gij", f["k"][:, at], between, f["k"][:, at]) * f["beta"][:, at, None]
        below = np.tril(np.ones((count, count)), -1)
        inverse = np.linalg.inv(np.eye(count) + signed * below) if delta else np.eye(count) + np.zeros((g, 1, 1))
        kk = np.einsum("gik,gijk,gjk->gij", k[:, at], between, k[:, at]) * below * (1.0 if delta else 0.0)
        return {
            "at": at, "from": np.exp(cum), "to": np.exp(cum[:, -1:] - cum), "all": np.exp(cum[:, -1]),
            "between": between, "rho": rho, "inverse": np.abs(inverse), "kk": kk, "sum": n.gamma(count),
            "sum_r": n.gamma(count * r), "bkk": kk * beta[:, at, None],
            "qk": scale * np.einsum("grik,gijk,gjk->grij", q[:, :, at], between, k[:, at]),
        }  # fmt: skip

    def solved(c: dict[str, Any], matrix: Array, inverse: Array, rows: Array, solution: Array, within: Array) -> Array:
        """The bound of a solution of the triangular system: `rows` are the sizes of its right side, with errors."""
        if not delta:
            return within + 2 * u * rows
        spread = inverse @ rows
        wrong = (n.gamma(width) + c["rho"] + pair + n.narrow) * matrix
        by_inverse = inverse @ ((c["sum"] + 2 * u) * (matrix @ spread))
        return inverse @ (wrong @ solution) + by_inverse + (c["sum"] + pair) * spread + inverse @ within

    chunks = [chunk(a) for a in borders]
    local_v, local_y = np.zeros_like(v), np.zeros((g, r, t, depth))
    local_state = np.zeros((t + 1, g, width, depth))  # made by the chunk that ends there
    for a, c in zip(borders, chunks, strict=True):
        at, before, end = c["at"], states[:, a], c["at"].stop
        erased = (beta[:, at, None] * ((k[:, at] * c["from"]) @ before)) if delta else 0.0
        right = beta[:, at, None] * v[:, at] + erased
        within = (n.gamma(width) + c["rho"] + pair) * erased + 2 * u * right
        local_v[:, at] = lv = solved(c, c["bkk"], c["inverse"], right, v_new[:, at], within)
        inner = np.einsum("grij,gjv->griv", c["qk"], v_new[:, at])
        outer = scale * np.einsum("grik,gkv->griv", q[:, :, at] * c["from"][:, None], before)
        rho = c["rho"][:, None]
        local_y[:, :, at] = np.einsum("grij,gjv->griv", c["qk"], lv) + (n.gamma(width) + rho + pair) * outer
        local_y[:, :, at] += (n.gamma(width) + c["sum"] + rho + pair + n.product + n.narrow) * inner
        keys = (k[:, at] * c["to"]).swapaxes(1, 2)
        local_state[end] = keys @ lv + (c["sum"] + c["rho"] + pair) * (keys @ v_new[:, at])
        local_state[end] += (
            (c["rho"] + 2 * u) * c["all"][:, :, None] * before + (2 * u + n.several) * states[:, end] + n.eta_several
        )

    # What errors of the states between chunks do, by the products of the transitions.
    eye = np.eye(width)
    transitions = eye * f["decay"][:, :, None]  # g t k k
    if delta:
        erase = eye - (f["beta"][..., None] * f["k"])[..., None] * f["k"][:, :, None]
        transitions = erase @ transitions
    error_state, error_v, error_y = np.zeros((t + 1, g, width, depth)), local_v.copy(), local_y + 0.0
    paths, sources = np.zeros((0, g, width, width)), np.zeros((0, g, width, depth))
    ends = {c["at"].stop for c in chunks}
    for i in range(t):
        if delta:
            row = np.einsum("gk,ngkj->ngj", f["k"][:, i] * f["decay"][:, i], paths)
            error_v[:, i] += beta[:, i, None] * np.einsum("ngj,ngjv->gv", np.abs(row), sources)
        paths = transitions[:, i] @ paths
        error_y[:, :, i] += scale * np.einsum("ngrj,ngjv->grv", np.abs(f["q"][:, :, i] @ paths), sources)
        error_state[i + 1] = np.einsum("ngkj,ngjv->gkv", np.abs(paths), sources)
        if i + 1 in ends:
            error_state[i + 1] += local_state[i + 1]
            paths = np.concatenate([paths, np.broadcast_to(eye, (1, g, width, width))])
            sources = np.concatenate([sources, local_state[i + 1][None]])
    found = {"y": error_y, "last": error_state[t]}
    if case.dy is None:
        return found

    dy, dv_new, later = np.abs(f["dy"]), np.abs(f["dv_new"]), np.abs(f["later"])
    local_dv, local_later = np.zeros_like(v), np.zeros((t + 1, g, width, depth))  # made by the chunk that begins there
    for a, c in zip(borders, chunks, strict=True):
        at, end = c["at"], c["at"].stop
        keys = k[:, at] * c["to"]
        right = np.einsum("grij,griv->gjv", c["qk"], dy[:, :, at]) + keys @ later[:, end]
        within = (n.gamma(width) + c["sum_r"] + c["rho"] + pair + n.product + n.narrow) * right
        matrix, inverse = c["bkk"].swapaxes(1, 2), c["inverse"].swapaxes(1, 2)
        local_dv[:, at] = ld = solved(c, matrix, inverse, right, dv_new[:, at], within)
        read = scale * np.einsum("grik,griv->gkv", q[:, :, at] * c["from"][:, None], dy[:, :, at])
        local = (c["sum_r"] + c["rho"] + pair) * read + (c["rho"] + 2 * u) * c["all"][:, :, None] * later[:, end]
        if delta:
            written = (beta[:, at, None] * k[:, at] * c["from"]).swapaxes(1, 2)
            local = local + written @ ld + (c["sum"] + c["rho"] + pair) * (written @ dv_new[:, at])
        local_later[a] = local + (2 * u + n.several) * later[:, a] + n.eta_several
    error_later, error_dv = np.zeros((t + 1, g, width, depth)), local_dv.copy()
    paths, sources = np.zeros((0, g, width, width)), np.zeros((0, g, width, depth))
    for i in reversed(range(t)):
        row = np.einsum("gk,ngkj->ngj", f["k"][:, i], paths)
        error_dv[:, i] += np.einsum("ngj,ngjv->gv", np.abs(row), sources)
        paths = transitions[:, i].swapaxes(1, 2) @ paths
        error_later[i] = np.einsum("ngkj,ngjv->gkv", np.abs(paths), sources)
        if i in borders:
            error_later[i] += local_later[i]
            paths = np.concatenate([paths, np.broadcast_to(eye, (1, g, width, width))])
            sources = np.concatenate([sources, local_later[i][None]])

    dq, dk, dbeta = np.zeros_like(q), np.zeros_like(k), np.zeros_like(beta)
    steps, ends_of = np.zeros_like(k), np.zeros_like(k)  # q dq and k dk: sizes with errors; what comes after a chunk
    for a, c in zip(borders, chunks, strict=True):
        at, end, between, rho = c["at"], c["at"].stop, c["between"], c["rho"]
        relative = n.gamma(depth) + n.gamma(width) + c["sum_r"] + rho + 2 * pair + n.narrow
        kc, qc, bk = k[:, at], q[:, :, at], beta[:, at, None] * k[:, at]
        vs, dvs, ev, ed, dys = v_new[:, at], dv_new[:, at], error_v[:, at], error_dv[:, at], dy[:, :, at]

        def products(x: Array, y: Array, ex: Array, ey: Array, relative: Array = relative) -> Array:
            """The error of a product of two arrays that err, with its own relative one."""
            return relative * (x @ y) + ex @ y + x @ ey

        def sides(x: Array) -> Array:
            return x.swapaxes(-1, -2)

        none_r, whole = np.zeros_like(dys), states[:, a, None]
        through = products(dys, sides(vs)[:, None], none_r, sides(ev)[:, None], relative[:, None])  # g r i j
        from_state = products(dys, sides(whole), none_r, sides(error_state[a])[:, None], relative[:, None])
        dq[:, :, at] = scale * (
            c["from"][:, None] * from_state + np.einsum("grij,gijk,gjk->grik", through, between, kc)
        )
        size_dq = scale * (
            c["from"][:, None] * (dys @ sides(whole))
            + np.einsum("grij,gijk,gjk->grik", dys @ sides(vs)[:, None], between, kc)
        )
        after = later[:, end]
        errors = c["to"] * products(vs, sides(after), ev, sides(error_later[end]))
        sizes = c["to"] * (vs @ sides(after)) + scale * np.einsum(
            "grij,gijk,grik->gjk", dys @ sides(vs)[:, None], between, qc
        )
        errors = errors + scale * np.einsum("grij,gijk,grik->gjk", through, between, qc)
        if delta:
            by_state = products(dvs, sides(states[:, a]), ed, sides(error_state[a]))
            by_pairs = products(dvs, sides(vs), ed, sides(ev)) * (c["kk"] > 0)  # i j: later dv, earlier v
            size_pairs = (dvs @ sides(vs)) * (c["kk"] > 0)
            for pairs, into_errors in ((by_pairs, True), (size_pairs, False)):
                as_key = np.einsum("gij,gijk,gik->gjk", pairs, between, bk)
                as_eraser = beta[:, at, None] * np.einsum("gij,gijk,gjk->gik", pairs, between, kc)
                errors = errors + (as_key + as_eraser if into_errors else 0.0)
                sizes = sizes + (0.0 if into_errors else as_key + as_eraser)
            errors = errors + beta[:, at, None] * c["from"] * by_state
            sizes = sizes + beta[:, at, None] * c["from"] * (dvs @ sides(states[:, a]))
        dk[:, at] = errors
        erased = (kc * c["from"]) @ states[:, a] + c["kk"] @ vs if delta else np.zeros_like(vs)
        error_erased = (kc * c["from"]) @ error_state[a] + c["kk"] @ ev if delta else 0.0
        off = ed * np.abs(f["v"][:, at] - f["erased"][:, at]) + dvs * (error_erased + relative * (v[:, at] + erased))
        dbeta[:, at] = np.sum(off, axis=2)
        # The gradient of a decay may be a sum over later positions of q dq - k dk, and what comes after them: of the
        # chunk, and without a delta rule of the sequence.
        steps[:, at] = np.sum(qc * (dq[:, :, at] + n.gamma(t + 4) * size_dq), axis=1) + kc * (
            dk[:, at] + n.gamma(t + 4) * sizes
        )
        final = states[:, end] * (error_later[end] + relative * after) + error_state[end] * after
        ends_of[:, at] = np.sum(final, axis=2)[:, None]
    stretch = max(1, t) if size == 1 and not delta else size
    dlog_decay = np.zeros_like(k)
    for a in range(0, t, stretch):
        at = slice(a, min(a + stretch, t))
        dlog_decay[:, at] = np.cumsum(steps[:, at][:, ::-1], axis=1)[:, ::-1] + ends_of[:, at][:, -1:]
    return found | {
        "dq": dq, "dk": dk, "dv": beta[..., None] * (error_dv + 3 * u * dv_new), "dbeta": dbeta,
        "dlog_decay": dlog_decay, "dstate": error_later[0],
    }  # fmt: skip
