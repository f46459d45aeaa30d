"""What a cache says of itself outside compiled programs, and what is refused of tensors split over processes."""

from typing import Any

import torch


def use_up(cache: Any) -> None:
    """Mark a cache as used up: its arrays are those of the next one, which writes into them. Not while compiling."""
    if not torch.compiler.is_compiling():
        object.__setattr__(cache, "spent", True)


def read_lengths(cache: Any) -> list[int]:
    """The lengths of a cache as Python's numbers: those that were noted, where the array is what it was then.

    In inference mode PyTorch does not count what is written to an array, so there lengths must change by the cache's
    methods alone.
    To read an array back from a device waits for all that the device has to do.
    """
    lengths, version = getattr(cache, "noted_lengths", (None, None))
    return cache.length.tolist() if lengths is None or version != version_of(cache.length) else lengths


def note_lengths(cache: Any, lengths: list[int] | int | None) -> Any:
    """The cache itself, which carries its lengths from now on; one number is that of every sequence."""
    if lengths is not None and not torch.compiler.is_compiling():
        lengths = [lengths] * cache.length.shape[0] if isinstance(lengths, int) else lengths
        object.__setattr__(cache, "noted_lengths", (lengths, version_of(cache.length)))
    return cache


def refuse_plain_cache(buffer: torch.Tensor, entry: torch.Tensor) -> None:
    """Refuse a cache of plain arrays for keys that are sharded over processes.

    Raises:
        ValueError: if it is one.
    """
    if hasattr(entry, "device_mesh") and not hasattr(buffer, "device_mesh"):
        split = f"distribute_tensor(x, mesh, {list(getattr(entry, 'placements', ()))})"
        raise ValueError(
            "cache: expected DTensors, as the new keys are, got plain tensors; pass dataclasses.replace(cache, "
            f"arrays={{name: {split} for name, x in cache.arrays.items()}})"
        )


def refuse_part(x: torch.Tensor) -> None:
    """Refuse a DTensor, of which this process may hold a part.

    Raises:
        ValueError: if it is one.
    """
    if hasattr(x, "full_tensor"):
        fix = "call x.full_tensor() of each parameter x in every process, and set_params of a layer that is whole"
        raise ValueError(f"expected whole tensors, got a DTensor of shape {tuple(x.shape)}; {fix}")


def version_of(x: torch.Tensor) -> int:
    """How often an array was written to; 0 in inference mode, which does not count."""
    return 0 if x.is_inference() else x._version
