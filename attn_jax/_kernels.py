"""The fast path of `attend`: none yet in this tree, so that every call goes the textbook path."""

from typing import Any

from attn_jax._core import Array


def serves(q: Array, k: Array, v: Array) -> bool:
    """Whether the fast path can take these arrays."""
    return False


def attend(q: Array, k: Array, v: Array, **options: Any) -> Array:
    """`b t h k`, `b s g k`, `b s g v` -> `b t h v`."""
    raise NotImplementedError("attend: no fast path in this tree")
