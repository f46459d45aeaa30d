"""The right results of softmax attention, and how far a kernel's may be, row by row.

The bounds are those of an exponent's errors e, carried through the softmax exactly (weights rise by at most e^e - 1 and
act on v - y, since an error common to a row cancels), and of sums and roundings, to first order in the unit roundoff.
"""

from typing import Any

import numpy as np

from parity_tests.kernels.canonical import Array, Softmax
from parity_tests.kernels.units import Units, blocks_at_most


def results_of(case: Softmax) -> tuple[str, ...]:
    """The names of what a kernel returns for a case."""
    extra = tuple(f"d{name}" for name in ("bias", "sinks") if getattr(case, name) is not None)
    return ("y", "lse", *(("dq", "dk", "dv", *extra) if case.dy is not None else ()))


def over_groups(x: Array, g: int) -> Array:
    """Sums of `b h ...` over the query heads of each key head, with an axis of size 1 for what is summed there."""
    b, h, *rest = x.shape
    return np.sum(x.reshape(b, g, h // g, *rest), axis=2)


def summed_to(x: Array, shape: tuple[int, ...]) -> Array:
    """The sum over the axes along which an array of a shape was broadcast."""
    shape_4 = (1,) * (x.ndim - len(shape)) + tuple(shape)
    axes = tuple(i for i, n in enumerate(shape_4) if n == 1 and x.shape[i] != 1)
    return np.sum(x, axis=axes, keepdims=True).reshape(shape)


def exact(case: Softmax, wide: Any) -> dict[str, Array]:
    """Results and intermediates of attention as one writes it on a board, in a type."""
    b, t, s, h, g = case.sizes
    ok, heads = case.allowed(), np.arange(h) // (h // g)
    sees = np.any(ok, axis=3).swapaxes(1, 2)[..., None]  # b t h 1
    seen = np.any(ok.reshape(b, g, h // g, t, s), axis=(2, 3)).swapaxes(1, 2)[..., None]  # b s g 1
    q = np.where(sees, case.q, 0.0).astype(wide)
    k, v = (np.where(seen, x, 0.0).astype(wide)[:, :, heads] for x in (case.k, case.v))
    raw = np.einsum("bthd,bshd->bhts", q, k)
    x = wide(case.scale) * raw
    tanh = None if case.softcap is None else np.tanh(x / wide(case.softcap))
    scores = x if tanh is None else wide(case.softcap or 0) * tanh
    added = case.added()
    scores = scores if added is None else scores + added
    scores = np.where(ok, scores, -np.inf)
    top = np.max(scores, axis=3, initial=-np.inf)
    sinks = None if case.sinks is None else np.broadcast_to(case.sinks[:, None].astype(wide), (b, h, t))
    top = top if sinks is None else np.maximum(top, sinks)
    base = np.where(np.isfinite(top), top, 0.0)
    weights = np.exp(scores - base[..., None])
    total = np.sum(weights, axis=3) + (0.0 if sinks is None else np.exp(sinks - base))
    lse = np.where(total > 0, base + np.log(np.where(total > 0, total, 1.0)), -np.inf)
    probs = weights / np.where(total > 0, total, 1.0)[..., None]
    factor = np.ones((), wide) if case.keep is None else np.where(case.keep, 1 / (1 - wide(case.rate)), 0.0)
    y = np.einsum("bhts,bshv->bthv", probs * factor, v)
    found = {
        "y": y, "lse": lse, "q": q, "k": k, "v": v, "ok": ok, "raw": raw, "tanh": tanh, "scores": scores, "top": base,
        "probs": probs, "factor": factor, "sink_probs": None if sinks is None else np.exp(sinks - lse),
    }  # fmt: skip
    if case.dy is None:
        return found
    dy = case.dy.astype(wide)
    dlse = np.zeros((b, h, t), wide) if case.dlse is None else case.dlse.astype(wide)
    dprobs = np.einsum("bthv,bshv->bhts", dy, v)
    delta = np.einsum("bthv,bthv->bht", dy, y)
    gap = factor * dprobs - (delta - dlse)[..., None]
    dscores = probs * gap
    dx = dscores if tanh is None else dscores * (1 - tanh**2)
    dk = np.einsum("bhts,bthd->bhsd", dx, q) * wide(case.scale)
    dv = np.einsum("bhts,bthv->bhsv", probs * factor, dy)
    found |= {
        "dq": wide(case.scale) * np.einsum("bhts,bshd->bthd", dx, k),
        "dk": over_groups(dk, g).swapaxes(1, 2),
        "dv": over_groups(dv, g).swapaxes(1, 2),
        "dy": dy, "dlse": dlse, "dprobs": dprobs, "delta": delta, "gap": gap, "dscores": dscores, "dx": dx,
    }  # fmt: skip
    if case.bias is not None:
        found["dbias"] = summed_to(dscores, case.bias.shape)
    if sinks is not None:
        found["dsinks"] = np.sum(found["sink_probs"] * (dlse - delta), axis=(0, 2))
    return found


def bounds(case: Softmax, ex: dict[str, Any], n: Units) -> dict[str, Array]:
    """How far each result of a right kernel may be from `exact`, in float64."""
    f: dict[str, Any] = {
        name: x if x is None else np.asarray(x, bool if name == "ok" else np.float64) for name, x in ex.items()
    }
    b, t, s, h, g = case.sizes
    q, k, v, y, ok = f["q"], f["k"], f["v"], f["y"], f["ok"]
    u, scale, width, depth = n.u, abs(case.scale), q.shape[3], v.shape[3]
    parts = blocks_at_most(s)
    length = n.gamma(s + 2 * parts)  # a sum over keys: one rescaling and one addition more for each block

    # The exponents: products, scale (as a power of 2: twice), cap, bias, the largest one, and a rescaling per block.
    size = scale * np.einsum("bthd,bshd->bhts", np.abs(q), np.abs(k))
    error = size * (n.gamma(width) + n.product + 4 * u + 2 * n.several)
    if n.several:  # scores of the kernel's type may overflow
        error = np.where(np.maximum(size, size / scale if scale else 0.0) > n.largest, np.inf, error)
    error_capped = error
    if case.softcap is not None:
        # By its exponential, a tanh has an absolute error.
        steepest = (
            1 / np.cosh(np.minimum(np.maximum(np.abs(case.scale * f["raw"]) - error, 0) / case.softcap, 300)) ** 2
        )
        error_capped = np.minimum(error * steepest, 2 * case.softcap) + (n.function + 4 * u) * case.softcap
    added = case.added()
    error = error_capped if added is None else error_capped + 2 * u * (np.abs(added) + np.abs(f["scores"]))
    scores = np.where(ok, f["scores"], 0.0)
    if case.softcap is not None or added is not None:
        error = error + n.several * np.abs(scores)
    far = np.abs(scores - f["top"][..., None])
    changes = (1 + parts) * (n.function + 2 * u)
    e = np.where(ok, error + 3 * u * far + 2 * u * np.abs(f["top"])[..., None] + changes, 0.0)
    p, factor = f["probs"], np.broadcast_to(f["factor"], ok.shape)
    up, down = p * np.expm1(e), np.sum(p * np.exp(-e), axis=3)
    sink, sink_e, sink_up = np.zeros(()), np.zeros(()), np.zeros((b, h, t))
    if case.sinks is not None:
        sink = case.sinks[:, None]
        sink_e = 3 * u * np.abs(sink - f["top"]) + 2 * u * (np.abs(f["top"]) + np.abs(sink)) + changes
        sink_up, down = f["sink_probs"] * np.expm1(sink_e), down + f["sink_probs"] * np.exp(-sink_e)
    down = np.where(down > 0, down, 1.0)
    moved, sink_moved = up / down[..., None], sink_up / down

    # y: by columns of the values, so that errors act on what differs from the mean.
    rounded, most_away, largest = np.zeros_like(y), np.zeros_like(y), np.zeros_like(y)
    centred = sink_moved.swapaxes(1, 2)[..., None] * np.abs(y)
    for c in range(depth):
        values = factor * v[..., c].swapaxes(1, 2)[:, :, None]
        away = np.where(ok, np.abs(values - y[..., c].swapaxes(1, 2)[..., None]), 0.0)
        centred[..., c] += np.sum(moved * away, axis=3).swapaxes(1, 2)
        most_away[..., c] = np.max(away, axis=3, initial=0.0).swapaxes(1, 2)
        largest[..., c] = np.max(np.where(ok, np.abs(values), 0.0), axis=3, initial=0.0).swapaxes(1, 2)
        if n.narrow:
            # The normaliser may be the sum of the rounded weights, too.
            rounded[..., c] = n.narrow * np.sum(p * np.maximum(np.abs(values), away), axis=3).swapaxes(1, 2)
    size_y = np.einsum("bhts,bshv->bthv", p * factor, np.abs(v))
    visible = np.einsum("bhts,bshv->bthv", ok * factor, np.abs(v))
    dropped = 0.0 if case.keep is None else 2 * u
    by = centred + rounded + (length + n.product + dropped + (parts + 1) * n.several) * size_y
    by = by + (length + 6 * u) * np.abs(y) + (n.eta + n.eta_narrow) * visible
    # Whatever the exponents' errors, an average lies among what it is of, 0 with the weight of a sink.
    most_away = most_away if case.sinks is None else np.maximum(most_away, np.abs(y))
    roundings = 2 * length + n.product + dropped + 2 * n.narrow + (parts + 1) * n.several + 6 * u
    among = most_away + roundings * largest + (n.eta + n.eta_narrow) * visible
    among = np.where(np.all(np.isfinite(e), axis=3).swapaxes(1, 2)[..., None], among, np.inf)
    by = np.fmin(by, among)
    by = np.where(size_y > 0, by + (parts + 1) * n.eta_several, by)
    by = np.where(n.overflows(visible), np.inf, by)
    found = {"y": n.returned(y, by)}

    # The log-sum-exp is in float32 or better, whatever the type of the kernel.
    live = np.isfinite(f["lse"])
    lse = np.where(live, f["lse"], 0.0)
    # It moves by no more than the score that moves most.
    moves = np.maximum(np.max(e, axis=3, initial=0.0), sink_e)
    blse = (
        np.fmin(np.log1p(np.sum(up, axis=3) + sink_up), moves)
        + length
        + 8 * u
        + 3 * u * (np.abs(f["top"]) + np.abs(lse))
    )
    blse = np.where(live, blse + 6 * u * np.abs(lse - f["top"]), 0.0)
    blse = np.where(np.isnan(blse), np.inf, blse)
    found["lse"] = blse
    if case.dy is None:
        return found

    # Weights again, from the log-sum-exp or not.
    r = np.where(ok, np.expm1(e + blse[..., None] + 3 * u * (np.abs(scores) + np.abs(lse)[..., None])), 0.0)
    dy, dlse, dprobs, delta, gap = f["dy"], np.abs(f["dlse"]), f["dprobs"], f["delta"], np.abs(f["gap"])
    rows, pad = n.gamma((t + 2 * blocks_at_most(t)) * (h // g)), (n.eta + n.eta_narrow)
    size_dv = np.einsum("bhts,bthv->bhsv", p * factor * (r + rows + n.product + n.narrow + dropped), np.abs(dy))
    size_dv += n.several * (blocks_at_most(t) + 1) * np.einsum("bhts,bthv->bhsv", p * factor, np.abs(dy))
    size_dv += pad * np.einsum("bhts,bthv->bhsv", ok * factor, np.abs(dy))
    size_dv = np.where(n.overflows(np.einsum("bhts,bthv->bhsv", p * factor, np.abs(dy))), np.inf, size_dv)
    size_dv = np.where(size_dv > 0, size_dv + (blocks_at_most(t) + 1) * n.eta_several, size_dv)
    found["dv"] = n.returned(f["dv"], over_groups(size_dv, g).swapaxes(1, 2))

    size_dp = np.einsum("bthv,bshv->bhts", np.abs(dy), np.abs(v))
    error_dp = factor * (n.gamma(depth) + n.product + dropped + n.several) * size_dp
    # Sum p dp, or dy . y, whose y may be the returned one where weights are rounded, too.
    returned = n.returned(y, by) if n.narrow else by + u * np.abs(y)
    error_delta = np.einsum("bthv,bthv->bht", np.abs(dy), returned)
    error_delta += n.gamma(depth) * np.einsum("bthv,bthv->bht", np.abs(dy), np.abs(y))
    by_sum = np.sum(p * r * np.abs(factor * dprobs - delta[..., None]), axis=3) + np.abs(delta) * np.expm1(2 * blse)
    by_sum += np.sum(p * (error_dp + (length + dropped) * factor * np.abs(dprobs)), axis=3)
    error_delta = np.maximum(error_delta, by_sum) + 2 * u * (np.abs(delta) + dlse)
    # Where dy . v overflows, of a hidden key, too, infinity times a weight of 0 takes the row's derivatives with it.
    read = np.abs(np.where(np.isfinite(case.v), case.v, 0.0))[:, :, np.arange(h) // (h // g)]
    lost = np.any(n.overflows(factor * np.einsum("bthv,bshv->bhts", np.abs(dy), read)), axis=3)
    lost = lost | ~np.isfinite(error_delta)  # where y itself overflows, dy . y does
    error_delta = np.where(lost, np.inf, error_delta)
    inner = error_dp + error_delta[..., None]
    sizes = factor * np.abs(dprobs) + (np.abs(delta) + dlse)[..., None]
    error_ds = np.where(ok, p * r * (gap + inner) + p * inner + 4 * u * p * sizes + n.eta * (gap + inner), 0.0)
    error_ds = np.where(lost[..., None], np.inf, error_ds)
    ds = f["dscores"]
    error_dx, dx = error_ds, f["dx"]
    if case.softcap is not None:
        tanh, off = np.abs(f["tanh"]), error_capped / case.softcap
        error_dx = error_ds * (1 - tanh**2) + (np.abs(ds) + error_ds) * (2 * tanh * off + off**2 + 4 * u)
    error_dx = np.where(ok, error_dx + n.narrow * (np.abs(dx) + error_dx) + pad, 0.0)
    lost_dx = lost[..., None] | ((n.narrow > 0) & (np.abs(dx) + error_dx > n.largest))
    error_dx = np.where(lost_dx, np.inf, error_dx)

    def through(spec: str, x: Array, terms: float, partial: int) -> Array:
        """The bound of a product with the derivatives of the scores, summed in some parts."""
        x = np.abs(x)
        relative, size = terms + n.product + 4 * u + partial * n.several, np.einsum(spec, np.abs(dx), x)
        bound = scale * (np.einsum(spec, error_dx, x) + relative * size)
        bound = np.where(bound > 0, bound + partial * n.eta_several, bound)
        return np.where(n.overflows(scale * size), np.inf, bound)

    found["dq"] = n.returned(f["dq"], through("bhts,bshd->bthd", k, length, parts + 1))
    dk = through("bhts,bthd->bhsd", q, rows, blocks_at_most(t) + 1)
    found["dk"] = n.returned(f["dk"], over_groups(dk, g).swapaxes(1, 2))
    if case.bias is not None:
        copies = ds.size // max(1, case.bias.size)
        bound = summed_to(error_ds, case.bias.shape) + n.gamma(copies) * summed_to(np.abs(ds), case.bias.shape)
        found["dbias"] = n.returned(f["dbias"], bound)
    if case.sinks is not None:
        ps = f["sink_probs"]
        rs = np.expm1(sink_e + blse + 3 * u * (np.abs(sink) + np.abs(lse)))
        value = np.abs(f["dlse"] - delta)
        each = ps * (rs * (value + error_delta) + error_delta + 4 * u * (np.abs(delta) + dlse)) + n.eta * value
        bound = np.sum(each, axis=(0, 2)) + n.gamma(b * t) * np.sum(ps * value, axis=(0, 2))
        found["dsinks"] = n.returned(f["dsinks"], bound)
    return found
