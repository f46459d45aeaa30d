"""Who takes part: names, how they are drawn, and which module makes them."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from benchmarks.plan import BOTH, Entrant, Work
from benchmarks.turns import Runner


@dataclass(frozen=True)
class Who:
    """An entrant's own facts.

    Attributes:
        module: which file of this folder makes its work.
        packages: what must be installed.
        ours: one of the three trees on its fast path; the others are what it is compared with.
        colour, dashes: how its line is drawn.
        matrices: how many arrays `b h t s` it holds at the same time at least; 0 where it needs none. What does not
            fit into memory is not started.
    """

    module: str
    packages: tuple[str, ...]
    ours: bool
    colour: str
    dashes: str
    matrices: int = 0


WHO = {
    "attn_np": Who("with_numpy", ("numpy",), True, "#1b7837", "-"),
    "attn_np textbook": Who("with_numpy", ("numpy",), False, "#7fbf7b", ":", 4),
    "two products": Who("with_numpy", ("numpy",), False, "#777777", "-.", 1),
    "attn_torch": Who("with_torch", ("torch",), True, "#c24a0c", "-"),
    "attn_torch textbook": Who("with_torch", ("torch",), False, "#f0a06a", ":", 4),
    "torch SDPA": Who("with_torch", ("torch",), False, "#7c1f04", "--"),
    "nn.MultiheadAttention": Who("with_torch", ("torch",), False, "#7c1f04", "--"),
    "torch loop": Who("with_torch", ("torch",), False, "#7c1f04", "--"),
    "Keras on torch": Who("with_keras", ("keras", "torch"), False, "#c51b7d", "--", 3),
    "attn_jax": Who("with_jax", ("jax", "flax"), True, "#2a6aa8", "-"),
    "attn_jax textbook": Who("with_jax", ("jax", "flax"), False, "#8fbbdf", ":", 3),
    "jax.nn": Who("with_jax", ("jax",), False, "#12355b", "--", 3),
    "nnx.MultiHeadAttention": Who("with_jax", ("jax", "flax"), False, "#12355b", "--", 3),
    "Keras on JAX": Who("with_keras", ("keras", "jax"), False, "#c51b7d", "--", 3),
    "Equinox": Who("with_jax", ("equinox", "jax"), False, "#762a83", "--", 3),
}


def prepare(entrant: Entrant) -> Runner:
    """Its work, ready to be done.

    Raises:
        ImportError: a package that it needs is not there.
        ValueError: it does no such work.
    """
    makers: dict[str, Callable[[Work], Runner]] = import_module(f"benchmarks.entrants.{WHO[entrant.who].module}").MAKERS
    return makers[entrant.who](entrant.work)


def bytes_needed(entrant: Entrant) -> int:
    """What the attention matrices of an entrant take at least, where it forms them."""
    work = entrant.work
    if work.what == "decode":
        return 0
    each = work.batch * work.heads * work.length**2 * 4
    return each * WHO[entrant.who].matrices * (2 if work.passes == BOTH else 1)
