"""Dataclasses as pytrees of JAX."""

import json
from collections.abc import Callable, Sequence

import jax.export
from jax.tree_util import register_dataclass


def pytree(*, arrays: Sequence[str], static: Sequence[str]) -> Callable[[type], type]:
    """A decorator that makes a dataclass a pytree of some fields, also in files of `jax.export`; the others are static,
    numbers or words.
    """

    def register(cls: type) -> type:
        register_dataclass(cls, arrays, static)
        jax.export.register_pytree_node_serialization(
            cls,
            serialized_name=f"{cls.__module__.partition('.')[0]}.{cls.__name__}",
            serialize_auxdata=lambda values: json.dumps(values).encode(),
            deserialize_auxdata=lambda values: tuple(json.loads(values)),
        )
        return cls

    return register
