"""What all three trees promise of decoding: what a cache holds, and the checks of `init_cache` and `step`."""

from collections.abc import Mapping
from typing import Any

from attn_np.contract._base import Config, Spec, require

# One more slot than there is room for takes the entries that are not to be kept.
SPARE = 1


def slots(config: Config, max_length: int) -> int:
    """How many positions a cache keeps at once: all of them, or the last that any later query can see."""
    return max_length if config.reach() is None else min(max_length, config.reach() or 1)


def cache_shapes(
    config: Config, batch_size: int, max_length: int, sizes: Mapping[str, int]
) -> dict[str, tuple[int, ...]]:
    """Shape of every array of a cache, by name; `sizes` are those that the config leaves open.

    Raises:
        ValueError: a layer that has nothing to decode with, or sizes below 1.
    """
    v = config.variant
    for name, size in {"batch_size": batch_size, "max_length": max_length, **sizes}.items():
        fits = isinstance(size, int) and not isinstance(size, bool) and size >= 1
        require(fits, v, f"{name} to be an integer of at least 1", repr(size), f"set {name}=")
    require(bool(config.cached()), v, "a layer that decodes", config.no_cache(), "see its contract's fields")
    known = {**sizes, **config.sizes(), "b": batch_size, "s": slots(config, max_length) + SPARE}
    axes = {name: letters.split() for name, letters in config.cached().items()}
    open_ = sorted({letter for letters in axes.values() for letter in letters} - set(known))
    require(not open_, v, f"sizes of {', '.join(open_)}", "none", f"pass {', '.join(f'{x}=' for x in open_)}")
    return {name: tuple(known[letter] for letter in letters) for name, letters in axes.items()}


def check_step(
    config: Config, training: bool, query: Spec | None, valid: Spec | None, cache: Mapping[str, tuple[int, ...]]
) -> None:
    """Refuse a step that cannot be right, before anything is written.

    Raises:
        ValueError: no new position, a cache of another layer or batch, a layer that would drop weights at random.
        TypeError: `valid` of another dtype than bool.
    """
    v = config.variant
    dropping = training and getattr(config, "dropout", 0) > 0
    require(not dropping, v, "a layer in evaluation mode to decode with", "training mode and dropout", "call eval()")
    shape: tuple[int, ...] = () if query is None else query[0]
    batch, new = (*shape, 0, 0)[:2]
    require(len(shape) > 1 and new > 0, v, "a query of at least one new position", shape, "pass (b, t, d)")
    known = config.cached()
    require(set(cache) == set(known), v, f"a cache of {', '.join(known)}", ", ".join(cache), "call init_cache")
    sizes = {**config.sizes(), "b": batch}
    for name, axes in known.items():
        want = tuple(sizes.get(letter, n) for letter, n in zip(axes.split(), cache[name], strict=False))
        fits = want == cache[name] and len(axes.split()) == len(want)
        require(fits, v, f"the cache's {name} of shape {want}", cache[name], "call init_cache for this layer and batch")
    if valid is not None:
        require(valid[0] == shape[:2], v, f"valid of shape {shape[:2]}", valid[0], "say of each position if it is real")
        if valid[1] != "bool":
            raise TypeError(f"{v}: expected a boolean valid (True = a real position), got {valid[1]}; pass valid == 1")


def check_room(variant: str, length: Any, max_length: int) -> None:
    """Refuse positions that a cache has no room for, wherever their number is known.

    Raises:
        ValueError: naming both numbers.
    """
    todo = "call init_cache with a larger max_length"
    require(length <= max_length, variant, f"at most {max_length} positions in the cache", length, todo)
