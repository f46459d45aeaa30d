"""Rules for weights that may be 0: sparsemax, entmax, the largest score alone."""

from typing import Any

import numpy as np

from attn_np.attention import chosen
from attn_np.normalizers import simplex, sparse
from attn_np.ops import vjp
from parity_tests.bounds.error_array import FUNCTIONS, ErrArray, jostled, lift, magnitude, plain, rule
from parity_tests.bounds.precision import FUNCTION, promised


@rule(FUNCTIONS, sparse.sparsemax)
def sparsemax(scores: Any, allowed: Any = None, axis: int = -1) -> ErrArray:
    """tau moves by no more than the scores do at most, so p_i by that and by what its own score does.

    After the largest score is subtracted none is positive, so the sums cancel nothing: (sum - 1) / k errs relative to
    1 + |tau|, at most 2, and those of other k, which are smaller, no further up. A weight whose score lies below tau by
    more than all of this is 0 in every type.
    """
    s, p = lift(scores), promised()
    ok = np.ones(s.shape, bool) if allowed is None else np.broadcast_to(allowed, s.shape)
    probs = plain(sparse.sparsemax)(s.v, None if allowed is None else ok, axis)
    if probs.size == 0:
        return ErrArray(probs, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        top = np.max(np.where(ok, s.v, -np.inf), axis=axis, keepdims=True)
        z = np.where(ok & np.isfinite(s.v), s.v - np.where(np.isfinite(top), top, 0.0), -np.inf)
        tau = np.max(np.where(probs > 0, z - probs, -np.inf), axis=axis, keepdims=True)
        loose = np.max(np.where(ok, s.b, 0.0), axis=axis, keepdims=True)
        far = np.where(np.isfinite(z), np.abs(z), 0.0)
        most = s.b + loose + 2 * p.u * (far + s.b + loose) + 2 * p.gamma(s.shape[axis] + 4) + p.eta
        b = np.where(ok & ~(z - tau < -most), np.minimum(most, 1.0), 0.0)
        b = np.where(np.isnan(probs) & ~np.isposinf(s.b), 0.0, b)
    return jostled(ErrArray(probs, b))


@rule(FUNCTIONS, vjp.sparsemax_vjp)
def sparsemax_vjp(probs: Any, dprobs: Any, axis: int = -1) -> ErrArray:
    """The support is a decision: where the bounds leave it open, the row's gradient may be that of another one."""
    x, y, p = lift(probs), lift(dprobs), promised()
    support = x.v > 0
    unsure = np.where(support, x.v <= x.b, x.b > p.eta)
    count = np.maximum(np.sum(support, axis=axis, keepdims=True), 1)

    def over(a: np.ndarray) -> np.ndarray:
        return np.sum(np.where(support, a, 0.0), axis=axis, keepdims=True) / count

    size = magnitude(y)
    b = y.b + over(y.b) + (p.gamma(x.shape[axis] + 4) + 8 * p.u) * (size + over(size)) + p.eta
    most = 2 * np.max(size, axis=axis, keepdims=True, initial=0.0)
    b = np.where(np.any(unsure, axis=axis, keepdims=True), most, np.where(support, b, 0.0))
    return jostled(ErrArray(plain(vjp.sparsemax_vjp)(x.v, y.v, axis), b))


@rule(FUNCTIONS, sparse.entmax15)
def entmax15(scores: Any, allowed: Any = None, axis: int = -1) -> ErrArray:
    """The root g = z - tau of a weight errs by what its own z does, half the score, and by what tau does.

    tau moves by a mean of the errors of z, weighted by g. The sums over the sorted z, as the paper has them, cancel: of
    k (mean of squares - squared mean) the error is relative to sum z^2 + (sum z)^2 / k, and that of tau so much divided
    by the root of the discriminant, which is sum g. The support is no decision to the weights: where it is open they
    are of second order. A weight whose z lies below tau by more than all of this is 0 in every type.
    """
    s, p = lift(scores), promised()
    ok = np.ones(s.shape, bool) if allowed is None else np.broadcast_to(allowed, s.shape)
    probs = plain(sparse.entmax15)(s.v, None if allowed is None else ok, axis)
    if probs.size == 0:
        return ErrArray(probs, 0.0)

    def over(a: np.ndarray) -> np.ndarray:
        return np.sum(np.where(probs > 0, a, 0.0), axis=axis, keepdims=True)

    with np.errstate(invalid="ignore", over="ignore"):
        top = np.max(np.where(ok, s.v, -np.inf), axis=axis, keepdims=True)
        z = np.where(ok & np.isfinite(s.v), s.v - np.where(np.isfinite(top), top, 0.0), -np.inf) / 2
        root = np.sqrt(probs)
        tau = np.max(np.where(probs > 0, z - root, -np.inf), axis=axis, keepdims=True)
        loose = np.max(np.where(ok, s.b, 0.0), axis=axis, keepdims=True)
        far = np.where(np.isfinite(z), np.abs(z), 0.0)
        total, count = np.abs(over(z)), np.maximum(over(np.ones(z.shape)), 1.0)
        size = np.maximum(over(root), 1.0)
        g = 2 * p.gamma(s.shape[axis] + 8)
        cancelled = g * (total / count + (over(z * z) + total * total / count) / size + 1)
        most = (s.b + loose) / 2 + 2 * p.u * (far + s.b + loose) + cancelled + p.eta
        b = np.where(ok & ~(z - tau < -most), most * (2 * root + most) + 2 * p.u * probs, 0.0)
        b = np.where(np.isnan(probs) & ~np.isposinf(s.b), 0.0, np.where(np.isnan(b), np.inf, np.minimum(b, 1.0)))
    return jostled(ErrArray(probs, b))


@rule(FUNCTIONS, vjp.entmax15_vjp)
def entmax15_vjp(probs: Any, dprobs: Any, axis: int = -1) -> ErrArray:
    """g (dp - D) with D the mean of dp weighted by g: an error that all dp share cancels, so those of g act on dp - D.

    Automatic differentiation knows g before it is squared and divides by sums of its own: some roundings more of each
    factor.
    """
    x, y, p = lift(probs), lift(dprobs), promised()

    def over(a: np.ndarray) -> np.ndarray:
        return np.sum(a, axis=axis, keepdims=True)

    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        v, root = plain(vjp.entmax15_vjp)(x.v, y.v, axis), np.sqrt(x.v)
        loose = np.maximum(root - np.sqrt(np.maximum(x.v - x.b, 0.0)), np.sqrt(x.v + x.b) - root)
        loose, size = loose + 4 * p.u * root, over(root)
        mean = over(root * y.v) / np.where(size == 0, 1.0, size)
        gap, spread = np.abs(y.v - mean), over((root + loose) * magnitude(y))
        least = np.where(size == 0, 1.0, np.maximum(size - over(loose), 0.0))
        moved = over(loose * gap) + over((root + loose) * y.b) + 2 * p.gamma(x.shape[axis] + 8) * spread
        inner = y.b + np.where(moved == 0, 0.0, moved / least)
        b = loose * gap + (root + loose) * (inner + 8 * p.u * (magnitude(y) + np.abs(mean) + inner))
        b = np.where(root + loose > 0, b + p.eta, 0.0)
        most = np.max(magnitude(y), axis=axis, keepdims=True, initial=0.0)  # g <= 1, and D lies among the dp
        b = np.fmin(b, np.where(root + loose > 0, np.abs(v) + 2 * most, 0.0))
    return jostled(ErrArray(v, np.where(np.isfinite(v), b, 0.0)))


@rule(FUNCTIONS, simplex.steep_entmax)
def steep_entmax(scores: Any, allowed: Any, alpha: float) -> ErrArray:
    """A weight rises with its own score and falls with the others: it lies between what both ends of the scores give.

    The w err relative to the logarithm of the weight. By what all of them and their sum err, y does, and so does each
    weight, none of which rises faster than y. A score whose w surely add up to more than 1 has none; where that is
    open, its weight is no larger than those errors.
    """
    s, p = lift(scores), promised()
    ok = np.ones(s.shape, bool) if allowed is None else np.broadcast_to(allowed, s.shape)
    entmax_of = plain(simplex.steep_entmax)
    probs = entmax_of(s.v, None if allowed is None else ok, alpha)
    shown = ok & ~np.isnan(probs)
    with np.errstate(invalid="ignore", over="ignore"):
        low, high = s.v - np.where(np.isfinite(s.b), s.b, 0.0), s.v + np.where(np.isfinite(s.b), s.b, 0.0)
        own = np.eye(s.shape[-1], dtype=bool)  # a row for each weight
        each = np.broadcast_to(shown[..., None, :], (*s.shape, s.shape[-1]))
        least, most = (
            np.sum(np.where(own, entmax_of(np.where(own, x[..., None, :], y[..., None, :]), each, alpha), 0.0), -1)
            for x, y in ((low, high), (high, low))
        )
        logs = np.where(probs > 0, np.abs(np.log(np.where(probs > 0, probs, 1.0))), 0.0)
        per_log = (2 * FUNCTION + 8) * p.u
        rounded = np.where(shown, per_log * (1 + logs) * probs, 0.0)
        all_rounded = np.sum(rounded, axis=-1, keepdims=True) + p.gamma(s.shape[-1] + 8)
        b = np.maximum(most - probs, probs - least) + rounded + 4 * all_rounded
        above = np.where(each & ~own, (low[..., None, :] - high[..., None]) * (alpha - 1), 0.0)
        log_w = np.log(np.where(above > 0, above, 1.0)) / (alpha - 1)
        w = np.where(above > 0, np.exp(log_w), 0.0)
        least_sum = np.sum(w * (1 - 2 * per_log * (1 + np.abs(log_w))), axis=-1) * (1 - 2 * p.gamma(s.shape[-1] + 8))
        b = np.where(least_sum > 1, 0.0, b)
        b = np.where(np.any(ok & ~np.isfinite(s.b), axis=-1, keepdims=True), np.inf, np.minimum(b, 1.0))
        b = np.where(np.isnan(probs) & ~np.isposinf(s.b), 0.0, np.where(ok, b, 0.0))
    return jostled(ErrArray(probs, b))


@rule(FUNCTIONS, simplex.steep_entmax_vjp)
def steep_entmax_vjp(probs: Any, dprobs: Any, alpha: float) -> ErrArray:
    """g (dp - D) but for the smallest weight, from which the others' gradients are taken.

    D is dp of the smallest weight, plus shares of g times how much other dp differ from that: of the smallest weight
    only the least that its g may be counts. Where another weight may be the smallest, or 0, anything may come out.
    """
    x, y, p = lift(probs), lift(dprobs), promised()
    power = alpha - 2

    def slope(a: np.ndarray) -> np.ndarray:
        return np.where(a > 0, np.exp(-power * np.log(np.where(a > 0, a, 1.0))), np.inf)

    def over(a: np.ndarray) -> np.ndarray:
        return np.sum(a, axis=-1, keepdims=True)

    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        v, hidden = plain(simplex.steep_entmax_vjp)(x.v, y.v, alpha), (x.v == 0) & (x.b == 0)
        smallest = np.arange(x.shape[-1]) == np.argmin(np.where(x.v > 0, x.v, 2.0), axis=-1)[..., None]
        others = ~smallest & ~hidden
        logs = np.abs(np.log(np.where(x.v > 0, x.v, 1.0)))
        relative = (2 * FUNCTION * (1 + power * logs) + 16) * p.u
        g, most = (
            np.where(others & (x.v > 0), slope(x.v), 0.0),
            np.where(others, slope(x.v - x.b) * (1 + relative), 0.0),
        )
        least = np.where(x.v > 0, slope(x.v + x.b) * (1 - relative), 0.0)
        loose = np.maximum(most - g, np.where(others, g - least, 0.0))
        dp, db = (np.sum(np.where(smallest, a, 0.0), axis=-1, keepdims=True) for a in (y.v, y.b))
        sum_of_g, gap = over(slope(x.v) * (x.v > 0)), np.abs(y.v - dp)
        shares = np.where(others, most / over(np.where(smallest | others, least, 0.0)), 0.0)
        share = np.where(others & (x.v > 0), np.where(np.isfinite(sum_of_g), g / sum_of_g, 0.0), 0.0)
        shares, loose_share = np.minimum(shares, 1.0), np.minimum(np.abs(shares - share), 1.0)
        own = p.gamma(x.shape[-1] + 16) * (over(shares * magnitude(y)) + magnitude(y) + np.abs(dp))
        inner = y.b + db + over(loose_share * gap + shares * (y.b + db)) + own
        mean = dp + over(share * (y.v - dp))
        b = np.where(others, loose * np.abs(y.v - mean) + most * inner, 0.0)
        size = np.abs(np.where(others, v, 0.0)) + b
        b = np.where(smallest & ~hidden, over(b) + p.gamma(x.shape[-1] + 4) * over(size), b)
        b = np.where(hidden, 0.0, np.where(np.isnan(b), np.inf, b + p.eta))
    return jostled(ErrArray(v, np.where(np.isfinite(v), b, 0.0)))


@rule(FUNCTIONS, simplex.bisected_entmax)
def bisected_entmax(scores: Any, allowed: Any, alpha: float) -> ErrArray:
    """A weight is a function that rises with z - t, so it lies between its values at both ends of what z - t may be.

    t moves by no more than the scores do at most. The sum of the weights falls at least as fast as t rises, since each
    falls by itself to the power of 2 - alpha, and no weight is above 1: so t errs further by what the sum does, and by
    the last halving. Logarithm and exponential err relative to the logarithm of the weight.
    """
    s, p = lift(scores), promised()
    ok = np.ones(s.shape, bool) if allowed is None else np.broadcast_to(allowed, s.shape)
    probs = plain(simplex.bisected_entmax)(s.v, None if allowed is None else ok, alpha)

    def weights(gap: np.ndarray) -> np.ndarray:
        base = np.maximum((alpha - 1) * gap, -1.0)
        return np.minimum(np.exp(np.log1p(base) / (alpha - 1)), 1.0)

    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        top = np.max(np.where(ok, s.v, -np.inf), axis=-1, keepdims=True)
        z = np.where(ok & np.isfinite(s.v), s.v - np.where(np.isfinite(top), top, 0.0), -np.inf)
        t = -np.expm1((alpha - 1) * np.log(np.max(probs, axis=-1, keepdims=True))) / (alpha - 1)
        loose = np.max(np.where(ok, s.b, 0.0), axis=-1, keepdims=True)
        far = np.where(np.isfinite(z), np.abs(z), 0.0)
        own = 8 * p.u * (far + np.abs(t) + s.b + loose + 1 / (alpha - 1))
        logs = np.where(probs > 0, np.abs(np.log(np.where(probs > 0, probs, 1.0))), 0.0)
        relative = np.expm1((2 * FUNCTION + 4) * p.u * (logs + 1) / min(alpha - 1, 1.0))
        moved = np.maximum(weights(z - t + own) - probs, probs - weights(z - t - own))
        excess = np.sum(np.where(ok, moved + relative * probs, 0.0), axis=-1, keepdims=True)
        excess = excess + p.gamma(s.shape[-1] + 4)
        gap = s.b + loose + own + 2 * excess + 8 * p.u * (np.abs(t) + 1)
        most = np.maximum(weights(z - t + gap) - probs, probs - weights(z - t - gap))
        b = np.where(ok, np.minimum(most * (1 + relative) + probs * relative, 1.0), 0.0)
        b = np.where(np.isnan(probs) & ~np.isposinf(s.b), 0.0, np.where(np.isnan(b), np.inf, b))
    return jostled(ErrArray(probs, b))


@rule(FUNCTIONS, simplex.entmax_vjp)
def entmax_vjp(probs: Any, dprobs: Any, alpha: float) -> ErrArray:
    """g (dp - D), as for 1.5-entmax, where g is a weight to the power of 2 - alpha.

    Above alpha = 2 a smaller weight has a larger g: where the support is open, anything may come out in a row.
    """
    x, y, p = lift(probs), lift(dprobs), promised()

    def power(a: np.ndarray) -> np.ndarray:
        return np.where(a > 0, np.exp((2 - alpha) * np.log(np.where(a > 0, a, 1.0))), 0.0 if alpha < 2 else np.inf)

    def over(a: np.ndarray) -> np.ndarray:
        return np.sum(a, axis=-1, keepdims=True)

    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        v, hidden = plain(simplex.entmax_vjp)(x.v, y.v, alpha), (x.v == 0) & (x.b == 0)
        g = np.where(x.v > 0, power(x.v), 0.0)
        ends = power(np.maximum(x.v - x.b, 0.0)), power(x.v + x.b)
        logs = np.abs(np.log(np.where(x.v > 0, x.v, 1.0)))
        own = (2 * FUNCTION * (1 + abs(2 - alpha) * logs) + 8) * p.u * g
        loose = np.where(hidden, 0.0, np.maximum(abs(ends[0] - g), abs(ends[1] - g)) + own)
        size = over(g)
        mean = over(g * y.v) / np.where(size == 0, 1.0, size)
        gap, spread = np.abs(y.v - mean), over((g + loose) * magnitude(y))
        moved = over(loose * gap) + over((g + loose) * y.b) + 2 * p.gamma(x.shape[-1] + 8) * spread
        least = np.maximum(size - over(loose), 0.0)
        inner = y.b + np.where(moved == 0, 0.0, moved / np.where(size == 0, 1.0, least))
        b = loose * gap + (g + loose) * (inner + 8 * p.u * (magnitude(y) + np.abs(mean) + inner))
        b = np.where(hidden, 0.0, np.where(np.isnan(b), np.inf, b + p.eta))
    return jostled(ErrArray(v, np.where(np.isfinite(v), b, 0.0)))


@rule(FUNCTIONS, sparse.hardmax)
def hardmax(scores: Any, allowed: Any = None) -> ErrArray:
    """A decision, exact where the bounds of the scores leave one winner; else each that may win is 0 or 1.

    A score wins if it lies above all before it and is no smaller than any after it, so scores that are equal without an
    error have one winner, the first.
    """
    s = lift(scores)
    ok = np.ones(s.shape, bool) if allowed is None else np.broadcast_to(allowed, s.shape)
    hard = plain(sparse.hardmax)(s.v, None if allowed is None else ok)
    if hard.size == 0:
        return ErrArray(hard, 0.0)
    with np.errstate(invalid="ignore"):
        high, low = np.where(ok, s.v + s.b, -np.inf), np.where(ok, s.v - s.b, -np.inf)
        least = np.full((*s.shape[:-1], 1), -np.inf)
        before = np.maximum.accumulate(np.concatenate([least, low[..., :-1]], -1), axis=-1)
        after = np.maximum.accumulate(np.concatenate([least, low[..., :0:-1]], -1), axis=-1)[..., ::-1]
        may = ok & (high > before) & (high >= after)
    b = np.where(may & (np.sum(may, axis=-1, keepdims=True) > 1), 1.0, 0.0)
    lost = np.any(ok & ~np.isfinite(s.b), axis=-1, keepdims=True)
    return ErrArray(hard, np.where(lost, np.inf, b))


@rule(FUNCTIONS, chosen.top_k_indices)
def top_k_indices(scores: Any, allowed: Any, count: int) -> np.ndarray:
    """A decision by the values. Scores of random inputs are hardly ever as near as their bounds; where they are, two
    candidates may choose differently, and one of them is alarmed.
    """
    return plain(chosen.top_k_indices)(lift(scores).v, allowed, count)


@rule(FUNCTIONS, sparse.straight_through)
def straight_through(hard: Any, soft: Any) -> ErrArray:
    """What is added is a number less itself."""
    return lift(hard)
