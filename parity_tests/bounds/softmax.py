"""Rules for the softmax, whole and in parts, and its gradient."""

from typing import Any

import numpy as np

from attn_np import ops
from attn_np.attention import attend
from attn_np.ops import vjp
from parity_tests.bounds.error_array import FUNCTIONS, ErrArray, Flag, jostled, lift, magnitude, plain, rounded, rule
from parity_tests.bounds.precision import FUNCTION, current_noise, promised


def others(x: np.ndarray, axis: int, apart: bool) -> np.ndarray:
    """The sum of all entries of an axis but each one's own, which are not below 0.

    As the sum of all less one's own, which loses by a rounding of the sum what the others are; `apart` by the sums of
    those before and of those behind, in three times the time.
    """
    if not apart:
        return np.maximum(np.sum(x, axis=axis, keepdims=True) - x, 0.0)
    x = np.moveaxis(x, axis, -1)
    ends = np.zeros((*x.shape[:-1], 1))
    before = np.cumsum(np.concatenate([ends, x[..., :-1]], -1), -1)
    behind = np.cumsum(np.concatenate([ends, x[..., :0:-1]], -1), -1)[..., ::-1]
    return np.moveaxis(before + behind, -1, axis)


@rule(FUNCTIONS, ops.softmax)
def softmax(scores: Any, allowed: Any = None, axis: int = -1) -> ErrArray:
    """Errors e_j in the exponents move p_j most when it rises by e_j and all others fall by theirs, and conversely.

    e_j collects the bound of the score, the rounding of the subtracted maximum (the maximum itself cancels) and the
    error of `exp`. The sum and the division add rho, relative. With up = e^{e_j} - 1, down = 1 - e^{-e_j}:
    the extremes of p_j e^{d_j} / sum_i p_i e^{d_i} over |d_i| <= e_i are the two quotients below. Where the bounds
    leave open who may be seen, the weights of a row may be those of other keys: anything from 0 to 1.
    """
    if isinstance(allowed, Flag):
        found = softmax(scores, allowed.value, axis)
        unsure = np.broadcast_to(allowed.undecided, found.shape)
        if not unsure.any():
            return found
        rows, could = np.any(unsure, axis=axis, keepdims=True), allowed.value | allowed.undecided
        most = np.maximum(found.v, 1 - found.v)
        return ErrArray(found.v, np.where(rows & could, np.maximum(found.b, most), found.b))
    s, p = lift(scores), promised()
    ok = np.ones(s.shape, bool) if allowed is None else np.broadcast_to(allowed, s.shape)
    n = s.shape[axis]
    probs = plain(ops.softmax)(s.v, None if allowed is None else ok, axis)
    if n == 0:
        return ErrArray(probs, 0.0)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        top = np.max(np.where(ok, s.v, -np.inf), axis=axis, keepdims=True)
        top = np.where(np.isfinite(top), top, 0.0)
        loose = np.max(np.where(ok, s.b, 0.0), axis=axis, keepdims=True)
        far = np.where(np.isfinite(s.v), np.abs(s.v - top), 0.0)
        e = np.where(ok, s.b + p.u * (far + s.b + loose) + FUNCTION * p.u, 0.0)
        up, down = np.expm1(e), -np.expm1(-e)
        fall = np.sum(probs * down, axis=axis, keepdims=True)
        # Where one weight is nearly all, an error of more than 1 makes the others grow beyond a rounding of their sum.
        apart = bool(np.max(e, initial=0.0) > 1)
        rest, fallen, risen = (others(x, axis, apart) for x in (probs, probs * down, probs * up))
        higher = (up * rest + fallen) / (probs * (up + 1) + np.maximum(rest - fallen, 0))
        lower = (down * rest + risen) / (probs * (1 - down) + rest + risen)
        rho = p.gamma(n) + 4 * p.u
        relative = np.maximum(np.nan_to_num(higher, nan=np.inf), np.nan_to_num(lower, nan=1.0))
        eta = np.where(ok, 4 * p.eta, 0.0)
        moved = np.minimum(np.where(probs > 0, probs * relative, 0.0), np.maximum(probs, 1 - probs))
        b = np.where(ok, moved * (1 + rho) + probs * rho + eta, 0.0)
        # A weight that underflowed to 0 in float64 can only become visible by a large error in its exponent.
        b = np.where(ok & (probs == 0), np.minimum(np.exp(np.minimum(2 * loose - 700, 0.0)) + eta, 1.0), b)
        b = np.where(np.isnan(probs) & ~np.isposinf(s.b), 0.0, b)
        w = probs * up / np.where(fall < 1, 1 - fall, np.nan)
        again = None
        if p.recomputed:
            logs = np.where(probs > 0, np.log(np.where(probs > 0, probs, 1.0)), 0.0)
            lse = np.max(np.where(probs > 0, s.v - logs, -np.inf), axis=axis, keepdims=True)
            far = np.where(np.isfinite(lse), np.abs(lse), 0.0) + np.abs(logs)
            again = np.expm1(s.b + loose + p.u * (far + s.b + loose) + FUNCTION * p.u)
    centred = axis in (-1, s.ndim - 1) and np.isfinite(w).all()
    if current_noise() is not None:
        return jostled(ErrArray(probs, b))
    return ErrArray(probs, b, (w, rho, eta) if centred else None, again)


@rule(FUNCTIONS, attend.log_sum_exp)
def log_sum_exp(scores: Any, allowed: Any = None) -> ErrArray:
    """The logarithm of sum p_j e^{e_j}, where e_j is what moves the exponent of a weight p_j: a mean of the errors.

    The largest score cancels but for one rounding. Sum, logarithm and the last addition err as elsewhere.
    """
    s, p = lift(scores), promised()
    ok = np.ones(s.shape, bool) if allowed is None else np.broadcast_to(allowed, s.shape)
    v = plain(attend.log_sum_exp)(s.v, None if allowed is None else ok)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        top = np.max(np.where(ok, s.v, -np.inf), axis=-1, keepdims=True, initial=-np.inf)
        top = np.where(np.isfinite(top), top, 0.0)
        far = np.where(ok & np.isfinite(s.v), np.abs(s.v - top), 0.0)
        e = np.where(ok, s.b + p.u * (far + s.b) + FUNCTION * p.u, 0.0)
        weights = np.where(ok & np.isfinite(s.v), np.exp(s.v - v[..., None]), 0.0)
        moved = np.log1p(np.sum(weights * np.expm1(e), axis=-1))
        b = 2 * moved + p.gamma(s.shape[-1] + 4) + (2 * FUNCTION + 4) * p.u * (1 + np.abs(v) + np.abs(v - top[..., 0]))
        b = np.where(np.isfinite(v), np.where(np.isnan(b), np.inf, b + p.eta), 0.0)
    return jostled(ErrArray(v, b))


def recompute(tape: dict[str, Any]) -> None:
    """Give the weights on a tape the bounds with which the backward pass reads them; they add up to 1 less exactly."""
    for name, x in tape.items():
        if isinstance(x, ErrArray) and x.again is not None:
            more = np.max(x.again, axis=-1, keepdims=True, initial=0.0)
            soft = None if x.soft is None else (x.soft[0], x.soft[1] + more, x.soft[2])
            tape[name] = ErrArray(x.v, x.b + np.abs(x.v) * x.again, soft)


@rule(FUNCTIONS, vjp.softmax_vjp)
def softmax_vjp(probs: Any, dprobs: Any, axis: int = -1) -> ErrArray:
    """ds = p (dp - D), D = sum p dp. An error common to all dp cancels, so errors in p act on dp - D (centred).

    Automatic differentiation computes e (dp/t - sum(dp e)/t^2) from the unnormalised e = p t: with the roundings of
    both quotients that is 8 u more, relative to |dp| and to sum p |dp|. As t >= 1, e may be seen where p underflowed:
    it differs from p t by one underflow, which acts on dp - D. A row that sees nothing has no e.
    """
    x, y, p = lift(probs), lift(dprobs), promised()
    n = max(x.shape[axis], 1)

    def over(a: np.ndarray) -> np.ndarray:
        return np.sum(a, axis=axis, keepdims=True)

    with np.errstate(invalid="ignore", over="ignore"):
        dot, size = over(x.v * y.v), over((x.v + x.b) * magnitude(y))
        rho, eta = (x.soft[1], over(x.soft[2])) if x.soft else (np.inf, 0.0)
        direct = over(x.b * np.abs(y.v))
        centred = np.fmin(over(x.b * np.abs(y.v - dot)) + np.abs(dot) * (rho + eta), direct) if x.soft else direct
        error = centred + over((x.v + x.b) * y.b) + (p.gamma(n) + 8 * p.u) * size
        gap, inner = np.abs(y.v - dot), y.b + error
        seen = x.b > 0 if x.soft else over(x.v) > 0  # the softmax itself knows who may be seen
        loose = x.b + np.where(seen, p.eta, 0.0)
        b = loose * (gap + inner) + x.v * inner + 8 * p.u * (x.v + x.b) * (np.abs(y.v) + np.abs(dot) + inner)
    return rounded(x.v * (y.v - dot), b)


@rule(FUNCTIONS, vjp.part_of_softmax)
def part_of_softmax(scores: Any, top: Any, total: Any, parts: int) -> ErrArray:
    """A running softmax gets the same weight as a product: one factor more for each part that came after."""
    out = plain(vjp.part_of_softmax)(lift(scores), lift(top), lift(total), parts)
    return ErrArray(out.v, out.b + parts * (FUNCTION + 2) * promised().u * magnitude(out))


@rule(FUNCTIONS, vjp.part_of_softmax_vjp)
def part_of_softmax_vjp(probs: Any, dprobs: Any, share: Any, parts: int) -> ErrArray:
    """Automatic differentiation divides dp and the share by the sum first, and multiplies each by the same factors.

    A factor may be seen where the weight underflowed, as for the whole softmax: one underflow for each part.
    """
    probs, dprobs, share = lift(probs), lift(dprobs), lift(share)
    out, p = plain(vjp.part_of_softmax_vjp)(probs, dprobs, share, parts), promised()
    size = magnitude(dprobs) + magnitude(share)
    lost = np.where(share.v == 0, 0.0, (1 + parts) * p.eta * size)
    return ErrArray(out.v, out.b + (8 + 2 * parts) * p.u * magnitude(probs) * size + lost)
