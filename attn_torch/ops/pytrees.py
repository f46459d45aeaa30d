"""Dataclasses as pytrees of PyTorch."""

from collections.abc import Callable, Sequence

import torch


def pytree(*, arrays: Sequence[str], static: Sequence[str]) -> Callable[[type], type]:
    """A decorator that makes a dataclass a pytree, for `torch.export`; JAX needs to know which fields are static."""

    def register(cls: type) -> type:
        torch.export.register_dataclass(cls, serialized_type_name=f"{cls.__module__.partition('.')[0]}.{cls.__name__}")
        return cls

    return register
