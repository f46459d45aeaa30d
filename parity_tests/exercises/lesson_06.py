"""Graded exercises of lesson 6: positions."""

import numpy as np

from parity_tests.exercises._exercise import Exercise, normal


def rotate(x, positions):
    half = x.shape[-1] // 2
    angles = positions[:, None] * 10000.0 ** (-np.arange(half) / half)
    a, b, c, s = x[..., :half], x[..., half:], np.cos(angles), np.sin(angles)
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)


def alibi(length, heads):
    slopes = 2.0 ** (-8 * np.arange(1, heads + 1) / heads)
    return -slopes[:, None, None] * abs(np.arange(length)[:, None] - np.arange(length))


def rotate_vjp(dy, positions):
    return rotate(dy, -positions)


def with_angles(angles_of):
    """Rotation by other angles: a function of the positions and of half the width."""

    def turned(x, positions):
        half = x.shape[-1] // 2
        angles = angles_of(positions[:, None], np.arange(half), half)
        a, b, c, s = x[..., :half], x[..., half:], np.cos(angles), np.sin(angles)
        return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)

    return turned


def neighbours(x, positions):
    half = x.shape[-1] // 2
    order = np.concatenate([np.arange(0, 2 * half, 2), np.arange(1, 2 * half, 2)])
    return rotate(x[..., order], positions)[..., np.argsort(order)]


def one_sign(x, positions):
    half = x.shape[-1] // 2
    angles = positions[:, None] * 10000.0 ** (-np.arange(half) / half)
    a, b, c, s = x[..., :half], x[..., half:], np.cos(angles), np.sin(angles)
    return np.concatenate([a * c + b * s, b * c + a * s], axis=-1)


def biases(slopes_of, distance=lambda t: abs(t[:, None] - t), sign=-1):
    """Biases with other slopes or distances."""
    return lambda length, heads: sign * slopes_of(heads)[:, None, None] * distance(np.arange(length))


def slopes(heads):
    return 2.0 ** (-8 * np.arange(1, heads + 1) / heads)


def draw_rotated(name):
    return lambda rng: {name: normal(rng, 5, 6), "positions": 2 + np.arange(5)}


EXERCISES = (
    Exercise(
        "6.4",
        (
            "Rotary positions: turn `x` (t, k) by `positions` (t), with the base 10000. Number `i` is paired with "
            "number `i + k / 2`."
        ),
        rotate,
        draw_rotated("x"),
        {
            "rotary layouts exchanged": neighbours,
            "rotary angles the wrong way round": lambda x, positions: rotate(x, -positions),
            "rotary positions counted from 1": lambda x, positions: rotate(x, positions + 1),
            "rotary positions counted from 0, whatever is given": lambda x, positions: rotate(
                x, np.arange(len(positions))
            ),
            "rotary angles of base^(-i/d), without the 2": with_angles(
                lambda p, i, half: p * 10000.0 ** (-i / (2 * half))
            ),
            "rotary frequencies growing in place of falling": with_angles(lambda p, i, half: p * 10000.0 ** (i / half)),
            "one frequency for all pairs": with_angles(lambda p, i, half: p + 0.0 * i),
            "two plus signs: no rotation": one_sign,
            "not rotated": lambda x, positions: x,
        },
    ),
    Exercise(
        "6.5",
        "The biases of ALiBi, (heads, length, length), both directions alike; the number of heads is a power of two "
        "(for others the paper has another rule).",
        alibi,
        lambda rng: {"length": 7 + int(rng.integers(4)), "heads": 4},
        {
            "distances added instead of taken off": lambda length, heads: -alibi(length, heads),
            "distances with a sign": biases(slopes, lambda t: t[:, None] - t),
            "distances with the opposite sign": biases(slopes, lambda t: t - t[:, None]),
            "slopes of the heads in reverse": biases(lambda heads: slopes(heads)[::-1]),
            "slopes that begin at 1": biases(lambda heads: 2.0 ** (-8 * np.arange(heads) / heads)),
            "slopes halved from head to head, whatever their number": biases(
                lambda heads: 2.0 ** -np.arange(1, heads + 1)
            ),
            "squares of the distances": biases(slopes, lambda t: (t[:, None] - t) ** 2),
            "one slope for all heads": biases(lambda heads: slopes(heads)[:1].repeat(heads)),
        },
    ),
    Exercise(
        "6.6",
        "The backward of `rotate`: the gradient of `x` from `dy` (t, k) and the positions.",
        rotate_vjp,
        draw_rotated("dy"),
        {
            "rotary gradient turned forwards once more": lambda dy, positions: rotate(dy, positions),
            "gradient not turned": lambda dy, positions: dy,
            "gradient turned back by positions counted from 0": lambda dy, positions: rotate(
                dy, -np.arange(len(positions))
            ),
            "gradient turned back in the other layout": lambda dy, positions: neighbours(dy, -positions),
            "gradient turned back twice": lambda dy, positions: rotate(dy, -2 * positions),
        },
    ),
)
