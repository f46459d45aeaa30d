"""What all three trees promise of `attend`: its check, in the standard library only."""

from attn_np.contract._base import require

PATHS = ("auto", "textbook")

# The axis of the scores along which the weights add up to 1.
AXES = {"keys": -1, "queries": -2}


def check(
    q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...], normalize_over: str, implementation: str
) -> None:
    """Refuse shapes that cannot be attended over, and unknown words.

    Raises:
        ValueError: naming what was expected, what was given and what to do.
    """
    require(
        implementation in PATHS,
        "attend",
        f"implementation to be one of {', '.join(PATHS)}",
        repr(implementation),
        "set implementation=",
    )
    require(
        normalize_over in AXES,
        "attend",
        f"normalize_over to be one of {', '.join(AXES)}",
        repr(normalize_over),
        "set normalize_over=",
    )
    fits = len(q) in (3, 4) and len(k) == len(v) == len(q)
    fits = fits and q[0] == k[0] == v[0] and q[-1] == k[-1] and k[:-1] == v[:-1]
    require(
        fits,
        "attend",
        "q (b, t, h, k), k (b, s, g, k), v (b, s, g, v), or all three without the head axis",
        f"q {q}, k {k}, v {v}",
        "put the axes in this order",
    )
    if len(q) == 4:
        require(
            k[2] > 0 and q[2] % k[2] == 0,
            "attend",
            "the query heads to be a multiple of the key/value heads",
            f"{q[2]} and {k[2]}",
            "share each key/value head among equally many query heads",
        )
