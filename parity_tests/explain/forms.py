"""The same layer in another form: fields of a config that change how it computes, and not what.

A mistake in the source is planted in each: an implementation of one's own need not take the form of the reference.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

# Each field with the values to try; chunks of two positions hand a state on at almost every length.
FORMS: tuple[dict[str, Any], ...] = (
    {"form": "recurrent"},
    {"form": "parallel"},
    {"form": "chunked", "chunk_size": 2},
    {"absorbed": True},
    {"absorbed": False},
)


def other_forms(config: Any) -> Iterator[Any]:
    """The configs of the same layer in each other form."""
    for fields in FORMS:
        if set(fields) <= set(config.fields()) and any(getattr(config, n) != x for n, x in fields.items()):
            try:
                yield replace(config, **fields)
            except ValueError:
                continue
