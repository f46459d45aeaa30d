"""Rules for derivatives of activations and norms, and for mixtures of two arrays."""

from typing import Any

import numpy as np

from attn_np import ops
from attn_np.ops import vjp
from parity_tests.bounds.error_array import FUNCTIONS, ErrArray, lift, magnitude, plain, rounded, rule
from parity_tests.bounds.precision import FUNCTION, promised


@rule(FUNCTIONS, vjp.tanh_vjp)
def tanh_vjp(y: Any, dy: Any) -> ErrArray:
    """dy (1 - y^2), or (dy + dy y)(1 - y), which cancels at y = -1 and errs by 2 u |dy| there."""
    y, dy = lift(y), lift(dy)
    out = plain(vjp.tanh_vjp)(y, dy)
    return ErrArray(out.v, out.b + 2 * promised().u * (magnitude(out) + magnitude(dy)))


@rule(FUNCTIONS, vjp.sigmoid_vjp)
def sigmoid_vjp(y: Any, dy: Any) -> ErrArray:
    """dy y (1 - y); or dy y (e y), the gradient of y = 1 / (1 + e) with e = exp(-x); or that of e / (1 + e).

    These make 1 - y, which cancels at y = 1, without y's own roundings: two of them there, four where a quotient is
    divided once more, each u y. Four more are those of the products.
    """
    y, dy, u = lift(y), lift(dy), promised().u
    out = plain(vjp.sigmoid_vjp)(y, dy)
    return ErrArray(out.v, out.b + 4 * u * (magnitude(out) + magnitude(y) * magnitude(dy)))


@rule(FUNCTIONS, vjp.softplus_vjp)
def softplus_vjp(x: Any, dy: Any) -> ErrArray:
    """dy sigmoid(x), or dy exp(x - softplus(x)), whose exponent errs by what its two terms do."""
    x, dy, u = lift(x), lift(dy), promised().u
    out, soft = plain(vjp.softplus_vjp)(x, dy), plain(ops.softplus)(magnitude(x))
    relative = np.expm1(u * (magnitude(x) + (1 + 2 * FUNCTION) * soft))
    return ErrArray(out.v, out.b + relative * magnitude(out))


@rule(FUNCTIONS, vjp.silu_vjp)
def silu_vjp(x: Any, dy: Any) -> ErrArray:
    """dy s + dy x s (1 - s), or dy s (1 + x (1 - s)), which cancels: its parts err relative to their size."""
    x, dy, u = lift(x), lift(dy), promised().u
    out = plain(vjp.silu_vjp)(x, dy)
    return ErrArray(out.v, out.b + 8 * u * magnitude(dy) * (1 + magnitude(x)) * plain(ops.sigmoid)(x.v))


@rule(FUNCTIONS, vjp.divide_by_norm_vjp)
def divide_by_norm_vjp(x: Any, size: Any, dy: Any, share: float) -> ErrArray:
    """Two terms that cancel where dy points along x; automatic differentiation makes each by other quotients.

    That is eight roundings more of the first term, and of the second the sum's and twice as many.
    """
    x, size, dy, p = lift(x), lift(size), lift(dy), promised()
    out = plain(vjp.divide_by_norm_vjp)(x, size, dy, share)
    along = np.sum(magnitude(dy) * magnitude(x), axis=-1, keepdims=True) * share / size.v**3
    more = 8 * p.u * magnitude(dy) / size.v + (p.gamma(x.shape[-1]) + (16 + FUNCTION) * p.u) * magnitude(x) * along
    return ErrArray(out.v, out.b + more)


@rule(FUNCTIONS, ops.lerp)
def lerp(a: Any, b: Any, z: Any) -> ErrArray:
    """y = (1 - z) a + z b moves by (1 - z) da + z db + dz (b' - a'), so an error that a and b share counts once.

    Computed as it stands here or as a + z (b - a): two roundings before the last one in either form.
    """
    a, b, z, u = lift(a), lift(b), lift(z), promised().u
    gap, rest, part = np.abs(b.v - a.v) + a.b + b.b, np.abs(1 - z.v), np.abs(z.v)
    moved = rest * a.b + part * b.b + z.b * gap
    return rounded(
        a.v + z.v * (b.v - a.v), moved + 2 * u * np.maximum(part * gap, rest * magnitude(a) + part * magnitude(b))
    )


@rule(FUNCTIONS, vjp.one_minus_z_times)
def one_minus_z_times(z: Any, dy: Any) -> ErrArray:
    """(1 - z) dy moves by (1 - z) d(dy) + dz dy, so an error of dy counts once; computed so or as dy - z dy."""
    z, dy, u = lift(z), lift(dy), promised().u
    rest = np.abs(1 - z.v)
    moved = rest * dy.b + z.b * magnitude(dy)
    return rounded(dy.v - z.v * dy.v, moved + 2 * u * (magnitude(z) + rest) * magnitude(dy))
